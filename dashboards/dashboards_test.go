package dashboards_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"headroom_exporter/capacity"
	"headroom_exporter/dashboards"
	"headroom_exporter/probe"
)

// board is what the tests read of a dashboard.
type board struct {
	file          string
	ID            *int   `json:"id"`
	UID           string `json:"uid"`
	Title         string `json:"title"`
	Description   string `json:"description"`
	Editable      bool   `json:"editable"`
	SchemaVersion int    `json:"schemaVersion"`
	Inputs        any    `json:"__inputs"`
	Tags          []string
	Panels        []panel `json:"panels"`
	Links         []link  `json:"links"`
	Templating    struct {
		List []variable `json:"list"`
	} `json:"templating"`
}

type panel struct {
	ID          int        `json:"id"`
	Type        string     `json:"type"`
	Title       string     `json:"title"`
	Description string     `json:"description"`
	Datasource  datasource `json:"datasource"`
	Targets     []target   `json:"targets"`
	Links       []link     `json:"links"`
	Options     struct {
		Content string `json:"content"`
	} `json:"options"`
	GridPos     struct{ X, Y, W, H int }
	FieldConfig struct {
		Defaults struct {
			Unit       string `json:"unit"`
			NoValue    string `json:"noValue"`
			Thresholds struct {
				Steps []struct {
					Value *float64 `json:"value"`
					Color string   `json:"color"`
				} `json:"steps"`
			} `json:"thresholds"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

type target struct {
	RefID        string     `json:"refId"`
	Expr         string     `json:"expr"`
	LegendFormat string     `json:"legendFormat"`
	Datasource   datasource `json:"datasource"`
}

type variable struct {
	Name        string     `json:"name"`
	Type        string     `json:"type"`
	Label       string     `json:"label"`
	Description string     `json:"description"`
	Query       any        `json:"query"`
	Datasource  datasource `json:"datasource"`
	Refresh     int        `json:"refresh"`
	Multi       bool       `json:"multi"`
	IncludeAll  bool       `json:"includeAll"`
	AllValue    string     `json:"allValue"`
}

type datasource struct{ Type, UID string }

type link struct {
	Title, Type, URL string
	Tags             []string
	IncludeVars      bool `json:"includeVars"`
	KeepTime         bool `json:"keepTime"`
}

var chosen = datasource{"prometheus", "${datasource}"}

// load reads the dashboards.
func load(t *testing.T) []board {
	t.Helper()
	names, err := fs.Glob(dashboards.Files(), "*")
	if err != nil {
		t.Fatal(err)
	}
	var all []board
	for _, name := range names {
		text, err := fs.ReadFile(dashboards.Files(), name)
		if err != nil {
			t.Fatal(err)
		}
		b := board{file: name}
		if err := json.Unmarshal(text, &b); err != nil {
			t.Fatalf("%s: %v", b.file, err)
		}
		all = append(all, b)
	}
	if len(all) != 5 {
		t.Fatalf("%d dashboards, want 5", len(all))
	}
	return all
}

// drawn are the panels that draw what they ask, so neither rows nor text.
func (b board) drawn() []panel {
	return slices.DeleteFunc(slices.Clone(b.Panels), func(p panel) bool { return p.Type == "row" || p.Type == "text" })
}

const runbooks = "runbooks.json"

// units are Grafana's names of those in use; "suffix:" and "si:" begin one of our own.
var units = []string{"percentunit", "s", "bytes", "binBps", "reqps", "watt", "hertz", "celsius", "joule", "dateTimeFromNow", "short"}

// TestLint holds the dashboards against the rules of grafana/dashboard-linter
// v0.2.0, by their names there. Two pairs are replaced: a replica is chosen by
// the target labels namespace, pool and pod, not by job and instance.
func TestLint(t *testing.T) {
	for _, b := range load(t) {
		complain := func(rule, format string, args ...any) {
			t.Errorf("%s: %s: %s", b.file, rule, fmt.Sprintf(format, args...))
		}
		if b.Editable {
			complain("uneditable-dashboard", "it is editable")
		}
		b.lintVariables(complain)
		for _, p := range b.drawn() {
			in := func(rule, format string, args ...any) {
				complain(rule, "panel %q: %s", p.Title, fmt.Sprintf(format, args...))
			}
			if p.Title == "" || p.Description == "" {
				in("panel-title-description", "title or description is empty")
			}
			if p.Datasource != chosen {
				in("panel-datasource", "its data source is %v", p.Datasource)
			}
			if u := p.FieldConfig.Defaults.Unit; !slices.Contains(units, u) && !strings.HasPrefix(u, "suffix:") && !strings.HasPrefix(u, "si:") {
				in("panel-units", "its unit is %q", u)
			}
			if p.FieldConfig.Defaults.NoValue == "" {
				in("no-value", "nothing is said when there is nothing")
			}
			if len(p.Targets) == 0 {
				in("panel-no-targets", "it has no query")
			}
			for _, q := range p.Targets {
				q.lint(in)
			}
		}
	}
}

type complain func(rule, format string, args ...any)

var labelValues = regexp.MustCompile(`^label_values\((.+), (namespace|pool|pod)\)$`)

func (b board) lintVariables(complain complain) {
	var names []string
	for _, v := range b.Templating.List {
		names = append(names, v.Name)
		if v.Label == "" || v.Description == "" {
			complain("template-label", "variable %s has no label or no description", v.Name)
		}
		switch v.Type {
		case "datasource":
			if v.Name != "datasource" || v.Query != "prometheus" || v.Label != "Data source" {
				complain("template-datasource", "variable %s, labelled %q, chooses among %v", v.Name, v.Label, v.Query)
			}
		case "query":
			text, _ := v.Query.(string)
			m := labelValues.FindStringSubmatch(text)
			if m == nil || m[2] != v.Name {
				complain("template-label-promql", "variable %s asks %q", v.Name, text)
			} else if _, err := parse(m[1]); err != nil {
				complain("template-label-promql", "variable %s: %v", v.Name, err)
			}
			if v.Datasource != chosen {
				complain("template-datasource", "variable %s asks %v", v.Name, v.Datasource)
			}
			if v.Refresh != 2 {
				complain("template-on-time-change-reload", "variable %s is refreshed by rule %d", v.Name, v.Refresh)
			}
			if !v.Multi || !v.IncludeAll || v.AllValue != ".*" {
				complain("template-namespace-pool-pod", "variable %s: multi %v, include all %v, all is %q", v.Name, v.Multi, v.IncludeAll, v.AllValue)
			}
		}
	}
	for _, name := range []string{"datasource", "namespace", "pool"} {
		if b.file != runbooks && !slices.Contains(names, name) {
			complain("template-namespace-pool-pod", "there is no variable %s", name)
		}
	}
}

// parse parses an expression with the variables replaced by what they may be.
func parse(expr string) (parser.Expr, error) {
	expr = strings.NewReplacer("$__rate_interval", "1m", "$namespace", "prod", "$pool", "chat", "$pod", "a|b").Replace(expr)
	return parser.NewParser(parser.Options{}).ParseExpr(expr)
}

func (q target) lint(complain complain) {
	if q.Datasource != chosen {
		complain("panel-datasource", "query %s asks %v", q.RefID, q.Datasource)
	}
	if q.LegendFormat == "" {
		complain("target-legend", "query %s has no legend", q.RefID)
	}
	expr, err := parse(q.Expr)
	if err != nil {
		complain("target-promql", "query %s: %v", q.RefID, err)
		return
	}
	if strings.Count(q.Expr, "[") != strings.Count(q.Expr, "[$__rate_interval]") {
		complain("target-rate-interval", "query %s has a range of its own: %s", q.RefID, q.Expr)
	}
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		s, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		if strings.HasSuffix(s.Name, "_total") && !slices.ContainsFunc(path, isRate) {
			complain("target-counter-agg", "query %s reads the counter %s itself", q.RefID, s.Name)
		}
		for _, m := range s.LabelMatchers {
			if m.Type == labels.MatchEqual && slices.Contains([]string{"job", "instance", "namespace", "pool", "pod", "uuid", "model_name"}, m.Name) {
				complain("target-hard-coded", "query %s: %s is only that of %s", q.RefID, s.Name, m)
			}
		}
		for _, label := range chosenBy(s.Name) {
			if !slices.ContainsFunc(s.LabelMatchers, func(m *labels.Matcher) bool { return m.Name == label && m.Type == labels.MatchRegexp }) {
				complain("target-namespace-pool-pod", "query %s: %s is not chosen by %s", q.RefID, s.Name, label)
			}
		}
		return nil
	})
}

func isRate(node parser.Node) bool {
	call, ok := node.(*parser.Call)
	return ok && slices.Contains([]string{"rate", "irate", "increase"}, call.Func.Name)
}

// chosenBy are the target labels by which a series must be chosen: those that it has.
func chosenBy(name string) []string {
	level, _, recorded := strings.Cut(name, ":")
	switch {
	case strings.HasPrefix(name, "headroom_probe_"):
		return []string{"namespace"} // a probe is of no pool
	case !recorded:
		if slices.Contains(poolWide, name) {
			return []string{"namespace", "pool"}
		}
		return []string{"namespace", "pool", "pod"}
	case level == "fleet":
		return nil // constants
	case level == "model":
		return []string{"namespace"}
	default:
		return []string{"namespace", "pool"}
	}
}

// poolWide are constants that a dashboard of pools shows.
var poolWide = []string{"headroom_watermark_ratio"}

// TestSeriesExist holds the series that are selected against those that are
// documented, recorded, or of the probe.
func TestSeriesExist(t *testing.T) {
	known := knownSeries(t)
	for _, b := range load(t) {
		for _, p := range b.drawn() {
			for _, q := range p.Targets {
				expr, err := parse(q.Expr)
				if err != nil {
					t.Errorf("%s: %q: %v", b.file, p.Title, err)
					continue
				}
				for _, selected := range parser.ExtractSelectors(expr) {
					for _, m := range selected {
						if m.Name == model.MetricNameLabel && !known[m.Value] {
							t.Errorf("%s: panel %q selects %s, which nothing exposes or records", b.file, p.Title, m.Value)
						}
					}
				}
			}
		}
	}
}

var (
	documented = regexp.MustCompile("(?m)^\\| `(headroom_[a-z0-9_]+)` \\|")
	recorded   = regexp.MustCompile(`(?m)^ *- record: (\S+)$`)
	described  = regexp.MustCompile(`fqName: "([a-z0-9_]+)"`)
)

func knownSeries(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	read := func(pattern *regexp.Regexp, glob string) {
		paths, err := filepath.Glob(glob)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: no such file (%v)", glob, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
				known[m[1]] = true
			}
		}
	}
	read(documented, "../docs/metrics.md")
	read(documented, "../docs/rules.md")
	read(recorded, "../rules/fleet/*.yml")

	descs := make(chan *prometheus.Desc)
	go func() {
		probe.NewMetrics(nil, prometheus.NewRegistry()).Describe(descs)
		close(descs)
	}()
	for d := range descs {
		name := described.FindStringSubmatch(d.String())[1]
		known[name], known[name+"_bucket"] = true, true
	}
	return known
}

// TestLayout tells that panels have their own places, and all of the width.
func TestLayout(t *testing.T) {
	for _, b := range load(t) {
		ids := map[int]bool{}
		taken := map[[2]int]string{}
		for _, p := range b.Panels {
			if p.ID == 0 || ids[p.ID] {
				t.Errorf("%s: panel %q has the id %d of another one, or none", b.file, p.Title, p.ID)
			}
			ids[p.ID] = true
			g := p.GridPos
			if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
				t.Errorf("%s: panel %q stands at %+v, outside of the 24 columns", b.file, p.Title, g)
			}
			for x := g.X; x < g.X+g.W; x++ {
				for y := g.Y; y < g.Y+g.H; y++ {
					if other, there := taken[[2]int{x, y}]; there {
						t.Errorf("%s: panels %q and %q overlap", b.file, p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
		}
		for _, p := range b.Panels {
			if p.GridPos.X+p.GridPos.W == 24 {
				continue
			}
			if _, there := taken[[2]int{p.GridPos.X + p.GridPos.W, p.GridPos.Y}]; !there {
				t.Errorf("%s: there is nothing beside panel %q", b.file, p.Title)
			}
		}
	}
}

// TestImport tells that Grafana takes the dashboards as they are, for ever
// under the same address, and that they lead to each other and to the runbooks.
func TestImport(t *testing.T) {
	want := map[string]string{
		"replica.json": "headroom-replica", "fleet.json": "headroom-fleet", "probe.json": "headroom-probe", "gpu.json": "headroom-gpu", runbooks: "headroom-runbooks",
	}
	pages := runbookPages(t)
	for _, b := range load(t) {
		if b.ID != nil || b.Inputs != nil || b.UID != want[b.file] || b.SchemaVersion < 39 {
			t.Errorf("%s: id %v, inputs %v, uid %q, schema %d: want no id, no inputs, uid %q and the schema of Grafana 11 or newer", b.file, b.ID, b.Inputs, b.UID, b.SchemaVersion, want[b.file])
		}
		if b.Title == "" || b.Description == "" {
			t.Errorf("%s: title %q, description %q", b.file, b.Title, b.Description)
		}
		if len(b.Links) != 1 || b.Links[0].Type != "dashboards" || !slices.Equal(b.Links[0].Tags, b.Tags) || !b.Links[0].IncludeVars || !b.Links[0].KeepTime {
			t.Errorf("%s: its links are %+v: want one to all dashboards of its tags, with choice and time", b.file, b.Links)
		}
		led := 0
		for _, p := range b.drawn() {
			for _, l := range p.Links {
				if name, ok := strings.CutPrefix(l.Title, "Runbook: "); !ok || pages[l.URL] != name {
					t.Errorf("%s: the link %q of panel %q leads to %s, where %q is", b.file, l.Title, p.Title, l.URL, pages[l.URL])
				}
				led++
			}
		}
		if led == 0 && b.file != runbooks {
			t.Errorf("%s: no panel leads to a runbook", b.file)
		}
	}
}

// runbookPages are the panels with the runbooks by their address, each as
// docs/runbooks has it.
func runbookPages(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, b := range load(t) {
		if b.file != runbooks {
			continue
		}
		for _, p := range b.Panels {
			if p.Type != "text" {
				continue
			}
			text, err := os.ReadFile(filepath.Join("..", "docs", "runbooks", p.Title+".md"))
			if err != nil {
				t.Errorf("the runbook %s: %v", p.Title, err)
			}
			if strings.TrimSpace(string(text)) != "# "+p.Title+"\n"+p.Options.Content {
				t.Errorf("the runbook %s is not that of docs/runbooks: make generate", p.Title)
			}
			pages[fmt.Sprintf("/d/%s?viewPanel=%d", b.UID, p.ID)] = p.Title
		}
	}
	files, err := filepath.Glob("../docs/runbooks/*.md")
	if err != nil || len(files) == 0 || len(files) != len(pages) {
		t.Errorf("%d runbooks in docs/runbooks, %d in the dashboard (%v)", len(files), len(pages), err)
	}
	return pages
}

// TestWatermark holds the colours of single numbers, which cannot come from a
// metric, against the product's watermark.
func TestWatermark(t *testing.T) {
	found := 0
	for _, b := range load(t) {
		for _, p := range b.drawn() {
			steps := p.FieldConfig.Defaults.Thresholds.Steps
			if p.FieldConfig.Defaults.Unit != "percentunit" || len(steps) != 3 {
				continue
			}
			found++
			want := capacity.Watermark // of a load ratio
			if steps[0].Color == "red" {
				want = 1 - capacity.Watermark // of headroom
			}
			if !slices.ContainsFunc(steps, func(s struct {
				Value *float64 `json:"value"`
				Color string   `json:"color"`
			}) bool {
				return s.Value != nil && math.Abs(*s.Value-want) < 1e-9
			}) {
				t.Errorf("%s: the colours of %q do not change at %v", b.file, p.Title, want)
			}
		}
	}
	if found == 0 {
		t.Error("no panel has colours by the watermark")
	}
}
