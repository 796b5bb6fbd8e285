package sidecar

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
)

// CurveStatus is the capacity curve for this replica: whether it counts, and
// what the live load is by it. A float that is not known is NaN.
type CurveStatus struct {
	// Valid tells that the load ratio by the curve counts; Reasons are codes why it does not.
	Valid   bool
	Reasons []string
	// Stale are codes why it should be measured again; it counts nevertheless.
	Stale []string
	// Curve is the one in force; nil when none was given.
	Curve *curve.Curve
	// FileError says why what is in the curve's file now is not in force; empty when it is.
	FileError string
	// Check compares the curve with the engine; nil when the engine's identity is not known.
	Check *curve.Check
	// Age since it was measured; 0 when it says that this was later than now.
	Age time.Duration
	// ProbeRunning tells that a probe is seen to measure it anew.
	ProbeRunning bool
	// Load of this rank, with the rates of this rank alone.
	Load curve.Load
	// OfferedRequests is the rate by which the load is judged: a step shows in it within seconds.
	OfferedRequests float64
	// CorrectionFactor is how much slower the engine answers than its curve
	// says at this operating point, CorrectionApplied whether the load is multiplied by it.
	CorrectionFactor  float64
	CorrectionApplied bool
	// TTFTRatio, ITLRatio and GenerationRatio are mean latencies, and the rate of
	// generated tokens, now / what the curve says at this operating point.
	TTFTRatio, ITLRatio, GenerationRatio float64
	// TokensPerStep is what a step of a sequence gave with speculative decoding
	// when the curve was measured, of the present mix.
	TokensPerStep float64
	// Burstiness of the arrivals, and Burstier than what the curve was measured with.
	Burstiness capacity.Burstiness
	Burstier   bool
}

// unknownCurve is a curve of which nothing is known but why.
func unknownCurve(reasons ...string) CurveStatus {
	n := math.NaN()
	return CurveStatus{
		Reasons: reasons,
		Load: curve.Load{
			Ratio: n, Estimate: n, Watermark: n, Low: n, High: n, Knee: n, Coverage: n, StandardError: n,
			Zone: capacity.ZoneUnknown, Left: capacity.UnknownLeft(), Mix: capacity.Mix{Source: capacity.MixNone, Coverage: n, Completions: n},
		},
		OfferedRequests: n, CorrectionFactor: n, TTFTRatio: n, ITLRatio: n, GenerationRatio: n, TokensPerStep: n,
		Burstiness: capacity.NewBurstiness(nil),
	}
}

// Waiting tells that the curve does not count only because too little was seen
// yet: more readings may mend it.
func (c *CurveStatus) Waiting() bool {
	return !c.Valid && slices.ContainsFunc(c.Reasons, func(reason string) bool {
		switch capacity.Reason(reason) {
		case ReasonFewReadings, capacity.ReasonRatesUnknown, capacity.ReasonNoTraffic, capacity.ReasonNotAdmitted, capacity.ReasonFewCompletions:
			return true
		}
		return false
	})
}

// unread is the curve's status while the rank's readings cannot be trusted.
func (c CurveStatus) unread(state engine.State) CurveStatus {
	c.Valid = false
	c.Reasons = append(slices.Clone(c.Reasons), reasonEngine+string(state))
	return c
}

// heldCurve is the curve in force against the engine as a whole, in one step of the loop.
type heldCurve struct {
	// status has what is the same for every rank.
	status CurveStatus
	// ranks is over how many ranks the curve's load was spread.
	ranks float64
	// settled tells that the engine's last start is long ago.
	settled bool
	// probing tells that readings of the last minute have a probe's load in them.
	probing bool
}

