package alerts

import (
	"context"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"go.yaml.in/yaml/v3"
)

// The unit tests are written for `promtool test rules`, and e2e runs them with
// it. Here they are evaluated in this process, so that expressions can be
// changed under them (mutation_test.go) and no tool is needed.

type unitFile struct {
	path               string
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	GroupEvalOrder     []string       `yaml:"group_eval_order"`
	FuzzyCompare       bool           `yaml:"fuzzy_compare"`
	Tests              []unitCase     `yaml:"tests"`
}

type unitCase struct {
	Name     string         `yaml:"name"`
	Interval model.Duration `yaml:"interval"`
	Series   []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Alerts []alertCase `yaml:"alert_rule_test"`
	Exprs  []struct {
		Expr    string         `yaml:"expr"`
		At      model.Duration `yaml:"eval_time"`
		Samples []struct {
			Labels string  `yaml:"labels"`
			Value  float64 `yaml:"value"`
		} `yaml:"exp_samples"`
	} `yaml:"promql_expr_test"`
}

type alertCase struct {
	At     model.Duration `yaml:"eval_time"`
	Name   string         `yaml:"alertname"`
	Alerts []struct {
		Labels      map[string]string `yaml:"exp_labels"`
		Annotations map[string]string `yaml:"exp_annotations"`
	} `yaml:"exp_alerts"`
}

// want is what must fire, as text that is equal for equal alerts.
func (c *alertCase) want() []string {
	var all []string
	for _, a := range c.Alerts {
		a.Labels[labels.AlertName] = c.Name
		all = append(all, labels.FromMap(a.Labels).String()+" "+labels.FromMap(a.Annotations).String())
	}
	slices.Sort(all)
	return all
}

func readUnitFiles(t *testing.T, pattern string) []unitFile {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no unit tests in %s (%v)", pattern, err)
	}
	var all []unitFile
	for _, path := range paths {
		f := unitFile{path: path}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		decoder := yaml.NewDecoder(strings.NewReader(string(raw)))
		decoder.KnownFields(true)
		if err := decoder.Decode(&f); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, f)
	}
	return all
}

// situation is a unit test whose recording rules have been evaluated over its
// whole time, so that alerting rules can be evaluated on it.
type situation struct {
	unit   *unitFile
	test   *unitCase
	suite  *promqltest.LazyLoader
	alerts []*rules.AlertingRule
	end    time.Time
	// unmutated is what fires by rule at the moments that the test looks at.
	unmutated map[int]map[time.Duration][]string
}

var start = time.Unix(0, 0).UTC()

func newSituation(t *testing.T, f *unitFile, c *unitCase) *situation {
	t.Helper()
	s := &situation{unit: f, test: c, end: start}
	for _, a := range c.Alerts {
		s.end = latest(s.end, start.Add(time.Duration(a.At)))
	}
	for _, e := range c.Exprs {
		s.end = latest(s.end, start.Add(time.Duration(e.At)))
	}
	load := "load " + c.Interval.String() + "\n"
	for _, series := range c.Series {
		load += "  " + series.Series + " " + series.Values + "\n"
	}
	p := parser.NewParser(parser.Options{})
	suite, err := promqltest.NewLazyLoader(load, promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true, Parser: p})
	if err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	t.Cleanup(func() { suite.Close() })
	suite.SubqueryInterval = time.Duration(f.EvaluationInterval)
	s.suite = suite

	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc:    rules.EngineQueryFunc(suite.QueryEngine(), suite.Storage()),
		AppendableV2: suite.Storage(),
		Context:      t.Context(),
		NotifyFunc:   func(context.Context, string, ...*rules.Alert) {},
		Logger:       promslog.NewNopLogger(),
		Parser:       p,
	})
	var groups []*rules.Group
	for _, name := range f.RuleFiles {
		path := filepath.Join(filepath.Dir(f.path), name)
		loaded, errs := manager.LoadGroups(time.Duration(f.EvaluationInterval), labels.EmptyLabels(), "", nil, false, path)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		for _, g := range loaded {
			groups = append(groups, g)
		}
	}
	slices.SortStableFunc(groups, func(a, b *rules.Group) int {
		return slices.Index(f.GroupEvalOrder, a.Name()) - slices.Index(f.GroupEvalOrder, b.Name())
	})
	var recording []*rules.Group
	for _, g := range groups {
		if len(g.AlertingRules()) > 0 {
			s.alerts = append(s.alerts, g.AlertingRules()...)
			continue
		}
		recording = append(recording, g)
	}
	step := time.Duration(f.EvaluationInterval)
	for ts := start; !ts.After(s.end); ts = ts.Add(step) {
		suite.WithSamplesTill(ts, func(err error) {
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range recording {
				g.Eval(suite.Context(), ts)
				for _, r := range g.Rules() {
					if r.LastError() != nil {
						t.Fatalf("%s: rule %s at %v: %v", f.path, r.Name(), ts.Sub(start), r.LastError())
					}
				}
			}
		})
	}
	return s
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// said is an alert as its unit tests see it, as text.
func said(a *rules.Alert) string { return a.Labels.String() + " " + a.Annotations.String() }

