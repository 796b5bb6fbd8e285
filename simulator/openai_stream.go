package simulator

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// stream writes an answer as server-sent events, chunk by chunk, with vLLM's
// members in vLLM's order.
type stream struct {
	request *generationRequest
	// head of every chunk, up to the choices; fingerprint is the member at the end of the last one.
	head, fingerprint []byte
	out               []byte
	completionTokens  int
	started           []bool
}

var streamBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}

// stream sends every token as it is made. It ends early, without error to
// report, when the client went away.
func (a *api) stream(ctx context.Context, w http.ResponseWriter, g *generationRequest, gen *generation, id string, created int64) {
	object := "text_completion"
	if g.chat {
		object = "chat.completion.chunk"
	}
	buffer := streamBuffers.Get().(*[]byte)
	defer streamBuffers.Put(buffer)
	s := &stream{
		request:     g,
		fingerprint: a.fingerprintMember,
		out:         *buffer,
		started:     make([]bool, len(g.prompts)),
	}
	s.head = append(s.head, `data: {"id":"`...)
	s.head = append(s.head, id...)
	s.head = append(s.head, `","object":"`+object+`","created":`...)
	s.head = strconv.AppendInt(s.head, created, 10)
	s.head = append(s.head, `,"model":`...)
	s.head = append(s.head, a.modelJSON...)
	s.head = append(s.head, `,"choices":[`...)

	header := w.Header()
	header.Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	flusher, _ := w.(http.Flusher)
	err := s.run(ctx, w, flusher, gen)
	*buffer = s.out[:0]
	if err != nil {
		gen.abort()
	}
}

func (s *stream) run(ctx context.Context, w io.Writer, flusher http.Flusher, gen *generation) error {
	for open := len(gen.sequences); open > 0; {
		if err := gen.wait(ctx); err != nil {
			return err
		}
		for _, q := range gen.sequences {
			if q.ended != "" {
				continue
			}
			from, to := gen.take(q)
			if from == to {
				continue
			}
			s.out = s.out[:0]
			s.chunk(q, from, to)
			if q.ended != "" {
				if open--; open == 0 {
					s.finish()
				}
			}
			if _, err := w.Write(s.out); err != nil {
				return err
			}
			if flusher != nil {
				flusher.Flush()
			}
		}
	}
	return nil
}

// chunk appends the event with a range of tokens, after the one with the role
// that begins a chat.
func (s *stream) chunk(q *sequence, from, to int) {
	s.completionTokens += to - from
	first := !s.started[q.index]
	s.started[q.index] = true
	prompt := q.request.Prompt
	if s.request.chat && first {
		s.roleChunk(q)
	}
	s.text(s.head...)
	s.lit(`{"index":`)
	s.integer(q.index)
	if s.request.chat {
		s.lit(`,"delta":{"content":"`)
	} else {
		s.lit(`,"text":"`)
	}
	s.escaped(q, from, to)
	if s.request.chat {
		s.lit(`"},"logprobs":null,"finish_reason":`)
		s.finishReason(q)
		if q.ended != "" {
			s.lit(`,"stop_reason":null`)
		}
	} else {
		s.lit(`","logprobs":null,"finish_reason":`)
		s.finishReason(q)
		s.lit(`,"stop_reason":null,"prompt_token_ids":`)
		if s.request.returnTokenIDs && first {
			s.tokens(prompt)
		} else {
			s.lit(`null`)
		}
	}
	s.lit(`,"token_ids":`)
	if s.request.returnTokenIDs {
		s.lit(`[`)
		for i := from; i < to; i++ {
			if i > from {
				s.lit(`,`)
			}
			s.integer(q.token(i))
		}
		s.lit(`]`)
	} else {
		s.lit(`null`)
	}
	s.lit(`}]`)
	if s.request.continuousUsage {
		s.usage(len(prompt), to)
		if s.request.chat {
			s.out = append(s.out[:len(s.out)-1], `,"completion_tokens_details":null}`...)
		}
	} else if q.ended != "" && !s.request.includeUsage {
		s.text(s.fingerprint...)
	}
	s.lit("}\n\n")
}

func (s *stream) roleChunk(q *sequence) {
	s.text(s.head...)
	s.lit(`{"index":`)
	s.integer(q.index)
	s.lit(`,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`)
	if s.request.continuousUsage {
		s.usage(len(q.request.Prompt), 0)
		s.out = append(s.out[:len(s.out)-1], `,"completion_tokens_details":null}`...)
	}
	s.lit(`,"prompt_token_ids":`)
	if s.request.returnTokenIDs {
		s.tokens(q.request.Prompt)
	} else {
		s.lit(`null`)
	}
	s.lit(`,"prompt_text":null}` + "\n\n")
}

// finish appends the chunk with the usage, where it was asked for, and the end mark.
func (s *stream) finish() {
	if s.request.includeUsage {
		total := 0
		for _, prompt := range s.request.prompts {
			total += len(prompt)
		}
		s.text(s.head...)
		s.lit(`]`)
		s.usage(total, s.completionTokens)
		s.text(s.fingerprint...)
		s.lit("}\n\n")
	}
	s.lit("data: [DONE]\n\n")
}

func (s *stream) usage(prompt, completion int) {
	s.lit(`,"usage":{"prompt_tokens":`)
	s.integer(prompt)
	s.lit(`,"total_tokens":`)
	s.integer(prompt + completion)
	s.lit(`,"completion_tokens":`)
	s.integer(completion)
	s.lit(`}`)
}

func (s *stream) finishReason(q *sequence) {
	if q.ended == "" {
		s.lit(`null`)
		return
	}
	s.lit(`"`)
	s.lit(string(q.ended))
	s.lit(`"`)
}

// escaped appends the text of a range of tokens inside a JSON string; of the
// printable characters two need an escape.
func (s *stream) escaped(q *sequence, from, to int) {
	for i := from; i < to; i++ {
		start := len(s.out)
		s.out = q.appendText(s.out, i, i+1)
		if len(s.out) > start && (s.out[start] == '"' || s.out[start] == '\\') {
			s.out = append(s.out, s.out[start])
			s.out[start] = '\\'
		}
	}
}

func (s *stream) tokens(ids []int) {
	s.lit(`[`)
	for i, id := range ids {
		if i > 0 {
			s.lit(`,`)
		}
		s.integer(id)
	}
	s.lit(`]`)
}

func (s *stream) lit(text string) { s.out = append(s.out, text...) }
func (s *stream) text(b ...byte)  { s.out = append(s.out, b...) }
func (s *stream) integer(n int)   { s.out = strconv.AppendInt(s.out, int64(n), 10) }
func jsonString(text string) []byte {
	b, _ := json.Marshal(text)
	return b
}
