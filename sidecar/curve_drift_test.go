package sidecar_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/sidecar"
)

// pointedCurve is smallCurve with what was measured on the way to its knee: 2
// requests run for each that is offered per second, a step takes 20 ms.
func pointedCurve() *curve.Curve {
	c := smallCurve()
	for _, rate := range []float64{1, 2, 4} {
		p := curve.Point{Purpose: curve.PurposeProbe, OfferedRate: curve.Value(rate), Engine: curve.UnknownEngineReadings()}
		p.GenerationTokenRate = curve.Value(50 * rate)
		p.Engine.RunningMean, p.TTFT.Mean, p.ITL.Mean = curve.Value(2*rate), 0.1, 0.02
		c.Classes[0].Studies[0].Points = append(c.Classes[0].Studies[0].Points, p)
	}
	return c
}

// every steps the sidecar once in 5 s, which is as often as drift is compared,
// while rank 0 takes so many steps a second for 2 requests per second.
func every(t *testing.T, s *sidecar.Sidecar, f *fakeEngine, during time.Duration, stepsPerSecond float64) {
	t.Helper()
	for range during / (5 * time.Second) {
		for range 5 {
			f.ranks[0].second(2, 100, 50, stepsPerSecond)
		}
		s.Step(t.Context())
		time.Sleep(5 * time.Second)
	}
}

// Off by more than 20 % for half an hour the curve is stale, by more than 15 %
// in the rate of tokens as well; neither before that time, nor once it is over,
// nor after a restart until the engine is warm.
func TestStaleByDrift(t *testing.T) {
	for _, test := range []struct {
		name string
		// steps per second and requests running, of which the curve has 50 and 4.
		steps, running, kvUsage float64
		factor                  float64
		want                    []string
	}{
		{"as measured", 50, 4, 0.36, 1, nil},
		{"steps 15 % longer", 50 / 1.15, 4, 0.36, 1.15, nil},
		{"steps 25 % longer", 40, 4, 0.36, 1.25, []string{sidecar.StaleDrift}},
		{"steps 25 % shorter", 62.5, 4, 0.36, 0.8, nil}, // 20 % off is not more than that
		{"steps half as long", 100, 4, 0.36, 0.5, []string{sidecar.StaleDrift}},
		{"more requests for as many tokens", 50, 5, 0.36, 1, []string{sidecar.StaleGenerationRate}},
		{"a few more", 50, 4.5, 0.36, 1, nil}, // 2/2.25 is 11 % off
		{"more, with a cache that is nearly empty", 50, 5, 0.29, 1, nil},
		{"fewer requests for as many tokens", 50, 3, 0.36, 1, []string{sidecar.StaleGenerationRate}},
		{"slower in both", 40, 5, 0.36, 1.25, []string{sidecar.StaleDrift, sidecar.StaleGenerationRate}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := pointedCurve()
				f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
				s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
				stale := func() []string { return s.Snapshot().Replicas[0].Curve.Stale }
				every(t, s, f, 10*time.Minute, 50)
				if got := stale(); got != nil {
					t.Fatalf("stale as measured: %q", got)
				}
				f.ranks[0].running, f.ranks[0].kvUsage = test.running, test.kvUsage
				every(t, s, f, 29*time.Minute, test.steps)
				if got := stale(); got != nil {
					t.Errorf("stale before half an hour: %q", got)
				}
				// Until the median of the last 64 comparisons is off takes some minutes of its own.
				every(t, s, f, 6*time.Minute, test.steps)
				r := s.Snapshot().Replicas[0]
				if got := stale(); !slices.Equal(got, test.want) {
					t.Errorf("stale %q, want %q", got, test.want)
				}
				near(t, "correction factor", r.Curve.CorrectionFactor, test.factor)
				if want := 4 / test.running; test.kvUsage >= capacity.GenerationRateKVUsage {
					near(t, "generation rate", r.Curve.GenerationRatio, want)
				} else {
					near(t, "generation rate", r.Curve.GenerationRatio, nan)
				}
				if !r.Curve.Valid {
					t.Errorf("a stale curve does not count: %q", r.Curve.Reasons)
				}
				// As it was: 3 minutes later most of the last 64 say so.
				f.ranks[0].running, f.ranks[0].kvUsage = 4, 0.36
				every(t, s, f, 5*time.Minute, 50)
				if got := stale(); got != nil {
					t.Errorf("stale when it is as measured again: %q", got)
				}
			})
		})
	}
}

