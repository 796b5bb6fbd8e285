package simulator

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestStreamsAsCaptured asks for what the captured streams were asked for.
func TestStreamsAsCaptured(t *testing.T) {
	for file, r := range map[string]struct{ path, body string }{
		"vllm-0.32-chat-usage.sse": {"/v1/chat/completions",
			`{"messages":[{"role":"user","content":"x"}],"max_tokens":8,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`},
		"vllm-0.32-completions-no-usage.sse": {"/v1/completions",
			`{"prompt":"hello","max_tokens":5,"ignore_eos":true,"stream":true}`},
		"vllm-0.32-completions-token-ids-usage.sse": {"/v1/completions",
			`{"prompt":[40,41,42,43,44,45,46,47],"max_tokens":5,"ignore_eos":true,"stream":true,"return_token_ids":true,` +
				`"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`},
	} {
		t.Run(file, func(t *testing.T) {
			captured, err := os.ReadFile(filepath.Join("testdata/sse", file))
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				_, _, h := serve(t, realConfig(t))
				w := ask(h, "POST", r.path, r.body)
				want := strings.TrimRight(string(captured), "\n")
				got := strings.TrimRight(w.Body.String(), "\n")
				// The chat was longer by what its message had.
				want = strings.ReplaceAll(want, `"prompt_tokens":22,"total_tokens":30`, `"prompt_tokens":18,"total_tokens":26`)
				if diff := cmp.Diff(shape(want), shape(got)); diff != "" {
					t.Errorf("captured (-), simulated (+):\n%s", diff)
				}
			})
		})
	}
	captured, err := os.ReadFile("testdata/sse/vllm-0.32-error-400.json")
	if err != nil {
		t.Fatal(err)
	}
	_, _, h := serve(t, realConfig(t))
	w := ask(h, "POST", "/v1/completions", `{"prompt":"hello","max_tokens":5000}`)
	if got, want := w.Body.String(), strings.TrimSpace(string(captured)); w.Code != 400 || got != want {
		t.Errorf("got %d %s\nwant %s", w.Code, got, want)
	}
}

// pipes is a listener whose connections are net.Pipes, for use in a synctest bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// clientOf serves a handler over pipes until the test ends.
func clientOf(t *testing.T, h http.Handler) *http.Client {
	t.Helper()
	listener := newPipes()
	server := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	transport := &http.Transport{DialContext: listener.dial}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		<-done
	})
	return &http.Client{Transport: transport}
}

func post(ctx context.Context, t *testing.T, c *http.Client, path, body string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "POST", "http://simulator"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return c.Do(r)
}

