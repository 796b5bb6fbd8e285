package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// constantLoad keeps the small simulated engine busy, far from full.
var constantLoad = []string{"--load=constant:4"}

func TestEngineKilledAndBack(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	engine := simulateAt(t, address, constantLoad...)
	s := serve(t, engine.url)
	s.waitFor(startLimit, "headroom of a live engine", knowsHeadroom)

	engine.kill()
	h := s.waitForState(startLimit, "down")
	if h.Engine.Reason != "connection_refused" {
		t.Errorf("reason is %q, want connection_refused", h.Engine.Reason)
	}
	if err := publishesNoHeadroom(s.url); err != nil {
		t.Errorf("with a dead engine: %v", err)
	}
	mustGet(t, s.url+"/-/healthy") // the sidecar itself is well

	simulateAt(t, address, constantLoad...)
	s.mustRecover()
}

func TestEngineStoppedAndContinued(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	s := serve(t, engine.url)
	s.waitFor(startLimit, "headroom of a live engine", knowsHeadroom)

	engine.signal(syscall.SIGSTOP)
	// Neither the page nor the health check answers any more.
	h := s.waitForState(startLimit, "down", "stale")
	if h.Engine.Reason != "timeout" {
		t.Errorf("reason is %q, want timeout", h.Engine.Reason)
	}
	if err := publishesNoHeadroom(s.url); err != nil {
		t.Errorf("with a stopped engine: %v", err)
	}
	engine.signal(syscall.SIGCONT)
	// Its first answers may still be to requests long given up.
	s.answers("/metrics", engine.url)
	s.mustRecover()
}

// TestFaultyPages breaks the metrics page in every way that a network or an
// engine does. Each time the state must say so, no headroom may be told, the
// engine may never see two requests at once, and two polls after the page is
// well again headroom must be back.
func TestFaultyPages(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	frozenPage, err := os.ReadFile(filepath.Join("testdata", "vllm-0.32-loaded-queued.prom"))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		fault   fault
		all     bool // every page, the health check included
		states  []string
		reasons []string
	}{
		{name: "page hangs", fault: hang, states: []string{"stale"}, reasons: []string{"timeout"}},
		{name: "everything hangs", fault: hang, all: true, states: []string{"down"}, reasons: []string{"timeout"}},
		{name: "page drips", fault: drip, states: []string{"stale"}, reasons: []string{"timeout"}},
		{name: "page cut off", fault: cut, states: []string{"stale"}, reasons: []string{"truncated"}},
		{name: "page ends within a line", fault: cutLine, states: []string{"stale"}, reasons: []string{"truncated", "not_metrics", "parse_error"}},
		{name: "page too large", fault: grown(17 << 20), states: []string{"stale"}, reasons: []string{"too_large"}},
		{name: "HTML", fault: html, states: []string{"stale"}, reasons: []string{"not_metrics"}},
		{name: "401", fault: status(401), states: []string{"stale"}, reasons: []string{"unauthorized"}},
		{name: "503 page", fault: status(503), states: []string{"stale"}, reasons: []string{"http_503"}},
		{name: "503 everywhere", fault: status(503), all: true, states: []string{"down", "loading"}, reasons: []string{"http_503"}},
		{name: "gauges frozen", fault: frozen(frozenPage), states: []string{"stale"}, reasons: []string{"gauges_frozen"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			proxy := newFaultProxy(t, engine.url)
			s := serve(t, proxy.server.URL)
			s.waitFor(startLimit, "headroom of a live engine", knowsHeadroom)

			proxy.answerWith(test.fault, test.all)
			h := s.waitForState(startLimit+15*time.Second, test.states...)
			if reasons := reasonsOf(h); !slices.ContainsFunc(test.reasons, func(want string) bool { return strings.Contains(reasons, want) }) {
				t.Errorf("reasons are %q, want one of %q", reasons, test.reasons)
			}
			if err := publishesNoHeadroom(s.url); err != nil {
				t.Error(err)
			}
			proxy.mend()
			s.mustRecover()
			if n := proxy.overlaps.Load(); n > 0 {
				t.Errorf("%d of %d requests came while another was in flight", n, proxy.requests.Load())
			}
		})
	}
}

// reasonsOf joins the reason codes of the engine and the words of its replicas.
func reasonsOf(h *headroom) string {
	reasons := []string{h.Engine.Reason}
	for _, r := range h.Replicas {
		reasons = append(reasons, r.Reasons...)
	}
	return strings.Join(reasons, "; ")
}

// Pages that are odd but whole must not cost the headroom.
func TestOddPagesAreRead(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	for _, test := range []struct {
		name  string
		fault fault
		check func(exposition) error
	}{
		{"10 MB", grown(10_000_000), func(m exposition) error {
			if n, _ := m.sum("headroom_engine_series"); n < 100_000 {
				return fmt.Errorf("the page had %v series, want over 100,000", n)
			}
			return nil
		}},
		{"samples twice", doubled, func(m exposition) error {
			if n, _ := m.sum("headroom_exporter_engine_duplicate_samples_total"); n < 1 {
				return fmt.Errorf("%v duplicate samples are counted", n)
			}
			return nil
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			proxy := newFaultProxy(t, engine.url)
			proxy.answerWith(test.fault, false)
			s := serve(t, proxy.server.URL)
			s.waitFor(startLimit, "headroom", knowsHeadroom)
			eventually(t, startLimit, "metrics", func() error {
				m, err := getMetrics(s.url)
				if err != nil {
					return err
				}
				return test.check(m)
			})
			h := s.waitFor(startLimit, "headroom", knowsHeadroom)
			if running := h.Replicas[0].Requests.Running; running == nil || *running > 256 {
				t.Errorf("running is %v", value(running))
			}
			if n := proxy.overlaps.Load(); n > 0 {
				t.Errorf("%d of %d requests came while another was in flight", n, proxy.requests.Load())
			}
		})
	}
}
