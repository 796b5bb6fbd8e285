package probe

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
	"headroom_exporter/probe/knee"
)

// HarmError is why a load was aborted: it hurt others, the engine or a GPU.
// It wraps knee.ErrHarm. Times are seconds from when the harm was noticed.
type HarmError struct {
	Load string
	// Reason is a short code, Evidence the numbers.
	Reason, Evidence string
	// InFlight is how many requests were cancelled.
	InFlight int
	// Drained is when the last of them had ended; below 0 when there was none.
	Drained float64
	// Recovered is when nothing waited in the engine any more; NaN when that was not seen within 10 s.
	Recovered float64

	noticed time.Duration
}

func (e *HarmError) Error() string {
	after := fmt.Sprintf("its queue was not seen to empty within %s", recoverWithin)
	if !math.IsNaN(e.Recovered) {
		after = fmt.Sprintf("its queue was empty after %.1f s", e.Recovered)
	}
	return fmt.Sprintf("%v: %s; %d requests were cancelled within %.1f s, and %s",
		knee.ErrHarm, e.Evidence, e.InFlight, max(e.Drained, 0), after)
}

// Unwrap returns knee.ErrHarm.
func (e *HarmError) Unwrap() error { return knee.ErrHarm }

// The reasons to abort a load.
const (
	HarmOthersWait  = "others_wait"
	HarmOthersTTFT  = "others_ttft"
	HarmPreemptions = "preemptions"
	HarmKV          = "kv_usage"
	HarmFailures    = "failures"
	HarmXID         = "xid"
	HarmThrottle    = "throttle"
	HarmStale       = "stale_metrics"
	HarmDown        = "engine_down"
)

// Limits of harm.
const (
	// othersWaitFor is how long others may have to wait in the engine's queue.
	othersWaitFor = 5 * time.Second
	// othersWindow is the time over which others' TTFT is looked at.
	othersWindow = 15 * time.Second
	// pressureFor is how long the KV cache may be nearly full, and the time over
	// which preemptions are counted, beside others.
	pressureFor       = 3 * time.Second
	maxKVUsage        = 0.95
	maxPreemptionRate = 1.0
	// minFailureRequests must have ended before a share of failures counts.
	minFailureRequests = 50
)

// view is what a guard is shown at a moment.
type view struct {
	now    time.Duration
	engine *engine.Observation
	gauges
	gpus gpu.Snapshot
	// ended and failed are the probe's requests so far, refused those that failed
	// because the engine turned them away, inFlight those under
	// way, unbegun those of them without a token yet.
	ended, failed, refused, inFlight, unbegun int
	// firsts are the probe's first tokens of the last while.
	firsts []first
}

// guard decides whether a load does harm. What concerns others needs others:
// they are told from the probe by the engine's counters minus its own, so
// that a queue of the probe alone harms nobody.
type guard struct {
	zero       time.Time
	staleAfter time.Duration
	// limit is the TTFT that others may expect at the percentile of the SLO, in
	// seconds; 0 without one. budget of their requests may be later.
	limit, budget float64

	// readable tells that the engine could be read, lastRead when it was last.
	readable bool
	lastRead time.Duration
	// others tells that others' requests were seen.
	others bool
	// waitSince and kvSince are since when others wait and the KV cache is full; Never when not.
	waitSince, kvSince time.Duration
	history            []tally
	xids               map[string]map[uint64]uint64
}

// tally is the engine's counters at a moment.
type tally struct {
	// at is when the page had come as a whole, asked when it was asked for: what
	// it counts happened in between, or before.
	at, asked   time.Duration
	ttft        *engine.Histogram
	preemptions float64
}

func newGuard(t *Target, l *knee.Load, now time.Duration, o *engine.Observation) *guard {
	g := &guard{
		zero: t.config.Runner.Client.epoch, staleAfter: t.config.StaleAfter,
		readable: t.before.readable, lastRead: now, others: t.before.others(),
		waitSince: Never, kvSince: Never,
	}
	g.limit, g.budget = othersTTFT(l.Traffic)
	g.count(o)
	if gpus := t.config.Runner.Readings.GPU; gpus != nil {
		s := gpus.Snapshot()
		g.newXIDs(&s)
	}
	return g
}

// othersTTFT is the bound that others' TTFT is held to: the run's own, else
// the loosest of the classes', for nobody knows of which class others are.
func othersTTFT(t *knee.Traffic) (limit, budget float64) {
	for _, s := range t.SLO {
		if s.Metric == "ttft" {
			return s.Bound.Seconds(), s.Budget()
		}
	}
	for i := range t.Classes {
		for _, s := range t.Classes[i].SLO {
			if s.Metric == "ttft" && s.Bound.Seconds() > limit {
				limit, budget = s.Bound.Seconds(), s.Budget()
			}
		}
	}
	return limit, budget
}

