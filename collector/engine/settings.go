package engine

import (
	"cmp"
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
)

// Settings are what an engine was started with, besides its limits, as far as
// it can be seen from outside. What is not known is empty, 0 or ToggleUnknown.
type Settings struct {
	Revision     string
	Quantization string
	// DType of the weights and KVCacheDType are as the engine takes them: auto, bfloat16, fp8...
	DType        string
	KVCacheDType string
	// GPUMemoryUtilization is the share of a GPU's memory that the engine takes.
	GPUMemoryUtilization float64
	PrefixCaching        Toggle
	ChunkedPrefill       Toggle
	EnforceEager         Toggle
	ExpertParallel       Toggle
	// SpeculativeMethod is none where it is known that there is no speculation.
	SpeculativeMethod string
	SpeculativeTokens int
	AttentionBackend  string
	MaxLoRAs          int
	MaxLoRARank       int
}

// Toggle is a setting that is on or off, where it is known.
type Toggle uint8

// The positions.
const (
	ToggleUnknown Toggle = iota
	ToggleOff
	ToggleOn
)

func toggle(on bool) Toggle {
	if on {
		return ToggleOn
	}
	return ToggleOff
}

// noSpeculation is the method of an engine that is known not to speculate.
const noSpeculation = "none"

// or takes from another source what is not known.
func (s Settings) or(other Settings) Settings {
	speculation := s
	if s.SpeculativeMethod == "" { // method and tokens are of one source
		speculation = other
	}
	return Settings{
		Revision:             cmp.Or(s.Revision, other.Revision),
		Quantization:         cmp.Or(s.Quantization, other.Quantization),
		DType:                cmp.Or(s.DType, other.DType),
		KVCacheDType:         cmp.Or(s.KVCacheDType, other.KVCacheDType),
		GPUMemoryUtilization: cmp.Or(s.GPUMemoryUtilization, other.GPUMemoryUtilization),
		PrefixCaching:        cmp.Or(s.PrefixCaching, other.PrefixCaching),
		ChunkedPrefill:       cmp.Or(s.ChunkedPrefill, other.ChunkedPrefill),
		EnforceEager:         cmp.Or(s.EnforceEager, other.EnforceEager),
		ExpertParallel:       cmp.Or(s.ExpertParallel, other.ExpertParallel),
		SpeculativeMethod:    speculation.SpeculativeMethod,
		SpeculativeTokens:    speculation.SpeculativeTokens,
		AttentionBackend:     cmp.Or(s.AttentionBackend, other.AttentionBackend),
		MaxLoRAs:             cmp.Or(s.MaxLoRAs, other.MaxLoRAs),
		MaxLoRARank:          cmp.Or(s.MaxLoRARank, other.MaxLoRARank),
	}
}

// described is a series whose labels say how the engine was started.
type described struct {
	series   *series
	settings Settings
}

// maxDescribed bounds how many of them are kept.
const maxDescribed = 64

// describe keeps what a series' labels say.
func (l *layout) describe(key string, set labels.Labels, s *series) {
	if l.table.settingsName != "" && key == l.table.settingsName && len(l.described) < maxDescribed {
		l.described = append(l.described, described{s, l.table.settings(set)})
	}
}

// settings are what the page of a generation says.
func (l *layout) settings(generation uint64) Settings {
	var s Settings
	for _, d := range l.described {
		if d.series.generation == generation {
			s = s.or(d.settings)
		}
	}
	return s
}

// vllmSettings reads vllm:cache_config_info. A label that does not apply is "None".
func vllmSettings(set labels.Labels) Settings {
	s := Settings{
		KVCacheDType:  settingText(set.Get("cache_dtype")),
		PrefixCaching: settingToggle(set.Get("enable_prefix_caching")),
	}
	// With the cache's size given, the engine does not look at the share.
	if bytes := set.Get("kv_cache_memory_bytes"); bytes == "" || bytes == "None" {
		s.GPUMemoryUtilization = settingShare(set.Get("gpu_memory_utilization"))
	}
	return s
}

// settingText is a setting as one engine writes it everywhere: torch.bfloat16 is bfloat16.
func settingText(text string) string {
	text = bounded(strings.TrimPrefix(text, "torch."))
	if text == "None" {
		return ""
	}
	return text
}

func settingToggle(text string) Toggle {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return ToggleUnknown
	}
	return toggle(b)
}

// settingShare is a number above 0 and up to 1, else 0.
func settingShare(text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0 && v <= 1) {
		return 0
	}
	return v
}

