package simulator

import "strconv"

// family is one metric of a rank as vLLM 0.32 exposes it. Exactly one of
// value and histogram is set.
type family struct {
	name, help, kind string
	// label is the name of a label beside engine and model_name, and values its values in vLLM's order.
	label  string
	values []string
	// value reads the sample of values[i].
	value     func(r *rankMetrics, i int) float64
	histogram func(r *rankMetrics) *histogram
	// perServer marks a metric without an engine label.
	perServer bool
	// severalRanks marks a metric that only a server with more than one rank shows:
	// there every process writes a file for every metric, used or not.
	severalRanks bool
}

func zero(*rankMetrics, int) float64 { return 0 }

// unusedBlocks stays empty: block residency is sampled only with --kv-cache-metrics.
var unusedBlocks = newHistogram(blockBounds)

func unused(*rankMetrics) *histogram { return unusedBlocks }

// rankFamilies are in the order of the page.
var rankFamilies = []family{
	{name: "vllm:estimated_flops_per_gpu", kind: "counter",
		help:  "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
		value: func(r *rankMetrics, _ int) float64 { return r.flops }},
	{name: "vllm:estimated_read_bytes_per_gpu", kind: "counter",
		help:  "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
		value: func(r *rankMetrics, _ int) float64 { return r.reads }},
	{name: "vllm:estimated_write_bytes_per_gpu", kind: "counter",
		help:  "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
		value: func(r *rankMetrics, _ int) float64 { return r.writes }},
	{name: "vllm:num_requests_running", kind: "gauge",
		help:  "Number of requests in model execution batches.",
		value: func(r *rankMetrics, _ int) float64 { return r.running }},
	{name: "vllm:num_requests_waiting", kind: "gauge",
		help:  "Number of requests waiting to be processed.",
		value: func(r *rankMetrics, _ int) float64 { return r.waiting }},
	{name: "vllm:num_requests_waiting_by_reason", kind: "gauge",
		help: "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; " +
			"'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). " +
			"Sum of all reasons equals vllm:num_requests_waiting.",
		label: "reason", values: []string{"capacity", "deferred"},
		value: func(r *rankMetrics, i int) float64 { return [...]float64{r.waiting - r.deferred, r.deferred}[i] }},
	{name: "vllm:engine_sleep_state", kind: "gauge",
		help: "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; " +
			"weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
		label: "sleep_state", values: []string{"awake", "weights_offloaded", "discard_all"},
		value: func(r *rankMetrics, i int) float64 { return flag(r.sleepLevel == i) }},
	{name: "vllm:kv_cache_usage_perc", kind: "gauge",
		help:  "KV-cache usage. 1 means 100 percent usage.",
		value: func(r *rankMetrics, _ int) float64 { return r.kvCacheUsage }},
	{name: "vllm:prefix_cache_queries", kind: "counter",
		help:  "Prefix cache queries, in terms of number of queried tokens.",
		value: func(r *rankMetrics, _ int) float64 { return r.prefixQueries }},
	{name: "vllm:prefix_cache_hits", kind: "counter",
		help:  "Prefix cache hits, in terms of number of cached tokens.",
		value: func(r *rankMetrics, _ int) float64 { return r.prefixHits }},
	{name: "vllm:external_prefix_cache_queries", kind: "counter",
		help:  "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried tokens.",
		value: zero},
	{name: "vllm:external_prefix_cache_hits", kind: "counter",
		help:  "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.",
		value: zero},
	{name: "vllm:mm_cache_queries", kind: "counter",
		help:  "Multi-modal cache queries, in terms of number of queried items.",
		value: zero},
	{name: "vllm:mm_cache_hits", kind: "counter",
		help:  "Multi-modal cache hits, in terms of number of cached items.",
		value: zero},
	{name: "vllm:num_preemptions", kind: "counter",
		help:  "Cumulative number of preemption from the engine.",
		value: func(r *rankMetrics, _ int) float64 { return r.preemptions }},
	{name: "vllm:prompt_tokens", kind: "counter",
		help:  "Number of prefill tokens processed.",
		value: func(r *rankMetrics, _ int) float64 { return r.promptTokens }},
	{name: "vllm:prompt_tokens_by_source", kind: "counter",
		help:  "Number of prompt tokens by source.",
		label: "source", values: []string{"local_compute", "local_cache_hit", "external_kv_transfer"},
		value: func(r *rankMetrics, i int) float64 {
			return [...]float64{r.promptTokens - r.cachedTokens, r.cachedTokens, 0}[i]
		}},
	{name: "vllm:prompt_tokens_cached", kind: "counter",
		help:  "Number of cached prompt tokens (local + external).",
		value: func(r *rankMetrics, _ int) float64 { return r.cachedTokens }},
	{name: "vllm:prompt_tokens_cached_by_source", kind: "counter",
		help: "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk, " +
			"p2p (transferred from another vLLM instance) or external_unspecified. " +
			"Counted at admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
		label: "source", values: []string{"device", "host", "p2p", "disk", "external_unspecified"},
		value: func(r *rankMetrics, i int) float64 { return [...]float64{0: r.prefixHits, 4: 0}[i] }},
	{name: "vllm:generation_tokens", kind: "counter",
		help:  "Number of generation tokens processed.",
		value: func(r *rankMetrics, _ int) float64 { return r.generatedTokens }},
	{name: "vllm:request_success", kind: "counter",
		help:  "Count of successfully processed requests.",
		label: "finished_reason", values: []string{"stop", "length", "abort", "error", "repetition"},
		value: func(r *rankMetrics, i int) float64 { return [...]float64{0: r.stopped, 1: r.reachedLength, 4: 0}[i] }},
	{name: "vllm:admission_rejections", kind: "counter", perServer: true,
		help:  "Number of admission attempts rejected by a queue limit, by reason.",
		label: "reason", values: []string{"max_num_queued_reqs", "max_num_queued_tokens"},
		value: zero},
	{name: "vllm:request_prompt_tokens", kind: "histogram",
		help:      "Number of prefill tokens processed.",
		histogram: func(r *rankMetrics) *histogram { return r.requestPromptTokens }},
	{name: "vllm:request_generation_tokens", kind: "histogram",
		help:      "Number of generation tokens processed.",
		histogram: func(r *rankMetrics) *histogram { return r.requestGenerationTokens }},
	{name: "vllm:iteration_tokens_total", kind: "histogram",
		help:      "Histogram of number of tokens per engine_step.",
		histogram: func(r *rankMetrics) *histogram { return r.iterationTokens }},
	{name: "vllm:request_max_num_generation_tokens", kind: "histogram",
		help:      "Histogram of maximum number of requested generation tokens.",
		histogram: func(r *rankMetrics) *histogram { return r.requestMaxGenerationTokens }},
	{name: "vllm:request_params_n", kind: "histogram",
		help:      "Histogram of the n request parameter.",
		histogram: func(r *rankMetrics) *histogram { return r.requestN }},
	{name: "vllm:request_params_max_tokens", kind: "histogram",
		help:      "Histogram of the max_tokens request parameter.",
		histogram: func(r *rankMetrics) *histogram { return r.requestMaxTokens }},
	{name: "vllm:time_to_first_token_seconds", kind: "histogram",
		help:      "Histogram of time to first token in seconds.",
		histogram: func(r *rankMetrics) *histogram { return r.timeToFirstToken }},
	{name: "vllm:inter_token_latency_seconds", kind: "histogram",
		help:      "Histogram of inter-token latency in seconds.",
		histogram: func(r *rankMetrics) *histogram { return r.interTokenLatency }},
	{name: "vllm:request_time_per_output_token_seconds", kind: "histogram",
		help:      "Histogram of time_per_output_token_seconds per request.",
		histogram: func(r *rankMetrics) *histogram { return r.timePerOutputToken }},
	{name: "vllm:e2e_request_latency_seconds", kind: "histogram",
		help:      "Histogram of e2e request latency in seconds.",
		histogram: func(r *rankMetrics) *histogram { return r.latency }},
	{name: "vllm:request_queue_time_seconds", kind: "histogram",
		help:      "Histogram of time spent in WAITING phase for request.",
		histogram: func(r *rankMetrics) *histogram { return r.queueTime }},
	{name: "vllm:request_inference_time_seconds", kind: "histogram",
		help:      "Histogram of time spent in RUNNING phase for request.",
		histogram: func(r *rankMetrics) *histogram { return r.inferenceTime }},
	{name: "vllm:request_prefill_time_seconds", kind: "histogram",
		help:      "Histogram of time spent in PREFILL phase for request.",
		histogram: func(r *rankMetrics) *histogram { return r.prefillTime }},
	{name: "vllm:request_decode_time_seconds", kind: "histogram",
		help:      "Histogram of time spent in DECODE phase for request.",
		histogram: func(r *rankMetrics) *histogram { return r.decodeTime }},
	{name: "vllm:request_num_preemptions", kind: "histogram",
		help:      "Histogram of the number of times a request was preempted.",
		histogram: func(r *rankMetrics) *histogram { return r.requestPreemptions }},
	{name: "vllm:request_prefill_kv_computed_tokens", kind: "histogram",
		help:      "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
		histogram: func(r *rankMetrics) *histogram { return r.requestComputedTokens }},
	{name: "vllm:kv_block_lifetime_seconds", kind: "histogram", severalRanks: true,
		help: "Histogram of KV cache block lifetime from allocation to eviction. " +
			"Sampled metrics (controlled by --kv-cache-metrics-sample).",
		histogram: unused},
	{name: "vllm:kv_block_idle_before_evict_seconds", kind: "histogram", severalRanks: true,
		help: "Histogram of idle time before KV cache block eviction. " +
			"Sampled metrics (controlled by --kv-cache-metrics-sample).",
		histogram: unused},
	{name: "vllm:kv_block_reuse_gap_seconds", kind: "histogram", severalRanks: true,
		help: "Histogram of time gaps between consecutive KV cache block accesses. " +
			"Only the most recent accesses are recorded (ring buffer). " +
			"Sampled metrics (controlled by --kv-cache-metrics-sample).",
		histogram: unused},
}

