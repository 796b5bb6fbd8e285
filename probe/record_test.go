package probe

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headroom_exporter/probe/workload"
)

// show prints a value with all its fields.
func show(v any) string { return strings.ReplaceAll(fmt.Sprintf("%+v", v), " ", "\n") }

func TestRecordLine(t *testing.T) {
	q := &workload.Request{Index: 7, Class: "c", Tenant: `a"b`, SessionID: "s", Turn: 2, PromptTokens: 10, MaxTokens: 4}
	x := &Exchange{
		Sent: 2001 * time.Millisecond, Headers: 2100 * time.Millisecond, First: 2200 * time.Millisecond, FirstOutput: 2200 * time.Millisecond,
		Last: 2260 * time.Millisecond, End: 2261 * time.Millisecond, PromptTokens: 12, CompletionTokens: 4, CachedTokens: unknown,
		FirstTokens: 1, FirstEvents: 1, TokenEvents: 4, Chunks: 4, Arrivals: 4, Outcome: OK, Status: 200,
		Gaps: []Gap{{20 * time.Millisecond, 1, 1}, {10 * time.Millisecond, 1, 1}, {30 * time.Millisecond, 1, 1}},
	}
	rec := newRecord("p", q, 2*time.Second, x, time.Second, PhaseMeasure)
	const want = `{"point":"p","class":"c","tenant":"a\"b","session":"s","index":7,"turn":2,"phase":"measure",` +
		`"scheduled_s":1,"sent_s":1.001,"headers_s":1.1,"first_token_s":1.2,"last_token_s":1.26,"end_s":1.261,"connect_s":0,` +
		`"prompt_tokens":12,"completion_tokens":4,"chunks":4,"ttft_s":0.2,"ttft_sent_s":0.199,"ttfo_s":0.2,"tpot_s":0.02,` +
		`"itl_s":0.02,"icl_max_s":0.03,"e2e_s":0.26,"outcome":"ok","status":200}`
	if got := string(rec.appendJSON(nil)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	// What did not happen is absent, not 0.
	x = new(Exchange)
	x.reset()
	x.Outcome, x.Error, x.End = HTTPError, "connection refused", 3*time.Second
	rec = newRecord("p", &workload.Request{Class: "c", PromptTokens: 10}, 2*time.Second, x, time.Second, PhaseMeasure)
	rec.judge(nil)
	const refused = `{"point":"p","class":"c","index":0,"phase":"measure","scheduled_s":1,"end_s":2,"connect_s":0,"prompt_tokens":10,"chunks":0,"outcome":"http_error","error":"connection refused","violation":true}`
	if got := string(rec.appendJSON(nil)); got != refused {
		t.Errorf("got\n%s\nwant\n%s", got, refused)
	}
}

// TestViolation: failures violate; what the probe cancelled does so when it
// was older than a bound.
func TestViolation(t *testing.T) {
	ttft := []workload.SLO{{Metric: "ttft", Percentile: 99, Bound: time.Second}}
	nan := math.NaN()
	for _, test := range []struct {
		name string
		rec  Record
		want bool
	}{
		{"good", Record{Outcome: OK, TTFT: 0.5}, false},
		{"late", Record{Outcome: OK, TTFT: 1.5}, true},
		{"failed early", Record{Outcome: Cut, TTFT: 0.5}, true},
		{"timeout", Record{Outcome: Timeout, TTFT: nan}, true},
		{"cancelled young", Record{Outcome: Cancelled, TTFT: nan, FirstToken: nan, Scheduled: 1, End: 1.5}, false},
		{"cancelled old", Record{Outcome: Cancelled, TTFT: nan, FirstToken: nan, Scheduled: 1, End: 3}, true},
		{"cancelled after its first token", Record{Outcome: Cancelled, TTFT: 0.5, FirstToken: 1.5, Scheduled: 1, End: 3}, false},
	} {
		if test.rec.judge(ttft); test.rec.Violation != test.want {
			t.Errorf("%s: violation is %v", test.name, test.rec.Violation)
		}
	}
}

func aRecord(i int) *Record {
	x := new(Exchange)
	x.reset()
	x.Outcome = OK
	rec := newRecord("p", &workload.Request{Index: i, Class: "c"}, 0, x, 0, PhaseMeasure)
	return &rec
}

// lines checks that a file is a header and whole records, and counts these.
func lines(t *testing.T, path string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := -1
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); n++ {
		var line map[string]any
		if err := json.Unmarshal(s.Bytes(), &line); err != nil {
			t.Fatalf("line %d: %v: %s", n+2, err, s.Text())
		}
		if n < 0 && line["headroom_records"] != 1.0 {
			t.Fatalf("the first line is no header: %s", s.Text())
		}
	}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		t.Error("the last line is not whole")
	}
	return n
}

