package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kingpin/v2"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/knee"
)

// curveCommand is the parent of the commands that work on capacity curve files.
func curveCommand(app *kingpin.Application) *kingpin.CmdClause {
	if c := app.GetCommand("curve"); c != nil {
		return c
	}
	return app.Command("curve", "Capacity curve files: show, check against an engine, compare, import.")
}

// readCurve reads a curve file, or standard input. Of what a search left that
// did not end, the error says how to go on with it.
func readCurve(path string) (*curve.Curve, error) {
	switch path {
	case "":
		return nil, errors.New("the curve file has no name: give its path, or - for standard input")
	case standardInput:
		// Opened by its name it would be another one where it is a socket.
		c, err := curve.Decode(os.Stdin)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return c, nil
	}
	c, err := curve.ReadFile(path)
	if err != nil && isJournal(path) {
		return nil, fmt.Errorf("%s: this is what a search left that did not end, not a curve: the same probe command with --resume goes on with it and writes the curve", path)
	}
	return c, err
}

// inputOnce says whether standard input stands for one file at most: what was
// read of it is not there a second time.
func inputOnce(paths []string) error {
	n := 0
	for _, path := range paths {
		if path == standardInput {
			n++
		}
	}
	if n > 1 {
		return errors.New("- is given twice, and standard input can be read once: give a file's path for the other")
	}
	return nil
}

// isJournal tells whether a file begins as a search's journal does.
func isJournal(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	var h knee.JournalHeader
	return json.NewDecoder(io.LimitReader(file, 1<<20)).Decode(&h) == nil && h.Schema == knee.JournalSchema
}
