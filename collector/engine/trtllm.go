package engine

// trtllmTable serves trtllm-serve (TensorRT-LLM), with the prefix of its
// metrics that TensorRT-LLM#12545 brought, and without any before it. Its
// /metrics is a queue of JSON that empties when it is read.
func trtllmTable() *table {
	return &table{
		engine:      TypeTRTLLM,
		prefixes:    []string{"trtllm_", "trtllm:"},
		bareLabel:   "engine_type",
		metricsPath: "/prometheus/metrics",
		queuePath:   "/metrics",
		rows: []row{
			{RequestsRunning, gauge, []alias{{name: "num_requests_running"}}},
			{RequestsWaiting, gauge, []alias{{name: "num_requests_waiting"}}},
			{KVCacheUsage, ratio, []alias{
				{name: "kv_cache_utilization"},
				{name: "kv_cache_used_blocks", over: operand{name: "kv_cache_max_blocks"}},
			}},
			{KVCacheTokens, info, []alias{
				{name: "kv_cache_max_blocks", times: operand{name: "kv_cache_tokens_per_block"}, source: sourceBlocks},
			}},
			{KVCacheTokensUsed, gauge, []alias{
				{name: "kv_cache_used_blocks", times: operand{name: "kv_cache_tokens_per_block"}},
			}},
			{SequenceSlots, info, []alias{
				{name: "max_num_active_requests"}, {name: "max_batch_size_runtime"}, {name: "max_batch_size_static"},
			}},
			{BatchedTokenLimit, info, []alias{{name: "max_num_tokens_runtime"}}},
			// num_paused_requests is how many are paused now: no count of preemptions.
			{PromptTokens, counter, []alias{{name: "prompt_tokens_total"}}},
			{PromptTokensComputed, counter, []alias{
				{name: "prompt_tokens_total", minus: operand{name: "prompt_cached_tokens_total"}},
			}},
			{GenerationTokens, counter, []alias{{name: "generation_tokens_total"}}},
			{RequestsFinished, counter, []alias{{name: "request_success_total"}, {name: "num_requests_completed_total"}}},
			{PrefixCacheQueries, counter, []alias{
				{name: "prompt_tokens_total"},
			}},
			{PrefixCacheHits, counter, []alias{
				{name: "prompt_cached_tokens_total"},
				{name: "kv_cache_reused_blocks_total", times: operand{name: "kv_cache_tokens_per_block"}},
			}},
			{PrefixCacheHitRate, ratio, []alias{{name: "kv_cache_hit_rate"}}},
		},
		histograms: []histogramRow{
			{TimeToFirstToken, []alias{{name: "time_to_first_token_seconds"}}},
			{TimePerOutputToken, []alias{{name: "time_per_output_token_seconds"}}},
			{E2ELatency, []alias{{name: "e2e_request_latency_seconds"}}},
			{QueueTime, []alias{{name: "request_queue_time_seconds"}}},
			{PrefillTime, []alias{{name: "request_prefill_time_seconds"}}},
			{DecodeTime, []alias{{name: "request_decode_time_seconds"}}},
		},
		modelLabel:   "model_name",
		noModel:      "undefined",
		processStart: true,
		defaultPort:  "8000",
	}
}
