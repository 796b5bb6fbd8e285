package alerts

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/parser/posrange"
	"github.com/prometheus/prometheus/rules"
)

// mutation is an alerting rule with one thing changed.
type mutation struct {
	what string
	expr string
	hold time.Duration
}

// mutations changes in turn each threshold (half, one and a half times, and
// left away) and each operand of a set operation (left away), and leaves `for`
// away.
func mutations(t *testing.T, rule *rules.AlertingRule) []mutation {
	t.Helper()
	expr := rule.Query().String()
	p := parser.NewParser(parser.Options{})
	parsed, err := p.ParseExpr(expr)
	if err != nil {
		t.Fatal(err)
	}
	text := func(n parser.Node) string {
		at := n.PositionRange()
		return expr[at.Start:at.End]
	}
	var all []mutation
	change := func(what string, at posrange.PositionRange, by string) {
		mutated := expr[:at.Start] + by + expr[at.End:]
		if _, err := p.ParseExpr(mutated); err != nil {
			t.Fatalf("%s of %q is no expression: %v", what, expr, err)
		}
		all = append(all, mutation{what + ": " + mutated, mutated, rule.HoldDuration()})
	}
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		b, ok := n.(*parser.BinaryExpr)
		if !ok {
			return nil
		}
		switch {
		case b.Op.IsComparisonOperator() && !b.ReturnBool:
			thresholds := []string{"(" + text(b.RHS) + ") * 0.5", "(" + text(b.RHS) + ") * 1.5"}
			if literal, ok := b.RHS.(*parser.NumberLiteral); ok && literal.Val == 0 {
				thresholds = []string{"-1", "1"}
			}
			for _, threshold := range thresholds {
				change("threshold", b.RHS.PositionRange(), threshold)
			}
			change("comparison left away", b.PositionRange(), "("+text(b.LHS)+")")
		case b.Op.IsSetOperator():
			change("right side left away", b.PositionRange(), "("+text(b.LHS)+")")
			if b.Op != parser.LUNLESS {
				change("left side left away", b.PositionRange(), "("+text(b.RHS)+")")
			}
		}
		return nil
	})
	if rule.HoldDuration() > 0 {
		all = append(all, mutation{"for left away", expr, 0})
	}
	return all
}

// TestMutations: whatever is changed in an alert, one of its unit tests fails.
func TestMutations(t *testing.T) {
	killed := 0
	for _, f := range readUnitFiles(t, "tests/*.yml") {
		var situations []*situation
		for i := range f.Tests {
			situations = append(situations, newSituation(t, &f, &f.Tests[i]))
		}
		if len(situations) == 0 {
			continue
		}
		for i, rule := range situations[0].alerts {
			for _, m := range mutations(t, rule) {
				if fails(t, situations, i, m) {
					killed++
				} else {
					t.Errorf("%s, rule %d %s: no unit test fails with %s", f.path, i, rule.Name(), m.what)
				}
			}
		}
	}
	t.Logf("%d mutations made a unit test fail", killed)
}

// fails tells whether a unit test that passes without the mutation fails with
// it: what fires at a moment that the test looks at is another.
func fails(t *testing.T, situations []*situation, index int, m mutation) bool {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(m.expr)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(situations, func(s *situation) bool {
		rule := s.alerts[index]
		moments := s.moments(rule.Name())
		if len(moments) == 0 {
			return false
		}
		if s.unmutated == nil {
			s.unmutated = map[int]map[time.Duration][]string{}
		}
		if s.unmutated[index] == nil {
			if s.unmutated[index], err = s.fires(t, rule, rule.Query(), rule.HoldDuration()); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.fires(t, rule, expr, m.hold)
		// Such as two series with the same labels: it would fail as a rule, too.
		return err != nil || !reflect.DeepEqual(got, s.unmutated[index])
	})
}

// fires evaluates a rule with another expression and hold. Annotations cost
// more than all else, so they are left out, and the value stands for them where
// they tell it.
func (s *situation) fires(t *testing.T, rule *rules.AlertingRule, expr parser.Expr, hold time.Duration) (map[time.Duration][]string, error) {
	t.Helper()
	none := labels.EmptyLabels()
	text := func(a *rules.Alert) string { return a.Labels.String() }
	if strings.Contains(rule.Annotations().String(), "$value") {
		text = func(a *rules.Alert) string { return fmt.Sprint(a.Labels, a.Value) }
	}
	plain := rules.NewAlertingRule(rule.Name(), expr, hold, rule.KeepFiringFor(), rule.Labels(), none, none, "", true, promslog.NewNopLogger())
	fired, err := s.firing(t.Context(), plain, text, s.moments(rule.Name()))
	for _, at := range fired {
		slices.Sort(at)
	}
	return fired, err
}

// TestMutationsAreMade holds what is changed equal to what is to be changed.
func TestMutationsAreMade(t *testing.T) {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr("a > on (x) (b) unless c == 0")
	if err != nil {
		t.Fatal(err)
	}
	none := labels.EmptyLabels()
	var got []string
	for _, m := range mutations(t, rules.NewAlertingRule("A", expr, time.Minute, 0, none, none, none, "", true, promslog.NewNopLogger())) {
		got = append(got, fmt.Sprint(m.hold, " ", m.what))
	}
	want := []string{
		"1m0s right side left away: (a > on (x) (b))",
		"1m0s threshold: a > on (x) ((b)) * 0.5 unless c == 0",
		"1m0s threshold: a > on (x) ((b)) * 1.5 unless c == 0",
		"1m0s comparison left away: (a) unless c == 0",
		"1m0s threshold: a > on (x) (b) unless c == -1",
		"1m0s threshold: a > on (x) (b) unless c == 1",
		"1m0s comparison left away: a > on (x) (b) unless (c)",
		"0s for left away",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mutations (-want +got):\n%s", diff)
	}
}
