package knee

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/workload"
)

// JournalSchema is the version of the journal's form.
const JournalSchema = "knee-journal/v1"

// ErrJournal is of a load that was measured and could not be written down.
// What the journal held before can still be read.
var ErrJournal = errors.New("the journal cannot be written")

// JournalHeader says which search a journal belongs to.
type JournalHeader struct {
	Schema string `json:"schema"`
	// Config names the whole configuration, such as its hash: a journal goes on
	// with the same one only.
	Config string `json:"config"`
	// Fields are the configuration for a person, to tell what differs.
	Fields map[string]string `json:"fields,omitempty"`
	// Started is when the search began first, from which its points' starts count.
	Started time.Time `json:"started,omitzero"`
	// Engine is where the engine was reached. A search may go on elsewhere, as
	// long as the configuration is the same.
	Engine string `json:"engine,omitempty"`
}

// errNoJournal is of a file with something else in it.
var errNoJournal = errors.New("it is no journal of a search")

// parseHeader reads the first line of a journal.
func parseHeader(line []byte) (h JournalHeader, err error) {
	switch {
	case json.Unmarshal(line, &h) != nil || h.Schema == "":
		return h, errNoJournal
	case h.Schema != JournalSchema:
		return h, fmt.Errorf("its form is %q, and this program knows %q", h.Schema, JournalSchema)
	}
	return h, nil
}

// ReadJournalHeader says which search the journal in a file belongs to. The
// error is of a file that cannot be read, or that is none.
func ReadJournalHeader(path string) (JournalHeader, error) {
	f, err := os.Open(path)
	if err != nil {
		return JournalHeader{}, err
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, 1<<20)).ReadBytes('\n')
	if err != nil && err != io.EOF {
		return JournalHeader{}, err
	}
	return parseHeader(line)
}

