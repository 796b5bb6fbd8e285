package capacity_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"headroom_exporter/capacity"
)

// withS has n values without ties of which Mann-Kendall's S is s.
func withS(n, s int) []float64 {
	y := make([]float64, 0, n)
	// Insert i so that it falls behind as many before it as are still to fall.
	fall := (n*(n-1)/2 - s) / 2
	for i := range n {
		k := min(i, fall)
		fall -= k
		y = slices.Insert(y, i-k, float64(i))
	}
	return y
}

// The critical values and probabilities are Kendall's (Rank Correlation
// Methods, appendix table 1; also Hollander and Wolfe, table A.30).
func TestMannKendall(t *testing.T) {
	tests := []struct {
		n, s int
		want float64
	}{
		{4, 6, 1.0 / 24},
		{5, 8, 5.0 / 120},
		{5, 10, 1.0 / 120},
		{5, 0, 0.592},
		{10, 21, 0.036},
		{10, 27, 0.0083},
		{10, 45, 1.0 / 3628800},
		{10, -45, 1},
	}
	for _, test := range tests {
		s, p := capacity.MannKendall(withS(test.n, test.s))
		if s != test.s {
			t.Fatalf("S = %d, want %d", s, test.s)
		}
		if math.Abs(p-test.want) > 0.0005 || test.want < 0.001 && math.Abs(p/test.want-1) > 1e-9 {
			t.Errorf("n %d, S %d: p %g, want %g", test.n, test.s, p, test.want)
		}
	}
}

func TestMannKendallNormal(t *testing.T) {
	tests := []struct {
		name string
		y    []float64
		s    int
		want float64
	}{
		// var = 30*29*65/18 = 3141.67; z = (101-1)/56.05.
		{"many values", withS(30, 101), 101, 0.0372},
		// Ties of 2, 2 and 3: var = (10*9*25 - 18 - 18 - 66)/18 = 119.33; z = (40-1)/10.92.
		{"ties", []float64{1, 1, 2, 3, 4, 4, 4, 5, 6, 6}, 40, 0.000178},
		{"all equal", []float64{3, 3, 3, 3, 3}, 0, 1},
		{"one value", []float64{3}, 0, 1},
		{"none", nil, 0, 1},
	}
	for _, test := range tests {
		s, p := capacity.MannKendall(test.y)
		if s != test.s || math.Abs(p-test.want) > 0.0005*math.Max(test.want, 0.1) {
			t.Errorf("%s: S %d, p %g; want %d, %g", test.name, s, p, test.s, test.want)
		}
	}
}

func TestTrendCritical(t *testing.T) {
	tests := []struct{ n, at5, at1 int }{
		{5, 8, 10}, {6, 11, 13}, {7, 13, 17}, {8, 16, 20}, {10, 21, 27}, {12, 26, 36}, {15, 35, 49}, {20, 52, 72},
		// 4 values reach 5 % when all rise, and cannot reach 1 %.
		{4, 6, 8},
		{2, 3, 3},
		// The normal approximation: (S-1)/sqrt(3141.67) of at least 1.645 and 2.326.
		{30, 95, 133},
	}
	for _, test := range tests {
		if at5, at1 := capacity.TrendCritical(test.n, 0.05), capacity.TrendCritical(test.n, 0.01); at5 != test.at5 || at1 != test.at1 {
			t.Errorf("n %d: %d and %d, want %d and %d", test.n, at5, at1, test.at5, test.at1)
		}
	}
}

// Under no trend, a test at 5 % may be wrong in at most 5 of 100.
func TestMannKendallFalseAlarms(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{8, 20, 25} {
		const runs = 2000
		alarms := 0
		for range runs {
			y := make([]float64, n)
			for i := range y {
				y[i] = rng.Float64()
			}
			if _, p := capacity.MannKendall(y); p <= 0.05 {
				alarms++
			}
		}
		if share := float64(alarms) / runs; share < 0.03 || share > 0.06 {
			t.Errorf("n %d: %g of the runs alarm", n, share)
		}
	}
}

// The example is Sen's own (1968).
func TestTheilSen(t *testing.T) {
	x, y := []float64{1, 2, 3, 4, 10, 12, 18}, []float64{9, 15, 19, 20, 45, 55, 78}
	if got := capacity.TheilSen(x, y); got != 4 {
		t.Errorf("slope %g, want 4", got)
	}
	y[6] = 1e9 // One outlier does not matter.
	if got := capacity.TheilSen(x, y); got < 3.5 || got > 6 {
		t.Errorf("slope %g with an outlier", got)
	}
	if got := capacity.TheilSen([]float64{1, 1}, []float64{2, 3}); !math.IsNaN(got) {
		t.Errorf("slope %g of a point in time, want NaN", got)
	}
}

func TestQueueGrowth(t *testing.T) {
	rising := []float64{12, 13, 15, 14, 17, 19, 18, 21, 22, 24}
	tests := []struct {
		name           string
		blocks         []float64
		rate, arrivals float64
		want           capacity.Trend
		s              int
		share, limit   float64
	}{
		{"rises, but within the noise of 240 arrivals", rising, 2, 240, capacity.GrowthRisk, 41, 0.05556, 0.06455},
		{"rises, but just within the noise of 180", rising, 1.5, 180, capacity.GrowthRisk, 41, 0.07407, 0.07454},
		{"rises", rising, 1, 120, capacity.Growing, 41, 0.11111, 0.09129},
		{"rises by less than 2 % of many arrivals", rising, 10, 1e6, capacity.GrowthRisk, 41, 0.01111, 0.02},
		{"S of 25 is chance", []float64{9, 0, 1, 2, 3, 4, 5, 6, 8, 7}, 1, 1e4, capacity.GrowthRisk, 25, 1.0 / 12, 0.02},
		{"stays", []float64{20, 21, 19, 20, 21, 19, 20, 21, 19, 20}, 10, 1200, capacity.NotGrowing, -3, 0, 0.02887},
		{"falls", []float64{24, 22, 21, 18, 19, 17, 14, 15, 13, 12}, 1, 120, capacity.NotGrowing, -41, -0.11111, 0.09129},
		{"five that rise", []float64{1, 2, 3, 4, 5}, 1, 1e4, capacity.Growing, 10, 1.0 / 12, 0.02},
		{"four prove nothing", []float64{1, 2, 3, 4}, 1, 1e4, capacity.GrowthRisk, 6, 1.0 / 12, 0.02},
		{"two blocks are unknown", []float64{nan, 1, 2, 3, nan, 5, 6, 7}, 1, 1e4, capacity.Growing, 15, 1.0 / 12, 0.02},
		{"none", nil, 1, 100, capacity.NotGrowing, 0, nan, 0.1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g := capacity.QueueGrowth(test.blocks, 12, test.rate, test.arrivals)
			if g.Trend != test.want || g.S != test.s {
				t.Errorf("%v with S %d, want %v with %d: %+v", g.Trend, g.S, test.want, test.s, g)
			}
			if !(math.IsNaN(g.Share) && math.IsNaN(test.share)) && !(math.Abs(g.Share-test.share) < 5e-6) || math.Abs(g.Limit-test.limit) > 5e-6 {
				t.Errorf("share %g, limit %g; want %g, %g", g.Share, g.Limit, test.share, test.limit)
			}
		})
	}
}
