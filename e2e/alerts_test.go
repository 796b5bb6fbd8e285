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
	"sync"
	"testing"
	"time"
)

// alertWait is how long an alert may take to arrive, or to end: the longest in
// these scenarios take three minutes.
const alertWait = 6 * time.Minute

// allAlerts runs the scenarios too whose outcome a busy machine may change.
var allAlerts = flag.Bool("alerts.all", false, "run the alert scenarios that need a quiet machine too (make bench-alerts)")

// ordinarySeeds is how many replicas have ordinary traffic beside the scenarios.
var ordinarySeeds = flag.Int("alerts.seeds", 4, "seeds of ordinary traffic that must page nobody")

// demoCurve is the simulated engine's capacity, with 256 sequence slots, for
// chats of 512 and 256 tokens and two other classes.
var demoCurve = filepath.Join("..", "demo_curve.json")

// azureCurve is its capacity for the conversations of the Azure trace.
var azureCurve = filepath.Join("testdata", "azure_curve.json")

// speed lets simulated engines run as fast as the rules.
var speed = fmt.Sprintf("--speed=%d", compression)

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
	var running sync.WaitGroup
	for _, scenario := range []struct {
		pool  string
		quiet bool
		run   func(*testing.T, *alertStack)
	}{
		{"ramp", false, func(t *testing.T, s *alertStack) { ramp{rise: 3600}.pagesBeforeTheSLO(t, s, "ramp") }},
		{"steep", true, func(t *testing.T, s *alertStack) { ramp{calm: 1200, rise: 1800}.pagesBeforeTheSLO(t, s, "steep") }},
		{"three", false, oneOfThreeKilled},
		{"ordinary", false, ordinaryTraffic},
		{"step", false, stepOverload},
		{"mismatch", false, curveOfAnotherEngine},
		{"gpu", false, gpuFails},
		{"killed", false, engineKilledAndRestarted},
	} {
		// Not parallel tests of their own: they wait for most of their time, and would keep others from running.
		running.Go(func() {
			t.Run(scenario.pool, func(t *testing.T) {
				if scenario.quiet && !*allAlerts {
					t.Skip("it needs a quiet machine: make bench-alerts")
				}
				t.Cleanup(func() {
					if t.Failed() {
						t.Logf("heard:\n%s\nalerts:\n%s", strings.Join(s.heard(scenario.pool), "\n"), s.alerts(scenario.pool))
					}
				})
				scenario.run(t, s)
			})
		})
	}
	running.Wait()
}

// replica starts an engine with a load and its sidecar, and has them scraped.
func (s *alertStack) replica(t *testing.T, pool string, engine []string, args ...string) (*simulator, *sidecar) {
	t.Helper()
	e := simulate(t, engine...)
	c := s.serve(t, e.url, args...)
	s.scrape(pool, pool+"-0", "a", e.url, c.url)
	return e, c
}

// ramp is a load of chats that is calm at first, then rises evenly, and goes
// away when it is a quarter more than the engine can serve.
type ramp struct{ calm, rise float64 } // seconds

const (
	rampFrom, rampTo = 5.0, 50.0 // requests per second
	rampEnd          = 43.0
	// Up to this rate the engine keeps the SLO: its knee for chats is 34.5.
	rampSafe = 31.0
)

func (r ramp) rate(at float64) float64 {
	rate := rampFrom + (rampTo-rampFrom)*max(0, at-r.calm)/r.rise
	if rate > rampEnd {
		return rampFrom
	}
	return rate
}