// differs says in what another configuration differs; empty when it does not.
func (h *JournalHeader) differs(from JournalHeader) string {
	if h.Config == from.Config {
		return ""
	}
	names := slices.Sorted(maps.Keys(h.Fields))
	for name := range from.Fields {
		if _, ok := h.Fields[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var parts []string
	for _, name := range names {
		was, is := from.Fields[name], h.Fields[name]
		if was != is {
			parts = append(parts, fmt.Sprintf("%s was %s and is %s", name, orNone(was), orNone(is)))
		}
	}
	if len(parts) == 0 {
		return "it has another configuration"
	}
	return strings.Join(parts, ", ")
}

func orNone(s string) string { return cmp.Or(s, "not given") }

// Journal is an Engine that writes down what each load did, so that a search
// that was cut off goes on where it was: begun again with the same
// configuration, it is given what the journal holds, and the engine what it
// does not. Each line of the file is whole and on the disk before Run returns.
//
// Loads that ended with an error are not kept: they are put again. One that a
// gate voids is kept once a repetition of it was good, so that a search that
// goes on is told of both and puts neither; until then it is put again.
type Journal struct {
	engine Engine
	path   string
	file   journalFile
	// began is when the search began first, shift by how many seconds later this run did.
	began time.Time
	shift float64
	// first is where the engine was reached when the search began, here where it
	// is now, and engines are where loads were measured, in their order.
	first, here string
	engines     []string
	// good is the length of the file up to its last whole line.
	good int64
	// stored are the lines by their loads' keys, voided those that wait for a good repetition.
	stored map[string]*storedObservation
	voided []*storedObservation
	err    error
}

// journalFile is what a Journal needs of an *os.File.
type journalFile interface {
	io.WriterAt
	io.Closer
	Sync() error
	Truncate(size int64) error
}

// OpenJournal begins the journal of a search, or goes on with one that exists.
// It refuses a file that is none, that belongs to another configuration, or
// that another process writes (ErrInUse). A last line that is cut, as a killed
// process or a full disk leaves it, is dropped. Until Close, the file is locked.
func OpenJournal(path string, h JournalHeader, e Engine) (*Journal, error) {
	return lockedJournal(path, h, e, false)
}

// BeginJournal begins the journal of a search anew, whatever the file held. It
// refuses one that another process writes (ErrInUse).
func BeginJournal(path string, h JournalHeader, e Engine) (*Journal, error) {
	return lockedJournal(path, h, e, true)
}

// ErrInUse is of a journal that another search is writing.
var ErrInUse = errors.New("another probe is writing it")

// JournalInUse tells, with ErrInUse, that another process is writing the
// journal. A file that is not there is free.
func JournalInUse(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		defer f.Close()
		err = lock(f)
	}
	if err != nil {
		return fmt.Errorf("journal %s: %w", path, err)
	}
	return nil
}

// lock takes the file, or says who has it.
func lock(f *os.File) error {
	free, err := lockFile(f)
	switch {
	case err != nil:
		return fmt.Errorf("locking it: %w", err)
	case free:
		return nil
	}
	if pid := lockHolder(f); pid > 0 {
		return fmt.Errorf("%w (process %d): wait for it, or give another file", ErrInUse, pid)
	}
	return fmt.Errorf("%w: wait for it, or give another file", ErrInUse)
}

func lockedJournal(path string, h JournalHeader, e Engine, anew bool) (*Journal, error) {
	f, err := openLocked(path)
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	if anew {
		err = f.Truncate(0)
	}
	var j *Journal
	if err == nil {
		j, err = openJournal(f, path, h, e)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	return j, nil
}

// openLocked opens a file, made if need be, and locks it.
func openLocked(path string) (*os.File, error) {
	for range 10 {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, err
		}
		if err := lock(f); err != nil {
			f.Close()
			return nil, err
		}
		// A search that ended meanwhile may have removed what was opened here.
		mine, err := f.Stat()
		if now, gone := os.Stat(path); err == nil && gone == nil && os.SameFile(mine, now) {
			return f, nil
		}
		f.Close()
	}
	return nil, fmt.Errorf("%w, and others after it", ErrInUse)
}

func openJournal(f interface {
	journalFile
	io.Reader
}, path string, h JournalHeader, e Engine) (*Journal, error) {
	h.Schema = JournalSchema
	first, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("writing its header: %w", err)
	}
	first = append(first, '\n')
	j := &Journal{engine: e, path: path, file: f, began: h.Started, first: h.Engine, here: h.Engine}
	found, err := j.read(bufio.NewReaderSize(f, 1<<16))
	if err != nil {
		return nil, err
	}
	if found != nil {
		if what := h.differs(*found); what != "" {
			return nil, fmt.Errorf("it belongs to another search: %s; take another file, or the same configuration", what)
		}
		j.first = found.Engine
		if !found.Started.IsZero() {
			j.began = found.Started
			j.shift = h.Started.Sub(j.began).Seconds()
		}
		// What a cut line left behind goes, so that the next line is whole.
		if err := f.Truncate(j.good); err != nil {
			return nil, fmt.Errorf("dropping what follows its last whole line: %w", err)
		}
		return j, nil
	}
	if err := f.Truncate(0); err != nil {
		return nil, err
	}
	return j, j.append(first)
}

// headerStart is how the first line of a journal begins.
const headerStart = `{"schema":"` + JournalSchema + `"`

// read reads what the file holds; a nil header is of a file that is to be
// begun, because it is empty or nothing but the beginning of a header.
func (j *Journal) read(r *bufio.Reader) (*JournalHeader, error) {
	j.stored, j.good = map[string]*storedObservation{}, 0
	line, err := r.ReadBytes('\n')
	if start := []byte(headerStart); err == io.EOF && (bytes.HasPrefix(line, start) || bytes.HasPrefix(start, line)) {
		return nil, nil
	}
	if err == io.EOF {
		return nil, errNoJournal
	}
	if err != nil {
		return nil, err
	}
	h, err := parseHeader(line)
	if err != nil {
		return nil, err
	}
	j.good = int64(len(line))
	for number := 2; ; number++ {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return &h, nil
		}
		if err != nil {
			return nil, err
		}
		s := new(storedObservation)
		err = json.Unmarshal(line, s)
		if err == nil {
			_, err = s.observation()
		}
		if err != nil {
			if _, end := r.Peek(1); end == io.EOF {
				return &h, nil
			}
			return nil, fmt.Errorf("line %d is damaged: %w", number, err)
		}
		j.keep(s, cmp.Or(s.Engine, h.Engine))
		j.good += int64(len(line))
	}
}

