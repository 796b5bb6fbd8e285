package probe

import (
	"context"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"headroom_exporter/probe/workload"
)

// TestBadServers is section 5 of the peers' table: the numbers stay right, the
// fault is named.
func TestBadServers(t *testing.T) {
	const ttft, itl = 200 * time.Millisecond, 20 * time.Millisecond
	good := fixed(ttft, itl)
	type check func(t *testing.T, r *Result)
	for _, test := range []struct {
		name    string
		answer  answer
		dialect Dialect
		chat    bool
		faults  string
		check   check
	}{
		{
			name: "503 every second", faults: "failures",
			answer: func(w *events, q asked) error {
				if q.Number%2 == 1 {
					w.status(http.StatusServiceUnavailable, `{"error":{"message":"overloaded","code":503}}`)
					return nil
				}
				return good(w, q)
			},
			check: func(t *testing.T, r *Result) {
				times(t, "TTFT", r.All().TTFT, 20, 0.2)
				if n := r.Errors["http_error: overloaded"]; n != 20 {
					t.Errorf("errors %v", r.Errors)
				}
				if r.All().Violations != 20 {
					t.Errorf("%d violations", r.All().Violations)
				}
			},
		},
		{
			name: "cut half-way", faults: "failures",
			answer: func(w *events, q asked) error {
				if q.Number%2 == 0 {
					return good(w, q)
				}
				time.Sleep(ttft)
				for range 8 {
					w.token()
					time.Sleep(itl)
				}
				return errCut
			},
			check: func(t *testing.T, r *Result) {
				times(t, "TTFT", r.All().TTFT, 40, 0.2)
				times(t, "E2E", r.All().E2E, 20, 0.5)
				times(t, "ITL", r.All().ITL, 20*15+20*7, 0.02)
				if n := r.All().Outcomes[Cut]; n != 20 {
					t.Errorf("outcomes %v", r.All().Outcomes)
				}
			},
		},
		{
			name: "no usage chunk",
			answer: func(w *events, q asked) error {
				time.Sleep(ttft)
				for i := range q.MaxTokens {
					if i > 0 {
						time.Sleep(itl)
					}
					finish := "null"
					if i == q.MaxTokens-1 {
						finish = `"length"`
					}
					w.data(`{"choices":[{"index":0,"text":"x","finish_reason":%s}]}`, finish)
				}
				w.done()
				return nil
			},
			check: func(t *testing.T, r *Result) {
				times(t, "TTFT", r.All().TTFT, 40, 0.2)
				times(t, "TPOT", r.All().TPOT, 40, 0.02)
				near(t, "output", r.All().Output, 16)
			},
		},
		{
			name: "two tokens a chunk, with ids",
			answer: func(w *events, q asked) error {
				// Token i is made at 200 + 20 i ms; a chunk goes when its second is made.
				time.Sleep(ttft)
				for range q.MaxTokens / 2 {
					time.Sleep(itl)
					w.tokens(2)
					time.Sleep(itl)
				}
				w.usage(8, q.MaxTokens)
				w.done()
				return nil
			},
			check: func(t *testing.T, r *Result) {
				times(t, "TTFT", r.All().TTFT, 40, 0.22)
				times(t, "TPOT", r.All().TPOT, 40, 0.02)
				times(t, "ITL", r.All().ITL, 40*14, 0.02)
				times(t, "ICL", r.All().ICL, 40*7, 0.04)
			},
		},
		{
			name: "two tokens a chunk, usage at the end only",
			answer: func(w *events, q asked) error {
				time.Sleep(ttft)
				for range q.MaxTokens / 2 {
					w.data(`{"choices":[{"index":0,"text":"xy"}]}`)
					time.Sleep(2 * itl)
				}
				w.usage(8, q.MaxTokens)
				w.done()
				return nil
			},
			check: func(t *testing.T, r *Result) {
				times(t, "TTFT", r.All().TTFT, 40, 0.2)
				times(t, "TPOT", r.All().TPOT, 40, 0.02)
				times(t, "ITL", r.All().ITL, 40*14, 0.02)
				times(t, "ICL", r.All().ICL, 40*7, 0.04)
			},
		},
		{
			name: "early chunk with empty choices",
			answer: func(w *events, q asked) error {
				time.Sleep(50 * time.Millisecond)
				w.data(`{"choices":[]}`)
				return fixed(ttft-50*time.Millisecond, itl)(w, q)
			},
			check: func(t *testing.T, r *Result) {
				times(t, "TTFT", r.All().TTFT, 40, 0.2)
				times(t, "TPOT", r.All().TPOT, 40, 0.02)
			},
		},
		{
			name: "all chunks with empty choices", faults: "nothing_measured failures",
			answer: func(w *events, q asked) error {
				for range q.MaxTokens {
					time.Sleep(itl)
					w.data(`{"choices":[],"usage":{"completion_tokens":1}}`)
				}
				w.done()
				return nil
			},
			check: func(t *testing.T, r *Result) {
				if n := r.All().Outcomes[StreamError]; n != 40 {
					t.Errorf("outcomes %v", r.All().Outcomes)
				}
				if r.All().TTFT.N != 0 || !math.IsNaN(float64(r.All().TTFT.P50)) {
					t.Errorf("TTFT of no tokens: %+v", r.All().TTFT)
				}
			},
		},
		{
			name: "early role chunk", chat: true,
			answer: func(w *events, q asked) error {
				time.Sleep(50 * time.Millisecond)
				w.data(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)
				time.Sleep(ttft - 50*time.Millisecond)
				for i := range q.MaxTokens {
					if i > 0 {
						time.Sleep(itl)
					}
					w.data(`{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}`)
				}
				w.usage(20, q.MaxTokens)
				w.done()
				return nil
			},
			check: func(t *testing.T, r *Result) {
				times(t, "TTFT", r.All().TTFT, 40, 0.2)
				times(t, "TPOT", r.All().TPOT, 40, 0.02)
				times(t, "ITL", r.All().ITL, 40*15, 0.02)
			},
		},
		{
			name: "reasoning, then an answer", chat: true,
			answer: func(w *events, q asked) error {
				time.Sleep(ttft)
				for i := range q.MaxTokens {
					if i > 0 {
						time.Sleep(itl)
					}
					member := "reasoning_content"
					if i >= 10 {
						member = "content"
					}
					w.data(`{"choices":[{"index":0,"delta":{"%s":"x"}}]}`, member)
				}
				w.usage(20, q.MaxTokens)
				w.done()
				return nil
			},
			check: func(t *testing.T, r *Result) {
				times(t, "TTFT", r.All().TTFT, 40, 0.2)
				times(t, "TTFO", r.All().TTFO, 40, 0.4)
				times(t, "TPOT", r.All().TPOT, 40, 0.02)
			},
		},
		{
			name: "one token, for weeks", faults: "failures length_mismatch",
			answer: func(w *events, q asked) error {
				time.Sleep(ttft)
				w.token()
				w.usage(8, 1)
				w.done()
				return nil
			},
			check: func(t *testing.T, r *Result) {
				if n := r.All().Outcomes[LengthMismatch]; n != 40 {
					t.Errorf("outcomes %v", r.All().Outcomes)
				}
			},
		},
		{
			name: "prompt cut short by the engine", faults: "failures length_mismatch",
			answer: func(w *events, q asked) error {
				time.Sleep(ttft)
				w.tokens(q.MaxTokens)
				w.usage(4, q.MaxTokens)
				w.done()
				return nil
			},
		},
		{
			name: "error inside the stream", faults: "failures",
			answer: func(w *events, q asked) error {
				time.Sleep(ttft)
				w.token()
				w.raw("event: error\ndata: {\"error\":{\"message\":\"engine died\"}}\n\n")
				return nil
			},
			check: func(t *testing.T, r *Result) {
				if n := r.Errors["stream_error: the stream brought an error: engine died"]; n != 40 {
					t.Errorf("errors %v", r.Errors)
				}
			},
		},
		{
			name: "no end mark", faults: "failures",
			answer: func(w *events, q asked) error {
				time.Sleep(ttft)
				w.tokens(q.MaxTokens)
				w.usage(8, q.MaxTokens)
				return nil
			},
			check: func(t *testing.T, r *Result) {
				if n := r.All().Outcomes[Cut]; n != 40 {
					t.Errorf("outcomes %v", r.All().Outcomes)
				}
			},
		},
		{
			name: "an answer that is no stream", faults: "nothing_measured failures",
			answer: func(w *events, q asked) error {
				w.status(http.StatusOK, `{"choices":[{"text":"all at once"}]}`)
				return nil
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			virtual(t, ClientConfig{Dialect: test.dialect}, test.answer, func(t *testing.T, ctx context.Context, r *rig) {
				source := requests(40, 200*time.Millisecond)
				source.request.Chat = test.chat
				p := Point{Name: "p", Source: source}
				if test.chat {
					p.Fill = func(q *workload.Request) { q.Text = "say something" }
				}
				result := measure(t, r, p)
				if got := codes(result.Faults); got != test.faults {
					t.Errorf("faults %q, want %q: %v", got, test.faults, result.Faults)
				}
				if test.check != nil {
					test.check(t, result)
				}
			})
		})
	}
}

