package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// kneeLimit is how long a quick search of one class may take, which takes
	// three to four minutes.
	kneeLimit = 6 * time.Minute
	// kneeTries is how often a search may go on that a busy machine has spoilt.
	kneeTries = 8
)

// fourSlots is an engine that is full with four requests of kneeClass, six a second.
var fourSlots = []string{"--load=off", "--max-num-seqs=4"}

const kneeClass = "--class=a:prompt=64,output=100"

// kneeSearch is a search of the knee that may be begun several times.
type kneeSearch struct {
	t     *testing.T
	dir   string
	curve string
	// within is the command that the search is run by; empty runs it alone.
	within []string
	args   []string
}

func newKneeSearch(t *testing.T, engineURL string, args ...string) *kneeSearch {
	s := &kneeSearch{t: t, dir: t.TempDir()}
	s.curve = s.file("curve.json")
	s.args = append([]string{"probe", "--quick", "--gpu.nvml=off", "--engine.url=" + engineURL, "--out.curve=" + s.curve}, args...)
	return s
}

func (s *kneeSearch) file(name string) string { return filepath.Join(s.dir, name) }

// exists tells whether a file is there.
func (s *kneeSearch) exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// begin starts the search, or goes on with it where it left something.
func (s *kneeSearch) begin() *process {
	s.t.Helper()
	more := "--force" // records that a search has left which kept nothing
	if s.exists(s.curve + ".partial") {
		more = "--resume"
	}
	args := append(slices.Clone(s.args), more)
	command := slices.Concat(s.within, []string{binary}, args)
	return startProgram(s.t, nil, command[0], command[1:]...)
}

// spoilt fails the test unless a search has ended because the client was too
// slow, as it is on a machine that is busy with other tests.
func (s *kneeSearch) spoilt(p *process, status int) {
	s.t.Helper()
	if last := lastLine(p); status != 1 || !strings.Contains(last, "client: requests went out") {
		s.t.Fatalf("the search ended with status %d: %s", status, last)
	}
	s.t.Log("going on: " + lastLine(p))
}

// untilLoad begins or continues the search and returns while it puts a load on.
func (s *kneeSearch) untilLoad(name string) *process {
	s.t.Helper()
	for range kneeTries {
		p := s.begin()
		for p.running() && !strings.Contains(p.stderr.String(), "] "+name+"  measure") {
			time.Sleep(50 * time.Millisecond)
		}
		if p.running() {
			return p
		}
		s.spoilt(p, p.status(startLimit))
	}
	s.t.Fatalf("this machine is too busy for load %s", name)
	return nil
}

// toTheEnd begins or continues the search, each time within a limit, until its curve is written.
func (s *kneeSearch) toTheEnd(limit time.Duration) *process {
	s.t.Helper()
	for range kneeTries {
		p := s.begin()
		status := p.status(limit)
		if status == 0 {
			return p
		}
		s.spoilt(p, status)
	}
	s.t.Fatal("this machine is too busy for a search")
	return nil
}

