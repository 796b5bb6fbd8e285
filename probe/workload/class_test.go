package workload

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseClass(t *testing.T) {
	for text, want := range map[string]Class{
		"chat":                 {Name: "chat", Weight: 1, Prompt: FixedLength(512), Output: FixedLength(256)},
		"generation":           {Name: "generation", Weight: 1, Prompt: FixedLength(1024), Output: FixedLength(1024)},
		"rag:weight=0.5":       {Name: "rag", Weight: 0.5, Prompt: FixedLength(4096), Output: FixedLength(512)},
		"document:natural-end": {Name: "document", Weight: 1, Prompt: FixedLength(10240), Output: FixedLength(1536), NaturalEnd: true},
		"a:prompt=512,prompt-sd=128,output=256,slo=ttft:p99:800ms,slo=e2e:p99.9:12s,chat": {
			Name: "a", Weight: 1, Prompt: Lengths{Distribution: Normal, Mean: 512, SD: 128}, Output: FixedLength(256), Chat: true,
			SLO: []SLO{{Metric: "ttft", Percentile: 99, Bound: 800 * time.Millisecond}, {Metric: "e2e", Percentile: 99.9, Bound: 12 * time.Second}},
		},
		"b:prompt=100-200@3|400,output=64,output-sd=32,output-distribution=lognormal,output-min=4,output-max=256,chat=false": {
			Name: "b", Weight: 1, Prompt: Lengths{Distribution: Buckets, Buckets: []Bucket{{100, 200, 3}, {400, 400, 1}}},
			Output: Lengths{Distribution: Lognormal, Mean: 64, SD: 32, Min: 4, Max: 256},
		},
		"chat:prefix=128,prefix-groups=4,turns=3,think=2.5s,max-prompt=4000": {
			Name: "chat", Weight: 1, Prompt: FixedLength(512), Output: FixedLength(256), Prefix: Prefix{Tokens: 128, Groups: 4},
			Session: Session{Turns: 3, ThinkTime: 2.5, MaxPrompt: 4000},
		},
		"rag:prefix-share=0.5,think=fixed:1s,turns=2": {
			Name: "rag", Weight: 1, Prompt: FixedLength(4096), Output: FixedLength(512), Prefix: Prefix{Share: 0.5},
			Session: Session{Turns: 2, ThinkTime: 1, FixedThinkTime: true},
		},
	} {
		got, err := ParseClass(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", text, d)
		}
	}
}

func TestParseClassErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "a name has 1 to 64",
		"a b":                                  "a name has 1 to 64",
		"new":                                  `class "new": prompt: no length given`,
		"new:prompt=5":                         "output: no length given",
		"chat:":                                "", // as chat alone
		"chat:speed=3":                         `no key "speed"`,
		"chat:prompt-skew=3":                   "no such key",
		"chat:weight=x":                        `weight is "x": want a number`,
		"chat:weight=0":                        "weight is 0",
		"chat:weight=NaN":                      "weight is NaN",
		"chat:weight=1,weight=2":               "weight is given twice",
		"chat:prompt=0":                        "mean is 0 tokens",
		"chat:prompt=1e9":                      "mean is 1e+09 tokens",
		"chat:prompt=5-3":                      "bucket 1 is 5 to 3 tokens",
		"chat:prompt=3-5@0":                    "add up to 0",
		"chat:prompt=3-5@-1":                   "bucket 1 has weight -1",
		"chat:prompt=3-x":                      `want a whole number, not "x"`,
		"chat:prompt=-1":                       `prompt is "-1": want 1 token or more`,
		"chat:output=-5-9":                     `output is "-5-9": want 1 token or more`,
		"foo":                                  "give both, as in foo:prompt=512,output=256, or one of chat, generation, rag, document",
		"chat:slo=ttft:p99:1s,slo=ttft:p99:2s": "have a bound already",
		"chat:prompt-sd=-1":                    "sd is -1",
		"chat:prompt-distribution=z":           `no distribution "z"`,
		"chat:output-min=9,output-max=3":       "min 9 is above max 3",
		"chat:slo=ttft":                        "want METRIC:pPERCENTILE:BOUND",
		"chat:slo=speed:p99:1s":                `no metric "speed"`,
		"chat:slo=ttft:p100:1s":                "want a percentile above 0 and below 100",
		"chat:slo=ttft:99:1s":                  `percentile is "99"`,
		"chat:slo=ttft:p99:1":                  `bound is "1"`,
		"chat:slo=ttft:p99:0s":                 "want a bound above 0",
		"chat:prefix=-1":                       "prefix of -1 tokens",
		"chat:prefix-share=2":                  "prefix share is 2",
		"chat:prefix=2,prefix-share=0.5":       "give one of them",
		"chat:turns=x":                         `turns is "x"`,
		"chat:turns=100000":                    "turns is 100000",
		"chat:think=3":                         `think is "3"`,
		"chat:think=48h":                       "think time is 172800 s",
		"chat:chat=perhaps":                    "want true or false",
	} {
		_, err := ParseClass(text)
		if want == "" {
			if err != nil {
				t.Errorf("%q: %v", text, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error is %v, want %q in it", text, err, want)
		}
	}
	if err := ValidateClasses(append(Builtin(), Builtin()[0])); err == nil || !strings.Contains(err.Error(), `"chat" is given twice`) {
		t.Errorf("a class twice: %v", err)
	}
	if err := ValidateClasses(nil); err == nil {
		t.Error("no classes are accepted")
	}
}

func TestLongest(t *testing.T) {
	for context, want := range map[int][2]int{32768: {32512, 256}, 512: {256, 256}, 100: {50, 50}, 2: {1, 1}} {
		c, err := Longest(context)
		if err != nil {
			t.Fatal(err)
		}
		if p, o := c.Means(); int(p) != want[0] || int(o) != want[1] {
			t.Errorf("context of %d: %g and %g tokens, want %v", context, p, o, want)
		}
	}
	if _, err := Longest(1); err == nil {
		t.Error("a context of 1 token is accepted")
	}
}

// The histograms and means of the distributions are those of what they draw.
func TestLengthsAgreeWithTheirDraws(t *testing.T) {
	bounds := TokenBounds(2000)
	const n = 200000
	for name, l := range map[string]Lengths{
		"fixed":             FixedLength(512),
		"normal":            {Distribution: Normal, Mean: 300, SD: 100},
		"normal, bounded":   {Distribution: Normal, Mean: 100, SD: 80, Min: 16, Max: 250},
		"lognormal":         {Distribution: Lognormal, Mean: 200, SD: 200},
		"lognormal, narrow": {Distribution: Lognormal, Mean: 5, SD: 1},
		"lognormal, max":    {Distribution: Lognormal, Mean: 400, SD: 800, Max: 1000},
		"buckets":           {Distribution: Buckets, Buckets: []Bucket{{10, 20, 1}, {100, 300, 2}, {1000, 1000, 0.5}, {7, 7, 0}}},
	} {
		if err := l.validate(); err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(1, 2))
		drawn, sum := NewHistogram(bounds), 0.0
		for range n {
			x := float64(l.draw(rng))
			drawn.Add(x, 1.0/n)
			sum += x
		}
		want := l.histogram(bounds)
		for i := range want.Counts {
			if p := want.Counts[i]; math.Abs(drawn.Counts[i]-p) > 5*math.Sqrt(p*(1-p)/n)+1e-9 {
				t.Errorf("%s: share of bucket %d is %.5f as drawn and %.5f as computed", name, i, drawn.Counts[i], p)
			}
		}
		if mean := l.mean(); math.Abs(sum/n/mean-1) > 0.01 {
			t.Errorf("%s: mean %.2f as drawn and %.2f as computed", name, sum/n, mean)
		}
	}
	// vLLM's bounds.
	if d := cmp.Diff([]float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000}, bounds); d != "" {
		t.Errorf("bounds (-want +got):\n%s", d)
	}
	// A bound belongs to the bucket below it, as in Prometheus.
	h := NewHistogram([]float64{5, 10})
	h.Add(5, 1)
	h.Add(6, 2)
	h.Add(11, 4)
	if d := cmp.Diff([]float64{1, 2, 4}, h.Counts); d != "" {
		t.Errorf("counts (-want +got):\n%s", d)
	}
}

