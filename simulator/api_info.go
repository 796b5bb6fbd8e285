package simulator

import (
	"fmt"
	"net/http"
)

// serverInfo is what vLLM's development mode tells of its configuration. Only
// the part with the limits is given; the rest of vLLM's answer is not about load.
type serverInfo struct {
	Config any      `json:"vllm_config"`
	Env    struct{} `json:"vllm_env"`
	System struct{} `json:"system_env"`
}

type infoConfig struct {
	Model     infoModel     `json:"model_config"`
	Cache     infoCache     `json:"cache_config"`
	Parallel  infoParallel  `json:"parallel_config"`
	Scheduler infoScheduler `json:"scheduler_config"`
}

type infoModel struct {
	Model        string `json:"model"`
	Dtype        string `json:"dtype"`
	MaxModelLen  int    `json:"max_model_len"`
	Quantization null   `json:"quantization"`
	ServedName   string `json:"served_model_name"`
}

type infoCache struct {
	BlockSize            int     `json:"block_size"`
	GPUMemoryUtilization float64 `json:"gpu_memory_utilization"`
	CacheDtype           string  `json:"cache_dtype"`
	NumGPUBlocksOverride null    `json:"num_gpu_blocks_override"`
	EnablePrefixCaching  bool    `json:"enable_prefix_caching"`
	PrefixHash           string  `json:"prefix_caching_hash_algo"`
	NumGPUBlocks         int     `json:"num_gpu_blocks"`
	SizeTokens           int     `json:"kv_cache_size_tokens"`
	MaxConcurrency       float64 `json:"kv_cache_max_concurrency"`
	MemoryBytes          null    `json:"kv_cache_memory_bytes"`
}

type infoParallel struct {
	PipelineParallel int  `json:"pipeline_parallel_size"`
	TensorParallel   int  `json:"tensor_parallel_size"`
	DataParallel     int  `json:"data_parallel_size"`
	ExpertParallel   bool `json:"enable_expert_parallel"`
}

type infoScheduler struct {
	RunnerType                string `json:"runner_type"`
	MaxNumBatchedTokens       int    `json:"max_num_batched_tokens"`
	MaxNumScheduledTokens     null   `json:"max_num_scheduled_tokens"`
	MaxNumSeqs                int    `json:"max_num_seqs"`
	LongPrefillTokenThreshold int    `json:"long_prefill_token_threshold"`
	MaxNumQueuedRequests      null   `json:"max_num_queued_reqs"`
	MaxNumQueuedTokens        null   `json:"max_num_queued_tokens"`
	EnableChunkedPrefill      bool   `json:"enable_chunked_prefill"`
	Policy                    string `json:"policy"`
	AsyncScheduling           bool   `json:"async_scheduling"`
	StreamInterval            int    `json:"stream_interval"`
}

// serverInfo serves /server_info, as text or with config_format=json as an object.
func (a *api) serverInfo(w http.ResponseWriter, r *http.Request) {
	c := a.cfg
	switch format := r.URL.Query().Get("config_format"); format {
	case "", "text":
		writeJSON(w, http.StatusOK, serverInfo{Config: fmt.Sprintf(
			"model='%s', dtype=torch.bfloat16, max_seq_len=%d, tensor_parallel_size=%d, data_parallel_size=%d, "+
				"max_num_seqs=%d, max_num_batched_tokens=%d, enable_prefix_caching=%t",
			c.ModelName, c.MaxModelLen, c.Hardware.TensorParallel, c.Ranks,
			c.MaxNumSeqs, c.MaxNumBatchedTokens, c.EnablePrefixCaching)})
	case "json":
		writeJSON(w, http.StatusOK, serverInfo{Config: infoConfig{
			Model: infoModel{Model: c.ModelName, Dtype: "torch.bfloat16", MaxModelLen: c.MaxModelLen, ServedName: c.ModelName},
			Cache: infoCache{
				BlockSize: c.BlockSize, GPUMemoryUtilization: 0.9, CacheDtype: "auto",
				EnablePrefixCaching: c.EnablePrefixCaching, PrefixHash: "sha256", NumGPUBlocks: c.NumGPUBlocks,
				SizeTokens: c.kvCacheTokens(), MaxConcurrency: c.kvCacheMaxConcurrency(),
			},
			Parallel: infoParallel{PipelineParallel: 1, TensorParallel: c.Hardware.TensorParallel, DataParallel: c.Ranks},
			Scheduler: infoScheduler{
				RunnerType: "generate", MaxNumBatchedTokens: c.MaxNumBatchedTokens, MaxNumSeqs: c.MaxNumSeqs,
				LongPrefillTokenThreshold: c.LongPrefillTokenThreshold, EnableChunkedPrefill: true,
				Policy: "fcfs", StreamInterval: 1,
			},
		}})
	default:
		writeError(w, validationError(fault{
			kind: "literal_error", location: "query.config_format",
			message: "Input should be 'text' or 'json'", input: format, context: `'expected': "'text' or 'json'"`,
		}))
	}
}
