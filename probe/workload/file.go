package workload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Schema is the version of the classes file.
const Schema = "workload-classes/v1"

// maxFile bounds a classes file, in bytes.
const maxFile = 64 << 20

// File is a classes file.
type File struct {
	Schema string `json:"schema"`
	// Tool wrote the file; empty when a person did.
	Tool string `json:"tool,omitempty"`
	// Trace is what the classes were taken from; nil when they were not.
	Trace   *TraceSource `json:"trace,omitempty"`
	Classes []Class      `json:"classes"`
	// Notes say what a reader of the classes should know.
	Notes []string `json:"notes,omitempty"`
}

// TraceSource names the trace that classes were taken from.
type TraceSource struct {
	Name   string `json:"name"`
	Format Format `json:"format"`
	SHA256 string `json:"sha256,omitempty"`
	// Observed describes all its requests together.
	Observed *Observed `json:"observed,omitempty"`
}

// Encode writes the file as indented JSON, after checking it.
func (f File) Encode(w io.Writer) error {
	if f.Schema == "" {
		f.Schema = Schema
	}
	if err := f.validate(); err != nil {
		return fmt.Errorf("writing classes: %w", err)
	}
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("writing classes: %w", err)
	}
	if _, err := w.Write(compactNumbers(append(data, '\n'))); err != nil {
		return fmt.Errorf("writing classes: %w", err)
	}
	return nil
}

// Decode reads a classes file. Keys that it does not know are errors: they
// are misspelt, or of a later version.
func Decode(r io.Reader) (File, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return File{}, fmt.Errorf("reading classes: %w", err)
	}
	if len(data) > maxFile {
		return File{}, fmt.Errorf("reading classes: more than %d bytes", maxFile)
	}
	// The version first: a file of another one is not misspelt.
	var version struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return File{}, fmt.Errorf("reading classes: %w", place(data, err))
	}
	if version.Schema != Schema {
		return File{}, fmt.Errorf("reading classes: schema is %q, want %q", version.Schema, Schema)
	}
	var f File
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return File{}, fmt.Errorf("reading classes: %w", place(data, err))
	}
	if err := f.validate(); err != nil {
		return File{}, fmt.Errorf("reading classes: %w", err)
	}
	return f, nil
}

// ReadFile reads a classes file by its path.
func ReadFile(path string) (File, error) {
	in, err := os.Open(path)
	if err != nil {
		return File{}, fmt.Errorf("opening the classes file: %w", err)
	}
	defer in.Close()
	f, err := Decode(in)
	if err != nil {
		return File{}, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func (f File) validate() error {
	if f.Trace != nil && f.Trace.Observed != nil {
		if err := f.Trace.Observed.validate(); err != nil {
			return fmt.Errorf("trace: %w", err)
		}
	}
	return ValidateClasses(f.Classes)
}

// place adds the line to an error of JSON that knows its offset.
func place(data []byte, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	offset := int64(-1)
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &kind):
		offset = kind.Offset
	}
	if offset < 0 || offset > int64(len(data)) {
		return err
	}
	return fmt.Errorf("line %d: %w", 1+bytes.Count(data[:offset], []byte("\n")), err)
}

// compactNumbers puts arrays of numbers, and small objects of them, on one
// line: a histogram of one number a line is nothing to read.
func compactNumbers(data []byte) []byte {
	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); {
		if c := data[i]; c == '[' || c == '{' {
			if end := flat(data[i+1:]); end >= 0 {
				out = append(out, c)
				for j, field := range bytes.Fields(data[i+1 : i+1+end]) {
					if j > 0 {
						out = append(out, ' ')
					}
					out = append(out, field...)
				}
				i += 1 + end
				continue
			}
		}
		if data[i] == '"' {
			end := text(data[i:])
			out = append(out, data[i:i+end]...)
			i += end
			continue
		}
		out = append(out, data[i])
		i++
	}
	return out
}

// flat returns the length of a value's inside when it holds numbers and keys only, else -1.
func flat(data []byte) int {
	for i := 0; i < len(data); {
		switch c := data[i]; {
		case c == ']' || c == '}':
			return i
		case c == '[' || c == '{':
			return -1
		case c == '"':
			end := text(data[i:])
			if end < len(data[i:]) && data[i+end] != ':' {
				return -1
			}
			i += end
			continue
		}
		i++
	}
	return -1
}

// text returns the length of the JSON string that data begins with.
func text(data []byte) int {
	for i := 1; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(data)
}
