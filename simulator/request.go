// Package simulator is a continuous-batching inference engine without a
// model: vLLM V1's scheduler over a published step-time model, behind an
// OpenAI API with vLLM's metrics. Its presets are stylised, not measured.
package simulator

// FinishReason is why a request ended, as in vLLM's finished_reason label.
type FinishReason string

// The finish reasons that the simulator gives.
const (
	FinishLength FinishReason = "length"
	FinishStop   FinishReason = "stop"
	FinishAbort  FinishReason = "abort"
)

// Request is one sequence. Times are simulated seconds since the engine's start.
// The fields below the line are the scheduler's; read them from callbacks or after the end only.
type Request struct {
	ID string
	// Prompt is the token ids; when nil, PromptLength tokens unlike any other request's are taken.
	Prompt       []int
	PromptLength int
	// OutputLength is how many tokens will be generated.
	OutputLength int
	// MaxTokens is what the caller asked for (vLLM's params_max_tokens), at least OutputLength.
	MaxTokens int
	// FinishReason that applies when OutputLength tokens are out: length or stop.
	FinishReason FinishReason
	// CacheSalt keeps equal prefixes of different salts apart.
	CacheSalt string
	// OnToken is called at the end of the step that made token number index
	// (0-based), in the stepping goroutine; it must not block. finished is
	// empty but for the last token.
	OnToken func(index int, at float64, finished FinishReason)

	// Queued is when the front end handed the request to the scheduler; vLLM's queue time runs from there.
	Arrival, Queued, FirstScheduled, FirstToken, LastToken, End float64
	// CachedTokens is how many prompt tokens came from the prefix cache.
	CachedTokens int
	Preemptions  int

	schedulerState
}

// StepStats is what one engine step did, as vLLM's scheduler would report at its end.
type StepStats struct {
	// Start and Duration in simulated seconds.
	Start, Duration float64
	// Running and Waiting at the end of the step; Deferred is the part of Waiting held back for other than capacity.
	Running, Waiting, Deferred int
	// KVCacheUsage is 1 - free/(blocks-1): one block is never given out.
	KVCacheUsage float64
	// PrefillTokens and DecodeTokens scheduled in the step.
	PrefillTokens, DecodeTokens int
	// PrefillTokensRecomputed is the part of PrefillTokens that a preemption had thrown away.
	PrefillTokensRecomputed int
	Preemptions             int
	// PrefixQueries and PrefixHits in tokens, counted at admission.
	PrefixQueries, PrefixHits int
	// Flops, ReadBytes and WriteBytes per GPU of this step by the step-time model.
	Flops, ReadBytes, WriteBytes float64
}

// Observer is told what a rank does, in the stepping goroutine, in order.
// It must not block. This is what the metrics are made of.
type Observer interface {
	StepDone(StepStats)
	// TokenDone is called for every token; index 0 is the first. previous is the
	// time of the token before (the arrival for the first).
	TokenDone(r *Request, index int, at, previous float64)
	// RequestDone is called when all tokens are out.
	RequestDone(r *Request)
	// RequestAborted is called when a client went away before that.
	RequestAborted(r *Request)
}
