package web

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/sidecar"
)

// namedClasses is how many classes a summary names.
const namedClasses = 3

// describeLoad says how full a replica is, which constraint binds, and what
// each class uses, such as
//
//	58 % full: the capacity curve binds; chat uses 41 %, rag 17 %
func describeLoad(r *sidecar.Replica) string {
	if !r.State.Known() || math.IsNaN(r.LoadRatio) {
		return "How full it is is not known"
	}
	text := percent(r.LoadRatio) + " full"
	if r.Binding >= 0 && r.Binding < capacity.NumConstraints {
		text += ": " + bindingWords[r.Binding]
	}
	byCurve := r.LoadRatios[capacity.Curve]
	if math.IsNaN(byCurve) {
		return text
	}
	uses := classUses(&r.Curve.Load)
	if r.Binding != capacity.Curve {
		text += "; by the capacity curve it is " + percent(byCurve) + " full"
	}
	if len(uses) > 0 {
		text += "; " + strings.Join(uses, ", ")
	}
	return text
}

// classUses are the classes that use something, the largest first.
func classUses(l *curve.Load) []string {
	classes := slices.DeleteFunc(slices.Clone(l.Classes), func(c curve.ClassLoad) bool { return !(c.Ratio >= 0.005) })
	slices.SortStableFunc(classes, func(a, b curve.ClassLoad) int { return compareDown(a.Ratio, b.Ratio) })
	var uses []string
	rest := 0.0
	for i, c := range classes {
		switch {
		case i == 0:
			uses = append(uses, c.Name+" uses "+percent(c.Ratio))
		case i < namedClasses:
			uses = append(uses, c.Name+" "+percent(c.Ratio))
		default:
			rest += c.Ratio
		}
	}
	if rest > 0 {
		uses = append(uses, "the others "+percent(rest))
	}
	return uses
}

func compareDown(a, b float64) int {
	switch {
	case a > b:
		return -1
	case a < b:
		return 1
	}
	return 0
}

// curveFacts are what a reader must know to believe the curve's number, and
// what it says of the time to come.
func curveFacts(r *sidecar.Replica, slo sidecar.SLO) []curveFact {
	return []curveFact{describeValidity(&r.Curve, slo), describeOffered(r), describeCoverage(&r.Curve), describeBottleneck(r), describeForecast(r), describeBurn(&r.Burn), describeDrift(&r.Curve)}
}

func describeValidity(c *sidecar.CurveStatus, slo sidecar.SLO) curveFact {
	f := curveFact{Term: "the curve", Value: "counts"}
	var notes []string
	if !c.Valid {
		f.Value = "does not count"
		if len(c.Reasons) > 0 {
			notes = append(notes, "Why: "+strings.Join(c.Why(), "; ")+".")
		}
		if overByPart(c) {
			notes = append(notes, "What it explains of the traffic is above its knee by itself, so that load is shown.")
		}
	}
	if others := otherPromises(c.Curve, slo); len(others) > 0 {
		notes = append(notes, "Another SLO: "+strings.Join(others, "; ")+".")
	}
	if len(c.Stale) > 0 {
		notes = append(notes, "Measure it again: "+strings.Join(c.Again(), "; ")+".")
	}
	if c.FileError != "" {
		notes = append(notes, "Its file has changed, and cannot be used: "+c.FileError+".")
	}
	if limits := c.Limits(); c.Valid && len(limits) > 0 {
		notes = append(notes, "To be known: "+strings.Join(limits, "; ")+".")
	}
	if c.Burstier {
		notes = append(notes, "Requests come in bursts that it was not measured with: its knee is too high for them.")
	}
	f.Note = strings.Join(notes, " ")
	return f
}

// describeOffered says what is offered by the rate that the load is judged by,
// which is not the one under Traffic, and by how much chance has raised the load.
func describeOffered(r *sidecar.Replica) curveFact {
	f := curveFact{Term: "offered now", Value: dash, Note: "not known"}
	rate := r.Curve.OfferedRequests
	if !r.State.Known() || math.IsNaN(rate) {
		return f
	}
	f.Value, f.Note = quantity(rate)+" /s", "by the last seconds; under Traffic it is the mean of the last minute"
	if e := r.Curve.Load.StandardError; e > 0 && !math.IsNaN(r.Curve.Load.Ratio) {
		f.Note += fmt.Sprintf(". The load ratio is raised by %.1f %%, one standard error of the mix, so that chance does not make it too low", 100*e)
	}
	return f
}

// mixWords say where the mix of the classes comes from.
var mixWords = map[capacity.MixSource]string{
	capacity.MixHistograms: "told apart by the engine's histograms of lengths",
	capacity.MixSums:       "told apart by sums of tokens alone",
	capacity.MixLast:       "by the last mix that was seen",
	capacity.MixDefault:    "the mix is the one that the curve declares: none of now is seen",
}

func describeCoverage(c *sidecar.CurveStatus) curveFact {
	f := curveFact{Term: "traffic of its classes", Value: dash, Note: mixWords[c.Load.Mix.Source]}
	if math.IsNaN(c.Load.Coverage) {
		if f.Note == "" {
			f.Note = "not known"
		}
		return f
	}
	f.Value = percent(c.Load.Coverage)
	if n := c.Load.Mix.Completions; !math.IsNaN(n) && f.Note != "" {
		f.Note += ", over " + grouped(n) + " requests"
	}
	return f
}

