package simulator

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// described is a family of a page without its values: HELP, TYPE, and the
// sample names with their label names, in order, without repetition.
type described struct {
	Help, Type string
	Samples    []string
	Bounds     []string
	// Values of the labels that are not a rank's, a model's or a bucket's name.
	Values []string
}

var (
	sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$`)
	labelPair  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"`)
)

// describe takes a page apart; order is that of the families.
func describe(t *testing.T, page string) (order []string, families map[string]described) {
	t.Helper()
	families = map[string]described{}
	var name string
	var f described
	for number, line := range strings.Split(strings.TrimSuffix(page, "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, "# HELP "):
			name, f.Help, _ = strings.Cut(strings.TrimPrefix(line, "# HELP "), " ")
			f = described{Help: f.Help}
			order = append(order, name)
		case strings.HasPrefix(line, "# TYPE "):
			f.Type = strings.TrimPrefix(line, "# TYPE "+name+" ")
		default:
			m := sampleLine.FindStringSubmatch(line)
			if m == nil || !strings.HasPrefix(m[1], name) {
				t.Fatalf("line %d: %q is no sample of %s", number+1, line, name)
			}
			f.addSample(m[1], m[2])
		}
		families[name] = f
	}
	return order, families
}

func (f *described) addSample(name, labels string) {
	var names []string
	for _, pair := range labelPair.FindAllStringSubmatch(labels, -1) {
		names = append(names, pair[1])
		switch pair[1] {
		case "le":
			if !slices.Contains(f.Bounds, pair[2]) {
				f.Bounds = append(f.Bounds, pair[2])
			}
		case "reason", "source", "sleep_state", "finished_reason", "generation", "engine":
			if value := pair[1] + "=" + pair[2]; !slices.Contains(f.Values, value) {
				f.Values = append(f.Values, value)
			}
		}
	}
	if s := name + "{" + strings.Join(names, ",") + "}"; !slices.Contains(f.Samples, s) {
		f.Samples = append(f.Samples, s)
	}
}

func capture(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestPageAsCaptured serves each state in which a page was taken from the real
// engine, and compares the pages family by family.
func TestPageAsCaptured(t *testing.T) {
	for _, c := range []struct {
		capture string
		ranks   int
		mfu     bool
		// asked is what was asked of the engine before.
		asked [][3]string
	}{
		{capture: "vllm-0.32-idle.prom", ranks: 1},
		{capture: "vllm-0.32-loaded-queued.prom", ranks: 1, asked: [][3]string{
			{"GET", "/v1/models"},
			{"POST", "/v1/completions", `{"prompt":"hello","max_tokens":5,"ignore_eos":true}`},
		}},
		{capture: "vllm-0.32-dp2-mfu-loaded.prom", ranks: 2, mfu: true, asked: [][3]string{
			{"POST", "/v1/completions", `{"prompt":"hello","max_tokens":5,"ignore_eos":true}`},
		}},
	} {
		t.Run(c.capture, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := realConfig(t)
				cfg.Ranks, cfg.EnableMFUMetrics = c.ranks, c.mfu
				_, _, h := serve(t, cfg)
				for _, r := range c.asked {
					ask(h, r[0], r[1], r[2])
				}
				w := ask(h, "GET", "/metrics", "")
				if got, want := w.Header().Get("Content-Type"), "text/plain; version=1.0.0; charset=utf-8"; got != want {
					t.Errorf("content type %q, want %q", got, want)
				}
				wantOrder, want := describe(t, capture(t, c.capture))
				gotOrder, got := describe(t, w.Body.String())
				if diff := cmp.Diff(wantOrder, gotOrder); diff != "" {
					t.Errorf("families, captured (-), simulated (+):\n%s", diff)
				}
				for _, name := range wantOrder {
					if diff := cmp.Diff(want[name], got[name]); diff != "" {
						t.Errorf("%s, captured (-), simulated (+):\n%s", name, diff)
					}
				}
			})
		})
	}
}

