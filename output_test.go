package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
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
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(os.DevNull, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{folder, os.DevNull, link, standardInput} {
		if err := writeOutput(path, true, text("x")); err == nil || !strings.Contains(err.Error(), "writing "+path+": it is ") {
			t.Errorf("%s is written over: %v", path, err)
		}
	}
	// What cannot be written is named as it was given.
	none := filepath.Join(folder, "none", "x")
	want := "writing " + none + ": no such file or directory"
	for what, err := range map[string]error{
		"writing": writeOutput(none, false, text("x")), "asking ahead": outputsReady(false, none),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", what, err, want)
		}
	}
}

func TestOutputsDistinct(t *testing.T) {
	absolute, err := filepath.Abs("a")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		first, second string
		ok            bool
	}{
		{"a", "b", true},
		{"", "", true},
		{"a", "a", false},
		{"a", "./x/../a", false},
		{"a", absolute, false},
	} {
		err := outputsDistinct(namedOutput{"--out.x", test.first}, namedOutput{"--out.y", test.second})
		if (err == nil) != test.ok || err != nil && !(strings.Contains(err.Error(), "--out.x") && strings.Contains(err.Error(), "--out.y")) {
			t.Errorf("%q and %q: %v", test.first, test.second, err)
		}
	}
}
