package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Targets of the exporter with its rules; it must be below Prometheus as well.
const (
	targetRulesCPUShare = 0.01
	targetRulesRSS      = 64 << 20
)

// server is a program under measurement that answers /metrics.
type server struct {
	name    string
	address string
	cmd     *exec.Cmd
	log     bytes.Buffer

	ticks   int64
	scrapes []time.Duration
	m       measurement
	series  int // on its /metrics
	records int // recorded series
}

func startServer(ctx context.Context, name, program string, args func(address string) []string) (*server, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &server{name: name, address: address, cmd: exec.CommandContext(ctx, program, args(address)...)}
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.WaitDelay = time.Second
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return s, nil
}

// waitReady waits until the server says that it is ready.
func (s *server) waitReady(ctx context.Context) error {
	deadline := time.Now().Add(time.Minute)
	for {
		_, err := fetch(ctx, "http://"+s.address+"/-/ready")
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready after a minute: %w: %s", s.name, err, s.log.String())
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// scrape asks for /metrics, which takes what scrapes are measured by.
func (s *server) scrape(ctx context.Context) ([]byte, error) {
	begun := time.Now()
	body, err := fetch(ctx, "http://"+s.address+"/metrics")
	s.scrapes = append(s.scrapes, time.Since(begun))
	if err != nil {
		return nil, fmt.Errorf("scraping %s: %w", s.name, err)
	}
	s.series = 0
	for l := range bytes.Lines(body) {
		if l[0] != '#' {
			s.series++
		}
	}
	return body, nil
}

func (s *server) begin() (err error) {
	s.scrapes = nil
	s.ticks, err = processTicks(s.cmd.Process.Pid)
	return err
}

func (s *server) end(elapsed time.Duration) error {
	ticks, err := processTicks(s.cmd.Process.Pid)
	if err != nil {
		return fmt.Errorf("%s: %w: %s", s.name, err, s.log.String())
	}
	s.m.cpuShare = float64(ticks-s.ticks) / ticksPerSecond / elapsed.Seconds()
	s.m.scrapes = s.scrapes
	s.m.rss, err = residentBytes(s.cmd.Process.Pid)
	return err
}

func (s *server) print() {
	fmt.Printf("%-36s %8d %9d %9.2f%% %6.1f MiB %12s %12s\n", s.name, s.series, s.records, 100*s.m.cpuShare,
		float64(s.m.rss)/(1<<20), s.m.scrape(0.50).Round(10*time.Microsecond), s.m.scrape(0.99).Round(10*time.Microsecond))
}

// besidePrometheus runs the exporter and a Prometheus server at the same time,
// on the same page and the same rules, and prints what each cost.
func besidePrometheus(ctx context.Context, binary, prometheus, dir string, p *page, warmUp, duration time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	export := exec.CommandContext(ctx, binary, "export", "rules", filepath.Join(dir, "rules"))
	out, err := export.Output()
	if err != nil {
		return fmt.Errorf("exporting the rules: %w", err)
	}
	files := strings.Fields(string(out))
	rules, err := namesOf(files)
	if err != nil {
		return err
	}
	engine := httptest.NewServer(p)
	defer engine.Close()
	exporter, err := startServer(ctx, "headroom_exporter", binary, func(address string) []string {
		return []string{"serve", "--engine.url=" + engine.URL, "--web.listen-address=" + address, "--storage.path=" + filepath.Join(dir, "exporter"), "--slo.e2e=30s", "--log.level=warn"}
	})
	if err != nil {
		return err
	}
	defer exporter.cmd.Wait()
	defer cancel()
	if err := exporter.waitReady(ctx); err != nil {
		return err
	}
	in := newInputs(p)
	body, err := exporter.scrape(ctx)
	if err != nil {
		return err
	}
	in.take(body, rules.reads)
	derived := httptest.NewServer(in)
	defer derived.Close()
	if err := prometheusConfig(filepath.Join(dir, "prometheus.yml"), engine.URL, derived.URL, files, rules.reads); err != nil {
		return err
	}
	prom, err := startServer(ctx, "Prometheus", prometheus, func(address string) []string { return prometheusArgs(dir, address) })
	if err != nil {
		return err
	}
	defer prom.cmd.Wait()
	defer cancel()
	if err := prom.waitReady(ctx); err != nil {
		return err
	}

	second := func() error {
		body, err := exporter.scrape(ctx)
		if err != nil {
			return err
		}
		in.take(body, rules.reads)
		exporter.records = countNames(body, rules.records)
		_, err = prom.scrape(ctx)
		return err
	}
	if err := everySecond(ctx, warmUp, second); err != nil {
		return err
	}
	measured := []*server{exporter, prom}
	begun := time.Now()
	for _, s := range measured {
		if err := s.begin(); err != nil {
			return err
		}
	}
	if err := everySecond(ctx, duration, second); err != nil {
		return err
	}
	elapsed := time.Since(begun)
	for _, s := range measured {
		if err := s.end(elapsed); err != nil {
			return err
		}
	}
	if prom.records, err = recordedSeries(ctx, prom.address, rules.records); err != nil {
		return err
	}

	fmt.Printf("\n%-36s %8s %9s %10s %10s %12s %12s\n", fmt.Sprintf("with the shipped rules, %s", duration), "series", "recorded", "CPU share", "RSS", "scrape p50", "scrape p99")
	exporter.print()
	prom.print()
	fmt.Printf("%-36s %8s %9s %9.2f%% %6.1f MiB\n", "target, and below Prometheus", "", "", 100*targetRulesCPUShare, float64(targetRulesRSS)/(1<<20))
	if exporter.records == 0 || prom.records < exporter.records*9/10 {
		return fmt.Errorf("the exporter recorded %d series, Prometheus %d: they did not do the same work", exporter.records, prom.records)
	}
	e, s := &exporter.m, &prom.m
	if e.cpuShare > min(targetRulesCPUShare, s.cpuShare) || e.rss > min(targetRulesRSS, s.rss) || e.scrape(0.99) > s.scrape(0.99) {
		return fmt.Errorf("a target is missed")
	}
	return nil
}

// everySecond does something once a second.
func everySecond(ctx context.Context, duration time.Duration, do func() error) error {
	begun := time.Now()
	for n := time.Duration(1); n*time.Second <= duration; n++ {
		if err := pause(ctx, time.Until(begun.Add(n*time.Second))); err != nil {
			return err
		}
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// countNames counts the samples with one of the names.
func countNames(exposition []byte, names []string) int {
	n := 0
	for l := range bytes.Lines(exposition) {
		name, _, _ := strings.Cut(string(l), "{")
		name, _, _ = strings.Cut(name, " ")
		if slices.Contains(names, name) {
			n++
		}
	}
	return n
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", resp.Status, body)
	}
	return body, err
}
