package simulator

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"unicode/utf8"
)

// decodeObject reads a body that must be one JSON object, with FastAPI's
// answers to one that is not.
func decodeObject(body []byte) (map[string]json.RawMessage, *apiError) {
	if len(body) == 0 {
		return nil, validationError(fault{kind: "missing", location: "body", message: "Field required", input: "None"})
	}
	if !json.Valid(body) {
		where, what := findSyntaxError(body)
		return nil, validationError(fault{
			kind:     "json_invalid",
			location: "body." + strconv.Itoa(utf8.RuneCount(body[:where])),
			message:  "JSON decode error",
			input:    "<dict of 0 items>",
			context:  "'error': " + pythonString(what),
		})
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return nil, validationError(fault{
			kind:     "model_attributes_type",
			location: "body",
			message:  "Input should be a valid dictionary or object to extract fields from",
			input:    pythonInput(body),
		})
	}
	return fields, nil
}

// findSyntaxError tells where Python's json module stops in an invalid text,
// as a byte offset, and what it says.
func findSyntaxError(text []byte) (where int, what string) {
	s := &syntaxScanner{text: text}
	s.space()
	if s.value(0); s.what != "" {
		return s.at, s.what
	}
	s.space()
	return s.at, "Extra data"
}

// syntaxScanner walks a JSON text and stops, with what set, at its first error.
type syntaxScanner struct {
	text []byte
	at   int
	what string
}

// maxNesting is deeper than any request is and keeps the stack small.
const maxNesting = 1000

func (s *syntaxScanner) fail(at int, what string) { s.at, s.what = at, what }

// peek is the next byte, 0 at the end.
func (s *syntaxScanner) peek() byte {
	if s.at < len(s.text) {
		return s.text[s.at]
	}
	return 0
}

func (s *syntaxScanner) space() {
	for s.at < len(s.text) && bytes.IndexByte([]byte(" \t\n\r"), s.text[s.at]) >= 0 {
		s.at++
	}
}

var (
	jsonNumber  = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?`)
	jsonLiteral = regexp.MustCompile(`^(null|true|false|NaN|-?Infinity)`)
	hexDigits   = regexp.MustCompile(`^[0-9a-fA-F]{4}`)
)

func (s *syntaxScanner) value(depth int) {
	rest := s.text[s.at:]
	switch next := s.peek(); {
	case depth > maxNesting:
		s.fail(s.at, "Expecting value")
	case next == '"':
		s.str()
	case next == '{':
		s.object(depth)
	case next == '[':
		s.array(depth)
	case jsonLiteral.Match(rest):
		s.at += len(jsonLiteral.Find(rest))
	case jsonNumber.Match(rest):
		s.at += len(jsonNumber.Find(rest))
	default:
		s.fail(s.at, "Expecting value")
	}
}

func (s *syntaxScanner) object(depth int) {
	s.at++
	if s.space(); s.peek() == '}' {
		s.at++
		return
	}
	for {
		if s.peek() != '"' {
			s.fail(s.at, "Expecting property name enclosed in double quotes")
			return
		}
		if s.str(); s.what != "" {
			return
		}
		if s.space(); s.peek() != ':' {
			s.fail(s.at, "Expecting ':' delimiter")
			return
		}
		s.at++
		s.space()
		if s.value(depth + 1); s.what != "" {
			return
		}
		if s.separator('}') {
			return
		}
	}
}

func (s *syntaxScanner) array(depth int) {
	s.at++
	if s.space(); s.peek() == ']' {
		s.at++
		return
	}
	for {
		if s.value(depth + 1); s.what != "" {
			return
		}
		if s.separator(']') {
			return
		}
	}
}

// separator steps over a comma; it reports true at the closing bracket or at an error.
func (s *syntaxScanner) separator(closing byte) bool {
	s.space()
	switch s.peek() {
	case closing:
		s.at++
		return true
	case ',':
		s.at++
		s.space()
		return false
	}
	s.fail(s.at, "Expecting ',' delimiter")
	return true
}

func (s *syntaxScanner) str() {
	begin := s.at
	for s.at++; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '"':
			s.at++
			return
		case c < ' ':
			s.fail(s.at, "Invalid control character at")
			return
		case c == '\\':
			escape := s.at
			s.at++
			switch next := s.peek(); {
			case s.at >= len(s.text):
			case next == 'u':
				if !hexDigits.Match(s.text[s.at+1:]) {
					s.fail(s.at, "Invalid \\uXXXX escape")
					return
				}
				s.at += 4
			case bytes.IndexByte([]byte(`"\/bfnrt`), next) < 0:
				s.fail(escape, "Invalid \\escape")
				return
			}
		}
	}
	s.fail(begin, "Unterminated string starting at")
}