// bottleneckWords say what limits an engine.
var bottleneckWords = map[capacity.Bottleneck]string{
	capacity.BottleneckThrottled: "the GPU is throttled",
	capacity.BottleneckCPU:       "the CPU, or the front end",
	capacity.BottleneckSlots:     "sequence slots",
	capacity.BottleneckKV:        "the KV cache",
	capacity.BottleneckPrefill:   "prefill",
	capacity.BottleneckDecode:    "decode",
	capacity.BottleneckQueue:     "the queue",
	capacity.BottleneckNone:      "nothing yet",
}

func describeBottleneck(r *sidecar.Replica) curveFact {
	f := curveFact{Term: "what limits it", Value: dash, Note: "too little is known to say"}
	if words := bottleneckWords[r.Bottleneck.Bottleneck]; words != "" && r.State.Known() {
		f.Value, f.Note = words, strings.Join(r.Bottleneck.Evidence, "; ")
	}
	return f
}

// dash stands for what is not known.
const dash = "–"

// describeForecast says in how long the knee is reached, with the skill of
// such forecasts so far, or why none is shown.
func describeForecast(r *sidecar.Replica) curveFact {
	f := curveFact{Term: "time to the knee", Value: dash}
	hidden := func(why string) curveFact { f.Note = why; return f }
	seconds, horizons := r.Forecast.TimeToKnee, r.Forecast.Horizons
	switch {
	case !r.Curve.Valid:
		return hidden("a forecast needs a curve that counts")
	case seconds == 0:
		f.Value = "at the knee now"
		return f
	case len(horizons) == 0:
		return hidden(fmt.Sprintf("hidden: it needs most of %d minutes of readings", capacity.ForecastMinutes))
	}
	// The horizon that decides whether it is shown.
	h := horizons[len(horizons)-1]
	for i := range horizons {
		if seconds <= 60*float64(horizons[i].Skill.Minutes) {
			h = horizons[i]
			break
		}
	}
	skill := h.Skill
	switch {
	case math.IsNaN(seconds) && math.IsNaN(skill.Ratio):
		return hidden(fmt.Sprintf("hidden: %d of %d forecasts have been compared with what came", min(skill.Compared, skill.Minutes), skill.Minutes))
	case math.IsNaN(seconds) && !skill.Shown():
		return hidden(fmt.Sprintf("hidden: on this traffic it is worse than expecting no change (skill %.2f at %d minutes ahead)", skill.Ratio, skill.Minutes))
	case math.IsNaN(seconds):
		return hidden("hidden: too few of the last minutes are known")
	case math.IsInf(seconds, 1):
		f.Value = fmt.Sprintf("not within %d min", capacity.LongestHorizon)
	default:
		f.Value = fmt.Sprintf("about %.0f min", seconds/60)
	}
	f.Note = fmt.Sprintf("skill %.2f against expecting no change, %d minutes ahead", skill.Ratio, skill.Minutes)
	if !math.IsNaN(skill.Band) {
		f.Note += fmt.Sprintf("; 9 of 10 were within ±%.2f of the load ratio", skill.Band)
	}
	return f
}

// burnWords say what a headroom burn calls for.
var burnWords = map[capacity.BurnClass]string{
	capacity.BurnNone: "no alarm", capacity.BurnTicket: "ticket", capacity.BurnPage: "page", capacity.BurnExhausted: "no headroom left",
}

func describeBurn(b *sidecar.Burn) curveFact {
	f := curveFact{Term: "headroom burn", Value: dash}
	if math.IsNaN(b.Fast) && math.IsNaN(b.Slow) {
		f.Value, f.Note = dash, "not known before 10 minutes with a curve that counts"
		if b.Class == capacity.BurnExhausted {
			f.Value, f.Note = burnWords[b.Class], ""
		}
		return f
	}
	var values, windows []string
	for _, p := range []struct {
		burn   float64
		window int
	}{{b.Fast, capacity.FastBurnWindow}, {b.Slow, capacity.SlowBurnWindow}} {
		if !math.IsNaN(p.burn) {
			values, windows = append(values, fmt.Sprintf("%.2f", p.burn)), append(windows, fmt.Sprint(p.window/60))
		}
	}
	f.Value, f.Note = strings.Join(values, ", "), "over "+strings.Join(windows, " and ")+" min"
	if words := burnWords[b.Class]; words != "" {
		f.Note += ": " + words
	}
	lead := fmt.Sprintf("%.0f s", b.LeadSeconds)
	if b.LeadSeconds >= 120 {
		lead = fmt.Sprintf("%.0f min", b.LeadSeconds/60)
	}
	f.Note += "; 1 uses the headroom up in " + lead + ", by when there is more capacity"
	if !b.LeadMeasured {
		f.Note += " (assumed: no start of the engine was seen)"
	}
	return f
}

// describeDrift compares the engine with its curve.
func describeDrift(c *sidecar.CurveStatus) curveFact {
	f := curveFact{Term: "latency against the curve", Value: dash, Note: "not compared yet"}
	if !(c.CorrectionFactor > 0) || math.IsNaN(c.TTFTRatio) && math.IsNaN(c.ITLRatio) {
		return f
	}
	f.Value, f.Note = fmt.Sprintf("%.2f ×", c.CorrectionFactor), "at the same operating point"
	switch {
	case c.CorrectionApplied && c.CorrectionFactor > 1:
		f.Note += "; the load ratio is raised by it"
	case c.CorrectionFactor > 1:
		f.Note += "; shown only, not applied"
	}
	return f
}
