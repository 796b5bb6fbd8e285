package main

import (
	"context"
	"io"

	"github.com/alecthomas/kingpin/v2"

	"headroom_exporter/dashboards"
)

// addExportDashboards adds to the command export, which addExportRules makes.
func addExportDashboards(app *kingpin.Application, _ *logFlags) (*kingpin.CmdClause, command) {
	c := app.GetCommand("export").Command("dashboards", "Write the Grafana dashboards as JSON, to be imported as they are.")
	to := addExportTarget(c)
	return c, func(_ context.Context, out io.Writer) error {
		return to.write(out, dashboards.Files(), "", nil)
	}
}
