package engine

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// writeProc makes a proc file system of processes by their arguments.
func writeProc(t *testing.T, processes ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, p := range processes {
		d := filepath.Join(dir, fmt.Sprint(100+i))
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		raw := strings.ReplaceAll(p, " ", "\x00") + "\x00"
		if err := os.WriteFile(filepath.Join(d, "cmdline"), []byte(raw), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "version"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

const serverInfo = `{"vllm_config":{"model_config":{"max_model_len":32768,"dtype":"torch.bfloat16"},
"scheduler_config":{"max_num_seqs":512,"max_num_batched_tokens":16384},
"parallel_config":{"tensor_parallel_size":4,"pipeline_parallel_size":1,"data_parallel_size":2,"decode_context_parallel_size":2}},"vllm_env":{}}`

// TestLimitSources: flag, then /server_info, then the command line, then the default.
func TestLimitSources(t *testing.T) {
	page := vllmPage(1000, busy("0", 1, 0, 1))
	tests := map[string]struct {
		change            func(*Config)
		paths             map[string]string
		page              string
		sequences, tokens Limit
	}{
		"flag": {
			change:    func(c *Config) { c.MaxNumSeqs, c.MaxNumBatchedTokens = 48, 4096 },
			paths:     map[string]string{"/server_info": serverInfo},
			sequences: Limit{48, "flag"}, tokens: Limit{4096, "flag"},
		},
		"server_info": {
			change:    func(c *Config) { c.ProcPath = writeProc(t, "vllm serve m --max-num-seqs 64") },
			paths:     map[string]string{"/server_info": serverInfo},
			sequences: Limit{512, "server_info"}, tokens: Limit{16384, "server_info"},
		},
		"server_info as text": {
			paths:     map[string]string{"/server_info": `{"vllm_config":"model='m', max_num_seqs=512"}`},
			sequences: Limit{256, "default"}, tokens: Limit{2048, "default"},
		},
		"cmdline": {
			change: func(c *Config) {
				c.ProcPath = writeProc(t, "sh -c sleep", "python3 /usr/bin/vllm serve m --max-num-seqs 64 --max_num_batched_tokens=8k", "VLLM::EngineCore")
			},
			sequences: Limit{64, "cmdline"}, tokens: Limit{8000, "cmdline"},
		},
		"cmdline in part": {
			change:    func(c *Config) { c.ProcPath = writeProc(t, "vllm serve m --max-num-seqs=64") },
			sequences: Limit{64, "cmdline"}, tokens: Limit{2048, "default"},
		},
		"cmdline of another port": {
			change: func(c *Config) {
				c.ProcPath = writeProc(t, "vllm serve a --port 8001 --max-num-seqs 1", "vllm serve b --max-num-seqs 2", "vllm serve c --port=8002 --max-num-seqs 3")
			},
			sequences: Limit{2, "cmdline"}, tokens: Limit{2048, "default"},
		},
		"several of other ports": {
			change: func(c *Config) {
				c.ProcPath = writeProc(t, "vllm serve a --port 8001 --max-num-seqs 1", "vllm serve b --port 8002 --max-num-seqs 2")
			},
			sequences: Limit{256, "default"}, tokens: Limit{2048, "default"},
		},
		"the only one, but of another port": {
			change:    func(c *Config) { c.ProcPath = writeProc(t, "vllm serve a --port 8001 --max-num-seqs 1") },
			sequences: Limit{256, "default"}, tokens: Limit{2048, "default"},
		},
		"cmdline of this machine for an engine on another": {
			change: func(c *Config) {
				c.URL = "http://192.0.2.1:8000"
				c.ProcPath = writeProc(t, "vllm serve a --max-num-seqs 1")
			},
			sequences: Limit{256, "default"}, tokens: Limit{2048, "default"},
		},
		"configuration file": { // what it sets cannot be seen, so the default is a guess
			change:    func(c *Config) { c.ProcPath = writeProc(t, "vllm serve m --config /etc/vllm.yaml --max-num-seqs 64") },
			sequences: Limit{64, "cmdline"}, tokens: unknownLimit(),
		},
		"default": {sequences: Limit{256, "default"}, tokens: Limit{2048, "default"}},
		"default of a large GPU": { // 300 running refute the smaller one
			page:      vllmPage(1000, busy("0", 300, 0, 1)),
			sequences: Limit{1024, "default"}, tokens: Limit{8192, "default"},
		},
		"default of a GPU known to be large": {
			change:    func(c *Config) { c.GPU = func() (float64, string) { return 80 << 30, "NVIDIA H100 80GB HBM3" } },
			sequences: Limit{1024, "default"}, tokens: Limit{8192, "default"},
		},
		"default of an A100": {
			change:    func(c *Config) { c.GPU = func() (float64, string) { return 80 << 30, "NVIDIA A100-SXM4-80GB" } },
			sequences: Limit{256, "default"}, tokens: Limit{2048, "default"},
		},
		"default of a GPU not read yet": {
			change:    func(c *Config) { c.GPU = func() (float64, string) { return math.NaN(), "" } },
			sequences: Limit{256, "default"}, tokens: Limit{2048, "default"},
		},
		"no default for SGLang": {
			page:      "sglang:num_running_reqs{model_name=\"m\"} 1\n",
			sequences: unknownLimit(), tokens: unknownLimit(),
		},
		"SGLang's server_info": {
			page:      "sglang:num_running_reqs{model_name=\"m\"} 1\n",
			paths:     map[string]string{"/server_info": `{"max_running_requests":200,"tp_size":2,"chunked_prefill_size":8192}`},
			sequences: Limit{200, "server_info"}, tokens: unknownLimit(),
		},
		"llama.cpp's slots": {
			page:      "llamacpp:requests_processing 1\n",
			paths:     map[string]string{"/props": `{"default_generation_settings":{"params":{"seed":1},"n_ctx":1024},"total_slots":4,"build_info":"b11434"}`},
			sequences: Limit{4, "server_info"}, tokens: unknownLimit(),
		},
		"TGI's batch": {
			page:      "tgi_batch_current_size 1\n",
			paths:     map[string]string{"/info": `{"max_batch_size":32,"max_batch_total_tokens":36000}`},
			sequences: Limit{32, "server_info"}, tokens: unknownLimit(),
		},
		"SGLang's command line": {
			page: "sglang:num_running_reqs{model_name=\"m\"} 1\n",
			change: func(c *Config) {
				c.ProcPath = writeProc(t, "python3 -m sglang.launch_server --model-path m --port 8000 --max-running-requests 77")
			},
			sequences: Limit{77, "cmdline"}, tokens: unknownLimit(),
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newFakeEngine(t)
				if test.page == "" {
					test.page = page
				}
				e.metrics = serve(classic, test.page)
				for path, body := range test.paths {
					e.paths[path] = serve("application/json", body)
				}
				o := e.poll(t, e.poller(t, test.change)) // all of it in the first poll
				r := &o.Reading.Ranks[0]
				for what, limits := range map[string][2]Limit{"sequence slots": {r.SequenceSlots, test.sequences}, "batched tokens": {r.BatchedTokens, test.tokens}} {
					if got, want := limits[0], limits[1]; !same(got.Value, want.Value) || got.Source != want.Source {
						t.Errorf("%s are %v, want %v", what, got, want)
					}
				}
			})
		})
	}
}

func TestDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, nil)
		e.steady(1, 0)
		e.paths["/server_info"] = serve("application/json", serverInfo)
		e.paths["/version"] = serve("application/json", `{"version":"0.32.0"}`)
		e.paths["/v1/models"] = serve("application/json", `{"data":[{"id":"m","max_model_len":8192},{"id":"lora","max_model_len":null}]}`)
		var o Observation
		for range 10 {
			o = e.poll(t, p)
		}
		if o.Version != "0.32.0" || o.MaxModelLen != 8192 || o.Parallelism != (Parallelism{4, 1, 2, 2}) {
			t.Errorf("version %q, max_model_len %d, %+v", o.Version, o.MaxModelLen, o.Parallelism)
		}
		want := []string{"/prometheus/metrics", "/metrics", "/server_info?config_format=json", "/metrics", "/version", "/metrics", "/v1/models"}
		if got := e.asked[:7]; !slices.Equal(got, want) {
			t.Errorf("asked %v, want %v", got, want)
		}
		if len(e.asked) != 14 { // where the page is, ten pages and three questions
			t.Errorf("asked %v", e.asked)
		}
	})
}

// TestDiscoveryIsNotOffered: a 404 or 401 is an answer, anything else is tried again with growing pauses.
func TestDiscoveryIsNotOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, nil)
		e.steady(1, 0)
		e.paths["/v1/models"] = status(401)
		e.paths["/version"] = hang
		for range 120 {
			wantState(t, e.poll(t, p), StateOK, "")
		}
		if a, b := e.count("/server_info?config_format=json"), e.count("/v1/models"); a != 1 || b != 1 {
			t.Errorf("asked %d and %d times", a, b)
		}
		// At about 1, 3, 7, 15, 31, 63 s and so on.
		if n := e.count("/version"); n < 5 || n > 7 {
			t.Errorf("/version was asked %d times in two minutes", n)
		}
		e.paths["/version"] = serve("application/json", `{"version":"1"}`)
		for range 130 {
			if o := e.poll(t, p); o.Version == "1" {
				return
			}
		}
		t.Error("never found out")
	})
}

