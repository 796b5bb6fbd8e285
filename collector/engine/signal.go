package engine

import "math"

// Signal names one number that engines export, whatever each of them calls it.
type Signal int

// The signals. Gauges are as the engine last said; counters are cumulative
// and corrected for resets, so they never fall during the life of a Poller.
const (
	// RequestsRunning is the number of sequences admitted to the batch (gauge).
	RequestsRunning Signal = iota
	// RequestsWaiting is the number of requests in the engine's queue (gauge).
	RequestsWaiting
	// KVCacheUsage is the share of KV cache in use, 0..1 (gauge).
	KVCacheUsage
	// KVCacheTokens is the KV cache's capacity in tokens (gauge).
	KVCacheTokens
	// KVCacheTokensUsed is the KV cache in use in tokens: the engine's own figure or, without
	// one, its usage times the rank's TokenSlots (gauge).
	KVCacheTokensUsed
	// SequenceSlots is max_num_seqs, where a metric carries it (gauge).
	SequenceSlots
	// BatchedTokenLimit is max_num_batched_tokens, where a metric carries it (gauge).
	BatchedTokenLimit
	// Preemptions counts sequences thrown out of the batch to be recomputed.
	Preemptions
	// PromptTokens counts prompt tokens, cached ones included.
	PromptTokens
	// PromptTokensComputed counts the prompt tokens that were computed, not found in a cache.
	PromptTokensComputed
	// GenerationTokens counts generated tokens.
	GenerationTokens
	// RequestsFinished counts requests that ended with an answer, over all finish reasons.
	RequestsFinished
	// PrefixCacheQueries counts prompt tokens looked up in the prefix cache.
	PrefixCacheQueries
	// PrefixCacheHits counts prompt tokens found there.
	PrefixCacheHits
	// EngineSteps counts steps of the engine (forward passes).
	EngineSteps
	// EstimatedReadBytes is the engine's own estimate of bytes read from device memory, per GPU (counter).
	EstimatedReadBytes
	// EstimatedWriteBytes is the engine's own estimate of bytes written to device memory, per GPU (counter).
	EstimatedWriteBytes
	// SpeculativeDrafts counts drafts of speculative decoding, one a step of a sequence; moving means several tokens a step.
	SpeculativeDrafts
	// SpeculativeAccepted counts tokens of drafts that were accepted; each draft gives one token more, the model's own.
	SpeculativeAccepted
	// SpeculativeLength is the mean of tokens a step of a sequence gave lately, the model's own among them, as
	// an engine without the two counters says it; below 1 nothing was drafted (gauge).
	SpeculativeLength
	// PrefixCacheHitRate is hits / queries as an engine without the two counters says it, 0..1 (gauge).
	PrefixCacheHitRate
	// Awake is 1 while the engine holds its memory, 0 in sleep mode (gauge).
	Awake
	// LoRAAdapters is how many distinct LoRA adapters run now (gauge).
	LoRAAdapters
	// LoRASlots is how many distinct LoRA adapters may run at once (gauge).
	LoRASlots

	numSignals
)

var signalNames = [numSignals]string{
	"requests_running", "requests_waiting", "kv_cache_usage", "kv_cache_tokens", "kv_cache_tokens_used",
	"sequence_slots", "batched_token_limit", "preemptions", "prompt_tokens", "prompt_tokens_computed",
	"generation_tokens", "requests_finished", "prefix_cache_queries", "prefix_cache_hits", "engine_steps",
	"estimated_read_bytes", "estimated_write_bytes", "speculative_drafts", "speculative_accepted", "speculative_length", "prefix_cache_hit_rate", "awake",
	"lora_adapters", "lora_slots",
}

// String returns the signal's name as used in labels and in Observation.Available.
func (s Signal) String() string {
	if s < 0 || s >= numSignals {
		return "unknown"
	}
	return signalNames[s]
}

// HistogramSignal names one histogram that engines export.
type HistogramSignal int

// The histograms: latencies in seconds, lengths in tokens.
const (
	// TimeToFirstToken counts a request once, at its first token; requests cancelled later stay in it.
	TimeToFirstToken HistogramSignal = iota
	InterTokenLatency
	TimePerOutputToken
	E2ELatency
	QueueTime
	PrefillTime
	DecodeTime
	PromptLength
	GenerationLength

	numHistograms
)

var histogramNames = [numHistograms]string{
	"time_to_first_token", "inter_token_latency", "time_per_output_token", "e2e_latency", "queue_time",
	"prefill_time", "decode_time", "prompt_length", "generation_length",
}

// String returns the histogram's name as used in labels and in Observation.Available.
func (h HistogramSignal) String() string {
	if h < 0 || h >= numHistograms {
		return "unknown"
	}
	return histogramNames[h]
}

// Histogram is a cumulative histogram, corrected for resets like a counter. When the engine
// comes back with other bounds, what it had counted before stays in Count, Sum and the +Inf bucket only.
// It is shared between readings: do not write to it.
type Histogram struct {
	// Bounds are the upper bounds, ascending; the last is +Inf.
	Bounds []float64
	// Counts are cumulative, one per bound.
	Counts []float64
	Sum    float64
	Count  float64
}

// Limit is a limit of the engine and where its value comes from.
type Limit struct {
	// Value is NaN when unknown.
	Value float64
	// Source is one of flag, metric, blocks, server_info, cmdline, default; empty when unknown.
	Source string
}

// Known tells whether the limit has a usable value.
func (l Limit) Known() bool { return !math.IsNaN(l.Value) && l.Value > 0 }

// Rank is what one data-parallel rank of the engine said in one poll.
type Rank struct {
	// ModelName is the engine's served model name.
	ModelName string
	// Engine is the rank's label; "0" when the engine labels no ranks.
	Engine string
	// State is this rank's own freshness: ok, idle, stale or asleep.
	State State
	// Reason says in a few words why the state is neither ok nor idle.
	Reason string

	values     [numSignals]float64
	histograms [numHistograms]*Histogram

	// SequenceSlots is max_num_seqs of this rank.
	SequenceSlots Limit
	// BatchedTokens is max_num_batched_tokens of this rank.
	BatchedTokens Limit
	// TokenSlots is the KV cache of this rank in tokens.
	TokenSlots Limit

	// peakRunning is the most sequences seen running since the engine started.
	peakRunning float64
}

// Value returns a signal of the rank; NaN when the engine does not export it.
func (r *Rank) Value(s Signal) float64 { return r.values[s] }

// Histogram returns a histogram of the rank; nil when the engine does not export it.
func (r *Rank) Histogram(h HistogramSignal) *Histogram { return r.histograms[h] }
