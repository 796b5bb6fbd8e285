package probe

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"
)

// flushEvery is how much a killed process loses at most.
const flushEvery = 200 * time.Millisecond

// recordsVersion is the version of a records file's form.
const recordsVersion = 1

// RecordsHeader is the first line of a records file.
type RecordsHeader struct {
	Version int       `json:"headroom_records"`
	Tool    string    `json:"tool"`
	Started time.Time `json:"started"`
	// Engine is its address without credentials.
	Engine string `json:"engine,omitempty"`
	Model  string `json:"model,omitempty"`
	Seed   uint64 `json:"seed"`
	// ContentSeed made the prompts.
	ContentSeed uint64  `json:"content_seed"`
	Dialect     Dialect `json:"dialect"`
	// Workload says what was sent, in the words of the flags.
	Workload string `json:"workload,omitempty"`
}

// file is what Records needs of an *os.File.
type file interface {
	io.WriteCloser
	Sync() error
	Truncate(size int64) error
}

// Records writes a file of records, one JSON object a line. Whole lines are
// written by one goroutine, so that no request waits for the disk and what a
// killed process leaves can be read.
type Records struct {
	mu      sync.Mutex
	pending []byte
	count   int
	err     error

	file file
	path string
	// good is the length of the file up to its last whole line, written how
	// many records that is.
	good    int64
	written int
	failed  func(error)
	quit    chan struct{}
	ended   chan struct{}
}

// CreateRecords begins a file that must not exist unless force is set. failed
// is called once, when the disk refuses.
func CreateRecords(path string, force bool, header RecordsHeader, failed func(error)) (*Records, error) {
	mode := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		mode = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, mode, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s exists; --force overwrites it", path)
	}
	if err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	r, err := beginRecords(f, path, 0, header, failed)
	if err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

// beginRecords writes a header at the file's end, which is at good.
func beginRecords(f file, path string, good int64, header RecordsHeader, failed func(error)) (*Records, error) {
	header.Version = recordsVersion
	line, err := json.Marshal(header)
	if err != nil {
		return nil, fmt.Errorf("records: writing the header: %w", err)
	}
	r := &Records{file: f, path: path, good: good, failed: failed, quit: make(chan struct{}), ended: make(chan struct{})}
	r.pending = append(line, '\n')
	if err := r.flush(); err != nil {
		return nil, err
	}
	go r.run()
	return r, nil
}

// ContinueRecords goes on with the file of an earlier run, or begins one that
// is not there. What follows the last whole line is dropped, and a header of
// its own begins what this run adds: times count from there.
func ContinueRecords(path string, header RecordsHeader, failed func(error)) (*Records, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return CreateRecords(path, false, header, failed)
	}
	if err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	r, err := continueRecords(f, path, header, failed)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("records: going on with %s: %w", path, err)
	}
	return r, nil
}

func continueRecords(f *os.File, path string, header RecordsHeader, failed func(error)) (*Records, error) {
	in := bufio.NewReader(f)
	first, err := in.ReadBytes('\n')
	var earlier RecordsHeader
	if err != nil || json.Unmarshal(first, &earlier) != nil || earlier.Version != recordsVersion {
		return nil, fmt.Errorf("it is no records file of version %d", recordsVersion)
	}
	good := int64(len(first))
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		good += int64(len(line))
	}
	if err := f.Truncate(good); err != nil {
		return nil, fmt.Errorf("dropping what follows its last whole line: %w", err)
	}
	if _, err := f.Seek(good, io.SeekStart); err != nil {
		return nil, err
	}
	return beginRecords(f, path, good, header, failed)
}

// Add appends a record. After a failure it does nothing; Close tells.
func (r *Records) Add(rec *Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	if r.err == nil {
		r.pending = append(rec.appendJSON(r.pending), '\n')
	}
}

func (r *Records) run() {
	defer close(r.ended)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.quit:
			return
		case <-tick.C:
			if err := r.flush(); err != nil {
				r.failed(err)
				return
			}
		}
	}
}

// flush writes what is pending. When the disk refuses, the file is cut back
// to its last whole line.
func (r *Records) flush() error {
	r.mu.Lock()
	if r.err != nil {
		defer r.mu.Unlock()
		return r.err
	}
	out, upTo := r.pending, r.count
	r.pending = make([]byte, 0, cap(out))
	r.mu.Unlock()
	if len(out) == 0 {
		return nil
	}
	n, err := r.file.Write(out)
	if err == nil {
		r.good += int64(n)
		r.written = upTo
		return nil
	}
	if cut := r.file.Truncate(r.good); cut != nil {
		err = fmt.Errorf("%w, and its last line cannot be removed: %w", err, cut)
	}
	err = fmt.Errorf("records: writing %s: %w; it holds %d records", r.path, err, r.written)
	r.mu.Lock()
	r.err = err
	r.mu.Unlock()
	return err
}

// Close writes the rest and ends the file. Its error says how many records
// were lost, if any.
func (r *Records) Close() error {
	close(r.quit)
	<-r.ended
	err := r.flush()
	if err == nil {
		err = r.file.Sync()
	}
	if closed := r.file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		return nil
	}
	if lost := r.count - r.written; lost > 0 {
		return fmt.Errorf("%w, %d are lost", err, lost)
	}
	return err
}
