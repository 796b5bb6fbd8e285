package capacity_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"

	"headroom_exporter/capacity"
)

func TestDispersion(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct {
		counts []float64
		want   float64
	}{
		{[]float64{4, 4, 4}, 0},
		{[]float64{1, 3, 1, 3}, 1},            // 4 / (2*2)
		{[]float64{0, 10, 0, 10}, 10},         // 100 / (2*5)
		{[]float64{1, 3, nan, 9, 7}, 4. / 10}, // 4 / (2*5), nothing across the gap
		{[]float64{1, 2, 3, 4, 5, 6}, 1. / 7}, // drift hardly counts: the variance is 2.9
		{[]float64{0, 0}, nan},
		{[]float64{5}, nan},
		{[]float64{5, nan, 5}, nan},
		{nil, nan},
	} {
		if got := capacity.Dispersion(test.counts); !near(got, test.want) {
			t.Errorf("%v: %g, want %g", test.counts, got, test.want)
		}
	}
}

// E6 of the design: the Azure rows of its table, at 0.1 %. Means of tokens and
// the plain index of dispersion tell that the trace is the one of the table.
func TestBurstinessOfTraces(t *testing.T) {
	tests := []struct {
		trace                      string
		n, rate, prompt, generated float64
		idc, second, tenSeconds    float64
		bin, dispersion            float64
	}{
		{"azure_conv", 19366, 5.530, 1154.7, 211.13, 1.3856, 1.0809, 1.0917, 1, 1.0809},
		{"azure_code", 8819, 2.567, 2047.85, 27.883, 13.182, 3.2002, 37.433, 2, 7.0734},
	}
	for _, test := range tests {
		trace := readTrace(t, test.trace)
		perSecond := requests(trace, 1)
		var n, prompt, generated float64
		for _, s := range trace {
			n, prompt, generated = n+s.requests, prompt+s.promptTokens, generated+s.generationTokens
		}
		mean, variance := stat.PopMeanVariance(perSecond, nil)
		b := capacity.NewBurstiness(perSecond)
		for _, check := range []struct {
			what      string
			got, want float64
		}{
			{"requests", n, test.n},
			{"rate", mean, test.rate},
			{"prompt tokens", prompt / n, test.prompt},
			{"generated tokens", generated / n, test.generated},
			{"index of dispersion, 1 s", variance / mean, test.idc},
			{"dispersion, 1 s", capacity.Dispersion(perSecond), test.second},
			{"dispersion, 10 s", capacity.Dispersion(requests(trace, 10)), test.tenSeconds},
			{"bin", b.BinSeconds, test.bin},
			{"dispersion", b.Dispersion, test.dispersion},
			{"shape", b.Shape, 1 / test.dispersion},
		} {
			if math.Abs(check.got/check.want-1) > 0.001 {
				t.Errorf("%s: %s %g, want %g", test.trace, check.what, check.got, check.want)
			}
		}
		t.Logf("%s: bins of %g s, dispersion %.3f, shape %.3f +- %.3f", test.trace, b.BinSeconds, b.Dispersion, b.Shape, b.ShapeError)
	}
}

// gammaArrivals are the arrivals of each second at a rate, with gamma-distributed gaps.
func gammaArrivals(rng *rand.Rand, shape, rate float64, seconds int) []float64 {
	gap := distuv.Gamma{Alpha: shape, Beta: shape * rate, Src: rng}
	counts := make([]float64, seconds)
	for at := gap.Rand(); at < float64(seconds); at += gap.Rand() {
		counts[int(at)]++
	}
	return counts
}

func TestBurstinessFindsTheShape(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for _, shape := range []float64{0.25, 0.5, 1, 2} {
		// 40 in a bin: bins with few see less than the whole burst.
		const repeats = 60
		var shapes []float64
		reported := 0.0
		for range repeats {
			b := capacity.NewBurstiness(gammaArrivals(rng, shape, 40, 300))
			shapes = append(shapes, b.Shape)
			reported += b.ShapeError / repeats
		}
		mean, sd := stat.MeanStdDev(shapes, nil)
		if math.Abs(mean/shape-1) > 0.15 {
			t.Errorf("shape %g: found %g", shape, mean)
		}
		if math.Abs(sd/reported-1) > 0.3 {
			t.Errorf("shape %g: standard error said %g, is %g", shape, reported, sd)
		}
	}
}

func TestBurstier(t *testing.T) {
	for _, test := range []struct {
		dispersion, shape float64
		want              bool
	}{
		{1.5, 1, false}, {1.51, 1, true}, {3, 0.5, false}, {3.1, 0.5, true}, {math.NaN(), 1, false}, {9, math.NaN(), false},
	} {
		if got := (capacity.Burstiness{Dispersion: test.dispersion}).Burstier(test.shape); got != test.want {
			t.Errorf("dispersion %g against shape %g: %t", test.dispersion, test.shape, got)
		}
	}
	// Poisson traffic in 300 bins seldom seems burstier than Poisson.
	rng := rand.New(rand.NewPCG(3, 3))
	alarms := map[int]int{60: 0, 300: 0}
	for seconds := range alarms {
		for range 1000 {
			if capacity.NewBurstiness(gammaArrivals(rng, 1, 6, seconds)).Burstier(1) {
				alarms[seconds]++
			}
		}
	}
	t.Logf("false alarms of 1000: %v", alarms)
	if alarms[300] > 5 {
		t.Errorf("%d false alarms of 1000 in 300 bins", alarms[300])
	}
}

func TestBurstinessUnknown(t *testing.T) {
	nan := math.NaN()
	for name, counts := range map[string][]float64{
		"nothing": nil, "no arrivals": make([]float64, 300), "too short": slices.Repeat([]float64{6}, 59),
		"too few arrivals": append(make([]float64, 299), 1), "not known": slices.Repeat([]float64{nan}, 300),
	} {
		if b := capacity.NewBurstiness(counts); !math.IsNaN(b.Dispersion) || !math.IsNaN(b.Shape) || !math.IsNaN(b.ShapeError) || b.Burstier(1) {
			t.Errorf("%s: %+v, want nothing known", name, b)
		}
	}
	b := capacity.NewBurstiness(append(slices.Repeat([]float64{2, 4}, 100), nan, 3, 3))
	if b.BinSeconds != 2 || b.Bins != 100 || b.Dispersion != 0 {
		t.Errorf("%+v, want 100 bins of 2 s without dispersion", b)
	}
}
