package knee

import (
	"context"
	"math"
	"slices"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

const (
	aaWarmup   = 5 * time.Second
	aaDuration = 30 * time.Second

	// coldDuration is long enough for kernels that are compiled at the first use.
	coldDuration = 90 * time.Second
	// coldWithin of the steady TTFT is warm.
	coldWithin = 0.10
	// coldRun is how many answers in a row are looked at together.
	coldRun = 5
)

// coldStart sends one request after the other to an engine that has just
// started and finds from when on they are answered as fast as at the end.
func (c *Campaign) coldStart(ctx context.Context) (*curve.ColdStart, error) {
	traffic := &Traffic{Name: c.Classes[0].Name, Classes: c.Classes[:1], Arrivals: curve.Arrivals{Process: "poisson"}, SLO: c.SLO}
	o, err := c.Engine.Run(ctx, &Load{
		Name: "cold start", Purpose: curve.PurposeWarmup, Traffic: traffic, Concurrency: 1,
		Steps: []Step{{Duration: coldDuration}}, Seed: c.Seed,
	}, nil)
	if err != nil {
		return nil, err
	}
	seconds, worst := warmAfter(o.Requests)
	return &curve.ColdStart{Class: traffic.Name, Seconds: curve.Value(seconds), WorstTTFT: curve.Value(worst)}, nil
}

// warmAfter returns when the median TTFT of a run of answers came within a
// tenth of the steady one, which is the median of the last third, in seconds,
// and the worst TTFT. Both are NaN when the answers are too few.
func warmAfter(requests []Request) (seconds, worst float64) {
	var ttft, due []float64
	for _, r := range requests {
		if !math.IsNaN(r.TTFT) {
			ttft, due = append(ttft, r.TTFT), append(due, r.Due)
		}
	}
	if len(ttft) < 3*coldRun {
		return math.NaN(), math.NaN()
	}
	steady := median(ttft[len(ttft)*2/3:])
	for i := 0; i+coldRun <= len(ttft); i++ {
		if median(ttft[i:i+coldRun]) <= (1+coldWithin)*steady {
			return due[i], slices.Max(ttft)
		}
	}
	return math.NaN(), slices.Max(ttft)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return capacity.Quantile(v, 0.5)
}
