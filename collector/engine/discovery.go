package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Backoff of a discovery request that failed.
const (
	firstRetry = 2 * time.Second
	lastRetry  = 5 * time.Minute
)

// maxDiscoveryBytes bounds the answer to a discovery request.
const maxDiscoveryBytes = 4 << 20

// discovery asks the engine for what its page does not say: one request per
// poll at most, each until it is answered, anew after a restart.
type discovery struct {
	questions []*question
	// looked is when the process list was last looked through.
	looked time.Time

	version     string
	maxModelLen int
	serverInfo  settings
	commandLine settings
}

// question is one request.
type question struct {
	// path of the question; empty is where the engine's table says that it tells its limits.
	path  string
	take  func(d *discovery, t *table, body []byte) error
	done  bool
	next  time.Time
	delay time.Duration
}

func newDiscovery() discovery {
	return discovery{questions: []*question{
		{take: (*discovery).takeServerInfo},
		{path: "/version", take: (*discovery).takeVersion},
		{path: "/v1/models", take: (*discovery).takeModels},
	}}
}

// again asks everything anew, as after a restart. What is known stays until then.
func (d *discovery) again() {
	for _, q := range d.questions {
		q.done, q.next, q.delay = false, time.Time{}, 0
	}
	d.looked = time.Time{}
}

// ask sends the next question that is due, if any.
func (d *discovery) ask(ctx context.Context, c *client, t *table) {
	for _, q := range d.questions {
		now := time.Now()
		if q.done || now.Before(q.next) {
			continue
		}
		path := q.path
		if path == "" {
			path = t.infoPath
		}
		if path == "" { // this engine tells nothing there
			q.done = true
			_ = q.take(d, t, nil)
			continue
		}
		body, status, err := c.ask(ctx, path, maxDiscoveryBytes)
		switch {
		case err == nil && status == 200:
			if err = q.take(d, t, body); err == nil {
				q.done = true
				return
			}
		case err == nil && status >= 400 && status < 500:
			// Not offered, or not to us: normal outside development mode.
			q.done = true
			_ = q.take(d, t, nil)
			return
		}
		q.delay = min(max(2*q.delay, firstRetry), lastRetry)
		q.next = now.Add(q.delay)
		return
	}
}

// look reads the command line, at first and then at the pace of the slowest retry.
func (d *discovery) look(procPath string, t *table, port string) {
	now := time.Now()
	if procPath == "" || (!d.looked.IsZero() && (d.commandLine != settings{} || now.Sub(d.looked) < lastRetry)) {
		return
	}
	d.looked = now
	d.commandLine, _ = commandLineOf(procPath, t, port)
}

func (d *discovery) takeServerInfo(t *table, body []byte) (err error) {
	d.serverInfo = settings{}
	if t.serverInfo != nil && body != nil {
		d.serverInfo, err = t.serverInfo(body)
	}
	return err
}

func (d *discovery) takeVersion(_ *table, body []byte) error {
	d.version = ""
	if body == nil {
		return nil
	}
	var v struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return fmt.Errorf("reading /version: %w", err)
	}
	d.version = v.Version
	return nil
}

