package engine

import (
	"math"
	"os"
	"slices"
	"testing"
)

// histogramCheck is a histogram's count, sum and some of its buckets.
type histogramCheck struct {
	bounds     int
	count, sum float64
	buckets    map[float64]float64
}

// TestCaptures holds every captured page against values read from it by hand.
func TestCaptures(t *testing.T) {
	type rank struct {
		model, engine string
		state         State
		reason        string
		values        map[Signal]float64
		histograms    map[HistogramSignal]histogramCheck
		tokenSlots    Limit
		sequenceSlots Limit
		// inferred are known although the page does not carry them.
		inferred []Signal
	}
	inf := math.Inf(1)
	small := map[Signal]float64{ // what 66 blocks of 32 tokens have in common
		RequestsRunning: 0, RequestsWaiting: 0, KVCacheUsage: 0, KVCacheTokens: 2112, KVCacheTokensUsed: 0,
		Preemptions: 18, Awake: 1,
	}
	with := func(more map[Signal]float64) map[Signal]float64 {
		all := make(map[Signal]float64)
		for s, v := range small {
			all[s] = v
		}
		for s, v := range more {
			all[s] = v
		}
		return all
	}
	// Two API servers and no request yet: the gauges have no samples, no step was done.
	fresh := func(engine string) rank {
		return rank{
			model: "tiny", engine: engine, state: StateIdle, tokenSlots: Limit{524288, "metric"},
			values: map[Signal]float64{
				RequestsRunning: 0, RequestsWaiting: 0, KVCacheUsage: 0, KVCacheTokens: 524288, KVCacheTokensUsed: 0,
				Preemptions: 0, PromptTokens: 0, PromptTokensComputed: 0, GenerationTokens: 0, RequestsFinished: 0,
				PrefixCacheQueries: 0, PrefixCacheHits: 0, EngineSteps: 0, Awake: 1,
			},
			inferred: []Signal{RequestsRunning, RequestsWaiting, KVCacheUsage},
		}
	}
	tests := map[string]struct {
		engine    Type
		state     State
		reason    string
		series    int
		ranks     []rank
		noReading bool
	}{
		"vllm-0.32-idle.prom": {engine: TypeVLLM, state: StateIdle, series: 415, ranks: []rank{{
			model: "tiny", engine: "0", state: StateIdle, tokenSlots: Limit{524288, "metric"},
			values: map[Signal]float64{
				RequestsRunning: 0, RequestsWaiting: 0, KVCacheUsage: 0, KVCacheTokens: 524288, KVCacheTokensUsed: 0,
				Preemptions: 0, PromptTokens: 0, PromptTokensComputed: 0, GenerationTokens: 0, RequestsFinished: 0,
				PrefixCacheQueries: 0, PrefixCacheHits: 0, EngineSteps: 0, Awake: 1,
			},
			histograms: map[HistogramSignal]histogramCheck{TimeToFirstToken: {bounds: 23, buckets: map[float64]float64{inf: 0}}},
		}}},
		"vllm-0.32-loaded-queued.prom": {engine: TypeVLLM, state: StateOK, series: 445, ranks: []rank{{
			model: "tiny", engine: "0", state: StateOK, tokenSlots: Limit{524288, "metric"},
			values: map[Signal]float64{
				RequestsRunning: 8, RequestsWaiting: 8, KVCacheUsage: 0.0058597326496978575, KVCacheTokens: 524288,
				KVCacheTokensUsed: 0.0058597326496978575 * 524288, Preemptions: 0, PromptTokens: 35072, PromptTokensComputed: 35072,
				GenerationTokens: 13297, RequestsFinished: 136, PrefixCacheQueries: 35072, PrefixCacheHits: 0, EngineSteps: 2441, Awake: 1,
			},
			histograms: map[HistogramSignal]histogramCheck{
				TimeToFirstToken:   {23, 144, 534.7970442771912, map[float64]float64{0.04: 1, 0.25: 42, 2.5: 88, 10: 136, 20: 144, inf: 144}},
				InterTokenLatency:  {20, 13153, 209.79613285699838, map[float64]float64{0.01: 2016, 0.025: 12286, 2.5: 13153}},
				TimePerOutputToken: {20, 136, 2.0043231104299783, nil},
				E2ELatency:         {22, 136, 700.7804267406464, nil},
				QueueTime:          {22, 136, 409.40643449400136, nil},
				PrefillTime:        {22, 136, 90.03246375599929, nil},
				DecodeTime:         {22, 136, 166.9057933729987, nil},
				PromptLength:       {count: 136, sum: 34816},
				GenerationLength:   {count: 136, sum: 10496},
			},
		}}},
		"vllm-0.32-prefilling-queued.prom": {engine: TypeVLLM, state: StateOK, series: 445, ranks: []rank{{
			model: "tiny", engine: "0", state: StateOK, tokenSlots: Limit{524288, "metric"},
			values: map[Signal]float64{
				RequestsRunning: 1, RequestsWaiting: 23, KVCacheUsage: 0.0004883110541414881, KVCacheTokens: 524288,
				KVCacheTokensUsed: 0.0004883110541414881 * 524288, Preemptions: 0, PromptTokens: 20736, PromptTokensComputed: 20736,
				GenerationTokens: 3329, RequestsFinished: 80, PrefixCacheQueries: 20736, PrefixCacheHits: 0, EngineSteps: 1194, Awake: 1,
			},
		}}},
		"vllm-0.32-preempting.prom": {engine: TypeVLLM, state: StateOK, series: 430, ranks: []rank{{
			model: "tiny", engine: "0", state: StateOK, tokenSlots: Limit{2112, "metric"},
			values: with(map[Signal]float64{
				RequestsRunning: 3, RequestsWaiting: 6, KVCacheUsage: 0.8307692307692307, KVCacheTokensUsed: 0.8307692307692307 * 2112,
				Preemptions: 5, PromptTokens: 640, PromptTokensComputed: 640, GenerationTokens: 3903, RequestsFinished: 3,
				PrefixCacheQueries: 640, PrefixCacheHits: 0, EngineSteps: 745,
			}),
			histograms: map[HistogramSignal]histogramCheck{TimeToFirstToken: {bounds: 23, count: 10, sum: -1}},
		}}},
		"vllm-0.32-preempted-idle.prom": {engine: TypeVLLM, state: StateIdle, series: 430, ranks: []rank{{
			model: "tiny", engine: "0", state: StateIdle, tokenSlots: Limit{2112, "metric"},
			values: with(map[Signal]float64{
				PromptTokens: 768, PromptTokensComputed: 768, GenerationTokens: 7200, RequestsFinished: 12,
				PrefixCacheQueries: 768, PrefixCacheHits: 0, EngineSteps: 1599,
			}),
		}}},
		"vllm-0.32-prefix-abort.prom": {engine: TypeVLLM, state: StateIdle, series: 462, ranks: []rank{{
			model: "tiny", engine: "0", state: StateIdle, tokenSlots: Limit{2112, "metric"},
			values: with(map[Signal]float64{
				PromptTokens: 4947, PromptTokensComputed: 1779, GenerationTokens: 7493, RequestsFinished: 24,
				PrefixCacheQueries: 4947, PrefixCacheHits: 3168, EngineSteps: 1892,
			}),
			// One request was cancelled after its first token: 25 against 24 finished.
			histograms: map[HistogramSignal]histogramCheck{TimeToFirstToken: {bounds: 23, count: 25, sum: -1}, E2ELatency: {bounds: 22, count: 24, sum: -1}},
		}}},
		"vllm-0.32-dp2-mfu-loaded.prom": {engine: TypeVLLM, state: StateOK, series: 837, ranks: []rank{
			{
				// The label says half of num_gpu_blocks * block_size, and it is right.
				model: "tiny", engine: "0", state: StateOK, tokenSlots: Limit{524288, "metric"},
				values: map[Signal]float64{
					RequestsRunning: 4, RequestsWaiting: 2, KVCacheUsage: 0.002197399743636752, KVCacheTokens: 524288,
					KVCacheTokensUsed: 0.002197399743636752 * 524288, Preemptions: 0, PromptTokens: 2048, PromptTokensComputed: 2048,
					GenerationTokens: 3731, RequestsFinished: 12, PrefixCacheQueries: 2048, PrefixCacheHits: 0, EngineSteps: 1470,
					EstimatedReadBytes: 6.72046336e9, EstimatedWriteBytes: 1.3226304e8, Awake: 1,
				},
				histograms: map[HistogramSignal]histogramCheck{TimeToFirstToken: {23, 16, 32.983224630355835, map[float64]float64{0.1: 1, 0.5: 8, 5: 13}}},
			},
			{
				model: "tiny", engine: "1", state: StateOK, tokenSlots: Limit{524288, "metric"},
				values: map[Signal]float64{
					RequestsRunning: 4, RequestsWaiting: 2, KVCacheUsage: 0.001709088689495264, KVCacheTokens: 524288,
					KVCacheTokensUsed: 0.001709088689495264 * 524288, Preemptions: 0, PromptTokens: 2048, PromptTokensComputed: 2048,
					GenerationTokens: 3475, RequestsFinished: 12, PrefixCacheQueries: 2048, PrefixCacheHits: 0, EngineSteps: 1274,
					EstimatedReadBytes: 6.2769536e9, EstimatedWriteBytes: 1.26285696e8, Awake: 1,
				},
				histograms: map[HistogramSignal]histogramCheck{TimeToFirstToken: {23, 16, 35.248098611831665, nil}},
			},
		}},
		"vllm-0.32-dp2-fresh.prom": {engine: TypeVLLM, state: StateIdle, series: 683, ranks: []rank{fresh("0"), fresh("1")}},
		"vllm-0.4.3-v0.prom": {engine: TypeVLLM, state: StateIdle, series: 120, ranks: []rank{{
			// 7281 blocks of 16 tokens.
			model: "facebook/opt-125m", engine: "0", state: StateIdle, tokenSlots: Limit{116496, "blocks"},
			values: map[Signal]float64{
				RequestsRunning: 0, RequestsWaiting: 0, KVCacheUsage: 0, KVCacheTokens: 116496, KVCacheTokensUsed: 0,
				Preemptions: 0, PromptTokens: 5, GenerationTokens: 7, RequestsFinished: 1,
			},
			histograms: map[HistogramSignal]histogramCheck{
				TimeToFirstToken:  {17, 1, 0.31326723098754883, map[float64]float64{0.25: 0, 0.5: 1}},
				InterTokenLatency: {bounds: 14, count: 6, sum: 0.19016313552856445}, // time_per_output_token_seconds
			},
		}}},
		"vllm-v1-created-series-partial.prom": {engine: TypeVLLM, state: StateIdle, series: 13, ranks: []rank{{
			model: "llama-vllm-single", engine: "0", state: StateIdle,
			values: map[Signal]float64{
				RequestsRunning: 0, RequestsWaiting: 0, KVCacheUsage: 0, Preemptions: 0, PromptTokens: 0, GenerationTokens: 0,
				PrefixCacheQueries: 0, PrefixCacheHits: 0,
			},
		}}},
		"vllm-dp2-running.prom": {engine: TypeVLLM, state: StateOK, series: 2, ranks: []rank{
			{model: "deepseek-v4-flash-w8a8-mtp", engine: "0", state: StateOK, values: map[Signal]float64{RequestsRunning: 0}},
			{model: "deepseek-v4-flash-w8a8-mtp", engine: "1", state: StateOK, values: map[Signal]float64{RequestsRunning: 0}},
		}},
		"vllm-lora-info.prom": {state: StateStale, reason: "metrics_incomplete", noReading: true},
		"ray-2.32-vllm-0.6-partial.prom": {engine: TypeRay, state: StateIdle, series: 56, ranks: []rank{{
			model: "neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8", engine: "0", state: StateIdle,
			values: map[Signal]float64{ // the hit rate of -1 is unknown, the histogram without +Inf is none
				RequestsRunning: 0, RequestsWaiting: 0, KVCacheUsage: 5.882698982295764e-05, PromptTokens: 58, GenerationTokens: 300,
			},
			histograms: map[HistogramSignal]histogramCheck{InterTokenLatency: {bounds: 14, count: 299, sum: 16.178537607192993}},
		}}},
		"ray-2.52-vllm-0.11-line.prom": {engine: TypeRay, state: StateStale, reason: "metrics_incomplete", series: 1, ranks: []rank{{
			model: "qwen-0.5b", engine: "0", state: StateStale, reason: "metrics_incomplete",
		}}},
		"sglang-0.4-loaded.prom": {engine: TypeSGLang, state: StateOK, series: 91, ranks: []rank{{
			model: "meta-llama/Llama-3.1-8B-Instruct", engine: "0", state: StateOK,
			values: map[Signal]float64{
				RequestsRunning: 162, RequestsWaiting: 2826, KVCacheUsage: 0.28, KVCacheTokensUsed: 123859,
				PromptTokens: 8128902, GenerationTokens: 7557572, RequestsFinished: 11228, PrefixCacheQueries: 8128902,
			},
			histograms: map[HistogramSignal]histogramCheck{
				TimeToFirstToken:  {21, 11008, 2.3518979474117756e6, map[float64]float64{0.04: 1, 5: 314, 30: 2513, inf: 11008}},
				InterTokenLatency: {count: 7400757, sum: 866964.5791549598, buckets: map[float64]float64{2.5: 7389414}},
				E2ELatency:        {count: 11228, sum: 3.116093850019932e6},
			},
		}}},
		"openmetrics-escaping-underscores.om": {engine: TypeSGLang, state: StateStale, reason: "metrics_incomplete", series: 1, ranks: []rank{{
			engine: "0", state: StateStale, reason: "metrics_incomplete", // a usage of 42 is rejected
		}}},
		// Counters only: what was computed is known, not how many prompt tokens there were with cached ones.
		"llamacpp-2025-06-partial.prom": {engine: TypeLlamaCpp, state: StateStale, reason: "metrics_incomplete", series: 4, ranks: []rank{{
			engine: "0", state: StateStale, reason: "metrics_incomplete",
			values: map[Signal]float64{PromptTokensComputed: 143, GenerationTokens: 673},
		}}},
		"llamacpp-b11434-idle.prom": {engine: TypeLlamaCpp, state: StateIdle, series: 15, ranks: []rank{{
			engine: "0", state: StateIdle,
			values: map[Signal]float64{
				RequestsRunning: 0, RequestsWaiting: 0, PromptTokens: 0, PromptTokensComputed: 0, GenerationTokens: 0,
				PrefixCacheQueries: 0, PrefixCacheHits: 0, EngineSteps: 0, SpeculativeDrafts: 0, SpeculativeAccepted: 0,
			},
		}}},
		// After 106 steps not a token is counted as generated: that comes with a request's end.
		"llamacpp-b11434-loaded-queued.prom": {engine: TypeLlamaCpp, state: StateOK, series: 15, ranks: []rank{{
			engine: "0", state: StateOK,
			values: map[Signal]float64{
				RequestsRunning: 4, RequestsWaiting: 6, PromptTokens: 336, PromptTokensComputed: 336, GenerationTokens: 0,
				PrefixCacheQueries: 336, PrefixCacheHits: 0, EngineSteps: 106, SpeculativeDrafts: 0, SpeculativeAccepted: 0,
			},
		}}},
		"llamacpp-b11434-cached-idle.prom": {engine: TypeLlamaCpp, state: StateIdle, series: 15, ranks: []rank{{
			engine: "0", state: StateIdle,
			values: map[Signal]float64{ // 747 computed and 93 found
				RequestsRunning: 0, RequestsWaiting: 0, PromptTokens: 840, PromptTokensComputed: 747, GenerationTokens: 862,
				PrefixCacheQueries: 840, PrefixCacheHits: 93, EngineSteps: 252, SpeculativeDrafts: 0, SpeculativeAccepted: 0,
			},
		}}},
		"tgi-2.x-partial.prom": {engine: TypeTGI, state: StateIdle, series: 264, ranks: []rank{{
			engine: "0", state: StateIdle,
			values: map[Signal]float64{
				RequestsRunning: 0, RequestsWaiting: 0, KVCacheTokensUsed: 0, PromptTokens: 662, RequestsFinished: 109,
				EngineSteps: 1525, // 16 prefills and 1509 decodes
			},
			histograms: map[HistogramSignal]histogramCheck{
				PromptLength: {101, 109, 662, map[float64]float64{5.11: 0, 10.22: 109, 511.00000000000006: 109, inf: 109}},
			},
		}}},
		"triton-23.11-trtllm-backend.prom": {engine: TypeTriton, state: StateOK, series: 23, ranks: []rank{{
			model: "tensorrt_llm", engine: "0", state: StateOK, tokenSlots: Limit{399296, "blocks"}, // 6239 blocks of 64
			sequenceSlots: Limit{512, "metric"},
			values: map[Signal]float64{
				RequestsRunning: 1, KVCacheUsage: 1.0 / 6239, KVCacheTokens: 399296, KVCacheTokensUsed: 64, SequenceSlots: 512,
				RequestsFinished: 0, EngineSteps: 0,
			},
		}}},
		// The only histogram was cut before its end: nothing tells the load.
		"trtllm-serve-noprefix-partial.prom": {state: StateStale, reason: "metrics_incomplete", noReading: true},
	}
	files, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.IsDir() || f.Name() == "ORIGIN.md" {
			continue
		}
		test, ok := tests[f.Name()]
		if !ok {
			t.Errorf("%s has no test", f.Name())
			continue
		}
		t.Run(f.Name(), func(t *testing.T) {
			o := readOnce(t, classic, capture(t, f.Name()), nil)
			wantState(t, o, test.state, test.reason)
			if (o.Reading == nil) != test.noReading {
				t.Fatalf("reading is %v, err %v", o.Reading, o.Err)
			}
			if test.noReading {
				return
			}
			if o.Type != test.engine || o.Reading.Series != test.series || len(o.Reading.Ranks) != len(test.ranks) {
				t.Fatalf("type %s, %d series, %d ranks; want %s, %d, %d", o.Type, o.Reading.Series, len(o.Reading.Ranks),
					test.engine, test.series, len(test.ranks))
			}
			for i, want := range test.ranks {
				r := &o.Reading.Ranks[i]
				if r.ModelName != want.model || r.Engine != want.engine || r.State != want.state || r.Reason != want.reason {
					t.Errorf("rank is %s %s %s %q, want %s %s %s %q", r.ModelName, r.Engine, r.State, r.Reason, want.model, want.engine, want.state, want.reason)
				}
				wantValues(t, r, true, want.values)
				if want.tokenSlots.Source == "" {
					want.tokenSlots.Value = math.NaN()
				}
				if !same(r.TokenSlots.Value, want.tokenSlots.Value) || r.TokenSlots.Source != want.tokenSlots.Source {
					t.Errorf("token slots are %v, want %v", r.TokenSlots, want.tokenSlots)
				}
				if want.sequenceSlots.Known() && r.SequenceSlots != want.sequenceSlots {
					t.Errorf("sequence slots are %v, want %v", r.SequenceSlots, want.sequenceSlots)
				}
				for h, check := range want.histograms {
					checkHistogram(t, r, h, check)
				}
				for s := range numSignals {
					_, given := want.values[s]
					derived := s == KVCacheTokensUsed && (o.Type == TypeVLLM || o.Type == TypeRay) || slices.Contains(want.inferred, s)
					if derived {
						given = false
					}
					if o.Available[s.String()] != given {
						t.Errorf("available says %v of %s", !given, s)
					}
				}
			}
			if o.Stats.DuplicateSamples != 0 || o.Stats.CounterResets != 0 {
				t.Errorf("stats are %+v", o.Stats)
			}
		})
	}
}

func checkHistogram(t *testing.T, r *Rank, s HistogramSignal, want histogramCheck) {
	t.Helper()
	h := r.Histogram(s)
	if h == nil {
		t.Errorf("%s is missing", s)
		return
	}
	if want.bounds > 0 && len(h.Bounds) != want.bounds || len(h.Counts) != len(h.Bounds) {
		t.Errorf("%s has %d bounds and %d counts, want %d", s, len(h.Bounds), len(h.Counts), want.bounds)
	}
	if h.Count != want.count || want.sum >= 0 && h.Sum != want.sum {
		t.Errorf("%s has count %v and sum %v, want %v and %v", s, h.Count, h.Sum, want.count, want.sum)
	}
	for bound, count := range want.buckets {
		found := false
		for i, b := range h.Bounds {
			if b == bound {
				found = true
				if h.Counts[i] != count {
					t.Errorf("%s has %v up to %v, want %v", s, h.Counts[i], b, count)
				}
			}
		}
		if !found {
			t.Errorf("%s has no bound %v", s, bound)
		}
	}
}
