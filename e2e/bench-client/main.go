// Bench-client measures the probe's client as its peers were measured: a
// server of exact timing on one core, the client on another. Where vLLM is
// installed (E2E_VLLM_DIR), its own client runs against the same server.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// binary of the product, as `make build` leaves it.
const binary = "../bin/headroom_exporter"

// realtime keeps other processes of the machine from being measured too.
var realtime = flag.Bool("realtime", false, "run client and server with real-time priority (chrt -f 1), as on an idle machine; takes two cores from everything else")

// limit bounds the whole bench.
const limit = 10 * time.Minute

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := bench(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench-client:", err)
		os.Exit(1)
	}
}

// on returns a command that runs on one core with one scheduler thread.
func on(ctx context.Context, core int, name string, args ...string) *exec.Cmd {
	line := append([]string{name}, args...)
	if path, err := exec.LookPath("taskset"); err == nil {
		line = append([]string{path, "-c", strconv.Itoa(core)}, line...)
	}
	if *realtime {
		line = append([]string{"chrt", "-f", "1"}, line...)
	}
	c := exec.CommandContext(ctx, line[0], line[1:]...)
	c.Env = append(os.Environ(), "GOMAXPROCS=1")
	c.WaitDelay = time.Second
	return c
}

func bench(ctx context.Context, out io.Writer) error {
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("%s is not there: run make build", binary)
	}
	ctx, cancel := context.WithCancel(ctx)
	server := on(ctx, 0, binary, "null-server")
	said, err := server.StdoutPipe()
	if err != nil {
		cancel()
		return err
	}
	if err := server.Start(); err != nil {
		cancel()
		return fmt.Errorf("starting the null server: %w", err)
	}
	defer server.Wait()
	defer cancel()
	var address string
	if _, err := fmt.Fscanln(said, &address); err != nil {
		return fmt.Errorf("the null server says no address: %w", err)
	}

	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Fprintf(out, "One core for the client, one for the server; load average before: %s\n", strings.TrimSpace(string(load)))
	client := on(ctx, 1, binary, "probe", "--self-test", "--self-test.server="+address, "--output=json")
	client.Stderr = os.Stderr
	begin := time.Now()
	raw, err := client.Output()
	if err != nil {
		return fmt.Errorf("the self-test: %w", err)
	}
	var r report
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("reading the self-test: %w", err)
	}
	fmt.Fprintf(out, "Self-test took %.0f s.\n\n", time.Since(begin).Seconds())
	r.write(out)
	return peer(ctx, out, "http://"+address)
}

// report is what the bench reads of `probe --self-test --output=json`.
type report struct {
	FirstRequest float64 `json:"first_request_s"`
	ShortRate    float64 `json:"short_requests_per_second"`
	ShortCore    float64 `json:"short_requests_per_second_per_core"`
	Streams      float64 `json:"paced_streams"`
	PacedRate    float64 `json:"paced_events_per_second"`
	PacedCore    float64 `json:"paced_events_per_second_per_core"`
	Coalesced    float64 `json:"coalesced_events_per_second"`
	Allocations  float64 `json:"allocations_per_event"`
	MaxRSS       float64 `json:"max_rss_bytes"`
	RSSStreams   float64 `json:"max_rss_streams"`
	Light        accuracy
	Steady       accuracy
	Half         accuracy
}

type accuracy struct {
	LagP50        float64 `json:"lag_p50_s"`
	LagP99        float64 `json:"lag_p99_s"`
	TTFT          bias    `json:"ttft_bias_s"`
	TTFTSent      bias    `json:"ttft_sent_bias_s"`
	ITL           bias    `json:"itl_bias_s"`
	TPOT          bias    `json:"tpot_bias_s"`
	E2E           bias    `json:"e2e_bias_s"`
	Events        float64 `json:"events_per_second"`
	ServerLateP99 float64 `json:"server_late_p99_s"`
}

// bias is the client's quantile less the server's own, in seconds.
type bias struct{ P50, P99 float64 }

// write prints every figure beside its target.
func (r *report) write(out io.Writer) {
	fmt.Fprintln(out, "| | measured | target | |")
	fmt.Fprintln(out, "| --- | ---: | ---: | --- |")
	type row struct {
		what            string
		measured, bound float64
		unit            string
		least           bool
	}
	rows := []row{
		{"paced events/s reached", r.PacedRate, 40000, "", true},
		{"paced events/s, 1 / CPU time", r.PacedCore, 40000, "", true},
		{"coalesced events/s reached", r.Coalesced, 150000, "", true},
		{"short requests/s reached", r.ShortRate, 4000, "", true},
		{"short requests/s, 1 / CPU time", r.ShortCore, 4000, "", true},
		{"first answer after", r.FirstRequest * 1e3, 1000, " ms", false},
		{fmt.Sprintf("resident memory up to %.0f streams", r.RSSStreams), r.MaxRSS / 1e6, 100, " MB", false},
	}
	for _, row := range rows {
		sign, good := "<", row.measured < row.bound
		if row.least {
			sign, good = ">=", row.measured >= row.bound
		}
		verdict := "ok"
		if !good {
			verdict = "NOT REACHED"
		}
		fmt.Fprintf(out, "| %s | %s%s | %s %s%s | %s |\n", row.what, short(row.measured), row.unit, sign, short(row.bound), row.unit, verdict)
	}
	r.writeAccuracy(out)
	fmt.Fprintf(out, "\n%.0f streams at the paced peak, %.1f allocations an event. The server's own first token was late at p99 by %.2g, %.2g and %.2g ms.\n",
		r.Streams, r.Allocations, r.Light.ServerLateP99*1e3, r.Steady.ServerLateP99*1e3, r.Half.ServerLateP99*1e3)
}