// holdCurve compares the curve in force with the engine.
func (s *Sidecar) holdCurve(o engine.Observation, gpus gpu.Snapshot) heldCurve {
	h := heldCurve{status: unknownCurve(), ranks: 1, settled: s.startup.settled(o.At)}
	if s.config.Curve == nil {
		h.status.Reasons = []string{ReasonNoCurve}
		return h
	}
	loaded := s.config.Curve.Current()
	if loaded.Err != nil {
		h.status.FileError = loaded.Err.Error()
	}
	c := loaded.Curve
	if c == nil {
		h.status.Reasons = []string{ReasonNoCurve}
		return h
	}
	h.status.Curve, h.status.Age = c, max(0, o.At.Sub(c.Finished))
	if h.status.ProbeRunning = loaded.ProbeRunning; h.status.ProbeRunning {
		s.probed = o.At
	}
	h.probing = !s.probed.IsZero() && o.At.Sub(s.probed) <= rateWindow
	if o.Reading == nil {
		return h
	}
	live, err := s.config.Identity(o, gpus)
	if err != nil {
		h.status.Reasons = []string{ReasonIdentityUnknown}
		return h
	}
	check := c.Check(live, o.At)
	h.status.Check, h.status.Stale = &check, check.Stale()
	if check.Future {
		h.status.Reasons = append(h.status.Reasons, ReasonFuture)
	}
	for _, d := range check.Hard {
		h.status.Reasons = append(h.status.Reasons, reasonIdentity+d.Field)
	}
	// The load of an engine with several ranks was spread over them.
	measured := c.Identity.DataParallel
	switch ranks := len(o.Reading.Ranks); {
	case ranks > 1 && measured == 0, ranks == 1 && measured > 1 && live.DataParallel == 0:
		h.status.Reasons = append(h.status.Reasons, ReasonRanksUnknown)
	case ranks > 1:
		h.ranks = float64(measured)
	}
	return h
}

// curveStatus judges a rank's load by the curve.
func (s *Sidecar) curveStatus(h heldCurve, r *rank, rep *Replica) CurveStatus {
	status := h.status
	status.Reasons, status.Stale = slices.Clone(status.Reasons), slices.Clone(status.Stale)
	if status.Curve == nil || status.Check == nil || len(status.Reasons) > 0 {
		return status
	}
	now := r.window.readings[len(r.window.readings)-1].at
	t := r.mix.traffic()
	t.Requests = r.window.arrivalRate()
	if r.window.quiet() {
		t.Requests = 0 // What came a minute ago is no load of now.
	}
	status.OfferedRequests = t.Requests
	r.drift.follow(status.Curve)
	options := curve.LoadOptions{Last: r.lastMix, LastAge: now.Sub(r.lastMixAt)}
	plain := spread(status.Curve, t, options, h.ranks)
	// What a step gives by the curve is of the mix, which the load has told.
	status.TokensPerStep = status.Curve.TokensPerStep(plain.Mix)
	if status.TokensPerStep >= 1 && rep.TokensPerStep >= 1 {
		options.Acceptance, options.CurveAcceptance = rep.TokensPerStep, status.TokensPerStep
		plain = spread(status.Curve, t, options, h.ranks)
	}
	if plain.Mix.Valid() && !h.probing { // A probe's classes are not the users'.
		r.lastMix, r.lastMixAt = plain.Mix, now
	}
	recent := r.window.last(rateWindow)
	r.drift.observe(now, status.Curve, plain, work{
		running:    mean(recent, func(r *reading) float64 { return r.running }) * h.ranks,
		generation: rep.Rates.GenerationTokens * h.ranks,
		kvUsage:    mean(recent, func(r *reading) float64 { return r.kvUsage }),
		drafting:   rep.TokensPerStep / status.TokensPerStep,
		latencies:  rep.Latencies,
		restarted:  !h.settled, probing: h.probing,
	})
	status.CorrectionFactor = r.drift.factor()
	status.TTFTRatio, status.ITLRatio, status.GenerationRatio = r.drift.ttftRatio, r.drift.itlRatio, r.drift.generationRatio
	status.Load, status.CorrectionApplied = plain, s.config.ApplyCorrection
	if s.config.ApplyCorrection && status.CorrectionFactor > 1 {
		options.Correction = capacity.Pessimistic(status.CorrectionFactor)
		status.Load = spread(status.Curve, t, options, h.ranks)
	}
	status.Load = perRank(status.Load, h.ranks)
	if i := slices.Index(status.Load.Reasons, capacity.ReasonRatesUnknown); i >= 0 && rep.RateSpan < MinRateSpan {
		status.Load.Reasons[i] = ReasonFewReadings
	}
	if status.TokensPerStep >= 1 && math.IsNaN(rep.TokensPerStep) {
		status.Load.Reasons = append(status.Load.Reasons, ReasonAcceptanceUnknown)
	}
	if h.probing {
		status.Load.Reasons = append(status.Load.Reasons, ReasonProbeRunning)
	}
	status.Stale = append(status.Stale, r.drift.stale()...)
	if status.Valid = status.Load.Valid; !status.Valid {
		status.Reasons = keeping(&status.Load)
	}
	status.Burstiness = r.burstiness
	status.Burstier = r.burstiness.Burstier(shapeOf(status.Curve))
	return status
}

