package report

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/plot"
)

// The sizes of the pictures in pixels of their own, which the page scales.
const (
	wide, wideHeight = 1120.0, 400.0
	half, halfHeight = 545.0, 330.0
)

// picture is a drawing with its words.
type picture struct {
	Title, Caption string
	Drawing        template.HTML
	Legend         []legend
	Wide           bool
}

// legend explains one colour or shape.
type legend struct {
	Sample template.HTML
	Text   string
}

// colours is how many the page has.
const colours = 8

// colour is the page's class for a series.
func colour(i int) string { return fmt.Sprintf("c%d", i%colours) }

func lineLegend(class, text string) legend {
	return legend{template.HTML(`<svg viewBox="0 0 26 8" class="sample"><path d="M0 4L26 4" class="` + class + `"/></svg>`), text}
}

func markLegend(m plot.Mark, text string) legend {
	return legend{template.HTML(`<svg viewBox="-7 -7 14 14" class="sample small"><g class="total">` + string(m.HTML()) + `</g></svg>`), text}
}

func fillLegend(class, text string) legend {
	return legend{template.HTML(`<svg viewBox="0 0 12 12" class="sample small"><rect width="12" height="12" class="` + class + `"/></svg>`), text}
}

// placed are the points of a study that have a place on its axis of rates, by
// that rate. In a closed loop nothing is offered: what is completed takes its place.
func placed(s *curve.Study) []*curve.Point {
	var points []*curve.Point
	seen := map[string]bool{}
	add := func(p *curve.Point) {
		if p == nil || p.Name != "" && seen[p.Name] {
			return
		}
		if closedLoop(s) && !known(p.OfferedRate) {
			completed := *p
			completed.OfferedRate = p.CompletedRate
			p = &completed
		} else if p.Concurrency > 0 {
			return
		}
		if !known(p.OfferedRate) || p.OfferedRate < 0 {
			return
		}
		switch p.Purpose {
		case curve.PurposeWarmup, curve.PurposeCeiling, curve.PurposeBurst:
			return
		}
		seen[p.Name] = true
		points = append(points, p)
	}
	add(s.Baseline)
	if s.Soak != nil {
		for i := range s.Soak.Trials {
			add(&s.Soak.Trials[i])
		}
	}
	for i := range s.Points {
		add(&s.Points[i])
	}
	slices.SortStableFunc(points, func(a, b *curve.Point) int { return cmp.Compare(a.OfferedRate, b.OfferedRate) })
	return points
}

// markOf shows how a point ended.
func markOf(p *curve.Point) plot.Mark {
	switch {
	case p.Stopped != "":
		return plot.Triangle
	case p.Passed == nil || len(p.Faults) > 0:
		return plot.Ring
	case !*p.Passed:
		return plot.Cross
	case p.Purpose == curve.PurposeSoak:
		return plot.Diamond
	}
	return plot.Disc
}

// symbolOf is markOf where there are shapes enough to tell points that cannot
// be used, and soaks, from others that are not decided.
func symbolOf(p *curve.Point) plot.Mark {
	m := markOf(p)
	switch {
	case m == plot.Ring && len(p.Faults) > 0:
		return plot.HollowSquare
	case m == plot.Ring && p.Purpose == curve.PurposeSoak:
		return plot.HollowDiamond
	}
	return m
}

// outcome is how a point ended, in words.
func outcome(p *curve.Point) string {
	switch {
	case p.Stopped != "":
		return "stopped early: " + p.Stopped
	case len(p.Faults) > 0:
		return "cannot be used: " + strings.Join(p.Faults, "; ")
	case p.Passed == nil:
		return "not decided"
	case *p.Passed:
		return "passed"
	}
	return "failed"
}

