package knee

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// Levels of the gates.
const (
	// confidence of the one-sided bounds of a fraction.
	confidence = 0.95
	// failureBudget is the share of requests that may fail.
	failureBudget = 0.01
	// preemptionShare of the requests is worth a note.
	preemptionShare = 0.01
	// kvRisk is the KV cache's usage from which on preemptions are near.
	kvRisk = 0.95
	// growthBlocks is into how many blocks a load is cut to see whether its queue grows.
	growthBlocks = 10
)

// judge adds the gates of a load that was put on the engine, and the verdict,
// to those that the engine gave.
func judge(l *Load, o *Observation) {
	p := &o.Point
	p.Gates = append(p.Gates, sloGates(l.Traffic, o)...)
	p.Gates = append(p.Gates, successGate(p), growthGate(l, o), waitingGate(l, p), preemptionGate(p), kvGate(p))
	p.Stopped = o.Stopped
	p.Passed = verdict(p)
}

// verdict is whether all gates that fail a point passed; nil when one does not tell.
func verdict(p *curve.Point) *bool {
	passed := true
	if p.Stopped != "" {
		passed = false
		return &passed
	}
	unsure := false
	for _, g := range p.Gates {
		if g.Kind == curve.GateRisk {
			continue
		}
		if g.Passed == nil {
			unsure = unsure || g.Kind == curve.GateFail
			continue
		}
		passed = passed && *g.Passed
	}
	if passed && unsure {
		return nil
	}
	return &passed
}

// invalid is the first gate that voids a point; nil when it is sound.
func invalid(p *curve.Point) *curve.Gate {
	for i, g := range p.Gates {
		if g.Kind == curve.GateInvalid && g.Passed != nil && !*g.Passed {
			return &p.Gates[i]
		}
	}
	return nil
}

func newGate(name string, kind curve.GateKind) curve.Gate {
	u := capacity.Unknown()
	return curve.Gate{Name: name, Kind: kind, Low: u, High: u, Value: u, Limit: u}
}

// decide sets a gate's verdict.
func decide(g *curve.Gate, passed bool) { g.Passed = &passed }

// count is the trials of a bound in blocks of time.
func count(requests []Request, class, slo int) counter {
	var c counter
	if len(requests) == 0 {
		return c
	}
	begin := requests[0].Due
	for _, r := range requests {
		if r.Class == class {
			c.add(int(max(r.Due-begin, 0)/blockSeconds), r.Over[slo], r.Of[slo])
		}
	}
	return c
}

// sloGates judges each bound of each class: passed when even the upper bound
// of the fraction is within the budget, failed when the lower one is not.
func sloGates(t *Traffic, o *Observation) []curve.Gate {
	var gates []curve.Gate
	for class := range t.Classes {
		for i, s := range t.SLOs(class) {
			c := count(o.Requests, class, i)
			over, of, effect := c.totals()
			g := newGate("slo", curve.GateFail)
			g.SLO = &s
			if len(t.Classes) > 1 {
				g.Class = t.Classes[class].Name
			}
			g.Violations, g.N, g.DesignEffect, g.Confidence = over, of, effect, confidence
			g.Limit = capacity.Value(s.Budget())
			if of == 0 {
				g.Detail = fmt.Sprintf("nothing was measured of %s", s)
				gates = append(gates, g)
				continue
			}
			low, high := capacity.LowerFraction(over/effect, of/effect, confidence), capacity.UpperFraction(over/effect, of/effect, confidence)
			g.Low, g.High, g.Value = capacity.Value(low), capacity.Value(high), capacity.Value(over/of)
			evidence := fmt.Sprintf("%.0f of %.0f %s were over: %s, between %s and %s with a design effect of %.1f; %s may be",
				over, of, trials(s), percent(over/of), percent(low), percent(high), effect, percent(s.Budget()))
			switch {
			case high <= s.Budget():
				decide(&g, true)
			case low > s.Budget():
				decide(&g, false)
			default:
				evidence += ": too few to tell"
			}
			g.Detail = evidence
			gates = append(gates, g)
		}
	}
	return gates
}

// trials is what a bound is tried on.
func trials(s capacity.SLO) string {
	if s.Metric == "itl" || s.Metric == "icl" {
		return "gaps"
	}
	return "requests"
}

func percent(share float64) string { return fmt.Sprintf("%.3g %%", 100*share) }

func successGate(p *curve.Point) curve.Gate {
	g := newGate("success", curve.GateFail)
	n, failed := float64(p.Attempts), float64(p.Failures)
	g.Violations, g.N, g.DesignEffect, g.Confidence = failed, n, 1, confidence
	g.Limit = failureBudget
	if n == 0 {
		g.Detail = "no request was measured"
		return g
	}
	low := capacity.LowerFraction(failed, n, confidence)
	g.Low, g.High = capacity.Value(low), capacity.Value(capacity.UpperFraction(failed, n, confidence))
	g.Value = capacity.Value(failed / n)
	g.Detail = fmt.Sprintf("%.0f of %.0f requests failed: %s, %s may", failed, n, percent(failed/n), percent(failureBudget))
	decide(&g, low <= failureBudget)
	return g
}

// blockMeans are the means of a reading over equal blocks of the measured
// time; NaN without readings in a block.
func blockMeans(o *Observation, from, to float64, n int, value func(Sample) float64) []float64 {
	sum, count := make([]float64, n), make([]float64, n)
	for _, s := range o.Samples {
		if v := value(s); s.At >= from && s.At < to && !math.IsNaN(v) {
			i := min(int(float64(n)*(s.At-from)/(to-from)), n-1)
			sum[i] += v
			count[i]++
		}
	}
	for i := range sum {
		sum[i] /= count[i]
	}
	return sum
}

