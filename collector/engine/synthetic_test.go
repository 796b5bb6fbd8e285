package engine

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestBothNames: 0.9.2 to 0.10.2 exported renamed metrics under both names.
func TestBothNames(t *testing.T) {
	l := `engine="0",model_name="m"`
	o := readOnce(t, classic, strings.ReplaceAll(`vllm:num_requests_running{L} 1
vllm:num_requests_waiting{L} 0
vllm:gpu_cache_usage_perc{L} 0.4
vllm:kv_cache_usage_perc{L} 0.4
vllm:gpu_prefix_cache_queries_total{L} 100
vllm:prefix_cache_queries_total{L} 100
vllm:gpu_prefix_cache_hits_total{L} 25
vllm:prefix_cache_hits_total{L} 25
vllm:time_per_output_token_seconds_bucket{L,le="+Inf"} 9
vllm:time_per_output_token_seconds_sum{L} 0.9
vllm:time_per_output_token_seconds_count{L} 9
vllm:inter_token_latency_seconds_bucket{L,le="+Inf"} 9
vllm:inter_token_latency_seconds_sum{L} 0.9
vllm:inter_token_latency_seconds_count{L} 9
`, "L", l), nil)
	r := &o.Reading.Ranks[0]
	wantValues(t, r, true, map[Signal]float64{
		RequestsRunning: 1, RequestsWaiting: 0, KVCacheUsage: 0.4, PrefixCacheQueries: 100, PrefixCacheHits: 25,
	})
	checkHistogram(t, r, InterTokenLatency, histogramCheck{bounds: 1, count: 9, sum: 0.9})
}

// TestMultiprocess: eight ranks behind several API servers, without process
// series, with one usage series per process.
func TestMultiprocess(t *testing.T) {
	var b strings.Builder
	for rank := range 8 {
		l := fmt.Sprintf("engine=\"%d\",model_name=\"m\"", rank)
		fmt.Fprintf(&b, "vllm:num_requests_running{%s} %d\nvllm:num_requests_waiting{%s} 0\nvllm:generation_tokens_total{%s} %d\n", l, rank+1, l, l, 100*rank)
		for pid := range 3 {
			fmt.Fprintf(&b, "vllm:kv_cache_usage_perc{%s,pid=\"%d\"} %v\n", l, 70+pid, float64(pid)/10)
		}
	}
	o := readOnce(t, classic, b.String(), nil)
	wantState(t, o, StateOK, "")
	if len(o.Reading.Ranks) != 8 {
		t.Fatalf("%d ranks", len(o.Reading.Ranks))
	}
	for i := range o.Reading.Ranks {
		wantValues(t, &o.Reading.Ranks[i], true, map[Signal]float64{
			RequestsRunning: float64(i + 1), RequestsWaiting: 0, KVCacheUsage: 0.2, GenerationTokens: float64(100 * i),
		})
	}
}

// TestSumsAndDuplicates: reasons are summed, and a counter's own labels do not split it.
func TestSumsAndDuplicates(t *testing.T) {
	o := readOnce(t, classic, `vllm:num_requests_running{engine="0",model_name="m"} 1
vllm:num_requests_waiting{engine="0",model_name="m"} 5
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 4
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 1
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 4
vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 5
vllm:request_success_created{engine="0",finished_reason="stop",model_name="m"} 1.7e9
vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 8
`, nil)
	if len(o.Reading.Ranks) != 1 { // admission_rejections_total has no rank and makes none
		t.Fatalf("ranks are %v", o.Reading.Ranks)
	}
	wantValues(t, &o.Reading.Ranks[0], true, map[Signal]float64{RequestsRunning: 1, RequestsWaiting: 5, RequestsFinished: 12})
}