// TestPageIgnoresAccept holds the content types of the real engine's two pages.
func TestPageIgnoresAccept(t *testing.T) {
	_, _, h := serve(t, realConfig(t))
	for path, version := range map[string]string{"/metrics": "1.0.0", "/metrics/": "0.0.4"} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got, want := w.Header().Get("Content-Type"), "text/plain; version="+version+"; charset=utf-8"; got != want {
			t.Errorf("%s: content type %q, want %q", path, got, want)
		}
		if strings.Contains(w.Body.String(), "# EOF") {
			t.Errorf("%s ends as OpenMetrics", path)
		}
	}
}

// values reads the samples of a page whose names begin with vllm: or http_.
func values(t *testing.T, h http.Handler) map[string]string {
	t.Helper()
	got := map[string]string{}
	for _, line := range strings.Split(ask(h, "GET", "/metrics", "").Body.String(), "\n") {
		if m := sampleLine.FindStringSubmatch(line); m != nil {
			got[line[:strings.LastIndexByte(line, ' ')]] = m[3]
		}
	}
	return got
}

// checkValues compares samples; the names go without vllm: and without the rank's and the model's label.
func checkValues(t *testing.T, got map[string]string, want map[string]string) {
	t.Helper()
	short := map[string]string{}
	strip := strings.NewReplacer("vllm:", "", `engine="0",`, "", `engine="0"`, "", `,model_name="tiny"`, "", `model_name="tiny",`, "", `model_name="tiny"`, "")
	for name, value := range got {
		short[strings.TrimSuffix(strip.Replace(name), "{}")] = value
	}
	for name, value := range want {
		if short[name] != value {
			t.Errorf("%s is %q, want %s", name, short[name], value)
		}
	}
}

