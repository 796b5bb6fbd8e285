package sidecar

import (
	"math"
	"slices"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/collector/engine"
)

// reading is what the window keeps of one rank at one moment: gauges and
// reset-corrected counters as the engine said them, NaN where it did not.
type reading struct {
	at time.Time
	// late is by how many seconds it came later than readings usually do, 0 for
	// one that hardly did: the engine may have made its page that much earlier.
	late             float64
	running          float64
	waiting          float64
	kvUsage          float64
	preemptions      float64
	promptTokens     float64
	computedTokens   float64
	generationTokens float64
	finished         float64
	steps            float64
	bytesMoved       float64
	drafts           float64
	accepted         float64
	draftedLength    float64
	firstToken       total
	// begun is how many requests got their first token, NaN where that does not
	// count all of them.
	begun       float64
	interToken  total
	queueTime   total
	prefillTime total
	decodeTime  total
	gpu         gpuSigns
}

// total is a histogram's sum and count.
type total struct{ sum, count float64 }

func readingOf(at time.Time, r *engine.Rank) reading {
	return reading{
		at:               at,
		running:          r.Value(engine.RequestsRunning),
		waiting:          r.Value(engine.RequestsWaiting),
		kvUsage:          r.Value(engine.KVCacheUsage),
		preemptions:      r.Value(engine.Preemptions),
		promptTokens:     r.Value(engine.PromptTokens),
		computedTokens:   r.Value(engine.PromptTokensComputed),
		generationTokens: r.Value(engine.GenerationTokens),
		finished:         r.Value(engine.RequestsFinished),
		steps:            r.Value(engine.EngineSteps),
		bytesMoved:       r.Value(engine.EstimatedReadBytes) + r.Value(engine.EstimatedWriteBytes),
		drafts:           r.Value(engine.SpeculativeDrafts),
		accepted:         r.Value(engine.SpeculativeAccepted),
		draftedLength:    r.Value(engine.SpeculativeLength),
		firstToken:       totalOf(r.Histogram(engine.TimeToFirstToken)),
		interToken:       totalOf(r.Histogram(engine.InterTokenLatency)),
		queueTime:        totalOf(r.Histogram(engine.QueueTime)),
		prefillTime:      totalOf(r.Histogram(engine.PrefillTime)),
		decodeTime:       totalOf(r.Histogram(engine.DecodeTime)),
	}
}

func totalOf(h *engine.Histogram) total {
	if h == nil {
		return total{math.NaN(), math.NaN()}
	}
	return total{h.Sum, h.Count}
}

// window keeps a rank's readings of the last span, oldest first.
type window struct {
	span     time.Duration
	readings []reading
}

// add appends a reading and forgets what is older than the span. One reading
// at or before the span's start stays, so that a full span can be differenced.
func (w *window) add(r reading) {
	r.late = w.lateness(r.at)
	w.readings = append(w.readings, r)
	start := r.at.Add(-w.span)
	drop := 0
	for drop+1 < len(w.readings) && !w.readings[drop+1].at.After(start) {
		drop++
	}
	// Shifting in place keeps the backing array at one window's size.
	if drop > 0 {
		w.readings = append(w.readings[:0], w.readings[drop:]...)
	}
	whole := w.firstTokensAreWhole()
	for i := range w.readings {
		if r := &w.readings[i]; whole {
			r.begun = r.firstToken.count
		} else {
			r.begun = math.NaN()
		}
	}
}

// lateReading is how many times longer than usual a reading must take to be late.
const lateReading = 2

// lateness is by how many seconds one that comes now is later than those of the
// last minute did.
func (w *window) lateness(at time.Time) float64 {
	recent := w.last(rateWindow)
	if len(recent) < 2 {
		return 0
	}
	apart := make([]float64, 0, len(recent)-1)
	for i := 1; i < len(recent); i++ {
		apart = append(apart, recent[i].at.Sub(recent[i-1].at).Seconds())
	}
	slices.Sort(apart)
	usual, now := apart[len(apart)/2], at.Sub(recent[len(recent)-1].at).Seconds()
	if now <= lateReading*usual {
		return 0
	}
	return now - usual
}

