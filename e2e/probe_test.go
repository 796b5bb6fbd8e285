package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// probeLimit is how long a probe of a few seconds may take.
const probeLimit = 60 * time.Second

// probeRecord is a line of a records file; Header is of the first one.
type probeRecord struct {
	Header     int     `json:"headroom_records"`
	Class      string  `json:"class"`
	Index      int     `json:"index"`
	Phase      string  `json:"phase"`
	Scheduled  float64 `json:"scheduled_s"`
	Sent       float64 `json:"sent_s"`
	End        float64 `json:"end_s"`
	Prompt     int     `json:"prompt_tokens"`
	Completion int     `json:"completion_tokens"`
	Outcome    string  `json:"outcome"`
}

// readRecords reads a records file of which every line must be whole, and
// returns the records by index.
func readRecords(t *testing.T, path string) []probeRecord {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var records []probeRecord
	for line := range bytes.Lines(b) {
		var r probeRecord
		if err := json.Unmarshal(line, &r); err != nil || !bytes.HasSuffix(line, []byte("\n")) {
			t.Fatalf("line %q of the records: %v", line, err)
		}
		records = append(records, r)
	}
	if len(records) == 0 || records[0].Header != 1 {
		t.Fatalf("the records have no header: %.200s", b)
	}
	records = records[1:]
	slices.SortFunc(records, func(a, b probeRecord) int { return cmp.Compare(a.Index, b.Index) })
	return records
}

// probe runs the probe on an engine and returns its records. On a busy machine
// the client may be found limited, which is no matter of these tests; any
// other fault is.
func probe(t *testing.T, engine *simulator, args ...string) []probeRecord {
	t.Helper()
	path := filepath.Join(t.TempDir(), "records.jsonl")
	p := start(t, nil, append([]string{"probe", "--gpu.nvml=off", "--engine.url=" + engine.url, "--out.records=" + path}, args...)...)
	status := p.status(probeLimit)
	for _, line := range p.stdout.lines() {
		if strings.Contains(line, "NOT USABLE") && !strings.Contains(line, "client_limited") {
			t.Error(line)
		}
	}
	if limited := strings.Contains(p.stdout.String(), "client_limited"); status != 0 && !(status == 1 && limited) {
		t.Fatalf("status %d", status)
	}
	records := readRecords(t, path)
	for _, r := range records {
		if r.Outcome != "ok" {
			t.Errorf("record %+v", r)
		}
	}
	return records
}

// engineSum adds up the values of an engine's series that begin so.
func engineSum(t *testing.T, engine *simulator, series string, labels ...string) float64 {
	t.Helper()
	sum, found := 0.0, false
lines:
	for line := range strings.Lines(string(mustGet(t, engine.url+"/metrics"))) {
		at := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if !strings.HasPrefix(line, series+"{") {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(line, label) {
				continue lines
			}
		}
		sum, found = sum+parsed(strings.TrimSpace(line)[at+1:]), true
	}
	if !found {
		t.Fatalf("the engine has no series %s %v", series, labels)
	}
	return sum
}

// longPrompts counts the engine's finished requests of more than 200 prompt
// tokens, of which the probe's trials before the load have fewer.
func longPrompts(t *testing.T, engine *simulator) int {
	t.Helper()
	const series = "vllm:request_prompt_tokens"
	return int(engineSum(t, engine, series+"_count") - engineSum(t, engine, series+"_bucket", `le="200.0"`))
}

