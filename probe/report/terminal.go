package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/plot"
)

// Sizes of the terminal's pictures, in characters.
const (
	minWidth, maxWidth = 60, 120
	gutter             = 11 // for the labels of the left axis
	tailRows           = 12
	violationRows      = 7
)

// Terminal writes a curve for a terminal of so many columns: what it was
// measured on, the envelope, a picture of each study in plain characters, what
// the curve rests on, and its notes.
func Terminal(w io.Writer, c *curve.Curve, width int) error {
	t := &terminal{width: min(max(width, minWidth), maxWidth)}
	t.line("%s", oneLine(identityLine(&c.Identity)))
	t.line("%s", oneLine(measuredLine(c)))
	if len(c.SLO) > 0 {
		t.line("bounds: %s", oneLine(sloList(c.SLO)))
	}
	for i := range c.Classes {
		if class := &c.Classes[i]; len(class.SLO) > 0 {
			t.line("bounds of %s: %s", oneLine(class.Name), oneLine(sloList(class.SLO)))
		}
	}
	for _, n := range notices(c) {
		t.line("%s", oneLine(n))
	}
	t.line("")
	t.envelope(c)
	for _, s := range subjects(c) {
		if s.Study != nil {
			t.study(s)
		}
	}
	t.coverage(c)
	if len(c.Notes) > 0 {
		t.line("\nnotes")
		for _, n := range c.Notes {
			t.line("  %s", oneLine(n))
		}
	}
	if len(c.Reuse) > 0 {
		t.line("\nmay be used in spite of")
		for _, r := range c.Reuse {
			t.line("  %s", oneLine(fmt.Sprintf("%s %s instead of %s: %s (%s)", r.Field, r.To, r.From, r.Reason, r.ApprovedBy)))
		}
	}
	if _, err := io.WriteString(w, t.b.String()); err != nil {
		return fmt.Errorf("writing the curve: %w", err)
	}
	return nil
}

// terminal is a text under way.
type terminal struct {
	b     strings.Builder
	width int
}

func (t *terminal) line(format string, args ...any) { fmt.Fprintf(&t.b, format+"\n", args...) }

