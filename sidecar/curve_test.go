package sidecar_test

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
	"headroom_exporter/sidecar"
)

// smallCurve is a curve of one class like fakeRank's requests of 100 and 50
// tokens, with its knee at 4 requests a second and the watermark at 3.2.
func smallCurve() *curve.Curve {
	v := func(x float64) curve.Value { return curve.Value(x) }
	u := capacity.Unknown()
	lengths := func(length float64) capacity.Histogram {
		h := capacity.NewHistogram(capacity.TokenBounds(1000))
		h.Add(length, 1)
		return h
	}
	return &curve.Curve{
		Source: curve.Measured, PeakReserve: 0.2, Finished: time.Now(),
		Identity: curve.Identity{Model: "m", GPUName: "H100", MaxNumSeqs: 8, EngineVersion: "0.31.0"},
		Classes: []curve.Class{{
			Name: "chat", Weight: 1, PromptHistogram: lengths(100), GenerationHistogram: lengths(50),
			PromptMean: 100, GenerationMean: 50, PrefixHitRatio: 0,
			Studies: []curve.Study{{
				Arrivals: curve.Arrivals{Process: "poisson"}, Status: curve.StatusOK, SafeRate: 4,
				Knee: &curve.Knee{Rate: 4, Low: 3.9, High: 4.1, Watermark: v(3.2), CliffFrom: u, CliffTo: u},
			}},
		}},
	}
}

// withCurve gives a sidecar a curve, of an engine of this identity.
func withCurve(c *curve.Curve, live func() (curve.Identity, error)) func(*engine.Config, *sidecar.Config) {
	return func(_ *engine.Config, sc *sidecar.Config) {
		sc.Curve = sidecar.FixedCurve{Curve: c}
		sc.Identity = func(engine.Observation, gpu.Snapshot) (curve.Identity, error) { return live() }
	}
}

// mustRest fails when anything rests on the curve.
func mustRest(t *testing.T, r sidecar.Replica, reason string) {
	t.Helper()
	c := &r.Curve
	if c.Valid || !slices.Contains(c.Reasons, reason) {
		t.Errorf("valid %v, reasons %q, want %q among them", c.Valid, c.Reasons, reason)
	}
	if ratio := r.LoadRatios[capacity.Curve]; !math.IsNaN(ratio) && ratio <= 1 {
		t.Errorf("the load ratio by the curve is %v", ratio)
	}
	if !math.IsNaN(r.Forecast.TimeToKnee) || !math.IsNaN(r.Burn.Fast) || !math.IsNaN(r.Burn.Slow) {
		t.Errorf("forecast %v, burn %+v", r.Forecast.TimeToKnee, r.Burn)
	}
	if r.Binding == capacity.Curve && math.IsNaN(r.LoadRatios[capacity.Curve]) {
		t.Error("the curve binds, of which nothing is known")
	}
}

