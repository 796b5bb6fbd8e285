package workload

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"headroom_exporter/simulator"
)

// replayed turns requests back into records, so that they can be described.
func replayed(requests []Request) []Record {
	var records []Record
	for _, r := range requests {
		records = append(records, Record{At: r.At, Prompt: r.PromptTokens, Output: r.MaxTokens, SessionID: r.SessionID})
	}
	return records
}

func TestReplayKeepsTheTrace(t *testing.T) {
	for name, format := range map[string]Format{"azure_conv.csv": Azure, "azure_code.csv": Azure, "mooncake_conversation.jsonl": Mooncake, "mooncake_synthetic.jsonl": Mooncake} {
		trace := readCut(t, name, format)
		all := requests(t, Replay{Trace: trace})
		want, got := Describe(trace.Records, 0), Describe(replayed(all), 0)
		want.PrefixHitRatio = math.NaN() // requests have no blocks
		if d := cmp.Diff(want, got, cmpopts.EquateNaNs()); d != "" {
			t.Errorf("%s replays differently (-want +got):\n%s", name, d)
		}
		for i, r := range all {
			if r.Index != i || r.Class != TraceClass || !r.IgnoreEOS {
				t.Fatalf("%s: request %d is %+v", name, i, r)
			}
		}
	}
}

// Blocks that were seen before are tokens that were seen before, and others are not.
func TestReplaySharesPrefixes(t *testing.T) {
	for name, want := range map[string]float64{"mooncake_conversation.jsonl": 0.136869, "mooncake_synthetic.jsonl": 0.061875} {
		trace := readCut(t, name, Mooncake)
		all := requests(t, Replay{Trace: trace, ContentSeed: 9})
		hits, planned, tokens := 0, 0, 0
		// An endless cache of blocks of 16 tokens, in which a block counts with all that is before it.
		type link struct {
			before int
			block  [16]int
		}
		cache := map[link]int{}
		for _, r := range all {
			r.MakeTokens(SafeVocabulary(0))
			tokens += len(r.Tokens)
			planned += r.PrefixTokens
			at, held := 0, true
			for i := 0; i+16 <= len(r.Tokens); i += 16 {
				l := link{before: at}
				copy(l.block[:], r.Tokens[i:])
				next, ok := cache[l]
				if !ok {
					next = len(cache) + 1
					cache[l] = next
					held = false
				}
				if held {
					hits += 16
				}
				at = next
			}
		}
		ratio := float64(hits) / float64(tokens)
		// Whole blocks of 16 only, hence a little below the share of all tokens.
		if ratio > want+1e-6 || ratio < want-0.0005 {
			t.Errorf("%s: %.6f of the tokens were seen before, want %.6f", name, ratio, want)
		}
		if p := float64(planned) / float64(tokens); math.Abs(p-want) > 1e-6 {
			t.Errorf("%s: the requests say %.6f of their tokens are shared, want %.6f", name, p, want)
		}
	}
}

// simulated replays a trace on the simulated engine with a cache that forgets nothing.
func simulated(t *testing.T, trace *Trace) float64 {
	t.Helper()
	source, err := Replay{Trace: trace, ContentSeed: 9}.Source()
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := simulator.Preset(simulator.Presets()[0])
	if err != nil {
		t.Fatal(err)
	}
	tokens := 0
	var load []*simulator.Request
	for r := range All(source) {
		r.MakeTokens(SafeVocabulary(128256))
		tokens += r.PromptTokens
		// One after the other: a block can be found once it is computed.
		load = append(load, &simulator.Request{
			ID: strconv.Itoa(r.Index), Prompt: r.Tokens, OutputLength: 1, MaxTokens: 1, FinishReason: simulator.FinishLength,
			Arrival: float64(r.Index) * 100,
		})
	}
	cfg.EnablePrefixCaching, cfg.BlockSize, cfg.MaxModelLen = true, 16, 1<<18
	cfg.Hardware.KVBytesPerToken = 1
	cfg.NumGPUBlocks = tokens/16 + len(load) + 2
	result, err := simulator.RunVirtual(cfg, load, float64(len(load))*100)
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Finished) != len(load) || result.PrefixQueries != tokens {
		t.Fatalf("%d of %d requests finished, %d of %d tokens looked up", len(result.Finished), len(load), result.PrefixQueries, tokens)
	}
	return float64(result.PrefixHits) / float64(result.PrefixQueries)
}

