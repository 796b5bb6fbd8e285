package capacity

import "math"

// UsableTokenSlots is the share of KV cache tokens counted as capacity: at
// 1.0 the engine preempts, and peaks run above the mean.
const UsableTokenSlots = 0.90

// PreemptionLimit is the share of finished requests that may have been
// preempted before the KV cache counts as full; a few are normal at the knee.
const PreemptionLimit = 0.01

// MinQueueBudgetShare is the smallest share of the time-to-first-token SLO
// that is left to the queue, however long prefill takes: a budget of nothing
// would make one waiting request read as infinite load.
const MinQueueBudgetShare = 0.1

// Operation is what is known of one replica's work over the last minutes.
// Tokens are counted in tokens, rates per second, times in seconds; NaN is
// unknown.
type Operation struct {
	RequestsRunning, SequenceSlots float64
	// TokenSlotUsage is the mean share of KV cache in use, 0..1.
	TokenSlotUsage float64
	// Preemptions and RequestsFinished over the same window.
	Preemptions, RequestsFinished float64
	// ComputedPromptTokens is the rate at which prompt tokens are computed.
	ComputedPromptTokens float64
	// InterTokenLatency is the mean, which is the mean step time while anything decodes.
	InterTokenLatency float64
	// BatchedTokens is max_num_batched_tokens.
	BatchedTokens float64
	// Backlog is how long the engine needs to admit what waits.
	Backlog float64
	// QueueBudget is the part of the time-to-first-token SLO that the queue may use.
	QueueBudget float64
}

// LoadRatios returns the load ratio of each constraint that needs no curve:
//
//	sequence_slots = running / max_num_seqs
//	token_slots    = mean KV usage / 0.90; at least 1 once more than 1 % of
//	                 the finished requests were preempted and while work runs
//	token_budget   = (computed prompt tokens/s * inter-token latency + running) / max_num_batched_tokens
//	queue          = backlog / (TTFT SLO - mean prefill time)
func (o Operation) LoadRatios() LoadRatios {
	r := UnknownLoadRatios()
	r[SequenceSlots] = ratio(o.RequestsRunning, o.SequenceSlots)
	r[TokenSlots] = o.TokenSlotUsage / UsableTokenSlots
	if o.RequestsRunning > 0 && o.Preemptions > 0 && o.Preemptions > PreemptionLimit*o.RequestsFinished && !(r[TokenSlots] >= 1) {
		r[TokenSlots] = 1
	}
	promptTokensPerStep := o.ComputedPromptTokens * o.InterTokenLatency
	if o.ComputedPromptTokens == 0 {
		promptTokensPerStep = 0
	}
	r[TokenBudget] = ratio(promptTokensPerStep+o.RequestsRunning, o.BatchedTokens)
	r[Queue] = ratio(o.Backlog, o.QueueBudget)
	return r
}

// QueueBudget returns the seconds of the time-to-first-token SLO that are
// left to the queue after the mean prefill time; a prefill time that is not
// known counts as none.
func QueueBudget(ttftSLO, prefillTime float64) float64 {
	if math.IsNaN(prefillTime) {
		prefillTime = 0
	}
	return math.Max(ttftSLO-prefillTime, MinQueueBudgetShare*ttftSLO)
}

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

// AtMost is what is left per second, bounded; what is unknown stays so.
func (l Left) AtMost(rate float64) Left {
	l.RequestsPerSecond = math.Min(l.RequestsPerSecond, rate)
	l.PromptTokensPerSecond = math.Min(l.PromptTokensPerSecond, rate)
	l.GenerationTokensPerSecond = math.Min(l.GenerationTokensPerSecond, rate)
	return l
}

// ScaleRate returns how much a rate can grow when the replica is at
// loadRatio and load grows in proportion: rate * (1/loadRatio - 1). Without
// traffic or load there is no mix to scale, and the answer is NaN.
func ScaleRate(rate, loadRatio float64) float64 {
	if !(rate > 0) || !(loadRatio > 0) {
		return math.NaN()
	}
	return rate * (1/loadRatio - 1)
}

// SequenceSlotsLeft returns slots not in use.
func SequenceSlotsLeft(used, total float64) float64 { return total - used }

// TokenSlotsLeft returns usable token slots not in use.
func TokenSlotsLeft(used, total float64) float64 { return UsableTokenSlots*total - used }

// Occupancy returns used / total; NaN when either is unknown or total is not positive.
func Occupancy(used, total float64) float64 { return ratio(used, total) }

func ratio(a, b float64) float64 {
	if !(b > 0) {
		return math.NaN()
	}
	return a / b
}
