package importer

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

var update = flag.Bool("update", false, "write the golden files anew")

func slos(t testing.TB, texts ...string) []capacity.SLO {
	t.Helper()
	var all []capacity.SLO
	for _, text := range texts {
		s, err := capacity.ParseSLO(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// of are the paths of test data.
func of(t testing.TB, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no file is %s: %v", pattern, err)
	}
	return paths
}

// files are the real results, as testdata/ORIGIN.md says.
var files = map[Format]string{
	GuideLLM:      "guidellm/benchmarks.json",
	AIPerf:        "aiperf/rate-*/profile_export_aiperf.json",
	InferencePerf: "inference-perf/stage_*_lifecycle_metrics.json",
	VLLMBench:     "vllm-bench/rate-*.json",
}

func TestRealFilesMakeCurves(t *testing.T) {
	form, err := jsonschema.UnmarshalJSON(bytes.NewReader(curve.JSONSchema))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("curve.json", form); err != nil {
		t.Fatal(err)
	}
	schema := compiler.MustCompile("curve.json")
	for format, pattern := range files {
		t.Run(string(format), func(t *testing.T) {
			c, err := Import(of(t, pattern), Options{Class: "short", SLO: slos(t, "ttft:p99:1s", "tpot:p95:50ms"), PeakReserve: 0.2})
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := c.Encode(&got); err != nil {
				t.Fatal(err)
			}
			document, err := jsonschema.UnmarshalJSON(bytes.NewReader(got.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(document); err != nil {
				t.Errorf("it does not fit the schema: %v", err)
			}
			again, err := curve.Decode(bytes.NewReader(got.Bytes()))
			if err != nil {
				t.Fatalf("what was written is not read: %v", err)
			}
			if again.Source != curve.Imported || !again.Estimate || !strings.HasPrefix(again.ImportedFrom, string(format)) || again.Identity.Model != "tiny" {
				t.Errorf("source %s, estimate %v, from %q, model %q", again.Source, again.Estimate, again.ImportedFrom, again.Identity.Model)
			}
			for _, s := range again.Classes[0].Studies {
				if s.Status == curve.StatusOK {
					t.Error("an imported study is ok, which only a soak makes it")
				}
			}
			golden := filepath.Join("testdata", "golden", string(format)+".json")
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("the curve is not that of %s: read the difference after -update", golden)
			}
		})
	}
}

// The tools' own figures for the same run, out of their files.
func TestLatenciesAreTheToolsOwnInSeconds(t *testing.T) {
	number := func(path string, keys ...string) float64 {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var value any
		if err := json.Unmarshal(data, &value); err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			if list, ok := value.([]any); ok {
				value = list[0]
			}
			value = value.(map[string]any)[k]
		}
		return value.(float64)
	}
	sent := func(format Format, path string) *run {
		t.Helper()
		runs, err := readFile(path, format)
		if err != nil {
			t.Fatal(err)
		}
		for i := range runs[0].requests {
			runs[0].requests[i].due = math.NaN()
		}
		return &runs[0]
	}
	vllm, aiperf, guide, stage := "testdata/vllm-bench/rate-20.json", "testdata/aiperf/rate-10/profile_export_aiperf.json", "testdata/guidellm/benchmarks.json", "testdata/inference-perf/stage_2_lifecycle_metrics.json"
	v, a, g, p := sent(VLLMBench, vllm), sent(AIPerf, aiperf), sent(GuideLLM, guide), sent(InferencePerf, stage)
	for _, test := range []struct {
		name   string
		run    *run
		metric string
		q      func(curve.Quantiles) curve.Value
		want   float64
	}{
		{"vllm p99 TTFT", v, ttft, func(q curve.Quantiles) curve.Value { return q.P99 }, number(vllm, "p99_ttft_ms") / 1000},
		{"vllm p95 TPOT", v, tpot, func(q curve.Quantiles) curve.Value { return q.P95 }, number(vllm, "p95_tpot_ms") / 1000},
		{"vllm p99 ITL", v, icl, func(q curve.Quantiles) curve.Value { return q.P99 }, number(vllm, "p99_itl_ms") / 1000},
		{"vllm p90 E2E", v, e2e, func(q curve.Quantiles) curve.Value { return q.P90 }, number(vllm, "p90_e2el_ms") / 1000},
		{"aiperf p95 TTFT", a, ttft, func(q curve.Quantiles) curve.Value { return q.P95 }, number(aiperf, "time_to_first_token", "p95") / 1000},
		{"aiperf p95 ITL is TPOT", a, tpot, func(q curve.Quantiles) curve.Value { return q.P95 }, number(aiperf, "inter_token_latency", "p95") / 1000},
		{"aiperf mean E2E", a, e2e, func(q curve.Quantiles) curve.Value { return q.Mean }, number(aiperf, "request_latency", "avg") / 1000},
		{"guidellm mean TTFT", g, ttft, func(q curve.Quantiles) curve.Value { return q.Mean }, number(guide, "benchmarks", "metrics", "time_to_first_token_ms", "successful", "mean") / 1000},
		// All outputs have one length, so that weighting by tokens changes nothing.
		{"guidellm mean ITL is TPOT", g, tpot, func(q curve.Quantiles) curve.Value { return q.Mean }, number(guide, "benchmarks", "metrics", "inter_token_latency_ms", "successful", "mean") / 1000},
		{"inference-perf p99 TTFT", p, ttft, func(q curve.Quantiles) curve.Value { return q.P99 }, number(stage, "successes", "latency", "time_to_first_token", "p99")},
		{"inference-perf median E2E", p, e2e, func(q curve.Quantiles) curve.Value { return q.P50 }, number(stage, "successes", "latency", "request_latency", "median")},
	} {
		if got := float64(test.q(test.run.quantiles(test.metric))); !(math.Abs(got-test.want) <= 1e-3*test.want) {
			t.Errorf("%s: %g, want %g", test.name, got, test.want)
		}
	}
	// Some chunks held several tokens, so that the gaps are none between tokens.
	if _, err := v.tail(slos(t, "itl:p99:1s")[0]); err == nil || !strings.Contains(err.Error(), "tokens came in a chunk") || v.quantiles(itl).Mean.Known() {
		t.Errorf("ITL is taken over: %v", err)
	}
	// GuideLLM's TPOT includes the first token; ours does not.
	theirs := number(guide, "benchmarks", "metrics", "time_per_output_token_ms", "successful", "mean") / 1000
	if got := float64(g.quantiles(tpot).Mean); !(got < 0.8*theirs) {
		t.Errorf("TPOT %g is as large as GuideLLM's, %g, with the first token", got, theirs)
	}
}

// GuideLLM 0.8.1 sent 6.6/s where 4/s were asked for: the files' requests show it.
func TestRateIsTheOneThatWasSent(t *testing.T) {
	runs, err := readFile("testdata/guidellm/benchmarks.json", "")
	if err != nil {
		t.Fatal(err)
	}
	r := &runs[0]
	if r.configured != 4 || math.Abs(r.offered-6.64) > 0.01 {
		t.Errorf("configured %g, offered %g", r.configured, r.offered)
	}
	if !slices.ContainsFunc(r.notes, func(n string) bool { return strings.Contains(n, "4 requests/s were asked for, but 6.64 were sent") }) {
		t.Errorf("no note says so: %q", r.notes)
	}
}

// Without their records the summaries give nearly the same knee.
func TestSummariesAlone(t *testing.T) {
	bound := slos(t, "ttft_sent:p95:1s")
	for format, drop := range map[Format]func(map[string]any){
		AIPerf: func(map[string]any) {}, // profile_export.jsonl stays behind
		VLLMBench: func(d map[string]any) {
			for _, k := range []string{"input_lens", "output_lens", "ttfts", "itls", "start_times", "errors", "generated_texts"} {
				delete(d, k)
			}
		},
		GuideLLM: func(d map[string]any) {
			for _, b := range d["benchmarks"].([]any) {
				b.(map[string]any)["requests"] = map[string]any{"successful": []any{}, "errored": []any{}, "incomplete": []any{}}
			}
		},
	} {
		full, err := Import(of(t, files[format]), Options{Class: "c", SLO: bound})
		if err != nil {
			t.Fatal(err)
		}
		folder := t.TempDir()
		var paths []string
		for i, path := range of(t, files[format]) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var d map[string]any
			if err := json.Unmarshal(data, &d); err != nil {
				t.Fatal(err)
			}
			drop(d)
			if data, err = json.Marshal(d); err != nil {
				t.Fatal(err)
			}
			paths = append(paths, filepath.Join(folder, string(rune('a'+i))+".json"))
			if err := os.WriteFile(paths[i], data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		alone, err := Import(paths, Options{Class: "c", SLO: bound})
		if err != nil {
			t.Fatalf("%s: %v", format, err)
		}
		a, b := full.Classes[0].Studies[0], alone.Classes[0].Studies[0]
		for i := range a.Points {
			if x, y := a.Points[i].Gates[0].Value, b.Points[i].Gates[0].Value; !(math.Abs(float64(x/y)-1) < 0.05) {
				t.Errorf("%s: point %d: p95 %g by the records, %g by the summary", format, i, x, y)
			}
		}
		if a.Knee == nil || b.Knee == nil || b.Knee.BindingSLO != a.Knee.BindingSLO {
			t.Errorf("%s: knees %+v and %+v", format, a.Knee, b.Knee)
		}
		spike := slices.ContainsFunc(alone.Notes, func(n string) bool { return strings.Contains(n, "spikes") })
		if !spike {
			t.Errorf("%s: no note says that the lengths are a mean: %q", format, alone.Notes)
		}
	}
}

// The list that a sweep writes has no record of each request, and one rate more than once.
func TestSweepSummary(t *testing.T) {
	paths := append(of(t, "vllm-bench/sweep/summary.json"), "testdata/vllm-bench/rate-20.json")
	c, err := Import(paths, Options{Class: "c", SLO: slos(t, "ttft:p99:1s")})
	if err != nil {
		t.Fatal(err)
	}
	s := c.Classes[0].Studies[0]
	if len(s.Points) != 3 || s.Points[0].OfferedRate != 4 || s.Points[1].OfferedRate != 4 || s.Knee == nil || s.Knee.Low != 4 {
		t.Errorf("%d points, knee %+v", len(s.Points), s.Knee)
	}
	if got := s.Points[0].TTFT.P50; math.Abs(float64(got)-0.063115773) > 1e-6 {
		t.Errorf("median TTFT %g s, want the file's 63.115773 ms", got)
	}
}

func TestWhatTheKneeIsOf(t *testing.T) {
	paths := of(t, files[VLLMBench])
	for _, test := range []struct {
		name   string
		paths  []string
		slo    string
		status curve.Status
		reason string
	}{
		{"bracketed", paths, "ttft:p99:1s", curve.StatusEstimate, "not soaked"},
		{"above", paths, "ttft:p99:1h", curve.StatusNotReached, "held at the highest rate"},
		{"below", paths, "ttft:p99:1ms", curve.StatusNoSafeRate, "did not hold at the lowest rate"},
		{"one rate", paths[:1], "ttft:p50:1s", curve.StatusNotReached, "held at the highest rate"},
	} {
		c, err := Import(test.paths, Options{Class: "c", SLO: slos(t, test.slo)})
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		s := c.Classes[0].Studies[0]
		if s.Status != test.status || !strings.Contains(s.Reason, test.reason) || (s.Knee != nil) != (test.status == curve.StatusEstimate) {
			t.Errorf("%s: status %s, reason %q, knee %v", test.name, s.Status, s.Reason, s.Knee)
		}
	}
}

func TestClosedLoopShowsNoKnee(t *testing.T) {
	c, err := Import(append(of(t, files[VLLMBench]), "testdata/vllm-bench/concurrency-4.json"), Options{Class: "c", SLO: slos(t, "ttft:p99:1s")})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(c.Classes[0].Studies); n != 2 {
		t.Fatalf("%d studies, want the open loop's and the closed one's", n)
	}
	open, closed := c.Classes[0].Studies[0], c.Classes[0].Studies[1]
	if open.Knee == nil || len(open.Points) != 3 {
		t.Errorf("open loop: %d points, knee %v", len(open.Points), open.Knee)
	}
	if closed.Arrivals.Process != "closed_loop" || closed.Knee != nil || closed.Status != curve.StatusNotReached || closed.Points[0].Concurrency != 4 || closed.Points[0].OfferedRate.Known() || closed.Points[0].Passed != nil {
		t.Errorf("closed loop: %+v", closed)
	}
}

func TestFailuresAreOverEveryBound(t *testing.T) {
	// 200 requests, of which the first three failed: more than 1 %.
	text := strings.Replace(read(t, "testdata/vllm-bench/rate-10.json"), `"errors":["","",""`, `"errors":["reset","reset","reset"`, 1)
	path := filepath.Join(t.TempDir(), "failed.json")
	write(t, path, text)
	c, err := Import([]string{of(t, files[VLLMBench])[1], path}, Options{Class: "c", SLO: slos(t, "ttft:p99:1h", "tpot:p95:1h")})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Classes[0].Studies[0].Points {
		if p.Failures != 3 {
			continue
		}
		if *p.Gates[0].Passed || p.Gates[0].Violations != 3 || p.Gates[0].N != 200 || p.Gates[0].Detail != "3 of 200 requests failed" || !*p.Gates[1].Passed {
			t.Errorf("gates %+v", p.Gates)
		}
		return
	}
	t.Error("no point has the failures")
}

func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		write(t, path, text)
		return path
	}
	vllm := read(t, "testdata/vllm-bench/rate-4.json")
	guide := read(t, "testdata/guidellm/benchmarks.json")
	summary := strings.NewReplacer(`"ttfts"`, `"no_ttfts"`, `"p95_ttft_ms"`, `"p96_ttft_ms"`).Replace(vllm)
	ok := of(t, files[VLLMBench])
	for _, test := range []struct {
		name  string
		paths []string
		o     Options
		want  string
	}{
		{"none", nil, Options{}, "no result file is given"},
		{"no SLO", ok, Options{SLO: []capacity.SLO{}}, "no SLO is given"},
		{"absent", []string{"absent.json"}, Options{}, "absent.json: opening the result file: no such file"},
		{"empty", []string{file("empty.json", " \n")}, Options{}, "the file is empty"},
		{"text", []string{file("text.json", "hello\n")}, Options{}, "this is no JSON file"},
		{"other JSON", []string{file("other.json", `{"a": 1}`)}, Options{}, "this is no result of guidellm, aiperf, inference-perf, vllm-bench"},
		{"cut", []string{file("cut.json", vllm[:len(vllm)/2])}, Options{}, "the file ends in the middle"},
		{"cut report", []string{file("cut2.json", guide[:len(guide)-20])}, Options{}, "the file ends in the middle"},
		{"NaN", []string{file("nan.json", strings.Replace(vllm, `"mean_ttft_ms":`, `"mean_ttft_ms":NaN,"x":`, 1))}, Options{}, "NaN is no number"},
		{"Infinity", []string{file("inf.json", strings.Replace(vllm, `"burstiness":1.0`, `"burstiness":Infinity`, 1))}, Options{}, "Infinity is no number"},
		{"wrong type", []string{file("type.json", strings.Replace(vllm, `"duration":`, `"duration":"long","x":`, 1))}, Options{}, "duration is a string"},
		{"negative", []string{file("negative.json", strings.Replace(vllm, `"ttfts":[0.`, `"ttfts":[-0.`, 1))}, Options{}, "request 1 has a latency of -0.0"},
		{"other tool", ok[:1], Options{Format: AIPerf}, "this is a result of vllm-bench, not of aiperf as --from says"},
		{"two tools", []string{ok[0], "testdata/guidellm/benchmarks.json"}, Options{}, "import one tool's files at a time"},
		{"all failed", []string{file("failed.json", strings.NewReplacer(`"completed":80`, `"completed":0`, `"failed":0`, `"failed":80`, `"ttfts"`, `"no"`).Replace(vllm))}, Options{}, "none of 80 requests ended well"},
		{"no model", []string{file("model.json", strings.Replace(vllm, `"model_id":"tiny"`, `"model_id":""`, 1))}, Options{}, "give --identity model=NAME, and what else is known of the engine, such as revision"},
		{"two models", []string{ok[0], file("models.json", strings.Replace(vllm, `"model_id":"tiny"`, `"model_id":"big"`, 1))}, Options{}, `"big"`},
		{"two classes", []string{ok[0], file("long.json", strings.ReplaceAll(vllm, ",129", ",4096"))}, Options{}, "they are two classes"},
		{"ramp", []string{file("ramp.json", strings.Replace(vllm, `"burstiness":1.0`, `"burstiness":1.0,"ramp_up_strategy":"linear"`, 1))}, Options{}, "the rate was ramped up"},
		{"percentile", []string{file("p95.json", summary)}, Options{SLO: slos(t, "ttft:p95:1s")}, "let the tool write p95"},
		{"ITL of GuideLLM", of(t, files[GuideLLM]), Options{SLO: slos(t, "itl:p95:50ms")}, "give tpot:pP:BOUND"},
		{"TTFO", ok, Options{SLO: slos(t, "ttfo:p95:1s")}, "ttfo:p95:1s cannot be judged"},
		{"AIPerf's records", []string{"testdata/aiperf/rate-4/profile_export.jsonl"}, Options{}, "give the profile_export_aiperf.json"},
		{"inference-perf's records", []string{"testdata/inference-perf/per_request_lifecycle_metrics.json"}, Options{}, "give the stage_N_lifecycle_metrics.json"},
		{"inference-perf's summary", []string{"testdata/inference-perf/summary_lifecycle_metrics.json"}, Options{}, "it is the summary of all stages"},
		{"old GuideLLM", []string{file("old.json", strings.Replace(guide, `"version":2`, `"version":1`, 1))}, Options{}, "metadata.version is 1, want 2"},
	} {
		if test.o.SLO == nil {
			test.o.SLO = slos(t, "ttft:p99:1s")
		}
		test.o.Class = "c"
		_, err := Import(test.paths, test.o)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q in one line", test.name, err, test.want)
		}
	}
}

func TestIdentity(t *testing.T) {
	o := Options{Class: "c", SLO: slos(t, "ttft:p99:1s")}
	o.Identity.Model, o.Identity.MaxNumSeqs = "org/tiny-v2", 4
	c, err := Import(of(t, files[VLLMBench]), o)
	if err != nil {
		t.Fatal(err)
	}
	if c.Identity.Model != "org/tiny-v2" || !slices.Contains(c.Notes, `the files call the model "tiny"`) {
		t.Errorf("model %q, notes %q", c.Identity.Model, c.Notes)
	}
	unknown := c.Notes[len(c.Notes)-1]
	if !strings.Contains(unknown, "gpu_name") || strings.Contains(unknown, "max_num_seqs") || strings.Contains(unknown, "engine_version") {
		t.Errorf("unknown hard fields: %s", unknown)
	}
}