func TestReplayOnTheSimulator(t *testing.T) {
	trace := readCut(t, "mooncake_conversation.jsonl", Mooncake)
	trace.Records = trace.Records[:150]
	want := prefixHitRatio(trace.Records, trace.BlockSize)
	if got := simulated(t, trace); got > want || got < want-0.001 {
		t.Errorf("prefix hit share on the simulator is %.5f, want %.5f", got, want)
	}
}

func TestFullReplayOnTheSimulator(t *testing.T) {
	folder := fullTraces(t)
	for name, want := range map[string]float64{"mooncake_conversation_first4000.jsonl": 0.331, "mooncake_synthetic_first2000.jsonl": 0.336} {
		got := simulated(t, readTrace(t, filepath.Join(folder, name), ReadOptions{Format: Mooncake}))
		if math.Abs(got-want) > 0.0015 {
			t.Errorf("%s: prefix hit share on the simulator is %.4f, want %.3f", name, got, want)
		}
	}
}

// The same blocks give the same tokens whatever else the trace holds.
func TestReplayIsReproducible(t *testing.T) {
	trace := readCut(t, "mooncake_conversation.jsonl", Mooncake)
	a := requests(t, Replay{Trace: trace, ContentSeed: 1})
	part := *trace
	part.Records = trace.Records[100:]
	b := requests(t, Replay{Trace: &part, ContentSeed: 1})
	c := requests(t, Replay{Trace: &part, ContentSeed: 2})
	for i := range b {
		a[100+i].MakeTokens(SafeVocabulary(0))
		b[i].MakeTokens(SafeVocabulary(0))
		c[i].MakeTokens(SafeVocabulary(0))
		if !slices.Equal(a[100+i].Tokens, b[i].Tokens) {
			t.Fatalf("request %d differs in a part of the trace", i)
		}
		if slices.Equal(b[i].Tokens[:16], c[i].Tokens[:16]) {
			t.Fatalf("request %d begins alike with another seed", i)
		}
	}
}

func TestSpeed(t *testing.T) {
	trace := readCut(t, "azure_conv.csv", Azure)
	fast := requests(t, Replay{Trace: trace, Speed: 4})
	for i, r := range fast {
		if want := trace.Records[i].At / 4; r.At < want-1 || r.At > want+1 {
			t.Fatalf("request %d at %s, want %s", i, r.At, want)
		}
	}
	if n := len(requests(t, Replay{Trace: trace, Speed: 4, Duration: trace.Records[300].At / 4})); n != 300 {
		t.Errorf("%d requests before the time of request 300", n)
	}
	if n := len(requests(t, Replay{Trace: trace, Requests: 17})); n != 17 {
		t.Errorf("%d requests, want 17", n)
	}
}

