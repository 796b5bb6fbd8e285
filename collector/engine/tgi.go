package engine

import (
	"encoding/json"
	"fmt"
)

// tgiTable serves Hugging Face's Text Generation Inference, whose counters
// carry no _total and whose token counts are the sums of histograms of finished requests.
func tgiTable() *table {
	return &table{
		engine:      TypeTGI,
		prefixes:    []string{"tgi_"},
		metricsPath: "/metrics",
		rows: []row{
			{RequestsRunning, gauge, []alias{{name: "batch_current_size"}}},
			{RequestsWaiting, gauge, []alias{{name: "queue_size"}}},
			// What the batch may grow to: TGI sets the cache for it aside when it admits a request.
			{KVCacheTokensUsed, gauge, []alias{{name: "batch_current_max_tokens"}}},
			{PromptTokens, counter, []alias{{name: "request_input_length_sum"}}},
			{GenerationTokens, counter, []alias{{name: "request_generated_tokens_sum"}}},
			{RequestsFinished, counter, []alias{{name: "request_success"}}},
			{EngineSteps, counter, []alias{{name: "batch_inference_count"}}},
		},
		histograms: []histogramRow{
			// The mean over a request's whole inference, prefill included.
			{TimePerOutputToken, []alias{{name: "request_mean_time_per_token_duration"}}},
			{E2ELatency, []alias{{name: "request_duration"}}},
			{QueueTime, []alias{{name: "request_queue_duration"}}},
			// Of a batch, which is what every request in it waits for. The same for decode is of
			// a step, not of a request, and left out.
			{PrefillTime, []alias{{name: "batch_forward_duration", match: []match{{"method", []string{"prefill"}}}}}},
			{PromptLength, []alias{{name: "request_input_length"}}},
			{GenerationLength, []alias{{name: "request_generated_tokens"}}},
		},
		// A full queue fails it.
		healthIsLoad: true,
		defaultPort:  "3000",
		infoPath:     "/info",
		serverInfo:   parseTGIInfo,
	}
}

// parseTGIInfo reads TGI's /info. The batch is bounded by tokens; a bound on
// its size exists on few devices only.
func parseTGIInfo(body []byte) (settings, error) {
	var v struct {
		Version             string `json:"version"`
		MaxTotalTokens      count  `json:"max_total_tokens"`
		MaxBatchTotalTokens count  `json:"max_batch_total_tokens"`
		MaxBatchSize        count  `json:"max_batch_size"`
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return settings{}, fmt.Errorf("reading /info: %w", err)
	}
	return settings{
		maxNumSeqs: int(v.MaxBatchSize), maxModelLen: int(v.MaxTotalTokens), kvTokens: int(v.MaxBatchTotalTokens),
		version: v.Version,
	}, nil
}