// TestProbeOpenLoop: what was sent is what was planned, and what the engine counted.
func TestProbeOpenLoop(t *testing.T) {
	t.Parallel()
	engine := simulate(t, "--load=off")
	records := probe(t, engine, "--rate=20", "--arrivals=constant", "--warmup=1s", "--duration=3s", "--class=a:prompt=300,output=8")
	measured := 0
	for i, r := range records {
		if gap := r.Scheduled - records[max(i-1, 0)].Scheduled; i > 0 && math.Abs(gap-0.05) > 1e-6 {
			t.Errorf("request %d was due %v s after the one before, want 0.05", i, gap)
		}
		if r.Prompt != 300 || r.Completion != 8 || r.Sent < r.Scheduled {
			t.Errorf("record %+v", r)
		}
		if r.Phase == "measure" {
			measured++
		}
	}
	// An end of a window may take a request in or not.
	if measured < 59 || measured > 61 || len(records) < 79 || len(records) > 81 {
		t.Errorf("%d records, %d of them measured; want 80 and 60", len(records), measured)
	}
	if n := longPrompts(t, engine); n != len(records) {
		t.Errorf("the engine counted %d requests, the records are %d", n, len(records))
	}
	// What is left are the trials.
	tokens, requests := engineSum(t, engine, "vllm:prompt_tokens_total"), engineSum(t, engine, "vllm:request_success_total")
	if trials := requests - float64(len(records)); trials < 1 || trials > 8 || tokens-300*float64(len(records)) > 200*trials {
		t.Errorf("the engine counted %v prompt tokens in %v requests for %d records of 300", tokens, requests, len(records))
	}
}

// TestProbeClosedLoop: so many requests are in flight, and not one more.
func TestProbeClosedLoop(t *testing.T) {
	t.Parallel()
	engine := simulate(t, "--load=off")
	records := probe(t, engine, "--concurrency=3", "--requests=30", "--warmup=0s", "--class=a:prompt=300,output=8")
	if len(records) != 30 || longPrompts(t, engine) != 30 {
		t.Errorf("%d records, the engine counted %d; want 30", len(records), longPrompts(t, engine))
	}
	most := 0
	for _, r := range records {
		inFlight := 0
		for _, other := range records {
			if other.Sent <= r.Sent && r.Sent < other.End {
				inFlight++
			}
		}
		most = max(most, inFlight)
	}
	if most != 3 {
		t.Errorf("%d requests were in flight at most, want 3", most)
	}
}

// azureRow is a request of a trace, at seconds from its start.
type azureRow struct {
	at             float64
	prompt, output int
}

// writeAzure writes a trace as Azure publishes them: with seven decimals,
// CRLF and no line end after the last row.
func writeAzure(t *testing.T, rows []azureRow) string {
	t.Helper()
	lines := []string{"TIMESTAMP,ContextTokens,GeneratedTokens"}
	begin := time.Date(2023, 11, 16, 18, 15, 46, 0, time.UTC)
	for _, r := range rows {
		at := begin.Add(time.Duration(r.at * float64(time.Second)))
		lines = append(lines, at.Format("2006-01-02 15:04:05.0000000")+","+strconv.Itoa(r.prompt)+","+strconv.Itoa(r.output))
	}
	path := filepath.Join(t.TempDir(), "trace.csv")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\r\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestProbeReplaysATrace at twice its speed: every length, every gap halved.
func TestProbeReplaysATrace(t *testing.T) {
	t.Parallel()
	rows := []azureRow{{0, 210, 3}, {0.25, 1000, 1}, {0.25, 250, 12}, {1.5, 4000, 5}, {1.625, 333, 7}, {3, 201, 2}, {4, 999, 9}}
	engine := simulate(t, "--load=off")
	records := probe(t, engine, "--trace.file="+writeAzure(t, rows), "--trace.format=azure", "--trace.speed=2", "--warmup=0s")
	if len(records) != len(rows) || longPrompts(t, engine) != len(rows) {
		t.Fatalf("%d records, the engine counted %d; want %d", len(records), longPrompts(t, engine), len(rows))
	}
	for i, want := range rows {
		r := records[i]
		if at := r.Scheduled - records[0].Scheduled; math.Abs(at-want.at/2) > 1e-6 || r.Prompt != want.prompt || r.Completion != want.output {
			t.Errorf("request %d at %v s: %+v, want %+v at half the time", i, at, r, want)
		}
	}
}

// TestProbeRecordsAfterKill: what a killed probe leaves can be read.
func TestProbeRecordsAfterKill(t *testing.T) {
	t.Parallel()
	engine := simulate(t, "--load=off")
	path := filepath.Join(t.TempDir(), "records.jsonl")
	p := start(t, nil, "probe", "--gpu.nvml=off", "--engine.url="+engine.url, "--rate=50", "--warmup=0s", "--duration=30s",
		"--class=a:prompt=64,output=2", "--out.records="+path)
	eventually(t, probeLimit, "20 records are written", func() error {
		b, err := os.ReadFile(path)
		if n := bytes.Count(b, []byte("\n")); n < 21 {
			return fmt.Errorf("%d lines: %v", n, err)
		}
		return nil
	})
	p.signal(syscall.SIGKILL)
	if status := p.status(startLimit); status != -1 {
		t.Errorf("status %d", status)
	}
	// The kernel may stop in the middle of a write: what follows the last line end is no record.
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(bytes.LastIndexByte(b, '\n')+1)); err != nil {
		t.Fatal(err)
	}
	if n := len(readRecords(t, path)); n < 20 {
		t.Errorf("%d records are left", n)
	}
}

