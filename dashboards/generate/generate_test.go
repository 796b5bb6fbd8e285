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
	committed, err := filepath.Glob("../*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(committed) != len(all) {
		t.Errorf("%q are committed, and %d dashboards are generated", committed, len(all))
	}
	for _, b := range all {
		want, err := os.ReadFile(filepath.Join(dir, b.file()))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("..", b.file()))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("dashboards/%s is not what is generated: make generate writes it", b.file())
		}
	}
}