func someFile() File {
	half := 0.5
	o := Observed{
		Requests: 3, Rate: 1.5, PromptMean: 600, OutputMean: 20,
		PromptHistogram: Histogram{Bounds: []float64{1, 1000}, Counts: []float64{0, 3, 0}},
		OutputHistogram: Histogram{Bounds: []float64{1, 1000}, Counts: []float64{0, 3, 0}},
		GapCV:           &half, PrefixHitRatio: &half, RateShape: &RateShape{StepSeconds: 60, Relative: []float64{0.5, 1.5}},
	}
	return File{
		Schema: Schema, Tool: "a test", Trace: &TraceSource{Name: "x.csv", Format: Azure, SHA256: "ab", Observed: &o},
		Classes: []Class{
			{Name: "a", Weight: 0.25, Joint: Joint{{500, 10, 2}, {700, 30, 1}}, Match: &Match{Tenant: "shop", Scenario: `with "quotes", [brackets] and {braces}`}, Observed: &o},
			{Name: "b", Weight: 0.75, Prompt: Lengths{Distribution: Lognormal, Mean: 100, SD: 50, Min: 2, Max: 4000}, Output: FixedLength(8),
				SLO: []SLO{{Metric: "ttft", Percentile: 99, Bound: 800 * time.Millisecond}}, Chat: true, NaturalEnd: true, Prefix: Prefix{Share: 0.5, Groups: 3},
				Session: Session{Turns: 4, ThinkTime: 2, MaxPrompt: 9000}, Match: &Match{Any: true}},
			{Name: "c", Weight: 1, Prompt: Lengths{Distribution: Buckets, Buckets: []Bucket{{1, 5, 2}}}, Output: FixedLength(9), Match: &Match{Prompt: 5, Output: 9}},
		},
		Notes: []string{"one", "two, and [three]"},
	}
}

