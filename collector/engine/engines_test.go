package engine

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// twoBuckets writes a histogram of two buckets: of n values 2 are below 1, and all are below 10.
func twoBuckets(name, labels string, n, sum string) string {
	inner := ""
	if labels != "" {
		inner, labels = labels+",", "{"+labels+"}"
	}
	return name + "_bucket{" + inner + "le=\"1.0\"} 2\n" + name + "_bucket{" + inner + "le=\"10.0\"} " + n + "\n" +
		name + "_bucket{" + inner + "le=\"+Inf\"} " + n + "\n" + name + "_sum" + labels + " " + sum + "\n" + name + "_count" + labels + " " + n + "\n"
}

// trtllmPage has every name of the table once; PREFIX is replaced.
const trtllmPage = `PREFIXnum_requests_running{L} 24
PREFIXnum_requests_waiting{L} 3
PREFIXnum_paused_requests{L} 1
PREFIXmax_num_active_requests{L} 64
PREFIXmax_batch_size_runtime{L} 48
PREFIXmax_batch_size_static{L} 32
PREFIXmax_num_tokens_runtime{L} 8192
PREFIXkv_cache_utilization{L} 0.25
PREFIXkv_cache_max_blocks{L} 4000
PREFIXkv_cache_free_blocks{L} 3000
PREFIXkv_cache_used_blocks{L} 1000
PREFIXkv_cache_tokens_per_block{L} 32
PREFIXkv_cache_hit_rate{L} 0.4
PREFIXkv_cache_reused_blocks_total{L} 11
PREFIXprompt_tokens_total{L} 10000
PREFIXprompt_cached_tokens_total{L} 2500
PREFIXprompt_cache_hit_tokens_total{L,cache_level="0",cache_tier="gpu"} 2500
PREFIXgeneration_tokens_total{L} 7000
PREFIXrequest_success_total{L,finished_reason="stop"} 30
PREFIXrequest_success_total{L,finished_reason="length"} 12
PREFIXnum_requests_completed_total{L} 43
PREFIXiteration_latency_seconds{L} 0.02
`

// TestTRTLLM reads a page with every name that trtllm-serve exports, in each of its spellings.
func TestTRTLLM(t *testing.T) {
	page := strings.ReplaceAll(trtllmPage, "L}", `engine_type="trtllm",model_name="m"}`)
	page = strings.ReplaceAll(page, "{L,", `{engine_type="trtllm",model_name="m",`)
	for _, h := range []string{"time_to_first_token", "time_per_output_token", "e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time"} {
		page += twoBuckets("PREFIX"+h+"_seconds", `engine_type="trtllm",model_name="m"`, "4", "8.5")
	}
	for _, prefix := range []string{"trtllm_", "trtllm:", ""} {
		t.Run("prefix "+prefix, func(t *testing.T) {
			o := readOnce(t, classic, strings.ReplaceAll(page, "PREFIX", prefix), nil)
			wantState(t, o, StateOK, "")
			if o.Type != TypeTRTLLM || len(o.Reading.Ranks) != 1 || o.Reading.Ranks[0].ModelName != "m" {
				t.Fatalf("type %q, ranks %v", o.Type, o.Reading.Ranks)
			}
			r := &o.Reading.Ranks[0]
			wantValues(t, r, true, map[Signal]float64{
				RequestsRunning: 24, RequestsWaiting: 3, KVCacheUsage: 0.25, KVCacheTokens: 128000, KVCacheTokensUsed: 32000,
				SequenceSlots: 64, BatchedTokenLimit: 8192, PromptTokens: 10000, PromptTokensComputed: 7500, GenerationTokens: 7000,
				RequestsFinished: 42, PrefixCacheQueries: 10000, PrefixCacheHits: 2500, PrefixCacheHitRate: 0.4,
			})
			if r.SequenceSlots != (Limit{64, "metric"}) || r.BatchedTokens != (Limit{8192, "metric"}) || r.TokenSlots != (Limit{128000, "blocks"}) {
				t.Errorf("limits are %v, %v and %v", r.SequenceSlots, r.BatchedTokens, r.TokenSlots)
			}
			for _, h := range []HistogramSignal{TimeToFirstToken, TimePerOutputToken, E2ELatency, QueueTime, PrefillTime, DecodeTime} {
				checkHistogram(t, r, h, histogramCheck{3, 4, 8.5, map[float64]float64{1: 2, 10: 4}})
			}
			if r.Histogram(InterTokenLatency) != nil {
				t.Error("time per output token is taken for the latency between tokens")
			}
		})
	}
	// Names without a prefix are nobody's unless the engine says that they are its own.
	bare := strings.ReplaceAll(strings.ReplaceAll(page, "PREFIX", ""), `engine_type="trtllm",`, "")
	wantState(t, readOnce(t, classic, bare, nil), StateDisabled, "no_engine_families")
	// A model without a name has none. Blocks give the share in use where no gauge does, and none of no blocks.
	for blocks, share := range map[string]float64{"4000": 0.25, "0": math.NaN()} {
		part := strings.ReplaceAll(`trtllm_num_requests_running{L} 1
trtllm_kv_cache_used_blocks{L} 1000
trtllm_kv_cache_max_blocks{L} `+blocks+"\n", "L", `engine_type="undefined",model_name="undefined"`)
		r := &readOnce(t, classic, part, nil).Reading.Ranks[0]
		wantValues(t, r, true, map[Signal]float64{RequestsRunning: 1, KVCacheUsage: share})
		if r.ModelName != "" {
			t.Errorf("model is %q", r.ModelName)
		}
	}
}

