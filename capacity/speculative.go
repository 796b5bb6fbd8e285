package capacity

import "math"

// TokensPerStep is the mean of tokens that a step of a sequence gives with
// speculative decoding: those of its draft that are accepted, and the model's own,
//
//	1 + accepted tokens / drafts
//
// as vLLM's log has it (vllm/v1/spec_decode/metrics.py). Without drafts it is not known.
func TokensPerStep(drafts, accepted float64) float64 {
	if !(drafts > 0) || !(accepted >= 0) {
		return math.NaN()
	}
	return 1 + accepted/drafts
}
