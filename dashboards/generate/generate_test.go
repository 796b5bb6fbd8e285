package main

import (
	"os"
	"path/filepath"
	"testing"
)

// What is committed must be what is generated: make generate writes it.
func TestCommittedIsGenerated(t *testing.T) {
	dir := t.TempDir()
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	generated, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	committed, err := filepath.Glob("../*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(committed) != len(generated) {
		t.Errorf("%q are committed, and %d dashboards are generated", committed, len(generated))
	}
	for _, file := range generated {
		want, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("..", file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("dashboards/%s is not what is generated: make generate writes it, also after a change of docs/runbooks", file.Name())
		}
	}
}
