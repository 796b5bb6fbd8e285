// Package dashboards holds the Grafana dashboards, as Grafana imports them.
// They are written by the program in generate; what a person changes in them by
// hand is lost.
package dashboards

import (
	"embed"
	"io/fs"
)

//go:generate go -C generate run . ..

//go:embed *.json
var files embed.FS

// Files returns the dashboards.
func Files() fs.FS { return files }
