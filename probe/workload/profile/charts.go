package profile

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"time"

	"headroom_exporter/plot"
	"headroom_exporter/probe/workload"
)

// The sizes of the pictures in pixels of their own, which the page scales.
const (
	wide, wideHeight = 1120.0, 270.0
	half, halfHeight = 545.0, 330.0
)

// frame leaves room for an axis on the left and one below.
func frame(width, height float64) plot.Frame {
	return plot.Frame{Width: width, Height: height, Left: 56, Right: 10, Top: 14, Bottom: 38}
}

// colour is the page's class for a workload class.
func colour(class int) string { return fmt.Sprintf("c%d", class%colours) }

// colours is how many the page has.
const colours = 8

// members are the records of each class.
func (p *Profile) members() [][]workload.Record {
	of := make([][]workload.Record, len(p.File.Classes))
	for i, n := range p.ClassOf {
		of[n] = append(of[n], p.Trace.Records[i])
	}
	return of
}

// clockUnit is the unit in which times within a span are written.
func clockUnit(span time.Duration) (unit time.Duration, name string) {
	switch {
	case span >= 3*24*time.Hour:
		return 24 * time.Hour, "days"
	case span >= 3*time.Hour:
		return time.Hour, "hours"
	case span >= 3*time.Minute:
		return time.Minute, "minutes"
	}
	return time.Second, "seconds"
}

// rateChart is the rate over time, one class upon the other.
func (p *Profile) rateChart() template.HTML {
	step := p.step()
	var series [][]float64
	most := 0.0
	var total []float64
	for _, records := range p.members() {
		counts := workload.WindowCounts(records, p.begin, p.end, step)
		for i := range counts {
			counts[i] /= step.Seconds()
		}
		series = append(series, counts)
		if total == nil {
			total = make([]float64, len(counts))
		}
		for i, c := range counts {
			total[i] += c
			most = max(most, total[i])
		}
	}
	if len(total) == 0 {
		return ""
	}
	d := plot.New(frame(wide, wideHeight), "Requests per second over time, by class")
	ticks, top := plot.LinearTicks(most, 5)
	y := plot.Axis{From: 0, To: top, Start: d.Bottom, End: d.Top}
	unit, name := clockUnit(p.end - p.begin)
	x := plot.Axis{From: 0, To: float64(len(total)) * float64(step) / float64(unit), Start: d.Left, End: d.Right}
	d.YAxis(ticks, y, number, "requests/s")
	below := make([]float64, len(total))
	for class, counts := range series {
		var up, down []plot.Point
		for i, c := range counts {
			from, to := x.At(float64(i)*float64(step)/float64(unit)), x.At(float64(i+1)*float64(step)/float64(unit))
			up = append(up, plot.Pt(from, y.At(below[i]+c)), plot.Pt(to, y.At(below[i]+c)))
			down = append(down, plot.Pt(from, y.At(below[i])), plot.Pt(to, y.At(below[i])))
			below[i] += c
		}
		for i := len(down) - 1; i >= 0; i-- {
			up = append(up, down[i])
		}
		d.Area(up, "area "+colour(class))
	}
	if r := p.Statistics.Rate; !math.IsNaN(r) {
		d.Line(d.Left, y.At(r), d.Right, y.At(r), "mean")
		d.Text(d.Right-4, y.At(r)-5, "end", "over", "mean "+number(r)+"/s")
	}
	xTicks, _ := plot.LinearTicks(x.To, 10)
	for len(xTicks) > 0 && xTicks[len(xTicks)-1] > x.To {
		xTicks = xTicks[:len(xTicks)-1]
	}
	d.XAxis(xTicks, x, number, fmt.Sprintf("%s since the start, in steps of %s", name, shortDuration(step)))
	return d.HTML()
}

