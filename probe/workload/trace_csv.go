package workload

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// rows reads CSV with a header; columns are found by name, so that later
// releases with more of them are read too.
func (t *traceReader) rows(r io.Reader) error {
	in := csv.NewReader(r)
	in.ReuseRecord = true
	header, err := in.Read()
	if errors.Is(err, io.EOF) {
		return errors.New("the file is empty")
	}
	if err != nil {
		return err
	}
	want := []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}
	parse := t.azure
	if t.options.Format == BurstGPT {
		want = []string{"Timestamp", "Request tokens", "Response tokens", "Model", "Log Type"}
		parse = t.burstGPT
	}
	columns := make([]int, len(want))
	for i, name := range want {
		columns[i] = slices.IndexFunc(header, func(h string) bool { return strings.TrimSpace(h) == name })
		if columns[i] < 0 {
			return fmt.Errorf("line 1: no column %q in %q", name, header)
		}
	}
	fields := make([]string, len(want))
	for {
		row, err := in.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			// The error of the package names the line.
			return err
		}
		for i, c := range columns {
			fields[i] = strings.TrimSpace(row[c])
		}
		if err := parse(fields); err != nil {
			if errors.Is(err, errEnough) {
				return err
			}
			line, _ := in.FieldPos(0)
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
}

func tokenCount(name, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%s is %q, want a whole number", name, text)
	}
	return n, nil
}

// azureTimes are the forms of TIMESTAMP: 2023 without, 2024 with a zone.
var azureTimes = []string{"2006-01-02 15:04:05.9999999", "2006-01-02 15:04:05.9999999Z07:00"}

func (t *traceReader) azure(fields []string) error {
	var at time.Time
	var err error
	for _, form := range azureTimes {
		if at, err = time.Parse(form, fields[0]); err == nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("TIMESTAMP is %q, want YYYY-MM-DD HH:MM:SS.fffffff", fields[0])
	}
	if t.trace.Start.IsZero() {
		t.trace.Start = at.UTC()
	}
	var r Record
	if r.Prompt, err = tokenCount("ContextTokens", fields[1]); err != nil {
		return err
	}
	if r.Output, err = tokenCount("GeneratedTokens", fields[2]); err != nil {
		return err
	}
	return t.add(at.Sub(t.trace.Start), r)
}

func (t *traceReader) burstGPT(fields []string) error {
	at, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		return fmt.Errorf("%s is %q, want seconds", "Timestamp", fields[0])
	}
	offset, err := offset(&at, "Timestamp", time.Second)
	if err != nil {
		return err
	}
	r := Record{Model: t.name(fields[3]), Scenario: t.name(fields[4])}
	if r.Prompt, err = tokenCount("Request tokens", fields[1]); err != nil {
		return err
	}
	if r.Output, err = tokenCount("Response tokens", fields[2]); err != nil {
		return err
	}
	return t.add(offset, r)
}
