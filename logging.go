package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/alecthomas/kingpin/v2"
	"github.com/go-kit/log"
	sloggokit "github.com/tjhop/slog-gokit"
)

// logFlags choose what is logged to standard error, and how.
type logFlags struct {
	level, format *string
}

func addLogFlags(app *kingpin.Application) *logFlags {
	return &logFlags{
		level:  app.Flag("log.level", "Only log messages of this severity or above: debug, info, warn or error.").Default("info").Enum("debug", "info", "warn", "error"),
		format: app.Flag("log.format", "Format of log messages: logfmt or json.").Default("logfmt").Enum("logfmt", "json"),
	}
}

// logger returns a structured logger that writes through go-kit/log.
func (f *logFlags) logger() (*slog.Logger, error) {
	var level slog.LevelVar
	if err := level.UnmarshalText([]byte(strings.ToUpper(*f.level))); err != nil {
		return nil, usageError{fmt.Errorf("--log.level: %w", err)}
	}
	out := log.NewSyncWriter(os.Stderr)
	sink := log.NewLogfmtLogger(out)
	if *f.format == "json" {
		sink = log.NewJSONLogger(out)
	}
	return slog.New(sloggokit.NewGoKitHandler(sink, &level)), nil
}
