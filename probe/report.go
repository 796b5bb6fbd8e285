package probe

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is one run: what was asked for and what each point showed.
type Report struct {
	Tool    string    `json:"tool"`
	Started time.Time `json:"started"`
	Engine  string    `json:"engine"`
	Model   string    `json:"model"`
	// Version of the engine, where it tells.
	Version string `json:"engine_version,omitempty"`
	Seed    uint64 `json:"seed"`
	// ContentSeed made the prompts.
	ContentSeed uint64  `json:"content_seed"`
	Dialect     Dialect `json:"dialect"`
	// Workload says what was sent, in the words of the flags.
	Workload string    `json:"workload"`
	Notes    []string  `json:"notes,omitempty"`
	Results  []*Result `json:"results"`
}

// Usable tells that every point may be used.
func (r *Report) Usable() bool {
	return len(r.Results) > 0 && !slices.ContainsFunc(r.Results, func(p *Result) bool { return !p.Usable() })
}

// table is rows of cells; the first row is the head.
type table [][]string

// writeText writes the table with aligned columns: texts to the left, the
// first column, and numbers to the right.
func (t table) writeText(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range t {
		// A right-aligned first column reads badly: pad it here.
		width := 0
		for _, r := range t {
			width = max(width, len([]rune(r[0])))
		}
		first := row[0] + strings.Repeat(" ", width-len([]rune(row[0])))
		fmt.Fprintln(tw, strings.Join(append([]string{first}, row[1:]...), "\t")+"\t")
	}
	return tw.Flush()
}

func (t table) writeMarkdown(w io.Writer) error {
	for i, row := range t {
		cells := make([]string, len(row))
		for k, c := range row {
			cells[k] = strings.ReplaceAll(c, "|", "\\|")
		}
		if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")); err != nil {
			return err
		}
		if i == 0 {
			if _, err := fmt.Fprintf(w, "|%s\n", " --- |"+strings.Repeat(" ---: |", len(row)-1)); err != nil {
				return err
			}
		}
	}
	return nil
}

// number writes a value with so many decimals; "-" when it is not known.
func number(v Value, decimals int) string {
	if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
		return "-"
	}
	return strconv.FormatFloat(float64(v), 'f', decimals, 64)
}

func percent(v Value) string {
	if math.IsNaN(float64(v)) {
		return "-"
	}
	return number(100*v, 1) + " %"
}

func (r *Report) points() table {
	t := table{{"point", "offered/s", "done/s", "tokens/s", "goodput/s", "ok", "failed", "in SLO", "most in flight", "running", "waiting", "KV", "lag p99", "verdict"}}
	for _, p := range r.Results {
		all := p.All()
		running, waiting, kv := "-", "-", "-"
		if e := p.Engine; e != nil {
			running, waiting, kv = number(e.Running.Mean, 1), number(e.Waiting.Max, 0), percent(e.KVUsage.Max)
		}
		verdict := "good"
		if !p.Usable() {
			verdict = p.Faults[0].Code
			if more := len(p.Faults) - 1; more > 0 {
				verdict += fmt.Sprintf(" +%d", more)
			}
		}
		lag := seconds(float64(p.ScheduleLag.P99))
		if math.IsNaN(float64(p.ScheduleLag.P99)) && p.ScheduleLag.N > 0 {
			lag = "≤ " + seconds(float64(p.ScheduleLag.Max))
		}
		t = append(t, []string{
			p.Name, number(p.OfferedRate, 2), number(p.CompletedRate, 2), number(p.OutputTokenRate, 0), number(p.Goodput, 2),
			strconv.Itoa(all.Outcomes[OK]), strconv.Itoa(all.Failures()), percent(all.Attainment), strconv.Itoa(p.PeakInFlight),
			running, waiting, kv, lag, verdict,
		})
	}
	return t
}

