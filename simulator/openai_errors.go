package simulator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// apiError is an answer with an error, as vLLM words it.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

// badRequest is a 400 about a parameter; param may be empty.
func badRequest(param, message string) *apiError {
	e := &apiError{Message: message, Type: "BadRequestError", Code: http.StatusBadRequest}
	if param != "" {
		e.Param = &param
	}
	return e
}

// badParameter is badRequest with the parameter and its value in the message;
// value is in Python's spelling and may be empty.
func badParameter(param, value, format string, args ...any) *apiError {
	message := fmt.Sprintf(format, args...) + " (parameter=" + param
	if value != "" {
		message += ", value=" + value
	}
	return badRequest(param, message+")")
}

func modelNotFound(asked, served string) *apiError {
	param := "model"
	return &apiError{
		Message: fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", asked, served),
		Type:    "NotFoundError",
		Param:   &param,
		Code:    http.StatusNotFound,
	}
}

// fault is one finding of pydantic's validation.
type fault struct {
	kind string
	// location is the dotted path of the field.
	location, message string
	// input is the offending value as Python's str gives it; context may be empty.
	input, context string
}

// maxReported is how many faults vLLM lists in one answer.
const maxReported = 10

// validationError puts faults into one answer; there is at least one.
func validationError(faults ...fault) *apiError {
	var b strings.Builder
	noun := "errors"
	if len(faults) == 1 {
		noun = "error"
	}
	fmt.Fprintf(&b, "%d validation %s:", len(faults), noun)
	for _, f := range faults[:min(len(faults), maxReported)] {
		fmt.Fprintf(&b, "\n  {'type': %s, 'loc': %s, 'msg': %s, 'input': %s",
			pythonString(f.kind), pythonString(f.location), pythonString(f.message), pythonString(f.input))
		if f.context != "" {
			b.WriteString(", 'ctx': {" + f.context + "}")
		}
		b.WriteByte('}')
	}
	if more := len(faults) - maxReported; more > 0 {
		fmt.Fprintf(&b, "\n  ...and %d more %s", more, noun)
	}
	param := faults[0].location
	return &apiError{Message: b.String(), Type: "Bad Request", Param: &param, Code: http.StatusBadRequest}
}

// pythonString is Python's repr of a string.
func pythonString(s string) string {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	b := append(make([]byte, 0, len(s)+2), quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r < ' ' || r == 0x7f:
			b = fmt.Appendf(b, `\x%02x`, r)
		case r >= 0x80 && !unicode.IsPrint(r):
			switch {
			case r < 0x100:
				b = fmt.Appendf(b, `\x%02x`, r)
			case r < 0x10000:
				b = fmt.Appendf(b, `\u%04x`, r)
			default:
				b = fmt.Appendf(b, `\U%08x`, r)
			}
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return string(append(b, quote))
}

// maxInput is the characters of a value that an answer repeats.
const maxInput = 200

// pythonInput is a JSON value as vLLM repeats it in an error.
func pythonInput(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return "None"
	}
	switch raw[0] {
	case '{':
		var v map[string]json.RawMessage
		if json.Unmarshal(raw, &v) == nil {
			return fmt.Sprintf("<dict of %d items>", len(v))
		}
	case '[':
		var v []json.RawMessage
		if json.Unmarshal(raw, &v) == nil {
			return fmt.Sprintf("<list of %d items>", len(v))
		}
	case '"':
		var v string
		if json.Unmarshal(raw, &v) == nil {
			return shortened(v)
		}
	case 'n':
		return "None"
	case 't':
		return "True"
	case 'f':
		return "False"
	}
	if v, err := strconv.ParseFloat(string(raw), 64); err == nil && bytes.ContainsAny(raw, ".eE") {
		return string(appendRepr(nil, v))
	}
	return shortened(string(raw))
}

func shortened(s string) string {
	if utf8.RuneCountInString(s) <= maxInput {
		return s
	}
	return string([]rune(s)[:maxInput]) + "...[truncated]"
}
