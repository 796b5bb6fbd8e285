package capacity_test

import (
	"math"
	"testing"

	"headroom_exporter/capacity"
)

var nan = math.NaN()

func same(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-9*math.Max(1, math.Abs(b))
}

// full is an operation of which everything is known.
func full() capacity.Operation {
	return capacity.Operation{
		RequestsRunning: 128, SequenceSlots: 256,
		TokenSlotUsage: 0.45, Preemptions: 0, RequestsFinished: 1000,
		ComputedPromptTokens: 20_000, InterTokenLatency: 0.02, BatchedTokens: 2048,
		Backlog: 1.2, QueueBudget: 2.4,
	}
}

func TestLoadRatios(t *testing.T) {
	tests := []struct {
		name   string
		change func(*capacity.Operation)
		// want: sequence slots, token slots, token budget, queue
		want [4]float64
	}{
		{"all known", func(*capacity.Operation) {}, [4]float64{0.5, 0.5, (400.0 + 128) / 2048, 0.5}},
		{"over full is not clamped", func(o *capacity.Operation) { o.RequestsRunning, o.TokenSlotUsage, o.Backlog = 300, 0.99, 24 },
			[4]float64{300.0 / 256, 1.1, 700.0 / 2048, 10}},
		{"1 % preempted is normal", func(o *capacity.Operation) { o.Preemptions = 10 }, [4]float64{0.5, 0.5, 528.0 / 2048, 0.5}},
		{"more than 1 % preempted is full", func(o *capacity.Operation) { o.Preemptions = 11 }, [4]float64{0.5, 1, 528.0 / 2048, 0.5}},
		{"preempted, but all work is done", func(o *capacity.Operation) { o.Preemptions, o.RequestsRunning = 50, 0 }, [4]float64{0, 0.5, 400.0 / 2048, 0.5}},
		{"preempted while none finished is full", func(o *capacity.Operation) { o.Preemptions, o.RequestsFinished = 1, 0 }, [4]float64{0.5, 1, 528.0 / 2048, 0.5}},
		{"preempting does not lower a ratio above 1", func(o *capacity.Operation) { o.Preemptions, o.TokenSlotUsage = 50, 0.99 }, [4]float64{0.5, 1.1, 528.0 / 2048, 0.5}},
		{"preempting with KV usage unknown is full", func(o *capacity.Operation) { o.Preemptions, o.TokenSlotUsage = 50, nan }, [4]float64{0.5, 1, 528.0 / 2048, 0.5}},
		{"no prompts need no step time", func(o *capacity.Operation) { o.ComputedPromptTokens, o.InterTokenLatency = 0, nan }, [4]float64{0.5, 0.5, 128.0 / 2048, 0.5}},
		{"prompts without a step time", func(o *capacity.Operation) { o.InterTokenLatency = nan }, [4]float64{0.5, 0.5, nan, 0.5}},
		{"slots unknown", func(o *capacity.Operation) { o.SequenceSlots = nan }, [4]float64{nan, 0.5, 528.0 / 2048, 0.5}},
		{"a limit of 0 is unknown, not infinite load", func(o *capacity.Operation) { o.SequenceSlots, o.BatchedTokens, o.QueueBudget = 0, 0, 0 }, [4]float64{nan, 0.5, nan, nan}},
		{"running unknown", func(o *capacity.Operation) { o.RequestsRunning = nan }, [4]float64{nan, 0.5, nan, 0.5}},
		{"KV unknown", func(o *capacity.Operation) { o.TokenSlotUsage = nan }, [4]float64{0.5, nan, 528.0 / 2048, 0.5}},
		{"queue unknown", func(o *capacity.Operation) { o.Backlog = nan }, [4]float64{0.5, 0.5, 528.0 / 2048, nan}},
		{"preemptions unknown", func(o *capacity.Operation) { o.Preemptions = nan }, [4]float64{0.5, 0.5, 528.0 / 2048, 0.5}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := full()
			test.change(&o)
			r := o.LoadRatios()
			for i, c := range []capacity.Constraint{capacity.SequenceSlots, capacity.TokenSlots, capacity.TokenBudget, capacity.Queue} {
				if !same(r[c], test.want[i]) {
					t.Errorf("%s = %v, want %v", c, r[c], test.want[i])
				}
			}
			for _, c := range []capacity.Constraint{capacity.Curve, capacity.LoRA} {
				if !math.IsNaN(r[c]) {
					t.Errorf("%s = %v without anything known of it, want NaN", c, r[c])
				}
			}
		})
	}
}

