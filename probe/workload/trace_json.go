package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"
)

// maxLine in bytes holds the hash_ids of a prompt of MaxTokens in small blocks.
const maxLine = 32 << 20

// unixMilliseconds is from where on a footprint's time is one of the calendar: September 2001.
const unixMilliseconds = 1e12

const (
	mooncakeBlock = 512
	bailianBlock  = 16
	// timedTraceBlock is vLLM's default, with which Mooncake's files are refused.
	timedTraceBlock = 16
)

// lines reads JSON lines; empty ones are passed over.
func (t *traceReader) lines(r io.Reader) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 1<<16), maxLine)
	parse := t.mooncake
	switch t.options.Format {
	case TimedTrace:
		parse = t.timedTrace
	case Bailian:
		parse = t.bailian(map[int64]string{})
	case Footprint:
		parse = t.footprint
	}
	line := 1
	for ; s.Scan(); line++ {
		text := bytes.TrimSpace(s.Bytes())
		if len(text) == 0 {
			continue
		}
		if err := parse(text); err != nil {
			if errors.Is(err, errEnough) {
				return err
			}
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("line %d: %w", line, err)
	}
	return nil
}

// offset turns a number of units into a time.
func offset(value *float64, key string, unit time.Duration) (time.Duration, error) {
	if value == nil {
		return 0, fmt.Errorf("no %s", key)
	}
	ns := *value * float64(unit)
	if !(math.Abs(ns) < float64(maxTime)) {
		return 0, fmt.Errorf("%s is %g, which is no time in units of %s", key, *value, unit)
	}
	// Apart, because a unix time in nanoseconds has more digits than a float64.
	whole, part := math.Modf(*value)
	return time.Duration(whole)*unit + time.Duration(math.Round(part*float64(unit))), nil
}

func length(value *int, key string) (int, error) {
	if value == nil {
		return 0, fmt.Errorf("no %s", key)
	}
	return *value, nil
}

// simple adds what the formats have in common.
func (t *traceReader) simple(timestamp *float64, unit time.Duration, input, output *int, blocks []int64, blockSize int, keys [3]string, r Record) error {
	at, err := offset(timestamp, keys[0], unit)
	if err != nil {
		return err
	}
	if r.Prompt, err = length(input, keys[1]); err != nil {
		return err
	}
	if r.Output, err = length(output, keys[2]); err != nil {
		return err
	}
	if blocks != nil {
		if err := t.blockSize(blockSize); err != nil {
			return err
		}
		r.Blocks = make([]uint64, len(blocks))
		for i, b := range blocks {
			r.Blocks[i] = uint64(b)
		}
	}
	return t.add(at, r)
}

func (t *traceReader) mooncake(line []byte) error {
	var v struct {
		Timestamp *float64 `json:"timestamp"`
		Input     *int     `json:"input_length"`
		Output    *int     `json:"output_length"`
		Blocks    []int64  `json:"hash_ids"`
		Session   string   `json:"session_id"`
		Delay     float64  `json:"delay"`
	}
	if err := json.Unmarshal(line, &v); err != nil {
		return err
	}
	r := Record{SessionID: t.name(v.Session)}
	var err error
	if r.Delay, err = offset(&v.Delay, "delay", time.Millisecond); err != nil {
		return err
	}
	return t.simple(v.Timestamp, time.Millisecond, v.Input, v.Output, v.Blocks, mooncakeBlock,
		[3]string{"timestamp", "input_length", "output_length"}, r)
}

func (t *traceReader) timedTrace(line []byte) error {
	label := func(key string) string {
		if l, ok := t.options.Labels[key]; ok {
			return l
		}
		return key
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return err
	}
	var v struct {
		timestamp     *float64
		input, output *int
		blocks        []int64
	}
	keys := [3]string{label("timestamp"), label("input_length"), label("output_length")}
	for _, f := range []struct {
		key    string
		target any
	}{{keys[0], &v.timestamp}, {keys[1], &v.input}, {keys[2], &v.output}, {label("hash_ids"), &v.blocks}} {
		if raw, ok := fields[f.key]; ok {
			if err := json.Unmarshal(raw, f.target); err != nil {
				return fmt.Errorf("%s: %w", f.key, err)
			}
		}
	}
	unit, block := t.options.Unit, t.options.BlockSize
	if unit == 0 {
		unit = time.Second
	}
	if block == 0 {
		block = timedTraceBlock
	}
	return t.simple(v.timestamp, unit, v.input, v.output, v.blocks, block, keys, Record{})
}

// bailian returns the parser of Bailian's lines; roots holds the first chat of each chat's session.
func (t *traceReader) bailian(roots map[int64]string) func([]byte) error {
	return func(line []byte) error {
		var v struct {
			Chat      *int64   `json:"chat_id"`
			Parent    *int64   `json:"parent_chat_id"`
			Timestamp *float64 `json:"timestamp"`
			Input     *int     `json:"input_length"`
			Output    *int     `json:"output_length"`
			Type      string   `json:"type"`
			Turn      int      `json:"turn"`
			Blocks    []int64  `json:"hash_ids"`
		}
		if err := json.Unmarshal(line, &v); err != nil {
			return err
		}
		r := Record{Scenario: t.name(v.Type)}
		if v.Chat != nil {
			root := t.name(strconv.FormatInt(*v.Chat, 10))
			if v.Parent != nil && *v.Parent >= 0 {
				// A parent from before the trace stands for the session itself.
				known, ok := roots[*v.Parent]
				if !ok {
					known = t.name(strconv.FormatInt(*v.Parent, 10))
				}
				root = known
			}
			roots[*v.Chat] = root
			r.SessionID = root
			// Turns count from 1 there.
			r.Turn = max(v.Turn-1, 0)
		}
		return t.simple(v.Timestamp, time.Second, v.Input, v.Output, v.Blocks, bailianBlock,
			[3]string{"timestamp", "input_length", "output_length"}, r)
	}
}

func (t *traceReader) footprint(line []byte) error {
	var v struct {
		Timestamp *float64 `json:"timestamp_ms"`
		Tenant    string   `json:"tenant"`
		Scenario  string   `json:"scenario"`
		Model     string   `json:"model"`
		Input     *int     `json:"input_tokens"`
		Output    *int     `json:"output_tokens"`
		Stream    *bool    `json:"stream"`
		Priority  *int     `json:"priority"`
		Blocks    []int64  `json:"hash_ids"`
		BlockSize int      `json:"block_size"`
		Session   string   `json:"session_id"`
		Delay     float64  `json:"delay_ms"`
	}
	// The format is our own, so that a key it does not have is a mistake.
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value on a line")
	}
	if v.Timestamp != nil && *v.Timestamp >= unixMilliseconds && t.trace.Start.IsZero() {
		t.trace.Start = time.UnixMilli(int64(*v.Timestamp)).UTC()
	}
	r := Record{Tenant: t.name(v.Tenant), Scenario: t.name(v.Scenario), Model: t.name(v.Model), SessionID: t.name(v.Session)}
	var err error
	if r.Delay, err = offset(&v.Delay, "delay_ms", time.Millisecond); err != nil {
		return err
	}
	return t.simple(v.Timestamp, time.Millisecond, v.Input, v.Output, v.Blocks, v.BlockSize,
		[3]string{"timestamp_ms", "input_tokens", "output_tokens"}, r)
}
