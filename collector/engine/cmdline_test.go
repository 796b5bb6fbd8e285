package engine

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestVLLMCommandLine(t *testing.T) {
	tests := map[string]struct {
		want settings
		ok   bool
	}{
		"vllm serve m --max-num-seqs 128 --max-num-batched-tokens 8192":            {settings{maxNumSeqs: 128, maxNumBatchedTokens: 8192}, true},
		"/opt/venv/bin/python3 /opt/venv/bin/vllm serve m --max_num_seqs 128":      {settings{maxNumSeqs: 128}, true},
		"python3 -m vllm.entrypoints.openai.api_server --model m --max-num-seqs=9": {settings{maxNumSeqs: 9}, true},
		"python3 -m vllm.entrypoints.cli.main serve m --max-num-seqs 3":            {settings{maxNumSeqs: 3}, true},
		"tini -- vllm serve m --max-num-seqs 5":                                    {settings{maxNumSeqs: 5}, true},
		"vllm serve m -tp 4 -pp=2 -dp 8 -dcp 2":                                    {settings{parallelism: Parallelism{4, 2, 8, 2}}, true},
		"vllm serve m --tensor-parallel-size 4 --pipeline_parallel_size 2":         {settings{parallelism: Parallelism{Tensor: 4, Pipeline: 2}}, true},
		"vllm serve m --max-model-len 8k --max-num-batched-tokens 8K":              {settings{maxModelLen: 8000, maxNumBatchedTokens: 8192}, true},
		"vllm serve m --max-model-len auto --max-num-batched-tokens 1.5k":          {settings{maxNumBatchedTokens: 1500}, true},
		"vllm serve m --max-model-len -1 --max-num-batched-tokens 1.5K":            {settings{}, true},
		"vllm serve m --max-num-seqs 8 --max-num-seqs 16":                          {settings{maxNumSeqs: 16}, true},
		"vllm serve --config config.yaml m":                                        {settings{configFile: true}, true},
		"vllm serve m --enforce-eager --max-num-seqs 7 --trust-remote-code":        {settings{maxNumSeqs: 7}, true},
		"vllm serve m --max-num-seqs":                                              {settings{}, true},
		"vllm serve m --max-num-seqs many":                                         {settings{}, true},
		"vllm bench serve --max-num-seqs 4":                                        {settings{}, false},
		"VLLM::EngineCore":                                                         {settings{}, false},
		"VLLM::Worker_TP0":                                                         {settings{}, false},
		"VLLM::APIServer_0":                                                        {settings{}, false},
		"python3 train.py --max-num-seqs 4":                                        {settings{}, false},
		"":                                                                         {settings{}, false},
	}
	for line, test := range tests {
		got, ok := parseVLLMCommandLine(strings.Fields(line))
		got.start = Settings{} // TestSettingsOfCommandLines has them
		if got != test.want || ok != test.ok {
			t.Errorf("%q gives %+v, %v; want %+v, %v", line, got, ok, test.want, test.ok)
		}
	}
}

func TestSGLangCommandLine(t *testing.T) {
	got, ok := parseSGLangCommandLine(strings.Fields("python -m sglang.launch_server --model-path m --tp 8 --dp-size 2 --max-running-requests 100 --context-length 4096"))
	got.start = Settings{}
	if want := (settings{maxNumSeqs: 100, maxModelLen: 4096, parallelism: Parallelism{Tensor: 8, Data: 2}}); got != want || !ok {
		t.Errorf("got %+v, %v", got, ok)
	}
}

func TestHumanNumber(t *testing.T) {
	for s, want := range map[string]int{
		"8192": 8192, "8k": 8000, "8K": 8192, "1m": 1e6, "1M": 1 << 20, "2g": 2e9, "2G": 2 << 30, "1t": 1e12, "25.6k": 25600,
		"": 0, "k": 0, "0": 0, "-5": 0, "8.5": 0, "1.5M": 0, "1e9": 0, "0x10": 0, "inf": 0, "8kk": 0, "99999999999999999999": 0, "9100000000000k": 0,
	} {
		if got := humanNumber(s); got != want {
			t.Errorf("%q is %d, want %d", s, got, want)
		}
	}
}

func TestNoProcessList(t *testing.T) {
	if s, ok := commandLineOf(filepath.Join(t.TempDir(), "none"), vllmTable(), "8000"); ok || s != (settings{}) {
		t.Errorf("found %+v", s)
	}
}

func FuzzCommandLine(f *testing.F) {
	f.Add([]byte("vllm\x00serve\x00m\x00--max-num-seqs\x008K\x00-tp=2\x00"))
	f.Add([]byte("VLLM::EngineCore\x00\x00\x00"))
	f.Add([]byte("python\x00-m\x00sglang.launch_server\x00--dp\x00\x00=\x00-"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		argv := splitCommandLine(raw)
		for _, parse := range []func([]string) (settings, bool){parseVLLMCommandLine, parseSGLangCommandLine} {
			s, ok := parse(argv)
			if !ok && s != (settings{}) {
				t.Errorf("%q is another program and gives %+v", argv, s)
			}
			for _, n := range []int{s.maxNumSeqs, s.maxNumBatchedTokens, s.maxModelLen, s.parallelism.Tensor, s.parallelism.Data} {
				if n < 0 || n > 1<<53 {
					t.Errorf("%q gives %+v", argv, s)
				}
			}
		}
		servesPort(argv, "8000", "8000")
	})
}
