package sidecar

import (
	"math"
	"slices"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/collector/engine"
)

// mixStep is how far apart the readings are that a mix is taken between. Its
// histograms are large, and its shape changes slowly.
const mixStep = 15 * time.Second

// slowReading is what is kept of one rank at one moment for a mix and for
// percentiles: counters corrected for resets, NaN or nil where the engine does
// not tell.
type slowReading struct {
	at                                                                    time.Time
	firstTokens, promptTokens, computedTokens, generationTokens, finished float64
	promptLengths, generationLengths                                      *engine.Histogram
	firstToken, interToken                                                *engine.Histogram
}

func slowReadingOf(at time.Time, r *engine.Rank) slowReading {
	return slowReading{
		at:                at,
		firstTokens:       totalOf(r.Histogram(engine.TimeToFirstToken)).count,
		promptTokens:      r.Value(engine.PromptTokens),
		computedTokens:    r.Value(engine.PromptTokensComputed),
		generationTokens:  r.Value(engine.GenerationTokens),
		finished:          r.Value(engine.RequestsFinished),
		promptLengths:     r.Histogram(engine.PromptLength),
		generationLengths: r.Histogram(engine.GenerationLength),
		firstToken:        r.Histogram(engine.TimeToFirstToken),
		interToken:        r.Histogram(engine.InterTokenLatency),
	}
}

// mixWindow keeps a rank's readings of the last capacity.MixWindowMax, a
// mixStep apart, and the newest.
type mixWindow struct {
	steps  []slowReading
	newest slowReading
	// from is the step that the mix begins at.
	from int
}

func (w *mixWindow) add(r slowReading) {
	w.newest = r
	if n := len(w.steps); n > 0 && r.at.Sub(w.steps[n-1].at) < mixStep {
		return
	}
	// One reading at or before the window's start stays, as in window.
	start := r.at.Add(-capacity.MixWindowMax)
	drop := 0
	for drop+1 < len(w.steps) && !w.steps[drop+1].at.After(start) {
		drop++
	}
	w.steps = append(append(w.steps[:0], w.steps[drop:]...), r)
	w.from = len(w.steps) - 1
	for w.from > 0 && (r.at.Sub(w.steps[w.from].at) < capacity.MixWindow || !w.since(w.from).Enough()) {
		w.from--
	}
}

func (w *mixWindow) clear() { *w = mixWindow{steps: w.steps[:0]} }

// traffic is that of the last capacity.MixWindow, or of as much more, up to
// capacity.MixWindowMax, as capacity.MixSize needs. Its Requests are not
// known here. Nothing is known before MinRateSpan of readings.
func (w *mixWindow) traffic() capacity.Traffic {
	nan := math.NaN()
	t := capacity.Traffic{Requests: nan, Admitted: nan, PromptTokens: nan, ComputedPromptTokens: nan, GenerationTokens: nan, Completions: nan}
	if len(w.steps) == 0 || w.newest.at.Sub(w.steps[w.from].at) < MinRateSpan {
		return t
	}
	return w.since(w.from)
}

// since is the traffic from a step to the newest reading.
func (w *mixWindow) since(step int) capacity.Traffic {
	a, b := &w.steps[step], &w.newest
	seconds := b.at.Sub(a.at).Seconds()
	t := capacity.Traffic{Requests: math.NaN()}
	t.Admitted = (b.firstTokens - a.firstTokens) / seconds
	if math.IsNaN(t.Admitted) {
		// Where the engine counts no first tokens, those that ended stand in.
		t.Admitted = (b.finished - a.finished) / seconds
	}
	t.PromptTokens = (b.promptTokens - a.promptTokens) / seconds
	t.ComputedPromptTokens = (b.computedTokens - a.computedTokens) / seconds
	t.GenerationTokens = (b.generationTokens - a.generationTokens) / seconds
	t.Completions = b.finished - a.finished
	t.PromptLengths = between(a.promptLengths, b.promptLengths)
	t.GenerationLengths = between(a.generationLengths, b.generationLengths)
	return t
}

// between is what was counted between two readings of a histogram;
// empty when one is absent or the engine came back with other bounds.
func between(a, b *engine.Histogram) capacity.Histogram {
	if a == nil || b == nil || len(b.Bounds) < 2 || !slices.Equal(a.Bounds, b.Bounds) {
		return capacity.Histogram{}
	}
	// The engine's last bound is infinite and its counts add up; here neither is so.
	h := capacity.NewHistogram(b.Bounds[:len(b.Bounds)-1])
	before := 0.0
	for i := range b.Counts {
		upTo := b.Counts[i] - a.Counts[i]
		h.Counts[i], before = upTo-before, upTo
	}
	return h
}

// The spans in which arrivals are counted: arrivalSpan is the usual rate, a
// rise shows in the shorter ones first.
const arrivalSpan = rateWindow

var recentSpans = []time.Duration{2 * time.Second, 5 * time.Second, 15 * time.Second}

// arrivalRate is the rate at which requests arrive now; NaN when it is not known.
func (w *window) arrivalRate() float64 {
	long := arrivals(w.punctual(arrivalSpan))
	if long.Seconds < MinRateSpan.Seconds() {
		return math.NaN()
	}
	recent := make([]capacity.Arrivals, len(recentSpans))
	for i, span := range recentSpans {
		recent[i] = arrivals(w.last(span))
	}
	return capacity.OfferedRate(long, recent...)
}

// arrivals counts the requests that arrived over the readings, as offeredRequests does.
func arrivals(rs []reading) capacity.Arrivals {
	if len(rs) < 2 {
		return capacity.Arrivals{Count: math.NaN(), Seconds: math.NaN()}
	}
	count, seconds := increase(rs, func(r *reading) float64 { return r.begun + r.waiting })
	if math.IsNaN(count) {
		count, seconds = increase(rs, func(r *reading) float64 { return r.finished + r.waiting + r.running })
	}
	return capacity.Arrivals{Count: count, Seconds: seconds, Longer: rs[0].late, Shorter: rs[len(rs)-1].late}
}
