package sidecar

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
)

// Reasons why no capacity curve is in force, besides the fields of its
// identity and those of the live load.
const (
	ReasonNoCurve         = "no_curve"
	ReasonIdentityUnknown = "identity_unknown"
	// ReasonFuture: the curve says it was measured later than now, so that its age is not known.
	ReasonFuture = "identity_finished"
	// ReasonRanksUnknown: the engine, or the one that was measured, has several
	// ranks, and the other side does not say over how many its load is spread.
	ReasonRanksUnknown = "data_parallel_unknown"
	// Before the name of a field of the identity, and of an engine's state.
	reasonIdentity = "identity_"
	reasonEngine   = "engine_"
)

// ReasonFewReadings: there are no rates before MinRateSpan of readings.
const ReasonFewReadings capacity.Reason = "few_readings"

// Reasons that never keep a curve from counting.
const (
	// ReasonProbeRunning: a probe measures the curve anew, and its requests look like any others.
	ReasonProbeRunning capacity.Reason = "probe_running"
	// ReasonAcceptanceUnknown: the curve was measured with speculative decoding,
	// and how many tokens a step gives now is not known.
	ReasonAcceptanceUnknown capacity.Reason = "acceptance_unknown"
)

// Reasons to measure a curve again although it counts, besides the fields of its identity.
const (
	// StaleAge: it is older than curve.MaxAge.
	StaleAge = "age"
	// StaleDrift: latencies are far from what the curve says for half an hour.
	StaleDrift = "drift"
	// StaleGenerationRate: so is the rate of generated tokens.
	StaleGenerationRate = "generation_rate"
)

// reason is a code and what it means.
type reason struct {
	code, words string
	// aside tells that it never keeps a curve from counting.
	aside bool
}

// reasons of a curve, the most important first. Those that begin with
// reasonIdentity or reasonEngine and are not here stand by their prefix.
var reasons = []reason{
	{code: ReasonNoCurve, words: "none was given"},
	{code: reasonEngine},
	{code: ReasonIdentityUnknown, words: "the engine's identity is not known: give --identity model=NAME"},
	{code: ReasonFuture, words: "it says that it was measured later than now: the clock here, or the one there, is wrong"},
	{code: reasonIdentity},
	{code: ReasonRanksUnknown, words: "the engine has several ranks, or the one that was measured had, and it is not known over how many its load was spread"},
	{code: string(capacity.ReasonNoClasses), words: "it has no class"},
	{code: string(ReasonFewReadings), words: fmt.Sprintf("%.0f s of readings are needed to know rates: wait", MinRateSpan.Seconds())},
	{code: string(capacity.ReasonRatesUnknown), words: "a rate that the mix needs is not known"},
	{code: string(capacity.ReasonCoverageLow), words: fmt.Sprintf("its classes explain less than %.0f %% of the traffic", 100*capacity.MinCoverage)},
	{code: string(curve.ReasonClassWithoutKnee), words: "of a class of the traffic neither a knee nor a safe rate is known"},
	{code: string(capacity.ReasonNotAdmitted), words: "requests come and none is admitted, so nothing is known of them"},
	{code: string(capacity.ReasonFewCompletions), words: fmt.Sprintf("fewer than %d requests were seen to end in the last %.0f minutes", capacity.MinCompletions, capacity.MixWindowMax.Minutes())},
	{code: string(capacity.ReasonNoTraffic), words: "nothing is offered, so there is no mix of now"},

	{code: string(ReasonProbeRunning), words: "a probe measures the curve anew, and its requests count as traffic", aside: true},
	{code: string(ReasonAcceptanceUnknown), words: "how many tokens a step of speculative decoding gives now is not known, so as many as when it was measured are assumed", aside: true},
	{code: string(curve.ReasonKneeUnknown), words: "of a class of the traffic no knee is known, so the rate that is known to be safe counts as full", aside: true},
	{code: string(curve.ReasonResourcesUnknown), words: "what its classes use at their knees is not known, so their loads are added up", aside: true},
	{code: string(curve.ReasonPrefillShareUnknown), words: "how much of a class's load is prefill is not known", aside: true},
	{code: string(capacity.ReasonNoHistograms), words: "the engine has no histograms of lengths, so the mix rests on sums", aside: true},
	{code: string(curve.ReasonLastMix), words: "no mix of now is seen; the last one stands in", aside: true},
	{code: string(curve.ReasonDefaultMix), words: "no mix of now is seen; the one that the curve declares stands in", aside: true},

	{code: StaleDrift, words: "latencies have been far from what it says for half an hour"},
	{code: StaleGenerationRate, words: "the engine has generated tokens at another rate than it says for half an hour"},
	{code: StaleAge, words: fmt.Sprintf("it is older than %.0f days", curve.MaxAge.Hours()/24)},
}

