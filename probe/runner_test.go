package probe

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"headroom_exporter/probe/workload"
)

// near compares to within a microsecond: sums of binary fractions are not exact.
func near(t *testing.T, what string, got Value, want float64) {
	t.Helper()
	if !(math.Abs(float64(got)-want) < 1e-6) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// times checks every percentile of a summary of equal values.
func times(t *testing.T, what string, s Summary, n, want float64) {
	t.Helper()
	if s.N != n {
		t.Errorf("%s: n is %v, want %v", what, s.N, n)
	}
	near(t, what+" mean", s.Mean, want)
	near(t, what+" p50", s.P50, want)
	near(t, what+" max", s.Max, want)
	if n >= 100 {
		near(t, what+" p99", s.P99, want)
	}
}

func codes(faults []Fault) string {
	var c []string
	for _, f := range faults {
		c = append(c, f.Code)
	}
	return strings.Join(c, " ")
}

func measure(t *testing.T, r *rig, p Point) *Result {
	t.Helper()
	if p.Fill == nil {
		p.Fill = fill
	}
	result, err := r.runner().Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// TestExactTimes measures servers whose times are known by construction.
func TestExactTimes(t *testing.T) {
	for _, test := range []struct {
		name  string
		point Point
	}{
		{"open loop", Point{Name: "open", Source: requests(200, 50*time.Millisecond)}},
		{"closed loop", Point{Name: "closed", Concurrency: 4, Source: requests(200, 0)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			virtual(t, ClientConfig{}, fixed(200*time.Millisecond, 20*time.Millisecond), func(t *testing.T, ctx context.Context, r *rig) {
				result := measure(t, r, test.point)
				all := result.All()
				times(t, "TTFT", all.TTFT, 200, 0.2)
				times(t, "TTFT from sent", all.TTFTSent, 200, 0.2)
				times(t, "TTFO", all.TTFO, 200, 0.2)
				times(t, "TPOT", all.TPOT, 200, 0.02)
				times(t, "ITL", all.ITL, 200*15, 0.02)
				times(t, "ICL", all.ICL, 200*15, 0.02)
				times(t, "E2E", all.E2E, 200, 0.2+15*0.02)
				times(t, "lag", result.ScheduleLag, 200, 0)
				if !result.Usable() {
					t.Errorf("faults: %v", result.Faults)
				}
				if all.Outcomes[OK] != 200 || all.Attempts != 200 || all.Violations != 0 {
					t.Errorf("outcomes %v, %d attempts, %d violations", all.Outcomes, all.Attempts, all.Violations)
				}
			})
		})
	}
}

// TestOpenLoopKeepsItsSchedule: the arrivals as the server sees them are the
// planned ones, also while it is slow, and latency counts from them.
func TestOpenLoopKeepsItsSchedule(t *testing.T) {
	virtual(t, ClientConfig{}, fixed(3*time.Second, time.Millisecond), func(t *testing.T, ctx context.Context, r *rig) {
		result := measure(t, r, Point{Name: "p", Source: requests(50, 100*time.Millisecond)})
		for i, q := range r.seen {
			if d := q.Arrived.Sub(r.seen[0].Arrived); d != time.Duration(i)*100*time.Millisecond {
				t.Fatalf("request %d came after %v", i, d)
			}
		}
		near(t, "offered rate", result.OfferedRate, 10)
		if result.PeakInFlight < 30 {
			t.Errorf("%d in flight at most: the loop was not open", result.PeakInFlight)
		}
	})
}

// TestClosedLoopKeepsItsNumber: never more, and never fewer while there is work.
func TestClosedLoopKeepsItsNumber(t *testing.T) {
	virtual(t, ClientConfig{}, fixed(100*time.Millisecond, 10*time.Millisecond), func(t *testing.T, ctx context.Context, r *rig) {
		begin := time.Now()
		result := measure(t, r, Point{Name: "p", Concurrency: 5, Source: requests(100, 0)})
		if r.most != 5 || result.PeakInFlight != 5 {
			t.Errorf("%d in flight at most by the server, %d by the client, want 5", r.most, result.PeakInFlight)
		}
		// 100 requests of 0.25 s each by 5: exactly 5 s when no place is ever empty.
		if d := time.Since(begin) - lead; d != 5*time.Second {
			t.Errorf("it took %v, want 5 s", d)
		}
		near(t, "completed rate", result.CompletedRate, 20)
	})
}

// A loop of long requests serves what it serves, whichever of them began before
// the window or ended after it: 10 at once of 4 s each, 16 tokens in 3 s, are 2.5 a second.
func TestRatesOfLongRequests(t *testing.T) {
	for _, test := range []struct {
		warmup, duration          time.Duration
		completed, output, prompt float64
	}{
		{2 * time.Second, 8 * time.Second, 20.0 / 8, 10 * 32.0 / 8, 10 * 16.0 / 8},
		// Answers come from 1 to 4, 5 to 8, 9 to 12: a third, all, and two thirds of three waves.
		{3 * time.Second, 8 * time.Second, 20.0 / 8, 10 * 32.0 / 8, 10 * 16.0 / 8},
		// Half of a request's time holds more of its answer than the other half.
		{1 * time.Second, 3 * time.Second, 10.0 / 3, 10 * 16.0 / 3, 10 * 8.0 / 3},
	} {
		virtual(t, ClientConfig{}, fixed(time.Second, 200*time.Millisecond), func(t *testing.T, ctx context.Context, r *rig) {
			result := measure(t, r, Point{Name: "p", Concurrency: 10, Source: requests(1000, 0), Warmup: test.warmup, Duration: test.duration})
			near(t, "completed rate", result.CompletedRate, test.completed)
			near(t, "output tokens", result.OutputTokenRate, test.output)
			near(t, "prompt tokens", result.PromptTokenRate, test.prompt)
		})
	}
}

func TestWarmupIsNotCounted(t *testing.T) {
	slowStart := func(w *events, q asked) error {
		ttft := 200 * time.Millisecond
		if q.Number < 20 {
			ttft = 2 * time.Second
		}
		return fixed(ttft, time.Millisecond)(w, q)
	}
	virtual(t, ClientConfig{}, slowStart, func(t *testing.T, ctx context.Context, r *rig) {
		result := measure(t, r, Point{Name: "p", Source: requests(1000, 100*time.Millisecond), Warmup: 2 * time.Second, Duration: 10 * time.Second})
		times(t, "TTFT", result.All().TTFT, 100, 0.2)
		near(t, "offered rate", result.OfferedRate, 10)
		if len(r.seen) != 120 {
			t.Errorf("the server saw %d requests, want 120", len(r.seen))
		}
	})
}

// TestCapNeverHides: what the cap holds back counts from when it was due, and
// what it never lets go is a violation.
func TestCapNeverHides(t *testing.T) {
	virtual(t, ClientConfig{}, fixed(time.Second, 0), func(t *testing.T, ctx context.Context, r *rig) {
		slo := []workload.SLO{{Metric: "ttft", Percentile: 50, Bound: 1500 * time.Millisecond}}
		// 2 places of 1 s each serve 2 of the 4 requests a second.
		result := measure(t, r, Point{Name: "p", Source: requests(1000, 250*time.Millisecond), Duration: 10 * time.Second, MaxInflight: 2, SLO: slo})
		if r.most != 2 {
			t.Errorf("%d in flight, the cap is 2", r.most)
		}
		if got := codes(result.Faults); got != "capped slo" {
			t.Errorf("faults %q: %v", got, result.Faults)
		}
		all := result.All()
		if all.Attempts != 40 || result.Unsent != 20 {
			t.Errorf("%d attempts, %d never sent; want 40 and 20", all.Attempts, result.Unsent)
		}
		// Requests 2k and 2k+1 of the 20 that went are sent at k and k+0.25 s:
		// the last was due at 4.75 s, sent at 9.25 s and answered at 10.25 s.
		near(t, "longest TTFT", all.TTFT.Max, 10.25-4.75)
		near(t, "lag", result.ScheduleLag.Max, 0)
	})
}

func TestMaxRate(t *testing.T) {
	virtual(t, ClientConfig{}, fixed(time.Millisecond, 0), func(t *testing.T, ctx context.Context, r *rig) {
		result := measure(t, r, Point{Name: "p", Source: requests(100, 10*time.Millisecond), MaxRate: 20})
		if got := codes(result.Faults); got != "capped" {
			t.Errorf("faults %q", got)
		}
		// 100 requests at 20/s, of which one second's worth may come at once.
		if d := r.seen[99].Arrived.Sub(r.seen[0].Arrived); d < 3900*time.Millisecond || d > 5*time.Second {
			t.Errorf("100 requests took %v", d)
		}
	})
}

// TestDeadlines: a request, a silent stream and a run all end.
func TestDeadlines(t *testing.T) {
	hang := func(w *events, q asked) error {
		if q.Number%2 == 0 {
			w.token()
		}
		<-q.gone
		return errCut
	}
	virtual(t, ClientConfig{RequestTimeout: 30 * time.Second}, hang, func(t *testing.T, ctx context.Context, r *rig) {
		begin := time.Now()
		result := measure(t, r, Point{Name: "p", Source: requests(10, 0)})
		if d := time.Since(begin); d > 31*time.Second {
			t.Errorf("the point ended after %v", d)
		}
		if n := result.All().Outcomes[Timeout]; n != 10 {
			t.Errorf("outcomes %v", result.All().Outcomes)
		}
	})
	virtual(t, ClientConfig{}, hang, func(t *testing.T, ctx context.Context, r *rig) {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		result, err := r.runner().Run(ctx, Point{Name: "p", Source: requests(10, 0), Fill: fill})
		if err != nil || !result.Interrupted || !strings.HasPrefix(codes(result.Faults), "interrupted") {
			t.Errorf("interrupted %v, faults %v, error %v", result.Interrupted, result.Faults, err)
		}
		if n := result.All().Outcomes[Cancelled]; n != 10 {
			t.Errorf("outcomes %v", result.All().Outcomes)
		}
	})
}

// TestInterrupted: what was cancelled is censored, and was offered all the same.
func TestInterrupted(t *testing.T) {
	virtual(t, ClientConfig{}, fixed(2*time.Second, time.Millisecond), func(t *testing.T, ctx context.Context, r *rig) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		result, err := r.runner().Run(ctx, Point{Name: "p", Source: requests(1000, 100*time.Millisecond), Fill: fill, Duration: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		all := result.All()
		near(t, "offered rate", result.OfferedRate, 10)
		if all.Attempts+all.Outcomes[Cancelled] != 50 || all.Outcomes[OK] != all.Attempts || all.Violations != 0 {
			t.Errorf("%d attempts, outcomes %v, %d violations", all.Attempts, all.Outcomes, all.Violations)
		}
	})
}

// TestSessions: a later turn waits for the answer before it and the think
// time, in both loops, and is due then.
func TestSessions(t *testing.T) {
	for _, loop := range []struct {
		name        string
		concurrency int
		arrivals    *workload.Arrivals
	}{
		{"open", 0, &workload.Arrivals{Process: workload.Constant, Rate: 1}},
		{"closed", 3, nil},
	} {
		t.Run(loop.name, func(t *testing.T) {
			virtual(t, ClientConfig{}, fixed(time.Second, 10*time.Millisecond), func(t *testing.T, ctx context.Context, r *rig) {
				source, err := workload.Plan{
					Classes: []workload.Class{{
						Name: "chat", Weight: 1, Prompt: workload.FixedLength(10), Output: workload.FixedLength(11),
						Session: workload.Session{Turns: 3, ThinkTime: 0.5, FixedThinkTime: true},
					}},
					Arrivals: loop.arrivals, Requests: 30, Seed: 1,
				}.Source()
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				result := measure(t, r, Point{
					Name: "p", Concurrency: loop.concurrency, Source: source,
					Fill: func(q *workload.Request) { q.MakeTokens(workload.SafeVocabulary(0)) },
				})
				times(t, "TTFT", result.All().TTFT, 30, 1)
				if result.All().Outcomes[OK] != 30 {
					t.Errorf("outcomes %v: %v", result.All().Outcomes, result.Errors)
				}
				if loop.concurrency > 0 {
					// 10 sessions of 3 x 1.1 s and 2 x 0.5 s by 3 users: 4 rounds of 4.3 s.
					if d := time.Since(begin) - lead; d != 4*4300*time.Millisecond {
						t.Errorf("it took %v", d)
					}
				}
			})
		})
	}
}
