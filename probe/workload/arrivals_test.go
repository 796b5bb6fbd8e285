package workload

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// times are the first n arrivals in seconds.
func times(a Arrivals, seed uint64, n int) []float64 {
	t := newArrivalTimes(a, seed)
	at := make([]float64, n)
	for i := range at {
		at[i] = t.next().Seconds()
	}
	return at
}

func gaps(at []float64) []float64 {
	g := make([]float64, len(at)-1)
	for i := range g {
		g[i] = at[i+1] - at[i]
	}
	return g
}

func moments(x []float64) (mean, cv float64) {
	for _, v := range x {
		mean += v
	}
	mean /= float64(len(x))
	for _, v := range x {
		cv += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(cv/float64(len(x))) / mean
}

// kolmogorovSmirnov is the largest distance between the sample's distribution and cdf.
func kolmogorovSmirnov(x []float64, cdf func(float64) float64) float64 {
	sorted := slices.Clone(x)
	slices.Sort(sorted)
	n, d := float64(len(sorted)), 0.0
	for i, v := range sorted {
		f := cdf(v)
		d = max(d, f-float64(i)/n, float64(i+1)/n-f)
	}
	return d
}

// gammaCDF is the regularised lower incomplete gamma function by its series
// (Abramowitz and Stegun 6.5.29).
func gammaCDF(shape, x float64) float64 {
	if x <= 0 {
		return 0
	}
	logGamma, _ := math.Lgamma(shape + 1)
	term, sum := 1.0, 1.0
	for n := 1; n < 10000 && term > 1e-15*sum; n++ {
		term *= x / (shape + float64(n))
		sum += term
	}
	return min(1, sum*math.Exp(shape*math.Log(x)-x-logGamma))
}

// At a level of 1 % the Kolmogorov-Smirnov distance of n draws stays below 1.628/sqrt(n).
func TestArrivalGaps(t *testing.T) {
	const n, rate = 20000, 4.0
	for _, test := range []struct {
		arrivals Arrivals
		shape    float64
	}{
		{Arrivals{Process: Poisson, Rate: rate}, 1},
		{Arrivals{Process: Gamma, Rate: rate, Burstiness: 1}, 1},
		{Arrivals{Process: Gamma, Rate: rate, Burstiness: 0.1}, 0.1},
		{Arrivals{Process: Gamma, Rate: rate, Burstiness: 0.25}, 0.25},
		{Arrivals{Process: Gamma, Rate: rate, Burstiness: 0.5}, 0.5},
		{Arrivals{Process: Gamma, Rate: rate, Burstiness: 2}, 2},
		{Arrivals{Process: Gamma, Rate: rate, Burstiness: 10}, 10},
	} {
		for seed := range uint64(5) {
			// The drawn gaps, because times are whole nanoseconds: of the gaps
			// with a shape of 0.1, a tenth are shorter than that.
			drawn, streams := make([]float64, n), newStreams(seed)
			for i := range drawn {
				drawn[i] = test.arrivals.gap(streams.at(domainArrival, uint64(i+1)), false)
			}
			d := kolmogorovSmirnov(drawn, func(x float64) float64 { return gammaCDF(test.shape, test.shape*x) })
			if limit := 1.628 / math.Sqrt(n); d > limit {
				t.Errorf("%+v seed %d: KS distance %.4f, want below %.4f", test.arrivals, seed, d, limit)
			}
			mean, cv := moments(gaps(times(test.arrivals, seed, n+1)))
			want := 1 / math.Sqrt(test.shape)
			if math.Abs(mean*rate-1) > 4*want/math.Sqrt(n) || math.Abs(cv/want-1) > 0.08 {
				t.Errorf("%+v seed %d: mean gap %.4f s and CV %.3f, want %.4f and %.3f", test.arrivals, seed, mean, cv, 1/rate, want)
			}
		}
	}
}

// The index of dispersion of gamma arrivals tends to 1/shape in long windows;
// at rate 20/s and windows of 1 s it is 3.87 for a shape of 0.25 (limit 4).
func TestArrivalDispersion(t *testing.T) {
	for _, test := range []struct {
		burstiness, rate, want float64
	}{
		{1, 20, 1}, {0.25, 20, 3.87}, {0.25, 5, 3.56}, {0.25, 1, 2.83},
	} {
		at := newArrivalTimes(Arrivals{Process: Gamma, Rate: test.rate, Burstiness: test.burstiness}, 7)
		var records []Record
		for len(records) < int(min(20000*test.rate, 100000)) {
			records = append(records, Record{At: at.next()})
		}
		c := Windows(records, time.Second)
		if math.Abs(c.IDC/test.want-1) > 0.06 {
			t.Errorf("shape %g at %g/s: IDC %.3f, want %g", test.burstiness, test.rate, c.IDC, test.want)
		}
		// Bursts longer than a window make neighbours alike, which the
		// differences take for drift: they need some 5 arrivals a window or more.
		if test.rate >= 5 && math.Abs(c.DriftFreeIDC/test.want-1) > 0.1 {
			t.Errorf("shape %g at %g/s: IDC without drift %.3f, want %g", test.burstiness, test.rate, c.DriftFreeIDC, test.want)
		}
		if math.Abs(c.Mean/test.rate-1) > 0.03 {
			t.Errorf("shape %g at %g/s: %.3f a second", test.burstiness, test.rate, c.Mean)
		}
	}
}

// From the very start, and however bursty, the expected count is rate * time.
func TestArrivalsAreStationary(t *testing.T) {
	for _, burstiness := range []float64{0.1, 1, 5} {
		const runs, window = 20000, 1.0
		n := 0
		for seed := range uint64(runs) {
			at := newArrivalTimes(Arrivals{Process: Gamma, Rate: 2, Burstiness: burstiness}, seed)
			for at.next().Seconds() < window {
				n++
			}
		}
		if mean := float64(n) / runs; math.Abs(mean-2) > 0.1 {
			t.Errorf("burstiness %g: %.3f arrivals in the first second on average, want 2", burstiness, mean)
		}
	}
}

func TestConstantArrivals(t *testing.T) {
	got := times(Arrivals{Process: Constant, Rate: 4}, 1, 5)
	if want := []float64{0, 0.25, 0.5, 0.75, 1}; !slices.Equal(got, want) {
		t.Errorf("arrivals at %v, want %v", got, want)
	}
}

// Constant arrivals are where the integral of the rate is whole.
func TestRamps(t *testing.T) {
	for text, integral := range map[string]func(float64) float64{
		// From 1 to 5/s in 10 s: t + 0.2 t^2, then 30 + 5 (t-10).
		"linear:1:10s": func(t float64) float64 {
			if t < 10 {
				return t + 0.2*t*t
			}
			return 30 + 5*(t-10)
		},
		"linear:0:10s": func(t float64) float64 {
			if t < 10 {
				return 0.25 * t * t
			}
			return 25 + 5*(t-10)
		},
		"linear:9:10s": func(t float64) float64 {
			if t < 10 {
				return 9*t - 0.2*t*t
			}
			return 70 + 5*(t-10)
		},
		"linear:5:10s": func(t float64) float64 { return 5 * t },
		"exponential:0.5:10s": func(t float64) float64 {
			k := math.Log(10) / 10
			if t < 10 {
				return 0.5 / k * (math.Exp(k*t) - 1)
			}
			return 4.5/k + 5*(t-10)
		},
		"exponential:5:10s": func(t float64) float64 { return 5 * t },
		// 1/s, 3/s, then 5/s.
		"step:1:8s:2": func(t float64) float64 {
			return min(t, 4) + 3*min(max(t-4, 0), 4) + 5*max(t-8, 0)
		},
		// Nothing, 2.5/s, then 5/s.
		"step:0:8s:2": func(t float64) float64 { return 2.5*min(max(t-4, 0), 4) + 5*max(t-8, 0) },
	} {
		ramp, err := ParseRamp(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		a := Arrivals{Process: Constant, Rate: 5, Ramp: ramp}
		if err := a.Validate(); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		at := times(a, 1, 100)
		for i, x := range at {
			if got := integral(x); math.Abs(got-float64(i)) > 1e-6 {
				t.Errorf("%s: arrival %d at %g s, where the integral is %g", text, i, x, got)
				break
			}
		}
		if !slices.IsSorted(at) {
			t.Errorf("%s: arrivals are not in order: %v", text, at)
		}
	}
}

func TestArrivalErrors(t *testing.T) {
	for _, test := range []struct {
		arrivals Arrivals
		want     string
	}{
		{Arrivals{Process: "pareto", Rate: 1}, `no process "pareto"`},
		{Arrivals{Process: Poisson}, "rate is 0"},
		{Arrivals{Process: Poisson, Rate: math.NaN()}, "rate is NaN"},
		{Arrivals{Process: Poisson, Rate: 1, Burstiness: 2}, "only gamma arrivals take one"},
		{Arrivals{Process: Gamma, Rate: 1}, "burstiness is 0"},
		{Arrivals{Process: Gamma, Rate: 1, Burstiness: math.Inf(1)}, "burstiness is +Inf"},
		{Arrivals{Process: Constant, Rate: 1, Ramp: Ramp{From: 1}}, "no shape given"},
	} {
		if err := test.arrivals.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: error is %v, want %q in it", test.arrivals, err, test.want)
		}
	}
	for text, want := range map[string]string{
		"":                     "the parts are not right",
		"linear:1":             "the parts are not right",
		"step:1:2s":            "the parts are not right",
		"linear:x:2s":          `FROM is "x"`,
		"linear:1:2":           `DURATION is "2"`,
		"step:1:2s:x":          `STEPS is "x"`,
		"sine:1:2s":            `no ramp "sine"`,
		"exponential:0:2s":     "cannot begin at 0",
		"linear:-1:2s":         "a ramp from -1",
		"linear:1:0s":          "a ramp over 0s",
		"step:1:2s:0":          "a ramp of 0 steps",
		"linear:NaN:2s":        "a ramp from NaN",
		"linear:1:2s:3":        "the parts are not right",
		"exponential:1e9:2s":   "a ramp from 1e+09",
		"exponential:1:-2s":    "a ramp over -2s",
		"step:1:2s:1000000000": "a ramp of 1000000000 steps",
	} {
		if _, err := ParseRamp(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ramp %q: error is %v, want %q in it", text, err, want)
		}
	}
}

// What arrival number n draws does not depend on the others, so that arrival
// times differ by seed only.
func TestArrivalsAreReproducible(t *testing.T) {
	a := Arrivals{Process: Gamma, Rate: 3, Burstiness: 0.5}
	if !slices.Equal(times(a, 5, 100), times(a, 5, 100)) {
		t.Error("the same seed gives other times")
	}
	if slices.Equal(times(a, 5, 100), times(a, 6, 100)) {
		t.Error("another seed gives the same times")
	}
	// Neighbouring gaps are independent: their correlation is within 4/sqrt(n) of 0.
	g := gaps(times(Arrivals{Process: Poisson, Rate: 1}, 11, 50001))
	mean, cv := moments(g)
	sum := 0.0
	for i := 1; i < len(g); i++ {
		sum += (g[i] - mean) * (g[i-1] - mean)
	}
	if r := sum / float64(len(g)) / (cv * cv * mean * mean); math.Abs(r) > 4/math.Sqrt(float64(len(g))) {
		t.Errorf("neighbouring gaps have a correlation of %g", r)
	}
}