// table writes rows of equal columns; the first is the heading.
func (t *terminal) table(rows [][]string) {
	tw := tabwriter.NewWriter(&t.b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = oneLine(row[i])
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	tw.Flush() // into a strings.Builder, which does not fail
}

func (t *terminal) envelope(c *curve.Curve) {
	rows := [][]string{{"class", "arrivals", "safe/s", "knee/s", "run at most", "gives first", "status"}}
	for _, s := range subjects(c) {
		if s.Study == nil {
			rows = append(rows, []string{s.Name, dash, dash, dash, dash, dash, "not measured"})
			continue
		}
		knee, most, binding := dash, dash, dash
		if k := s.Knee; k != nil {
			knee, most, binding = interval(k.Rate, k.Low, k.High), rate(k.Watermark), bindingText(k)
		}
		rows = append(rows, []string{s.Name, arrivalsName(s.Arrivals), rate(s.SafeRate), knee, most, binding, statusName(s.Status)})
	}
	t.table(rows)
}

func (t *terminal) coverage(c *curve.Curve) {
	if len(c.Coverage) == 0 {
		return
	}
	t.line("\nrests on")
	for _, v := range c.Coverage {
		done := "no "
		if v.Done {
			done = "yes"
		}
		t.line("  %s  %-12s  %s", done, oneLine(itemName(v.Item)), oneLine(v.Detail))
		if v.Command != "" {
			t.line("       %s", oneLine(v.Command))
		}
	}
}

// study draws one study: the tail of the bound that gives first, and the share
// of requests beyond it, over the offered rate.
func (t *terminal) study(s subject) {
	points := placed(s.Study)
	b, ok := shownBound(s)
	if len(points) == 0 || !ok {
		return
	}
	columns := t.width - gutter - 1
	x, ticks := textAxis(s.Study, points, columns)
	t.line("\n%s, %s: %s over offered requests/s, logarithmic", oneLine(s.Name), oneLine(arrivalsName(s.Arrivals)), oneLine(b.tailName()))
	t.tails(s, b, points, x)
	t.axis(s, x, ticks)
	if fractions := violationsOf(s, b, points); len(fractions) > 0 {
		t.line("share beyond %s, budget %s, logarithmic", bound(b.SLO), percent(curve.Value(b.Budget())))
		t.violations(s, b, fractions, x)
		t.axis(s, x, ticks)
	}
	t.line("%s%s", strings.Repeat(" ", gutter), t.legend(s, points))
	t.noted(points)
}

// noted says what was noted at which rates, without failing a point there.
func (t *terminal) noted(points []*curve.Point) {
	rates := map[string][]string{}
	var names []string
	for _, p := range points {
		for i := range p.Gates {
			if g := &p.Gates[i]; gateOutcome(g) == "noted" {
				name := gateName(g)
				if rates[name] == nil {
					names = append(names, name)
				}
				rates[name] = append(rates[name], rate(p.OfferedRate))
			}
		}
	}
	for _, name := range names {
		t.line("%snoted, failing no point: %s at %s requests/s offered", strings.Repeat(" ", gutter), oneLine(name), strings.Join(rates[name], ", "))
	}
}

// shownBound is the bound that gives first, else the first of all.
func shownBound(s subject) (bounded, bool) {
	if len(s.SLO) == 0 {
		return bounded{}, false
	}
	if k := s.Knee; k != nil {
		if binding, err := capacity.ParseSLO(k.BindingSLO); err == nil {
			for _, b := range s.SLO {
				if b.SLO == binding && (b.Class == "" || b.Class == k.BindingClass) {
					return b, true
				}
			}
		}
	}
	return s.SLO[0], true
}

// textAxis is the axis of rates over so many columns.
func textAxis(s *curve.Study, points []*curve.Point, columns int) (plot.Axis, []float64) {
	most := 0.0
	for _, p := range points {
		most = max(most, float64(p.OfferedRate))
	}
	landmarks := []curve.Value{s.SafeRate}
	if k := s.Knee; k != nil {
		landmarks = append(landmarks, k.Rate, k.High)
	}
	for _, v := range landmarks {
		if known(v) {
			most = max(most, float64(v))
		}
	}
	if most == 0 {
		most = 1
	}
	ticks, _ := plot.LinearTicks(most, columns/12)
	return plot.Axis{From: 0, To: most * 1.03, End: float64(columns - 1)}, ticks
}

// screen is a grid of characters; later ones cover earlier ones.
type screen struct{ rows [][]rune }

func newScreen(columns, rows int) *screen {
	s := &screen{rows: make([][]rune, rows)}
	for i := range s.rows {
		s.rows[i] = []rune(strings.Repeat(" ", columns))
	}
	return s
}

// put sets a character at a place of two axes; NaN is none.
func (s *screen) put(x, y float64, r rune) {
	if math.IsNaN(x) || math.IsNaN(y) {
		return
	}
	row, column := int(math.Round(y)), int(math.Round(x))
	if row >= 0 && row < len(s.rows) && column >= 0 && column < len(s.rows[row]) {
		s.rows[row][column] = r
	}
}

func (s *screen) horizontal(y float64, r rune) {
	for x := range s.rows[0] {
		s.put(float64(x), y, r)
	}
}

func (s *screen) vertical(x float64, r rune) {
	for y := range s.rows {
		s.put(x, float64(y), r)
	}
}

// The characters of a picture.
const (
	runeBound     = '-'
	runeKnee      = '|'
	runeWatermark = ':'
	runeLine      = '.'
)

// runes of the points, by how they ended.
var runes = map[plot.Mark]rune{plot.Disc: 'o', plot.Diamond: 'S', plot.Cross: 'x', plot.Triangle: 'v', plot.Ring: '?'}

// landmarks draws the watermark and the knee.
func (s *screen) landmarks(study *curve.Study, x plot.Axis) {
	if k := study.Knee; k != nil {
		s.vertical(x.At(float64(k.Watermark)), runeWatermark)
		s.vertical(x.At(float64(k.Rate)), runeKnee)
	}
}

func (t *terminal) tails(s subject, b bounded, points []*curve.Point, x plot.Axis) {
	limit := b.Bound.Seconds()
	low, high := limit/2, limit*2
	for _, p := range points {
		if v := tail(p, b); known(v) && v > 0 {
			low, high = min(low, float64(v)), max(high, float64(v))
		}
	}
	y := plot.Axis{From: low / 1.1, To: high * 1.1, Start: tailRows - 1, Log: true}
	g := newScreen(int(x.End)+1, tailRows)
	g.landmarks(s.Study, x)
	g.horizontal(y.At(limit), runeBound)
	for _, p := range points {
		if v := tail(p, b); known(v) {
			g.put(x.At(float64(p.OfferedRate)), y.At(float64(v)), runes[markOf(p)])
		}
	}
	t.picture(g, y, plot.LogTicks(y.From, y.To), limit, writeSeconds)
}

// placedFraction is the share of a point's requests, or gaps, beyond a bound.
type placedFraction struct {
	point    *curve.Point
	fraction float64
}

func violationsOf(s subject, b bounded, points []*curve.Point) []placedFraction {
	var out []placedFraction
	for _, p := range points {
		for i := range p.Gates {
			g := &p.Gates[i]
			if g.Name == "slo" && g.SLO != nil && *g.SLO == b.SLO && (s.Mix == nil || g.Class == b.Class) && g.N > 0 {
				out = append(out, placedFraction{p, g.Violations / g.N})
			}
		}
	}
	return out
}

func (t *terminal) violations(s subject, b bounded, fractions []placedFraction, x plot.Axis) {
	floor := b.Budget() / 10
	y := plot.Axis{From: floor, To: 1, Start: violationRows - 1, Log: true}
	at := func(fraction float64) float64 { return y.At(max(fraction, floor)) }
	g := newScreen(int(x.End)+1, violationRows)
	g.landmarks(s.Study, x)
	g.horizontal(at(b.Budget()), runeBound)
	for i := range s.Curve {
		v := &s.Curve[i]
		if v.SLO != b.SLO || s.Mix != nil && v.Class != b.Class {
			continue
		}
		for k := 1; k < min(len(v.Rate), len(v.Fraction)); k++ {
			from, to := x.At(v.Rate[k-1]), x.At(v.Rate[k])
			for column := math.Ceil(from); column <= to; column++ {
				share := (column - from) / (to - from)
				g.put(column, at(v.Fraction[k-1])+share*(at(v.Fraction[k])-at(v.Fraction[k-1])), runeLine)
			}
		}
	}
	for _, f := range fractions {
		g.put(x.At(float64(f.point.OfferedRate)), at(f.fraction), runes[markOf(f.point)])
	}
	t.picture(g, y, []float64{floor, b.Budget(), 10 * b.Budget(), 1}, b.Budget(), writePercent)
}

// picture writes a screen with the labels of its axis; that of the bound goes before others.
func (t *terminal) picture(g *screen, y plot.Axis, ticks []float64, limit float64, write func(float64) string) {
	labels := map[int]string{}
	for _, v := range append(slices.Clone(ticks), limit) {
		if y.Has(v) {
			labels[int(math.Round(y.At(v)))] = write(v)
		}
	}
	for i, row := range g.rows {
		t.line("%*s |%s", gutter-2, labels[i], strings.TrimRight(string(row), " "))
	}
}

// axis writes the axis of rates, with the knee and its interval on it, and its labels.
func (t *terminal) axis(s subject, x plot.Axis, ticks []float64) {
	g := newScreen(int(x.End)+1, 2)
	g.horizontal(0, '_')
	taken := 0 // columns that a label holds already
	for _, v := range ticks {
		if !x.Has(v) {
			continue
		}
		column, label := int(math.Round(x.At(v))), write(v)
		g.put(float64(column), 0, '+')
		if start := max(column-len(label)/2, 0); start >= taken && start+len(label) <= len(g.rows[1]) {
			copy(g.rows[1][start:], []rune(label))
			taken = start + len(label) + 1
		}
	}
	if k := s.Knee; k != nil {
		g.put(x.At(float64(k.Low)), 0, '[')
		g.put(x.At(float64(k.High)), 0, ']')
		g.put(x.At(float64(k.Rate)), 0, runeKnee)
	}
	t.line("%s|%s", strings.Repeat(" ", gutter-1), string(g.rows[0]))
	t.line("%s%s", strings.Repeat(" ", gutter), strings.TrimRight(string(g.rows[1]), " "))
}

func (t *terminal) legend(s subject, points []*curve.Point) string {
	var words []string
	if k := s.Knee; k != nil {
		if known(k.Rate) {
			words = append(words, string(runeKnee)+" knee "+rate(k.Rate))
		}
		if known(k.Watermark) {
			words = append(words, string(runeWatermark)+" watermark "+rate(k.Watermark))
		}
	}
	words = append(words, string(runeBound)+" bound")
	for _, m := range []struct {
		mark plot.Mark
		text string
	}{{plot.Disc, "passed"}, {plot.Diamond, "soak passed"}, {plot.Cross, "failed"}, {plot.Triangle, "stopped early"}, {plot.Ring, "not decided"}} {
		if slices.ContainsFunc(points, func(p *curve.Point) bool { return markOf(p) == m.mark }) {
			words = append(words, string(runes[m.mark])+" "+m.text)
		}
	}
	return strings.Join(words, "  ")
}