func TestFileRoundTrip(t *testing.T) {
	var b bytes.Buffer
	want := someFile()
	if err := want.Encode(&b); err != nil {
		t.Fatal(err)
	}
	first := b.String()
	got, err := Decode(&b)
	if err != nil {
		t.Fatalf("%v in\n%s", err, first)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	b.Reset()
	if err := got.Encode(&b); err != nil || b.String() != first {
		t.Errorf("written again it differs (%v):\n%s\n%s", err, first, b.String())
	}
	if !strings.Contains(first, `"le": [1, 1000]`) || !strings.Contains(first, `{"prompt": 500, "output": 10, "weight": 2}`) {
		t.Errorf("numbers are not on one line:\n%s", first)
	}
	unversioned := want
	unversioned.Schema = ""
	if err := unversioned.Encode(&b); err != nil {
		t.Errorf("a file without a schema gets one: %v", err)
	}
	broken := want
	broken.Classes = nil
	if err := broken.Encode(&b); err == nil {
		t.Error("a file without classes is written")
	}
}

func TestDecodeErrors(t *testing.T) {
	const begin = `{"schema": "workload-classes/v1", "classes": [`
	const class = `{"name": "a", "weight": 1, "prompt": {"distribution": "fixed", "mean": 5}, "output": {"distribution": "fixed", "mean": 5}`
	for text, want := range map[string]string{
		"":                                      "the file is empty",
		"[]":                                    "line 1: the file is an array, want an object",
		"{\n\"schema\": 5}":                     "line 2: schema is a number, want a text",
		`{"classes": []}`:                       `schema is "", want "workload-classes/v1"`,
		`{"schema": "workload-classes/v2"}`:     `schema is "workload-classes/v2"`,
		begin + "]}":                            "no class given",
		begin + class + "}]}\n{}":               "line 2: invalid character",
		begin + class + ", \"wieght\": 2}]}":    `line 1: unknown field "wieght" in classes[0]`,
		begin + class + ",\n\"chat\": 2}]}":     "line 2: classes[0].chat is 2, want true or false",
		begin + class + ", \"slo\": [\"x\"]}]}": `slo "x": want METRIC`,
		begin + class + ", \"slo\": [5]}]}":     "an slo is a text",
		begin + class + "}, " + class + "}]}":   `"a" is given twice`,
		begin + class + ", \"match\": {}}]}":    "match is empty",
		begin + class + ", \"match\": {\"prompt\": 5}}]}":                                                                                                                     "match has the centre 5 and 0 tokens",
		begin + class + ", \"match\": {\"prompt\": 5, \"output\": 5, \"tenant\": \"x\"}}]}":                                                                                   "match has names and a centre",
		begin + class + ", \"match\": {\"any\": true, \"tenant\": \"x\"}}]}":                                                                                                  "match takes any request, and names too",
		begin + class + ", \"joint\": [{\"prompt\": 5, \"output\": 5, \"weight\": 1}]}]}":                                                                                     "joint lengths and single ones",
		begin + `{"name": "a", "weight": 1, "joint": [{"prompt": 0, "output": 5, "weight": 1}]}]}`:                                                                            "joint: cell 1 is 0 and 5 tokens",
		begin + `{"name": "a", "weight": 1, "joint": [{"prompt": 1, "output": 5, "weight": 0}]}]}`:                                                                            "joint: the weights of the cells add up to 0",
		begin + class + `, "observed": {"requests": 0}}]}`:                                                                                                                    "observed: requests is 0",
		begin + class + `, "observed": {"requests": 1, "rate_per_second": 1, "prompt_mean": 5, "output_mean": 5, "prompt_histogram": {"le": [5, 2], "counts": [1, 1, 1]}}}]}`: "prompt histogram: bound 2 is 2",
		begin + class + `, "observed": {"requests": 1, "rate_per_second": 1, "prompt_mean": 5, "output_mean": 5, "prompt_histogram": {"le": [5], "counts": [1]}}}]}`:          "prompt histogram: 1 bounds and 1 counts",
	} {
		if _, err := Decode(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want %q in it", text, err, want)
		}
	}
	if _, err := ReadFile("testdata/none.json"); err == nil || !strings.Contains(err.Error(), "opening the classes file") {
		t.Errorf("no file: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	var b bytes.Buffer
	if err := someFile().Encode(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Decode(bytes.NewReader(data))
		if err != nil {
			return
		}
		var first, second bytes.Buffer
		if err := file.Encode(&first); err != nil {
			t.Fatalf("read but not written: %v", err)
		}
		again, err := Decode(bytes.NewReader(first.Bytes()))
		if err != nil {
			t.Fatalf("written but not read: %v\n%s", err, first.Bytes())
		}
		if err := again.Encode(&second); err != nil || !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Fatalf("written twice it differs (%v):\n%s\n%s", err, first.Bytes(), second.Bytes())
		}
	})
}

func FuzzParseClass(f *testing.F) {
	f.Add("chat:weight=3,prompt=100-200@3|400,slo=ttft:p99:800ms,think=fixed:2s,turns=3")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseClass(text)
		if err != nil {
			return
		}
		source, err := Plan{Classes: []Class{c}, Requests: 3}.Source()
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		for r := range All(source) {
			if r.PromptTokens < 1 || r.MaxTokens < 1 {
				t.Fatalf("%q gives %+v", text, r)
			}
		}
	})
}
