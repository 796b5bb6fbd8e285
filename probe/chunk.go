package probe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// unknown marks a count that the server did not give.
const unknown = -1

// chunk is what one streamed JSON object says about progress.
type chunk struct {
	// choices is how many choices the object holds.
	choices int
	// text, reasoning and tool tell that some choice brings visible text, text
	// of the model's reasoning, or a part of a tool call.
	text, reasoning, tool bool
	// tokenIDs is how many token ids the choices bring; unknown when none was given.
	tokenIDs int
	// finish is the finish reason, empty until there is one.
	finish finishReason
	// promptTokens, completionTokens and cachedTokens are the usage; unknown without.
	promptTokens, completionTokens, cachedTokens int
	// failure is the server's error, as JSON; nil without. It aliases the event.
	failure []byte
}

// finishReason is why a choice ended, as far as it matters here.
type finishReason uint8

const (
	finishNone finishReason = iota
	finishLength
	finishOther
)

// visible tells that the chunk carries at least one token for sure.
func (c *chunk) visible() bool { return c.text || c.reasoning || c.tool || c.tokenIDs > 0 }

// parseChunk reads a chunk of a completions or chat stream. What the short
// way does not understand goes through encoding/json, which decides.
func parseChunk(data []byte, c *chunk) error {
	*c = chunk{tokenIDs: unknown, promptTokens: unknown, completionTokens: unknown, cachedTokens: unknown}
	s := scanner{b: data}
	if s.chunk(c) && s.end() {
		return nil
	}
	return parseChunkSlowly(data, c)
}

// slowChunk has the members that parseChunk reads. Members whose shape varies
// between servers are raw.
type slowChunk struct {
	Choices []struct {
		Text         json.RawMessage `json:"text"`
		Delta        json.RawMessage `json:"delta"`
		TokenIDs     json.RawMessage `json:"token_ids"`
		FinishReason json.RawMessage `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens        *int `json:"prompt_tokens"`
		CompletionTokens    *int `json:"completion_tokens"`
		PromptTokensDetails *struct {
			CachedTokens *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type slowDelta struct {
	Content          json.RawMessage `json:"content"`
	Reasoning        json.RawMessage `json:"reasoning"`
	ReasoningContent json.RawMessage `json:"reasoning_content"`
	ToolCalls        json.RawMessage `json:"tool_calls"`
	FunctionCall     json.RawMessage `json:"function_call"`
	TokenIDs         json.RawMessage `json:"token_ids"`
}

func parseChunkSlowly(data []byte, c *chunk) error {
	*c = chunk{tokenIDs: unknown, promptTokens: unknown, completionTokens: unknown, cachedTokens: unknown}
	if trimmed := bytes.TrimSpace(data); len(trimmed) == 0 || trimmed[0] != '{' {
		return errors.New("a chunk is no JSON object")
	}
	var s slowChunk
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("reading a chunk: %w", err)
	}
	c.choices = len(s.Choices)
	for _, choice := range s.Choices {
		c.text = c.text || filled(choice.Text)
		if present(choice.Delta) {
			var d slowDelta
			if err := json.Unmarshal(choice.Delta, &d); err != nil {
				return fmt.Errorf("reading a chunk's delta: %w", err)
			}
			c.text = c.text || filled(d.Content)
			c.reasoning = c.reasoning || filled(d.Reasoning) || filled(d.ReasoningContent)
			c.tool = c.tool || filled(d.ToolCalls) || filled(d.FunctionCall)
			c.countIDs(d.TokenIDs)
		}
		c.countIDs(choice.TokenIDs)
		if present(choice.FinishReason) {
			c.finish = finishOther
			if string(choice.FinishReason) == `"length"` {
				c.finish = finishLength
			}
		}
	}
	if u := s.Usage; u != nil {
		c.promptTokens, c.completionTokens = count(u.PromptTokens), count(u.CompletionTokens)
		if u.PromptTokensDetails != nil {
			c.cachedTokens = count(u.PromptTokensDetails.CachedTokens)
		}
	}
	if present(s.Error) {
		c.failure = s.Error
	}
	return nil
}

func (c *chunk) countIDs(raw json.RawMessage) {
	if !present(raw) {
		return
	}
	var ids []json.RawMessage
	if json.Unmarshal(raw, &ids) == nil {
		c.tokenIDs = max(c.tokenIDs, 0) + len(ids)
	}
}

// present tells that a member is there and not null.
func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// filled tells that a member is there and neither null nor empty.
func filled(raw json.RawMessage) bool {
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", `""`, "[]", "{}":
		return false
	}
	return true
}

func count(n *int) int {
	if n == nil || *n < 0 {
		return unknown
	}
	return *n
}
