package knee

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/workload"
)

func oneClass(t *testing.T, slo string) *Traffic {
	t.Helper()
	s, err := capacity.ParseSLO(slo)
	if err != nil {
		t.Fatal(err)
	}
	return &Traffic{Name: "c", Classes: []workload.Class{{Name: "c", Weight: 1, Prompt: workload.FixedLength(8), Output: workload.FixedLength(8)}},
		Arrivals: curve.Arrivals{Process: "poisson"}, SLO: []capacity.SLO{s}}
}

// A load is ended early only as failed.
func TestWatch(t *testing.T) {
	const rate = 10
	type reading struct {
		waiting   float64
		due, done int
	}
	steady := func(at float64) reading { return reading{0, int(rate * at), int(rate * at)} }
	growing := func(at float64) reading { return reading{2 * at, int(rate * at), int(8 * at)} }
	every := func(n int) func(int) bool { return func(i int) bool { return i%n == 0 } }
	for _, test := range []struct {
		name   string
		worth  float64
		over   func(i int) bool
		state  func(at float64) reading
		stop   string
		before float64
	}{
		{"clean", 1, func(int) bool { return false }, steady, "", 0},
		{"within the budget", 1, every(110), steady, "", 0},
		{"ten times the budget", 1, every(10), steady, "missed ttft:p99:1s", 60},
		{"ten times the budget, which a probe measures to its end", 30, every(10), steady, "", 0},
		{"all of them", 30, every(1), steady, "missed ttft:p99:1s", 20},
		{"a row", 1e9, func(i int) bool { return i >= 200 && i < 245 }, steady, "in a row", 26},
		{"backlog", 1, func(int) bool { return false }, growing, "backlog rose", 40},
		{"a queue that is served", 1, func(int) bool { return false }, func(at float64) reading { return reading{2 * at, int(rate * at), int(rate * at)} }, "", 0},
		{"a queue that drains", 1, func(int) bool { return false }, func(at float64) reading { return reading{100 - at/2, int(rate * at), int(8 * at)} }, "", 0},
	} {
		l := &Load{Traffic: oneClass(t, "ttft:p99:1s"), Warmup: 5 * time.Second, Steps: []Step{{rate, 100 * time.Second}}}
		w := newWatch(l, test.worth)
		stop, stopped := "", math.NaN()
		n := 0
		// The load has 100 s; what comes after is the drain.
		for at := 0.25; at <= 130 && stop == ""; at += 0.25 {
			for ; float64(n) < rate*min(at, 100); n++ {
				over := 0.0
				if test.over(n) {
					over = 1
				}
				w.Request(Request{Due: float64(n) / rate, OK: true, Over: []float64{over}, Of: []float64{1}})
			}
			s := test.state(at)
			stop = w.Sample(Sample{At: at, Waiting: s.waiting, Running: 3, Due: s.due, Done: s.done})
			stopped = at
		}
		if test.stop == "" && stop != "" || !strings.Contains(stop, test.stop) || stop != "" && stopped > test.before {
			t.Errorf("%s: ended with %q at %g s", test.name, stop, stopped)
		}
	}
}

func TestWatchLeavesTheDrainAlone(t *testing.T) {
	l := &Load{Traffic: oneClass(t, "ttft:p99:1s"), Steps: []Step{{10, 20 * time.Second}}}
	w := newWatch(l, 1)
	for range 100 {
		w.Request(Request{Due: 19, Over: []float64{1}, Of: []float64{1}})
	}
	if stop := w.Sample(Sample{At: 21}); stop != "" {
		t.Errorf("a drain was ended: %s", stop)
	}
	if stop := w.Sample(Sample{At: 19.9}); stop == "" {
		t.Error("100 violations in a row did not end the load")
	}
}

// A burst from 10 s to 20 s: the queue is gone 5 s later, the last late first
// token was due 3 s after the burst.
func TestRecovery(t *testing.T) {
	r := newRecovery(oneClass(t, "ttft:p99:1s"), 20)
	due, stop := 0.0, ""
	var at float64
	for at = 0.25; at < 100 && stop == ""; at += 0.25 {
		for ; due < at; due += 0.5 {
			ttft, over := 0.1, 0.0
			if due >= 15 && due <= 23 {
				ttft, over = due/10, 1
			}
			r.Request(Request{Due: due, TTFT: ttft, OK: true, Over: []float64{over}, Of: []float64{1}})
		}
		waiting := 0.0
		if at > 12 && at < 25 {
			waiting = at
		}
		stop = r.Sample(Sample{At: at, Waiting: waiting})
	}
	if stop != "recovered" || r.drain != 5 || r.recovery != 3 || r.worst != 2.3 || r.waitingMax != 24.75 {
		t.Errorf("%q: drained after %g, recovered after %g, worst %g, waiting %g", stop, r.drain, r.recovery, r.worst, r.waitingMax)
	}
	if at < 20+3+15 {
		t.Errorf("said to be recovered at %g s", at)
	}
}

func TestRecoveryThatDoesNotCome(t *testing.T) {
	r := newRecovery(oneClass(t, "ttft:p99:1s"), 20)
	for at := 0.25; at < 140; at += 0.25 {
		r.Request(Request{Due: at, TTFT: 5, OK: true, Over: []float64{1}, Of: []float64{1}})
		if stop := r.Sample(Sample{At: at, Waiting: 3}); stop != "" {
			t.Fatal(stop)
		}
	}
	if !math.IsNaN(r.drain) || !math.IsNaN(r.recovery) {
		t.Errorf("drained after %g, recovered after %g", r.drain, r.recovery)
	}
}