// writeAccuracy prints how far the client's words are from the server's; each
// p50 and p99 should be within 1 ms.
func (r *report) writeAccuracy(out io.Writer) {
	at := []accuracy{r.Light, r.Steady, r.Half}
	fmt.Fprint(out, "\n| ms at p50, p99 (target: within 1) |")
	for _, a := range at {
		fmt.Fprintf(out, " %.0f events/s |", a.Events)
	}
	fmt.Fprintln(out, "\n| --- | ---: | ---: | ---: |")
	for _, row := range []struct {
		what string
		of   func(accuracy) bias
	}{
		{"schedule lag", func(a accuracy) bias { return bias{a.LagP50, a.LagP99} }},
		{"bias of TTFT, which holds the lag", func(a accuracy) bias { return a.TTFT }},
		{"bias of TTFT from the first byte sent", func(a accuracy) bias { return a.TTFTSent }},
		{"bias of ITL", func(a accuracy) bias { return a.ITL }},
		{"bias of TPOT", func(a accuracy) bias { return a.TPOT }},
		{"bias of E2E, which holds the lag", func(a accuracy) bias { return a.E2E }},
	} {
		fmt.Fprintf(out, "| %s |", row.what)
		for _, a := range at {
			b, verdict := row.of(a), "ok"
			if math.Abs(b.P50) >= 1e-3 || math.Abs(b.P99) >= 1e-3 {
				verdict = "NOT REACHED"
			}
			fmt.Fprintf(out, " %.3f, %.3f %s |", b.P50*1e3, b.P99*1e3, verdict)
		}
		fmt.Fprintln(out)
	}
}

// short writes a number with three digits at most, without an exponent.
func short(v float64) string {
	if math.Abs(v) >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// stats is what the null server saw.
type stats struct {
	Requests int     `json:"requests"`
	Events   int     `json:"events"`
	First    float64 `json:"first"`
	Last     float64 `json:"last"`
}

// peer runs vLLM's own client, where it is.
func peer(ctx context.Context, out io.Writer, url string) error {
	dir := os.Getenv("E2E_VLLM_DIR")
	if dir == "" {
		fmt.Fprintln(out, "\nvLLM's client is not measured: E2E_VLLM_DIR is not set.")
		return nil
	}
	model := os.Getenv("E2E_VLLM_MODEL")
	if model == "" {
		model = "tiny"
	}
	v := vllm{program: filepath.Join(dir, "venv", "bin", "vllm"), tokenizer: filepath.Join(dir, model), url: url}
	base, err := v.run(ctx, `{}`, 30, 2, "--max-concurrency", "8")
	if err != nil {
		return fmt.Errorf("vllm bench serve: %w", err)
	}
	const brief, paced, tokens = 3000, 1500, 32
	a, err := v.run(ctx, `{}`, brief, 1, "--max-concurrency", "64")
	if err != nil {
		return fmt.Errorf("vllm bench serve, short: %w", err)
	}
	b, err := v.run(ctx, `{"ttft_ns":200000000,"itl_ns":20000000}`, paced, tokens, "--request-rate", "150")
	if err != nil {
		return fmt.Errorf("vllm bench serve, paced: %w", err)
	}
	fmt.Fprintf(out, "\nvllm bench serve on the same core: %.0f short requests/s, %s by 1 / CPU time; %s paced events/s by 1 / CPU time; %.0f s for 30 requests.\n",
		float64(a.seen.Requests)/(a.seen.Last-a.seen.First), perCPU(brief, a.cpu-base.cpu), perCPU(paced*tokens, b.cpu-base.cpu), base.wall)
	return nil
}

// perCPU is how many a second of CPU time does. What a run costs is less the
// cost of starting, which on a busy machine may differ by more than the run.
func perCPU(n, cpu float64) string {
	if cpu <= 0 {
		return "unknown"
	}
	return short(n / cpu)
}

type vllm struct{ program, tokenizer, url string }

type cost struct {
	cpu, wall float64
	seen      stats
}

// run sets the server's timing and sends requests of 16 prompt tokens.
func (v vllm) run(ctx context.Context, timing string, requests, output int, args ...string) (cost, error) {
	for _, step := range []struct{ path, body string }{{"/null/config", timing}, {"/null/stats", ""}} {
		if err := ask(ctx, v.url+step.path, step.body, nil); err != nil {
			return cost{}, err
		}
	}
	args = append([]string{
		"bench", "serve", "--backend", "openai", "--base-url", v.url, "--model", "known", "--tokenizer", v.tokenizer,
		"--dataset-name", "random", "--random-input-len", "16", "--random-output-len", strconv.Itoa(output), "--num-prompts", strconv.Itoa(requests),
	}, args...)
	c := on(ctx, 1, v.program, args...)
	c.Env = append(c.Env, "TRANSFORMERS_OFFLINE=1", "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "CUDA_VISIBLE_DEVICES=")
	begin := time.Now()
	if text, err := c.CombinedOutput(); err != nil {
		return cost{}, fmt.Errorf("%w: %s", err, lastLines(string(text), 5))
	}
	result := cost{cpu: (c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds(), wall: time.Since(begin).Seconds()}
	err := ask(ctx, v.url+"/null/stats", "", &result.seen)
	if err == nil && result.seen.Requests < requests {
		err = errors.New("the server saw fewer requests than were asked for")
	}
	return result, err
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}

func ask(ctx context.Context, url, body string, answer any) error {
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("asking the null server: %w", err)
	}
	defer resp.Body.Close()
	if answer == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}
