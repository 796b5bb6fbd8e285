package simulator

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"
)

// trace is recorded traffic, sorted by time.
type trace struct {
	records []traceRecord
	// period in seconds is after what time the trace begins again.
	period float64
}

// traceRecord is one request of a trace.
type traceRecord struct {
	// at in seconds since the first record.
	at             float64
	prompt, output int
	// blocks identify the prompt's content in pieces of blockTokens; nil when it is not known.
	blocks []int64
}

// blockTokens is the size of Mooncake's blocks in tokens.
const blockTokens = 512

// maxTraceTokens bounds a length in a trace.
const maxTraceTokens = 1 << 24

// readTrace reads a file of one of the known formats.
func readTrace(format, path string) (*trace, error) {
	var parse func(io.Reader) ([]traceRecord, error)
	switch format {
	case "azure":
		parse = parseAzure
	case "mooncake":
		parse = parseMooncake
	default:
		return nil, fmt.Errorf("no trace format %q: want azure or mooncake", format)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the trace: %w", err)
	}
	defer f.Close()
	records, err := parse(f)
	if err != nil {
		return nil, fmt.Errorf("reading %s as %s: %w", path, format, err)
	}
	return newTrace(records)
}

// newTrace sorts records, spreads those of equal times, and counts from the first.
func newTrace(records []traceRecord) (*trace, error) {
	if len(records) == 0 {
		return nil, errors.New("the trace has no requests")
	}
	slices.SortStableFunc(records, func(a, b traceRecord) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	spread(records)
	first := records[0].at
	for i := range records {
		records[i].at -= first
	}
	last := records[len(records)-1].at
	gap := 1.0
	if len(records) > 1 && last > 0 {
		gap = last / float64(len(records)-1)
	}
	return &trace{records: records, period: last + gap}, nil
}

// maxSlot in seconds is the coarsest clock of the known traces: Mooncake's
// conversation trace has a time every three seconds.
const maxSlot = 3.1

// spread deals the records of one time evenly over the time to the next one:
// replayed as they stand they would be bursts that were never there.
func spread(records []traceRecord) {
	for i := 0; i < len(records); {
		j := i + 1
		for j < len(records) && records[j].at == records[i].at {
			j++
		}
		if j < len(records) {
			slot := min(records[j].at-records[i].at, maxSlot)
			for k := i; k < j; k++ {
				records[k].at += slot * float64(k-i) / float64(j-i)
			}
		}
		i = j
	}
}

// parseAzure reads the CSV of the Azure LLM inference traces: a time with
// seven digits behind the point, and the lengths in tokens.
func parseAzure(r io.Reader) ([]traceRecord, error) {
	rows := csv.NewReader(r)
	rows.ReuseRecord = true
	header, err := rows.Read()
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if want := []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}; !slices.Equal(header, want) {
		return nil, fmt.Errorf("header is %q, want %q", header, want)
	}
	var records []traceRecord
	var first time.Time
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return records, nil
		}
		if err != nil {
			return nil, err
		}
		line, _ := rows.FieldPos(0)
		at, err := time.Parse("2006-01-02 15:04:05.9999999", row[0])
		if err != nil {
			return nil, fmt.Errorf("line %d: TIMESTAMP is %q, want YYYY-MM-DD HH:MM:SS.fffffff", line, row[0])
		}
		if first.IsZero() {
			first = at
		}
		rec := traceRecord{at: at.Sub(first).Seconds()}
		if _, err := fmt.Sscan(row[1], &rec.prompt); err != nil {
			return nil, fmt.Errorf("line %d: ContextTokens is %q, want a number", line, row[1])
		}
		if _, err := fmt.Sscan(row[2], &rec.output); err != nil {
			return nil, fmt.Errorf("line %d: GeneratedTokens is %q, want a number", line, row[2])
		}
		if err := rec.check(); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		records = append(records, rec)
	}
}

// parseMooncake reads the JSON lines of the Mooncake traces: a time in
// milliseconds, the lengths in tokens, and an identity for each 512 tokens of the prompt.
func parseMooncake(r io.Reader) ([]traceRecord, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 4<<20)
	var records []traceRecord
	for line := 1; lines.Scan(); line++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var v struct {
			Timestamp *float64 `json:"timestamp"`
			Input     int      `json:"input_length"`
			Output    int      `json:"output_length"`
			Blocks    []int64  `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if v.Timestamp == nil || math.Abs(*v.Timestamp) > 1e15 {
			return nil, fmt.Errorf("line %d: no timestamp in milliseconds", line)
		}
		rec := traceRecord{at: *v.Timestamp / 1000, prompt: v.Input, output: v.Output, blocks: v.Blocks}
		if err := rec.check(); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if want := (rec.prompt + blockTokens - 1) / blockTokens; v.Blocks != nil && len(v.Blocks) != want {
			return nil, fmt.Errorf("line %d: %d hash_ids for %d tokens, want %d", line, len(v.Blocks), rec.prompt, want)
		}
		records = append(records, rec)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return records, nil
}

// check bounds the lengths; a request without output still makes a token.
func (r *traceRecord) check() error {
	if r.prompt < 0 || r.output < 0 || r.prompt > maxTraceTokens || r.output > maxTraceTokens {
		return fmt.Errorf("lengths are %d and %d tokens, want 0 to %d", r.prompt, r.output, maxTraceTokens)
	}
	r.prompt, r.output = max(r.prompt, 1), max(r.output, 1)
	return nil
}

// tokens makes a prompt of which equal blocks are equal, cut to a length.
func (r *traceRecord) tokens(length int) []int {
	ids := make([]int, length)
	for i := range ids {
		x := scatter(uint64(r.blocks[i/blockTokens])<<10 ^ uint64(i%blockTokens))
		ids[i] = firstByteToken + int(x%(vocabulary-firstByteToken))
	}
	return ids
}
