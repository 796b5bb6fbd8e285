package probe

import (
	"math"
	"testing"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/knee"
	"headroom_exporter/probe/workload"
)

// TestStepped: the n-th of one a second comes when the rates add up to n.
func TestStepped(t *testing.T) {
	second := time.Second
	for _, test := range []struct {
		name  string
		steps []knee.Step
		// at are the times of what comes at 0, 1, 2, ... s of the unit source.
		at []time.Duration
	}{
		{"one rate", []knee.Step{{Rate: 2, Duration: 2 * second}}, []time.Duration{0, second / 2, second, 3 * second / 2, 2 * second}},
		{"rising", []knee.Step{{Rate: 1, Duration: 2 * second}, {Rate: 4, Duration: second}}, []time.Duration{0, second, 2 * second, 2250 * time.Millisecond}},
		{"a pause", []knee.Step{{Rate: 1, Duration: second}, {Duration: 5 * second}, {Rate: 1, Duration: second}}, []time.Duration{0, 6 * second, 7 * second, 7 * second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := knee.Load{Steps: test.steps}
			s := &stepped{source: &each{n: len(test.at), every: second}, steps: test.steps, end: l.Duration()}
			for i, want := range test.at {
				if q, ok := s.Next(); !ok || q.At != want {
					t.Errorf("request %d comes at %v, want %v", i, q.At, want)
				}
			}
		})
	}
}

// TestPrime: as many as asked for, with shares of their output left that are
// uniform, close together, and of prompts that the load does not have.
func TestPrime(t *testing.T) {
	class := workload.Class{
		Name: "chat", Weight: 1, Prompt: workload.FixedLength(32), Output: workload.FixedLength(1000),
		Session: workload.Session{Turns: 3},
	}
	target := NewTarget(TargetConfig{Runner: &Runner{}, Facts: &Facts{}})
	l := &knee.Load{
		Traffic: &knee.Traffic{Classes: []workload.Class{class}, Arrivals: curve.Arrivals{Process: "poisson"}},
		Steps:   []knee.Step{{Rate: 100, Duration: 10 * time.Second}}, Prime: 2000, Seed: 3,
	}
	s := newSupply(target, l)
	seen := map[[8]int]bool{}
	start := func(q workload.Request) (key [8]int) {
		q.MakeTokens(workload.SafeVocabulary(0))
		copy(key[:], q.Tokens)
		return key
	}
	source, err := s.source()
	if err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if q, _ := source.Next(); q.Turn == 0 {
			seen[start(q)] = true
		}
	}
	prime, err := s.prime()
	if err != nil {
		t.Fatal(err)
	}
	n, sum, last := 0, 0.0, time.Duration(-1)
	for q := range workload.All(prime) {
		if q.MaxTokens < 1 || q.MaxTokens > 1000 || q.At <= last || q.SessionID != "" || q.CacheSalt != s.salt || seen[start(q)] {
			t.Fatalf("request %d: %+v", n, q)
		}
		last = q.At
		sum += float64(q.MaxTokens)
		n++
	}
	// The mean of 2,000 draws is within four standard errors of 500.
	if n != 2000 || math.Abs(sum/2000-500) > 4*1000/math.Sqrt(12*2000) || last > time.Second {
		t.Errorf("%d requests, of %v tokens on average, until %v", n, sum/2000, last)
	}
	if got := []int{primesDue(10, -1), primesDue(10, 0), primesDue(10, 2*primeSpread), primesDue(10, time.Hour)}; got[0] != 0 || got[1] != 1 || got[2] != 3 || got[3] != 10 {
		t.Errorf("due %v", got)
	}
}

