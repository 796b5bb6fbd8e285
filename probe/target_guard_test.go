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

	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
	"headroom_exporter/probe/knee"
	"headroom_exporter/probe/workload"
	"headroom_exporter/simulator"
)

// page is a reading of an engine that says nothing of its latencies.
func page(at time.Duration, zero time.Time) *engine.Observation {
	return &engine.Observation{
		State: engine.StateOK, Fresh: true, Reading: &engine.Reading{At: zero.Add(at)},
	}
}

// looks shows a guard a reading every quarter of a second until it finds harm.
func looks(g *guard, until time.Duration, change func(*view)) (reason, evidence string, at time.Duration) {
	for at = 0; at <= until; at += DefaultReadingInterval {
		v := &view{now: at, engine: page(at, g.zero), gauges: gauges{running: 4, waiting: 0, kv: 0.5}, inFlight: 4}
		change(v)
		if reason, evidence = g.look(v); reason != "" {
			return reason, evidence, at
		}
	}
	return "", "", at
}

func gpus(change func(*gpu.Reading)) gpu.Snapshot {
	r := gpu.NewReading()
	r.UUID = "GPU-1"
	change(&r)
	return gpu.Snapshot{Status: gpu.Status{Up: true}, Readings: []gpu.Reading{r}}
}

// TestGuard: each harm, when it is noticed, and what is none.
func TestGuard(t *testing.T) {
	const forever = 20 * time.Second
	second := time.Second
	for _, test := range []struct {
		name   string
		others bool
		change func(*view)
		want   string
		at     time.Duration
	}{
		{"nothing", true, func(v *view) {}, "", 0},
		{"a queue of the probe alone", false, func(v *view) { v.waiting, v.inFlight, v.unbegun = 50, 54, 50 }, "", 0},
		{"a queue of the probe beside others that do not wait", true, func(v *view) { v.running, v.waiting, v.inFlight, v.unbegun = 4, 1, 5, 1 }, "", 0},
		{"others wait", true, func(v *view) {
			if v.now >= second {
				v.waiting, v.inFlight, v.unbegun = 3, 5, 1
			}
		}, HarmOthersWait, 6 * second},
		{"others wait in a long queue of the probe", true, func(v *view) { v.running, v.waiting, v.inFlight, v.unbegun = 64, 50, 104, 60 }, HarmOthersWait, 5 * second},
		{"others wait now and then", true, func(v *view) {
			if v.now%(4*second) != 0 {
				v.waiting, v.inFlight = 3, 5
			}
		}, "", 0},
		{"KV full beside others", true, func(v *view) {
			if v.now >= second {
				v.kv = 0.97
			}
		}, HarmKV, 4 * second},
		{"KV full by the probe alone", false, func(v *view) { v.kv = 0.99 }, "", 0},
		{"an engine that turns requests away, alone", false, func(v *view) {
			v.ended, v.failed, v.refused = int(10*v.now/second), int(v.now/second), int(v.now/second)
		}, "", 0},
		{"an engine that turns requests away, beside others", true, func(v *view) {
			v.ended, v.failed, v.refused = int(10*v.now/second), int(v.now/second), int(v.now/second)
		}, HarmFailures, 5 * second},
		{"failures", false, func(v *view) { v.ended, v.failed = int(10*v.now/second), int(v.now/second) }, HarmFailures, 5 * second},
		{"few failures", false, func(v *view) { v.ended, v.failed = 1000, 10 }, "", 0},
		{"failures of too few", false, func(v *view) { v.ended, v.failed = 49, 49 }, "", 0},
		{"XID", false, func(v *view) {
			v.gpus = gpus(func(r *gpu.Reading) {
				r.XIDs = []gpu.XIDCount{{XID: 79, Class: gpu.RestartNode}, {XID: 43, Class: gpu.Ignore, Count: uint64(v.now / second)}}
				if v.now >= 2*second {
					r.XIDs[0].Count = 1
				}
			})
		}, HarmXID, 2 * second},
		{"too hot", false, func(v *view) {
			v.gpus = gpus(func(r *gpu.Reading) { r.ThrottleActive = map[string]bool{"hw_thermal": v.now >= 3*second} })
		}, HarmThrottle, 3 * second},
		{"power capped", false, func(v *view) {
			v.gpus = gpus(func(r *gpu.Reading) { r.ThrottleActive = map[string]bool{"sw_power_cap": true} })
		}, "", 0},
		{"stale", false, func(v *view) {
			if v.now > 3*second {
				v.engine.Fresh, v.engine.Reason = false, "timeout"
			}
		}, HarmStale, 5250 * time.Millisecond},
		{"a reading missed now and then", false, func(v *view) { v.engine.Fresh = v.now%(2*second) == 0 }, "", 0},
		{"down", false, func(v *view) {
			if v.now >= 3*second {
				v.engine.Fresh, v.engine.State, v.engine.Reason = false, engine.StateDown, "connection_refused"
			}
		}, HarmDown, 3 * second},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := &guard{
				zero: time.Now(), staleAfter: 2 * time.Second, readable: true, others: test.others,
				waitSince: Never, kvSince: Never, limit: 0.8, budget: 0.01,
			}
			reason, evidence, at := looks(g, forever, test.change)
			if reason != test.want || test.want != "" && (at != test.at || evidence == "") {
				t.Errorf("%q (%s) after %v, want %q after %v", reason, evidence, at, test.want, test.at)
			}
		})
	}
}

