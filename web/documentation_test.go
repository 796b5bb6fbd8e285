package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headroom_exporter/collector/gpu"
	"headroom_exporter/sidecar"
)

// metricsDocumentation is docs/metrics.md, written off the table that /metrics is read off.
func metricsDocumentation() string {
	var b strings.Builder
	b.WriteString(`# Metrics

<!-- Written by "go generate ./web" from web/families.go; a test holds the two equal. -->

What ` + "`/metrics`" + ` says, read off the newest snapshot: a scrape asks neither the engine nor a driver.
Times are in seconds, sizes in bytes, shares are ratios (1 is all of it).
**What is not known has no series**; it is never 0. ` + "`/api/v1/headroom`" + ` says why it is not known.
` + "`model_name` and `engine`" + ` (the data-parallel rank) are the engine's own labels; pod, namespace and node come from the scrape.
Rates and mean latencies are over the last minute, or over what there is of it; rates are not there before 3 s of readings.
What the recording rules add stands in [rules.md](rules.md); ` + "`go_*`, `process_*` and `headroom_exporter_build_info`" + ` are those of every Prometheus exporter in Go; ` + "`headroom_exporter_rules_skipped_snapshots_total`" + ` counts snapshots that the rules did not get.
A one-rank engine without a GPU has fewer than 300 series, those of the Go runtime and the process included.
`)
	for _, g := range groups {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n", g.title, g.intro)
		for _, f := range g.families {
			kind := "gauge"
			if f.kind == prometheus.CounterValue {
				kind = "counter"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, kind, quoted(f.labels), f.help)
		}
	}
	b.WriteString("\n## GPU\n\nRead through NVML, one series per GPU by UUID, whatever the engine's state. What a GPU or its driver cannot tell has no series.\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, m := range gpu.Metrics() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, quoted(m.Labels), m.Help)
	}
	return b.String()
}

func quoted(labels []string) string {
	list := make([]string, len(labels))
	for i, l := range labels {
		list[i] = "`" + l + "`"
	}
	return strings.Join(list, ", ")
}

func TestMetricsDocumentation(t *testing.T) {
	equalToFile(t, "../docs/metrics.md", metricsDocumentation())
}

// The examples of docs/api.md are what the handler answers.
func TestAPIDocumentation(t *testing.T) {
	const path, open, end = "../docs/api.md", "```json\n", "```\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	indented := func(body any) string {
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := json.Indent(&b, text, "", "  "); err != nil {
			t.Fatal(err)
		}
		return b.String() + "\n"
	}
	s := build(withGPUs, inForce)
	s.GPU.Readings = s.GPU.Readings[:1]
	columns := newHistoryColumns(model, "0", []sidecar.HistoryPoint{pointOf(s, moment.Add(-3*time.Second)), downPoint(moment)})
	examples := []string{
		indented(newDocument(s, moment.Add(400*time.Millisecond))),
		indented(historyDocument{Version: documentVersion, Time: moment.Truncate(time.Millisecond), Seconds: 900, Replicas: []historyColumns{columns}}),
	}
	blocks := strings.Split(string(page), open)
	if len(blocks) != len(examples)+1 {
		t.Fatalf("%s has %d JSON examples, want %d", path, len(blocks)-1, len(examples))
	}
	for i, example := range examples {
		_, after, found := strings.Cut(blocks[i+1], end)
		if !found {
			t.Fatalf("%s: JSON example %d does not end", path, i+1)
		}
		blocks[i+1] = example + end + after
	}
	equalToFile(t, path, strings.Join(blocks, open))
}
