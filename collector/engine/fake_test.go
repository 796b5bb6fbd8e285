package engine

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// memoryListener is a network of one listener in memory, so that a real HTTP
// server and client run under a fake clock.
type memoryListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newMemoryListener() *memoryListener {
	return &memoryListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *memoryListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *memoryListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8000} }

// fakeEngine is an engine's HTTP server. Its fields may be changed between polls.
type fakeEngine struct {
	// metrics and health answer; other paths answer 404 unless in paths.
	metrics http.HandlerFunc
	health  http.HandlerFunc
	paths   map[string]http.HandlerFunc
	// refused: nobody listens. frozen: connections are taken and never served.
	refused, frozen bool

	listener *memoryListener
	mu       sync.Mutex
	inFlight int
	peak     int
	asked    []string
	header   http.Header
	frozenTo []net.Conn
}

// newFakeEngine starts a server; inside a synctest bubble it runs on the fake clock.
func newFakeEngine(t *testing.T) *fakeEngine {
	t.Helper()
	e := &fakeEngine{listener: newMemoryListener(), health: status(200), paths: map[string]http.HandlerFunc{}}
	s := &http.Server{Handler: e, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(e.listener) }()
	t.Cleanup(func() {
		_ = s.Close()
		for _, c := range e.frozenTo {
			_ = c.Close()
		}
		<-done
	})
	return e
}

func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	e.inFlight++
	e.peak = max(e.peak, e.inFlight)
	e.asked = append(e.asked, r.URL.RequestURI())
	if r.URL.Path == "/metrics" {
		e.header = r.Header.Clone()
	}
	e.mu.Unlock()
	defer func() { e.mu.Lock(); e.inFlight--; e.mu.Unlock() }()
	if r.URL.Path == "/metrics" {
		e.metrics(w, r)
	} else if r.URL.Path == "/health" {
		e.health(w, r)
	} else if h := e.paths[r.URL.Path]; h != nil {
		h(w, r)
	} else {
		http.NotFound(w, r)
	}
}

func (e *fakeEngine) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if e.refused {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	client, server := net.Pipe()
	if e.frozen {
		e.frozenTo = append(e.frozenTo, server)
		return client, nil
	}
	select {
	case e.listener.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// count returns how often a path was asked for.
func (e *fakeEngine) count(path string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.asked {
		if a == path {
			n++
		}
	}
	return n
}

// settled waits before every request until the server has seen the end of the
// one before: what is in flight is then what the client has in flight.
type settled struct{ http.RoundTripper }

func (s settled) RoundTrip(r *http.Request) (*http.Response, error) {
	synctest.Wait()
	return s.RoundTripper.RoundTrip(r)
}

func (s settled) CloseIdleConnections() { s.RoundTripper.(*http.Transport).CloseIdleConnections() }

// poller makes a poller of the engine. The clock must be fake.
func (e *fakeEngine) poller(t *testing.T, change func(*Config)) *Poller {
	t.Helper()
	return e.pollerOf(t, tables, change)
}

func (e *fakeEngine) pollerOf(t *testing.T, tables []*table, change func(*Config)) *Poller {
	t.Helper()
	transport := &http.Transport{DialContext: e.dial, DisableCompression: true}
	c := Config{URL: "http://127.0.0.1:8000", RoundTripper: settled{transport}, ProcPath: filepath.Join(t.TempDir(), "none")}
	if change != nil {
		change(&c)
	}
	p, err := newPoller(c, slog.New(slog.DiscardHandler), tables)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(); transport.CloseIdleConnections() })
	return p
}

// poll polls once, checks what holds of every poll, and sleeps until the next is due.
func (e *fakeEngine) poll(t *testing.T, p *Poller) Observation {
	t.Helper()
	begin := time.Now()
	o := p.Poll(t.Context())
	took := time.Since(begin)
	if took >= p.config.Interval {
		t.Fatalf("the poll took %v of an interval of %v", took, p.config.Interval)
	}
	if o.Fresh != (o.Err == nil) {
		t.Errorf("fresh is %v and err is %v", o.Fresh, o.Err)
	}
	if o.State.Known() && o.Reason != "" {
		t.Errorf("state %s has reason %q", o.State, o.Reason)
	}
	if o.State.Known() && o.Reading == nil {
		t.Errorf("state %s without a reading", o.State)
	}
	e.mu.Lock()
	if e.peak > 1 {
		t.Errorf("%d requests in flight", e.peak)
	}
	e.mu.Unlock()
	time.Sleep(p.config.Interval - took)
	return o
}

