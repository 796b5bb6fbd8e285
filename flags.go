package main

import (
	"fmt"
	"os"

	"github.com/alecthomas/kingpin/v2"
	"github.com/dustin/go-humanize"
)

// culprit names the flag or environment variable whose value gave err, as a
// prefix for the error, because kingpin's errors about values name neither.
// It is empty when no value is at fault.
func culprit(app *kingpin.Application, args []string, err error) string {
	parsed, _ := app.ParseContext(args)
	if parsed == nil {
		return ""
	}
	for _, element := range parsed.Elements {
		flag, ok := element.Clause.(*kingpin.FlagClause)
		if ok && element.Value != nil && rejects(flag.Model(), *element.Value, err) {
			return "--" + flag.Model().Name + ": "
		}
	}
	flags := app.Model().Flags
	if parsed.SelectedCommand != nil {
		flags = append(flags, parsed.SelectedCommand.Model().Flags...)
	}
	for _, flag := range flags {
		if value := os.Getenv(flag.Envar); flag.Envar != "" && value != "" && rejects(flag, value, err) {
			return "$" + flag.Envar + ": "
		}
	}
	return ""
}

func rejects(flag *kingpin.FlagModel, value string, err error) bool {
	again := flag.Value.Set(value)
	return again != nil && again.Error() == err.Error()
}

// byteSize is a flag's value in bytes: plain, or with a decimal (GB) or
// binary (GiB) unit.
type byteSize float64

func (b *byteSize) Set(text string) error {
	n, err := humanize.ParseBytes(text)
	if err != nil {
		return fmt.Errorf("%q is no size: give bytes, or a number with a unit such as 16GB or 128KiB", text)
	}
	*b = byteSize(n)
	return nil
}

func (b *byteSize) String() string {
	if *b == 0 {
		return "0"
	}
	return humanize.Bytes(uint64(*b))
}
