package curve

import "headroom_exporter/capacity"

// tokensPerStep is what a step of a sequence gave during a point; 1 without speculative decoding.
func tokensPerStep(p *Point) float64 { return max(p.Engine.SpeculativeTokensPerStep, 1) }

// TokensPerStep is the mean of tokens that a step of a sequence gave with
// speculative decoding while the curve was measured, over a mix of its classes:
// all their tokens / all their steps. It is NaN when no class of the mix tells.
func (c *Curve) TokensPerStep(m capacity.Mix) float64 {
	var tokens, steps float64
	for _, share := range m.Classes {
		k := c.class(share.Name)
		if k == nil || !(share.Share > 0) || !(k.SpeculativeTokensPerStep >= 1) {
			continue
		}
		tokens += share.Share * k.GenerationMean
		steps += share.Share * k.GenerationMean / k.SpeculativeTokensPerStep
	}
	return tokens / steps
}