// latencies has a row for every group of every point; points of one class
// only show what is told apart beyond it.
func (r *Report) latencies() table {
	t := table{{"point", "of", "n", "TTFT p50", "p95", "p99", "TTFT sent p50", "TPOT p50", "p99", "ITL p99", "ICL p99", "E2E p50", "p99"}}
	s := func(v Value) string { return seconds(float64(v)) }
	for _, p := range r.Results {
		sizes := map[string]int{}
		for _, g := range p.Groups {
			sizes[g.Dimension]++
		}
		for i := range p.Groups {
			g := &p.Groups[i]
			of := "all"
			if g.Dimension != byAll {
				if sizes[g.Dimension] < 2 {
					continue
				}
				of = g.Dimension + " " + g.Name
			}
			t = append(t, []string{
				p.Name, of, strconv.Itoa(g.Attempts), s(g.TTFT.P50), s(g.TTFT.P95), s(g.TTFT.P99), s(g.TTFTSent.P50),
				s(g.TPOT.P50), s(g.TPOT.P99), s(g.ITL.P99), s(g.ICL.P99), s(g.E2E.P50), s(g.E2E.P99),
			})
		}
	}
	return t
}

// remarks lists faults and warnings by point.
func (r *Report) remarks() []string {
	var lines []string
	for _, p := range r.Results {
		for _, f := range p.Faults {
			lines = append(lines, fmt.Sprintf("%s: NOT USABLE, %s: %s", p.Name, f.Code, f.Detail))
		}
		for _, f := range p.Warnings {
			lines = append(lines, fmt.Sprintf("%s: note, %s: %s", p.Name, f.Code, f.Detail))
		}
	}
	return lines
}

func (r *Report) gates() table {
	t := table{{"point", "class", "SLO", "value", "n", "passed"}}
	for _, p := range r.Results {
		for _, g := range p.Gates {
			passed := "too few"
			if g.Passed != nil {
				passed = map[bool]string{true: "yes", false: "no"}[*g.Passed]
			}
			t = append(t, []string{p.Name, g.Class, g.SLO.String(), seconds(float64(g.Value)), strconv.Itoa(int(g.N)), passed})
		}
	}
	return t
}

const definitions = "TTFT, TTFO and E2E run from the scheduled moment, \"TTFT sent\" from the first byte sent; failures count as violations. " +
	"TPOT is (last - first token) / tokens after the first arrival, ITL the gaps weighted by the tokens they brought, ICL the gaps as they were. " +
	"\"-\" is not known, or too few requests for that percentile."

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s at %s, %s, seed %d, content seed %d\n\n", r.Model, r.Engine, r.Workload, r.Seed, r.ContentSeed)
	if err := r.points().writeText(&b); err != nil {
		return err
	}
	b.WriteByte('\n')
	if err := r.latencies().writeText(&b); err != nil {
		return err
	}
	if gates := r.gates(); len(gates) > 1 {
		b.WriteByte('\n')
		if err := gates.writeText(&b); err != nil {
			return err
		}
	}
	for i, line := range slices.Concat(r.remarks(), r.Notes) {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "- %s\n", line)
	}
	fmt.Fprintf(&b, "\n%s\n", definitions)
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteMarkdown writes the report as Markdown.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Probe of %s\n\n", r.Model)
	for _, line := range [][2]string{
		{"Engine", r.Engine + " " + r.Version}, {"Started", r.Started.UTC().Format(time.RFC3339)}, {"Workload", r.Workload},
		{"Seed", strconv.FormatUint(r.Seed, 10)}, {"Content seed", strconv.FormatUint(r.ContentSeed, 10)}, {"Tool", r.Tool},
	} {
		fmt.Fprintf(&b, "- %s: %s\n", line[0], strings.TrimSpace(line[1]))
	}
	for _, section := range []struct {
		title string
		table table
	}{{"Points", r.points()}, {"Latencies", r.latencies()}, {"SLO", r.gates()}} {
		if len(section.table) < 2 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n", section.title)
		if err := section.table.writeMarkdown(&b); err != nil {
			return err
		}
	}
	if lines := slices.Concat(r.remarks(), r.Notes); len(lines) > 0 {
		fmt.Fprintf(&b, "\n## Remarks\n\n- %s\n", strings.Join(lines, "\n- "))
	}
	fmt.Fprintf(&b, "\n%s\n", definitions)
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes the whole report; what is not known is null.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
