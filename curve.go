package main

import "github.com/alecthomas/kingpin/v2"

// curveCommand is the parent of the commands that work on capacity curve files.
func curveCommand(app *kingpin.Application) *kingpin.CmdClause {
	if c := app.GetCommand("curve"); c != nil {
		return c
	}
	return app.Command("curve", "Capacity curve files: show, check against an engine, compare, import.")
}
