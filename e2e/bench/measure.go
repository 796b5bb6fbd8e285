package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// measurement is what one run of the exporter cost.
type measurement struct {
	cpuShare       float64 // of one core, scrapes included
	rss            int64   // bytes at the end
	scrapes        []time.Duration
	bytesPerPoll   float64 // allocated, without the scrapes' part
	bytesPerScrape float64
}

// scrape returns a quantile of the scrapes' times, by nearest rank.
func (m *measurement) scrape(quantile float64) time.Duration {
	sorted := slices.Sorted(slices.Values(m.scrapes))
	rank := int(math.Ceil(quantile * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// measure runs the exporter on a page: first without scrapes, which gives the
// bytes that a poll allocates, then for the duration with one scrape a second.
func measure(ctx context.Context, binary string, p *page, warmUp, duration time.Duration) (*measurement, error) {
	engine := httptest.NewServer(p)
	defer engine.Close()
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var log bytes.Buffer
	exporter := exec.CommandContext(ctx, binary, "serve", "--no-rules.shipped", "--engine.url="+engine.URL, "--web.listen-address="+address)
	exporter.Stderr = &log
	exporter.WaitDelay = time.Second
	if err := exporter.Start(); err != nil {
		return nil, fmt.Errorf("starting the exporter: %w", err)
	}
	defer exporter.Wait()
	defer cancel()
	s := scraper{url: "http://" + address + "/metrics"}
	if err := s.waitReady(ctx); err != nil {
		return nil, fmt.Errorf("%w: %s", err, log.String())
	}
	if err := pause(ctx, warmUp); err != nil {
		return nil, err
	}

	begin, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, duration/3); err != nil {
		return nil, err
	}
	quiet, err := s.read(ctx)
	if err != nil {
		return nil, err
	}

	m := &measurement{}
	ticks, err := processTicks(exporter.Process.Pid)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	var end reading
	for second := time.Duration(1); second*time.Second <= duration; second++ {
		if err := pause(ctx, time.Until(start.Add(second*time.Second))); err != nil {
			return nil, err
		}
		if end, err = s.read(ctx); err != nil {
			return nil, err
		}
		m.scrapes = append(m.scrapes, end.took)
	}
	elapsed := time.Since(start)
	ticksEnd, err := processTicks(exporter.Process.Pid)
	if err != nil {
		return nil, err
	}
	m.cpuShare = float64(ticksEnd-ticks) / ticksPerSecond / elapsed.Seconds()
	if m.rss, err = residentBytes(exporter.Process.Pid); err != nil {
		return nil, err
	}
	if end.headroom == 0 {
		return nil, errors.New("the exporter published no headroom: the measurement would be of an exporter at rest")
	}
	// The quiet part holds one scrape, its own second one.
	quietPolls, scrapedPolls := quiet.polls-begin.polls, end.polls-quiet.polls
	scrapes := float64(len(m.scrapes))
	a, b := quiet.allocated-begin.allocated, end.allocated-quiet.allocated
	if quietPolls <= 0 || scrapedPolls <= 0 {
		return nil, fmt.Errorf("the exporter polled %v and %v times", quietPolls, scrapedPolls)
	}
	// a = quietPolls*poll + 1*scrape, b = scrapedPolls*poll + scrapes*scrape
	m.bytesPerPoll = (a*scrapes - b) / (quietPolls*scrapes - scrapedPolls)
	m.bytesPerScrape = a - quietPolls*m.bytesPerPoll
	return m, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("looking for a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// scraper reads the exporter's own metrics as Prometheus would.
type scraper struct {
	url    string
	client http.Client
}

// reading is one scrape.
type reading struct {
	took      time.Duration
	polls     float64
	allocated float64
	headroom  int // headroom series
}

func (s *scraper) waitReady(ctx context.Context) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		r, err := s.read(ctx)
		if err == nil && r.headroom > 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the exporter published no headroom within 30 s: %w", err)
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

func (s *scraper) read(ctx context.Context) (reading, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return reading{}, err
	}
	start := time.Now()
	resp, err := s.client.Do(req)
	if err != nil {
		return reading{}, fmt.Errorf("scraping: %w", err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	r := reading{took: time.Since(start)}
	if err != nil || resp.StatusCode != http.StatusOK {
		return r, fmt.Errorf("scraping: %s, %w", resp.Status, err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return r, fmt.Errorf("parsing the scrape: %w", err)
	}
	r.polls = valueOf(families["headroom_exporter_engine_polls_total"])
	r.allocated = valueOf(families["go_memstats_alloc_bytes_total"])
	r.headroom = len(families["headroom_ratio"].GetMetric())
	return r, nil
}

func valueOf(f *dto.MetricFamily) float64 {
	if len(f.GetMetric()) == 0 {
		return 0
	}
	return f.Metric[0].GetCounter().GetValue()
}

// ticksPerSecond is the unit of the times in /proc, fixed for user space.
const ticksPerSecond = 100

// processTicks returns the processor time of a process, user and system.
func processTicks(pid int) (int64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("reading the processor time: %w", err)
	}
	// The command's name, in parentheses, may hold spaces; utime and stime are
	// fields 14 and 15, so 12 and 13 after it.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("reading the processor time: %q is too short", stat)
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading the user time: %w", err)
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading the system time: %w", err)
	}
	return user + system, nil
}

// residentBytes returns the resident set of a process.
func residentBytes(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("reading the resident set: %w", err)
	}
	for l := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(l, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("reading the resident set: %w", err)
			}
			return kib << 10, nil
		}
	}
	return 0, errors.New("reading the resident set: /proc has no VmRSS")
}
