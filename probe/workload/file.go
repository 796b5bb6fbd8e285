package workload

import (
	"fmt"
	"io"
	"os"

	"headroom_exporter/capacity/jsonfile"
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
	if err := jsonfile.Encode(w, f); err != nil {
		return fmt.Errorf("writing classes: %w", err)
	}
	return nil
}

// Decode reads a classes file. Keys that it does not know are errors: they
// are misspelt, or of a later version.
func Decode(r io.Reader) (File, error) {
	var f File
	if err := jsonfile.Decode(r, maxFile, Schema, &f); err != nil {
		return File{}, fmt.Errorf("reading classes: %w", err)
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