// The beginning of an engine that fills is cut off; one that was fuller than later stays.
func TestTrim(t *testing.T) {
	for _, test := range []struct {
		name    string
		level   func(at float64) float64
		trimmed bool
	}{
		{"fills", func(at float64) float64 { return 20 * min(1, at/20) }, true},
		{"steady", func(float64) float64 { return 20 }, false},
		{"began with a clump", func(at float64) float64 { return max(20, 60-2*at) }, false},
	} {
		l := &Load{Traffic: oneClass(t, "ttft:p99:1s"), Steps: []Step{{10, 100 * time.Second}}}
		o := &Observation{Point: curve.Point{Seconds: 100, Engine: curve.UnknownEngineReadings()}}
		rng := rand.New(rand.NewPCG(1, 2))
		for at := 0.25; at <= 100; at += 0.25 {
			o.Samples = append(o.Samples, Sample{At: at, Running: test.level(at) + rng.NormFloat64()})
		}
		for i := range 1000 {
			o.Requests = append(o.Requests, Request{Due: float64(i) / 10, TTFT: float64(i), TPOT: 1, E2E: 1, OK: true, Over: []float64{0}, Of: []float64{1}})
		}
		trim(l, o)
		if got := o.Point.Trimmed > 0; got != test.trimmed || o.Point.Trimmed > 34 {
			t.Errorf("%s: trimmed %g s", test.name, o.Point.Trimmed)
		}
		if test.trimmed && (o.Requests[0].Due < o.Point.Trimmed || o.Point.Attempts != len(o.Requests) || o.Point.Seconds != 100-o.Point.Trimmed || o.Point.TTFT.N != float64(len(o.Requests))) {
			t.Errorf("%s: %g s trimmed leave %d requests from %g s on in %g s", test.name, o.Point.Trimmed, o.Point.Attempts, o.Requests[0].Due, o.Point.Seconds)
		}
	}
}

// Deterministic jobs through two slots and through a KV cache, worked out by hand:
// a token takes 1 s, a prompt nothing.
func TestQueue(t *testing.T) {
	jobs := []job{{0, 10, 4, 0}, {0, 10, 4, 0}, {1, 10, 2, 0}, {2, 10, 2, 0}}
	for _, test := range []struct {
		name      string
		q         queue
		slower    float64
		ttft, e2e []float64
	}{
		{"slots", queue{slots: 2, perToken: 1}, 1, []float64{0, 0, 3, 2}, []float64{4, 4, 5, 4}},
		{"slower", queue{slots: 2, perToken: 1}, 2, []float64{0, 0, 7, 6}, []float64{8, 8, 11, 10}},
		{"room for all", queue{slots: 9, perToken: 1}, 1, []float64{0, 0, 0, 0}, []float64{4, 4, 2, 2}},
		// 22 tokens are held at 1 s, which leaves room for the third; 35 at 2 s leave none for the fourth.
		{"kv", queue{slots: 9, perToken: 1, capacity: 44}, 1, []float64{0, 0, 0, 1}, []float64{4, 4, 2, 3}},
	} {
		out := test.q.run(jobs, test.slower, nil, nil)
		for i, s := range out {
			if math.Abs(s.ttft-test.ttft[i]) > 1e-9 || math.Abs(s.e2e-test.e2e[i]) > 1e-9 {
				t.Errorf("%s: job %d has its first token after %g s and ends after %g s, want %g and %g", test.name, i, s.ttft, s.e2e, test.ttft[i], test.e2e[i])
			}
		}
	}
}

// Two requests fill the cache: the later one is thrown out, keeps what it made, and ends last.
func TestQueuePreempts(t *testing.T) {
	q := queue{slots: 9, perToken: 1, capacity: 26}
	out := q.run([]job{{0, 10, 6, 0}, {0, 10, 6, 0}}, 1, nil, nil)
	// Full at 3 s; the first is alone until 6 s, the second has 3 tokens to make then.
	if out[0].e2e != 6 || out[1].e2e != 9 || out[1].ttft != 0 {
		t.Errorf("%+v", out)
	}
}

// M/M/1: a slot of exponential times at 80 % has P(wait > x) = 0.8 exp(-0.2 x).
func TestLongRunOfOneSlot(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	e := longRun{queue: &queue{slots: 1, perToken: 1}}
	at := 0.0
	for range 400000 {
		at += rng.ExpFloat64()
		e.unit = append(e.unit, job{at: at, output: rng.ExpFloat64()})
	}
	b := bound{SLO: capacity.SLO{Metric: "ttft", Percentile: 95, Bound: 10 * time.Second}}
	want := 0.8 * math.Exp(-2)
	if got := e.fraction(&b, 0.8, 1); math.Abs(got/want-1) > 0.06 {
		t.Errorf("%g miss the bound, want %g", got, want)
	}
	// The rate r at which r exp(-10 (1-r)) is 5 %: 0.7317.
	if got := e.rate(&b, 0.05, 1); math.Abs(got/0.7317-1) > 0.01 {
		t.Errorf("5 %% miss the bound at %g, want 0.7317", got)
	}
}
