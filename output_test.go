package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestWriteOutput(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "out.json")
	text := func(s string) func(io.Writer) error {
		return func(w io.Writer) error {
			_, err := io.WriteString(w, s)
			return err
		}
	}
	content := func(want string) {
		t.Helper()
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("the file holds %q, %v, want %q", got, err, want)
		}
		files, err := os.ReadDir(folder)
		if err != nil || len(files) != 1 {
			t.Errorf("the folder holds %v, %v", files, err)
		}
	}
	if err := writeOutput(path, false, text("one")); err != nil {
		t.Fatal(err)
	}
	content("one")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
	if err := writeOutput(path, false, text("two")); !errors.Is(err, errExists) {
		t.Errorf("writing over a file: %v", err)
	}
	content("one")
	if err := writeOutput(path, true, text("three")); err != nil {
		t.Fatal(err)
	}
	content("three")
	// What fails half way leaves the file that was there.
	broken := errors.New("broken")
	err := writeOutput(path, true, func(w io.Writer) error {
		io.WriteString(w, "half")
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("error is %v", err)
	}
	content("three")
	// A file that comes up while one writes stays.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	err = writeOutput(path, false, func(io.Writer) error { return os.WriteFile(path, []byte("other"), 0o600) })
	if !errors.Is(err, errExists) {
		t.Errorf("a file came up: %v", err)
	}
	content("other")
	if err := writeOutput(folder, true, text("x")); err == nil {
		t.Error("a folder is written over")
	}
	if err := writeOutput(filepath.Join(folder, "none", "x"), false, text("x")); err == nil {
		t.Error("a file in no folder is written")
	}
}
