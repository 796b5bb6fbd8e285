package sidecar_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
	"headroom_exporter/sidecar"
)

// fakeEngine is an engine whose numbers the test sets; it answers in no time.
type fakeEngine struct {
	ranks []fakeRank
	// without removes lines that match from the page.
	without *regexp.Regexp
	// garbled, where it is set, is the family of this name, and garble makes
	// another value of the one of a series.
	garbled string
	garble  func(series, value string) string
	down    bool
}

type fakeRank struct {
	running, waiting, kvUsage                  float64
	preemptions, computed, generated, finished float64
	firstTokens, steps, readBytes              float64
	interTokenCount, interTokenSum             float64
	prefillCount, prefillSum                   float64
	drafts, accepted                           float64
}

func (f *fakeEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.down {
		return nil, errors.New("connection refused")
	}
	if r.URL.Path != "/metrics" {
		return &http.Response{StatusCode: http.StatusNotFound, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, nil
	}
	return &http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{"Content-Type": {"text/plain; version=1.0.0; charset=utf-8"}},
		Body:       io.NopCloser(strings.NewReader(f.page())),
		Request:    r,
	}, nil
}

func (f *fakeEngine) page() string {
	var b strings.Builder
	family := func(name, kind string, value func(fakeRank) float64) {
		fmt.Fprintf(&b, "# TYPE vllm:%s %s\n", name, kind)
		for i, r := range f.ranks {
			fmt.Fprintf(&b, "vllm:%s{engine=\"%d\",model_name=\"m\"} %v\n", name, i, value(r))
		}
	}
	histogram := func(name string, count, sum func(fakeRank) float64) {
		fmt.Fprintf(&b, "# TYPE vllm:%s histogram\n", name)
		for i, r := range f.ranks {
			labels := fmt.Sprintf("engine=\"%d\",model_name=\"m\"", i)
			fmt.Fprintf(&b, "vllm:%s_bucket{%s,le=\"+Inf\"} %v\n", name, labels, count(r))
			fmt.Fprintf(&b, "vllm:%s_count{%s} %v\nvllm:%s_sum{%s} %v\n", name, labels, count(r), name, labels, sum(r))
		}
	}
	family("num_requests_running", "gauge", func(r fakeRank) float64 { return r.running })
	family("num_requests_waiting", "gauge", func(r fakeRank) float64 { return r.waiting })
	family("kv_cache_usage_perc", "gauge", func(r fakeRank) float64 { return r.kvUsage })
	family("num_preemptions_total", "counter", func(r fakeRank) float64 { return r.preemptions })
	family("prompt_tokens_total", "counter", func(r fakeRank) float64 { return r.computed })
	family("generation_tokens_total", "counter", func(r fakeRank) float64 { return r.generated })
	if slices.ContainsFunc(f.ranks, func(r fakeRank) bool { return r.drafts > 0 }) {
		family("spec_decode_num_drafts_total", "counter", func(r fakeRank) float64 { return r.drafts })
		family("spec_decode_num_accepted_tokens_total", "counter", func(r fakeRank) float64 { return r.accepted })
	}
	family("estimated_read_bytes_per_gpu_total", "counter", func(r fakeRank) float64 { return r.readBytes })
	family("estimated_write_bytes_per_gpu_total", "counter", func(r fakeRank) float64 { return r.readBytes / 10 })
	fmt.Fprintf(&b, "# TYPE vllm:prompt_tokens_by_source_total counter\n")
	for i, r := range f.ranks {
		fmt.Fprintf(&b, "vllm:prompt_tokens_by_source_total{engine=\"%d\",model_name=\"m\",source=\"local_compute\"} %v\n", i, r.computed)
	}
	fmt.Fprintf(&b, "# TYPE vllm:request_success_total counter\n")
	for i, r := range f.ranks {
		fmt.Fprintf(&b, "vllm:request_success_total{engine=\"%d\",finished_reason=\"length\",model_name=\"m\"} %v\n", i, r.finished)
	}
	histogram("time_to_first_token_seconds", func(r fakeRank) float64 { return r.firstTokens }, func(r fakeRank) float64 { return r.firstTokens / 10 })
	histogram("inter_token_latency_seconds", func(r fakeRank) float64 { return r.interTokenCount }, func(r fakeRank) float64 { return r.interTokenSum })
	histogram("request_prefill_time_seconds", func(r fakeRank) float64 { return r.prefillCount }, func(r fakeRank) float64 { return r.prefillSum })
	histogram("iteration_tokens_total", func(r fakeRank) float64 { return r.steps }, func(r fakeRank) float64 { return r.generated })
	fmt.Fprintf(&b, "# TYPE vllm:cache_config_info gauge\n")
	for i := range f.ranks {
		fmt.Fprintf(&b, "vllm:cache_config_info{block_size=\"16\",engine=\"%d\",kv_cache_size_tokens=\"10000\",num_gpu_blocks=\"626\"} 1\n", i)
	}
	var kept []string
	for line := range strings.Lines(b.String()) {
		if name, rest, ok := strings.Cut(line, "{"); ok && f.garbled != "" && strings.HasPrefix(name, "vllm:"+f.garbled) {
			labels, value, _ := strings.Cut(rest, "} ")
			series := name + "{" + labels + "} "
			line = series + f.garble(series, strings.TrimSuffix(value, "\n")) + "\n"
		}
		if f.without == nil || !f.without.MatchString(line) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// second lets a rank work for one second at a steady rate.
func (r *fakeRank) second(requests, promptTokens, outputTokens, stepsPerSecond float64) {
	r.firstTokens += requests
	r.finished += requests
	r.computed += requests * promptTokens
	r.generated += requests * outputTokens
	r.steps += stepsPerSecond
	r.interTokenCount += requests * (outputTokens - 1)
	r.interTokenSum += requests * (outputTokens - 1) / stepsPerSecond
	r.prefillCount += requests
	r.prefillSum += requests * 0.1
	r.readBytes += 1e12
}

func newSidecar(t *testing.T, f *fakeEngine, change func(*engine.Config, *sidecar.Config)) *sidecar.Sidecar {
	t.Helper()
	ec := engine.Config{
		URL: "http://engine:8000", Interval: time.Second, RoundTripper: f,
		MaxNumSeqs: 8, MaxNumBatchedTokens: 2048, ProcPath: t.TempDir(),
	}
	sc := sidecar.Config{
		EngineURL: ec.URL, Interval: time.Second, SLO: sidecar.SLO{TimeToFirstToken: 2500 * time.Millisecond, Objective: 0.99},
		Model:  sidecar.Model{WeightBytes: 16e9, KVBytesPerToken: 1e5, GPUs: 2, PeakBandwidth: 2e12},
		Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&ec, &sc)
	}
	if sc.Poller == nil {
		poller, err := engine.New(ec, sc.Logger)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(poller.Close)
		sc.Poller = poller
	}
	s, err := sidecar.New(sc)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run steps the sidecar once a second of virtual time, calling before each step.
func run(s *sidecar.Sidecar, seconds int, before func(second int)) {
	for i := range seconds {
		if before != nil {
			before(i)
		}
		s.Step(context.Background())
		time.Sleep(time.Second)
	}
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.IsNaN(want) != math.IsNaN(got) || math.Abs(got-want) > 1e-6*math.Max(1, math.Abs(want)) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

var nan = math.NaN()

func TestSteadyLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		s := newSidecar(t, f, nil)
		run(s, 90, func(int) { f.ranks[0].second(2, 100, 50, 50) })

		r := s.Snapshot().Replicas[0]
		near(t, "offered", r.Rates.OfferedRequests, 2)
		near(t, "served", r.Rates.ServedRequests, 2)
		near(t, "computed prompt tokens", r.Rates.ComputedPromptTokens, 200)
		near(t, "generation tokens", r.Rates.GenerationTokens, 100)
		near(t, "steps", r.Rates.Steps, 50)
		near(t, "inter-token latency", r.Latencies.InterTokenLatency, 0.02)
		near(t, "prefill time", r.Latencies.PrefillTime, 0.1)
		near(t, "sequence slots used", r.SequenceSlots.Used, 4)
		near(t, "sequence slot occupancy", r.SequenceSlots.Ratio, 0.5)
		near(t, "token slots used", r.TokenSlots.Used, 3600)
		near(t, "token slots", r.TokenSlots.Total, 10000)
		near(t, "token slot occupancy", r.TokenSlots.Ratio, 0.36)
		near(t, "rho sequence slots", r.LoadRatios[capacity.SequenceSlots], 0.5)
		near(t, "rho token slots", r.LoadRatios[capacity.TokenSlots], 0.4)
		near(t, "rho token budget", r.LoadRatios[capacity.TokenBudget], (200*0.02+4)/2048)
		near(t, "rho queue", r.LoadRatios[capacity.Queue], 0)
		near(t, "rho curve", r.LoadRatios[capacity.Curve], nan)
		near(t, "load ratio", r.LoadRatio, 0.5)
		near(t, "headroom", r.HeadroomRatio, 0.5)
		near(t, "requests left", r.Left.RequestsPerSecond, 2)
		near(t, "prompt tokens left", r.Left.PromptTokensPerSecond, 200)
		near(t, "generation tokens left", r.Left.GenerationTokensPerSecond, 100)
		near(t, "sequence slots left", r.Left.SequenceSlots, 4)
		near(t, "token slots left", r.Left.TokenSlots, 9000-3600)
		if r.Binding != capacity.SequenceSlots || r.Zone != capacity.ZoneStable || r.State != engine.StateOK {
			t.Errorf("binding %v, zone %v, state %v", r.Binding, r.Zone, r.State)
		}
		if len(r.Bandwidth) != 2 || r.Bandwidth[0].Source != "engine" || r.Bandwidth[1].Source != "model" {
			t.Fatalf("bandwidth = %+v, want the engine's estimate before the model", r.Bandwidth)
		}
		near(t, "bandwidth by the engine", r.Bandwidth[0].Ratio, 1.1e12/(capacity.AchievableBandwidth*2e12))
		near(t, "bandwidth by the model", r.Bandwidth[1].Ratio, 50*(16e9+3600*1e5)/2/(capacity.AchievableBandwidth*2e12))
		if r.Curve.Valid || !slices.Contains(r.Curve.Reasons, "no_curve") {
			t.Errorf("curve = %+v", r.Curve)
		}
	})
}

