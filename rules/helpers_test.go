package rules

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	promrules "github.com/prometheus/prometheus/rules"
)

var rankNames = []string{"model_name", "engine"}

// rank0 is a sample of the only rank.
func rank0(name string, v float64) Sample {
	return Sample{Name: name, LabelNames: rankNames, LabelValues: []string{"m", "0"}, Value: v}
}

func constant(name string, v float64) Sample { return Sample{Name: name, Value: v} }

// open makes an evaluator that is closed at the test's end.
func open(t testing.TB, c Config) *Evaluator {
	t.Helper()
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// evaluation evaluates groups at given moments, without a clock.
type evaluation struct{ groups []*promrules.Group }

func newEvaluation(t testing.TB, e *Evaluator) evaluation {
	t.Helper()
	m := promrules.NewManager(e.options(context.Background()))
	groups, errs := m.LoadGroups(e.config.Interval, labels.EmptyLabels(), "", nil, false, e.rules.Load().files...)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var sorted []*promrules.Group
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		sorted = append(sorted, groups[key])
	}
	return evaluation{sorted}
}

// at evaluates the groups whose turn it is in this second.
func (ev evaluation) at(t testing.TB, at time.Time) {
	t.Helper()
	for _, g := range ev.groups {
		if at.Unix()%int64(g.Interval().Seconds()) != 0 {
			continue
		}
		g.Eval(withInterval(context.Background(), g.Interval()), at)
		for _, r := range g.Rules() {
			if r.Health() == promrules.HealthBad {
				t.Fatalf("rule %s of group %s at %v: %v", r.Name(), g.Name(), at, r.LastError())
			}
		}
	}
}

// recorded returns what is exposed, by series: name{label="value",...}.
func recorded(e *Evaluator) map[string]float64 {
	all := map[string]float64{}
	for _, r := range e.Recorded() {
		var pairs []string
		for _, name := range slices.Sorted(maps.Keys(r.Labels)) {
			pairs = append(pairs, fmt.Sprintf("%s=%q", name, r.Labels[name]))
		}
		all[r.Name+"{"+strings.Join(pairs, ",")+"}"] = r.Value
	}
	return all
}

// query returns the value of an expression with one result at most; NaN
// without one.
func query(t testing.TB, e *Evaluator, expr string, at time.Time) float64 {
	t.Helper()
	v, err := e.query(context.Background(), expr, at)
	if err != nil {
		t.Fatal(err)
	}
	if len(v) > 1 {
		t.Fatalf("%s has %d results", expr, len(v))
	}
	if len(v) == 0 {
		return math.NaN()
	}
	return v[0].F
}

// write makes a rule file and returns its path.
func write(t testing.TB, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// group is a rule file with one group.
func group(rules string) string {
	return "groups:\n  - name: g\n    interval: 1s\n    rules:\n" + rules
}

func rule(record, expr string) string {
	return fmt.Sprintf("      - record: %s\n        expr: %s\n", record, expr)
}
