package probe

import (
	"cmp"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"headroom_exporter/collector/engine"
	"headroom_exporter/probe/knee"
	"headroom_exporter/probe/workload"
)

// following is one load of a search under way.
type following struct {
	target  *Target
	load    *knee.Load
	monitor knee.Monitor
	// class is the number of a class by its name.
	class map[string]int
	run   *run
	guard *guard

	// schedule gives the arrivals a second time; nil for a closed loop. due of
	// them have come, the next one comes at next.
	schedule workload.Source
	next     time.Duration
	due      int

	mu       sync.Mutex
	requests []knee.Request
	// untold are requests that the monitor does not know yet.
	untold        []knee.Request
	firsts        []first
	ended, failed int
	// refused of those that failed were turned away by an engine that had enough.
	refused int
	lastEnd time.Duration

	samples []knee.Sample
	// preempted is the engine's counter at the load's start.
	preempted float64
	stopped   string
	harm      *HarmError
}

// begin implements follower.
func (f *following) begin(u *run) {
	f.run = u
	before := gaugesOf(&u.readings.last)
	f.preempted = before.preemptions
	f.guard = newGuard(f.target, f.load, u.Client.now(), &u.readings.last)
	f.advance()
}

// advance reads when the next arrival is due.
func (f *following) advance() {
	f.next = Never
	if f.schedule != nil {
		if q, ok := f.schedule.Next(); ok {
			f.next = q.At
		}
	}
}

// done implements follower.
func (f *following) done(asked *workload.Request, rec *Record, x *Exchange) {
	q, counts := f.request(asked, rec, x)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended++
	if rec.Failed() && rec.Outcome != LengthMismatch {
		f.failed++
		if rec.Status == http.StatusTooManyRequests || rec.Status == http.StatusServiceUnavailable {
			f.refused++
		}
	}
	if x != nil {
		f.lastEnd = max(f.lastEnd, x.End)
		if x.First >= 0 && x.Sent >= 0 {
			f.firsts = append(f.firsts, first{x.First, x.First - x.Sent})
		}
	}
	if !counts {
		return
	}
	f.requests = append(f.requests, q)
	if f.monitor != nil {
		f.untold = append(f.untold, q)
	}
}

// request is what the search knows of a request; false when it does not count.
func (f *following) request(asked *workload.Request, rec *Record, x *Exchange) (knee.Request, bool) {
	censored := rec.Outcome == Cancelled && !rec.Violation
	if rec.Phase != PhaseMeasure || censored {
		return knee.Request{}, false
	}
	zero := (f.run.zero - f.run.start).Seconds()
	q := knee.Request{
		Class: f.class[rec.Class], Due: rec.Scheduled - zero, End: rec.End - zero,
		TTFT: rec.TTFT, TPOT: rec.TPOT, E2E: rec.E2E, OK: rec.Outcome == OK,
		PromptTokens: asked.PromptTokens, OutputTokens: asked.MaxTokens,
	}
	failed := rec.Failed() || x == nil
	slos := f.load.Traffic.SLOs(q.Class)
	q.Over, q.Of = make([]float64, len(slos)), make([]float64, len(slos))
	for i, s := range slos {
		q.Over[i], q.Of[i] = trials(rec, x, s, failed)
	}
	return q, true
}

// trials of a request against a bound: one for the request, or one for each
// gap between tokens and one more when it failed.
func trials(rec *Record, x *Exchange, s workload.SLO, failed bool) (over, of float64) {
	bound := s.Bound.Seconds()
	switch v := rec.metric(s.Metric); {
	case s.Metric == "itl" || s.Metric == "icl":
		if failed {
			over, of = 1, 1
		}
		if x == nil {
			return over, of
		}
		for _, gap := range x.Gaps {
			length, weight := gap.Length.Seconds(), 1.0
			if s.Metric == "itl" {
				if weight = x.weight(gap); !(weight > 0) {
					continue
				}
				length /= weight
			}
			of += weight
			if length > bound {
				over += weight
			}
		}
		return over, of
	case failed, v > bound, rec.Outcome == Cancelled && rec.age(s.Metric) > bound:
		return 1, 1
	case math.IsNaN(v):
		return 0, 0 // one token has no TPOT, and what was cancelled tells nothing
	}
	return 0, 1
}