// A queue that grows by 3 a second while 2 a second are served: 5 are
// offered, and what waits needs waiting / 2 seconds.
func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 8, kvUsage: 0.3}}}
		s := newSidecar(t, f, nil)
		run(s, 70, func(int) {
			f.ranks[0].second(2, 100, 50, 50)
			f.ranks[0].waiting += 3
		})
		r := s.Snapshot().Replicas[0]
		near(t, "offered", r.Rates.OfferedRequests, 5)
		near(t, "served", r.Rates.ServedRequests, 2)
		near(t, "backlog", r.BacklogSeconds, 210.0/2)
		near(t, "rho queue", r.LoadRatios[capacity.Queue], 105/2.4)
		near(t, "requests left", r.Left.RequestsPerSecond, 2-5)
		near(t, "prompt tokens left", r.Left.PromptTokensPerSecond, (2-5)*100)
		near(t, "generation tokens left", r.Left.GenerationTokensPerSecond, (2-5)*50)
		if r.Binding != capacity.Queue || r.Zone != capacity.ZoneUnstable {
			t.Errorf("binding %v, zone %v", r.Binding, r.Zone)
		}
	})
}

// A queue that the overload left behind and that is served off, by a request per
// second: while it waits too long nothing is left, though the rates leave that one.
func TestNothingIsLeftWhileTheQueueIsTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 8, kvUsage: 0.3, waiting: 200}}}
		s := newSidecar(t, f, nil)
		run(s, 70, func(int) {
			f.ranks[0].second(3, 100, 50, 50)
			f.ranks[0].waiting--
		})
		r := s.Snapshot().Replicas[0]
		near(t, "offered", r.Rates.OfferedRequests, 2)
		if !(r.LoadRatio > 1) || r.Binding != capacity.Queue {
			t.Errorf("load ratio %v, binding %v", r.LoadRatio, r.Binding)
		}
		near(t, "requests left", r.Left.RequestsPerSecond, 0)
		near(t, "prompt tokens left", r.Left.PromptTokensPerSecond, 0)
		near(t, "generation tokens left", r.Left.GenerationTokensPerSecond, 0)
	})
}

