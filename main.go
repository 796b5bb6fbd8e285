// headroom_exporter tells how much more load an LLM inference replica can
// take. This file and its neighbours map flags to validated configurations
// and wire the parts; they do nothing else.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"
)

const name = "headroom_exporter"

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitSafety = 3
)

// exitGrace is how long the program may take to end after a signal. Every
// part ends sooner; a file system that hangs may not.
const exitGrace = 10 * time.Second

// usageError is an error that the user can mend by calling differently.
type usageError struct{ error }

// safetyError is the error of a run that was aborted because it hurt others.
type safetyError struct{ error }

// command is one command of the program with its flags already read.
type command func(ctx context.Context, out io.Writer) error

func main() {
	if version.Version == "" {
		version.Version = "unreleased" // built without the flags of the Makefile
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Whatever hangs, a signal ends the program.
	context.AfterFunc(ctx, func() {
		time.Sleep(exitGrace)
		os.Exit(exitFailed)
	})
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run parses the arguments and runs the command they name. It returns the
// exit status.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	app := kingpin.New(name, "How much more load can an LLM inference replica take? A Prometheus exporter and sidecar.")
	app.Version(version.Print(name)).UsageWriter(out).ErrorWriter(errOut)
	app.HelpFlag.Short('h').NoEnvar()
	app.VersionFlag.NoEnvar()
	app.DefaultEnvars()
	// --help and --version end the parsing here instead of ending the process.
	exited := -1
	app.Terminate(func(status int) { exited = status })

	log := addLogFlags(app)
	commands := map[string]command{}
	for _, add := range []func(*kingpin.Application, *logFlags) (*kingpin.CmdClause, command){addServe, addDemo, addSimulate, addProbe, addNullServer, addProfile, addExportRules, addExportDashboards, addExportAlerts, addCurveShow, addCurveCheck, addCurveSchema, addCurveCompare, addCurveImport} {
		clause, run := add(app, log)
		commands[clause.FullCommand()] = run
	}

	args = withStandardInput(args)
	selected, err := app.Parse(args)
	if exited >= 0 {
		return exited
	}
	if err != nil {
		fmt.Fprintf(errOut, "%s: %s; try --help\n", name, explain(app, args, err))
		return exitUsage
	}
	if err := errors.Join(checkPaths(app, args), checkValues(app, selected)); err != nil {
		fmt.Fprintf(errOut, "%s: %s\n", name, oneLine(err))
		return exitUsage
	}
	err = commands[selected](ctx, out)
	var usage usageError
	var safety safetyError
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		// Ended as asked: by a signal or by --duration.
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(errOut, "%s: %s\n", name, oneLine(err))
		return exitUsage
	case errors.As(err, &safety):
		fmt.Fprintf(errOut, "%s: %s\n", name, oneLine(err))
		return exitSafety
	case errors.Is(err, errHeadroomUnknown):
		return exitFailed
	default:
		fmt.Fprintf(errOut, "%s: %s\n", name, oneLine(err))
		return exitFailed
	}
}

// oneLine joins the lines of an error that joins several.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
