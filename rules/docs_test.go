package rules

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the generated parts of docs/rules.md")

// TestDocumentation holds the tables of docs/rules.md equal to what the
// shipped files record and what an evaluator says of itself.
func TestDocumentation(t *testing.T) {
	const path = "../docs/rules.md"
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := ShippedMetrics()
	if err != nil {
		t.Fatal(err)
	}
	doc := string(raw)
	for name, want := range map[string]string{"recorded": metricRows(recorded), "self": metricRows(SelfMetrics())} {
		begin, end := "<!-- "+name+": written by go generate ./rules -->\n", "<!-- end -->\n"
		before, rest, ok := strings.Cut(doc, begin)
		got, after, okEnd := strings.Cut(rest, end)
		if !ok || !okEnd {
			t.Errorf("%s has no part %q", path, name)
			continue
		}
		if *update {
			doc = before + begin + want + end + after
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s is out of date, run go generate ./rules (-want +got):\n%s", name, diff)
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func metricRows(metrics []Metric) string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, m := range metrics {
		kind := "gauge"
		if m.Counter {
			kind = "counter"
		}
		names := make([]string, len(m.Labels))
		for i, l := range m.Labels {
			names[i] = "`" + l + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, kind, strings.Join(names, ", "), m.Help)
	}
	return b.String()
}
