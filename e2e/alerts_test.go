package e2e

import (
	"bufio"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// alertWait is how long an alert may take to arrive, or to end: the longest in
// these scenarios take three minutes.
const alertWait = 6 * time.Minute

// allAlerts runs the scenarios that need a quiet machine too: they are about
// which of two things comes first.
var allAlerts = flag.Bool("alerts.all", false, "run the alert scenarios that need a quiet machine too (make bench-alerts)")

// ordinarySeeds is how many replicas have ordinary traffic beside the scenarios.
var ordinarySeeds = flag.Int("alerts.seeds", 4, "seeds of ordinary traffic that must page nobody")

// speed lets simulated engines run as fast as the rules.
var speed = fmt.Sprintf("--speed=%d", compression)

// poll is the interval of a sidecar beside an engine that runs fast.
const poll = "--engine.interval=500ms"

// serve starts a sidecar that evaluates its rules on compressed time.
func (s *alertStack) serve(t *testing.T, engineURL string, args ...string) *sidecar {
	t.Helper()
	return serve(t, engineURL, s.sidecarFlags(append(args, "--gpu.nvml=off")...)...)
}

func (s *alertStack) sidecarFlags(args ...string) []string {
	return append(args, "--no-rules.shipped", "--rules.file="+filepath.Join(s.dir, "sidecar", "*.yml"))
}

// The alerts, from the engine to who is woken: the product and simulated engines
// as processes, a Prometheus and an Alertmanager with what is shipped for them.
// Each scenario is a pool of its own. Time is compressed, order is not.
func TestAlerts(t *testing.T) {
	t.Parallel()
	s := startAlerts(t)
	// The longest first.
	for _, scenario := range []struct {
		pool  string
		quiet bool
		run   func(*testing.T, *alertStack)
	}{
		{"ramp", true, rampPagesBeforeTheSLO},
		{"three", true, oneOfThreeKilled},
		{"ordinary", true, ordinaryTraffic},
		{"step", true, stepOverload},
		{"mismatch", false, curveOfAnotherEngine},
		{"gpu", false, gpuFails},
		{"killed", false, engineKilledAndRestarted},
	} {
		t.Run(scenario.pool, func(t *testing.T) {
			if scenario.quiet && !*allAlerts {
				t.Skip("it needs a quiet machine: make bench-alerts")
			}
			t.Parallel()
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("heard:\n%s\nalerts:\n%s", strings.Join(s.heard(scenario.pool), "\n"), s.alerts(scenario.pool))
				}
			})
			scenario.run(t, s)
		})
	}
}

// replica starts an engine with a load and its sidecar, and has them scraped.
func (s *alertStack) replica(t *testing.T, pool string, engine []string, args ...string) (*simulator, *sidecar) {
	t.Helper()
	e := simulate(t, engine...)
	c := s.serve(t, e.url, args...)
	s.scrape(pool, pool+"-0", "a", e.url, c.url)
	return e, c
}

// A load that is steady for 20 minutes, so that there is a past to compare with,
// then rises within half an hour to more than the engine can serve, and goes
// away: it pages that headroom is lost before the 99th percentile of the time to
// first token is above the SLO.
func rampPagesBeforeTheSLO(t *testing.T, s *alertStack) {
	const slo = 2.5 // seconds, the sidecar's --slo.ttft
	load := writeTrace(t, arrivals(1, 6*3600, 50, func(at float64) float64 {
		if at < 1200 || at > 2700 {
			return 5
		}
		return 5 + 45*(at-1200)/1800
	}))
	began := time.Now()
	s.replica(t, "ramp", []string{"--load=" + load, speed}, poll)
	page := s.wait(t, alertWait, "pager", "ramp", "firing", "HeadroomPredictedLost", "HeadroomLow")

	// Above for a minute: an engine that the machine did not let run is late too.
	const minute = 60 * time.Second / compression
	over := fmt.Sprintf(`min_over_time(histogram_quantile(0.99, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{pool="ramp"}[%s])))[%s:1s]) > %g`, minute, minute, slo)
	crossed := s.ask(t, alertWait, "the 99th percentile of the time to first token crosses the SLO", over, began)[0].at.Add(-minute)
	lead := crossed.Sub(page.arrived)
	t.Logf("%s arrived after %.0f s, %.1f s before the 99th percentile of the time to first token crossed %g s: a lead of %v in the engine's time",
		page.Labels["alertname"], page.arrived.Sub(began).Seconds(), lead.Seconds(), slo, (lead * compression).Round(time.Second))
	if lead <= 0 {
		t.Errorf("the page came %v after the SLO was missed", -lead)
	}
	if burn := s.seen("pager", "ramp", "firing", "HeadroomSLOBurn"); len(burn) > 0 && burn[0].arrived.Before(page.arrived) {
		t.Error("the error budget's alert came before the headroom's")
	}
	s.resolved(t, alertWait, "ramp")
}