// keep takes a line that is in the file.
func (j *Journal) keep(s *storedObservation, engine string) {
	if engine != "" && !slices.Contains(j.engines, engine) {
		j.engines = append(j.engines, engine)
	}
	if s.Void {
		j.voided = append(j.voided, s)
		return
	}
	if s.Repeats != "" {
		j.voided = slices.DeleteFunc(j.voided, func(v *storedObservation) bool {
			settled := v.Load == s.Repeats || v.Repeats == s.Repeats
			if settled {
				j.stored[v.Key] = v
			}
			return settled
		})
	}
	j.stored[s.Key] = s
}

// Stored is how many loads the journal holds that are not put again.
func (j *Journal) Stored() int { return len(j.stored) }

// Started is when the search began first.
func (j *Journal) Started() time.Time { return j.began }

// Engines are where the loads that the journal holds were measured, the first one first.
func (j *Journal) Engines() []string { return slices.Clone(j.engines) }

// Close ends the file and lets others have it.
func (j *Journal) Close() error { return j.file.Close() }

// Remove removes the file, while nobody else can have it, and closes it.
func (j *Journal) Remove() error { return errors.Join(os.Remove(j.path), j.Close()) }

// Run implements Engine. A load that the journal holds is not run, and its
// monitor is told what it did. What is returned is always what the journal
// would give, to the microsecond, so that a search that goes on decides as one
// that was not cut off.
func (j *Journal) Run(ctx context.Context, l *Load, m Monitor) (*Observation, error) {
	key, err := loadKey(l)
	if err != nil {
		return nil, err
	}
	if s := j.stored[key]; s != nil {
		o, err := s.observation()
		if err == nil {
			o.tell(m)
		}
		return o, err
	}
	if j.err != nil {
		return nil, j.err
	}
	o, err := j.engine.Run(ctx, l, m)
	if o == nil {
		return nil, err
	}
	o.Point.Start += j.shift
	if err != nil {
		return o, err
	}
	s, err := store(l.Name, key, o)
	if err != nil {
		return o, fmt.Errorf("%w: load %s: %w", ErrJournal, l.Name, err)
	}
	s.Repeats, s.Void = l.Repeats, invalid(&o.Point) != nil
	if j.here != j.first {
		s.Engine = j.here
	}
	line, err := json.Marshal(s)
	if err != nil {
		return o, fmt.Errorf("%w: load %s: %w", ErrJournal, l.Name, err)
	}
	if err := j.append(append(line, '\n')); err != nil {
		j.err = fmt.Errorf("%w: %w", ErrJournal, err)
		return o, j.err
	}
	j.keep(s, j.here)
	return s.observation()
}

// append writes a line. When the disk refuses, the file is cut back to its last whole line.
func (j *Journal) append(line []byte) error {
	_, err := j.file.WriteAt(line, j.good)
	if err == nil {
		err = j.file.Sync()
	}
	if err == nil {
		j.good += int64(len(line))
		return nil
	}
	if cut := j.file.Truncate(j.good); cut != nil {
		err = fmt.Errorf("%w, and its last line cannot be removed: %w", err, cut)
	}
	return err
}

// tell tells a monitor what the load did, in the order of time.
func (o *Observation) tell(m Monitor) {
	if m == nil {
		return
	}
	requests := slices.Clone(o.Requests)
	slices.SortStableFunc(requests, func(a, b Request) int { return cmp.Compare(a.End, b.End) })
	for _, s := range o.Samples {
		for len(requests) > 0 && requests[0].End <= s.At {
			m.Request(requests[0])
			requests = requests[1:]
		}
		m.Sample(s)
	}
	for _, q := range requests {
		m.Request(q)
	}
}

