// Package plot draws SVG pictures: axes with round ticks, lines, areas and
// marks. Colours are classes of the page's style sheet, so that a picture
// follows its light and dark themes. What is not known is NaN, and is a gap,
// never 0.
package plot

import (
	"cmp"
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Drawing is an SVG picture under way. Coordinates are pixels of its own,
// which the page scales. Classes are written as they are, all other text is escaped.
type Drawing struct {
	b      strings.Builder
	height float64
	// Left, Right, Top and Bottom are the plot's edges.
	Left, Right, Top, Bottom float64
}

// Frame is the size of a picture, and the margins around its plot.
type Frame struct {
	Width, Height            float64
	Left, Right, Top, Bottom float64
	// Class of the picture; none when empty.
	Class string
}

// New begins a picture; alt is what it shows, for those who do not see it.
func New(f Frame, alt string) *Drawing {
	d := &Drawing{height: f.Height, Left: f.Left, Right: f.Width - f.Right, Top: f.Top, Bottom: f.Height - f.Bottom}
	class := ""
	if f.Class != "" {
		class = ` class="` + f.Class + `"`
	}
	fmt.Fprintf(&d.b, `<svg viewBox="0 0 %g %g"%s role="img" aria-label="%s">`, f.Width, f.Height, class, html.EscapeString(alt))
	return d
}

// HTML ends the picture and returns it.
func (d *Drawing) HTML() template.HTML {
	d.b.WriteString("</svg>")
	return template.HTML(d.b.String())
}

// Len grows with all that is drawn: when it has not, nothing was.
func (d *Drawing) Len() int { return d.b.Len() }

// pixel writes a coordinate with a digit behind the point.
func pixel(x float64) string { return strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64) }

func title(tip string) string {
	if tip == "" {
		return ""
	}
	return "<title>" + html.EscapeString(tip) + "</title>"
}

// Rect draws a rectangle; tip is shown to who points at it.
func (d *Drawing) Rect(x, y, w, h float64, class, tip string) {
	if !(w > 0) || !(h > 0) || math.IsNaN(x+y) {
		return
	}
	fmt.Fprintf(&d.b, `<rect x="%s" y="%s" width="%s" height="%s" class="%s">%s</rect>`, pixel(x), pixel(y), pixel(w), pixel(h), class, title(tip))
}

// Circle draws a circle.
func (d *Drawing) Circle(p Point, r float64, class, tip string) {
	if p.Gap() {
		return
	}
	fmt.Fprintf(&d.b, `<circle cx="%s" cy="%s" r="%s" class="%s">%s</circle>`, pixel(p.X), pixel(p.Y), pixel(r), class, title(tip))
}

// Line draws a straight line.
func (d *Drawing) Line(x1, y1, x2, y2 float64, class string) {
	if math.IsNaN(x1 + y1 + x2 + y2) {
		return
	}
	fmt.Fprintf(&d.b, `<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`, pixel(x1), pixel(y1), pixel(x2), pixel(y2), class)
}

// Text writes; anchor is start, middle or end.
func (d *Drawing) Text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(&d.b, `<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`, pixel(x), pixel(y), anchor, class, html.EscapeString(text))
}

// Point is a place in a picture; NaN in either is a gap.
type Point struct{ X, Y float64 }

// Pt is the place (x, y).
func Pt(x, y float64) Point { return Point{x, y} }

// Gap tells whether the place is not known.
func (p Point) Gap() bool { return math.IsNaN(p.X) || math.IsNaN(p.Y) }

// Path joins points; what is not known breaks the line.
func (d *Drawing) Path(points []Point, class string) {
	var b strings.Builder
	command, drawn := "M", 0
	for _, p := range points {
		if p.Gap() {
			command = "M"
			continue
		}
		b.WriteString(command + pixel(p.X) + " " + pixel(p.Y))
		command = "L"
		drawn++
	}
	if drawn > 1 {
		fmt.Fprintf(&d.b, `<path d="%s" class="%s"/>`, b.String(), class)
	}
}

// Area fills what points, all of them known, go around.
func (d *Drawing) Area(points []Point, class string) {
	if len(points) == 0 || slices.ContainsFunc(points, Point.Gap) {
		return
	}
	d.b.WriteString(`<path d="`)
	for i, p := range points {
		command := "L"
		if i == 0 {
			command = "M"
		}
		d.b.WriteString(command + pixel(p.X) + " " + pixel(p.Y))
	}
	fmt.Fprintf(&d.b, `Z" class="%s"/>`, class)
}

// Mark is the shape of a point; shapes tell what colours alone would not.
type Mark int

// The marks.
const (
	Disc Mark = iota
	Cross
	Ring
	Triangle
	Diamond
	HollowDiamond
	HollowSquare
)

// HTML is the SVG of a mark around (0, 0).
func (m Mark) HTML() template.HTML {
	switch m {
	case Cross:
		return `<path class="mark open" d="M-4 -4L4 4M-4 4L4 -4"/>`
	case Ring:
		return `<circle class="mark hollow" r="4"/>`
	case Triangle:
		return `<path class="mark full" d="M-5 -4L5 -4L0 5Z"/>`
	case Diamond:
		return `<path class="mark full" d="M0 -6L6 0L0 6L-6 0Z"/>`
	case HollowDiamond:
		return `<path class="mark hollow" d="M0 -6L6 0L0 6L-6 0Z"/>`
	case HollowSquare:
		return `<path class="mark hollow" d="M-4 -4L4 -4L4 4L-4 4Z"/>`
	}
	return `<circle class="mark full" r="3.8"/>`
}

// Mark draws a mark at a place, and nothing where that is not known.
func (d *Drawing) Mark(p Point, m Mark, class, tip string) {
	if p.Gap() {
		return
	}
	fmt.Fprintf(&d.b, `<g transform="translate(%s %s)" class="%s">%s%s</g>`, pixel(p.X), pixel(p.Y), class, title(tip), m.HTML())
}

// Beside is a text that stands beside a place; its colour is its class.
type Beside struct {
	Y           float64
	Text, Class string
}

// Column writes texts under one another at x, each as near to its place as the others let it.
func (d *Drawing) Column(x float64, anchor string, texts []Beside) {
	const height = 15
	texts = slices.DeleteFunc(slices.Clone(texts), func(t Beside) bool { return math.IsNaN(t.Y) })
	slices.SortStableFunc(texts, func(a, b Beside) int { return cmp.Compare(a.Y, b.Y) })
	ys := make([]float64, len(texts))
	for i, t := range texts {
		ys[i] = t.Y
		if i > 0 {
			ys[i] = max(ys[i], ys[i-1]+height)
		}
	}
	// What was pushed below the plot pushes the others up.
	limit := d.Bottom
	for i := len(ys) - 1; i >= 0; i-- {
		ys[i] = min(ys[i], limit)
		limit = ys[i] - height
	}
	for i, t := range texts {
		d.Text(x, ys[i]+4, anchor, t.Class, t.Text)
	}
}