// TestCounting drives the counters by hand with the events of a known history:
// a prompt that was partly cached, a preemption, an end by length and one by
// EOS, and a client that went away after its first token.
func TestCounting(t *testing.T) {
	cfg := realConfig(t)
	cfg.EnableMFUMetrics = true
	m := NewMetrics(cfg)
	r := m.Observer(0)

	full := &Request{PromptLength: 100, OutputLength: 3, MaxTokens: 3, FinishReason: FinishLength, CachedTokens: 64,
		Arrival: 1, Queued: 1.1, FirstScheduled: 1.5, FirstToken: 2, LastToken: 4, End: 4, Preemptions: 1}
	short := &Request{PromptLength: 10, OutputLength: 1, MaxTokens: 20, FinishReason: FinishStop,
		Arrival: 1.9, Queued: 1.9, FirstScheduled: 1.9, FirstToken: 2, LastToken: 2, End: 2}
	gone := &Request{PromptLength: 7, OutputLength: 9, MaxTokens: 9, Arrival: 1.9, FirstToken: 2}

	// A step that computes a part of a prompt only gives no token: vLLM does not count it.
	r.StepDone(StepStats{Running: 1, PrefillTokens: 36, PrefixQueries: 100, PrefixHits: 64})
	r.TokenDone(full, 0, 2, 1)
	r.TokenDone(short, 0, 2, 1.9)
	r.RequestDone(short)
	r.TokenDone(gone, 0, 2, 1.9)
	r.StepDone(StepStats{Running: 2, Waiting: 3, Deferred: 1, KVCacheUsage: 0.5, Flops: 10, ReadBytes: 20, WriteBytes: 30})
	r.RequestAborted(gone)
	r.TokenDone(full, 1, 3, 2)
	r.StepDone(StepStats{Running: 0, Waiting: 1, Preemptions: 1})
	r.TokenDone(full, 2, 4, 3)
	r.RequestDone(full)
	r.StepDone(StepStats{PrefillTokens: 102, PrefillTokensRecomputed: 102})

	got := map[string]string{}
	for _, line := range strings.Split(string(m.Page(0)), "\n") {
		if s := sampleLine.FindStringSubmatch(line); s != nil {
			got[line[:strings.LastIndexByte(line, ' ')]] = s[3]
		}
	}
	checkValues(t, got, map[string]string{
		"num_requests_running":                                    "0.0",
		"num_requests_waiting":                                    "0.0",
		"num_preemptions_total":                                   "1.0",
		"prefix_cache_queries_total":                              "100.0",
		"prefix_cache_hits_total":                                 "64.0",
		`prompt_tokens_cached_by_source_total{source="device"}`:   "64.0",
		"prompt_tokens_total":                                     "117.0",
		`prompt_tokens_by_source_total{source="local_compute"}`:   "53.0",
		`prompt_tokens_by_source_total{source="local_cache_hit"}`: "64.0",
		"prompt_tokens_cached_total":                              "64.0",
		"generation_tokens_total":                                 "5.0",
		`request_success_total{finished_reason="length"}`:         "1.0",
		`request_success_total{finished_reason="stop"}`:           "1.0",
		`request_success_total{finished_reason="abort"}`:          "0.0",
		"request_prompt_tokens_sum":                               "110.0",
		"request_prompt_tokens_count":                             "2.0",
		"request_prefill_kv_computed_tokens_sum":                  "46.0",
		"request_generation_tokens_sum":                           "4.0",
		"request_params_max_tokens_sum":                           "23.0",
		"request_params_n_sum":                                    "2.0",
		"request_num_preemptions_sum":                             "1.0",
		"iteration_tokens_total_count":                            "3.0",
		"iteration_tokens_total_sum":                              "58.0",
		`iteration_tokens_total_bucket{le="1.0"}`:                 "2.0",
		"time_to_first_token_seconds_count":                       "3.0",
		"time_to_first_token_seconds_sum":                         "1.2000000000000002",
		"inter_token_latency_seconds_count":                       "2.0",
		"inter_token_latency_seconds_sum":                         "2.0",
		"request_time_per_output_token_seconds_count":             "2.0",
		"request_time_per_output_token_seconds_sum":               "1.0",
		"e2e_request_latency_seconds_sum":                         "3.1",
		"request_queue_time_seconds_count":                        "2.0",
		"request_queue_time_seconds_sum":                          "0.3999999999999999",
		"request_prefill_time_seconds_sum":                        "0.6000000000000001",
		"request_inference_time_seconds_sum":                      "2.6",
		"request_decode_time_seconds_sum":                         "2.0",
		"estimated_flops_per_gpu_total":                           "10.0",
		"estimated_read_bytes_per_gpu_total":                      "20.0",
		"estimated_write_bytes_per_gpu_total":                     "30.0",
	})
}

func TestWaitingByReason(t *testing.T) {
	m := NewMetrics(realConfig(t))
	m.Observer(0).StepDone(StepStats{Running: 2, Waiting: 3, Deferred: 1, KVCacheUsage: 0.5, Flops: 10})
	page := string(m.Page(0))
	for _, line := range []string{
		`vllm:num_requests_waiting{engine="0",model_name="tiny"} 3.0`,
		`vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 2.0`,
		`vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"} 1.0`,
		`vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5`,
		// Without EnableMFUMetrics the estimates stand still.
		`vllm:estimated_flops_per_gpu_total{engine="0",model_name="tiny"} 0.0`,
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("the page has no %s", line)
		}
	}
}

// TestCacheConfigInfo holds the numbers of the real engine's page with
// --num-gpu-blocks-override 66 and a context of 2048.
func TestCacheConfigInfo(t *testing.T) {
	cfg := realConfig(t)
	cfg.NumGPUBlocks = 66
	page := string(NewMetrics(cfg).Page(0))
	for _, label := range []string{`kv_cache_max_concurrency="1.03125"`, `kv_cache_size_tokens="2112"`, `num_gpu_blocks="66"`, `block_size="32"`} {
		if !strings.Contains(page, label) {
			t.Errorf("the page has no %s", label)
		}
	}
}

func TestHTTPSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, h := serve(t, realConfig(t))
		for _, path := range []string{"/health", "/metrics", "/ping", "/load", "/version", "/server_info"} {
			ask(h, "GET", path, "")
		}
		for name := range values(t, h) {
			if strings.HasPrefix(name, "http_requests_total") {
				t.Errorf("%s is there after excluded paths only", name)
			}
		}
		time.Sleep(time.Second)
		const body = `{"prompt":"hello","max_tokens":2,"ignore_eos":true}`
		ask(h, "POST", "/v1/completions", body)
		ask(h, "POST", "/v1/completions", strings.Replace(body, "}", `,"stream":true}`, 1))
		refused := ask(h, "POST", "/v1/completions", `{"prompt":""}`)
		ask(h, "GET", "/nowhere", "")
		ask(h, "GET", "/v1/completions", "")
		got := values(t, h)
		checkValues(t, got, map[string]string{
			`http_requests_total{handler="/v1/completions",method="POST",status="2xx"}`:    "2.0",
			`http_requests_total{handler="/v1/completions",method="POST",status="4xx"}`:    "1.0",
			`http_requests_total{handler="none",method="GET",status="4xx"}`:                "2.0",
			`http_request_size_bytes_count{handler="/v1/completions"}`:                     "3.0",
			`http_request_size_bytes_sum{handler="/v1/completions"}`:                       fmt.Sprintf("%d.0", 2*len(body)+len(`,"stream":true`)+len(`{"prompt":""}`)),
			`http_request_duration_seconds_count{handler="/v1/completions",method="POST"}`: "3.0",
			"http_request_duration_highr_seconds_count":                                    "5.0",
		})
		// A stream has no Content-Length, the other two answers have.
		var answered int
		if _, err := fmt.Sscanf(got[`http_response_size_bytes_sum{handler="/v1/completions"}`], "%d", &answered); err != nil || answered < refused.Body.Len()+100 {
			t.Errorf("response sizes sum to %d", answered)
		}
	})
}

// BenchmarkPage is one scrape.
func BenchmarkPage(b *testing.B) {
	m := NewMetrics(realConfig(b))
	b.ReportAllocs()
	var page []byte
	for b.Loop() {
		page = m.Page(0)
	}
	b.ReportMetric(float64(bytes.Count(page, []byte("\n"))), "lines")
}

// TestPageAddsUp scrapes while an engine works as fast as it can.
func TestPageAddsUp(t *testing.T) {
	cfg := realConfig(t)
	cfg.Speed = 1000
	e, m, _ := serve(t, cfg)
	for i := range 200 {
		r := &Request{ID: fmt.Sprint(i), PromptLength: 50, OutputLength: 50, MaxTokens: 50, FinishReason: FinishLength}
		if _, err := e.Submit(r); err != nil {
			t.Fatal(err)
		}
	}
	for finished := false; !finished; {
		got := map[string]float64{}
		for _, line := range strings.Split(string(m.Page(0)), "\n") {
			if s := sampleLine.FindStringSubmatch(line); s != nil {
				var v float64
				fmt.Sscan(s[3], &v)
				got[line[:strings.LastIndexByte(line, ' ')]] = v
			}
		}
		const labels = `{engine="0",model_name="tiny"}`
		generated, prompts := got["vllm:generation_tokens_total"+labels], got["vllm:prompt_tokens_total"+labels]
		computed := got[`vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"}`]
		cached := got[`vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_cache_hit"}`]
		first, next := got["vllm:time_to_first_token_seconds_count"+labels], got["vllm:inter_token_latency_seconds_count"+labels]
		if prompts != computed+cached || generated != first+next || prompts != 50*first {
			t.Fatalf("%g prompt tokens of %g+%g, %g tokens of %g+%g", prompts, computed, cached, generated, first, next)
		}
		finished = generated == 200*50
	}
}