// settled is how long after its end a request is told to the monitor, so that
// those that ended before it are told before.
const settled = 20 * time.Millisecond

// tell tells the monitor of the requests that ended up to a time, in seconds
// since the load's start.
func (f *following) tell(until float64) {
	if f.monitor == nil {
		return
	}
	f.mu.Lock()
	slices.SortFunc(f.untold, func(a, b knee.Request) int { return cmp.Compare(a.End, b.End) })
	n, _ := slices.BinarySearchFunc(f.untold, until, func(q knee.Request, t float64) int { return cmp.Compare(q.End, t) })
	now := slices.Clone(f.untold[:n])
	f.untold = slices.Delete(f.untold, 0, n)
	f.mu.Unlock()
	for _, q := range now {
		f.monitor.Request(q)
	}
}

// look implements follower.
func (f *following) look(o engine.Observation) error {
	now := f.run.Client.now()
	g := gaugesOf(&o)
	v := view{now: now, engine: &o, gauges: g}
	f.mu.Lock()
	v.ended, v.failed, v.refused = f.ended, f.failed, f.refused
	f.firsts = slices.DeleteFunc(f.firsts, func(t first) bool { return t.at < now-2*othersWindow })
	v.firsts = slices.Clone(f.firsts)
	f.mu.Unlock()
	v.firsts, v.inFlight, v.unbegun = f.run.Client.watch.underway(v.firsts)
	if gpus := f.target.config.Runner.Readings.GPU; gpus != nil {
		v.gpus = gpus.Snapshot()
	}
	s := f.sample(&v)
	f.samples = append(f.samples, s)
	if f.harm != nil || f.stopped != "" {
		return nil
	}
	if reason, evidence := f.guard.look(&v); reason != "" {
		f.harm = &HarmError{Load: f.load.Name, Reason: reason, Evidence: evidence, InFlight: v.inFlight, noticed: now}
		return f.harm
	}
	f.tell((now - f.run.zero - settled).Seconds())
	if f.monitor != nil {
		if f.stopped = f.monitor.Sample(s); f.stopped != "" {
			return errStopped
		}
	}
	return nil
}

// sample is what the search is told of a moment.
func (f *following) sample(v *view) knee.Sample {
	at := v.now - f.run.zero
	s := knee.Sample{
		At: at.Seconds(), Running: v.running, Waiting: v.waiting, KVUsage: v.kv,
		Preemptions: v.preemptions - f.preempted, Done: v.ended,
	}
	sent := int(f.run.sent.Load())
	if f.load.Concurrency > 0 {
		s.Due = sent
		return s
	}
	for f.next >= 0 && f.next <= at && f.next < f.load.Duration() {
		f.due++
		f.advance()
	}
	s.Due = f.due + primesDue(f.load.Prime, at)
	if f.target.config.MaxInflight > 0 {
		s.Unsent = max(s.Due-sent, 0)
	}
	return s
}

// gauges is what a reading says of a moment, with all ranks together; NaN is unknown.
type gauges struct {
	running, waiting, kv, preemptions float64
}

// gaugesOf reads an observation; nothing is known of one that is not fresh.
func gaugesOf(o *engine.Observation) gauges {
	nan := math.NaN()
	if !o.Fresh || o.Reading == nil {
		return gauges{nan, nan, nan, nan}
	}
	g := gauges{kv: nan}
	for i := range o.Reading.Ranks {
		r := &o.Reading.Ranks[i]
		g.running += r.Value(engine.RequestsRunning)
		g.waiting += r.Value(engine.RequestsWaiting)
		g.preemptions += r.Value(engine.Preemptions)
		if u := r.Value(engine.KVCacheUsage); math.IsNaN(g.kv) || u > g.kv {
			g.kv = u
		}
	}
	return g
}
