package workload

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func requests(t testing.TB, p interface{ Source() (Source, error) }) []Request {
	t.Helper()
	source, err := p.Source()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(All(source))
}

var allFields = cmp.AllowUnexported(Request{}, piece{})

func TestPlan(t *testing.T) {
	p := Plan{
		Classes: []Class{
			{Name: "a", Weight: 3, Prompt: FixedLength(100), Output: FixedLength(10), Chat: true},
			{Name: "b", Weight: 1, Prompt: Lengths{Distribution: Lognormal, Mean: 300, SD: 100}, Output: FixedLength(20), NaturalEnd: true},
		},
		Arrivals: &Arrivals{Process: Poisson, Rate: 50}, Duration: 200 * time.Second, Seed: 1, ContentSeed: 2, CacheSalt: "salt",
	}
	all := requests(t, p)
	n := float64(len(all))
	if math.Abs(n-10000) > 4*100 {
		t.Errorf("%g requests in 200 s at 50/s", n)
	}
	ofA, previous, promptB := 0.0, time.Duration(0), 0.0
	for i, r := range all {
		if r.Index != i || r.At < previous || r.At >= p.Duration || r.CacheSalt != "salt" || r.SessionID != "" {
			t.Fatalf("request %d is %+v after %s", i, r, previous)
		}
		previous = r.At
		switch r.Class {
		case "a":
			ofA++
			if r.PromptTokens != 100 || r.MaxTokens != 10 || !r.Chat || !r.IgnoreEOS {
				t.Fatalf("request of class a is %+v", r)
			}
		case "b":
			promptB += float64(r.PromptTokens)
			if r.MaxTokens != 20 || r.Chat || r.IgnoreEOS {
				t.Fatalf("request of class b is %+v", r)
			}
		}
	}
	if share := ofA / n; math.Abs(share-0.75) > 4*math.Sqrt(0.75*0.25/n) {
		t.Errorf("a share of %.3f is of class a, want 0.75", share)
	}
	if mean := promptB / (n - ofA); math.Abs(mean-300) > 4*100/math.Sqrt(n-ofA) {
		t.Errorf("mean prompt of class b is %.1f", mean)
	}
	if d := cmp.Diff(all, requests(t, p), allFields); d != "" {
		t.Errorf("the same plan gives other requests:\n%s", d)
	}

	// Another seed of the content changes nothing else.
	content := p
	content.ContentSeed = 3
	other := requests(t, content)
	if d := cmp.Diff(all, other, cmpopts.IgnoreUnexported(Request{})); d != "" {
		t.Errorf("the content's seed changed more than the content:\n%s", d)
	}
	all[0].MakeTokens(SafeVocabulary(0))
	other[0].MakeTokens(SafeVocabulary(0))
	if slices.Equal(all[0].Tokens, other[0].Tokens) {
		t.Error("the content's seed did not change the content")
	}

	// Requests do not depend on how many there are or on when they arrive.
	bounded := p
	bounded.Requests, bounded.Arrivals, bounded.Duration = 500, nil, 0
	closed := requests(t, bounded)
	if len(closed) != 500 {
		t.Fatalf("%d requests, want 500", len(closed))
	}
	all[0].Tokens = nil
	if d := cmp.Diff(all[:500], closed, allFields, cmpopts.IgnoreFields(Request{}, "At")); d != "" {
		t.Errorf("closed loop gives other requests:\n%s", d)
	}
}

func TestPlanErrors(t *testing.T) {
	for _, test := range []struct {
		plan Plan
		want string
	}{
		{Plan{}, "no class given"},
		{Plan{Classes: Builtin(), Requests: -1}, "-1 requests"},
		{Plan{Classes: Builtin(), MaxModelLen: 8192}, `class "document": its requests do not fit the context of 8192 tokens`},
		{Plan{Classes: Builtin(), MaxModelLen: -1}, "a context of -1 tokens"},
		{Plan{Classes: Builtin(), Duration: time.Second}, "a closed loop has no planned times"},
		{Plan{Classes: Builtin(), Arrivals: &Arrivals{Process: Poisson}}, "rate is 0"},
	} {
		if _, err := test.plan.Source(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error is %v, want %q in it", err, test.want)
		}
	}
}