// An engine that admits nothing: what waits has waited since the queue formed.
func TestBacklogOfAStalledEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 8, kvUsage: 0.3}}}
		s := newSidecar(t, f, nil)
		run(s, 10, func(int) { f.ranks[0].second(0, 0, 0, 50) })
		run(s, 21, func(int) { f.ranks[0].second(0, 0, 0, 50); f.ranks[0].waiting = 5 })
		near(t, "backlog", s.Snapshot().Replicas[0].BacklogSeconds, 20)
	})
}

func TestNoTrafficLeavesRatesUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{}}}
		s := newSidecar(t, f, nil)
		run(s, 10, nil)
		r := s.Snapshot().Replicas[0]
		near(t, "headroom", r.HeadroomRatio, 1)
		near(t, "requests left", r.Left.RequestsPerSecond, nan)
		near(t, "sequence slots left", r.Left.SequenceSlots, 8)
		if r.State != engine.StateIdle {
			t.Errorf("state = %v", r.State)
		}
	})
}

// A replica that has done all its work is empty at once: neither the mean of
// the KV cache nor the rates of the last minute make it look otherwise.
func TestEmptyAfterWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.81}}}
		s := newSidecar(t, f, nil)
		run(s, 90, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		near(t, "token slots while it works", s.Snapshot().Replicas[0].LoadRatios[capacity.TokenSlots], 0.9)
		f.ranks[0].running, f.ranks[0].kvUsage = 0, 0
		run(s, 2, nil)
		r := s.Snapshot().Replicas[0]
		near(t, "token slots when it is empty", r.LoadRatios[capacity.TokenSlots], 0)
		near(t, "requests left", r.Left.RequestsPerSecond, nan)
		near(t, "sequence slots left", r.Left.SequenceSlots, 8)
		if r.HeadroomRatio < 0.99 || r.Zone != capacity.ZoneStable {
			t.Errorf("headroom of an empty replica is %v, zone %v", r.HeadroomRatio, r.Zone)
		}
		run(s, 6, nil)
		r = s.Snapshot().Replicas[0]
		near(t, "token budget when nothing came for a while", r.LoadRatios[capacity.TokenBudget], 0)
		if r.Binding != capacity.NoConstraint {
			t.Errorf("%v binds an empty replica", r.Binding)
		}
	})
}

func TestEngineGoneAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		s := newSidecar(t, f, nil)
		run(s, 30, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		f.down = true
		run(s, 6, nil)
		r := s.Snapshot().Replicas[0]
		if r.ModelName != "m" || r.State != engine.StateDown {
			t.Errorf("replica %q is %v, want m down", r.ModelName, r.State)
		}
		mustBeUnknown(t, r)
		f.down = false
		f.ranks[0] = fakeRank{running: 2, kvUsage: 0.18}
		run(s, 2, func(int) { f.ranks[0].second(1, 100, 50, 50) })
		r = s.Snapshot().Replicas[0]
		near(t, "headroom after two polls", r.HeadroomRatio, 0.75)
		near(t, "offered after two polls", r.Rates.OfferedRequests, nan)
		if r.State != engine.StateOK {
			t.Errorf("state after two polls = %v", r.State)
		}
		run(s, 3, func(int) { f.ranks[0].second(1, 100, 50, 50) })
		near(t, "offered after five polls", s.Snapshot().Replicas[0].Rates.OfferedRequests, 1)
	})
}

// An engine that hung goes on counting: the requests that piled up in the
// meantime belong to all of that time, not to the second after it.
func TestEngineThatHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		s := newSidecar(t, f, nil)
		run(s, 30, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		f.down = true
		run(s, 20, nil)
		f.down = false
		f.ranks[0].waiting = 40
		run(s, 2, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		r := s.Snapshot().Replicas[0]
		// 31 s at 2 a second, and 40 requests in the 21 s around the gap.
		near(t, "offered", r.Rates.OfferedRequests, (29*2+2*2+40)/51.0)
	})
}

