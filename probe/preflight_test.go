package probe

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// picky is an engine that refuses some request members, and token ids from a number on.
type picky struct {
	refuses []string
	// vocabulary is the first id that it does not have; 0 has all.
	vocabulary int
	// inStream refuses ids inside the stream, as vLLM does.
	inStream bool
	// textPrompts refuses prompts of token ids.
	textPrompts bool
	// countsTokens says token ids in chunks, or the usage so far, when asked.
	ids, continuous, usage bool
	models                 string
}

func (p picky) answer(w *events, q asked) error {
	if q.Path == "/v1/models" {
		models := p.models
		if models == "" {
			models = `{"id":"m","max_model_len":4096}`
		}
		w.status(http.StatusOK, `{"data":[`+models+`]}`)
		return nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(q.Body, &members); err != nil {
		return err
	}
	for name := range members {
		if slices.Contains(p.refuses, name) {
			w.status(http.StatusBadRequest, `{"error":{"message":"unknown member `+name+`"}}`)
			return nil
		}
	}
	prompt := 20
	var ids []int
	if json.Unmarshal(q.Prompt, &ids) == nil {
		if p.textPrompts {
			w.status(http.StatusUnprocessableEntity, `{"detail":"prompt must be a string"}`)
			return nil
		}
		if p.vocabulary > 0 && slices.Max(ids) >= p.vocabulary {
			if p.inStream {
				w.data(`{"error":{"message":"Token id %d is out of vocabulary"}}`, slices.Max(ids))
				w.done()
			} else {
				w.status(http.StatusBadRequest, `{"error":{"message":"out of vocabulary"}}`)
			}
			return nil
		}
		prompt = len(ids)
	} else {
		// A text has two tokens a word and three more.
		var text string
		_ = json.Unmarshal(q.Prompt, &text)
		if messages, ok := members["messages"]; ok {
			var m []struct{ Content string }
			_ = json.Unmarshal(messages, &m)
			text = m[0].Content
		}
		prompt = 3 + 2*len(strings.Fields(text))
	}
	var options struct {
		Continuous bool `json:"continuous_usage_stats"`
	}
	_ = json.Unmarshal(members["stream_options"], &options)
	_, wantsIDs := members["return_token_ids"]
	for i := range q.MaxTokens {
		choice := `{"index":0,"text":"x"`
		if _, chat := members["messages"]; chat {
			choice = `{"index":0,"delta":{"content":"x"}`
		}
		if p.ids && wantsIDs {
			choice += `,"token_ids":[7]`
		}
		usage := ""
		if p.continuous && options.Continuous {
			usage = `,"usage":{"prompt_tokens":` + itoa(prompt) + `,"completion_tokens":` + itoa(i+1) + `}`
		}
		w.data(`{"choices":[%s}]%s}`, choice, usage)
	}
	if _, asked := members["stream_options"]; asked && p.usage {
		w.usage(prompt, q.MaxTokens)
	}
	w.done()
	return nil
}

func itoa(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}

func TestPreflight(t *testing.T) {
	full := Dialect{PromptIDs: true, ExactLength: true, TokenIDs: true, Usage: true, CacheSalt: true}
	for _, test := range []struct {
		name   string
		engine picky
		chat   bool
		want   Dialect
		check  func(t *testing.T, f *Facts)
	}{
		{name: "vLLM", engine: picky{ids: true, usage: true, continuous: true}, want: full, check: func(t *testing.T, f *Facts) {
			if f.Model != "m" || f.MaxModelLen != 4096 || len(f.Notes) != 0 || f.Vocabulary.First != 1000 || f.Vocabulary.Count != 29000 {
				t.Errorf("%+v", f)
			}
		}},
		{
			name: "a small vocabulary", engine: picky{ids: true, usage: true, vocabulary: 320, inStream: true}, want: full,
			check: func(t *testing.T, f *Facts) {
				if v := f.Vocabulary; v.Count < 64 || v.First+v.Count > 320 {
					t.Errorf("vocabulary %+v", v)
				}
			},
		},
		{
			name: "OpenAI's members only", engine: picky{refuses: []string{"return_token_ids", "cache_salt", "min_tokens", "ignore_eos"}, usage: true},
			want: Dialect{PromptIDs: true, Usage: true},
			check: func(t *testing.T, f *Facts) {
				if notes := strings.Join(f.Notes, "\n"); !strings.Contains(notes, "cache_salt") || !strings.Contains(notes, "ignore_eos") {
					t.Errorf("notes %q", f.Notes)
				}
			},
		},
		{
			name: "usage so far instead of ids", engine: picky{usage: true, continuous: true},
			want: Dialect{PromptIDs: true, ExactLength: true, Usage: true, ContinuousUsage: true, CacheSalt: true},
		},
		{
			name: "texts only", engine: picky{textPrompts: true, ids: true, usage: true},
			want: Dialect{ExactLength: true, TokenIDs: true, Usage: true, CacheSalt: true},
			check: func(t *testing.T, f *Facts) {
				if f.Text == nil || f.Text.TokensPerWord != 2 || f.Text.Overhead != 3 {
					t.Errorf("text %+v", f.Text)
				}
			},
		},
		{
			name: "chat", chat: true, engine: picky{ids: true, usage: true},
			want: Dialect{ExactLength: true, TokenIDs: true, Usage: true, CacheSalt: true},
			check: func(t *testing.T, f *Facts) {
				if f.Text == nil || f.Text.TokensPerWord != 2 || f.Text.Overhead != 3 {
					t.Errorf("text %+v", f.Text)
				}
			},
		},
		{
			name: "no usage at all", engine: picky{ids: true}, want: full,
			check: func(t *testing.T, f *Facts) {
				if len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "token_ids") {
					t.Errorf("notes %q", f.Notes)
				}
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			virtual(t, ClientConfig{}, test.engine.answer, func(t *testing.T, ctx context.Context, r *rig) {
				facts, err := Preflight(ctx, r.client.config, "", test.chat, !test.chat)
				if err != nil {
					t.Fatal(err)
				}
				if facts.Dialect != test.want {
					t.Errorf("dialect %+v, want %+v", facts.Dialect, test.want)
				}
				if test.check != nil {
					test.check(t, facts)
				}
			})
		})
	}
}

