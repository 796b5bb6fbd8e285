package probe

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/knee"
	"headroom_exporter/probe/workload"
)

func mustSLO(t *testing.T, texts ...string) []capacity.SLO {
	t.Helper()
	var slos []capacity.SLO
	for _, text := range texts {
		s, err := capacity.ParseSLO(text)
		if err != nil {
			t.Fatal(err)
		}
		slos = append(slos, s)
	}
	return slos
}

// chatTraffic is the chat class under Poisson arrivals.
func chatTraffic(t *testing.T, slo ...string) *knee.Traffic {
	return &knee.Traffic{
		Name: "chat", Classes: []workload.Class{chatClass}, Arrivals: curve.Arrivals{Process: "poisson"}, SLO: mustSLO(t, slo...),
	}
}

// monitor keeps what it is told and stops a load when it should.
type monitor struct {
	requests []knee.Request
	samples  []knee.Sample
	stop     func(knee.Sample) string
}

func (m *monitor) Request(q knee.Request) { m.requests = append(m.requests, q) }

func (m *monitor) Sample(s knee.Sample) string {
	m.samples = append(m.samples, s)
	if m.stop == nil {
		return ""
	}
	return m.stop(s)
}

// TestTargetLoad puts a primed open loop of two rates on the simulated engine.
func TestTargetLoad(t *testing.T) {
	simulated(t, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
		target := NewTarget(TargetConfig{Runner: runner, Facts: facts})
		l := &knee.Load{
			Name: "p1", Purpose: curve.PurposeProbe, Traffic: chatTraffic(t, "ttft:p99:800ms", "itl:p99:50ms", "e2e:p99:12s"),
			Steps: []knee.Step{{Rate: 5, Duration: 10 * time.Second}, {Rate: 20, Duration: 10 * time.Second}},
			Prime: 8, Warmup: 5 * time.Second, Seed: 1,
		}
		m := &monitor{}
		o, err := target.Run(t.Context(), l, m)
		if err != nil {
			t.Fatal(err)
		}
		n := len(o.Requests)
		if n != o.Point.Attempts || n != len(m.requests) || o.Stopped != "" || len(o.Point.Faults) > 0 {
			t.Errorf("%d requests, %d attempts, %d told; stopped %q, faults %v", n, o.Point.Attempts, len(m.requests), o.Stopped, o.Point.Faults)
		}
		before := 0
		for i, q := range o.Requests {
			if !q.OK || q.Due < 5 || q.Due >= 20 || q.PromptTokens != 256 || q.OutputTokens != 64 || q.End < q.Due || q.Of[0] != 1 || q.Of[1] != 63 || q.Of[2] != 1 || q.Over[0]+q.Over[1]+q.Over[2] != 0 {
				t.Fatalf("request %d: %+v", i, q)
			}
			if i > 0 && q.Due < o.Requests[i-1].Due {
				t.Fatalf("request %d is out of order", i)
			}
			if q.Due < 10 {
				before++
			}
		}
		// 5 s at 5 and 10 s at 20 a second, to within four standard deviations.
		if math.Abs(float64(before)-25) > 20 || math.Abs(float64(n-before)-200) > 57 {
			t.Errorf("%d requests in the first step, %d in the second; want about 25 and 200", before, n-before)
		}
		if !slices.IsSortedFunc(m.requests, func(a, b knee.Request) int { return compareEnds(a, b) }) {
			t.Error("the monitor was not told in the order of the ends")
		}
		if len(m.samples) < 75 || len(o.Samples) < len(m.samples) {
			t.Errorf("%d samples to the monitor, %d kept; want four a second for 20 s", len(m.samples), len(o.Samples))
		}
		last := o.Samples[len(o.Samples)-1]
		if last.Due < n+8+5 || last.Due-last.Done > 40 || last.Unsent != 0 || last.Preemptions != 0 {
			t.Errorf("last sample %+v of %d requests", last, n)
		}
		p := o.Point
		if p.Purpose != curve.PurposeProbe || p.Seconds != 15 || p.E2E.N != float64(n) || !p.E2E.P10.Known() || !p.Engine.PrefillSeconds.Known() ||
			!p.Engine.DecodeSeconds.Known() || !p.Engine.QueueSeconds.Known() || !(p.PromptTokenRate > 0) || p.Classes != nil {
			t.Errorf("point %+v", p)
		}
		if d := float64(p.Engine.DecodeSeconds) - 63*float64(p.TPOT.Mean); math.Abs(d) > 0.02 {
			t.Errorf("decode takes %v by the engine, and %v a token by the client", p.Engine.DecodeSeconds, p.TPOT.Mean)
		}
		for _, name := range []string{"client", "prefix_cache_hits", "length"} {
			i := slices.IndexFunc(p.Gates, func(g curve.Gate) bool { return g.Name == name })
			if i < 0 || p.Gates[i].Kind != curve.GateInvalid || p.Gates[i].Passed == nil || !*p.Gates[i].Passed {
				t.Errorf("gate %s: %+v", name, p.Gates)
			}
		}
	})
}

