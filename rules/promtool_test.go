package rules

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// promtool finds the tool where `make` builds it, or on the path.
func promtool(t *testing.T) string {
	t.Helper()
	built, err := filepath.Abs(filepath.Join("..", "e2e", "bin", "promtool"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{built, "promtool"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("promtool is not installed; make e2e builds it into e2e/bin")
	return ""
}

// The shipped files pass promtool's checks and their unit tests, and each file
// has unit tests.
func TestPromtool(t *testing.T) {
	tool := promtool(t)
	files, err := filepath.Glob(filepath.Join("sidecar", "*.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var tests []string
	for _, f := range files {
		name := filepath.Base(f)
		tests = append(tests, filepath.Join("sidecar", "tests", name[:len(name)-len(".yml")]+"_test.yml"))
	}
	for _, args := range [][]string{
		append([]string{"check", "rules", "--lint=all", "--lint-fatal"}, files...),
		append([]string{"test", "rules"}, tests...),
	} {
		if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args[:2], err, out)
		}
	}
}
