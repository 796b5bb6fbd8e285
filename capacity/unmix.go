package capacity

import (
	"math"
	"slices"
	"time"

	"gonum.org/v1/gonum/floats"
)

// Windows of the live mix. Its shape changes slowly and needs many requests;
// how much of it arrives must be seen at once.
const (
	// MixWindow is the span of the rates and histograms that give the mix.
	MixWindow = 5 * time.Minute
	// MixWindowMax is what the span is widened to for MixSize.
	MixWindowMax = 15 * time.Minute
	// MaxMixAge is how long the last valid mix may stand in for one that cannot be seen.
	MaxMixAge = 30 * time.Minute
)

// MinCompletions is how many finished requests a mix must rest on: below it
// the lengths' histograms say too little of rare long requests.
const MinCompletions = 50

// MixSize is the EffectiveSize of prompts and of generations that a mix should
// rest on: the tokens that so many requests of random lengths bring are 5 % off
// by chance. Where a few long requests make most of the load, MinCompletions of
// all kinds hold too few of them.
const MixSize = 400

// MinCoverage is the share of the traffic that classes must explain before
// their load ratio is believed when it is comfortable.
const MinCoverage = 0.9

// Reason is why a number of the live load is unknown or not to be relied on.
type Reason string

// The reasons.
const (
	// ReasonNoTraffic: nothing is offered, so there is no mix of now.
	ReasonNoTraffic Reason = "no_traffic"
	// ReasonRatesUnknown: a rate is absent or cannot be.
	ReasonRatesUnknown Reason = "rates_unknown"
	// ReasonNotAdmitted: requests are offered and none is admitted, so that nothing is known of them.
	ReasonNotAdmitted Reason = "not_admitted"
	// ReasonNoHistograms: a length histogram is absent, and the mix rests on sums.
	ReasonNoHistograms Reason = "no_histograms"
	// ReasonFewCompletions: fewer than MinCompletions requests ended in the window.
	ReasonFewCompletions Reason = "few_completions"
	// ReasonCoverageLow: the classes explain less than MinCoverage of the traffic.
	ReasonCoverageLow Reason = "coverage_low"
	// ReasonNoClasses: there is no class to explain the traffic by.
	ReasonNoClasses Reason = "no_classes"
)

// Traffic is what an engine was seen to take. Rates are per second over the
// mix window, but for Requests; what is not known is NaN, or an empty histogram.
type Traffic struct {
	// Requests is the rate at which requests arrive now, with those that wait
	// and those that are cancelled later: see OfferedRate.
	Requests float64
	// Admitted is the rate of first tokens over the mix window: the requests
	// that the token rates belong to.
	Admitted float64
	// PromptTokens counts whole prompts, ComputedPromptTokens without what the
	// prefix cache gave. Either is enough; both tell the hit ratio.
	PromptTokens, ComputedPromptTokens float64
	GenerationTokens                   float64
	// PromptLengths and GenerationLengths are the increases of the histograms of
	// finished requests. They lag by a request's time in the engine and lack the
	// cancelled ones: they give shape only.
	PromptLengths, GenerationLengths Histogram
	// Completions are the finished requests of the window.
	Completions float64
}

// MaxHitRatio is the most that prefix-cache hits are believed to save.
const MaxHitRatio = 0.95

// HitRatio is the share of prompt tokens that the prefix cache gave, 0 to
// MaxHitRatio; NaN when it is not known.
func (t Traffic) HitRatio() float64 {
	if !(t.PromptTokens > 0) || !(t.ComputedPromptTokens >= 0) {
		return math.NaN()
	}
	return min(max(1-t.ComputedPromptTokens/t.PromptTokens, 0), MaxHitRatio)
}

// Enough tells whether a mix can rest on the traffic, by MinCompletions and
// MixSize; of what is not known nothing is asked. A window is widened until it is.
func (t Traffic) Enough() bool {
	for _, h := range []Histogram{t.PromptLengths, t.GenerationLengths} {
		if len(h.Bounds) > 0 && h.EffectiveSize() < MixSize {
			return false
		}
	}
	return !(t.Completions < MinCompletions)
}

