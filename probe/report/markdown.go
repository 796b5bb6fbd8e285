package report

import (
	"fmt"
	"io"
	"strings"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// zonesText is the zones in words.
func zonesText(k *curve.Knee) string {
	if k == nil || !known(k.Rate) {
		return dash
	}
	if !known(k.Watermark) {
		return "unstable above " + rate(k.Rate)
	}
	return "stable to " + rate(k.Watermark) + ", risk to " + rate(k.Rate) + ", then unstable"
}

// Markdown writes the summary for a pull request: the verdicts, the envelope,
// the gates that failed and what was noted, what the curve rests on, and what it was measured on.
func Markdown(w io.Writer, c *curve.Curve) error {
	m := &markdown{}
	heading := "Capacity of " + modelName(&c.Identity)
	if o := origin(c); o != "" {
		heading += " (" + o + ")"
	}
	m.line("## %s", escape(heading))
	m.line("")
	for _, text := range notices(c) {
		m.line("> **%s**", escape(text))
		m.line(">")
	}
	if len(notices(c)) > 0 {
		m.line("")
	}
	for _, text := range Verdicts(c) {
		m.line("- %s", escape(text))
	}
	m.line("")
	m.envelope(c)
	m.gates(c)
	m.coverage(c)
	m.line("### Measured on")
	m.line("")
	m.line("%s", escape(identityLine(&c.Identity)))
	m.line("")
	m.line("%s", escape(measuredLine(c)))
	if len(c.Notes) > 0 {
		m.line("")
		for _, n := range c.Notes {
			m.line("- %s", escape(n))
		}
	}
	if _, err := io.WriteString(w, m.b.String()); err != nil {
		return fmt.Errorf("writing the summary: %w", err)
	}
	return nil
}

type markdown struct{ b strings.Builder }

func (m *markdown) line(format string, args ...any) { fmt.Fprintf(&m.b, format+"\n", args...) }

func (m *markdown) row(cells ...string) {
	for i := range cells {
		cells[i] = inCell(cells[i])
	}
	m.line("| %s |", strings.Join(cells, " | "))
}

// escape keeps what Markdown or HTML would take for its own from doing so, and one line one line.
func escape(text string) string {
	return strings.NewReplacer("\\", "\\\\", "<", "&lt;", ">", "&gt;", "&", "&amp;", "`", "\\`", "*", "\\*", "_", "\\_", "[", "\\[", "]", "\\]").Replace(oneLine(text))
}

func inCell(text string) string { return strings.ReplaceAll(escape(text), "|", "\\|") }

// code is a command as inline code.
func code(text string) string {
	text = oneLine(text)
	fence := "`"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	if len(fence) > 1 {
		return fence + " " + text + " " + fence
	}
	return fence + text + fence
}

func orDash(text string) string {
	if text == "" {
		return dash
	}
	return text
}

func (m *markdown) envelope(c *curve.Curve) {
	all := subjects(c)
	if len(all) == 0 {
		return
	}
	head, rule := []string{"class", "arrivals", "safe rate/s", "knee/s", "gives first", "zones", "watermark/s"}, "| --- | --- | ---: | ---: | --- | --- | ---: |"
	for _, n := range fleets {
		head = append(head, fmt.Sprintf("N-1 of %d", n))
		rule += " ---: |"
	}
	m.row(append(head, "status")...)
	m.line("%s --- |", rule)
	for _, s := range all {
		if s.Study == nil {
			m.row(append([]string{s.Name, dash, dash, dash, dash, dash, dash, dash, dash, dash}, "not measured")...)
			continue
		}
		k := s.Knee
		knee, binding, watermark := dash, dash, dash
		if k != nil {
			knee, binding, watermark = interval(k.Rate, k.Low, k.High), bindingText(k), rate(k.Watermark)
		}
		cells := []string{s.Name, arrivalsName(s.Arrivals), rate(s.SafeRate), knee, binding, zonesText(k), watermark}
		for _, v := range s.LessOne {
			cells = append(cells, rate(v))
		}
		m.row(append(cells, statusName(s.Status))...)
	}
	m.line("")
	m.line("Requests per second of one replica; N-1 of n is what each of n may carry so that one may fail.")
	m.line("")
}

// maxFailures bounds the lists of failed and of noted gates.
const maxFailures = 20

// gates lists the points at which gates failed, and those at which something
// was noted that fails no point.
func (m *markdown) gates(c *curve.Curve) {
	var failed, noted []string
	for _, s := range subjects(c) {
		if s.Study == nil {
			continue
		}
		for _, p := range placed(s.Study) {
			var fails, notes []string
			for i := range p.Gates {
				g := &p.Gates[i]
				switch text := escape(gateName(g) + " (" + reason(g) + ")"); gateOutcome(g) {
				case "failed":
					fails = append(fails, text)
				case "noted":
					notes = append(notes, text)
				}
			}
			at := fmt.Sprintf("- %s, %s at %s requests/s offered%s: ", escape(s.Name), escape(arrivalsName(s.Arrivals)), rate(p.OfferedRate), aboveKnee(s.Study, p))
			if len(fails) > 0 {
				failed = append(failed, at+strings.Join(fails, ", "))
			}
			if len(notes) > 0 {
				noted = append(noted, at+strings.Join(notes, ", "))
			}
		}
	}
	m.list("Gates that failed", failed)
	m.list("Noted, without failing a point", noted)
	if len(failed)+len(noted) > 0 {
		m.line("%s", offeredText)
		m.line("")
	}
}

// offeredText says what the rates of points are.
const offeredText = "Rates are those offered: requests that came due in the measured time, over that time. The planned rate, which the search logs and steers by, differs from it by chance."

func (m *markdown) list(heading string, lines []string) {
	if len(lines) == 0 {
		return
	}
	m.line("### %s", heading)
	m.line("")
	for i, l := range lines {
		if i == maxFailures {
			m.line("- and %d more", len(lines)-i)
			break
		}
		m.line("%s", l)
	}
	m.line("")
}

func aboveKnee(s *curve.Study, p *curve.Point) string {
	if s.Knee != nil && known(s.Knee.Rate) && p.OfferedRate > s.Knee.Rate {
		return " (above the knee)"
	}
	return ""
}

// gateName is a gate in words.
func gateName(g *curve.Gate) string {
	name := strings.ReplaceAll(g.Name, "_", " ")
	if g.SLO != nil {
		name = sloText(*g.SLO)
	}
	if g.Class != "" {
		name = g.Class + ": " + name
	}
	return name
}

// gateOutcome is passed, failed, or noted, when the failure of a gate fails no
// point, or not decided.
func gateOutcome(g *curve.Gate) string {
	switch {
	case g.Passed == nil:
		return "not decided"
	case *g.Passed:
		return "passed"
	case g.Kind == curve.GateRisk:
		return "noted"
	}
	return "failed"
}

// reason is why a gate did not pass: in words where its numbers do not count
// violations, since then one of them alone may not be what decided.
func reason(g *curve.Gate) string {
	if !(g.N > 0) && g.Detail != "" {
		return g.Detail
	}
	return evidence(g)
}

// evidence is what a gate was judged by.
func evidence(g *curve.Gate) string {
	if !(g.N > 0) {
		if known(g.Value) || known(g.Limit) {
			return number(g.Value) + " against " + number(g.Limit)
		}
		return dash
	}
	text := fmt.Sprintf("%s of %s beyond", number(curve.Value(g.Violations)), number(curve.Value(g.N)))
	if known(g.Low) || known(g.High) {
		text += ", share " + percent(g.Low) + " to " + percent(g.High)
	}
	if g.SLO != nil {
		text += ", budget " + percent(curve.Value(g.SLO.Budget()))
	}
	if g.DesignEffect > 0 {
		text += ", design effect " + number(curve.Value(g.DesignEffect))
	}
	return text
}

func (m *markdown) coverage(c *curve.Curve) {
	if len(c.Coverage) == 0 {
		return
	}
	m.line("### What it rests on")
	m.line("")
	for _, v := range c.Coverage {
		box := " "
		if v.Done {
			box = "x"
		}
		text := escape(itemName(v.Item)) + ": " + escape(v.Detail)
		if v.Command != "" && !v.Done {
			text += ": " + code(v.Command)
		}
		m.line("- [%s] %s", box, text)
	}
	m.line("")
}

func itemName(item string) string {
	if item == "aa" {
		return "A/A"
	}
	return strings.ReplaceAll(item, "_", " ")
}

func statusName(s curve.Status) string { return orDash(strings.ReplaceAll(string(s), "_", " ")) }

// notices are what must be read before the numbers.
func notices(c *curve.Curve) []string {
	var out []string
	switch c.Source {
	case curve.Simulated:
		out = append(out, "Simulated: these numbers come from a simulator, not from an engine.")
	case curve.Imported:
		from := ""
		if c.ImportedFrom != "" {
			from = " of " + c.ImportedFrom
		}
		out = append(out, "Imported: these numbers were made of a result file"+from+"; this tool has not measured them.")
	}
	if c.Estimate {
		out = append(out, "An estimate: nothing was soaked, knees and safe rates may be too high.")
	}
	if text := Uncounted(c); text != "" {
		out = append(out, text)
	}
	for _, s := range subjects(c) {
		if s.Study != nil && s.Status == curve.StatusInterrupted {
			out = append(out, "Interrupted: the curve holds what was measured until then.")
			break
		}
	}
	return out
}

func modelName(id *curve.Identity) string {
	if id.Model == "" {
		return "a model that is not known"
	}
	return id.Model
}

// identityLine is what was measured on, in a sentence.
func identityLine(id *curve.Identity) string {
	model := modelName(id)
	var of []string
	for _, v := range []string{id.Quantization, id.DType} {
		if v != "" {
			of = append(of, v)
		}
	}
	if len(of) > 0 {
		model += " (" + strings.Join(of, ", ") + ")"
	}
	engine := "an engine that is not known"
	if id.EngineType != "" {
		engine = strings.TrimSpace(id.EngineType + " " + id.EngineVersion)
	}
	gpu := "GPU not known"
	if id.GPUName != "" {
		gpu = fmt.Sprintf("%d × %s", max(id.GPUCount, 1), id.GPUName)
		if id.GPUCount == 0 {
			gpu = id.GPUName
		}
		if id.MIGProfile != "" {
			gpu += " " + id.MIGProfile
		}
	}
	var limits []string
	add := func(value float64, format string) {
		if value > 0 {
			limits = append(limits, fmt.Sprintf(format, number(curve.Value(value))))
		}
	}
	add(float64(id.TensorParallel), "tensor parallel %s")
	add(float64(id.MaxNumSeqs), "%s sequence slots")
	add(float64(id.MaxNumBatchedTokens), "%s tokens a step")
	add(id.KVTokens, "%s KV tokens")
	add(float64(id.MaxModelLen), "%s tokens at most a request")
	if id.PrefixCaching != nil {
		limits = append(limits, "prefix caching "+map[bool]string{true: "on", false: "off"}[*id.PrefixCaching])
	}
	text := model + " on " + engine + ", " + gpu
	if len(limits) > 0 {
		text += "; " + strings.Join(limits, ", ")
	}
	return text
}

// measuredLine is when, with what and with which load.
func measuredLine(c *curve.Curve) string {
	var parts []string
	if !c.Started.IsZero() {
		text := "Begun " + c.Started.UTC().Format("2006-01-02 15:04") + " UTC"
		if d := c.Finished.Sub(c.Started); d > 0 {
			text += ", " + span(d)
		}
		parts = append(parts, text)
	}
	requests, took := 0, 0.0
	for _, s := range subjects(c) {
		if s.Study != nil {
			requests += s.Requests
			took += s.Seconds
		}
	}
	if requests > 0 {
		parts = append(parts, fmt.Sprintf("%s requests", number(curve.Value(requests))))
	}
	if c.Tool.Name != "" {
		parts = append(parts, strings.TrimSpace("by "+c.Tool.Name+" "+c.Tool.Version))
	}
	if c.Workload.Hash != "" {
		parts = append(parts, fmt.Sprintf("workload %.12s, seed %d", c.Workload.Hash, c.Workload.Seed))
	}
	if c.ID != "" {
		parts = append(parts, fmt.Sprintf("curve %.12s", c.ID))
	}
	if len(parts) == 0 {
		return dash
	}
	return strings.Join(parts, "; ")
}

// sloList is every bound of a curve's classes.
func sloList(slos []capacity.SLO) string {
	var words []string
	for _, s := range slos {
		words = append(words, sloText(s))
	}
	return orDash(strings.Join(words, ", "))
}
