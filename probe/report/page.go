package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"regexp"
	"slices"
	"strings"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/plot"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// page is what the template shows.
type page struct {
	Model, Origin     string
	Identity          string
	Measured          string
	Notices           []string
	Verdicts          []verdictRow
	Fleets            []int
	Envelope          []envelopeRow
	PeakReserve       string
	Advice            []advice
	Coverage          []coverageRow
	Studies           []studyView
	AA                *aaView
	ColdStart         []fact
	Classes           []classRow
	IdentityRows      []fact
	Workload, Client  []fact
	Notes             []string
	Reuse             []curve.Reuse
	SLO               string
	Tool, Flags       string
	HasMissing, HasAA bool
}

type fact struct{ Name, Value string }

type verdictRow struct {
	Name, Text string
	// Tone is stable, risk, unstable or unknown.
	Tone string
}

type envelopeRow struct {
	Name, Arrivals, Status, Safe, Knee, Binding, Watermark, Zones string
	Bar                                                           template.HTML
	LessOne                                                       []string
	Rows                                                          int
	Anchor                                                        string
}

type coverageRow struct {
	Item, Detail, Command string
	Done                  bool
}

type studyView struct {
	Anchor, Name, Arrivals, Status, Tone, Verdict, SLO string
	Figures                                            []figure
	Evidence                                           []string
	Pictures                                           []picture
	BySLO                                              [][]string
	Soak, Burst, Ceiling                               []fact
	CeilingSteps, Trials                               [][]string
	Squeeze                                            [][]string
	Engine                                             [][]string
	Points                                             []pointView
	Latencies                                          [][]string
	GPUs                                               [][]string
}

// figure is a number with what it is.
type figure struct{ Value, Label, Detail string }

type pointView struct {
	Title, Outcome, Tone string
	Facts                []fact
	Gates                []gateView
}

type gateView struct{ Name, Kind, Outcome, Tone, Evidence, Detail string }

type aaView struct {
	Class, Rate, Band string
	Rows              [][]string
}

type classRow struct{ Name, Weight, Prompt, Generation, Hits, SLO string }