// With speculative decoding an engine counts its gaps by steps, or by tokens: of
// both the drift is that of the steps, whatever of the drafts is accepted now.
func TestDriftWithSpeculativeDecoding(t *testing.T) {
	for _, test := range []struct {
		name     string
		gaps     float64 // of a step
		accepted float64 // of two drafted tokens
		slower   float64
	}{
		{"by steps", 1, 2, 1},
		{"by tokens", 3, 2, 1},
		{"by steps, slower", 1, 2, 1.4},
		{"by tokens, slower", 3, 2, 1.4},
		{"by steps, half accepted", 1, 1, 1},
		{"by tokens, half accepted", 2, 1, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := pointedCurve()
				c.Classes[0].SpeculativeTokensPerStep = 3
				for i := range c.Classes[0].Studies[0].Points {
					p := &c.Classes[0].Studies[0].Points[i]
					p.Engine.SpeculativeTokensPerStep, p.ITL.Mean = 3, 0.02/3
				}
				f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
				s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
				for range 10 * 60 {
					r := &f.ranks[0]
					r.second(2, 100, 50, 50)
					// Of 98 tokens after the first ones each step brings so many, 20 ms apart.
					steps := 98 / (1 + test.accepted)
					r.drafts, r.accepted = r.drafts+steps, r.accepted+steps*test.accepted
					r.interTokenCount += steps*test.gaps - 98
					r.interTokenSum += steps*test.slower/50 - 98.0/50
					run(s, 1, nil)
				}
				near(t, "correction factor", s.Snapshot().Replicas[0].Curve.CorrectionFactor, test.slower)
			})
		})
	}
}

// An engine that has just started compiles, and its caches are cold: for 10
// minutes nothing is compared.
func TestDriftAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pointedCurve()
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
		every(t, s, f, 10*time.Minute, 50)
		f.down = true
		run(s, 20, nil)
		f.down, f.ranks[0] = false, fakeRank{running: 4, kvUsage: 0.36}
		every(t, s, f, 9*time.Minute, 30)
		near(t, "correction factor while it warms up", s.Snapshot().Replicas[0].Curve.CorrectionFactor, 1)
		every(t, s, f, 7*time.Minute, 30)
		near(t, "correction factor afterwards", s.Snapshot().Replicas[0].Curve.CorrectionFactor, 50.0/30)
	})
}

// curveAndProbe is a curve that a probe measures anew, or not.
type curveAndProbe struct {
	curve   *curve.Curve
	running bool
}

func (c *curveAndProbe) Current() sidecar.LoadedCurve {
	return sidecar.LoadedCurve{Curve: c.curve, ProbeRunning: c.running}
}

