package sidecar_test

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
	"headroom_exporter/sidecar"
	"headroom_exporter/simulator"
)

// inProcess answers requests by a handler.
type inProcess struct{ http.Handler }

func (h inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

// simulated is the simulated engine of the demo and a sidecar beside it, in a
// bubble of virtual time.
type simulated struct {
	*sidecar.Sidecar
	engine *simulator.Engine
	curve  *curve.Curve
	ctx    context.Context
}

func newSimulated(t *testing.T, change func(*simulator.Config, *sidecar.Config)) *simulated {
	t.Helper()
	c, err := curve.ReadFile("../demo_curve.json")
	if err != nil {
		t.Fatal(err)
	}
	c.Finished = time.Now()
	config, err := simulator.Preset(simulator.Presets()[0])
	if err != nil {
		t.Fatal(err)
	}
	sc := sidecar.Config{
		EngineURL: "http://engine:8000", Interval: time.Second, Logger: slog.New(slog.DiscardHandler),
		SLO:   sidecar.SLO{TimeToFirstToken: 2500 * time.Millisecond, TokenLatency: 100 * time.Millisecond, Objective: 0.99},
		Curve: sidecar.FixedCurve{Curve: c},
		Identity: func(engine.Observation, gpu.Snapshot) (curve.Identity, error) {
			return c.Identity, nil
		},
	}
	if change != nil {
		change(&config, &sc)
	}
	metrics := simulator.NewMetrics(config)
	config.Observer = metrics.Observer
	e, err := simulator.NewEngine(config)
	if err != nil {
		t.Fatal(err)
	}
	poller, err := engine.New(engine.Config{
		URL: sc.EngineURL, Interval: time.Second, RoundTripper: inProcess{simulator.NewHandler(e, metrics)},
		MaxNumSeqs: config.MaxNumSeqs, MaxNumBatchedTokens: config.MaxNumBatchedTokens, ProcPath: t.TempDir(),
	}, sc.Logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(poller.Close)
	sc.Poller = poller
	s, err := sidecar.New(sc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = e.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return &simulated{Sidecar: s, engine: e, curve: c, ctx: ctx}
}

// load puts a constant rate of one kind of requests on the engine, until the returned function ends it.
func (s *simulated) load(t *testing.T, rate string, prompt, output float64) (end func()) {
	t.Helper()
	l, err := simulator.ParseLoad("constant:" + rate)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = l.Run(ctx, s.engine, simulator.LoadConfig{PromptMean: prompt, OutputMean: output, Seed: uint64(len(rate))})
	}()
	return func() { cancel(); <-ended }
}

// kneeOf is the knee of a class of the curve.
func (s *simulated) kneeOf(t *testing.T, class string) float64 {
	t.Helper()
	at := slices.IndexFunc(s.curve.Classes, func(c curve.Class) bool { return c.Name == class })
	study := s.curve.Classes[at].Study(curve.Arrivals{Process: "poisson"})
	return float64(study.Knee.Rate)
}

func within(t *testing.T, what string, got, low, high float64) {
	t.Helper()
	if !(got >= low && got <= high) {
		t.Errorf("%s = %.4g, want within %.4g to %.4g", what, got, low, high)
	}
}

// The live load of the demo's own traffic is its rate against the knee of its class.
func TestLoadByTheCurve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t, nil)
		defer s.load(t, "16", 512, 256)()
		run(s.Sidecar, 180, nil)
		r := s.Snapshot().Replicas[0]
		c := &r.Curve
		if !c.Valid {
			t.Fatalf("the curve does not count: %v", c.Reasons)
		}
		knee := s.kneeOf(t, "chat")
		within(t, "load ratio / (rate / knee)", r.LoadRatios[capacity.Curve]/(16/knee), 0.9, 1.15)
		within(t, "coverage", c.Load.Coverage, 0.95, 1)
		within(t, "requests left", r.Left.RequestsPerSecond, 0.8*(knee-16), 1.1*(knee-16))
		within(t, "correction factor", c.CorrectionFactor, 0.93, 1.07)
		if c.Load.Mix.Source != capacity.MixHistograms || r.Binding != capacity.Curve || r.Zone == capacity.ZoneUnknown {
			t.Errorf("mix by %s, %v binds, zone %v", c.Load.Mix.Source, r.Binding, r.Zone)
		}
		near(t, "headroom", r.HeadroomRatio, 1-r.LoadRatio)
		if r.LoadRatio < r.LoadRatios[capacity.Curve] {
			t.Errorf("load ratio %v is below that of the curve, %v", r.LoadRatio, r.LoadRatios[capacity.Curve])
		}
	})
}

