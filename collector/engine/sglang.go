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
			{RequestsWaiting, gauge, []alias{{name: "num_queue_reqs", plus: operand{name: "num_grammar_queue_reqs"}}}},
			{KVCacheUsage, ratio, []alias{{name: "token_usage"}, {name: "full_token_usage"}}},
			{KVCacheTokens, info, []alias{
				{name: "max_total_num_tokens"},
				{name: "num_pages", times: operand{name: "page_size"}, source: sourceBlocks},
				{name: "cache_config_info", label: "num_pages", timesLabel: "page_size", source: sourceBlocks},
			}},
			{KVCacheTokensUsed, gauge, []alias{{name: "kv_used_tokens"}, {name: "num_used_tokens"}}},
			{Preemptions, counter, []alias{{name: "num_retracted_requests_total"}}},
			// The plain token counters jump when a request ends; realtime ones move with the work.
			{PromptTokens, counter, []alias{
				{name: "realtime_tokens_total", match: mode("prefill_compute", "prefill_cache")}, {name: "prompt_tokens_total"},
			}},
			{PromptTokensComputed, counter, []alias{
				{name: "realtime_tokens_total", match: mode("prefill_compute")},
				{name: "prefill_effective_tokens_total", match: mode("input")},
				{name: "prompt_tokens_total", minus: operand{name: "cached_tokens_total"}},
			}},
			{GenerationTokens, counter, []alias{
				{name: "realtime_tokens_total", match: mode("decode")}, {name: "generation_tokens_total"},
			}},
			{RequestsFinished, counter, []alias{{name: "num_requests_total"}, {name: "e2e_request_latency_seconds_count"}}},
			{PrefixCacheQueries, counter, []alias{
				// The modes are disjoint: input is what had to be computed.
				{name: "prefill_effective_tokens_total", match: mode("input", "device_hit", "host_hit", "storage_hit")},
				{name: "prompt_tokens_total"},
			}},
			{PrefixCacheHits, counter, []alias{
				{name: "prefill_effective_tokens_total", match: mode("device_hit", "host_hit", "storage_hit")},
				{name: "cached_tokens_total"},
			}},
			// The gauge cache_hit_rate is left out: it falls to 0 between prefills.
			{EngineSteps, counter, []alias{{name: "cuda_graph_passes_total"}}},
			{SpeculativeLength, gauge, []alias{{name: "spec_accept_length"}}},
			{EstimatedReadBytes, estimate, []alias{{name: "estimated_read_bytes_per_gpu_total"}}},
			{EstimatedWriteBytes, estimate, []alias{{name: "estimated_write_bytes_per_gpu_total"}}},
		},
		histograms: []histogramRow{
			{TimeToFirstToken, []alias{{name: "time_to_first_token_seconds"}}},
			// The old name counted per token too, so it is the same signal.
			{InterTokenLatency, []alias{{name: "inter_token_latency_seconds"}, {name: "time_per_output_token_seconds"}}},
			{E2ELatency, []alias{{name: "e2e_request_latency_seconds"}}},
			{QueueTime, []alias{{name: "queue_time_seconds"}}},
			{PrefillTime, []alias{
				{name: "per_stage_req_latency_seconds", match: []match{{"stage", []string{"prefill_forward"}}}},
			}},
			{PromptLength, []alias{{name: "prompt_tokens_histogram"}}},
			{GenerationLength, []alias{{name: "generation_tokens_histogram"}}},
		},
		modelLabel:      "model_name",
		rankLabel:       "dp_rank",
		duplicateLabels: []string{"pid", "tp_rank", "pp_rank", "moe_ep_rank"},
		totalLabels:     []string{"priority"},
		processStart:    true,
		defaultPort:     "30000",
		infoPath:        "/server_info",
		serverInfo:      parseSGLangServerInfo,
		commandLine:     parseSGLangCommandLine,
	}
}