// markLegends explains the marks that the points have.
func markLegends(points []*curve.Point) []legend {
	var out []legend
	for _, m := range []struct {
		mark plot.Mark
		text string
	}{{plot.Disc, "passed"}, {plot.Diamond, "soak, passed"}, {plot.Cross, "failed"}, {plot.Triangle, "stopped early, failed"}, {plot.Ring, "not decided: too few requests to tell"}, {plot.HollowDiamond, "soak, not proven"}, {plot.HollowSquare, "cannot be used"}} {
		if slices.ContainsFunc(points, func(p *curve.Point) bool { return symbolOf(p) == m.mark }) {
			out = append(out, markLegend(m.mark, m.text))
		}
	}
	return out
}

// kept are the percentiles that a curve has of each latency.
var kept = []float64{10, 50, 90, 95, 99, 99.9}

// nextKept is the percentile itself where it is kept, or the next above.
func nextKept(percentile float64) float64 {
	for _, p := range kept {
		if p >= percentile {
			return p
		}
	}
	return kept[len(kept)-1]
}

// latency is a metric's quantiles at a point, of a class where one is named;
// nil when the curve does not keep them.
func latency(p *curve.Point, class, metric string) *curve.Quantiles {
	of := func(ttft, itl, tpot, e2e *curve.Quantiles) *curve.Quantiles {
		switch metric {
		case "ttft":
			return ttft
		case "itl":
			return itl
		case "tpot":
			return tpot
		case "e2e":
			return e2e
		}
		return nil
	}
	if class == "" {
		return of(&p.TTFT, &p.ITL, &p.TPOT, &p.E2E)
	}
	for i := range p.Classes {
		if c := &p.Classes[i]; c.Class == class {
			return of(&c.TTFT, &c.ITL, &c.TPOT, &c.E2E)
		}
	}
	return nil
}

// tail is the latency that an SLO bounds at a point.
func tail(p *curve.Point, b bounded) curve.Value {
	q := latency(p, b.Class, b.Metric)
	if q == nil {
		return capacity.Unknown()
	}
	return q.At(nextKept(b.Percentile))
}

// tailName is what tail returns.
func (b bounded) tailName() string {
	b.Percentile = nextKept(b.Percentile)
	return b.name()
}

func write(v float64) string         { return number(curve.Value(v)) }
func writeSeconds(v float64) string  { return seconds(curve.Value(v)) }
func writePercent(v float64) string  { return percent(curve.Value(v)) }
func finite(v curve.Value) []float64 { return slices.DeleteFunc([]float64{float64(v)}, notFinite) }
func notFinite(v float64) bool       { return math.IsNaN(v) || math.IsInf(v, 0) }

// rateAxis holds every rate of a study: from 0 on, or from below the lowest
// where that would leave more than a third of the picture empty.
func rateAxis(s *curve.Study, points []*curve.Point, d *plot.Drawing) (plot.Axis, []float64) {
	var all []float64
	for _, p := range points {
		all = append(all, float64(p.OfferedRate))
	}
	all = append(all, finite(s.SafeRate)...)
	if k := s.Knee; k != nil {
		all = slices.Concat(all, finite(k.Rate), finite(k.High), finite(k.CliffTo))
	}
	if k := s.Knee; k != nil {
		all = append(all, finite(k.Watermark)...)
	}
	least, most := math.Inf(1), 0.0
	for _, v := range all {
		least, most = min(least, v), max(most, v)
	}
	if most == 0 {
		most = 1
	}
	from, to := 0.0, most*1.06
	if spread := most - least; least-0.3*spread > to/3 {
		from, to = least-0.3*spread, most+0.08*spread
	}
	if !(to > from) {
		from, to = 0, most*1.06
	}
	return plot.Axis{From: from, To: to, Start: d.Left, End: d.Right}, plot.TicksBetween(from, to, int((d.Right-d.Left)/75))
}

func closedLoop(s *curve.Study) bool { return s.Arrivals.Process == "closed_loop" }

// rateLabel is what the axis of rates shows.
func rateLabel(s *curve.Study) string {
	if closedLoop(s) {
		return "completed requests/s, closed loop"
	}
	return "offered requests/s"
}

