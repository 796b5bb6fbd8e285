package importer

import (
	"math"
	"testing"
)

func TestIsotonic(t *testing.T) {
	e := math.E
	for _, test := range []struct {
		name  string
		loads []load
		want  []float64 // logarithms
	}{
		{"rising", []load{{1, 1, 9}, {2, e, 9}, {3, e * e, 9}}, []float64{0, 1, 2}},
		// Ayer et al. 1955: violators are pooled to their weighted mean, back as far as need be.
		{"pooled", []load{{1, e, 1}, {2, 1, 3}, {3, e * e, 1}}, []float64{0.25, 0.25, 2}},
		{"pooled twice", []load{{1, e * e, 1}, {2, e, 1}, {3, 1, 1}}, []float64{1, 1, 1}},
		{"one rate twice", []load{{1, 1, 1}, {1, e, 1}, {2, e * e, 1}}, []float64{0.5, 2}},
		{"failed", []load{{1, 1, 1}, {2, math.Inf(1), 1}, {3, e, 1}}, []float64{0, math.Inf(1), math.Inf(1)}},
	} {
		fit := isotonic(test.loads)
		if len(fit) != len(test.want) {
			t.Errorf("%s: %v", test.name, fit)
			continue
		}
		for i := range fit {
			if d := fit[i].value - test.want[i]; !(math.Abs(d) < 1e-12) && !math.IsInf(test.want[i], 1) || math.IsInf(fit[i].value, 1) != math.IsInf(test.want[i], 1) {
				t.Errorf("%s: %v, want %v", test.name, fit, test.want)
			}
		}
	}
}

func TestCross(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, test := range []struct {
		name            string
		loads           []load
		rate, low, high float64
		method          string
	}{
		// Halfway in the logarithm between 0.1 and 10 is 1.
		{"between", []load{{2, 0.01, 9}, {4, 0.1, 9}, {6, 10, 9}}, 5, 4, 6, "isotonic"},
		{"at a load", []load{{2, 0.1, 9}, {4, 1, 9}, {6, 10, 9}}, 4, 4, 6, "isotonic"},
		{"above", []load{{2, 0.1, 9}, {4, 0.2, 9}}, nan, 4, nan, "above"},
		{"below", []load{{2, 3, 9}, {4, 5, 9}}, nan, nan, 2, "bracket"},
		{"failed", []load{{2, 0.1, 9}, {4, inf, 9}}, 2, 2, 4, "bracket"},
		// The dip at 6 is luck: 4 and 6 pool to 10^-0.25, which passes.
		{"dip", []load{{2, 0.01, 1}, {4, 10, 1}, {6, 0.03162277660168379, 1}, {8, 100, 1}}, 6 + 2*0.25/2.25, 6, 8, "isotonic"},
		{"zero", []load{{2, 0, 9}, {4, 2, 9}}, 2 + 2*9*math.Log(10)/math.Log(2e9), 2, 4, "isotonic"},
	} {
		k := cross(test.loads, 1)
		same := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 || math.IsNaN(a) && math.IsNaN(b) }
		if k.Method != test.method || !same(float64(k.Rate), test.rate) || !same(float64(k.Low), test.low) || !same(float64(k.High), test.high) {
			t.Errorf("%s: %+v", test.name, k)
		}
	}
}
