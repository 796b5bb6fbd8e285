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
}

// follow begins anew with another curve.
func (d *drift) follow(c *curve.Curve) {
	if d.curve != c {
		*d = drift{curve: c, ttftRatio: math.NaN(), itlRatio: math.NaN()}
	}
}

// observe compares the latencies of the last minute with the curve's at the
// same number of running requests. Load and running are those of the curve's
// whole engine, and the load is not corrected.
func (d *drift) observe(now time.Time, c *curve.Curve, l curve.Load, running float64, seen Latencies, restarted bool) {
	if now.Sub(d.last) < driftInterval {
		return
	}
	d.last = now
	e := c.Expect(l, running)
	d.point = capacity.DriftPoint{LoadRatio: e.LoadRatio, PrefillShare: prefillShare(l)}
	d.ttftRatio, d.itlRatio = seen.TimeToFirstToken/e.TTFT, seen.InterTokenLatency/e.ITL
	if !l.Mix.Valid() {
		return
	}
	o := capacity.DriftObservation{
		Time:       float64(now.UnixNano()) / 1e9,
		DriftPoint: d.point,
		Coverage:   l.Coverage, Restarted: restarted,
	}
	o.Observed, o.Expected = seen.InterTokenLatency, e.ITL
	d.itl.Add(o)
	o.Observed, o.Expected = seen.TimeToFirstToken, e.TTFT
	d.ttft.Add(o)
}

// factor where the engine works now: by the time between tokens, and where that
// was not compared, as on a prefill rank, by the time to first token.
func (d *drift) factor() float64 {
	if d.itl.Observations(d.point) == 0 && d.ttft.Observations(d.point) > 0 {
		return d.ttft.Factor(d.point)
	}
	return d.itl.Factor(d.point)
}

func (d *drift) stale() bool { return d.itl.Stale() }

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
