package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/plot"
)

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
				if v := float64(q.At(percentile)); v > 0 && !notFinite(v) {
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
			v := q.At(percentile)
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
