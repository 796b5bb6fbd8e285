package workload

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Format is a format of recorded traffic. It is always given, never guessed:
// two of them differ in nothing but the unit of time.
type Format string

// The trace formats.
const (
	// Mooncake is JSON lines with milliseconds and blocks of 512 tokens.
	Mooncake Format = "mooncake"
	// TimedTrace is vLLM's: Mooncake's keys, by default with seconds and blocks of 16 tokens.
	TimedTrace Format = "timed_trace"
	// Azure is the CSV of the Azure LLM inference traces of 2023 and 2024.
	Azure Format = "azure"
	// BurstGPT is CSV with seconds since the first day.
	BurstGPT Format = "burstgpt"
	// Bailian is JSON lines with seconds and blocks of 16 tokens.
	Bailian Format = "bailian"
	// Footprint is this project's own: JSON lines with milliseconds, tenant, scenario and model.
	Footprint Format = "footprint"
)

// Formats lists the formats.
var Formats = []Format{Footprint, Mooncake, TimedTrace, Azure, BurstGPT, Bailian}

// ReadOptions say how a trace is to be read.
type ReadOptions struct {
	Format Format
	// Unit of the timestamps of TimedTrace; 0 is a second.
	Unit time.Duration
	// BlockSize in tokens of the hash_ids of TimedTrace; 0 is 16.
	BlockSize int
	// Labels rename the keys of TimedTrace: timestamp, input_length, output_length, hash_ids.
	Labels map[string]string
	// Sort orders the requests by time instead of refusing a trace that is not sorted.
	Sort bool
	// Force takes a trace whose times look like those of another unit.
	Force bool
	// MaxRequests ends the reading early; 0 is no bound.
	MaxRequests int
}

// Trace is recorded traffic in the order of time.
type Trace struct {
	Format  Format
	Records []Record
	// BlockSize in tokens of the records' Blocks; 0 when none has any.
	BlockSize int
	// Start is when the first record was, when the trace tells; zero otherwise.
	Start time.Time
	// ZeroOutputs and ZeroPrompts count lines that were left out because no
	// token was generated (a failed request) or sent.
	ZeroOutputs, ZeroPrompts int
}

// Record is one request of a trace.
type Record struct {
	// At is the time since the first record.
	At time.Duration
	// Prompt and Output are lengths in tokens, at least 1.
	Prompt, Output int
	// What the trace tells of who asked for what; empty when it does not.
	Tenant, Scenario, Model string
	// SessionID and Turn when the trace has sessions; Delay is the pause before a later turn.
	SessionID string
	Turn      int
	Delay     time.Duration
	// Blocks name the prompt's content, block by block; nil when it is not known.
	Blocks []uint64
}

// maxTime is 73 years: a unix time in nanoseconds is below it.
const maxTime = time.Duration(1 << 61)

// The guard against times in a wrong unit.
const (
	minSpan      = time.Second
	maxTraceRate = 1000
)

// ReadTrace reads a trace. Errors name the line. Lines without output are left
// out and counted, and so are lines without prompt.
func ReadTrace(r io.Reader, o ReadOptions) (*Trace, error) {
	if o.Format != TimedTrace && (o.Unit != 0 || o.BlockSize != 0 || o.Labels != nil) {
		return nil, fmt.Errorf("trace format %s has fixed keys, units and blocks: only %s takes others", o.Format, TimedTrace)
	}
	if o.Unit < 0 || o.BlockSize < 0 || o.BlockSize > MaxTokens || o.MaxRequests < 0 {
		return nil, errors.New("trace options: unit, block size and number of requests cannot be negative")
	}
	t := &Trace{Format: o.Format}
	reader := traceReader{options: o, trace: t, names: map[string]string{}}
	in := bufio.NewReaderSize(r, 1<<16)
	if mark, _ := in.Peek(3); bytes.Equal(mark, []byte("\xef\xbb\xbf")) {
		in.Discard(3)
	}
	var err error
	switch o.Format {
	case Mooncake, TimedTrace, Bailian, Footprint:
		err = reader.lines(in)
	case Azure, BurstGPT:
		err = reader.rows(in)
	default:
		var known []string
		for _, f := range Formats {
			known = append(known, string(f))
		}
		return nil, fmt.Errorf("no trace format %q: want %s", o.Format, strings.Join(known, ", "))
	}
	if err != nil && !errors.Is(err, errEnough) {
		return nil, fmt.Errorf("reading a trace as %s: %w", o.Format, err)
	}
	if err := reader.finish(); err != nil {
		return nil, fmt.Errorf("reading a trace as %s: %w", o.Format, err)
	}
	return t, nil
}