// lengthChart is prompt against output length; a circle's area goes with the requests there.
func (p *Profile) lengthChart() template.HTML {
	d := plot.New(frame(half, halfHeight), "Prompt length against output length, by class")
	s := p.Statistics
	x := plot.Axis{From: 1, To: s.Prompt.Max * 1.3, Start: d.Left, End: d.Right, Log: true}
	y := plot.Axis{From: 1, To: s.Output.Max * 1.3, Start: d.Bottom, End: d.Top, Log: true}
	least, leastOutput := s.Prompt.Max, s.Output.Max
	for i := range p.Trace.Records {
		least, leastOutput = min(least, float64(p.Trace.Records[i].Prompt)), min(leastOutput, float64(p.Trace.Records[i].Output))
	}
	x.From, y.From = max(least*0.75, 0.8), max(leastOutput*0.75, 0.8)
	d.YAxis(plot.LogTicks(y.From, y.To), y, number, "output tokens")
	counts, parts := p.lengthCells()
	most := 0.0
	for _, c := range counts {
		most = max(most, c.n)
	}
	// The largest circle is a little wider than its cell.
	largest := 0.62 * (x.At(x.From*math.Exp2(1/parts)) - x.Start)
	largest = max(min(largest, 11), 4)
	for _, c := range counts {
		px, py := math.Exp2((float64(c.x)+0.5)/parts), math.Exp2((float64(c.y)+0.5)/parts)
		tip := fmt.Sprintf("%s: %.0f requests of about %s prompt and %s output tokens", p.File.Classes[c.class].Name, c.n, number(px), number(py))
		d.Circle(plot.Pt(x.At(px), y.At(py)), max(largest*math.Sqrt(c.n/most), 1.1), "dot "+colour(c.class), tip)
	}
	d.XAxis(plot.LogTicks(x.From, x.To), x, number, "prompt tokens")
	return d.HTML()
}

// lengthCell counts the requests of a class in a part of an octave of both lengths.
type lengthCell struct {
	x, y, class int
	n           float64
}

// maxCircles bounds the size of the page.
const maxCircles = 1200

// lengthCells returns the cells with requests, and how many parts an octave
// has: as many as there is room for.
func (p *Profile) lengthCells() (cells []lengthCell, parts float64) {
	for parts = 4; ; parts-- {
		numbers := map[lengthCell]int{}
		cells = cells[:0]
		for i := range p.Trace.Records {
			r := &p.Trace.Records[i]
			key := lengthCell{int(math.Floor(math.Log2(float64(r.Prompt)) * parts)), int(math.Floor(math.Log2(float64(r.Output)) * parts)), p.ClassOf[i], 0}
			n, ok := numbers[key]
			if !ok {
				n = len(cells)
				numbers[key] = n
				cells = append(cells, key)
			}
			cells[n].n++
		}
		if len(cells) <= maxCircles || parts == 1 {
			return cells, parts
		}
	}
}

// histogramChart is how the lengths fall into the engine's buckets, one class upon the other.
func (p *Profile) histogramChart(what string, of func(*workload.Observed) workload.Histogram) template.HTML {
	var h []workload.Histogram
	for i := range p.File.Classes {
		h = append(h, of(p.File.Classes[i].Observed))
	}
	all := of(p.File.Trace.Observed)
	first, last := -1, 0
	most := 0.0
	for i, c := range all.Counts {
		if c > 0 {
			if first < 0 {
				first = i
			}
			last = i
		}
		most = max(most, c)
	}
	first, last = max(first-1, 0), min(last+1, len(all.Counts)-1)
	total := all.Total()
	d := plot.New(frame(half, halfHeight), "Share of requests by "+what+" length")
	ticks, top := plot.LinearTicks(100*most/total, 5)
	y := plot.Axis{From: 0, To: top, Start: d.Bottom, End: d.Top}
	d.YAxis(ticks, y, number, "% of requests")
	bar := (d.Right - d.Left) / float64(last-first+1)
	for i := first; i <= last; i++ {
		x, below := d.Left+float64(i-first)*bar, 0.0
		for class := range h {
			share := 100 * h[class].Counts[i] / total
			tip := fmt.Sprintf("%s: %.1f %% of all requests have %s %s tokens", p.File.Classes[class].Name, share, bucketName(all.Bounds, i), what)
			d.Rect(x+1, y.At(below+share), bar-2, y.At(below)-y.At(below+share), "bar "+colour(class), tip)
			below += share
		}
		if i < len(all.Bounds) {
			d.Line(x+bar, d.Bottom, x+bar, d.Bottom+4, "axis")
			if i < last {
				d.Text(x+bar, d.Bottom+17, "middle", "tick", number(all.Bounds[i]))
			}
		}
	}
	d.Baseline(what + " tokens, in the engine's buckets")
	return d.HTML()
}

func bucketName(bounds []float64, i int) string {
	switch {
	case i == 0:
		return "up to " + number(bounds[0])
	case i == len(bounds):
		return "more than " + number(bounds[i-1])
	}
	return number(bounds[i-1]) + " to " + number(bounds[i])
}

