package capacity_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"headroom_exporter/capacity"
)

// binomialCDF is P(Bin(n, p) <= k) by its definition.
func binomialCDF(k, n int, p float64) float64 {
	sum := 0.0
	all, _ := math.Lgamma(float64(n + 1))
	for i := range k + 1 {
		in, _ := math.Lgamma(float64(i + 1))
		out, _ := math.Lgamma(float64(n - i + 1))
		sum += math.Exp(all - in - out + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
	}
	return sum
}

// The smallest numbers of independent samples that prove a percentile with so
// many violations. The rows at 99 % are those of MLPerf LoadGen's early
// stopping, where 64, 459 and 662 are published; 59, 93, 124 and 299 are Wilks's.
func TestUpperFractionProves(t *testing.T) {
	violations := []float64{0, 1, 2, 3, 5, 10, 20, 50}
	tests := []struct {
		percentile, confidence float64
		samples                []float64
	}{
		{0.99, 0.99, []float64{459, 662, 838, 1001, 1307, 2010, 3304, 6898}},
		{0.95, 0.99, []float64{90, 130, 165, 198, 259, 398, 656, 1372}},
		{0.90, 0.99, []float64{44, 64, 81, 97, 127, 197, 325, 681}},
		{0.99, 0.95, []float64{299, 473, 628, 773, 1049, 1693, 2902}},
		{0.95, 0.95, []float64{59, 93, 124, 153, 208, 336, 577}},
		{0.999, 0.99, []float64{4603, 6636, 8403, 10042, 13105, 20140, 33097}},
		{0.999, 0.95, []float64{2995, 4742, 6294, 7752, 10511, 16959, 29058}},
	}
	for _, test := range tests {
		for i, n := range test.samples {
			proves := func(n float64) bool {
				return capacity.UpperFraction(violations[i], n, test.confidence) < 1-test.percentile
			}
			if proves(n-1) || !proves(n) {
				t.Errorf("p%g at %g with %g violations: %g samples prove it: %t, %g: %t", 100*test.percentile, test.confidence, violations[i], n-1, proves(n-1), n, proves(n))
			}
		}
	}
}

func TestFractionBounds(t *testing.T) {
	tests := []struct {
		violations, n float64
		lower, upper  float64
	}{
		{10, 1000, 0.005435, 0.016903},
		{4, 1000, 0.001367, 0.009130},
		{3, 1000, 0.000818, 0.007735},
		{1, 473, 0.000108, 0.0099897},
		{0, 59, 0, 0.049508},
		{59, 59, 0.950492, 1},
		{0, 0, 0, 1},
		{1, -1, 0, 1},
		{5, 4, 0.472871, 1},
	}
	for _, test := range tests {
		lower := capacity.LowerFraction(test.violations, test.n, 0.95)
		upper := capacity.UpperFraction(test.violations, test.n, 0.95)
		if math.Abs(lower-test.lower) > 1e-6 || math.Abs(upper-test.upper) > 1e-6 {
			t.Errorf("%g in %g: [%.6f, %.6f], want [%.6f, %.6f]", test.violations, test.n, lower, upper, test.lower, test.upper)
		}
	}
}

// At the bounds, what was seen, or more of it, is as unlikely as was asked for.
func TestFractionBoundsAreExact(t *testing.T) {
	for _, n := range []int{1, 7, 60, 473, 4000} {
		for _, v := range []int{0, 1, 3, n / 20, n / 3, n - 1} {
			if v >= n {
				continue
			}
			upper := capacity.UpperFraction(float64(v), float64(n), 0.95)
			if got := binomialCDF(v, n, upper); math.Abs(got-0.05) > 1e-6 {
				t.Errorf("%d in %d: as few at %g has the probability %g, want 0.05", v, n, upper, got)
			}
			if v == 0 {
				continue
			}
			lower := capacity.LowerFraction(float64(v), float64(n), 0.95)
			if got := 1 - binomialCDF(v-1, n, lower); math.Abs(got-0.05) > 1e-6 {
				t.Errorf("%d in %d: as many at %g has the probability %g, want 0.05", v, n, lower, got)
			}
		}
	}
}

func FuzzFractionBounds(f *testing.F) {
	f.Add(10.0, 1000.0, 0.95)
	f.Add(0.3, 0.7, 0.5)
	f.Add(1e-9, 2.0, 0.99)
	f.Fuzz(func(t *testing.T, violations, n, confidence float64) {
		if !(n > 0 && n < 1e6 && violations >= 0 && violations <= n && confidence >= 0.5 && confidence <= 0.999) {
			t.Skip("these are no counts of a fraction")
		}
		lower := capacity.LowerFraction(violations, n, confidence)
		upper := capacity.UpperFraction(violations, n, confidence)
		const slack = 1e-6
		if p := violations / n; !(lower >= 0 && lower <= p+slack && upper >= p-slack && upper <= 1) {
			t.Errorf("%g in %g at %g: [%g, %g] is no interval around %g", violations, n, confidence, lower, upper, p)
		}
		if more := capacity.UpperFraction(violations+1, n, confidence); more < upper-slack {
			t.Errorf("one more violation lowers the bound from %g to %g", upper, more)
		}
		if more := capacity.UpperFraction(violations, n+1, confidence); more > upper+slack {
			t.Errorf("one more trial raises the bound from %g to %g", upper, more)
		}
		if surer := capacity.UpperFraction(violations, n, confidence+0.0005); surer < upper-slack {
			t.Errorf("more confidence lowers the bound from %g to %g", upper, surer)
		}
	})
}

func TestQuantileRanks(t *testing.T) {
	tests := []struct{ n, low, high int }{
		{662, 650, 661},
		{1000, 983, 997},
		{2000, 1971, 1989},
		{10000, 9880, 9920},
		{368, 360, 368},
		{367, 359, 0},
		{1, 1, 0}, // A single sample is below p99 99 times in 100.
		{0, 0, 0},
	}
	for _, test := range tests {
		if low, high := capacity.QuantileRanks(test.n, 0.99, 0.95); low != test.low || high != test.high {
			t.Errorf("%d samples: ranks (%d, %d), want (%d, %d)", test.n, low, high, test.low, test.high)
		}
	}
}

func TestDesignEffect(t *testing.T) {
	tests := []struct {
		name     string
		over, of []float64
		want     float64
	}{
		// p = 0.1: (10-1)^2 + 9 * 1^2 = 90, over 100 * 0.1 * 0.9 = 9.
		{"all in one block", []float64{10, 0, 0, 0, 0, 0, 0, 0, 0, 0}, []float64{10, 10, 10, 10, 10, 10, 10, 10, 10, 10}, 10},
		{"evener than chance", []float64{1, 1, 1, 1}, []float64{10, 10, 10, 10}, 1},
		// p = 0.2: (4-2)^2 + (2-4)^2 = 8, over 30 * 0.2 * 0.8 = 4.8.
		{"blocks of several sizes", []float64{4, 2}, []float64{10, 20}, 8 / 4.8},
		{"no violations", []float64{0, 0}, []float64{10, 10}, 1},
		{"nothing else", []float64{10, 10}, []float64{10, 10}, 1},
		{"no trials", []float64{0}, []float64{0}, 1},
		{"no blocks", nil, nil, 1},
	}
	for _, test := range tests {
		if got := capacity.DesignEffect(test.over, test.of); !same(got, test.want) {
			t.Errorf("%s: %g, want %g", test.name, got, test.want)
		}
	}
}

// Independent trials have a design effect near 1, and trials that all come k times have k.
func TestDesignEffectOfRepeatedTrials(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, copies := range []float64{1, 4, 16} {
		over, of := make([]float64, 4000), make([]float64, 4000)
		for i := range of {
			for range 20 {
				of[i] += copies
				if rng.Float64() < 0.05 {
					over[i] += copies
				}
			}
		}
		if got := capacity.DesignEffect(over, of); math.Abs(got/copies-1) > 0.1 {
			t.Errorf("every trial %g times: %g", copies, got)
		}
	}
}

func TestAABand(t *testing.T) {
	tests := []struct {
		a, b []float64
		want float64
	}{
		{[]float64{100, 2}, []float64{104, 2.1}, 0.1 / 2.05},
		{[]float64{100, nan}, []float64{104, 2}, 4.0 / 102},
		{[]float64{0, 1}, []float64{0, 1}, 0},
		{[]float64{0, nan}, []float64{0, 1}, nan},
		{nil, nil, nan},
	}
	for _, test := range tests {
		if got := capacity.AABand(test.a, test.b); !same(got, test.want) {
			t.Errorf("%v and %v: %g, want %g", test.a, test.b, got, test.want)
		}
	}
}

func ExampleUpperFraction() {
	fmt.Printf("1 late of 473: with 95 %% confidence at most %.1f %% are", 100*capacity.UpperFraction(1, 473, 0.95))
	// Output: 1 late of 473: with 95 % confidence at most 1.0 % are
}
