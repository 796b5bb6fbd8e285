package profile

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"time"

	"headroom_exporter/probe/workload"
)

// The sizes of the pictures in pixels of their own, which the page scales.
const (
	wide, wideHeight = 1120.0, 270.0
	half, halfHeight = 545.0, 330.0
)

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
	d := newDrawing(wide, wideHeight, "Requests per second over time, by class")
	ticks, top := linearTicks(most, 5)
	y := axis{0, top, d.bottom, d.top, false}
	unit, name := clockUnit(p.end - p.begin)
	x := axis{0, float64(len(total)) * float64(step) / float64(unit), d.left, d.right, false}
	d.yAxis(ticks, y, "requests/s")
	below := make([]float64, len(total))
	for class, counts := range series {
		var up, down [][2]float64
		for i, c := range counts {
			from, to := x.at(float64(i)*float64(step)/float64(unit)), x.at(float64(i+1)*float64(step)/float64(unit))
			up = append(up, [2]float64{from, y.at(below[i] + c)}, [2]float64{to, y.at(below[i] + c)})
			down = append(down, [2]float64{from, y.at(below[i])}, [2]float64{to, y.at(below[i])})
			below[i] += c
		}
		for i := len(down) - 1; i >= 0; i-- {
			up = append(up, down[i])
		}
		d.path(up, "area "+colour(class), true)
	}
	if r := p.Statistics.Rate; !math.IsNaN(r) {
		d.line(d.left, y.at(r), d.right, y.at(r), "mean")
		d.text(d.right-4, y.at(r)-5, "end", "over", "mean "+number(r)+"/s")
	}
	xTicks, _ := linearTicks(x.to, 10)
	for len(xTicks) > 0 && xTicks[len(xTicks)-1] > x.to {
		xTicks = xTicks[:len(xTicks)-1]
	}
	d.xAxis(xTicks, x, number, fmt.Sprintf("%s since the start, in steps of %s", name, shortDuration(step)))
	return d.done()
}

