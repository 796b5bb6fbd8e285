// Package jsonfile reads and writes the JSON files that persons write by hand
// and keep under version control: read strictly, with the line of what is
// wrong, and written so that a histogram is a line and not a page.
package jsonfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Decode reads one JSON value of at most limit bytes into a struct. The
// object's key "schema" must be as given; then every key must be one of the
// struct's, in its spelling, and come once: others are misspelt, or of a later
// version. A number of a type with its own UnmarshalJSON that is absent is
// given null. An error is one line that says where.
func Decode(r io.Reader, limit int64, schema string, into any) error {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return err
	}
	if int64(len(data)) > limit {
		return fmt.Errorf("more than %d bytes", limit)
	}
	if err := encoding(data); err != nil {
		return err
	}
	if string(bytes.TrimSpace(data)) == "null" {
		return lineError(data, 0, "the file is null, want an object")
	}
	// The version first: a file of another one is not misspelt.
	var version struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		if short := incomplete(data); short != nil {
			return short
		}
		return place(data, err)
	}
	if version.Schema != schema {
		return fmt.Errorf("schema is %q, want %q", version.Schema, schema)
	}
	d := decoder{data: data}
	return d.value(data, 0, "", reflect.ValueOf(into).Elem())
}

// encoding is the error of a text in another encoding than UTF-8 without a
// mark, as some editors and shells write it; else nil.
func encoding(data []byte) error {
	switch {
	case bytes.HasPrefix(data, []byte("\xef\xbb\xbf")):
		return errors.New("the file begins with a byte order mark: save it as UTF-8 without one (BOM)")
	case bytes.HasPrefix(data, []byte("\xff\xfe")), bytes.HasPrefix(data, []byte("\xfe\xff")),
		bytes.HasPrefix(data, []byte("{\x00")), bytes.HasPrefix(data, []byte("\x00{")):
		return errors.New("the file is in UTF-16: save it as UTF-8")
	}
	return nil
}

// incomplete is the error of a file of which nothing, or only the beginning, is there; else nil.
func incomplete(data []byte) error {
	var value json.RawMessage
	switch err := json.NewDecoder(bytes.NewReader(data)).Decode(&value); {
	case errors.Is(err, io.EOF):
		return errors.New("the file is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return lineError(data, len(data), "the file is cut off here: its end is missing")
	}
	return nil
}

// place words an error of encoding/json and adds its line.
func place(data []byte, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return lineError(data, int(syntax.Offset), err.Error())
	case errors.As(err, &kind):
		where := kind.Field
		if where == "" {
			where = "the file"
		}
		return lineError(data, int(kind.Offset), fmt.Sprintf("%s is %s, want %s", where, article(kind.Value), wanted(kind.Type)))
	}
	return err
}

func lineError(data []byte, offset int, text string) error {
	offset = min(max(offset, 0), len(data))
	return fmt.Errorf("line %d: %s", 1+bytes.Count(data[:offset], []byte("\n")), text)
}

// decoder reads data, whose syntax is right.
type decoder struct{ data []byte }

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// value reads raw, which lies at an offset, into v. Its path is for errors.
func (d *decoder) value(raw []byte, offset int, path string, v reflect.Value) error {
	null := string(raw) == "null"
	own := v.Addr().Type().Implements(unmarshaler)
	switch {
	case own:
		if err := v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(raw); err != nil {
			return d.wrong(raw, offset, path, v, err)
		}
		return nil
	case v.Kind() == reflect.Pointer && !null:
		v.Set(reflect.New(v.Type().Elem()))
		return d.value(raw, offset, path, v.Elem())
	case null && (v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice || v.Kind() == reflect.Map):
		return nil
	case null:
		return lineError(d.data, offset, fmt.Sprintf("%s is null, want %s", name(path), wanted(v.Type())))
	case v.Kind() == reflect.Struct && raw[0] == '{':
		return d.object(raw, offset, path, v)
	case v.Kind() == reflect.Slice && raw[0] == '[':
		return d.elements(raw, offset, func(_ string, i int, item []byte, at int) error {
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
			return d.value(item, at, fmt.Sprintf("%s[%d]", path, i), v.Index(i))
		})
	case v.Kind() == reflect.Map && raw[0] == '{':
		v.Set(reflect.MakeMap(v.Type()))
		return d.elements(raw, offset, func(key string, _ int, item []byte, at int) error {
			where, k := join(path, key), reflect.ValueOf(key).Convert(v.Type().Key())
			if v.MapIndex(k).IsValid() {
				return lineError(d.data, at, name(where)+" is given twice")
			}
			value := reflect.New(v.Type().Elem()).Elem()
			if err := d.value(item, at, where, value); err != nil {
				return err
			}
			v.SetMapIndex(k, value)
			return nil
		})
	}
	if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
		return d.wrong(raw, offset, path, v, err)
	}
	return nil
}