func TestPreflightSays(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer answer
		model  string
		want   string
	}{
		{"two models", picky{models: `{"id":"a"},{"id":"b"}`}.answer, "", "serves 2 models (a, b); choose one with --model"},
		{"another model", picky{}.answer, "x", `does not serve "x" but m`},
		{"unauthorised", func(w *events, q asked) error {
			w.status(http.StatusUnauthorized, `{"error":"Unauthorized"}`)
			return nil
		}, "m", "status 401"},
		{"nothing fits", picky{refuses: []string{"model"}}.answer, "", "takes no form of a small request: unknown member model"},
	} {
		t.Run(test.name, func(t *testing.T) {
			virtual(t, ClientConfig{}, test.answer, func(t *testing.T, ctx context.Context, r *rig) {
				_, err := Preflight(ctx, r.client.config, test.model, false, true)
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want %q in it", err, test.want)
				}
			})
		})
	}
}

// TestPreflightAdvice: an engine that hangs is not waited for, and what is
// advised may help.
func TestPreflightAdvice(t *testing.T) {
	status := func(code int) answer {
		return func(w *events, q asked) error { w.status(code, `{"error":{"message":"no"}}`); return nil }
	}
	hang := func(w *events, q asked) error { <-q.gone; return nil }
	for _, test := range []struct {
		name   string
		engine answer
		want   string
		took   time.Duration
	}{
		{"hangs", hang, "no answer from http://engine.test: nothing came within 10s; start the engine, or give its address with --engine.url", 10 * time.Second},
		{"wants a key", status(http.StatusUnauthorized), `asking for the model: the engine answers /v1/models with status 401: no; give its key with --engine.bearer-token-file`, 0},
		{"lists nothing", status(http.StatusNotFound), `asking for the model: the engine answers /v1/models with status 404: no; name it with --model`, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			virtual(t, ClientConfig{}, test.engine, func(t *testing.T, ctx context.Context, r *rig) {
				begin := time.Now()
				_, err := Preflight(ctx, r.client.config, "", false, true)
				if err == nil || err.Error() != test.want || time.Since(begin) != test.took {
					t.Errorf("after %v: %v\nwant %s", time.Since(begin), err, test.want)
				}
			})
		})
	}
}

// TestOpenEnds: who ends the run does not wait for connections.
func TestOpenEnds(t *testing.T) {
	hang := func(w *events, q asked) error { <-q.gone; return nil }
	virtual(t, ClientConfig{}, hang, func(t *testing.T, ctx context.Context, r *rig) {
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(time.Second, cancel)
		begin := time.Now()
		if err := r.client.Open(ctx, 20); err == nil || time.Since(begin) != time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		if err := r.client.Open(ctx, 20); !errors.Is(err, context.Canceled) || time.Since(begin) != time.Second {
			t.Errorf("ended ahead: after %v: %v", time.Since(begin), err)
		}
	})
}
