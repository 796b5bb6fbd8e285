package probe

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"headroom_exporter/collector/engine"
	"headroom_exporter/probe/workload"
)

// Observer is told about every request as it ends, of every phase, from many
// goroutines. It must not block.
type Observer interface {
	RequestDone(*Record)
}

// Runner puts points on an engine, one at a time.
type Runner struct {
	Client *Client
	// Records, when set, takes every request.
	Records *Records
	// Observer, when set, is told about every request.
	Observer Observer
	// Readings, when set, watches the engine and the GPUs beside each point.
	Readings *Readings
	// wait replaces the pacer in tests with a virtual clock.
	wait func(ctx context.Context, d time.Duration) error

	began sync.Once
	start time.Duration

	state atomic.Pointer[run]
}

// lead is the time between the beginning of a point and its first request, in
// which the first bodies are made.
const lead = 20 * time.Millisecond

// errDrained cancels what is left at the end of the drain.
var errDrained = errors.New("cancelled by the probe: not done by the end of the drain")

// errNotSent is why a request was never sent.
var errNotSent = errors.New("not sent: the cap on requests in flight or on the rate held it back until the end")

// run is one point under way.
type run struct {
	*Runner
	point    Point
	measured *measurement
	// zero is the moment of planned time 0, end the moment after which nothing is sent.
	zero, end time.Duration
	flights   sync.WaitGroup
	inFlight  atomic.Int64
	peak      atomic.Int64
	sent      atomic.Int64
	counted   atomic.Int64
	phase     atomic.Value
	sessions  sessions
	limit     *rateLimit
	// stop ends the arrivals, cancel the requests in flight too.
	stop, cancel context.CancelCauseFunc
	cutting      sync.Once
	cuts         sync.WaitGroup
	readings     *watch
	// full tells that requests were sent until end, not only until the source was empty.
	full bool
}

// Run puts one point on the engine and returns what was measured. When the
// context ends early, it returns what was measured until then, marked as
// interrupted. An error means that nothing could be measured.
func (r *Runner) Run(ctx context.Context, p Point) (*Result, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	wait := r.wait
	if wait == nil {
		pacer, err := newPacer()
		if err != nil {
			return nil, err
		}
		defer pacer.close()
		wait = pacer.wait
	}
	watch := r.Readings.begin(ctx, r.Client)
	r.began.Do(func() { r.start = r.Client.now() })
	r.Client.watch.takeStalls()
	u := &run{Runner: r, point: p, limit: newRateLimit(p.MaxRate), readings: watch}
	u.zero = r.Client.now() + lead
	u.end = Never
	if p.Duration > 0 {
		u.end = u.zero + p.Warmup + p.Duration
	}
	u.measured = newMeasurement(&p, u.zero)
	u.setPhase(p.Warmup > 0)
	r.state.Store(u)
	defer r.state.Store(nil)

	self := beginSelf()
	flightCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	injecting, stop := context.WithCancelCause(flightCtx)
	defer stop(nil)
	u.stop, u.cancel = stop, cancel
	if p.follow != nil {
		p.follow.begin(u)
	}
	watch.run(ctx, r.start, u.zero+p.Warmup, u)
	if p.Concurrency > 0 {
		u.closed(injecting, flightCtx)
	} else {
		u.open(injecting, flightCtx, wait)
	}
	u.phase.Store(PhaseDrain)
	u.drain(cancel)
	u.cuts.Wait()
	result := u.measured.result(&p, u.full)
	result.Start, result.End = (u.zero - r.start).Seconds(), (r.Client.now() - r.start).Seconds()
	result.PeakInFlight = int(u.peak.Load())
	result.Self = self.end()
	result.setStalls(r.Client.watch.takeStalls(), r.start)
	result.Interrupted = ctx.Err() != nil
	watch.end(ctx, result, u.measured)
	result.judge(&p)
	return result, nil
}

func (u *run) setPhase(warm bool) {
	if warm {
		u.phase.Store(PhaseWarmup)
	} else {
		u.phase.Store(PhaseMeasure)
	}
}

// phaseAt is the phase of a request that is due at a moment.
func (u *run) phaseAt(due time.Duration) Phase {
	if due < u.zero+u.point.Warmup {
		return PhaseWarmup
	}
	if u.phase.Load() == PhaseWarmup {
		u.phase.Store(PhaseMeasure)
	}
	return PhaseMeasure
}

// How requests in flight are cancelled when a point is cut short: in rounds,
// so that the engine is not told of all of them in one moment.
const (
	cutRounds = 10
	cutPause  = 50 * time.Millisecond
)

