package capacity_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"headroom_exporter/capacity"
)

var lengthBounds = capacity.TokenBounds(32768)

// lognormal is a histogram of the lengths of a class: n of them at fixed quantiles.
func lognormal(mean float64, bounds []float64) capacity.Histogram {
	const n = 4000
	h := capacity.NewHistogram(bounds)
	s2 := math.Log1p(0.25)
	for i := range n {
		z := math.Sqrt2 * math.Erfinv(2*(float64(i)+0.5)/n-1)
		h.Add(math.Round(math.Exp(math.Log(mean)-s2/2+math.Sqrt(s2)*z)), 1)
	}
	return h
}

func shape(name string, prompt, generation float64) capacity.ClassShape {
	return capacity.ClassShape{
		Name: name, PromptTokens: prompt, ComputedPromptTokens: prompt, GenerationTokens: generation,
		PromptLengths: lognormal(prompt, lengthBounds), GenerationLengths: lognormal(generation, lengthBounds),
	}
}

func fourClasses() []capacity.ClassShape {
	return []capacity.ClassShape{shape("chat", 512, 256), shape("rag", 4096, 128), shape("write", 128, 1024), shape("long", 12000, 300)}
}

// mixed is the traffic that classes make at these rates over 300 s, without noise.
func mixed(classes []capacity.ClassShape, rates []float64) capacity.Traffic {
	t := capacity.Traffic{PromptLengths: capacity.NewHistogram(lengthBounds), GenerationLengths: capacity.NewHistogram(lengthBounds)}
	for i, c := range classes {
		t.Requests += rates[i]
		t.PromptTokens += rates[i] * c.PromptTokens
		t.GenerationTokens += rates[i] * c.GenerationTokens
		for b, s := range c.PromptLengths.Shares().Counts {
			t.PromptLengths.Counts[b] += 300 * rates[i] * s
		}
		for b, s := range c.GenerationLengths.Shares().Counts {
			t.GenerationLengths.Counts[b] += 300 * rates[i] * s
		}
	}
	t.Admitted, t.ComputedPromptTokens, t.Completions = t.Requests, t.PromptTokens, 300*t.Requests
	return t
}

func classRates(m capacity.Mix) []float64 {
	var r []float64
	for _, c := range m.Classes {
		r = append(r, c.Rate)
	}
	return r
}

func TestUnmixFindsTheRates(t *testing.T) {
	classes := fourClasses()
	coarse := capacity.TokenBounds(32768)
	coarse = slices.DeleteFunc(slices.Clone(coarse), func(b float64) bool { return b == 500 || b == 2000 })
	tests := []struct {
		name   string
		rates  []float64
		change func(*capacity.Traffic)
		source capacity.MixSource
		scale  float64 // of the rates
		within float64
	}{
		{"all four", []float64{4, 1, 2, 0.2}, nil, capacity.MixHistograms, 1, 1e-3},
		{"one alone", []float64{0, 3, 0, 0}, nil, capacity.MixHistograms, 1, 1e-3},
		{"a few long ones", []float64{10, 0, 0, 0.05}, nil, capacity.MixHistograms, 1, 1e-3},
		{"only computed tokens are known", []float64{4, 1, 2, 0.2}, func(t *capacity.Traffic) { t.PromptTokens = nan }, capacity.MixHistograms, 1, 1e-3},
		{"half of the prompts come from the cache", []float64{4, 1, 2, 0.2}, func(t *capacity.Traffic) { t.ComputedPromptTokens /= 2 }, capacity.MixHistograms, 1, 1e-3},
		{"twice as much is offered as is admitted", []float64{4, 1, 2, 0.2}, func(t *capacity.Traffic) { t.Requests *= 2 }, capacity.MixHistograms, 2, 1e-3},
		{"a tenth is cancelled before it ends", []float64{4, 1, 2, 0.2}, func(t *capacity.Traffic) {
			for i := range t.PromptLengths.Counts {
				t.PromptLengths.Counts[i] *= 0.9
				t.GenerationLengths.Counts[i] *= 0.9
			}
			t.Completions *= 0.9
		}, capacity.MixHistograms, 1, 1e-3},
		{"other bounds", []float64{4, 1, 2, 0.2}, func(t *capacity.Traffic) {
			t.PromptLengths = t.PromptLengths.Rebin(coarse)
		}, capacity.MixHistograms, 1, 1e-2},
		{"sums of three classes", []float64{4, 1, 0, 0.2}, func(t *capacity.Traffic) {
			t.PromptLengths, t.GenerationLengths = capacity.Histogram{}, capacity.Histogram{}
		}, capacity.MixSums, 1, math.Inf(1)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			traffic := mixed(classes, test.rates)
			if test.change != nil {
				test.change(&traffic)
			}
			m := capacity.Unmix(traffic, classes)
			if m.Source != test.source || !m.Valid() || m.Coverage < 0.999 {
				t.Fatalf("source %s, coverage %v, reasons %v, want a valid one of %s", m.Source, m.Coverage, m.Reasons, test.source)
			}
			total, prompts := 0.0, 0.0
			for i, r := range classRates(m) {
				total += r
				prompts += r * classes[i].PromptTokens
				if math.Abs(r-test.scale*test.rates[i]) > test.within*traffic.Requests {
					t.Errorf("rates %v, want %v times %v", classRates(m), test.scale, test.rates)
				}
			}
			if math.Abs(total-traffic.Requests) > 1e-9 {
				t.Errorf("rates add up to %v, offered are %v", total, traffic.Requests)
			}
		})
	}
}

