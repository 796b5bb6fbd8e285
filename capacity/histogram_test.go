package capacity_test

import (
	"math"
	"testing"

	"headroom_exporter/capacity"
)

func TestEffectiveSize(t *testing.T) {
	for _, test := range []struct {
		name   string
		counts []float64
		want   float64
	}{
		{"nothing", []float64{0, 0, 0}, 0},
		{"equal lengths are as good as they are many", []float64{0, 70, 0}, 70},
		// 90 of 5 and 10 of 55: (450+550)^2 / (2250+30250).
		{"a few long ones", []float64{90, 0, 0, 10}, 1e6 / 32500},
		{"above the last bound", []float64{0, 0, 0, 0, 3}, 3},
	} {
		h := capacity.NewHistogram([]float64{10, 20, 50, 60})
		copy(h.Counts, test.counts)
		if got := h.EffectiveSize(); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: %g, want %g", test.name, got, test.want)
		}
	}
}