// TestSeriesWithoutRank: they belong to the only rank, and with several to none.
func TestSeriesWithoutRank(t *testing.T) {
	shared := "vllm:generation_tokens_total{model_name=\"m\"} 77\nvllm:cache_config_info{kv_cache_size_tokens=\"4096\"} 1\n"
	one := "vllm:num_requests_running{engine=\"3\",model_name=\"m\"} 1\n"
	two := "vllm:num_requests_running{engine=\"4\",model_name=\"m\"} 2\n"
	o := readOnce(t, classic, shared+one, nil)
	if len(o.Reading.Ranks) != 1 || o.Reading.Ranks[0].Engine != "3" {
		t.Fatalf("ranks are %v", o.Reading.Ranks)
	}
	wantValues(t, &o.Reading.Ranks[0], true, map[Signal]float64{RequestsRunning: 1, GenerationTokens: 77, KVCacheTokens: 4096})
	o = readOnce(t, classic, shared+one+two, nil)
	if len(o.Reading.Ranks) != 2 {
		t.Fatalf("ranks are %v", o.Reading.Ranks)
	}
	for i := range 2 {
		wantValues(t, &o.Reading.Ranks[i], true, map[Signal]float64{RequestsRunning: float64(i + 1), KVCacheTokens: 4096})
	}
}

// TestSGLangLabels: tensor-parallel ranks repeat numbers, data-parallel ranks
// do not, and series with a priority are parts of the one without.
func TestSGLangLabels(t *testing.T) {
	var b strings.Builder
	for dp := range 2 {
		for tp := range 4 {
			l := fmt.Sprintf("dp_rank=\"%d\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"%d\",pp_rank=\"0\",tp_rank=\"%d\"", dp, tp, tp)
			fmt.Fprintf(&b, "sglang:num_running_reqs{%s,priority=\"\"} %d\n", l, 4+dp)
			fmt.Fprintf(&b, "sglang:num_running_reqs{%s,priority=\"1\"} 3\nsglang:num_running_reqs{%s,priority=\"2\"} %d\n", l, l, 1+dp)
			fmt.Fprintf(&b, "sglang:num_queue_reqs{%s} %d\n", l, dp)
			fmt.Fprintf(&b, "sglang:token_usage{%s} 0.%d\nsglang:max_total_num_tokens{%s} 9000\nsglang:kv_used_tokens{%s} %d\n", l, dp+1, l, l, 900*(dp+1))
			for mode, n := range map[string]int{"prefill_compute": 100, "prefill_cache": 900, "decode": 50} {
				fmt.Fprintf(&b, "sglang:realtime_tokens_total{%s,mode=%q} %d\n", l, mode, n*(dp+1))
			}
			for mode, n := range map[string]int{"input": 10, "device_hit": 30, "host_hit": 15, "storage_hit": 5} {
				fmt.Fprintf(&b, "sglang:prefill_effective_tokens_total{%s,mode=%q} %d\n", l, mode, n)
			}
			fmt.Fprintf(&b, "sglang:cuda_graph_passes_total{%s,mode=\"decode_cuda_graph\"} 8\nsglang:cuda_graph_passes_total{%s,mode=\"prefill_none\"} 2\n", l, l)
		}
	}
	// The tokenizer's series know no rank.
	b.WriteString("sglang:generation_tokens_total{engine_type=\"unified\",model_name=\"m\"} 7\n")
	o := readOnce(t, classic, b.String(), nil)
	if len(o.Reading.Ranks) != 2 {
		t.Fatalf("ranks are %v", o.Reading.Ranks)
	}
	for dp := range 2 {
		r := &o.Reading.Ranks[dp]
		f := float64(dp + 1)
		wantValues(t, r, true, map[Signal]float64{
			RequestsRunning: 4 + float64(dp), RequestsWaiting: float64(dp), KVCacheUsage: f / 10, KVCacheTokens: 9000, KVCacheTokensUsed: 900 * f,
			PromptTokens: 1000 * f, PromptTokensComputed: 100 * f, GenerationTokens: 50 * f,
			PrefixCacheQueries: 60, PrefixCacheHits: 50, EngineSteps: 10,
		})
		if r.TokenSlots != (Limit{9000, "metric"}) || r.SequenceSlots.Known() {
			t.Errorf("limits are %v and %v", r.TokenSlots, r.SequenceSlots)
		}
	}
}

