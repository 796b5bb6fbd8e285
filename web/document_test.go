package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/sidecar"
)

func decode(t *testing.T, s *sidecar.Snapshot) map[string]any {
	t.Helper()
	var b bytes.Buffer
	if err := WriteJSON(&b, s); err != nil {
		t.Fatal(err)
	}
	var d map[string]any
	if err := json.Unmarshal(b.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// at walks to a value by its path.
func at(t *testing.T, d any, path string) any {
	t.Helper()
	for _, step := range strings.Split(path, ".") {
		switch of := d.(type) {
		case map[string]any:
			next, there := of[step]
			if !there {
				t.Fatalf("%s: there is no %s", path, step)
			}
			d = next
		case []any:
			d = of[int(step[0]-'0')]
		default:
			t.Fatalf("%s: %v has no %s", path, d, step)
		}
	}
	return d
}

// The fields that scripts rely on, with the values of a known snapshot.
func TestDocument(t *testing.T) {
	d := decode(t, build(withGPUs))
	for path, want := range map[string]any{
		"version": 1.0, "time": "2026-11-29T14:03:07.25Z",
		"engine.url": "http://127.0.0.1:8000", "engine.type": "vllm", "engine.version": "0.32.0", "engine.state": "ok", "engine.reason": nil, "engine.age_seconds": 0.25,
		"engine.missing_signals.0": "sequence_slots",
		"replicas.0.model_name":    model, "replicas.0.engine": "0", "replicas.0.engine_type": "vllm", "replicas.0.engine_version": "0.32.0", "replicas.0.state": "ok",
		"replicas.0.headroom_ratio": 0.378906, "replicas.0.binding_constraint": "sequence_slots", "replicas.0.zone": "stable",
		"replicas.0.summary":          "38 % headroom · at most 14.2 more requests/s of this mix · sequence slots bind",
		"replicas.0.load_ratio.curve": nil, "replicas.0.load_ratio.sequence_slots": 0.621094, "replicas.0.load_ratio.token_slots": 0.41, "replicas.0.load_ratio.token_budget": 0.25, "replicas.0.load_ratio.queue": 0.0, "replicas.0.load_ratio.lora": nil,
		"replicas.0.left.requests_per_second": 14.2, "replicas.0.left.prompt_tokens_per_second": 7270.4, "replicas.0.left.generation_tokens_per_second": 3635.2, "replicas.0.left.sequence_slots": 97.0, "replicas.0.left.token_slots": 223546.0,
		"replicas.0.occupancy.sequence_slots.used": 159.0, "replicas.0.occupancy.sequence_slots.total": 256.0, "replicas.0.occupancy.sequence_slots.ratio": 0.621094, "replicas.0.occupancy.sequence_slots.source": "default",
		"replicas.0.occupancy.token_slots.total": 420992.0, "replicas.0.occupancy.token_slots.source": "metric",
		"replicas.0.requests.running": 159.0, "replicas.0.requests.waiting": 0.0,
		"replicas.0.rates.offered_requests_per_second": 23.3, "replicas.0.rates.prompt_tokens_per_second": 11929.6, "replicas.0.rates.computed_prompt_tokens_per_second": 10810.5, "replicas.0.rates.generation_tokens_per_second": 5964.8,
		"replicas.0.bandwidth_saturation.ratio": 0.62, "replicas.0.bandwidth_saturation.source": "engine",
		"replicas.0.curve.valid": false, "replicas.0.curve.reasons.0": "no_curve", "replicas.0.curve.coverage_ratio": nil,
		"replicas.0.reasons.0": "capacity curve: none was given",
		"gpus.0.uuid":          "GPU-4f2b6c1e-8d0a-4b55-9c1f-0d2f6f3a7b10", "gpus.0.memory_size_bytes": 85520809984.0, "gpus.0.memory_bandwidth_peak_bytes_per_second": 3.35e12, "gpus.1.power_watts": nil,
		"gpu_error": nil,
	} {
		if diff := cmp.Diff(want, at(t, d, path)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

// What is said of a curve while it counts, and what is left of that when the
// engine is down or the traffic is not of its classes.
func TestDocumentOfACurve(t *testing.T) {
	uncovered := func(s *sidecar.Snapshot) {
		c := &s.Replicas[0].Curve
		c.Valid, c.Reasons = false, []string{"coverage_low"}
		c.Load.Ratio, c.Load.Coverage, c.Load.Valid = nan, 0.6, false
	}
	for _, test := range []struct {
		name   string
		change func(*sidecar.Snapshot)
		want   map[string]any
	}{
		{"in force", func(*sidecar.Snapshot) {}, map[string]any{
			"curve.valid": true, "curve.notice.title": "The capacity curve should be measured again: the headroom is as good as it still is.",
			"curve.notice.text": "Why: it is older than 30 days; engine_version was 0.31.0, is 0.32.0. It was measured 40 days ago.",
			"curve.slo.0":       "ttft:p99:2.5s", "curve.slo.1": "itl:p99:100ms", "curve.source": "measured", "curve.stale.0": "engine_version", "curve.load_ratio": 0.66, "curve.watermark_ratio": 0.78,
			"curve.knee_requests_per_second": 35.3, "curve.classes.1.name": "rag", "curve.classes.1.load_ratio": 0.33, "curve.mix_source": "histograms", "curve.coverage_ratio": 0.97,
			"curve.correction.factor": 1.04, "curve.differences.0.verdict": "soft", "bottleneck.kind": "decode",
			"forecast.state": "within", "forecast.time_to_knee_seconds": 780.0, "forecast.horizons.1.load_ratio": nil, "forecast.horizons.1.skill_ratio": -0.2,
			"burn.class": "ticket", "burn.windows.1.burn_ratio": 0.6, "burn.lead_source": "measured",
		}},
		{"in force, with what it does not take into account", func(s *sidecar.Snapshot) {
			r := &s.Replicas[0]
			r.TokensPerStep = 2.5
			r.Curve.TokensPerStep, r.Curve.ProbeRunning = 3, true
			r.Curve.Load.Reasons = []capacity.Reason{curve.ReasonResourcesUnknown, sidecar.ReasonProbeRunning}
		}, map[string]any{
			"curve.valid": true, "speculative_tokens_per_step": 2.5, "curve.speculative_tokens_per_step": 3.0, "curve.probe_running": true,
			"curve.correction.generation_rate_ratio": 0.98, "curve.mix_reasons.0": "resources_unknown", "curve.mix_reasons.1": "probe_running",
			"curve.picture.facts.0.note": "Measure it again: it is older than 30 days; engine_version was 0.31.0, is 0.32.0. " +
				"To be known: a probe measures the curve anew, and its requests count as traffic; what its classes use at their knees is not known, so their loads are added up.",
		}},
		{"down", engineDown, map[string]any{
			"curve.valid": false, "curve.load_ratio": nil, "curve.watermark_ratio": nil, "curve.knee_requests_per_second": nil, "curve.coverage_ratio": nil,
			"curve.offered_requests_per_second": nil, "curve.correction.factor": nil, "curve.mix_source": "none", "curve.source": "measured",
			"bottleneck": nil, "forecast": nil, "burn": nil,
		}},
		{"other traffic", uncovered, map[string]any{
			"curve.valid": false, "curve.reasons.0": "coverage_low", "curve.coverage_ratio": 0.6, "curve.load_ratio": nil, "curve.watermark_ratio": nil,
			"curve.knee_requests_per_second": nil, "forecast": nil, "burn": nil,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := decode(t, build(inForce, test.change))
			for path, want := range test.want {
				if diff := cmp.Diff(want, at(t, d, "replicas.0."+path)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", path, diff)
				}
			}
			if classes := at(t, d, "replicas.0.curve.classes").([]any); !strings.HasPrefix(test.name, "in force") && len(classes) > 0 {
				t.Errorf("classes of a load that is not known: %v", classes)
			}
		})
	}
}

// What the last good reading said is not said any more, and the document has the same shape.
func TestDocumentOfAnEngineThatIsDown(t *testing.T) {
	good, down := decode(t, build()), decode(t, build(engineDown))
	if at(t, down, "engine.state") != "down" || at(t, down, "engine.reason") != "connection_refused" || at(t, down, "engine.age_seconds") != 83.0 {
		t.Errorf("engine is %v", down["engine"])
	}
	stays := []string{"model_name", "engine", "engine_type", "engine_version", "state", "summary", "zone", "curve", "reasons"}
	var same func(path string, a, b any)
	same = func(path string, a, b any) {
		of, isObject := a.(map[string]any)
		if !isObject {
			if b != nil {
				t.Errorf("%s is %v, want null", path, b)
			}
			return
		}
		if b == nil {
			return
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(of)), slices.Sorted(maps.Keys(b.(map[string]any)))); diff != "" {
			t.Errorf("%s has other fields:\n%s", path, diff)
		}
		for name, v := range of {
			if path != "replica" || !slices.Contains(stays, name) {
				same(path+"."+name, v, b.(map[string]any)[name])
			}
		}
	}
	same("replica", at(t, good, "replicas.0"), at(t, down, "replicas.0"))
	if at(t, down, "replicas.0.zone") != "unknown" || at(t, down, "replicas.0.summary") != "Headroom is not known" {
		t.Errorf("replica is %v", at(t, down, "replicas.0"))
	}
}

// A good state in which nothing is known gives no number at all.
func TestUnknownIsNull(t *testing.T) {
	d := decode(t, build(withRanks(unknownRank("0", engine.StateOK))))
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch of := v.(type) {
		case map[string]any:
			for name, v := range of {
				walk(path+"."+name, v)
			}
		case float64:
			t.Errorf("%s is %v", path, of)
		}
	}
	walk("replica", at(t, d, "replicas.0"))
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		math.NaN(): "null", math.Inf(1): "null", math.Inf(-1): "null", 0: "0", 1: "1", -0.25: "-0.25", 0.123456789: "0.123457",
		1e-9: "1e-09", 99999.5: "99999.5", 100000.4: "100000", 3.35e12: "3350000000000", -123456789: "-123456789", 1e300: "1e+300",
	} {
		text, err := json.Marshal(number(v))
		if err != nil || string(text) != want {
			t.Errorf("%v is %s (%v), want %s", v, text, err, want)
		}
	}
	text, err := json.Marshal(column{1, math.NaN(), 0.5})
	if err != nil || string(text) != "[1,null,0.5]" {
		t.Errorf("a column is %s (%v)", text, err)
	}
}

func FuzzNumber(f *testing.F) {
	f.Add(0.1)
	f.Add(-1e21)
	f.Fuzz(func(t *testing.T, v float64) {
		text, err := json.Marshal(number(v))
		if err != nil {
			t.Fatal(err)
		}
		var back float64
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if string(text) != "null" && math.Abs(back-v) > math.Abs(v)*1e-5 {
			t.Errorf("%v became %s", v, text)
		}
	})
}

// full is a writer that takes nothing.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestWriteErrors(t *testing.T) {
	for name, write := range map[string]error{"JSON": WriteJSON(full{}, build()), "report": WriteText(full{}, build())} {
		if write == nil || !strings.Contains(write.Error(), "no space left") || !strings.Contains(write.Error(), name) {
			t.Errorf("%s: error %v, want what was being done and why it failed", name, write)
		}
	}
}

func TestWriteText(t *testing.T) {
	overfull := rank("0")
	overfull.HeadroomRatio, overfull.LoadRatio, overfull.Zone, overfull.Binding = -0.31, 1.31, capacity.ZoneUnstable, capacity.Queue
	overfull.LoadRatios[capacity.Queue] = 1.31
	overfull.Left.RequestsPerSecond = -7.4
	overfull.BacklogSeconds = math.Inf(1)
	for name, s := range map[string]*sidecar.Snapshot{
		"loaded": build(withGPUs), "down": build(engineDown), "overfull_and_unknown": build(withRanks(overfull, unknownRank("1", engine.StateOK))),
		"before_the_first": {At: moment, Engine: sidecar.EngineStatus{URL: "http://127.0.0.1:8000", State: engine.StateLoading}, Replicas: []sidecar.Replica{{State: engine.StateLoading}}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := WriteText(&b, s); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(b.String(), "NaN") || strings.Contains(b.String(), "Inf") {
				t.Errorf("the report has a number that is none:\n%s", b.String())
			}
			equalToFile(t, "testdata/"+name+".txt", b.String())
		})
	}
}

