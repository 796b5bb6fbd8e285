package web

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/sidecar"
)

var quiet = slog.New(slog.DiscardHandler)

func registryOf(t testing.TB, s *sidecar.Snapshot) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(newCollector(&fixedSource{snapshot: s}, quiet, new(atomic.Uint64))); err != nil {
		t.Fatal(err)
	}
	return r
}

// series gathers a snapshot's series as name{labels} -> value.
func series(t testing.TB, s *sidecar.Snapshot) map[string]float64 {
	t.Helper()
	families, err := registryOf(t, s).Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := f.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			found[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return found
}

func TestExposition(t *testing.T) {
	none := func(*sidecar.Snapshot) {}
	for name, change := range map[string]func(*sidecar.Snapshot){
		"loaded": withGPUs, "two_ranks": withRanks(rank("0"), rank("1")), "down": engineDown, "before_the_first": none,
		"curve": inForce, "curve_down": func(s *sidecar.Snapshot) { inForce(s); engineDown(s) },
	} {
		t.Run(name, func(t *testing.T) {
			// In a bubble time is exact, and so are ages.
			synctest.Test(t, func(t *testing.T) {
				s := build(change)
				s.Engine.LastReading = time.Now().Add(s.Engine.LastReading.Sub(s.At))
				s.At = time.Now()
				time.Sleep(500 * time.Millisecond)
				if name == "before_the_first" {
					s = nil
				}
				families, err := registryOf(t, s).Gather()
				if err != nil {
					t.Fatal(err)
				}
				var b bytes.Buffer
				for _, f := range families {
					if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
						t.Fatal(err)
					}
				}
				equalToFile(t, "testdata/"+name+".prom", b.String())
			})
		})
	}
}

func TestMetricsLint(t *testing.T) {
	problems, err := testutil.GatherAndLint(registryOf(t, build(withGPUs, withRanks(rank("0"), rank("1")), inForce)))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	// promlint does not look at these.
	for _, g := range groups {
		for _, f := range g.families {
			if !strings.HasPrefix(f.name, "headroom_") {
				t.Errorf("%s lacks the namespace", f.name)
			}
			for _, l := range f.labels {
				if slices.Contains([]string{"job", "instance", "pod", "namespace", "node", "type", "region", "zone", "cluster", "service", "stage", "env"}, l) {
					t.Errorf("%s: the label %s belongs to the scrape", f.name, l)
				}
			}
		}
	}
}

// A one-rank engine without a GPU, with every signal and every failure there
// is, a curve of as many classes as are published, and the Go and process
// metrics beside it.
func TestSeriesBound(t *testing.T) {
	s := build(func(s *sidecar.Snapshot) {
		for i := range 30 {
			s.Engine.Available[fmt.Sprintf("signal_%d", i)] = true
		}
		for i := range 15 {
			s.Engine.Stats.Failures[fmt.Sprintf("reason_%d", i)] = 1
		}
		r := &s.Replicas[0]
		for c := range r.LoadRatios {
			r.LoadRatios[c] = 0.5
		}
		r.Bandwidth = append(r.Bandwidth, sidecar.BandwidthSaturation{Ratio: 0.6, Source: "gpm"})
	}, inForce, func(s *sidecar.Snapshot) {
		var classes []string
		for i := range maxClasses + 4 {
			classes = append(classes, fmt.Sprintf("class_%d", i))
		}
		c := measuredCurve(classes...)
		c.Stale = append(c.Stale, "driver_version", "power_limit_watts", "drift")
		c.Reasons = []string{"identity_kv_tokens", "coverage_low", "few_completions"}
		s.Replicas[0].Curve = c
		s.Replicas[0].Forecast.Horizons[1].LoadRatio = 0.8
	})
	r := registryOf(t, s)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), version.NewCollector("headroom_exporter"))
	n := 0
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if h := m.GetSummary(); h != nil {
				n += len(h.Quantile) + 2
				continue
			}
			n++
		}
	}
	t.Logf("%d series", n)
	if n > 300 {
		t.Errorf("%d series for a one-rank engine without a GPU, want at most 300", n)
	}
}