// wrong words the error of a value that does not fit.
func (d *decoder) wrong(raw []byte, offset int, path string, v reflect.Value, err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) && !v.Addr().Type().Implements(unmarshaler) || v.Kind() == reflect.Float64 {
		return lineError(d.data, offset, fmt.Sprintf("%s is %s, want %s", name(path), shown(raw), wanted(v.Type())))
	}
	return lineError(d.data, offset, fmt.Sprintf("%s: %s", name(path), err))
}

// object reads an object into a struct.
func (d *decoder) object(raw []byte, offset int, path string, v reflect.Value) error {
	fields := fieldsOf(v.Type())
	seen := make(map[string]bool, len(fields))
	err := d.elements(raw, offset, func(key string, _ int, item []byte, at int) error {
		index, ok := fields[key]
		switch {
		case !ok && path == "":
			return lineError(d.data, at, fmt.Sprintf("unknown field %q", key))
		case !ok:
			return lineError(d.data, at, fmt.Sprintf("unknown field %q in %s", key, path))
		case seen[key]:
			return lineError(d.data, at, name(join(path, key))+" is given twice")
		}
		seen[key] = true
		return d.value(item, at, join(path, key), v.FieldByIndex(index))
	})
	if err != nil {
		return err
	}
	for key, index := range fields {
		f := v.FieldByIndex(index)
		if !seen[key] && f.Kind() == reflect.Float64 && f.Addr().Type().Implements(unmarshaler) {
			if err := f.Addr().Interface().(json.Unmarshaler).UnmarshalJSON([]byte("null")); err != nil {
				return fmt.Errorf("%s: %w", join(path, key), err)
			}
		}
	}
	return nil
}

// fieldsOf are the fields of a struct by their keys, embedded ones included.
func fieldsOf(t reflect.Type) map[string][]int {
	fields := make(map[string][]int, t.NumField())
	for _, f := range reflect.VisibleFields(t) {
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key != "" && key != "-" {
			fields[key] = f.Index
		}
	}
	return fields
}

// elements calls visit for each element of an array or member of an object,
// with its key or index, its text and where that lies.
func (d *decoder) elements(raw []byte, offset int, visit func(key string, i int, item []byte, at int) error) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	begin, err := dec.Token()
	if err != nil {
		return lineError(d.data, offset, err.Error())
	}
	for i := 0; dec.More(); i++ {
		key := ""
		if begin == json.Delim('{') {
			t, err := dec.Token()
			if err != nil {
				return lineError(d.data, offset, err.Error())
			}
			key = t.(string)
		}
		var item json.RawMessage
		if err := dec.Decode(&item); err != nil {
			return lineError(d.data, offset, err.Error())
		}
		if err := visit(key, i, item, offset+int(dec.InputOffset())-len(item)); err != nil {
			return err
		}
	}
	return nil
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func name(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

// shown is a value in an error: a scalar itself, if it is short.
func shown(raw []byte) string {
	switch {
	case raw[0] == '{':
		return "an object"
	case raw[0] == '[':
		return "an array"
	case len(raw) > 40:
		return string(bytes.ToValidUTF8(raw[:40], nil)) + "..."
	}
	return string(raw)
}

func article(kind string) string {
	switch {
	case kind == "array" || kind == "object":
		return "an " + kind
	case kind == "bool":
		return "true or false"
	}
	return "a " + kind
}

// wanted is what a field takes, in words.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Uint64:
		return "a whole number of 0 or more"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "an array"
	}
	return "an object"
}
