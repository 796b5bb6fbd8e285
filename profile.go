package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"

	"headroom_exporter/probe/workload/profile"
)

func addProfile(app *kingpin.Application, _ *logFlags) (*kingpin.CmdClause, command) {
	c := app.Command("profile", "Turn recorded traffic into the workload classes that a probe sends, and a page that shows them.")
	trace := addTraceFlags(c)
	var path, by, classesFile, report string
	var force bool
	o := profile.Options{Tool: strings.TrimSpace(name + " " + version.Version)}
	c.Arg("trace", "File with the recorded traffic; - is standard input.").Required().StringVar(&path)
	c.Flag("by", "What makes a class: "+strings.Join(profile.Ways, ", ")+". auto takes those of scenario, tenant and model that differ, else lengths at least a factor of two apart.").
		Default(string(profile.Auto)).EnumVar(&by, profile.Ways...)
	c.Flag("max-classes", "Most classes; each costs a probe some 20 minutes.").Default("4").IntVar(&o.MaxClasses)
	c.Flag("max-model-len", "Context length, up to which the engine's length histograms have buckets; as the trace needs when 0.").Default("0").IntVar(&o.MaxModelLen)
	c.Flag("seed", "Seed that spreads timestamps that lie on a grid.").Default("1").Uint64Var(&o.Seed)
	c.Flag("out.classes", "Classes file to write (JSON).").Default("workload-classes.json").StringVar(&classesFile)
	c.Flag("out.report", "Page to write (HTML, needs nothing else).").Default("workload-profile.html").StringVar(&report)
	c.Flag("force", "Replace files that exist.").BoolVar(&force)
	return c, func(_ context.Context, out io.Writer) error {
		if err := inputsKept([]string{path}, namedOutput{"--out.classes", classesFile}, namedOutput{"--out.report", report}); err != nil {
			return usageError{err}
		}
		if err := outputsReady(force, classesFile, report); err != nil {
			return usageError{err}
		}
		read, sum, err := trace.read(path)
		if err != nil {
			return err
		}
		o.Name, o.SHA256, o.By = filepath.Base(path), sum, profile.By(by)
		p, err := profile.Of(read, o)
		if err != nil {
			return usageError{fmt.Errorf("%s: %w", path, err)}
		}
		if err := writeOutput(classesFile, force, p.File.Encode); err != nil {
			return err
		}
		if err := writeOutput(report, force, func(w io.Writer) error { return p.WritePage(w, classesFile) }); err != nil {
			return err
		}
		return printProfile(out, p, classesFile, report)
	}
}

// printProfile writes the classes as a table.
func printProfile(out io.Writer, p *profile.Profile, files ...string) error {
	s := p.Statistics
	all := p.File.Trace.Observed
	fmt.Fprintf(out, "%d requests in %.0f s: %.3g/s, peak minute %s times the mean, CV of the gaps %s, burstiness %s\n\n",
		s.Requests, s.Span.Seconds(), s.Rate, known("%.2f", all.PeakToMean60s), known("%.2f", all.GapCV), known("%.2f", all.Burstiness))
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "class\trequests\tof requests\tof tokens\tprompt mean\tp99\toutput mean\tp99\tburstiness\tpeak/mean\tseen before\t\n")
	for i := range p.File.Classes {
		c, l := &p.File.Classes[i], &p.Classes[i]
		fmt.Fprintf(table, "%s\t%d\t%.1f %%\t%.1f %%\t%.0f\t%.0f\t%.0f\t%.0f\t%s\t%s\t%s\t\n", c.Name, l.Requests, 100*c.Weight, 100*p.TokenShare[i],
			l.Prompt.Mean, l.Prompt.P99, l.Output.Mean, l.Output.P99,
			known("%.2f", c.Observed.Burstiness), known("%.2f", c.Observed.PeakToMean60s), known("%.3f", c.Observed.PrefixHitRatio))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, note := range p.File.Notes {
		fmt.Fprintf(out, "\nNote: %s", note)
	}
	_, err := fmt.Fprintf(out, "\nWritten: %s\n", strings.Join(files, ", "))
	return err
}

// known writes a number, or a dash when it is not known.
func known(format string, x *float64) string {
	if x == nil {
		return "-"
	}
	return fmt.Sprintf(format, *x)
}