// idleSpan is for how long nothing must have come before nothing is offered,
// MinRateSpan where there are no more readings yet.
const idleSpan = 5 * time.Second

// spread is the load of a curve whose engine has so many ranks, if each took
// what this rank takes.
func spread(c *curve.Curve, t capacity.Traffic, o curve.LoadOptions, ranks float64) curve.Load {
	t.Requests *= ranks
	t.Admitted *= ranks
	t.PromptTokens *= ranks
	t.ComputedPromptTokens *= ranks
	t.GenerationTokens *= ranks
	return c.Load(t, o)
}

// perRank is this rank's part of such a load. Ratios are the same.
func perRank(l curve.Load, ranks float64) curve.Load {
	l.Knee /= ranks
	l.Left.RequestsPerSecond /= ranks
	l.Left.PromptTokensPerSecond /= ranks
	l.Left.GenerationTokensPerSecond /= ranks
	l.Classes = slices.Clone(l.Classes)
	for i := range l.Classes {
		l.Classes[i].Rate /= ranks
		l.Classes[i].Knee /= ranks
		l.Classes[i].Full /= ranks
	}
	return l
}

// shapeOf is the burstiness of the arrivals that a curve's knees were measured with, as gamma's shape.
func shapeOf(c *curve.Curve) float64 {
	shape := 1.0
	for i := range c.Classes {
		for _, study := range c.Classes[i].Studies {
			switch {
			case study.Arrivals.Process == "poisson":
				return 1
			case study.Arrivals.Process == "gamma" && study.Arrivals.Burstiness > 0:
				shape = study.Arrivals.Burstiness
			}
		}
	}
	return shape
}

// noCurve says in words why headroom does not rest on a curve, and what to do.
func noCurve(c *CurveStatus) string {
	const bound = "the headroom is an upper bound from slots, KV cache, token budget and queue, and what is left per second assumes that load grows in proportion"
	switch {
	case slices.Contains(c.Reasons, ReasonNoCurve):
		return "no capacity curve: " + bound
	case c.Check == nil:
		return "the capacity curve does not count, because the engine's identity is not known: give --identity model=NAME; " + bound
	case len(c.Check.Hard) > 0:
		return fmt.Sprintf("the capacity curve was measured on another engine (%s): measure this one, or allow it with an entry in the curve's reuse; %s", differences(c.Check.Hard), bound)
	case c.Load.Ratio > 1:
		return fmt.Sprintf("the capacity curve does not count, because %s; what it explains of the traffic is above the knee by itself, so the load is at least that", strings.Join(c.Why(), "; "))
	default:
		return fmt.Sprintf("the capacity curve does not count, because %s; %s", strings.Join(c.Why(), "; "), bound)
	}
}

func differences(ds []curve.Difference) string {
	words := make([]string, len(ds))
	for i, d := range ds {
		words[i] = d.String()
	}
	return strings.Join(words, ", ")
}

// curveWords says what a reader of a curve in force should know of it.
func curveWords(c *CurveStatus) []string {
	var words []string
	if c.Curve == nil {
		return nil
	}
	if c.FileError != "" {
		words = append(words, "what is in the capacity curve's file now is not in force, the curve before it is: "+c.FileError)
	}
	if len(c.Stale) > 0 {
		words = append(words, "measure the capacity curve again: "+strings.Join(c.Again(), "; "))
	}
	limits := slices.DeleteFunc(c.limits(), func(code string) bool { return code == string(ReasonProbeRunning) }) // It is said first of all.
	for _, limit := range DescribeReasons(limits, c.Check) {
		words = append(words, "the load by the capacity curve: "+limit)
	}
	if c.Burstier {
		words = append(words, fmt.Sprintf("requests come in bursts (dispersion %.1f) that the capacity curve was not measured with: its knee is too high for them", c.Burstiness.Dispersion))
	}
	return words
}
