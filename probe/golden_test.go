package probe

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"headroom_exporter/probe/workload"
)

// TestRecordedStreams plays recorded answers, one event every 10 ms from 100 ms on.
func TestRecordedStreams(t *testing.T) {
	const first, gap = 100 * time.Millisecond, 10 * time.Millisecond
	for _, test := range []struct {
		file      string
		chat      bool
		maxTokens int
		want      Exchange
	}{
		// Every chunk says its token id and the usage so far, also the first one, whose text is empty.
		{"vllm-0.32-completions-token-ids-usage.sse", false, 5, Exchange{
			First: first, FirstOutput: first, Last: first + 4*gap, PromptTokens: 8, CompletionTokens: 5, CachedTokens: -1, TokensFrom: "usage",
			Chunks: 5, Arrivals: 5, FirstTokens: 1, FirstEvents: 1, TokenEvents: 5, FinishLength: true,
		}},
		// Without ids and usage the first three chunks have no text: whether
		// they carry a token cannot be known. The finish reason tells the number.
		{"vllm-0.32-completions-no-usage.sse", false, 5, Exchange{
			First: first + 3*gap, FirstOutput: first + 3*gap, Last: first + 4*gap, PromptTokens: -1, CompletionTokens: 5, CachedTokens: -1, TokensFrom: "finish_reason",
			Chunks: 5, Arrivals: 2, FirstTokens: -1, FirstEvents: 1, TokenEvents: 2, FinishLength: true,
		}},
		// The role comes alone; of eight tokens four have no text.
		{"vllm-0.32-chat-usage.sse", true, 8, Exchange{
			First: first + gap, FirstOutput: first + gap, Last: first + 8*gap, PromptTokens: 22, CompletionTokens: 8, CachedTokens: -1, TokensFrom: "usage",
			Chunks: 9, Arrivals: 4, FirstTokens: -1, FirstEvents: 1, TokenEvents: 4, FinishLength: true,
		}},
	} {
		t.Run(test.file, func(t *testing.T) {
			body, err := os.ReadFile("testdata/" + test.file)
			if err != nil {
				t.Fatal(err)
			}
			play := func(w *events, q asked) error {
				time.Sleep(first)
				for i, e := range strings.SplitAfter(string(body), "\n\n") {
					if i > 0 {
						time.Sleep(gap)
					}
					w.raw(e)
				}
				return nil
			}
			virtual(t, ClientConfig{}, play, func(t *testing.T, ctx context.Context, r *rig) {
				q := workload.Request{MaxTokens: test.maxTokens, IgnoreEOS: true, Chat: test.chat, Text: "hello"}
				var x Exchange
				due := r.client.now()
				r.client.Do(ctx, &q, due, &x)
				got, want := x, test.want
				for _, m := range []*time.Duration{&got.First, &got.FirstOutput, &got.Last} {
					*m -= due
				}
				if x.Outcome != OK || x.Status != http.StatusOK || x.Error != "" {
					t.Fatalf("%s, status %d: %s", x.Outcome, x.Status, x.Error)
				}
				got.Sent, got.Headers, got.End, got.Connect, got.Gaps, got.Outcome, got.Status, got.OtherModel = 0, 0, 0, 0, nil, "", 0, ""
				if g, w := show(got), show(want); g != w {
					t.Errorf("got\n%s\nwant\n%s", g, w)
				}
			})
		})
	}
}

func TestRecordedRefusal(t *testing.T) {
	body, err := os.ReadFile("testdata/vllm-0.32-error-400.json")
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(w *events, q asked) error {
		w.status(http.StatusBadRequest, string(body))
		return nil
	}
	virtual(t, ClientConfig{}, refuse, func(t *testing.T, ctx context.Context, r *rig) {
		var x Exchange
		r.client.Do(ctx, &workload.Request{Text: "x", MaxTokens: 5000}, r.client.now(), &x)
		if x.Outcome != HTTPError || x.Status != 400 || !strings.HasPrefix(x.Error, "max_tokens=5000 cannot be greater than max_model_len=2048.") {
			t.Errorf("%s, status %d: %s", x.Outcome, x.Status, x.Error)
		}
	})
}
