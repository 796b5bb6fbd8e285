// Package fleet holds the recording rules for the Prometheus server that
// scrapes the exporters: pools, losses they can take, forecasts and the number
// of replicas they need. docs/fleet.md says what they read and record.
package fleet

import (
	"embed"
	"io/fs"
)

//go:embed *.yml
var files embed.FS

// Files returns the rule files.
func Files() fs.FS { return files }
