package main

import (
	"context"
	"fmt"
	"io"

	"github.com/alecthomas/kingpin/v2"

	"headroom_exporter/dashboards"
)

// addExportDashboards adds to the command export, which addExportRules makes.
func addExportDashboards(app *kingpin.Application, _ *logFlags) (*kingpin.CmdClause, command) {
	c := app.GetCommand("export").Command("dashboards", "Write the Grafana dashboards as JSON, to be imported as they are.")
	dir := c.Arg("dir", "Directory to write to; made if need be.").Required().String()
	return c, func(_ context.Context, out io.Writer) error {
		paths, err := dashboards.Export(*dir)
		if err != nil {
			return err
		}
		for _, path := range paths {
			fmt.Fprintln(out, path)
		}
		return nil
	}
}