func TestOnlyKnownNumbersArePublished(t *testing.T) {
	fromReadings := []string{
		"headroom_ratio", "headroom_load_ratio", "headroom_binding_constraint", "headroom_requests_per_second", "headroom_sequence_slots", "headroom_token_slots",
		"headroom_worst_rank", "headroom_all_ranks", "headroom_bandwidth", "occupancy", "_per_second", "headroom_engine_requests_", "_mean_seconds", "backlog", "limit_info",
		"headroom_curve_coverage", "headroom_curve_knee", "headroom_curve_class", "headroom_curve_correction", "headroom_curve_latency", "headroom_curve_watermark",
		"headroom_curve_mix", "headroom_curve_arrival", "headroom_forecast", "headroom_burn", "headroom_bottleneck",
		"headroom_curve_generation", "headroom_rank_imbalance", "headroom_binding_rank", "speculative",
	}
	for _, state := range engine.States {
		t.Run(string(state), func(t *testing.T) {
			// The numbers of the last good reading are still there.
			got := series(t, build(inForce, func(s *sidecar.Snapshot) {
				s.Engine.State, s.Replicas[0].State = state, state
			}))
			if got[fmt.Sprintf("headroom_engine_state{state=%q}", state)] != 1 {
				t.Errorf("state %s is not said", state)
			}
			total := 0.0
			for _, other := range engine.States {
				total += got[fmt.Sprintf("headroom_engine_state{state=%q}", other)]
			}
			if total != 1 {
				t.Errorf("%v states hold at once", total)
			}
			for name := range got {
				derived := slices.ContainsFunc(fromReadings, func(part string) bool { return strings.Contains(name, part) })
				if derived && !state.Known() {
					t.Errorf("%s is published in state %s", name, state)
				}
			}
			if _, there := got[fmt.Sprintf("headroom_ratio{engine=\"0\",model_name=%q}", model)]; there != state.Known() {
				t.Errorf("headroom_ratio published: %v in state %s", there, state)
			}
		})
	}
	t.Run("all unknown in a good state", func(t *testing.T) {
		for name, v := range series(t, build(withRanks(unknownRank("0", engine.StateOK)))) {
			if slices.ContainsFunc(fromReadings, func(part string) bool { return strings.Contains(name, part) }) {
				t.Errorf("%s %v is published though nothing is known", name, v)
			}
		}
	})
}

func TestOverRanks(t *testing.T) {
	with := func(r sidecar.Replica, headroom, requests float64) sidecar.Replica {
		r.HeadroomRatio, r.Left.RequestsPerSecond = headroom, requests
		return r
	}
	stale := rank("1")
	stale.State = engine.StateStale
	other := with(rank("0"), 0.1, 1)
	other.ModelName = "other"
	for _, c := range []struct {
		name               string
		ranks              []sidecar.Replica
		worst, sum         float64
		hasWorst, hasTotal bool
	}{
		{"one", []sidecar.Replica{with(rank("0"), 0.4, 3)}, 0.4, 3, true, true},
		{"two", []sidecar.Replica{with(rank("0"), 0.4, 3), with(rank("1"), -0.2, -1)}, -0.2, 2, true, true},
		{"headroom of one unknown", []sidecar.Replica{with(rank("0"), 0.4, 3), with(rank("1"), nan, 1)}, 0, 4, false, true},
		{"rate of one unknown", []sidecar.Replica{with(rank("0"), 0.4, 3), with(rank("1"), 0.5, nan)}, 0.4, 0, true, false},
		{"one stale", []sidecar.Replica{with(rank("0"), 0.4, 3), stale}, 0.4, 0, true, false},
		{"all stale", []sidecar.Replica{stale}, 0, 0, false, false},
		{"before the first reading", []sidecar.Replica{{State: engine.StateOK, HeadroomRatio: nan}}, 0, 0, false, false},
		{"models apart", []sidecar.Replica{with(rank("0"), 0.4, 3), other}, 0.4, 3, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := series(t, build(withRanks(c.ranks...)))
			label := fmt.Sprintf("{model_name=%q}", model)
			if v, there := got["headroom_worst_rank_ratio"+label]; there != c.hasWorst || there && v != c.worst {
				t.Errorf("worst rank %v (%v), want %v (%v)", v, there, c.worst, c.hasWorst)
			}
			if v, there := got["headroom_all_ranks_requests_per_second"+label]; there != c.hasTotal || there && v != c.sum {
				t.Errorf("all ranks %v (%v), want %v (%v)", v, there, c.sum, c.hasTotal)
			}
		})
	}
}

