// Package alerts holds the alerting rules for the Prometheus server that
// scrapes the exporters. They read what the exporters publish and what the
// fleet rules record; docs/alerts.md lists them.
package alerts

import (
	"embed"
	"io/fs"
)

//go:generate go test -count=1 -run ^(TestManifests|TestDocumentation)$ . -update

//go:embed *.yml
var files embed.FS

// Files returns the rule files.
func Files() fs.FS { return files }
