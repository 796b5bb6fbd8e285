package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/knee"
	"headroom_exporter/probe/workload"
)

// TestProbeKneeUsage: what is wrong with a search is said before anything is sent.
func TestProbeKneeUsage(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "left.json")
	if err := os.WriteFile(left+".partial", []byte("{}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	trace := filepath.Join(dir, "trace.csv")
	if err := os.WriteFile(trace, []byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0000000,10,5\n2023-11-16 18:15:47.0000000,10,5\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	diary := filepath.Join(dir, "diary.json")
	if err := os.WriteFile(diary+".partial", []byte(`{"dear":"diary"}`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	busy := filepath.Join(dir, "busy.json")
	running, err := knee.OpenJournal(busy+".partial", knee.JournalHeader{Config: "c", Fields: map[string]string{"seed": "1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	nowhere := "--engine.url=http://127.0.0.1:1"
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"a curve of one load", []string{"--rate=1", "--out.curve=" + filepath.Join(dir, "c.json")}, "--rate"},
		{"a soak of one load", []string{"--rate=1", "--quick"}, "--quick is for the search of the knee"},
		{"a preset of one load", []string{"--concurrency=1", "--slo.preset=llama2-70b"}, "--slo.preset is for the search"},
		{"quick and release", []string{"--quick", "--release"}, "exclude each other"},
		{"a mix beside and alone", []string{"--mix", "--mix-only"}, "exclude each other"},
		{"a mix beside a curve that is not there", []string{"--mix-only", "--update", "--class=chat", "--class=rag", "--out.curve=" + filepath.Join(dir, "none.json")}, "none.json is not there: leave --mix-only out"},
		{"a mix of one class", []string{"--mix-only", "--class=a:prompt=8,output=8"}, "need two classes or more"},
		{"requests of a search", []string{"--requests=5"}, "--requests"},
		{"an unknown preset", []string{"--slo.preset=gpt"}, "want one of"},
		{"two sorts of bounds", []string{"--slo.preset=llama2-70b", "--slo=ttft:p99:1s"}, "exclude each other"},
		{"all of it in reserve", []string{"--peak-reserve=1"}, "--peak-reserve"},
		{"a mix of one", []string{"--mix"}, "two classes"},
		{"a mix of one that is the longest", []string{"--mix", "--class=longest"}, "two classes"},
		{"a trace without classes", []string{"--out.curve=" + filepath.Join(dir, "t.json"), "--trace.file=" + trace, "--trace.format=azure"}, "--out.classes=FILE makes them"},
		{"resuming nothing", []string{"--resume", "--out.curve=" + filepath.Join(dir, "none.json")}, "there is no"},
		{"resuming without a file", []string{"--resume"}, "need --out.curve"},
		{"what another run left", []string{"--out.curve=" + left}, "--resume to go on"},
		{"resuming what is no journal", []string{"--resume", "--out.curve=" + diary}, "it is no journal of a search"},
		{"what another probe writes", []string{"--out.curve=" + busy}, "another probe is writing it"},
		{"resuming what another probe writes", []string{"--resume", "--out.curve=" + busy}, "another probe is writing it"},
		{"dropping what another probe writes", []string{"--force", "--out.curve=" + busy}, "another probe is writing it"},
		{"an identity that is none", []string{nowhere, "--identity=colour=red", "--gpu.nvml=off"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, out, errOut := probed(t, test.args...)
			if test.want == "" {
				if status == exitOK {
					t.Errorf("status 0:\n%s\n%s", out, errOut)
				}
				return
			}
			if status != exitUsage || !strings.Contains(errOut, test.want) || strings.Count(errOut, "\n") != 1 {
				t.Errorf("status %d, want %d and one line with %q:\n%s", status, exitUsage, test.want, errOut)
			}
		})
	}
}

func TestProbeKneeDefaultSLO(t *testing.T) {
	slos := func(args loadFlags, f kneeFlags) []capacity.SLO {
		t.Helper()
		args.trace, args.arrivals, args.traceSpeed, args.tracePeak = &traceFlags{}, "poisson", 1, 1
		l, err := args.resolve(true)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.validate(l); err != nil {
			t.Fatal(err)
		}
		return l.slo
	}
	if got := slos(loadFlags{}, kneeFlags{}); len(got) != 2 || got[0].String() != "ttft:p99:800ms" || got[1].String() != "e2e:p99:12s" {
		t.Errorf("without a bound: %v", got)
	}
	if got := slos(loadFlags{classes: []string{"c:prompt=10,output=10,slo=itl:p95:50ms"}}, kneeFlags{}); len(got) != 0 {
		t.Errorf("every class has bounds of its own, and the run has %v", got)
	}
	if got := slos(loadFlags{}, kneeFlags{preset: "llama3.1-8b-interactive"}); len(got) != 2 || got[1].String() != "tpot:p99:30ms" {
		t.Errorf("a preset: %v", got)
	}
}

// TestJournalHeader: every flag that changes what is searched for keeps a
// search from going on with another's measurements.
func TestJournalHeader(t *testing.T) {
	base := func() (*probeFlags, *load, curve.Identity) {
		return &probeFlags{}, &load{seed: 7, slo: capacity.DefaultSLO()}, curve.Identity{Model: "m", MaxNumSeqs: 8}
	}
	f, l, id := base()
	want := f.journalHeader(l, id)
	id.KVTokens, id.DriverVersion = 1000, "590"
	if again := f.journalHeader(l, id); again.Config != want.Config {
		t.Fatal("the same search has two names")
	}
	for name, change := range map[string]func(*probeFlags, *load, *curve.Identity){
		"seed":                  func(_ *probeFlags, l *load, _ *curve.Identity) { l.seed++ },
		"slo":                   func(_ *probeFlags, l *load, _ *curve.Identity) { l.slo = l.slo[:1] },
		"mode":                  func(f *probeFlags, _ *load, _ *curve.Identity) { f.knee.quick = true },
		"mix":                   func(f *probeFlags, _ *load, _ *curve.Identity) { f.knee.mix = true },
		"mix-only":              func(f *probeFlags, _ *load, _ *curve.Identity) { f.knee.mixOnly = true },
		"max-inflight":          func(f *probeFlags, _ *load, _ *curve.Identity) { f.load.maxInflight = 5 },
		"burstiness":            func(f *probeFlags, _ *load, _ *curve.Identity) { f.load.burstiness = numbers{0.5} },
		"engine's max_num_seqs": func(_ *probeFlags, _ *load, id *curve.Identity) { id.MaxNumSeqs = 4 },
	} {
		f, l, id := base()
		change(f, l, &id)
		got := f.journalHeader(l, id)
		if got.Config == want.Config || got.Fields[name] == want.Fields[name] {
			t.Errorf("another %s: the journal does not tell", name)
		}
	}
	if got := (&kneeFlags{quick: true}).mode(); got != knee.Quick {
		t.Errorf("--quick is %v", got)
	}
}

// TestUpdatable: that a curve cannot be updated is said before the search, not after it.
func TestUpdatable(t *testing.T) {
	path, stored := exampleCurve(t)
	other := stored.Identity
	other.MaxNumSeqs++
	for _, test := range []struct {
		name     string
		flags    kneeFlags
		identity curve.Identity
		want     string
	}{
		{"no update", kneeFlags{curve: path, quick: true}, other, ""},
		{"the same engine", kneeFlags{curve: path, update: true}, stored.Identity, ""},
		{"a new file", kneeFlags{curve: path + ".none", update: true}, other, ""},
		{"another engine", kneeFlags{curve: path, update: true}, other, "is of another engine (max_num_seqs was "},
		{"an estimate", kneeFlags{curve: path, update: true, quick: true}, stored.Identity, "leave --quick out"},
		{"no curve", kneeFlags{curve: "main.go", update: true}, other, "main.go: reading the curve"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.flags.updatable(test.identity)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// TestMixable: a mix that is searched alone is added beside its own classes
// only, and that they are not there is said before the search.
func TestMixable(t *testing.T) {
	path, stored := exampleCurve(t)
	classOf := func(i int, name string) workload.Class {
		class := &stored.Classes[i]
		return workload.Class{
			Name: name, SLO: class.SLO,
			Observed: &workload.Observed{PromptMean: class.PromptMean, OutputMean: class.GenerationMean},
		}
	}
	chat, other := classOf(0, stored.Classes[0].Name), classOf(0, "other")
	longer := chat
	longer.Observed = &workload.Observed{PromptMean: 2 * chat.Observed.PromptMean, OutputMean: chat.Observed.OutputMean}
	for _, test := range []struct {
		name    string
		flags   kneeFlags
		classes []workload.Class
		want    string
	}{
		{"its classes", kneeFlags{curve: path, update: true, mixOnly: true}, []workload.Class{chat, classOf(1, stored.Classes[1].Name)}, ""},
		{"one that it lacks", kneeFlags{curve: path, update: true, mixOnly: true}, []workload.Class{chat, other}, path + " has no class other of these lengths and bounds"},
		{"one of other lengths", kneeFlags{curve: path, update: true, mixOnly: true}, []workload.Class{longer}, "has no class " + chat.Name},
		{"no curve", kneeFlags{curve: path + ".none", update: true, mixOnly: true}, nil, "no such file"},
		{"a new curve", kneeFlags{curve: path, mixOnly: true}, []workload.Class{other}, ""},
		{"the classes as well", kneeFlags{curve: path, update: true, mix: true}, []workload.Class{other}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.flags.mixable(&load{classes: test.classes, slo: stored.SLO})
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// TestUpdatedCoverage: what a curve rests on is told of all that is in it, and
// not of what was added last.
func TestUpdatedCoverage(t *testing.T) {
	_, stored := exampleCurve(t)
	path := filepath.Join(t.TempDir(), "curve.json")
	if err := writeOutput(path, false, stored.Encode); err != nil {
		t.Fatal(err)
	}
	found := *stored
	found.Classes = slices.Clone(stored.Classes)
	for i := range found.Classes {
		found.Classes[i].Studies = nil
	}
	found.Finished = stored.Finished.Add(time.Hour)
	found.Coverage = curve.Cover(&found)
	f := &probeFlags{knee: kneeFlags{curve: path, update: true}}
	updated, err := f.updated(&found)
	if err != nil {
		t.Fatal(err)
	}
	peak := func(c *curve.Curve) bool {
		return slices.ContainsFunc(c.Coverage, func(item curve.Coverage) bool { return item.Item == "peak" && item.Done })
	}
	if peak(&found) || !peak(updated) {
		t.Errorf("what was found has a knee: %v, the curve: %v", peak(&found), peak(updated))
	}
}

// TestSaidOnce: what several parts ran into is said once.
func TestSaidOnce(t *testing.T) {
	full := errors.New("write c.partial: no space left on device")
	for _, test := range []struct {
		err  error
		want string
	}{
		{full, full.Error()},
		{errors.Join(fmt.Errorf("class a: %w", full), full, full), "class a: " + full.Error()},
		{errors.Join(full, errors.New("closing")), full.Error() + "; closing"},
	} {
		if got := saidOnce(test.err); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// TestEnded: of a search that ended early only the studies that did not are shown.
func TestEnded(t *testing.T) {
	study := func(s curve.Status) curve.Study { return curve.Study{Status: s} }
	c := &curve.Curve{
		Classes: []curve.Class{
			{Name: "done", Studies: []curve.Study{study(curve.StatusOK), study(curve.StatusInterrupted)}},
			{Name: "under way", Studies: []curve.Study{study(curve.StatusInterrupted)}},
			{Name: "to come"},
		},
		Mixes: []curve.Mix{{Name: "mix", Study: study(curve.StatusInterrupted)}},
	}
	got := ended(c)
	if len(got.Classes) != 1 || got.Classes[0].Name != "done" || len(got.Classes[0].Studies) != 1 || len(got.Mixes) != 0 {
		t.Errorf("%+v", got)
	}
	if len(c.Classes) != 3 || len(c.Classes[0].Studies) != 2 || len(c.Mixes) != 1 {
		t.Error("the curve itself was changed")
	}
}