// TestStreamTimes streams through a whole HTTP stack on virtual time: each
// chunk arrives when its step ends, to the nanosecond of the step-time model.
func TestStreamTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := realConfig(t)
		cfg.FrontEndDelay = 0.010
		_, _, h := serve(t, cfg)
		began := time.Now()
		answer, err := post(t.Context(), t, clientOf(t, h), "/v1/completions",
			`{"prompt":[4,5,6,7,8,9,10,11],"max_tokens":4,"ignore_eos":true,"stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var got []time.Duration
		for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "data: {") {
				got = append(got, time.Since(began))
			}
		}

		// A prompt of 8 tokens in one step, then one token a step.
		var want []time.Duration
		at := cfg.FrontEndDelay
		for i := range 4 {
			var b batch
			if i == 0 {
				b.add(0, 8)
			} else {
				b.add(7+i, 1)
			}
			at += cfg.Hardware.cost(b).duration
			want = append(want, time.Duration(at*1e9))
		}
		if len(got) != len(want) {
			t.Fatalf("%d chunks at %v, want %d", len(got), got, len(want))
		}
		for i := range want {
			// The engine rounds up to the next nanosecond, once a step.
			if late := got[i] - want[i]; late < 0 || late > 10 {
				t.Errorf("chunk %d came after %v, want %v", i, got[i], want[i])
			}
		}
	})
}

// TestClientGone holds the facts of the real engine's page after clients went
// away: the prompt and the tokens so far are counted, the first token is in
// TTFT, and no finish reason and no histogram of requests knows of it. The
// HTTP request is one more 2xx.
func TestClientGone(t *testing.T) {
	for _, stream := range []string{"true", "false"} {
		t.Run("stream "+stream, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, _, h := serve(t, realConfig(t))
				client := clientOf(t, h)
				ctx, cancel := context.WithCancel(t.Context())
				go func() { time.Sleep(100 * time.Millisecond); cancel() }()
				answer, err := post(ctx, t, client, "/v1/completions",
					`{"prompt":"abort me please","max_tokens":1500,"ignore_eos":true,"stream":`+stream+`}`)
				if err == nil {
					_, err = io.Copy(io.Discard, answer.Body)
				}
				if err == nil {
					t.Fatal("the answer came to its end")
				}
				time.Sleep(time.Second)
				synctest.Wait()
				got := values(t, h)
				checkValues(t, got, map[string]string{
					"num_requests_running": "0.0",
					"kv_cache_usage_perc":  "0.0",
					"prompt_tokens_total":  "15.0",
					`prompt_tokens_by_source_total{source="local_compute"}`:                     "15.0",
					"time_to_first_token_seconds_count":                                         "1.0",
					`request_success_total{finished_reason="abort"}`:                            "0.0",
					`request_success_total{finished_reason="length"}`:                           "0.0",
					"request_prompt_tokens_count":                                               "0.0",
					"request_queue_time_seconds_count":                                          "0.0",
					"e2e_request_latency_seconds_count":                                         "0.0",
					`http_requests_total{handler="/v1/completions",method="POST",status="2xx"}`: "1.0",
				})
				var tokens, iterations float64
				fmt.Sscan(got[`vllm:generation_tokens_total{engine="0",model_name="tiny"}`], &tokens)
				fmt.Sscan(got[`vllm:iteration_tokens_total_sum{engine="0",model_name="tiny"}`], &iterations)
				// 100 ms of steps of 7 ms or less.
				if tokens < 10 || tokens > 30 || iterations != tokens+15 {
					t.Errorf("%v tokens generated, iterations sum to %v", tokens, iterations)
				}
			})
		})
	}
}

func TestClientGoneBeforePrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := realConfig(t)
		cfg.FrontEndDelay = 1
		_, _, h := serve(t, cfg)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := post(ctx, t, clientOf(t, h), "/v1/completions", `{"prompt":"abc","max_tokens":5}`); err == nil {
			t.Fatal("an answer came")
		}
		time.Sleep(time.Second)
		checkValues(t, values(t, h), map[string]string{
			"prompt_tokens_total": "0.0", "generation_tokens_total": "0.0", "time_to_first_token_seconds_count": "0.0",
		})
	})
}

// TestPreemptionCounts has the sequences that a small KV cache cannot hold
// together, as the real engine with 66 blocks: what is computed again after a
// preemption is counted nowhere.
func TestPreemptionCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := realConfig(t)
		cfg.NumGPUBlocks = 66
		cfg.EnablePrefixCaching = false
		_, _, h := serve(t, cfg)
		var open atomic.Int32
		for i := range 12 {
			open.Add(1)
			go func() {
				defer open.Add(-1)
				ids, _ := json.Marshal(bytesOf(i, 64))
				ask(h, "POST", "/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":600,"ignore_eos":true}`, ids))
			}()
		}
		for open.Load() > 0 {
			time.Sleep(time.Second)
		}
		got := values(t, h)
		checkValues(t, got, map[string]string{
			"prompt_tokens_total":                             "768.0",
			"generation_tokens_total":                         "7200.0",
			"iteration_tokens_total_sum":                      "7968.0",
			"request_prefill_kv_computed_tokens_sum":          "768.0",
			`request_success_total{finished_reason="length"}`: "12.0",
			"inter_token_latency_seconds_count":               "7188.0",
		})
		total := got[`vllm:num_preemptions_total{engine="0",model_name="tiny"}`]
		if total == "0.0" || total != got[`vllm:request_num_preemptions_sum{engine="0",model_name="tiny"}`] {
			t.Errorf("%s preemptions, requests had %s", total, got[`vllm:request_num_preemptions_sum{engine="0",model_name="tiny"}`])
		}
	})
}

func bytesOf(seed, n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = 4 + (seed*31+i*7)%256
	}
	return ids
}

func TestEndOfSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, h := serve(t, realConfig(t))
		stopped := 0
		for seed := range 60 {
			body := fmt.Sprintf(`{"prompt":"a","max_tokens":300,"min_tokens":20,"seed":%d,"return_token_ids":true}`, seed)
			first, again := ask(h, "POST", "/v1/completions", body), ask(h, "POST", "/v1/completions", body)
			var a, b completionAnswerRead
			if err := json.Unmarshal(first.Body.Bytes(), &a); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(again.Body.Bytes(), &b); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(a, b); diff != "" {
				t.Fatalf("the same seed answers differently:\n%s", diff)
			}
			c := a.Choices[0]
			last := c.TokenIDs[len(c.TokenIDs)-1]
			switch c.FinishReason {
			case "stop":
				stopped++
				if last != tokenEOS || len(c.TokenIDs) <= 20 || len(c.Text) != len(c.TokenIDs)-1 {
					t.Errorf("stopped after %d tokens with %d, %d characters", len(c.TokenIDs), last, len(c.Text))
				}
			case "length":
				if len(c.TokenIDs) != 300 || last == tokenEOS || len(c.Text) != 300 {
					t.Errorf("cut after %d tokens with %d", len(c.TokenIDs), last)
				}
			default:
				t.Errorf("finished by %q", c.FinishReason)
			}
			if a.Usage.CompletionTokens != len(c.TokenIDs) {
				t.Errorf("usage has %d tokens, the answer %d", a.Usage.CompletionTokens, len(c.TokenIDs))
			}
		}
		// 1-(1-1/256)^280 = 0.67 of 60 are 40, with a deviation of 3.6.
		if stopped < 25 || stopped > 55 {
			t.Errorf("%d of 60 texts ended by themselves", stopped)
		}
	})
}

type completionAnswerRead struct {
	Choices []struct {
		Text         string `json:"text"`
		FinishReason string `json:"finish_reason"`
		TokenIDs     []int  `json:"token_ids"`
	} `json:"choices"`
	Usage struct {
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
}

func TestStreamedTextIsTheWholeText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, h := serve(t, realConfig(t))
		const body = `{"prompt":"a","max_tokens":400,"seed":11,"ignore_eos":true}`
		var whole completionAnswerRead
		if err := json.Unmarshal(ask(h, "POST", "/v1/completions", body).Body.Bytes(), &whole); err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		streamed := ask(h, "POST", "/v1/completions", strings.Replace(body, "}", `,"stream":true}`, 1))
		for _, event := range strings.Split(streamed.Body.String(), "\n\n") {
			data := strings.TrimPrefix(event, "data: ")
			if data == "" || data == "[DONE]" {
				continue
			}
			var chunk completionAnswerRead
			if err := json.Unmarshal([]byte(data), &chunk); err != nil {
				t.Fatalf("%v in %s", err, data)
			}
			text.WriteString(chunk.Choices[0].Text)
		}
		if diff := cmp.Diff(whole.Choices[0].Text, text.String()); diff != "" {
			t.Error(diff)
		}
		if !strings.ContainsAny(text.String(), `"\`) {
			t.Error("the text has nothing to escape: take another seed")
		}
	})
}

// TestSlowReaderGetsTokensTogether lets a reader wait for several steps.
func TestSlowReaderGetsTokensTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _, _ := serve(t, realConfig(t))
		g := &generationRequest{prompts: [][]int{{5, 6}}, maxTokens: []int{10}, ignoreEOS: true, stream: true}
		gen, err := startGeneration(e, g, "id", 1, true)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := gen.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if from, to := gen.take(gen.sequences[0]); from != 0 || to != 10 || gen.sequences[0].ended != FinishLength {
			t.Errorf("got tokens %d to %d, ended by %q", from, to, gen.sequences[0].ended)
		}
	})
}

// BenchmarkStream streams over loopback TCP to clients that count and drop. The
// engine is faster than the writers, which then send several tokens in a
// chunk: chunks/s is the rate of tokens that are sent each by itself, and
// tokens/s what went out in all. Run it with GOMAXPROCS=1 for a core's worth.
func BenchmarkStream(b *testing.B) {
	cfg := realConfig(b)
	cfg.MaxNumSeqs = 64
	cfg.Speed = 100
	_, _, h := serve(b, cfg)
	server := httptest.NewServer(h)
	defer server.Close()
	const streams, tokens = 32, 500
	body := fmt.Sprintf(`{"prompt":"hello","max_tokens":%d,"ignore_eos":true,"stream":true}`, tokens)
	request := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	b.ReportAllocs()
	chunks := 0
	for b.Loop() {
		counts := make(chan int, streams)
		for range streams {
			go func() { counts <- countChunks(server.Listener.Addr().String(), request) }()
		}
		for range streams {
			n := <-counts
			if n == 0 {
				b.Fatal("a stream gave no chunk")
			}
			chunks += n
		}
	}
	b.ReportMetric(float64(b.N*streams*tokens)/b.Elapsed().Seconds(), "tokens/s")
	b.ReportMetric(float64(chunks)/b.Elapsed().Seconds(), "chunks/s")
}

// countChunks sends a request and counts the events of the answer; an event
// that a read cut in two does not count.
func countChunks(address, request string) (chunks int) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 0
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		return 0
	}
	buffer := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buffer)
		chunks += bytes.Count(buffer[:n], []byte("data: {"))
		if err != nil {
			return chunks
		}
	}
}