// What a curve was measured on against what runs: each kind of difference.
func TestIdentityOfTheCurve(t *testing.T) {
	stored := smallCurve().Identity
	for _, test := range []struct {
		name   string
		change func(live *curve.Identity)
		reuse  []curve.Reuse
		// reason why it does not count, empty when it does; stale why it should be measured again.
		reason, stale string
	}{
		{"the same", func(*curve.Identity) {}, nil, "", ""},
		{"another model", func(i *curve.Identity) { i.Model = "x" }, nil, "identity_model", ""},
		{"another GPU", func(i *curve.Identity) { i.GPUName = "A100" }, nil, "identity_gpu_name", ""},
		{"another limit", func(i *curve.Identity) { i.MaxNumSeqs = 16 }, nil, "identity_max_num_seqs", ""},
		{"a limit that is not known", func(i *curve.Identity) { i.MaxNumSeqs = 0 }, nil, "", ""},
		{"another release", func(i *curve.Identity) { i.EngineVersion = "0.32.0" }, nil, "", "engine_version"},
		{"another patch", func(i *curve.Identity) { i.EngineVersion = "0.31.1" }, nil, "", ""},
		{"another GPU, allowed", func(i *curve.Identity) { i.GPUName = "H200" },
			[]curve.Reuse{{Field: "gpu_name", From: "H100", To: "H200", Reason: "the same chip with more memory", ApprovedBy: "ops"}}, "", ""},
		{"another GPU than is allowed", func(i *curve.Identity) { i.GPUName = "A100" },
			[]curve.Reuse{{Field: "gpu_name", From: "H100", To: "H200", Reason: "the same chip with more memory", ApprovedBy: "ops"}}, "identity_gpu_name", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, live := smallCurve(), stored
				c.Reuse = test.reuse
				f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
				s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return live, nil }))
				work := func(int) { f.ranks[0].second(2, 100, 50, 50) }
				run(s, 90, work)
				if r := s.Snapshot().Replicas[0]; !r.Curve.Valid {
					t.Fatalf("before: %q", r.Curve.Reasons)
				}
				// The engine comes back as another.
				f.down = true
				run(s, 6, nil)
				mustRest(t, s.Snapshot().Replicas[0], "engine_down")
				f.down, f.ranks[0] = false, fakeRank{running: 4, kvUsage: 0.36}
				test.change(&live)
				run(s, 90, work)
				r := s.Snapshot().Replicas[0]
				if test.reason != "" {
					mustRest(t, r, test.reason)
					if want := []string{test.reason}; !slices.Equal(r.Curve.Reasons, want) {
						t.Errorf("reasons %q, want %q", r.Curve.Reasons, want)
					}
					return
				}
				if !r.Curve.Valid {
					t.Fatalf("does not count: %q", r.Curve.Reasons)
				}
				near(t, "load ratio by the curve", r.LoadRatios[capacity.Curve], 0.5*byChance(&r))
				if (test.stale != "") != slices.Contains(r.Curve.Stale, test.stale) || test.stale == "" && len(r.Curve.Stale) > 0 {
					t.Errorf("stale %q, want %q", r.Curve.Stale, test.stale)
				}
			})
		})
	}
	t.Run("not known", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
			s := newSidecar(t, f, withCurve(smallCurve(), func() (curve.Identity, error) { return curve.Identity{}, errors.New("no model") }))
			run(s, 90, func(int) { f.ranks[0].second(2, 100, 50, 50) })
			mustRest(t, s.Snapshot().Replicas[0], sidecar.ReasonIdentityUnknown)
		})
	})
	t.Run("old", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := smallCurve()
			c.Finished = time.Now().Add(-31 * 24 * time.Hour)
			f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
			s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return stored, nil }))
			run(s, 90, func(int) { f.ranks[0].second(2, 100, 50, 50) })
			if r := s.Snapshot().Replicas[0].Curve; !r.Valid || !slices.Equal(r.Stale, []string{"age"}) {
				t.Errorf("valid %v, stale %q", r.Valid, r.Stale)
			}
		})
	})
}

// byChance is by what a ratio of one class is raised for the requests that it rests on.
func byChance(r *sidecar.Replica) float64 { return 1 + 1/math.Sqrt(r.Curve.Load.Mix.Completions) }

// What is published with a curve, to the number.
func TestHeadroomByTheCurve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := smallCurve()
		f := &fakeEngine{ranks: []fakeRank{{running: 2, kvUsage: 0.18}}}
		s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
		run(s, 90, func(int) { f.ranks[0].second(3.4, 100, 50, 50) })
		r := s.Snapshot().Replicas[0]
		if n := r.Curve.Load.Mix.Completions; n < 250 || n > 310 {
			t.Fatalf("the mix rests on %g requests, want about 300", n)
		}
		ratio := 0.85 * byChance(&r)
		near(t, "load ratio by the curve", r.LoadRatios[capacity.Curve], ratio)
		near(t, "headroom", r.HeadroomRatio, 1-ratio)
		near(t, "watermark", r.Curve.Load.Watermark, 0.8)
		left := 3.4/ratio - 3.4
		near(t, "knee", r.Curve.Load.Knee, 4/byChance(&r))
		near(t, "requests left", r.Left.RequestsPerSecond, left)
		near(t, "prompt tokens left", r.Left.PromptTokensPerSecond, 100*left)
		near(t, "generation tokens left", r.Left.GenerationTokensPerSecond, 50*left)
		near(t, "sequence slots left", r.Left.SequenceSlots, 6)
		if r.Binding != capacity.Curve || r.Zone != capacity.ZoneRisk {
			t.Errorf("%v binds, zone %v", r.Binding, r.Zone)
		}
		if slices.ContainsFunc(r.Reasons, func(s string) bool { return regexp.MustCompile("upper bound").MatchString(s) }) {
			t.Errorf("it is still called an upper bound: %q", r.Reasons)
		}
		// Nothing comes any more: nothing is used, and all of the knee is left.
		f.ranks[0].running, f.ranks[0].kvUsage = 0, 0
		run(s, 7, nil)
		r = s.Snapshot().Replicas[0]
		near(t, "load ratio when it is empty", r.LoadRatios[capacity.Curve], 0)
		near(t, "requests left when it is empty", r.Left.RequestsPerSecond, 4/byChance(&r))
	})
}