// A restart that no poll saw fail must not show as a burst or a negative rate.
func TestCounterReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		s := newSidecar(t, f, nil)
		run(s, 30, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		f.ranks[0] = fakeRank{running: 4, kvUsage: 0.36}
		run(s, 30, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		r := s.Snapshot().Replicas[0]
		if r.Rates.GenerationTokens < 90 || r.Rates.GenerationTokens > 101 {
			t.Errorf("generation tokens/s over a reset = %v, want about 100", r.Rates.GenerationTokens)
		}
		if s.Snapshot().Engine.Stats.CounterResets == 0 {
			t.Error("the reset was not counted")
		}
	})
}

func TestRanksAreKeptApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 2, kvUsage: 0.09}, {running: 8, waiting: 3, kvUsage: 0.81}}}
		s := newSidecar(t, f, nil)
		run(s, 10, func(int) { f.ranks[0].second(1, 10, 10, 50); f.ranks[1].second(4, 10, 10, 50) })
		rs := s.Snapshot().Replicas
		if len(rs) != 2 || rs[0].Engine != "0" || rs[1].Engine != "1" {
			t.Fatalf("replicas = %+v", rs)
		}
		near(t, "rank 0 slots", rs[0].LoadRatios[capacity.SequenceSlots], 0.25)
		near(t, "rank 1 slots", rs[1].LoadRatios[capacity.SequenceSlots], 1)
		near(t, "rank 0 offered", rs[0].Rates.OfferedRequests, 1)
		near(t, "rank 1 offered", rs[1].Rates.OfferedRequests, 4)
		near(t, "rank 1 backlog", rs[1].BacklogSeconds, 0.75)

		f.ranks = f.ranks[:1]
		run(s, 2, func(int) { f.ranks[0].second(1, 10, 10, 50) })
		if rs := s.Snapshot().Replicas; len(rs) != 1 {
			t.Errorf("a rank that is gone is still shown: %d replicas", len(rs))
		}
		if h := s.History("m", "1", time.Time{}); h != nil {
			t.Errorf("a rank that is gone still has %d points", len(h))
		}
	})
}

// mustBeUnknown fails when anything derived from a reading is a number.
func mustBeUnknown(t *testing.T, r sidecar.Replica) {
	t.Helper()
	for what, v := range map[string]float64{
		"headroom": r.HeadroomRatio, "load ratio": r.LoadRatio, "running": r.RequestsRunning,
		"sequence slots": r.SequenceSlots.Ratio, "token slots": r.TokenSlots.Ratio,
		"offered": r.Rates.OfferedRequests, "requests left": r.Left.RequestsPerSecond, "slots left": r.Left.SequenceSlots,
	} {
		if !math.IsNaN(v) {
			t.Errorf("%s = %v, want unknown", what, v)
		}
	}
	if v, _ := r.LoadRatios.Max(); !math.IsNaN(v) {
		t.Errorf("load ratios = %v, want unknown", r.LoadRatios)
	}
	if len(r.Bandwidth) != 0 || r.Binding != capacity.NoConstraint || r.Zone != capacity.ZoneUnknown {
		t.Errorf("bandwidth %v, binding %v, zone %v: want nothing known", r.Bandwidth, r.Binding, r.Zone)
	}
	if len(r.Reasons) == 0 {
		t.Error("nothing is known and no reason says why")
	}
}

