package rules

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// names decides which names may be written in rules: the classic ones, since
// /metrics is read by servers and tools that know no others.
const names = model.LegacyValidation

// minGroupInterval keeps one group from taking the machine for itself.
const minGroupInterval = time.Second

// ownPrefixes begin the names of what the process says of itself.
var ownPrefixes = []string{"headroom_exporter_", "go_", "process_", "promhttp_"}

// targetLabels belong to the scrape: a series that brings its own would be
// renamed to exported_job and exported_instance there.
var targetLabels = []string{"job", "instance"}

// nativeOnly are the functions that are defined on native histograms only.
// The store holds floats, so they would never return anything.
var nativeOnly = []string{"histogram_avg", "histogram_count", "histogram_sum", "histogram_stddev", "histogram_stdvar"}

// labelWriters are the functions that write a label, by the position of the
// argument that names it.
var labelWriters = map[string]int{"label_replace": 1, "label_join": 1}

// limits are what rules are held against at load.
type limits struct {
	retention time.Duration
	reserved  map[string]bool
}

// refuseGroup says why a group cannot be evaluated here, nil when it can.
func (l limits) refuseGroup(g rulefmt.RuleGroup) error {
	if d := time.Duration(g.Interval); d != 0 && d < minGroupInterval {
		return fmt.Errorf("its interval %v is below %v", d, minGroupInterval)
	}
	return refuseLabels(maps.Keys(g.Labels))
}

// refuseRule says everything for which a rule of a group cannot be evaluated
// here, nil when it can. expr is the rule's parsed expression.
func (l limits) refuseRule(g rulefmt.RuleGroup, r rulefmt.Rule, expr parser.Expr) error {
	if r.Alert != "" {
		return errors.New("is an alerting rule: alerts belong to the Prometheus server that scrapes this exporter")
	}
	return errors.Join(
		l.refuseName(r.Record),
		refuseLabels(maps.Keys(r.Labels)),
		l.refuseSpan(g, expr),
		refuseExpr(expr),
	)
}

func (l limits) refuseName(name string) error {
	switch {
	case strings.Contains(name, ":"):
		return errors.New("records a name with a colon, which an exporter must not expose")
	case l.reserved[name]:
		return errors.New("records a name that the exporter exposes itself")
	}
	for _, prefix := range ownPrefixes {
		if strings.HasPrefix(name, prefix) {
			return fmt.Errorf("records a name under %s, which is the exporter's own", prefix)
		}
	}
	return nil
}

func refuseLabels(written func(yield func(string) bool)) error {
	for _, name := range slices.Sorted(written) {
		if slices.Contains(targetLabels, name) {
			return fmt.Errorf("sets the label %s, which belongs to the scrape", name)
		}
		if strings.HasPrefix(name, model.ReservedLabelPrefix) {
			return fmt.Errorf("sets the label %s: names that begin with __ are reserved", name)
		}
	}
	return nil
}

func (l limits) refuseSpan(g rulefmt.RuleGroup, expr parser.Expr) error {
	reach, err := span(expr)
	if err != nil {
		return err
	}
	if g.QueryOffset != nil {
		reach += time.Duration(*g.QueryOffset)
	}
	if reach > l.retention {
		return fmt.Errorf("reads %v back, further than the store keeps (%v)", reach, l.retention)
	}
	return nil
}

// refuseExpr finds what cannot work in an expression, wherever it stands.
func refuseExpr(expr parser.Expr) error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	writes := func(e parser.Expr) {
		if s, ok := unwrap(e).(*parser.StringLiteral); ok {
			if err := refuseLabels(slices.Values([]string{s.Val})); err != nil {
				errs = append(errs, err)
			}
			if !names.IsValidLabelName(s.Val) {
				refuse("sets the label %q, which is no classic label name", s.Val)
			}
		}
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			for _, m := range n.LabelMatchers {
				if !names.IsValidLabelName(m.Name) {
					refuse("selects by %q, which is no classic label name", m.Name)
				}
				if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual && !names.IsValidMetricName(m.Value) {
					refuse("selects %q, which is no classic metric name", m.Value)
				}
			}
		case *parser.Call:
			if slices.Contains(nativeOnly, n.Func.Name) {
				refuse("calls %s, which needs native histograms; the store holds none", n.Func.Name)
			}
			if at, ok := labelWriters[n.Func.Name]; ok {
				writes(n.Args[at])
			}
		case *parser.AggregateExpr:
			if n.Op == parser.COUNT_VALUES {
				writes(n.Param)
			}
		}
		return nil
	})
	return errors.Join(errs...)
}

func unwrap(e parser.Expr) parser.Expr {
	for {
		p, ok := e.(*parser.ParenExpr)
		if !ok {
			return e
		}
		e = p.Expr
	}
}