// The ranks of a pod together: the mean by their traffic, which of them binds,
// and how uneven they are, in the metrics and in the JSON.
func TestUnevenRanks(t *testing.T) {
	with := func(name string, load, offered float64) sidecar.Replica {
		r := rank(name)
		r.LoadRatio, r.HeadroomRatio, r.Rates.OfferedRequests = load, 1-load, offered
		return r
	}
	stale := rank("2")
	stale.State = engine.StateStale
	for _, c := range []struct {
		name  string
		ranks []sidecar.Replica
		// load and imbalance are NaN when they are not there, binding is empty.
		load, imbalance float64
		binding         string
	}{
		{"even", []sidecar.Replica{with("0", 0.5, 4), with("1", 0.5, 4)}, 0.5, 1, "0"},
		{"uneven", []sidecar.Replica{with("0", 0.2, 1), with("1", 0.6, 3)}, 0.5, 1.5, "1"},
		{"all on one of four", []sidecar.Replica{with("0", 0, 0), with("1", 0, 0), with("2", 0.8, 8), with("3", 0, 0)}, 0.8, 4, "2"},
		{"none has any", []sidecar.Replica{with("0", 0, 0), with("1", 0, 0)}, 0, nan, "0"},
		{"over full", []sidecar.Replica{with("0", 1.5, 3), with("1", 0.5, 1)}, 1.25, 1.5, "0"},
		{"load of one unknown", []sidecar.Replica{with("0", 0.5, 4), with("1", nan, 4)}, nan, nan, ""},
		{"traffic of one unknown", []sidecar.Replica{with("0", 0.2, 4), with("1", 0.6, nan)}, nan, 1.5, "1"},
		{"one stale", []sidecar.Replica{with("0", 0.4, 4), with("1", 0.6, 4), stale}, nan, nan, "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := build(withRanks(c.ranks...))
			got := series(t, s)
			document := at(t, decode(t, s), "models.0").(map[string]any)
			value := func(name, key string, want float64) {
				t.Helper()
				v, there := got[fmt.Sprintf("%s{model_name=%q}", name, model)]
				if there == math.IsNaN(want) || there && math.Abs(v-want) > 1e-9 {
					t.Errorf("%s is %v (%v), want %v", name, v, there, want)
				}
				if v, there := document[key].(float64); there == math.IsNaN(want) || there && math.Abs(v-want) > 1e-9 {
					t.Errorf("%s is %v, want %v", key, document[key], want)
				}
			}
			value("headroom_all_ranks_load_ratio", "load_ratio", c.load)
			value("headroom_rank_imbalance_ratio", "imbalance_ratio", c.imbalance)
			for _, r := range c.ranks {
				v, there := got[fmt.Sprintf("headroom_binding_rank{engine=%q,model_name=%q}", r.Engine, model)]
				if there != (c.binding != "" && r.State.Known()) || there && v != truth(r.Engine == c.binding) {
					t.Errorf("rank %s binds: %v (%v), want that of %q", r.Engine, v, there, c.binding)
				}
			}
			if name, _ := document["binding_rank"].(string); name != c.binding || document["ranks"] != float64(len(c.ranks)) {
				t.Errorf("%v of %v ranks binds, want %q of %d", document["binding_rank"], document["ranks"], c.binding, len(c.ranks))
			}
		})
	}
	// Of one rank there is nothing to compare.
	for name := range series(t, build()) {
		if strings.HasPrefix(name, "headroom_binding_rank") || strings.HasPrefix(name, "headroom_rank_imbalance") || strings.HasPrefix(name, "headroom_all_ranks_load") {
			t.Errorf("%s of a single rank", name)
		}
	}
}