func compareEnds(a, b knee.Request) int {
	switch {
	case a.End < b.End:
		return -1
	case a.End > b.End:
		return 1
	}
	return 0
}

// TestTargetClosedLoop: the number in flight, and prompts that no load repeats.
func TestTargetClosedLoop(t *testing.T) {
	simulated(t, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
		target := NewTarget(TargetConfig{Runner: runner, Facts: facts})
		l := &knee.Load{
			Name: "c4", Purpose: curve.PurposeCeiling, Traffic: chatTraffic(t, "ttft:p99:800ms"), Concurrency: 4,
			Steps: []knee.Step{{Duration: 6 * time.Second}}, Warmup: 2 * time.Second, Seed: 1,
		}
		for range 2 {
			o, err := target.Run(t.Context(), l, nil)
			if err != nil {
				t.Fatal(err)
			}
			if o.Point.Client.PeakInFlight != 4 || o.Point.Concurrency != 4 || o.Point.Engine.PrefixHitRatio != 0 || len(o.Requests) < 10 {
				t.Errorf("peak %d, hits %v, %d requests", o.Point.Client.PeakInFlight, o.Point.Engine.PrefixHitRatio, len(o.Requests))
			}
		}
	})
}

// TestTargetStopped: the monitor's word ends a load within a second, and what
// was cancelled tells nothing unless it was late already.
func TestTargetStopped(t *testing.T) {
	simulated(t, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
		target := NewTarget(TargetConfig{Runner: runner, Facts: facts})
		class := chatClass
		class.Output = workload.FixedLength(1000)
		l := &knee.Load{
			Name: "p1", Purpose: curve.PurposeProbe, Traffic: chatTraffic(t, "ttft:p99:800ms", "e2e:p99:1s"),
			Steps: []knee.Step{{Rate: 5, Duration: time.Minute}}, Seed: 1,
		}
		l.Traffic.Classes = []workload.Class{class}
		var stopped time.Time
		m := &monitor{stop: func(s knee.Sample) string {
			if s.At < 5 {
				return ""
			}
			stopped = time.Now()
			return "enough"
		}}
		o, err := target.Run(t.Context(), l, m)
		if err != nil {
			t.Fatal(err)
		}
		// The last reading comes an interval after the last request.
		if d := time.Since(stopped); o.Stopped != "enough" || o.Point.Stopped != "enough" || d > time.Second+DefaultReadingInterval {
			t.Errorf("stopped %q, %v after the word", o.Stopped, d)
		}
		for _, q := range o.Requests {
			if q.OK || q.Over[1] != 1 || q.Of[1] != 1 || q.Over[0] != 0 || q.Of[0] != 1 {
				t.Errorf("request %+v: want those that were late only", q)
			}
		}
		if n := len(o.Requests); n < 5 || n > 40 {
			t.Errorf("%d requests were late, want about 20", n)
		}
	})
}

// TestTargetInterrupted: what was measured comes with the context's error.
func TestTargetInterrupted(t *testing.T) {
	simulated(t, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
		target := NewTarget(TargetConfig{Runner: runner, Facts: facts})
		if err := target.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		l := &knee.Load{
			Name: "p1", Traffic: chatTraffic(t, "ttft:p99:800ms"), Steps: []knee.Step{{Rate: 10, Duration: time.Minute}}, Seed: 1,
		}
		o, err := target.Run(ctx, l, nil)
		if !errors.Is(err, context.DeadlineExceeded) || o == nil || len(o.Requests) < 50 {
			t.Fatalf("error %v, observation %+v", err, o)
		}
		if len(o.Point.Faults) == 0 {
			t.Error("an interrupted load has no fault")
		}
	})
}

