package sidecar

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
)

// historySpan is how far back the drawn history goes.
const historySpan = 15 * time.Minute

// Poller reads the engine once; engine.Poller implements it.
type Poller interface {
	Poll(ctx context.Context) engine.Observation
}

// Config is what a Sidecar needs.
type Config struct {
	Poller Poller
	// EngineURL is shown, not used.
	EngineURL string
	// GPU may be nil: then nothing is known of any GPU.
	GPU gpu.Source
	// Interval between polls.
	Interval time.Duration
	// SLO must promise a time to first token, which bounds the queue.
	SLO   SLO
	Model Model
	// Curve is the capacity curve; may be nil: then headroom rests on the engine's limits alone.
	Curve CurveSource
	// Identity says what the engine is, to be compared with the curve's.
	Identity func(engine.Observation, gpu.Snapshot) (curve.Identity, error)
	// ApplyCorrection multiplies the load by the curve by how much slower the
	// engine is than its curve; without it that is only shown.
	ApplyCorrection bool
	// TokenSlotsUnbound leaves the KV cache out of the constraints, as where an
	// offload tier keeps it full on purpose.
	TokenSlotsUnbound bool
	// Published is called with each new snapshot; it must not block. May be nil.
	Published func(*Snapshot)
	Logger    *slog.Logger
}

// Validate returns an error that names the field at fault.
func (c Config) Validate() error {
	switch {
	case c.Poller == nil:
		return fmt.Errorf("poller: none given")
	case c.Interval <= 0:
		return fmt.Errorf("engine interval %s: must be above 0", c.Interval)
	case c.SLO.TimeToFirstToken <= 0:
		return fmt.Errorf("SLO for time to first token %s: must be above 0", c.SLO.TimeToFirstToken)
	case c.SLO.TokenLatency < 0 || c.SLO.E2ELatency < 0:
		return fmt.Errorf("SLO thresholds %s and %s: must not be negative", c.SLO.TokenLatency, c.SLO.E2ELatency)
	case !(c.SLO.Objective > 0 && c.SLO.Objective < 1):
		return fmt.Errorf("SLO objective %v: must be a share between 0 and 1", c.SLO.Objective)
	case c.Curve != nil && c.Identity == nil:
		return fmt.Errorf("identity: a curve needs one to be compared with")
	case c.Model.WeightBytes < 0 || c.Model.KVBytesPerToken < 0 || c.Model.PeakBandwidth < 0 || c.Model.GPUs < 0:
		return fmt.Errorf("model %+v: no figure may be negative", c.Model)
	}
	return nil
}

// Sidecar is the live loop. One goroutine runs it; any may read from it.
type Sidecar struct {
	config   Config
	snapshot atomic.Pointer[Snapshot]
	panics   atomic.Uint64

	// Everything below belongs to the loop, but for the ranks' histories,
	// which historyMutex guards.
	state        engine.State
	engineType   engine.Type
	gone         bool
	resets       uint64
	startup      startup
	probed       time.Time // when a probe was last seen to measure the curve
	steps        stepModel
	ranks        map[rankKey]*rank
	historyMutex sync.RWMutex
}

type rankKey struct{ modelName, engine string }

// New returns a Sidecar that has not polled yet.
func New(c Config) (*Sidecar, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("sidecar: %w", err)
	}
	return &Sidecar{config: c, ranks: map[rankKey]*rank{}}, nil
}