// HTML writes the curve as one page that needs nothing else: the pictures are
// inside, there is no script, and nothing is loaded.
func HTML(w io.Writer, c *curve.Curve) error {
	if err := pageTemplate.Execute(w, newPage(c)); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

func newPage(c *curve.Curve) page {
	v := page{
		Model: modelName(&c.Identity), Origin: origin(c), Identity: identityLine(&c.Identity), Measured: measuredLine(c), Notices: notices(c), Fleets: fleets,
		PeakReserve: percent(curve.Value(c.PeakReserve)), Advice: advise(c), SLO: sloList(c.SLO), Reuse: c.Reuse, Flags: c.Workload.Flags,
		Tool: strings.TrimSpace(c.Tool.Name + " " + c.Tool.Version),
	}
	for _, n := range c.Notes {
		if strings.TrimSpace(n) != "" {
			v.Notes = append(v.Notes, n)
		}
	}
	all := subjects(c)
	// The bars of a class share a scale; those of classes of other lengths would not compare.
	most := map[string]float64{}
	for _, s := range all {
		if s.Study != nil && s.Knee != nil && known(s.Knee.Rate) {
			most[s.Name] = max(most[s.Name], float64(s.Knee.Rate))
		}
	}
	for i, s := range all {
		if s.First {
			v.Verdicts = append(v.Verdicts, verdictRow{s.Name, unbroken(finding(c, s)), tone(c, s.Study)})
		}
		row := envelopeRow{Name: s.Name, Arrivals: dash, Status: "not measured", Safe: dash, Knee: dash, Binding: dash, Watermark: dash, Zones: dash}
		if s.Study != nil {
			row.Anchor = fmt.Sprintf("study-%d", i+1)
			row.Arrivals, row.Status, row.Safe = arrivalsName(s.Arrivals), "", rate(s.SafeRate)
			if s.Status != curve.StatusOK {
				row.Status = statusName(s.Status)
			}
			if k := s.Knee; k != nil {
				row.Knee, row.Binding, row.Watermark, row.Zones = interval(k.Rate, k.Low, k.High), bindingText(k), rate(k.Watermark), zonesText(k)
				row.Bar = zoneBar(k, most[s.Name])
			}
			v.Studies = append(v.Studies, study(c, s, row.Anchor))
		}
		for i := range fleets {
			text := dash
			if i < len(s.LessOne) {
				text = rate(s.LessOne[i])
			}
			row.LessOne = append(row.LessOne, text)
		}
		v.Envelope = append(v.Envelope, row)
	}
	for _, x := range c.Coverage {
		row := coverageRow{Item: itemName(x.Item), Detail: x.Detail, Done: x.Done}
		if !x.Done {
			row.Command = x.Command
			v.HasMissing = true
		}
		v.Coverage = append(v.Coverage, row)
	}
	for i := range c.Classes {
		k := &c.Classes[i]
		slo := k.SLO
		if len(slo) == 0 {
			slo = c.SLO
		}
		v.Classes = append(v.Classes, classRow{k.Name, number(curve.Value(k.Weight)), number(curve.Value(k.PromptMean)), number(curve.Value(k.GenerationMean)), percent(k.PrefixHitRatio), sloList(slo)})
	}
	for _, f := range curve.Fields() {
		if text, err := c.Identity.Get(f.Name); err == nil && text != "" {
			v.IdentityRows = append(v.IdentityRows, fact{f.Name, text})
		}
	}
	if a := c.AA; a != nil {
		v.AA = &aaView{Class: a.Class, Rate: rate(a.Rate), Band: percent(a.Band)}
		for i := range a.Points {
			v.AA.Rows = append(v.AA.Rows, latencyRow(a.Points[i].Name, &a.Points[i].TTFT, &a.Points[i].E2E))
		}
	}
	if s := c.ColdStart; s != nil {
		v.ColdStart = []fact{{"class", s.Class}, {"until the median TTFT is within 10 % of the steady one", seconds(s.Seconds)}, {"worst TTFT", seconds(s.WorstTTFT)}}
	}
	v.Workload = given(fact{"workload", c.Workload.Hash}, fact{"seed", fmt.Sprint(c.Workload.Seed)}, fact{"curve", c.ID})
	cpus := ""
	if c.Client.CPUs > 0 {
		cpus = fmt.Sprint(c.Client.CPUs)
	}
	v.Client = given(fact{"host", c.Client.Host}, fact{"system", c.Client.OS}, fact{"CPUs", cpus}, fact{"CPU", c.Client.CPUModel}, fact{"requests as", c.Client.Dialect},
		fact{"tool", v.Tool}, fact{"commit", c.Tool.Commit})
	return v
}

// given leaves out what is not known.
func given(facts ...fact) []fact {
	return slices.DeleteFunc(facts, func(f fact) bool { return f.Value == "" })
}

// unbroken keeps a bound on one line.
func unbroken(text string) string { return boundPattern.ReplaceAllString(text, "≤\u00a0$1\u00a0$2") }

var boundPattern = regexp.MustCompile(`≤ (\S+) (\S+)`)

// tone is the colour of a study's finding.
func tone(c *curve.Curve, s *curve.Study) string {
	switch {
	case s == nil:
		return "unknown"
	case s.Status == curve.StatusOK && !c.Estimate:
		return "stable"
	case s.Status == curve.StatusNoSafeRate:
		return "unstable"
	case s.Status == curve.StatusInterrupted && !known(s.SafeRate):
		return "unknown"
	}
	return "risk"
}

// zoneBar is the zones of a study as a bar on a scale from 0 to a little above most.
func zoneBar(k *curve.Knee, most float64) template.HTML {
	if !known(k.Rate) || !(most > 0) {
		return ""
	}
	const width, height = 130.0, 14.0
	x := plot.Axis{From: 0, To: most * 1.15, Start: 0, End: width}
	d := plot.New(plot.Frame{Width: width, Height: height, Class: "zonebar"}, "zones: "+zonesText(k))
	from := 0.0
	if known(k.Watermark) {
		d.Rect(0, 2, x.At(float64(k.Watermark)), height-4, "fill stable", "stable up to "+rate(k.Watermark))
		from = float64(k.Watermark)
	}
	d.Rect(x.At(from), 2, x.At(float64(k.Rate))-x.At(from), height-4, "fill risk", "risk up to "+rate(k.Rate))
	d.Rect(x.At(float64(k.Rate)), 2, width-x.At(float64(k.Rate)), height-4, "fill unstable", "unstable above")
	d.Line(x.At(float64(k.Rate)), 0, x.At(float64(k.Rate)), height, "upright knee")
	return d.HTML()
}

// study is everything about one class or mix under one arrival shape.
func study(c *curve.Curve, s subject, anchor string) studyView {
	v := studyView{Anchor: anchor, Name: s.Name, Arrivals: arrivalsName(s.Arrivals), Status: statusName(s.Status), Tone: tone(c, s.Study), Verdict: finding(c, s)}
	var slo []string
	for _, b := range s.SLO {
		slo = append(slo, b.name()+" ≤ "+bound(b.SLO))
	}
	v.SLO = orDash(strings.Join(slo, ", "))
	k := s.Knee
	if k == nil {
		u := capacity.Unknown()
		k = &curve.Knee{Rate: u, Low: u, High: u, Watermark: u, CliffFrom: u, CliffTo: u, PromptTokenRate: u, GenerationTokenRate: u, Concurrency: u, KVPeak: u}
	}
	kneeDetail := "not found"
	if known(k.Low) && known(k.High) {
		kneeDetail = rate(k.Low) + " to " + rate(k.High)
		if k.Confidence > 0 {
			kneeDetail += ", " + percent(curve.Value(k.Confidence))
		} else {
			kneeDetail = rate(k.Low) + " passed, " + rate(k.High) + " failed"
		}
	} else if known(k.Rate) {
		kneeDetail = "interval not known"
	}
	safeDetail := statusName(s.Status)
	if s.Status == curve.StatusOK {
		safeDetail = "soaked"
	}
	v.Figures = []figure{
		{rate(s.SafeRate), "safe, requests/s", safeDetail},
		{rate(k.Rate), "knee, requests/s", kneeDetail},
		{rate(k.Watermark), "watermark", percent(curve.Value(c.PeakReserve)) + " kept for peaks"},
		{number(k.GenerationTokenRate), "output tokens/s at the knee", "with " + number(k.PromptTokenRate) + " prompt tokens/s"},
		{number(k.Concurrency), "requests at once there", "KV cache used to " + percent(k.KVPeak)},
		{orDash(k.Bottleneck), "limits there", "first to give: " + unbroken(bindingText(k))},
	}
	v.Evidence = k.Evidence
	v.Pictures = pictures(s, c.Identity.MaxNumSeqs)
	for _, b := range k.BySLO {
		at := "held at every rate"
		if known(b.Rate) {
			at = interval(b.Rate, b.Low, b.High)
		}
		name := sloText(b.SLO)
		if b.Class != "" && s.Mix != nil {
			name = b.Class + ": " + name
		}
		v.BySLO = append(v.BySLO, []string{name, at, orDash(b.Method)})
	}
	if x := s.Ceiling; x != nil {
		v.Ceiling = []fact{{"most completions/s", rate(x.Rate)}, {"mean time of a request in the engine", seconds(x.Residence)},
			{"usable sequence slots, by Little's law", number(x.SequenceSlots)}, {"expected by the engine's limits", number(x.Expected)}}
		for i := range x.Steps {
			p := &x.Steps[i]
			v.CeilingSteps = append(v.CeilingSteps, []string{fmt.Sprint(p.Concurrency), rate(p.CompletedRate), number(p.GenerationTokenRate), seconds(p.E2E.P50), number(p.Engine.WaitingMean), percent(p.Engine.KVPeak)})
		}
	}
	if x := s.Soak; x != nil {
		passed := "failed"
		if x.Passed {
			passed = "passed"
		}
		bounded := "no"
		if x.Proven {
			bounded = "yes"
		}
		v.Soak = []fact{{"outcome", passed}, {"upper bound of the violations within the budget too", bounded}, {"lasted", seconds(curve.Value(x.Seconds))}, {"trials", fmt.Sprint(len(x.Trials))}}
		for i := range x.Trials {
			p := &x.Trials[i]
			v.Trials = append(v.Trials, []string{rate(p.OfferedRate), seconds(curve.Value(p.Seconds)), outcomeWord(p), fmt.Sprintf("%d of %d", p.Failures, p.Attempts), seconds(p.TTFT.P99), seconds(p.E2E.P99)})
		}
	}
	if b := s.Burst; b != nil {
		v.Burst = []fact{{"burst", number(curve.Value(b.Factor)) + " × the safe rate for " + seconds(curve.Value(b.Seconds))}, {"until no request waited", unlessNever(b.Drain)},
			{"until TTFT was back under its bound", unlessNever(b.Recovery)}, {"worst TTFT", seconds(b.WorstTTFT)}, {"most waiting", number(b.WaitingMax)}}
	}
	if s.Mix != nil {
		for _, q := range s.Mix.Squeeze {
			ratio := dash
			if known(q.Alone) && known(q.Mixed) && q.Alone > 0 {
				ratio = number(q.Mixed/q.Alone) + " ×"
			}
			v.Squeeze = append(v.Squeeze, []string{q.Class, sloName(q.SLO), seconds(q.Alone), seconds(q.Mixed), ratio, bound(q.SLO)})
		}
	}
	for _, p := range placed(s.Study) {
		at := rate(p.OfferedRate)
		if p.Purpose == curve.PurposeSoak || p == s.Baseline {
			at = pointName(s.Study, p)
		}
		if len(p.Classes) == 0 {
			v.Latencies = append(v.Latencies, quantileRows(at, "", p.Attempts, p.Failures, &p.TTFT, &p.ITL, &p.TPOT, &p.E2E)...)
		}
		for i := range p.Classes {
			x := &p.Classes[i]
			v.Latencies = append(v.Latencies, quantileRows(at, x.Class, x.Attempts, x.Failures, &x.TTFT, &x.ITL, &x.TPOT, &x.E2E)...)
		}
		for i := range p.GPUs {
			g := &p.GPUs[i]
			v.GPUs = append(v.GPUs, []string{at, orDash(strings.TrimSpace(g.Model + " " + g.UUID)), withUnit(g.PowerWatts, " W"), withUnit(g.SMClockHertz/1e6, " MHz"), withUnit(g.Temperature, " °C"), percent(g.Bandwidth), percent(g.SMActive), throttle(g.ThrottleSeconds)})
		}
		v.Engine = append(v.Engine, []string{at, outcomeWord(p), rate(p.CompletedRate), number(p.GenerationTokenRate), number(p.Engine.RunningMean), number(p.Engine.WaitingMean),
			seconds(p.Engine.QueueSeconds), seconds(p.Engine.PrefillSeconds), seconds(p.Engine.DecodeSeconds), percent(p.Engine.KVPeak), number(p.Engine.Preemptions), seconds(p.Client.LagP99)})
		v.Points = append(v.Points, pointOf(s.Study, p))
	}
	return v
}

func unlessNever(v curve.Value) string {
	if !known(v) {
		return "did not come back, or not known"
	}
	return seconds(v)
}

func withUnit(v curve.Value, unit string) string {
	if !known(v) {
		return dash
	}
	return number(v) + unit
}

func throttle(reasons map[string]float64) string {
	var words []string
	for name, s := range reasons {
		if s > 0 {
			words = append(words, name+" "+seconds(curve.Value(s)))
		}
	}
	slices.Sort(words)
	return orDash(strings.Join(words, ", "))
}

// latencyRow is the p50, p95 and p99 of TTFT and E2E.
func latencyRow(name string, ttft, e2e *curve.Quantiles) []string {
	return []string{name, seconds(ttft.P50), seconds(ttft.P95), seconds(ttft.P99), seconds(e2e.P50), seconds(e2e.P95), seconds(e2e.P99)}
}

// quantileRows are the latencies that a point has, one a row.
func quantileRows(at, class string, attempts, failures int, ttft, itl, tpot, e2e *curve.Quantiles) [][]string {
	var rows [][]string
	for _, m := range []struct {
		name string
		q    *curve.Quantiles
	}{{"TTFT", ttft}, {"ITL", itl}, {"TPOT", tpot}, {"E2E", e2e}} {
		q := m.q
		if !(q.N > 0) {
			continue
		}
		row := []string{"", "", m.name, number(curve.Value(q.N))}
		if len(rows) == 0 {
			row[0], row[1] = at, strings.TrimSpace(class+" "+fmt.Sprintf("%d of %d", failures, attempts))
		}
		for _, v := range []curve.Value{q.Mean, q.P10, q.P50, q.P90, q.P95, q.P99, q.P999, q.Max} {
			row = append(row, seconds(v))
		}
		rows = append(rows, row)
	}
	return rows
}

func pointOf(s *curve.Study, p *curve.Point) pointView {
	v := pointView{Title: rate(p.OfferedRate) + " requests/s offered", Outcome: outcome(p), Tone: "unknown"}
	if p == s.Baseline || p.Purpose == curve.PurposeSoak {
		v.Title = pointName(s, p)
	}
	switch outcomeWord(p) {
	case "passed":
		v.Tone = "stable"
	case "failed", "stopped":
		v.Tone = "unstable"
	}
	e := &p.Engine
	v.Facts = []fact{
		{"completed/s", rate(p.CompletedRate)}, {"prompt tokens/s", number(p.PromptTokenRate)}, {"output tokens/s", number(p.GenerationTokenRate)},
		{"measured", seconds(curve.Value(p.Seconds))}, {"left out as not steady", seconds(curve.Value(p.Trimmed))},
		{"requests, failed", fmt.Sprintf("%d, %d", p.Attempts, p.Failures)},
		{"running, mean and most", number(e.RunningMean) + ", " + number(e.RunningMax)}, {"waiting, mean and most", number(e.WaitingMean) + ", " + number(e.WaitingMax)},
		{"KV cache, mean and peak", percent(e.KVMean) + ", " + percent(e.KVPeak)}, {"preemptions", number(e.Preemptions)}, {"prefix cache hits", percent(e.PrefixHitRatio)},
		{"client CPU", percent(p.Client.CPUShare)}, {"client lag P99", seconds(p.Client.LagP99)},
	}
	for i := range p.Gates {
		v.Gates = append(v.Gates, gateOf(&p.Gates[i]))
	}
	return v
}

func gateOf(g *curve.Gate) gateView {
	v := gateView{Name: gateName(g), Kind: string(g.Kind), Outcome: gateOutcome(g), Detail: g.Detail}
	v.Tone = map[string]string{"passed": "stable", "noted": "risk", "failed": "unstable", "not decided": "unknown"}[v.Outcome]
	v.Evidence = evidence(g)
	return v
}
