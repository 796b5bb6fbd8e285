package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kingpin/v2"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/capacity/curve/importer"
	"headroom_exporter/collector/engine"
)

// engineTypes are those that are told apart.
var engineTypes = []engine.Type{
	engine.TypeVLLM, engine.TypeRay, engine.TypeSGLang, engine.TypeTRTLLM, engine.TypeTriton, engine.TypeTGI, engine.TypeLlamaCpp,
}

// importFlags are the flags of curve import.
type importFlags struct {
	files    []string
	from     string
	slos     []string
	identity *identityFlags
	options  importer.Options
	out      string
	force    bool
}

func addCurveImport(app *kingpin.Application, _ *logFlags) (*kingpin.CmdClause, command) {
	c := curveCommand(app).Command("import", "Make a curve of one class of the result files of another load generator; it is an estimate and marked as imported.")
	f := &importFlags{}
	c.Arg("files", "Result files of one tool, one class of traffic and one engine, at several request rates; - is standard input.").Required().StringsVar(&f.files)
	c.Flag("from", "Tool that wrote the files: "+strings.Join(importer.Formats, ", ")+"; told by their content when not given.").EnumVar(&f.from, importer.Formats...)
	c.Flag("slo", "Tail bound, METRIC:pPERCENTILE:BOUND such as ttft:p99:800ms; repeatable; the knee is where the first of them gives.").Required().StringsVar(&f.slos)
	c.Flag("class", "Name of the class of traffic.").Default("imported").StringVar(&f.options.Class)
	f.identity = addIdentityFlags(c)
	c.Flag("peak-reserve", "Share of the knee's lower bound that is kept for peaks.").Default("0.2").Float64Var(&f.options.PeakReserve)
	c.Flag("out.curve", "Curve file to write.").Default("capacity-curve.json").StringVar(&f.out)
	c.Flag("force", "Replace a file that exists.").BoolVar(&f.force)
	return c, func(_ context.Context, out io.Writer) error { return f.run(out) }
}

func (f *importFlags) run(out io.Writer) error {
	f.options.Format = importer.Format(f.from)
	if !(f.options.PeakReserve >= 0 && f.options.PeakReserve < 1) {
		return usageError{fmt.Errorf("--peak-reserve is %g: want a share of 0 or more and below 1, such as 0.2", f.options.PeakReserve)}
	}
	for _, text := range f.slos {
		slo, err := capacity.ParseSLO(text)
		if err != nil {
			return usageError{fmt.Errorf("--slo: %w", err)}
		}
		f.options.SLO = append(f.options.SLO, slo)
	}
	if err := f.identity.apply(&f.options.Identity); err != nil {
		return usageError{err}
	}
	if err := inputOnce(f.files); err != nil {
		return usageError{err}
	}
	if err := inputsKept(f.files, namedOutput{"--out.curve", f.out}); err != nil {
		return usageError{err}
	}
	if err := outputsReady(f.force, f.out); err != nil {
		return usageError{err}
	}
	c, err := importer.Import(f.files, f.options)
	if err != nil {
		return usageError{err}
	}
	if t := c.Identity.EngineType; t != "" && !slices.Contains(engineTypes, engine.Type(t)) {
		c.Notes = append(c.Notes, fmt.Sprintf("engine_type %s is none that is known here: no engine that is read is ever of it", t))
	}
	if err := writeOutput(f.out, f.force, c.Encode); err != nil {
		return err
	}
	return printImport(out, c, f.out)
}

// printImport writes what was found as a table.
func printImport(out io.Writer, c *curve.Curve, file string) error {
	class := &c.Classes[0]
	fmt.Fprintf(out, "%s, model %s: class %s, prompts of %.0f and outputs of %.0f tokens on average\n\n",
		c.ImportedFrom, c.Identity.Model, class.Name, class.PromptMean, class.GenerationMean)
	value := func(format string, v capacity.Value) string {
		if !v.Known() {
			return "-"
		}
		return fmt.Sprintf(format, float64(v))
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "arrivals\toffered/s\tcompleted/s\trequests\tfailed\tTTFT p99\tTPOT p99\tE2E p99\tpassed\t\n")
	for i := range class.Studies {
		s := &class.Studies[i]
		for j := range s.Points {
			p := &s.Points[j]
			offered, passed := value("%.3g", p.OfferedRate), "-"
			if p.Concurrency > 0 {
				offered = p.Name
			}
			switch {
			case p.Passed == nil:
			case *p.Passed:
				passed = "yes"
			default:
				passed = "no"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t\n", s.Arrivals, offered, value("%.3g", p.CompletedRate), p.Attempts, p.Failures,
				value("%.3gs", p.TTFT.P99), value("%.3gs", p.TPOT.P99), value("%.3gs", p.E2E.P99), passed)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range class.Studies {
		s := &class.Studies[i]
		if s.Knee == nil {
			fmt.Fprintf(out, "\n%s: no knee: %s\n", s.Arrivals, s.Reason)
			continue
		}
		fmt.Fprintf(out, "\n%s: knee %.3g requests/s, between %.3g and %.3g, by %s; watermark %.3g (an estimate)\n",
			s.Arrivals, float64(s.Knee.Rate), float64(s.Knee.Low), float64(s.Knee.High), s.Knee.BindingSLO, float64(s.Knee.Watermark))
	}
	for _, note := range c.Notes {
		fmt.Fprintf(out, "\nNote: %s", note)
	}
	_, err := fmt.Fprintf(out, "\nWritten: %s\n", file)
	return err
}
