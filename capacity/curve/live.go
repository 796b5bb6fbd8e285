package curve

import (
	"math"
	"slices"
	"time"

	"headroom_exporter/capacity"
)

// The reasons that a live load has besides those of its mix.
const (
	// ReasonClassWithoutKnee: a class of the mix has neither a known knee nor a safe rate, so its traffic counts as not covered.
	ReasonClassWithoutKnee capacity.Reason = "class_without_knee"
	// ReasonKneeUnknown: no knee was found of a class of the mix. The rate that is
	// known to be safe stands in for it, which puts the ratio high.
	ReasonKneeUnknown capacity.Reason = "knee_unknown"
	// ReasonLastMix and ReasonDefaultMix: no mix of now was to be seen.
	ReasonLastMix    capacity.Reason = "last_valid_mix"
	ReasonDefaultMix capacity.Reason = "declared_default_mix"
	// ReasonPrefillShareUnknown: it is not known how much of a class's load is
	// prefill, so fewer prefix-cache hits than the curve had weigh on all of it,
	// and more count for nothing.
	ReasonPrefillShareUnknown capacity.Reason = "prefill_share_unknown"
	// ReasonResourcesUnknown: the curve does not tell what its classes use at
	// their knees, so all of them are taken to fill the same, which puts the ratio high.
	ReasonResourcesUnknown capacity.Reason = "resources_unknown"
)

// LoadOptions is what a live load needs besides the traffic.
type LoadOptions struct {
	// Last is the last valid mix, LastAge how long ago that was; the zero Mix is none.
	Last    capacity.Mix
	LastAge time.Duration
	// Correction is how much slower the engine is found to be than its curve.
	// What is not above 1 changes nothing: a load is never made to look smaller.
	Correction float64
	// Acceptance is the mean of tokens a step of speculative decoding gives now,
	// CurveAcceptance when the curve was measured; 0 or NaN is unknown, and changes nothing.
	Acceptance, CurveAcceptance float64
}

// Load is traffic against the curve. What is not known is NaN.
type Load struct {
	// Ratio is the load ratio: 1 is at the knee. It is unknown unless the mix is
	// valid; only a load that is above the knee by what the classes explain
	// alone is told though they do not explain all.
	Ratio float64
	// Estimate is the ratio whatever its validity, for display beside its reasons.
	Estimate float64
	// StandardError is by how much of it chance may have moved the ratio, which it
	// has been raised by, as a share of it.
	StandardError float64
	// Resource is what the ratio is of; empty when the curve does not tell them apart.
	Resource Resource
	// Watermark is the load ratio at the watermark, of the present mix.
	Watermark float64
	// Low and High are the load ratios at the bounds of the knee's interval, of
	// the present mix; unknown when a class of it has none.
	Low, High float64
	Zone      capacity.Zone
	Valid     bool
	// Coverage is the share of the traffic that classes with a knee explain.
	Coverage float64
	Mix      capacity.Mix
	Classes  []ClassLoad
	// Knee is the offered rate of the mix at which the ratio is 1; with
	// ReasonKneeUnknown the knee is not below it.
	Knee float64
	// Left is what can be offered on top, of the present mix. Its slots are unknown here.
	Left    capacity.Left
	Reasons []capacity.Reason
}

// ClassLoad is what one class adds to the load.
type ClassLoad struct {
	Name string
	// Rate in requests per second, and Knee of the class alone; NaN where none is known.
	Rate, Knee float64
	// Full is the rate of the class alone that counts as a load ratio of 1: its
	// knee, or where none is known the rate that is known to be safe.
	Full float64
	// Ratio is the class's part of Load.Estimate, in proportion to Rate / Full with every treatment.
	Ratio float64
	// PrefillShare is the part of the class's load that is prefill; NaN is unknown.
	PrefillShare float64
}

