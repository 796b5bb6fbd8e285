package capacity_test

import (
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"headroom_exporter/capacity"
)

// signs changes what is unknown of an engine.
func signs(change func(*capacity.Signs)) capacity.Signs {
	s := capacity.UnknownSigns()
	change(&s)
	return s
}

// healthy is an engine under load of which everything is known and nothing is wrong.
func healthy(change func(*capacity.Signs)) capacity.Signs {
	s := capacity.Signs{
		LoadRatio: 0.7, TTFT: 0.5, TTFTBound: 2, ITL: 0.03, ITLBound: 0.05,
		TTFTMean: 0.2, Queue: 0.02, Prefill: 0.15, Decode: 5,
		Shares:  capacity.StepShares{Base: 0.6, Prefill: 0.2, Sequences: 0.1, Context: 0.1},
		KVUsage: 0.4, Preempted: 0, Running: 60, Waiting: 0, SequenceSlots: 256,
		BandwidthSaturation: 0.6, BandwidthMeasured: true, SMActive: 0.9, Throttled: 0, ClockRatio: 1,
		StepRate: 40, StepSeconds: 0.025,
	}
	if change != nil {
		change(&s)
	}
	return s
}

type attributionCase struct {
	name  string
	signs capacity.Signs
	want  capacity.Bottleneck
	// evidence must be among what is said.
	evidence string
}

