package knee

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/workload"
)

// counted is an engine that does the same for each load, of n requests, and counts them.
type counted struct {
	n, runs int
	err     error
	void    bool
}

func (e *counted) Run(ctx context.Context, l *Load, m Monitor) (*Observation, error) {
	e.runs++
	return observed(l.Name, e.n, !e.void), e.err
}

// observed is an observation with what is hard to write: NaN, fractions, several classes.
func observed(name string, n int, valid bool) *Observation {
	u := capacity.Unknown()
	q := curve.Quantiles{N: float64(n), Mean: 0.1, P10: u, P50: 0.1, P90: u, P95: u, P99: u, P999: u, Max: 0.3}
	o := &Observation{Stopped: "enough", Point: curve.Point{
		Name: name, OfferedRate: 2, CompletedRate: u, Engine: curve.UnknownEngineReadings(), TTFT: q, ITL: q, TPOT: q, E2E: q,
		Client: curve.ClientReadings{LagP99: u, CPUShare: 0.25},
		Gates:  []curve.Gate{{Name: "client", Kind: curve.GateInvalid, Passed: &valid, Low: u, High: u}},
	}}
	for i := range n {
		r := Request{
			Class: i % 2, Due: float64(i) * 0.333333, TTFT: 0.123456, TPOT: 0.01, E2E: 1.5, OK: i%7 != 0,
			PromptTokens: 100 + i, OutputTokens: 20, Over: []float64{0, 1.5}[:1+i%2], Of: []float64{1, 19.25}[:1+i%2],
		}
		r.End = r.Due + 1.5
		if !r.OK {
			r.TTFT, r.TPOT, r.E2E = math.NaN(), math.NaN(), math.NaN()
		}
		o.Requests = append(o.Requests, r)
	}
	for i := range 10 {
		o.Samples = append(o.Samples, Sample{At: float64(i) / 4, Running: 3, Waiting: math.NaN(), KVUsage: 0.125, Due: i, Done: i / 2, Unsent: 1})
	}
	return o
}

func someLoad(name string) *Load {
	return &Load{
		Name: name, Purpose: curve.PurposeProbe, Steps: []Step{{2, time.Minute}}, Seed: 7,
		Traffic: &Traffic{Name: "chat", Classes: []workload.Class{{Name: "chat", Weight: 1, Prompt: workload.FixedLength(8), Output: workload.FixedLength(4)}}},
	}
}

// same compares observations, with NaN equal to itself.
func same(t *testing.T, got, want *Observation) {
	t.Helper()
	var texts [2]bytes.Buffer
	for i, o := range []*Observation{got, want} {
		s, err := store("", "", o)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.NewEncoder(&texts[i]).Encode(s); err != nil {
			t.Fatal(err)
		}
	}
	if texts[0].String() != texts[1].String() {
		t.Errorf("got  %s\nwant %s", texts[0].String(), texts[1].String())
	}
}

var someHeader = JournalHeader{Config: "abc", Fields: map[string]string{"model": "m", "seed": "1"}}