// place of a code among the reasons; what is none of them comes last.
func place(code string) int {
	if i := slices.IndexFunc(reasons, func(r reason) bool { return r.code == code }); i >= 0 {
		return i
	}
	prefix := ""
	switch {
	case strings.HasPrefix(code, reasonIdentity):
		prefix = reasonIdentity
	case engineState(code) != "":
		prefix = reasonEngine
	}
	if i := slices.IndexFunc(reasons, func(r reason) bool { return prefix != "" && r.code == prefix }); i >= 0 {
		return i
	}
	return len(reasons)
}

// engineState is the state that a code of the engine names; empty when it is no
// such code, as with engine_version, which is a field of the identity.
func engineState(code string) engine.State {
	state, ok := strings.CutPrefix(code, reasonEngine)
	if !ok || !slices.Contains(engine.States, engine.State(state)) {
		return ""
	}
	return engine.State(state)
}

func aside(code string) bool {
	i := place(code)
	return i < len(reasons) && reasons[i].aside
}

// DescribeReasons puts codes of a curve into words, the most important first.
// check tells of a field of the identity how it differs; it may be nil.
func DescribeReasons(codes []string, check *curve.Check) []string {
	ordered := slices.SortedStableFunc(slices.Values(codes), func(a, b string) int { return cmp.Compare(place(a), place(b)) })
	words := make([]string, len(ordered))
	for i, code := range ordered {
		words[i] = describeReason(code, check)
	}
	return words
}

func describeReason(code string, check *curve.Check) string {
	if i := place(code); i < len(reasons) && reasons[i].words != "" {
		return reasons[i].words
	}
	if state := engineState(code); state != "" {
		return "the engine is " + string(state)
	}
	field := strings.TrimPrefix(code, reasonIdentity)
	if check != nil {
		for _, d := range slices.Concat(check.Hard, check.Soft) {
			if d.Field == field {
				return d.String()
			}
		}
	}
	return strings.ReplaceAll(field, "_", " ") + " differs"
}

// Why says in words why the curve does not count, the most important first.
func (c *CurveStatus) Why() []string { return DescribeReasons(c.Reasons, c.Check) }

// Again says in words why it should be measured again, the most important first.
func (c *CurveStatus) Again() []string { return DescribeReasons(c.Stale, c.Check) }

// Limits says in words what the load by a curve that counts does not take into
// account, but for where its mix is from.
func (c *CurveStatus) Limits() []string { return DescribeReasons(c.limits(), c.Check) }

// limits are their codes.
func (c *CurveStatus) limits() []string {
	var codes []string
	for _, r := range c.Load.Reasons {
		if code := string(r); aside(code) && r != curve.ReasonLastMix && r != curve.ReasonDefaultMix {
			codes = append(codes, code)
		}
	}
	return codes
}

// keeping are the codes of what keeps a load from counting, the most important
// first. Where nothing but what stands aside was told, that is all there is to say.
func keeping(l *curve.Load) []string {
	var codes, all []string
	for _, r := range l.Reasons {
		all = append(all, string(r))
		if !aside(string(r)) {
			codes = append(codes, string(r))
		}
	}
	if codes == nil {
		codes = all
	}
	slices.SortStableFunc(codes, func(a, b string) int { return cmp.Compare(place(a), place(b)) })
	return codes
}
