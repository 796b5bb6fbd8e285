package alerts

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"headroom_exporter/rules/fleet"
)

// ruleFile is a rule file with the comments above its rules.
type ruleFile struct {
	name   string
	text   []byte
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	} `yaml:"groups"`
}

type rule struct {
	comment string
	ruleFields
}

type ruleFields struct {
	Record      string            `yaml:"record"`
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         model.Duration    `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func (r *rule) UnmarshalYAML(node *yaml.Node) error {
	r.comment = strings.Join(strings.Fields(strings.ReplaceAll(node.HeadComment, "#", "")), " ")
	return node.Decode(&r.ruleFields)
}

// ruleFiles are those of both kinds, in the order of their names.
func ruleFiles(t *testing.T) (recording, alerting []ruleFile) {
	t.Helper()
	read := func(files fs.FS) (all []ruleFile) {
		names, err := fs.Glob(files, "*.yml")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			f := ruleFile{name: name}
			if f.text, err = fs.ReadFile(files, name); err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(f.text, []byte("\ngroups:")) {
				continue // the Alertmanager's
			}
			if err := yaml.Unmarshal(f.text, &f); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			all = append(all, f)
		}
		return all
	}
	return read(fleet.Files()), read(Files())
}

func (f *ruleFile) rules() (all []rule) {
	for _, g := range f.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// targetLabels come from the scrape (docs/fleet.md).
var targetLabels = []string{"namespace", "pool", "role", "zone", "pod", "job", "instance"}

// knownSeries are the labels of every series that a rule may select, by name;
// nil where any may be.
func knownSeries(t *testing.T) map[string][]string {
	t.Helper()
	known := map[string][]string{
		"up": {}, "ALERTS": nil, "headroom_exporter_build_info": nil,
		"prometheus_rule_evaluation_failures_total": {"rule_group"}, // Prometheus' own
	}
	row := regexp.MustCompile("(?m)^\\| `(headroom_[a-z0-9_]+)` \\| [a-z]+ \\| (.*?) \\|")
	for _, path := range []string{"../docs/metrics.md", "../docs/rules.md"} {
		doc, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range row.FindAllStringSubmatch(string(doc), -1) {
			known[match[1]] = append([]string{}, regexp.MustCompile("[a-z0-9_]+").FindAllString(match[2], -1)...)
			if path == "../docs/rules.md" {
				known[match[1]] = nil // the table there has only the labels that a rule sets
			}
		}
	}
	// The engines' own pages, as recorded.
	page := regexp.MustCompile(`(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*)[{ ]`)
	pages, err := filepath.Glob("../collector/engine/testdata/vllm-0.32-*.prom")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no page of an engine: %v", err)
	}
	for _, path := range pages {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range page.FindAllStringSubmatch(string(text), -1) {
			known[match[1]] = nil
		}
	}
	recording, _ := ruleFiles(t)
	for _, f := range recording {
		for _, r := range f.rules() {
			known[r.Record] = nil
		}
	}
	return known
}

// unknownSeries are what is wrong with the series that an expression selects.
func unknownSeries(expr string, known map[string][]string) (wrong []string) {
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return []string{err.Error()}
	}
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		selector, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		name := selector.Name
		for _, m := range selector.LabelMatchers {
			if m.Name != model.MetricNameLabel {
				continue
			}
			if name == "" && m.Type == labels.MatchRegexp {
				if !slices.ContainsFunc(slices.Collect(maps.Keys(known)), m.Matches) {
					wrong = append(wrong, "no series match "+m.Value)
				}
				return nil
			}
			name = m.Value
		}
		allowed, there := known[name]
		if !there {
			wrong = append(wrong, "nobody has the series "+name)
		}
		for _, m := range selector.LabelMatchers {
			if there && allowed != nil && m.Name != model.MetricNameLabel && !slices.Contains(allowed, m.Name) && !slices.Contains(targetLabels, m.Name) {
				wrong = append(wrong, fmt.Sprintf("%s has no label %s", name, m.Name))
			}
		}
		return nil
	})
	return wrong
}

// What a rule or an alert selects exists: documented, recorded, or on the page
// of an engine or of Prometheus.
func TestSeriesExist(t *testing.T) {
	known := knownSeries(t)
	recording, alerting := ruleFiles(t)
	for _, f := range append(recording, alerting...) {
		for _, r := range f.rules() {
			for _, wrong := range unknownSeries(r.Expr, known) {
				t.Errorf("%s: %s%s: %s", f.name, r.Record, r.Alert, wrong)
			}
		}
	}
	for expr, want := range map[string]string{
		"headroom_ratioo":                      "nobody has the series headroom_ratioo",
		`headroom_engine_state{stat="down"}`:   "headroom_engine_state has no label stat",
		`count({__name__=~"flet:headroom.+"})`: "no series match flet:headroom.+",
		`headroom_ratio{pool="p"} and up == 0`: "",
	} {
		if got := strings.Join(unknownSeries(expr, known), ", "); got != want {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}

// What the examples for autoscalers ask for is recorded.
func TestAutoscalingQueries(t *testing.T) {
	known := knownSeries(t)
	asked := 0
	query := regexp.MustCompile(`(?m)^ *-? ?(?:query|seriesQuery): (.+)$`)
	paths, err := filepath.Glob("../deploy/autoscaling/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range query.FindAllStringSubmatch(string(text), -1) {
			asked++
			for _, wrong := range unknownSeries(strings.Trim(match[1], "'"), known) {
				t.Errorf("%s: %s", path, wrong)
			}
		}
	}
	if asked != 4 {
		t.Errorf("%d queries found in deploy/autoscaling, want 4", asked)
	}
}

// Names are level:metric:operations, the level is that of the labels kept, and
// every recorded series stands in a unit test.
func TestRecordedNames(t *testing.T) {
	name := regexp.MustCompile(`^(fleet|model|class|service|pool|replica):headroom_[a-z0-9_]+:[a-z0-9]+$`)
	recording, _ := ruleFiles(t)
	tested := map[string]bool{}
	for _, f := range readUnitFiles(t, "../rules/fleet/tests/*.yml") {
		for _, c := range f.Tests {
			for _, e := range c.Exprs {
				if len(e.Samples) == 0 {
					continue
				}
				for _, n := range regexp.MustCompile(`[a-z]+:headroom_[a-z0-9_]+:[a-z0-9]+`).FindAllString(e.Expr, -1) {
					tested[n] = true
				}
			}
		}
	}
	for _, f := range recording {
		for _, r := range f.rules() {
			if !name.MatchString(r.Record) {
				t.Errorf("%s: %s is not level:metric:operations", f.name, r.Record)
			}
			if !tested[r.Record] {
				t.Errorf("%s: no unit test expects a value of %s", f.name, r.Record)
			}
		}
	}
}

// An alert says who is called, what happened with numbers, and what to do; and
// has a unit test that shows it silent, one that shows it firing and one that
// shows it recovering.
func TestAlerts(t *testing.T) {
	_, alerting := ruleFiles(t)
	runbooks := map[string]bool{}
	known := knownSeries(t)
	queries := regexp.MustCompile("(?s)```promql\n(.*?)\n```")
	for _, f := range alerting {
		var tests []string
		for _, u := range readUnitFiles(t, filepath.Join("tests", strings.TrimSuffix(f.name, ".yml")+"_test.yml")) {
			for _, c := range u.Tests {
				tests = append(tests, c.Name)
			}
		}
		for _, r := range f.rules() {
			if !strings.HasPrefix(r.Alert, "Headroom") {
				t.Errorf("%s does not begin with Headroom", r.Alert)
			}
			if s := r.Labels["severity"]; !slices.Contains([]string{"page", "ticket"}, s) && r.Alert != "HeadroomWatchdog" {
				t.Errorf("%s has severity %q", r.Alert, s)
			}
			if strings.Contains(r.Annotations["summary"], "{{") || r.Annotations["summary"] == "" {
				t.Errorf("%s: the summary is %q, want one without values", r.Alert, r.Annotations["summary"])
			}
			if d := r.Annotations["description"]; !strings.Contains(d, "{{ $labels") && !slices.Contains([]string{"HeadroomWatchdog", "HeadroomFleetRulesMissing"}, r.Alert) {
				t.Errorf("%s: the description %q does not say where", r.Alert, d)
			}
			path := r.Annotations["runbook_url"]
			runbook, err := os.ReadFile(filepath.Join("..", path))
			if err != nil {
				t.Errorf("%s: %v", r.Alert, err)
			}
			runbooks[filepath.Base(path)] = true
			for _, part := range []string{"`" + r.Alert + "`", "\n## What it means\n", "\n## How to see it\n", "\n## What to do\n", "\n## When it is false\n"} {
				if err == nil && !strings.Contains(string(runbook), part) {
					t.Errorf("%s has no %q", path, part)
				}
			}
			for _, block := range queries.FindAllStringSubmatch(string(runbook), -1) {
				for query := range strings.SplitSeq(block[1], "\n") {
					for _, wrong := range unknownSeries(query, known) {
						t.Errorf("%s: %s: %s", path, query, wrong)
					}
				}
			}
			for _, does := range []string{"is silent", "fires", "recovers"} {
				if r.Alert != "HeadroomWatchdog" && !slices.ContainsFunc(tests, func(name string) bool {
					return strings.HasPrefix(name, r.Alert+" ") && strings.Contains(name, " "+does)
				}) {
					t.Errorf("no unit test %q", r.Alert+" "+does)
				}
			}
		}
	}
	written, err := filepath.Glob("../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range written {
		if !runbooks[filepath.Base(path)] {
			t.Errorf("no alert leads to %s", path)
		}
	}
}
