package engine

// sglangTable serves SGLang from 0.4 on.
func sglangTable() *table {
	mode := func(values ...string) []match { return []match{{"mode", values}} }
	return &table{
		engine:      TypeSGLang,
		prefixes:    []string{"sglang:", "sglang_"},
		metricsPath: "/metrics",
		rows: []row{
			{RequestsRunning, gauge, []alias{{name: "num_running_reqs"}}},
			// Requests whose grammar is being compiled wait in a queue of their own.
			{RequestsWaiting, gauge, []alias{{name: "num_queue_reqs", plus: "num_grammar_queue_reqs"}}},
			{KVCacheUsage, ratio, []alias{{name: "token_usage"}, {name: "full_token_usage"}}},
			{KVCacheTokens, info, []alias{
				{name: "max_total_num_tokens"},
				{name: "num_pages", times: "page_size", source: sourceBlocks},
				{name: "cache_config_info", label: "num_pages", timesLabel: "page_size", source: sourceBlocks},
			}},
			{KVCacheTokensUsed, gauge, []alias{{name: "kv_used_tokens"}, {name: "num_used_tokens"}}},
			{Preemptions, counter, []alias{{name: "num_retracted_requests_total"}}},
			{PromptTokens, counter, []alias{{name: "prompt_tokens_total"}}},
			{PromptTokensComputed, counter, []alias{{name: "realtime_tokens_total", match: mode("prefill_compute")}}},
			// generation_tokens_total jumps when a request ends; the other moves with every step.
			{GenerationTokens, counter, []alias{
				{name: "realtime_tokens_total", match: mode("decode")}, {name: "generation_tokens_total"},
			}},
			{RequestsFinished, counter, []alias{{name: "num_requests_total"}, {name: "e2e_request_latency_seconds_count"}}},
			{PrefixCacheQueries, counter, []alias{
				{name: "prefill_effective_tokens_total", match: mode("input")}, {name: "prompt_tokens_total"},
			}},
			{PrefixCacheHits, counter, []alias{
				{name: "prefill_effective_tokens_total", match: mode("device_hit", "host_hit", "storage_hit")},
				{name: "cached_tokens_total"},
			}},
			{PrefixCacheHitRate, optionalRatio, []alias{{name: "cache_hit_rate"}}},
			{EngineSteps, counter, []alias{{name: "cuda_graph_passes_total"}}},
			{EstimatedReadBytes, counter, []alias{{name: "estimated_read_bytes_per_gpu_total"}}},
			{EstimatedWriteBytes, counter, []alias{{name: "estimated_write_bytes_per_gpu_total"}}},
		},
		histograms: []histogramRow{
			{TimeToFirstToken, []alias{{name: "time_to_first_token_seconds"}}},
			// The old name counted per token too, so it is the same signal.
			{InterTokenLatency, []alias{{name: "inter_token_latency_seconds"}, {name: "time_per_output_token_seconds"}}},
			{E2ELatency, []alias{{name: "e2e_request_latency_seconds"}}},
			{QueueTime, []alias{{name: "queue_time_seconds"}}},
			{PromptLength, []alias{{name: "prompt_tokens_histogram"}}},
			{GenerationLength, []alias{{name: "generation_tokens_histogram"}}},
		},
		modelLabel:      "model_name",
		rankLabel:       "dp_rank",
		duplicateLabels: []string{"pid", "tp_rank", "pp_rank", "moe_ep_rank"},
		totalLabels:     []string{"priority"},
		processStart:    true,
		defaultPort:     "30000",
		serverInfo:      parseSGLangServerInfo,
		commandLine:     parseSGLangCommandLine,
	}
}
