package main

import (
	"context"
	"fmt"
	"io"

	"github.com/alecthomas/kingpin/v2"

	"headroom_exporter/rules"
)

func addExportRules(app *kingpin.Application, _ *logFlags) (*kingpin.CmdClause, command) {
	c := app.Command("export", "Write files that are built in.").Command("rules", "Write the recording rules that the sidecar evaluates, as Prometheus rule files.")
	dir := c.Arg("dir", "Directory to write to; made if need be.").Required().String()
	return c, func(_ context.Context, out io.Writer) error {
		paths, err := rules.Export(*dir)
		if err != nil {
			return err
		}
		for _, path := range paths {
			fmt.Fprintln(out, path)
		}
		return nil
	}
}
