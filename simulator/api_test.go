package simulator

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// realConfig has the limits of the engine that the recorded answers are from.
func realConfig(t testing.TB) Config {
	t.Helper()
	cfg, err := Preset("8b-h100")
	if err != nil {
		t.Fatal(err)
	}
	cfg.ModelName = "tiny"
	cfg.MaxNumSeqs = 8
	cfg.MaxModelLen = 2048
	cfg.BlockSize = 32
	cfg.NumGPUBlocks = 16384
	cfg.Hardware.KVBytesPerToken = 2048
	cfg.FrontEndDelay = 0
	return cfg
}

// serve runs an engine and its API until the test ends.
func serve(t testing.TB, cfg Config) (*Engine, *Metrics, http.Handler) {
	t.Helper()
	m := NewMetrics(cfg)
	cfg.Observer = m.Observer
	e, err := NewEngine(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return e, m, NewHandler(e, m)
}

// recorded is a request to the real engine with its answer.
type recorded struct {
	Name        string `json:"name"`
	Method      string `json:"method"`
	Path        string `json:"path"`
	Body        string `json:"body"`
	Status      int    `json:"status"`
	ContentType string `json:"content_type"`
	Answer      string `json:"answer"`
}

func recordedAnswers(t testing.TB) []recorded {
	t.Helper()
	f, err := os.Open("testdata/vllm-0.32-answers.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []recorded
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r recorded
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

func ask(h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// differs tells where the simulator is meant to answer otherwise.
var differs = map[string]string{
	"completion-n2":    "one choice to a prompt",
	"completion-echo":  "echo is not simulated",
	"err-prompt-bigid": "the simulated vocabulary is Llama 3's",
	"err-role-missing": "one finding is reported and not one for each message type of the client library",
	"max-clamped":      "has no ignore_eos: the text's length is drawn",
	"completion-min":   "has no ignore_eos: the text's length is drawn",
}

// TestAnswersAsRecorded asks the simulator what the real engine was asked.
// Errors must be equal; in the others identities, times and texts differ.
func TestAnswersAsRecorded(t *testing.T) {
	for _, r := range recordedAnswers(t) {
		t.Run(r.Name, func(t *testing.T) {
			if why, ok := differs[r.Name]; ok {
				t.Skip(why)
			}
			synctest.Test(t, func(t *testing.T) { compareAnswer(t, r) })
		})
	}
}

func compareAnswer(t *testing.T, r recorded) {
	_, _, h := serve(t, realConfig(t))
	w := ask(h, r.Method, r.Path, r.Body)
	if w.Code != r.Status {
		t.Errorf("status %d, want %d: %s", w.Code, r.Status, w.Body)
	}
	if got := w.Header().Get("Content-Type"); got != r.ContentType {
		t.Errorf("content type %q, want %q", got, r.ContentType)
	}
	want, got := shape(r.Answer), shape(w.Body.String())
	if r.Name == "stream-list2" {
		// Which prompt's chunk comes first depends on the clock.
		slices.Sort(want)
		slices.Sort(got)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("real engine (-), simulator (+):\n%s", diff)
	}
}

var changing = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`(cmpl|chatcmpl|modelperm)-[0-9a-f]{16}`), "$1-ID"},
	{regexp.MustCompile(`"created":[0-9]+`), `"created":TIME`},
	{regexp.MustCompile(`vllm-0\.32\.0-[0-9a-f]{8}`), "FINGERPRINT"},
	{regexp.MustCompile(`"(text|content)":"(?:[^"\\]|\\.)*"`), `"$1":TEXT`},
	{regexp.MustCompile(`"token_ids":\[([0-9]+)\]`), `"token_ids":[ID]`},
	{regexp.MustCompile(`"token_ids":\[[0-9]+(,[0-9]+)+\]`), `"token_ids":[IDS]`},
	{regexp.MustCompile(`"root":"[^"]*"`), `"root":PATH`},
}

// shape replaces what changes from answer to answer, and in an answer that is
// one object the members that the simulator has no use for.
func shape(answer string) []string {
	if strings.Contains(answer, `"vllm_config"`) {
		return limits(answer)
	}
	for _, c := range changing {
		answer = c.pattern.ReplaceAllString(answer, c.with)
	}
	return strings.Split(answer, "\n")
}

// limits is what a sidecar reads of /server_info.
func limits(answer string) []string {
	var info struct {
		Config struct {
			Model struct {
				MaxModelLen int `json:"max_model_len"`
			} `json:"model_config"`
			Scheduler struct {
				MaxNumSeqs          int `json:"max_num_seqs"`
				MaxNumBatchedTokens int `json:"max_num_batched_tokens"`
			} `json:"scheduler_config"`
			Cache struct {
				BlockSize    int `json:"block_size"`
				NumGPUBlocks int `json:"num_gpu_blocks"`
				SizeTokens   int `json:"kv_cache_size_tokens"`
			} `json:"cache_config"`
			Parallel struct {
				TensorParallel int `json:"tensor_parallel_size"`
				DataParallel   int `json:"data_parallel_size"`
			} `json:"parallel_config"`
		} `json:"vllm_config"`
	}
	if err := json.Unmarshal([]byte(answer), &info); err != nil {
		return []string{err.Error()}
	}
	text, _ := json.MarshalIndent(info, "", " ")
	return strings.Split(string(text), "\n")
}

func TestAPIContentTypeMustBeJSON(t *testing.T) {
	_, _, h := serve(t, realConfig(t))
	r := httptest.NewRequest("POST", "/v1/completions", strings.NewReader(`{"prompt":"a"}`))
	r.Header.Set("Content-Type", "text/plain")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	want := `{"error":{"message":"1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",` +
		`"type":"Bad Request","param":null,"code":400}}`
	if w.Code != 400 || w.Body.String() != want {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

func TestTokenOutOfVocabulary(t *testing.T) {
	_, _, h := serve(t, realConfig(t))
	w := ask(h, "POST", "/v1/completions", `{"prompt":[1,128256],"max_tokens":2}`)
	if w.Code != 400 || !strings.Contains(w.Body.String(), "Token id 128256 is out of vocabulary") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

func TestSleepEndpoints(t *testing.T) {
	e, _, h := serve(t, realConfig(t))
	for _, c := range []struct {
		method, path string
		status       int
		want         string
		level        int
	}{
		{"POST", "/sleep?level=5", 400, `{"error":{"message":"1 validation error:\n  {'type': 'less_than_equal', 'loc': 'query.level', 'msg': 'Input should be less than or equal to 2', 'input': '5', 'ctx': {'le': 2}}","type":"Bad Request","param":"query.level","code":400}}`, 0},
		{"POST", "/sleep?level=x", 400, `{"error":{"message":"1 validation error:\n  {'type': 'int_parsing', 'loc': 'query.level', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'x'}","type":"Bad Request","param":"query.level","code":400}}`, 0},
		{"GET", "/is_sleeping", 200, `{"is_sleeping":false}`, 0},
		{"POST", "/sleep", 200, `{"status":"sleeping","level":1}`, 1},
		{"GET", "/is_sleeping", 200, `{"is_sleeping":true}`, 1},
		{"POST", "/sleep?level=2", 200, `{"status":"sleeping","level":2}`, 2},
		{"POST", "/wake_up", 200, `{"status":"awake","tags":null}`, 0},
		{"GET", "/server_info?config_format=xml", 400, `{"error":{"message":"1 validation error:\n  {'type': 'literal_error', 'loc': 'query.config_format', 'msg': \"Input should be 'text' or 'json'\", 'input': 'xml', 'ctx': {'expected': \"'text' or 'json'\"}}","type":"Bad Request","param":"query.config_format","code":400}}`, 0},
	} {
		w := ask(h, c.method, c.path, "")
		if w.Code != c.status || w.Body.String() != c.want {
			t.Errorf("%s %s: %d %s\nwant %d %s", c.method, c.path, w.Code, w.Body, c.status, c.want)
		}
		if got := e.SleepLevel(); got != c.level {
			t.Errorf("after %s %s the level is %d, want %d", c.method, c.path, got, c.level)
		}
		page, _ := io.ReadAll(ask(h, "GET", "/metrics", "").Body)
		for i, state := range []string{"awake", "weights_offloaded", "discard_all"} {
			value := "0.0"
			if i == c.level {
				value = "1.0"
			}
			if line := `sleep_state="` + state + `"} ` + value; !strings.Contains(string(page), line) {
				t.Errorf("after %s %s the page has no %s", c.method, c.path, line)
			}
		}
	}
}