// lastLine is the last line on a process's standard error.
func lastLine(p *process) string {
	lines := p.stderr.lines()
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

// stored are the names of the loads that the search has kept. Every line must be whole.
func (s *kneeSearch) stored() []string {
	s.t.Helper()
	b, err := os.ReadFile(s.curve + ".partial")
	if err != nil {
		s.t.Fatal(err)
	}
	var names []string
	for line := range bytes.Lines(b) {
		var l struct {
			Schema, Load string
			Void         bool
		}
		if !bytes.HasSuffix(line, []byte("\n")) {
			continue // as a killed process leaves it
		}
		if err := json.Unmarshal(line, &l); err != nil {
			s.t.Fatalf("line %.100q of what was kept: %v", line, err)
		}
		if l.Schema == "" && !l.Void {
			names = append(names, l.Load)
		}
	}
	return names
}

// put are the names of the loads that a search has put on the engine.
func put(p *process) []string {
	var names []string
	for _, line := range p.stderr.lines() {
		_, rest, found := strings.Cut(line, "] ")
		if name, _, whole := strings.Cut(rest, "  "); strings.HasPrefix(line, "[") && found && whole && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// notPutAgain fails the test when a search put a load that was stored before.
func notPutAgain(t *testing.T, p *process, stored []string) {
	t.Helper()
	for _, name := range put(p) {
		if slices.Contains(stored, name) {
			t.Errorf("load %q was put again; stored were %q", name, stored)
		}
	}
}

// kneeRecords counts the requests in a records file by the runs that wrote it.
func kneeRecords(t *testing.T, path string) (runs []int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var r struct {
			probeRecord
			Point string
		}
		if err := json.Unmarshal(line, &r); err != nil || !bytes.HasSuffix(line, []byte("\n")) {
			t.Fatalf("line %q of the records: %v", line, err)
		}
		switch {
		case r.Header == 1:
			runs = append(runs, 0)
		case len(runs) == 0 || r.Point == "" || r.Outcome == "":
			t.Fatalf("line %q of the records", line)
		default:
			runs[len(runs)-1]++
		}
	}
	return runs
}

// mostTrials is the most requests that a run sends to learn what an engine takes.
const mostTrials = 10

// wholeSearch lets the tests search knees to their end. That takes a machine
// that is quiet for minutes: the client voids what it was late for itself.
var wholeSearch = flag.Bool("knee", false, "search knees to their end (make e2e-knee)")

// TestKnee: a quick search from the command to what a person is shown, and
// what the curve is worth for the same engine and for another one.
func TestKnee(t *testing.T) {
	if !*wholeSearch {
		t.Skip("it needs a quiet machine: make e2e-knee")
	}
	t.Parallel()
	address := freeAddress(t)
	engine := simulateAt(t, address, fourSlots...)
	s := newKneeSearch(t, engine.url, kneeClass, "--slo=ttft:p90:1s")
	page, summary, records := s.file("report.html"), s.file("summary.md"), s.file("records.jsonl")
	s.args = append(s.args, "--out.report="+page, "--out.summary="+summary, "--out.records="+records)
	begin := time.Now()
	p := s.toTheEnd(kneeLimit)
	t.Logf("after %s: %s", time.Since(begin).Round(time.Second), put(p))
	if s.exists(s.curve + ".partial") {
		t.Error("what was kept is still there")
	}
	verdict := p.stdout.lines()[len(p.stdout.lines())-1]
	if !strings.HasPrefix(verdict, "a (estimate): safe at about ") || !strings.Contains(verdict, "not soaked") {
		t.Errorf("the last line is %q", verdict)
	}
	for path, want := range map[string]string{page: "<svg", summary: "\n- " + verdict + "\n"} {
		if b, err := os.ReadFile(path); err != nil || !bytes.Contains(b, []byte(want)) {
			t.Errorf("%s has no %q: %v", filepath.Base(path), want, err)
		}
	}
	sent := 0
	for _, n := range kneeRecords(t, records) {
		sent += n
	}
	// Cancelled requests are in both counts, too.
	if seen := int(engineSum(t, engine, "vllm:request_success_total")); seen < sent || seen > sent+mostTrials*kneeTries {
		t.Errorf("%d records, and the engine counted %d requests", sent, seen)
	}
	if p, status := runToEnd(t, nil, "curve", "show", s.curve); status != 0 || !strings.Contains(p.stdout.String(), "knee") {
		t.Errorf("curve show: status %d", status)
	}
	check := func() (*process, int) {
		return runToEnd(t, nil, "curve", "check", s.curve, "--gpu.nvml=off", "--engine.url="+engine.url)
	}
	if p, status := check(); status != 0 {
		t.Errorf("the same engine: status %d: %s", status, lastLine(p))
	}
	engine.kill()
	engine = simulateAt(t, address, "--load=off", "--max-num-seqs=2")
	if p, status := check(); status != 1 || !strings.Contains(lastLine(p), "max_num_seqs was 4, is 2") {
		t.Errorf("half the slots: status %d: %s", status, lastLine(p))
	}
}

// TestKneeGoesOn: a search is interrupted, killed, and its engine dies; each
// time it goes on where it was, and at the end there is a curve.
func TestKneeGoesOn(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	engine := simulateAt(t, address, fourSlots...)
	s := newKneeSearch(t, engine.url, kneeClass, "--slo=ttft:p90:1s")
	records := s.file("records.jsonl")
	s.args = append(s.args, "--out.records="+records)
	var before []string
	// goesOn checks what an end has left, and what was put since the one before.
	goesOn := func(p *process, how string, status int, want ...int) {
		t.Helper()
		notPutAgain(t, p, before)
		if s.exists(s.curve) {
			t.Fatalf("%s: there is a curve", how)
		}
		last := lastLine(p)
		if how != "killed" && !strings.Contains(last, "what was measured is in "+s.curve+".partial: the same command with --resume goes on from there") {
			t.Errorf("%s: %s", how, last)
		}
		if !slices.Contains(want, status) {
			t.Errorf("%s: status %d, want one of %v", how, status, want)
		}
		now := s.stored()
		for _, name := range before {
			if !slices.Contains(now, name) {
				t.Errorf("%s: load %q is lost", how, name)
			}
		}
		before = now
		t.Logf("%s: status %d, %d loads are kept; %s", how, status, len(now), last)
	}

	p := s.untilLoad("a poisson ceiling 4")
	p.signal(syscall.SIGINT)
	goesOn(p, "interrupted", p.status(startLimit), 1)
	if len(before) == 0 {
		t.Fatal("the warm-up is not kept")
	}
	p = s.untilLoad("a poisson ceiling 8")
	p.signal(syscall.SIGKILL)
	goesOn(p, "killed", p.status(startLimit), -1)
	p = s.untilLoad("a poisson probe 1")
	engine.kill()
	goesOn(p, "engine dead", p.status(probeLimit), 1, 3)
	if last := lastLine(p); !strings.Contains(last, "engine") {
		t.Errorf("the engine's end is not said: %s", last)
	}

	if !*wholeSearch {
		return // to the end only on a quiet machine: make e2e-knee
	}
	runs := len(kneeRecords(t, records))
	engine = simulateAt(t, address, fourSlots...)
	p = s.toTheEnd(kneeLimit)
	notPutAgain(t, p, before)
	sent := 0
	for _, n := range kneeRecords(t, records)[runs:] {
		sent += n
	}
	// The engine is a new one: it has seen nothing but what was sent since.
	if seen := int(engineSum(t, engine, "vllm:request_success_total")); sent == 0 || seen < sent || seen > sent+mostTrials*kneeTries {
		t.Errorf("%d records since the engine is back, which counted %d requests", sent, seen)
	}
	if _, status := runToEnd(t, nil, "curve", "show", s.curve); status != 0 || s.exists(s.curve+".partial") {
		t.Errorf("the curve: status %d", status)
	}
}

// TestKneeFullDisk: when there is no more room for what is measured, that is
// said, there is no curve, and what was kept is whole.
func TestKneeFullDisk(t *testing.T) {
	t.Parallel()
	engine := simulate(t, fourSlots...)
	s := newKneeSearch(t, engine.url, kneeClass, "--slo=ttft:p90:1s")
	// 9 KB by a shell that counts 512 bytes a block, 18 KB by others: one or two loads.
	s.within = []string{"sh", "-c", `ulimit -f 18; exec "$@"`, "sh"}
	last := ""
	for range kneeTries {
		p := s.begin()
		status := p.status(kneeLimit)
		if last = lastLine(p); strings.Contains(last, "the journal cannot be written") {
			if status != 1 || !strings.Contains(last, "--resume goes on from there") || s.exists(s.curve) {
				t.Errorf("status %d: %s", status, last)
			}
			break
		}
		s.spoilt(p, status)
	}
	before := s.stored()
	if len(before) == 0 || !strings.Contains(last, "the journal cannot be written") {
		t.Errorf("%d loads are kept: %s", len(before), last)
	}
	t.Log(last)
	s.within = nil
	p := s.begin()
	eventually(t, probeLimit, "the search goes on", func() error {
		if len(put(p)) == 0 {
			return fmt.Errorf("nothing is put yet: %s", p.stderr.tail(500))
		}
		return nil
	})
	p.signal(syscall.SIGINT)
	if status := p.status(startLimit); status != 1 {
		t.Errorf("status %d", status)
	}
	notPutAgain(t, p, before)
}

// TestKneeBusyEngine: an engine that others use is left alone.
func TestKneeBusyEngine(t *testing.T) {
	t.Parallel()
	engine := simulate(t, "--load=constant:4", "--max-num-seqs=8", "--load.output-tokens=64")
	s := newKneeSearch(t, engine.url, kneeClass)
	p := s.begin()
	status := p.status(probeLimit)
	last := lastLine(p)
	if status != 1 || !strings.Contains(last, "the engine does not become idle") || !strings.Contains(last, "--allow-shared") {
		t.Errorf("status %d: %s", status, last)
	}
	if len(put(p)) > 0 || s.exists(s.curve) || s.exists(s.curve+".partial") {
		t.Errorf("loads %q; something is left in %s", put(p), s.dir)
	}
	t.Log(last)
}

// gate passes a client's requests on to an engine and notes when they came and ended.
type gate struct {
	server *httptest.Server
	mutex  sync.Mutex
	// posts are when requests for completions had come as a whole, ended when they ended.
	posts, ended []time.Time
}

func newGate(t *testing.T, engineURL string) *gate {
	target, err := url.Parse(engineURL)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	g.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			proxy.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		g.note(&g.posts)
		defer g.note(&g.ended)
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		g.server.CloseClientConnections()
		g.server.Close()
	})
	return g
}

