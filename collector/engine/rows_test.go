package engine

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestReports has a subtest for every report of users that would break a collector.
func TestReports(t *testing.T) {
	rust := map[Signal]float64{
		RequestsRunning: 3, RequestsWaiting: 2, KVCacheUsage: 0.25, PromptTokens: 700, PromptTokensComputed: 600,
		GenerationTokens: 90, EstimatedReadBytes: 5000,
	}

	t.Run("row 1", func(t *testing.T) { // OpenMetrics whatever the Accept header says
		o := readOnce(t, openMetrics, rustPage, nil)
		wantState(t, o, StateOK, "")
		r := &o.Reading.Ranks[0]
		wantValues(t, r, true, rust)
		checkHistogram(t, r, TimeToFirstToken, histogramCheck{3, 4, 1.5, map[float64]float64{0.1: 1, 2.5: 4}})

		o = readOnce(t, openMetrics, strings.TrimSuffix(rustPage, "# EOF\n"), nil)
		wantState(t, o, StateStale, "malformed") // every sample was there, but not the end
		if o.Reading != nil {
			t.Error("a page without its end was used")
		}
		// The same text said to be classic is read as well: # EOF is a comment there.
		o = readOnce(t, classic, rustPage, nil)
		wantValues(t, &o.Reading.Ranks[0], true, rust)
	})

	t.Run("row 2", func(t *testing.T) { // a colon that became an underscore
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			e.metrics = serve(classic, strings.ReplaceAll(rustPage, "vllm:", "vllm_"))
			o := e.poll(t, e.poller(t, nil))
			wantValues(t, &o.Reading.Ranks[0], true, rust)
			if got := e.header.Get("Accept"); got != "text/plain;version=0.0.4" {
				t.Errorf("asked for %q", got)
			}
		})
		o := readOnce(t, classic, strings.ReplaceAll(capture(t, "sglang-0.4-loaded.prom"), "sglang:", "sglang_"), nil)
		if o.Type != TypeSGLang {
			t.Errorf("type is %q", o.Type)
		}
		wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{RequestsRunning: 162, GenerationTokens: 7557572})
	})

	t.Run("row 3", func(t *testing.T) { // gauges frozen after a mass abort
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			p := e.poller(t, nil)
			stuck := load{engine: "0", running: 40, waiting: 9, usage: 0.99, prompt: 5000, generation: 800, steps: 50, awake: 1}
			e.metrics = serve(classic, vllmPage(1000, stuck))
			begin := time.Now()
			var o Observation
			for o = e.poll(t, p); o.State == StateOK; o = e.poll(t, p) {
				if time.Since(begin) > 30*time.Second {
					t.Fatal("never stale")
				}
			}
			wantState(t, o, StateStale, "gauges_frozen")
			// The poll at 16 s is the first more than 15 s after the first.
			if at := o.At.Sub(begin); at != 16*time.Second {
				t.Errorf("stale after %v", at)
			}
			if o.State.Known() || o.Reading.Ranks[0].State != StateStale {
				t.Error("headroom would be published")
			}
			stuck.generation++
			e.metrics = serve(classic, vllmPage(1000, stuck))
			wantState(t, e.poll(t, p), StateOK, "")
		})
	})

	t.Run("row 4", func(t *testing.T) { // SGLang's gauges stand for 30 s after the last request
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			p := e.poller(t, nil)
			page := func(running int) string {
				return fmt.Sprintf("sglang:num_running_reqs{model_name=\"m\"} %d\nsglang:num_queue_reqs{model_name=\"m\"} 0\nsglang:generation_tokens_total{model_name=\"m\"} 500\n", running)
			}
			e.metrics = serve(classic, page(7))
			var o Observation
			for range 30 {
				o = e.poll(t, p)
				if o.State == StateIdle {
					t.Fatal("idle while seven requests run")
				}
			}
			wantState(t, o, StateStale, "gauges_frozen")
			e.metrics = serve(classic, page(0))
			wantState(t, e.poll(t, p), StateIdle, "")
		})
	})

	t.Run("row 5", func(t *testing.T) { // blocks * block size is not the capacity of hybrid models
		info := `vllm:num_requests_running{engine="0",model_name="m"} 1
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:cache_config_info{block_size="4",engine="0",%snum_gpu_blocks="30000"} 1.0
`
		o := readOnce(t, classic, fmt.Sprintf(info, `kv_cache_size_tokens="1000000",`), nil)
		if got := o.Reading.Ranks[0].TokenSlots; got != (Limit{1e6, "metric"}) {
			t.Errorf("token slots are %v", got)
		}
		wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{KVCacheTokensUsed: 5e5})
		o = readOnce(t, classic, fmt.Sprintf(info, ""), nil)
		if got := o.Reading.Ranks[0].TokenSlots; got != (Limit{120000, "blocks"}) {
			t.Errorf("token slots are %v", got)
		}
		o = readOnce(t, classic, fmt.Sprintf(info, ""), func(c *Config) { c.KVTokens = 900000 })
		if got := o.Reading.Ranks[0].TokenSlots; got != (Limit{900000, "flag"}) {
			t.Errorf("token slots are %v", got)
		}
	})

	t.Run("row 6", func(t *testing.T) { // "None" is unknown, not zero
		for _, blocks := range []string{"None", "", "0", "NaN", "-1"} {
			o := readOnce(t, classic, fmt.Sprintf(`vllm:num_requests_running{engine="0",model_name="m"} 1
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:cache_config_info{block_size="16",engine="0",kv_cache_size_tokens=%q,num_gpu_blocks=%q} 1.0
`, blocks, blocks), nil)
			r := &o.Reading.Ranks[0]
			if r.TokenSlots.Known() || !math.IsNaN(r.TokenSlots.Value) || r.TokenSlots.Source != "" {
				t.Errorf("with %q token slots are %v", blocks, r.TokenSlots)
			}
			wantValues(t, r, false, map[Signal]float64{KVCacheTokens: math.NaN(), KVCacheTokensUsed: math.NaN()})
		}
	})

	t.Run("row 7", func(t *testing.T) { // requests that were aborted are in no finish reason
		o := readOnce(t, classic, capture(t, "vllm-0.32-prefix-abort.prom"), nil)
		r := &o.Reading.Ranks[0]
		if first, finished := r.Histogram(TimeToFirstToken).Count, r.Value(RequestsFinished); first-finished != 1 {
			t.Errorf("%v first tokens, %v finished: the aborted request is lost", first, finished)
		}
	})

	t.Run("row 8", func(t *testing.T) { // the engine's death
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			p := e.poller(t, nil)
			e.metrics = serve(classic, vllmPage(1000, busy("0", 2, 0, 1)))
			wantState(t, e.poll(t, p), StateOK, "")
			e.metrics, e.health = status(503), status(503)
			for range 3 { // dead behind a server that still answers is not loading
				wantState(t, e.poll(t, p), StateDown, "http_503")
			}
			e.refused = true
			p.client.close()
			o := e.poll(t, p)
			wantState(t, o, StateDown, "connection_refused")
			if o.Stats.Failures["http_503"] != 3 || o.Stats.Failures["connection_refused"] != 1 || o.Stats.Polls != 5 {
				t.Errorf("stats are %+v", o.Stats)
			}
		})
	})

	t.Run("row 9", func(t *testing.T) { // the page fails, inference does not
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			p := e.poller(t, nil)
			e.metrics = serve(classic, vllmPage(1000, busy("0", 2, 0, 1)))
			good := e.poll(t, p)
			e.metrics = status(500)
			o := e.poll(t, p)
			wantState(t, o, StateStale, "http_500")
			if o.Reading != good.Reading || o.Fresh {
				t.Error("the last reading is not kept, or said to be fresh")
			}
			if n := e.count("/health"); n != 1 {
				t.Errorf("/health was asked %d times", n)
			}
		})
	})

	t.Run("row 10", func(t *testing.T) { // statistics switched off
		help := "# HELP vllm:num_requests_running Number of requests.\n# TYPE vllm:num_requests_running gauge\n"
		for body, reason := range map[string]string{
			"":   "empty_page",
			help: "empty_page",
			help + "http_requests_total{handler=\"/v1/models\"} 1\npython_info 1\nprocess_start_time_seconds 1000\n": "no_engine_families",
		} {
			o := readOnce(t, classic, body, nil)
			wantState(t, o, StateDisabled, reason)
			if o.Reading != nil || o.Fresh {
				t.Errorf("page %q gave a reading", body)
			}
		}
	})

	t.Run("row 11", func(t *testing.T) { // counters that go back for one scrape
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			p := e.poller(t, nil)
			var got []float64
			var o Observation
			for _, work := range []float64{100, 60, 110, 120, 5, 7, 9} { // a glitch, then a restart
				e.metrics = serve(classic, vllmPage(0, busy("0", 2, 0, work)))
				o = e.poll(t, p)
				got = append(got, o.Reading.Ranks[0].Value(EngineSteps))
			}
			want := []float64{100, 100, 110, 120, 120, 127, 129}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("steps are %v, want %v", got, want)
			}
			if o.Stats.CounterResets != 1 {
				t.Errorf("%d resets", o.Stats.CounterResets)
			}
			if h := o.Reading.Ranks[0].Histogram(TimeToFirstToken); h.Count != 129 || h.Counts[0] != 129 {
				t.Errorf("first tokens are %v", h)
			}
		})
	})

	t.Run("row 12", func(t *testing.T) { // ranks out of balance
		o := readOnce(t, classic, vllmPage(0, busy("1", 3, 2, 5), busy("0", 8, 117, 9), busy("10", 1, 0, 1), busy("2", 1, 0, 1)), nil)
		var order []string
		for _, r := range o.Reading.Ranks {
			order = append(order, r.Engine)
		}
		if fmt.Sprint(order) != "[0 1 2 10]" {
			t.Fatalf("ranks are %v", order)
		}
		wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{RequestsRunning: 8, RequestsWaiting: 117, EngineSteps: 9})
		wantValues(t, &o.Reading.Ranks[1], false, map[Signal]float64{RequestsRunning: 3, RequestsWaiting: 2, EngineSteps: 5})
	})

	t.Run("row 13", func(t *testing.T) { // several tokens a step with speculative decoding
		o := readOnce(t, classic, capture(t, "vllm-0.32-loaded-queued.prom")+
			"vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"tiny\"} 321\n"+
			"vllm:spec_decode_num_draft_tokens_total{engine=\"0\",model_name=\"tiny\"} 963\n"+
			"vllm:spec_decode_num_accepted_tokens_total{engine=\"0\",model_name=\"tiny\"} 642\n", nil)
		r := &o.Reading.Ranks[0]
		wantValues(t, r, false, map[Signal]float64{SpeculativeDrafts: 321, SpeculativeAccepted: 642})
		if r.Histogram(TimePerOutputToken) == r.Histogram(InterTokenLatency) || r.Histogram(TimePerOutputToken).Count != 136 {
			t.Error("time per output token is not a signal of its own")
		}
		o = readOnce(t, classic, capture(t, "sglang-0.4-loaded.prom")+"sglang:spec_accept_length{model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} 2.9\n", nil)
		wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{SpeculativeLength: 2.9, SpeculativeDrafts: math.NaN()})
	})

	t.Run("row 14", func(t *testing.T) { // full at a low cache usage
		o := readOnce(t, classic, capture(t, "vllm-0.32-prefilling-queued.prom"), nil)
		wantState(t, o, StateOK, "")
		wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{RequestsRunning: 1, RequestsWaiting: 23, KVCacheUsage: 0.0004883110541414881})
	})

	t.Run("row 15", func(t *testing.T) { // one LoRA series for every combination that ever was
		page := vllmPage(0, busy("0", 1, 0, 1)) + capture(t, "vllm-lora-info.prom")
		o := readOnce(t, classic, page, nil)
		// The newest of the three says one adapter runs.
		wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{LoRAAdapters: 1, LoRASlots: 1})
		var b strings.Builder
		for i := range 3000 {
			fmt.Fprintf(&b, "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a,b,c%d\",waiting_lora_adapters=\"\"} %d\n", i, 1000+i)
		}
		fmt.Fprintf(&b, "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 9000\n")
		o = readOnce(t, classic, vllmPage(0, busy("0", 1, 0, 1))+b.String(), nil)
		wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{RequestsRunning: 1, LoRAAdapters: 0, LoRASlots: 4})
	})

	t.Run("row 16", func(t *testing.T) { // the same sample twice
		o := readOnce(t, classic, vllmPage(0, busy("0", 1, 0, 1))+"vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 5\n", nil)
		wantState(t, o, StateOK, "")
		wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{RequestsRunning: 5, EngineSteps: 1})
		if o.Stats.DuplicateSamples != 1 {
			t.Errorf("%d duplicates", o.Stats.DuplicateSamples)
		}
	})

	t.Run("row 17", func(t *testing.T) { // a page behind a token
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			token := filepath.Join(t.TempDir(), "token")
			write := func(s string) {
				if err := os.WriteFile(token, []byte(s), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("old\n")
			p := e.poller(t, func(c *Config) { c.BearerTokenFile = token })
			e.metrics = func(w http.ResponseWriter, r *http.Request) {
				switch r.Header.Get("Authorization") {
				case "Bearer new":
					serve(classic, vllmPage(0, busy("0", 1, 0, 1)))(w, r)
				case "Bearer other":
					w.WriteHeader(403)
				default:
					w.WriteHeader(401)
				}
			}
			o := e.poll(t, p)
			wantState(t, o, StateStale, "unauthorized")
			if !strings.Contains(o.Err.Error(), "--engine.bearer-token-file") || strings.Contains(o.Err.Error(), "old") {
				t.Errorf("error is %v", o.Err)
			}
			write("other")
			wantState(t, e.poll(t, p), StateStale, "unauthorized")
			write("new")
			wantState(t, e.poll(t, p), StateOK, "")
			if err := os.Remove(token); err != nil {
				t.Fatal(err)
			}
			wantState(t, e.poll(t, p), StateStale, "credentials_unreadable")
		})
	})

	t.Run("row 18", func(t *testing.T) { // a page that starves the engine's loop
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			p := e.poller(t, nil)
			e.metrics = serve(classic, vllmPage(0, busy("0", 1, 0, 1)))
			e.poll(t, p)
			e.metrics = hang
			before := e.count("/metrics")
			var o Observation
			for range 20 {
				o = e.poll(t, p)
			}
			wantState(t, o, StateStale, "timeout") // /health still answers
			if o.Duration != 800*time.Millisecond {
				t.Errorf("the request took %v", o.Duration)
			}
			// Four tries, then every second poll.
			if n := e.count("/metrics") - before; n != 12 {
				t.Errorf("asked %d times in 20 polls", n)
			}
			if e.peak != 1 {
				t.Errorf("%d requests at once", e.peak)
			}
		})
	})

	t.Run("row 19", func(t *testing.T) { // a server that gzip and fast scrapes stall
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			p := e.poller(t, func(c *Config) { c.Interval = 5 * time.Second })
			e.metrics = serve(classic, vllmPage(0, busy("0", 1, 0, 1)))
			e.poll(t, p)
			if got := e.header.Get("Accept-Encoding"); got != "identity" {
				t.Errorf("encoding asked for is %q", got)
			}
			if p.config.Timeout != 4*time.Second {
				t.Errorf("timeout is %v", p.config.Timeout)
			}
		})
	})

	t.Run("row 20", func(t *testing.T) { // a /metrics that is a queue and empties when read
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			e.metrics = serve("application/json", "[]")
			e.paths["/prometheus/metrics"] = serve(classic, "trtllm_num_requests_running{model_name=\"m\"} 4\ntrtllm_num_requests_waiting{model_name=\"m\"} 1\n")
			p := e.poller(t, func(c *Config) { c.Type = TypeTRTLLM })
			for range 3 {
				o := e.poll(t, p)
				wantState(t, o, StateOK, "")
				wantValues(t, &o.Reading.Ranks[0], true, map[Signal]float64{RequestsRunning: 4, RequestsWaiting: 1})
			}
			if n := e.count("/metrics"); n != 0 {
				t.Errorf("/metrics was asked %d times", n)
			}
			// Without its Prometheus page: the way out is in the error.
			delete(e.paths, "/prometheus/metrics")
			o := e.poll(t, e.poller(t, nil))
			wantState(t, o, StateStale, "not_metrics")
			if !strings.Contains(o.Err.Error(), "/prometheus/metrics") {
				t.Errorf("error is %v", o.Err)
			}
		})
	})

	t.Run("row 21", func(t *testing.T) { // a metric that was removed
		page := strings.ReplaceAll(vllmPage(0, busy("0", 1, 0, 1)), "vllm:kv_cache_usage_perc", "vllm:renamed_again")
		o := readOnce(t, classic, page, nil)
		wantState(t, o, StateOK, "")
		wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{KVCacheUsage: math.NaN(), KVCacheTokensUsed: math.NaN(), KVCacheTokens: 16000})
		if available, listed := o.Available["kv_cache_usage"]; available || !listed {
			t.Error("the missing signal is not visible")
		}
		if !o.Available["requests_running"] || len(o.Available) != int(numSignals)+int(numHistograms) {
			t.Errorf("available is %v", o.Available)
		}
	})

	t.Run("row 22", func(t *testing.T) { // Ray's names, and several replicas on one page
		line := func(prefix, name, replica string, value float64) string {
			return fmt.Sprintf("%s%s{ReplicaId=%q,WorkerId=\"w-%s\",engine=\"0\",model_name=\"m\"} %v\n", prefix, name, replica, replica, value)
		}
		page := func(prefix string) string {
			return line(prefix, "num_requests_running", "r1", 3) + line(prefix, "num_requests_waiting", "r1", 0) +
				line(prefix, "num_requests_running", "r2", 5) + line(prefix, "num_requests_waiting", "r2", 7) +
				line(prefix, "generation_tokens", "r1", 900) + line(prefix, "generation_tokens_total", "r1", 100) +
				line(prefix, "generation_tokens", "r2", 40)
		}
		for _, prefix := range []string{"ray_vllm:", "ray_vllm_"} {
			o := readOnce(t, classic, page(prefix), nil)
			if o.Type != TypeRay || len(o.Reading.Ranks) != 2 {
				t.Fatalf("type %q, ranks %v", o.Type, o.Reading.Ranks)
			}
			one, two := &o.Reading.Ranks[0], &o.Reading.Ranks[1]
			if one.Engine != "r1/0" || two.Engine != "r2/0" {
				t.Errorf("ranks are %q and %q", one.Engine, two.Engine)
			}
			wantValues(t, one, true, map[Signal]float64{RequestsRunning: 3, RequestsWaiting: 0, GenerationTokens: 100}) // _total wins
			wantValues(t, two, true, map[Signal]float64{RequestsRunning: 5, RequestsWaiting: 7, GenerationTokens: 40})

			o = readOnce(t, classic, page(prefix), func(c *Config) { c.ReplicaID = "r2" })
			if len(o.Reading.Ranks) != 1 || o.Reading.Ranks[0].Engine != "0" {
				t.Fatalf("ranks are %v", o.Reading.Ranks)
			}
			wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{RequestsRunning: 5})
		}
	})

	t.Run("row 23", func(t *testing.T) { // a router that uses the engine's names
		o := readOnce(t, classic, `vllm:num_requests_running{server="http://pod-a:8000"} 4
vllm:num_requests_running{server="http://pod-b:8000"} 6
vllm:current_qps{server="http://pod-a:8000"} 2
vllm:healthy_pods_total{server="http://pod-a:8000"} 1
`, nil)
		wantState(t, o, StateDisabled, "router_page")
		if o.Reading != nil || !strings.Contains(o.Err.Error(), "router") {
			t.Errorf("reading %v, err %v", o.Reading, o.Err)
		}
	})

	t.Run("row 24", func(t *testing.T) { // numbers that cannot be
		o := readOnce(t, classic, `vllm:num_requests_running{engine="0",model_name="m"} -3
vllm:num_requests_waiting{engine="0",model_name="m"} NaN
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 99
vllm:generation_tokens_total{engine="0",model_name="m"} +Inf
vllm:prompt_tokens_total{engine="0",model_name="m"} 12
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 5
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 3
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 3
vllm:request_decode_time_seconds_bucket{engine="0",le="+Inf",model_name="m"} 3
vllm:request_decode_time_seconds_sum{engine="0",model_name="m"} NaN
vllm:request_decode_time_seconds_count{engine="0",model_name="m"} 3
`, nil)
		r := &o.Reading.Ranks[0]
		wantState(t, o, StateStale, "metrics_incomplete")
		wantValues(t, r, true, map[Signal]float64{PromptTokens: 12})
		if r.Histogram(TimeToFirstToken) != nil || r.Histogram(DecodeTime) != nil {
			t.Error("an impossible histogram was taken")
		}
		if o.Stats.RejectedSamples != 4 {
			t.Errorf("%d rejected", o.Stats.RejectedSamples)
		}
	})

	t.Run("row 25", func(t *testing.T) { // SGLang 0.5.1 exports part of the list
		o := readOnce(t, classic, "sglang:num_running_reqs{model_name=\"m\"} 2\nsglang:num_queue_reqs{model_name=\"m\"} 1\nsglang:num_grammar_queue_reqs{model_name=\"m\"} 3\n", nil)
		wantState(t, o, StateOK, "")
		wantValues(t, &o.Reading.Ranks[0], true, map[Signal]float64{RequestsRunning: 2, RequestsWaiting: 4})
		for name, available := range o.Available {
			if want := name == "requests_running" || name == "requests_waiting"; available != want {
				t.Errorf("available says %v of %s", available, name)
			}
		}
	})

	t.Run("row 26", func(t *testing.T) { // a health check that fails because the queue is full
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			e.metrics, e.health = serve(classic, vllmPage(0, busy("0", 8, 500, 1))), status(503)
			wantState(t, e.poll(t, e.poller(t, nil)), StateOK, "")
			if n := e.count("/health"); n != 0 {
				t.Errorf("/health was asked %d times although the page was good", n)
			}
		})
	})
}