func TestSGLangPages(t *testing.T) {
	o := readOnce(t, classic, `sglang:num_running_reqs{model_name="m"} 1
sglang:num_pages{model_name="m"} 100
sglang:page_size{model_name="m"} 64
sglang:time_to_first_token_seconds_bucket{is_streaming="True",le="1.0",model_name="m"} 3
sglang:time_to_first_token_seconds_bucket{is_streaming="True",le="+Inf",model_name="m"} 4
sglang:time_to_first_token_seconds_sum{is_streaming="True",model_name="m"} 2
sglang:time_to_first_token_seconds_count{is_streaming="True",model_name="m"} 4
sglang:time_to_first_token_seconds_bucket{is_streaming="False",le="1.0",model_name="m"} 0
sglang:time_to_first_token_seconds_bucket{is_streaming="False",le="+Inf",model_name="m"} 6
sglang:time_to_first_token_seconds_sum{is_streaming="False",model_name="m"} 30
sglang:time_to_first_token_seconds_count{is_streaming="False",model_name="m"} 6
`, nil)
	r := &o.Reading.Ranks[0]
	if r.TokenSlots != (Limit{6400, "blocks"}) {
		t.Errorf("token slots are %v", r.TokenSlots)
	}
	checkHistogram(t, r, TimeToFirstToken, histogramCheck{2, 10, 32, map[float64]float64{1: 3, math.Inf(1): 10}})
}

// TestEstimateThatIsOff: vLLM exports its estimates as 0 while they are switched off.
func TestEstimateThatIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, nil)
		read := func(bytes float64) float64 {
			e.metrics = serve(classic, vllmPage(0, busy("0", 1, 0, 1))+fmt.Sprintf("vllm:estimated_read_bytes_per_gpu_total{engine=\"0\",model_name=\"m\"} %v\n", bytes))
			return e.poll(t, p).Reading.Ranks[0].Value(EstimatedReadBytes)
		}
		if v := read(0); !math.IsNaN(v) {
			t.Errorf("0 is read as %v", v)
		}
		if a, b := read(5), read(9); a != 5 || b != 9 {
			t.Errorf("read %v and %v", a, b)
		}
	})
}

// TestOtherBounds: after a restart with other buckets the totals go on.
func TestOtherBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, nil)
		page := func(start int, bounds string, n int) Observation {
			var b strings.Builder
			fmt.Fprintf(&b, "process_start_time_seconds %d\nvllm:num_requests_running{engine=\"0\",model_name=\"m\"} 1\n", start)
			for _, le := range append(strings.Fields(bounds), "+Inf") {
				fmt.Fprintf(&b, "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=%q,model_name=\"m\"} %d\n", le, n)
			}
			fmt.Fprintf(&b, "vllm:time_to_first_token_seconds_sum{engine=\"0\",model_name=\"m\"} %d\nvllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"m\"} %d\n", n, n)
			e.metrics = serve(classic, b.String())
			return e.poll(t, p)
		}
		first := page(1, "0.1 0.2", 10).Reading.Ranks[0].Histogram(TimeToFirstToken)
		again := page(1, "0.1 0.2", 12).Reading.Ranks[0].Histogram(TimeToFirstToken)
		if &first.Bounds[0] != &again.Bounds[0] {
			t.Error("the same bounds are stored twice")
		}
		h := page(2, "0.5", 3).Reading.Ranks[0].Histogram(TimeToFirstToken)
		if fmt.Sprint(h.Bounds, h.Counts, h.Count, h.Sum) != "[0.5 +Inf] [3 15] 15 15" {
			t.Errorf("histogram is %+v", h)
		}
		if fmt.Sprint(first.Bounds, first.Counts) != "[0.1 0.2 +Inf] [10 10 10]" {
			t.Errorf("the old reading changed: %+v", first)
		}
	})
}

func TestTypeIsNotWhatIsThere(t *testing.T) {
	o := readOnce(t, classic, vllmPage(0, busy("0", 1, 0, 1)), func(c *Config) { c.Type = TypeSGLang })
	wantState(t, o, StateDisabled, "no_engine_families")
	if !strings.Contains(o.Err.Error(), "sglang:") {
		t.Errorf("error is %v", o.Err)
	}
}