// punctual is last(d) without a late reading at its ends, as a rate between
// two moments needs to know when they were: one that has just come is left out
// if there is enough without it, and the one before a late one begins the span.
func (w *window) punctual(d time.Duration) []reading {
	end := len(w.readings)
	if end > 1 && w.readings[end-1].late > 0 && span(w.readings[:end-1]) >= MinRateSpan {
		end--
	}
	before := window{readings: w.readings[:end]}
	start := end - len(before.last(d))
	if start > 0 && start < end && w.readings[start].late > 0 {
		start--
	}
	return w.readings[start:end]
}

// quiet tells that nothing is in the engine, and that nothing has come for idleSpan.
func (w *window) quiet() bool {
	recent := w.last(idleSpan)
	if span(recent) < MinRateSpan {
		return false
	}
	newest := &recent[len(recent)-1]
	return newest.running == 0 && newest.waiting == 0 && arrivals(recent).Count == 0
}

// span is the time from the first reading to the last.
func span(rs []reading) time.Duration {
	if len(rs) == 0 {
		return 0
	}
	return rs[len(rs)-1].at.Sub(rs[0].at)
}

// firstTokensAreWhole tells whether the histogram of the time to first token
// counts every request, as it does not where an engine observes it for some kinds
// of requests only: what ended in the last minute and did not run before it must
// have got its first token in it.
func (w *window) firstTokensAreWhole() bool {
	rs := w.last(rateWindow)
	first, last := &rs[0], &rs[len(rs)-1]
	ended := last.finished - first.finished - first.running
	// A page is not read in one moment.
	return !(ended-(last.firstToken.count-first.firstToken.count) > max(3, 0.1*ended))
}

func (w *window) clear() { w.readings = w.readings[:0] }

// last returns the part of the window that covers d before its newest
// reading: the newest reading at or before that start, and all after it.
func (w *window) last(d time.Duration) []reading {
	if len(w.readings) == 0 {
		return nil
	}
	start := w.readings[len(w.readings)-1].at.Add(-d)
	i := len(w.readings) - 1
	for i > 0 && w.readings[i].at.After(start) {
		i--
	}
	return w.readings[i:]
}

// increase returns how much a counter rose over the readings and the seconds
// between the first and last; NaN with fewer than two readings.
func increase(rs []reading, counter func(*reading) float64) (delta, seconds float64) {
	if len(rs) < 2 {
		return math.NaN(), math.NaN()
	}
	first, last := &rs[0], &rs[len(rs)-1]
	return counter(last) - counter(first), last.at.Sub(first.at).Seconds()
}

// rate returns a counter's increase per second over the readings; NaN when they
// span less than MinRateSpan.
func rate(rs []reading, counter func(*reading) float64) float64 {
	delta, seconds := increase(rs, counter)
	if seconds < MinRateSpan.Seconds() {
		return math.NaN()
	}
	return delta / seconds
}

// mean returns a gauge's time-weighted mean over the readings, each value
// holding since the reading before it; NaN when any value is unknown.
func mean(rs []reading, gauge func(*reading) float64) float64 {
	if len(rs) == 0 {
		return math.NaN()
	}
	if len(rs) == 1 {
		return gauge(&rs[0])
	}
	var sum, seconds float64
	for i := 1; i < len(rs); i++ {
		held := rs[i].at.Sub(rs[i-1].at).Seconds()
		sum += gauge(&rs[i]) * held
		seconds += held
	}
	return sum / seconds
}

// meanOf returns a histogram's count-weighted mean over the readings; NaN
// when nothing was observed in them.
func meanOf(rs []reading, histogram func(*reading) total) float64 {
	count, _ := increase(rs, func(r *reading) float64 { return histogram(r).count })
	sum, _ := increase(rs, func(r *reading) float64 { return histogram(r).sum })
	if !(count > 0) {
		return math.NaN()
	}
	return sum / count
}