// Two classes at once are told apart without a label on any request.
func TestLoadOfAMix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t, nil)
		defer s.load(t, "10", 512, 256)()
		defer s.load(t, "3", 3000, 128)()
		run(s.Sidecar, 240, nil)
		r := s.Snapshot().Replicas[0]
		if !r.Curve.Valid {
			t.Fatalf("the curve does not count: %v, coverage %v", r.Curve.Reasons, r.Curve.Load.Coverage)
		}
		want := map[string]float64{"chat": 10, "rag": 3, "write": 0}
		sum := 0.0
		for _, k := range r.Curve.Load.Classes {
			within(t, "rate of "+k.Name, k.Rate, 0.8*want[k.Name]-0.3, 1.2*want[k.Name]+0.3)
			sum += want[k.Name] / s.kneeOf(t, k.Name)
		}
		within(t, "load ratio / what the rates give", r.LoadRatios[capacity.Curve]/sum, 0.85, 1.15)
	})
}

// In a step to twice the load the ratio passes 1 within 5 s, while as many
// requests are served as before.
func TestOverloadStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t, nil)
		defer s.load(t, "20", 512, 256)()
		run(s.Sidecar, 180, nil)
		before := s.Snapshot().Replicas[0]
		within(t, "load ratio before", before.LoadRatios[capacity.Curve], 0.5, 0.95)
		// As much again: the load generator's second stream.
		defer s.load(t, "20.00", 512, 256)()
		passed := -1
		for second := range 6 {
			run(s.Sidecar, 1, nil)
			if r := s.Snapshot().Replicas[0]; passed < 0 && r.LoadRatios[capacity.Curve] > 1 && r.Curve.Valid {
				passed = second
				within(t, "served per second", r.Rates.ServedRequests, 0.9*before.Rates.ServedRequests, 1.25*before.Rates.ServedRequests)
			}
		}
		t.Logf("the load ratio was %.2f, and passed 1 after %d s", before.LoadRatios[capacity.Curve], passed)
		if passed < 0 || passed > 5 {
			t.Errorf("the load ratio passed 1 after %d s, want within 5", passed)
		}
	})
}

// Traffic that no class is like takes the number away within the window, and
// no comfortable one is shown in between.
func TestCoverageOfTheTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t, nil)
		end := s.load(t, "8", 512, 256)
		run(s.Sidecar, 120, nil)
		if r := s.Snapshot().Replicas[0]; !r.Curve.Valid {
			t.Fatalf("the curve does not count: %v", r.Curve.Reasons)
		}
		end()
		defer s.load(t, "1.5", 7000, 30)()
		invalidAt := -1
		for second := range 300 {
			run(s.Sidecar, 1, nil)
			if c := s.Snapshot().Replicas[0].Curve; invalidAt < 0 && !c.Valid {
				invalidAt = second
			}
		}
		r := s.Snapshot().Replicas[0]
		if invalidAt < 0 || r.Curve.Valid || !slices.Contains(r.Curve.Reasons, string(capacity.ReasonCoverageLow)) {
			t.Errorf("invalid after %d s, valid at the end: %v, reasons %v, coverage %v", invalidAt, r.Curve.Valid, r.Curve.Reasons, r.Curve.Load.Coverage)
		}
		if ratio := r.LoadRatios[capacity.Curve]; ratio <= 1 {
			t.Errorf("the load ratio by the curve is %v", ratio)
		}
	})
}

// One that is slowed until what it served well is too much for it is full, with a
// queue: the factor still says by how much, though no open loop was measured there.
func TestDriftOfAFullEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t, func(_ *simulator.Config, c *sidecar.Config) {
			for i := range c.Curve.Current().Curve.Classes {
				study := &c.Curve.Current().Curve.Classes[i].Studies[0]
				study.Soak, study.Points = nil, slices.DeleteFunc(study.Points, func(p curve.Point) bool {
					return p.OfferedRate > 0.95*study.Knee.Rate
				})
			}
		})
		defer s.load(t, "31", 512, 256)()
		run(s.Sidecar, 300, nil)
		within(t, "correction factor before", s.Snapshot().Replicas[0].Curve.CorrectionFactor, 0.95, 1.05)
		s.engine.Slow(1.4)
		run(s.Sidecar, 900, nil)
		r := s.Snapshot().Replicas[0]
		if !(r.RequestsWaiting > 10) {
			t.Fatalf("%v requests wait: the engine is not full", r.RequestsWaiting)
		}
		within(t, "correction factor", r.Curve.CorrectionFactor, 1.3, 1.5)
	})
}

