package engine

import (
	"encoding/json"
	"fmt"
)

// llamacppTable serves llama.cpp's server, which exports a dozen plain numbers
// and neither labels nor histograms nor the use of its KV cache.
func llamacppTable() *table {
	return &table{
		engine:      TypeLlamaCpp,
		prefixes:    []string{"llamacpp:", "llamacpp_"},
		metricsPath: "/metrics",
		rows: []row{
			{RequestsRunning, gauge, []alias{{name: "requests_processing"}}},
			{RequestsWaiting, gauge, []alias{{name: "requests_deferred"}}},
			// What it calls the total leaves cached tokens out. Builds before 2026-08 do not count those.
			{PromptTokens, counter, []alias{{name: "prompt_tokens_cached_total", plus: operand{name: "prompt_tokens_total"}}}},
			{PromptTokensComputed, counter, []alias{{name: "prompt_tokens_total"}}},
			{GenerationTokens, counter, []alias{{name: "tokens_predicted_total"}}},
			{PrefixCacheQueries, counter, []alias{{name: "prompt_tokens_cached_total", plus: operand{name: "prompt_tokens_total"}}}},
			{PrefixCacheHits, counter, []alias{{name: "prompt_tokens_cached_total"}}},
			{EngineSteps, counter, []alias{{name: "n_decode_total"}}},
			{SpeculativeDrafts, counter, []alias{{name: "spec_decode_num_drafts_total"}}},
			{SpeculativeAccepted, counter, []alias{{name: "spec_decode_num_accepted_tokens_total"}}},
		},
		defaultPort: "8080",
		infoPath:    "/props",
		serverInfo:  parseLlamaCppProps,
	}
}

// parseLlamaCppProps reads llama.cpp's /props.
func parseLlamaCppProps(body []byte) (settings, error) {
	var v struct {
		TotalSlots count  `json:"total_slots"`
		BuildInfo  string `json:"build_info"`
		Generation struct {
			Context count `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return settings{}, fmt.Errorf("reading /props: %w", err)
	}
	return settings{maxNumSeqs: int(v.TotalSlots), maxModelLen: int(v.Generation.Context), version: v.BuildInfo}, nil
}
