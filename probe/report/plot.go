package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
)

// drawing is an SVG picture under way. Colours are classes of the page's style
// sheet, so that the picture follows its light and dark themes.
type drawing struct {
	b             strings.Builder
	width, height float64
	// The plot's edges.
	left, right, top, bottom float64
}

// margins around a plot in pixels.
type margins struct{ left, right, top, bottom float64 }

// newDrawing begins a picture; alt is what it shows, for those who do not see it.
func newDrawing(width, height float64, m margins, alt string) *drawing {
	d := &drawing{width: width, height: height, left: m.left, right: width - m.right, top: m.top, bottom: height - m.bottom}
	fmt.Fprintf(&d.b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, width, height, html.EscapeString(alt))
	return d
}

func (d *drawing) done() template.HTML {
	d.b.WriteString("</svg>")
	return template.HTML(d.b.String())
}

// pixel writes a coordinate with a digit behind the point.
func pixel(x float64) string { return strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64) }

func title(tip string) string {
	if tip == "" {
		return ""
	}
	return "<title>" + html.EscapeString(tip) + "</title>"
}

func (d *drawing) rect(x, y, w, h float64, class, tip string) {
	if w <= 0 || h <= 0 {
		return
	}
	fmt.Fprintf(&d.b, `<rect x="%s" y="%s" width="%s" height="%s" class="%s">%s</rect>`, pixel(x), pixel(y), pixel(w), pixel(h), class, title(tip))
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	if math.IsNaN(x1 + y1 + x2 + y2) {
		return
	}
	fmt.Fprintf(&d.b, `<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`, pixel(x1), pixel(y1), pixel(x2), pixel(y2), class)
}

// text writes; anchor is start, middle or end.
func (d *drawing) text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(&d.b, `<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`, pixel(x), pixel(y), anchor, class, html.EscapeString(text))
}

// xy is a place in a picture; NaN in either is a gap.
type xy struct{ x, y float64 }

func (p xy) gap() bool { return math.IsNaN(p.x) || math.IsNaN(p.y) }

// path joins points; what is not known breaks the line.
func (d *drawing) path(points []xy, class string) {
	var b strings.Builder
	command, drawn := "M", 0
	for _, p := range points {
		if p.gap() {
			command = "M"
			continue
		}
		b.WriteString(command + pixel(p.x) + " " + pixel(p.y))
		command = "L"
		drawn++
	}
	if drawn > 1 {
		fmt.Fprintf(&d.b, `<path d="%s" class="%s"/>`, b.String(), class)
	}
}

// mark is the shape of a point; shapes tell what colours alone would not.
type mark string

// The marks.
const (
	markDisc    mark = "disc"
	markCross   mark = "cross"
	markRing    mark = "ring"
	markStopped mark = "stopped"
	markSoak    mark = "soak"
	markOpen    mark = "open" // a soak that does not tell
	markVoid    mark = "void"
)

// shape is the SVG of a mark around (0, 0).
func (m mark) shape() string {
	switch m {
	case markCross:
		return `<path class="mark open" d="M-4 -4L4 4M-4 4L4 -4"/>`
	case markRing:
		return `<circle class="mark hollow" r="4"/>`
	case markStopped:
		return `<path class="mark full" d="M-5 -4L5 -4L0 5Z"/>`
	case markSoak:
		return `<path class="mark full" d="M0 -6L6 0L0 6L-6 0Z"/>`
	case markOpen:
		return `<path class="mark hollow" d="M0 -6L6 0L0 6L-6 0Z"/>`
	case markVoid:
		return `<path class="mark hollow" d="M-4 -4L4 -4L4 4L-4 4Z"/>`
	}
	return `<circle class="mark full" r="3.8"/>`
}

func (d *drawing) mark(p xy, m mark, class, tip string) {
	if p.gap() {
		return
	}
	fmt.Fprintf(&d.b, `<g transform="translate(%s %s)" class="%s">%s%s</g>`, pixel(p.x), pixel(p.y), class, title(tip), m.shape())
}

// axis maps values to pixels.
type axis struct {
	from, to   float64 // values
	start, end float64 // pixels
	log        bool
}

// at is the pixel of a value, NaN for one that is not known or that a
// logarithm cannot show. Values beyond the axis are held at its ends.
func (a axis) at(v float64) float64 {
	f, t := a.from, a.to
	if a.log {
		if v <= 0 {
			return math.NaN()
		}
		v, f, t = math.Log(v), math.Log(f), math.Log(t)
	}
	if t == f {
		return a.start
	}
	share := (v - f) / (t - f)
	return a.start + min(max(share, 0), 1)*(a.end-a.start)
}

func (a axis) has(v float64) bool { return v >= a.from && v <= a.to }

// linearTicks are round values from 0 up to most, about n of them; top is the
// next one, where an axis that holds most may end.
func linearTicks(most float64, n int) (ticks []float64, top float64) {
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

// ticksBetween are round values within two, about n of them.
func ticksBetween(from, to float64, n int) []float64 {
	ticks, _ := linearTicks(to-from, n)
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

// logTicks are 1, 2 and 5 in each decade between two values, more of them when
// those are few, the decades alone when they are many, and every few decades
// when those are many too.
func logTicks(from, to float64) []float64 {
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

// yAxis draws lines and labels of an axis.
func (d *drawing) yAxis(ticks []float64, y axis, write func(float64) string, label string) {
	for _, v := range ticks {
		d.line(d.left, y.at(v), d.right, y.at(v), "grid")
		d.text(d.left-7, y.at(v)+4, "end", "tick", write(v))
	}
	fmt.Fprintf(&d.b, `<text transform="translate(13 %s) rotate(-90)" text-anchor="middle" class="label">%s</text>`,
		pixel((d.top+d.bottom)/2), html.EscapeString(label))
}

// xAxis draws the ticks and the label of an axis.
func (d *drawing) xAxis(ticks []float64, x axis, write func(float64) string, label string) {
	for _, v := range ticks {
		if !x.has(v) {
			continue
		}
		d.line(x.at(v), d.bottom, x.at(v), d.bottom+4, "axis")
		d.text(x.at(v), d.bottom+17, "middle", "tick", write(v))
	}
	d.line(d.left, d.bottom, d.right, d.bottom, "axis")
	d.text((d.left+d.right)/2, d.height-5, "middle", "label", label)
}

// beside is a text that stands beside a place; its colour is its class.
type beside struct {
	y           float64
	text, class string
}

// column writes texts under one another at x, each as near to its place as the others let it.
func (d *drawing) column(x float64, anchor string, texts []beside) {
	const height = 15
	texts = slices.DeleteFunc(slices.Clone(texts), func(t beside) bool { return math.IsNaN(t.y) })
	slices.SortStableFunc(texts, func(a, b beside) int {
		switch {
		case a.y < b.y:
			return -1
		case a.y > b.y:
			return 1
		}
		return 0
	})
	ys := make([]float64, len(texts))
	for i, t := range texts {
		ys[i] = t.y
		if i > 0 {
			ys[i] = max(ys[i], ys[i-1]+height)
		}
	}
	// What was pushed below the plot pushes the others up.
	limit := d.bottom
	for i := len(ys) - 1; i >= 0; i-- {
		ys[i] = min(ys[i], limit)
		limit = ys[i] - height
	}
	for i, t := range texts {
		d.text(x, ys[i]+4, anchor, t.class, t.text)
	}
}
