package web

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/sidecar"
)

// notice is something that the reader must know to read the numbers right.
type notice struct {
	Title string `json:"title"`
	Text  string `json:"text"`
}

// reasonNoCurve is the reason code of a replica for which no curve was ever given.
const reasonNoCurve = "no_curve"

// curveNotice says what the headroom rests on where that is not a good curve
// and the users' own traffic; nil where it is. The most important comes first.
func curveNotice(c *sidecar.CurveStatus) *notice {
	var all []notice
	if c.ProbeRunning {
		all = append(all, notice{
			"A probe measures the capacity curve anew: its load counts as traffic.",
			"Until it ends, the headroom is what it leaves, not what the users leave.",
		})
	}
	switch {
	case !c.Valid:
		all = append(all, invalidNotice(c))
	case len(c.Stale) > 0:
		all = append(all, staleNotice(c))
	}
	if len(all) == 0 {
		return nil
	}
	n := all[0]
	for _, more := range all[1:] {
		n.Text += " " + more.Title + " " + more.Text
	}
	return &n
}

// invalidNotice is that of a curve that does not count.
func invalidNotice(c *sidecar.CurveStatus) notice {
	switch {
	case len(c.Reasons) == 0 || slices.Contains(c.Reasons, reasonNoCurve):
		return notice{
			"No capacity curve yet: headroom here is an upper bound.",
			"The load ratios come from the engine's own limits (slots, token budget, queue), and latency usually suffers before those are full. " +
				"Plan for less than is shown, and watch both latencies below. A capacity curve measured for this model, engine and GPU puts the knee in place of the bound.",
		}
	case overByPart(c):
		return notice{
			"Above the knee by a part of the traffic alone: the load is at least what is shown.",
			"The capacity curve does not count, because " + strings.Join(c.Why(), "; ") + ". What it explains of the traffic is more than its knee all the same, so that much is shown; the rest comes on top.",
		}
	default:
		return notice{
			"The capacity curve is not in force: headroom here is an upper bound.",
			"Why: " + strings.Join(c.Why(), "; ") + ". Until that is mended, the load ratios come from the engine's own limits, which latency usually reaches first.",
		}
	}
}

// overByPart tells that a curve does not count, and what it explains of the
// traffic is above its knee by itself: the one load that is told of such a curve.
func overByPart(c *sidecar.CurveStatus) bool { return !c.Valid && c.Load.Ratio > 1 }

// staleNotice is that of a curve that counts, and should be measured again.
func staleNotice(c *sidecar.CurveStatus) notice {
	n := notice{
		"The capacity curve should be measured again: the headroom is as good as it still is.",
		"Why: " + strings.Join(c.Again(), "; ") + ".",
	}
	if c.Age > curve.MaxAge {
		n.Text += fmt.Sprintf(" It was measured %s days ago.", grouped(math.Floor(c.Age.Hours()/24)))
	}
	return n
}
