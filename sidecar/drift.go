package sidecar

import (
	"math"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// driftInterval is how far apart latencies are compared with the curve's.
const driftInterval = 5 * time.Second

// drift follows a rank's latencies against its curve.
type drift struct {
	curve *curve.Curve
	last  time.Time
	// point is where the engine works by the number of running requests.
	point capacity.DriftPoint
	// Each latency has its own history; that between tokens is the better witness.
	ttft, itl           capacity.Drift
	ttftRatio, itlRatio float64
	// generation is of the rate of generated tokens.
	generation      capacity.Drift
	generationRatio float64
}

// work is what the curve's whole engine did in the last minute, if each of its
// ranks did what this one did; NaN is unknown.
type work struct {
	running, generation, kvUsage float64
	// drafting is how many tokens a step gave against the curve.
	drafting  float64
	latencies Latencies
	// restarted and probing tell that it is not to be compared.
	restarted, probing bool
}

// follow begins anew with another curve.
func (d *drift) follow(c *curve.Curve) {
	if d.curve != c {
		*d = drift{
			curve: c, ttftRatio: math.NaN(), itlRatio: math.NaN(), generationRatio: math.NaN(),
			generation: capacity.Drift{Tolerance: capacity.GenerationRateTolerance},
		}
	}
}

// observe compares the work of the last minute with the curve's at the same
// number of running requests. The load is not corrected.
func (d *drift) observe(now time.Time, c *curve.Curve, l curve.Load, w work) {
	if now.Sub(d.last) < driftInterval {
		return
	}
	d.last = now
	e := c.Expect(l, w.running)
	if w.drafting > 0 {
		e.GenerationTokenRate *= w.drafting // A step takes as long, whatever of its draft is accepted.
	}
	d.point = capacity.DriftPoint{LoadRatio: e.LoadRatio, PrefillShare: prefillShare(l)}
	d.ttftRatio, d.itlRatio = w.latencies.TimeToFirstToken/e.TTFT, w.latencies.Step/e.Step
	d.generationRatio = math.NaN()
	if w.kvUsage >= capacity.GenerationRateKVUsage {
		d.generationRatio = w.generation / e.GenerationTokenRate
	}
	if !l.Mix.Valid() {
		return
	}
	compare := func(with *capacity.Drift, ratio float64) {
		with.Add(capacity.DriftObservation{
			Time:       float64(now.UnixNano()) / 1e9,
			DriftPoint: d.point,
			Coverage:   l.Coverage, Restarted: w.restarted, Probing: w.probing,
			Observed: ratio, Expected: 1,
		})
	}
	compare(&d.itl, d.itlRatio)
	compare(&d.ttft, d.ttftRatio)
	compare(&d.generation, d.generationRatio)
}

// factor where the engine works now: by the time between tokens, and where that
// was not compared, as on a prefill rank, by the time to first token.
func (d *drift) factor() float64 {
	if d.itl.Observations(d.point) == 0 && d.ttft.Observations(d.point) > 0 {
		return d.ttft.Factor(d.point)
	}
	return d.itl.Factor(d.point)
}

// stale are the reasons to measure the curve again that it gives.
func (d *drift) stale() []string {
	var reasons []string
	if d.itl.Stale() {
		reasons = append(reasons, StaleDrift)
	}
	if d.generation.Stale() {
		reasons = append(reasons, StaleGenerationRate)
	}
	return reasons
}

// prefillShare is the part of the load that is prefill. Where it is not known
// all loads are taken for alike.
func prefillShare(l curve.Load) float64 {
	var prefill, all float64
	for _, c := range l.Classes {
		if c.Ratio > 0 {
			prefill += c.Ratio * c.PrefillShare
			all += c.Ratio
		}
	}
	if share := prefill / all; !math.IsNaN(share) {
		return share
	}
	return 0
}