// Load is the live load of the curve:
//
//	sum   = sum over classes of rate / knee
//	most  = largest of the resources: sum over classes of use * rate / knee
//	ratio = correction * (1 + standard error) * (most + (sum - most) / 3)
//
// with the rates that capacity.Unmix finds, or the last valid mix, or the
// classes' weights. A class of which no knee is known has the rate that is known
// to be safe in its place. A class's use of a resource is what it takes of it at its
// knee (see Resource); without them the ratio is the sum. Classes that fill
// different resources leave room for each other, but where several are nearly
// full, one waits for the other: a third of the way to the sum is what held on
// simulated mixes (docs/accuracy.md). The standard error is that of the sum by
// which requests the window happened to hold: a ratio that is rather too high
// than too low is what a page can rest on. The part of a class that is prefill scales with the prompt tokens
// that the prefix cache does not give, the rest with what speculative decoding gives.
func (c *Curve) Load(t capacity.Traffic, o LoadOptions) Load {
	classes := c.loadClasses()
	if c.Identity.Role == "decode" && t.PromptTokens >= 0 {
		t.ComputedPromptTokens = math.NaN() // Another engine computes them: they are no hits.
	}
	l := Load{
		Ratio: math.NaN(), Estimate: math.NaN(), StandardError: math.NaN(), Watermark: math.NaN(), Low: math.NaN(), High: math.NaN(), Knee: math.NaN(),
		Zone: capacity.ZoneUnknown, Left: capacity.UnknownLeft(),
	}
	l.Mix = mix(t, o, classes)
	l.Reasons = slices.Clone(l.Mix.Reasons)
	l.Coverage = l.Mix.Coverage

	prefill := prefillShares(classes)
	hits := hitFactor(t, l.Mix, classes)
	if hits != 1 && prefill == nil {
		l.Reasons = append(l.Reasons, ReasonPrefillShareUnknown)
	}
	decode := ratioOr1(o.CurveAcceptance, o.Acceptance)
	l.StandardError = standardError(l.Mix, classes)
	correction := 1.0
	if l.StandardError > 0 {
		correction += l.StandardError
	}
	if o.Correction > 1 && !math.IsInf(o.Correction, 0) {
		correction *= o.Correction
	}
	uses := c.uses(classes)
	if uses == nil && len(classes) > 0 {
		l.Reasons = append(l.Reasons, ReasonResourcesUnknown)
	}
	var demands [len(resources)]demand
	var sum demand
	safeOnly := false
	var unmeasured, prompts, unmeasuredPrompts, generations, unmeasuredGenerations float64
	for i, k := range classes {
		m := l.Mix.Classes[i]
		cl := ClassLoad{Name: k.shape.Name, Rate: m.Rate, Knee: k.knee, Full: k.full, PrefillShare: math.NaN(), Ratio: math.NaN()}
		factor := max(hits, 1) * max(decode, 1)
		if prefill != nil {
			cl.PrefillShare = prefill[i]
			factor = prefill[i]*hits + (1-prefill[i])*decode
		}
		prompts += m.Share * k.shape.PromptTokens
		generations += m.Share * k.shape.GenerationTokens
		switch {
		case k.full > 0:
			cl.Ratio = factor * m.Rate / k.full
			safeOnly = safeOnly || m.Share > 0 && !(k.knee > 0)
			sum.add(factor*m.Share, k)
			if uses == nil {
				break
			}
			for r, u := range uses[i] {
				// Hits and accepted tokens save steps, not what a request holds while it is there.
				if r > 0 {
					factor = max(factor, 1)
				}
				demands[r].add(factor*u*m.Share, k)
			}
		case m.Share > 0:
			unmeasured += m.Share
			unmeasuredPrompts += m.Share * k.shape.PromptTokens
			unmeasuredGenerations += m.Share * k.shape.GenerationTokens
		}
		l.Classes = append(l.Classes, cl)
	}
	d := sum
	if uses != nil {
		binding := 0
		for r := range demands {
			if demands[r].knee > demands[binding].knee {
				binding = r
			}
		}
		l.Resource = resources[binding]
		d = demands[binding].towards(sum)
	}
	for i := range l.Classes {
		l.Classes[i].Ratio *= correction * d.knee / sum.knee
	}
	if unmeasured > 0 {
		l.Coverage -= max(unmeasured, ratio(unmeasuredPrompts, prompts), ratio(unmeasuredGenerations, generations))
		l.Coverage = max(l.Coverage, 0)
		l.Reasons = append(l.Reasons, ReasonClassWithoutKnee)
		if l.Coverage < capacity.MinCoverage && !slices.Contains(l.Reasons, capacity.ReasonCoverageLow) {
			l.Reasons = append(l.Reasons, capacity.ReasonCoverageLow)
		}
	}
	if safeOnly {
		l.Reasons = append(l.Reasons, ReasonKneeUnknown)
	}
	if d.knee > 0 {
		l.Low, l.High = d.knee/d.low, d.knee/d.high
	}
	l.judge(t, correction*d.knee, correction*d.watermark)
	return l
}