func TestPeakFactor(t *testing.T) {
	trace := readCut(t, "azure_code.csv", Azure)
	end := trace.Records[len(trace.Records)-1].At
	whole := WindowCounts(trace.Records, 0, end, 10*time.Second)
	for _, factor := range []float64{0.5, 1, 1.5, 2, 3} {
		all := requests(t, Replay{Trace: trace, PeakFactor: factor, Seed: 3})
		n, want := float64(len(all)), factor*float64(len(trace.Records))
		if math.Abs(n-want) > 4*math.Sqrt(0.25*float64(len(trace.Records))) || factor == math.Trunc(factor) && n != want {
			t.Errorf("factor %g: %g requests, want %g", factor, n, want)
		}
		if !slices.IsSortedFunc(all, func(a, b Request) int { return int(a.At - b.At) }) {
			t.Errorf("factor %g: not in order", factor)
		}
		// The shape stays: the counts in 10 s go with those of the trace, pauses included.
		counts := WindowCounts(replayed(all), 0, end, 10*time.Second)
		if r := correlation(whole, counts); r < 0.97 {
			t.Errorf("factor %g: the counts have a correlation of %.3f with the trace's", factor, r)
		}
		for i := range whole {
			// A repeated request comes at most a mean gap, 0.4 s, later: into the next window at most.
			if whole[i] == 0 && (i == 0 || whole[i-1] == 0) && counts[i] > 0 {
				t.Errorf("factor %g: %g requests in a pause", factor, counts[i])
			}
		}
	}
	// Repeated prompts are nobody else's, but share among each other what the originals share.
	trace = readCut(t, "mooncake_conversation.jsonl", Mooncake)
	all := requests(t, Replay{Trace: trace, PeakFactor: 3, Seed: 1})
	hit, tokens := 0, 0
	for _, r := range all {
		hit += r.PrefixTokens
		tokens += r.PromptTokens
	}
	if got, want := float64(hit)/float64(tokens), 0.136869; math.Abs(got-want) > 1e-6 {
		t.Errorf("three times as many: %.6f of the tokens are shared, want %.6f", got, want)
	}
	// Sessions stay whole.
	trace = readCut(t, "bailian.jsonl", Bailian)
	for seed := range uint64(20) {
		turns := map[string]int{}
		for _, r := range requests(t, Replay{Trace: trace, PeakFactor: 1.5, Seed: seed}) {
			turns[r.SessionID]++
		}
		if turns["10"] != 3 || turns["10-copy-1"] != 0 && turns["10-copy-1"] != 3 {
			t.Errorf("seed %d: turns of the sessions are %v", seed, turns)
		}
	}
}

func correlation(a, b []float64) float64 {
	n := min(len(a), len(b))
	meanA, cvA := moments(a[:n])
	meanB, cvB := moments(b[:n])
	sum := 0.0
	for i := range n {
		sum += (a[i] - meanA) * (b[i] - meanB)
	}
	return sum / float64(n) / (cvA * meanA * cvB * meanB)
}

func TestGrid(t *testing.T) {
	for name, format := range map[string]Format{"azure_conv.csv": Azure, "azure_code.csv": Azure, "mooncake_synthetic.jsonl": Mooncake} {
		if g := readCut(t, name, format).Grid(); g != 0 {
			t.Errorf("%s has a grid of %s", name, g)
		}
	}
	trace := readCut(t, "mooncake_conversation.jsonl", Mooncake)
	slot := trace.Grid()
	if slot < 2999*time.Millisecond || slot > 3001*time.Millisecond {
		t.Fatalf("the grid is %s, want 3 s", slot)
	}
	spread := trace.Spread(slot, 1)
	for i, r := range spread.Records {
		if d := r.At - trace.Records[i].At; d < 0 || d > slot || i > 0 && r.At < spread.Records[i-1].At {
			t.Fatalf("request %d moved by %s", i, d)
		}
	}
	// About Poisson in seconds, and as before in minutes.
	before, after := Describe(trace.Records, 0), Describe(spread.Records, 0)
	if after.GapCV < 0.8 || after.GapCV > 1.2 || after.Second.IDC > 1.3 {
		t.Errorf("spread, gaps have a CV of %.2f and seconds an IDC of %.2f; before %.2f and %.2f", after.GapCV, after.Second.IDC, before.GapCV, before.Second.IDC)
	}
	same := func(a, b Record) bool { return a.At == b.At }
	if !slices.EqualFunc(spread.Records, trace.Spread(slot, 1).Records, same) {
		t.Error("the same seed spreads differently")
	}
	if slices.EqualFunc(spread.Records, trace.Spread(slot, 2).Records, same) {
		t.Error("another seed spreads the same way")
	}
	// Seconds at a rate at which many requests share one.
	seconds := &Trace{}
	for i := range 100 {
		for range 3 {
			seconds.Records = append(seconds.Records, Record{At: time.Duration(i) * time.Second, Prompt: 1, Output: 1})
		}
	}
	if g := seconds.Grid(); g != time.Second {
		t.Errorf("whole seconds have a grid of %s", g)
	}
}

