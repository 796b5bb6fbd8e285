package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"headroom_exporter/probe/workload"
)

var doneMark = []byte("[DONE]")

// progress is what the chunks of one stream have said so far.
type progress struct {
	done bool
	// counted are tokens counted by ids, byUsage by the usage of every chunk.
	counted, byUsage int
	ids              bool
	// everyUsage: each chunk with a choice had its usage.
	everyUsage bool
	usage      chunk
	chunk      chunk
}

// read reads the stream to its end. arrived tells when what was read last had come.
func (c *Client) read(ctx context.Context, s *stream, body io.Reader, arrived func() time.Duration, x *Exchange) {
	s.events.reset(body, arrived)
	p := progress{everyUsage: true}
	p.usage.promptTokens, p.usage.completionTokens, p.usage.cachedTokens = unknown, unknown, unknown
	for {
		e, err := s.events.next()
		if err != nil {
			x.ended(ctx, &p, err)
			break
		}
		s.flight.event(e.at)
		if p.done {
			continue // nothing counts after the end mark
		}
		if bytes.Equal(bytes.TrimSpace(e.data), doneMark) {
			p.done = true
			s.flight.done.Store(true)
			continue
		}
		if err := parseChunk(e.data, &p.chunk); err != nil {
			if e.unfinished {
				x.Outcome, x.Error = Cut, "the stream ended inside an event"
			} else {
				x.Outcome, x.Error = StreamError, err.Error()
			}
			break
		}
		if p.chunk.failure != nil || string(e.name) == "error" {
			x.Outcome, x.Error = StreamError, "the stream brought an error: "+failureText(e.data)
			break
		}
		if x.Chunks == 0 && p.chunk.choices > 0 {
			x.OtherModel = c.otherModel(e.data)
		}
		x.take(&p, e.at, s)
	}
	x.count(&p)
}

// otherModel returns the model that a chunk names, if that is not the one asked for.
func (c *Client) otherModel(data []byte) string {
	if bytes.Contains(data, c.modelMember) {
		return ""
	}
	var named struct {
		Model string `json:"model"`
	}
	if json.Unmarshal(data, &named) != nil || named.Model == c.config.Model {
		return ""
	}
	return named.Model
}

// take adds one chunk.
func (x *Exchange) take(p *progress, at time.Duration, s *stream) {
	c := &p.chunk
	if c.promptTokens >= 0 {
		p.usage.promptTokens = c.promptTokens
	}
	if c.cachedTokens >= 0 {
		p.usage.cachedTokens = c.cachedTokens
	}
	before := max(p.usage.completionTokens, 0)
	if c.completionTokens >= 0 {
		p.usage.completionTokens = c.completionTokens
	}
	if c.choices == 0 {
		return
	}
	x.Chunks++
	if c.finish == finishLength {
		x.FinishLength = true
	}
	p.everyUsage = p.everyUsage && c.completionTokens >= 0
	tokens := unknown
	switch {
	case c.tokenIDs >= 0:
		tokens = c.tokenIDs
		p.ids = true
		p.counted += c.tokenIDs
	case p.everyUsage:
		tokens = c.completionTokens - before
		p.byUsage += max(tokens, 0)
	}
	if tokens == 0 || tokens < 0 && !c.visible() {
		return
	}
	x.TokenEvents++
	s.flight.token(at)
	if x.First < 0 {
		x.First, x.Last = at, at
		x.FirstTokens, x.FirstEvents = tokens, 1
		x.Arrivals = 1
	} else {
		x.arrive(at, tokens)
	}
	if x.FirstOutput < 0 && (c.text || c.tool || !c.reasoning) {
		x.FirstOutput = at
	}
}

// arrive adds an event with tokens to the arrival of its moment.
func (x *Exchange) arrive(at time.Duration, tokens int) {
	switch {
	case at > x.Last:
		x.Gaps = append(x.Gaps, Gap{Length: at - x.Last, Events: 1, Tokens: tokens})
		x.Arrivals++
		x.Last = at
	case len(x.Gaps) == 0:
		x.FirstEvents++
		x.FirstTokens = sum(x.FirstTokens, tokens)
	default:
		g := &x.Gaps[len(x.Gaps)-1]
		g.Events++
		g.Tokens = sum(g.Tokens, tokens)
	}
}

// sum of two counts; unknown when one of them is.
func sum(a, b int) int {
	if a < 0 || b < 0 {
		return unknown
	}
	return a + b
}

// ended says why a stream ended.
func (x *Exchange) ended(ctx context.Context, p *progress, err error) {
	switch {
	case p.done:
		// What happens to the connection after the end mark is no matter.
	case err == io.EOF:
		x.Outcome, x.Error = Cut, "the stream ended without [DONE]"
		if x.Chunks == 0 {
			x.Error = "the stream ended without a chunk"
		}
	case errors.Is(err, errEventTooLarge):
		x.Outcome, x.Error = StreamError, err.Error()
	default:
		x.fail(ctx, Cut, fmt.Errorf("the stream broke off: %w", err))
	}
}

// count settles how many tokens there were, by the best witness.
func (x *Exchange) count(p *progress) {
	x.PromptTokens, x.CachedTokens = p.usage.promptTokens, p.usage.cachedTokens
	switch {
	case p.usage.completionTokens >= 0 && (p.done || p.everyUsage):
		x.CompletionTokens, x.TokensFrom = p.usage.completionTokens, "usage"
		if p.ids && p.counted != x.CompletionTokens && x.Outcome == "" {
			x.Outcome = LengthMismatch
			x.Error = fmt.Sprintf("the usage says %d tokens, the chunks carried %d", x.CompletionTokens, p.counted)
		}
	case p.ids:
		x.CompletionTokens, x.TokensFrom = p.counted, "token_ids"
	}
}

// finish settles what only the request can tell: whether the answer is as asked.
func (c *Client) finish(s *stream, r *workload.Request, x *Exchange) {
	if x.CompletionTokens < 0 && x.FinishLength {
		// The engine says that it stopped at max_tokens.
		x.CompletionTokens, x.TokensFrom = r.MaxTokens, "finish_reason"
	}
	if x.Outcome != "" {
		return
	}
	switch {
	case x.First < 0:
		x.Outcome = StreamError
		x.Error = fmt.Sprintf("no token in an answer of %d chunks", x.Chunks)
	case r.IgnoreEOS && x.CompletionTokens >= 0 && x.CompletionTokens != r.MaxTokens:
		x.Outcome = LengthMismatch
		x.Error = fmt.Sprintf("%d tokens were asked for, %d came", r.MaxTokens, x.CompletionTokens)
	case s.promptIDs > 0 && x.PromptTokens >= 0 && x.PromptTokens != s.promptIDs:
		x.Outcome = LengthMismatch
		x.Error = fmt.Sprintf("the prompt had %d tokens, the engine counted %d", s.promptIDs, x.PromptTokens)
	default:
		x.Outcome = OK
	}
}

// failureText is the message in a server's error, on one line and not too long.
func failureText(b []byte) string {
	var answer struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	text := string(b)
	if json.Unmarshal(b, &answer) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		switch {
		case json.Unmarshal(answer.Error, &inner) == nil && inner.Message != "":
			text = inner.Message
		case len(answer.Error) > 0:
			text = string(answer.Error)
		case answer.Message != "":
			text = answer.Message
		case len(answer.Detail) > 0:
			text = string(answer.Detail)
		}
	}
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "\uFFFD")), " ")
	const longest = 300
	if len(text) > longest {
		for text = text[:longest]; !utf8.ValidString(text); text = text[:len(text)-1] {
		}
		text += "…"
	}
	return text
}