// A load that is suddenly far too high pages, also for the SLO, until it goes away.
func stepOverload(t *testing.T, s *alertStack) {
	load := writeTrace(t, arrivals(2, 6*3600, 50, func(at float64) float64 {
		if at > 300 && at < 1300 {
			return 50
		}
		return 10
	}))
	s.replica(t, "step", []string{"--load=" + load, speed}, poll)
	for _, name := range []string{"HeadroomLow", "HeadroomSLOBurn"} {
		s.wait(t, alertWait, "pager", "step", "firing", name)
	}
	s.resolved(t, alertWait, "step")
}

// An engine that is killed pages, and no more when it serves again.
func engineKilledAndRestarted(t *testing.T, s *alertStack) {
	args := []string{"--load=constant:10", speed}
	e, c := s.replica(t, "killed", args, poll)
	s.serving(t, "killed", 1)
	e.kill()
	page := s.wait(t, alertWait, "pager", "killed", "firing", "HeadroomEngineDown")
	if pod := page.Labels["pod"]; pod != "killed-0" {
		t.Errorf("the page is on pod %q", pod)
	}
	simulateAt(t, e.url[len("http://"):], args...)
	c.waitForState(startLimit, "ok", "idle")
	s.resolved(t, alertWait, "killed")
}

// serving waits until Prometheus counts so many replicas of a pool.
func (s *alertStack) serving(t *testing.T, pool string, replicas int) {
	t.Helper()
	s.ask(t, alertWait, fmt.Sprintf("pool %s has %d replicas", pool, replicas),
		fmt.Sprintf("pool:headroom_replicas:count{pool=%q} == %d and pool:headroom_load:avg", pool, replicas), time.Time{})
}

// An XID that only a reboot ends pages; heat that holds the clocks down pages.
func gpuFails(t *testing.T, s *alertStack) {
	g := newFakeGPUs(t, nil)
	e := simulate(t, "--load=constant:10", speed)
	c := g.serve(e.url, s.sidecarFlags(poll)...)
	s.scrape("gpu", "gpu-0", "a", e.url, c.url)
	s.serving(t, "gpu", 1)

	g.say("0 clocks_event_reasons 64") // HW thermal
	throttled := 0
	eventually(t, alertWait, "the pager hears of a throttled GPU", func() error {
		throttled += 500_000_000 // nanoseconds
		g.say(fmt.Sprintf("0 field.270 %d", throttled))
		if len(s.seen("pager", "gpu", "firing", "HeadroomGPUThrottled")) == 0 {
			time.Sleep(time.Second)
			return errors.New("it did not")
		}
		return nil
	})
	g.say("0 clocks_event_reasons 0", "0 event 1 8 79")
	page := s.wait(t, alertWait, "pager", "gpu", "firing", "HeadroomGPUNeedsReboot")
	if page.Labels["uuid"] == "" {
		t.Errorf("the page does not say which GPU: %v", page.Labels)
	}
	// Nothing more is heard of it for 15 minutes.
	s.resolved(t, alertWait, "gpu")
}

