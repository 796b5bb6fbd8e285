package importer

import (
	"fmt"
	"math"
	"strings"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// studyOf makes a study of runs with the same arrivals, ordered by their rate.
func studyOf(runs []run, o Options, origin time.Time) (curve.Study, error) {
	s := curve.Study{Arrivals: runs[0].arrivals, SafeRate: capacity.Unknown(), Status: curve.StatusNotReached}
	for i := range runs {
		p, err := runs[i].point(o, origin)
		if err != nil {
			return s, err
		}
		s.Points = append(s.Points, p)
		s.Requests += p.Attempts
		s.Seconds += p.Seconds
	}
	if runs[0].concurrency > 0 {
		s.Reason = "a closed loop sends as the engine answers: it shows no knee; give runs at fixed request rates"
		return s, nil
	}
	var by []curve.SLOKnee
	for _, slo := range o.SLO {
		var loads []load
		for i := range runs {
			found, err := runs[i].tail(slo)
			if err != nil {
				return s, err
			}
			loads = append(loads, load{runs[i].offered, found.value, found.n})
		}
		k := cross(loads, slo.Bound.Seconds())
		k.SLO = slo
		by = append(by, k)
	}
	s.Knee, s.Status, s.Reason = kneeOf(by, o.PeakReserve)
	if s.Knee != nil {
		// Without a soak the last load that passed stands in for the safe rate.
		s.SafeRate = s.Knee.Low
		s.Knee.PromptTokenRate = s.Knee.Rate * capacity.Value(runs[0].prompt)
		s.Knee.GenerationTokenRate = s.Knee.Rate * capacity.Value(runs[0].output)
	}
	return s, nil
}

// kneeOf is the first SLO that gives; nil with the reason when the loads do not show where.
func kneeOf(by []curve.SLOKnee, reserve float64) (*curve.Knee, curve.Status, string) {
	var low, held []string
	var binding *curve.SLOKnee
	u := capacity.Unknown()
	k := curve.Knee{Low: u, High: u, CliffFrom: u, CliffTo: u, Concurrency: u, KVPeak: u, BySLO: by}
	for i := range by {
		b := &by[i]
		switch {
		case b.Method == "above":
			held = append(held, b.SLO.String())
			continue
		case !b.Rate.Known():
			low = append(low, b.SLO.String())
			continue
		}
		if binding == nil || b.Rate < binding.Rate {
			binding = b
		}
		if !k.High.Known() || b.High < k.High {
			k.High = b.High
		}
		if !k.Low.Known() || b.Low < k.Low {
			k.Low = b.Low
		}
	}
	switch {
	case len(low) > 0:
		return nil, curve.StatusNoSafeRate, fmt.Sprintf("%s did not hold at the lowest rate: the knee is below it; give runs at lower rates", strings.Join(low, " and "))
	case binding == nil:
		return nil, curve.StatusNotReached, fmt.Sprintf("%s held at the highest rate: the knee is above it; give runs at higher rates", strings.Join(held, " and "))
	}
	k.Rate, k.BindingSLO = binding.Rate, binding.SLO.String()
	k.Watermark = capacity.Value(1-reserve) * k.Low
	return &k, curve.StatusEstimate, "imported: between the last load that passed and the first that failed; not soaked"
}

// load is a rate, the latency's quantile at it and the number of trials behind that.
type load struct{ rate, value, weight float64 }

// cross is the rate at which the quantile passes the bound. The logarithms
// of the quantiles, weighted by their trials, are made such that they never fall
// (pool-adjacent-violators); between the last load that passes and the
// first that fails they are a straight line over the rate. Low and High are
// these two. Loads are ordered by rate.
func cross(loads []load, bound float64) curve.SLOKnee {
	u := capacity.Unknown()
	k := curve.SLOKnee{Rate: u, Low: u, High: u, Method: "above"}
	fit := isotonic(loads)
	for i := range fit {
		if fit[i].value <= math.Log(bound) {
			k.Low = capacity.Value(fit[i].rate)
			continue
		}
		k.High, k.Method = capacity.Value(fit[i].rate), "isotonic"
		if i == 0 {
			k.Method = "bracket"
			return k
		}
		last := fit[i-1]
		if math.IsInf(fit[i].value, 1) {
			// Requests failed there, which is no latency to interpolate: the load that passed is what is known.
			k.Rate, k.Method = k.Low, "bracket"
			return k
		}
		share := (math.Log(bound) - last.value) / (fit[i].value - last.value)
		k.Rate = capacity.Value(last.rate + share*(fit[i].rate-last.rate))
		return k
	}
	return k
}

// least is a latency in seconds that no tool tells from 0, which has no logarithm.
const least = 1e-9

// isotonic is the weighted fit of log values that never fall, at each rate once.
func isotonic(loads []load) []load {
	type block struct {
		load
		rates []float64
	}
	var blocks []block
	for _, l := range loads {
		b := block{load{l.rate, math.Log(max(l.value, least)), max(l.weight, 1)}, []float64{l.rate}}
		for len(blocks) > 0 {
			last := blocks[len(blocks)-1]
			if same := last.rate == b.rates[0]; !same && last.value <= b.value {
				break
			}
			w := last.weight + b.weight
			b = block{load{b.rate, (last.value*last.weight + b.value*b.weight) / w, w}, append(last.rates, b.rates...)}
			blocks = blocks[:len(blocks)-1]
		}
		blocks = append(blocks, b)
	}
	var fit []load
	for _, b := range blocks {
		for _, r := range b.rates {
			if len(fit) == 0 || fit[len(fit)-1].rate != r {
				fit = append(fit, load{r, b.value, b.weight})
			}
		}
	}
	return fit
}
