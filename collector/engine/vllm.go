package engine

import "strings"

// vllmRows serve V0, every rename of V1 and the Rust frontend; newest name first.
func vllmRows() []row {
	return []row{
		{RequestsRunning, gauge, []alias{{name: "num_requests_running"}}},
		{RequestsWaiting, gauge, []alias{{name: "num_requests_waiting"}}},
		{KVCacheUsage, ratio, []alias{{name: "kv_cache_usage_perc"}, {name: "gpu_cache_usage_perc"}}},
		{KVCacheTokens, info, []alias{
			{name: "cache_config_info", label: "kv_cache_size_tokens"},
			// Right for uniform attention only: block_size is the smallest over KV groups.
			{name: "cache_config_info", label: "num_gpu_blocks", timesLabel: "block_size", source: sourceBlocks},
		}},
		{Preemptions, counter, []alias{{name: "num_preemptions_total"}}},
		{PromptTokens, counter, []alias{{name: "prompt_tokens_total"}}},
		{PromptTokensComputed, counter, []alias{
			{name: "prompt_tokens_by_source_total", match: []match{{"source", []string{"local_compute"}}}},
		}},
		{GenerationTokens, counter, []alias{{name: "generation_tokens_total"}}},
		{RequestsFinished, counter, []alias{{name: "request_success_total"}}},
		{PrefixCacheQueries, counter, []alias{{name: "prefix_cache_queries_total"}, {name: "gpu_prefix_cache_queries_total"}}},
		{PrefixCacheHits, counter, []alias{{name: "prefix_cache_hits_total"}, {name: "gpu_prefix_cache_hits_total"}}},
		{PrefixCacheHitRate, optionalRatio, []alias{{name: "gpu_prefix_cache_hit_rate"}}},
		// A histogram in spite of its name: one observation per step.
		{EngineSteps, counter, []alias{{name: "iteration_tokens_total_count"}}},
		{EstimatedReadBytes, estimate, []alias{
			{name: "estimated_read_bytes_per_gpu_total"}, {name: "estimated_read_bytes_per_gpu_total_total"},
		}},
		{EstimatedWriteBytes, estimate, []alias{
			{name: "estimated_write_bytes_per_gpu_total"}, {name: "estimated_write_bytes_per_gpu_total_total"},
		}},
		{SpeculativeDrafts, counter, []alias{{name: "spec_decode_num_drafts_total"}}},
		{SpeculativeAccepted, counter, []alias{{name: "spec_decode_num_accepted_tokens_total"}}},
		{Awake, info, []alias{
			{name: "engine_sleep_state", match: []match{{"sleep_state", []string{"awake"}}}},
		}},
		// One series per combination of adapters, for ever; its value is when it held last.
		{LoRAAdapters, info, []alias{{name: "lora_requests_info", label: "running_lora_adapters", list: true, newest: true}}},
		{LoRASlots, info, []alias{{name: "lora_requests_info", label: "max_lora", newest: true}}},
	}
}

func vllmHistograms() []histogramRow {
	return []histogramRow{
		{TimeToFirstToken, []alias{{name: "time_to_first_token_seconds"}}},
		// The old name counted per token too, so it is the same signal.
		{InterTokenLatency, []alias{{name: "inter_token_latency_seconds"}, {name: "time_per_output_token_seconds"}}},
		{TimePerOutputToken, []alias{{name: "request_time_per_output_token_seconds"}}},
		{E2ELatency, []alias{{name: "e2e_request_latency_seconds"}}},
		{QueueTime, []alias{{name: "request_queue_time_seconds"}}},
		{PrefillTime, []alias{{name: "request_prefill_time_seconds"}}},
		{DecodeTime, []alias{{name: "request_decode_time_seconds"}}},
		{PromptLength, []alias{{name: "request_prompt_tokens"}}},
		{GenerationLength, []alias{{name: "request_generation_tokens"}}},
	}
}

func vllmTable() *table {
	return &table{
		engine:      TypeVLLM,
		prefixes:    []string{"vllm:", "vllm_"},
		metricsPath: "/metrics",
		rows:        vllmRows(),
		histograms:  vllmHistograms(),
		modelLabel:  "model_name",
		rankLabel:   "engine",
		// Older builds with several API servers print one series per process.
		duplicateLabels:      []string{"pid"},
		routerLabel:          "server",
		processStart:         true,
		silentUntilFirstStep: true,
		defaultPort:          "8000",
		infoPath:             "/server_info?config_format=json",
		serverInfo:           parseVLLMServerInfo,
		settingsName:         "cache_config_info",
		settings:             vllmSettings,
		commandLine:          parseVLLMCommandLine,
		defaults:             vllmDefaults,
	}
}

// vllmDefaults are vLLM's limits for its API server when nobody sets them
// (vllm/engine/arg_utils.py): 256 sequences and 2048 tokens a step, 1024 and
// 8192 on large GPUs. More than 256 running sequences prove the latter.
func vllmDefaults(running, gpuMemory float64, gpuModel string) settings {
	large := gpuMemory >= vllmLargeGPU && !strings.Contains(strings.ToLower(gpuModel), "a100")
	if large || running > 256 {
		return settings{maxNumSeqs: 1024, maxNumBatchedTokens: 8192}
	}
	return settings{maxNumSeqs: 256, maxNumBatchedTokens: 2048}
}

// vllmLargeGPU is the device memory in bytes from which vLLM's API server
// takes larger defaults, but for A100s.
const vllmLargeGPU = 70 << 30