// look returns why the load does harm, and the evidence; empty when it does none.
func (g *guard) look(v *view) (reason, evidence string) {
	o := v.engine
	if o.Fresh {
		g.readable, g.lastRead = true, v.now
		g.count(o)
	}
	switch age := v.now - g.lastRead; {
	case !g.readable:
	case o.State == engine.StateDown || o.State == engine.StateLoading || o.State == engine.StateAsleep:
		return HarmDown, fmt.Sprintf("the engine is %s (%s)", o.State, o.Reason)
	case age > g.staleAfter:
		return HarmStale, fmt.Sprintf("the engine's metrics are %.1f s old (%s): what the load does to it cannot be seen", age.Seconds(), cmp.Or(o.Reason, "a page is on its way"))
	}
	if evidence := g.newXIDs(&v.gpus); evidence != "" {
		return HarmXID, evidence
	}
	if evidence := throttled(&v.gpus); evidence != "" {
		return HarmThrottle, evidence
	}
	failed := v.failed
	if !g.others {
		// An engine that turns away what is too much for it takes care of itself:
		// the load fails, and nobody else is hurt.
		failed -= v.refused
	}
	if v.ended >= minFailureRequests && float64(failed) > maxFailureShare*float64(v.ended) {
		return HarmFailures, fmt.Sprintf("%d of %d requests failed", failed, v.ended)
	}
	if !o.Fresh {
		return "", ""
	}
	late := g.lookForOthers(v)
	if !g.others {
		return "", ""
	}
	if late != "" {
		return HarmOthersTTFT, late
	}
	return g.pressure(v)
}

// count keeps the engine's counters for as long as they are looked back at.
func (g *guard) count(o *engine.Observation) {
	if !o.Fresh || o.Reading == nil {
		return
	}
	at := o.Reading.At.Sub(g.zero)
	t := tally{at: at, asked: at - o.Duration, ttft: merged(o.Reading), preemptions: gaugesOf(o).preemptions}
	g.history = append(g.history, t)
	// The first that stays is just older than the window.
	for len(g.history) > 2 && g.history[1].at <= t.at-othersWindow {
		g.history = g.history[1:]
	}
}

// merged is the TTFT histogram of all ranks; nil when it is not known of all of them.
func merged(r *engine.Reading) *engine.Histogram {
	var sum *engine.Histogram
	for i := range r.Ranks {
		h := r.Ranks[i].Histogram(engine.TimeToFirstToken)
		switch {
		case h == nil:
			return nil
		case sum == nil:
			sum = &engine.Histogram{Bounds: h.Bounds, Counts: append([]float64(nil), h.Counts...), Sum: h.Sum, Count: h.Count}
			continue
		case len(h.Bounds) != len(sum.Bounds):
			return nil
		}
		sum.Sum += h.Sum
		sum.Count += h.Count
		for k, c := range h.Counts {
			sum.Counts[k] += c
		}
	}
	return sum
}

// blur is the time by which a page and the probe may disagree about when a
// token came, blurCount and blurLate how many requests, and late ones, they may
// disagree about anyway.
const (
	blur      = 100 * time.Millisecond
	blurCount = 2.0
	blurLate  = 1.0
)

// lookForOthers notes whether others' answers began in the last while, and
// returns how late they began where that is too late.
func (g *guard) lookForOthers(v *view) (late string) {
	from, to := g.history[0], g.history[len(g.history)-1]
	if from.ttft == nil || to.ttft == nil || to.at <= from.at || len(from.ttft.Bounds) != len(to.ttft.Bounds) {
		return ""
	}
	ours, oursLate := 0.0, 0.0
	bound := g.lateBound(to.ttft)
	for _, f := range v.firsts {
		// Also those that came while the first page was on its way, and after the
		// last one: engine and probe may both be short of time.
		if f.at > from.asked {
			ours++
			if bound >= 0 && f.ttft.Seconds() > to.ttft.Bounds[bound] {
				oursLate++
			}
		}
	}
	edge := blur.Seconds() / (to.at - from.at).Seconds()
	// Of the probe's own that have no token here yet, the engine may have begun
	// those that do not wait there: a client that is short of time sees its tokens late.
	underway := max(float64(v.unbegun)-max(v.waiting, 0), 0)
	if math.IsNaN(v.waiting) {
		underway = float64(v.unbegun)
	}
	others := to.ttft.Count - from.ttft.Count - ours - underway
	if others <= max(blurCount, ours*edge) {
		return ""
	}
	g.others = true
	if bound < 0 {
		return ""
	}
	begun := func(t tally) float64 { return t.ttft.Count - t.ttft.Counts[bound] }
	if n := begun(to) - begun(from) - oursLate - underway; n > max(blurLate, oursLate*edge) && n > g.budget*others {
		return fmt.Sprintf("%.0f of about %.0f answers to others took longer than %s to begin within %.0f s",
			n, others, seconds(to.ttft.Bounds[bound]), (to.at - from.at).Seconds())
	}
	return ""
}

