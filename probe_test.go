package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headroom_exporter/simulator"
)

// simulatedEngine serves the simulated engine on loopback, ten times as fast as life.
func simulatedEngine(t *testing.T, around func(http.Handler) http.Handler) string {
	t.Helper()
	config, err := simulator.Preset(simulator.Presets()[0])
	if err != nil {
		t.Fatal(err)
	}
	metrics := simulator.NewMetrics(config)
	config.Observer, config.Speed = metrics.Observer, 10
	engine, err := simulator.NewEngine(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = engine.Run(ctx)
	}()
	server := httptest.NewServer(around(simulator.NewHandler(engine, metrics)))
	t.Cleanup(func() {
		server.Close()
		cancel()
		<-ended
	})
	return server.URL
}

func untouched(h http.Handler) http.Handler { return h }

// probed runs the probe command.
func probed(t *testing.T, args ...string) (status int, out, errOut string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	status = run(ctx, append([]string{"probe", "--gpu.nvml=off"}, args...), &stdout, &stderr)
	return status, stdout.String(), stderr.String()
}

// client_limited may come from a busy machine and is not what these tests are about.
func withoutClientLimited(text string) string {
	var kept []string
	for line := range strings.SplitSeq(text, "\n") {
		if !strings.Contains(line, "client_limited") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

func TestProbeCommand(t *testing.T) {
	url := simulatedEngine(t, untouched)
	dir := t.TempDir()
	records, summary, results := filepath.Join(dir, "r.jsonl"), filepath.Join(dir, "s.md"), filepath.Join(dir, "r.json")
	args := []string{
		"--engine.url=" + url, "--rate=20,40", "--requests=40", "--warmup=0s", "--class=a:prompt=64,output=8", "--class=b:prompt=32,output=4,chat",
		"--slo=ttft:p50:30s", "--seed=7", "--out.records=" + records, "--out.summary=" + summary, "--out.results=" + results,
	}
	_, out, errOut := probed(t, args...)
	for _, want := range []string{"20/s", "40/s", "class a", "class b", "ttft:p50:30s", "seed 7, content seed "} {
		if !strings.Contains(out, want) {
			t.Errorf("the report has no %q:\n%s%s", want, out, errOut)
		}
	}
	lines := strings.Split(strings.TrimSpace(read(t, records)), "\n")
	if len(lines) != 81 {
		t.Errorf("%d lines of records, want a header and 80", len(lines))
	}
	for i, line := range lines {
		var v struct {
			Header    int    `json:"headroom_records"`
			Outcome   string `json:"outcome"`
			Seed      uint64 `json:"seed"`
			Scheduled *float64
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("line %d: %v", i+1, err)
		}
		if i == 0 && (v.Header != 1 || v.Seed != 7) || i > 0 && v.Outcome != "ok" {
			t.Errorf("line %d: %s", i+1, line)
		}
	}
	if text := read(t, summary); !strings.Contains(text, "| 40/s |") || !strings.Contains(text, "Seed: 7") {
		t.Errorf("summary:\n%s", text)
	}
	var report struct {
		Results []struct {
			Groups []struct {
				Dimension string
				Attempts  int
			}
			Engine *struct{ Readings int }
		}
	}
	if err := json.Unmarshal([]byte(read(t, results)), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Results) != 2 || report.Results[0].Groups[0].Attempts != 40 || report.Results[0].Engine.Readings == 0 {
		t.Errorf("results %+v", report)
	}

	// The files are not overwritten without being told.
	status, _, errOut := probed(t, args...)
	if status != exitUsage || !strings.Contains(errOut, "--force") {
		t.Errorf("status %d: %s", status, errOut)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestProbeStatus: what must not be used is no success, and says why.
func TestProbeStatus(t *testing.T) {
	everySecond := func(h http.Handler) http.Handler {
		n := 0
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if body, _ := io.ReadAll(r.Body); strings.HasSuffix(r.URL.Path, "/completions") {
				if n++; n > 1 && n%2 == 0 {
					http.Error(w, `{"error":{"message":"overloaded"}}`, http.StatusServiceUnavailable)
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			h.ServeHTTP(w, r)
		})
	}
	good, bad := simulatedEngine(t, untouched), simulatedEngine(t, everySecond)
	small := []string{"--concurrency=1", "--requests=20", "--warmup=0s", "--class=a:prompt=16,output=4"}
	for _, test := range []struct {
		name   string
		args   []string
		status int
		want   string
	}{
		{"failures", append([]string{"--engine.url=" + bad}, small...), exitFailed, "overloaded"},
		{"a bound that cannot be kept", append([]string{"--engine.url=" + good, "--slo=ttft:p50:1ns"}, small...), exitFailed, "NOT USABLE, slo"},
		{"too few for the bound", append([]string{"--engine.url=" + good, "--slo=ttft:p99:10s"}, small...), exitFailed, "too few"},
		{"ended early", []string{"--engine.url=" + good, "--rate=20", "--max-duration=2s", "--class=a:prompt=16,output=4"}, exitFailed, "interrupted"},
		{"no engine", append([]string{"--engine.url=http://127.0.0.1:1"}, small...), exitFailed, "no answer from http://127.0.0.1:1: connection refused; start the engine, or give its address with --engine.url\n"},
		{"two loops", []string{"--rate=1", "--concurrency=1"}, exitUsage, "exclude each other"},
		{"a rate of 0", []string{"--rate=0"}, exitUsage, "no number above 0"},
		{"above the most", []string{"--rate=5", "--max-rate=4"}, exitUsage, "above --max-rate"},
		{"half a request", []string{"--concurrency=1.5"}, exitUsage, "no number of requests"},
		{"gamma without shape", []string{"--rate=1", "--arrivals=gamma"}, exitUsage, "needed together"},
		{"a bad bound", []string{"--rate=1", "--slo=speed:p99:1s"}, exitUsage, "no metric"},
		{"a trace without format", []string{"--trace.file=go.mod"}, exitUsage, "give its --trace.format"},
		{"a ramp of a closed loop", []string{"--concurrency=1", "--ramp=linear:1:5s"}, exitUsage, "need --rate"},
		{"arrivals of a trace", []string{"--trace.file=go.mod", "--arrivals=constant"}, exitUsage, "need --rate"},
		{"the speed of no trace", []string{"--rate=1", "--trace.speed=2"}, exitUsage, "need --trace.file"},
		{"a trace that stands still", []string{"--trace.file=go.mod", "--trace.format=azure", "--trace.speed=0"}, exitUsage, "above 0"},
		{"a rate that nobody can send", append([]string{"--engine.url=" + good, "--rate=1e9"}, small[1:]...), exitUsage, "up to 1e+06"},
		{"no folder for the results", append([]string{"--engine.url=" + good, "--out.results=" + filepath.Join(t.TempDir(), "none", "r.json")}, small...), exitUsage, "no such file"},
		{"two outputs in one file", []string{"--rate=1", "--out.results=x", "--out.records=./x"}, exitUsage, "two outputs"},
		{"the records in the curve's own notes", []string{"--out.curve=x", "--out.records=x.partial"}, exitUsage, "--out.records and the .partial file of --out.curve are two outputs"},
		{"one bound twice", []string{"--rate=1", "--slo=ttft:p99:1s", "--slo=ttft:p99:2s"}, exitUsage, "--slo ttft:p99:2s"},
		{"a reserve of no search", []string{"--rate=1", "--peak-reserve=0.2"}, exitUsage, "--peak-reserve is for the search"},
		{"the warm-up of a search", []string{"--warmup=1s"}, exitUsage, "--warmup is for one load"},
		{"a class without lengths", []string{"--rate=1", "--class=foo"}, exitUsage, "foo:prompt=512,output=256, or one of chat"},
		{"a search out of time", []string{"--engine.url=" + good, "--quick", "--max-duration=2s", "--class=a:prompt=16,output=4"}, exitFailed, "--max-duration 2s has passed: "},
		{"a load out of time", []string{"--engine.url=" + good, "--rate=20", "--max-duration=2s", "--class=a:prompt=16,output=4"}, exitFailed, "--max-duration 2s has passed: "},
		{"a class that is none", []string{"--rate=1", "--class=x:prompt=0"}, exitUsage, "--class"},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, out, errOut := probed(t, test.args...)
			if strings.Contains(errOut, "deadline exceeded") {
				t.Errorf("an error of the context's own: %s", errOut)
			}
			if status == exitUsage && out != "" {
				t.Errorf("wrong use prints a report:\n%s", out)
			}
			if status != test.status || !strings.Contains(out+errOut, test.want) {
				t.Errorf("status %d, want %d with %q:\n%s\n%s", status, test.status, test.want, out, errOut)
			}
		})
	}
	status, out, errOut := probed(t, append([]string{"--engine.url=" + good}, small...)...)
	if status != exitOK && strings.Contains(withoutClientLimited(out), "NOT USABLE") {
		t.Errorf("a good run: status %d\n%s\n%s", status, out, errOut)
	}
}

// TestProbeMatrix: classes alone, times rates, times burstiness.
func TestProbeMatrix(t *testing.T) {
	f := loadFlags{
		trace: &traceFlags{}, classes: []string{"chat", "rag"}, rates: numbers{1, 2}, burstiness: numbers{0.25, 1}, arrivals: "gamma", matrix: true,
		traceSpeed: 1, tracePeak: 1,
	}
	l, err := f.resolve(false)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range l.points {
		if len(p.classes) != 1 {
			t.Errorf("point %s has %d classes", p.name, len(p.classes))
		}
		names = append(names, p.name)
	}
	want := "chat 1/s b=0.25, chat 2/s b=0.25, chat 1/s b=1, chat 2/s b=1, rag 1/s b=0.25, rag 2/s b=0.25, rag 1/s b=1, rag 2/s b=1"
	if got := strings.Join(names, ", "); got != want {
		t.Errorf("points %s, want %s", got, want)
	}
	if l.chat || !l.completions || l.seed == 0 || l.content == 0 || l.seed == l.content {
		t.Errorf("load %+v", l)
	}
}
