// Package dashboards holds the Grafana dashboards, as Grafana imports them.
// They are written by the program in generate; what a person changes in them by
// hand is lost.
package dashboards

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

//go:generate go -C generate run . ..

//go:embed *.json
var files embed.FS

// Export writes the dashboards under dir, which is made if need be, and returns
// the paths written. A file that exists is replaced.
func Export(dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("exporting dashboards: %w", err)
	}
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return nil, fmt.Errorf("reading the built-in dashboards: %w", err)
	}
	var written []string
	for _, e := range entries {
		content, err := files.ReadFile(e.Name())
		if err != nil {
			return written, fmt.Errorf("reading the built-in dashboard %s: %w", e.Name(), err)
		}
		path := filepath.Join(dir, e.Name())
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return written, fmt.Errorf("exporting dashboards: %w", err)
		}
		written = append(written, path)
	}
	return written, nil
}
