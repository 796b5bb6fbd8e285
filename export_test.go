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
}

// TestExportKeeps: what a person changed is not lost, and nothing is written beside it.
func TestExportKeeps(t *testing.T) {
	for _, test := range []struct {
		args []string
		path string
	}{
		{[]string{"export", "rules"}, "sidecar/load.yml"},
		{[]string{"export", "rules", "--fleet"}, "fleet/pools.yml"},
		{[]string{"export", "alerts"}, "alerts/headroom.yml"},
		{[]string{"export", "dashboards"}, "replica.json"},
	} {
		dir := t.TempDir()
		export := func(more ...string) (int, string) {
			var out, errOut bytes.Buffer
			status := run(context.Background(), append(append(test.args, more...), dir), &out, &errOut)
			return status, errOut.String()
		}
		path := filepath.Join(dir, filepath.FromSlash(test.path))
		for range 2 { // the second time all is there already
			if status, said := export(); status != exitOK {
				t.Fatalf("%v: status %d: %s", test.args, status, said)
			}
		}
		shipped := read(t, path)
		if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		others, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range others {
			if other != path {
				if err := os.Remove(other); err != nil {
					t.Fatal(err)
				}
			}
		}
		if status, said := export(); status != exitUsage || !strings.Contains(said, path) || !strings.Contains(said, "--force") {
			t.Errorf("%v over a changed file: status %d: %s", test.args, status, said)
		}
		if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 || read(t, path) != "mine" {
			t.Errorf("%v over a changed file left %v, %v, with %q", test.args, left, err, read(t, path))
		}
		if status, said := export("--force"); status != exitOK || read(t, path) != shipped {
			t.Errorf("%v --force: status %d: %s", test.args, status, said)
		}
	}
}

// TestExportRunbooks: links that lead nowhere are not written.
func TestExportRunbooks(t *testing.T) {
	for _, at := range []string{"notaurl", "docs/runbooks", "ftp://wiki.example/", "https://", "https:/wiki.example", "wiki.example:80", "https://wiki.example/a b", "https://wiki.example/ #x", "https://wiki.example/%zz"} {
		dir := filepath.Join(t.TempDir(), "new")
		var out, errOut bytes.Buffer
		status := run(context.Background(), []string{"export", "alerts", "--runbooks.url=" + at, dir}, &out, &errOut)
		if status != exitUsage || !strings.Contains(errOut.String(), "--runbooks.url") || strings.Count(errOut.String(), "\n") != 1 {
			t.Errorf("%q: status %d, %q", at, status, &errOut)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%q: something was written", at)
		}
	}
}

func TestExportRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"rules", "alerts", "dashboards"} {
		for _, test := range []struct {
			dir    string
			status int
			want   string
		}{
			{"", exitUsage, "directory to write to is empty"},
			{file, exitUsage, "writing to " + file + ": it is a file; give the path of a directory"},
			{filepath.Join(file, "below"), exitFailed, "not a directory; give a directory that is there, or that can be made"},
			{filepath.Join(t.TempDir(), "no\x00folder"), exitFailed, "exporting files"},
		} {
			var out, errOut bytes.Buffer
			status := run(context.Background(), []string{"export", what, test.dir}, &out, &errOut)
			if status != test.status || !strings.Contains(errOut.String(), test.want) || strings.Count(errOut.String(), "\n") != 1 {
				t.Errorf("%s to %q: status %d, %q, want %d and %q", what, test.dir, status, &errOut, test.status, test.want)
			}
		}
	}
}
