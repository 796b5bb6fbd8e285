package rules

import (
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// selection tells which series some rule reads.
type selection struct {
	byName map[string][][]*labels.Matcher
	// anyName are the selectors that name no single metric.
	anyName [][]*labels.Matcher
}

func newSelection(selectors [][]*labels.Matcher) *selection {
	s := &selection{byName: map[string][][]*labels.Matcher{}}
	for _, matchers := range selectors {
		if name := metricName(matchers); name != "" {
			s.byName[name] = append(s.byName[name], matchers)
		} else {
			s.anyName = append(s.anyName, matchers)
		}
	}
	return s
}

func metricName(matchers []*labels.Matcher) string {
	for _, m := range matchers {
		if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
			return m.Value
		}
	}
	return ""
}

// selects tells whether some rule reads the series.
func (s *selection) selects(ls labels.Labels) bool {
	return anyMatches(s.byName[ls.Get(model.MetricNameLabel)], ls) || anyMatches(s.anyName, ls)
}

// mayRead tells whether some rule may read a series of a name.
func (s *selection) mayRead(name string) bool {
	return len(s.anyName) > 0 || len(s.byName[name]) > 0
}

func anyMatches(selectors [][]*labels.Matcher, ls labels.Labels) bool {
next:
	for _, matchers := range selectors {
		for _, m := range matchers {
			if !m.Matches(ls.Get(m.Name)) {
				continue next
			}
		}
		return true
	}
	return false
}
