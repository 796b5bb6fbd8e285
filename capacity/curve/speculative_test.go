package curve_test

import (
	"math"
	"testing"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// The tokens of all classes over their steps; classes that do not tell are left out.
func TestTokensPerStepOfAMix(t *testing.T) {
	c := &curve.Curve{Classes: []curve.Class{
		{Name: "chat", GenerationMean: 100, SpeculativeTokensPerStep: 2},
		{Name: "code", GenerationMean: 300, SpeculativeTokensPerStep: 4},
		{Name: "old", GenerationMean: 50},
	}}
	mix := func(shares ...float64) capacity.Mix {
		var m capacity.Mix
		for i, share := range shares {
			m.Classes = append(m.Classes, capacity.ClassRate{Name: c.Classes[i].Name, Share: share})
		}
		return m
	}
	for _, test := range []struct {
		name string
		mix  capacity.Mix
		want float64
	}{
		{"one class", mix(1, 0, 0), 2},
		// 50 and 150 tokens in 25 and 37.5 steps.
		{"two classes", mix(0.5, 0.5, 0), 200 / 62.5},
		{"one that does not tell", mix(0.5, 0, 0.5), 2},
		{"none that tells", mix(0, 0, 1), math.NaN()},
		{"no mix", capacity.Mix{}, math.NaN()},
		{"of another curve", capacity.Mix{Classes: []capacity.ClassRate{{Name: "x", Share: 1}}}, math.NaN()},
	} {
		if got := c.TokensPerStep(test.mix); !(math.Abs(got-test.want) < 1e-9) && !(math.IsNaN(got) && math.IsNaN(test.want)) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