// dispersionChart is how much counts vary in windows of growing length, against Poisson's 1.
func (p *Profile) dispersionChart() template.HTML {
	if len(p.Dispersion) < 2 {
		return ""
	}
	most, least := 2.0, 0.5
	all := append([][]Dispersion{p.Dispersion}, p.ClassDispersions...)
	for _, ds := range all {
		for _, v := range ds {
			if v.DriftFreeIDC > 0 {
				most, least = max(most, v.DriftFreeIDC), min(least, v.DriftFreeIDC)
			}
		}
	}
	d := plot.New(frame(half, halfHeight), "Index of dispersion of the counts by window length")
	x := plot.Axis{From: p.Dispersion[0].Window.Seconds(), To: p.Dispersion[len(p.Dispersion)-1].Window.Seconds(), Start: d.Left + 14, End: d.Right - 14, Log: true}
	y := plot.Axis{From: least * 0.9, To: most * 1.15, Start: d.Bottom, End: d.Top, Log: true}
	d.YAxis(plot.LogTicks(y.From, y.To), y, number, "index of dispersion")
	d.Line(d.Left, y.At(1), d.Right, y.At(1), "mean")
	d.Text(d.Right-2, y.At(1)+14, "end", "over", "Poisson")
	for i, ds := range all {
		class, name := "line total", "all"
		if i > 0 {
			class, name = "line "+colour(i-1), p.File.Classes[i-1].Name
		}
		if i > 0 && len(p.File.Classes) == 1 {
			continue
		}
		ds = slices.DeleteFunc(slices.Clone(ds), func(v Dispersion) bool { return !(v.DriftFreeIDC > 0) })
		var points []plot.Point
		for _, v := range ds {
			points = append(points, plot.Pt(x.At(v.Window.Seconds()), y.At(v.DriftFreeIDC)))
		}
		d.Path(points, class)
		for n, point := range points {
			d.Circle(point, 2.6, class+" mark", fmt.Sprintf("%s: %s in windows of %s", name, number(ds[n].DriftFreeIDC), shortDuration(ds[n].Window)))
		}
	}
	var ticks []float64
	for _, v := range p.Dispersion {
		ticks = append(ticks, v.Window.Seconds())
	}
	d.XAxis(ticks, x, func(v float64) string { return shortDuration(time.Duration(v * float64(time.Second))) }, "window")
	return d.HTML()
}

// hourChart is the rate over the hours of a day, when the trace tells them.
func (p *Profile) hourChart() template.HTML {
	s := p.File.Trace.Observed.RateShape
	if s == nil || !s.HourOfDay {
		return ""
	}
	most := 0.0
	for _, v := range s.Relative {
		most = max(most, v)
	}
	d := plot.New(frame(wide, 200), "Rate by hour of the day, relative to the mean")
	ticks, top := plot.LinearTicks(most, 4)
	y := plot.Axis{From: 0, To: top, Start: d.Bottom, End: d.Top}
	d.YAxis(ticks, y, number, "× mean rate")
	bar := (d.Right - d.Left) / 24
	for h, v := range s.Relative {
		d.Rect(d.Left+float64(h)*bar+2, y.At(v), bar-4, y.At(0)-y.At(v), "bar total", fmt.Sprintf("%02d:00 to %02d:00: %s times the mean rate", h, h+1, number(v)))
		d.Text(d.Left+(float64(h)+0.5)*bar, d.Bottom+17, "middle", "tick", fmt.Sprintf("%02d", h))
	}
	d.Line(d.Left, y.At(1), d.Right, y.At(1), "mean")
	d.Baseline("hour of the day, by the trace's clock")
	return d.HTML()
}

// shortDuration leaves zero parts out.
func shortDuration(t time.Duration) string {
	switch {
	case t >= 24*time.Hour && t%(24*time.Hour) == 0:
		return fmt.Sprintf("%d d", t/(24*time.Hour))
	case t >= time.Hour && t%time.Hour == 0:
		return fmt.Sprintf("%d h", t/time.Hour)
	case t >= time.Minute && t%time.Minute == 0:
		return fmt.Sprintf("%d min", t/time.Minute)
	case t >= time.Second && t%time.Second == 0:
		return fmt.Sprintf("%d s", t/time.Second)
	}
	return t.String()
}