// ClassShape is what the requests of a class are like, in tokens.
type ClassShape struct {
	Name string
	// Mean lengths of a whole prompt, of the part that is computed, and of a generation.
	PromptTokens, ComputedPromptTokens, GenerationTokens float64
	// The shares of the lengths.
	PromptLengths, GenerationLengths Histogram
}

// MixSource is where the rates of a mix come from, the better first.
type MixSource string

// The sources.
const (
	// MixHistograms: rates and both length histograms of the window.
	MixHistograms MixSource = "histograms"
	// MixSums: rates of the window, and at most one histogram.
	MixSums MixSource = "sums"
	// MixLast: the shares of the last valid mix.
	MixLast MixSource = "last_valid"
	// MixDefault: the shares that the curve declares.
	MixDefault MixSource = "declared_default"
	// MixNone: nothing is known.
	MixNone MixSource = "none"
)

// ClassRate is a class within a mix.
type ClassRate struct {
	Name string
	// Share of the requests, adding up to 1 over a mix; NaN when no mix is known.
	Share float64
	// Rate is Share of the offered requests per second.
	Rate float64
}

// Mix is traffic as rates of classes.
type Mix struct {
	Source  MixSource
	Classes []ClassRate
	// Coverage is the share of the traffic that the classes explain, 0..1: of
	// the requests or of the tokens, whichever is less. NaN when it is not known.
	Coverage float64
	// Completions that the mix rests on; NaN is unknown.
	Completions float64
	Reasons     []Reason
}

// Valid tells that the mix was seen, explains the traffic and rests on enough of it.
func (m Mix) Valid() bool {
	return (m.Source == MixHistograms || m.Source == MixSums) &&
		m.Coverage >= MinCoverage && m.Completions >= MinCompletions
}

// WithShares is a mix of these shares at a rate, as when no mix of now is seen.
func WithShares(source MixSource, classes []ClassRate, requests float64) Mix {
	m := Mix{Source: source, Classes: slices.Clone(classes), Coverage: math.NaN(), Completions: math.NaN()}
	for i := range m.Classes {
		m.Classes[i].Rate = m.Classes[i].Share * requests
	}
	return m
}

// Errors that every row has besides its sampling error, because live requests
// are never quite like a class was: relative, and for shares of a histogram absolute.
const (
	meanError  = 0.03
	shareError = 0.003
	// countError is that of the shares' sum.
	countError = 0.01
)

// Unmix explains traffic by classes: shares >= 0, by least squares, that add
// up to the requests, their prompt and generation tokens and both length
// histograms, each row scaled by its statistical error. Tokens are taken per
// admitted request, so that a queue that grows does not distort the mix, and
// the class rates are the shares of what is offered. Without both histograms
// the sums alone decide, which misses rare long prompts. Without a rate, or
// with one that cannot be, the mix is MixNone and its rates are NaN.
func Unmix(t Traffic, classes []ClassShape) Mix {
	m := Mix{Source: MixNone, Coverage: math.NaN(), Completions: completions(t), Classes: make([]ClassRate, len(classes))}
	for i := range classes {
		m.Classes[i] = ClassRate{Name: classes[i].Name, Share: math.NaN(), Rate: math.NaN()}
	}
	u := unmixing{classes: classes, n: math.Max(m.Completions, 1)}
	if math.IsNaN(m.Completions) {
		u.n = MinCompletions
	}
	if reason := u.sums(t); reason != "" {
		m.Reasons = append(m.Reasons, reason)
		return m
	}
	m.Source = MixHistograms
	prompts := u.lengths(t.PromptLengths, func(c *ClassShape) Histogram { return c.PromptLengths })
	generations := u.lengths(t.GenerationLengths, func(c *ClassShape) Histogram { return c.GenerationLengths })
	if !prompts || !generations {
		m.Source = MixSums
		m.Reasons = append(m.Reasons, ReasonNoHistograms)
	}
	shares := u.solve()
	if shares == nil {
		m.Source, m.Coverage = MixNone, 0
		m.Reasons = append(m.Reasons, ReasonCoverageLow)
		return m
	}
	for i, s := range shares {
		m.Classes[i].Share, m.Classes[i].Rate = s, s*t.Requests
	}
	m.Coverage = u.coverage(shares)
	if !(m.Completions >= MinCompletions) {
		m.Reasons = append(m.Reasons, ReasonFewCompletions)
	}
	if m.Coverage < MinCoverage {
		m.Reasons = append(m.Reasons, ReasonCoverageLow)
	}
	return m
}