func TestBlocksUnderDecodeContextParallelism(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		e.metrics = serve(classic, `vllm:num_requests_running{engine="0",model_name="m"} 1
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
`)
		e.paths["/server_info"] = serve("application/json", serverInfo)
		o := e.poll(t, e.poller(t, nil))
		if got := o.Reading.Ranks[0].TokenSlots; got != (Limit{32000, "blocks"}) {
			t.Errorf("token slots are %v", got)
		}
		wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{KVCacheTokensUsed: 16000})
	})
}

// TestBaseURL: where the page and the API are, from the URL.
func TestBaseURL(t *testing.T) {
	for given, want := range map[string][2]string{
		"http://h:8000":               {"http://h:8000/metrics", "http://h:8000"},
		"http://h:8000/":              {"http://h:8000/metrics", "http://h:8000"},
		"https://h":                   {"https://h/metrics", "https://h"},
		"http://h:8000/metrics":       {"http://h:8000/metrics", "http://h:8000"},
		"http://h:8000/metrics/":      {"http://h:8000/metrics/", "http://h:8000"},
		"http://h/vllm/metrics":       {"http://h/vllm/metrics", "http://h/vllm"},
		"http://h/prometheus/metrics": {"http://h/prometheus/metrics", "http://h"},
		"http://[::1]:8000/x/y/page":  {"http://[::1]:8000/x/y/page", "http://[::1]:8000/x/y"},
		"http://h:8000/v1":            {"http://h:8000/metrics", "http://h:8000"},
		"http://h:8000/v1/":           {"http://h:8000/metrics", "http://h:8000"},
		"http://h/engine/v1":          {"http://h/engine/metrics", "http://h/engine"},
		"http://h/v1/metrics":         {"http://h/v1/metrics", "http://h/v1"},
		"http://h/notv1":              {"http://h/notv1", "http://h"},
	} {
		page, base, err := Config{URL: given}.addresses("/metrics")
		if err != nil || page != want[0] || base != want[1] {
			t.Errorf("%s: page %s, base %s, err %v; want %v", given, page, base, err, want)
		}
	}
}

// TestV1IsTheBase: with the address of the API, pages are looked for as with the base.
func TestV1IsTheBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, func(c *Config) { c.URL += "/v1" })
		e.steady(1, 0)
		e.paths["/v1/models"] = serve("application/json", `{"data":[{"id":"m","max_model_len":8192}]}`)
		var o Observation
		for range 10 {
			o = e.poll(t, p)
		}
		if want := []string{"/prometheus/metrics", "/metrics"}; !slices.Equal(e.asked[:2], want) || o.MaxModelLen != 8192 {
			t.Errorf("asked %v, want %v first; max_model_len %d", e.asked, want, o.MaxModelLen)
		}
	})
}

func TestPortOfURL(t *testing.T) {
	for given, want := range map[string]string{"http://h:8000": "8000", "http://h": "80", "https://h": "443"} {
		c, err := newClient(Config{URL: given, Timeout: time.Second, RoundTripper: http.DefaultTransport}, "/metrics")
		if err != nil || c.port() != want {
			t.Errorf("%s: port %s, err %v", given, c.port(), err)
		}
	}
}

// FuzzServerInfo: whatever an engine answers, no limit is below zero.
func FuzzServerInfo(f *testing.F) {
	for _, body := range []string{
		serverInfo, `{"max_running_requests":64,"tp_size":2}`, `{"max_batch_total_tokens":36000,"max_batch_size":null,"version":"3.3.6"}`,
		`{"total_slots":4,"build_info":"b1","default_generation_settings":{"n_ctx":4096}}`, `{"total_slots":-1}`, `{"total_slots":"four"}`, `[]`, `{`, ``,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, table := range tables {
			if table.serverInfo == nil {
				continue
			}
			s, err := table.serverInfo(body)
			if err != nil && s != (settings{}) {
				t.Errorf("%s: %+v beside %v", table.engine, s, err)
			}
			p := s.parallelism
			if min(s.maxNumSeqs, s.maxNumBatchedTokens, s.maxModelLen, s.kvTokens, p.Tensor, p.Pipeline, p.Data, p.DecodeContext) < 0 {
				t.Errorf("%s: %+v", table.engine, s)
			}
		}
	})
}
