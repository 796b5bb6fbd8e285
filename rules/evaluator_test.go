package rules

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// running starts an evaluator; the returned function ends it and waits. In a
// synctest bubble that is also the proof that no goroutine is left over.
func running(t *testing.T, c Config) (*Evaluator, func()) {
	t.Helper()
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- e.Run(ctx) }()
	return e, func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := e.Append(time.Now(), []Sample{constant("a", 1)}); err == nil {
			t.Error("samples were taken after Close")
		}
	}
}

// feedFor appends what samples returns, once a second.
func feedFor(t *testing.T, e *Evaluator, seconds int, samples func(second int) []Sample) {
	t.Helper()
	for i := range seconds {
		if err := e.Append(time.Now(), samples(i)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
	synctest.Wait()
}

func TestRunRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, t.TempDir(), "user.yml", group(
			rule("user_mean", "avg_over_time(headroom_ratio[10s])")+
				rule("user_requests_total", "headroom_engine_requests_finished_total")+
				rule("user_nothing", "0 / (headroom_ratio * 0)")))
		e, stop := running(t, Config{Files: []string{path}})
		defer stop()
		feedFor(t, e, 30, func(i int) []Sample {
			return []Sample{rank0("headroom_ratio", 0.25), rank0("headroom_engine_requests_finished_total", float64(i)), rank0("not_selected", 1)}
		})
		want := map[string]float64{
			`user_mean{engine="0",model_name="m"}`:           0.25,
			`user_requests_total{engine="0",model_name="m"}`: 29,
		}
		if diff := cmp.Diff(want, recorded(e)); diff != "" {
			t.Error(diff)
		}
		// Two inputs and three outputs.
		if got := e.store.status().series; got != 5 {
			t.Errorf("%v series in the store, want 5", got)
		}
		if err := testutil.CollectAndCompare(e, strings.NewReader(`
# HELP headroom_exporter_store_series Series in the window that rules are evaluated on.
# TYPE headroom_exporter_store_series gauge
headroom_exporter_store_series 5
# HELP headroom_exporter_rules_failing Rules whose newest evaluation failed.
# TYPE headroom_exporter_rules_failing gauge
headroom_exporter_rules_failing 0
# HELP headroom_exporter_rules_last_reload_successful 1 when the newest attempt to load the rule files put them in force, 0 when a bad file keeps the ones before in force.
# TYPE headroom_exporter_rules_last_reload_successful gauge
headroom_exporter_rules_last_reload_successful 1
# HELP user_mean Recorded by group g of rule file `+path+`.
# TYPE user_mean gauge
user_mean{engine="0",model_name="m"} 0.25
# HELP user_requests_total Recorded by group g of rule file `+path+`.
# TYPE user_requests_total counter
user_requests_total{engine="0",model_name="m"} 29
`), "headroom_exporter_store_series", "headroom_exporter_rules_failing", "headroom_exporter_rules_last_reload_successful", "user_mean", "user_requests_total", "headroom_exporter_rules_storage_up", "headroom_exporter_store_bytes"); err != nil {
			t.Error(err)
		}
		if err := e.Run(context.Background()); err == nil {
			t.Error("a second Run gave no error")
		}
	})
}

// A series that is not there any more, or is not known, ends at once: well
// within the time for which an instant selector would still see it.
func TestVanishedSeriesEnd(t *testing.T) {
	for name, gone := range map[string][]Sample{
		"missing": nil,
		"NaN":     {rank0("headroom_ratio", math.NaN())},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := write(t, t.TempDir(), "user.yml", group(rule("user_ratio", "headroom_ratio")))
				e, stop := running(t, Config{Files: []string{path}})
				defer stop()
				feedFor(t, e, 5, func(int) []Sample { return []Sample{rank0("headroom_ratio", 0.5)} })
				if len(recorded(e)) != 1 {
					t.Fatalf("recorded %v", recorded(e))
				}
				feedFor(t, e, 2, func(int) []Sample { return gone })
				if got := recorded(e); len(got) != 0 {
					t.Errorf("still recorded: %v", got)
				}
				feedFor(t, e, 2, func(int) []Sample { return []Sample{rank0("headroom_ratio", 0.5)} })
				if len(recorded(e)) != 1 {
					t.Error("the series does not come back")
				}
			})
		})
	}
}

// When the live loop stands still, nobody ends the series; what was recorded
// must not outlive it by more than the look-back and three intervals.
func TestFeedStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, t.TempDir(), "user.yml", group(rule("user_ratio", "headroom_ratio")))
		e, stop := running(t, Config{Files: []string{path}})
		defer stop()
		feedFor(t, e, 5, func(int) []Sample { return []Sample{rank0("headroom_ratio", 0.5)} })
		time.Sleep(8 * time.Second)
		if got := recorded(e); len(got) != 0 {
			t.Errorf("still recorded: %v", got)
		}
	})
}