func (d *discovery) takeModels(_ *table, body []byte) error {
	d.maxModelLen = 0
	if body == nil {
		return nil
	}
	var v struct {
		Data []struct {
			MaxModelLen *float64 `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return fmt.Errorf("reading /v1/models: %w", err)
	}
	for _, m := range v.Data {
		if m.MaxModelLen != nil && *m.MaxModelLen > 0 && *m.MaxModelLen < 1<<53 {
			d.maxModelLen = int(*m.MaxModelLen) // LoRA adapters after it share it
			break
		}
	}
	return nil
}

// count is a JSON number that may be missing, null or of another type.
type count int

func (c *count) UnmarshalJSON(b []byte) error {
	var v float64
	if json.Unmarshal(b, &v) == nil && v >= 1 && v < 1<<53 {
		*c = count(v)
	}
	return nil
}

// parseVLLMServerInfo reads /server_info?config_format=json, which vLLM has
// in development mode only.
func parseVLLMServerInfo(body []byte) (settings, error) {
	var v struct {
		Config struct {
			Scheduler struct {
				MaxNumSeqs          count  `json:"max_num_seqs"`
				MaxNumBatchedTokens count  `json:"max_num_batched_tokens"`
				ChunkedPrefill      Toggle `json:"enable_chunked_prefill"`
			} `json:"scheduler_config"`
			Model struct {
				MaxModelLen  count         `json:"max_model_len"`
				Revision     settingString `json:"revision"`
				Quantization settingString `json:"quantization"`
				DType        settingString `json:"dtype"`
				EnforceEager Toggle        `json:"enforce_eager"`
			} `json:"model_config"`
			Cache struct {
				DType         settingString `json:"cache_dtype"`
				Utilization   settingRatio  `json:"gpu_memory_utilization"`
				PrefixCaching Toggle        `json:"enable_prefix_caching"`
			} `json:"cache_config"`
			Speculative struct {
				Method settingString `json:"method"`
				Tokens count         `json:"num_speculative_tokens"`
			} `json:"speculative_config"`
			LoRA struct {
				MaxLoRAs count `json:"max_loras"`
				MaxRank  count `json:"max_lora_rank"`
			} `json:"lora_config"`
			Parallel struct {
				Tensor         count  `json:"tensor_parallel_size"`
				Pipeline       count  `json:"pipeline_parallel_size"`
				Data           count  `json:"data_parallel_size"`
				DecodeContext  count  `json:"decode_context_parallel_size"`
				ExpertParallel Toggle `json:"enable_expert_parallel"`
			} `json:"parallel_config"`
		} `json:"vllm_config"`
	}
	var text *json.UnmarshalTypeError
	// Older builds answer the configuration as one text whatever is asked for.
	if err := json.Unmarshal(body, &v); err != nil && !errors.As(err, &text) {
		return settings{}, fmt.Errorf("reading /server_info: %w", err)
	}
	c := v.Config
	return settings{
		maxNumSeqs:          int(c.Scheduler.MaxNumSeqs),
		maxNumBatchedTokens: int(c.Scheduler.MaxNumBatchedTokens),
		maxModelLen:         int(c.Model.MaxModelLen),
		parallelism: Parallelism{
			Tensor: int(c.Parallel.Tensor), Pipeline: int(c.Parallel.Pipeline),
			Data: int(c.Parallel.Data), DecodeContext: int(c.Parallel.DecodeContext),
		},
		start: Settings{
			Revision: string(c.Model.Revision), Quantization: string(c.Model.Quantization), DType: string(c.Model.DType),
			KVCacheDType: string(c.Cache.DType), GPUMemoryUtilization: float64(c.Cache.Utilization), PrefixCaching: c.Cache.PrefixCaching,
			ChunkedPrefill: c.Scheduler.ChunkedPrefill, EnforceEager: c.Model.EnforceEager, ExpertParallel: c.Parallel.ExpertParallel,
			SpeculativeMethod: string(c.Speculative.Method), SpeculativeTokens: int(c.Speculative.Tokens),
			MaxLoRAs: int(c.LoRA.MaxLoRAs), MaxLoRARank: int(c.LoRA.MaxRank),
		},
	}, nil
}

// parseSGLangServerInfo reads SGLang's /server_info.
func parseSGLangServerInfo(body []byte) (settings, error) {
	var v struct {
		MaxRunningRequests count `json:"max_running_requests"`
		ContextLength      count `json:"context_length"`
		Tensor             count `json:"tp_size"`
		Pipeline           count `json:"pp_size"`
		Data               count `json:"dp_size"`
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return settings{}, fmt.Errorf("reading /server_info: %w", err)
	}
	return settings{
		maxNumSeqs: int(v.MaxRunningRequests), maxModelLen: int(v.ContextLength),
		parallelism: Parallelism{Tensor: int(v.Tensor), Pipeline: int(v.Pipeline), Data: int(v.Data)},
	}, nil
}
