package profile

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headroom_exporter/probe/workload"
)

func readCut(t *testing.T, name string, format workload.Format) *workload.Trace {
	t.Helper()
	in, err := os.Open(filepath.Join("..", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	trace, err := workload.ReadTrace(in, workload.ReadOptions{Format: format})
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func of(t *testing.T, trace *workload.Trace, o Options) *Profile {
	t.Helper()
	if o.By == "" {
		o.By = Auto
	}
	if o.MaxClasses == 0 {
		o.MaxClasses = 4
	}
	if o.Name == "" {
		o.Name = "a trace"
	}
	p, err := Of(trace, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// mixture draws records of three kinds, of which the second and the third
// differ in output length only.
func mixture(n int) *workload.Trace {
	rng := rand.New(rand.NewPCG(1, 2))
	trace := &workload.Trace{Format: workload.Footprint}
	at := 0.0
	for range n {
		at += rng.ExpFloat64() / 10
		r := workload.Record{At: time.Duration(at * 1e9), Prompt: 180 + rng.IntN(80), Output: 90 + rng.IntN(40)}
		switch u := rng.Float64(); {
		case u < 0.3:
			r.Prompt = 3600 + rng.IntN(1600)
		case u < 0.5:
			r.Prompt, r.Output = 3600+rng.IntN(1600), 900+rng.IntN(400)
		}
		trace.Records = append(trace.Records, r)
	}
	return trace
}

func TestClustersFindTheKinds(t *testing.T) {
	p := of(t, mixture(20000), Options{MaxClasses: 6})
	if len(p.File.Classes) != 3 {
		t.Fatalf("%d classes, want 3: %+v", len(p.File.Classes), p.File.Classes)
	}
	for i, want := range []struct{ weight, prompt, output float64 }{{0.5, 219.5, 109.5}, {0.3, 4399.5, 109.5}, {0.2, 4399.5, 1099.5}} {
		c := p.File.Classes[i]
		if math.Abs(c.Weight-want.weight) > 0.015 || math.Abs(c.Observed.PromptMean/want.prompt-1) > 0.02 || math.Abs(c.Observed.OutputMean/want.output-1) > 0.02 {
			t.Errorf("class %d has weight %.3f and means %.0f and %.0f, want %+v", i, c.Weight, c.Observed.PromptMean, c.Observed.OutputMean, want)
		}
		if b := c.Observed.Burstiness; b != nil && math.Abs(*b-1) > 0.25 {
			t.Errorf("class %d has burstiness %.2f, want 1", i, *b)
		}
	}
}

// One kind with a spread of less than a factor of two is one class.
func TestOneKindIsOneClass(t *testing.T) {
	trace := mixture(5000)
	for i := range trace.Records {
		trace.Records[i].Prompt, trace.Records[i].Output = 180+i%80, 90+i%40
	}
	p := of(t, trace, Options{})
	if len(p.File.Classes) != 1 || p.File.Classes[0].Match != nil || p.File.Classes[0].Name != "all" {
		t.Errorf("classes are %+v", p.File.Classes)
	}
}

func named3(n int) *workload.Trace {
	trace := mixture(n)
	for i := range trace.Records {
		r := &trace.Records[i]
		r.Tenant = []string{"Shop & Co", "desk"}[i%2]
		r.Scenario = []string{"chat", "search", "chat"}[i%3]
		r.Model = "m"
	}
	return trace
}

func TestGroups(t *testing.T) {
	trace := named3(6000)
	for _, test := range []struct {
		by   By
		most int
		want []string
	}{
		{Auto, 4, []string{"chat-desk", "chat-shop---co", "search-desk", "search-shop---co"}},
		{Scenario, 4, []string{"chat", "search"}},
		{Tenant, 4, []string{"desk", "shop---co"}},
		{None, 4, []string{"all"}},
	} {
		p := of(t, trace, Options{By: test.by, MaxClasses: test.most})
		var got []string
		for _, c := range p.File.Classes {
			got = append(got, c.Name)
		}
		slices.Sort(got)
		if d := cmp.Diff(test.want, got); d != "" {
			t.Errorf("by %s (-want +got):\n%s", test.by, d)
		}
	}
	// What is too much for the number of classes becomes the rest, which comes last.
	p := of(t, trace, Options{By: Auto, MaxClasses: 2})
	if c := p.File.Classes; len(c) != 2 || c[1].Name != "rest" || !c[1].Match.Any || !strings.Contains(strings.Join(p.File.Notes, "\n"), "the 3 smallest of 4 groups") {
		t.Errorf("classes are %+v, notes %q", c, p.File.Notes)
	}
	// Requests without a name belong to the rest too.
	trace.Records[0].Scenario = ""
	p = of(t, trace, Options{By: Scenario})
	if c := p.File.Classes; len(c) != 3 || c[2].Name != "rest" || c[2].Observed.Requests != 1 {
		t.Errorf("classes are %+v", c)
	}
	for _, test := range []struct {
		o    Options
		want string
	}{
		{Options{By: Model, MaxClasses: 4}, "does not tell different models apart"},
		{Options{By: "colour", MaxClasses: 4}, `no way "colour"`},
		{Options{By: Auto}, "0 classes at most"},
		{Options{By: Auto, MaxClasses: 4, MaxModelLen: -1}, "a context of -1 tokens"},
	} {
		if _, err := Of(trace, test.o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error is %v, want %q in it", err, test.want)
		}
	}
	if _, err := Of(&workload.Trace{Records: trace.Records[:1]}, Options{By: Auto, MaxClasses: 4}); err == nil {
		t.Error("one request makes a profile")
	}
}

// Whatever the trace: the classes add up to it, each has the histograms and
// means of its requests, and what a probe draws from them is like them.
func TestClassesStandForTheTrace(t *testing.T) {
	for name, trace := range map[string]*workload.Trace{
		"azure_conv": readCut(t, "azure_conv.csv", workload.Azure), "azure_code": readCut(t, "azure_code.csv", workload.Azure),
		"mooncake_conversation": readCut(t, "mooncake_conversation.jsonl", workload.Mooncake), "mooncake_synthetic": readCut(t, "mooncake_synthetic.jsonl", workload.Mooncake),
		"mixture": mixture(3000), "named": named3(3000),
	} {
		p := of(t, trace, Options{Name: name, SHA256: "ab", Tool: "a test"})
		if n := len(p.File.Classes); n < 2 || n > 4 {
			t.Errorf("%s: %d classes", name, n)
		}
		weight, requests, tokens := 0.0, 0, 0.0
		prompt := workload.NewHistogram(p.File.Trace.Observed.PromptHistogram.Bounds)
		for i, c := range p.File.Classes {
			weight += c.Weight
			requests += c.Observed.Requests
			tokens += p.TokenShare[i]
			for b, n := range c.Observed.PromptHistogram.Counts {
				prompt.Counts[b] += n
			}
			for j := range i {
				a, b := c.Observed, p.File.Classes[j].Observed
				if name != "named" && ratio(a.PromptMean, b.PromptMean) < 2 && ratio(a.OutputMean, b.OutputMean) < 2 {
					t.Errorf("%s: classes %s and %s are closer than a factor of two", name, c.Name, p.File.Classes[j].Name)
				}
			}
			// The joint lengths keep the means to within rounding, and so the class's own means.
			bare := c
			bare.Observed = nil
			gotPrompt, gotOutput := bare.Means()
			if math.Abs(gotPrompt-c.Observed.PromptMean) > 0.5 || math.Abs(gotOutput-c.Observed.OutputMean) > 0.5 {
				t.Errorf("%s: class %s draws means of %.1f and %.1f, observed %.1f and %.1f", name, c.Name, gotPrompt, gotOutput, c.Observed.PromptMean, c.Observed.OutputMean)
			}
			if len(c.Joint) > maxCells {
				t.Errorf("%s: class %s has %d joint lengths", name, c.Name, len(c.Joint))
			}
			// What is observed is what the histograms are.
			h, _ := c.Histograms(c.Observed.PromptHistogram.Bounds)
			drawn, _ := bare.Histograms(c.Observed.PromptHistogram.Bounds)
			apart := 0.0
			for b := range h.Counts {
				if want := c.Observed.PromptHistogram.Counts[b] / float64(c.Observed.Requests); math.Abs(h.Counts[b]-want) > 1e-9 {
					t.Errorf("%s: class %s, bucket %d has %g, observed %g", name, c.Name, b, h.Counts[b], want)
				}
				apart += math.Abs(h.Counts[b]-drawn.Counts[b]) / 2
			}
			if apart > 0.001 {
				t.Errorf("%s: class %s: %.2f %% of the joint lengths lie in other buckets than observed", name, c.Name, 100*apart)
			}
		}
		if math.Abs(weight-1) > 1e-9 || math.Abs(tokens-1) > 1e-9 || requests != len(trace.Records) {
			t.Errorf("%s: weights add up to %g, token shares to %g, requests to %d of %d", name, weight, tokens, requests, len(trace.Records))
		}
		if d := cmp.Diff(p.File.Trace.Observed.PromptHistogram, prompt); d != "" {
			t.Errorf("%s: the classes' histograms do not add up (-all +sum):\n%s", name, d)
		}
		if last := p.File.Trace.Observed.PromptHistogram; last.Counts[len(last.Counts)-1] != 0 {
			t.Errorf("%s: prompts beyond the last bucket", name)
		}

		// The file is read again as it was, and the replay finds the same classes.
		var b bytes.Buffer
		if err := p.File.Encode(&b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		file, err := workload.Decode(&b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := cmp.Diff(p.File, file); d != "" {
			t.Errorf("%s (-written +read):\n%s", name, d)
		}
		source, err := workload.Replay{Trace: trace, Classes: file.Classes}.Source()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for r := range workload.All(source) {
			if want := p.File.Classes[p.ClassOf[r.Index]].Name; r.Class != want {
				t.Fatalf("%s: request %d is replayed as %s, want %s", name, r.Index, r.Class, want)
			}
		}
		plan, err := workload.Plan{Classes: file.Classes, Requests: 20000}.Source()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		sum := 0.0
		for r := range workload.All(plan) {
			sum += float64(r.PromptTokens)
		}
		s := p.Statistics.Prompt
		if got := sum / 20000; math.Abs(got/s.Mean-1) > 0.06 {
			t.Errorf("%s: the classes make prompts of %.0f tokens on average, want %.0f", name, got, s.Mean)
		}
	}
}

// The whole traces: bursts and prefix sharing as published with them.
func TestFullTraces(t *testing.T) {
	folder := os.Getenv("E2E_TRACES_DIR")
	if folder == "" {
		t.Skip("E2E_TRACES_DIR names no folder with the full traces")
	}
	for name, want := range map[string]struct{ burstiness, hit float64 }{
		// Azure conversation is Poisson with a drifting rate; code is real bursts: an IDC of 3.2 in 1 s, of 37 in 10 s.
		"azure_llm_2023_conv.csv":               {1 / 1.08, math.NaN()},
		"azure_llm_2023_code.csv":               {0.14, math.NaN()},
		"mooncake_conversation_first4000.jsonl": {1, 0.331},
		"mooncake_synthetic_first2000.jsonl":    {1, 0.336},
	} {
		format := workload.Azure
		if strings.HasPrefix(name, "mooncake") {
			format = workload.Mooncake
		}
		in, err := os.Open(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		trace, err := workload.ReadTrace(in, workload.ReadOptions{Format: format})
		in.Close()
		if err != nil {
			t.Fatal(err)
		}
		p := of(t, trace, Options{Name: name})
		o := p.File.Trace.Observed
		if math.Abs(*o.Burstiness/want.burstiness-1) > 0.2 {
			t.Errorf("%s: burstiness %.3f, want %.3f", name, *o.Burstiness, want.burstiness)
		}
		if math.IsNaN(want.hit) != (o.PrefixHitRatio == nil) || o.PrefixHitRatio != nil && math.Abs(*o.PrefixHitRatio-want.hit) > 0.0005 {
			t.Errorf("%s: prefix hit ratio %v, want %.3f", name, o.PrefixHitRatio, want.hit)
		}
		if spread := strings.Contains(strings.Join(p.File.Notes, "\n"), "grid of 3s"); spread != strings.Contains(name, "conversation") {
			t.Errorf("%s: notes are %q", name, p.File.Notes)
		}
	}
}

// Two days, from 21:30 on, with twice the rate from 9:00 to 17:00.
func TestHourShape(t *testing.T) {
	trace := &workload.Trace{Format: workload.Azure, Start: time.Date(2024, 5, 10, 21, 30, 0, 0, time.UTC)}
	for at := time.Duration(0); at <= 48*time.Hour; at += 30 * time.Second {
		trace.Records = append(trace.Records, workload.Record{At: at, Prompt: 100, Output: 10})
		if h := trace.Start.Add(at).Hour(); h >= 9 && h < 17 {
			trace.Records = append(trace.Records, workload.Record{At: at, Prompt: 100, Output: 10})
		}
	}
	s := of(t, trace, Options{}).File.Trace.Observed.RateShape
	if s == nil || !s.HourOfDay || len(s.Relative) != 24 {
		t.Fatalf("shape is %+v", s)
	}
	for h, got := range s.Relative {
		want := 0.75 // 8 hours at 2 and 16 at 1 are 4/3 on average
		if h >= 9 && h < 17 {
			want = 1.5
		}
		if math.Abs(got-want) > 0.02 {
			t.Errorf("hour %d: %g, want %g", h, got, want)
		}
	}
	trace.Start = time.Time{}
	if s := of(t, trace, Options{}).File.Trace.Observed.RateShape; s.HourOfDay || s.StepSeconds != 3600 || len(s.Relative) != 48 {
		t.Errorf("without a clock: %+v", s)
	}
}

func TestBurstinessOfGammaArrivals(t *testing.T) {
	for _, shape := range []float64{0.25, 0.5, 1, 2} {
		source, err := workload.Plan{
			Classes:  []workload.Class{{Name: "a", Weight: 1, Prompt: workload.FixedLength(100), Output: workload.FixedLength(10)}},
			Arrivals: &workload.Arrivals{Process: workload.Gamma, Rate: 20, Burstiness: shape}, Requests: 20000, Seed: 4,
		}.Source()
		if err != nil {
			t.Fatal(err)
		}
		trace := &workload.Trace{}
		for r := range workload.All(source) {
			trace.Records = append(trace.Records, workload.Record{At: r.At, Prompt: r.PromptTokens, Output: r.MaxTokens})
		}
		if got := *of(t, trace, Options{}).File.Trace.Observed.Burstiness; math.Abs(got/shape-1) > 0.15 {
			t.Errorf("gamma arrivals of shape %g have burstiness %.3f", shape, got)
		}
	}
}

var outside = regexp.MustCompile(`(?i)(src|href)\s*=\s*"(?:https?:)?//|url\(|@import|<script|<iframe|<object`)

// The page is well-formed, needs nothing from outside and shows no number that is none.
func TestPage(t *testing.T) {
	tiny := &workload.Trace{Records: []workload.Record{{Prompt: 1, Output: 1}, {At: 2 * time.Second, Prompt: 1, Output: 1}}}
	days := &workload.Trace{Format: workload.Azure, Start: time.Date(2024, 5, 10, 0, 0, 0, 0, time.UTC)}
	for i := range 5000 {
		days.Records = append(days.Records, workload.Record{At: time.Duration(i) * time.Minute, Prompt: 1 + i%3000, Output: 1 + i%70})
	}
	for name, trace := range map[string]*workload.Trace{
		"azure": readCut(t, "azure_code.csv", workload.Azure), "mooncake": readCut(t, "mooncake_conversation.jsonl", workload.Mooncake),
		"footprint": readCut(t, "footprint.jsonl", workload.Footprint), "mixture": mixture(3000), "tiny": tiny, "days": days,
	} {
		p := of(t, trace, Options{Name: `<b>"` + name + `" & 'so'</b>.csv`, Tool: "<i>"})
		var b bytes.Buffer
		if err := p.WritePage(&b, "my classes'.json"); err != nil {
			t.Fatal(err)
		}
		text := b.String()
		for _, bad := range []string{"NaN", "Inf", "<b>\"", "<i>", "%!"} {
			if strings.Contains(text, bad) {
				i := strings.Index(text, bad)
				t.Errorf("%s: %q in the page: %s", name, bad, text[max(i-80, 0):min(i+40, len(text))])
			}
		}
		if m := outside.FindString(text); m != "" {
			t.Errorf("%s: the page wants %s", name, m)
		}
		if !strings.Contains(text, `--classes.file=&#39;my classes&#39;\&#39;&#39;.json&#39;`) {
			t.Errorf("%s: the file's name is not quoted for a shell", name)
		}
		svgs := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(text, -1)
		if len(svgs) < 3 || name == "days" && len(svgs) != 6 {
			t.Errorf("%s: %d pictures", name, len(svgs))
		}
		for _, svg := range svgs {
			if err := wellFormed(svg); err != nil {
				t.Errorf("%s: %v in %.200s", name, err, svg)
			}
		}
	}
}

func wellFormed(text string) error {
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// A profile of the same trace and seed is the same, byte for byte.
func TestProfileIsReproducible(t *testing.T) {
	write := func() (string, string) {
		p := of(t, readCut(t, "mooncake_conversation.jsonl", workload.Mooncake), Options{Seed: 3})
		var file, page bytes.Buffer
		if err := errors.Join(p.File.Encode(&file), p.WritePage(&page, "c.json")); err != nil {
			t.Fatal(err)
		}
		return file.String(), page.String()
	}
	file, page := write()
	again, pageAgain := write()
	if file != again || page != pageAgain {
		t.Error("it differs the second time")
	}
	if !json.Valid([]byte(file)) {
		t.Error("the file is no JSON")
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.004: "0.004", 0.5: "0.5", 1: "1", 2.057: "2.06", 10: "10", 12.34: "12.3", 99.96: "100", 123.4: "123",
		999: "999", 1000: "1k", 2047.8: "2.05k", 13312: "13.3k", 123192: "123k", 16777216: "16.8M",
	} {
		if got := number(v); got != want {
			t.Errorf("%g is written %s, want %s", v, got, want)
		}
	}
	if number(math.NaN()) != "–" {
		t.Error("what is not known is no dash")
	}
}

func BenchmarkProfile(b *testing.B) {
	trace := mixture(20000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Of(trace, Options{By: Auto, MaxClasses: 4}); err != nil {
			b.Fatal(err)
		}
	}
}