func TestSummary(t *testing.T) {
	for _, c := range []struct {
		change func(*sidecar.Replica)
		want   string
	}{
		{func(*sidecar.Replica) {}, "38 % headroom · at most 14.2 more requests/s of this mix · sequence slots bind"},
		{func(r *sidecar.Replica) { r.HeadroomRatio, r.Left.RequestsPerSecond = -0.12, -2.06 }, "12 % over full · 2.1 requests/s of this mix too many · sequence slots bind"},
		{func(r *sidecar.Replica) { r.Left.RequestsPerSecond = nan }, "38 % headroom · sequence slots bind"},
		{func(r *sidecar.Replica) { r.Left.RequestsPerSecond = math.Inf(1) }, "38 % headroom · sequence slots bind"},
		{func(r *sidecar.Replica) { r.HeadroomRatio = nan }, "Headroom is not known"},
		{func(r *sidecar.Replica) { r.State = engine.StateStale }, "Headroom is not known"},
		{func(r *sidecar.Replica) { r.HeadroomRatio = 1; r.Binding = capacity.NoConstraint }, "100 % headroom · at most 14.2 more requests/s of this mix"},
		{func(r *sidecar.Replica) { r.HeadroomRatio, r.Left.RequestsPerSecond = 0, 0 }, "0 % headroom · at most 0.0 more requests/s of this mix · sequence slots bind"},
		{func(r *sidecar.Replica) { r.HeadroomRatio = -0.001 }, "0 % headroom · at most 14.2 more requests/s of this mix · sequence slots bind"},
		{func(r *sidecar.Replica) {
			r.Curve.Valid = true
			r.Binding = capacity.Curve
			r.Left.RequestsPerSecond = 1234
		}, "38 % headroom · 1,234 more requests/s of this mix · the capacity curve binds"},
	} {
		r := rank("0")
		c.change(&r)
		if got := summarize(&r); got != c.want {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
	// The page finds the percentage in every summary of known headroom.
	split := regexp.MustCompile(`^.* % (headroom|over full)($| · )`)
	for _, h := range []float64{-7, -1, -0.006, -0.004, -1e-9, math.Copysign(0, -1), 0, 1e-9, 0.004, 0.5, 0.999, 1} {
		r := rank("0")
		r.HeadroomRatio = h
		if got := summarize(&r); !split.MatchString(got) || strings.Contains(got, "-0 %") {
			t.Errorf("headroom %v: %q", h, got)
		}
	}
	for _, c := range capacity.Constraints() {
		if bindingWords[c] == "" {
			t.Errorf("no words for %s", c)
		}
	}
}

func TestEveryStateHasWords(t *testing.T) {
	seen := map[string]engine.State{}
	for _, state := range engine.States {
		e := sidecar.EngineStatus{URL: "http://127.0.0.1:8000", State: state}
		words := describeState(&e, 83)
		if other, twice := seen[words.summary]; twice || words.summary == "" {
			t.Errorf("%s and %s are both described as %q", state, other, words.summary)
		}
		seen[words.summary] = state
		if (words.advice == "") != state.Known() {
			t.Errorf("%s: advice %q", state, words.advice)
		}
	}
	down := describeState(&sidecar.EngineStatus{State: engine.StateDown}, nan)
	if down.summary != "The engine does not answer; no good reading yet." {
		t.Errorf("down before the first reading: %q", down.summary)
	}
}

func TestQuantities(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{quantity(0), "0.0"}, {quantity(14.24), "14.2"}, {quantity(99.96), "100"}, {quantity(7270.4), "7,270"}, {quantity(-1234567), "-1,234,567"}, {quantity(nan), "unknown"},
		{grouped(999), "999"}, {grouped(1000), "1,000"}, {grouped(-0.2), "0"}, {grouped(math.Inf(1)), "unbounded"},
		{duration(0), "0 ms"}, {duration(0.0000421), "42 µs"}, {duration(0.0213), "21 ms"}, {duration(83), "83.0 s"}, {duration(754), "12m34s"}, {duration(math.Inf(1)), "unbounded"}, {duration(nan), "unknown"},
		{percent(0.379), "38 %"},
		{bar(0), ".........................|...."}, {bar(0.6), "###############..........|...."}, {bar(7), "#########################|####"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
	if d := time.Duration(0); seconds(d) != 0 {
		t.Error("no time is not 0 s")
	}
}