// TestTargetTrace plays a trace at a rate, longer than it is.
func TestTargetTrace(t *testing.T) {
	trace := &workload.Trace{Format: workload.Footprint}
	for i := range 50 {
		trace.Records = append(trace.Records, workload.Record{At: time.Duration(i) * 10 * time.Second, Prompt: 64, Output: 8})
	}
	simulated(t, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
		target := NewTarget(TargetConfig{Runner: runner, Facts: facts})
		l := &knee.Load{
			Name: "t1", Traffic: chatTraffic(t, "ttft:p99:800ms"), Steps: []knee.Step{{Rate: 10, Duration: 20 * time.Second}}, Prime: 5, Seed: 1,
		}
		l.Traffic.Arrivals, l.Traffic.Replay = curve.Arrivals{Process: "trace", Trace: "t"}, &workload.Replay{Trace: trace}
		o, err := target.Run(t.Context(), l, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(o.Requests) != 200 || math.Abs(float64(o.Point.OfferedRate)-10) > 1e-9 || o.Point.Engine.PrefixHitRatio != 0 {
			t.Errorf("%d requests at %v/s, hits %v; want 200 at 10", len(o.Requests), o.Point.OfferedRate, o.Point.Engine.PrefixHitRatio)
		}
		for i, q := range o.Requests {
			if math.Abs(q.Due-float64(i)/10) > 1e-6 {
				t.Fatalf("request %d is due at %v", i, q.Due)
			}
		}
	})
}

// TestTargetRefusesABusyEngine: unless sharing is allowed.
func TestTargetRefusesABusyEngine(t *testing.T) {
	simulated(t, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
		others, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			for others.Err() == nil {
				q := workload.Request{Text: "somebody else " + time.Now().String(), MaxTokens: 200, IgnoreEOS: true}
				var x Exchange
				client.Do(others, &q, client.now(), &x)
			}
		})
		if err := NewTarget(TargetConfig{Runner: runner, Facts: facts}).Begin(t.Context()); !errors.Is(err, knee.ErrBusy) {
			t.Errorf("error %v", err)
		}
		shared := NewTarget(TargetConfig{Runner: runner, Facts: facts, AllowShared: true})
		if err := shared.Begin(t.Context()); err != nil || len(shared.Notes()) != 1 || !strings.Contains(shared.Notes()[0], "others use the engine: up to 1 running") {
			t.Errorf("error %v, notes %q", err, shared.Notes())
		}
		stop()
		running.Wait()
		time.Sleep(time.Second)
		if err := NewTarget(TargetConfig{Runner: runner, Facts: facts}).Begin(t.Context()); err != nil {
			t.Errorf("an idle engine: %v", err)
		}
	})
}

