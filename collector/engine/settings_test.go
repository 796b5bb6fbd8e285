package engine

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSettingsOfCommandLines(t *testing.T) {
	plain := Settings{DType: "auto", EnforceEager: ToggleOff, ExpertParallel: ToggleOff, SpeculativeMethod: "none"}
	with := func(change func(*Settings)) Settings {
		s := plain
		change(&s)
		return s
	}
	for line, want := range map[string]Settings{
		"vllm serve m": plain,
		"vllm serve m --enforce-eager --max-num-seqs 7":                                                with(func(s *Settings) { s.EnforceEager = ToggleOn }),
		"vllm serve m --enforce-eager":                                                                 with(func(s *Settings) { s.EnforceEager = ToggleOn }),
		"vllm serve m --no-enforce-eager --no-enable-prefix-caching":                                   with(func(s *Settings) { s.PrefixCaching = ToggleOff }),
		"vllm serve m --enable-prefix-caching --enable_chunked_prefill=False":                          with(func(s *Settings) { s.PrefixCaching, s.ChunkedPrefill = ToggleOn, ToggleOff }),
		"vllm serve m --enable-expert-parallel":                                                        with(func(s *Settings) { s.ExpertParallel = ToggleOn }),
		"vllm serve m --dtype torch.float16 --kv-cache-dtype fp8 -q awq":                               with(func(s *Settings) { s.DType, s.KVCacheDType, s.Quantization = "float16", "fp8", "awq" }),
		"vllm serve m --revision abc --gpu-memory-utilization .85":                                     with(func(s *Settings) { s.Revision, s.GPUMemoryUtilization = "abc", 0.85 }),
		"vllm serve m --gpu-memory-utilization 85":                                                     plain,
		"vllm serve m --enable-lora --max-loras 4 --max-lora-rank 32":                                  with(func(s *Settings) { s.MaxLoRAs, s.MaxLoRARank = 4, 32 }),
		"vllm serve m --attention-backend FLASHINFER":                                                  with(func(s *Settings) { s.AttentionBackend = "FLASHINFER" }),
		`vllm serve m --speculative-config {"method":"eagle3","num_speculative_tokens":3}`:             with(func(s *Settings) { s.SpeculativeMethod, s.SpeculativeTokens = "eagle3", 3 }),
		`vllm serve m -sc {"model":"draft","num_speculative_tokens":"many"}`:                           with(func(s *Settings) { s.SpeculativeMethod = "draft_model" }),
		"vllm serve m --speculative-config.method ngram --speculative-config.num_speculative_tokens 5": with(func(s *Settings) { s.SpeculativeMethod, s.SpeculativeTokens = "ngram", 5 }),
		"vllm serve m --speculative-model d --num-speculative-tokens 2":                                with(func(s *Settings) { s.SpeculativeMethod, s.SpeculativeTokens = "draft_model", 2 }),
		// More may be set in a file that cannot be seen.
		"vllm serve m --config c.yaml --enforce-eager": {EnforceEager: ToggleOn},
		"sglang serve m --dtype bfloat16 --quantization fp8 --mem-fraction-static 0.8 --speculative-algorithm EAGLE --speculative-num-draft-tokens 4 --attention-backend fa3 --disable-radix-cache --disable-cuda-graph --max-loras-per-batch 8": {
			DType: "bfloat16", KVCacheDType: "auto", Quantization: "fp8", GPUMemoryUtilization: 0.8, SpeculativeMethod: "eagle", SpeculativeTokens: 4,
			AttentionBackend: "fa3", PrefixCaching: ToggleOff, EnforceEager: ToggleOn, MaxLoRAs: 8,
		},
		"sglang serve m":                 {DType: "auto", KVCacheDType: "auto", SpeculativeMethod: "none", PrefixCaching: ToggleOn, EnforceEager: ToggleOff},
		"sglang serve m --config c.yaml": {},
	} {
		argv := strings.Fields(line)
		got, ok := parseVLLMCommandLine(argv)
		if !ok {
			got, ok = parseSGLangCommandLine(argv)
		}
		if diff := cmp.Diff(want, got.start); !ok || diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
	}
}

func TestSettingsOfServerInfo(t *testing.T) {
	got, err := parseVLLMServerInfo([]byte(`{"vllm_config":{
		"model_config":{"max_model_len":32768,"dtype":"torch.bfloat16","quantization":null,"revision":"abc","enforce_eager":false},
		"cache_config":{"cache_dtype":"fp8","gpu_memory_utilization":0.9,"enable_prefix_caching":true},
		"scheduler_config":{"enable_chunked_prefill":true},"parallel_config":{"enable_expert_parallel":false},
		"speculative_config":{"method":"eagle3","num_speculative_tokens":3},"lora_config":{"max_loras":2,"max_lora_rank":16}}}`))
	want := Settings{
		Revision: "abc", DType: "bfloat16", KVCacheDType: "fp8", GPUMemoryUtilization: 0.9, PrefixCaching: ToggleOn, ChunkedPrefill: ToggleOn,
		EnforceEager: ToggleOff, ExpertParallel: ToggleOff, SpeculativeMethod: "eagle3", SpeculativeTokens: 3, MaxLoRAs: 2, MaxLoRARank: 16,
	}
	if diff := cmp.Diff(want, got.start); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	// Other types and null are not known.
	got, err = parseVLLMServerInfo([]byte(`{"vllm_config":{"model_config":{"dtype":5,"enforce_eager":"maybe"},
		"cache_config":{"gpu_memory_utilization":7,"enable_prefix_caching":null},"speculative_config":null,"lora_config":null}}`))
	if err != nil || got.start != (Settings{}) {
		t.Errorf("%v: %+v", err, got.start)
	}
}

// TestSettingsOfPages reads real pages.
func TestSettingsOfPages(t *testing.T) {
	for file, want := range map[string]Settings{
		"vllm-0.32-idle.prom":      {KVCacheDType: "auto", PrefixCaching: ToggleOn},
		"vllm-0.4.3-v0.prom":       {KVCacheDType: "auto", PrefixCaching: ToggleOff, GPUMemoryUtilization: 0.9},
		"sglang-0.4-loaded.prom":   {},
		"vllm-0.32-dp2-fresh.prom": {KVCacheDType: "auto", PrefixCaching: ToggleOn},
	} {
		body, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		p := newPages(tables, "")
		if _, f := p.read(body, "text/plain"); f != nil {
			t.Fatal(f)
		}
		var got Settings
		for _, l := range p.layouts {
			got = got.or(l.settings(p.generation))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
		p.generation++ // the series is no longer on the page
		for _, l := range p.layouts {
			if s := l.settings(p.generation); s != (Settings{}) {
				t.Errorf("%s: %+v of a page before", file, s)
			}
		}
	}
}

// TestSettingsOr: the first source that knows a setting has it; speculation is of one source.
func TestSettingsOr(t *testing.T) {
	a := Settings{DType: "auto", EnforceEager: ToggleOff, SpeculativeMethod: "ngram"}
	b := Settings{DType: "float16", Quantization: "fp8", EnforceEager: ToggleOn, PrefixCaching: ToggleOn, SpeculativeMethod: "eagle", SpeculativeTokens: 4}
	want := Settings{DType: "auto", Quantization: "fp8", EnforceEager: ToggleOff, PrefixCaching: ToggleOn, SpeculativeMethod: "ngram"}
	if diff := cmp.Diff(want, a.or(b)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