// pagesBeforeTheSLO: that headroom is lost pages before the 99th percentile of
// the time to first token is above the SLO.
func (r ramp) pagesBeforeTheSLO(t *testing.T, s *alertStack, pool string) {
	const slo = 2.5 // seconds, the sidecar's --slo.ttft
	load := writeTrace(t, arrivals(1, 3*3600, rampTo, r.rate))
	began := time.Now()
	s.replica(t, pool, []string{"--load=" + load, speed}, s.curve(t, demoCurve)...)
	page := s.wait(t, "pager", pool, "firing", "HeadroomPredictedLost", "HeadroomLow", "HeadroomLostFast")

	// Above for a minute, and at a rate at which that is the load's doing: an engine
	// that the machine did not let run is late too.
	safe := time.Duration((r.calm + r.rise*(rampSafe-rampFrom)/(rampTo-rampFrom)) / compression * 1e9)
	const minute = 60 * time.Second / compression
	over := fmt.Sprintf(`min_over_time(histogram_quantile(0.99, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{pool=%q}[%s])))[%s:1s]) > %g`, pool, minute, minute, slo)
	crossed := s.ask(t, "the 99th percentile of the time to first token crosses the SLO", over, began.Add(safe+minute))[0].at.Add(-minute)
	offered := func(at time.Time) float64 { return r.rate(at.Sub(began).Seconds() * compression) }
	lead := crossed.Sub(page.arrived)
	t.Logf("%s arrived at %.1f requests per second; the 99th percentile of the time to first token crossed %g s at %.1f, %.1f s later: a lead of %v in the engine's time",
		page.Labels["alertname"], offered(page.arrived), slo, offered(crossed), lead.Seconds(), (lead * compression).Round(time.Second))
	if lead <= 0 {
		s.wrong(t, "the page came %v after the SLO was missed", -lead)
	}
	if burn := s.seen("pager", pool, "firing", "HeadroomSLOBurn"); len(burn) > 0 && burn[0].arrived.Before(page.arrived) {
		s.wrong(t, "the error budget's alert came before the headroom's")
	}
	s.resolved(t, pool)
}

// A load that is suddenly far too high pages, also for the SLO, until it goes away.
func stepOverload(t *testing.T, s *alertStack) {
	const begin, end = 300.0, 1300.0 // seconds
	load := writeTrace(t, arrivals(2, 3*3600, 50, func(at float64) float64 {
		if at > begin && at < end {
			return 50
		}
		return 10
	}))
	began := time.Now()
	s.replica(t, "step", []string{"--load=" + load, speed}, s.curve(t, demoCurve)...)
	for _, name := range []string{"HeadroomLow", "HeadroomSLOBurn"} {
		page := s.wait(t, "pager", "step", "firing", name)
		t.Logf("%s arrived %.0f s after the step", name, page.arrived.Sub(began).Seconds()*compression-begin)
	}
	s.resolved(t, "step")
	t.Logf("all was resolved %.0f s after its end", time.Since(began).Seconds()*compression-end)
}

// An engine that is killed pages, and no more when it serves again.
func engineKilledAndRestarted(t *testing.T, s *alertStack) {
	args := []string{"--load=constant:10", speed}
	e, c := s.replica(t, "killed", args)
	s.serving(t, "killed", 1)
	e.kill()
	page := s.wait(t, "pager", "killed", "firing", "HeadroomEngineDown")
	if pod := page.Labels["pod"]; pod != "killed-0" {
		t.Errorf("the page is on pod %q", pod)
	}
	simulateAt(t, e.url[len("http://"):], args...)
	c.waitForState(startLimit, "ok", "idle")
	s.resolved(t, "killed")
}

// serving waits until Prometheus counts so many replicas of a pool.
func (s *alertStack) serving(t *testing.T, pool string, replicas int) {
	t.Helper()
	s.ask(t, fmt.Sprintf("pool %s has %d replicas", pool, replicas),
		fmt.Sprintf("pool:headroom_replicas:count{pool=%q} == %d and pool:headroom_load:avg", pool, replicas), time.Time{})
}

