package profile

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strconv"
	"strings"
)

// drawing is an SVG picture under way. Colours are classes of the page's
// style sheet, so that the picture follows its light and dark themes.
type drawing struct {
	b             strings.Builder
	width, height float64
	// The plot's edges.
	left, right, top, bottom float64
}

func newDrawing(width, height float64, title string) *drawing {
	d := &drawing{width: width, height: height, left: 56, right: width - 10, top: 14, bottom: height - 38}
	fmt.Fprintf(&d.b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, width, height, html.EscapeString(title))
	return d
}

func (d *drawing) done() template.HTML {
	d.b.WriteString("</svg>")
	return template.HTML(d.b.String())
}

// pixel writes a coordinate with a digit behind the point.
func pixel(x float64) string { return strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64) }

func (d *drawing) rect(x, y, w, h float64, class, tip string) {
	if w <= 0 || h <= 0 {
		return
	}
	fmt.Fprintf(&d.b, `<rect x="%s" y="%s" width="%s" height="%s" class="%s">%s</rect>`, pixel(x), pixel(y), pixel(w), pixel(h), class, title(tip))
}

func (d *drawing) circle(x, y, r float64, class, tip string) {
	fmt.Fprintf(&d.b, `<circle cx="%s" cy="%s" r="%s" class="%s">%s</circle>`, pixel(x), pixel(y), pixel(r), class, title(tip))
}

func title(tip string) string {
	if tip == "" {
		return ""
	}
	return "<title>" + html.EscapeString(tip) + "</title>"
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&d.b, `<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`, pixel(x1), pixel(y1), pixel(x2), pixel(y2), class)
}

// path joins points; a closed one is filled by its class.
func (d *drawing) path(points [][2]float64, class string, closed bool) {
	if len(points) == 0 {
		return
	}
	d.b.WriteString(`<path d="`)
	for i, p := range points {
		command := "L"
		if i == 0 {
			command = "M"
		}
		d.b.WriteString(command + pixel(p[0]) + " " + pixel(p[1]))
	}
	if closed {
		d.b.WriteString("Z")
	}
	fmt.Fprintf(&d.b, `" class="%s"/>`, class)
}

// text writes; anchor is start, middle or end.
func (d *drawing) text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(&d.b, `<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`, pixel(x), pixel(y), anchor, class, html.EscapeString(text))
}

// axis maps values to pixels.
type axis struct {
	from, to   float64 // values
	start, end float64 // pixels
	log        bool
}

func (a axis) at(v float64) float64 {
	f, t := a.from, a.to
	if a.log {
		v, f, t = math.Log(v), math.Log(f), math.Log(t)
	}
	if t == f {
		return a.start
	}
	return a.start + (v-f)/(t-f)*(a.end-a.start)
}

// linearTicks are round values from 0 on, about n of them, and the top of the axis that holds most.
func linearTicks(most float64, n int) (ticks []float64, top float64) {
	if !(most > 0) {
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
		if v >= most {
			return ticks, v
		}
	}
}

// logTicks are 1, 2 and 5 in each decade between two values, or the decades alone when those are many.
func logTicks(from, to float64) []float64 {
	var ticks []float64
	wide := math.Log10(to/from) > 2.5
	for decade := math.Pow(10, math.Floor(math.Log10(from))); decade <= to*1.0001; decade *= 10 {
		for _, m := range []float64{1, 2, 5} {
			if v := decade * m; v >= from*0.9999 && v <= to*1.0001 && (m == 1 || !wide) {
				ticks = append(ticks, v)
			}
		}
	}
	return ticks
}

// number writes a value in few characters.
func number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case a >= 1e6:
		return significant(v/1e6) + "M"
	case a >= 1e3:
		return significant(v/1e3) + "k"
	case a >= 1:
		return significant(v)
	case a >= 0.1 || a == 0:
		return trim(v, 2)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// significant writes three digits of a value from 1 on.
func significant(v float64) string {
	switch a := math.Abs(v); {
	case a >= 99.95:
		return trim(v, 0)
	case a >= 9.995:
		return trim(v, 1)
	}
	return trim(v, 2)
}

func trim(v float64, digits int) string {
	s := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// yAxis draws lines and labels of a linear axis.
func (d *drawing) yAxis(ticks []float64, y axis, label string) {
	for _, v := range ticks {
		d.line(d.left, y.at(v), d.right, y.at(v), "grid")
		d.text(d.left-7, y.at(v)+4, "end", "tick", number(v))
	}
	d.upright(label)
}

func (d *drawing) upright(label string) {
	middle := (d.top + d.bottom) / 2
	fmt.Fprintf(&d.b, `<text transform="translate(13 %s) rotate(-90)" text-anchor="middle" class="label">%s</text>`, pixel(middle), html.EscapeString(label))
}

// xAxis draws the ticks and the label of an axis.
func (d *drawing) xAxis(ticks []float64, x axis, write func(float64) string, label string) {
	for _, v := range ticks {
		d.line(x.at(v), d.bottom, x.at(v), d.bottom+4, "axis")
		d.text(x.at(v), d.bottom+17, "middle", "tick", write(v))
	}
	d.line(d.left, d.bottom, d.right, d.bottom, "axis")
	d.text((d.left+d.right)/2, d.height-4, "middle", "label", label)
}