// Drawn requests, not shares: what the engine's histograms show in one window.
func TestUnmixOfAWindow(t *testing.T) {
	classes := fourClasses()
	rng := rand.New(rand.NewPCG(7, 7))
	const sd = 0.4723807 // of the logarithm, for a deviation of half the mean
	draw := func(mean float64) float64 {
		return math.Round(math.Exp(math.Log(mean) - sd*sd/2 + sd*rng.NormFloat64()))
	}
	var worst float64
	for range 200 {
		weights := []float64{rng.ExpFloat64(), rng.ExpFloat64(), rng.ExpFloat64(), 0.2 * rng.ExpFloat64()}
		traffic := mixed(classes, []float64{0, 0, 0, 0})
		counts := make([]float64, 4)
		const n = 600
		for range n {
			x := rng.Float64() * (weights[0] + weights[1] + weights[2] + weights[3])
			c := 0
			for ; c < 3 && x > weights[c]; c++ {
				x -= weights[c]
			}
			counts[c]++
			p, g := draw(classes[c].PromptTokens), draw(classes[c].GenerationTokens)
			traffic.PromptLengths.Add(p, 1)
			traffic.GenerationLengths.Add(g, 1)
			traffic.PromptTokens += p / 300
			traffic.GenerationTokens += g / 300
		}
		traffic.Requests, traffic.Admitted, traffic.Completions = n/300., n/300., n
		traffic.ComputedPromptTokens = traffic.PromptTokens
		m := capacity.Unmix(traffic, classes)
		if !m.Valid() {
			t.Errorf("coverage %v of the classes' own traffic", m.Coverage)
		}
		for i := range counts {
			worst = max(worst, math.Abs(m.Classes[i].Share-counts[i]/n))
		}
	}
	if worst > 0.05 {
		t.Errorf("a share is wrong by %.3f, want at most 0.05", worst)
	}
}

func TestUnmixSeesWhatNoClassExplains(t *testing.T) {
	classes := fourClasses()
	outside := []capacity.ClassShape{shape("longest", 30000, 100), shape("tiny", 12, 4), shape("endless", 500, 8000), shape("code", 2000, 20)}
	for _, o := range outside {
		for _, share := range []float64{0.3, 1} {
			all := append(fourClasses(), o)
			m := capacity.Unmix(mixed(all, []float64{3 * (1 - share), (1 - share), 0, 0, 4 * share}), classes)
			if m.Coverage >= capacity.MinCoverage || m.Valid() || !slices.Contains(m.Reasons, capacity.ReasonCoverageLow) {
				t.Errorf("%.0f %% %s: coverage %v, reasons %v, want below %v", 100*share, o.Name, m.Coverage, m.Reasons, capacity.MinCoverage)
			}
		}
	}
	// A few requests with most of the tokens.
	all := append(fourClasses(), outside[0])
	if m := capacity.Unmix(mixed(all, []float64{100, 0, 0, 0, 3}), classes); m.Coverage >= capacity.MinCoverage {
		t.Errorf("3 %% of the requests with most of the tokens: coverage %v, want below %v", m.Coverage, capacity.MinCoverage)
	}
}