// A constraint that is further up than the curve binds, in its own zone.
func TestConstraintsBesideTheCurve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := smallCurve()
		f := &fakeEngine{ranks: []fakeRank{{running: 7, kvUsage: 0.36}}}
		s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
		run(s, 90, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		r := s.Snapshot().Replicas[0]
		near(t, "headroom", r.HeadroomRatio, 1-7.0/8)
		near(t, "requests left", r.Left.RequestsPerSecond, 2*(8.0/7-1))
		if r.Binding != capacity.SequenceSlots || r.Zone != capacity.ZoneRisk {
			t.Errorf("%v binds, zone %v", r.Binding, r.Zone)
		}
	})
}

// What is left is the least that any constraint leaves, by the rates that each
// has: with a curve that counts never more than its knee leaves of what is offered now.
func TestLeftIsTheLeast(t *testing.T) {
	for _, test := range []struct {
		name string
		// before and now are requests per second, for 90 s and then for 20 s.
		before, now float64
		running, kv float64
		binding     capacity.Constraint
	}{
		{"the KV cache is fuller, of a minute of more traffic", 24, 8, 2, 0.27, capacity.TokenSlots},
		{"slots are over full, of a minute of less traffic", 8, 48, 10.4, 0.27, capacity.SequenceSlots},
		{"the curve has the largest ratio", 24, 24, 2, 0.27, capacity.Curve},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := smallCurve()
				study := &c.Classes[0].Studies[0]
				study.SafeRate, study.Knee.Rate, study.Knee.Low, study.Knee.High, study.Knee.Watermark = 40, 40, 39, 41, 32
				f := &fakeEngine{ranks: []fakeRank{{running: test.running, kvUsage: test.kv}}}
				s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
				run(s, 90, func(int) { f.ranks[0].second(test.before, 100, 50, 50) })
				run(s, 20, func(int) { f.ranks[0].second(test.now, 100, 50, 50) })
				r := s.Snapshot().Replicas[0]
				if !r.Curve.Valid || r.Binding != test.binding {
					t.Fatalf("valid %v, %v binds, load ratios %v", r.Curve.Valid, r.Binding, r.LoadRatios)
				}
				near(t, "offered", r.Curve.OfferedRequests, test.now)
				left := r.Curve.Load.Knee - test.now
				near(t, "requests left", r.Left.RequestsPerSecond, left)
				near(t, "prompt tokens left", r.Left.PromptTokensPerSecond, 100*left)
				near(t, "generation tokens left", r.Left.GenerationTokensPerSecond, 50*left)
			})
		})
	}
}

// Traffic that the classes do not explain, and that is above the knee by what
// they do: it is neither called an upper bound nor taken for the engine's limits.
func TestAboveTheKneeByAPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := smallCurve()
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
		run(s, 90, func(int) { f.ranks[0].second(6, 400, 200, 50) })
		r := s.Snapshot().Replicas[0]
		mustRest(t, r, string(capacity.ReasonCoverageLow))
		if !(r.LoadRatios[capacity.Curve] > 1) || r.Binding != capacity.Curve || r.Zone != capacity.ZoneUnstable {
			t.Errorf("load ratio by the curve %v, %v binds, zone %v", r.LoadRatios[capacity.Curve], r.Binding, r.Zone)
		}
		if !(r.Left.RequestsPerSecond < 0) {
			t.Errorf("%v requests/s are left above the knee", r.Left.RequestsPerSecond)
		}
		said := strings.Join(r.Reasons, "\n")
		if !strings.Contains(said, "above the knee by itself") || strings.Contains(said, "upper bound") {
			t.Errorf("reasons:\n%s", said)
		}
	})
}

// Before there are rates none of them is 0, and the reason says to wait.
func TestRatesAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := smallCurve()
		f := &fakeEngine{ranks: []fakeRank{{}}}
		s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
		for range 5 {
			run(s, 1, nil)
			r := s.Snapshot().Replicas[0]
			offered, ratio := 0.0, 0.0
			if r.RateSpan < sidecar.MinRateSpan {
				offered, ratio = nan, nan
				if want := []string{string(sidecar.ReasonFewReadings)}; !slices.Equal(r.Curve.Reasons, want) {
					t.Errorf("after %s: reasons %q, want %q", r.RateSpan, r.Curve.Reasons, want)
				}
				if !r.Curve.Waiting() {
					t.Errorf("after %s it is not waited for", r.RateSpan)
				}
			} else if !r.Curve.Valid {
				t.Errorf("after %s: reasons %q", r.RateSpan, r.Curve.Reasons)
			}
			near(t, fmt.Sprintf("offered after %s", r.RateSpan), r.Curve.OfferedRequests, offered)
			near(t, fmt.Sprintf("load ratio after %s", r.RateSpan), r.LoadRatios[capacity.Curve], ratio)
		}
	})
}