// TestSupplyRefuses what it cannot play.
func TestSupplyRefuses(t *testing.T) {
	target := NewTarget(TargetConfig{Runner: &Runner{}, Facts: &Facts{}, MaxInflight: 4})
	for name, l := range map[string]*knee.Load{
		"no trace":     {Traffic: &knee.Traffic{Arrivals: curve.Arrivals{Process: "trace"}}, Steps: []knee.Step{{Rate: 1, Duration: time.Second}}},
		"no process":   {Traffic: &knee.Traffic{Arrivals: curve.Arrivals{Process: "steady"}}, Steps: []knee.Step{{Rate: 1, Duration: time.Second}}},
		"one moment":   {Traffic: &knee.Traffic{Replay: &workload.Replay{Trace: &workload.Trace{Records: []workload.Record{{Prompt: 1, Output: 1}}}}}, Steps: []knee.Step{{Rate: 1, Duration: time.Second}}},
		"all warm-up":  {Traffic: &knee.Traffic{Arrivals: curve.Arrivals{Process: "poisson"}}, Steps: []knee.Step{{Rate: 1, Duration: time.Second}}, Warmup: time.Second},
		"too many":     {Traffic: &knee.Traffic{}, Concurrency: 5, Steps: []knee.Step{{Duration: time.Second}}},
		"never begins": {Traffic: &knee.Traffic{Arrivals: curve.Arrivals{Process: "poisson"}}},
	} {
		l.Traffic.Classes = []workload.Class{chatClass}
		if _, _, err := target.prepare(l, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestTrials counts a request against each kind of bound.
func TestTrials(t *testing.T) {
	nan := math.NaN()
	gaps := &Exchange{CompletionTokens: 7, TokenEvents: 4, Gaps: []Gap{
		{Length: 10 * time.Millisecond, Events: 1, Tokens: 1}, {Length: 90 * time.Millisecond, Events: 1, Tokens: 3}, {Length: 60 * time.Millisecond, Events: 1, Tokens: 2},
	}}
	good := Record{Outcome: OK, TTFT: 0.5, TPOT: 0.02, E2E: 2}
	failed := Record{Outcome: HTTPError, TTFT: nan, TPOT: nan, E2E: nan}
	young := Record{Outcome: Cancelled, TTFT: 0.5, TPOT: nan, E2E: nan, Scheduled: 10, End: 11, FirstToken: 10.5}
	old := Record{Outcome: Cancelled, TTFT: nan, TPOT: nan, E2E: nan, Scheduled: 10, End: 13, FirstToken: nan, Violation: true}
	for _, test := range []struct {
		name     string
		rec      Record
		x        *Exchange
		slo      string
		over, of float64
	}{
		{"in time", good, gaps, "ttft:p99:800ms", 0, 1},
		{"late", good, gaps, "ttft:p99:400ms", 1, 1},
		{"gaps, by events", good, gaps, "icl:p99:50ms", 2, 3},
		{"gaps, by tokens", good, gaps, "itl:p99:25ms", 5, 6},
		{"failed", failed, &Exchange{}, "ttft:p99:800ms", 1, 1},
		{"failed before any gap", failed, &Exchange{}, "itl:p99:25ms", 1, 1},
		{"failed after gaps", failed, gaps, "itl:p99:25ms", 6, 7},
		{"never sent", old, nil, "icl:p99:25ms", 1, 1},
		{"one token", Record{Outcome: OK, TTFT: 0.5, TPOT: nan, E2E: 0.5}, gaps, "tpot:p99:25ms", 0, 0},
		{"cancelled with its first token in time", young, gaps, "ttft:p99:800ms", 0, 1},
		{"cancelled before it was late", young, gaps, "e2e:p99:2s", 0, 0},
		{"cancelled when it was late", old, &Exchange{}, "ttft:p99:800ms", 1, 1},
		{"cancelled when it was late as a whole", old, &Exchange{}, "e2e:p99:2s", 1, 1},
	} {
		slo, err := capacity.ParseSLO(test.slo)
		if err != nil {
			t.Fatal(err)
		}
		over, of := trials(&test.rec, test.x, slo, test.rec.Failed() || test.x == nil)
		if over != test.over || of != test.of {
			t.Errorf("%s: %v of %v, want %v of %v", test.name, over, of, test.over, test.of)
		}
	}
}