func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := write(t, dir, "user.yml", group(rule("one", "a")+rule("two", "b")))
		e, stop := running(t, Config{Files: []string{path}})
		defer stop()
		both := func(int) []Sample { return []Sample{constant("a", 1), constant("b", 2), constant("c", 3)} }
		feedFor(t, e, 5, both)
		want := map[string]float64{"one{}": 1, "two{}": 2}
		if diff := cmp.Diff(want, recorded(e)); diff != "" {
			t.Fatal(diff)
		}
		loaded := time.Now().Add(-5 * time.Second)

		write(t, dir, "user.yml", group(rule("one:bad", "a")))
		err := e.Reload()
		if err == nil || !strings.Contains(err.Error(), "colon") || !strings.Contains(err.Error(), path) {
			t.Fatalf("reloading a bad file: %v", err)
		}
		feedFor(t, e, 5, both)
		if diff := cmp.Diff(want, recorded(e)); diff != "" {
			t.Errorf("a bad file changed what is in force: %s", diff)
		}
		reloadStatus(t, e, 0, loaded)

		write(t, dir, "user.yml", group(rule("two", "b")+rule("three", "c")))
		if err := e.Reload(); err != nil {
			t.Fatal(err)
		}
		loaded = time.Now()
		feedFor(t, e, 5, both)
		if diff := cmp.Diff(map[string]float64{"two{}": 2, "three{}": 3}, recorded(e)); diff != "" {
			t.Error(diff)
		}
		reloadStatus(t, e, 1, loaded)

		// No group is left over.
		write(t, dir, "user.yml", "groups: []")
		if err := e.Reload(); err != nil {
			t.Fatal(err)
		}
		feedFor(t, e, 5, both)
		if got := recorded(e); len(got) != 0 {
			t.Errorf("still recorded: %v", got)
		}
		if n := testutil.CollectAndCount(e, "headroom_exporter_rule_group_last_duration_seconds"); n != 0 {
			t.Errorf("%d groups on /metrics, want none", n)
		}
	})
}

func reloadStatus(t *testing.T, e *Evaluator, ok float64, at time.Time) {
	t.Helper()
	got := map[string]float64{}
	for _, name := range []string{"headroom_exporter_rules_last_reload_successful", "headroom_exporter_rules_last_reload_success_timestamp_seconds"} {
		got[name] = exposed(t, e, name)
	}
	want := map[string]float64{
		"headroom_exporter_rules_last_reload_successful":                ok,
		"headroom_exporter_rules_last_reload_success_timestamp_seconds": seconds(at),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// exposed returns the value of a metric with one series; NaN without one.
func exposed(t testing.TB, e *Evaluator, name string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(e)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name && len(f.GetMetric()) == 1 {
			m := f.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return math.NaN()
}

// A rule that fails is counted, and costs no other rule.
func TestFailingRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, t.TempDir(), "user.yml", group(rule("bad", "a * on () b")+rule("good", "a")))
		e, stop := running(t, Config{Files: []string{path}})
		defer stop()
		feedFor(t, e, 10, func(int) []Sample {
			return []Sample{constant("a", 1), rank0("b", 1), {"b", rankNames, []string{"m", "1"}, 1}}
		})
		if diff := cmp.Diff(map[string]float64{"good{}": 1}, recorded(e)); diff != "" {
			t.Error(diff)
		}
		if got := exposed(t, e, "headroom_exporter_rule_evaluation_failures_total"); got < 8 || got > 10 {
			t.Errorf("%v failures in 10 s", got)
		}
		if got := exposed(t, e, "headroom_exporter_rules_failing"); got != 1 {
			t.Errorf("%v rules failing, want 1", got)
		}
	})
}

// A recorded series that /metrics cannot carry costs no other series.
func TestOutputs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := write(t, dir, "user.yml", group(
			rule("infinite", "a / 0")+
				rule("twice", "a")+rule("twice", "a")+
				rule("many", "n")))
		e, stop := running(t, Config{Files: []string{path}, MaxSeries: 10})
		defer stop()
		feedFor(t, e, 5, func(int) []Sample {
			samples := []Sample{constant("a", 1)}
			for i := range 12 {
				samples = append(samples, Sample{"n", []string{"i", "bad"}, []string{string(rune('a' + i)), "\xff"}, 1})
			}
			return samples
		})
		registry := prometheus.NewRegistry()
		registry.MustRegister(e)
		if _, err := registry.Gather(); err != nil {
			t.Error(err)
		}
		if got := recorded(e)["infinite{}"]; !math.IsInf(got, 1) {
			t.Errorf("infinite = %v", got)
		}
		// a and nine of the twelve were stored.
		if got := exposed(t, e, "headroom_exporter_store_dropped_series"); got != 3 {
			t.Errorf("%v series dropped, want 3", got)
		}
	})
}