// Run polls once an interval until the context ends. A poll that outlasts
// its interval delays the next; polls never overlap.
func (s *Sidecar) Run(ctx context.Context) error {
	ticker := time.NewTicker(s.config.Interval)
	defer ticker.Stop()
	for {
		s.Step(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Step polls once and publishes the snapshot that comes of it. It must not be
// called while Run runs.
func (s *Sidecar) Step(ctx context.Context) {
	defer func() {
		if p := recover(); p != nil {
			s.panics.Add(1)
			s.config.Logger.Error("live loop panicked; the last snapshot stays", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	o := s.config.Poller.Poll(ctx)
	if ctx.Err() != nil {
		return // A poll that was cut short by our own end says nothing of the engine.
	}
	s.logTransition(o)
	gpus := gpu.Snapshot{At: o.At, Status: gpu.Status{Reason: gpu.Off}}
	if s.config.GPU != nil {
		gpus = s.config.GPU.Snapshot()
	}
	restarted := s.restarted(o)
	s.startup.observe(o, restarted)
	snapshot := &Snapshot{
		At:       o.At,
		Engine:   s.engineStatus(o),
		Replicas: s.replicas(o, gpus, restarted),
		SLO:      s.config.SLO,
		GPU:      gpus,
		Panics:   s.panics.Load(),
	}
	if o.State.Known() {
		snapshot.Reading = o.Reading
	}
	s.record(snapshot)
	s.snapshot.Store(snapshot)
	if s.config.Published != nil {
		s.config.Published(snapshot)
	}
}

// Snapshot returns the newest snapshot, nil before the first.
func (s *Sidecar) Snapshot() *Snapshot { return s.snapshot.Load() }

// History returns a replica's points since a time, oldest first.
func (s *Sidecar) History(modelName, engineRank string, since time.Time) []HistoryPoint {
	s.historyMutex.RLock()
	defer s.historyMutex.RUnlock()
	r := s.ranks[rankKey{modelName, engineRank}]
	if r == nil {
		return nil
	}
	first := slices.IndexFunc(r.history, func(p HistoryPoint) bool { return !p.At.Before(since) })
	if first < 0 {
		return nil
	}
	return slices.Clone(r.history[first:])
}

func (s *Sidecar) logTransition(o engine.Observation) {
	if o.State == s.state {
		return
	}
	level := slog.LevelInfo
	if !o.State.Known() {
		level = slog.LevelWarn
	}
	attrs := []any{"state", string(o.State), "url", s.config.EngineURL}
	if s.state != "" {
		attrs = append(attrs, "was", string(s.state))
	}
	if o.Reason != "" {
		attrs = append(attrs, "reason", o.Reason)
	}
	s.config.Logger.Log(context.Background(), level, "engine state changed", attrs...)
	s.state = o.State
}

func (s *Sidecar) engineStatus(o engine.Observation) EngineStatus {
	status := EngineStatus{
		URL: s.config.EngineURL, Type: o.Type, Version: o.Version, MaxModelLen: o.MaxModelLen,
		State: o.State, Reason: o.Reason, PollDuration: o.Duration, Available: o.Available, Stats: o.Stats,
		Startup: s.startup.took,
	}
	if o.Err != nil {
		status.Error = o.Err.Error()
	}
	if o.Reading != nil {
		status.LastReading, status.Series = o.Reading.At, o.Reading.Series
	}
	return status
}

// replicas updates each rank's window with the observation and derives what
// is published of it.
func (s *Sidecar) replicas(o engine.Observation, gpus gpu.Snapshot, restarted bool) []Replica {
	held := s.holdCurve(o, gpus)
	if o.Reading == nil || len(o.Reading.Ranks) == 0 {
		r := unknownReplica("", "", o.State)
		r.Reasons = []string{stateReason(o.State, o.Reason)}
		r.Curve = held.status.unread(o.State)
		return []Replica{r}
	}
	s.forgetRanks(o.Reading.Ranks)
	s.engineType = o.Type
	signs := signsOf(gpus, len(o.Reading.Ranks))
	memory := s.memoryBandwidth(gpus, len(o.Reading.Ranks))
	replicas := make([]Replica, 0, len(o.Reading.Ranks))
	for i := range o.Reading.Ranks {
		er := o.Reading.Ranks[i]
		r := s.rank(er.ModelName, er.Engine)
		switch {
		case !o.State.Known():
			// The engine as a whole is worse off than the rank's last reading says.
			if er.State.Known() || !o.Fresh {
				er.State, er.Reason = o.State, o.Reason
			}
		case o.Fresh:
			if restarted {
				r.forget()
			}
			r.read(o.Reading.At, &er, signs)
		}
		replicas = append(replicas, s.replica(r, &er, o.At, memory, held))
	}
	return replicas
}

// restarted tells whether a fresh reading comes from another process of the
// engine than the one before it: the engine was gone, and its counters fell.
// One that only hung goes on counting, and the gap belongs into its rates.
func (s *Sidecar) restarted(o engine.Observation) bool {
	if !o.State.Known() || !o.Fresh {
		s.gone = s.gone || !o.State.Known()
		return false
	}
	restarted := s.gone && o.Stats.CounterResets != s.resets
	s.gone, s.resets = false, o.Stats.CounterResets
	return restarted
}

func (s *Sidecar) rank(modelName, engineRank string) *rank {
	s.historyMutex.Lock()
	defer s.historyMutex.Unlock()
	key := rankKey{modelName, engineRank}
	if s.ranks[key] == nil {
		s.ranks[key] = &rank{window: window{span: stockWindow}, burstiness: capacity.NewBurstiness(nil)}
	}
	return s.ranks[key]
}

// forgetRanks drops ranks that a good page no longer shows: an engine
// restarted under another model name must not leave the old one behind.
func (s *Sidecar) forgetRanks(present []engine.Rank) {
	s.historyMutex.Lock()
	defer s.historyMutex.Unlock()
	for key := range s.ranks {
		if !slices.ContainsFunc(present, func(r engine.Rank) bool {
			return r.ModelName == key.modelName && r.Engine == key.engine
		}) {
			delete(s.ranks, key)
		}
	}
}

// record appends each replica's point to its history.
func (s *Sidecar) record(snapshot *Snapshot) {
	s.historyMutex.Lock()
	defer s.historyMutex.Unlock()
	oldest := snapshot.At.Add(-historySpan)
	for i := range snapshot.Replicas {
		rep := &snapshot.Replicas[i]
		r := s.ranks[rankKey{rep.ModelName, rep.Engine}]
		if r == nil {
			continue
		}
		drop := 0
		for drop < len(r.history) && r.history[drop].At.Before(oldest) {
			drop++
		}
		r.history = append(append(r.history[:0], r.history[drop:]...), pointOf(snapshot.At, rep))
	}
}

func pointOf(at time.Time, rep *Replica) HistoryPoint {
	p := HistoryPoint{
		At: at, State: rep.State, LoadRatios: rep.LoadRatios, LoadRatio: rep.LoadRatio,
		SequenceSlotRatio: rep.SequenceSlots.Ratio, TokenSlotRatio: rep.TokenSlots.Ratio,
		RequestsRunning: rep.RequestsRunning, RequestsWaiting: rep.RequestsWaiting,
		OfferedRequests:      rep.Rates.OfferedRequests,
		GenerationTokens:     rep.Rates.GenerationTokens,
		ComputedPromptTokens: rep.Rates.ComputedPromptTokens,
		TimeToFirstToken:     rep.Latencies.TimeToFirstToken,
		InterTokenLatency:    rep.Latencies.InterTokenLatency,
		BandwidthSaturation:  math.NaN(),
	}
	if len(rep.Bandwidth) > 0 {
		p.BandwidthSaturation = rep.Bandwidth[0].Ratio
	}
	return p
}

var _ Source = (*Sidecar)(nil)