func wantState(t *testing.T, o Observation, state State, reason string) {
	t.Helper()
	if o.State != state || o.Reason != reason {
		t.Fatalf("state is %s %q, want %s %q (err: %v)", o.State, o.Reason, state, reason, o.Err)
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

const classic = "text/plain; version=1.0.0; charset=utf-8"

func serve(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	}
}

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// cutOff promises more than it writes.
func cutOff(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", classic)
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		_, _ = io.WriteString(w, body[:len(body)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// load is one rank's page for vLLM.
type load struct {
	engine                                        string
	running, waiting, usage                       float64
	prompt, generation, steps, finished, preempts float64
	awake                                         float64
}

// busy returns a load that works; work moves its counters.
func busy(engine string, running, waiting, work float64) load {
	return load{engine: engine, running: running, waiting: waiting, usage: 0.5, prompt: 100 * work, generation: 10 * work, steps: work, finished: work, awake: 1}
}

// vllmPage writes a page of vLLM V1; start 0 leaves the process start out.
func vllmPage(start float64, ranks ...load) string {
	var b strings.Builder
	if start > 0 {
		fmt.Fprintf(&b, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %v\n", start)
	}
	for _, r := range ranks {
		l := fmt.Sprintf("engine=%q,model_name=\"m\"", r.engine)
		for _, s := range []struct {
			name  string
			value float64
		}{
			{"num_requests_running", r.running}, {"num_requests_waiting", r.waiting}, {"kv_cache_usage_perc", r.usage},
			{"prompt_tokens_total", r.prompt}, {"generation_tokens_total", r.generation},
			{"num_preemptions_total", r.preempts}, {"iteration_tokens_total_count", r.steps},
		} {
			fmt.Fprintf(&b, "vllm:%s{%s} %v\n", s.name, l, s.value)
		}
		fmt.Fprintf(&b, "vllm:prompt_tokens_by_source_total{%s,source=\"local_compute\"} %v\n", l, r.prompt)
		fmt.Fprintf(&b, "vllm:request_success_total{%s,finished_reason=\"stop\"} %v\n", l, r.finished)
		fmt.Fprintf(&b, "vllm:engine_sleep_state{%s,sleep_state=\"awake\"} %v\n", l, r.awake)
		fmt.Fprintf(&b, "vllm:cache_config_info{engine=%q,block_size=\"16\",num_gpu_blocks=\"1000\",kv_cache_size_tokens=\"16000\"} 1\n", r.engine)
		for _, bucket := range []string{"0.1", "1.0", "+Inf"} {
			fmt.Fprintf(&b, "vllm:time_to_first_token_seconds_bucket{%s,le=%q} %v\n", l, bucket, r.finished)
		}
		fmt.Fprintf(&b, "vllm:time_to_first_token_seconds_sum{%s} %v\nvllm:time_to_first_token_seconds_count{%s} %v\n", l, r.finished*0.05, l, r.finished)
	}
	return b.String()
}

// capture reads a page from testdata.
func capture(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// readOnce polls a page once on a fake clock.
func readOnce(t *testing.T, contentType, body string, change func(*Config)) (o Observation) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		e.metrics = serve(contentType, body)
		o = e.poll(t, e.poller(t, change))
	})
	return o
}

func same(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }

// wantValues compares the signals given; every signal not given must be unknown when all is set.
func wantValues(t *testing.T, r *Rank, all bool, want map[Signal]float64) {
	t.Helper()
	for s := range numSignals {
		w, given := want[s]
		if !given && !all {
			continue
		}
		if !given {
			w = math.NaN()
		}
		if got := r.Value(s); !same(got, w) {
			t.Errorf("%s of rank %s is %v, want %v", s, r.Engine, got, w)
		}
	}
}

const openMetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8"

// rustPage is what vLLM's Rust frontend serves: OpenMetrics, whatever was asked for.
const rustPage = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m",engine="0"} 3
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m",engine="0"} 2
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.25
# HELP vllm:prompt_tokens Number of prefill tokens processed.
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{model_name="m",engine="0"} 700
# TYPE vllm:prompt_tokens_by_source counter
vllm:prompt_tokens_by_source_total{model_name="m",engine="0",source="local_compute"} 600
vllm:prompt_tokens_by_source_total{model_name="m",engine="0",source="local_cache_hit"} 100
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{model_name="m",engine="0"} 90
# TYPE vllm:estimated_read_bytes_per_gpu_total counter
vllm:estimated_read_bytes_per_gpu_total_total{model_name="m",engine="0"} 5000
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_sum{model_name="m",engine="0"} 1.5
vllm:time_to_first_token_seconds_count{model_name="m",engine="0"} 4
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m",engine="0"} 1
vllm:time_to_first_token_seconds_bucket{le="2.5",model_name="m",engine="0"} 4
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m",engine="0"} 4
# EOF
`
