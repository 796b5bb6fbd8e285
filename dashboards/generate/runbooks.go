package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// runbookFolder holds a Markdown file for each alert that has one.
const runbookFolder = "../../docs/runbooks"

const runbooksUID = "headroom-runbooks"

// pages are the panels of the dashboard of runbooks, by name.
type pages map[string]uint32

// url leads to a runbook, on whatever Grafana the dashboards were imported into.
func (p pages) url(name string) string {
	return fmt.Sprintf("/d/%s?viewPanel=%d", runbooksUID, p[name])
}

// readRunbooks makes a dashboard of the runbooks, to which the panels of the
// others lead: so their links work wherever they are imported.
func readRunbooks(folder string) (board, pages, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.md"))
	if err != nil {
		return board{}, nil, fmt.Errorf("looking for runbooks: %w", err)
	}
	if len(paths) == 0 {
		return board{}, nil, fmt.Errorf("looking for runbooks: there are none in %s", folder)
	}
	b := board{
		uid: runbooksUID, title: "Headroom / Runbooks",
		description: "What each alert means, how to see it, what to do, and when it is false.",
	}
	known, all := pages{}, row{title: "Runbooks"}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return board{}, nil, fmt.Errorf("reading a runbook: %w", err)
		}
		name := strings.TrimSuffix(filepath.Base(path), ".md")
		heading, body, _ := strings.Cut(string(content), "\n")
		if heading != "# "+name {
			return board{}, nil, fmt.Errorf("reading the runbook %s: its first line is %q, want %q", path, heading, "# "+name)
		}
		all.panels = append(all.panels, panel{
			kind: words, title: name, description: "The runbook of " + name + ".", width: 12, height: 16, text: strings.TrimSpace(body),
		})
		known[name] = uint32(len(all.panels) + 1) // after the row's title
	}
	b.rows = []row{all}
	return b, known, nil
}
