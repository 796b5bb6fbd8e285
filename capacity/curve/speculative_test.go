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

// The costs of a step are the same whether it brings a token or three: the client
// then sees three times the tokens, a third of the time apart.
func TestStepTimeWithSpeculativeDecoding(t *testing.T) {
	cost := [4]float64{0.010, 3e-5, 5e-5, 2e-8}
	for _, perStep := range []float64{1, 3} {
		c := &curve.Curve{}
		for name, lengths := range map[string][2]float64{"chat": {256, 128}, "rag": {4096, 128}, "write": {256, 1024}, "both": {4096, 1024}} {
			prompt, generation := lengths[0], lengths[1]
			class := curve.Class{Name: name, PromptMean: prompt, GenerationMean: generation, PrefixHitRatio: capacity.Unknown()}
			var points []curve.Point
			for n := 4.0; n <= 64; n *= 2 {
				prefill := n * perStep * prompt / generation
				step := cost[0] + cost[1]*prefill + cost[2]*n + cost[3]*n*(prompt+generation/2)
				p := curve.Point{Purpose: curve.PurposeProbe, Engine: curve.UnknownEngineReadings()}
				p.ITL.Mean, p.GenerationTokenRate, p.PromptTokenRate = curve.Value(step/perStep), curve.Value(n*perStep/step), curve.Value(prefill/step)
				if perStep > 1 {
					p.Engine.SpeculativeTokensPerStep = perStep
				}
				points = append(points, p)
			}
			class.Studies = []curve.Study{{Arrivals: curve.Arrivals{Process: "poisson"}, Points: points}}
			c.Classes = append(c.Classes, class)
		}
		m, err := c.StepTime(1)
		if err != nil {
			t.Fatalf("%v tokens a step: %v", perStep, err)
		}
		for i, want := range cost {
			if got := m.Coefficients[i]; math.Abs(got-want) > 1e-6*want {
				t.Errorf("%v tokens a step: cost %d is %v, want %v", perStep, i, got, want)
			}
		}
	}
}
