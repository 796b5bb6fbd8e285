package capacity_test

import (
	"math/rand/v2"
	"testing"

	"headroom_exporter/capacity"
)

func TestMSER(t *testing.T) {
	var falling []float64
	for i := 10; i > 0; i-- {
		falling = append(falling, float64(i))
	}
	for range 8 {
		falling = append(falling, 1, 2, 1, 2, 1)
	}
	var ramp []float64
	for i := range 50 {
		ramp = append(ramp, float64(i))
	}
	tests := []struct {
		name    string
		series  []float64
		discard int
		steady  bool
	}{
		{"ten values fall to a level", falling, 10, true},
		{"a batch that is not whole is not used", append(falling[:50:50], 1000, 1000), 10, true},
		{"rises to the end", ramp, 25, false},
		{"flat", make([]float64, 50), 0, true},
		{"one batch", make([]float64, 9), 0, false},
		{"none", nil, 0, false},
	}
	for _, test := range tests {
		if discard, steady := capacity.MSER(test.series, 5); discard != test.discard || steady != test.steady {
			t.Errorf("%s: %d, %v; want %d, %v", test.name, discard, steady, test.discard, test.steady)
		}
	}
}

func TestMSERFindsTheEndOfAWarmUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, warm := range []int{0, 50, 100} {
		var series []float64
		for i := range 400 {
			level := min(1, float64(i+1)/float64(warm+1))
			series = append(series, 100*level+2*rng.NormFloat64())
		}
		discard, steady := capacity.MSER(series, 5)
		if !steady || discard < warm-10 || discard > warm+60 {
			t.Errorf("warm-up of %d values: %d discarded, steady %v", warm, discard, steady)
		}
	}
}