// cut ends the point early: arrivals stop at once, and what is in flight is
// cancelled, the oldest first, within cutRounds * cutPause.
func (u *run) cut(cause error) {
	u.cutting.Do(func() {
		u.stop(cause)
		u.cuts.Go(func() {
			for round := range cutRounds {
				if u.inFlight.Load() == 0 {
					break
				}
				u.Client.watch.cancelOldest(cutRounds-round, cause)
				time.Sleep(cutPause)
			}
			u.cancel(cause)
		})
	})
}

// look tells the follower of a reading.
func (u *run) look(o engine.Observation) {
	if u.point.follow == nil {
		return
	}
	if err := u.point.follow.look(o); err != nil {
		u.cut(err)
	}
}

// admit counts a request that is to be sent; false when the point has enough.
func (u *run) admit(phase Phase) bool {
	if phase != PhaseMeasure {
		return true
	}
	n := u.counted.Add(1)
	return u.point.Requests == 0 || n <= int64(u.point.Requests)
}

// drain waits for what is in flight and cancels what takes too long.
func (u *run) drain(cancel context.CancelCauseFunc) {
	if u.point.Drain > 0 {
		late := time.AfterFunc(u.point.Drain, func() { cancel(errDrained) })
		defer late.Stop()
	}
	u.flights.Wait()
}

var exchanges = sync.Pool{New: func() any { return new(Exchange) }}

// fly sends a request and takes its record. ready is when the request could
// have been sent at the earliest: when it was due, or when the cap let it go.
func (u *run) fly(ctx context.Context, s *stream, q *workload.Request, due, ready time.Duration, phase Phase) (end time.Duration) {
	x := exchanges.Get().(*Exchange)
	defer exchanges.Put(x)
	u.sent.Add(1)
	n := u.inFlight.Add(1)
	for peak := u.peak.Load(); n > peak && !u.peak.CompareAndSwap(peak, n); peak = u.peak.Load() {
	}
	text := s.promptIDs == 0
	u.Client.do(ctx, s, q, due, x)
	u.inFlight.Add(-1)
	if text && x.PromptTokens >= 0 {
		u.measured.text(workload.WithinLength(q.PromptTokens, x.PromptTokens))
	}
	u.take(q, due, ready, phase, x)
	return x.End
}

// take records what happened to a request.
func (u *run) take(q *workload.Request, due, ready time.Duration, phase Phase, x *Exchange) {
	rec := newRecord(u.point.Name, q, due, x, u.start, phase)
	rec.judge(u.point.slos(q.Class))
	u.measured.add(&rec, x, due, ready)
	if u.point.follow != nil {
		u.point.follow.done(q, &rec, x)
	}
	if u.Records != nil {
		u.Records.Add(&rec)
	}
	if u.Observer != nil {
		u.Observer.RequestDone(&rec)
	}
}

// unsent records a request that the cap never let go. It violates every
// bound: a service that is not asked has not answered.
func (u *run) unsent(q *workload.Request, due time.Duration, phase Phase) {
	x := new(Exchange)
	x.reset()
	x.End = u.Client.now()
	x.Outcome, x.Error = Cancelled, errNotSent.Error()
	rec := newRecord(u.point.Name, q, due, x, u.start, phase)
	rec.Violation = true
	u.measured.unsent(&rec, due)
	if u.point.follow != nil {
		u.point.follow.done(q, &rec, nil)
	}
	if u.Records != nil {
		u.Records.Add(&rec)
	}
	if u.Observer != nil {
		u.Observer.RequestDone(&rec)
	}
}

// Status is what a run is at, for display.
type Status struct {
	Point    string
	Phase    Phase
	Elapsed  time.Duration
	Left     time.Duration // Never when not known
	InFlight int
	Sent     int
	Live     Live
	// Engine is the newest reading; nil without.
	Engine *EngineSample
}

// Status returns what the run is at; false between points.
func (r *Runner) Status() (Status, bool) {
	u := r.state.Load()
	if u == nil {
		return Status{}, false
	}
	now := r.Client.now()
	s := Status{
		Point: u.point.Name, Phase: u.phase.Load().(Phase), Elapsed: max(now-u.zero, 0), Left: Never,
		InFlight: int(u.inFlight.Load()), Sent: int(u.sent.Load()), Live: u.measured.live(),
	}
	if u.end != Never {
		s.Left = max(u.end-now, 0)
	}
	s.Engine = u.readings.sample()
	return s, true
}
