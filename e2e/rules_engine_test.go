package e2e

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// pageEngine is an engine that answers with a recorded page of an idle vLLM.
// Only what a test observes moves, so that what rules must say of it is known
// by hand.
type pageEngine struct {
	*httptest.Server
	mutex sync.Mutex
	text  string
}

func newPageEngine(t *testing.T) *pageEngine {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "collector", "engine", "testdata", "vllm-0.32-preempted-idle.prom"))
	if err != nil {
		t.Fatal(err)
	}
	e := &pageEngine{text: string(text)}
	e.Server = httptest.NewServer(e)
	t.Cleanup(func() {
		e.CloseClientConnections()
		e.Close()
	})
	return e
}

func (e *pageEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/metrics" {
		http.NotFound(w, r)
		return
	}
	answer(w, http.StatusOK, expositionType, []byte(e.page()))
}

func (e *pageEngine) page() string {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.text
}

var timeToFirstToken = regexp.MustCompile(`^vllm:time_to_first_token_seconds_(bucket|sum|count)\{(?:.*le="([^"]+)")?.*\} (.*)$`)

// observe adds requests whose first token took some seconds.
func (e *pageEngine) observe(requests, seconds float64) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	var b strings.Builder
	for line := range strings.Lines(e.text) {
		m := timeToFirstToken.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			b.WriteString(line)
			continue
		}
		value, more := parsed(m[3]), requests
		switch {
		case m[1] == "sum":
			more = requests * seconds
		case m[1] == "bucket" && seconds > parsed(m[2]):
			more = 0
		}
		b.WriteString(strings.TrimSuffix(strings.TrimSpace(line), m[3]))
		b.WriteString(strconv.FormatFloat(value+more, 'g', -1, 64) + "\n")
	}
	e.text = b.String()
}

// parsed is a number of a page that was recorded and is known to be good.
func parsed(text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err)
	}
	return v
}

// firstTokens are the page's series of the time to first token, under the
// names that rules read.
func (e *pageEngine) firstTokens() samples {
	all := samples{}
	for line := range strings.Lines(e.page()) {
		if line = strings.TrimSpace(line); timeToFirstToken.MatchString(line) {
			at := strings.LastIndexByte(line, ' ')
			all["headroom_engine_"+strings.TrimPrefix(line[:at], "vllm:")] = parsed(line[at+1:])
		}
	}
	return all
}
