package sidecar_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/sidecar"
)

// written is the demo's curve of a model of this name, as a file's bytes.
func written(t *testing.T, model string) []byte {
	t.Helper()
	c, err := curve.ReadFile("../demo_curve.json")
	if err != nil {
		t.Fatal(err)
	}
	c.Identity.Model = model
	c.ID = c.Identity.ID()
	var b bytes.Buffer
	if err := c.Encode(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCurveFileIsFollowed(t *testing.T) {
	first, second := written(t, "first"), written(t, "second")
	for _, test := range []struct {
		name string
		// change the file after the curve of the model "first" was read of it.
		change func(t *testing.T, dir, path string)
		// model that is in force then, and whether the file is at fault.
		model string
		fault string
	}{
		{"written again", func(t *testing.T, _, path string) { write(t, path, second) }, "second", ""},
		{"moved over", func(t *testing.T, dir, path string) {
			write(t, filepath.Join(dir, "new"), second)
			if err := os.Rename(filepath.Join(dir, "new"), path); err != nil {
				t.Fatal(err)
			}
		}, "second", ""},
		{"a bad one", func(t *testing.T, _, path string) { write(t, path, []byte(`{"schema": "capacity-curve/v1",`)) }, "first", "reading the curve"},
		{"of another form", func(t *testing.T, _, path string) {
			write(t, path, bytes.Replace(second, []byte(`"peak_reserve_ratio"`), []byte(`"peak_reserve"`), 1))
		}, "first", "peak_reserve"},
		{"gone", func(t *testing.T, _, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, "first", "no such file"},
		{"a bad one, then a good one", func(t *testing.T, _, path string) {
			write(t, path, []byte("{"))
			time.Sleep(11 * time.Second)
			write(t, path, second)
		}, "second", ""},
		{"a device", func(t *testing.T, dir, path string) {
			if err := os.Symlink(os.DevNull, filepath.Join(dir, "new")); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(dir, "new"), path); err != nil {
				t.Fatal(err)
			}
		}, "first", "not a regular file"},
		// As with permissions, nothing in the file's size and time tells that it can be read now.
		{"a bad one, mended without a trace", func(t *testing.T, _, path string) {
			write(t, path, bytes.Repeat([]byte(" "), len(second)))
			bad, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(6 * time.Second)
			write(t, path, second)
			if err := os.Chtimes(path, bad.ModTime(), bad.ModTime()); err != nil {
				t.Fatal(err)
			}
		}, "second", ""},
		{"left alone", func(*testing.T, string, string) {}, "first", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "curve.json")
			write(t, path, first)
			synctest.Test(t, func(t *testing.T) {
				f, err := sidecar.OpenCurveFile(path, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- f.Run(ctx) }()
				test.change(t, dir, path)
				time.Sleep(11 * time.Second)
				synctest.Wait()
				checkLoaded(t, f, test.model, test.fault)
				// On demand it says the same.
				if err := f.Reload(); (err != nil) != (test.fault != "") {
					t.Errorf("reloading on demand: %v", err)
				}
				checkLoaded(t, f, test.model, test.fault)
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func checkLoaded(t *testing.T, f *sidecar.CurveFile, model, fault string) {
	t.Helper()
	loaded := f.Current()
	if got := loaded.Curve.Identity.Model; got != model {
		t.Errorf("the curve of %s is in force, want that of %s", got, model)
	}
	if fault == "" && loaded.Err != nil || fault != "" && (loaded.Err == nil || !strings.Contains(loaded.Err.Error(), fault)) {
		t.Errorf("error %v, want %q", loaded.Err, fault)
	}
	if loaded.Err != nil && strings.Contains(loaded.Err.Error(), "\n") {
		t.Errorf("more than a line: %v", loaded.Err)
	}
}

// A ConfigMap is changed by a link that is put in another's place.
func TestCurveFileBehindALink(t *testing.T) {
	dir := t.TempDir()
	for _, version := range []string{"1", "2"} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version, "curve.json"), written(t, "model-"+version))
	}
	link := func(version string) {
		t.Helper()
		if err := os.Symlink(version, filepath.Join(dir, "next")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	link("1")
	path := filepath.Join(dir, "curve.json")
	if err := os.Symlink(filepath.Join("..data", "curve.json"), path); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		f, err := sidecar.OpenCurveFile(path, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = f.Run(t.Context()) }()
		checkLoaded(t, f, "model-1", "")
		link("2")
		time.Sleep(6 * time.Second)
		synctest.Wait()
		checkLoaded(t, f, "model-2", "")
	})
}

// What goes wrong again and again is logged once.
func TestCurveFileLogsChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "curve.json")
	write(t, path, written(t, "first"))
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f, err := sidecar.OpenCurveFile(path, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()
		synctest.Wait() // A file that is half written would be another error.
		write(t, path, []byte("{"))
		time.Sleep(time.Minute)
		write(t, path, written(t, "second"))
		time.Sleep(time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		var levels []string
		for line := range strings.Lines(log.String()) {
			_, level, _ := strings.Cut(line, "level=")
			level, _, _ = strings.Cut(level, " ")
			levels = append(levels, level)
		}
		if got := strings.Join(levels, " "); got != "INFO ERROR INFO" || !strings.Contains(log.String(), "model=first") || !strings.Contains(log.String(), "model=second") {
			t.Errorf("levels %s in:\n%s", got, &log)
		}
	})
}

func TestCurveFileThatCannotBeRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "curve.json")
	if _, err := sidecar.OpenCurveFile(path, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that is not there: %v", err)
	}
	write(t, path, []byte("[]"))
	if _, err := sidecar.OpenCurveFile(path, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that is no curve: %v", err)
	}
}
