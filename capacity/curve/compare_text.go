package curve

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Line says in one line what a row comes to, and why.
func (r *Row) Line() string {
	text := r.subject() + ": " + r.quantity()
	if r.Base.Value.Known() || r.New.Value.Known() {
		text += " " + r.value(r.Base) + " -> " + r.value(r.New)
	}
	if r.Change.Known() && !math.IsInf(float64(r.Change), 0) {
		text += fmt.Sprintf(" (%s, band %s)", change(r.Change), percent(r.Band))
	}
	text += ": " + string(r.Verdict)
	if len(r.Why) > 0 {
		text += "; " + strings.Join(r.Why, "; ")
	}
	return text
}

func (r *Row) subject() string { return subject{r.Class, r.Mix, r.Arrivals}.String() }

func (s subject) String() string {
	var words []string
	switch {
	case s.mix == "mix":
		words = append(words, s.mix)
	case s.mix != "":
		words = append(words, "mix "+s.mix)
	}
	if s.class != "" {
		words = append(words, "class "+s.class)
	}
	return strings.Join(append(words, s.arrivals.String()), ", ")
}

// isRate tells whether the row is of the engine's rates.
func (r *Row) isRate() bool { return r.Quantity == "knee" || r.Quantity == "safe_rate" }

// quantity names what is compared.
func (r *Row) quantity() string {
	switch {
	case r.isRate():
		return strings.ReplaceAll(r.Quantity, "_", " ")
	case r.Share > 0:
		return fmt.Sprintf("%s at %s/s (%s of the base's knee)", tailName(r.Quantity), short(float64(r.At)), percent(r.Share))
	}
	return "squeeze of the " + tailName(strings.TrimPrefix(r.Quantity, "squeeze_")) + " (in the mix over alone)"
}

// tailName is TTFT p99 for ttft_p99.
func tailName(quantity string) string {
	if quantity == allTails {
		return quantity
	}
	metric, percentile, _ := strings.Cut(quantity, "_p")
	return strings.ToUpper(metric) + " p" + percentile
}

// value writes a measure in the row's unit.
func (r *Row) value(m Measure) string {
	switch {
	case !m.Value.Known():
		return "not known"
	case m.AtLeast:
		return "at least " + short(float64(m.Value)) + "/s"
	case r.isRate():
		return short(float64(m.Value)) + "/s"
	case r.Share > 0:
		return seconds(m.Value)
	}
	return short(float64(m.Value)) + " times"
}

// interval writes a measure with its interval, where there is one.
func (r *Row) interval(m Measure) string {
	text := r.value(m)
	low, high := float64(m.Low), float64(m.High)
	if m.AtLeast || math.IsNaN(low) || math.IsNaN(high) {
		return text
	}
	if !r.isRate() {
		if math.IsInf(high, 1) {
			return text + " [from " + seconds(m.Low) + "]"
		}
		return text + " [" + seconds(m.Low) + " to " + seconds(m.High) + "]"
	}
	return text + " [" + short(low) + " to " + short(high) + "]"
}