// vllmFlags reads the settings in vLLM's arguments. What is off or auto unless
// a flag says otherwise is so when all flags can be seen, as they cannot with
// a configuration file.
func vllmFlags(f flags) Settings {
	s := Settings{
		Revision:             settingText(f["revision"]),
		Quantization:         settingText(cmp.Or(f["quantization"], f["q"])),
		DType:                settingText(f["dtype"]),
		KVCacheDType:         settingText(f["kv-cache-dtype"]),
		GPUMemoryUtilization: settingShare(f["gpu-memory-utilization"]),
		PrefixCaching:        f.toggle("enable-prefix-caching"),
		ChunkedPrefill:       f.toggle("enable-chunked-prefill"),
		EnforceEager:         f.toggle("enforce-eager"),
		ExpertParallel:       f.toggle("enable-expert-parallel"),
		AttentionBackend:     settingText(f["attention-backend"]),
		MaxLoRAs:             f.number("max-loras"),
		MaxLoRARank:          f.number("max-lora-rank"),
	}
	s.SpeculativeMethod, s.SpeculativeTokens = vllmSpeculation(f)
	if f.has("config") {
		return s
	}
	return s.or(Settings{DType: "auto", EnforceEager: ToggleOff, ExpertParallel: ToggleOff, SpeculativeMethod: noSpeculation})
}

// vllmSpeculation reads --speculative-config, as JSON or as --speculative-config.method
// and so on, and the older --speculative-model.
func vllmSpeculation(f flags) (method string, tokens int) {
	var c struct {
		Method settingString `json:"method"`
		Model  settingString `json:"model"`
		Tokens count         `json:"num_speculative_tokens"`
	}
	text := cmp.Or(f["speculative-config"], f["sc"])
	_ = json.Unmarshal([]byte(text), &c) // what it does not say is not known
	const dotted = "speculative-config."
	method = cmp.Or(string(c.Method), settingText(f[dotted+"method"]))
	tokens = firstKnown(int(c.Tokens), f.number(dotted+"num-speculative-tokens", "num-speculative-tokens"))
	if method == "" && (text != "" || f.has(dotted+"model") || f.has("speculative-model")) {
		// vLLM finds out by the draft model, whose name does not say.
		method = "draft_model"
	}
	return method, tokens
}

// sglangFlags reads the settings in SGLang's arguments.
func sglangFlags(f flags) Settings {
	s := Settings{
		Revision:             settingText(f["revision"]),
		Quantization:         settingText(f["quantization"]),
		DType:                settingText(f["dtype"]),
		KVCacheDType:         settingText(f["kv-cache-dtype"]),
		GPUMemoryUtilization: settingShare(f["mem-fraction-static"]),
		AttentionBackend:     settingText(f["attention-backend"]),
		SpeculativeMethod:    strings.ToLower(settingText(f["speculative-algorithm"])),
		SpeculativeTokens:    f.number("speculative-num-draft-tokens"),
		MaxLoRAs:             f.number("max-loras-per-batch"),
		MaxLoRARank:          f.number("max-lora-rank"),
	}
	if f.has("config") {
		return s
	}
	return s.or(Settings{
		DType: "auto", KVCacheDType: "auto", SpeculativeMethod: noSpeculation,
		PrefixCaching: toggle(!f.has("disable-radix-cache")), EnforceEager: toggle(f.has("disable-cuda-graph")),
	})
}

// toggle reads --name and --no-name.
func (f flags) toggle(name string) Toggle {
	switch value, ok := f[name]; {
	case ok && strings.EqualFold(value, "false"):
		return ToggleOff
	case ok:
		return ToggleOn
	case f.has("no-" + name):
		return ToggleOff
	}
	return ToggleUnknown
}

// settingString is a JSON text that may be missing, null or of another type.
type settingString string

func (s *settingString) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		*s = settingString(settingText(text))
	}
	return nil
}

// UnmarshalJSON reads true and false; anything else is not known.
func (t *Toggle) UnmarshalJSON(b []byte) error {
	*t = settingToggle(string(b))
	return nil
}

// settingRatio is a JSON number above 0 and up to 1 that may be missing, null or of another type.
type settingRatio float64

func (r *settingRatio) UnmarshalJSON(b []byte) error {
	var v float64
	if json.Unmarshal(b, &v) == nil && v > 0 && v <= 1 && !math.IsNaN(v) {
		*r = settingRatio(v)
	}
	return nil
}
