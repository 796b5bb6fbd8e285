package e2e

import (
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shortDay is a day's traffic in 40 seconds whose peak is more than the
// engine can take, with readings often enough to see each zone on the way up.
var shortDay = []string{"--load=day:60:40s", "--engine.interval=500ms"}

// startDemo starts the demo on free ports and returns the URL that it prints.
func startDemo(t *testing.T, args ...string) (*process, string) {
	t.Helper()
	args = append([]string{"demo", "--web.listen-address=" + freeAddress(t), "--engine.listen-address=" + freeAddress(t)}, args...)
	p := start(t, nil, args...)
	return p, printedURL(t, p)
}

var statusPage = regexp.MustCompile(`status page\s+(http://[0-9.:]+)/`)

// printedURL waits for the demo to say where to look, and for its metrics.
func printedURL(t *testing.T, p *process) string {
	t.Helper()
	var url string
	eventually(t, 10*time.Second, "the demo says where to look", func() error {
		found := statusPage.FindStringSubmatch(p.stdout.String())
		if found == nil {
			return fmt.Errorf("stdout is %q, stderr is %q", p.stdout.String(), p.stderr.String())
		}
		url = found[1]
		return nil
	})
	eventually(t, 10*time.Second, "the demo's metrics", func() error {
		_, err := get(url + "/metrics")
		return err
	})
	return url
}

func TestDemoMovesThroughTheZones(t *testing.T) {
	t.Parallel()
	_, url := startDemo(t, shortDay...)
	page := openPage(t, url+"/")
	seen := map[string]bool{}
	var highest, lowest float64 = 0, 1
	eventually(t, 2*time.Minute, "stable, risk and unstable are seen", func() error {
		h, err := getHeadroom(url)
		if err != nil {
			return err
		}
		if err := knowsHeadroom(h); err != nil {
			return err
		}
		r := h.Replicas[0]
		if r.Zone == nil || *r.Zone == "unknown" {
			return fmt.Errorf("zone is %v with a headroom of %v", value(r.Zone), *r.HeadroomRatio)
		}
		if err := zoneAgrees(*r.Zone, &r); err != nil {
			t.Error(err)
		}
		highest, lowest = max(highest, 1-*r.HeadroomRatio), min(lowest, 1-*r.HeadroomRatio)
		if !seen[*r.Zone] {
			seen[*r.Zone] = true
			page.shows(*r.Zone)
		}
		if len(seen) < 3 {
			return fmt.Errorf("zones seen: %q, load ratio from %.2f to %.2f", slices.Sorted(maps.Keys(seen)), lowest, highest)
		}
		return nil
	})
	t.Logf("load ratio moved from %.2f to %.2f", lowest, highest)
	page.isClean(url)
}

// zoneAgrees holds the zone against the worst of the constraints, each by its
// watermark: the curve has one of its own while it counts.
func zoneAgrees(zone string, r *replica) error {
	want := "stable"
	for constraint, ratio := range r.LoadRatio {
		watermark := 0.80
		if constraint == "curve" && r.Curve.Valid && r.Curve.WatermarkRatio != nil {
			watermark = *r.Curve.WatermarkRatio
		}
		switch {
		case ratio == nil || *ratio <= watermark:
		case *ratio > 1:
			want = "unstable"
		case want == "stable":
			want = "risk"
		}
	}
	if zone != want {
		return fmt.Errorf("zone is %s with the watermark of the curve at %v and the load ratios %s, want %s", zone, value(r.Curve.WatermarkRatio), loadRatios(r), want)
	}
	return nil
}

// loadRatios are those that are known, in words.
func loadRatios(r *replica) string {
	var known []string
	for _, constraint := range slices.Sorted(maps.Keys(r.LoadRatio)) {
		if ratio := r.LoadRatio[constraint]; ratio != nil {
			known = append(known, fmt.Sprintf("%s %v", constraint, *ratio))
		}
	}
	return strings.Join(known, ", ")
}

func TestMetricsPassPromtool(t *testing.T) {
	t.Parallel()
	promtool := tool(t, "promtool")
	_, url := startDemo(t, shortDay...)
	engine := simulate(t, constantLoad...)
	s := serve(t, engine.url)
	s.waitFor(startLimit, "headroom", knowsHeadroom)
	idle := serve(t, "http://"+freeAddress(t)) // nobody listens
	for name, url := range map[string]string{"demo": url, "serve": s.url, "engine down": idle.url} {
		page := mustGet(t, url+"/metrics")
		check := exec.Command(promtool, "check", "metrics")
		check.Stdin = strings.NewReader(string(page))
		if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: promtool check metrics: %v\n%s", name, err, out)
		}
	}
	// Without GPUs, for one rank, at most 300 series.
	if n := seriesOf(mustGet(t, s.url+"/metrics")); n > 300 {
		t.Errorf("serve exposes %d series for one rank without GPU, want at most 300", n)
	} else {
		t.Logf("serve exposes %d series for one rank without GPU", n)
	}
}

func TestTwoDemosAtOnce(t *testing.T) {
	t.Parallel()
	address, engineAddress := freeAddress(t), freeAddress(t)
	args := []string{"demo", "--web.listen-address=" + address, "--engine.listen-address=" + engineAddress}
	first := printedURL(t, start(t, nil, args...))
	if want := "http://" + address; first != want {
		t.Errorf("the first demo is at %s, want %s", first, want)
	}
	second := printedURL(t, start(t, nil, args...))
	if second == first {
		t.Fatalf("both demos say they are at %s", first)
	}
	for _, url := range []string{first, second} {
		eventually(t, startLimit, "headroom at "+url, func() error {
			h, err := getHeadroom(url)
			if err != nil {
				return err
			}
			return knowsHeadroom(h)
		})
	}
}

func TestEndings(t *testing.T) {
	t.Parallel()
	t.Run("duration", func(t *testing.T) {
		t.Parallel()
		p, _ := startDemo(t, "--duration=3s")
		if status := p.status(10 * time.Second); status != 0 {
			t.Errorf("exit status is %d, want 0", status)
		}
	})
	engine := simulate(t, "--load=off")
	commands := map[string][]string{
		"demo":     {"demo", "--engine.listen-address=127.0.0.1:0"},
		"serve":    {"serve", "--engine.url=" + engine.url},
		"simulate": {"simulate", "--load=constant:4"},
	}
	for name, args := range commands {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			t.Run(fmt.Sprintf("%s by %v", name, s), func(t *testing.T) {
				t.Parallel()
				address := freeAddress(t)
				p := start(t, nil, append(args, "--web.listen-address="+address)...)
				p.answers("/metrics", "http://"+address)
				p.signal(s)
				began := time.Now()
				if status := p.status(10 * time.Second); status != 0 {
					t.Errorf("exit status is %d, want 0", status)
				}
				// Two seconds are the drain's limit; the rest is for a busy machine.
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("ending took %v, want within 2 s", took)
				}
			})
		}
	}
}

// A client that reads a long stream must not hold the end up.
func TestEndingWithAnOpenStream(t *testing.T) {
	t.Parallel()
	engine := simulate(t, "--load=off", "--speed=0.1")
	stream := openStream(t, engine.url, modelName(t, engine.url), 64, 1000)
	engine.signal(syscall.SIGTERM)
	began := time.Now()
	if status := engine.status(10 * time.Second); status != 0 {
		t.Errorf("exit status is %d, want 0", status)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("ending took %v, want within 2 s", took)
	}
	stream.Close()
}