// A curve that was measured with other limits than the engine's does not count:
// that is a ticket, which wakes nobody.
func curveOfAnotherEngine(t *testing.T, s *alertStack) {
	curve := filepath.Join("..", "demo_curve.json") // of 256 sequence slots
	began := time.Now()
	_, c := s.replica(t, "mismatch", []string{"--load=constant:10", "--max-num-seqs=128"}, "--curve.file="+curve)
	ticket := s.wait(t, alertWait, "tickets", "mismatch", "firing", "HeadroomCurveInvalid")
	t.Logf("%s", ticket.Annotations["description"])
	reasons, err := getSamples(c.url)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for series, value := range reasons {
		found = found || value == 1 && contains(series, "headroom_curve_invalid_reason{", `reason="identity_max_num_seqs"`)
	}
	if !found {
		t.Error("the sidecar does not name the limit that differs")
	}
	if pages := s.unexplained(t, "mismatch", began); len(pages) > 0 {
		t.Errorf("somebody was woken: %v", pages)
	}
}

// ordinaryTraffic replays conversations below the watermark: nobody is woken.
func ordinaryTraffic(t *testing.T, s *alertStack) {
	const (
		minutes = 40
		faster  = 2.0 // than it was recorded, so that the load is below the watermark, but not by far
	)
	conversations := readAzure(t, filepath.Join("..", "probe", "workload", "testdata", "azure_conv.csv"))
	began := time.Now()
	for seed := range *ordinarySeeds {
		pool := fmt.Sprintf("ordinary-%d", seed+1)
		load := writeTrace(t, shuffle(conversations, uint64(seed+1), minutes*60, faster))
		s.replica(t, pool, []string{"--load=" + load, speed, fmt.Sprintf("--seed=%d", seed+1)}, poll)
	}
	time.Sleep(minutes * time.Minute / compression)
	for seed := range *ordinarySeeds {
		pool := fmt.Sprintf("ordinary-%d", seed+1)
		loads, err := s.query(fmt.Sprintf("pool:headroom_load:avg5m{pool=%q}", pool), began, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		highest := 0.0
		for _, p := range loads {
			highest = max(highest, p.value)
		}
		t.Logf("seed %d: the load was known for %d s and %.2f at most over 5 minutes; heard %v", seed+1, len(loads), highest, s.heard(pool))
		// Seconds that are known, at least for half an hour of the rules.
		if len(loads) < 1800/compression || highest < 0.1 {
			t.Errorf("seed %d: the load was hardly there", seed+1)
		}
		if pages := s.unexplained(t, pool, began); len(pages) > 0 {
			t.Errorf("seed %d: somebody was woken: %v", seed+1, pages)
		}
	}
}

// unexplained are the pages of a pool, without those that say that nothing is
// known of it where Prometheus did not get its pages in time: the compressed time
// leaves them a second, and on a busy machine that can be too short.
func (s *alertStack) unexplained(t *testing.T, pool string, since time.Time) []*notice {
	t.Helper()
	missed, err := s.query(fmt.Sprintf("up{pool=%q} == 0", pool), since, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(s.seen("pager", pool, "firing"), func(n *notice) bool {
		name := n.Labels["alertname"]
		return len(missed) > 0 && (name == "HeadroomUnknown" || name == "HeadroomAbsent")
	})
}

// readAzure reads a sample of the Azure traces.
func readAzure(t *testing.T, path string) (all []record) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(bufio.NewReader(f)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var first time.Time
	for _, row := range rows[1:] {
		at, err := time.Parse("2006-01-02 15:04:05.9999999", row[0])
		if err != nil {
			t.Fatal(err)
		}
		if first.IsZero() {
			first = at
		}
		prompt, err1 := strconv.Atoi(row[1])
		output, err2 := strconv.Atoi(row[2])
		if err1 != nil || err2 != nil {
			t.Fatalf("%s: lengths are %q", path, row)
		}
		all = append(all, record{at.Sub(first).Seconds(), prompt, output})
	}
	return all
}

// shuffle draws pieces of 10 seconds of a trace, which stay whole, until there is
// enough: bursts and lengths are those of the trace.
func shuffle(trace []record, seed uint64, until, faster float64) (all []record) {
	const piece = 10.0
	rng := rand.New(rand.NewPCG(seed, 1))
	last := trace[len(trace)-1].at
	for begin := 0.0; begin < until*faster; begin += piece {
		from := rng.Float64() * (last - piece)
		for _, r := range trace {
			if r.at >= from && r.at < from+piece {
				all = append(all, record{(begin + r.at - from) / faster, r.prompt, r.output})
			}
		}
	}
	return all
}