// TestStall: a server that stands still for 30 s is named, its percentiles are
// not sold as a result, and the requests that came meanwhile count from when
// they were due.
func TestStall(t *testing.T) {
	var begin time.Time
	var first sync.Once
	stalling := func(w *events, q asked) error {
		first.Do(func() { begin = q.Arrived })
		pause := func(d time.Duration) {
			time.Sleep(d)
			if at := time.Since(begin); at >= 2*time.Second && at < 32*time.Second {
				time.Sleep(32*time.Second - at)
			}
		}
		pause(200 * time.Millisecond)
		for i := range q.MaxTokens {
			if i > 0 {
				pause(20 * time.Millisecond)
			}
			w.token()
		}
		w.usage(8, q.MaxTokens)
		w.done()
		return nil
	}
	virtual(t, ClientConfig{}, stalling, func(t *testing.T, ctx context.Context, r *rig) {
		result := measure(t, r, Point{Name: "p", Source: requests(40, 200*time.Millisecond)})
		if got := codes(result.Faults); got != "failures stall" {
			t.Errorf("faults %q: %v", got, result.Faults)
		}
		if len(result.Stalls) != 1 {
			t.Fatalf("stalls %+v", result.Stalls)
		}
		if d := result.Stalls[0].To - result.Stalls[0].From; d < 29.9 || d > 30.1 {
			t.Errorf("the stall took %v s", d)
		}
		// Streams that were under way passed the idle deadline of 10 s.
		all := result.All()
		if all.Outcomes[Timeout] == 0 || all.Outcomes[Timeout]+all.Outcomes[OK] != 40 {
			t.Errorf("outcomes %v", all.Outcomes)
		}
		// Request 9 was due at 1.8 s and got its first token at 32 s.
		near(t, "longest TTFT", all.TTFT.Max, 30.2)
	})
}