func TestMax(t *testing.T) {
	if v, c := capacity.UnknownLoadRatios().Max(); !math.IsNaN(v) || c != capacity.NoConstraint {
		t.Errorf("Max of unknown = %v, %v", v, c)
	}
	r := capacity.UnknownLoadRatios()
	r[capacity.TokenSlots], r[capacity.Queue] = 0.2, 0.1
	if v, c := r.Max(); v != 0.2 || c != capacity.TokenSlots {
		t.Errorf("Max = %v, %v; want 0.2, token_slots", v, c)
	}
	r[capacity.Queue] = -1 // The first known value wins over unknown, however small.
	r[capacity.TokenSlots] = nan
	if v, c := r.Max(); v != -1 || c != capacity.Queue {
		t.Errorf("Max = %v, %v; want -1, queue", v, c)
	}
}

func TestBindingHysteresis(t *testing.T) {
	ratios := func(slots, tokens float64) capacity.LoadRatios {
		r := capacity.UnknownLoadRatios()
		r[capacity.SequenceSlots], r[capacity.TokenSlots] = slots, tokens
		return r
	}
	var b capacity.Binding
	for i, step := range []struct {
		slots, tokens float64
		want          capacity.Constraint
	}{
		{nan, nan, capacity.NoConstraint},
		{0.5, 0.4, capacity.SequenceSlots},
		{0.5, 0.54, capacity.SequenceSlots},  // leads, but by less than 0.05
		{0.5, 0.60, capacity.SequenceSlots},  // leads, first
		{0.5, 0.60, capacity.SequenceSlots},  // second
		{0.5, 0.52, capacity.SequenceSlots},  // the lead is broken: the count starts anew
		{0.5, 0.60, capacity.SequenceSlots},  // first
		{0.5, 0.60, capacity.SequenceSlots},  // second
		{0.5, 0.60, capacity.TokenSlots},     // third: switches
		{0.58, 0.60, capacity.TokenSlots},    // stays
		{0.62, nan, capacity.SequenceSlots},  // what bound is unknown now: at once
		{nan, nan, capacity.NoConstraint},    //
		{0.1, 0.12, capacity.TokenSlots},     // starts anew with the largest
		{0.12, 0.1, capacity.TokenSlots},     //
		{nan, 0.01, capacity.TokenSlots},     //
		{1.01, 0.99, capacity.SequenceSlots}, // over full, and what bound is not: at once
		{1.01, 1.04, capacity.SequenceSlots}, // both are over full
		{1.24, 1.55, capacity.TokenSlots},    // far ahead: at once
		{0.04, 0, capacity.SequenceSlots},    // what bound is empty: at once
		{0, 0, capacity.NoConstraint},        // nothing is there that could bind
		{0, 0.003, capacity.TokenSlots},      //
	} {
		if got := b.Update(ratios(step.slots, step.tokens)); got != step.want {
			t.Fatalf("step %d (%v, %v): binds %v, want %v", i, step.slots, step.tokens, got, step.want)
		}
	}
}

// Several constraints that lead in turn do not hold up the change: after three
// readings what bound is surely not the largest.
func TestBindingIsLedBySeveral(t *testing.T) {
	var b capacity.Binding
	r := capacity.UnknownLoadRatios()
	for i, step := range []struct {
		slots, tokens, queue float64
		want                 capacity.Constraint
	}{
		{0.5, 0.1, 0.1, capacity.SequenceSlots},
		{0.5, 0.6, 0.1, capacity.SequenceSlots},
		{0.5, 0.1, 0.6, capacity.SequenceSlots},
		{0.5, 0.6, 0.1, capacity.TokenSlots},
	} {
		r[capacity.SequenceSlots], r[capacity.TokenSlots], r[capacity.Queue] = step.slots, step.tokens, step.queue
		if got := b.Update(r); got != step.want {
			t.Fatalf("step %d: binds %v, want %v", i, got, step.want)
		}
	}
}

