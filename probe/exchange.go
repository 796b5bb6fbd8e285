package probe

import "time"

// Outcome is how a request ended. The names are those of the records.
type Outcome string

// The outcomes.
const (
	OK Outcome = "ok"
	// HTTPError: no answer, or one with another status than 200.
	HTTPError Outcome = "http_error"
	// StreamError: the stream carries an error, cannot be read, or has no token.
	StreamError Outcome = "stream_error"
	// Timeout: the request's or the idle stream's deadline passed.
	Timeout Outcome = "timeout"
	// Cut: the stream ended before its end mark.
	Cut Outcome = "cut"
	// LengthMismatch: another number of tokens than was asked for, or than the usage says.
	LengthMismatch Outcome = "length_mismatch"
	// Cancelled by the probe itself: censored, no failure of the engine.
	Cancelled Outcome = "cancelled"
)

// Outcomes lists every outcome in the order in which they are shown.
var Outcomes = []Outcome{OK, HTTPError, StreamError, Timeout, Cut, LengthMismatch, Cancelled}

// Never stands for a moment that did not come.
const Never time.Duration = -1

// Gap is the time between two arrivals of tokens in one stream. Events that
// one read brought are one arrival: nobody can tell them apart.
type Gap struct {
	Length time.Duration
	// Events that arrived at the end of the gap.
	Events int
	// Tokens they carry; unknown (-1) when the server did not say.
	Tokens int
}

// Exchange is what happened to one request. Moments are offsets from the
// client's epoch on the monotonic clock, or Never.
type Exchange struct {
	// Sent is when the request's first byte was written.
	Sent time.Duration
	// Headers is when the response's headers were read.
	Headers time.Duration
	// First is the first event that shows a token, FirstOutput the first whose
	// token is no reasoning, Last the last event with a token.
	First, FirstOutput, Last time.Duration
	// End is when the stream was closed, or the request given up.
	End time.Duration
	// Connect is how long the request waited for a connection; Reused tells
	// that one was there already.
	Connect time.Duration
	Reused  bool

	// PromptTokens and CompletionTokens are as the usage says, else as
	// TokensFrom says; unknown is -1. CachedTokens is a part of PromptTokens.
	PromptTokens, CompletionTokens, CachedTokens int
	// TokensFrom is usage, token_ids, continuous_usage or finish_reason; empty when unknown.
	TokensFrom string
	// Chunks is how many events had at least one choice, Arrivals how many
	// moments brought tokens.
	Chunks, Arrivals int
	// FirstTokens is what the first arrival carried; unknown is -1.
	FirstTokens, FirstEvents int
	// TokenEvents is how many events showed tokens.
	TokenEvents int
	// Gaps between arrivals; the slice is reused by the next exchange.
	Gaps []Gap

	Outcome Outcome
	// Status is the HTTP status, 0 without an answer.
	Status int
	// Error says what went wrong; empty when nothing did.
	Error string
	// OtherModel is the model that the answer names, where that is not the one asked for.
	OtherModel string
	// FinishLength tells that the engine ended the answer at max_tokens.
	FinishLength bool
}

// reset makes an exchange that has not begun.
func (x *Exchange) reset() {
	*x = Exchange{
		Sent: Never, Headers: Never, First: Never, FirstOutput: Never, Last: Never, End: Never,
		PromptTokens: unknown, CompletionTokens: unknown, CachedTokens: unknown, FirstTokens: unknown,
		Gaps: x.Gaps[:0],
	}
}

// tokensPerEvent is how many tokens an event carries on average; 1 when that
// is not known.
func (x *Exchange) tokensPerEvent() float64 {
	if x.CompletionTokens <= 0 || x.TokenEvents == 0 {
		return 1
	}
	return float64(x.CompletionTokens) / float64(x.TokenEvents)
}

// TPOT is the time per output token after the first arrival in seconds:
// (last - first) / (tokens - tokens of the first arrival). It is not known
// (false) when nothing came after the first arrival or tokens were not counted.
func (x *Exchange) TPOT() (float64, bool) {
	if x.CompletionTokens < 2 || x.Last <= x.First || x.First < 0 {
		return 0, false
	}
	first := float64(x.FirstTokens)
	if x.FirstTokens < 0 {
		first = float64(x.FirstEvents) * x.tokensPerEvent()
	}
	rest := float64(x.CompletionTokens) - first
	if rest <= 0 {
		return 0, false
	}
	return (x.Last - x.First).Seconds() / rest, true
}

// weight is how many tokens a gap stands for.
func (x *Exchange) weight(g Gap) float64 {
	if g.Tokens >= 0 {
		return float64(g.Tokens)
	}
	return float64(g.Events) * x.tokensPerEvent()
}

// ITL is the mean time between tokens over all gaps, in seconds.
func (x *Exchange) ITL() (float64, bool) {
	length, tokens := 0.0, 0.0
	for _, g := range x.Gaps {
		length += g.Length.Seconds()
		tokens += x.weight(g)
	}
	return length / tokens, tokens > 0
}

// LongestGap is the longest time between two arrivals; 0 without any.
func (x *Exchange) LongestGap() time.Duration {
	longest := time.Duration(0)
	for _, g := range x.Gaps {
		longest = max(longest, g.Length)
	}
	return longest
}
