package main

import (
	"bytes"
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

// TestInputsKept: no command writes over what it reads, by whatever name and with force.
func TestInputsKept(t *testing.T) {
	example, err := os.ReadFile(filepath.Join("capacity", "curve", "testdata", "example.json"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	base, link, hard := filepath.Join(dir, "base.json"), filepath.Join(dir, "link.json"), filepath.Join(dir, "hard.json")
	if err := os.WriteFile(base, example, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(base, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(base, hard); err != nil {
		t.Fatal(err)
	}
	again := filepath.Join(dir, "..", filepath.Base(dir), "base.json")
	for _, args := range [][]string{
		{"curve", "compare", base, base, "--out.json=" + base},
		{"curve", "compare", base, base, "--out.markdown=" + again},
		{"curve", "compare", link, link, "--out.json=" + base},
		{"curve", "compare", base, base, "--out.json=" + link},
		{"curve", "compare", base, base, "--out.json=" + hard},
		{"curve", "compare", base, base, "--base-again=" + hard, "--new-again=" + base, "--out.json=" + hard},
		{"curve", "import", base, "--slo=ttft:p99:1s", "--out.curve=" + base},
		{"profile", base, "--trace.format=azure", "--out.classes=" + base},
		{"profile", base, "--trace.format=azure", "--out.report=" + link},
		{"probe", "--classes.file=" + base, "--out.curve=" + base},
		{"probe", "--rate=1", "--classes.file=" + base, "--out.results=" + base},
		{"probe", "--trace.file=" + base, "--trace.format=azure", "--out.records=" + hard},
		{"probe", "--classes.file=" + base, "--out.report=" + link},
	} {
		var out, errOut bytes.Buffer
		status := run(t.Context(), append(args, "--force"), &out, &errOut)
		if said := errOut.String(); status != exitUsage || !strings.Contains(said, "which this command reads: give another name") || !strings.Contains(said, "--out.") || strings.Count(said, "\n") != 1 {
			t.Errorf("%q: status %d, %s", args, status, said)
		}
		if left, err := os.ReadFile(base); err != nil || !bytes.Equal(left, example) {
			t.Fatalf("%q: the file was changed (%v)", args, err)
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