func (g *gate) note(times *[]time.Time) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	*times = append(*times, time.Now())
}

// load are the times of a load's first and last request and of the last end.
// The trials before it are over seconds earlier.
func (g *gate) load(t *testing.T) (first, last, end time.Time) {
	t.Helper()
	g.mutex.Lock()
	defer g.mutex.Unlock()
	for i := range g.posts {
		if at := g.posts[i]; first.IsZero() && at.Sub(g.posts[0]) > 5*time.Second {
			first = at
		}
	}
	if first.IsZero() {
		t.Fatal("no load was put on the engine")
	}
	return first, g.posts[len(g.posts)-1], g.ended[len(g.ended)-1]
}

// others are clients of an engine that has another one besides: each asks
// for one short answer after the other. late notes when an answer began later
// than the limit.
type others struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	mutex  sync.Mutex
	served int
	late   []time.Time
}

func newOthers(t *testing.T, engineURL string, n int, limit time.Duration) *others {
	t.Helper()
	model := modelName(t, engineURL)
	ctx, cancel := context.WithCancel(t.Context())
	o := &others{cancel: cancel}
	for i := range n {
		o.done.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				sent := time.Now()
				body, err := stream(ctx, engineURL, model, 16, 10, 1000*(i+1)+k)
				if err != nil {
					return
				}
				lines := bufio.NewReader(body)
				_, _ = lines.ReadString('\n')
				first := time.Now()
				_, _ = io.Copy(io.Discard, lines)
				body.Close()
				o.mutex.Lock()
				o.served++
				if first.Sub(sent) > limit {
					o.late = append(o.late, first)
				}
				o.mutex.Unlock()
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	t.Cleanup(func() { cancel(); o.done.Wait() })
	return o
}

// TestKneeHarm: beside others the search ends as soon as it hurts them. How
// soon is in the log: it is a matter of the machine's other work, too.
func TestKneeHarm(t *testing.T) {
	t.Parallel()
	engine := simulate(t, fourSlots...)
	g := newGate(t, engine.url)
	// 250 ms is the first bound of the engine's histogram that a TTFT of 200 ms is held to.
	o := newOthers(t, engine.url, 3, 250*time.Millisecond)
	eventually(t, startLimit, "others are served", func() error {
		o.mutex.Lock()
		defer o.mutex.Unlock()
		if o.served < 10 {
			return fmt.Errorf("%d answers", o.served)
		}
		return nil
	})
	s := newKneeSearch(t, g.server.URL, "--allow-shared", "--class=a:prompt=64,output=400", "--slo=ttft:p99:200ms")
	p := s.begin()
	status := p.status(kneeLimit)
	ended := time.Now()
	last := lastLine(p)
	if status != 3 || !strings.Contains(last, "aborted for safety") || !strings.Contains(last, "others") {
		t.Fatalf("status %d: %s", status, last)
	}
	if s.exists(s.curve) {
		t.Error("there is a curve")
	}
	first, post, end := g.load(t)
	n := engineSum(t, engine, "vllm:num_requests_running") + engineSum(t, engine, "vllm:num_requests_waiting")
	if n > 3 {
		t.Errorf("%v requests are still in the engine, of which 3 are others'", n)
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	late := slices.DeleteFunc(o.late, first.After)
	// One late answer may be a mistake; with the second, the condition can be seen.
	if len(late) < 2 {
		t.Fatalf("%d of %d answers to others were late: %s", len(late), o.served, last)
	}
	since := func(at time.Time) string { return at.Sub(late[1]).Round(time.Millisecond).String() }
	t.Logf("since the second late answer to others: last request sent %s, last of those in flight ended %s, the search ended %s", since(post), since(end), since(ended))
	t.Log(last)
}
