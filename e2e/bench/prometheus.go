package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
)

// names are the series that rule files read and record.
type names struct{ reads, records []string }

var (
	nameInRule = regexp.MustCompile(`\bheadroom_[a-z0-9_]+`)
	recordLine = regexp.MustCompile(`(?m)^\s*- record: (\S+)$`)
)

func namesOf(files []string) (names, error) {
	var n names
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return n, fmt.Errorf("reading a rule file: %w", err)
		}
		for _, m := range recordLine.FindAllStringSubmatch(string(text), -1) {
			n.records = append(n.records, m[1])
		}
		n.reads = append(n.reads, nameInRule.FindAllString(string(text), -1)...)
	}
	slices.Sort(n.records)
	n.records = slices.Compact(n.records)
	slices.Sort(n.reads)
	n.reads = slices.DeleteFunc(slices.Compact(n.reads), func(name string) bool { return slices.Contains(n.records, name) })
	if len(n.reads) == 0 || len(n.records) == 0 {
		return n, fmt.Errorf("the rule files %q read %d names and record %d", files, len(n.reads), len(n.records))
	}
	return n, nil
}

// inputs is what the rules read and the engine's page does not have: what the
// exporter derives, as it last exposed it, and the bounds of the histograms.
type inputs struct {
	bounds []byte
	page   atomic.Pointer[[]byte]
}

// engineNames are the engine's names of what the rules read, each with the
// name that the rules read it under. They are regular expressions, matched on
// the whole name and the label source.
var engineNames = [][2]string{
	{"vllm:num_preemptions_total;", "headroom_engine_preemptions_total"},
	{"vllm:generation_tokens_total;", "headroom_engine_generation_tokens_total"},
	{"vllm:prompt_tokens_by_source_total;local_compute", "headroom_engine_prompt_tokens_computed_total"},
	{"vllm:(time_to_first_token|inter_token_latency)_seconds_(bucket|sum|count);", "headroom_engine_${1}_seconds_${2}"},
	{"vllm:request_time_per_output_token_seconds_(bucket|sum|count);", "headroom_engine_time_per_output_token_seconds_${1}"},
	{"vllm:e2e_request_latency_seconds_(bucket|sum|count);", "headroom_engine_e2e_latency_seconds_${1}"},
}

func newInputs(engine *page) *inputs {
	in := &inputs{}
	bucket := regexp.MustCompile(`^(\S+)_bucket\{(.*le="([^"]+)".*)\} `)
	var b bytes.Buffer
	for _, l := range engine.lines {
		m := bucket.FindStringSubmatch(l.text)
		if m == nil {
			continue
		}
		for _, n := range engineNames {
			name := regexp.MustCompile("^" + n[0] + "$")
			if renamed := name.ReplaceAllString(m[1]+"_bucket;", n[1]); renamed != m[1]+"_bucket;" {
				fmt.Fprintf(&b, "%s_bound{%s} %s\n", strings.TrimSuffix(renamed, "_bucket"), m[2], m[3])
			}
		}
	}
	in.bounds = b.Bytes()
	return in
}

// take keeps the part of the exporter's answer that rules read.
func (in *inputs) take(exposition []byte, reads []string) {
	page := bytes.Clone(in.bounds)
	for l := range bytes.Lines(exposition) {
		name, _, _ := strings.Cut(string(l), "{")
		name, _, _ = strings.Cut(name, " ")
		if slices.Contains(reads, name) {
			page = append(page, l...)
		}
	}
	in.page.Store(&page)
}

func (in *inputs) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(*in.page.Load())
}

// prometheusConfig writes a configuration that gives a server the engine's
// page and the inputs, once a second, and keeps of them what the rules read.
func prometheusConfig(path, engineURL, inputsURL string, ruleFiles, reads []string) error {
	var b strings.Builder
	target := func(job, address string) {
		u, err := url.Parse(address)
		if err != nil {
			panic(err) // of a test server
		}
		fmt.Fprintf(&b, "  - job_name: %s\n    static_configs: [{targets: [%q]}]\n    relabel_configs:\n", job, u.Host)
		for _, label := range []string{"job", "instance"} {
			fmt.Fprintf(&b, "      - {target_label: %s, replacement: bench}\n", label)
		}
		b.WriteString("    metric_relabel_configs:\n")
	}
	b.WriteString("global: {scrape_interval: 1s, scrape_timeout: 900ms, evaluation_interval: 1s}\nrule_files:\n")
	for _, f := range ruleFiles {
		fmt.Fprintf(&b, "  - %q\n", f)
	}
	b.WriteString("scrape_configs:\n")
	keep := fmt.Sprintf("      - {source_labels: [__name__], regex: %q, action: keep}\n", strings.Join(reads, "|"))
	target("engine", engineURL)
	for _, n := range engineNames {
		fmt.Fprintf(&b, "      - {source_labels: [__name__, source], regex: %q, target_label: __name__, replacement: %q}\n", n[0], n[1])
	}
	b.WriteString(keep)
	target("inputs", inputsURL)
	b.WriteString(keep)
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("writing Prometheus' configuration: %w", err)
	}
	return nil
}

// prometheusArgs are the flags of a server that keeps as much as the exporter
// does and looks as far back for a newest sample.
func prometheusArgs(dir, address string) []string {
	return []string{
		"--config.file=" + filepath.Join(dir, "prometheus.yml"), "--web.listen-address=" + address,
		"--storage.tsdb.path=" + filepath.Join(dir, "prometheus"), "--storage.tsdb.retention.time=2h",
		"--query.lookback-delta=5s", "--log.level=warn",
	}
}

// recordedSeries asks a server how many series its rules have recorded.
func recordedSeries(ctx context.Context, address string, records []string) (int, error) {
	// Some are recorded every 15 s, which is longer than the server looks back.
	query := url.Values{"query": {fmt.Sprintf("count(last_over_time({__name__=~%q}[15s]))", strings.Join(records, "|"))}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/api/v1/query", strings.NewReader(query.Encode()))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("asking Prometheus for its recorded series: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, fmt.Errorf("asking Prometheus for its recorded series: %w", err)
	}
	var answer struct {
		Data struct {
			Result []struct {
				Value []json.RawMessage `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, fmt.Errorf("asking Prometheus for its recorded series: %w in %s", err, body)
	}
	if len(answer.Data.Result) != 1 || len(answer.Data.Result[0].Value) != 2 {
		return 0, fmt.Errorf("asking Prometheus for its recorded series: it has none: %s", body)
	}
	n := 0
	_, err = fmt.Sscanf(string(answer.Data.Result[0].Value[1]), `"%d"`, &n)
	return n, err
}
