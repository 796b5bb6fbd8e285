// Package engine reads an inference engine's metrics page and turns it into
// the same signals whatever engine wrote it.
package engine

import "time"

// Type is the kind of engine behind a metrics page.
type Type string

// The engine types.
const (
	TypeUnknown  Type = ""
	TypeVLLM     Type = "vllm"
	TypeRay      Type = "ray"
	TypeSGLang   Type = "sglang"
	TypeTRTLLM   Type = "trtllm"
	TypeTriton   Type = "triton"
	TypeTGI      Type = "tgi"
	TypeLlamaCpp Type = "llamacpp"
)

// State is how far the last reading can be trusted. Headroom is known only
// in StateOK and StateIdle.
type State string

// The states.
const (
	// StateOK: fresh reading, the engine works.
	StateOK State = "ok"
	// StateIdle: fresh reading, nothing in the engine and no counter moves.
	StateIdle State = "idle"
	// StateStale: the engine answers, but no reading of it can be trusted:
	// its gauges are above zero while every counter stands still, or its
	// metrics page fails while its health check passes.
	StateStale State = "stale"
	// StateDisabled: the page parses, but holds none of the engine's families.
	StateDisabled State = "disabled"
	// StateAsleep: the engine's sleep mode gave its memory back.
	StateAsleep State = "asleep"
	// StateLoading: the engine answers 503 and has not been ready since it started.
	StateLoading State = "loading"
	// StateDown: no answer.
	StateDown State = "down"
)

// States lists every state in the order in which it is exported.
var States = []State{StateOK, StateIdle, StateStale, StateDisabled, StateAsleep, StateLoading, StateDown}

// Known tells whether numbers derived from a reading in this state may be published.
func (s State) Known() bool { return s == StateOK || s == StateIdle }

// Reading is one good metrics page, normalised.
type Reading struct {
	// At is when the whole page had arrived.
	At time.Time
	// Ranks are sorted by model name, then rank.
	Ranks []Rank
	// Series is the number of samples on the page.
	Series int
}

// Observation is the outcome of one poll.
type Observation struct {
	// At is when the poll ended.
	At time.Time
	// State and Reason of the engine as a whole; Reason is a short code such
	// as connection_refused, timeout, http_500, unauthorized, truncated,
	// not_metrics, gauges_frozen; empty in ok and idle.
	State  State
	Reason string
	// Reading is the newest good reading, nil before the first. Its ranks' states are as of
	// then: nothing derived from it may be published unless State is known too.
	Reading *Reading
	// Fresh tells whether Reading is of this poll.
	Fresh bool
	// Type, Version and MaxModelLen are empty or 0 until known.
	Type        Type
	Version     string
	MaxModelLen int
	// Parallelism of the engine, where it could be discovered.
	Parallelism Parallelism
	// Settings that the engine was started with, as far as they can be seen.
	Settings Settings
	// Available tells for each name of a Signal or HistogramSignal whether the newest good page
	// carried it, for any rank; nil before the first. It is shared: do not write to it.
	Available map[string]bool
	// Err is why this poll gave no reading; nil when it did.
	Err error
	// Duration of the poll's request for the metrics page.
	Duration time.Duration
	Stats    Stats
}

// Parallelism is over how many devices the engine is split; 0 is unknown.
type Parallelism struct {
	Tensor, Pipeline, Data, DecodeContext int
}

// Stats are counters over the life of a Poller.
type Stats struct {
	Polls uint64
	// Failures counts failed polls by reason. It is shared: do not write to it.
	Failures map[string]uint64
	// DuplicateSamples counts samples that appeared more than once on a page.
	DuplicateSamples uint64
	// CounterResets counts resets of the engine's counters, once per rank and restart.
	CounterResets uint64
	// RejectedSamples counts values that cannot be, such as a usage above 1.
	RejectedSamples uint64
}