// short writes a number with three digits.
func short(x float64) string {
	switch a := math.Abs(x); {
	case a == 0:
		return "0"
	case a >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case a >= 1e-3:
		decimals := max(0, 2-int(math.Floor(math.Log10(a))))
		text := strconv.FormatFloat(x, 'f', decimals, 64)
		if strings.Contains(text, ".") {
			text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
		}
		return text
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

// seconds writes a time in the unit that fits.
func seconds(v Value) string {
	switch x := float64(v); {
	case math.IsNaN(x):
		return "not known"
	case x != 0 && math.Abs(x) < 1:
		return short(x*1000) + " ms"
	default:
		return short(x) + " s"
	}
}

func percent(ratio float64) string { return short(math.Round(1000*ratio)/10) + " %" }

// change writes a relative difference with its sign.
func change(v Value) string { return fmt.Sprintf("%+.0f %%", 100*float64(v)) }

// prefixed is the text behind its prefix, or nothing.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// gpus names the GPUs of an identity.
func gpus(i Identity) string {
	switch {
	case i.GPUName == "":
		return ""
	case i.GPUCount > 1:
		return fmt.Sprintf("%d x %s%s", i.GPUCount, i.GPUName, prefixed(" ", i.MIGProfile))
	}
	return i.GPUName + prefixed(" ", i.MIGProfile)
}

// Summary is the outcome in one line.
func (c *Comparison) Summary() string {
	if c.Outcome == NotComparable {
		return "not comparable: " + strings.Join(c.Incomparable, "; ")
	}
	text := string(c.Outcome)
	if c.Outcome == NotProven {
		text = "not passed, since undecided counts"
	}
	for i, v := range []Verdict{Worse, Missing, Undecided, Better, Same} {
		separator := ", "
		if i == 0 {
			separator = ": "
		}
		text += fmt.Sprintf("%s%d %s", separator, c.Count(v), v)
	}
	return text
}

// Shown are the rows that a person should see: all that differ, those first
// that decide, and all of knees, safe rates and squeezes.
func (c *Comparison) Shown() []*Row {
	severity := []Verdict{Worse, Missing, Undecided, Better, Same}
	var out []*Row
	for i := range c.Rows {
		if r := &c.Rows[i]; r.Verdict != Same || r.Share == 0 {
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(a, b *Row) int {
		return slices.Index(severity, a.Verdict) - slices.Index(severity, b.Verdict)
	})
	return out
}

// hidden says how many rows Shown leaves out; empty when none.
func (c *Comparison) hidden() string {
	if n := len(c.Rows) - len(c.Shown()); n > 0 {
		return fmt.Sprintf("%d tails are the same within their bands and are not shown.", n)
	}
	return ""
}

// facts are lines about what is compared.
func (c *Comparison) facts() [][2]string {
	var out [][2]string
	for _, list := range []struct {
		name  string
		sides []Side
	}{{"Base", c.Base}, {"New", c.New}} {
		for _, s := range list.sides {
			words := []string{string(s.Source)}
			if s.Estimate {
				words = append(words, "estimate")
			}
			for _, w := range []string{s.Started, s.Engine, s.GPU, prefixed("id ", s.ID[:min(12, len(s.ID))])} {
				if w != "" {
					words = append(words, w)
				}
			}
			out = append(out, [2]string{list.name, strings.Join(words, ", ")})
		}
	}
	for _, d := range c.Changes {
		out = append(out, [2]string{"Differs", d.String()})
	}
	if c.Band > 0 {
		out = append(out, [2]string{"Noise band", percent(c.Band)})
	}
	return out
}

// WriteText writes the comparison for a terminal.
func (c *Comparison) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Release gate %s\n\n", c.Summary())
	for _, f := range c.facts() {
		fmt.Fprintf(&b, "%-12s%s\n", f[0], f[1])
	}
	for i, r := range c.Shown() {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintln(&b, r.Line())
	}
	c.writeNotes(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// writeNotes says what the rows do not.
func (c *Comparison) writeNotes(b *strings.Builder) {
	if text := c.hidden(); text != "" {
		fmt.Fprintf(b, "\n%s\n", text)
	}
	for i, note := range c.Notes {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(b, "- %s\n", note)
	}
}

// WriteMarkdown writes the comparison for a pull request.
func (c *Comparison) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Release gate %s\n\n", c.Summary())
	for _, f := range c.facts() {
		fmt.Fprintf(&b, "- %s: %s\n", f[0], f[1])
	}
	for i, r := range c.Shown() {
		if i == 0 {
			b.WriteString("\n| verdict | of | quantity | base | new | change | band | why |\n| --- | --- | --- | ---: | ---: | ---: | ---: | --- |\n")
		}
		changed := "-"
		if r.Change.Known() {
			changed = change(r.Change)
		}
		cells := []string{string(r.Verdict), r.subject(), r.quantity(), r.interval(r.Base), r.interval(r.New), changed, percent(r.Band), strings.Join(r.Why, "; ")}
		for i, cell := range cells {
			cells[i] = strings.ReplaceAll(cell, "|", `\|`)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	c.writeNotes(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes all rows; what is not known is null.
func (c *Comparison) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(c)
}
