package curve_test

import (
	"math"
	"testing"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// What the points of two classes say between them, by the number of running
// requests where it is known, and nothing beyond them.
func TestExpect(t *testing.T) {
	point := func(rate, running, ttft, itl float64) curve.Point {
		p := curve.Point{Purpose: curve.PurposeProbe, OfferedRate: curve.Value(rate), Engine: curve.UnknownEngineReadings()}
		p.Engine.RunningMean = curve.Value(running)
		p.GenerationTokenRate = curve.Value(0.8 * running / itl) // a fifth is at its prompt
		p.TTFT.Mean, p.ITL.Mean = curve.Value(ttft), curve.Value(itl)
		return p
	}
	class := func(name string, knee float64, points ...curve.Point) curve.Class {
		return curve.Class{Name: name, GenerationMean: 100, Studies: []curve.Study{{
			Arrivals: curve.Arrivals{Process: "poisson"}, Knee: &curve.Knee{Rate: curve.Value(knee)}, Points: points,
		}}}
	}
	faulty := point(9, 1, 9, 9)
	faulty.Faults = []string{"the client was late"}
	c := &curve.Curve{Classes: []curve.Class{
		class("chat", 10, point(5, 10, 0.1, 0.010), faulty, point(10, 30, 0.3, 0.020), point(14, 200, 9, 0.5)),
		class("rag", 2, point(1, 4, 0.5, 0.030), point(2, 12, 1.5, 0.050)),
		class("bare", 1),
	}}
	nan := math.NaN()
	// A closed loop of 8 below the knee, and one of 64 that fills the engine.
	loop := func(concurrency int, rate, running, ttft, itl float64) curve.Point {
		p := point(rate, running, ttft, itl)
		p.Purpose, p.Concurrency, p.OfferedRate, p.CompletedRate = curve.PurposeCeiling, concurrency, capacity.Unknown(), curve.Value(rate)
		return p
	}
	looped := class("chat", 10, point(10, 30, 0.3, 0.020))
	looped.Studies[0].Ceiling = &curve.Ceiling{Steps: []curve.Point{loop(8, 5, 10, 0.1, 0.010), loop(64, 14, 50, 1.2, 0.030)}}
	full := &curve.Curve{Classes: []curve.Class{looped}}
	load := func(chat, rag, bare float64) curve.Load {
		return curve.Load{Estimate: chat/10 + rag/2 + bare, Classes: []curve.ClassLoad{
			{Name: "chat", Rate: chat, Full: 10, Ratio: chat / 10}, {Name: "rag", Rate: rag, Full: 2, Ratio: rag / 2}, {Name: "bare", Rate: bare, Full: 1, Ratio: bare},
		}}
	}
	const mixed = (3.0/80 - 1.0/75) / 2
	for _, test := range []struct {
		name                     string
		load                     curve.Load
		running                  float64
		ratio, ttft, itl, tokens float64
	}{
		{"at a point", load(5, 0, 0), 10, 0.5, 0.1, 0.010, 0.8 * 10 / 0.010},
		// Half-way the rate of steps, and that of requests for each that runs, is the mean: 75/s and 7.5 / 18.
		{"between points", load(5, 0, 0), 18, 0.75, 0.2, 1.0 / 75, 0.8 * 18 * 75},
		{"below all points", load(1, 0, 0), 2, 0.1, 0.1, 0.010, 0.8 * 2 / 0.010},
		{"running not known", load(7.5, 0, 0), nan, 0.75, 0.2, 1.0 / 75, 0.8 * 18 * 75},
		{"full, as far as a mean tells", load(5, 0, 0), 31, 1, nan, 0.020, nan},
		{"more than was measured", load(5, 0, 0), 32, nan, nan, nan, nan},
		{"a load that was not measured", load(10.5, 0, 0), nan, nan, nan, nan, nan},
		// Half of the load each: at 0.75 (18 + 7.2) / 2 would run, and tokens are 25.4 ms
		// apart instead of 13.3 and 37.5: 375 * 0.01208 more of chat, 75 * 0.01208 fewer of rag.
		// 5 of 6 requests are chat.
		{"a mix", load(5, 1, 0), 12.6 + 300*mixed, 0.75, (5*0.2 + 1.0) / 6, 1.0/75 + mixed, 0.8 * (12.6 + 300*mixed) / (1.0/75 + mixed)},
		{"a class without points", load(5, 0, 0.1), 10, nan, nan, nan, nan},
		{"no load", load(0, 0, 0), 0, nan, nan, nan, nan},
	} {
		got := c.Expect(test.load, test.running)
		for _, v := range []struct {
			what      string
			got, want float64
		}{{"load ratio", got.LoadRatio, test.ratio}, {"TTFT", got.TTFT, test.ttft}, {"step", got.Step, test.itl}, {"tokens/s", got.GenerationTokenRate, test.tokens}} {
			if math.IsNaN(v.got) != math.IsNaN(v.want) || math.Abs(v.got-v.want) > 1e-6 {
				t.Errorf("%s: %s = %v, want %v", test.name, v.what, v.got, v.want)
			}
		}
	}
	one := curve.Load{Estimate: 0.9, Classes: []curve.ClassLoad{{Name: "chat", Rate: 9, Full: 10, Ratio: 0.9}}}
	for _, test := range []struct{ running, ratio, ttft, itl float64 }{
		{10, 0.5, 0.1, 0.010},
		{50, 1.4, nan, 0.030}, // what waited in the loop is no time to first token of this load
		{52, 1.4, nan, 0.030},
		{55, nan, nan, nan},
	} {
		got := full.Expect(one, test.running)
		for what, v := range map[string][2]float64{"load ratio": {got.LoadRatio, test.ratio}, "TTFT": {got.TTFT, test.ttft}, "step": {got.Step, test.itl}} {
			if math.IsNaN(v[0]) != math.IsNaN(v[1]) || math.Abs(v[0]-v[1]) > 1e-6 {
				t.Errorf("%v running, with a closed loop above the knee: %s = %v, want %v", test.running, what, v[0], v[1])
			}
		}
	}
	// Two classes that are full at 1.4 and at 2 times their knees, with 50 running: where
	// 50 of both run, half of the load each, steps are half-way between theirs.
	other := class("rag", 2, point(1, 4, 0.5, 0.030), point(2, 12, 1.5, 0.050))
	other.Studies[0].Ceiling = &curve.Ceiling{Steps: []curve.Point{loop(64, 4, 50, 9, 0.070)}}
	both := &curve.Curve{Classes: []curve.Class{looped, other}}
	for running, want := range map[float64]float64{50: 0.050, 52: 0.050, 55: nan} {
		got := both.Expect(load(5, 1, 0), running).Step
		if math.IsNaN(got) != math.IsNaN(want) || math.Abs(got-want) > 1e-6 {
			t.Errorf("%v of two classes running: a step of %v, want %v", running, got, want)
		}
	}
	// With drafts that bring 2 tokens a step, tokens 15 ms apart are steps 30 ms apart:
	// as many requests run, and make as many tokens. Half-way 25 steps/s are the mean of 33.3 and 16.7.
	drafted := point(5, 10, 0.1, 0.015)
	more := point(10, 20, 0.1, 0.030)
	drafted.Engine.SpeculativeTokensPerStep, more.Engine.SpeculativeTokensPerStep = 2, 2
	speculative := &curve.Curve{Classes: []curve.Class{class("chat", 10, drafted, more)}}
	for _, test := range []struct{ running, step, tokens float64 }{
		{10, 0.030, 0.8 * 10 / 0.015},
		{15, 0.040, 0.8 * 15 / 0.020},
	} {
		got := speculative.Expect(curve.Load{Estimate: 0.5, Classes: []curve.ClassLoad{{Name: "chat", Rate: 5, Full: 10, Ratio: 0.5}}}, test.running)
		if math.Abs(got.Step-test.step) > 1e-6 || math.Abs(got.GenerationTokenRate-test.tokens) > 1e-6 {
			t.Errorf("%v running with drafts: a step of %v and %v tokens/s, want %v and %v", test.running, got.Step, got.GenerationTokenRate, test.step, test.tokens)
		}
	}
	if (&curve.Curve{}).SMClock().Known() {
		t.Error("the clock of a curve without GPUs is known")
	}
}