// standardError is that of the sum of rate / knee, as a share of it, where the
// requests of each class that were seen to end are a Poisson count.
func standardError(m capacity.Mix, classes []loadClass) float64 {
	var sum, squares float64
	for i, k := range classes {
		if k.full > 0 {
			sum += m.Classes[i].Share / k.full
			squares += m.Classes[i].Share / (k.full * k.full)
		}
	}
	if !(sum > 0 && m.Completions > 0) {
		return math.NaN()
	}
	return math.Sqrt(squares/m.Completions) / sum
}

// judge turns the load of one request per second into what is told.
func (l *Load) judge(t capacity.Traffic, perRequest, watermark float64) {
	if perRequest > 0 {
		l.Knee = 1 / perRequest
		l.Estimate = t.Requests * perRequest
		if watermark > 0 {
			l.Watermark = perRequest / watermark
		}
	}
	idle := t.Requests == 0
	switch l.Mix.Source {
	case capacity.MixHistograms, capacity.MixSums:
		l.Valid = l.Coverage >= capacity.MinCoverage && l.Mix.Completions >= capacity.MinCompletions
	case capacity.MixLast:
		l.Valid = l.Coverage >= capacity.MinCoverage
	case capacity.MixDefault:
		// Nothing is no load, of whatever kind it might be.
		l.Valid = idle
	}
	l.Valid = l.Valid && !math.IsNaN(l.Estimate)
	seen := l.Mix.Source == capacity.MixHistograms || l.Mix.Source == capacity.MixSums
	if !l.Valid && !(seen && l.Estimate > 1 && l.Mix.Completions >= capacity.MinCompletions) {
		return
	}
	l.Ratio = l.Estimate
	switch {
	case l.Ratio > 1:
		l.Zone = capacity.ZoneUnstable
	case l.Ratio > l.Watermark || math.IsNaN(l.Watermark):
		l.Zone = capacity.ZoneRisk
	default:
		l.Zone = capacity.ZoneStable
	}
	if !l.Valid {
		return
	}
	l.Left.RequestsPerSecond = l.Knee - t.Requests
	if t.Admitted > 0 && !idle {
		// Tokens are counted as they are served; what is offered brings as many more.
		prompts := t.ComputedPromptTokens
		if math.IsNaN(prompts) {
			prompts = t.PromptTokens
		}
		l.Left.PromptTokensPerSecond = l.Left.RequestsPerSecond * prompts / t.Admitted
		l.Left.GenerationTokensPerSecond = l.Left.RequestsPerSecond * t.GenerationTokens / t.Admitted
	}
}

// mix is the mix of now, or what stands in for one: of nothing, and of too few
// requests, nothing can be told. What is seen not to be of the classes stays so.
func mix(t capacity.Traffic, o LoadOptions, classes []loadClass) capacity.Mix {
	shapes := make([]capacity.ClassShape, len(classes))
	for i := range classes {
		shapes[i] = classes[i].shape
	}
	m := capacity.Unmix(t, shapes)
	last := o.Last.Valid() && o.LastAge >= 0 && o.LastAge <= capacity.MaxMixAge && sameClasses(o.Last, m)
	few := m.Source != capacity.MixNone && !(m.Completions >= capacity.MinCompletions)
	switch {
	case len(classes) == 0, slices.Contains(m.Reasons, capacity.ReasonRatesUnknown), slices.Contains(m.Reasons, capacity.ReasonCoverageLow):
		return m
	case last && (few || m.Source == capacity.MixNone):
		stand := capacity.WithShares(capacity.MixLast, o.Last.Classes, t.Requests)
		stand.Coverage, stand.Completions = o.Last.Coverage, o.Last.Completions
		stand.Reasons = append(m.Reasons, ReasonLastMix)
		return stand
	case m.Source == capacity.MixNone:
		stand := capacity.WithShares(capacity.MixDefault, declared(classes), t.Requests)
		stand.Reasons = append(m.Reasons, ReasonDefaultMix)
		return stand
	}
	return m
}

// declared are the classes by their weights.
func declared(classes []loadClass) []capacity.ClassRate {
	total := 0.0
	for i := range classes {
		total += classes[i].weight
	}
	rates := make([]capacity.ClassRate, len(classes))
	for i := range classes {
		rates[i] = capacity.ClassRate{Name: classes[i].shape.Name, Share: classes[i].weight / total}
	}
	return rates
}

func sameClasses(a, b capacity.Mix) bool {
	return slices.EqualFunc(a.Classes, b.Classes, func(x, y capacity.ClassRate) bool { return x.Name == y.Name })
}

