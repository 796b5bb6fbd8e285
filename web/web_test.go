package web

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headroom_exporter/sidecar"
)

func handlerOf(t testing.TB, source sidecar.Source) http.Handler {
	t.Helper()
	h, err := New(Config{Source: source, Registry: prometheus.NewRegistry(), Version: "1.2.3 <test>", Interval: time.Second, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func get(h http.Handler, method, path string) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Result()
}

func bodyOf(t testing.TB, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRoutes(t *testing.T) {
	full, empty := &fixedSource{snapshot: build()}, &fixedSource{}
	for _, c := range []struct {
		source       sidecar.Source
		method, path string
		status       int
		contentType  string
		contains     string
	}{
		{full, "GET", "/", 200, "text/html; charset=utf-8", "<title>Headroom</title>"},
		{full, "HEAD", "/", 200, "text/html; charset=utf-8", ""},
		{full, "GET", "/metrics", 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", "headroom_ratio{"},
		{full, "GET", "/api/v1/headroom", 200, "application/json; charset=utf-8", `"headroom_ratio":0.378906`},
		{full, "GET", "/api/v1/history", 200, "application/json; charset=utf-8", `"seconds":900`},
		{full, "GET", "/-/ready", 200, "text/plain; charset=utf-8", "Ready."},
		{empty, "GET", "/", 200, "text/html; charset=utf-8", "waiting for the first reading"},
		{empty, "GET", "/metrics", 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", "headroom_exporter_panics_total 0"},
		{empty, "GET", "/api/v1/headroom", 503, "application/json; charset=utf-8", `{"error":"waiting for the first reading"}`},
		{empty, "GET", "/api/v1/history", 503, "application/json; charset=utf-8", `{"error":"waiting for the first reading"}`},
		{empty, "GET", "/-/ready", 503, "text/plain; charset=utf-8", "no snapshot yet"},
		{full, "GET", "/nothing", 404, "text/plain; charset=utf-8", "nothing at /nothing"},
		{full, "GET", "/api/v2/headroom", 404, "application/json; charset=utf-8", `{"error":"there is nothing at /api/v2/headroom"}`},
		{full, "POST", "/api/v1/headroom", 405, "application/json; charset=utf-8", `{"error":"POST is not allowed here; use GET"}`},
		{full, "DELETE", "/", 405, "text/plain; charset=utf-8", "DELETE is not allowed here"},
		{full, "PUT", "/metrics", 405, "text/plain; charset=utf-8", "PUT is not allowed here"},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			r := get(handlerOf(t, c.source), c.method, c.path)
			body := bodyOf(t, r)
			if r.StatusCode != c.status || r.Header.Get("Content-Type") != c.contentType || !strings.Contains(body, c.contains) {
				t.Errorf("%d %q %.200q; want %d %q with %q", r.StatusCode, r.Header.Get("Content-Type"), body, c.status, c.contentType, c.contains)
			}
			for name, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"} {
				if got := r.Header.Get(name); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			if policy := r.Header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
				t.Errorf("Content-Security-Policy is %q", policy)
			}
			if c.status == 405 && r.Header.Get("Allow") != "GET, HEAD" {
				t.Errorf("Allow is %q", r.Header.Get("Allow"))
			}
		})
	}
}

func TestTelemetryPath(t *testing.T) {
	h, err := New(Config{Source: &fixedSource{snapshot: build()}, Registry: prometheus.NewRegistry(), Interval: time.Second, TelemetryPath: "/numbers", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if r := get(h, "GET", "/numbers"); r.StatusCode != 200 {
		t.Errorf("/numbers answers %d", r.StatusCode)
	}
	if r := get(h, "GET", "/metrics"); r.StatusCode != 404 {
		t.Errorf("/metrics answers %d, want 404", r.StatusCode)
	}
	if page := bodyOf(t, get(h, "GET", "/")); !strings.Contains(page, `<a href="numbers">`) {
		t.Error("the page does not link to the metrics' path")
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := func() Config {
		return Config{Source: &fixedSource{}, Registry: prometheus.NewRegistry(), Interval: time.Second, Logger: quiet}
	}
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"no source", func(c *Config) { c.Source = nil }, "Source"},
		{"no registry", func(c *Config) { c.Registry = nil }, "Registry"},
		{"no logger", func(c *Config) { c.Logger = nil }, "Logger"},
		{"no interval", func(c *Config) { c.Interval = 0 }, "Interval"},
		{"relative path", func(c *Config) { c.TelemetryPath = "metrics" }, "must begin with /"},
		{"the page's path", func(c *Config) { c.TelemetryPath = "/" }, "taken"},
		{"a path of the API", func(c *Config) { c.TelemetryPath = "/api/v1/headroom" }, "taken"},
		{"a path of health", func(c *Config) { c.TelemetryPath = "/-/ready" }, "taken"},
		{"a pattern", func(c *Config) { c.TelemetryPath = "/{metrics" }, "plain path"},
		{"a method", func(c *Config) { c.TelemetryPath = "/a b" }, "plain path"},
		{"registered twice", func(c *Config) {
			if _, err := New(*c); err != nil {
				t.Fatal(err)
			}
		}, "registering"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := good()
			c.change(&config)
			if _, err := New(config); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
		})
	}
}

func TestHealthy(t *testing.T) {
	for _, c := range []struct {
		name     string
		interval time.Duration
		snapshot bool
		wait     time.Duration
		status   int
		contains string
	}{
		{"fresh", time.Second, true, 400 * time.Millisecond, 200, "0.4 s old"},
		{"before the first", time.Second, false, 20 * time.Second, 200, "No snapshot yet"},
		{"never came", time.Second, false, 31 * time.Second, 503, "No snapshot yet; the exporter is 31.0 s old, more than 30 s"},
		{"just young enough", time.Second, true, 30 * time.Second, 200, "30.0 s old"},
		{"stuck", time.Second, true, 30001 * time.Millisecond, 503, "more than 30 s"},
		{"long interval", 10 * time.Second, true, 99 * time.Second, 200, "99.0 s old"},
		{"long interval, stuck", 10 * time.Second, true, 101 * time.Second, 503, "101.0 s old, more than 100 s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source := &fixedSource{}
				if c.snapshot {
					source.snapshot = build(func(s *sidecar.Snapshot) { s.At = time.Now() })
				}
				h, err := New(Config{Source: source, Registry: prometheus.NewRegistry(), Interval: c.interval, Logger: quiet})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(c.wait)
				r := get(h, "GET", "/-/healthy")
				if body := bodyOf(t, r); r.StatusCode != c.status || !strings.Contains(body, c.contains) {
					t.Errorf("%d %q, want %d with %q", r.StatusCode, body, c.status, c.contains)
				}
			})
		})
	}
}