// TestTriton reads a page of a newer TensorRT-LLM backend behind an ensemble: only its model is a rank.
func TestTriton(t *testing.T) {
	l := `model="tensorrt_llm",version="1"`
	page := strings.ReplaceAll(`nv_trt_llm_request_metrics{request_type="active",L} 19
nv_trt_llm_request_metrics{request_type="scheduled",L} 16
nv_trt_llm_request_metrics{request_type="waiting",L} 3
nv_trt_llm_request_metrics{request_type="context",L} 2
nv_trt_llm_request_metrics{request_type="max",L} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",L} 1000
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",L} 300
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",L} 700
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",L} 128
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",L} 0.71
nv_trt_llm_general_metrics{general_type="iteration_counter",L} 555
nv_trt_llm_general_metrics{general_type="timestamp",L} 1700074049
nv_inference_request_success{L} 40
nv_inference_request_success{model="ensemble",version="1"} 41
nv_inference_request_success{model="preprocessing",version="1"} 44
nv_inference_request_failure{reason="OTHER",L} 2
nv_inference_pending_request_count{L} 0
nv_inference_request_duration_us{L} 18446744073709551615
nv_gpu_utilization{gpu_uuid="GPU-0"} 0.9
`, "L", l)
	want := map[Signal]float64{
		RequestsRunning: 16, RequestsWaiting: 3, KVCacheUsage: 0.71, KVCacheTokens: 128000, KVCacheTokensUsed: 89600,
		SequenceSlots: 64, RequestsFinished: 40, EngineSteps: 555,
	}
	o := readOnce(t, classic, page, nil)
	wantState(t, o, StateOK, "")
	if o.Type != TypeTriton || len(o.Reading.Ranks) != 1 || o.Reading.Ranks[0].ModelName != "tensorrt_llm" || o.Reading.Ranks[0].Engine != "0" {
		t.Fatalf("type %q, ranks %v", o.Type, o.Reading.Ranks)
	}
	wantValues(t, &o.Reading.Ranks[0], true, want)

	// Two versions of a model are two engines, not one with a sum.
	o = readOnce(t, classic, page+strings.ReplaceAll(page, `version="1"`, `version="2"`), nil)
	if len(o.Reading.Ranks) != 2 || o.Reading.Ranks[0].Engine != "1/0" || o.Reading.Ranks[1].Engine != "2/0" {
		t.Fatalf("ranks are %v", o.Reading.Ranks)
	}
	wantValues(t, &o.Reading.Ranks[1], true, want)

	// The vLLM backend: vLLM's names, Triton's labels, and no default limit, because Triton's is another.
	vllm := strings.ReplaceAll(vllmPage(0, busy("0", 5, 2, 7)), `engine="0",model_name="m"`, `model="llama",version="1"`)
	o = readOnce(t, classic, "nv_inference_request_success{model=\"llama\",version=\"1\"} 9\n"+vllm, nil)
	wantState(t, o, StateOK, "")
	if o.Type != TypeTriton || len(o.Reading.Ranks) != 1 || o.Reading.Ranks[0].ModelName != "llama" {
		t.Fatalf("type %q, ranks %v", o.Type, o.Reading.Ranks)
	}
	r := &o.Reading.Ranks[0]
	wantValues(t, r, false, map[Signal]float64{
		RequestsRunning: 5, RequestsWaiting: 2, KVCacheUsage: 0.5, EngineSteps: 7, KVCacheTokens: 16000, KVCacheTokensUsed: 8000, GenerationTokens: 70,
	})
	checkHistogram(t, r, TimeToFirstToken, histogramCheck{bounds: 3, count: 7, sum: -1})
	if r.SequenceSlots.Known() {
		t.Errorf("sequence slots are %v", r.SequenceSlots)
	}

	// A Triton without a language model is said to be none.
	o = readOnce(t, classic, "nv_inference_request_success{model=\"resnet\",version=\"1\"} 9\nnv_inference_pending_request_count{model=\"resnet\",version=\"1\"} 1\n", nil)
	wantState(t, o, StateStale, "metrics_incomplete")
	if o.Reading != nil {
		t.Errorf("ranks are %v", o.Reading.Ranks)
	}
}

