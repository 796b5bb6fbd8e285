package sidecar

import (
	"math"
	"slices"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
)

// stepModel is what the curve's points say of the engine's steps, made once for each curve.
type stepModel struct {
	curve   *curve.Curve
	ranks   float64
	model   *capacity.StepTime
	refused error
	smClock float64
}

// of is the model of a curve; nothing without one.
func (m *stepModel) of(c *curve.Curve, ranks float64) *stepModel {
	if c == nil {
		return &stepModel{smClock: math.NaN()}
	}
	if m.curve != c || m.ranks != ranks {
		*m = stepModel{curve: c, ranks: ranks, smClock: float64(c.SMClock())}
		m.model, m.refused = c.StepTime(ranks)
	}
	return m
}

// gpuSigns is what the engine's GPUs show at a moment; NaN is unknown.
type gpuSigns struct {
	// smActive of the least busy GPU, which the others wait for; smClock of the slowest.
	smActive, smClock float64
	// throttled is 1 while heat or the power brake holds some GPU's clocks down.
	throttled float64
}

// throttles are the reasons that are no plain power cap.
var throttles = []string{"sw_thermal", "hw_thermal", "hw_power_brake"}

// signsOf reads them. Nobody tells which GPU is whose of several ranks, but
// what holds the clocks of one down slows the engine.
func signsOf(gpus gpu.Snapshot, ranks int) gpuSigns {
	g := gpuSigns{smActive: math.NaN(), smClock: math.NaN(), throttled: math.NaN()}
	if gpus.Status.SelectionAmbiguous {
		return g
	}
	least := func(a, b float64) float64 {
		if math.IsNaN(a) || b < a {
			return b
		}
		return a
	}
	for i := range gpus.Readings {
		r := &gpus.Readings[i]
		if ranks == 1 {
			g.smActive = least(g.smActive, r.SMActiveRatio)
		}
		g.smClock = least(g.smClock, r.SMClockHertz)
		if r.ThrottleActive == nil || g.throttled == 1 {
			continue
		}
		g.throttled = 0
		if slices.ContainsFunc(throttles, func(reason string) bool { return r.ThrottleActive[reason] }) {
			g.throttled = 1
		}
	}
	return g
}

// loadBases say in words what a load ratio under each constraint is a share of.
var loadBases = [capacity.NumConstraints]string{
	capacity.Curve:         "the knee",
	capacity.SequenceSlots: "the sequence slots",
	capacity.TokenSlots:    "the usable token slots",
	capacity.TokenBudget:   "the token budget of a step",
	capacity.Queue:         "the time that requests may wait",
	capacity.LoRA:          "the LoRA adapters that fit",
}

// attribute says what limits a rank, by its last minute.
func (s *Sidecar) attribute(r *rank, rep *Replica, held heldCurve) capacity.Attribution {
	recent := r.window.last(rateWindow)
	over := func(gauge func(*reading) float64) float64 { return mean(recent, gauge) }
	signs := capacity.UnknownSigns()
	signs.LoadRatio = rep.LoadRatio
	if _, largest := rep.LoadRatios.Max(); largest != capacity.NoConstraint {
		signs.LoadBasis = loadBases[largest]
	}
	signs.TTFT, signs.ITL = r.mix.percentiles(s.config.SLO.Objective)
	signs.TTFTBound = s.config.SLO.TimeToFirstToken.Seconds()
	if s.config.SLO.TokenLatency > 0 {
		signs.ITLBound = s.config.SLO.TokenLatency.Seconds()
	}
	signs.TTFTMean, signs.Queue, signs.Prefill = rep.Latencies.TimeToFirstToken, rep.Latencies.QueueTime, rep.Latencies.PrefillTime
	signs.Decode = meanOf(recent, func(r *reading) total { return r.decodeTime })
	if s.judgesTokenSlots() {
		signs.KVUsage = 0
		for i := range recent {
			signs.KVUsage = math.Max(signs.KVUsage, recent[i].kvUsage) // math.Max keeps NaN
		}
	}
	preempted, _ := increase(r.window.readings, func(r *reading) float64 { return r.preemptions })
	finished, _ := increase(r.window.readings, func(r *reading) float64 { return r.finished })
	signs.Preempted = preempted / finished
	signs.Running, signs.Waiting = over(func(r *reading) float64 { return r.running }), over(func(r *reading) float64 { return r.waiting })
	signs.SequenceSlots = rep.SequenceSlots.Total
	if len(rep.Bandwidth) > 0 {
		signs.BandwidthSaturation, signs.BandwidthMeasured = rep.Bandwidth[0].Ratio, rep.Bandwidth[0].Source == "gpm"
	}
	signs.SMActive, signs.Throttled = over(func(r *reading) float64 { return r.gpu.smActive }), over(func(r *reading) float64 { return r.gpu.throttled })
	signs.StepRate = rep.Rates.Steps
	if rep.Curve.Curve != nil && rep.Curve.Check != nil && rep.Curve.Check.Valid {
		m := s.steps.of(rep.Curve.Curve, held.ranks)
		signs.ClockRatio = over(func(r *reading) float64 { return r.gpu.smClock }) / m.smClock
		if m.model != nil {
			rates, perStep := rep.Rates, rep.TokensPerStep
			if math.IsNaN(perStep) {
				perStep = 1
			}
			load := capacity.NewStepLoad(rep.Latencies.Step, rates.ComputedPromptTokens, rates.GenerationTokens/perStep,
				rates.PromptTokens/rates.ServedRequests, rates.GenerationTokens/rates.ServedRequests)
			signs.Shares = m.model.Shares(load)
			if m.model.Within(load) == nil {
				signs.StepSeconds, _ = m.model.Seconds(load)
			}
		}
	}
	return capacity.Attribute(signs)
}

// percentiles of time to first token and of the time between tokens, over the
// last minute; NaN where the engine has no histogram or counted nothing.
func (w *mixWindow) percentiles(q float64) (firstToken, interToken float64) {
	from := len(w.steps) - 1
	for from > 0 && w.newest.at.Sub(w.steps[from].at) < rateWindow {
		from--
	}
	if from < 0 {
		return math.NaN(), math.NaN()
	}
	a, b := &w.steps[from], &w.newest
	return percentile(a.firstToken, b.firstToken, q), percentile(a.interToken, b.interToken, q)
}

// percentile of what was counted between two readings of a histogram, linear
// within its bucket, as PromQL's histogram_quantile.
func percentile(a, b *engine.Histogram, q float64) float64 {
	h := between(a, b)
	total := h.Total()
	if !(total > 0) {
		return math.NaN()
	}
	rank, below := q*total, 0.0
	for i, bound := range h.Bounds {
		if below+h.Counts[i] >= rank && h.Counts[i] > 0 {
			low := 0.0
			if i > 0 {
				low = h.Bounds[i-1]
			}
			return low + (bound-low)*(rank-below)/h.Counts[i]
		}
		below += h.Counts[i]
	}
	return h.Bounds[len(h.Bounds)-1]
}
