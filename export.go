package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/alecthomas/kingpin/v2"

	"headroom_exporter/alerts"
	"headroom_exporter/rules"
	"headroom_exporter/rules/fleet"
)

func addExportRules(app *kingpin.Application, _ *logFlags) (*kingpin.CmdClause, command) {
	c := app.Command("export", "Write files that are built in.").Command("rules", "Write the recording rules that the sidecar evaluates, as Prometheus rule files.")
	ofFleet := c.Flag("fleet", "Write the recording rules for the Prometheus server that scrapes the exporters instead.").Bool()
	to := addExportTarget(c)
	return c, func(_ context.Context, out io.Writer) error {
		if *ofFleet {
			return to.write(out, fleet.Files(), "fleet", nil)
		}
		return to.write(out, rules.Files(), "sidecar", nil)
	}
}

// runbooks is where alerts say that their runbooks are: in this repository.
const runbooks = "docs/runbooks/"

// addExportAlerts adds to the command export, which addExportRules makes.
func addExportAlerts(app *kingpin.Application, _ *logFlags) (*kingpin.CmdClause, command) {
	c := app.GetCommand("export").Command("alerts", "Write the alerting rules for the Prometheus server that scrapes the exporters.")
	at := c.Flag("runbooks.url", "Where your copy of docs/runbooks is served, for the links in the alerts; without it they name the file in this project's repository.").PlaceHolder("URL").String()
	to := addExportTarget(c)
	return c, func(_ context.Context, out io.Writer) error {
		if err := checkRunbooks(*at); err != nil {
			return usageError{err}
		}
		return to.write(out, alerts.Files(), "alerts", func(content []byte) []byte {
			if *at == "" {
				return content
			}
			return bytes.ReplaceAll(content, []byte("runbook_url: "+runbooks), []byte("runbook_url: "+strings.TrimSuffix(*at, "/")+"/"))
		})
	}
}

// checkRunbooks says whether links may begin with a text; empty is none given.
// It becomes a plain scalar of YAML, in which white space may end it.
func checkRunbooks(at string) error {
	if at == "" {
		return nil
	}
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.ContainsFunc(at, unicode.IsSpace) {
		return fmt.Errorf("--runbooks.url %q: want an address to begin links with, such as https://wiki.example/headroom", at)
	}
	return nil
}

// exportTarget is where built-in files are written to.
type exportTarget struct {
	dir   string
	force bool
}

func addExportTarget(c *kingpin.CmdClause) *exportTarget {
	to := &exportTarget{}
	c.Flag("force", "Replace files that exist and differ.").BoolVar(&to.force)
	c.Arg("dir", "Directory to write to; made if need be.").Required().StringVar(&to.dir)
	return to
}

// write writes the files into a folder of the directory, each as change makes
// it, and prints their paths. A file that is there already with the same
// content stays as it is; one with another is replaced by force only, and
// without it nothing is written.
func (to *exportTarget) write(out io.Writer, files fs.FS, folder string, change func([]byte) []byte) error {
	if to.dir == "" {
		return usageError{errors.New("the directory to write to is empty: give its path, or . for this one")}
	}
	if info, err := os.Stat(to.dir); err == nil && !info.IsDir() {
		return usageError{fmt.Errorf("writing to %s: it is a file; give the path of a directory, which is made if need be", to.dir)}
	}
	contents, err := readFiles(files, change)
	if err != nil {
		return err
	}
	dir := filepath.Join(to.dir, folder)
	var changed []string
	names := slices.Sorted(maps.Keys(contents))
	for _, name := range names {
		path := filepath.Join(dir, name)
		there, err := os.ReadFile(path)
		switch {
		case err == nil && bytes.Equal(there, contents[name]):
			continue
		case err == nil && !to.force:
			return usageError{fmt.Errorf("writing %s: the file exists and differs: give another directory, or --force to replace it", path)}
		}
		changed = append(changed, name)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("exporting files: %w; give a directory that is there, or that can be made", err)
	}
	for _, name := range changed {
		err := writeOutput(filepath.Join(dir, name), to.force, func(w io.Writer) error {
			_, err := w.Write(contents[name])
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, name := range names {
		fmt.Fprintln(out, filepath.Join(dir, name))
	}
	return nil
}

// readFiles returns the content of each of the files, as change makes it.
func readFiles(files fs.FS, change func([]byte) []byte) (map[string][]byte, error) {
	names, err := fs.Glob(files, "*")
	if err != nil {
		return nil, fmt.Errorf("listing the built-in files: %w", err)
	}
	contents := map[string][]byte{}
	for _, name := range names {
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("reading the built-in file %s: %w", name, err)
		}
		if change != nil {
			content = change(content)
		}
		contents[name] = content
	}
	return contents, nil
}
