package probe

import (
	"strconv"
	"unicode/utf8"

	"headroom_exporter/probe/workload"
)

// Dialect is which request members the engine takes. Engines refuse or ignore
// what they do not know, so Negotiate finds it out.
type Dialect struct {
	// PromptIDs: a completions prompt may be token ids.
	PromptIDs bool `json:"prompt_ids"`
	// ExactLength: min_tokens and ignore_eos are taken, so that answers have the length asked for.
	ExactLength bool `json:"exact_length"`
	// TokenIDs: return_token_ids is taken, so that every chunk says how many tokens it carries.
	TokenIDs bool `json:"token_ids"`
	// Usage: the last chunk tells the usage (stream_options.include_usage).
	Usage bool `json:"usage"`
	// ContinuousUsage: every chunk tells the usage so far.
	ContinuousUsage bool `json:"continuous_usage"`
	// CacheSalt: cache_salt is taken.
	CacheSalt bool `json:"cache_salt"`
}

// appendBody appends the JSON of a request.
func appendBody(b []byte, model string, d Dialect, r *workload.Request) []byte {
	b = append(b, `{"model":`...)
	b = appendString(b, model)
	switch {
	case r.Chat:
		b = append(b, `,"messages":[{"role":"user","content":`...)
		b = appendString(b, r.Text)
		b = append(b, `}]`...)
	case len(r.Tokens) > 0:
		b = append(b, `,"prompt":[`...)
		for i, id := range r.Tokens {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(id), 10)
		}
		b = append(b, ']')
	default:
		b = append(b, `,"prompt":`...)
		b = appendString(b, r.Text)
	}
	b = append(b, `,"max_tokens":`...)
	b = strconv.AppendInt(b, int64(r.MaxTokens), 10)
	if d.ExactLength && r.IgnoreEOS {
		b = append(b, `,"min_tokens":`...)
		b = strconv.AppendInt(b, int64(r.MaxTokens), 10)
		b = append(b, `,"ignore_eos":true`...)
	}
	b = append(b, `,"temperature":0,"stream":true`...)
	if d.Usage {
		b = append(b, `,"stream_options":{"include_usage":true`...)
		if d.ContinuousUsage {
			b = append(b, `,"continuous_usage_stats":true`...)
		}
		b = append(b, '}')
	}
	if d.TokenIDs {
		b = append(b, `,"return_token_ids":true`...)
	}
	if d.CacheSalt && r.CacheSalt != "" {
		b = append(b, `,"cache_salt":`...)
		b = appendString(b, r.CacheSalt)
	}
	return append(b, '}')
}

const hexDigits = "0123456789abcdef"

// appendString appends a JSON string.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ':
			b = append(b, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
