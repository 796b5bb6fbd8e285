package capacity

import "math"

// UsableTokenSlots is the share of KV cache tokens counted as capacity: at
// 1.0 the engine preempts, and peaks run above the mean.
const UsableTokenSlots = 0.90

// Left is what a replica can still take, in each unit. Unknown is NaN,
// negative means too much is there already.
type Left struct {
	RequestsPerSecond, PromptTokensPerSecond, GenerationTokensPerSecond float64
	SequenceSlots, TokenSlots                                           float64
}

// UnknownLeft returns a Left of which nothing is known.
func UnknownLeft() Left {
	n := math.NaN()
	return Left{n, n, n, n, n}
}
