package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExport(t *testing.T) {
	for _, test := range []struct {
		args []string
		path string
		says string
	}{
		{[]string{"export", "rules"}, "sidecar/load.yml", "headroom_mean_ratio"},
		{[]string{"export", "rules", "--fleet"}, "fleet/pools.yml", "pool:headroom_replicas:count"},
		{[]string{"export", "alerts"}, "alerts/headroom.yml", "runbook_url: docs/runbooks/HeadroomLow.md"},
		{[]string{"export", "alerts", "--runbooks.url=https://wiki.example/headroom/"}, "alerts/headroom.yml", "runbook_url: https://wiki.example/headroom/HeadroomLow.md"},
	} {
		dir := filepath.Join(t.TempDir(), "new")
		var out, errOut bytes.Buffer
		if status := run(context.Background(), append(test.args, dir), &out, &errOut); status != exitOK {
			t.Fatalf("%v: status %d: %s", test.args, status, &errOut)
		}
		path := filepath.Join(dir, filepath.FromSlash(test.path))
		if content, err := os.ReadFile(path); err != nil || !strings.Contains(string(content), test.says) {
			t.Errorf("%v wrote %q, %v, want %q in it", test.args, content, err, test.says)
		}
		if !strings.Contains(out.String(), path+"\n") {
			t.Errorf("%v says %q, want the path %s", test.args, &out, path)
		}
		for line := range strings.Lines(out.String()) {
			if content, err := os.ReadFile(strings.TrimSpace(line)); err != nil || strings.Contains(strings.Join(test.args, " "), "runbooks.url") && bytes.Contains(content, []byte("url: docs/")) {
				t.Errorf("%v: %s: %v", test.args, line, err)
			}
		}
	}
	var out, errOut bytes.Buffer
	if status := run(context.Background(), []string{"export", "alerts", filepath.Join(t.TempDir(), "no\x00folder")}, &out, &errOut); status != exitFailed || !strings.Contains(errOut.String(), "exporting files") {
		t.Errorf("a bad folder: status %d, %q", status, &errOut)
	}
}