func TestPrefix(t *testing.T) {
	const n, groups = 2000, 5
	for name, test := range map[string]struct {
		prefix Prefix
		want   int
	}{
		"tokens":               {Prefix{Tokens: 64, Groups: groups}, 64},
		"share":                {Prefix{Share: 0.25, Groups: groups}, 50},
		"more than the prompt": {Prefix{Tokens: 500, Groups: groups}, 199},
		"all of the prompt":    {Prefix{Share: 1, Groups: groups}, 199},
	} {
		all := requests(t, Plan{
			Classes:  []Class{{Name: "a", Weight: 1, Prompt: FixedLength(200), Output: FixedLength(1), Prefix: test.prefix}},
			Requests: n, Seed: 5,
		})
		prefixes, whole := map[string]int{}, map[string]bool{}
		for _, r := range all {
			r.MakeTokens(SafeVocabulary(512))
			if r.PrefixTokens != test.want || len(r.Tokens) != 200 {
				t.Fatalf("%s: %d of %d tokens shared, want %d of 200", name, r.PrefixTokens, len(r.Tokens), test.want)
			}
			prefixes[key(r.Tokens[:test.want])]++
			whole[key(r.Tokens)] = true
		}
		if len(prefixes) != groups {
			t.Errorf("%s: %d beginnings, want %d", name, len(prefixes), groups)
		}
		for _, count := range prefixes {
			if math.Abs(float64(count)-n/groups) > 4*math.Sqrt(n/groups) {
				t.Errorf("%s: a beginning is shared by %d requests, want about %d", name, count, n/groups)
			}
		}
		// One token of its own can be one of 416 only.
		if test.want < 199 && len(whole) != n {
			t.Errorf("%s: %d different prompts, want %d", name, len(whole), n)
		}
	}
}

func key(tokens []int) string {
	var b strings.Builder
	for _, id := range tokens {
		b.WriteRune(rune(id))
	}
	return b.String()
}

func TestSessions(t *testing.T) {
	class := Class{
		Name: "talk", Weight: 1, Prompt: Lengths{Distribution: Normal, Mean: 100, SD: 20, Min: 50}, Output: FixedLength(30),
		Prefix: Prefix{Tokens: 40}, Session: Session{Turns: 4, ThinkTime: 10},
	}
	p := Plan{Classes: []Class{class, {Name: "single", Weight: 1, Prompt: FixedLength(50), Output: FixedLength(5)}},
		Arrivals: &Arrivals{Process: Poisson, Rate: 5}, Duration: 300 * time.Second, Seed: 1}
	all := requests(t, p)
	last := map[string]Request{}
	think, turns := 0.0, 0.0
	previous := time.Duration(0)
	for i, r := range all {
		if r.Index != i || r.At < previous {
			t.Fatalf("request %d is %+v after %s", i, r, previous)
		}
		previous = r.At
		if r.Class == "single" {
			if r.SessionID != "" || r.Turn != 0 || r.Turns != 0 || r.PrefixTokens != 0 {
				t.Fatalf("a single request is %+v", r)
			}
			continue
		}
		r.MakeTokens(SafeVocabulary(0))
		if len(r.Tokens) != r.PromptTokens || r.Turns != 4 {
			t.Fatalf("%d tokens of %d, %d turns", len(r.Tokens), r.PromptTokens, r.Turns)
		}
		before, ok := last[r.SessionID]
		last[r.SessionID] = r
		if !ok {
			if r.Turn != 0 || r.ThinkTime != 0 || r.PrefixTokens != 40 {
				t.Fatalf("a first turn is %+v", r)
			}
			continue
		}
		if r.Turn != before.Turn+1 || r.At != before.At+r.ThinkTime {
			t.Fatalf("turn %d at %s after %d at %s, think time %s", r.Turn, r.At, before.Turn, before.At, r.ThinkTime)
		}
		if r.PrefixTokens != before.PromptTokens || !slices.Equal(r.Tokens[:before.PromptTokens], before.Tokens) {
			t.Fatalf("turn %d does not go on from turn %d", r.Turn, before.Turn)
		}
		if added := r.PromptTokens - before.PromptTokens - before.MaxTokens; added < 50 || added > 200 {
			t.Fatalf("a turn adds %d tokens", added)
		}
		think += r.ThinkTime.Seconds()
		turns++
	}
	if mean := think / turns; math.Abs(mean-10) > 4*10/math.Sqrt(turns) {
		t.Errorf("mean think time is %.2f s, want 10", mean)
	}

	// Closed loop gives the turns of a session one after the other.
	closed := requests(t, Plan{Classes: []Class{class}, Requests: 12})
	for i, r := range closed {
		if r.Turn != i%4 || r.SessionID != closed[i/4*4].SessionID {
			t.Errorf("request %d is turn %d of %s", i, r.Turn, r.SessionID)
		}
	}

	// A session ends before its prompt gets too long, and says so from its first turn on.
	class.Prompt, class.Session = FixedLength(100), Session{Turns: 9, MaxPrompt: 400, ThinkTime: 3, FixedThinkTime: true}
	short := requests(t, Plan{Classes: []Class{class}, Requests: 6})
	for i, r := range short {
		if r.Turns != 3 || r.Turn != i%3 || r.PromptTokens != 100+130*r.Turn || r.Turn > 0 && r.ThinkTime != 3*time.Second {
			t.Errorf("request %d is turn %d of %d with %d tokens after %s", i, r.Turn, r.Turns, r.PromptTokens, r.ThinkTime)
		}
	}
}