// What a probe does to the engine is no drift of it, is said, and is no trend.
func TestProbeRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &curveAndProbe{curve: pointedCurve()}
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		change := withCurve(source.curve, func() (curve.Identity, error) { return source.curve.Identity, nil })
		s := newSidecar(t, f, func(ec *engine.Config, sc *sidecar.Config) { change(ec, sc); sc.Curve = source })
		said := func() bool {
			c := s.Snapshot().Replicas[0].Curve
			return slices.Contains(c.Load.Reasons, sidecar.ReasonProbeRunning)
		}
		// first tells that it is the first thing that is said, and said once.
		first := func() bool {
			isProbe := func(reason string) bool { return strings.Contains(reason, "probe") }
			reasons := s.Snapshot().Replicas[0].Reasons
			return slices.IndexFunc(reasons, isProbe) == 0 && !slices.ContainsFunc(reasons[1:], isProbe)
		}
		every(t, s, f, 12*time.Minute, 50)
		burn := s.Snapshot().Replicas[0].Burn.Fast
		if said() || burn != 0 {
			t.Fatalf("without a probe: said %v, burn %v", said(), burn)
		}
		source.running = true
		every(t, s, f, 40*time.Minute, 30)
		r := s.Snapshot().Replicas[0]
		if !said() || !r.Curve.ProbeRunning || !r.Curve.Valid {
			t.Errorf("said %v, running %v, valid %v: %q", said(), r.Curve.ProbeRunning, r.Curve.Valid, r.Curve.Reasons)
		}
		if !first() {
			t.Errorf("the reasons do not begin with the probe: %q", r.Reasons)
		}
		near(t, "correction factor", r.Curve.CorrectionFactor, 1)
		near(t, "latency against the curve, which is shown", r.Curve.ITLRatio, 50.0/30)
		within(t, "load ratio by the curve", r.LoadRatios[capacity.Curve], 0.49, 0.55)
		near(t, "burn", r.Burn.Fast, nan)
		if len(r.Curve.Stale) > 0 {
			t.Errorf("stale %q", r.Curve.Stale)
		}
		// Its last load is in the readings of the minute after its end.
		source.running = false
		every(t, s, f, 50*time.Second, 50)
		if !said() || s.Snapshot().Replicas[0].Curve.ProbeRunning {
			t.Error("its load is not told any more while it is in the readings")
		}
		every(t, s, f, 30*time.Second, 50)
		r = s.Snapshot().Replicas[0]
		if said() || first() {
			t.Error("it is told of when nothing of it is left")
		}
		// It is also said where the curve does not count at all.
		source.running, f.down = true, true
		run(s, 6, nil)
		if r := s.Snapshot().Replicas[0]; r.Curve.Valid || !first() {
			t.Errorf("of an engine that is down the reasons are %q", r.Reasons)
		}
		f.down, source.running = false, false
		every(t, s, f, 2*time.Minute, 50)
		r = s.Snapshot().Replicas[0]
		near(t, "correction factor afterwards", r.Curve.CorrectionFactor, 1)
	})
}

// The mix that a probe makes is not the users': after a restart theirs stands in.
func TestMixOfAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &curveAndProbe{curve: smallCurve()}
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		change := withCurve(source.curve, func() (curve.Identity, error) { return source.curve.Identity, nil })
		s := newSidecar(t, f, func(ec *engine.Config, sc *sidecar.Config) { change(ec, sc); sc.Curve = source })
		source.running = true
		every(t, s, f, 5*time.Minute, 50)
		if !s.Snapshot().Replicas[0].Curve.Valid {
			t.Fatal("the curve does not count")
		}
		source.running, f.down = false, true
		run(s, 70, nil)
		f.down, f.ranks[0] = false, fakeRank{running: 4, kvUsage: 0.36}
		run(s, 5, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		if c := s.Snapshot().Replicas[0].Curve; c.Valid || c.Load.Mix.Source == capacity.MixLast {
			t.Errorf("valid %v by the mix %s", c.Valid, c.Load.Mix.Source)
		}
	})
}

// With fewer tokens a step than when the curve was measured the load is larger,
// and what is not known on one side changes nothing.
func TestTokensPerStep(t *testing.T) {
	for _, test := range []struct {
		name string
		// curve has so many tokens a step, 0 is without drafts; each second 50 drafts give so many tokens.
		curve, accepted, drafts float64
		perStep, load           float64
		reason                  bool
	}{
		{"as measured", 3, 100, 50, 3, 0.5, false},
		{"half as many", 3, 25, 50, 1.5, 1, false},
		{"none of a draft is accepted", 2, 0, 50, 1, 1, false},
		{"more than measured", 2, 150, 50, 4, 0.5, false}, // which does not count while the share of decode is not known
		{"neither side drafts", 0, 0, 0, nan, 0.5, false},
		{"only this engine drafts", 0, 100, 50, 3, 0.5, false},
		{"only the curve's drafted", 3, 0, 0, nan, 0.5, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := smallCurve()
				c.Classes[0].SpeculativeTokensPerStep = test.curve
				f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
				s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
				run(s, 90, func(int) {
					f.ranks[0].second(2, 100, 50, 50)
					f.ranks[0].drafts += test.drafts
					f.ranks[0].accepted += test.accepted
				})
				r := s.Snapshot().Replicas[0]
				near(t, "tokens a step", r.TokensPerStep, test.perStep)
				within(t, "load ratio by the curve", r.LoadRatios[capacity.Curve], 0.99*test.load, 1.1*test.load)
				if slices.Contains(r.Curve.Load.Reasons, sidecar.ReasonAcceptanceUnknown) != test.reason || !r.Curve.Valid {
					t.Errorf("valid %v, reasons %q", r.Curve.Valid, r.Curve.Load.Reasons)
				}
			})
		})
	}
}