// panicking is a live state that is broken for requests but not for scrapes.
type panicking struct {
	fixedSource
	broken bool
}

func (p *panicking) Snapshot() *sidecar.Snapshot {
	if p.broken {
		panic("a bug")
	}
	return p.fixedSource.Snapshot()
}

func TestPanicWhileAnswering(t *testing.T) {
	var log strings.Builder
	source := &panicking{fixedSource: fixedSource{snapshot: build()}}
	h, err := New(Config{Source: source, Registry: prometheus.NewRegistry(), Interval: time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	source.broken = true
	r := get(h, "GET", "/api/v1/headroom")
	var answer struct{ Error string }
	if err := json.Unmarshal([]byte(bodyOf(t, r)), &answer); err != nil || r.StatusCode != 500 || answer.Error == "" {
		t.Errorf("%d %+v %v, want a 500 with an error", r.StatusCode, answer, err)
	}
	if r := get(h, "GET", "/-/ready"); r.StatusCode != 500 {
		t.Errorf("/-/ready answers %d, want 500", r.StatusCode)
	}
	if !strings.Contains(log.String(), "a bug") || !strings.Contains(log.String(), "/api/v1/headroom") {
		t.Errorf("the log does not say what happened: %s", log.String())
	}
	// A scrape at that moment loses the snapshot, not the process.
	if r := get(h, "GET", "/metrics"); r.StatusCode != 200 {
		t.Errorf("/metrics answers %d while the source panics, want 200", r.StatusCode)
	}
	source.broken = false
	// One of the live loop, two of the requests, one of the scrape.
	if body := bodyOf(t, get(h, "GET", "/metrics")); !strings.Contains(body, "headroom_exporter_panics_total 4\n") {
		t.Error("the panics were not counted")
	}
}

// Half an answer that looks whole would be worse than none.
func TestPanicInTheMiddleOfAnAnswer(t *testing.T) {
	s := &server{Config: Config{Logger: quiet}}
	server := httptest.NewServer(s.guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := io.WriteString(w, "half"); err != nil {
			t.Error(err)
		}
		panic("a bug")
	})))
	defer server.Close()
	if r, err := server.Client().Get(server.URL); err == nil {
		defer r.Body.Close()
		if _, err := io.ReadAll(r.Body); err == nil {
			t.Error("the cut answer ended as if it were whole")
		}
	}
	if n := s.panics.Load(); n != 1 {
		t.Errorf("%d panics counted, want 1", n)
	}
}

func BenchmarkHeadroom(b *testing.B) {
	h := handlerOf(b, &fixedSource{snapshot: build(withGPUs)})
	b.ReportAllocs()
	for b.Loop() {
		get(h, "GET", "/api/v1/headroom")
	}
}