// A curve that says it was measured later than now has no age.
func TestAgeIsNeverNegative(t *testing.T) {
	future := func(s *sidecar.Snapshot) {
		c := &s.Replicas[0].Curve
		c.Valid, c.Reasons, c.Age = false, []string{sidecar.ReasonFuture}, 0
		c.Check = &curve.Check{Future: true}
	}
	s := build(inForce, future)
	for name, v := range series(t, s) {
		if strings.HasPrefix(name, "headroom_curve_age_seconds") {
			t.Errorf("%s %v", name, v)
		}
	}
	if age := at(t, decode(t, s), "replicas.0.curve.age_seconds"); age != nil {
		t.Errorf("age_seconds is %v", age)
	}
	if text := at(t, decode(t, s), "replicas.0.curve.notice.text").(string); !strings.Contains(text, "Why: it says that it was measured later than now") {
		t.Errorf("the notice says %q", text)
	}
}

func TestInvalidUTF8InALabel(t *testing.T) {
	got := series(t, build(func(s *sidecar.Snapshot) { s.Replicas[0].ModelName = "bad\xff" }))
	if _, there := got["headroom_ratio{engine=\"0\",model_name=\"bad\uFFFD\"}"]; !there {
		t.Error("a model name with bad bytes lost its series")
	}
}

func TestPanicWhileCollecting(t *testing.T) {
	c := newCollector(&fixedSource{snapshot: build()}, quiet, new(atomic.Uint64))
	at := slices.IndexFunc(c.families, func(f family) bool { return f.name == "headroom_ratio" })
	c.families[at].read = func(view, add) { panic("a bug") }
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		found[f.GetName()] = f.Metric[0].GetGauge().GetValue() + f.Metric[0].GetCounter().GetValue()
	}
	if _, there := found["headroom_ratio"]; there {
		t.Error("the family that panicked is there")
	}
	// One of the live loop, one here.
	if found["headroom_exporter_panics_total"] != 2 || found["headroom_engine_requests_running"] != 159 {
		t.Errorf("panics %v, running %v; want 2 and 159", found["headroom_exporter_panics_total"], found["headroom_engine_requests_running"])
	}
}

func TestBindingConstraintNames(t *testing.T) {
	for _, c := range capacity.Constraints() {
		got := series(t, build(func(s *sidecar.Snapshot) { s.Replicas[0].Binding = c }))
		for _, other := range capacity.Constraints() {
			name := fmt.Sprintf("headroom_binding_constraint{constraint=%q,engine=\"0\",model_name=%q}", other, model)
			if got[name] != truth(c == other) {
				t.Errorf("%s is %v while %s binds", name, got[name], c)
			}
		}
	}
}

func BenchmarkMetrics(b *testing.B) {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	h, err := New(Config{Source: &fixedSource{snapshot: build(withGPUs)}, Registry: r, Interval: time.Second, Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	for _, encoding := range []string{"identity", "gzip"} {
		b.Run(encoding, func(b *testing.B) {
			b.ReportAllocs()
			var took []time.Duration
			for b.Loop() {
				request := httptest.NewRequest("GET", "/metrics", nil)
				request.Header.Set("Accept-Encoding", encoding)
				start := time.Now()
				h.ServeHTTP(httptest.NewRecorder(), request)
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