// zones are the bands below the watermark, up to the knee, and above it.
func zones(d *plot.Drawing, s *curve.Study, x plot.Axis, named bool) {
	k := s.Knee
	if k == nil || !known(k.Rate) {
		return
	}
	from := x.From
	for _, z := range []struct {
		name string
		to   float64
	}{{"stable", float64(k.Watermark)}, {"risk", float64(k.Rate)}, {"unstable", x.To}} {
		if notFinite(z.to) || z.to < from {
			continue
		}
		left, width := x.At(from), x.At(z.to)-x.At(from)
		d.Rect(left, d.Top, width, d.Bottom-d.Top, "zone "+z.name, "")
		if named && width > 7*float64(len(z.name)) {
			d.Text(left+width/2, d.Bottom-8, "middle", "zonename "+z.name, z.name)
		}
		from = z.to
	}
}

// landmarks are the upright lines at the watermark, the safe rate and the knee with
// its interval; the words stand above the plot.
func landmarks(d *plot.Drawing, s *curve.Study, x plot.Axis, named bool) {
	k := s.Knee
	var lines []struct {
		at          curve.Value
		class, text string
	}
	add := func(at curve.Value, class, text string) {
		if known(at) {
			lines = append(lines, struct {
				at          curve.Value
				class, text string
			}{at, class, text})
		}
	}
	if k != nil {
		add(k.Rate, "knee", "knee "+interval(k.Rate, k.Low, k.High))
		if known(k.Low) && known(k.High) {
			d.Rect(x.At(float64(k.Low)), d.Top, max(x.At(float64(k.High))-x.At(float64(k.Low)), 1), d.Bottom-d.Top, "interval", "interval of the knee: "+rate(k.Low)+" to "+rate(k.High)+" requests/s")
		}
	}
	add(s.SafeRate, "safe", "safe rate "+rate(s.SafeRate))
	if k != nil {
		add(k.Watermark, "watermark", "watermark "+rate(k.Watermark))
	}
	for i, l := range lines {
		px, y := x.At(float64(l.at)), d.Top
		if named {
			y = 16 + 16*float64(i)
			anchor, tx := "end", px-5
			if px-d.Left < 7*float64(len(l.text)) {
				anchor, tx = "start", px+5
			}
			d.Text(tx, y, anchor, "landmark "+l.class+"name", l.text)
			y -= 10
		}
		d.Line(px, y, px, d.Bottom, "upright "+l.class)
	}
}

// landmarkLegends explains what stands in a picture without words.
func landmarkLegends(s *curve.Study) []legend {
	var out []legend
	if known(s.SafeRate) {
		out = append(out, lineLegend("upright safe", "safe rate"))
	}
	if s.Knee != nil {
		if known(s.Knee.Watermark) {
			out = append(out, lineLegend("upright watermark", "watermark"))
		}
		if known(s.Knee.Rate) {
			out = append(out, lineLegend("upright knee", "knee and its interval"))
		}
	}
	return out
}

// outcomeWord is how a point ended in a word.
func outcomeWord(p *curve.Point) string {
	switch {
	case p.Stopped != "":
		return "stopped"
	case len(p.Faults) > 0:
		return "not usable"
	case p.Passed == nil:
		return "undecided"
	case *p.Passed:
		return "passed"
	}
	return "failed"
}

// pictures of a study that have something to show.
func pictures(s subject, slots int) []picture {
	all := []picture{tailPicture(s), violationPicture(s), throughputPicture(s), queuePicture(s, slots), kvPicture(s)}
	seen := map[[2]string]bool{}
	for _, b := range s.SLO {
		key := [2]string{b.Class, b.Metric}
		if !seen[key] {
			seen[key] = true
			all = append(all, ladderPicture(s, b.Class, b.Metric))
		}
	}
	all = append(all,
		sharesPicture(s, "Where a request's time goes", "Mean seconds by the engine's own histograms; what it does not say is left out.", decodeShare, prefillShare, queueShare),
		sharesPicture(s, "Before the first token", "The part of it that makes the TTFT.", prefillShare, queueShare))
	return slices.DeleteFunc(all, func(p picture) bool { return p.Drawing == "" })
}
