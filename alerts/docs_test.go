package alerts

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the generated documentation and manifests")

// holds compares a file with what it should be, or writes it with -update.
func holds(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is out of date, run go generate ./alerts (-want +got):\n%s", path, diff)
	}
}

// TestDocumentation holds the tables of docs/alerts.md and docs/fleet.md equal
// to the rule files.
func TestDocumentation(t *testing.T) {
	recording, alerting := ruleFiles(t)
	var alerts, records strings.Builder
	alerts.WriteString("| alert | severity | after | meaning |\n|---|---|---|---|\n")
	for _, f := range alerting {
		for _, r := range f.rules() {
			path := strings.TrimPrefix(r.Annotations["runbook_url"], "docs/")
			fmt.Fprintf(&alerts, "| [`%s`](%s) | %s | %v | %s |\n", r.Alert, path, r.Labels["severity"], r.For, r.Annotations["summary"])
		}
	}
	records.WriteString("| series | meaning |\n|---|---|\n")
	seen := map[string]bool{}
	meaning := ""
	for _, f := range recording {
		for _, r := range f.rules() {
			if r.comment != "" {
				meaning = r.comment
			}
			if !seen[r.Record] {
				fmt.Fprintf(&records, "| `%s` | %s |\n", r.Record, meaning)
			}
			seen[r.Record] = true
		}
	}
	for path, table := range map[string]string{"../docs/alerts.md": alerts.String(), "../docs/fleet.md": records.String()} {
		doc, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		begin, end := "<!-- written by go generate ./alerts -->\n", "<!-- end -->\n"
		before, rest, ok := strings.Cut(string(doc), begin)
		_, after, okEnd := strings.Cut(rest, end)
		if !ok || !okEnd {
			t.Fatalf("%s has no place for its table", path)
		}
		holds(t, path, before+begin+table+end+after)
	}
}

// TestManifests holds the PrometheusRule objects equal to the rule files: the
// same text, indented, so that they cannot say anything else.
func TestManifests(t *testing.T) {
	recording, alerting := ruleFiles(t)
	const dir = "../deploy/kubernetes/rules"
	resources := ""
	write := func(kind string, files []ruleFile) {
		for _, f := range files {
			name := kind + "-" + strings.TrimSuffix(f.name, ".yml")
			var b strings.Builder
			fmt.Fprintf(&b, "# Written by go generate ./alerts.\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: headroom-%s\n  labels:\n    # Your Prometheus selects PrometheusRules by labels: see its ruleSelector.\n    release: prometheus\nspec:\n", name)
			for line := range bytes.Lines(f.text) {
				if len(bytes.TrimSpace(line)) > 0 {
					b.WriteString("  ")
				}
				b.Write(line)
			}
			holds(t, filepath.Join(dir, name+".yaml"), b.String())
			resources += "  - " + name + ".yaml\n"
		}
	}
	write("fleet", recording)
	write("alerts", alerting)
	holds(t, filepath.Join(dir, "kustomization.yaml"), "# Fleet rules and alerts for the Prometheus operator. Written by go generate ./alerts.\napiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nresources:\n"+resources)
}
