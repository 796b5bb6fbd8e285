package probe

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

var (
	errRequestTimeout = errors.New("the request's deadline passed")
	errIdleTimeout    = errors.New("the stream was silent for longer than its deadline")
)

// watchEvery is how late a deadline may be noticed.
const watchEvery = 50 * time.Millisecond

// endGrace is how long a stream may stay open after its end mark.
const endGrace = time.Second

// flight is a request under way, as the watchdog sees it. One goroutine for
// all deadlines costs less than a timer that is set anew at every event.
type flight struct {
	deadline time.Duration
	cancel   context.CancelCauseFunc
	slot     int
	// began is when the request was begun, cancelled that it was cut short.
	began     time.Duration
	cancelled bool
	// lastEvent and lastToken are the newest of each, in nanoseconds since the epoch; 0 before.
	lastEvent, lastToken atomic.Int64
	// firstToken is the first one's moment; 0 before.
	firstToken atomic.Int64
	done       atomic.Bool
}

func (f *flight) event(at time.Duration) { f.lastEvent.Store(int64(at)) }
func (f *flight) token(at time.Duration) {
	f.lastToken.Store(int64(at))
	if f.firstToken.Load() == 0 {
		f.firstToken.Store(int64(at))
	}
}

// Stall is a time in which an engine with requests to work on sent nothing to
// any of them.
type Stall struct {
	From, To time.Duration
	// Streams that were waiting.
	Streams int
}

// watchdog enforces deadlines and notices stalls.
type watchdog struct {
	now     func() time.Duration
	mu      sync.Mutex
	flights []*flight
	// last is the newest event of any flight, of those that ended too; where
	// the engine was idle before, when a second request was on its way; 0 before.
	last   time.Duration
	stalls []Stall
	// stalled tells that the newest stall goes on.
	stalled bool

	ended chan struct{}
	quit  chan struct{}
}

func (w *watchdog) start(c *Client) {
	w.now, w.quit, w.ended = c.now, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(w.ended)
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			select {
			case <-w.quit:
				return
			case <-tick.C:
				w.look(c.now(), c.config.IdleTimeout, c.config.StallAfter)
			}
		}
	}()
}

func (w *watchdog) stop() {
	close(w.quit)
	<-w.ended
}

func (w *watchdog) add(f *flight, deadline time.Duration, cancel context.CancelCauseFunc) {
	f.deadline, f.cancel, f.began, f.cancelled = deadline, cancel, w.now(), false
	f.lastEvent.Store(0)
	f.lastToken.Store(0)
	f.firstToken.Store(0)
	f.done.Store(false)
	w.mu.Lock()
	f.slot = len(w.flights)
	w.flights = append(w.flights, f)
	w.mu.Unlock()
}

func (w *watchdog) remove(f *flight) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.flights) - 1
	w.flights[f.slot] = w.flights[last]
	w.flights[f.slot].slot = f.slot
	w.flights[last] = nil
	w.flights = w.flights[:last]
	w.last = max(w.last, time.Duration(f.lastEvent.Load()))
	f.cancel = nil
}

// cancelOldest cancels one part of so many of the requests under way that were
// not cancelled yet, those that were due first.
func (w *watchdog) cancelOldest(parts int, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var left []*flight
	for _, f := range w.flights {
		if !f.cancelled {
			left = append(left, f)
		}
	}
	slices.SortFunc(left, func(a, b *flight) int { return cmp.Compare(a.deadline, b.deadline) })
	for _, f := range left[:(len(left)+parts-1)/parts] {
		f.cancelled = true
		f.cancel(cause)
	}
}

// first is the first token of a request: when it came, and after how long.
type first struct{ at, ttft time.Duration }

// underway appends the first tokens of requests under way, and tells how many
// there are and how many of them still wait for theirs.
func (w *watchdog) underway(firsts []first) (_ []first, flying, waiting int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.flights {
		if at := time.Duration(f.firstToken.Load()); at > 0 {
			firsts = append(firsts, first{at, at - f.began})
		} else {
			waiting++
		}
	}
	return firsts, len(w.flights), waiting
}

// look cancels what is overdue.
func (w *watchdog) look(now, idle, stallAfter time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.flights {
		event := time.Duration(f.lastEvent.Load())
		w.last = max(w.last, event)
		switch token := time.Duration(f.lastToken.Load()); {
		case f.done.Load():
			if now-event > endGrace {
				f.cancel(errIdleTimeout)
			}
		case now > f.deadline:
			f.cancel(errRequestTimeout)
		case token > 0 && now-event > idle:
			f.cancel(errIdleTimeout)
		}
	}
	if w.last == 0 && len(w.flights) > 1 {
		// An engine that stopped while it was idle owes answers from here on.
		w.last = now
	}
	// One request alone may be in a long prefill; two are not silent for long.
	if len(w.flights) > 1 && now-w.last > stallAfter {
		if !w.stalled {
			w.stalled = true
			w.stalls = append(w.stalls, Stall{From: w.last})
		}
		s := &w.stalls[len(w.stalls)-1]
		s.To, s.Streams = now, max(s.Streams, len(w.flights))
	} else if w.stalled {
		w.stalled = false
		s := &w.stalls[len(w.stalls)-1]
		s.To = max(s.To, min(w.last, now))
	}
	if len(w.flights) == 0 {
		// An idle engine owes nothing.
		w.last = 0
	}
}

// takeStalls returns the stalls since it was called last.
func (w *watchdog) takeStalls() []Stall {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stalls
	w.stalls, w.stalled = nil, false
	return s
}
