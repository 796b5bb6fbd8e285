package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
	"headroom_exporter/probe/report"
)

// checkFlags are the flags of curve check.
type checkFlags struct {
	path     string
	engine   engine.Config
	gpu      *gpuFlags
	identity *identityFlags
	output   string
}

func addCurveCheck(app *kingpin.Application, _ *logFlags) (*kingpin.CmdClause, command) {
	c := curveCommand(app).Command("check", "Does a curve hold for an engine? Exit status 0 yes, 1 no, or it has no class with a knee; 2 the file or the engine cannot be read.")
	f := &checkFlags{}
	c.Arg("file", "Curve file; - is standard input.").Required().StringVar(&f.path)
	addEngineFlags(c, &f.engine)
	f.gpu, f.identity = addGPUFlags(c, gpu.ModeAuto, ""), addIdentityFlags(c)
	c.Flag("output", "Format: text or json.").Short('o').Default("text").EnumVar(&f.output, "text", "json")
	return c, f.run
}

func (f *checkFlags) run(ctx context.Context, out io.Writer) error {
	c, err := readCurve(f.path)
	if err != nil {
		return usageError{err}
	}
	live, err := readIdentity(ctx, f.engine, f.gpu, f.identity.overrides)
	if err != nil {
		return usageError{err}
	}
	result := checked{path: f.path, url: f.engine.URL, curve: c, live: live, check: c.Check(live, time.Now())}
	write := result.writeText
	if f.output == "json" {
		write = result.writeJSON
	}
	if err := write(out); err != nil {
		return fmt.Errorf("printing the check: %w", err)
	}
	if !result.check.Valid {
		return fmt.Errorf("%s does not hold for this engine: %s", f.path, result.invalid())
	}
	if report.Uncounted(c) != "" {
		return fmt.Errorf("%s holds for this engine, but serve would count no load by it: no class has a knee or a safe rate", f.path)
	}
	return nil
}

// invalid is why the curve does not hold.
func (r *checked) invalid() string {
	reasons := sentence(r.check.Hard)
	if !r.check.Future {
		return reasons
	}
	if reasons != "" {
		reasons += ", "
	}
	return reasons + futureText(r.curve)
}

// futureText says of a curve that it was measured in the future.
func futureText(c *curve.Curve) string {
	return "finished is " + c.Finished.UTC().Format(time.RFC3339) + ", in the future: that time, or the clock here, is wrong"
}

func sentence(differences []curve.Difference) string {
	words := make([]string, len(differences))
	for i, d := range differences {
		words[i] = d.String()
	}
	return strings.Join(words, ", ")
}

// checked is a curve that was compared with an engine.
type checked struct {
	path, url string
	curve     *curve.Curve
	live      curve.Identity
	check     curve.Check
}

func (r *checked) writeText(w io.Writer) error {
	verdict := "holds"
	switch {
	case !r.check.Valid:
		verdict = "does not hold"
	case report.Uncounted(r.curve) != "":
		verdict = "counts no load, though it holds,"
	}
	rows := r.rows()
	fmt.Fprintf(w, "%s %s for %s%s\n", r.path, verdict, r.url, r.extent(rows))
	if text := r.uncounted(); text != "" {
		fmt.Fprintln(w, text)
	}
	if r.check.Future {
		fmt.Fprint(w, futureText(r.curve))
	} else {
		age := r.check.Age.Round(time.Hour)
		fmt.Fprintf(w, "measured %s, %d days %d hours ago", r.curve.Finished.UTC().Format("2006-01-02 15:04 UTC"), age/(24*time.Hour), age%(24*time.Hour)/time.Hour)
	}
	if stale := r.check.Stale(); len(stale) > 0 {
		fmt.Fprintf(w, "; measure again: %s", strings.Join(stale, ", "))
	}
	fmt.Fprint(w, "\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "field\tstored\tlive\tverdict")
	for _, row := range rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", row.Field, orDash(row.Stored), orDash(row.Live), row.verdict)
	}
	return t.Flush()
}

// extent says how little a curve that holds was compared by, when that was the model alone.
func (r *checked) extent(rows []fieldRow) string {
	compared := slices.ContainsFunc(rows, func(row fieldRow) bool { return row.Field != "model" && row.Stored != "" && row.Live != "" })
	if compared || !r.check.Valid {
		return ""
	}
	return " as far as is known: only the model could be compared"
}

// uncounted says which classes serve counts no load of, whether the curve holds or not.
func (r *checked) uncounted() string {
	if text := report.Uncounted(r.curve); text != "" {
		return text
	}
	if without := r.curve.Uncounted(); len(without) > 0 {
		return "no knee is known of " + strings.Join(without, ", ") + ": serve counts that traffic as not covered"
	}
	return ""
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// fieldRow is a field of the two identities and what becomes of it.
type fieldRow struct {
	curve.Difference
	verdict string
}

// rows are the fields that one side knows.
func (r *checked) rows() []fieldRow {
	verdicts := map[string]string{}
	for _, d := range r.check.Hard {
		verdicts[d.Field] = "differs (hard: the curve does not hold)"
	}
	for _, d := range r.check.Soft {
		verdicts[d.Field] = "differs (soft: measure again)"
	}
	for _, s := range r.check.Silenced {
		verdicts[s.Field] = fmt.Sprintf("differs, reuse allowed by %s: %s", s.Reuse.ApprovedBy, s.Reuse.Reason)
	}
	for _, d := range r.check.NotCompared {
		verdicts[d.Field] = "not compared"
	}
	var rows []fieldRow
	for _, f := range curve.Fields() {
		stored, live := f.Text(&r.curve.Identity), f.Text(&r.live)
		if stored == "" && live == "" {
			continue
		}
		verdict, ok := verdicts[f.Name]
		if !ok {
			verdict = "same"
		}
		rows = append(rows, fieldRow{curve.Difference{Field: f.Name, Stored: stored, Live: live, Hard: f.Hard}, verdict})
	}
	return rows
}

func (r *checked) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Version int    `json:"version"`
		File    string `json:"file"`
		Engine  string `json:"engine"`
		ID      string `json:"id"`
		curve.Check
		Age float64 `json:"age_seconds"`
		// WithoutKnee are the classes that serve counts no load of.
		WithoutKnee []string       `json:"classes_without_knee,omitempty"`
		Identity    curve.Identity `json:"live_identity"`
	}{1, r.path, r.url, r.curve.ID, r.check, r.check.Age.Seconds(), r.curve.Uncounted(), r.live})
}
