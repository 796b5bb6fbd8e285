package engine

import "slices"

// tritonTable serves NVIDIA Triton with its TensorRT-LLM backend, whose gauges
// share a few names and differ by a label, and with its vLLM backend, which
// exports vLLM's own names under Triton's labels.
func tritonTable() *table {
	const requests, blocks = "trt_llm_request_metrics", "trt_llm_kv_cache_block_metrics"
	only := func(label, value string) []match { return []match{{label, []string{value}}} }
	request := func(kind string) alias { return alias{name: requests, match: only("request_type", kind)} }
	block := func(kind string) operand { return operand{blocks, only("kv_cache_block_type", kind)} }
	number := func(o operand) alias { return alias{name: o.name, match: o.match} }

	share, used, capacity := number(block("used")), number(block("used")), number(block("max"))
	share.over = block("max")
	used.times = block("tokens_per")
	capacity.times, capacity.source = block("tokens_per"), sourceBlocks

	rows := vllmRows()
	first := func(s Signal, k kind, aliases ...alias) {
		i := slices.IndexFunc(rows, func(r row) bool { return r.signal == s })
		if i < 0 {
			rows = append(rows, row{signal: s, kind: k})
			i = len(rows) - 1
		}
		rows[i].aliases = append(aliases, rows[i].aliases...)
	}
	first(RequestsRunning, gauge, request("scheduled"), request("active"))
	// Triton's own count of pending requests is left out: the backend takes requests
	// over at once, so that it says 0 while they wait there.
	first(RequestsWaiting, gauge, request("waiting"))
	first(KVCacheUsage, ratio, number(block("fraction")), share)
	first(KVCacheTokens, info, capacity)
	first(KVCacheTokensUsed, gauge, used)
	first(SequenceSlots, info, request("max"))
	first(EngineSteps, counter, alias{name: "trt_llm_general_metrics", match: only("general_type", "iteration_counter")})
	finished := slices.IndexFunc(rows, func(r row) bool { return r.signal == RequestsFinished })
	// Counted for every part of an ensemble, the tokenizer too.
	rows[finished].aliases = append(rows[finished].aliases, alias{name: "inference_request_success", follows: true})
	return &table{
		engine:        TypeTriton,
		prefixes:      []string{"nv_", "vllm:", "vllm_"},
		signs:         []string{"nv_trt_llm_", "nv_inference_"},
		metricsPath:   "/metrics",
		rows:          rows,
		histograms:    vllmHistograms(),
		modelLabel:    "model",
		replicaLabels: []string{"version"},
		defaultPort:   "8002",
	}
}