// lengthChart is prompt against output length; a circle's area goes with the requests there.
func (p *Profile) lengthChart() template.HTML {
	d := newDrawing(half, halfHeight, "Prompt length against output length, by class")
	s := p.Statistics
	x := axis{1, s.Prompt.Max * 1.3, d.left, d.right, true}
	y := axis{1, s.Output.Max * 1.3, d.bottom, d.top, true}
	least, leastOutput := s.Prompt.Max, s.Output.Max
	for i := range p.Trace.Records {
		least, leastOutput = min(least, float64(p.Trace.Records[i].Prompt)), min(leastOutput, float64(p.Trace.Records[i].Output))
	}
	x.from, y.from = max(least*0.75, 0.8), max(leastOutput*0.75, 0.8)
	for _, v := range logTicks(y.from, y.to) {
		d.line(d.left, y.at(v), d.right, y.at(v), "grid")
		d.text(d.left-7, y.at(v)+4, "end", "tick", number(v))
	}
	d.upright("output tokens")
	counts, parts := p.lengthCells()
	most := 0.0
	for _, c := range counts {
		most = max(most, c.n)
	}
	// The largest circle is a little wider than its cell.
	largest := 0.62 * (x.at(math.Exp2(1/parts)) - x.at(1))
	largest = max(min(largest, 11), 4)
	for _, c := range counts {
		px, py := math.Exp2((float64(c.x)+0.5)/parts), math.Exp2((float64(c.y)+0.5)/parts)
		tip := fmt.Sprintf("%s: %.0f requests of about %s prompt and %s output tokens", p.File.Classes[c.class].Name, c.n, number(px), number(py))
		d.circle(x.at(px), y.at(py), max(largest*math.Sqrt(c.n/most), 1.1), "dot "+colour(c.class), tip)
	}
	d.xAxis(logTicks(x.from, x.to), x, number, "prompt tokens")
	return d.done()
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
	d := newDrawing(half, halfHeight, "Share of requests by "+what+" length")
	ticks, top := linearTicks(100*most/total, 5)
	y := axis{0, top, d.bottom, d.top, false}
	d.yAxis(ticks, y, "% of requests")
	bar := (d.right - d.left) / float64(last-first+1)
	for i := first; i <= last; i++ {
		x, below := d.left+float64(i-first)*bar, 0.0
		for class := range h {
			share := 100 * h[class].Counts[i] / total
			tip := fmt.Sprintf("%s: %.1f %% of all requests have %s %s tokens", p.File.Classes[class].Name, share, bucketName(all.Bounds, i), what)
			d.rect(x+1, y.at(below+share), bar-2, y.at(below)-y.at(below+share), "bar "+colour(class), tip)
			below += share
		}
		if i < len(all.Bounds) {
			d.line(x+bar, d.bottom, x+bar, d.bottom+4, "axis")
			if i < last {
				d.text(x+bar, d.bottom+17, "middle", "tick", number(all.Bounds[i]))
			}
		}
	}
	d.line(d.left, d.bottom, d.right, d.bottom, "axis")
	d.text((d.left+d.right)/2, d.height-4, "middle", "label", what+" tokens, in the engine's buckets")
	return d.done()
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
	d := newDrawing(half, halfHeight, "Index of dispersion of the counts by window length")
	x := axis{p.Dispersion[0].Window.Seconds(), p.Dispersion[len(p.Dispersion)-1].Window.Seconds(), d.left + 14, d.right - 14, true}
	y := axis{least * 0.9, most * 1.15, d.bottom, d.top, true}
	for _, v := range logTicks(y.from, y.to) {
		d.line(d.left, y.at(v), d.right, y.at(v), "grid")
		d.text(d.left-7, y.at(v)+4, "end", "tick", number(v))
	}
	d.upright("index of dispersion")
	d.line(d.left, y.at(1), d.right, y.at(1), "mean")
	d.text(d.right-2, y.at(1)+14, "end", "over", "Poisson")
	for i, ds := range all {
		class, name := "line total", "all"
		if i > 0 {
			class, name = "line "+colour(i-1), p.File.Classes[i-1].Name
		}
		if i > 0 && len(p.File.Classes) == 1 {
			continue
		}
		ds = slices.DeleteFunc(slices.Clone(ds), func(v Dispersion) bool { return !(v.DriftFreeIDC > 0) })
		var points [][2]float64
		for _, v := range ds {
			points = append(points, [2]float64{x.at(v.Window.Seconds()), y.at(v.DriftFreeIDC)})
		}
		d.path(points, class, false)
		for n, point := range points {
			d.circle(point[0], point[1], 2.6, class+" mark", fmt.Sprintf("%s: %s in windows of %s", name, number(ds[n].DriftFreeIDC), shortDuration(ds[n].Window)))
		}
	}
	var ticks []float64
	for _, v := range p.Dispersion {
		ticks = append(ticks, v.Window.Seconds())
	}
	d.xAxis(ticks, x, func(v float64) string { return shortDuration(time.Duration(v * float64(time.Second))) }, "window")
	return d.done()
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
	d := newDrawing(wide, 200, "Rate by hour of the day, relative to the mean")
	ticks, top := linearTicks(most, 4)
	y := axis{0, top, d.bottom, d.top, false}
	d.yAxis(ticks, y, "× mean rate")
	bar := (d.right - d.left) / 24
	for h, v := range s.Relative {
		d.rect(d.left+float64(h)*bar+2, y.at(v), bar-4, y.at(0)-y.at(v), "bar total", fmt.Sprintf("%02d:00 to %02d:00: %s times the mean rate", h, h+1, number(v)))
		d.text(d.left+(float64(h)+0.5)*bar, d.bottom+17, "middle", "tick", fmt.Sprintf("%02d", h))
	}
	d.line(d.left, y.at(1), d.right, y.at(1), "mean")
	d.line(d.left, d.bottom, d.right, d.bottom, "axis")
	d.text((d.left+d.right)/2, d.height-4, "middle", "label", "hour of the day, by the trace's clock")
	return d.done()
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
