package report

import (
	"fmt"
	"math"
	"slices"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/plot"
)

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
