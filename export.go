package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kingpin/v2"

	"headroom_exporter/alerts"
	"headroom_exporter/rules"
	"headroom_exporter/rules/fleet"
)

func addExportRules(app *kingpin.Application, _ *logFlags) (*kingpin.CmdClause, command) {
	c := app.Command("export", "Write files that are built in.").Command("rules", "Write the recording rules that the sidecar evaluates, as Prometheus rule files.")
	ofFleet := c.Flag("fleet", "Write the recording rules for the Prometheus server that scrapes the exporters instead.").Bool()
	dir := c.Arg("dir", "Directory to write to; made if need be.").Required().String()
	return c, func(_ context.Context, out io.Writer) error {
		if *ofFleet {
			return exportFiles(out, fleet.Files(), filepath.Join(*dir, "fleet"), nil)
		}
		paths, err := rules.Export(*dir)
		if err != nil {
			return err
		}
		for _, path := range paths {
			fmt.Fprintln(out, path)
		}
		return nil
	}
}

// runbooks is where alerts say that their runbooks are: in this repository.
const runbooks = "docs/runbooks/"

// addExportAlerts adds to the command export, which addExportRules makes.
func addExportAlerts(app *kingpin.Application, _ *logFlags) (*kingpin.CmdClause, command) {
	c := app.GetCommand("export").Command("alerts", "Write the alerting rules for the Prometheus server that scrapes the exporters.")
	url := c.Flag("runbooks.url", "Where your copy of docs/runbooks is served, for the links in the alerts.").PlaceHolder("URL").String()
	dir := c.Arg("dir", "Directory to write to; made if need be.").Required().String()
	return c, func(_ context.Context, out io.Writer) error {
		return exportFiles(out, alerts.Files(), filepath.Join(*dir, "alerts"), func(content []byte) []byte {
			if *url == "" {
				return content
			}
			return bytes.ReplaceAll(content, []byte("runbook_url: "+runbooks), []byte("runbook_url: "+strings.TrimSuffix(*url, "/")+"/"))
		})
	}
}

// exportFiles writes the files into dir, which is made if need be, each as
// change makes it, and prints their paths. A file that exists is replaced.
func exportFiles(out io.Writer, files fs.FS, dir string, change func([]byte) []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("exporting files: %w", err)
	}
	names, err := fs.Glob(files, "*")
	if err != nil {
		return fmt.Errorf("listing the built-in files: %w", err)
	}
	for _, name := range names {
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return fmt.Errorf("reading the built-in file %s: %w", name, err)
		}
		if change != nil {
			content = change(content)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return fmt.Errorf("exporting files: %w", err)
		}
		fmt.Fprintln(out, path)
	}
	return nil
}
