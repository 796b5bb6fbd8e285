package main

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
)

// captured serves a metrics page as an engine left it, with a version and a context length.
func captured(t *testing.T, file string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("collector", "engine", "testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	answer := func(path, contentType, body string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			_, _ = w.Write([]byte(body))
		})
	}
	answer("/metrics", "text/plain; version=0.0.4", string(page))
	answer("/version", "application/json", `{"version":"0.32.1"}`)
	answer("/v1/models", "application/json", `{"data":[{"id":"m","max_model_len":2048}]}`)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// proc is a proc file system with one process, which serves a URL's port.
func proc(t *testing.T, arguments, at string) string {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "100"), 0o755); err != nil {
		t.Fatal(err)
	}
	line := strings.ReplaceAll(arguments+" --port "+u.Port(), " ", "\x00") + "\x00"
	if err := os.WriteFile(filepath.Join(folder, "100", "cmdline"), []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	return folder
}

func TestReadIdentity(t *testing.T) {
	yes, no := true, false
	empty := t.TempDir()
	for _, tt := range []struct {
		file, arguments string
		overrides       []string
		want            curve.Identity
		wantError       string
	}{
		{
			file: "vllm-0.32-idle.prom",
			want: curve.Identity{
				Model: "tiny", EngineType: "vllm", EngineVersion: "0.32.1", MaxModelLen: 2048,
				KVCacheDType: "auto", KVTokens: 524288, PrefixCaching: &yes,
			},
		},
		{
			file:      "vllm-0.32-idle.prom",
			arguments: "vllm serve m --max-num-seqs 8 --max-num-batched-tokens 2048 -tp 2 --dtype float16 --enforce-eager --revision abc --max-loras 4",
			overrides: []string{"gpu_name=NVIDIA L4", "gpu_count=2", "path=direct", "kv_tokens=500000", "max_loras="},
			want: curve.Identity{
				Model: "tiny", EngineType: "vllm", EngineVersion: "0.32.1", MaxModelLen: 2048, Revision: "abc",
				DType: "float16", KVCacheDType: "auto", KVTokens: 500000, PrefixCaching: &yes, EnforceEager: &yes, ExpertParallel: &no,
				MaxNumSeqs: 8, MaxNumBatchedTokens: 2048, TensorParallel: 2, SpeculativeMethod: "none",
				GPUName: "NVIDIA L4", GPUCount: 2, Path: "direct",
			},
		},
		{
			// Two ranks: limits are of one.
			file: "vllm-0.32-dp2-fresh.prom",
			want: curve.Identity{
				Model: "tiny", EngineType: "vllm", EngineVersion: "0.32.1", MaxModelLen: 2048,
				KVCacheDType: "auto", KVTokens: 524288, PrefixCaching: &yes, DataParallel: 2,
			},
		},
		{
			file: "vllm-0.4.3-v0.prom",
			want: curve.Identity{
				Model: "facebook/opt-125m", EngineType: "vllm", EngineVersion: "0.32.1", MaxModelLen: 2048,
				KVCacheDType: "auto", KVTokens: 116496, PrefixCaching: &no, GPUMemoryUtilization: 0.9,
			},
		},
		{file: "vllm-0.32-idle.prom", overrides: []string{"kv_tokens"}, wantError: `--identity "kv_tokens": want NAME=VALUE`},
		{file: "vllm-0.32-idle.prom", overrides: []string{"colour=red"}, wantError: `--identity colour=red: identity has no field "colour", want one of model,`},
		{file: "vllm-0.32-idle.prom", overrides: []string{"model="}, wantError: "give --identity model=NAME"},
	} {
		url := captured(t, tt.file)
		config := engine.Config{URL: url, ProcPath: empty}
		if tt.arguments != "" {
			config.ProcPath = proc(t, tt.arguments, url)
		}
		got, err := readIdentity(context.Background(), config, &gpuFlags{nvml: gpu.ModeOff}, tt.overrides)
		if tt.wantError != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wantError) {
				t.Errorf("%s %v: error is %v, want %q", tt.file, tt.overrides, err, tt.wantError)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.file, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", tt.file, tt.arguments, diff)
		}
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	if _, err := readIdentity(context.Background(), engine.Config{URL: gone.URL}, &gpuFlags{nvml: gpu.ModeOff}, nil); err == nil || !strings.HasPrefix(err.Error(), "reading the engine: ") {
		t.Errorf("an engine that is gone: %v", err)
	}
}

