package curve

import (
	"fmt"
	"io"
	"os"

	"headroom_exporter/capacity/jsonfile"
)

// maxFile bounds a curve file, in bytes. A study of many points is some hundred kilobytes.
const maxFile = 64 << 20

// Decode reads a curve file and checks it. Keys that it does not know are
// errors: they are misspelt, or of a later version. An error is one line that
// names the field, its value, and the line where the file's form is at fault.
func Decode(r io.Reader) (*Curve, error) {
	c := &Curve{}
	if err := jsonfile.Decode(r, maxFile, Schema, c); err != nil {
		return nil, fmt.Errorf("reading the curve: %w", err)
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("reading the curve: %w", err)
	}
	return c, nil
}

// ReadFile reads a curve file by its path.
func ReadFile(path string) (*Curve, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the curve file: %w", err)
	}
	defer in.Close()
	c, err := Decode(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Encode writes the curve as indented JSON, after checking it. An empty
// schema or id is filled in. The same curve is always the same bytes.
func (c *Curve) Encode(w io.Writer) error {
	out := *c
	if out.Schema == "" {
		out.Schema = Schema
	}
	if out.ID == "" {
		out.ID = out.Identity.ID()
	}
	if err := out.Validate(); err != nil {
		return fmt.Errorf("writing the curve: %w", err)
	}
	if err := jsonfile.Encode(w, &out); err != nil {
		return fmt.Errorf("writing the curve: %w", err)
	}
	return nil
}