// TestGuardUnreadable: an engine whose metrics were never read is not stale.
func TestGuardUnreadable(t *testing.T) {
	g := &guard{zero: time.Now(), staleAfter: 2 * time.Second, waitSince: Never, kvSince: Never}
	reason, _, _ := looks(g, 20*time.Second, func(v *view) {
		v.engine = &engine.Observation{State: engine.StateDown, Reason: "connection_refused"}
	})
	if reason != "" {
		t.Errorf("harm %q", reason)
	}
}

// TestOthersLate: others' TTFT is the engine's histogram without the probe's own.
func TestOthersLate(t *testing.T) {
	histogram := func(upTo05, upTo1, all float64) *engine.Histogram {
		return &engine.Histogram{Bounds: []float64{0.5, 1, math.Inf(1)}, Counts: []float64{upTo05, upTo1, all}, Count: all}
	}
	ours := func(n int, ttft time.Duration) (firsts []first) {
		for range n {
			firsts = append(firsts, first{at: 5 * time.Second, ttft: ttft})
		}
		return firsts
	}
	for _, test := range []struct {
		name   string
		limit  float64
		to     *engine.Histogram
		firsts []first
		others bool
		late   string
	}{
		{"all ours, and late", 0.8, histogram(0, 0, 40), ours(40, 3*time.Second), false, ""},
		{"two more than ours may be a blur", 0.8, histogram(0, 0, 42), ours(40, 3*time.Second), false, ""},
		{"others in time", 0.8, histogram(20, 20, 60), ours(40, 3*time.Second), true, ""},
		{"others late", 0.8, histogram(10, 10, 60), ours(40, 3*time.Second), true, "10 of about 20"},
		{"one of others late may be a blur", 0.8, histogram(19, 19, 60), ours(40, 3*time.Second), true, ""},
		{"no bound to hold them to", 0, histogram(10, 10, 60), ours(40, 3*time.Second), true, ""},
		{"a bound beyond the buckets", 5, histogram(10, 10, 60), ours(40, 3*time.Second), true, ""},
		{"ours came after the page", 0.8, histogram(0, 0, 40), append(ours(40, 3*time.Second), first{at: 20 * time.Second}), false, ""},
		{"ours came while the first page did", 0.8, histogram(0, 0, 44),
			append(ours(40, 3*time.Second), slices.Repeat([]first{{at: -500 * time.Millisecond, ttft: 3 * time.Second}}, 4)...), false, ""},
		{"the page counted ours before they came", 0.8, histogram(0, 0, 44),
			append(ours(40, 3*time.Second), slices.Repeat([]first{{at: 10500 * time.Millisecond, ttft: 3 * time.Second}}, 4)...), false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := &guard{limit: test.limit, budget: 0.01, history: []tally{
				{at: 0, asked: -time.Second, ttft: histogram(0, 0, 0)}, {at: 10 * time.Second, ttft: test.to},
			}}
			late := g.lookForOthers(&view{firsts: test.firsts})
			if g.others != test.others || !strings.HasPrefix(late, test.late) || test.late == "" && late != "" {
				t.Errorf("others %t, late %q; want %t and %q", g.others, late, test.others, test.late)
			}
		})
	}
}