// firing evaluates an alerting rule over the situation's whole time, and
// returns what fires at each of the moments asked for, as text.
func (s *situation) firing(ctx context.Context, rule *rules.AlertingRule, text func(*rules.Alert) string, moments []time.Duration) (map[time.Duration][]string, error) {
	step := time.Duration(s.unit.EvaluationInterval)
	query, err := s.suite.QueryEngine().NewRangeQuery(ctx, s.suite.Queryable(), nil, rule.Query().String(), start, s.end, step)
	if err != nil {
		return nil, err
	}
	defer query.Close()
	result := query.Exec(ctx)
	if result.Err != nil {
		return nil, result.Err
	}
	matrix, ok := result.Value.(promql.Matrix)
	if !ok {
		return nil, fmt.Errorf("%s gives a %T", rule.Query(), result.Value)
	}
	at := func(_ context.Context, _ string, ts time.Time) (promql.Vector, error) {
		var vector promql.Vector
		for _, series := range matrix {
			for _, p := range series.Floats {
				if p.T == ts.UnixMilli() {
					vector = append(vector, promql.Sample{Metric: series.Metric, T: p.T, F: p.F})
				}
			}
		}
		return vector, nil
	}
	fired := map[time.Duration][]string{}
	for ts := start; !ts.After(s.end); ts = ts.Add(step) {
		if _, err := rule.Eval(ctx, 0, ts, at, &url.URL{}, 0); err != nil {
			return nil, err
		}
		for _, m := range moments {
			if since := ts.Sub(start); m < since || m >= since+step {
				continue
			}
			for _, a := range rule.ActiveAlerts() {
				if a.State == rules.StateFiring {
					fired[m] = append(fired[m], text(a))
				}
			}
		}
	}
	return fired, nil
}

// moments are when the test says what the alert does.
func (s *situation) moments(name string) (all []time.Duration) {
	for _, c := range s.test.Alerts {
		if c.Name == name {
			all = append(all, time.Duration(c.At))
		}
	}
	return all
}

// differs compares what fires, of all rules of the name, with what the test
// wants; empty when they agree.
func (s *situation) differs(name string, fired ...map[time.Duration][]string) string {
	for _, c := range s.test.Alerts {
		if c.Name != name {
			continue
		}
		var got []string
		for _, f := range fired {
			got = append(got, f[time.Duration(c.At)]...)
		}
		slices.Sort(got)
		if want := c.want(); !slices.Equal(got, want) {
			return fmt.Sprintf("%s at %v fires\n\t%s\nwant\n\t%s", name, time.Duration(c.At), strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
		}
	}
	return ""
}

// named are the rules of the name.
func (s *situation) named(name string) (all []*rules.AlertingRule) {
	for _, r := range s.alerts {
		if r.Name() == name {
			all = append(all, r)
		}
	}
	return all
}

func TestUnits(t *testing.T) {
	for _, pattern := range []string{"tests/*.yml", "../rules/fleet/tests/*.yml"} {
		for _, f := range readUnitFiles(t, pattern) {
			t.Run(filepath.Base(f.path), func(t *testing.T) {
				for i := range f.Tests {
					t.Run(f.Tests[i].Name, func(t *testing.T) { newSituation(t, &f, &f.Tests[i]).check(t) })
				}
			})
		}
	}
}

func (s *situation) check(t *testing.T) {
	t.Helper()
	seen := map[string]bool{}
	for _, c := range s.test.Alerts {
		if seen[c.Name] {
			continue
		}
		seen[c.Name] = true
		var fired []map[time.Duration][]string
		for _, r := range s.named(c.Name) {
			f, err := s.firing(t.Context(), r, said, s.moments(c.Name))
			if err != nil {
				t.Fatal(err)
			}
			fired = append(fired, f)
		}
		if len(fired) == 0 {
			t.Errorf("no rule %s", c.Name)
		}
		if diff := s.differs(c.Name, fired...); diff != "" {
			t.Error(diff)
		}
	}
	for _, e := range s.test.Exprs {
		query, err := s.suite.QueryEngine().NewInstantQuery(t.Context(), s.suite.Queryable(), nil, e.Expr, start.Add(time.Duration(e.At)))
		if err != nil {
			t.Fatal(err)
		}
		result := query.Exec(t.Context())
		vector, err := result.Vector()
		if err != nil {
			t.Fatalf("%s: %v", e.Expr, err)
		}
		got := map[string]float64{}
		for _, sample := range vector {
			got[sample.Metric.String()] = sample.F
		}
		query.Close()
		want := map[string]float64{}
		for _, sample := range e.Samples {
			metric, err := parser.NewParser(parser.Options{}).ParseMetric(sample.Labels)
			if err != nil {
				t.Fatalf("%s: %v", sample.Labels, err)
			}
			want[metric.String()] = sample.Value
		}
		equal := len(got) == len(want)
		for name, w := range want {
			g, there := got[name]
			equal = equal && there && (g == w || s.unit.FuzzyCompare && (math.Nextafter(g, w) == w) || math.IsNaN(g) && math.IsNaN(w))
		}
		if !equal {
			t.Errorf("%s at %v is\n\t%v\nwant\n\t%v", e.Expr, time.Duration(e.At), got, want)
		}
	}
}