// TestJournal: what it holds is not measured again, and is what was returned before.
func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	engine := &counted{n: 50}
	j, err := OpenJournal(path, someHeader, engine)
	if err != nil {
		t.Fatal(err)
	}
	var first []*Observation
	for _, name := range []string{"a", "b"} {
		o, err := j.Run(t.Context(), someLoad(name), nil)
		if err != nil {
			t.Fatal(err)
		}
		same(t, o, observed(name, 50, true))
		first = append(first, o)
		// The search writes on what it is given.
		o.Point.Gates = append(o.Point.Gates, curve.Gate{Name: "slo"})
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if j, err = OpenJournal(path, someHeader, engine); err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for i, name := range []string{"a", "b"} {
		m := &told{}
		o, err := j.Run(t.Context(), someLoad(name), m)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(exact(o), exact(first[i])) || len(o.Point.Gates) != 1 {
			t.Errorf("%s: another observation than the first time", name)
		}
		if m.requests != 50 || m.samples != 10 || m.disorder {
			t.Errorf("the monitor was told of %d requests and %d samples, out of order: %t", m.requests, m.samples, m.disorder)
		}
	}
	other := someLoad("a")
	other.Seed++
	if _, err := j.Run(t.Context(), other, nil); err != nil || engine.runs != 3 || j.Stored() != 3 {
		t.Errorf("%d runs, %d stored, error %v; want a load with another seed to be run", engine.runs, j.Stored(), err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(b, []byte("\n"))
	o := &storedObservation{}
	if err := json.Unmarshal(lines[1], o); err != nil {
		t.Fatal(err)
	}
	requests, _ := json.Marshal(o.Requests)
	if per := len(requests) / 50; per > 64 {
		t.Errorf("a request takes %d bytes", per)
	}
}

// exact replaces NaN, which is not equal to itself.
func exact(o *Observation) []Request {
	requests := append([]Request(nil), o.Requests...)
	for i := range requests {
		q := &requests[i]
		for _, v := range []*float64{&q.TTFT, &q.TPOT, &q.E2E} {
			if math.IsNaN(*v) {
				*v = -1
			}
		}
	}
	return requests
}

type told struct {
	requests, samples int
	last              float64
	disorder          bool
}

func (m *told) at(t float64) {
	m.disorder = m.disorder || t < m.last
	m.last = t
}
func (m *told) Request(q Request)      { m.requests++; m.at(q.End) }
func (m *told) Sample(s Sample) string { m.samples++; m.at(s.At); return "too late" }

// TestJournalKeepsWhatCounts: neither errors nor what a gate voids.
func TestJournalKeepsWhatCounts(t *testing.T) {
	for _, test := range []struct {
		name   string
		engine *counted
	}{
		{"error", &counted{err: ErrHarm}},
		{"void", &counted{void: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			j, err := OpenJournal(filepath.Join(t.TempDir(), "journal"), someHeader, test.engine)
			if err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			for range 2 {
				if o, err := j.Run(t.Context(), someLoad("a"), nil); o == nil || !errors.Is(err, test.engine.err) {
					t.Errorf("observation %v, error %v", o, err)
				}
			}
			if j.Stored() != 0 || test.engine.runs != 2 {
				t.Errorf("%d stored, %d runs", j.Stored(), test.engine.runs)
			}
		})
	}
}

// TestJournalRefuses names what differs, and leaves the file alone.
func TestJournalRefuses(t *testing.T) {
	written := func(t *testing.T) []byte {
		path := filepath.Join(t.TempDir(), "journal")
		j, err := OpenJournal(path, someHeader, &counted{n: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b", "c"} {
			if _, err := j.Run(t.Context(), someLoad(name), nil); err != nil {
				t.Fatal(err)
			}
		}
		j.Close()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}(t)
	lines := bytes.SplitAfter(written, []byte("\n"))
	for _, test := range []struct {
		name    string
		content []byte
		header  JournalHeader
		want    string
	}{
		{"another seed", written, JournalHeader{Config: "x", Fields: map[string]string{"model": "m", "seed": "2"}}, "seed was 1 and is 2"},
		{"another field", written, JournalHeader{Config: "x", Fields: map[string]string{"model": "m", "seed": "1", "slo": "s"}}, "slo was not given and is s"},
		{"another configuration", written, JournalHeader{Config: "x", Fields: someHeader.Fields}, "another configuration"},
		{"no journal", []byte("dear diary\n"), someHeader, "no journal"},
		{"no journal, one line", []byte("dear diary"), someHeader, "no journal"},
		{"other JSON", []byte("{}\n{}\n"), someHeader, "no journal"},
		{"another version", []byte(`{"schema":"knee-journal/v9"}` + "\n"), someHeader, "knee-journal/v9"},
		{"damage", bytes.Join([][]byte{lines[0], []byte("garbage\n"), lines[2]}, nil), someHeader, "line 2 is damaged"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal")
			if err := os.WriteFile(path, test.content, 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenJournal(path, test.header, &counted{}); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, test.content) {
				t.Errorf("the file was changed, or %v", err)
			}
		})
	}
}

// memory is a file that takes so many bytes.
type memory struct {
	bytes.Reader
	data []byte
	room int
}

func (f *memory) WriteAt(b []byte, at int64) (int, error) {
	n := min(len(b), max(f.room-int(at), 0))
	f.data = append(f.data[:at], b[:n]...)
	if n < len(b) {
		return n, syscall.ENOSPC
	}
	return n, nil
}
func (f *memory) Sync() error               { return nil }
func (f *memory) Close() error              { return nil }
func (f *memory) Truncate(size int64) error { f.data = f.data[:size]; return nil }

func reopened(t *testing.T, data []byte, e Engine) (*Journal, *memory, error) {
	f := &memory{data: bytes.Clone(data), room: math.MaxInt}
	f.Reset(data)
	j, err := openJournal(f, "journal", someHeader, e)
	return j, f, err
}

// TestJournalCutAnywhere: a file cut at any byte goes on after its last whole line.
func TestJournalCutAnywhere(t *testing.T) {
	engine := &counted{n: 3}
	j, f, err := reopened(t, nil, engine)
	if err != nil {
		t.Fatal(err)
	}
	var ends []int
	ends = append(ends, len(f.data))
	for _, name := range []string{"a", "b"} {
		if _, err := j.Run(t.Context(), someLoad(name), nil); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, len(f.data))
	}
	whole := bytes.Clone(f.data)
	for cut := range len(whole) {
		if cut > ends[1] && cut%97 != 0 && cut < len(whole)-2 {
			continue // every byte of the header and of a line, and some behind another line
		}
		stored := 0
		for _, end := range ends[1:] {
			if cut >= end {
				stored++
			}
		}
		j, f, err := reopened(t, whole[:cut], engine)
		if err != nil || j.Stored() != stored {
			t.Fatalf("cut at %d of %d: %v", cut, len(whole), err)
		}
		if cut%97 != 0 {
			continue
		}
		for _, name := range []string{"a", "b"} {
			if _, err := j.Run(t.Context(), someLoad(name), nil); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(f.data, whole) {
			t.Fatalf("cut at %d: the file is another one after going on", cut)
		}
	}
}

// TestJournalOnAFullDisk: the error is clear, what was measured is returned,
// and the file can be read, wherever the room ended.
func TestJournalOnAFullDisk(t *testing.T) {
	_, f, err := reopened(t, nil, &counted{})
	if err != nil {
		t.Fatal(err)
	}
	header := len(f.data)
	j, f, err := reopened(t, f.data, &counted{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Run(t.Context(), someLoad("a"), nil); err != nil {
		t.Fatal(err)
	}
	line := len(f.data) - header
	one := bytes.Clone(f.data)
	for _, room := range []int{0, 1, line / 2, line - 1} {
		engine := &counted{n: 5}
		j, f, err := reopened(t, one, engine)
		if err != nil {
			t.Fatal(err)
		}
		f.room = len(one) + room
		o, err := j.Run(t.Context(), someLoad("b"), nil)
		if o == nil || !errors.Is(err, ErrJournal) || !errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), "\n") {
			t.Errorf("observation %v, error %v", o, err)
		}
		if !bytes.Equal(f.data, one) {
			t.Errorf("with room for %d bytes the file is left with %d", room, len(f.data)-len(one))
		}
		if _, err := j.Run(t.Context(), someLoad("c"), nil); !errors.Is(err, ErrJournal) || engine.runs != 1 {
			t.Errorf("error %v, %d runs: want no load that cannot be kept", err, engine.runs)
		}
		if o, err := j.Run(t.Context(), someLoad("a"), nil); o == nil || err != nil {
			t.Errorf("what was stored: %v", err)
		}
	}
	if _, err := openJournal(&memory{}, "journal", someHeader, &counted{}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a journal that cannot begin: %v", err)
	}
}

// TestJournalInUse: a journal is of one search at a time, and is never taken from it.
func TestJournalInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	if err := JournalInUse(path); err != nil {
		t.Fatalf("no file: %v", err)
	}
	first, err := OpenJournal(path, someHeader, &counted{n: 2})
	if err != nil {
		t.Fatal(err)
	}
	if free, err := lockFile(reopen(t, path)); err != nil || free {
		t.Skip("no locks here:", err)
	}
	if _, err := first.Run(t.Context(), someLoad("a"), nil); err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func() error{
		"going on":    func() error { _, err := OpenJournal(path, someHeader, &counted{}); return err },
		"anew":        func() error { _, err := BeginJournal(path, someHeader, &counted{}); return err },
		"just asking": func() error { return JournalInUse(path) },
	} {
		if err := open(); !errors.Is(err, ErrInUse) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := JournalInUse(path); err != nil {
		t.Errorf("after its end: %v", err)
	}
	for _, test := range []struct {
		name   string
		open   func(string, JournalHeader, Engine) (*Journal, error)
		stored int
	}{{"going on", OpenJournal, 1}, {"anew", BeginJournal, 0}} {
		j, err := test.open(path, someHeader, &counted{})
		if err != nil || j.Stored() != test.stored {
			t.Fatalf("%s: %v", test.name, err)
		}
		if test.stored > 0 {
			j.Close()
			continue
		}
		if err := j.Remove(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("removed: %v", err)
	}
}

func reopen(t *testing.T, path string) *os.File {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// scriptedVoid voids the loads with the names given.
type scriptedVoid struct {
	void []string
	ran  []string
}

func (e *scriptedVoid) Run(_ context.Context, l *Load, _ Monitor) (*Observation, error) {
	e.ran = append(e.ran, l.Name)
	return observed(l.Name, 3, !slices.Contains(e.void, l.Name)), nil
}

// TestJournalVoidLoads: a void load is not put again when its repetition was
// good, and is when none was.
func TestJournalVoidLoads(t *testing.T) {
	names := []string{"probe 1", "probe 1 again", "probe 1 again 2"}
	for _, test := range []struct {
		name   string
		void   int // so many of the first are
		put    int // so many were put before the cut
		again  []string
		stored int
	}{
		{"good at once", 0, 1, nil, 1},
		{"good at the second time", 1, 2, nil, 2},
		{"good at the third time", 2, 3, nil, 3},
		{"cut ahead of the repetition", 1, 1, names[:1], 0},
		{"void each time", 3, 3, names[:1], 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			put := func(j *Journal, upTo int) {
				l := someLoad(names[0])
				for n := range upTo {
					o, err := j.Run(t.Context(), l, nil)
					if err != nil {
						t.Fatal(err)
					}
					if invalid(&o.Point) == nil {
						return
					}
					repetition(l, n+1)
				}
			}
			j, f, err := reopened(t, nil, &scriptedVoid{void: names[:test.void]})
			if err != nil {
				t.Fatal(err)
			}
			put(j, test.put)
			second := &scriptedVoid{}
			if j, _, err = reopened(t, f.data, second); err != nil {
				t.Fatal(err)
			}
			if j.Stored() != test.stored {
				t.Errorf("%d stored, want %d", j.Stored(), test.stored)
			}
			put(j, len(names))
			if !slices.Equal(second.ran, test.again) {
				t.Errorf("put again: %q, want %q", second.ran, test.again)
			}
		})
	}
}

// TestJournalOfTwoRuns: times count from the first run's start, and both engines are named.
func TestJournalOfTwoRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for run, test := range []struct {
		engine string
		starts map[string]float64
		all    []string
	}{
		{"http://a", map[string]float64{"a": 0}, []string{"http://a"}},
		{"http://b", map[string]float64{"a": 0, "b": 3600}, []string{"http://a", "http://b"}},
		{"http://a", map[string]float64{"a": 0, "b": 3600, "c": 7200}, []string{"http://a", "http://b"}},
	} {
		h := someHeader
		h.Started, h.Engine = start.Add(time.Duration(run)*time.Hour), test.engine
		j, err := OpenJournal(path, h, &counted{n: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b", "c"}[:run+1] {
			o, err := j.Run(t.Context(), someLoad(name), nil)
			if err != nil || o.Point.Start != test.starts[name] {
				t.Errorf("run %d, load %s: start %g, %v", run, name, o.Point.Start, err)
			}
		}
		if !j.Started().Equal(start) || !slices.Equal(j.Engines(), test.all) {
			t.Errorf("run %d: started %s, on %q", run, j.Started(), j.Engines())
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzJournal(f *testing.F) {
	file := &memory{room: math.MaxInt}
	j, err := openJournal(file, "journal", someHeader, &counted{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.Clone(file.data))
	if _, err := j.Run(context.Background(), someLoad("a"), nil); err != nil {
		f.Fatal(err)
	}
	f.Add(file.data)
	f.Fuzz(func(t *testing.T, data []byte) {
		file := &memory{data: bytes.Clone(data), room: math.MaxInt}
		file.Reset(data)
		j, err := openJournal(file, "journal", someHeader, &counted{})
		if err != nil {
			return
		}
		before := j.Stored()
		if _, err := j.Run(t.Context(), someLoad("another"), nil); err != nil {
			t.Fatal(err)
		}
		again := &memory{data: bytes.Clone(file.data), room: math.MaxInt}
		again.Reset(file.data)
		j, err = openJournal(again, "journal", someHeader, &counted{})
		if err != nil || j.Stored() < before {
			t.Fatalf("%d stored, then %v", before, err)
		}
	})
}