// loadClass is what a live load needs of a class.
type loadClass struct {
	shape  capacity.ClassShape
	weight float64
	// full is the rate that counts as 1: the knee, or what stands in for one.
	full, knee, watermark, low, high, hit float64
}

func (c *Curve) loadClasses() []loadClass {
	classes := make([]loadClass, 0, len(c.Classes))
	for i := range c.Classes {
		k := &c.Classes[i]
		l := loadClass{weight: k.Weight, full: math.NaN(), knee: math.NaN(), watermark: math.NaN(), low: math.NaN(), high: math.NaN(), hit: float64(k.PrefixHitRatio)}
		if !(l.hit >= 0) {
			l.hit = 0
		}
		l.hit = min(l.hit, capacity.MaxHitRatio)
		l.shape = c.seen(capacity.ClassShape{
			Name: k.Name, PromptTokens: k.PromptMean, ComputedPromptTokens: k.PromptMean * (1 - l.hit),
			GenerationTokens: k.GenerationMean, PromptLengths: k.PromptHistogram, GenerationLengths: k.GenerationHistogram,
		})
		if s := k.poisson(); s != nil {
			l.full, l.watermark = c.bounds(s)
			if s.Knee != nil && s.Knee.Rate > 0 {
				l.knee = float64(s.Knee.Rate)
				if s.Knee.Low > 0 && s.Knee.High > 0 {
					l.low, l.high = float64(s.Knee.Low), float64(s.Knee.High)
				}
			}
		}
		classes = append(classes, l)
	}
	return classes
}

// seen is what the engine sees of a class. One that only prefills makes the
// first token, though the class was measured through prefill and decode together.
func (c *Curve) seen(s capacity.ClassShape) capacity.ClassShape {
	if c.Identity.Role == "prefill" && c.Identity.Path == "pd" {
		s.GenerationTokens, s.GenerationLengths = 1, capacity.Histogram{}
	}
	return s
}

// demand is what one request per second of a mix takes of a resource, where
// each of these rates of a class counts as 1.
type demand struct{ knee, watermark, low, high float64 }

func (d *demand) add(share float64, k loadClass) {
	if share > 0 {
		d.knee += share / k.full
		d.watermark += share / k.watermark
		d.low += share / k.low
		d.high += share / k.high
	}
}

// sharing is how far classes of different resources are from leaving each other all that they do not use.
const sharing = 1.0 / 3

func (d demand) towards(sum demand) demand {
	between := func(a, b float64) float64 { return a + sharing*(b-a) }
	return demand{between(d.knee, sum.knee), between(d.watermark, sum.watermark), between(d.low, sum.low), between(d.high, sum.high)}
}

// Resource is what a class can fill, and what others need as well.
type Resource string

// The resources. A class whose knee is where the slots are full leaves step
// time to one whose knee is where steps become long: their loads do not add up
// to the full. What a class uses at its knee is read off its points there.
const (
	// StepTime: the share of a step that is there because of the load,
	// 1 - inter-token latency of an idle engine / that at the knee.
	StepTime Resource = "step_time"
	// SequenceSlots: requests running.
	SequenceSlots Resource = "sequence_slots"
	// TokenSlots: the KV cache's peak, as it is the peak that makes a request wait.
	TokenSlots Resource = "token_slots"
)

var resources = [...]Resource{StepTime, SequenceSlots, TokenSlots}

// use is how much of each resource a class takes at its knee, of what there is
// or of the most that a class takes.
type use [len(resources)]float64

// idleRatio is the load up to which points tell an idle engine's steps, and
// kneeRatio that from which on one shows what is used at the knee.
const (
	idleRatio = 0.5
	kneeRatio = 0.9
)

// uses are those of the classes; nil when a class with a knee has no points that show them.
func (c *Curve) uses(classes []loadClass) []use {
	uses := make([]use, len(classes))
	// How long steps may become is what the classes' knees tell; the others have an end.
	most := use{0, float64(c.Identity.MaxNumSeqs), 1}
	for i, k := range classes {
		if !(k.full > 0) {
			continue
		}
		class := &c.Classes[i]
		line, knee := class.line(k.full), class.poisson().Knee
		if knee == nil || len(line) < 2 || line[0].ratio > idleRatio || line[len(line)-1].ratio < kneeRatio {
			return nil
		}
		at := expectedPart{line: line, load: 1, rate: 1}
		uses[i] = use{1 - at.idle()/at.step(1), at.running(1), float64(knee.KVPeak)}
		for r, u := range uses[i] {
			if !(u > 0) {
				return nil
			}
			most[r] = max(most[r], u)
		}
	}
	for i, k := range classes {
		if !(k.full > 0) {
			continue
		}
		full := 0
		for r := range most {
			if uses[i][r] /= most[r]; uses[i][r] > uses[i][full] {
				full = r
			}
		}
		// A class alone is full at its knee, by what it uses most.
		uses[i][full] = 1
	}
	return uses
}