// An offload tier keeps the KV cache full on purpose: then it is no constraint.
func TestTokenSlotsUnbound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.99}}}
		s := newSidecar(t, f, func(_ *engine.Config, c *sidecar.Config) { c.TokenSlotsUnbound = true })
		run(s, 10, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		r := s.Snapshot().Replicas[0]
		near(t, "token slots", r.LoadRatios[capacity.TokenSlots], nan)
		near(t, "token slot occupancy", r.TokenSlots.Ratio, 0.99)
		near(t, "headroom", r.HeadroomRatio, 0.5)
	})
}

// Every input of the curve's load absent, impossible, stale, or begun anew:
// the number is there only while all that it rests on is.
func TestUnknownIsNeverANumberByTheCurve(t *testing.T) {
	const known = ""
	for _, test := range []struct {
		name    string
		without string
		// then happens after 90 s of work.
		then   func(f *fakeEngine)
		after  int
		work   bool
		reason string
	}{
		{name: "all there", work: true, after: 10, reason: known},
		{name: "no first tokens", without: `time_to_first_token`, work: true, after: 10, reason: known}, // those that ended stand in
		{name: "no waiting requests", without: `num_requests_waiting`, work: true, after: 10, reason: string(capacity.ReasonRatesUnknown)},
		{name: "no generation tokens", without: `generation_tokens_total`, work: true, after: 10, reason: string(capacity.ReasonRatesUnknown)},
		{name: "no prompt tokens", without: `prompt_tokens`, work: true, after: 10, reason: string(capacity.ReasonRatesUnknown)},
		{name: "no finished requests", without: `request_success`, work: true, after: 10, reason: string(capacity.ReasonFewCompletions)},
		{name: "no KV cache", without: `kv_cache_usage_perc`, work: true, after: 10, reason: known},
		{name: "no inter-token latency", without: `inter_token_latency`, work: true, after: 10, reason: known},
		{name: "frozen", after: 30, reason: "engine_stale"},
		{name: "down", then: func(f *fakeEngine) { f.down = true }, after: 10, reason: "engine_down"},
		{name: "an impossible number of waiting requests", then: func(f *fakeEngine) { f.ranks[0].waiting = math.NaN() }, work: true, after: 3, reason: string(capacity.ReasonRatesUnknown)},
		{name: "a counter begins anew", then: func(f *fakeEngine) { f.ranks[0] = fakeRank{running: 4, kvUsage: 0.36} }, work: true, after: 30, reason: known},
		{name: "other traffic", then: func(f *fakeEngine) {
			// 30 requests of 1000 and 900 tokens at once.
			f.ranks[0].second(30, 1000, 900, 50)
		}, work: true, after: 5, reason: string(capacity.ReasonCoverageLow)},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := smallCurve()
				f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
				if test.without != "" {
					f.without = regexp.MustCompile(test.without)
				}
				s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
				work := func(int) { f.ranks[0].second(2, 100, 50, 50) }
				run(s, 90, work)
				if test.then != nil {
					test.then(f)
				}
				if !test.work {
					work = nil
				}
				run(s, test.after, work)
				r := s.Snapshot().Replicas[0]
				if test.reason != known {
					mustRest(t, r, test.reason)
					return
				}
				if !r.Curve.Valid {
					t.Fatalf("does not count: %q", r.Curve.Reasons)
				}
				within(t, "load ratio by the curve", r.LoadRatios[capacity.Curve], 0.45, 0.55)
			})
		})
	}
	// Before there are enough requests nothing is known, whatever they are like.
	synctest.Test(t, func(t *testing.T) {
		c := smallCurve()
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
		run(s, 1, nil)
		mustRest(t, s.Snapshot().Replicas[0], string(sidecar.ReasonFewReadings))
		run(s, 20, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		mustRest(t, s.Snapshot().Replicas[0], string(capacity.ReasonFewCompletions))
	})
	// After a restart the users are the same: their last mix stands in.
	synctest.Test(t, func(t *testing.T) {
		c := smallCurve()
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
		work := func(int) { f.ranks[0].second(2, 100, 50, 50) }
		run(s, 90, work)
		f.down = true
		run(s, 60, nil)
		f.down, f.ranks[0] = false, fakeRank{running: 4, kvUsage: 0.36}
		run(s, 5, work)
		r := s.Snapshot().Replicas[0]
		if !r.Curve.Valid || r.Curve.Load.Mix.Source != capacity.MixLast {
			t.Errorf("valid %v by %s", r.Curve.Valid, r.Curve.Load.Mix.Source)
		}
		within(t, "load ratio after a restart", r.LoadRatios[capacity.Curve], 0.45, 0.55)
		if took := s.Snapshot().Engine.Startup; took < 55*time.Second || took > 62*time.Second {
			t.Errorf("the start took %s, want about a minute", took)
		}
	})
}

