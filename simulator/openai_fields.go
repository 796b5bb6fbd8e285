package simulator

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// fields reads the members of a request's object as pydantic does in its lax
// mode, and collects what is wrong. An absent or null member leaves the default.
type fields struct {
	object map[string]json.RawMessage
	// prefix is the dotted path of the object.
	prefix string
	faults []fault
}

func (f *fields) fault(name, kind, message string, raw json.RawMessage) {
	f.faults = append(f.faults, fault{
		kind: kind, location: f.prefix + "." + name, message: message, input: pythonInput(raw),
	})
}

// get returns a member's text; false when it is absent or null.
func (f *fields) get(name string) (json.RawMessage, bool) {
	raw := bytes.TrimSpace(f.object[name])
	return raw, len(raw) > 0 && raw[0] != 'n'
}

func (f *fields) text(name, fallback string) string {
	raw, ok := f.get(name)
	if !ok {
		return fallback
	}
	var v string
	if json.Unmarshal(raw, &v) != nil {
		f.fault(name, "string_type", "Input should be a valid string", raw)
	}
	return v
}

func (f *fields) integer(name string, fallback int) int {
	raw, ok := f.get(name)
	if !ok {
		return fallback
	}
	v, kind, message := laxInteger(raw)
	if kind != "" {
		f.fault(name, kind, message, raw)
	}
	return v
}

// laxInteger reads a number without a fraction, or a string or truth value
// that stands for one; kind and message say why it cannot.
func laxInteger(raw json.RawMessage) (v int, kind, message string) {
	var digits string
	switch raw[0] {
	case 't':
		return 1, "", ""
	case 'f':
		return 0, "", ""
	case '"':
		if json.Unmarshal(raw, &digits) == nil {
			if v, err := strconv.Atoi(strings.TrimSpace(digits)); err == nil {
				return v, "", ""
			}
		}
		return 0, "int_parsing", "Input should be a valid integer, unable to parse string as an integer"
	case '{', '[', 'n':
		return 0, "int_type", "Input should be a valid integer"
	}
	if v, err := strconv.Atoi(string(raw)); err == nil {
		return v, "", ""
	}
	x, err := strconv.ParseFloat(string(raw), 64)
	switch {
	case err != nil || math.Abs(x) >= 1<<53:
		return 0, "int_parsing_size", "Unable to parse input string as an integer, exceeded maximum size"
	case x != math.Trunc(x):
		return 0, "int_from_float", "Input should be a valid integer, got a number with a fractional part"
	}
	return int(x), "", ""
}

func (f *fields) number(name string, fallback float64) float64 {
	raw, ok := f.get(name)
	if !ok {
		return fallback
	}
	switch raw[0] {
	case 't':
		return 1
	case 'f':
		return 0
	case '{', '[':
		f.fault(name, "float_type", "Input should be a valid number", raw)
		return 0
	}
	text := string(raw)
	if raw[0] == '"' {
		_ = json.Unmarshal(raw, &text)
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		f.fault(name, "float_parsing", "Input should be a valid number, unable to parse string as a number", raw)
	}
	return v
}

func (f *fields) truth(name string, fallback bool) bool {
	raw, ok := f.get(name)
	if !ok {
		return fallback
	}
	text := string(raw)
	switch raw[0] {
	case '{', '[':
		f.fault(name, "bool_type", "Input should be a valid boolean", raw)
		return false
	case '"':
		_ = json.Unmarshal(raw, &text)
	}
	switch strings.ToLower(text) {
	case "true", "1", "1.0", "yes", "on", "t", "y":
		return true
	case "false", "0", "0.0", "no", "off", "f", "n":
		return false
	}
	f.fault(name, "bool_parsing", "Input should be a valid boolean, unable to interpret input", raw)
	return false
}

// isSet is Python's truth of a member.
func (f *fields) isSet(name string) bool {
	raw, ok := f.get(name)
	if !ok {
		return false
	}
	switch string(raw) {
	case "false", "0", "0.0", `""`, "[]", "{}":
		return false
	}
	return true
}

