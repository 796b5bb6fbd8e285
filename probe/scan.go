package probe

import "bytes"

// scanner reads the JSON of a chunk in one pass and without memory of its
// own. Its methods return false for anything out of the ordinary, valid or
// not; encoding/json then has the word.
type scanner struct {
	b []byte
	i int
}

// maxDepth bounds how deep skipped values may nest.
const maxDepth = 64

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// take consumes a byte if it is the next one after white space.
func (s *scanner) take(c byte) bool {
	s.space()
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

func (s *scanner) end() bool {
	s.space()
	return s.i == len(s.b)
}

func (s *scanner) literal(text string) bool {
	if s.i+len(text) <= len(s.b) && string(s.b[s.i:s.i+len(text)]) == text {
		s.i += len(text)
		return true
	}
	return false
}

// str consumes a string and returns its inside as written; escaped tells that
// it holds an escape, so that what is written is not what is meant.
func (s *scanner) str() (inside []byte, escaped, ok bool) {
	if !s.take('"') {
		return nil, false, false
	}
	start := s.i
	for {
		quote := bytes.IndexByte(s.b[s.i:], '"')
		if quote < 0 {
			return nil, false, false
		}
		at := s.i + quote
		// A quote is escaped when an odd number of backslashes is before it.
		slashes := 0
		for k := at - 1; k >= start && s.b[k] == '\\'; k-- {
			slashes++
		}
		s.i = at + 1
		if slashes%2 == 0 {
			inside = s.b[start:at]
			return inside, bytes.IndexByte(inside, '\\') >= 0, true
		}
	}
}

// object calls member for every key; member consumes the value.
func (s *scanner) object(member func(key []byte) bool) bool {
	if !s.take('{') {
		return false
	}
	if s.take('}') {
		return true
	}
	for {
		key, escaped, ok := s.str()
		if !ok || escaped || !s.take(':') {
			return false
		}
		s.space()
		if !member(key) {
			return false
		}
		if s.take(',') {
			continue
		}
		return s.take('}')
	}
}

// null consumes a null.
func (s *scanner) null() bool {
	s.space()
	return s.literal("null")
}

// skip consumes any value.
func (s *scanner) skip(depth int) bool {
	s.space()
	if s.i >= len(s.b) || depth > maxDepth {
		return false
	}
	switch s.b[s.i] {
	case '"':
		_, _, ok := s.str()
		return ok
	case '{':
		s.i++
		if s.take('}') {
			return true
		}
		for {
			if _, _, ok := s.str(); !ok || !s.take(':') || !s.skip(depth+1) {
				return false
			}
			if !s.take(',') {
				return s.take('}')
			}
		}
	case '[':
		_, ok := s.array(depth)
		return ok
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	}
	return s.number()
}

// array consumes an array and returns how many values it holds.
func (s *scanner) array(depth int) (n int, ok bool) {
	if !s.take('[') {
		return 0, false
	}
	if s.take(']') {
		return 0, true
	}
	for {
		if !s.skip(depth + 1) {
			return 0, false
		}
		n++
		if !s.take(',') {
			return n, s.take(']')
		}
	}
}

// number consumes a plain integer; others are left to encoding/json.
func (s *scanner) number() bool {
	_, ok := s.integer()
	return ok
}

func (s *scanner) integer() (n int, ok bool) {
	s.space()
	start := s.i
	negative := s.i < len(s.b) && s.b[s.i] == '-'
	if negative {
		s.i++
	}
	digits := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		n = n*10 + int(s.b[s.i]-'0')
		s.i++
	}
	width := s.i - digits
	if width == 0 || width > 15 || (width > 1 && s.b[digits] == '0') {
		s.i = start
		return 0, false
	}
	if s.i < len(s.b) {
		switch s.b[s.i] {
		case '.', 'e', 'E':
			return 0, false
		}
	}
	if negative {
		n = -n
	}
	return n, true
}

// filledString consumes a string or null and tells whether it has text.
func (s *scanner) filledString() (filled, ok bool) {
	if s.null() {
		return false, true
	}
	inside, _, ok := s.str()
	return len(inside) > 0, ok
}

// raw consumes any value and returns it as written.
func (s *scanner) raw() ([]byte, bool) {
	s.space()
	start := s.i
	ok := s.skip(0)
	return s.b[start:s.i], ok
}

func (s *scanner) chunk(c *chunk) bool {
	return s.object(func(key []byte) bool {
		switch string(key) {
		case "choices":
			return s.choices(c)
		case "usage":
			return s.null() || s.usage(c)
		case "error":
			if s.null() {
				return true
			}
			raw, ok := s.raw()
			c.failure = raw
			return ok
		}
		return s.skip(0)
	})
}

func (s *scanner) choices(c *chunk) bool {
	if !s.take('[') {
		return false
	}
	if s.take(']') {
		return true
	}
	for {
		if !s.choice(c) {
			return false
		}
		c.choices++
		if !s.take(',') {
			return s.take(']')
		}
	}
}

func (s *scanner) choice(c *chunk) bool {
	return s.object(func(key []byte) bool {
		switch string(key) {
		case "text":
			filled, ok := s.filledString()
			c.text = c.text || filled
			return ok
		case "delta":
			return s.null() || s.delta(c)
		case "token_ids":
			return s.tokenIDs(c)
		case "finish_reason":
			if s.null() {
				return true
			}
			reason, _, ok := s.str()
			c.finish = finishOther
			if string(reason) == "length" {
				c.finish = finishLength
			}
			return ok
		}
		return s.skip(0)
	})
}

func (s *scanner) delta(c *chunk) bool {
	return s.object(func(key []byte) bool {
		var filled, ok bool
		switch string(key) {
		case "content":
			filled, ok = s.filledString()
			c.text = c.text || filled
		case "reasoning", "reasoning_content":
			filled, ok = s.filledString()
			c.reasoning = c.reasoning || filled
		case "tool_calls", "function_call":
			var raw []byte
			raw, ok = s.raw()
			switch string(raw) {
			case "null", "[]", "{}":
			default:
				c.tool = true
			}
		case "token_ids":
			ok = s.tokenIDs(c)
		default:
			ok = s.skip(0)
		}
		return ok
	})
}

func (s *scanner) tokenIDs(c *chunk) bool {
	if s.null() {
		return true
	}
	n, ok := s.array(0)
	c.tokenIDs = max(c.tokenIDs, 0) + n
	return ok
}

func (s *scanner) usage(c *chunk) bool {
	return s.object(func(key []byte) bool {
		switch string(key) {
		case "prompt_tokens":
			return s.count(&c.promptTokens)
		case "completion_tokens":
			return s.count(&c.completionTokens)
		case "prompt_tokens_details":
			return s.null() || s.object(func(key []byte) bool {
				if string(key) == "cached_tokens" {
					return s.count(&c.cachedTokens)
				}
				return s.skip(0)
			})
		}
		return s.skip(0)
	})
}

// count consumes a count or null.
func (s *scanner) count(into *int) bool {
	if s.null() {
		return true
	}
	n, ok := s.integer()
	if ok && n >= 0 {
		*into = n
	}
	return ok
}
