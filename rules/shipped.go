package rules

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// shipped are the rule files that are built in.
//
//go:embed sidecar/*.yml
var shipped embed.FS

// shippedFiles returns their names, sorted.
func shippedFiles() []string {
	// The pattern is constant and good, so there is no error to return.
	files, _ := fs.Glob(shipped, "sidecar/*.yml")
	slices.Sort(files)
	return files
}

// Export writes the shipped rule files under dir, which is made if need be,
// and returns the paths written. A file that exists is replaced.
func Export(dir string) ([]string, error) {
	var written []string
	for _, name := range shippedFiles() {
		content, err := shipped.ReadFile(name)
		if err != nil {
			return written, fmt.Errorf("reading the shipped rule file %s: %w", name, err)
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return written, fmt.Errorf("exporting rules: %w", err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return written, fmt.Errorf("exporting rules: %w", err)
		}
		written = append(written, path)
	}
	return written, nil
}