// TestStallOfAnIdleEngine: an engine that stops while nothing is under way is
// noticed by those who come then; one slow answer alone is no stall.
func TestStallOfAnIdleEngine(t *testing.T) {
	for _, test := range []struct {
		name  string
		every time.Duration
		want  string
	}{
		{"requests wait", time.Second, "stall"},
		{"one request waits", 9 * time.Second, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var begin time.Time
			var first sync.Once
			stops := func(w *events, q asked) error {
				first.Do(func() { begin = q.Arrived })
				// From 3.5 s to 11.5 s nothing is answered; every answer before took 0.15 s.
				if at := time.Since(begin); at >= 3500*time.Millisecond && at < 11500*time.Millisecond {
					time.Sleep(11500*time.Millisecond - at)
				}
				return fixed(0, 10*time.Millisecond)(w, q)
			}
			virtual(t, ClientConfig{}, stops, func(t *testing.T, ctx context.Context, r *rig) {
				result := measure(t, r, Point{Name: "p", Source: requests(20, test.every)})
				if got := codes(result.Faults); got != test.want {
					t.Errorf("faults %q, want %q: %v", got, test.want, result.Faults)
				}
				// The second to wait came at 5 s.
				if len(result.Stalls) == 1 {
					if s := result.Stalls[0]; s.From < 5 || s.From > 5.1 || s.To < 11.4 || s.To > 11.6 || s.Streams != 8 {
						t.Errorf("stall %+v", s)
					}
				}
			})
		})
	}
}

// TestOtherModel: who answers in another's name is noted, whatever the order
// and spelling of the chunk; a chunk without a name says nothing.
func TestOtherModel(t *testing.T) {
	for _, test := range []struct{ member, want string }{
		{`"model":"m",`, ""},
		{`"model" : "m",`, ""},
		{`"model":"\u006d",`, ""},
		{``, ""},
		{`"model":"n",`, `other_model: 5 answers name another model than was asked for: "n"`},
		{`"model":"mm",`, `other_model: 5 answers name another model than was asked for: "mm"`},
	} {
		t.Run(test.member, func(t *testing.T) {
			named := func(w *events, q asked) error {
				for range q.MaxTokens {
					time.Sleep(time.Millisecond)
					w.data(`{%s"choices":[{"index":0,"text":"x","token_ids":[7]}]}`, test.member)
				}
				w.usage(8, q.MaxTokens)
				w.done()
				return nil
			}
			virtual(t, ClientConfig{}, named, func(t *testing.T, ctx context.Context, r *rig) {
				result := measure(t, r, Point{Name: "p", Source: requests(5, time.Second)})
				var notes []string
				for _, w := range result.Warnings {
					notes = append(notes, w.Code+": "+w.Detail)
				}
				if got := strings.Join(notes, "; "); got != test.want || len(result.Faults) > 0 {
					t.Errorf("notes %q, want %q; faults %v", got, test.want, result.Faults)
				}
			})
		})
	}
}

// TestTokensNotCounted: a number of tokens that nobody gave is unknown, not 0.
func TestTokensNotCounted(t *testing.T) {
	uncounted := func(w *events, q asked) error {
		for range 3 {
			time.Sleep(time.Millisecond)
			w.data(`{"choices":[{"index":0,"text":"x"}]}`)
		}
		w.done()
		return nil
	}
	virtual(t, ClientConfig{Dialect: Dialect{PromptIDs: true}}, uncounted, func(t *testing.T, ctx context.Context, r *rig) {
		result := measure(t, r, Point{Name: "p", Source: &each{n: 5, every: time.Second, request: workload.Request{Class: "c", PromptTokens: 8, MaxTokens: 16}}})
		all := result.All()
		if all.Outcomes[OK] != 5 || !math.IsNaN(float64(all.Output)) || !math.IsNaN(float64(result.OutputTokenRate)) {
			t.Errorf("outcomes %v, %v tokens on average, %v tokens/s", all.Outcomes, all.Output, result.OutputTokenRate)
		}
		if len(result.Warnings) != 1 || result.Warnings[0].Code != FaultTokens {
			t.Errorf("notes %v", result.Warnings)
		}
	})
}
