package knee

import (
	"slices"

	"gonum.org/v1/gonum/stat"

	"headroom_exporter/capacity"
)

const (
	// trimBatch is MSER-5's.
	trimBatch = 5
	// trimMost is the largest share of a load that is trimmed.
	trimMost = 1.0 / 3
	// trimFilling is how much emptier than later the engine is while it fills.
	trimFilling = 0.9
)

// trim leaves out the beginning of a load while the engine still fills, as
// MSER-5 finds it in running + waiting. A beginning that was fuller than what
// followed stays: it is a clump such as others later, and to cut it off would
// flatter the engine.
func trim(l *Load, o *Observation) {
	from, to := injection(l, o)
	var series, at []float64
	for _, s := range o.Samples {
		if v := s.Running + s.Waiting; s.At >= from && s.At < to && v >= 0 {
			series, at = append(series, v), append(at, s.At)
		}
	}
	discard, steady := capacity.MSER(series, trimBatch)
	if !steady || discard == 0 || float64(discard) > trimMost*float64(len(series)) ||
		stat.Mean(series[:discard], nil) > trimFilling*stat.Mean(series[discard:], nil) {
		return
	}
	p := &o.Point
	p.Trimmed = at[discard] - from
	p.Seconds -= p.Trimmed
	o.Requests = slices.DeleteFunc(o.Requests, func(r Request) bool { return r.Due < at[discard] })
	var ttft, tpot, e2e []float64
	p.Attempts, p.Failures = len(o.Requests), 0
	for _, r := range o.Requests {
		if !r.OK {
			p.Failures++
		}
		ttft, tpot, e2e = append(ttft, r.TTFT), append(tpot, r.TPOT), append(e2e, r.E2E)
	}
	p.TTFT, p.TPOT, p.E2E = Quantiles(ttft), Quantiles(tpot), Quantiles(e2e)
}