func attributionCases() []attributionCase {
	return []attributionCase{
		// llm-d/llm-d-autoscaling#662: H100, 6000 tokens in and 2 out, 8 requests/s; about 20 run,
		// the queue grows, and the KV cache stays at 32 %. By Little's law a
		// request is in the engine for more than 2.5 s.
		{"saturated at 32 % KV", signs(func(s *capacity.Signs) {
			s.KVUsage, s.Running, s.Waiting, s.SequenceSlots = 0.32, 20, 150, 256
			s.TTFT, s.TTFTBound = 20, 2
			s.Queue, s.Prefill, s.Decode = 12, 2.5, 0.2
		}), capacity.BottleneckPrefill, "2.5 s in prefill and 0.2 s in decode"},
		// The same without the engine's histograms of phases, by the step-time model alone.
		{"saturated at 32 % KV, by shares", signs(func(s *capacity.Signs) {
			s.KVUsage, s.Running, s.Waiting, s.SequenceSlots = 0.32, 20, 150, 256
			s.Shares = capacity.StepShares{Base: 0.05, Prefill: 0.93, Sequences: 0.01, Context: 0.01}
		}), capacity.BottleneckPrefill, "93 % go to prompts"},
		// llm-d/llm-d-autoscaling#1500: 1000 tokens in and 250 out; requests are queued and dropped
		// at 16.2 % KV, as prompt tokens per second are used up.
		{"dropping at 16.2 % KV", signs(func(s *capacity.Signs) {
			s.KVUsage, s.Running, s.Waiting, s.SequenceSlots, s.Preempted = 0.162, 16, 40, 256, 0
			s.LoadRatio, s.TTFT, s.TTFTBound, s.ITL, s.ITLBound = 1.3, 9, 2, 0.04, 0.05
			s.Queue, s.Prefill = 6, 1.2
		}), capacity.BottleneckPrefill, "prefill takes 1.2 s of a TTFT bound of 2 s"},
		// Qwen3-32B on two H100 with 1024/1024 at 128 in flight: steps of 37.8 ms that use
		// 46 % of the bandwidth, less than the 65 % at 8 in flight.
		{"decode-bound at low bandwidth", signs(func(s *capacity.Signs) {
			s.LoadRatio, s.ITL, s.ITLBound, s.TTFT, s.TTFTBound = 1.05, 0.0378, 0.035, 0.9, 2
			s.BandwidthSaturation, s.BandwidthMeasured = 0.458/0.85, true
			s.Shares = capacity.StepShares{Base: 0.363, Prefill: 0.180, Sequences: 0.095, Context: 0.362}
			s.Running, s.SequenceSlots, s.KVUsage, s.Waiting = 128, 256, 0.6, 0
		}), capacity.BottleneckDecode, "45.7 % go to sequences and their context"},
		{"bandwidth as counted", healthy(func(s *capacity.Signs) { s.BandwidthSaturation = 0.97 }), capacity.BottleneckDecode, "97 % saturated, as the GPU counts"},
		{"bandwidth as modelled", healthy(func(s *capacity.Signs) { s.BandwidthSaturation, s.BandwidthMeasured = 0.97, false }), capacity.BottleneckDecode, "by a model"},
		{"full KV cache", healthy(func(s *capacity.Signs) { s.KVUsage, s.Waiting, s.Queue = 0.96, 8, 3 }), capacity.BottleneckKV, "96 % full and 8 requests wait"},
		{"preemptions", healthy(func(s *capacity.Signs) { s.KVUsage, s.Preempted = 0.99, 0.04 }), capacity.BottleneckKV, "preemptions are 4 % of"},
		{"a few preemptions are normal", healthy(func(s *capacity.Signs) { s.KVUsage, s.Preempted = 0.85, 0.008 }), capacity.BottleneckUnknown, "nothing that is known"},
		{"slots", healthy(func(s *capacity.Signs) { s.Running, s.Waiting, s.Queue, s.TTFT = 256, 30, 2, 3 }), capacity.BottleneckSlots, "256 of 256 sequence slots"},
		{"slots, with an idle GPU", healthy(func(s *capacity.Signs) { s.Running, s.SequenceSlots, s.Waiting, s.SMActive = 8, 8, 30, 0.3 }), capacity.BottleneckSlots, ""},
		{"all slots run and nothing waits", healthy(func(s *capacity.Signs) { s.Running = 256 }), capacity.BottleneckUnknown, ""},
		{"queue, for no reason seen", healthy(func(s *capacity.Signs) { s.TTFT, s.Queue, s.Waiting = 3, 1.5, 12 }), capacity.BottleneckQueue, "a request waits 1.5 s"},
		{"TTFT gives first", healthy(func(s *capacity.Signs) { s.TTFT = 2.5 }), capacity.BottleneckPrefill, "TTFT is 2.5 s, over its bound of 2 s"},
		{"ITL gives first", healthy(func(s *capacity.Signs) { s.ITL = 0.06 }), capacity.BottleneckDecode, "ITL is 60 ms"},
		{"ITL gives by chunks of prompts", healthy(func(s *capacity.Signs) {
			s.ITL, s.Prefill, s.Decode = 0.06, 1.5, 1
			s.Shares = capacity.StepShares{Base: 0.1, Prefill: 0.7, Sequences: 0.1, Context: 0.1}
		}), capacity.BottleneckPrefill, "70 % go to prompts"},
		{"a GPU that is not fed", healthy(func(s *capacity.Signs) { s.SMActive, s.Waiting = 0.3, 20 }), capacity.BottleneckCPU, "30 % of the time only"},
		{"time between steps", healthy(func(s *capacity.Signs) { s.StepRate, s.SMActive = 24, 0.6 }), capacity.BottleneckCPU, "24 steps/s of 25 ms each fill 60 %"},
		{"slow steps of a busy GPU", healthy(func(s *capacity.Signs) { s.StepRate = 24 }), capacity.BottleneckUnknown, ""},
		{"front-end", healthy(func(s *capacity.Signs) { s.TTFT, s.TTFTMean = 3, 1.2 }), capacity.BottleneckCPU, "mean TTFT of 1.2 s, 0.02 s pass in the queue"},
		{"heat", healthy(func(s *capacity.Signs) { s.Throttled, s.KVUsage, s.Waiting = 0.4, 0.97, 20 }), capacity.BottleneckThrottled, "40 % of the time"},
		{"clocks capped", healthy(func(s *capacity.Signs) { s.ClockRatio, s.ITL, s.StepRate = 0.8, 0.06, 24 }), capacity.BottleneckThrottled, "80 % of that of the curve"},
		{"a low load", healthy(func(s *capacity.Signs) { s.LoadRatio, s.Throttled, s.BandwidthSaturation = 0.3, 0.5, 0.9 }), capacity.BottleneckNone, "30 % of the knee"},
		{"a low load of another limit", healthy(func(s *capacity.Signs) { s.LoadRatio, s.LoadBasis = 0.3, "the sequence slots" }), capacity.BottleneckNone, "30 % of the sequence slots"},
		{"a low load that is too slow", healthy(func(s *capacity.Signs) { s.LoadRatio, s.Throttled, s.ITL = 0.3, 0.5, 0.08 }), capacity.BottleneckThrottled, ""},
		{"nothing waits", signs(func(s *capacity.Signs) { s.Waiting, s.KVUsage = 0, 0.95 }), capacity.BottleneckNone, "no request waits"},
		{"latencies within bounds", signs(func(s *capacity.Signs) { s.TTFT, s.TTFTBound, s.ITL, s.ITLBound = 1, 2, 0.04, 0.05 }), capacity.BottleneckNone, "TTFT is at 50 % of its bound and ITL at 80 %"},
		{"nothing known", capacity.UnknownSigns(), capacity.BottleneckUnknown, "neither the load"},
		{"only the load known", signs(func(s *capacity.Signs) { s.LoadRatio = 1.2 }), capacity.BottleneckUnknown, "nothing that is known"},
	}
}