// poisson is the study of random arrivals that are as bursty as independent
// users make them; without it the first study.
func (c *Class) poisson() *Study {
	if s := c.Study(Arrivals{Process: "poisson"}); s != nil {
		return s
	}
	if len(c.Studies) > 0 {
		return &c.Studies[0]
	}
	return nil
}

// LiveStudy is the study that a class's live load is judged by, nil when it has
// none, and the offered rate that counts as a load ratio of 1; NaN when it has none.
func (c *Curve) LiveStudy(class *Class) (s *Study, knee float64) {
	if s = class.poisson(); s == nil {
		return nil, math.NaN()
	}
	knee, _ = c.bounds(s)
	return s, knee
}

// bounds are the rates that count as 1 and as the watermark. A study that
// never reached a knee has at least its safe rate.
func (c *Curve) bounds(s *Study) (knee, watermark float64) {
	knee, watermark = math.NaN(), math.NaN()
	low := capacity.Unknown()
	if k := s.Knee; k != nil {
		knee, low, watermark = float64(k.Rate), k.Low, float64(k.Watermark)
	}
	if !(knee > 0) {
		knee = float64(s.SafeRate)
	}
	if !(knee > 0) {
		return math.NaN(), math.NaN()
	}
	if !(watermark > 0) {
		if !low.Known() {
			low = Value(knee)
		}
		watermark = float64(Watermark(c.PeakReserve, s.SafeRate, low))
	}
	return knee, watermark
}

// hitFactor is how many times the prompt tokens of the curve's hit ratio are
// computed now; 1 when either is unknown.
func hitFactor(t capacity.Traffic, m capacity.Mix, classes []loadClass) float64 {
	live := t.HitRatio()
	if math.IsNaN(live) {
		return 1
	}
	var whole, computed float64
	for i, k := range classes {
		if share := m.Classes[i].Share; share > 0 {
			whole += share * k.shape.PromptTokens
			computed += share * k.shape.ComputedPromptTokens
		}
	}
	return ratioOr1((1-live)*whole, computed)
}

// maxShareResidual is how far a class at its knee may lie from full, by the
// fit that tells prefill from decode, before the fit is not believed.
const maxShareResidual = 0.25

// prefillShares are the parts of the classes' loads that are prefill, from
// the one model that every class's knee is full by:
//
//	1 = a * computed prompt tokens/s + b * generation tokens/s + c * context read/s
//
// nil when the classes are too few or too alike, or do not follow it.
func prefillShares(classes []loadClass) []float64 {
	var rows [][]float64
	for _, k := range classes {
		if k.full > 0 {
			s := k.shape
			context := s.GenerationTokens * (s.PromptTokens + s.GenerationTokens/2)
			rows = append(rows, []float64{k.full * s.ComputedPromptTokens, k.full * s.GenerationTokens, k.full * context})
		}
	}
	if len(rows) < 3 {
		return nil
	}
	x := capacity.NNLS(rows, slices.Repeat([]float64{1}, len(rows)))
	if x == nil || x[0] == 0 || x[1]+x[2] == 0 {
		return nil // Not identified is not free.
	}
	for _, r := range rows {
		if math.Abs(x[0]*r[0]+x[1]*r[1]+x[2]*r[2]-1) > maxShareResidual {
			return nil
		}
	}
	shares := make([]float64, len(classes))
	for i, k := range classes {
		s := k.shape
		prefill := x[0] * s.ComputedPromptTokens
		decode := s.GenerationTokens * (x[1] + x[2]*(s.PromptTokens+s.GenerationTokens/2))
		shares[i] = prefill / (prefill + decode)
	}
	return shares
}

func ratio(a, b float64) float64 {
	if !(b > 0) {
		return 0
	}
	return a / b
}

// ratioOr1 is a/b, and 1 when that is not known.
func ratioOr1(a, b float64) float64 {
	if r := a / b; r > 0 && !math.IsInf(r, 0) {
		return r
	}
	return 1
}
