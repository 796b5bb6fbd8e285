package rules

import (
	"errors"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

var (
	// errFixedTime is for the @ modifier with a literal time: whatever the
	// retention, that time leaves the store one day.
	errFixedTime = errors.New("reads a fixed time (@), which the store will not keep")
	// errComputedDuration is for ranges and offsets that are known only when
	// the query runs.
	errComputedDuration = errors.New("computes a range, an offset or a step; write it as a plain duration")
)

// span returns how far back from the time of evaluation an expression reads:
// the largest sum of ranges and offsets over a selector and what is around it.
func span(expr parser.Expr) (time.Duration, error) {
	var longest time.Duration
	var errs []error
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		reach := selector.OriginalOffset
		fixed := selector.Timestamp != nil
		computed := selector.OriginalOffsetExpr != nil
		for _, around := range path {
			switch n := around.(type) {
			case *parser.MatrixSelector:
				reach += n.Range
				computed = computed || n.RangeExpr != nil
			case *parser.SubqueryExpr:
				reach += n.Range + n.OriginalOffset
				fixed = fixed || n.Timestamp != nil
				computed = computed || n.RangeExpr != nil || n.OriginalOffsetExpr != nil || n.StepExpr != nil
			}
		}
		if fixed {
			errs = append(errs, errFixedTime)
		}
		if computed {
			errs = append(errs, errComputedDuration)
		}
		longest = max(longest, reach)
		return nil
	})
	return longest, errors.Join(errs...)
}
