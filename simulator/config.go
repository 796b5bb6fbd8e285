package simulator

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// Config is an engine's limits, its hardware and its clock. Start from a Preset.
type Config struct {
	// ModelName is the served model's name.
	ModelName string
	// Ranks is the number of data-parallel ranks; each has its own scheduler, KV cache and GPUs.
	Ranks int
	// MaxNumSeqs, MaxNumBatchedTokens and MaxModelLen limit one rank as vLLM's flags of these names do.
	MaxNumSeqs, MaxNumBatchedTokens, MaxModelLen int
	// BlockSize is the tokens of one KV cache block; NumGPUBlocks the blocks of one rank, of
	// which one is never given out.
	BlockSize, NumGPUBlocks int
	// LongPrefillTokenThreshold caps the tokens that one prompt gets in one step; 0 is no cap.
	LongPrefillTokenThreshold int
	// EnablePrefixCaching keeps full blocks for reuse by prompts that begin alike.
	EnablePrefixCaching bool
	// Speed is simulated seconds per second of the wall clock.
	Speed float64
	// FrontEndDelay is the seconds between a request's arrival and its entry into the queue.
	FrontEndDelay float64
	// Hardware is the step-time model and the GPUs.
	Hardware Hardware
	// EnableMFUMetrics makes the estimated_* counters move.
	EnableMFUMetrics bool
	// Seed of everything that is drawn.
	Seed uint64
	// Observer makes the observer of a rank; may be nil, and may return nil.
	Observer func(rank int) Observer
}

// TokenSlots is the tokens that the KV cache of one rank can hold.
func (c Config) TokenSlots() int { return (c.NumGPUBlocks - 1) * c.BlockSize }

// ErrTooLong is the error of a request that exceeds the model's context length.
var ErrTooLong = errors.New("request exceeds the context length")

// ErrInvalidRequest is the error of a request that no engine could run.
var ErrInvalidRequest = errors.New("invalid request")

// Accept tells whether an engine of this configuration can run the request.
// The error is ErrTooLong or ErrInvalidRequest, with the numbers.
func (c Config) Accept(r *Request) error {
	length := r.promptTokens()
	switch {
	case r.stage != stageNew:
		return fmt.Errorf("%w: %q was submitted before", ErrInvalidRequest, r.ID)
	case length < 1:
		return fmt.Errorf("%w: %q has an empty prompt", ErrInvalidRequest, r.ID)
	case r.OutputLength < 1:
		return fmt.Errorf("%w: %q has an output of %d tokens, at least 1 is generated", ErrInvalidRequest, r.ID, r.OutputLength)
	case length+max(r.OutputLength, r.MaxTokens) > c.MaxModelLen:
		return fmt.Errorf("%w: %d prompt tokens and %d output tokens, the context has %d",
			ErrTooLong, length, max(r.OutputLength, r.MaxTokens), c.MaxModelLen)
	}
	return nil
}

// Validate reports the first field that cannot be, in one line: field, value, what to do.
func (c Config) Validate() error {
	for _, f := range []struct {
		name  string
		value int
		least int
	}{
		{"Ranks", c.Ranks, 1},
		{"MaxNumSeqs", c.MaxNumSeqs, 1},
		{"MaxNumBatchedTokens", c.MaxNumBatchedTokens, 1},
		{"MaxModelLen", c.MaxModelLen, 2},
		{"BlockSize", c.BlockSize, 1},
		{"NumGPUBlocks", c.NumGPUBlocks, 2},
		{"LongPrefillTokenThreshold", c.LongPrefillTokenThreshold, 0},
	} {
		if f.value < f.least {
			return fmt.Errorf("simulator: %s is %d: set it to %d or more", f.name, f.value, f.least)
		}
	}
	switch {
	case c.ModelName == "":
		return errors.New("simulator: ModelName is empty: name the model")
	case c.NumGPUBlocks > math.MaxInt32:
		return fmt.Errorf("simulator: NumGPUBlocks is %d: set it to %d or less", c.NumGPUBlocks, math.MaxInt32)
	case c.MaxNumBatchedTokens < c.MaxNumSeqs:
		return fmt.Errorf("simulator: MaxNumBatchedTokens is %d, less than MaxNumSeqs %d: raise it, every sequence needs a token a step",
			c.MaxNumBatchedTokens, c.MaxNumSeqs)
	case c.TokenSlots() < c.MaxModelLen:
		// vLLM refuses to start like this; here it is what lets the oldest sequence always run on.
		return fmt.Errorf("simulator: NumGPUBlocks is %d, which holds %d tokens, less than MaxModelLen %d: raise it or lower MaxModelLen",
			c.NumGPUBlocks, c.TokenSlots(), c.MaxModelLen)
	case !(c.Speed > 0) || math.IsInf(c.Speed, 0):
		return fmt.Errorf("simulator: Speed is %v: set it above 0, 1 is real time", c.Speed)
	case !(c.FrontEndDelay >= 0) || math.IsInf(c.FrontEndDelay, 0):
		return fmt.Errorf("simulator: FrontEndDelay is %v s: set it to 0 or more", c.FrontEndDelay)
	}
	if err := c.Hardware.validate(); err != nil {
		return err
	}
	if used, size := c.memoryUsed(), c.Hardware.GPU.MemoryBytes; used > size {
		return fmt.Errorf("simulator: NumGPUBlocks is %d, which with the weights needs %.1f GB of each GPU's %.1f GB: lower it",
			c.NumGPUBlocks, used/1e9, size/1e9)
	}
	return nil
}

// memoryUsed is the bytes that an engine which is awake holds on each GPU:
// vLLM takes its whole KV cache at start.
func (c Config) memoryUsed() float64 {
	h := &c.Hardware
	kv := float64(c.NumGPUBlocks) * float64(c.BlockSize) * h.KVBytesPerToken
	return h.RuntimeBytes + (h.WeightBytes+kv)/float64(h.TensorParallel)
}

// Preset returns the configuration of a stylised model and hardware. The
// constants are fits to published measurements, not measurements.
func Preset(name string) (Config, error) {
	for _, p := range presets {
		if p.name == name {
			return Config{
				ModelName:           p.model,
				Ranks:               1,
				MaxNumSeqs:          256,
				MaxNumBatchedTokens: 2048,
				MaxModelLen:         8192,
				BlockSize:           16,
				NumGPUBlocks:        p.blocks,
				EnablePrefixCaching: true,
				Speed:               1,
				FrontEndDelay:       0.014,
				Hardware:            p.hardware,
				Seed:                1,
			}, nil
		}
	}
	return Config{}, fmt.Errorf("simulator: no preset %q: use one of %s", name, strings.Join(Presets(), ", "))
}

// Presets lists the names that Preset knows.
func Presets() []string {
	names := make([]string, len(presets))
	for i, p := range presets {
		names[i] = p.name
	}
	return names
}

var presets = []struct {
	name     string
	model    string
	blocks   int
	hardware Hardware
}{
	{"8b-h100", "meta-llama/Meta-Llama-3-8B-Instruct", 26312, llama8BOnH100},
	// 88941 blocks are what 8 GPUs of 80 GB hold beside the weights, with 40960 bytes a token on each.
	{"70b-8xh100", "meta-llama/Meta-Llama-3-70B-Instruct", 88941, llama70BOn8H100},
}
