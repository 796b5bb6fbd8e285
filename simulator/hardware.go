package simulator

import (
	"fmt"
	"math"
)

// GPU is a device's data sheet.
type GPU struct {
	Model string
	// MemoryBytes is the size of its HBM, MemoryBandwidth its theoretical peak in bytes per second.
	MemoryBytes, MemoryBandwidth float64
	// IdleWatts with a model loaded and nothing to do; LimitWatts is the power limit.
	IdleWatts, LimitWatts float64
	// SMClock and MemoryClock in hertz under load.
	SMClock, MemoryClock float64
}

// h100 is an H100 SXM5 80 GB; bandwidth from NVIDIA's data sheet.
var h100 = GPU{
	Model:           "NVIDIA H100 80GB HBM3",
	MemoryBytes:     81559 << 20,
	MemoryBandwidth: 3.35e12,
	IdleWatts:       115,
	LimitWatts:      700,
	SMClock:         1980e6,
	MemoryClock:     2619e6,
}

// Hardware is a model on the GPUs of one rank, as terms of the step time
//
//	T = Overhead + (compute^p + memory^p)^(1/p) + PerSequence*n + communication
//
// where compute = FLOPs / (Flops*GPUs) and memory = bytes read / (Bandwidth*GPUs).
// A roofline has p = infinity; measured linear layers lie nearer to p = 1.5
// (fit to the profiles that the Vidur simulator publishes).
type Hardware struct {
	GPU GPU
	// TensorParallel is the GPUs that one rank spans.
	TensorParallel int

	// WeightBytes held and WeightReadBytes read in each step, over all GPUs of the rank.
	WeightBytes, WeightReadBytes float64
	// RuntimeBytes on each GPU for activations, CUDA graphs and the context.
	RuntimeBytes float64
	// FlopsPerToken of the linear layers; AttentionFlops for each token and token of its context.
	FlopsPerToken, AttentionFlops float64
	// KVBytesPerToken over all GPUs of the rank.
	KVBytesPerToken float64

	// Bandwidth in bytes per second and Flops in FLOP per second that one GPU achieves.
	Bandwidth, Flops float64
	// Exponent is p.
	Exponent float64
	// Overhead of a step, PerSequence of the batch, and communication: all in seconds.
	Overhead, PerSequence, CommunicationBase, CommunicationPerToken float64
}

// Llama-3-8B in bf16: 32 layers, hidden size 4096, 8 KV heads of 128.
var llama8BOnH100 = Hardware{
	GPU:             h100,
	TensorParallel:  1,
	WeightBytes:     16.06e9,
	WeightReadBytes: 15.0e9,
	RuntimeBytes:    5.7e9,
	FlopsPerToken:   13.96e9,
	AttentionFlops:  4 * 32 * 4096,
	KVBytesPerToken: 131072,
	Bandwidth:       2.7e12,
	Flops:           650e12,
	Exponent:        1.5,
	Overhead:        1e-3,
	PerSequence:     8e-6,
}

// Llama-3-70B in bf16: 80 layers, hidden size 8192, 8 KV heads of 128.
var llama70BOn8H100 = Hardware{
	GPU:                   h100,
	TensorParallel:        8,
	WeightBytes:           141.1e9,
	WeightReadBytes:       139e9,
	RuntimeBytes:          1.0e9,
	FlopsPerToken:         137e9,
	AttentionFlops:        4 * 80 * 8192,
	KVBytesPerToken:       327680,
	Bandwidth:             2.3e12,
	Flops:                 577e12,
	Exponent:              1.5,
	Overhead:              1e-3,
	PerSequence:           8e-6,
	CommunicationBase:     2e-3,
	CommunicationPerToken: 13e-6,
}

func (h *Hardware) validate() error {
	if h.TensorParallel < 1 {
		return fmt.Errorf("simulator: Hardware.TensorParallel is %d: set it to 1 or more", h.TensorParallel)
	}
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"GPU.MemoryBytes", h.GPU.MemoryBytes},
		{"GPU.MemoryBandwidth", h.GPU.MemoryBandwidth},
		{"GPU.IdleWatts", h.GPU.IdleWatts},
		{"GPU.LimitWatts", h.GPU.LimitWatts},
		{"WeightReadBytes", h.WeightReadBytes},
		{"FlopsPerToken", h.FlopsPerToken},
		{"KVBytesPerToken", h.KVBytesPerToken},
		{"Bandwidth", h.Bandwidth},
		{"Flops", h.Flops},
		{"Exponent", h.Exponent},
	} {
		if !(f.value > 0) || math.IsInf(f.value, 0) {
			return fmt.Errorf("simulator: Hardware.%s is %v: set it above 0", f.name, f.value)
		}
	}
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"GPU.SMClock", h.GPU.SMClock},
		{"GPU.MemoryClock", h.GPU.MemoryClock},
		{"WeightBytes", h.WeightBytes},
		{"RuntimeBytes", h.RuntimeBytes},
		{"AttentionFlops", h.AttentionFlops},
		{"Overhead", h.Overhead},
		{"PerSequence", h.PerSequence},
		{"CommunicationBase", h.CommunicationBase},
		{"CommunicationPerToken", h.CommunicationPerToken},
	} {
		if !(f.value >= 0) || math.IsInf(f.value, 0) {
			return fmt.Errorf("simulator: Hardware.%s is %v: set it to 0 or more", f.name, f.value)
		}
	}
	return nil
}

// batch is the work of one step: what its time depends on.
type batch struct {
	// sequences and tokens scheduled.
	sequences, tokens int
	// context is the tokens whose keys and values are read, summed over the sequences.
	context float64
	// attention is the pairs of a token and a token of its context.
	attention float64
}

// add puts n tokens of a sequence into the batch, of which computed tokens are in the KV cache.
func (b *batch) add(computed, n int) {
	b.sequences++
	b.tokens += n
	b.context += float64(computed + n)
	b.attention += float64(n)*float64(computed) + float64(n)*float64(n+1)/2
}

// cost is what a step takes of each GPU.
type cost struct {
	// flops, readBytes and writeBytes of one GPU.
	flops, readBytes, writeBytes float64
	// compute and memory are the seconds that either alone would take, active
	// the seconds in which kernels run, duration the whole step.
	compute, memory, active, duration float64
}

func (h *Hardware) cost(b batch) cost {
	if b.tokens == 0 {
		return cost{duration: h.Overhead}
	}
	gpus, tokens := float64(h.TensorParallel), float64(b.tokens)
	c := cost{
		flops:      (tokens*h.FlopsPerToken + b.attention*h.AttentionFlops) / gpus,
		readBytes:  (h.WeightReadBytes + b.context*h.KVBytesPerToken) / gpus,
		writeBytes: tokens * h.KVBytesPerToken / gpus,
	}
	c.compute = c.flops / h.Flops
	c.memory = c.readBytes / h.Bandwidth
	// The larger one is taken out of the norm so that no power overflows.
	large, small := max(c.compute, c.memory), min(c.compute, c.memory)
	kernels := large * math.Pow(1+math.Pow(small/large, h.Exponent), 1/h.Exponent)
	c.active = kernels + h.CommunicationBase + h.CommunicationPerToken*tokens
	c.duration = h.Overhead + c.active + h.PerSequence*float64(b.sequences)
	return c
}

// slowed is the cost with every second factor times as long.
func (c cost) slowed(factor float64) cost {
	c.compute *= factor
	c.memory *= factor
	c.active *= factor
	c.duration *= factor
	return c
}