// An XID that only a reboot ends pages; heat that holds the clocks down pages.
func gpuFails(t *testing.T, s *alertStack) {
	g := newFakeGPUs(t, nil)
	e := simulate(t, "--load=constant:10", speed)
	c := g.serve(e.url, s.sidecarFlags()...)
	s.scrape("gpu", "gpu-0", "a", e.url, c.url)
	s.serving(t, "gpu", 1)

	g.say("0 clocks_event_reasons 64") // HW thermal
	throttled := 0
	s.within(t, "the pager hears of a throttled GPU", func() error {
		throttled += 100_000_000 // nanoseconds
		g.say(fmt.Sprintf("0 field.270 %d", throttled))
		if len(s.seen("pager", "gpu", "firing", "HeadroomGPUThrottled")) == 0 {
			return errors.New("it did not")
		}
		return nil
	})
	g.say("0 clocks_event_reasons 0", "0 event 1 8 79")
	page := s.wait(t, "pager", "gpu", "firing", "HeadroomGPUNeedsReboot")
	if page.Labels["uuid"] == "" {
		t.Errorf("the page does not say which GPU: %v", page.Labels)
	}
	// Nothing more is heard of it for 15 minutes.
	s.resolved(t, "gpu")
}

// A curve that was measured with other limits than the engine's does not count:
// that is a ticket, which wakes nobody.
func curveOfAnotherEngine(t *testing.T, s *alertStack) {
	began := time.Now()
	_, c := s.replica(t, "mismatch", []string{"--load=constant:10", "--max-num-seqs=128"}, "--curve.file="+demoCurve)
	ticket := s.wait(t, "tickets", "mismatch", "firing", "HeadroomCurveInvalid")
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
		s.wrong(t, "somebody was woken: %v", pages)
	}
}

// ordinaryTraffic replays conversations below the watermark: nobody is woken.
func ordinaryTraffic(t *testing.T, s *alertStack) {
	const (
		minutes = 40
		faster  = 3.2 // than it was recorded: near the watermark
	)
	conversations := readAzure(t, filepath.Join("..", "probe", "workload", "testdata", "azure_conv.csv"))
	curve := s.curve(t, azureCurve)
	began := time.Now()
	for seed := range *ordinarySeeds {
		load := writeTrace(t, shuffle(conversations, uint64(seed+1), minutes*60, faster))
		s.replica(t, ordinaryPool(seed), []string{"--load=" + load, speed, fmt.Sprintf("--seed=%d", seed+1)}, curve...)
	}
	time.Sleep(minutes * time.Minute / compression)
	var wrong []string
	for seed := range *ordinarySeeds {
		pool := ordinaryPool(seed)
		// Of a curve that does not count there is only a bound, which is no load to judge by.
		loads := s.history(t, fmt.Sprintf("pool:headroom_load:avg5m{pool=%q} and on (pool) headroom_curve_valid == 1", pool), began)
		highest := 0.0
		for _, p := range loads {
			highest = max(highest, p.value)
		}
		watermark := s.ask(t, "there is a watermark", fmt.Sprintf("headroom_curve_watermark_ratio{pool=%q}", pool), began)[0].value
		t.Logf("seed %d: a load of %.2f at most over 5 minutes, known for %d s, the watermark is %.2f; heard %v", seed+1, highest, len(loads), watermark, s.heard(pool))
		// Seconds that are known, at least for half an hour of the rules.
		if len(loads) < 1800/compression || highest < 0.5 || highest > watermark {
			wrong = append(wrong, fmt.Sprintf("seed %d: the load was not just below the watermark", seed+1))
		}
		if pages := s.unexplained(t, pool, began); len(pages) > 0 {
			wrong = append(wrong, fmt.Sprintf("seed %d: somebody was woken: %v", seed+1, pages))
		}
	}
	if len(wrong) > 0 {
		s.wrong(t, "%s", strings.Join(wrong, "; "))
	}
}

func ordinaryPool(seed int) string { return fmt.Sprintf("ordinary-%d", seed+1) }

// unexplained are the pages of a pool, without those that say that nothing is
// known of it where Prometheus did not get its pages in time: the compressed time
// leaves them a second, and on a busy machine that can be too short.
func (s *alertStack) unexplained(t *testing.T, pool string, since time.Time) []*notice {
	t.Helper()
	missed := s.history(t, fmt.Sprintf("up{pool=%q} == 0", pool), since)
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
