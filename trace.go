package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kingpin/v2"

	"headroom_exporter/probe/workload"
)

// traceFlags say how recorded traffic is to be read.
type traceFlags struct {
	format  string
	options workload.ReadOptions
}

func addTraceFlags(c *kingpin.CmdClause) *traceFlags {
	f := &traceFlags{}
	var formats []string
	for _, format := range workload.Formats {
		formats = append(formats, string(format))
	}
	c.Flag("trace.format", "Format of the trace, which is never guessed: "+strings.Join(formats, ", ")+".").PlaceHolder("FORMAT").EnumVar(&f.format, formats...)
	c.Flag("trace.unit", "Unit of the timestamps of a timed_trace; 1s when 0.").Default("0s").DurationVar(&f.options.Unit)
	c.Flag("trace.block-size", "Tokens of each of the hash_ids of a timed_trace; 16 when 0.").Default("0").IntVar(&f.options.BlockSize)
	c.Flag("trace.label", "KEY=NAME: another name of a key of a timed_trace (timestamp, input_length, output_length, hash_ids). May be repeated.").StringMapVar(&f.options.Labels)
	c.Flag("trace.max-requests", "Read so many requests only; all when 0.").Default("0").IntVar(&f.options.MaxRequests)
	c.Flag("trace.sort", "Order the requests by time instead of refusing a trace that is not.").BoolVar(&f.options.Sort)
	c.Flag("trace.force", "Take a trace whose times look like those of another unit.").BoolVar(&f.options.Force)
	return f
}

// read reads the trace, and returns the SHA-256 of its file in hexadecimal too.
func (f *traceFlags) read(path string) (*workload.Trace, string, error) {
	if f.format == "" {
		return nil, "", usageError{fmt.Errorf("reading %s: give its --trace.format", path)}
	}
	o := f.options
	o.Format = workload.Format(f.format)
	if len(o.Labels) == 0 {
		o.Labels = nil
	}
	in, err := os.Open(path)
	if err != nil {
		return nil, "", usageError{fmt.Errorf("opening the trace: %w", err)}
	}
	defer in.Close()
	sum := sha256.New()
	trace, err := workload.ReadTrace(io.TeeReader(in, sum), o)
	if err != nil {
		return nil, "", usageError{fmt.Errorf("%s: %w", path, err)}
	}
	// What the reader left: the sum is of the whole file.
	if _, err := io.Copy(sum, in); err != nil {
		return nil, "", fmt.Errorf("reading %s: %w", path, err)
	}
	return trace, hex.EncodeToString(sum.Sum(nil)), nil
}
