package probe

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// split reads a stream to its end and returns "name|data" of every event.
func split(r io.Reader) (events []string, err error) {
	var s eventReader
	s.reset(r, func() time.Duration { return 0 })
	for {
		e, err := s.next()
		if err == io.EOF {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		mark := ""
		if e.unfinished {
			mark = "|unfinished"
		}
		events = append(events, string(e.name)+"|"+string(e.data)+mark)
	}
}

// TestEvents follows the HTML standard, section 9.2.6; the second group are
// its examples.
func TestEvents(t *testing.T) {
	for _, test := range []struct {
		name, stream string
		want         []string
	}{
		{"plain", "data: a\n\ndata: b\n\n", []string{"|a", "|b"}},
		{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"|a", "|b"}},
		{"CR", "data: a\r\rdata: b\r\r", []string{"|a", "|b"}},
		{"mixed ends", "data: a\r\n\ndata: b\n\r\n", []string{"|a", "|b"}},
		{"no space", "data:a\n\n", []string{"|a"}},
		{"one space only is taken", "data:  a\n\n", []string{"| a"}},
		{"comments", ": ping\n\n:\n\ndata: a\n: in between\n\n", []string{"|a"}},
		{"several data lines", "data: a\ndata: b\n\n", []string{"|a\nb"}},
		{"name", "event: error\ndata: a\n\ndata: b\n\n", []string{"error|a", "|b"}},
		{"name alone gives no event", "event: x\n\ndata: b\n\n", []string{"|b"}},
		{"other fields", "id: 1\nretry: 10\ndata: a\nunknown\n\n", []string{"|a"}},
		{"byte order mark", "\xef\xbb\xbfdata: a\n\n", []string{"|a"}},
		{"many blank lines", "\n\n\ndata: a\n\n\n\n", []string{"|a"}},
		{"no end", "data: a\n\ndata: b", []string{"|a", "|b|unfinished"}},
		{"no blank line at the end", "data: a\n", []string{"|a|unfinished"}},
		{"empty", "", nil},
		{"carriage return inside a value", "data: a\rdata: b\n\n", []string{"|a\nb"}},

		{"example: first stream", "data: YHOO\ndata: +2\ndata: 10\n\n", []string{"|YHOO\n+2\n10"}},
		{"example: test stream", ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n", []string{"|first event", "|second event", "| third event"}},
		{"example: empty data", "data\n\ndata\ndata\n\ndata:\n\n", []string{"|", "|\n", "|"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for what, r := range map[string]io.Reader{
				"at once":      strings.NewReader(test.stream),
				"byte by byte": iotest.OneByteReader(strings.NewReader(test.stream)),
				"with its end": iotest.DataErrReader(strings.NewReader(test.stream)),
				"in halves":    iotest.HalfReader(strings.NewReader(test.stream)),
			} {
				got, err := split(r)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(test.want, got); d != "" {
					t.Errorf("%s: -want +got\n%s", what, d)
				}
			}
		})
	}
}

// TestEventIsStampedWhenComplete: the time is that of the read that brought
// the event's last byte, not of the read that brought the next ones.
func TestEventIsStampedWhenComplete(t *testing.T) {
	parts := []string{"data: a", "\n\nda", "ta: b\n\ndata: c\n\n", "data: d\r\n\r", "\ndata: e\n\n"}
	want := map[string]time.Duration{"a": 2, "b": 3, "c": 3, "d": 4, "e": 5}
	read := 0
	var s eventReader
	s.reset(readerFunc(func(p []byte) (int, error) {
		if read == len(parts) {
			return 0, io.EOF
		}
		read++
		return copy(p, parts[read-1]), nil
	}), func() time.Duration { return time.Duration(read) })
	for range want {
		e, err := s.next()
		if err != nil {
			t.Fatal(err)
		}
		if w := want[string(e.data)]; e.at != w || time.Duration(read) != w {
			t.Errorf("event %s at %d after %d reads, want %d", e.data, e.at, read, w)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestEventsBreakOff(t *testing.T) {
	broken := errors.New("connection reset")
	got, err := split(io.MultiReader(strings.NewReader("data: a\n\ndata: half"), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if d := cmp.Diff([]string{"|a"}, got); d != "" {
		t.Error(d)
	}
	if _, err := split(readerFunc(func(p []byte) (int, error) { return copy(p, bytes.Repeat([]byte("x"), len(p))), nil })); !errors.Is(err, errEventTooLarge) {
		t.Errorf("an endless line gives %v", err)
	}
	if _, err := split(readerFunc(func(p []byte) (int, error) { return 0, nil })); err == nil {
		t.Error("a reader that gives nothing for ever gives no error")
	}
}

// FuzzEvents: however a stream is cut into reads, its events are the same, and
// the short way never differs from the long one.
func FuzzEvents(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.sse")
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:min(len(b), 2000)], 7)
	}
	f.Add([]byte("data: a\r\n\rdata: b\n\r\ndata"), 1)
	f.Fuzz(func(t *testing.T, stream []byte, size int) {
		if len(stream) > 1<<16 {
			return
		}
		size = 1 + (size&0xffff)%64
		whole, err1 := split(bytes.NewReader(stream))
		rest := stream
		parts, err2 := split(readerFunc(func(p []byte) (int, error) {
			if len(rest) == 0 {
				return 0, io.EOF
			}
			n := copy(p, rest[:min(size, len(rest))])
			rest = rest[n:]
			return n, nil
		}))
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if d := cmp.Diff(whole, parts); d != "" {
			t.Errorf("-at once +in parts of %d\n%s", size, d)
		}
	})
}

func BenchmarkEvents(b *testing.B) {
	one := []byte(`data: {"id":"cmpl-a8c78b68f5b7f383","object":"text_completion","created":1795956765,"model":"tiny","choices":[{"index":0,"text":"]","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":[97]}]}` + "\n\n")
	var s eventReader
	s.reset(readerFunc(func(p []byte) (int, error) { return copy(p, one), nil }), func() time.Duration { return 0 })
	var c chunk
	b.ReportAllocs()
	for b.Loop() {
		e, err := s.next()
		if err != nil {
			b.Fatal(err)
		}
		if err := parseChunk(e.data, &c); err != nil {
			b.Fatal(err)
		}
	}
}