func TestUnmixOfWhatIsNotKnown(t *testing.T) {
	classes := fourClasses()
	good := mixed(classes, []float64{4, 1, 2, 0.2})
	none := func(reason capacity.Reason) func(capacity.Mix) bool {
		return func(m capacity.Mix) bool {
			return m.Source == capacity.MixNone && !m.Valid() && math.IsNaN(m.Coverage) && slices.Contains(m.Reasons, reason) &&
				!slices.ContainsFunc(m.Classes, func(c capacity.ClassRate) bool { return !math.IsNaN(c.Rate) || !math.IsNaN(c.Share) })
		}
	}
	sums := func(m capacity.Mix) bool {
		return m.Source == capacity.MixSums && slices.Contains(m.Reasons, capacity.ReasonNoHistograms)
	}
	cannotBe := []float64{nan, -1, math.Inf(1)}
	for _, bad := range cannotBe {
		for name, test := range map[string]struct {
			change func(*capacity.Traffic)
			want   func(capacity.Mix) bool
		}{
			"requests":       {func(t *capacity.Traffic) { t.Requests = bad }, none(capacity.ReasonRatesUnknown)},
			"admitted":       {func(t *capacity.Traffic) { t.Admitted = bad }, none(capacity.ReasonRatesUnknown)},
			"generation":     {func(t *capacity.Traffic) { t.GenerationTokens = bad }, none(capacity.ReasonRatesUnknown)},
			"both prompts":   {func(t *capacity.Traffic) { t.PromptTokens, t.ComputedPromptTokens = bad, bad }, none(capacity.ReasonRatesUnknown)},
			"whole prompts":  {func(t *capacity.Traffic) { t.PromptTokens = bad }, capacity.Mix.Valid},
			"computed":       {func(t *capacity.Traffic) { t.ComputedPromptTokens = bad }, capacity.Mix.Valid},
			"a prompt count": {func(t *capacity.Traffic) { t.PromptLengths.Counts[3] = bad }, sums},
			"an output":      {func(t *capacity.Traffic) { t.GenerationLengths.Counts[3] = bad }, sums},
			"a bound":        {func(t *capacity.Traffic) { t.GenerationLengths.Bounds[3] = bad }, sums},
		} {
			traffic := good
			traffic.PromptLengths = clone(good.PromptLengths)
			traffic.GenerationLengths = clone(good.GenerationLengths)
			test.change(&traffic)
			if m := capacity.Unmix(traffic, classes); !test.want(m) {
				t.Errorf("%s %v: %+v", name, bad, m)
			}
		}
	}
	for name, test := range map[string]struct {
		change func(*capacity.Traffic)
		want   func(capacity.Mix) bool
	}{
		"nothing": {func(t *capacity.Traffic) { *t = capacity.Traffic{} }, none(capacity.ReasonNoTraffic)},
		"stuck":   {func(t *capacity.Traffic) { t.Admitted = 0 }, none(capacity.ReasonNotAdmitted)},
		"no lengths": {func(t *capacity.Traffic) {
			t.PromptLengths, t.GenerationLengths = capacity.Histogram{}, capacity.Histogram{}
		}, sums},
		"empty": {func(t *capacity.Traffic) { t.PromptLengths = capacity.NewHistogram(lengthBounds) }, sums},
		"no bound": {func(t *capacity.Traffic) {
			t.PromptLengths = capacity.Histogram{Bounds: []float64{3}, Counts: []float64{9, 9}}
		}, sums},
		"few": {func(t *capacity.Traffic) { t.Completions = 49 }, func(m capacity.Mix) bool {
			return !m.Valid() && slices.Contains(m.Reasons, capacity.ReasonFewCompletions)
		}},
		"counted":     {func(t *capacity.Traffic) { t.Completions = nan }, capacity.Mix.Valid},
		"not counted": {func(t *capacity.Traffic) { t.Completions, t.PromptLengths = nan, capacity.Histogram{} }, func(m capacity.Mix) bool { return !m.Valid() && math.IsNaN(m.Completions) }},
	} {
		traffic := good
		test.change(&traffic)
		if m := capacity.Unmix(traffic, classes); !test.want(m) {
			t.Errorf("%s: %+v", name, m)
		}
	}
	if m := capacity.Unmix(good, nil); m.Source != capacity.MixNone || !slices.Contains(m.Reasons, capacity.ReasonNoClasses) {
		t.Errorf("no classes: %+v", m)
	}
	odd := fourClasses()
	odd[1].PromptTokens = nan
	if m := capacity.Unmix(good, odd); m.Valid() || m.Classes[1].Share != 0 {
		t.Errorf("a class without a mean explains nothing: %+v", m)
	}
}