// An engine that is slowed by a fifth reads 1.2 within 10 minutes, and the
// curve is stale half an hour later.
func TestDriftOfASlowedEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t, func(_ *simulator.Config, c *sidecar.Config) { c.ApplyCorrection = true })
		defer s.load(t, "18", 512, 256)()
		run(s.Sidecar, 300, nil)
		r := s.Snapshot().Replicas[0]
		within(t, "correction factor before", r.Curve.CorrectionFactor, 0.95, 1.05)
		if capacity.Drifting(r.Curve.CorrectionFactor) {
			t.Error("it drifts before it was slowed")
		}
		before := r.LoadRatios[capacity.Curve]
		s.engine.Slow(1.2)
		run(s.Sidecar, 600, nil)
		r = s.Snapshot().Replicas[0]
		t.Logf("correction factor %.3f", r.Curve.CorrectionFactor)
		within(t, "correction factor", r.Curve.CorrectionFactor, 1.15, 1.25)
		if !capacity.Drifting(r.Curve.CorrectionFactor) {
			t.Error("the drift does not show")
		}
		within(t, "load ratio / before", r.LoadRatios[capacity.Curve]/before, 1.1, 1.3)
		if slices.Contains(r.Curve.Stale, sidecar.StaleDrift) {
			t.Error("stale after 10 minutes")
		}
	})
}

// Several classes at once are no drift: of an engine that is as it was measured
// neither the time between tokens nor the rate of tokens comes near what makes
// its curve stale, though the curve has each class alone.
func TestMixIsNoDrift(t *testing.T) {
	type load struct {
		rate           string
		prompt, output float64
	}
	for _, test := range []struct {
		name  string
		loads []load
	}{
		{"two classes", []load{{"10", 512, 256}, {"3", 3000, 128}}},
		{"three classes", []load{{"5", 512, 256}, {"2", 3000, 128}, {"6", 100, 900}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// With as little KV cache, enough of it is in use to compare rates of tokens.
				s := newSimulated(t, func(e *simulator.Config, _ *sidecar.Config) { e.NumGPUBlocks /= 4 })
				for _, l := range test.loads {
					defer s.load(t, l.rate, l.prompt, l.output)()
				}
				run(s.Sidecar, 120, nil)
				c := s.Snapshot().Replicas[0].Curve
				t.Logf("latency between tokens %.3f, rate of tokens %.3f of what the curve says", c.ITLRatio, c.GenerationRatio)
				within(t, "correction factor", c.CorrectionFactor, 0.9, 1.1)
				if !math.IsNaN(c.GenerationRatio) {
					within(t, "rate of tokens", c.GenerationRatio, 1-0.75*capacity.GenerationRateTolerance, 1+0.75*capacity.GenerationRateTolerance)
				}
			})
		})
	}
}

// Two ranks share the load: each has its own ratio by the curve of both.
func TestLoadOfTwoRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t, func(e *simulator.Config, c *sidecar.Config) {
			e.Ranks = 2
			c.Identity = func(engine.Observation, gpu.Snapshot) (curve.Identity, error) {
				return curve.Identity{Model: e.ModelName, DataParallel: 2}, nil
			}
		})
		// As if it had been measured on two ranks together.
		s.curve.Identity.DataParallel = 2
		for i := range s.curve.Classes {
			for j := range s.curve.Classes[i].Studies {
				study := &s.curve.Classes[i].Studies[j]
				study.SafeRate *= 2
				if k := study.Knee; k != nil {
					k.Rate, k.Low, k.High, k.Watermark = 2*k.Rate, 2*k.Low, 2*k.High, 2*k.Watermark
				}
			}
		}
		defer s.load(t, "24", 512, 256)()
		run(s.Sidecar, 180, nil)
		replicas := s.Snapshot().Replicas
		if len(replicas) != 2 {
			t.Fatalf("%d replicas", len(replicas))
		}
		knee := s.kneeOf(t, "chat") // of both
		left := 0.0
		for _, r := range replicas {
			if !r.Curve.Valid {
				t.Fatalf("rank %s: the curve does not count: %v", r.Engine, r.Curve.Reasons)
			}
			within(t, "load ratio of rank "+r.Engine, r.LoadRatios[capacity.Curve]/(24/knee), 0.85, 1.2)
			within(t, "knee of rank "+r.Engine, r.Curve.Load.Knee, 0.85*knee/2, 1.15*knee/2)
			left += r.Left.RequestsPerSecond
		}
		within(t, "requests left on both", left, 0.7*(knee-24), 1.2*(knee-24))
	})
	// Measured on nobody knows how many.
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t, func(e *simulator.Config, _ *sidecar.Config) { e.Ranks = 2 })
		defer s.load(t, "24", 512, 256)()
		run(s.Sidecar, 90, nil)
		for _, r := range s.Snapshot().Replicas {
			if r.Curve.Valid || !slices.Contains(r.Curve.Reasons, sidecar.ReasonRanksUnknown) || !math.IsNaN(r.LoadRatios[capacity.Curve]) {
				t.Errorf("rank %s: %+v, ratio %v", r.Engine, r.Curve.Reasons, r.LoadRatios[capacity.Curve])
			}
		}
	})
}