func TestAttribute(t *testing.T) {
	number := regexp.MustCompile(`\d`)
	seen := map[capacity.Bottleneck]bool{}
	for _, test := range attributionCases() {
		t.Run(test.name, func(t *testing.T) {
			a := capacity.Attribute(test.signs)
			if a.Bottleneck != test.want {
				t.Errorf("%s (%v), want %s: %q", a.Bottleneck, a.Weights, test.want, a.Evidence)
			}
			if len(a.Evidence) == 0 || !strings.Contains(strings.Join(a.Evidence, "\n"), test.evidence) {
				t.Errorf("%q, want %q among it", a.Evidence, test.evidence)
			}
			for _, e := range a.Evidence {
				if strings.Contains(e, "NaN") || slices.Contains(capacity.Bottlenecks(), a.Bottleneck) && !number.MatchString(e) {
					t.Errorf("evidence %q, want numbers that are known", e)
				}
			}
			seen[a.Bottleneck] = true
		})
	}
	for _, b := range capacity.Bottlenecks() {
		if !seen[b] {
			t.Errorf("no case of %s", b)
		}
	}
}

// What becomes unknown takes its vote back, and never adds one.
func TestAttributeUnknownNeverVotes(t *testing.T) {
	var nan func(v reflect.Value, field int) (string, bool)
	nan = func(v reflect.Value, field int) (string, bool) {
		for i := range v.NumField() {
			switch f := v.Field(i); f.Kind() {
			case reflect.Struct:
				if name, ok := nan(f, field); ok {
					return name, true
				}
				field -= f.NumField()
			case reflect.Float64:
				if field == 0 {
					f.SetFloat(math.NaN())
					return v.Type().Field(i).Name, true
				}
				field--
			}
		}
		return "", false
	}
	for _, test := range attributionCases() {
		all := capacity.Attribute(test.signs)
		fields := 0
		for ; ; fields++ {
			s := test.signs
			name, ok := nan(reflect.ValueOf(&s).Elem(), fields)
			if !ok {
				break
			}
			a := capacity.Attribute(s)
			for _, e := range a.Evidence {
				if strings.Contains(e, "NaN") {
					t.Errorf("%s without %s: %q", test.name, name, e)
				}
			}
			if all.Weights == nil {
				continue
			}
			for b, w := range a.Weights {
				if w > all.Weights[b] {
					t.Errorf("%s: not to know %s adds to %s: %d, was %d", test.name, name, b, w, all.Weights[b])
				}
			}
		}
		if fields < 20 {
			t.Fatalf("only %d fields were tried", fields)
		}
	}
}