// How long the engine takes to start is measured when a start is seen, and only then.
func TestStartupTime(t *testing.T) {
	for _, test := range []struct {
		name string
		// alive before the outage, and restarted by it.
		alive, restarted bool
		want             time.Duration
	}{
		{"the first start", false, true, 40 * time.Second},
		{"in use before it was first reached", false, false, 0},
		{"a restart", true, true, 40 * time.Second},
		{"out of reach for a while", true, false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36, finished: 100}}}
				s := newSidecar(t, f, nil)
				work := func(int) { f.ranks[0].second(2, 100, 50, 50) }
				if test.alive {
					run(s, 10, work)
				}
				f.down = true
				run(s, 40, nil)
				f.down = false
				if test.restarted {
					f.ranks[0] = fakeRank{running: 1, kvUsage: 0.1}
				}
				run(s, 1, nil)
				run(s, 2, work)
				if got := s.Snapshot().Engine.Startup; (got - test.want).Abs() > 4*time.Second {
					t.Errorf("%s, want %s", got, test.want)
				}
			})
		})
	}
}

// A load that rises steadily to the knee burns the headroom, and the forecast
// is shown only once it was right for as long as it looks ahead.
func TestBurnAndForecast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := smallCurve()
		f := &fakeEngine{ranks: []fakeRank{{running: 1, kvUsage: 0.1}}}
		s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
		// From 1 to 3.4 requests a second in 90 minutes: 0.0067 of the knee a minute.
		const seconds = 90 * 60
		at := func(second int) float64 { return 1 + 2.4*float64(second)/seconds }
		// A reading every 5 s is enough of this.
		rise := func(from, to int) {
			for second := from; second < to; second += 5 {
				f.ranks[0].second(5*at(second), 100, 50, 50)
				s.Step(t.Context())
				time.Sleep(5 * time.Second)
			}
		}
		rise(0, 8*60)
		r := s.Snapshot().Replicas[0]
		near(t, "burn before 10 minutes", r.Burn.Fast, nan)
		near(t, "time to the knee at once", r.Forecast.TimeToKnee, nan)
		rise(8*60, seconds)
		r = s.Snapshot().Replicas[0]
		near(t, "lead", r.Burn.LeadSeconds, 300)
		// In the lead of 5 minutes 0.033 goes of the 0.13 that is left of 0.85 and what is for chance.
		within(t, "burn in 10 minutes", r.Burn.Fast, 0.22, 0.30)
		within(t, "burn in 30 minutes", r.Burn.Slow, 0.22, 0.30)
		if len(r.Forecast.Horizons) != 2 {
			t.Fatalf("horizons %+v", r.Forecast.Horizons)
		}
		for _, h := range r.Forecast.Horizons {
			if !h.Skill.Shown() || math.IsNaN(h.LoadRatio) {
				t.Errorf("%d minutes ahead: skill %v, load ratio %v", h.Skill.Minutes, h.Skill.Ratio, h.LoadRatio)
			}
			within(t, fmt.Sprintf("load ratio %d minutes ahead", h.Skill.Minutes), h.LoadRatio, r.LoadRatio, r.LoadRatio+0.0067*float64(h.Skill.Minutes))
		}
	})
}

// What limits an engine, by what it shows with slots that are full and requests that wait.
func TestBottleneck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 1, kvUsage: 0.1}}}
		s := newSidecar(t, f, nil)
		run(s, 70, func(int) { f.ranks[0].second(1, 100, 50, 50) })
		if b := s.Snapshot().Replicas[0].Bottleneck; b.Bottleneck != capacity.BottleneckNone {
			t.Errorf("at little load: %+v", b)
		}
		f.ranks[0].running, f.ranks[0].waiting = 8, 5
		run(s, 70, func(int) { f.ranks[0].second(1, 100, 50, 50) })
		if b := s.Snapshot().Replicas[0].Bottleneck; b.Bottleneck != capacity.BottleneckSlots || len(b.Evidence) == 0 {
			t.Errorf("with full slots: %+v", b)
		}
		f.down = true
		run(s, 10, nil)
		if b := s.Snapshot().Replicas[0].Bottleneck; b.Bottleneck != capacity.BottleneckUnknown {
			t.Errorf("of an engine that is down: %+v", b)
		}
	})
}