// errEnough ends the reading at MaxRequests.
var errEnough = errors.New("enough requests")

// traceReader collects the records of a trace.
type traceReader struct {
	options ReadOptions
	trace   *Trace
	// names holds each text once.
	names map[string]string
	// last is the time of the line before, and first of the first one; both
	// since the zero of the trace's clock.
	first, last time.Duration
	some        bool
}

// name returns the text, sharing the memory of an equal one.
func (t *traceReader) name(text string) string {
	if known, ok := t.names[text]; ok {
		return known
	}
	text = strings.Clone(text)
	t.names[text] = text
	return text
}

// add takes the record of a line; at is the time on the trace's clock.
func (t *traceReader) add(at time.Duration, r Record) error {
	if at <= -maxTime || at >= maxTime {
		return fmt.Errorf("the time lies %s from the start of the clock, which cannot be", at)
	}
	if t.some && at < t.last && !t.options.Sort {
		return fmt.Errorf("the time goes back by %s: sort the trace by time, or have it sorted", t.last-at)
	}
	if !t.some {
		t.first, t.some = at, true
	}
	t.last = at
	switch {
	case r.Prompt < 0 || r.Prompt > MaxTokens || r.Output < 0 || r.Output > MaxTokens:
		return fmt.Errorf("lengths are %d and %d tokens, want 0 to %d", r.Prompt, r.Output, MaxTokens)
	case r.Turn < 0 || r.Delay < 0:
		return fmt.Errorf("turn %d with a delay of %s, want 0 or more", r.Turn, r.Delay)
	case r.Output == 0:
		t.trace.ZeroOutputs++
		return nil
	case r.Prompt == 0:
		t.trace.ZeroPrompts++
		return nil
	}
	if r.Blocks != nil {
		size := t.trace.BlockSize
		if want := (r.Prompt + size - 1) / size; len(r.Blocks) != want {
			return fmt.Errorf("%d hash_ids for %d tokens, want %d of %d tokens: is the block size right?", len(r.Blocks), r.Prompt, want, size)
		}
	}
	r.At = at
	t.trace.Records = append(t.trace.Records, r)
	if len(t.trace.Records) == t.options.MaxRequests {
		return errEnough
	}
	return nil
}

// blockSize sets the trace's block size, which must be one.
func (t *traceReader) blockSize(size int) error {
	if size < 1 || size > MaxTokens {
		return fmt.Errorf("block size is %d tokens, want 1 to %d", size, MaxTokens)
	}
	if t.trace.BlockSize != 0 && t.trace.BlockSize != size {
		return fmt.Errorf("block size is %d tokens after one of %d", size, t.trace.BlockSize)
	}
	t.trace.BlockSize = size
	return nil
}

// finish sorts where that was asked for, counts times from the first record and checks the whole.
func (t *traceReader) finish() error {
	records := t.trace.Records
	if len(records) == 0 {
		return errors.New("the trace has no requests with output")
	}
	if t.options.Sort {
		slices.SortStableFunc(records, func(a, b Record) int { return int(min(max(a.At-b.At, -1), 1)) })
	}
	begin := records[0].At
	for i := range records {
		records[i].At -= begin
	}
	if !t.trace.Start.IsZero() {
		t.trace.Start = t.trace.Start.Add(begin - t.first)
	}
	if t.options.Force || len(records) == 1 {
		return nil
	}
	span := records[len(records)-1].At
	if span < minSpan {
		return fmt.Errorf("%d requests within %s: is the unit of time right? Force it if so", len(records), span)
	}
	if rate := float64(len(records)) / span.Seconds(); rate > maxTraceRate {
		return fmt.Errorf("%.0f requests per second on average: is the unit of time right? Force it if so", rate)
	}
	return nil
}
