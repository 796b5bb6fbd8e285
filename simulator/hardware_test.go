package simulator

import (
	"math"
	"strings"
	"testing"
)

// Worked by hand from the formula of the step time.
func TestStepTime(t *testing.T) {
	for _, test := range []struct {
		name     string
		hardware Hardware
		add      [][2]int // tokens computed before, tokens in the step
		duration float64
	}{
		{
			// memory (15e9 + 513*131072)/2.7e12 = 5.58046 ms, compute (13.96e9 + 513*524288)/650e12 = 0.021890 ms,
			// norm 5.58046*(1 + 0.0039227^1.5)^(2/3) = 5.58137 ms; + 1 ms + 8 us.
			"one decode", llama8BOnH100, [][2]int{{512, 1}}, 6.589374e-3,
		},
		{
			// compute (512*13.96e9 + 131328*524288)/650e12 = 11.10211 ms, memory (15e9 + 512*131072)/2.7e12 = 5.58041 ms,
			// norm (36.99206 + 13.18255)^(2/3) = 13.60367 ms; + 1.008 ms.
			"one prompt", llama8BOnH100, [][2]int{{0, 512}}, 14.611666e-3,
		},
		{
			// Per GPU: compute (2*137e9 + 1026*2621440)/8/577e12 = 0.0599418 ms,
			// memory (139e9 + 1026*327680)/8/2.3e12 = 7.572620 ms, norm 7.576175 ms;
			// + 1 ms + 16 us + 2 ms + 26 us.
			"two decodes on eight GPUs", llama70BOn8H100, [][2]int{{512, 1}, {512, 1}}, 10.618175e-3,
		},
		{"no tokens", llama8BOnH100, nil, 1e-3},
	} {
		t.Run(test.name, func(t *testing.T) {
			var b batch
			for _, a := range test.add {
				b.add(a[0], a[1])
			}
			if got := test.hardware.cost(b).duration; math.Abs(got-test.duration) > 1e-8 {
				t.Errorf("step of %.6f ms, want %.6f", got*1e3, test.duration*1e3)
			}
		})
	}
}

// A prompt in chunks costs the attention of the whole prompt.
func TestChunksKeepAttention(t *testing.T) {
	var whole, chunks batch
	whole.add(0, 1000)
	for from := 0; from < 1000; from += 100 {
		chunks.add(from, 100)
	}
	if whole.attention != chunks.attention || whole.attention != 500500 {
		t.Errorf("attention %v whole, %v in chunks, want 500500", whole.attention, chunks.attention)
	}
}

// Bytes per step of one GPU from published batch-1 decoding: a model's weights
// are read once per token (gpt-fast: 13.32 GB per step of a 7B model, so does ours for 8B).
func TestDecodeReadsTheWeights(t *testing.T) {
	for _, h := range []Hardware{llama8BOnH100, llama70BOn8H100} {
		var b batch
		b.add(0, 1)
		c := h.cost(b)
		want := (h.WeightReadBytes + h.KVBytesPerToken) / float64(h.TensorParallel)
		if c.readBytes != want || c.writeBytes != h.KVBytesPerToken/float64(h.TensorParallel) {
			t.Errorf("reads %v and writes %v bytes, want %v and one token", c.readBytes, c.writeBytes, want)
		}
		if ratio := c.readBytes / c.duration / h.GPU.MemoryBandwidth; ratio < 0.4 || ratio > 0.85 {
			t.Errorf("bandwidth ratio %.2f at batch 1", ratio)
		}
	}
}

func TestPresets(t *testing.T) {
	if got := strings.Join(Presets(), " "); got != "8b-h100 70b-8xh100" {
		t.Errorf("presets %q", got)
	}
	for _, name := range Presets() {
		cfg := preset(t, name, nil)
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// vLLM fills the GPU to its share, here 0.90.
		if share := cfg.memoryUsed() / cfg.Hardware.GPU.MemoryBytes; math.Abs(share-0.90) > 0.005 {
			t.Errorf("%s takes %.3f of the GPU's memory, want 0.90", name, share)
		}
		// KV bytes per token: 2 * layers * 8 KV heads * 128 * 2 bytes.
		layers := map[string]float64{"8b-h100": 32, "70b-8xh100": 80}[name]
		if want := 2 * layers * 8 * 128 * 2; cfg.Hardware.KVBytesPerToken != want {
			t.Errorf("%s: %v KV bytes a token, want %v", name, cfg.Hardware.KVBytesPerToken, want)
		}
	}
	if _, err := Preset("7b"); err == nil || !strings.Contains(err.Error(), "8b-h100, 70b-8xh100") {
		t.Errorf("error %v does not list the presets", err)
	}
}

func TestValidate(t *testing.T) {
	for _, test := range []struct {
		want   string
		change func(*Config)
	}{
		{"Ranks is 0", func(c *Config) { c.Ranks = 0 }},
		{"MaxNumSeqs is -1", func(c *Config) { c.MaxNumSeqs = -1 }},
		{"MaxNumBatchedTokens is 0", func(c *Config) { c.MaxNumBatchedTokens = 0 }},
		{"MaxNumBatchedTokens is 255", func(c *Config) { c.MaxNumBatchedTokens = 255 }},
		{"MaxModelLen is 1", func(c *Config) { c.MaxModelLen = 1 }},
		{"BlockSize is 0", func(c *Config) { c.BlockSize = 0 }},
		{"NumGPUBlocks is 512", func(c *Config) { c.NumGPUBlocks = 512 }},
		{"NumGPUBlocks is 40000", func(c *Config) { c.NumGPUBlocks = 40000 }},
		{"LongPrefillTokenThreshold is -1", func(c *Config) { c.LongPrefillTokenThreshold = -1 }},
		{"ModelName is empty", func(c *Config) { c.ModelName = "" }},
		{"Speed is 0", func(c *Config) { c.Speed = 0 }},
		{"Speed is NaN", func(c *Config) { c.Speed = math.NaN() }},
		{"FrontEndDelay is -1", func(c *Config) { c.FrontEndDelay = -1 }},
		{"Hardware.Flops is 0", func(c *Config) { c.Hardware.Flops = 0 }},
		{"Hardware.TensorParallel is 0", func(c *Config) { c.Hardware.TensorParallel = 0 }},
		{"Hardware.Overhead is -1", func(c *Config) { c.Hardware.Overhead = -1 }},
	} {
		err := preset(t, "8b-h100", test.change).Validate()
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want one line with %q", err, test.want)
		}
	}
	if err := preset(t, "8b-h100", func(c *Config) { c.NumGPUBlocks = 513 }).Validate(); err != nil {
		t.Errorf("exactly one context fits: %v", err)
	}
}