func TestFrozenGaugesGiveNoHeadroom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.99}}}
		s := newSidecar(t, f, nil)
		run(s, 10, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		run(s, 20, nil)
		r := s.Snapshot().Replicas[0]
		if r.State != engine.StateStale {
			t.Fatalf("state = %v", r.State)
		}
		mustBeUnknown(t, r)
		run(s, 2, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		near(t, "sequence slots after recovery", s.Snapshot().Replicas[0].LoadRatios[capacity.SequenceSlots], 0.5)
	})
}

// Each input missing: what rests on it is unknown, and a reason says so.
func TestMissingInputsAreNeverNumbers(t *testing.T) {
	tests := []struct {
		name    string
		without string
		change  func(*engine.Config, *sidecar.Config)
		unknown []capacity.Constraint
		// headroom is whether headroom is still known.
		headroom bool
		reason   string
	}{
		{"waiting", `num_requests_waiting`, nil, []capacity.Constraint{capacity.Queue}, true, "queue unknown"},
		{"KV usage", `kv_cache_usage_perc`, nil, []capacity.Constraint{capacity.TokenSlots}, false, "KV cache usage unknown"},
		{"KV size", `cache_config_info`, nil, nil, true, "--engine.kv-tokens"},
		{"inter-token latency", `inter_token_latency`, nil, []capacity.Constraint{capacity.TokenBudget}, true, "token budget"},
		{"prompt tokens", `prompt_tokens`, nil, []capacity.Constraint{capacity.TokenBudget}, true, "token budget"},
		{"bandwidth", `estimated_`, func(_ *engine.Config, c *sidecar.Config) { c.Model = sidecar.Model{} }, nil, true, "memory bandwidth"},
		{"slots assumed", `$^`, func(c *engine.Config, _ *sidecar.Config) { c.MaxNumSeqs = 0 }, nil, true, "documented default"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeEngine{ranks: []fakeRank{{running: 4, waiting: 1, kvUsage: 0.36}}, without: regexp.MustCompile(test.without)}
				s := newSidecar(t, f, test.change)
				run(s, 10, func(int) { f.ranks[0].second(2, 100, 50, 50) })
				r := s.Snapshot().Replicas[0]
				for _, c := range []capacity.Constraint{capacity.SequenceSlots, capacity.TokenSlots, capacity.TokenBudget, capacity.Queue} {
					if got, want := math.IsNaN(r.LoadRatios[c]), slices.Contains(test.unknown, c); got != want {
						t.Errorf("%s = %v, unknown is %v", c, r.LoadRatios[c], want)
					}
				}
				if got := !math.IsNaN(r.HeadroomRatio); got != test.headroom {
					t.Errorf("headroom = %v, known should be %v", r.HeadroomRatio, test.headroom)
				}
				if !slices.ContainsFunc(r.Reasons, func(s string) bool { return strings.Contains(s, test.reason) }) {
					t.Errorf("no reason speaks of %q: %q", test.reason, r.Reasons)
				}
			})
		})
	}
}

// llama.cpp never tells its KV cache: its headroom rests on the rest, and says so.
func TestEngineThatNeverTellsItsKVCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 2\n" +
			"# TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred 0\n" +
			"# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total 5\n"
		s := newSidecar(t, nil, func(c *engine.Config, _ *sidecar.Config) {
			c.Type, c.RoundTripper = "llamacpp", onePage(page)
		})
		run(s, 2, nil)
		r := s.Snapshot().Replicas[0]
		near(t, "headroom", r.HeadroomRatio, 0.75)
		if !slices.ContainsFunc(r.Reasons, func(s string) bool { return strings.Contains(s, "never tells") }) {
			t.Errorf("no reason says that the KV cache is never told: %q", r.Reasons)
		}
	})
}

// onePage answers every request with the same metrics page.
type onePage string

func (p onePage) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/plain; version=0.0.4"}},
		Body: io.NopCloser(strings.NewReader(string(p))), Request: r,
	}, nil
}

func TestRatesNeedTwoReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 4, waiting: 2, kvUsage: 0.36, generated: 1e6, firstTokens: 1e4}}}
		s := newSidecar(t, f, nil)
		run(s, 1, nil)
		r := s.Snapshot().Replicas[0]
		near(t, "offered", r.Rates.OfferedRequests, nan)
		near(t, "generation tokens", r.Rates.GenerationTokens, nan)
		near(t, "headroom", r.HeadroomRatio, 0.5)
	})
}

func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		s := newSidecar(t, f, nil)
		run(s, 1000, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		h := s.History("m", "0", time.Time{})
		if len(h) != 901 {
			t.Errorf("history has %d points, want 15 minutes and one", len(h))
		}
		near(t, "load ratio", h[len(h)-1].LoadRatio, 0.5)
		if h := s.History("m", "0", time.Now().Add(-10*time.Second)); len(h) != 10 {
			t.Errorf("history of 10 s has %d points", len(h))
		}
		if h := s.History("m", "0", time.Now()); h != nil {
			t.Errorf("history of the future has %d points", len(h))
		}
		if h := s.History("x", "0", time.Time{}); h != nil {
			t.Errorf("history of an unknown replica has %d points", len(h))
		}
	})
}

type fakeGPU struct {
	snapshot gpu.Snapshot
	panics   bool
}

func (f *fakeGPU) Snapshot() gpu.Snapshot {
	if f.panics {
		panic("driver binding")
	}
	return f.snapshot
}

func TestGPU(t *testing.T) {
	reading := func(uuid string, bandwidth float64) gpu.Reading {
		r := gpu.NewReading()
		r.UUID, r.MemoryBandwidthRatio = uuid, bandwidth
		return r
	}
	up := gpu.Status{Up: true, Reason: gpu.OK}
	ambiguous := gpu.Status{Up: true, Reason: gpu.OK, SelectionAmbiguous: true}
	tests := []struct {
		name     string
		ranks    int
		snapshot gpu.Snapshot
		want     float64
	}{
		{"the busiest counts", 1, gpu.Snapshot{Status: up, Readings: []gpu.Reading{reading("a", nan), reading("b", 0.34), reading("c", 0.17)}}, 0.34 / capacity.AchievableBandwidth},
		{"none measured", 1, gpu.Snapshot{Status: up, Readings: []gpu.Reading{reading("a", nan)}}, nan},
		{"nobody knows which are ours", 1, gpu.Snapshot{Status: ambiguous, Readings: []gpu.Reading{reading("a", 0.34)}}, nan},
		{"nobody knows which rank's", 2, gpu.Snapshot{Status: up, Readings: []gpu.Reading{reading("a", 0.34)}}, nan},
		{"none read", 1, gpu.Snapshot{Status: gpu.Status{Reason: gpu.LibraryNotFound}}, nan},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeEngine{ranks: make([]fakeRank, test.ranks)}
				s := newSidecar(t, f, func(_ *engine.Config, c *sidecar.Config) {
					c.GPU = &fakeGPU{snapshot: test.snapshot}
					c.Model = sidecar.Model{}
				})
				run(s, 3, func(int) {
					for i := range f.ranks {
						f.ranks[i].running = 1
						f.ranks[i].second(1, 10, 10, 50)
					}
				})
				got := nan
				for _, b := range s.Snapshot().Replicas[0].Bandwidth {
					if b.Source != "gpm" {
						t.Fatalf("bandwidth = %+v", b)
					}
					got = b.Ratio
				}
				near(t, "saturation", got, test.want)
			})
		})
	}
}