// TestPreemptionBurst counts over the last three seconds.
func TestPreemptionBurst(t *testing.T) {
	for _, test := range []struct {
		perSecond float64
		want      string
	}{{1, ""}, {1.5, HarmPreemptions}} {
		g := &guard{others: true, waitSince: Never, kvSince: Never}
		for at := time.Duration(0); at <= 10*time.Second; at += DefaultReadingInterval {
			g.history = append(g.history, tally{at: at, preemptions: math.Floor(test.perSecond * at.Seconds())})
		}
		if got, _ := g.pressure(&view{}); got != test.want {
			t.Errorf("%v a second: %q, want %q", test.perSecond, got, test.want)
		}
	}
}

// sent notes when the probe's requests were sent and ended, in seconds since the run's start.
type sent struct {
	mu       sync.Mutex
	last     float64
	lastEnd  float64
	requests int
	cancels  []float64
	dues     []float64
}

func (s *sent) RequestDone(r *Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	if r.Sent > s.last {
		s.last = r.Sent
	}
	s.lastEnd = max(s.lastEnd, r.End)
	if r.Outcome == Cancelled {
		s.cancels, s.dues = append(s.cancels, r.End), append(s.dues, r.Scheduled)
	}
}

// small is an engine with room for 8 sequences.
func small(c *simulator.Config) { c.MaxNumSeqs = 8 }

// foreigner sends requests one after the other and tells when an answer began late.
func foreigner(ctx context.Context, client *Client, limit time.Duration, late chan<- time.Duration) {
	for ctx.Err() == nil {
		q := workload.Request{Text: "somebody else " + time.Now().String(), MaxTokens: 8, IgnoreEOS: true, CacheSalt: workload.NewCacheSalt()}
		var x Exchange
		client.Do(ctx, &q, client.now(), &x)
		if x.First >= 0 && x.First-x.Sent > limit {
			late <- x.First
		}
		_ = sleep(ctx, 100*time.Millisecond)
	}
}

// TestHarmAbort: a load that makes others late ends: no request is sent after
// the reading that shows it, what is in flight is cancelled within a second,
// the oldest first, and the engine recovers. The times are in the log.
func TestHarmAbort(t *testing.T) {
	simulatedAs(t, small, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
		config := client.config
		other, err := NewClient(config)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		between := other.epoch.Sub(client.epoch)
		ctx, stop := context.WithCancel(t.Context())
		late := make(chan time.Duration, 1000)
		var others sync.WaitGroup
		for range 4 {
			others.Go(func() { foreigner(ctx, other, time.Second, late) })
		}
		log := &sent{}
		runner.Observer = log
		target := NewTarget(TargetConfig{Runner: runner, Facts: facts, AllowShared: true})
		l := &knee.Load{
			Name: "p9", Purpose: curve.PurposeProbe, Traffic: chatTraffic(t, "ttft:p99:800ms"),
			Steps: []knee.Step{{Rate: 40, Duration: time.Minute}}, Seed: 1,
		}
		o, err := target.Run(t.Context(), l, nil)
		stop()
		others.Wait()
		var harm *HarmError
		if !errors.As(err, &harm) || !errors.Is(err, knee.ErrHarm) || o == nil || o.Stopped != harm.Reason || len(o.Point.Faults) == 0 {
			t.Fatalf("error %v, observation %+v", err, o)
		}
		if harm.Reason != HarmOthersTTFT && harm.Reason != HarmOthersWait {
			t.Errorf("reason %s: %s", harm.Reason, harm.Evidence)
		}
		noticed := (harm.noticed - runner.start).Seconds()
		if log.last > noticed+0.001 {
			t.Errorf("a request was sent %.3f s after the harm was noticed", log.last-noticed)
		}
		if harm.InFlight == 0 || len(log.cancels) != harm.InFlight || log.lastEnd-noticed > 1 || harm.Drained > 1 {
			t.Errorf("%d of %d in flight were cancelled within %.3f s", len(log.cancels), harm.InFlight, log.lastEnd-noticed)
		}
		// Those cancelled first were due first: no round cancels what is older than the round before.
		for i := range log.cancels {
			for k := range log.cancels {
				if log.cancels[i] < log.cancels[k]-0.001 && log.dues[i] > log.dues[k] {
					t.Fatalf("one due at %.3f s was cancelled before one due at %.3f s", log.dues[i], log.dues[k])
				}
			}
		}
		if !(harm.Recovered < 10) {
			t.Errorf("recovered after %v s", harm.Recovered)
		}
		// One late answer may be a mistake; with the second, the condition holds.
		first := (<-late + between - runner.start).Seconds()
		second := (<-late + between - runner.start).Seconds()
		if wait := DefaultReadingInterval.Seconds(); noticed < second || noticed > second+wait+0.05 {
			t.Errorf("the second late answer began at %.3f s, which was noticed at %.3f s", second, noticed)
		}
		t.Logf("%s: %s", harm.Reason, harm.Evidence)
		t.Logf("since the load's start: late answers to others at %.3f and %.3f s; noticed at %.3f s; last request sent at %.3f s; last of %d cancelled at %.3f s; queue seen empty at %.3f s",
			first, second, noticed, log.last, harm.InFlight, log.lastEnd, noticed+harm.Recovered)
	})
}

