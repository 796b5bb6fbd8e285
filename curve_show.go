package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/report"
)

// pipeWidth is how wide a picture is where no terminal says.
const pipeWidth = 100

func addCurveShow(app *kingpin.Application, _ *logFlags) (*kingpin.CmdClause, command) {
	c := curveCommand(app).Command("show", "Show a curve file: what it was measured on, safe rates, knees, a picture, and what it rests on.")
	path := c.Arg("file", "Curve file; - is standard input.").Required().String()
	output := c.Flag("output", "Format: text, json, markdown or html.").Short('o').Default("text").Enum("text", "json", "markdown", "html")
	return c, func(_ context.Context, out io.Writer) error {
		found, err := readCurve(*path)
		if err != nil {
			return usageError{err}
		}
		width, ok := terminalWidth(os.Stdout)
		if !ok {
			width = pipeWidth
		}
		show := map[string]func(io.Writer, *curve.Curve) error{
			"text":     func(w io.Writer, c *curve.Curve) error { return report.Terminal(w, c, width) },
			"json":     func(w io.Writer, c *curve.Curve) error { return c.Encode(w) },
			"markdown": report.Markdown, "html": report.HTML,
		}[*output]
		if err := show(out, found); err != nil {
			return fmt.Errorf("showing %s: %w", *path, err)
		}
		if found.Future(time.Now()) {
			return fmt.Errorf("%s: %s", *path, futureText(found))
		}
		return nil
	}
}

func addCurveSchema(app *kingpin.Application, _ *logFlags) (*kingpin.CmdClause, command) {
	c := curveCommand(app).Command("schema", "Print the JSON Schema of curve files.")
	return c, func(_ context.Context, out io.Writer) error {
		_, err := out.Write(curve.JSONSchema)
		return err
	}
}