// An estimate needs a peak to be held against: what is configured, else what
// the driver of the slowest GPU tells.
func TestPeakBandwidth(t *testing.T) {
	reading := func(uuid, parent string, peak float64) gpu.Reading {
		r := gpu.NewReading()
		r.UUID, r.ParentUUID, r.MemoryBandwidthPeak = uuid, parent, peak
		return r
	}
	up := gpu.Status{Up: true, Reason: gpu.OK}
	for _, test := range []struct {
		name       string
		configured float64
		snapshot   gpu.Snapshot
		peak       float64
	}{
		{"of the slowest", 0, gpu.Snapshot{Status: up, Readings: []gpu.Reading{reading("a", "", nan), reading("b", "", 4e12), reading("c", "", 2e12)}}, 2e12},
		{"configured", 3e12, gpu.Snapshot{Status: up, Readings: []gpu.Reading{reading("a", "", 2e12)}}, 3e12},
		{"a part of a GPU", 0, gpu.Snapshot{Status: up, Readings: []gpu.Reading{reading("a", "", 2e12), reading("m", "a", nan)}}, nan},
		{"nobody knows which are ours", 0, gpu.Snapshot{Status: gpu.Status{Up: true, Reason: gpu.OK, SelectionAmbiguous: true}, Readings: []gpu.Reading{reading("a", "", 2e12)}}, nan},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeEngine{ranks: make([]fakeRank, 1)}
				s := newSidecar(t, f, func(_ *engine.Config, c *sidecar.Config) {
					c.GPU = &fakeGPU{snapshot: test.snapshot}
					c.Model = sidecar.Model{WeightBytes: 10e9, KVBytesPerToken: 1, GPUs: 1, PeakBandwidth: test.configured}
				})
				run(s, 4, func(int) { f.ranks[0].running = 1; f.ranks[0].second(1, 10, 10, 50) })
				got := nan
				for _, b := range s.Snapshot().Replicas[0].Bandwidth {
					if b.Source == "model" {
						got = b.Ratio
					}
				}
				// 50 steps a second read the weights; the KV cache is empty.
				near(t, "saturation", got, 50*10e9/(test.peak*capacity.AchievableBandwidth))
			})
		})
	}
}

func TestPanicLeavesTheLastSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		g := &fakeGPU{}
		s := newSidecar(t, f, func(_ *engine.Config, c *sidecar.Config) { c.GPU = g })
		run(s, 2, nil)
		before := s.Snapshot()
		g.panics = true
		run(s, 3, nil)
		if s.Snapshot() != before {
			t.Error("a panic replaced the snapshot")
		}
		g.panics = false
		run(s, 1, nil)
		if got := s.Snapshot(); got == before || got.Panics != 3 {
			t.Errorf("panics %d after recovery", got.Panics)
		}
	})
}

func TestRunPollsOnceAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &slowPoller{takes: 700 * time.Millisecond}
		s := newSidecar(t, nil, func(_ *engine.Config, c *sidecar.Config) { c.Poller = p })
		ctx, cancel := context.WithTimeout(t.Context(), 9500*time.Millisecond)
		defer cancel()
		if err := s.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if p.polls != 10 {
			t.Errorf("%d polls in 10 s", p.polls)
		}
		if r := s.Snapshot().Replicas[0]; r.ModelName != "" || r.State != engine.StateDown {
			t.Errorf("before any reading: %+v", r)
		}
	})
}

type slowPoller struct {
	takes time.Duration
	polls int
}

func (p *slowPoller) Poll(context.Context) engine.Observation {
	p.polls++
	time.Sleep(p.takes)
	return engine.Observation{At: time.Now(), State: engine.StateDown, Reason: "connection_refused", Err: errors.New("refused")}
}

func TestConfig(t *testing.T) {
	good := sidecar.Config{Poller: &slowPoller{}, Interval: time.Second, SLO: sidecar.SLO{TimeToFirstToken: time.Second, Objective: 0.99}, Logger: slog.New(slog.DiscardHandler)}
	for field, change := range map[string]func(*sidecar.Config){
		"poller":     func(c *sidecar.Config) { c.Poller = nil },
		"interval":   func(c *sidecar.Config) { c.Interval = 0 },
		"SLO":        func(c *sidecar.Config) { c.SLO.TimeToFirstToken = -1 },
		"objective":  func(c *sidecar.Config) { c.SLO.Objective = 1 },
		"thresholds": func(c *sidecar.Config) { c.SLO.E2ELatency = -1 },
		"model":      func(c *sidecar.Config) { c.Model.GPUs = -1 },
	} {
		c := good
		change(&c)
		if _, err := sidecar.New(c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("bad %s: %v", field, err)
		}
	}
}