// lateBound is the number of the bucket bound that others may not pass: the
// first at or above their limit; -1 for none.
func (g *guard) lateBound(h *engine.Histogram) int {
	if g.limit <= 0 {
		return -1
	}
	for i, b := range h.Bounds {
		if b >= g.limit && !math.IsInf(b, 1) {
			return i
		}
	}
	return -1
}

// pressure looks at what others suffer from in the engine.
func (g *guard) pressure(v *view) (reason, evidence string) {
	if waiting := othersWaiting(v); waiting == 0 {
		g.waitSince = Never
	} else {
		if g.waitSince < 0 {
			g.waitSince = v.now
		}
		if v.now-g.waitSince >= othersWaitFor {
			return HarmOthersWait, fmt.Sprintf("about %.0f requests of others have been waiting for %.1f s: %.0f run and %.0f wait, %d of them the probe's",
				math.Ceil(waiting), (v.now - g.waitSince).Seconds(), v.running, v.waiting, v.inFlight)
		}
	}
	if !(v.kv > maxKVUsage) {
		g.kvSince = Never
	} else {
		if g.kvSince < 0 {
			g.kvSince = v.now
		}
		if v.now-g.kvSince >= pressureFor {
			return HarmKV, fmt.Sprintf("%s of the KV cache have been in use for %.1f s beside others' requests", percent(Value(v.kv)), (v.now - g.kvSince).Seconds())
		}
	}
	last := g.history[len(g.history)-1]
	for _, t := range g.history {
		if t.at < last.at-pressureFor {
			continue
		}
		if n := last.preemptions - t.preemptions; n > maxPreemptionRate*pressureFor.Seconds() {
			return HarmPreemptions, fmt.Sprintf("%.0f sequences were preempted within %.1f s beside others' requests", n, (last.at - t.at).Seconds())
		}
		break
	}
	return "", ""
}

// othersWaiting is about how many requests of others wait in the queue. At
// least that many do as wait above those of the probe without a token; a
// queue that is served in order holds them by their share besides, of which
// less than half a request is none.
func othersWaiting(v *view) float64 {
	inEngine := v.running + v.waiting
	others := inEngine - float64(v.inFlight)
	if !(others > 0 && v.waiting > 0) {
		return 0
	}
	n := max(min(v.waiting-float64(v.unbegun), others), v.waiting*others/inEngine)
	if n < 0.5 {
		return 0
	}
	return n
}

// newXIDs returns the XIDs that came since the last look, but for those that
// tell nothing of a GPU's state.
func (g *guard) newXIDs(s *gpu.Snapshot) string {
	first := g.xids == nil
	if first {
		g.xids = map[string]map[uint64]uint64{}
	}
	var found []string
	for i := range s.Readings {
		r := &s.Readings[i]
		seen := g.xids[r.UUID]
		if seen == nil {
			seen = map[uint64]uint64{}
			g.xids[r.UUID] = seen
		}
		for _, x := range r.XIDs {
			if x.Count > seen[x.XID] && x.Class != gpu.Ignore && !first {
				found = append(found, fmt.Sprintf("XID %d (%s) on GPU %s", x.XID, x.Class, r.UUID))
			}
			seen[x.XID] = x.Count
		}
	}
	return strings.Join(found, ", ")
}

// harmfulThrottles are the reasons to hold clocks down that mean that a GPU
// is too hot, or its power supply too weak. A power cap alone is normal.
var harmfulThrottles = []string{"sw_thermal", "hw_thermal", "hw_power_brake"}

func throttled(s *gpu.Snapshot) string {
	if !s.Status.Up || s.Status.SelectionAmbiguous {
		return ""
	}
	for i := range s.Readings {
		r := &s.Readings[i]
		for _, reason := range harmfulThrottles {
			if r.ThrottleActive[reason] {
				return fmt.Sprintf("GPU %s holds its clocks down: %s, %.0f °C", r.UUID, reason, r.TemperatureCelsius)
			}
		}
	}
	return ""
}