// TestTGI reads a page under load, with the limits that /info tells.
func TestTGI(t *testing.T) {
	page := `tgi_batch_current_size 12

tgi_batch_current_max_tokens 9000

tgi_queue_size 7

tgi_request_success 30

tgi_request_count 52

tgi_request_failure{err="overloaded"} 3

tgi_batch_inference_count{method="prefill"} 25
tgi_batch_inference_count{method="decode"} 900

` + twoBuckets("tgi_request_input_length", "", "4", "800") + twoBuckets("tgi_request_generated_tokens", "", "4", "600") +
		twoBuckets("tgi_request_duration", "", "4", "12") + twoBuckets("tgi_request_queue_duration", "", "4", "5") +
		twoBuckets("tgi_request_mean_time_per_token_duration", "", "4", "3") +
		twoBuckets("tgi_batch_forward_duration", `method="prefill"`, "4", "2.5") + twoBuckets("tgi_batch_forward_duration", `method="decode"`, "9", "8")
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		e.metrics = serve(classic, page)
		e.paths["/info"] = serve("application/json", `{"model_id":"m","max_total_tokens":4096,"max_batch_total_tokens":36000,"max_batch_size":null,"version":"3.3.6"}`)
		p := e.poller(t, nil)
		o := e.poll(t, p)
		wantState(t, o, StateOK, "")
		r := &o.Reading.Ranks[0]
		wantValues(t, r, true, map[Signal]float64{
			RequestsRunning: 12, RequestsWaiting: 7, KVCacheTokensUsed: 9000, PromptTokens: 800, GenerationTokens: 600,
			RequestsFinished: 30, EngineSteps: 925,
		})
		if o.Type != TypeTGI || r.TokenSlots != (Limit{36000, "server_info"}) || r.SequenceSlots.Known() || o.MaxModelLen != 4096 {
			t.Errorf("type %q, token slots %v, sequence slots %v, max_model_len %d", o.Type, r.TokenSlots, r.SequenceSlots, o.MaxModelLen)
		}
		for h, sum := range map[HistogramSignal]float64{E2ELatency: 12, QueueTime: 5, TimePerOutputToken: 3, PrefillTime: 2.5, PromptLength: 800, GenerationLength: 600} {
			checkHistogram(t, r, h, histogramCheck{3, 4, sum, map[float64]float64{1: 2, 10: 4}})
		}
		if r.Histogram(DecodeTime) != nil {
			t.Error("the time of a step is taken for that of a request")
		}
		if o = e.poll(t, p); o.Version != "3.3.6" {
			t.Errorf("version is %q", o.Version)
		}
	})
}