func TestReplayContext(t *testing.T) {
	trace := readCut(t, "mooncake_conversation.jsonl", Mooncake)
	fit := 0
	for _, r := range trace.Records {
		if r.Prompt+r.Output <= 8192 {
			fit++
		}
	}
	p := Replay{Trace: trace, MaxModelLen: 8192}
	all := requests(t, p)
	if fit == 0 || fit == len(trace.Records) || len(all) != fit {
		t.Errorf("%d requests, want %d of %d", len(all), fit, len(trace.Records))
	}
	for i, r := range all {
		if r.Index != i || r.PromptTokens+r.MaxTokens > 8192 {
			t.Fatalf("request %d is %+v", i, r)
		}
	}
	if got, want := p.Notes(), fmt.Sprintf("requests longer than the context of 8192 tokens left out: %d of 400", 400-fit); len(got) != 1 || got[0] != want {
		t.Errorf("notes are %q, want %q", got, want)
	}
}

func TestReplayNotes(t *testing.T) {
	trace := readCut(t, "burstgpt.csv", BurstGPT)
	got := Replay{Trace: trace, Grid: 3 * time.Second, Speed: 2, PeakFactor: 1.5, Seed: 7}.Notes()
	want := []string{
		"requests without output left out: 1",
		"timestamps lie on a grid of 3s: the requests of each slot are spread uniformly over it (seed 7)",
		"played 2 times as fast",
		"1.5 times as many requests at every time (seed 7)",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := (Replay{Trace: readCut(t, "bailian.jsonl", Bailian)}).Notes(); got != nil {
		t.Errorf("a plain replay notes %q", got)
	}
}

func TestReplayClasses(t *testing.T) {
	lengths := func(name string, m *Match) Class {
		return Class{Name: name, Weight: 1, Prompt: FixedLength(1), Output: FixedLength(1), Match: m, Chat: name == "chat"}
	}
	trace := readCut(t, "footprint.jsonl", Footprint)
	for _, test := range []struct {
		classes []Class
		want    []string
	}{
		{nil, []string{"trace", "trace", "trace"}},
		{[]Class{lengths("one", nil)}, []string{"one", "one", "one"}},
		{[]Class{lengths("chat", &Match{Scenario: "chat"}), lengths("rest", &Match{Any: true})}, []string{"chat", "rest", "chat"}},
		{[]Class{lengths("chat", &Match{Scenario: "chat", Model: "m-8b"}), lengths("shop", &Match{Tenant: "shop"}), lengths("rest", &Match{Any: true})}, []string{"chat", "shop", "rest"}},
		{[]Class{lengths("short", &Match{Prompt: 800, Output: 100}), lengths("long", &Match{Prompt: 4000, Output: 100})}, []string{"short", "long", "short"}},
	} {
		var got []string
		for _, r := range requests(t, Replay{Trace: trace, Classes: test.classes}) {
			got = append(got, r.Class)
			if r.Chat != (r.Class == "chat") {
				t.Errorf("%+v", r)
			}
		}
		if d := cmp.Diff(test.want, got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
	for _, test := range []struct {
		replay Replay
		want   string
	}{
		{Replay{}, "the trace has no requests"},
		{Replay{Trace: trace, Classes: Builtin()}, `class "chat" does not say which requests`},
		{Replay{Trace: trace, Classes: []Class{lengths("a", &Match{Tenant: "shop"})}}, `request 3: no class matches the tenant "desk", scenario "chat" and model "m-70b"`},
		{Replay{Trace: trace, Classes: []Class{lengths("a", &Match{Tenant: "shop"}), lengths("b", &Match{Prompt: 1, Output: 1})}}, "some classes match names and others lengths"},
		{Replay{Trace: trace, Speed: -1}, "speed is -1"},
		{Replay{Trace: trace, PeakFactor: 1e9}, "peak factor is 1e+09"},
		{Replay{Trace: trace, Requests: -1}, "-1 requests"},
		{Replay{Trace: trace, MaxModelLen: 700}, "no request of the trace fits the context of 700 tokens"},
	} {
		if _, err := test.replay.Source(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error is %v, want %q in it", err, test.want)
		}
	}
}

func BenchmarkReplay(b *testing.B) {
	trace := readCut(b, "mooncake_conversation.jsonl", Mooncake)
	b.ReportAllocs()
	for b.Loop() {
		source, err := Replay{Trace: trace}.Source()
		if err != nil {
			b.Fatal(err)
		}
		for range All(source) {
		}
	}
	b.ReportMetric(float64(b.N*len(trace.Records))/b.Elapsed().Seconds(), "requests/s")
}
