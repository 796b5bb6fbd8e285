package capacity_test

import (
	"math"
	"slices"
	"testing"

	"headroom_exporter/capacity"
)

func TestIsotonic(t *testing.T) {
	tests := []struct {
		name       string
		y, w, want []float64
	}{
		{"rising stays", []float64{1, 2, 3}, []float64{1, 1, 1}, []float64{1, 2, 3}},
		{"falling is one pool", []float64{3, 2, 1}, []float64{1, 1, 1}, []float64{2, 2, 2}},
		{"weights count", []float64{1, 4, 2, 5}, []float64{1, 3, 1, 1}, []float64{1, 3.5, 3.5, 5}},
		{"a pool falls into the one before", []float64{1, 3, 4, 0}, []float64{1, 1, 1, 1}, []float64{1, 7.0 / 3, 7.0 / 3, 7.0 / 3}},
		{"none", nil, nil, nil},
	}
	for _, test := range tests {
		got := capacity.Isotonic(test.y, test.w)
		if !slices.EqualFunc(got, test.want, same) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// The fit never falls and keeps the weighted mean, and each of its pools has
// the mean of the values in it.
func FuzzIsotonic(f *testing.F) {
	f.Add([]byte{1, 5, 3, 2, 200, 199, 4})
	f.Add([]byte{255, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var y, w []float64
		for _, b := range data {
			y, w = append(y, float64(b>>3)), append(w, float64(b&7)+1)
		}
		fit := capacity.Isotonic(y, w)
		if len(fit) != len(y) || !slices.IsSorted(fit) {
			t.Fatalf("%v of %v falls", fit, y)
		}
		for i := 0; i < len(fit); {
			sum, weight, j := 0.0, 0.0, i
			for ; j < len(fit) && fit[j] == fit[i]; j++ {
				sum, weight = sum+y[j]*w[j], weight+w[j]
			}
			if math.Abs(sum/weight-fit[i]) > 1e-9 {
				t.Fatalf("values %d to %d have the mean %g and the fit %g", i, j-1, sum/weight, fit[i])
			}
			i = j
		}
		if again := capacity.Isotonic(fit, w); !slices.EqualFunc(again, fit, same) {
			t.Fatalf("the fit of the fit %v is %v", fit, again)
		}
	})
}