// tokensPerStep is the mean of tokens that a step of a sequence gave with
// speculative decoding over the readings: by what was drafted and accepted, else
// by the lengths that the engine tells itself. NaN when nothing was drafted.
func tokensPerStep(rs []reading) float64 {
	drafts, _ := increase(rs, func(r *reading) float64 { return r.drafts })
	accepted, _ := increase(rs, func(r *reading) float64 { return r.accepted })
	if n := capacity.TokensPerStep(drafts, accepted); !math.IsNaN(n) {
		return n
	}
	var lengths, n float64
	for i := range rs {
		if rs[i].draftedLength >= 1 {
			lengths, n = lengths+rs[i].draftedLength, n+1
		}
	}
	return lengths / n
}

// stepLatency is the mean time between the steps of a sequence over the readings:
// that between tokens, but with speculative decoding. There some engines count a
// gap for each step, as vLLM does, and others one for each token, as SGLang does.
// The time of all gaps / the tokens that follow a first one is the time of a token
// with either, and a step brings tokensPerStep of them.
func stepLatency(rs []reading, tokensPerStep float64) float64 {
	if math.IsNaN(tokensPerStep) {
		return meanOf(rs, func(r *reading) total { return r.interToken })
	}
	seconds, _ := increase(rs, func(r *reading) float64 { return r.interToken.sum })
	tokens, _ := increase(rs, func(r *reading) float64 { return r.generationTokens - r.firstToken.count })
	if !(tokens > 0) {
		return math.NaN()
	}
	return tokensPerStep * seconds / tokens
}

// offeredRequests returns the rate at which requests arrive, whether or not
// they are served: first tokens, which count a request that is cancelled
// later, plus the growth of the queue. Where the engine counts no first
// tokens, or not those of all requests, finished requests and the growth of all that is inside stand in.
func offeredRequests(rs []reading) float64 {
	offered := rate(rs, func(r *reading) float64 { return r.begun + r.waiting })
	if math.IsNaN(offered) {
		offered = rate(rs, func(r *reading) float64 { return r.finished + r.waiting + r.running })
	}
	// Requests that leave the queue without a first token make the sum fall.
	return math.Max(offered, 0)
}

// admittedRequests counts requests that began to be served.
func admittedRequests(r *reading) float64 {
	if math.IsNaN(r.begun) {
		return r.finished
	}
	return r.begun
}

// minAdmissions is how many admissions a rate must rest on.
const minAdmissions = 3

// backlogSeconds returns how long the engine needs to admit what waits:
// waiting / admission rate. The rate is the one seen while a queue was there,
// because without a queue it is the demand, not what the engine can do; too
// little of that, and the rate of the last recent seconds stands in. When
// nothing at all was admitted, what waits has waited at least since the queue
// formed, and that is the answer; one reading alone tells nothing of that.
func backlogSeconds(rs []reading, recent time.Duration) float64 {
	if len(rs) == 0 {
		return math.NaN()
	}
	newest := &rs[len(rs)-1]
	if newest.waiting == 0 || math.IsNaN(newest.waiting) {
		return newest.waiting
	}
	var admitted, seconds float64
	for i := 1; i < len(rs); i++ {
		if rs[i-1].waiting > 0 && rs[i].waiting > 0 {
			admitted += admittedRequests(&rs[i]) - admittedRequests(&rs[i-1])
			seconds += rs[i].at.Sub(rs[i-1].at).Seconds()
		}
	}
	if admitted >= minAdmissions {
		return newest.waiting * seconds / admitted
	}
	w := window{readings: rs}
	if admitted, seconds := increase(w.last(recent), admittedRequests); admitted >= minAdmissions {
		return newest.waiting * seconds / admitted
	}
	if len(rs) == 1 {
		return math.NaN()
	}
	since := newest.at
	for i := len(rs) - 1; i >= 0 && rs[i].waiting > 0; i-- {
		since = rs[i].at
	}
	return newest.at.Sub(since).Seconds()
}