// completions are those that are counted, or those in the histograms.
func completions(t Traffic) float64 {
	if t.Completions >= 0 {
		return t.Completions
	}
	if t.PromptLengths.Validate() == nil {
		return t.PromptLengths.Total()
	}
	return math.NaN()
}

// unmixing is the rows of one least-squares problem.
type unmixing struct {
	classes []ClassShape
	// n is how many requests were seen.
	n     float64
	means []meanRow
	axes  []axis
}

// meanRow is a mean length: what was seen, and of each class.
type meanRow struct {
	seen, sd float64
	class    []float64
}

// axis is a length histogram over the bounds that it has in common with every class.
type axis struct {
	// seen[b] is a share of the requests, length[b] stands for the bucket's lengths.
	seen, length []float64
	// class[c][b] is a share of class c.
	class [][]float64
}

// sums adds the rows of the mean lengths, or says why they cannot be known.
func (u *unmixing) sums(t Traffic) Reason {
	possible := func(v float64) bool { return v >= 0 && !math.IsInf(v, 0) }
	switch {
	case len(u.classes) == 0:
		return ReasonNoClasses
	case !possible(t.Requests), !possible(t.Admitted), !possible(t.GenerationTokens),
		!possible(t.PromptTokens) && !possible(t.ComputedPromptTokens):
		return ReasonRatesUnknown
	case t.Requests == 0 && t.Admitted == 0:
		return ReasonNoTraffic
	case t.Admitted == 0:
		return ReasonNotAdmitted
	}
	if possible(t.PromptTokens) {
		u.mean(t.PromptTokens/t.Admitted, func(c *ClassShape) float64 { return c.PromptTokens })
	} else {
		u.mean(t.ComputedPromptTokens/t.Admitted, func(c *ClassShape) float64 { return c.ComputedPromptTokens })
	}
	u.mean(t.GenerationTokens/t.Admitted, func(c *ClassShape) float64 { return c.GenerationTokens })
	return ""
}

func (u *unmixing) mean(seen float64, of func(*ClassShape) float64) {
	// The lengths of mixed traffic spread at least as far as their mean.
	row := meanRow{seen: seen, sd: max(seen, 1) * math.Sqrt(1/u.n+meanError*meanError)}
	for i := range u.classes {
		row.class = append(row.class, of(&u.classes[i]))
	}
	u.means = append(u.means, row)
}

// lengths adds the rows of a histogram; false when there is none, or no bound in common.
func (u *unmixing) lengths(live Histogram, of func(*ClassShape) Histogram) bool {
	if live.Validate() != nil {
		return false
	}
	bounds := live.Bounds
	for i := range u.classes {
		h := of(&u.classes[i])
		if h.Validate() != nil {
			return false
		}
		bounds = commonBounds(bounds, h.Bounds)
	}
	if len(bounds) == 0 {
		return false
	}
	a := axis{seen: live.Rebin(bounds).Shares().Counts}
	for b := range a.seen {
		low, high := 0.0, 2*bounds[len(bounds)-1]
		if b > 0 {
			low = bounds[b-1]
		}
		if b < len(bounds) {
			high = bounds[b]
		}
		a.length = append(a.length, (low+high)/2)
	}
	for i := range u.classes {
		a.class = append(a.class, of(&u.classes[i]).Rebin(bounds).Shares().Counts)
	}
	u.axes = append(u.axes, a)
	return true
}

// solve returns the classes' shares of the requests; nil when no class explains anything.
func (u *unmixing) solve() []float64 {
	var rows [][]float64
	var targets []float64
	add := func(target, sd float64, of func(class int) float64) {
		row := make([]float64, len(u.classes))
		for c := range row {
			if u.usable(c) {
				row[c] = of(c) / sd
			}
		}
		rows, targets = append(rows, row), append(targets, target/sd)
	}
	add(1, countError, func(int) float64 { return 1 })
	for _, m := range u.means {
		add(m.seen, m.sd, func(c int) float64 { return m.class[c] })
	}
	for _, a := range u.axes {
		for b, seen := range a.seen {
			// One request more or less is in every count.
			variance := (seen*(1-seen) + 1/u.n) / u.n
			sd := math.Sqrt(variance + meanError*meanError*seen*seen + shareError*shareError)
			add(seen, sd, func(c int) float64 { return a.class[c][b] })
		}
	}
	shares := NNLS(rows, targets)
	if !(floats.Sum(shares) > 0) {
		return nil
	}
	floats.Scale(1/floats.Sum(shares), shares)
	return shares
}

