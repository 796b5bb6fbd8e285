package capacity_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"headroom_exporter/capacity"
)

func TestQuantile(t *testing.T) {
	values := []float64{1, 2, 3, 4}
	for q, want := range map[float64]float64{0: 1, 0.5: 2.5, 0.25: 1.75, 0.9: 3.7, 1: 4, -1: 1, 2: 4} {
		if got := capacity.Quantile(values, q); !same(got, want) {
			t.Errorf("quantile %g: %g, want %g", q, got, want)
		}
	}
	if got := capacity.Quantile([]float64{7}, 0.3); got != 7 {
		t.Errorf("of one value: %g", got)
	}
	if got := capacity.Quantile(nil, 0.5); !math.IsNaN(got) {
		t.Errorf("of none: %g, want NaN", got)
	}
}

// The mean of n independent blocks has the standard error s/sqrt(n).
func TestBlockBootstrap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	a, b := make([]float64, 100), make([]float64, 25)
	for i := range a {
		a[i] = rng.NormFloat64()
	}
	for i := range b {
		b[i] = 10 + 2*rng.NormFloat64()
	}
	mean := func(values []float64, drawn []int) float64 {
		sum := 0.0
		for _, i := range drawn {
			sum += values[i]
		}
		return sum / float64(len(drawn))
	}
	difference := func(drawn [][]int) float64 { return mean(b, drawn[1]) - mean(a, drawn[0]) }
	got := capacity.BlockBootstrap([]int{100, 25}, 4000, rand.New(rand.NewPCG(3, 4)), difference)
	if len(got) != 4000 || !slices.IsSorted(got) {
		t.Fatalf("%d values, sorted %v", len(got), slices.IsSorted(got))
	}
	// Of the difference: sqrt(1/100 + 4/25) = 0.412; 5 % to 95 % is 3.29 of it.
	if width := capacity.Quantile(got, 0.95) - capacity.Quantile(got, 0.05); math.Abs(width/(3.29*0.412)-1) > 0.25 {
		t.Errorf("width %g, want about %g", width, 3.29*0.412)
	}
	again := capacity.BlockBootstrap([]int{100, 25}, 4000, rand.New(rand.NewPCG(3, 4)), difference)
	if !slices.Equal(got, again) {
		t.Error("the same seed gives another distribution")
	}
}

func TestBlockBootstrapLeavesOutWhatIsUnknown(t *testing.T) {
	calls := 0
	got := capacity.BlockBootstrap([]int{2}, 10, rand.New(rand.NewPCG(1, 2)), func([][]int) float64 {
		calls++
		if calls%2 == 0 {
			return nan
		}
		return float64(-calls)
	})
	if want := []float64{-9, -7, -5, -3, -1}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
