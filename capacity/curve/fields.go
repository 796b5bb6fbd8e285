package curve

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Field is one field of an identity, and when two engines differ in it.
type Field struct {
	// Name is its key in the file.
	Name string
	// Hard tells that a curve does not hold for an engine that differs; else it
	// holds, and should be measured again.
	Hard bool
	// Tolerance is the relative difference that is none; 0 wants equality.
	Tolerance float64
	// Parts is how many leading parts of a version count: 1 is the major, 2 the
	// minor; 0 compares all of it.
	Parts int

	index int
	// oneOf are the values that exist; nil for any.
	oneOf []string
	// most is what a number cannot pass; 0 for none.
	most float64
}

// Tolerances of what is measured or set in steps.
const (
	// kvTolerance is for the KV cache: what an engine profiles at its start
	// differs by some blocks from start to start.
	kvTolerance    = 0.02
	powerTolerance = 0.05
)

// fields are all fields in the order of the struct.
var fields = func() []Field {
	table := []Field{
		{Name: "model", Hard: true},
		{Name: "revision", Hard: true},
		{Name: "quantization", Hard: true},
		{Name: "dtype", Hard: true},
		{Name: "kv_cache_dtype", Hard: true},
		{Name: "tensor_parallel", Hard: true, most: 1e5},
		{Name: "pipeline_parallel", Hard: true, most: 1e5},
		{Name: "data_parallel", Hard: true, most: 1e5},
		{Name: "expert_parallel", Hard: true},
		{Name: "role", Hard: true, oneOf: []string{"prefill", "decode", "both"}},
		{Name: "path", Hard: true, oneOf: []string{"direct", "router", "pd"}},
		{Name: "gpu_name", Hard: true},
		{Name: "gpu_count", Hard: true, most: 1e6},
		{Name: "mig_profile", Hard: true},
		{Name: "max_num_seqs", Hard: true, most: 1e7},
		{Name: "max_num_batched_tokens", Hard: true, most: 1e9},
		{Name: "max_model_len", Hard: true, most: 1e9},
		{Name: "gpu_memory_utilization", Hard: true, most: 1},
		{Name: "kv_tokens", Hard: true, Tolerance: kvTolerance, most: 1e12},
		{Name: "prefix_caching", Hard: true},
		{Name: "chunked_prefill", Hard: true},
		{Name: "speculative_method", Hard: true},
		{Name: "speculative_tokens", Hard: true, most: 1e4},
		{Name: "attention_backend", Hard: true},
		{Name: "enforce_eager", Hard: true},
		{Name: "max_loras", Hard: true, most: 1e6},
		{Name: "max_lora_rank", Hard: true, most: 1e6},
		{Name: "engine_type", Hard: true},
		{Name: "engine_version", Parts: 2},
		{Name: "driver_version", Parts: 1},
		{Name: "cuda_version"},
		{Name: "power_limit_watts", Tolerance: powerTolerance, most: 1e5},
		{Name: "max_sm_clock_hertz", most: 1e11},
		{Name: "interconnect"},
	}
	t := reflect.TypeFor[Identity]()
	for i := range table {
		for j := range t.NumField() {
			if key, _, _ := strings.Cut(t.Field(j).Tag.Get("json"), ","); key == table[i].Name {
				table[i].index = j
			}
		}
	}
	return table
}()

// Fields are the fields of an identity, in the order in which they are shown.
func Fields() []Field { return slices.Clone(fields) }

// FieldNames are their names.
func FieldNames() []string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	return names
}

// fieldNamed is the field with a name.
func fieldNamed(name string) (*Field, error) {
	for i := range fields {
		if fields[i].Name == name {
			return &fields[i], nil
		}
	}
	return nil, fmt.Errorf("identity has no field %q, want one of %s", name, strings.Join(FieldNames(), ", "))
}

// Get is a field's value as text; empty when it is not known.
func (i *Identity) Get(name string) (string, error) {
	f, err := fieldNamed(name)
	if err != nil {
		return "", err
	}
	return f.Text(i), nil
}

// Set gives a field a value by its text: a number in the field's unit, true
// or false, or a text. An empty text makes it unknown.
func (i *Identity) Set(name, value string) error {
	f, err := fieldNamed(name)
	if err != nil {
		return err
	}
	v := reflect.ValueOf(i).Elem().Field(f.index)
	if value == "" {
		v.SetZero()
		return nil
	}
	if err := f.check(value); err != nil {
		return err
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(value)
	case reflect.Int:
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || n < 1 {
			return fmt.Errorf("%s is %q, want a whole number above 0", name, value)
		}
		v.SetInt(n)
	case reflect.Float64:
		x, err := strconv.ParseFloat(value, 64)
		if err != nil || !(x > 0) || math.IsInf(x, 0) {
			return fmt.Errorf("%s is %q, want a number above 0", name, value)
		}
		v.SetFloat(x)
	case reflect.Pointer:
		b, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("%s is %q, want true or false", name, value)
		}
		v.Set(reflect.ValueOf(&b))
	}
	return nil
}

// check returns an error for a text that the field cannot have, or a number beyond it.
func (f *Field) check(value string) error {
	if value != "" && f.oneOf != nil && !slices.Contains(f.oneOf, value) {
		return fmt.Errorf("%s is %q, want one of %s", f.Name, value, strings.Join(f.oneOf, ", "))
	}
	if x, err := strconv.ParseFloat(value, 64); err == nil && f.most > 0 && x > f.most && !math.IsInf(x, 0) {
		return fmt.Errorf("%s is %.4g, want at most %g", f.Name, x, f.most)
	}
	return nil
}

// Text is the field's value in an identity; empty when it is not known.
func (f *Field) Text(i *Identity) string {
	v := reflect.ValueOf(i).Elem().Field(f.index)
	if v.IsZero() {
		return ""
	}
	switch v.Kind() {
	case reflect.Int:
		return strconv.FormatInt(v.Int(), 10)
	case reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'f', -1, 64)
	case reflect.Pointer:
		return strconv.FormatBool(v.Elem().Bool())
	}
	return v.String()
}

// same tells whether two values, both known, do not differ.
func (f *Field) same(stored, live string) bool {
	switch {
	case stored == live:
		return true
	case f.Tolerance > 0:
		a, errA := strconv.ParseFloat(stored, 64)
		b, errB := strconv.ParseFloat(live, 64)
		return errA == nil && errB == nil && math.Abs(b-a) <= f.Tolerance*a
	case f.Parts > 0:
		return leading(stored, f.Parts) == leading(live, f.Parts)
	}
	return false
}

// leading is the first parts of a version, such as 0.11 of v0.11.1rc2.dev5+g1234; all
// of it when it does not begin with numbers.
func leading(version string, parts int) string {
	split := strings.SplitN(strings.TrimPrefix(version, "v"), ".", parts+1)
	if len(split) < parts {
		return version
	}
	for i, p := range split[:parts] {
		digits := p[:len(p)-len(strings.TrimLeft(p, "0123456789"))]
		// Only the last part may go on with something else, as the 11 of 0.11rc1 does.
		if digits == "" || digits != p && i < parts-1 {
			return version
		}
		split[i] = digits
	}
	return strings.Join(split[:parts], ".")
}