func TestGatherIdentity(t *testing.T) {
	nan := math.NaN()
	limit := func(v float64, source string) engine.Limit { return engine.Limit{Value: v, Source: source} }
	rank := func(model string, slots, tokens, kv engine.Limit) engine.Rank {
		return engine.Rank{ModelName: model, SequenceSlots: slots, BatchedTokens: tokens, TokenSlots: kv}
	}
	h100 := gpu.NewReading()
	h100.Model, h100.Driver, h100.PowerLimit, h100.SMClockMaxHertz, h100.NVLinksExpected = "NVIDIA H100 80GB HBM3", "580.65.06", 699.98, 1.98e9, 18
	l4 := gpu.NewReading()
	l4.Model, l4.NVLinksExpected = "NVIDIA L4", 0
	mig := gpu.NewReading()
	mig.Model, mig.MIGProfile = "NVIDIA H100 80GB HBM3", "1g.10gb"
	none := limit(nan, "")
	for _, tt := range []struct {
		name      string
		o         engine.Observation
		s         gpu.Snapshot
		overrides []string
		want      curve.Identity
		wantError string
	}{
		{
			name: "a default is a guess",
			o:    engine.Observation{Reading: &engine.Reading{Ranks: []engine.Rank{rank("m", limit(256, "default"), limit(2048, "flag"), limit(1000, "metric"))}}},
			want: curve.Identity{Model: "m", MaxNumBatchedTokens: 2048, KVTokens: 1000},
		},
		{
			name: "the smallest rank",
			o:    engine.Observation{Reading: &engine.Reading{Ranks: []engine.Rank{rank("m", none, none, limit(1000, "metric")), rank("m", none, none, limit(900, "metric"))}}},
			want: curve.Identity{Model: "m", KVTokens: 900, DataParallel: 2},
		},
		{
			name:      "several models",
			o:         engine.Observation{Reading: &engine.Reading{Ranks: []engine.Rank{rank("a", none, none, none), rank("b", none, none, none)}}},
			wantError: "the engine's page has several models: give --identity model= with one of a, b",
		},
		{
			name:      "one of several models",
			o:         engine.Observation{Reading: &engine.Reading{Ranks: []engine.Rank{rank("a", none, none, limit(1000, "metric")), rank("b", none, none, limit(900, "metric"))}}},
			overrides: []string{"model=a"},
			want:      curve.Identity{Model: "a", KVTokens: 1000},
		},
		{
			name: "two GPUs with NVLink", overrides: []string{"model=m"},
			s: gpu.Snapshot{Readings: []gpu.Reading{h100, h100}},
			want: curve.Identity{
				Model: "m", GPUName: "NVIDIA H100 80GB HBM3", GPUCount: 2, DriverVersion: "580.65.06", PowerLimit: 700, MaxSMClock: 1.98e9, Interconnect: "nvlink",
			},
		},
		{
			name: "two GPUs without NVLink", overrides: []string{"model=m"},
			s:    gpu.Snapshot{Readings: []gpu.Reading{l4, l4}},
			want: curve.Identity{Model: "m", GPUName: "NVIDIA L4", GPUCount: 2, Interconnect: "pcie"},
		},
		{
			name: "a MIG instance", overrides: []string{"model=m"},
			s:    gpu.Snapshot{Readings: []gpu.Reading{mig}},
			want: curve.Identity{Model: "m", GPUName: "NVIDIA H100 80GB HBM3", GPUCount: 1, MIGProfile: "1g.10gb"},
		},
		{
			name: "nobody knows whose GPUs they are", overrides: []string{"model=m"},
			s:    gpu.Snapshot{Status: gpu.Status{SelectionAmbiguous: true}, Readings: []gpu.Reading{h100, h100}},
			want: curve.Identity{Model: "m"},
		},
		{name: "nothing", wantError: "the engine does not tell its model: give --identity model=NAME"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := gatherIdentity(tt.o, tt.s, tt.overrides)
			if tt.wantError != "" {
				if err == nil || err.Error() != tt.wantError {
					t.Fatalf("error is %v, want %q", err, tt.wantError)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestOnThisMachine(t *testing.T) {
	for url, want := range map[string]bool{
		"http://127.0.0.1:8000": true, "http://localhost:8000/metrics": true, "https://[::1]:8000": true,
		"http://10.0.0.7:8000": false, "http://vllm.default.svc:8000": false, "::": false,
	} {
		if got := onThisMachine(url); got != want {
			t.Errorf("%s: %v", url, got)
		}
	}
}
