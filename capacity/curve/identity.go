package curve

// Identity is what a curve was measured on. A field that is not known is
// empty, 0 or nil, and is not compared.
type Identity struct {
	Model            string `json:"model"`
	Revision         string `json:"revision,omitempty"`
	Quantization     string `json:"quantization,omitempty"`
	DType            string `json:"dtype,omitempty"`
	KVCacheDType     string `json:"kv_cache_dtype,omitempty"`
	TensorParallel   int    `json:"tensor_parallel,omitempty"`
	PipelineParallel int    `json:"pipeline_parallel,omitempty"`
	DataParallel     int    `json:"data_parallel,omitempty"`
	ExpertParallel   *bool  `json:"expert_parallel,omitempty"`
	// Role is prefill, decode or both.
	Role string `json:"role,omitempty"`
	// Path is how requests reach the engine: direct, router or pd.
	Path string `json:"path,omitempty"`

	GPUName    string `json:"gpu_name,omitempty"`
	GPUCount   int    `json:"gpu_count,omitempty"`
	MIGProfile string `json:"mig_profile,omitempty"`

	MaxNumSeqs           int     `json:"max_num_seqs,omitempty"`
	MaxNumBatchedTokens  int     `json:"max_num_batched_tokens,omitempty"`
	MaxModelLen          int     `json:"max_model_len,omitempty"`
	GPUMemoryUtilization float64 `json:"gpu_memory_utilization,omitempty"`
	KVTokens             float64 `json:"kv_tokens,omitempty"`
	PrefixCaching        *bool   `json:"prefix_caching,omitempty"`
	ChunkedPrefill       *bool   `json:"chunked_prefill,omitempty"`
	SpeculativeMethod    string  `json:"speculative_method,omitempty"`
	SpeculativeTokens    int     `json:"speculative_tokens,omitempty"`
	AttentionBackend     string  `json:"attention_backend,omitempty"`
	EnforceEager         *bool   `json:"enforce_eager,omitempty"`
	MaxLoRAs             int     `json:"max_loras,omitempty"`
	MaxLoRARank          int     `json:"max_lora_rank,omitempty"`

	EngineType    string  `json:"engine_type,omitempty"`
	EngineVersion string  `json:"engine_version,omitempty"`
	DriverVersion string  `json:"driver_version,omitempty"`
	CUDAVersion   string  `json:"cuda_version,omitempty"`
	PowerLimit    float64 `json:"power_limit_watts,omitempty"`
	MaxSMClock    float64 `json:"max_sm_clock_hertz,omitempty"`
	Interconnect  string  `json:"interconnect,omitempty"`
}