// TestEngineReports has the reports of users that concern engines other than vLLM and SGLang.
func TestEngineReports(t *testing.T) {
	t.Run("row 17", func(t *testing.T) { // llama.cpp's API key guards its metrics page too
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			e.metrics = func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "Bearer key" {
					w.WriteHeader(401)
					return
				}
				serve(classic, "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n")(w, r)
			}
			e.paths["/prometheus/metrics"] = status(401)
			wantState(t, e.poll(t, e.poller(t, nil)), StateStale, "unauthorized")
			token := writeFile(t, "token", "key\n")
			wantState(t, e.poll(t, e.poller(t, func(c *Config) { c.BearerTokenFile = token })), StateOK, "")
		})
	})

	t.Run("row 19", func(t *testing.T) { // llama.cpp's server stalls when it has to pack its page
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			e.metrics = serve(classic, "llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n")
			p := e.poller(t, func(c *Config) { c.Type, c.Interval = TypeLlamaCpp, 5*time.Second })
			begin := time.Now()
			for range 12 {
				wantState(t, e.poll(t, p), StateIdle, "")
			}
			if n := e.count("/metrics"); n != 12 || time.Since(begin) != time.Minute {
				t.Errorf("asked %d times in %v", n, time.Since(begin))
			}
			if got := e.header.Get("Accept-Encoding"); got != "identity" {
				t.Errorf("encoding asked for is %q", got)
			}
		})
	})

	t.Run("row 21", func(t *testing.T) { // llama.cpp has no KV cache usage any more
		o := readOnce(t, classic, "llamacpp:requests_processing 3\nllamacpp:requests_deferred 0\nllamacpp:n_decode_total 9\n", nil)
		wantState(t, o, StateOK, "")
		wantValues(t, &o.Reading.Ranks[0], true, map[Signal]float64{RequestsRunning: 3, RequestsWaiting: 0, EngineSteps: 9})
		for signal, never := range map[string]bool{"kv_cache_usage": true, "kv_cache_tokens_used": true, "time_to_first_token": true, "generation_tokens": false} {
			if available, listed := o.Available[signal]; available || !listed {
				t.Errorf("%s: available %v, listed %v", signal, available, listed)
			}
			if o.Type.Gives(signal) == never {
				t.Errorf("%s: gives %v", signal, !never)
			}
		}
	})

	t.Run("row 24", func(t *testing.T) { // Triton's durations are absurd, and families may be missing
		page := `nv_inference_request_duration_us{model="m",version="1"} 18446744073709551615
nv_inference_request_success{model="m",version="1"} 3
nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 2
nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} -1
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m",version="1"} 1.7
`
		o := readOnce(t, classic, page, nil)
		wantState(t, o, StateOK, "")
		wantValues(t, &o.Reading.Ranks[0], true, map[Signal]float64{RequestsRunning: 2, RequestsFinished: 3})
		if o.Stats.RejectedSamples != 2 || o.Available["requests_waiting"] || o.Available["e2e_latency"] {
			t.Errorf("%d rejected, available %v", o.Stats.RejectedSamples, o.Available)
		}
	})

	t.Run("row 26", func(t *testing.T) { // TGI's health check fails when its queue is full
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			page := "tgi_batch_current_size 8\ntgi_queue_size 128\ntgi_request_skipped_tokens{quantile=\"0.5\"} 0\ntgi_request_skipped_tokens_sum 0\n"
			e.metrics, e.health = serve(classic, page), status(503)
			p := e.poller(t, nil)
			wantState(t, e.poll(t, p), StateOK, "")
			e.metrics = status(500)
			o := e.poll(t, p)
			wantState(t, o, StateStale, "http_500") // of any other engine this is the end
			e.metrics = status(500)
			e.health = status(500)
			wantState(t, e.poll(t, p), StateDown, "http_500")
		})
	})
}