func flag(set bool) float64 {
	if set {
		return 1
	}
	return 0
}

// cacheConfigLabels is vLLM's CacheConfig as the labels of vllm:cache_config_info.
func cacheConfigLabels(cfg Config, rank int) string {
	truth := map[bool]string{true: "True", false: "False"}
	return labelText(
		label{"_block_size_resolved", "True"},
		label{"block_size", strconv.Itoa(cfg.BlockSize)},
		label{"cache_dtype", "auto"},
		label{"cache_hit_alignment_tokens", "None"},
		label{"effective_attention_block_size", strconv.Itoa(cfg.BlockSize)},
		label{"enable_mamba_shared_prefix_checkpoint", "False"},
		label{"enable_prefix_caching", truth[cfg.EnablePrefixCaching]},
		label{"engine", strconv.Itoa(rank)},
		label{"gpu_memory_utilization", "0.9"},
		label{"hash_block_size", "None"},
		label{"is_attention_free", "False"},
		label{"kv_cache_dtype_skip_layers", "[]"},
		label{"kv_cache_layout", "None"},
		label{"kv_cache_max_concurrency", string(appendRepr(nil, cfg.kvCacheMaxConcurrency()))},
		label{"kv_cache_memory_bytes", "None"},
		label{"kv_cache_size_tokens", strconv.Itoa(cfg.kvCacheTokens())},
		label{"kv_offloading_backend", "native"},
		label{"kv_offloading_size", "None"},
		label{"kv_sharing_fast_prefill", "False"},
		label{"mamba_block_size", "None"},
		label{"mamba_cache_dtype", "auto"},
		label{"mamba_cache_mode", "none"},
		label{"mamba_page_size_padded", "None"},
		label{"mamba_ssm_cache_dtype", "auto"},
		label{"num_cpu_blocks", "None"},
		label{"num_gpu_blocks", strconv.Itoa(cfg.NumGPUBlocks)},
		label{"num_gpu_blocks_override", "None"},
		label{"prefix_cache_retention_interval", "0"},
		label{"prefix_caching_hash_algo", "sha256"},
		label{"prefix_match_unit", "None"},
		label{"replayssm_buffer_len", "16"},
		label{"skip_page_size_padded", "None"},
		label{"sliding_window", "None"},
		label{"swa_bounded_replay", "True"},
		label{"use_kda_recoverssm", "False"},
		label{"use_replayssm", "False"},
		label{"user_specified_block_size", "False"},
	)
}