// dropCutLine removes what follows the last line end: the kernel may stop in
// the middle of a write when it kills a process.
func dropCutLine(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(bytes.LastIndexByte(b, '\n')+1)); err != nil {
		t.Fatal(err)
	}
}

func TestRecordsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.jsonl")
	r, err := CreateRecords(path, false, RecordsHeader{Tool: "t"}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		r.Add(aRecord(i))
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if n := lines(t, path); n != 1000 {
		t.Errorf("%d records", n)
	}
	if _, err := CreateRecords(path, false, RecordsHeader{}, nil); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("an existing file gives %v", err)
	}
	r, err = CreateRecords(path, true, RecordsHeader{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil || lines(t, path) != 0 {
		t.Errorf("--force: %v, %d records", err, lines(t, path))
	}
}

// TestContinueRecords: what an earlier run left stays, but for a line that was
// cut, and what follows has a header of its own.
func TestContinueRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.jsonl")
	for run := range 3 {
		r, err := ContinueRecords(path, RecordsHeader{Seed: uint64(run)}, func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			r.Add(aRecord(i))
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(f, `{"point":"cut`)
		f.Close()
	}
	dropCutLine(t, path)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var seeds []uint64
	records := 0
	for line := range bytes.Lines(b) {
		var h RecordsHeader
		if err := json.Unmarshal(line, &h); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if h.Version == 0 {
			records++
			continue
		}
		if records != 10*len(seeds) {
			t.Errorf("%d records ahead of header %d", records, len(seeds)+1)
		}
		seeds = append(seeds, h.Seed)
	}
	if fmt.Sprint(seeds) != "[0 1 2]" || records != 30 {
		t.Errorf("headers of the seeds %v, %d records", seeds, records)
	}
	for name, content := range map[string]string{"empty": "", "no header": "{}\n", "cut header": `{"headroom_records":1`} {
		other := filepath.Join(t.TempDir(), "other")
		if err := os.WriteFile(other, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ContinueRecords(other, RecordsHeader{}, nil); err == nil || !strings.Contains(err.Error(), "no records file") {
			t.Errorf("%s: %v", name, err)
		}
		if b, err := os.ReadFile(other); err != nil || string(b) != content {
			t.Errorf("%s: the file is now %q: %v", name, b, err)
		}
	}
}

// limited writes up to a number of bytes, then only a part and an error, as a
// full disk does.
type limited struct {
	*os.File
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n, err := l.File.Write(p[:min(len(p), l.left)])
	l.left -= n
	if err == nil && n < len(p) {
		err = errors.New("no space left on device")
	}
	return n, err
}

// TestFullDisk: the file is cut back to whole lines, the run is told once, and
// the end says what is lost.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.jsonl")
	var said []error
	r, err := CreateRecords(path, false, RecordsHeader{}, func(err error) { said = append(said, err) })
	if err != nil {
		t.Fatal(err)
	}
	r.quit, r.ended = stopped(r)
	r.file = &limited{File: r.file.(*os.File), left: 1000}
	r.Add(aRecord(0))
	if err := r.flush(); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		r.Add(aRecord(i))
	}
	go r.run()
	<-r.ended
	if len(said) != 1 || !strings.Contains(said[0].Error(), "no space left") {
		t.Errorf("the run was told %v", said)
	}
	r.Add(aRecord(101))
	err = r.Close()
	if err == nil || !strings.Contains(err.Error(), "holds 1 records, 101 are lost") {
		t.Errorf("the end says %v", err)
	}
	if n := lines(t, path); n != 1 {
		t.Errorf("%d records can be read", n)
	}
}

// stopped ends the writer of a file, so that a test can put another disk below it.
func stopped(r *Records) (quit, ended chan struct{}) {
	close(r.quit)
	<-r.ended
	return make(chan struct{}), make(chan struct{})
}

// TestKilled: a process that is killed while it writes leaves whole lines.
func TestKilled(t *testing.T) {
	path := os.Getenv("PROBE_TEST_RECORDS")
	if path != "" {
		r, err := CreateRecords(path, false, RecordsHeader{}, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; ; i++ {
			r.Add(aRecord(i))
			if i%100 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	}
	path = filepath.Join(t.TempDir(), "records.jsonl")
	child := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	child.Env = append(os.Environ(), "PROBE_TEST_RECORDS="+path)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	// Kill it once it has written something; the test's own deadline bounds the wait.
	for {
		if info, err := os.Stat(path); err == nil && info.Size() > 100_000 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	dropCutLine(t, path)
	if n := lines(t, path); n < 100 {
		t.Errorf("%d records can be read", n)
	}
}