func TestZoneOf(t *testing.T) {
	for _, test := range []struct {
		ratio float64
		want  capacity.Zone
	}{{nan, capacity.ZoneUnknown}, {0, capacity.ZoneStable}, {0.80, capacity.ZoneStable}, {0.81, capacity.ZoneRisk}, {1, capacity.ZoneRisk}, {1.01, capacity.ZoneUnstable}} {
		if got := capacity.ZoneOf(test.ratio); got != test.want {
			t.Errorf("ZoneOf(%v) = %v, want %v", test.ratio, got, test.want)
		}
	}
}

func TestQueueBudget(t *testing.T) {
	for _, test := range []struct{ slo, prefill, want float64 }{
		{2.5, 0.1, 2.4}, {2.5, nan, 2.5}, {2.5, 2.4, 0.25}, {2.5, 9, 0.25},
	} {
		if got := capacity.QueueBudget(test.slo, test.prefill); !same(got, test.want) {
			t.Errorf("QueueBudget(%v, %v) = %v, want %v", test.slo, test.prefill, got, test.want)
		}
	}
}

func TestLeft(t *testing.T) {
	for _, test := range []struct{ rate, ratio, want float64 }{
		{10, 0.5, 10}, {10, 0.8, 2.5}, {10, 1, 0}, {10, 1.25, -2}, {0, 0.5, nan}, {10, 0, nan}, {nan, 0.5, nan}, {10, nan, nan},
	} {
		if got := capacity.ScaleRate(test.rate, test.ratio); !same(got, test.want) {
			t.Errorf("ScaleRate(%v, %v) = %v, want %v", test.rate, test.ratio, got, test.want)
		}
	}
	if got := capacity.SequenceSlotsLeft(3, 8); got != 5 {
		t.Errorf("SequenceSlotsLeft(3, 8) = %v", got)
	}
	if got := capacity.TokenSlotsLeft(950, 1000); !same(got, -50) {
		t.Errorf("TokenSlotsLeft(950, 1000) = %v, want -50: above 90 %% is over full", got)
	}
	if got := capacity.TokenSlotsLeft(nan, 1000); !math.IsNaN(got) {
		t.Errorf("TokenSlotsLeft of unknown = %v", got)
	}
	for _, v := range []float64{capacity.Occupancy(1, 0), capacity.Occupancy(nan, 2), capacity.Occupancy(1, nan)} {
		if !math.IsNaN(v) {
			t.Errorf("occupancy of unknown = %v", v)
		}
	}
}

// Published measurements: model bandwidth utilisation of a 7B model at 14 ms
// per token on a 2 TB/s GPU, and gpt-fast on an A100-80GB (13.320 GB a step
// at 104.9 steps/s moves 1397.31 GB/s, 0.685 of 2039 GB/s).
func TestBandwidth(t *testing.T) {
	if got := capacity.BandwidthSaturation(capacity.StepBytes(14e9, 0, 0, 1)/0.014, 2e12, 1); !same(got, 0.5) {
		t.Errorf("7B at 14 ms = %v, want 0.5", got)
	}
	if got := capacity.BandwidthSaturation(104.9*capacity.StepBytes(13.320e9, 0, 0, 1), 2.039e12, 1); math.Abs(got-0.685) > 0.685*0.002 {
		t.Errorf("gpt-fast 7B = %v, want 0.685 within 0.2 %%", got)
	}
	// Qwen3-32B bf16 on 2 H100: 65.52 GB of weights, 262,144 B per token, 8 sequences of 1,536 tokens, 15.901 ms.
	if got := capacity.BandwidthSaturation(capacity.StepBytes(65.52e9, 8*1536, 262144, 2)/0.015901, 3.35e12, 1); math.Abs(got-0.645) > 0.645*0.01 {
		t.Errorf("Qwen3-32B TP2 = %v, want 0.645", got)
	}
	if got := capacity.BandwidthSaturation(1e12, 0, 0.8); !math.IsNaN(got) {
		t.Errorf("saturation without a peak = %v, want NaN", got)
	}
}
