//go:build unix

package sidecar_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"headroom_exporter/sidecar"
)

// A pipe that nobody writes to is refused instead of waited for, and does not
// keep the file that takes its place from being read.
func TestCurveFileThatIsAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "curve.json")
	pipe := func() {
		t.Helper()
		if err := syscall.Mkfifo(path, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pipe()
	const refused = "not a regular file"
	if _, err := sidecar.OpenCurveFile(path, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), path+": "+refused) {
		t.Fatalf("at the start: %v", err)
	}
	remove := func() {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	write(t, path, written(t, "first"))
	synctest.Test(t, func(t *testing.T) {
		f, err := sidecar.OpenCurveFile(path, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()
		remove()
		pipe()
		time.Sleep(6 * time.Second)
		synctest.Wait()
		checkLoaded(t, f, "first", refused)
		if err := f.Reload(); err == nil || !strings.Contains(err.Error(), refused) {
			t.Errorf("on demand: %v", err)
		}
		remove()
		write(t, path, written(t, "second"))
		time.Sleep(6 * time.Second)
		synctest.Wait()
		checkLoaded(t, f, "second", "")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
