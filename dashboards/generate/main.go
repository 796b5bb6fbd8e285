// generate writes the Grafana dashboards of this project as JSON. What it
// writes is committed; a test holds the two equal.
//
//	go run . DIR
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// boards are the dashboards that show metrics, in the order in which a person meets them.
var boards = []board{replica, fleet, probe, gpu}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: generate DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// write puts every dashboard into the folder.
func write(dir string) error {
	runbooks, pages, err := readRunbooks(runbookFolder)
	if err != nil {
		return err
	}
	for _, b := range append(slices.Clone(boards), runbooks) {
		text, err := b.json(pages)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, b.file()), text, 0o644); err != nil {
			return fmt.Errorf("writing a dashboard: %w", err)
		}
	}
	return nil
}

// json is the dashboard as Grafana imports it.
func (b board) json(pages pages) ([]byte, error) {
	built, err := b.build(pages)
	if err != nil {
		return nil, fmt.Errorf("building the dashboard %q: %w", b.title, err)
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // queries are full of < and >
	e.SetIndent("", "  ")
	if err := e.Encode(built); err != nil {
		return nil, fmt.Errorf("writing the dashboard %q as JSON: %w", b.title, err)
	}
	return text.Bytes(), nil
}