// usable tells that a class has mean lengths that can be.
func (u *unmixing) usable(class int) bool {
	for _, m := range u.means {
		if v := m.class[class]; !(v >= 0) || math.IsInf(v, 0) {
			return false
		}
	}
	return true
}

// coverage is the least explained share of anything: of requests and tokens
// by each histogram, and of the token sums. What is within the sampling error
// counts as explained. More than was seen is no gap: it makes the load too high.
func (u *unmixing) coverage(shares []float64) float64 {
	least := 1.0
	for _, m := range u.means {
		fit := 2 * m.sd
		for c, s := range shares {
			if s > 0 {
				fit += s * m.class[c]
			}
		}
		if m.seen > 0 {
			least = min(least, fit/m.seen)
		}
	}
	for _, a := range u.axes {
		var requests, tokens, allTokens float64
		for b, seen := range a.seen {
			fit := 0.0
			for c, s := range shares {
				fit += s * a.class[c][b]
			}
			explained := min(seen, fit+2*math.Sqrt(fit*(1-fit)/u.n)+1/u.n)
			requests += explained
			tokens += explained * a.length[b]
			allTokens += seen * a.length[b]
		}
		least = min(least, requests, tokens/allTokens)
	}
	return max(least, 0)
}

// Rebin is the histogram over some of its own bounds, rising: no count has to be split.
func (h Histogram) Rebin(bounds []float64) Histogram {
	r := NewHistogram(bounds)
	for i, c := range h.Counts {
		b := len(bounds)
		if i < len(h.Bounds) {
			b, _ = slices.BinarySearch(bounds, h.Bounds[i])
		}
		r.Counts[b] += c
	}
	return r
}

// commonBounds are those in both, which rise.
func commonBounds(a, b []float64) []float64 {
	var both []float64
	for _, v := range a {
		if _, found := slices.BinarySearch(b, v); found {
			both = append(both, v)
		}
	}
	return both
}

// Arrivals are requests that came within some seconds: first tokens, which
// count those that are cancelled later, and the growth of the queue.
type Arrivals struct {
	Count, Seconds float64
	// Longer and Shorter are by how many seconds more, and fewer, it may have
	// been: it is not known when the first, or the last, of two readings was made.
	Longer, Shorter float64
}

// stepZ is how many standard errors a short window must differ from the long
// one: by chance that happens less than once in some hours.
const stepZ = 4

// OfferedRate is the rate of requests per second at which they arrive: that of
// the long window, unless recent ones, the shorter first, differ by more than
// chance. A rise in any of them counts, so that a step shows within seconds and
// a quiet load does not flicker; a fall only in the last one. A rise is over the
// longest time that it may have taken, a fall over the shortest. NaN when the
// long window is not known.
func OfferedRate(long Arrivals, recent ...Arrivals) float64 {
	if !(long.Seconds > 0) || math.IsNaN(long.Count) || math.IsInf(long.Count, 0) {
		return math.NaN()
	}
	// Requests that leave the queue without a first token make the sum fall.
	usual := max(long.Count, 0) / long.Seconds
	offered := usual
	for i, a := range recent {
		if !(a.Seconds > 0) || math.IsNaN(a.Count) {
			continue
		}
		z := func(seconds float64) float64 {
			expected := usual * seconds
			return (a.Count - expected) / math.Sqrt(max(expected, 1))
		}
		longest, shortest := a.Seconds+a.Longer, a.Seconds-a.Shorter
		switch last := i == len(recent)-1; {
		case z(longest) > stepZ:
			offered = max(offered, a.Count/longest)
		case shortest > 0 && z(shortest) < -stepZ && last && offered == usual:
			offered = max(a.Count, 0) / shortest
		}
	}
	return offered
}
