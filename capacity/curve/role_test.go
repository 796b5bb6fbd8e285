package curve_test

import (
	"math"
	"testing"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// An engine of a pair sees a part of its requests only: the one that prefills
// makes one token, the one that decodes computes no prompt.
func TestLoadByRole(t *testing.T) {
	lengths := func(length float64) capacity.Histogram {
		h := capacity.NewHistogram(capacity.TokenBounds(10000))
		h.Add(length, 1)
		return h
	}
	class := func(name string, prompt, generation, knee float64) curve.Class {
		return curve.Class{
			Name: name, Weight: 1, PromptMean: prompt, GenerationMean: generation, PrefixHitRatio: 0,
			PromptHistogram: lengths(prompt), GenerationHistogram: lengths(generation),
			Studies: []curve.Study{{Arrivals: curve.Arrivals{Process: "poisson"}, SafeRate: curve.Value(knee), Knee: &curve.Knee{Rate: curve.Value(knee)}}},
		}
	}
	// 6 requests of 500 and 300 tokens and 2 of 4000 and 100, of knees 20 and 5.
	const want = 6.0/20 + 2.0/5
	prompts := lengths(500)
	for i := range prompts.Counts {
		prompts.Counts[i] = 75*lengths(500).Counts[i] + 25*lengths(4000).Counts[i]
	}
	generations := lengths(300)
	for i := range generations.Counts {
		generations.Counts[i] = 75*lengths(300).Counts[i] + 25*lengths(100).Counts[i]
	}
	ones := lengths(1)
	ones.Counts[0] = 100
	for role, traffic := range map[string]capacity.Traffic{
		"both":    {ComputedPromptTokens: 11000, GenerationTokens: 2000, GenerationLengths: generations},
		"prefill": {ComputedPromptTokens: 11000, GenerationTokens: 8, GenerationLengths: ones},
		"decode":  {ComputedPromptTokens: 0, GenerationTokens: 2000, GenerationLengths: generations},
	} {
		traffic.Requests, traffic.Admitted, traffic.PromptTokens, traffic.PromptLengths, traffic.Completions = 8, 8, 11000, prompts, 1e30
		c := &curve.Curve{
			PeakReserve: 0.2, Identity: curve.Identity{Role: role, Path: "pd"},
			Classes: []curve.Class{class("chat", 500, 300, 20), class("rag", 4000, 100, 5)},
		}
		l := c.Load(traffic, curve.LoadOptions{})
		if !l.Valid || math.Abs(l.Ratio-want) > 0.02 {
			t.Errorf("%s: ratio %v, valid %v, coverage %v, %v; want %v", role, l.Ratio, l.Valid, l.Coverage, l.Reasons, want)
		}
	}
}
