package knee

import (
	"math"
	"strings"
	"testing"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

func gateOf(t *testing.T, p *curve.Point, name string) curve.Gate {
	t.Helper()
	for _, g := range p.Gates {
		if g.Name == name {
			return g
		}
	}
	t.Fatalf("no gate %s", name)
	return curve.Gate{}
}

func said(p *bool) string {
	switch {
	case p == nil:
		return "unknown"
	case *p:
		return "passed"
	}
	return "failed"
}

// p99 at 95 %: 299 requests without a violation prove it, and 10 in 500 refute
// it (the tables of the exact binomial, Wilks 1941).
func TestSLOGate(t *testing.T) {
	for _, test := range []struct {
		n, over int
		clumped bool
		want    string
	}{
		{298, 0, false, "unknown"},
		{299, 0, false, "passed"},
		{472, 1, false, "unknown"},
		{473, 1, false, "passed"},
		{500, 9, false, "unknown"},
		{500, 10, false, "failed"},
		{500, 10, true, "unknown"},
	} {
		l := &Load{Traffic: oneClass(t, "ttft:p99:1s"), Steps: []Step{{10, 100 * time.Second}}}
		o := &Observation{Point: curve.Point{Attempts: test.n, Engine: curve.UnknownEngineReadings()}}
		o.Point.Engine.WaitingMean = 0
		for at := 0.25; at <= 100; at += 0.25 {
			o.Samples = append(o.Samples, Sample{At: at, Running: 3})
		}
		for i := range test.n {
			over := 0.0
			if test.clumped && i < test.over || !test.clumped && test.over > 0 && i%(test.n/test.over) == 0 && i/(test.n/test.over) < test.over {
				over = 1
			}
			o.Requests = append(o.Requests, Request{Due: float64(i) / 10, OK: true, Over: []float64{over}, Of: []float64{1}})
		}
		judge(l, o)
		g := gateOf(t, &o.Point, "slo")
		if said(g.Passed) != test.want || g.Violations != float64(test.over) || g.N != float64(test.n) || g.Detail == "" {
			t.Errorf("%d of %d, clumped %t: %s, want %s: %s", test.over, test.n, test.clumped, said(g.Passed), test.want, g.Detail)
		}
		if said(o.Point.Passed) != test.want {
			t.Errorf("%d of %d: the point %s", test.over, test.n, said(o.Point.Passed))
		}
	}
}

func TestOtherGates(t *testing.T) {
	level := func(slope float64) func(float64) float64 { return func(at float64) float64 { return 12 + slope*at } }
	for _, test := range []struct {
		name    string
		change  func(p *curve.Point)
		queue   func(at float64) float64
		gate    string
		kind    curve.GateKind
		want    string
		verdict string
	}{
		{"sound", func(*curve.Point) {}, level(0), "queue_growth", curve.GateFail, "passed", "passed"},
		{"grows by 1 request of 10 a second", func(*curve.Point) {}, level(1), "queue_growth", curve.GateFail, "failed", "failed"},
		{"grows by less than the noise", func(*curve.Point) {}, level(0.1), "queue_growth", curve.GateRisk, "failed", "passed"},
		// Little: 4 that wait at 10 a second wait 0.4 s each, 12 wait 1.2 s.
		{"a short wait", func(p *curve.Point) { p.Engine.WaitingMean = 4 }, level(0), "waiting", curve.GateFail, "passed", "passed"},
		{"a long wait", func(p *curve.Point) { p.Engine.WaitingMean = 12 }, level(0), "waiting", curve.GateFail, "failed", "failed"},
		{"3 of 400 failed", func(p *curve.Point) { p.Failures = 3 }, level(0), "success", curve.GateFail, "passed", "passed"},
		{"20 of 400 failed", func(p *curve.Point) { p.Failures = 20 }, level(0), "success", curve.GateFail, "failed", "failed"},
		{"4 preemptions", func(p *curve.Point) { p.Engine.Preemptions = 4 }, level(0), "preemptions", curve.GateRisk, "passed", "passed"},
		{"5 preemptions", func(p *curve.Point) { p.Engine.Preemptions = 5 }, level(0), "preemptions", curve.GateRisk, "failed", "passed"},
		{"KV cache nearly full", func(p *curve.Point) { p.Engine.KVPeak = 0.97 }, level(0), "kv_usage", curve.GateRisk, "failed", "passed"},
		{"KV cache not known", func(*curve.Point) {}, level(0), "kv_usage", curve.GateRisk, "unknown", "passed"},
		{"ended early", func(p *curve.Point) { p.Stopped = "the backlog rose" }, level(0), "queue_growth", curve.GateFail, "passed", "failed"},
	} {
		l := &Load{Traffic: oneClass(t, "ttft:p99:1s"), Steps: []Step{{10, 40 * time.Second}}}
		o := &Observation{Point: curve.Point{Attempts: 400, Engine: curve.UnknownEngineReadings()}}
		o.Point.Engine.WaitingMean = 0
		for i := range 400 {
			o.Requests = append(o.Requests, Request{Due: float64(i) / 10, OK: true, Over: []float64{0}, Of: []float64{1}})
		}
		for at := 0.25; at <= 40; at += 0.25 {
			o.Samples = append(o.Samples, Sample{At: at, Running: test.queue(at)})
		}
		test.change(&o.Point)
		o.Stopped = o.Point.Stopped
		judge(l, o)
		g := gateOf(t, &o.Point, test.gate)
		if said(g.Passed) != test.want || g.Kind != test.kind || g.Detail == "" {
			t.Errorf("%s: %s %s %s, want %s %s: %s", test.name, test.gate, g.Kind, said(g.Passed), test.kind, test.want, g.Detail)
		}
		if said(o.Point.Passed) != test.verdict {
			t.Errorf("%s: the point %s, want %s", test.name, said(o.Point.Passed), test.verdict)
		}
	}
}

// A step with 2,048 prompt tokens takes 13.7 + 0.0546 * 2048 = 125.5 ms on
// Qwen3-32B with two H100: an ITL bound below that measures how often prompts are computed.
func TestITLBelowAChunk(t *testing.T) {
	for _, test := range []struct {
		slo  string
		note bool
	}{{"itl:p99:100ms", true}, {"itl:p99:150ms", false}, {"tpot:p99:100ms", false}} {
		s := &search{Config: Config{Traffic: *oneClass(t, test.slo), Limits: Limits{MaxNumBatchedTokens: 2048}},
			queue: &queue{perToken: 0.0137, perPrompt: 5.46e-5}}
		s.warnOfChunks()
		s.warnOfChunks()
		if got := len(s.notes) == 1 && strings.Contains(s.notes[0], "0.126 s"); got != test.note || len(s.notes) > 1 {
			t.Errorf("%s: %q", test.slo, s.notes)
		}
	}
}

// What limits the engine at the knee, by what it says of itself.
func TestBottleneck(t *testing.T) {
	for _, test := range []struct {
		want, binding string
		limits        Limits
		prefill       bool
		change        func(e *curve.EngineReadings)
	}{
		{"slots", "ttft:p99:1s", Limits{MaxNumSeqs: 16}, false, func(e *curve.EngineReadings) { e.RunningMax, e.WaitingMax, e.KVPeak = 16, 9, 0.3 }},
		{"kv", "ttft:p99:1s", Limits{MaxNumSeqs: 256}, false, func(e *curve.EngineReadings) { e.RunningMax, e.WaitingMax, e.KVPeak = 30, 9, 0.99 }},
		{"prefill", "ttft:p99:1s", Limits{MaxNumSeqs: 256}, true, func(e *curve.EngineReadings) { e.RunningMax, e.WaitingMax, e.KVPeak = 9, 9, 0.1 }},
		{"decode", "tpot:p99:50ms", Limits{MaxNumSeqs: 256}, false, func(e *curve.EngineReadings) {
			e.RunningMax, e.WaitingMax, e.QueueSeconds, e.PrefillSeconds, e.DecodeSeconds = 90, 0, 0, 0.1, 4
		}},
		{"prefill", "tpot:p99:50ms", Limits{MaxNumSeqs: 256}, false, func(e *curve.EngineReadings) {
			e.RunningMax, e.WaitingMax, e.QueueSeconds, e.PrefillSeconds, e.DecodeSeconds = 90, 0, 0, 3, 1
		}},
	} {
		s := &search{Config: Config{Traffic: *oneClass(t, test.binding), Limits: test.limits}, queue: &queue{slots: 16, prefill: test.prefill},
			unit: []job{{prompt: 100, output: 100}}, study: &curve.Study{Knee: &curve.Knee{Rate: 5, BindingSLO: test.binding}}}
		p := curve.Point{Engine: curve.UnknownEngineReadings()}
		test.change(&p.Engine)
		s.probes = []probe{{rate: 5.1, obs: &Observation{Point: p}}}
		if got, evidence := s.bottleneck(); got != test.want || len(evidence) == 0 {
			t.Errorf("%s, want %s: %q", got, test.want, evidence)
		}
	}
}

// The engine is between its points as it is at the points beside it.
func TestBetween(t *testing.T) {
	s := &search{}
	for _, p := range []struct{ rate, value float64 }{{4, 10}, {8, 20}, {6, math.NaN()}} {
		s.probes = append(s.probes, probe{rate: p.rate, obs: &Observation{Point: curve.Point{PromptTokenRate: capacity.Value(p.value)}}})
	}
	for _, test := range []struct{ rate, want float64 }{{5, 12.5}, {8, 20}, {3, 10}, {9, 20}} {
		if got := s.between(test.rate, func(p *curve.Point) curve.Value { return p.PromptTokenRate }); float64(got) != test.want {
			t.Errorf("at %g: %g, want %g", test.rate, float64(got), test.want)
		}
	}
}