func TestTooManySeries(t *testing.T) {
	var ranks, reasons strings.Builder
	for i := range maxRanks + 1 {
		fmt.Fprintf(&ranks, "vllm:num_requests_running{engine=\"%d\",model_name=\"m\"} 1\n", i)
	}
	for i := range maxParts + 1 {
		fmt.Fprintf(&reasons, "vllm:request_success_total{engine=\"0\",finished_reason=\"%d\",model_name=\"m\"} 1\n", i)
	}
	for _, body := range []string{ranks.String(), reasons.String()} {
		o := readOnce(t, classic, body, nil)
		wantState(t, o, StateStale, "too_many_series")
	}
}

// TestSeriesThatComeAndGo: what is remembered about series stays bounded.
func TestSeriesThatComeAndGo(t *testing.T) {
	p := newPages(tables, "")
	for i := range 200 {
		var b strings.Builder
		for j := range 50 {
			fmt.Fprintf(&b, "vllm:lora_requests_info{running_lora_adapters=\"a%d-%d\"} 1\n", i, j)
		}
		sum, f := p.read([]byte(vllmPage(0, busy("0", 1, 0, 1))+b.String()), classic)
		if f != nil {
			t.Fatal(f)
		}
		p.trim(sum.series)
		if len(p.known) > 2*sum.series+256 {
			t.Fatalf("%d series are kept of pages with %d", len(p.known), sum.series)
		}
	}
}

// TestReplicasThatComeAndGo: a node's page over months, one replica at a time.
func TestReplicasThatComeAndGo(t *testing.T) {
	n := newNormaliser(tables, "")
	index := slices.Index(tables, tableOf(tables, TypeRay))
	for i := range 3 * maxRanks {
		page := fmt.Sprintf("ray_vllm_num_requests_running{ReplicaId=\"r%d\",engine=\"0\",model_name=\"m\"} 1\n", i)
		if _, f := n.pages.read([]byte(page), classic); f != nil {
			t.Fatalf("replica %d: %v", i, f)
		}
		if ranks, _ := n.ranks(index, time.Time{}); len(ranks) != 1 || ranks[0].Engine != "0" {
			t.Fatalf("replica %d: ranks are %v", i, ranks)
		}
		if len(n.trackers) > 2*maxRanks || len(n.pages.layouts[index].ranks) > maxRanks {
			t.Fatalf("replica %d: %d trackers, %d ranks are kept", i, len(n.trackers), len(n.pages.layouts[index].ranks))
		}
	}
}

// TestSilentUntilFirstStep: gauges without samples are 0 only while nothing was ever done.
func TestSilentUntilFirstStep(t *testing.T) {
	page := func(steps, prompt int) string {
		l := "engine=\"0\",model_name=\"m\""
		return fmt.Sprintf("vllm:iteration_tokens_total_count{%s} %d\nvllm:prompt_tokens_total{%s} %d\nvllm:generation_tokens_total{%s} 0\n", l, steps, l, prompt, l)
	}
	o := readOnce(t, classic, page(0, 0), nil)
	wantState(t, o, StateIdle, "")
	wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{RequestsRunning: 0, RequestsWaiting: 0, KVCacheUsage: 0})
	for _, p := range []string{page(1, 0), page(0, 5), strings.Replace(page(0, 0), "vllm:iteration", "vllm:other", 1)} {
		o := readOnce(t, classic, p, nil)
		wantState(t, o, StateStale, "metrics_incomplete")
		wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{RequestsRunning: math.NaN(), KVCacheUsage: math.NaN()})
	}
	// A gauge that is there and impossible is not taken for missing.
	o = readOnce(t, classic, page(0, 0)+"vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 7\n", nil)
	wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{RequestsRunning: 0, KVCacheUsage: math.NaN()})
}

// A label that goes into dozens of our series is copied up to a bound only.
func TestLongLabelIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, nil)
		e.metrics = serve(classic, "vllm:num_requests_running{engine=\"0\",model_name=\""+strings.Repeat("m", 100_000)+"\"} 1\n")
		if got := len(e.poll(t, p).Reading.Ranks[0].ModelName); got != maxLabelBytes {
			t.Errorf("the model's name has %d bytes", got)
		}
	})
}