// TestTargetWithoutMetrics works and says what it cannot see.
func TestTargetWithoutMetrics(t *testing.T) {
	virtual(t, ClientConfig{}, fixed(100*time.Millisecond, 10*time.Millisecond), func(t *testing.T, ctx context.Context, r *rig) {
		facts := &Facts{Vocabulary: workload.SafeVocabulary(0), Dialect: r.client.config.Dialect}
		target := NewTarget(TargetConfig{Runner: r.runner(), Facts: facts})
		l := &knee.Load{
			Name: "p1", Traffic: chatTraffic(t, "ttft:p99:800ms"), Steps: []knee.Step{{Rate: 10, Duration: 10 * time.Second}}, Seed: 1,
		}
		for range 2 {
			o, err := target.Run(ctx, l, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(o.Requests) < 50 || len(o.Samples) < 35 || !math.IsNaN(o.Samples[0].Running) || len(o.Point.Faults) > 0 {
				t.Errorf("%d requests, %d samples, faults %v", len(o.Requests), len(o.Samples), o.Point.Faults)
			}
		}
		if n := len(target.Notes()); n != 1 {
			t.Errorf("notes %q", target.Notes())
		}
	})
}

// TestTargetCapped: what a cap holds back is told, and counts from when it was due.
func TestTargetCapped(t *testing.T) {
	virtual(t, ClientConfig{}, fixed(time.Second, 0), func(t *testing.T, ctx context.Context, r *rig) {
		facts := &Facts{Vocabulary: workload.SafeVocabulary(0), Dialect: r.client.config.Dialect}
		target := NewTarget(TargetConfig{Runner: r.runner(), Facts: facts, MaxInflight: 2, Drain: 10 * time.Second})
		m := &monitor{}
		// Two places of a second each serve 2 of 5 requests a second.
		o, err := target.Run(ctx, &knee.Load{
			Name: "p1", Traffic: chatTraffic(t, "ttft:p99:1500ms"), Steps: []knee.Step{{Rate: 5, Duration: 10 * time.Second}}, Seed: 1,
		}, m)
		if err != nil {
			t.Fatal(err)
		}
		n, late := len(o.Requests), 0
		for _, q := range o.Requests {
			late += int(q.Over[0])
		}
		last := m.samples[len(m.samples)-1]
		if r.most != 2 || n < 25 || late < n*3/4 || o.Point.Client.Capped == 0 {
			t.Errorf("%d at once, %d requests, %d late, %d held back", r.most, n, late, o.Point.Client.Capped)
		}
		for _, s := range m.samples {
			if s.At > 1 && s.At < 10 && math.Abs(float64(s.Unsent)-3*s.At) > 3*3+4 {
				t.Errorf("at %v s %d of %d due are not sent", s.At, s.Unsent, s.Due)
			}
		}
		if last.Due > n || last.Due < n-5 {
			t.Errorf("%d were due, %d count", last.Due, n)
		}
		if i := slices.IndexFunc(o.Point.Gates, func(g curve.Gate) bool { return g.Name == "cap" }); i < 0 || o.Point.Gates[i].Kind != curve.GateRisk {
			t.Errorf("gates %+v", o.Point.Gates)
		}
	})
}

// TestTargetMaxRate: the bound of the rate holds back a closed loop. An open one is
// within it on the average, and arrivals that come together are no queue of ours.
func TestTargetMaxRate(t *testing.T) {
	for _, concurrency := range []int{0, 4} {
		virtual(t, ClientConfig{}, fixed(10*time.Millisecond, 0), func(t *testing.T, ctx context.Context, r *rig) {
			facts := &Facts{Vocabulary: workload.SafeVocabulary(0), Dialect: r.client.config.Dialect}
			target := NewTarget(TargetConfig{Runner: r.runner(), Facts: facts, MaxRate: 4, Drain: 10 * time.Second})
			load := &knee.Load{
				Name: "p1", Traffic: chatTraffic(t, "ttft:p99:100ms"), Concurrency: concurrency,
				Steps: []knee.Step{{Rate: 4, Duration: time.Minute}}, Seed: 1,
			}
			if concurrency > 0 {
				load.Steps[0].Rate = 0
			}
			o, err := target.Run(ctx, load, nil)
			if err != nil {
				t.Fatal(err)
			}
			late := 0
			for _, q := range o.Requests {
				late += int(q.Over[0])
			}
			n := len(o.Requests)
			if late > 0 || n < 200 || n > 280 || (o.Point.Client.Capped > 0) != (concurrency > 0) {
				t.Errorf("%d in flight: %d requests, %d late, %d held back", concurrency, n, late, o.Point.Client.Capped)
			}
		})
	}
}

// TestClosedLoopLateness: a client that is some milliseconds late spoils an
// open loop, and a closed loop only by its share of a request's time.
func TestClosedLoopLateness(t *testing.T) {
	for _, test := range []struct {
		name        string
		concurrency int
		lag, cpu    float64
		passed      bool
	}{
		{"open loop", 0, 0.012, 0.02, false},
		{"closed loop", 4, 0.012, 0.02, true},
		{"closed loop, a twentieth of a request", 4, 0.051, 0.02, false},
		{"closed loop, out of CPU", 4, 0.012, 0.8, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := curve.Point{Concurrency: test.concurrency, Engine: curve.UnknownEngineReadings()}
			p.E2E.P50 = 1
			p.Client.LagP99, p.Client.CPUShare = Value(test.lag), Value(test.cpu)
			validity(&p, &Result{Faults: []Fault{{FaultClientLimited, "too late"}}})
			g := p.Gates[0]
			if g.Name != "client" || g.Passed == nil || *g.Passed != test.passed {
				t.Errorf("%+v", g)
			}
		})
	}
}