func TestContext(t *testing.T) {
	p := Plan{
		Classes: []Class{
			{Name: "wide", Weight: 1, Prompt: Lengths{Distribution: Buckets, Buckets: []Bucket{{100, 100, 3}, {900, 900, 1}}}, Output: FixedLength(200)},
			{Name: "talk", Weight: 1, Prompt: FixedLength(100), Output: FixedLength(100), Session: Session{Turns: 9}},
		},
		Requests: 4000, MaxModelLen: 1000,
	}
	for _, r := range requests(t, p) {
		if r.PromptTokens+r.MaxTokens > 1000 || r.Class == "wide" && r.PromptTokens != 100 || r.Class == "talk" && r.Turns != 5 {
			t.Fatalf("request is %+v", r)
		}
	}
	notes := p.Notes()
	if len(notes) != 1 || !strings.HasPrefix(notes[0], "class wide: about 2") || !strings.HasSuffix(notes[0], "longer than the context of 1000 tokens, and others are drawn for them") {
		t.Errorf("notes are %q", notes)
	}
	p.MaxModelLen = 1100
	if notes := p.Notes(); notes != nil {
		t.Errorf("all fit, and the notes are %q", notes)
	}
}

// Sessions that wait for their next turn are few however long the run is.
func TestPendingSessionsAreBounded(t *testing.T) {
	source, err := Plan{
		Classes:  []Class{{Name: "a", Weight: 1, Prompt: FixedLength(10), Output: FixedLength(1), Session: Session{Turns: 3, ThinkTime: 1}}},
		Arrivals: &Arrivals{Process: Poisson, Rate: 100}, Requests: 100000,
	}.Source()
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	for range All(source) {
		most = max(most, len(source.(*generator).pending))
	}
	// Little's law: 100/s times 2 s.
	if most > 400 {
		t.Errorf("%d sessions wait at once", most)
	}
}

func TestCacheSalt(t *testing.T) {
	a, b := NewCacheSalt(), NewCacheSalt()
	if len(a) != 32 || strings.Trim(a, "0123456789abcdef") != "" || a == b {
		t.Errorf("salts are %q and %q", a, b)
	}
}

func BenchmarkNext(b *testing.B) {
	for name, plan := range map[string]Plan{
		"fixed":     {Classes: Builtin()[:1], Arrivals: &Arrivals{Process: Poisson, Rate: 100}},
		"lognormal": {Classes: []Class{{Name: "a", Weight: 1, Prompt: Lengths{Distribution: Lognormal, Mean: 512, SD: 256}, Output: Lengths{Distribution: Lognormal, Mean: 256, SD: 128}}}, Arrivals: &Arrivals{Process: Gamma, Rate: 100, Burstiness: 0.5}},
	} {
		b.Run(name, func(b *testing.B) {
			source, err := plan.Source()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				source.Next()
			}
		})
	}
}

func BenchmarkMakeTokens(b *testing.B) {
	for name, length := range map[string]int{"512": 512, "10240": 10240} {
		b.Run(name, func(b *testing.B) {
			r := request(piece{key: mix(1), length: length})
			v := SafeVocabulary(0)
			b.ReportAllocs()
			for b.Loop() {
				r.MakeTokens(v)
			}
			b.ReportMetric(float64(b.N)*float64(length)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

func BenchmarkMakeText(b *testing.B) {
	r := request(piece{key: mix(1), length: 512})
	b.ReportAllocs()
	for b.Loop() {
		r.MakeText(TextShape{TokensPerWord: 1.3})
	}
}