// TestAloneAboveTheKnee: the same load with nobody else there harms nobody.
func TestAloneAboveTheKnee(t *testing.T) {
	simulatedAs(t, small, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
		target := NewTarget(TargetConfig{Runner: runner, Facts: facts})
		l := &knee.Load{
			Name: "p9", Purpose: curve.PurposeProbe, Traffic: chatTraffic(t, "ttft:p99:800ms"),
			Steps: []knee.Step{{Rate: 60, Duration: 7 * time.Second}}, Seed: 1,
		}
		l.Traffic.Classes[0].Output = workload.FixedLength(40)
		o, err := target.Run(t.Context(), l, nil)
		if err != nil {
			t.Fatal(err)
		}
		over := 0.0
		for _, q := range o.Requests {
			over += q.Over[0]
		}
		if over < float64(len(o.Requests))/2 {
			t.Errorf("%v of %d requests late: the load was not above the knee", over, len(o.Requests))
		}
		// A second load waits until the queue is gone.
		l.Name, l.Steps[0] = "p10", knee.Step{Rate: 1, Duration: 5 * time.Second}
		if o, err = target.Run(t.Context(), l, nil); err != nil {
			t.Fatal(err)
		}
		if o.Samples[0].Running > 1 {
			t.Errorf("%v ran at the second load's start", o.Samples[0].Running)
		}
	})
}

// TestTargetBusyAfterwards: an engine that others took meanwhile is left alone.
func TestTargetBusyAfterwards(t *testing.T) {
	simulated(t, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
		target := NewTarget(TargetConfig{Runner: runner, Facts: facts, SettleWithin: 10 * time.Second})
		l := &knee.Load{
			Name: "p1", Traffic: chatTraffic(t, "ttft:p99:800ms"), Steps: []knee.Step{{Rate: 2, Duration: 5 * time.Second}}, Seed: 1,
		}
		if _, err := target.Run(t.Context(), l, nil); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var others sync.WaitGroup
		for range 4 {
			others.Go(func() {
				for ctx.Err() == nil {
					q := workload.Request{Text: "somebody else " + time.Now().String(), MaxTokens: 400, IgnoreEOS: true}
					var x Exchange
					client.Do(ctx, &q, client.now(), &x)
				}
			})
		}
		begin := time.Now()
		_, err := target.Run(t.Context(), l, nil)
		if !errors.Is(err, knee.ErrBusy) || !strings.Contains(err.Error(), "4 requests run") || time.Since(begin) < 10*time.Second {
			t.Errorf("error %v after %v", err, time.Since(begin))
		}
		stop()
		others.Wait()
	})
}