// loadKey names a load with everything that makes it what it is.
func loadKey(l *Load) (string, error) {
	t := l.Traffic
	grid := int64(0)
	if t.Replay != nil {
		grid = int64(t.Replay.Grid)
	}
	b, err := json.Marshal(struct {
		Name        string
		Purpose     curve.Purpose
		Traffic     string
		Classes     []workload.Class
		Arrivals    curve.Arrivals
		SLO         []capacity.SLO
		Grid        int64
		Concurrency int
		Steps       []Step
		Prime       int
		Warmup      int64
		Seed        uint64
	}{l.Name, l.Purpose, t.Name, t.Classes, t.Arrivals, t.SLO, grid, l.Concurrency, l.Steps, l.Prime, int64(l.Warmup), l.Seed})
	if err != nil {
		return "", fmt.Errorf("load %s: naming its parameters: %w", l.Name, err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// storedObservation is one line of a journal: an observation in columns. Times
// are whole microseconds; what is not known is null.
type storedObservation struct {
	Load string `json:"load"`
	// Key is of the load with all of its parameters.
	Key string `json:"key"`
	// Repeats is the load that this one is put again for, Void marks one that a gate voids.
	Repeats string `json:"repeats,omitempty"`
	Void    bool   `json:"void,omitempty"`
	// Engine is where the engine was reached, where that is not the header's.
	Engine   string         `json:"engine,omitempty"`
	Stopped  string         `json:"stopped,omitempty"`
	Point    curve.Point    `json:"point"`
	Requests storedRequests `json:"requests"`
	Samples  storedSamples  `json:"samples"`
}

// storedRequests are columns, one number a request.
type storedRequests struct {
	N int `json:"n"`
	// Class is left out when all are 0. SLOs is how many bounds each class has.
	Class []int `json:"class,omitempty"`
	SLOs  []int `json:"slos"`
	// Due counts from the request before, End from the request's own Due.
	Due    []capacity.Value `json:"due_us"`
	End    []capacity.Value `json:"end_us"`
	TTFT   []capacity.Value `json:"ttft_us"`
	TPOT   []capacity.Value `json:"tpot_us"`
	E2E    []capacity.Value `json:"e2e_us"`
	Failed []int            `json:"failed,omitempty"` // the numbers of those that did
	Prompt []int            `json:"prompt_tokens"`
	Output []int            `json:"output_tokens"`
	// Over and Of have a number for each bound of each request.
	Over []capacity.Value `json:"over"`
	Of   []capacity.Value `json:"of"`
}

// storedSamples are columns, one number a sample.
type storedSamples struct {
	At          []capacity.Value `json:"at_us"`
	Running     []capacity.Value `json:"running"`
	Waiting     []capacity.Value `json:"waiting"`
	KVUsage     []capacity.Value `json:"kv_usage"`
	Preemptions []capacity.Value `json:"preemptions"`
	Due         []int            `json:"due"`
	Done        []int            `json:"done"`
	Unsent      []int            `json:"unsent"`
}

// micro is a second in the unit of stored times, and the resolution of stored numbers.
const micro = 1e6

func stored(seconds float64) capacity.Value { return capacity.Value(math.Round(seconds * micro)) }

func rounded(v float64) capacity.Value { return capacity.Value(math.Round(v*micro) / micro) }

func restored(v capacity.Value) float64 { return float64(v) / micro }

// store puts an observation into columns.
func store(name, key string, o *Observation) (*storedObservation, error) {
	s := &storedObservation{Load: name, Key: key, Stopped: o.Stopped, Point: o.Point}
	r := &s.Requests
	r.N = len(o.Requests)
	before, classes := capacity.Value(0), false
	for i, q := range o.Requests {
		for len(r.SLOs) <= q.Class {
			r.SLOs = append(r.SLOs, -1)
		}
		if r.SLOs[q.Class] < 0 {
			r.SLOs[q.Class] = len(q.Over)
		}
		if len(q.Over) != r.SLOs[q.Class] || len(q.Of) != r.SLOs[q.Class] {
			return nil, fmt.Errorf("request %d has %d bounds, others of its class %d", i, len(q.Over), r.SLOs[q.Class])
		}
		due := stored(q.Due)
		r.Class = append(r.Class, q.Class)
		classes = classes || q.Class != 0
		r.Due, r.End = append(r.Due, due-before), append(r.End, stored(q.End)-due)
		r.TTFT, r.TPOT, r.E2E = append(r.TTFT, stored(q.TTFT)), append(r.TPOT, stored(q.TPOT)), append(r.E2E, stored(q.E2E))
		r.Prompt, r.Output = append(r.Prompt, q.PromptTokens), append(r.Output, q.OutputTokens)
		if !q.OK {
			r.Failed = append(r.Failed, i)
		}
		for k := range q.Over {
			r.Over, r.Of = append(r.Over, rounded(q.Over[k])), append(r.Of, rounded(q.Of[k]))
		}
		before = due
	}
	if !classes {
		r.Class = nil
	}
	for i, n := range r.SLOs {
		r.SLOs[i] = max(n, 0)
	}
	c := &s.Samples
	for _, q := range o.Samples {
		c.At = append(c.At, stored(q.At))
		c.Running, c.Waiting = append(c.Running, rounded(q.Running)), append(c.Waiting, rounded(q.Waiting))
		c.KVUsage, c.Preemptions = append(c.KVUsage, rounded(q.KVUsage)), append(c.Preemptions, rounded(q.Preemptions))
		c.Due, c.Done, c.Unsent = append(c.Due, q.Due), append(c.Done, q.Done), append(c.Unsent, q.Unsent)
	}
	return s, nil
}

// observation makes an observation of the columns, each time a new one. The
// error is of columns that do not belong together.
func (s *storedObservation) observation() (*Observation, error) {
	r, c := &s.Requests, &s.Samples
	for _, n := range []int{len(r.Due), len(r.End), len(r.TTFT), len(r.TPOT), len(r.E2E), len(r.Prompt), len(r.Output)} {
		if n != r.N {
			return nil, fmt.Errorf("load %s: columns of %d and %d requests", s.Load, r.N, n)
		}
	}
	if len(r.Class) != 0 && len(r.Class) != r.N || len(r.Over) != len(r.Of) {
		return nil, fmt.Errorf("load %s: columns of requests differ in length", s.Load)
	}
	for _, n := range []int{len(c.Running), len(c.Waiting), len(c.KVUsage), len(c.Preemptions), len(c.Due), len(c.Done), len(c.Unsent)} {
		if n != len(c.At) {
			return nil, fmt.Errorf("load %s: columns of %d and %d samples", s.Load, len(c.At), n)
		}
	}
	o := &Observation{Stopped: s.Stopped, Point: s.Point}
	// The search writes on the point: what is stored stays as it is.
	o.Point.Gates, o.Point.Faults = slices.Clone(s.Point.Gates), slices.Clone(s.Point.Faults)
	over, of := r.Over, r.Of
	due := capacity.Value(0)
	for i := range r.N {
		q := Request{
			TTFT: restored(r.TTFT[i]), TPOT: restored(r.TPOT[i]), E2E: restored(r.E2E[i]),
			OK: true, PromptTokens: r.Prompt[i], OutputTokens: r.Output[i],
		}
		if len(r.Class) > 0 {
			q.Class = r.Class[i]
		}
		if q.Class < 0 || q.Class >= len(r.SLOs) || r.SLOs[q.Class] < 0 || r.SLOs[q.Class] > len(over) {
			return nil, fmt.Errorf("load %s: request %d has a class %d and bounds that are not there", s.Load, i, q.Class)
		}
		due += r.Due[i]
		q.Due, q.End = restored(due), restored(due+r.End[i])
		for k := range r.SLOs[q.Class] {
			q.Over, q.Of = append(q.Over, float64(over[k])), append(q.Of, float64(of[k]))
		}
		over, of = over[r.SLOs[q.Class]:], of[r.SLOs[q.Class]:]
		o.Requests = append(o.Requests, q)
	}
	if len(over) > 0 {
		return nil, fmt.Errorf("load %s: more bounds than requests", s.Load)
	}
	for _, i := range r.Failed {
		if i < 0 || i >= r.N {
			return nil, fmt.Errorf("load %s: request %d failed, of %d", s.Load, i, r.N)
		}
		o.Requests[i].OK = false
	}
	for i := range c.At {
		o.Samples = append(o.Samples, Sample{
			At: restored(c.At[i]), Running: float64(c.Running[i]), Waiting: float64(c.Waiting[i]), KVUsage: float64(c.KVUsage[i]),
			Preemptions: float64(c.Preemptions[i]), Due: c.Due[i], Done: c.Done[i], Unsent: c.Unsent[i],
		})
	}
	return o, nil
}
