// Package workload makes what the probe sends: classes of requests with their
// lengths, arrival times, sessions and prompts, from distributions or from a
// recorded trace. It sends nothing and has no clock: the same configuration
// and seed give the same requests, byte for byte.
package workload

import "time"

// Request is one request to be sent. A source makes neither Tokens nor Text:
// MakeTokens and MakeText fill them when the request is about to be sent, so
// that a source stays small and fast.
type Request struct {
	// Index counts the requests of the source from 0, in the order of Next.
	Index int
	// Class is the workload class. Tenant and Scenario come from a trace and may be empty.
	Class, Tenant, Scenario string
	// At is the planned offset from the start of the run. A source gives its
	// requests in the order of At; closed loop leaves it 0. For a later turn of
	// a session it is the earliest time, see ThinkTime.
	At time.Duration
	// PromptTokens is the length of the prompt in tokens, without what a chat template adds.
	PromptTokens int
	// Tokens are the prompt's token ids, filled by MakeTokens.
	Tokens []int
	// Text is the prompt as text, filled by MakeText.
	Text string
	// MaxTokens is how many tokens shall be generated.
	MaxTokens int
	// CacheSalt keeps the prefix cache of this run apart; empty sends none.
	CacheSalt string
	// SessionID names the session; empty for a request that stands alone.
	SessionID string
	// Turn counts the turns of a session from 0; Turns is how many it has, 0 when that is not known.
	Turn, Turns int
	// ThinkTime is how long after the end of the turn before this one is due; 0 for the first.
	ThinkTime time.Duration
	// PrefixTokens is how many leading tokens of the prompt may be shared with
	// other requests or earlier turns by design.
	PrefixTokens int
	// Chat sends the request to the chat endpoint.
	Chat bool
	// IgnoreEOS asks for exactly MaxTokens tokens.
	IgnoreEOS bool

	content content
}

// Source gives the requests of a run in order. It is deterministic, makes
// each request when it is asked for, and is not safe for concurrent use.
type Source interface {
	// Next returns the next request, or false after the last one.
	Next() (Request, bool)
}
