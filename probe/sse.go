package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"
)

// maxEventBytes bounds one server-sent event; a longer one is no token.
const maxEventBytes = 4 << 20

var errEventTooLarge = fmt.Errorf("a server-sent event is longer than %d bytes", maxEventBytes)

// event is one server-sent event. Its slices are valid until the next call of next.
type event struct {
	// name is the event field, empty for an ordinary message.
	name []byte
	// data is the data lines, joined by line feeds.
	data []byte
	// at is when the event's last byte arrived.
	at time.Duration
	// unfinished tells that the stream ended before the blank line that ends an event.
	unfinished bool
}

// eventReader splits a byte stream into server-sent events as the HTML
// standard defines them (section 9.2.6). The time of an event is that of its
// bytes, whenever something comes to look at them.
type eventReader struct {
	r io.Reader
	// arrived is when what was read last had come.
	arrived func() time.Duration
	buf     []byte
	// buf[from:to] is read and not yet split.
	from, to int
	at       time.Duration
	reads    int
	err      error
	// skipLF: the line before ended in a carriage return that was the last byte then.
	skipLF bool
	begun  bool
	joined []byte
	name   []byte
}

// reset begins a new stream; the buffers are kept.
func (s *eventReader) reset(r io.Reader, arrived func() time.Duration) {
	if s.buf == nil {
		s.buf = make([]byte, 2<<10)
	}
	s.r, s.arrived = r, arrived
	s.from, s.to, s.reads, s.err = 0, 0, 0, nil
	s.skipLF, s.begun = false, false
	s.at = 0
}

// next returns the next event that has data. io.EOF ends a stream that was
// read to its end, whatever its last event was.
func (s *eventReader) next() (event, error) {
	if e, ok := s.plain(); ok {
		return e, nil
	}
	s.name, s.joined = s.name[:0], s.joined[:0]
	dataLines := 0
	for {
		line, complete, err := s.line()
		if err != nil && (err != io.EOF || len(line) == 0 && dataLines == 0) {
			return event{}, err
		}
		if complete && len(line) == 0 { // the blank line
			if dataLines == 0 {
				s.name = s.name[:0]
				continue
			}
			return event{name: s.name, data: s.joined, at: s.at}, nil
		}
		field, value := splitField(line)
		switch string(field) {
		case "data":
			if dataLines++; dataLines > 1 {
				s.joined = append(s.joined, '\n')
			}
			s.joined = append(s.joined, value...)
			if len(s.joined) > maxEventBytes {
				return event{}, errEventTooLarge
			}
		case "event":
			s.name = append(s.name[:0], value...)
		}
		if err == io.EOF {
			if dataLines == 0 {
				return event{}, io.EOF
			}
			return event{name: s.name, data: s.joined, at: s.at, unfinished: true}, nil
		}
	}
}

var (
	dataField = []byte("data: ")
	bom       = []byte("\xef\xbb\xbf")
)

// plain is the short way for what engines send: one data line that is in the
// buffer as a whole, ended by line feeds. It neither copies nor reads.
func (s *eventReader) plain() (event, bool) {
	if s.skipLF || !s.begun {
		return event{}, false
	}
	b := s.buf[s.from:s.to]
	if !bytes.HasPrefix(b, dataField) {
		return event{}, false
	}
	end := bytes.IndexByte(b, '\n')
	if end < 0 || end+1 >= len(b) || b[end+1] != '\n' || bytes.IndexByte(b[:end], '\r') >= 0 {
		return event{}, false
	}
	s.from += end + 2
	return event{data: b[len(dataField):end], at: s.at}, true
}

// splitField parts a line at its first colon; a space after it is no part of the value.
func splitField(line []byte) (field, value []byte) {
	colon := bytes.IndexByte(line, ':')
	if colon < 0 {
		return line, nil
	}
	value = line[colon+1:]
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	return line[:colon], value
}

// line returns the next line without its end: CR, LF or both. complete is
// false for what is left at the end of the stream, which comes with io.EOF.
func (s *eventReader) line() (line []byte, complete bool, err error) {
	searched := 0
	for {
		if s.skipLF && s.from < s.to {
			if s.buf[s.from] == '\n' {
				s.from++
			}
			s.skipLF = false
		}
		if !s.begun {
			if b := s.buf[s.from:s.to]; len(b) >= len(bom) || s.err != nil || !bytes.HasPrefix(bom, b) {
				s.begun = true
				if bytes.HasPrefix(b, bom) {
					s.from += len(bom)
				}
			}
		}
		if s.begun {
			b := s.buf[s.from:s.to]
			searched = min(searched, len(b))
			if i := indexLineEnd(b[searched:]); i >= 0 {
				i += searched
				s.from += i + 1
				switch {
				case b[i] == '\n':
				case i+1 == len(b):
					s.skipLF = true
				case b[i+1] == '\n':
					s.from++
				}
				return b[:i], true, nil
			}
			searched = len(b)
		}
		if s.err != nil {
			b := s.buf[s.from:s.to]
			s.from = s.to
			return b, false, s.err
		}
		if err := s.fill(); err != nil {
			return nil, false, err
		}
	}
}

func indexLineEnd(b []byte) int {
	lf := bytes.IndexByte(b, '\n')
	if lf >= 0 {
		b = b[:lf]
	}
	if cr := bytes.IndexByte(b, '\r'); cr >= 0 {
		return cr
	}
	return lf
}

// fill reads once more and takes the time. A read error is kept for when the
// bytes before it are used up.
func (s *eventReader) fill() error {
	if s.from > 0 {
		copy(s.buf, s.buf[s.from:s.to])
		s.to -= s.from
		s.from = 0
	}
	if s.to == len(s.buf) {
		if len(s.buf) >= maxEventBytes {
			return errEventTooLarge
		}
		s.buf = append(s.buf, make([]byte, len(s.buf))...)
	}
	for empty := 0; ; empty++ {
		n, err := s.r.Read(s.buf[s.to:])
		if n > 0 {
			s.at = s.arrived()
			s.reads++
			s.to += n
		}
		if err != nil {
			s.err = err
		}
		if n > 0 || err != nil {
			return nil
		}
		if empty == 100 {
			return errors.New("reading the stream: no progress")
		}
	}
}
