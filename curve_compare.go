package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/alecthomas/kingpin/v2"

	"headroom_exporter/capacity/curve"
)

// compareFlags are the flags of curve compare.
type compareFlags struct {
	base, next           string
	baseAgain, nextAgain string
	options              curve.GateOptions
	output               string
	markdown, json       string
	force                bool
}

func addCurveCompare(app *kingpin.Application, _ *logFlags) (*kingpin.CmdClause, command) {
	c := curveCommand(app).Command("compare", "Release gate: is the new curve worse than the base? Exit status 0 no, 1 yes, 2 not comparable.")
	f := &compareFlags{}
	c.Arg("base", "Curve file of what is in production; - is standard input.").Required().StringVar(&f.base)
	c.Arg("new", "Curve file of what is to be released; - is standard input.").Required().StringVar(&f.next)
	c.Flag("base-again", "The base measured once more, after both of the new one (order base, new, new, base), so that drift cancels; needs --new-again.").StringVar(&f.baseAgain)
	c.Flag("new-again", "The new one measured once more, right after the first time; needs --base-again.").StringVar(&f.nextAgain)
	c.Flag("band", "Smallest relative difference that is not noise; A/A runs and repetitions widen it.").Default("0.05").Float64Var(&f.options.Band)
	c.Flag("strict", "Fail too when something is undecided.").BoolVar(&f.options.Strict)
	c.Flag("allow-different-workload", "Compare although the classes or the seed differ.").BoolVar(&f.options.AllowDifferentWorkload)
	c.Flag("out.markdown", "File for the comparison as Markdown.").StringVar(&f.markdown)
	c.Flag("out.json", "File for the comparison as JSON, with all rows.").StringVar(&f.json)
	c.Flag("force", "Replace files that exist.").BoolVar(&f.force)
	c.Flag("output", "Format of what is printed: text, markdown or json.").Short('o').Default("text").EnumVar(&f.output, "text", "markdown", "json")
	return c, func(_ context.Context, out io.Writer) error { return f.run(out) }
}

func (f *compareFlags) run(out io.Writer) error {
	switch {
	case (f.baseAgain == "") != (f.nextAgain == ""):
		return usageError{errors.New("--base-again and --new-again are needed together")}
	case !(f.options.Band > 0 && f.options.Band < 1):
		return usageError{fmt.Errorf("--band is %g: want a ratio above 0 and below 1, such as 0.05", f.options.Band)}
	}
	inputs := []string{f.base, f.next, f.baseAgain, f.nextAgain}
	if err := inputOnce(inputs); err != nil {
		return usageError{err}
	}
	if err := inputsKept(inputs, namedOutput{"--out.markdown", f.markdown}, namedOutput{"--out.json", f.json}); err != nil {
		return usageError{err}
	}
	if err := outputsReady(f.force, f.markdown, f.json); err != nil {
		return usageError{err}
	}
	base, err := readCurves(f.base, f.baseAgain)
	if err != nil {
		return usageError{err}
	}
	next, err := readCurves(f.next, f.nextAgain)
	if err != nil {
		return usageError{err}
	}
	comparison := curve.ReleaseGate(base, next, f.options)
	for _, file := range []struct {
		path  string
		write func(io.Writer) error
	}{{f.markdown, comparison.WriteMarkdown}, {f.json, comparison.WriteJSON}} {
		if file.path != "" {
			if err := writeOutput(file.path, f.force, file.write); err != nil {
				return err
			}
		}
	}
	print := map[string]func(io.Writer) error{
		"text": comparison.WriteText, "markdown": comparison.WriteMarkdown, "json": comparison.WriteJSON,
	}[f.output]
	if err := print(out); err != nil {
		return fmt.Errorf("printing the comparison: %w", err)
	}
	switch comparison.Outcome {
	case curve.Passed:
		return nil
	case curve.NotComparable:
		return usageError{errors.New(comparison.Summary())}
	}
	return fmt.Errorf("release gate: %s", comparison.Summary())
}

// readCurves reads a curve file, and its repetition where there is one.
func readCurves(paths ...string) ([]*curve.Curve, error) {
	var curves []*curve.Curve
	for _, path := range paths {
		if path == "" {
			continue
		}
		c, err := readCurve(path)
		if err != nil {
			return nil, err
		}
		curves = append(curves, c)
	}
	return curves, nil
}