// A curve that says it ended in the future has no age, and does not count; a
// minute is how far clocks may differ.
func TestCurveOfTheFuture(t *testing.T) {
	for _, test := range []struct {
		ahead time.Duration
		valid bool
	}{{time.Minute, true}, {time.Hour, false}} {
		synctest.Test(t, func(t *testing.T) {
			c := smallCurve()
			c.Finished = time.Now().Add(90*time.Second + test.ahead)
			f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
			s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
			run(s, 90, func(int) { f.ranks[0].second(2, 100, 50, 50) })
			r := s.Snapshot().Replicas[0]
			if r.Curve.Age != 0 || r.Curve.Valid != test.valid {
				t.Errorf("%s ahead: age %s, valid %v", test.ahead, r.Curve.Age, r.Curve.Valid)
			}
			if !test.valid {
				mustRest(t, r, sidecar.ReasonFuture)
			}
		})
	}
}

// Ranks that share unevenly: each is judged by its half of the knee of both.
func TestUnevenRanks(t *testing.T) {
	for _, test := range []struct {
		name string
		// measured and live are over how many ranks, 0 is not known.
		measured, live, ranks int
		// load of each rank, nil when the curve does not count because of reason.
		load   []float64
		reason string
	}{
		{"two of two", 2, 2, 2, []float64{1, 0.25 / 0.5}, ""},
		{"two, measured on one", 1, 2, 2, nil, "identity_data_parallel"},
		{"two, measured on nobody knows how many", 0, 2, 2, nil, sidecar.ReasonRanksUnknown},
		{"one, measured on two", 2, 0, 1, nil, sidecar.ReasonRanksUnknown},
		// A rank with a server of its own, as it was measured.
		{"one of two", 2, 2, 1, []float64{0.5}, ""},
		{"one of one", 0, 0, 1, []float64{0.5}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := smallCurve()
				c.Identity.DataParallel = test.measured
				live := c.Identity
				live.DataParallel = test.live
				f := &fakeEngine{}
				for range test.ranks {
					f.ranks = append(f.ranks, fakeRank{running: 2, kvUsage: 0.18})
				}
				s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return live, nil }))
				// 2 and 1 requests a second; the curve's engine takes 4.
				run(s, 90, func(int) {
					for i := range f.ranks {
						f.ranks[i].second(2/float64(1+i), 100, 50, 50)
					}
				})
				replicas := s.Snapshot().Replicas
				if len(replicas) != test.ranks {
					t.Fatalf("%d ranks", len(replicas))
				}
				for i, r := range replicas {
					if test.reason != "" {
						mustRest(t, r, test.reason)
						continue
					}
					if !r.Curve.Valid {
						t.Fatalf("rank %d: %q", i, r.Curve.Reasons)
					}
					within(t, "load ratio of rank "+r.Engine, r.LoadRatios[capacity.Curve], 0.99*test.load[i], 1.12*test.load[i])
					left := 4/float64(test.ranks) - 2/float64(1+i)
					within(t, "requests left on rank "+r.Engine, r.Left.RequestsPerSecond, left-0.3, left+0.01)
				}
			})
		})
	}
}
