package plot

import (
	"fmt"
	"html"
	"math"
)

// Axis maps values to pixels.
type Axis struct {
	// From and To are values, Start and End their pixels.
	From, To   float64
	Start, End float64
	// Log is a logarithmic scale, whose values are above 0.
	Log bool
}

// At is the pixel of a value, NaN for one that is not known or that a
// logarithm cannot show. Values beyond the axis are held at its ends.
func (a Axis) At(v float64) float64 {
	f, t := a.From, a.To
	if a.Log {
		if v <= 0 {
			return math.NaN()
		}
		v, f, t = math.Log(v), math.Log(f), math.Log(t)
	}
	if t == f {
		return a.Start
	}
	share := (v - f) / (t - f)
	return a.Start + min(max(share, 0), 1)*(a.End-a.Start)
}

// Has tells whether a value is on the axis.
func (a Axis) Has(v float64) bool { return v >= a.From && v <= a.To }

// LinearTicks are round values from 0 up to most, about n of them; top is the
// next one, where an axis that holds most may end.
func LinearTicks(most float64, n int) (ticks []float64, top float64) {
	if !(most > 0) || math.IsInf(most, 0) {
		most = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(most/float64(n))))
	for _, m := range []float64{1, 2, 5, 10} {
		if most/(step*m) <= float64(n) {
			step *= m
			break
		}
	}
	for i := 0; ; i++ {
		v := step * float64(i)
		ticks = append(ticks, v)
		if v >= most || i > 4*n {
			return ticks, v
		}
	}
}

// TicksBetween are round values within two, about n of them.
func TicksBetween(from, to float64, n int) []float64 {
	ticks, _ := LinearTicks(to-from, n)
	if len(ticks) < 2 {
		return nil
	}
	step := ticks[1]
	var out []float64
	for i := math.Ceil(from / step); i*step <= to && len(out) <= 4*n; i++ {
		out = append(out, i*step)
	}
	return out
}

// LogTicks are 1, 2 and 5 in each decade between two values, more of them when
// those are few, the decades alone when they are many, and every few decades
// when those are many too.
func LogTicks(from, to float64) []float64 {
	if !(from > 0) || !(to > from) || math.IsInf(to, 0) {
		return nil
	}
	first, last := math.Floor(math.Log10(from)), math.Ceil(math.Log10(to))
	stride := max(1, math.Ceil((last-first)/8))
	steps := []float64{1, 2, 5}
	switch decades := math.Log10(to / from); {
	case decades > 2.5:
		steps = []float64{1}
	case decades < 0.75:
		steps = []float64{1, 1.5, 2, 3, 4, 5, 6, 8}
	}
	var ticks []float64
	for e := first; e <= last; e += stride {
		for _, m := range steps {
			if v := m * math.Pow(10, e); v >= from*0.9999 && v <= to*1.0001 {
				ticks = append(ticks, v)
			}
		}
	}
	return ticks
}

// YAxis draws a line and a label for each tick, and the axis's own label.
func (d *Drawing) YAxis(ticks []float64, y Axis, write func(float64) string, label string) {
	for _, v := range ticks {
		d.Line(d.Left, y.At(v), d.Right, y.At(v), "grid")
		d.Text(d.Left-7, y.At(v)+4, "end", "tick", write(v))
	}
	fmt.Fprintf(&d.b, `<text transform="translate(13 %s) rotate(-90)" text-anchor="middle" class="label">%s</text>`,
		pixel((d.Top+d.Bottom)/2), html.EscapeString(label))
}

// XAxis draws the ticks that are on the axis, and the axis with its label.
func (d *Drawing) XAxis(ticks []float64, x Axis, write func(float64) string, label string) {
	for _, v := range ticks {
		if !x.Has(v) {
			continue
		}
		d.Line(x.At(v), d.Bottom, x.At(v), d.Bottom+4, "axis")
		d.Text(x.At(v), d.Bottom+17, "middle", "tick", write(v))
	}
	d.Baseline(label)
}

// Baseline draws an axis without ticks at the plot's foot, with its label.
func (d *Drawing) Baseline(label string) {
	d.Line(d.Left, d.Bottom, d.Right, d.Bottom, "axis")
	d.Text((d.Left+d.Right)/2, d.height-5, "middle", "label", label)
}