// prompts reads one text, one list of token ids, or a list of either.
func (f *fields) prompts(name string) [][]int {
	raw, ok := f.get(name)
	if !ok {
		return nil
	}
	switch raw[0] {
	case '"':
		var text string
		if json.Unmarshal(raw, &text) == nil {
			return [][]int{tokenize(text)}
		}
	case '[':
		var ids []int
		if json.Unmarshal(raw, &ids) == nil && allNatural(ids) {
			if len(ids) == 0 {
				return nil
			}
			return [][]int{ids}
		}
		var lists [][]int
		if json.Unmarshal(raw, &lists) == nil && !hasNull(raw) {
			natural := true
			for _, list := range lists {
				natural = natural && allNatural(list)
			}
			if natural {
				return lists
			}
		}
		var texts []string
		if json.Unmarshal(raw, &texts) == nil && !hasNull(raw) {
			lists = make([][]int, len(texts))
			for i, text := range texts {
				lists[i] = tokenize(text)
			}
			return lists
		}
	}
	f.promptFaults(name, raw)
	return nil
}

func allNatural(ids []int) bool {
	for _, id := range ids {
		if id < 0 {
			return false
		}
	}
	return true
}

// hasNull finds a null among a list's elements, which encoding/json takes for a zero value.
func hasNull(raw json.RawMessage) bool {
	var elements []json.RawMessage
	_ = json.Unmarshal(raw, &elements)
	for _, e := range elements {
		if string(e) == "null" {
			return true
		}
	}
	return false
}

// promptFaults lists what each of the four types that a prompt may have finds wrong.
func (f *fields) promptFaults(name string, raw json.RawMessage) {
	var elements []json.RawMessage
	isList := raw[0] == '['
	if isList {
		_ = json.Unmarshal(raw, &elements)
	}
	element := func(i int) string { return name + "." + strconv.Itoa(i) }
	const wantString, wantList = "Input should be a valid string", "Input should be a valid list"

	if !isList {
		f.fault(name, "list_type", wantList, raw)
		f.fault(name, "list_type", wantList, raw)
		f.fault(name, "string_type", wantString, raw)
		f.fault(name, "list_type", wantList, raw)
		return
	}
	for i, e := range elements {
		f.naturalFault(element(i), e)
	}
	for i, e := range elements {
		if e[0] != '[' {
			f.fault(element(i), "list_type", wantList, e)
			continue
		}
		var inner []json.RawMessage
		_ = json.Unmarshal(e, &inner)
		for k, x := range inner {
			f.naturalFault(element(i)+"."+strconv.Itoa(k), x)
		}
	}
	f.fault(name, "string_type", wantString, raw)
	for i, e := range elements {
		if e[0] != '"' {
			f.fault(element(i), "string_type", wantString, e)
		}
	}
}

// naturalFault notes an element that is no integer from 0 on.
func (f *fields) naturalFault(location string, raw json.RawMessage) {
	v, kind, message := laxInteger(raw)
	switch {
	case kind != "":
		f.fault(location, kind, message, raw)
	case v < 0:
		f.fault(location, "greater_than_equal", "Input should be greater than or equal to 0", raw)
		f.faults[len(f.faults)-1].context = "'ge': 0"
	}
}

// tokens reads a list of token ids, which must be there.
func (f *fields) tokens(name string) []int {
	raw, ok := f.object[name]
	if !ok {
		f.missing(name)
		return nil
	}
	var ids []int
	if json.Unmarshal(raw, &ids) == nil && ids != nil && allNatural(ids) && !hasNull(raw) {
		return ids
	}
	var elements []json.RawMessage
	if json.Unmarshal(raw, &elements) != nil || elements == nil {
		f.fault(name, "list_type", "Input should be a valid list", raw)
	}
	for i, e := range elements {
		f.naturalFault(name+"."+strconv.Itoa(i), e)
	}
	return nil
}

func (f *fields) missing(name string) {
	f.faults = append(f.faults, fault{
		kind: "missing", location: f.prefix + "." + name, message: "Field required",
		input: "<dict of " + strconv.Itoa(len(f.object)) + " items>",
	})
}

// failed returns the answer to the faults found; nil without any.
func (f *fields) failed() *apiError {
	if len(f.faults) == 0 {
		return nil
	}
	return validationError(f.faults...)
}
