package profile

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"time"

	"headroom_exporter/probe/workload"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// page is what the template shows.
type page struct {
	Name, Format, Tool string
	Start              string
	Figures            []figure
	Notes              []string
	Classes            []classRow
	Pictures           []picture
	Commands           []string
}

// figure is a number with what it is.
type figure struct{ Value, Label, Detail string }

type classRow struct {
	Colour, Name, Matches            string
	Requests, Share, Tokens, Rate    string
	PromptMean, PromptP50, PromptP99 string
	OutputMean, OutputP50, OutputP99 string
	GapCV, IDC, Burstiness, Peak     string
	Prefix                           string
}

type picture struct {
	Title, Caption string
	Drawing        template.HTML
	// Legend of the classes; All adds the line of all requests to it.
	Wide, Legend, All bool
}

// WritePage writes the profile as one HTML page that needs nothing else:
// pictures are inside, no script, no network. classesFile is the name of the
// classes file that the page's commands show.
func (p *Profile) WritePage(w io.Writer, classesFile string) error {
	trace, s := p.File.Trace, p.Statistics
	v := page{Name: trace.Name, Format: string(trace.Format), Tool: p.File.Tool, Notes: p.File.Notes, Commands: p.commands(classesFile)}
	if !p.Trace.Start.IsZero() {
		v.Start = p.Trace.Start.Format("2006-01-02 15:04:05") + ", by the trace's clock"
	}
	v.Figures = []figure{
		{fmt.Sprint(s.Requests), "requests", "in " + span(s.Span)},
		{withUnit(s.Rate, "/s"), "mean rate", perMinute(s.Minute)},
		{withUnit(s.Minute.PeakToMean, "×"), "peak minute to mean", withUnit(s.Second.PeakToMean, "×") + " in the peak second"},
		{observed(trace.Observed.Burstiness), "burstiness", "1 is Poisson, less is burstier; CV of gaps " + number(s.GapCV)},
		{number(s.Prompt.Mean), "mean prompt tokens", "p99 " + number(s.Prompt.P99) + ", max " + number(s.Prompt.Max)},
		{number(s.Output.Mean), "mean output tokens", "p99 " + number(s.Output.P99) + ", max " + number(s.Output.Max)},
		{percent(trace.Observed.PrefixHitRatio), "prompt tokens seen before", prefixDetail(trace.Observed.PrefixHitRatio)},
	}
	for i := range p.File.Classes {
		v.Classes = append(v.Classes, p.row(i))
	}
	many := len(p.File.Classes) > 1
	for _, c := range []picture{
		{"Rate over time", "Requests per second by class, one upon the other.", p.rateChart(), true, many, false},
		{"By hour of the day", "Relative to the mean rate.", p.hourChart(), true, false, false},
		{"Prompt and output length", "A circle's area goes with the requests of about these lengths.", p.lengthChart(), false, many, false},
		{"Bursts", "How much the counts vary in windows of a length, without slow drift: 1 is Poisson, above it the traffic is burstier.", p.dispersionChart(), false, many, true},
		{"Prompt length", "In the engine's buckets, by which live traffic is told apart.", p.histogramChart("prompt", func(o *workload.Observed) workload.Histogram { return o.PromptHistogram }), false, many, false},
		{"Output length", "In the engine's buckets.", p.histogramChart("output", func(o *workload.Observed) workload.Histogram { return o.OutputHistogram }), false, many, false},
	} {
		if c.Drawing != "" {
			v.Pictures = append(v.Pictures, c)
		}
	}
	if err := pageTemplate.Execute(w, v); err != nil {
		return fmt.Errorf("writing the profile page: %w", err)
	}
	return nil
}

// commands are what the classes are made for: a load of their mix, as bursty
// as the trace, and the trace itself.
func (p *Profile) commands(classesFile string) []string {
	t := p.File.Trace
	mix := fmt.Sprintf("headroom_exporter probe --classes.file=%s --rate=%.3g", quote(classesFile), p.Statistics.Rate)
	if b := t.Observed.Burstiness; b != nil {
		mix += fmt.Sprintf(" --arrivals=gamma --burstiness=%.2g", max(*b, 0.01))
	}
	return []string{mix, fmt.Sprintf("headroom_exporter probe --classes.file=%s --trace.file=%s --trace.format=%s", quote(classesFile), quote(t.Name), t.Format)}
}

// quote makes one word of a shell of a file name.
func quote(name string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/+,=@%", r)
	}
	if name != "" && strings.IndexFunc(name, func(r rune) bool { return !plain(r) }) < 0 {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

func (p *Profile) row(i int) classRow {
	c, s, o := &p.File.Classes[i], &p.Classes[i], p.File.Classes[i].Observed
	r := classRow{
		Colour: colour(i), Name: c.Name, Matches: matches(c.Match),
		Requests: fmt.Sprint(o.Requests), Share: percent(&c.Weight), Tokens: percent(&p.TokenShare[i]), Rate: number(o.Rate),
		PromptMean: number(s.Prompt.Mean), PromptP50: number(s.Prompt.P50), PromptP99: number(s.Prompt.P99),
		OutputMean: number(s.Output.Mean), OutputP50: number(s.Output.P50), OutputP99: number(s.Output.P99),
		GapCV: observed(o.GapCV), IDC: observed(o.IDC1s) + " / " + observed(o.IDC10s), Burstiness: observed(o.Burstiness), Peak: observed(o.PeakToMean60s),
		Prefix: percent(o.PrefixHitRatio),
	}
	return r
}

func matches(m *workload.Match) string {
	switch {
	case m == nil:
		return "every request"
	case m.Any:
		return "what no other class takes"
	case m.Prompt > 0:
		return "lengths nearest to " + number(m.Prompt) + " and " + number(m.Output)
	}
	text := ""
	for _, part := range []struct{ name, value string }{{"scenario", m.Scenario}, {"tenant", m.Tenant}, {"model", m.Model}} {
		if part.value != "" {
			if text != "" {
				text += ", "
			}
			text += part.name + " " + part.value
		}
	}
	return text
}

func observed(x *float64) string {
	if x == nil {
		return number(math.NaN())
	}
	return number(*x)
}

func perMinute(c workload.Counts) string {
	if math.IsNaN(c.Mean) {
		return "shorter than a minute"
	}
	return "per minute " + number(c.Min) + " to " + number(c.Max)
}

func withUnit(x float64, unit string) string {
	if math.IsNaN(x) {
		return number(x)
	}
	return number(x) + unit
}

func percent(x *float64) string {
	if x == nil {
		return number(math.NaN())
	}
	return trim(100*(*x), 1) + " %"
}

func prefixDetail(x *float64) string {
	if x == nil {
		return "the trace does not tell"
	}
	return "by an endless prefix cache"
}

// span writes a time with its two largest units.
func span(d time.Duration) string {
	switch {
	case d >= 24*time.Hour:
		return fmt.Sprintf("%d d %d h", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	}
	return number(d.Seconds()) + " s"
}