// What the shipped rules say of a one-rank engine, and that it is clean and small.
func TestShippedRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := running(t, Config{Shipped: true})
		defer stop()
		feedFor(t, e, 100, engineSamples)
		got := recorded(e)
		for series, want := range map[string]float64{
			`headroom_mean_ratio{engine="0",model_name="m",window="5m"}`:                                                          0.125,
			`headroom_load_max_ratio{constraint="queue",engine="0",model_name="m",window="1m"}`:                                   0.875,
			`headroom_engine_time_to_first_token_percentile_lower_seconds{engine="0",model_name="m",percentile="99",window="5m"}`: 0.75,
			`headroom_engine_time_to_first_token_percentile_upper_seconds{engine="0",model_name="m",percentile="99",window="5m"}`: 1,
			`headroom_slo_good_ratio{engine="0",model_name="m",slo="ttft",threshold="0.5",window="5m"}`:                           0.9,
			`headroom_slo_threshold_is_bound{engine="0",model_name="m",slo="ttft"}`:                                               1,
			`headroom_engine_queue_growth_requests_per_second{engine="0",model_name="m",window="1m"}`:                             2,
			`headroom_gpu_energy_per_1000_generation_tokens_joules{window="5m"}`:                                                  250,
		} {
			if v, ok := got[series]; !ok || math.Abs(v-want) > 1e-9*math.Abs(want)+1e-12 {
				t.Errorf("%s = %v (%v), want %v", series, v, ok, want)
			}
		}
		if len(got) > 130 {
			t.Errorf("%d recorded series, want at most 130", len(got))
		}
		problems, err := testutil.CollectAndLint(e)
		if err != nil {
			t.Error(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		t.Logf("%d recorded series, %d on /metrics in all, %v in the store", len(got), testutil.CollectAndCount(e), e.store.status().series)
	})
}

// engineSamples is a one-rank engine at a second of its life: 10 requests per
// second, 9 of them within 0.5 s to the first token.
func engineSamples(second int) []Sample {
	n := float64(second)
	samples := []Sample{
		rank0("headroom_ratio", 0.125),
		rank0("headroom_engine_requests_waiting", 2*n),
		rank0("headroom_engine_sequence_slot_occupancy_ratio", 0.5),
		rank0("headroom_engine_token_slot_occupancy_ratio", 0.25),
		rank0("headroom_engine_preemptions_total", n),
		rank0("headroom_engine_generation_tokens_total", 1e6+2000*n),
		rank0("headroom_engine_prompt_tokens_computed_total", 1e6+6000*n),
		{"headroom_gpu_energy_joules_total", []string{"uuid"}, []string{"GPU-0"}, 1e6 + 500*n},
		constant("headroom_slo_ttft_seconds", 0.5),
		constant("headroom_slo_itl_seconds", 0.1),
		constant("headroom_slo_tpot_seconds", 0.1),
		constant("headroom_slo_e2e_seconds", 10),
		constant("headroom_slo_objective_ratio", 0.99),
		constant("headroom_watermark_ratio", 0.8),
	}
	for _, c := range []string{"sequence_slots", "token_slots", "token_budget", "queue"} {
		samples = append(samples, Sample{"headroom_load_ratio", append(rankNames[:2:2], "constraint"), []string{"m", "0", c}, 0.875})
	}
	for _, source := range []string{"gpm", "engine"} {
		samples = append(samples, Sample{"headroom_bandwidth_saturation_ratio", append(rankNames[:2:2], "source"), []string{"m", "0", source}, 0.75})
	}
	for name, perSecond := range map[string]float64{
		"time_to_first_token": 10, "inter_token_latency": 2000, "time_per_output_token": 10, "e2e_latency": 10,
	} {
		bounds := []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560, inf}
		counts := make([]float64, len(bounds))
		for i, b := range bounds {
			switch {
			case b >= 0.75:
				counts[i] = perSecond * n
			case b >= 0.25:
				counts[i] = 0.9 * perSecond * n
			}
		}
		// The tenth lies in (0.5, 0.75] or in (0.75, 1], turn by turn.
		counts[10] = math.Floor(0.95 * perSecond * n)
		samples = AppendHistogram(samples, "headroom_engine_"+name+"_seconds", rankNames, []string{"m", "0"}, bounds, counts, 0.5*perSecond*n, perSecond*n)
	}
	return samples
}

// A rule that records what is fed in would put a series on /metrics twice,
// which costs the whole page: it fails instead.
func TestRecordsWhatIsFed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, t.TempDir(), "user.yml", group(rule("a", "b")+rule("c", "b")))
		e, stop := running(t, Config{Files: []string{path}})
		defer stop()
		feedFor(t, e, 5, func(int) []Sample { return []Sample{constant("a", 1), constant("b", 2)} })
		if diff := cmp.Diff(map[string]float64{"c{}": 2}, recorded(e)); diff != "" {
			t.Error(diff)
		}
		if got := exposed(t, e, "headroom_exporter_rules_failing"); got != 1 {
			t.Errorf("%v rules failing, want 1", got)
		}
	})
}

// A user may record under a name that a shipped rule records too.
func TestSharedName(t *testing.T) {
	path := write(t, t.TempDir(), "user.yml", group(rule("headroom_mean_ratio", "headroom_ratio")))
	e := open(t, Config{Shipped: true, Files: []string{path}})
	if help := e.rules.Load().help["headroom_mean_ratio"]; !strings.HasPrefix(help, "Mean") {
		t.Errorf("help %q", help)
	}
}
