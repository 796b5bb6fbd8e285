// Command bench measures what the exporter costs while it polls an engine
// once a second and is scraped once a second: processor time, memory and the
// time of a scrape. It prints the targets beside the figures, and fails when
// one is missed. First the reading alone is measured; then, with the recording
// rules, the exporter beside a Prometheus server that does the same work in the
// same minutes.
//
// Run it from the e2e folder: go run ./bench. The server is built by make.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"
)

// Targets, from the product's design.
const (
	targetCPUShare  = 0.005
	targetRSS       = 40 << 20
	targetScrapeP99 = 5 * time.Millisecond
)

func main() {
	duration := flag.Duration("duration", 60*time.Second, "time for which the reading of each page is measured; 0 leaves that out")
	warmUp := flag.Duration("warm-up", 10*time.Second, "time before that, not measured")
	page := flag.String("page", filepath.Join("testdata", "vllm-0.32-loaded-queued.prom"), "metrics page of an engine")
	beside := flag.Duration("beside", 10*time.Minute, "time for which the exporter is measured beside Prometheus; 0 leaves that out")
	prometheus := flag.String("prometheus", filepath.Join("bin", "prometheus"), "Prometheus server to measure beside")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *page, *warmUp, *duration, *beside, *prometheus); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, pageFile string, warmUp, duration, beside time.Duration, prometheus string) error {
	text, err := os.ReadFile(pageFile)
	if err != nil {
		return fmt.Errorf("reading the page: %w", err)
	}
	dir, err := os.MkdirTemp("", "headroom-bench-")
	if err != nil {
		return fmt.Errorf("folder for the binary: %w", err)
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "headroom_exporter")
	build := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", binary, ".") // as it ships
	build.Dir = ".."                                                                         // a module of its own
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("building the exporter: %w", err)
	}

	one := newPage(string(text))
	if duration > 0 {
		err = readingAlone(ctx, binary, one, warmUp, duration)
	}
	if beside > 0 {
		err = errors.Join(err, besidePrometheus(ctx, binary, prometheus, dir, one, 3*warmUp, beside))
	}
	return err
}

// readingAlone measures the exporter without rules, and prints what it cost.
func readingAlone(ctx context.Context, binary string, one *page, warmUp, duration time.Duration) error {
	pages := []struct {
		name string
		page *page
	}{
		{"vLLM 0.32, one rank", one},
		{"vLLM 0.32, ranks up to 2,000 series", one.withSeries(2000)},
	}
	missed := false
	fmt.Printf("%-36s %8s %10s %10s %12s %12s %14s %14s\n", "page polled each second", "series", "CPU share", "RSS", "scrape p50", "scrape p99", "bytes/poll", "bytes/scrape")
	for _, p := range pages {
		m, err := measure(ctx, binary, p.page, warmUp, duration)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Printf("%-36s %8d %9.2f%% %6.1f MiB %12s %12s %14.0f %14.0f\n", p.name, p.page.series, 100*m.cpuShare,
			float64(m.rss)/(1<<20), m.scrape(0.50).Round(10*time.Microsecond), m.scrape(0.99).Round(10*time.Microsecond), m.bytesPerPoll, m.bytesPerScrape)
		missed = missed || m.cpuShare > targetCPUShare || m.rss > targetRSS || m.scrape(0.99) > targetScrapeP99
	}
	fmt.Printf("%-36s %8s %9.2f%% %6.1f MiB %12s %12s\n", "target", "", 100*targetCPUShare, float64(targetRSS)/(1<<20), "", targetScrapeP99)
	if missed {
		return errors.New("a target of reading alone is missed")
	}
	return nil
}