// injection is the time in which requests came and counted.
func injection(l *Load, o *Observation) (from, to float64) {
	from, to = l.Warmup.Seconds()+o.Point.Trimmed, l.Duration().Seconds()
	if n := len(o.Samples); o.Stopped != "" && n > 0 {
		to = min(to, o.Samples[n-1].At)
	}
	return from, max(to, from)
}

// growthGate tells whether running and waiting requests become more and more while requests come.
func growthGate(l *Load, o *Observation) curve.Gate {
	g := newGate("queue_growth", curve.GateFail)
	if l.Concurrency > 0 || len(l.Steps) != 1 {
		decide(&g, true)
		g.Detail = "not asked of this load"
		return g
	}
	from, to := injection(l, o)
	blocks := blockMeans(o, from, to, growthBlocks, func(s Sample) float64 { return s.Running + s.Waiting })
	rate := l.Steps[0].Rate
	growth := capacity.QueueGrowth(blocks, (to-from)/growthBlocks, rate, rate*(to-from))
	g.Value, g.Limit = capacity.Value(growth.Share), capacity.Value(growth.Limit)
	if math.IsNaN(growth.Share) {
		g.Detail = "the engine did not say what it holds"
		return g
	}
	g.Detail = fmt.Sprintf("running and waiting changed by %+.3g a second, %s of the arrivals (noise up to %s), with a Mann-Kendall S of %d (chance up to %d)",
		growth.Slope, percent(growth.Share), percent(growth.Limit), growth.S, growth.Critical)
	switch growth.Trend {
	case capacity.Growing:
		decide(&g, false)
	case capacity.GrowthRisk:
		g.Kind = curve.GateRisk
		decide(&g, false)
	default:
		decide(&g, true)
	}
	return g
}

// ttftBound is the smallest bound of a time to first token; NaN without one.
func ttftBound(t *Traffic) float64 {
	bound := math.NaN()
	for class := range t.Classes {
		for _, s := range t.SLOs(class) {
			if s.Metric == "ttft" && !(s.Bound.Seconds() >= bound) {
				bound = s.Bound.Seconds()
			}
		}
	}
	return bound
}

// waitingGate is Little's law: the mean wait is the mean queue over the rate.
func waitingGate(l *Load, p *curve.Point) curve.Gate {
	g := newGate("waiting", curve.GateFail)
	bound := ttftBound(l.Traffic)
	g.Limit = capacity.Value(bound)
	if l.Concurrency > 0 || len(l.Steps) != 1 || math.IsNaN(bound) {
		decide(&g, true)
		g.Detail = "not asked of this load"
		return g
	}
	wait := float64(p.Engine.WaitingMean) / l.Steps[0].Rate
	g.Value = capacity.Value(wait)
	if math.IsNaN(wait) {
		g.Detail = "the engine did not say how many wait"
		return g
	}
	g.Detail = fmt.Sprintf("%.3g requests waited on average, which is %.3g s each; the time to first token may be %.3g s",
		float64(p.Engine.WaitingMean), wait, bound)
	decide(&g, wait <= bound)
	return g
}

func preemptionGate(p *curve.Point) curve.Gate {
	g := newGate("preemptions", curve.GateRisk)
	share := float64(p.Engine.Preemptions) / float64(p.Attempts)
	g.Value, g.Limit = capacity.Value(share), preemptionShare
	if math.IsNaN(share) || p.Attempts == 0 {
		g.Value = capacity.Unknown()
		g.Detail = "the engine did not say whether it preempted"
		return g
	}
	g.Detail = fmt.Sprintf("%.0f preemptions in %d requests", float64(p.Engine.Preemptions), p.Attempts)
	decide(&g, share <= preemptionShare)
	return g
}

func kvGate(p *curve.Point) curve.Gate {
	g := newGate("kv_usage", curve.GateRisk)
	g.Value, g.Limit = p.Engine.KVPeak, kvRisk
	if !p.Engine.KVPeak.Known() {
		g.Detail = "the engine did not say how full its KV cache was"
		return g
	}
	g.Detail = fmt.Sprintf("the KV cache was %s full at most", percent(float64(p.Engine.KVPeak)))
	decide(&g, p.Engine.KVPeak <= kvRisk)
	return g
}

// Quantiles of latencies in seconds, of which NaN are those that are not
// known. A quantile is unknown where fewer than one sample would lie above it.
func Quantiles(values []float64) curve.Quantiles {
	known := slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	slices.SortFunc(known, cmp.Compare)
	n := float64(len(known))
	at := func(q float64) curve.Value {
		// The epsilon keeps 100 * (1-0.99) from being below 1.
		if n*(1-q) < 1-1e-9 {
			return capacity.Unknown()
		}
		return capacity.Value(known[int(math.Ceil(q*n-1e-9))-1])
	}
	u := capacity.Unknown()
	out := curve.Quantiles{N: n, Mean: u, P10: u, P50: u, P90: at(0.9), P95: at(0.95), P99: at(0.99), P999: at(0.999), Max: u}
	if n == 0 {
		return out
	}
	sum := 0.0
	for _, v := range known {
		sum += v
	}
	out.Mean, out.Max = capacity.Value(sum/n), capacity.Value(known[len(known)-1])
	out.P10, out.P50 = capacity.Value(known[int(math.Ceil(0.1*n))-1]), capacity.Value(known[int(math.Ceil(0.5*n))-1])
	return out
}
