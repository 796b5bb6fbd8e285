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

func quantile(q *curve.Quantiles, percentile float64) curve.Value {
	switch percentile {
	case 10:
		return q.P10
	case 50:
		return q.P50
	case 90:
		return q.P90
	case 95:
		return q.P95
	case 99:
		return q.P99
	case 99.9:
		return q.P999
	}
	return capacity.Unknown()
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
	return quantile(q, nextKept(b.Percentile))
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

// tailPicture is what the SLO bounds over the offered rate.
func tailPicture(s subject) picture {
	points := placed(s.Study)
	out := picture{Title: "Tail latency over the offered rate", Wide: true, Legend: markLegends(points),
		Caption: "Each line is a latency that the SLO bounds, dotted is its bound. Above the knee a latency depends on how long the point lasted: it would go on growing."}
	var least, most = math.Inf(1), 0.0
	drawable := 0
	for _, b := range s.SLO {
		least, most = min(least, b.Bound.Seconds()), max(most, b.Bound.Seconds())
		for _, p := range points {
			if v := float64(tail(p, b)); v > 0 && !notFinite(v) {
				least, most = min(least, v), max(most, v)
				drawable++
			}
		}
	}
	if drawable == 0 {
		return picture{}
	}
	d := plot.New(plot.Frame{Width: wide, Height: wideHeight, Left: 78, Right: 170, Top: 58, Bottom: 38}, fmt.Sprintf("Tail latencies of %s over the offered rate, on a logarithmic scale. %s", s.Name, landmarkWords(s.Study)))
	x, ticks := rateAxis(s.Study, points, d)
	y := plot.Axis{From: least / 1.6, To: most * 1.6, Start: d.Bottom, End: d.Top, Log: true}
	zones(d, s.Study, x, true)
	d.YAxis(plot.LogTicks(y.From, y.To), y, writeSeconds, "seconds, log scale")
	landmarks(d, s.Study, x, true)
	var texts []plot.Beside
	labelled := float64(2*len(s.SLO)*15) <= d.Bottom-d.Top
	for i, b := range s.SLO {
		class := colour(i)
		at := y.At(b.Bound.Seconds())
		d.Line(d.Left, at, d.Right, at, "slo "+class)
		if labelled {
			texts = append(texts, plot.Beside{Y: at, Text: b.name() + " ≤ " + bound(b.SLO), Class: "beside slotext " + class})
		}
		var line []plot.Point
		for _, p := range points {
			v := tail(p, b)
			place := plot.Pt(x.At(float64(p.OfferedRate)), y.At(float64(v)))
			if p.Purpose != curve.PurposeSoak {
				line = append(line, place)
			}
			d.Mark(place, symbolOf(p), class, fmt.Sprintf("%s at %s requests/s: %s, %s", b.tailName(), rate(p.OfferedRate), seconds(v), outcome(p)))
			if i := len(texts); !place.Gap() && p.Purpose != curve.PurposeSoak {
				if i > 0 && texts[i-1].Class == "beside "+class {
					texts = texts[:i-1]
				}
				texts = append(texts, plot.Beside{Y: place.Y, Text: b.tailName(), Class: "beside " + class})
			}
		}
		d.Path(line, "line "+class)
	}
	d.Column(d.Right+8, "start", texts)
	d.XAxis(ticks, x, write, rateLabel(s.Study))
	out.Drawing = d.HTML()
	return out
}

// landmarkWords are the landmarks for those who do not see the picture.
func landmarkWords(s *curve.Study) string {
	words := "Safe rate " + rate(s.SafeRate)
	if k := s.Knee; k != nil {
		words += ", knee " + interval(k.Rate, k.Low, k.High) + ", watermark " + rate(k.Watermark)
	}
	return words + " requests/s."
}

// violationPicture is the share of requests beyond each bound over the offered
// rate: as measured, and the curve through it that never falls.
func violationPicture(s subject) picture {
	points := placed(s.Study)
	type series struct {
		bounded
		curve *curve.Violations
	}
	var all []series
	for _, b := range s.SLO {
		all = append(all, series{bounded: b})
	}
	for i := range s.Curve {
		v := &s.Curve[i]
		n := slices.IndexFunc(all, func(x series) bool { return x.SLO == v.SLO && (x.Class == v.Class || s.Mix == nil) })
		if n < 0 {
			all = append(all, series{bounded: bounded{v.Class, v.SLO}})
			n = len(all) - 1
		}
		all[n].curve = v
	}
	drawn := false
	budget := 1.0
	for _, x := range all {
		budget = min(budget, x.Budget())
	}
	floor := budget / 10
	budgets := map[string]bool{}
	d := plot.New(plot.Frame{Width: half, Height: halfHeight, Left: 62, Right: 14, Top: 14, Bottom: 38}, "Share of requests beyond each bound of "+s.Name+" over the offered rate, on a logarithmic scale. "+landmarkWords(s.Study))
	x, ticks := rateAxis(s.Study, points, d)
	y := plot.Axis{From: floor, To: 1, Start: d.Bottom - 10, End: d.Top, Log: true}
	zones(d, s.Study, x, false)
	d.YAxis(plot.LogTicks(floor, 1), y, func(v float64) string {
		if v <= floor*1.001 {
			return "≤ " + writePercent(v)
		}
		return writePercent(v)
	}, "share beyond the bound")
	landmarks(d, s.Study, x, false)
	out := picture{Title: "Violations over the offered rate",
		Caption: "Lines are the published curves, which never fall; marks are the points with their one-sided bounds. How the knee follows is in the table of bounds below."}
	at := func(fraction float64) float64 {
		if !(fraction >= 0) {
			return math.NaN()
		}
		return y.At(max(fraction, floor))
	}
	for i, v := range all {
		class, before := colour(i), d.Len()
		if v.curve != nil {
			var line []plot.Point
			for k := range min(len(v.curve.Rate), len(v.curve.Fraction)) {
				if r := v.curve.Rate[k]; r <= x.To {
					line = append(line, plot.Pt(x.At(r), at(v.curve.Fraction[k])))
				}
			}
			d.Path(line, "line "+class)
		}
		for _, p := range points {
			for k := range p.Gates {
				g := &p.Gates[k]
				if g.Name != "slo" || g.SLO == nil || *g.SLO != v.SLO || s.Mix != nil && g.Class != v.Class || !(g.N > 0) {
					continue
				}
				px, fraction := x.At(float64(p.OfferedRate)), g.Violations/g.N
				if known(g.Low) && known(g.High) {
					d.Line(px, at(float64(g.Low)), px, at(float64(g.High)), "whisker "+class)
				}
				d.Mark(plot.Pt(px, at(fraction)), symbolOf(p), class, fmt.Sprintf("%s at %s requests/s: %s of %s, %s (%s to %s)", v.name(), rate(p.OfferedRate), number(curve.Value(g.Violations)), number(curve.Value(g.N)), percent(curve.Value(fraction)), percent(g.Low), percent(g.High)))
			}
		}
		if d.Len() == before {
			continue
		}
		drawn = true
		out.Legend = append(out.Legend, lineLegend("line "+class, v.name()))
		if text := percent(curve.Value(v.Budget())); !budgets[text] {
			budgets[text] = true
			d.Line(d.Left, at(v.Budget()), d.Right, at(v.Budget()), "bound")
			d.Text(d.Left+6, at(v.Budget())-5, "start", "over", "budget "+text)
		}
	}
	if !drawn {
		return picture{}
	}
	out.Legend = append(out.Legend, landmarkLegends(s.Study)...)
	d.XAxis(ticks, x, write, rateLabel(s.Study))
	out.Drawing = d.HTML()
	return out
}

// valued is a reading of a point by name.
type valued struct {
	name  string
	class string
	of    func(*curve.Point) curve.Value
}

// readingPicture is readings over the offered rate on a linear scale. Reference
// lines go in before the readings.
func readingPicture(s subject, heading, caption, unit string, readings []valued, most float64, under func(*plot.Drawing, plot.Axis, plot.Axis)) picture {
	points := placed(s.Study)
	drawn := 0
	for _, r := range readings {
		for _, p := range points {
			if v := r.of(p); known(v) {
				most = max(most, float64(v))
				drawn++
			}
		}
	}
	if drawn == 0 {
		return picture{}
	}
	d := plot.New(plot.Frame{Width: half, Height: halfHeight, Left: 62, Right: 14, Top: 14, Bottom: 38}, heading+" of "+s.Name+". "+landmarkWords(s.Study))
	x, xTicks := rateAxis(s.Study, points, d)
	ticks, top := plot.LinearTicks(most*1.02, 5)
	y := plot.Axis{From: 0, To: top, Start: d.Bottom, End: d.Top}
	zones(d, s.Study, x, false)
	d.YAxis(ticks, y, write, unit)
	landmarks(d, s.Study, x, false)
	if under != nil {
		under(d, x, y)
	}
	out := picture{Title: heading, Caption: caption}
	for _, r := range readings {
		var line []plot.Point
		for _, p := range points {
			v := r.of(p)
			place := plot.Pt(x.At(float64(p.OfferedRate)), y.At(float64(v)))
			if p.Purpose != curve.PurposeSoak {
				line = append(line, place)
			}
			d.Mark(place, symbolOf(p), r.class, fmt.Sprintf("%s at %s requests/s: %s", r.name, rate(p.OfferedRate), number(v)))
		}
		d.Path(line, "line "+r.class)
		out.Legend = append(out.Legend, lineLegend("line "+r.class, r.name))
	}
	out.Legend = append(out.Legend, landmarkLegends(s.Study)...)
	d.XAxis(xTicks, x, write, rateLabel(s.Study))
	out.Drawing = d.HTML()
	return out
}

func throughputPicture(s subject) picture {
	ceiling := math.NaN()
	if s.Ceiling != nil && known(s.Ceiling.Rate) {
		ceiling = float64(s.Ceiling.Rate)
	}
	out := readingPicture(s, "Served over offered", "Below the dotted line less is completed than comes.", "completed requests/s",
		[]valued{{"completed", colour(0), func(p *curve.Point) curve.Value { return p.CompletedRate }}}, max(0, ceiling),
		func(d *plot.Drawing, x, y plot.Axis) {
			end := min(x.To, y.To)
			d.Line(x.At(x.From), y.At(x.From), x.At(end), y.At(end), "reference")
			if !notFinite(ceiling) {
				d.Line(d.Left, y.At(ceiling), d.Right, y.At(ceiling), "slo "+colour(1))
			}
		})
	if out.Drawing != "" {
		out.Legend = append(out.Legend, lineLegend("reference", "all that comes is served"))
		if !notFinite(ceiling) {
			out.Legend = append(out.Legend, lineLegend("slo "+colour(1), "ceiling in a closed loop, "+rate(curve.Value(ceiling))+"/s"))
		}
	}
	return out
}

func queuePicture(s subject, slots int) picture {
	drawn := false
	under := func(d *plot.Drawing, _, y plot.Axis) {
		if drawn = slots > 0 && y.Has(float64(slots)); drawn {
			d.Line(d.Left, y.At(float64(slots)), d.Right, y.At(float64(slots)), "slo "+colour(0))
		}
	}
	// The slots are worth their height where a good part of them was in use.
	most := 0.0
	for _, p := range placed(s.Study) {
		if known(p.Engine.RunningMax) && float64(p.Engine.RunningMax) >= 0.5*float64(slots) {
			most = float64(slots)
		}
	}
	out := readingPicture(s, "Running and waiting", "Mean numbers of requests in the engine, as it says itself.", "requests",
		[]valued{
			{"running", colour(0), func(p *curve.Point) curve.Value { return p.Engine.RunningMean }},
			{"waiting", colour(1), func(p *curve.Point) curve.Value { return p.Engine.WaitingMean }},
		}, most, under)
	if drawn {
		out.Legend = append(out.Legend, lineLegend("slo "+colour(0), fmt.Sprintf("sequence slots, %d", slots)))
	}
	return out
}

// chosen are the points whose distributions tell most: idle, near the
// watermark, at the safe rate, and the first that failed, or the highest.
func chosen(s *curve.Study) []*curve.Point {
	points := placed(s)
	var out []*curve.Point
	add := func(p *curve.Point) {
		if p != nil && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	failed := func(p *curve.Point) bool { return p.Passed != nil && !*p.Passed }
	nearest := func(to curve.Value) (best *curve.Point) {
		for _, p := range points {
			if !failed(p) && len(p.Faults) == 0 && p != s.Baseline && (best == nil || math.Abs(float64(p.OfferedRate-to)) < math.Abs(float64(best.OfferedRate-to))) {
				best = p
			}
		}
		return best
	}
	add(s.Baseline)
	if s.Knee != nil && known(s.Knee.Watermark) {
		add(nearest(s.Knee.Watermark))
	}
	if known(s.SafeRate) {
		add(nearest(s.SafeRate))
	}
	if len(out) == 0 && len(points) > 0 {
		add(points[0])
		add(points[len(points)/2])
	}
	if i := slices.IndexFunc(points, func(p *curve.Point) bool { return failed(p) && len(p.Faults) == 0 }); i >= 0 {
		add(points[i])
	} else if len(points) > 0 {
		add(points[len(points)-1])
	}
	return out
}

func pointName(s *curve.Study, p *curve.Point) string {
	switch {
	case p == s.Baseline:
		return "nearly idle"
	case p.Purpose == curve.PurposeSoak:
		return "soak at " + rate(p.OfferedRate) + "/s"
	case p.Passed != nil && !*p.Passed:
		return rate(p.OfferedRate) + "/s, failed"
	}
	return rate(p.OfferedRate) + "/s"
}

// ladderPicture is the distribution of one latency at chosen points: the
// percentile upwards, its distance to 100 on a logarithmic scale.
func ladderPicture(s subject, class, metric string) picture {
	points := chosen(s.Study)
	least, most := math.Inf(1), 0.0
	for _, p := range points {
		if q := latency(p, class, metric); q != nil {
			for _, percentile := range kept {
				if v := float64(quantile(q, percentile)); v > 0 && !notFinite(v) {
					least, most = min(least, v), max(most, v)
				}
			}
		}
	}
	if most == 0 {
		return picture{}
	}
	name := metricName(metric)
	if class != "" {
		name += " of " + class
	}
	for _, b := range s.SLO {
		if b.Metric == metric && b.Class == class {
			least, most = min(least, b.Bound.Seconds()), max(most, b.Bound.Seconds())
		}
	}
	d := plot.New(plot.Frame{Width: half, Height: halfHeight, Left: 62, Right: 14, Top: 14, Bottom: 38}, "Distribution of "+name+" at chosen points, from P10 to P99.9")
	x := plot.Axis{From: least / 1.25, To: most * 1.25, Start: d.Left, End: d.Right, Log: true}
	up := func(percentile float64) float64 { return -math.Log10(1 - percentile/100) }
	y := plot.Axis{From: 0, To: up(99.93), Start: d.Bottom, End: d.Top}
	for _, percentile := range kept {
		at := y.At(up(percentile))
		d.Line(d.Left, at, d.Right, at, "grid")
		d.Text(d.Left-7, at+4, "end", "tick", percentileName(percentile))
	}
	out := picture{Title: "Distribution of " + name, Caption: "A line passes left of the cross when it keeps the bound. Percentiles that the samples are too few for are left out."}
	for _, b := range s.SLO {
		if b.Metric == metric && b.Class == class {
			bx, by := x.At(b.Bound.Seconds()), y.At(up(b.Percentile))
			d.Line(bx, d.Top, bx, d.Bottom, "bound")
			d.Line(bx-9, by, bx+9, by, "boundcross")
			d.Line(bx, by-9, bx, by+9, "boundcross")
			anchor, tx := "end", bx-6
			if bx-d.Left < 120 {
				anchor, tx = "start", bx+6
			}
			d.Text(tx, d.Bottom-8, anchor, "over", sloText(b.SLO))
		}
	}
	for i, p := range points {
		q := latency(p, class, metric)
		if q == nil {
			continue
		}
		var line []plot.Point
		for _, percentile := range kept {
			v := quantile(q, percentile)
			place := plot.Pt(x.At(float64(v)), y.At(up(percentile)))
			line = append(line, place)
			d.Mark(place, plot.Disc, colour(i), fmt.Sprintf("%s, %s: %s", pointName(s.Study, p), percentileName(percentile), seconds(v)))
		}
		d.Path(line, "line "+colour(i))
		out.Legend = append(out.Legend, lineLegend("line "+colour(i), pointName(s.Study, p)))
	}
	d.XAxis(plot.LogTicks(x.From, x.To), x, writeSeconds, name+", log scale")
	out.Drawing = d.HTML()
	return out
}

// maxBars bounds the columns of an attribution.
const maxBars = 14

// share is a part of a request's mean time in the engine.
type share struct {
	name, class string
	of          func(*curve.EngineReadings) curve.Value
}

var (
	decodeShare  = share{"decode", colour(0), func(e *curve.EngineReadings) curve.Value { return e.DecodeSeconds }}
	prefillShare = share{"prefill", colour(2), func(e *curve.EngineReadings) curve.Value { return e.PrefillSeconds }}
	queueShare   = share{"queue", colour(1), func(e *curve.EngineReadings) curve.Value { return e.QueueSeconds }}
)

// sharesPicture is mean times of a request at each point, one upon the other,
// the first at the bottom.
func sharesPicture(s subject, heading, caption string, shares ...share) picture {
	var points []*curve.Point
	for _, p := range placed(s.Study) {
		if slices.ContainsFunc(shares, func(x share) bool { return x.of(&p.Engine) > 0 }) {
			points = append(points, p)
		}
	}
	if len(points) == 0 {
		return picture{}
	}
	out := picture{Title: heading, Caption: caption}
	if len(points) > maxBars {
		out.Caption += fmt.Sprintf(" %d of %d points are shown.", maxBars, len(points))
		var some []*curve.Point
		for i := range maxBars {
			some = append(some, points[i*(len(points)-1)/(maxBars-1)])
		}
		points = some
	}
	most := 0.0
	for _, p := range points {
		sum := 0.0
		for _, x := range shares {
			if v := x.of(&p.Engine); known(v) {
				sum += float64(v)
			}
		}
		most = max(most, sum)
	}
	d := plot.New(plot.Frame{Width: half, Height: halfHeight, Left: 78, Right: 14, Top: 14, Bottom: 56}, heading+" of "+s.Name+" at each offered rate: mean seconds in "+shareNames(shares))
	ticks, top := plot.LinearTicks(most, 5)
	y := plot.Axis{From: 0, To: top, Start: d.Bottom, End: d.Top}
	d.YAxis(ticks, y, writeSeconds, "mean time of a request")
	column := (d.Right - d.Left) / float64(max(len(points), 4))
	bar := min(column*0.66, 60)
	for i, p := range points {
		middle, below := d.Left+(float64(i)+0.5)*column, 0.0
		for _, x := range shares {
			v := x.of(&p.Engine)
			if !known(v) || v < 0 {
				continue
			}
			d.Rect(middle-bar/2, y.At(below+float64(v)), bar, y.At(below)-y.At(below+float64(v)), "bar "+x.class,
				fmt.Sprintf("%s at %s requests/s: %s", x.name, rate(p.OfferedRate), seconds(v)))
			below += float64(v)
		}
		if column > 34 || i%2 == 0 {
			d.Text(middle, d.Bottom+17, "middle", "tick", rate(p.OfferedRate))
		}
		d.Mark(plot.Pt(middle, d.Bottom+29), symbolOf(p), "total", outcome(p))
	}
	d.Baseline("points, by " + rateLabel(s.Study))
	for _, x := range slices.Backward(shares) {
		out.Legend = append(out.Legend, fillLegend("bar "+x.class, x.name))
	}
	out.Legend = append(out.Legend, markLegends(points)...)
	out.Drawing = d.HTML()
	return out
}

func shareNames(shares []share) string {
	var names []string
	for _, x := range slices.Backward(shares) {
		names = append(names, x.name)
	}
	return strings.Join(names, ", ")
}

// kvPicture is how full the KV cache was.
func kvPicture(s subject) picture {
	return readingPicture(s, "KV cache in use", "Of all token slots, as the engine says itself. Where it is full, requests are preempted or wait.", "% of token slots",
		[]valued{
			{"peak", colour(0), func(p *curve.Point) curve.Value { return 100 * p.Engine.KVPeak }},
			{"mean", colour(2), func(p *curve.Point) curve.Value { return 100 * p.Engine.KVMean }},
		}, 0, nil)
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
