package capacity_test

import (
	"math"
	"slices"
	"testing"

	"headroom_exporter/capacity"
)

// T31 of the design: linear ramps over half an hour, with half an hour to get
// more capacity.
func TestHeadroomBurn(t *testing.T) {
	tests := []struct {
		first, last float64
		burn        float64
		want        capacity.BurnClass
	}{
		{0.50, 0.62, 0.316, capacity.BurnNone},
		{0.50, 0.70, 0.667, capacity.BurnTicket},
		{0.55, 0.80, 1.25, capacity.BurnPage},
		{0.80, 0.50, 0, capacity.BurnNone},
		{0.60, 1.00, 40, capacity.BurnExhausted},
	}
	const lead = 1800
	at := ramp(31, 0, 1800)
	for _, test := range tests {
		u := ramp(31, test.first, test.last)
		slow := capacity.HeadroomBurn(at, u, capacity.SlowBurnWindow, lead)
		fast := capacity.HeadroomBurn(at, u, capacity.FastBurnWindow, lead)
		if math.Abs(slow-test.burn) > 0.0005 || math.Abs(fast-test.burn) > 0.0005 {
			t.Errorf("%g to %g: burn %g and %g, want %g", test.first, test.last, slow, fast, test.burn)
		}
		if got := capacity.ClassifyBurn(slow, fast, test.last); got != test.want {
			t.Errorf("%g to %g: %s, want %s", test.first, test.last, got, test.want)
		}
	}
}

func TestHeadroomBurnUnknown(t *testing.T) {
	nan := math.NaN()
	at, u := ramp(31, 0, 1800), ramp(31, 0.5, 0.7)
	burn := func(at, u []float64) float64 { return capacity.HeadroomBurn(at, u, 1800, 1800) }
	holes := slices.Clone(u)
	holes[3], holes[17] = nan, nan
	if got := burn(at, holes); math.Abs(got-2.0/3) > 1e-9 {
		t.Errorf("with gaps %g, want 2/3", got)
	}
	stale := slices.Clone(u)
	stale[30] = nan
	for name, got := range map[string]float64{
		"nothing":                     burn(nil, nil),
		"the present is not known":    burn(at, stale),
		"too short":                   burn(at[8:], u[8:]),
		"the lead is not known":       capacity.HeadroomBurn(at, u, 1800, nan),
		"no lead":                     capacity.HeadroomBurn(at, u, 1800, 0),
		"old samples do not lengthen": capacity.HeadroomBurn([]float64{0, 3000, 3500, 4000}, []float64{.1, .2, .3, .4}, 1800, 1800),
	} {
		if !math.IsNaN(got) {
			t.Errorf("%s: %g, want NaN", name, got)
		}
	}
}

func TestClassifyBurn(t *testing.T) {
	nan := math.NaN()
	tests := []struct {
		slow, fast, u float64
		want          capacity.BurnClass
	}{
		{1, 0.5, 0.6, capacity.BurnPage},
		{1, 0.49, 0.6, capacity.BurnTicket},
		{1, 0.5, 0.59, capacity.BurnTicket},
		{0.5, 0.25, 0.5, capacity.BurnTicket},
		{0.5, 0.24, 0.5, capacity.BurnNone},
		{9, 9, 0.49, capacity.BurnNone},
		{0, 0, 1, capacity.BurnExhausted},
		{nan, nan, 1.2, capacity.BurnExhausted},
		{nan, 1, 0.7, capacity.BurnUnknown},
		{1, nan, 0.7, capacity.BurnUnknown},
		{nan, nan, 0.2, capacity.BurnNone},
		{1, 1, nan, capacity.BurnUnknown},
	}
	for _, test := range tests {
		if got := capacity.ClassifyBurn(test.slow, test.fast, test.u); got != test.want {
			t.Errorf("%g, %g at %g: %s, want %s", test.slow, test.fast, test.u, got, test.want)
		}
	}
}
