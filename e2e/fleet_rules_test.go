package e2e

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// promtool accepts the fleet rules and the alerts that the product exports, and
// their unit tests pass on the files that they are exported from.
func TestPromtoolAcceptsFleetRulesAndAlerts(t *testing.T) {
	t.Parallel()
	promtool := tool(t, "promtool")
	dir := t.TempDir()
	for _, args := range [][]string{{"export", "rules", "--fleet", dir}, {"export", "alerts", dir}} {
		if p, status := runToEnd(t, nil, args...); status != 0 {
			t.Fatalf("%v: status %d: %s", args, status, &p.stderr)
		}
	}
	files := func(patterns ...string) (all []string) {
		for _, pattern := range patterns {
			found, err := filepath.Glob(pattern)
			if err != nil || len(found) == 0 {
				t.Fatalf("nothing in %s (%v)", pattern, err)
			}
			all = append(all, found...)
		}
		return all
	}
	for _, args := range [][]string{
		slices.Concat([]string{"check", "rules", "--lint=all", "--lint-fatal"}, files(filepath.Join(dir, "fleet/*.yml"), filepath.Join(dir, "alerts/*.yml"))),
		slices.Concat([]string{"test", "rules"}, files("../rules/fleet/tests/*.yml", "../alerts/tests/*.yml")),
	} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args[:2], err, out)
		}
	}
}