// TestProbeStatusIsTheVerdict: 0 is a good run, 1 one that must not be used or
// could not be made, 2 wrong use; what is wrong use prints no report.
func TestProbeStatusIsTheVerdict(t *testing.T) {
	t.Parallel()
	engine := simulate(t, "--load=off")
	run := func(args ...string) (*process, int) {
		p := start(t, nil, append([]string{"probe", "--gpu.nvml=off", "--warmup=0s", "--requests=5", "--class=a:prompt=64,output=2"}, args...)...)
		return p, p.status(probeLimit)
	}
	at := "--engine.url=" + engine.url
	// A run can be spoilt by a machine that is busy with other tests; not every one.
	for try := range 10 {
		p, status := run(at, "--concurrency=1")
		if status == 0 {
			break
		}
		if !strings.Contains(p.stdout.String(), "client_limited") || try == 9 {
			t.Fatalf("a good run has status %d", status)
		}
	}
	for _, test := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{at, "--rate=20", "--slo=ttft:p50:1ns"}, 1, "NOT USABLE, slo"},
		{[]string{"--engine.url=http://" + freeAddress(t), "--rate=20"}, 1, "refused"},
		{[]string{at}, 2, "--rate, --concurrency or --trace.file"},
		{[]string{at, "--rate=fast"}, 2, "no number above 0"},
		{[]string{at, "--rate=1", "--out.results=" + filepath.Join(t.TempDir(), "none", "r.json")}, 2, "no such file"},
	} {
		p, status := run(test.args...)
		if status != test.status || !strings.Contains(p.stdout.String()+p.stderr.String(), test.says) {
			t.Errorf("%v: status %d, want %d with %q", test.args, status, test.status, test.says)
		}
		if test.status == 2 && p.stdout.String() != "" {
			t.Errorf("%v prints a report", test.args)
		}
	}
}

// TestProfileToProbe: classes that profile finds in a trace are sent in their shares.
func TestProfileToProbe(t *testing.T) {
	t.Parallel()
	// Every third request is long; two sorts of lengths, far apart.
	var rows []azureRow
	for i := range 90 {
		row := azureRow{float64(i) / 3, 250, 4}
		if i%3 == 0 {
			row.prompt, row.output = 4000, 2
		}
		rows = append(rows, row)
	}
	dir := t.TempDir()
	classes, page := filepath.Join(dir, "classes.json"), filepath.Join(dir, "profile.html")
	if _, status := runToEnd(t, nil, "profile", writeAzure(t, rows), "--trace.format=azure", "--out.classes="+classes, "--out.report="+page); status != 0 {
		t.Fatalf("profile has status %d", status)
	}
	if b, err := os.ReadFile(page); err != nil || !bytes.Contains(b, []byte("<svg")) {
		t.Errorf("the page has no drawing: %v", err)
	}
	records := probe(t, simulate(t, "--load=off"), "--classes.file="+classes, "--rate=40", "--requests=120", "--warmup=0s", "--seed=1")
	lengths := map[[2]int]int{}
	names := map[string]bool{}
	for _, r := range records {
		lengths[[2]int{r.Prompt, r.Completion}]++
		names[r.Class] = true
	}
	// 120 draws of a third: 40, give or take five standard deviations of 5.2.
	long, short := lengths[[2]int{4000, 2}], lengths[[2]int{250, 4}]
	if len(names) != 2 || long+short != 120 || long < 14 || long > 66 {
		t.Errorf("classes %v, lengths %v", names, lengths)
	}
}