func clone(h capacity.Histogram) capacity.Histogram {
	return capacity.Histogram{Bounds: slices.Clone(h.Bounds), Counts: slices.Clone(h.Counts)}
}

func TestHitRatio(t *testing.T) {
	for _, test := range []struct{ prompt, computed, want float64 }{
		{1000, 1000, 0}, {1000, 400, 0.6}, {1000, 1, 0.95}, {1000, 1001, 0}, {0, 0, nan}, {nan, 1, nan}, {1000, nan, nan}, {1000, -1, nan},
	} {
		if got := (capacity.Traffic{PromptTokens: test.prompt, ComputedPromptTokens: test.computed}).HitRatio(); !same(got, test.want) {
			t.Errorf("%v of %v computed: hits %v, want %v", test.computed, test.prompt, got, test.want)
		}
	}
}

func TestOfferedRate(t *testing.T) {
	type many = []capacity.Arrivals
	a := func(count, seconds float64) capacity.Arrivals {
		return capacity.Arrivals{Count: count, Seconds: seconds}
	}
	// It is not known when the first, or the last, of two readings was made.
	between := func(count, shortest, seconds, longest float64) capacity.Arrivals {
		return capacity.Arrivals{Count: count, Seconds: seconds, Longer: longest - seconds, Shorter: seconds - shortest}
	}
	long := a(600, 60) // 10 a second
	for _, test := range []struct {
		name   string
		long   capacity.Arrivals
		recent many
		want   float64
	}{
		{"steady", long, many{a(50, 5), a(100, 10)}, 10},
		{"by chance", long, many{a(70, 5)}, 10},
		{"a step", long, many{a(100, 5), a(150, 10)}, 20},
		{"a slower one", long, many{a(70, 5), a(150, 10)}, 15},
		{"a fall, not for long", long, many{a(0, 5), a(150, 15)}, 10},
		{"a fall", a(3000, 300), many{a(20, 5), a(80, 15), a(300, 60)}, 5},
		{"a fall, and a rise at its end", a(3000, 300), many{a(90, 5), a(80, 15), a(300, 60)}, 18},
		{"few", a(6, 60), many{a(3, 5)}, 0.1},
		{"after silence", a(0, 60), many{a(20, 5)}, 4},
		{"a rise, or a reading that was late", long, many{between(60, 2, 2, 6)}, 10},
		{"a rise all the same", long, many{between(120, 2, 2, 6)}, 20},
		{"a fall, or a reading that was late", long, many{between(90, 9, 15, 15)}, 10},
		{"a fall all the same", long, many{between(44, 11, 15, 15)}, 4},
		{"only the long one", long, nil, 10},
		{"a recent one unknown", long, many{a(nan, 5), a(100, nan), a(100, 0)}, 10},
		{"requests left the queue", a(-3, 60), nil, 0},
		{"unknown", a(nan, 60), many{a(100, 5)}, nan},
		{"no time", a(600, 0), many{a(100, 5)}, nan},
	} {
		if got := capacity.OfferedRate(test.long, test.recent...); !same(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