func TestGives(t *testing.T) {
	if got := TypeNames(); !slices.Equal(got, []string{"llamacpp", "ray", "sglang", "tgi", "triton", "trtllm", "vllm"}) {
		t.Errorf("types are %v", got)
	}
	for _, test := range []struct {
		engine Type
		name   string
		want   bool
	}{
		{TypeVLLM, "kv_cache_tokens_used", true}, // from the share in use and the capacity
		{TypeVLLM, "inter_token_latency", true}, {TypeVLLM, "sequence_slots", false},
		{TypeTRTLLM, "sequence_slots", true}, {TypeTRTLLM, "inter_token_latency", false}, {TypeTRTLLM, "preemptions", false},
		{TypeTriton, "sequence_slots", true}, {TypeTGI, "kv_cache_usage", false}, {TypeTGI, "kv_cache_tokens_used", true},
		{TypeLlamaCpp, "requests_running", true}, {TypeLlamaCpp, "requests_finished", false},
		{TypeUnknown, "sequence_slots", true}, {TypeUnknown, "no_such_signal", false}, {"mlx", "requests_running", false},
	} {
		if got := test.engine.Gives(test.name); got != test.want {
			t.Errorf("%q gives %s: %v", test.engine, test.name, got)
		}
	}
}

// TestSGLangPromptWork: what was computed, from whichever counters the version has.
func TestSGLangPromptWork(t *testing.T) {
	l := `{model_name="m"} `
	page := "sglang:num_running_reqs" + l + "1\nsglang:num_queue_reqs" + l + "0\nsglang:prompt_tokens_total" + l + "900\n"
	cached := "sglang:cached_tokens_total{cache_source=\"device\",model_name=\"m\"} 200\nsglang:cached_tokens_total{cache_source=\"host\",model_name=\"m\"} 100\n"
	effective := "sglang:prefill_effective_tokens_total{mode=\"input\",model_name=\"m\"} 610\n"
	for more, want := range map[string]float64{"": math.NaN(), cached: 600, cached + effective: 610} {
		r := &readOnce(t, classic, page+more, nil).Reading.Ranks[0]
		wantValues(t, r, false, map[Signal]float64{PromptTokens: 900, PromptTokensComputed: want})
	}
}

// TestLongRequestsAreNoFreeze: an engine whose counters rise when a request ends
// works in between as long as its cache fills, and hangs when that stands too.
func TestLongRequestsAreNoFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, nil)
		poll := func(blocks int) Observation {
			e.paths["/prometheus/metrics"] = serve(classic, strings.ReplaceAll(fmt.Sprintf(`trtllm_num_requests_running{L} 1
trtllm_num_requests_waiting{L} 0
trtllm_kv_cache_used_blocks{L} %d
trtllm_kv_cache_max_blocks{L} 1000
trtllm_generation_tokens_total{L} 500
`, blocks), "L", `engine_type="trtllm",model_name="m"`))
			return e.poll(t, p)
		}
		for second := range 60 { // a block of 32 tokens every 10 s
			wantState(t, poll(100+second/10), StateOK, "")
		}
		for range 20 {
			poll(106)
		}
		wantState(t, poll(106), StateStale, "gauges_frozen")
	})
}
