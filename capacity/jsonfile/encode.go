package jsonfile

import (
	"bytes"
	"encoding/json"
	"io"
)

// Encode writes v as indented JSON, with arrays of numbers and small objects of
// them on one line. The same value is always the same bytes.
func Encode(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(compactNumbers(b.Bytes()))
	return err
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
