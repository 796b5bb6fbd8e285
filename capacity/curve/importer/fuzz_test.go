package importer

import (
	"strings"
	"testing"
	"time"
)

// sound fails for runs that passed the checks and do not make a curve, and for
// errors of more than a line.
func sound(t *testing.T, format Format, runs []run, err error) {
	t.Helper()
	for i := range runs {
		runs[i].format, runs[i].file = format, "fuzz.json"
		if err == nil {
			err = runs[i].check()
		}
	}
	if err != nil {
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("an error of several lines: %v", err)
		}
		return
	}
	o := Options{Class: "fuzz", SLO: slos(t, "ttft:p99:1s", "tpot:p50:20ms"), PeakReserve: 0.2}
	o.Identity.Model = "m"
	c, err := assemble(runs, o)
	if err != nil {
		return // such as a percentile that is not there
	}
	if err := c.Validate(); err != nil {
		t.Errorf("the curve is not valid: %v", err)
	}
}

func FuzzGuideLLM(f *testing.F) {
	f.Add([]byte(`{"metadata":{"version":2,"guidellm_version":"0.8.1"},"benchmarks":[{"config":{"strategy":{"type_":"poisson","rate":4},"backend":{"model":"m"}},
"start_time":1795973911.6,"duration":20,"metrics":{"request_totals":{"successful":2,"errored":1}},"requests":{"successful":[
{"info":{"timings":{"targeted_start":1795973912.0,"request_start":1795973912.1,"first_token_iteration":1795973912.2,"last_token_iteration":1795973912.9,"resolve_end":1795973913.0}},"prompt_tokens":128,"output_tokens":32,"inter_token_latency_ms":6.5},
{"info":{"timings":{"targeted_start":-0.9,"request_start":1795973915.1,"first_token_iteration":1795973915.2,"last_token_iteration":1795973915.9,"resolve_end":1795973916.0}},"prompt_tokens":128,"output_tokens":32,"inter_token_latency_ms":6.5}],
"errored":[],"incomplete":[{"info":{"timings":{"request_start":1795973917.1,"resolve_end":1795973919.0}}}]}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		runs, err := parseGuideLLM(data)
		sound(t, GuideLLM, runs, err)
	})
}

func FuzzAIPerf(f *testing.F) {
	summary := []byte(`{"aiperf_version":"0.13.0","input_config":{"models":{"items":[{"name":"m"}]},"phases":[{"name":"profiling","kind":"profiling","type":"poisson","rate":4.0}]},
"start_time":"2026-11-29T17:44:54.750628","benchmark_duration":{"unit":"sec","avg":12.5},"request_count":{"unit":"requests","avg":2},
"input_sequence_length":{"unit":"tokens","avg":128},"output_sequence_length":{"unit":"tokens","avg":32},"time_to_first_token":{"unit":"ms","avg":30,"p99":40,"max":41},
"inter_token_latency":{"unit":"ms","avg":6.6,"p50":6.5}}`)
	f.Add(summary, []byte{})
	f.Add(summary, []byte(`{"metadata":{"credit_issued_ns":1795974295128409629,"request_start_ns":1795974295170303645,"request_end_ns":1795974295932735827,"benchmark_phase":"profiling"},"metrics":{"input_sequence_length":{"value":128,"unit":"tokens"},"output_sequence_length":{"value":32,"unit":"tokens"},"time_to_first_token":{"value":560.1,"unit":"ms"},"inter_token_latency":{"value":6.5,"unit":"ms"},"inter_chunk_latency":{"value":[1.05,4.1],"unit":"ms"},"request_latency":{"value":762.4,"unit":"ms"}}}`))
	f.Fuzz(func(t *testing.T, summary, records []byte) {
		runs, err := parseAIPerf(summary, records)
		sound(t, AIPerf, runs, err)
	})
}

func FuzzInferencePerf(f *testing.F) {
	f.Add([]byte(`{"benchmark_time_seconds":15.5,"load_summary":{"count":73,"schedule_delay":{"p99":0.016},"requested_rate":10.0,"achieved_rate":4.7},
"successes":{"count":73,"latency":{"request_latency":{"mean":0.24,"p99":0.28},"time_per_output_token":{"mean":0.006,"median":0.0066},"time_to_first_token":{"mean":0.03,"max":0.1,"p99":0.07}},
"prompt_tokens":{"mean":128.0},"output_tokens":{"mean":32.0}},"failures":{"count":0}}`), []byte("load: {type: poisson}\nserver: {model_name: m}\n"),
		[]byte("run: {time: {start: '2026-11-29T17:49:48.309216Z'}}\n"), []byte(`[{"info":{"input_tokens":128,"response_metrics":{"output_tokens":32}},"error":null}]`))
	f.Fuzz(func(t *testing.T, data, config, stage, requests []byte) {
		runs, err := parseInferencePerf(data, inferencePerfFiles{config, stage, requests, time.Unix(1.8e9, 0)})
		sound(t, InferencePerf, runs, err)
	})
}

func FuzzVLLMBench(f *testing.F) {
	f.Add([]byte(`{"date":"20261129-173428","model_id":"m","num_prompts":3,"request_rate":4.0,"burstiness":1.0,"max_concurrency":null,"duration":2.5,"completed":2,"failed":1,
"total_input_tokens":256,"total_output_tokens":64,"request_throughput":0.8,"input_lens":[128,128,128],"output_lens":[32,32,0],"ttfts":[0.03,0.04,0],"itls":[[0.1,0.2],[0.3],[]],
"latencies":[0.4,0.5,0.1],"start_times":[1,1.5,2],"queue_times":[0,0.1,0],"errors":["","","reset"]}`))
	f.Add([]byte(`[{"date":"20261129-175343","model_id":"m","num_prompts":3,"request_rate":"inf","max_concurrency":4,"duration":2.5,"completed":3,"failed":0,"total_input_tokens":256,
"total_output_tokens":64,"request_throughput":0.8,"mean_ttft_ms":30.5,"median_ttft_ms":29.4,"p99_ttft_ms":40.1,"mean_tpot_ms":6.5,"p50_tpot_ms":6.4}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		runs, err := parseVLLMBench(data)
		sound(t, VLLMBench, runs, err)
	})
}

func FuzzRecognise(f *testing.F) {
	for _, text := range []string{`{"metadata":{},"benchmarks":[]}`, `[{"completed":1,"duration":1,"request_throughput":1}]`, "{", "", "NaN", `{"a":Infinity}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := recognise(data); err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("an error of several lines: %v", err)
		}
	})
}
