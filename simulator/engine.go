package simulator

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"headroom_exporter/collector/gpu"
)

// ErrStopped is the error of a request that comes after the engine's end.
var ErrStopped = errors.New("simulator: the engine has stopped")

// Engine runs the ranks on the wall clock, or on the clock of a
// testing/synctest bubble. Its methods may be called from any goroutine, but
// Submit, Abort, Sleep, Wake and Slow not from an Observer or an OnToken,
// which run while the engine is locked.
type Engine struct {
	cfg   Config
	began atomic.Pointer[time.Time]
	level atomic.Int64
	wake  chan struct{}

	mu      sync.Mutex
	ranks   []*rank
	stopped bool
}

var _ gpu.Source = (*Engine)(nil)

// NewEngine returns an engine that is idle and awake.
func NewEngine(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Engine{cfg: cfg, ranks: newRanks(cfg), wake: make(chan struct{}, 1)}, nil
}

// Config returns the configuration of the engine.
func (e *Engine) Config() Config { return e.cfg }

// Run steps the ranks until the context ends, and returns its error. It can run once.
func (e *Engine) Run(ctx context.Context) error {
	began := time.Now()
	if !e.began.CompareAndSwap(nil, &began) {
		return errors.New("simulator: the engine was run before")
	}
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.stopped = true
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	now := 0.0
	for {
		next := e.advance(now)
		if math.IsInf(next, 1) {
			timer.Stop()
		} else {
			// On the absolute schedule, so that late wake-ups do not add up.
			timer.Reset(time.Until(began.Add(e.wallClock(next))))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-e.wake:
			now = e.Now()
		case <-timer.C:
			// Both clocks are rounded: what the timer was set for is due.
			now = max(e.Now(), next)
		}
	}
}

// advance lets everything up to now happen and returns when the next thing does.
func (e *Engine) advance(now float64) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	next := math.Inf(1)
	for _, k := range e.ranks {
		k.advance(now)
		next = min(next, k.next())
	}
	return next
}

// wallClock is the time on the wall clock that a simulated time takes.
func (e *Engine) wallClock(simulated float64) time.Duration {
	return time.Duration(math.Ceil(simulated / e.cfg.Speed * 1e9))
}

// Now is the simulated time in seconds since Run began; 0 before.
func (e *Engine) Now() float64 {
	began := e.began.Load()
	if began == nil {
		return 0
	}
	return time.Since(*began).Seconds() * e.cfg.Speed
}

// Submit gives a request to the least loaded rank and returns that rank. Its
// Arrival becomes Now. It may be called before Run. The error is one of
// Config.Accept, or ErrStopped.
func (e *Engine) Submit(r *Request) (rank int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return 0, ErrStopped
	}
	if err := e.cfg.Accept(r); err != nil {
		return 0, err
	}
	r.Arrival = e.Now()
	rank = submit(e.ranks, r, e.cfg.FrontEndDelay)
	e.signal()
	return rank, nil
}

// Abort ends a request whose client went away; OnToken is not called again
// after Abort returns. It does nothing when the request has ended or was never submitted.
func (e *Engine) Abort(r *Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.stage == stageNew {
		return
	}
	e.ranks[r.rank].abort(r, e.Now())
	e.signal()
}

// Sleep gives the GPU memory back, as vLLM's sleep mode does: level 1 moves
// the weights to the host, level 2 drops them; others count as the nearer of
// the two. Running requests lose their KV cache and wait, with those that
// arrive, for Wake.
func (e *Engine) Sleep(level int) { e.setLevel(min(max(level, 1), 2)) }

// Wake ends Sleep.
func (e *Engine) Wake() { e.setLevel(0) }

func (e *Engine) setLevel(level int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.level.Store(int64(level))
	for _, k := range e.ranks {
		k.asleep = level != 0
		k.evict = k.evict || k.asleep
		k.poke(e.Now())
	}
	e.signal()
}

// SleepLevel is 0 when the engine is awake.
func (e *Engine) SleepLevel() int { return int(e.level.Load()) }

// Slow makes every step from now on take factor times as long, as a GPU with
// capped clocks does; 1 is the full speed, and less counts as 1.
func (e *Engine) Slow(factor float64) {
	factor = max(factor, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, k := range e.ranks {
		k.slow(factor)
	}
}

// signal tells Run to look again.
func (e *Engine) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// GPUs reads every GPU of every rank over the last simulated second.
func (e *Engine) GPUs() []gpu.Reading {
	now, at := e.Now(), time.Now()
	list := make([]gpu.Reading, 0, e.cfg.Ranks*e.cfg.Hardware.TensorParallel)
	for _, k := range e.ranks {
		list = k.meter.read(list, now, at, e.SleepLevel() != 0)
	}
	return list
}

// Snapshot is GPUs as a gpu.Source.
func (e *Engine) Snapshot() gpu.Snapshot {
	readings, now := e.GPUs(), time.Now()
	return gpu.Snapshot{
		At:       now,
		Status:   gpu.Status{Up: true, Reason: gpu.OK, Visible: len(readings), Expected: len(readings), LastSuccess: now},
		Readings: readings,
	}
}
