package curve

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom_exporter/capacity"
)

var unknown = capacity.Unknown()

func unknownQuantiles() Quantiles {
	return Quantiles{Mean: unknown, P10: unknown, P50: unknown, P90: unknown, P95: unknown, P99: unknown, P999: unknown, Max: unknown}
}

// exponential are the quantiles of an exponential latency with a median.
func exponential(n int, median float64) Quantiles {
	at := func(p float64) Value { return Value(median * math.Log(1-p) / math.Log(0.5)) }
	return Quantiles{
		N: float64(n), Mean: Value(median / math.Ln2), P10: at(.1), P50: Value(median), P90: at(.9), P95: at(.95), P99: at(.99), P999: at(.999),
		Max: at(1 - 0.5/float64(n)),
	}
}

// pointAt is a point of an engine whose latencies grow as 1/(1 - rate/limit).
func pointAt(purpose Purpose, rate, limit, ttft float64) Point {
	const n = 2000
	passed := true
	grown := ttft / (1 - min(rate/limit, 0.95))
	p := Point{
		Name: fmt.Sprintf("%s %g", purpose, rate), Purpose: purpose, OfferedRate: Value(rate), CompletedRate: Value(rate),
		PromptTokenRate: unknown, GenerationTokenRate: unknown, Seconds: n / rate, Attempts: n, Passed: &passed,
		TTFT: exponential(n, grown), ITL: unknownQuantiles(), TPOT: exponential(n, grown/10), E2E: exponential(n, 5*grown),
		Engine: UnknownEngineReadings(), Client: ClientReadings{LagP99: unknown, CPUShare: unknown},
	}
	return p
}

// studyOf is a study with a knee and loads on either side of the shares that are compared.
func studyOf(arrivals Arrivals, knee, ttft float64) Study {
	limit := 1.25 * knee
	s := Study{
		Arrivals: arrivals, SafeRate: Value(0.9 * knee), Status: StatusOK, Seconds: 1,
		Knee: &Knee{
			Rate: Value(knee), Low: Value(0.97 * knee), High: Value(1.03 * knee), Confidence: 0.9, Watermark: Value(0.72 * knee),
			BindingSLO: "ttft:p99:1s", Boundary: "smooth", CliffFrom: unknown, CliffTo: unknown,
			PromptTokenRate: Value(100 * knee), GenerationTokenRate: Value(32 * knee), Concurrency: unknown, KVPeak: unknown,
		},
	}
	for _, share := range []float64{0.1, 0.3, 0.45, 0.55, 0.75, 0.85, 1} {
		s.Points = append(s.Points, pointAt(PurposeProbe, share*knee, limit, ttft))
	}
	return s
}

func poisson() Arrivals { return Arrivals{Process: "poisson"} }

// built is a curve with two classes, one of them under two arrival shapes as well.
func built(knee float64) *Curve {
	histogram := capacity.Histogram{Bounds: []float64{100, 1000}, Counts: []float64{0, 1, 0}}
	return &Curve{
		Schema: Schema, Source: Measured, PeakReserve: 0.2,
		Identity: Identity{Model: "tiny", MaxNumSeqs: 8, GPUName: "NVIDIA H200", GPUCount: 1, KVTokens: 10000, EngineType: "vllm", EngineVersion: "0.11.0", MaxModelLen: 1024},
		SLO:      []capacity.SLO{{Metric: "ttft", Percentile: 99, Bound: time.Second}},
		Classes: []Class{
			{
				Name: "chat", Weight: 1, PromptHistogram: histogram, GenerationHistogram: histogram, PromptMean: 128, GenerationMean: 32, PrefixHitRatio: unknown,
				Studies: []Study{studyOf(poisson(), knee, 0.05), studyOf(Arrivals{Process: "gamma", Burstiness: 0.5}, 0.8*knee, 0.06)},
			},
			{
				Name: "long", Weight: 1, PromptHistogram: histogram, GenerationHistogram: histogram, PromptMean: 700, GenerationMean: 16, PrefixHitRatio: unknown,
				Studies: []Study{studyOf(poisson(), 1, 0.2)},
			},
		},
		Workload: Workload{Hash: strings.Repeat("ab", 32), Seed: 1},
		Tool:     Tool{Name: "headroom_exporter"},
		Started:  time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC), Finished: time.Date(2026, 3, 1, 10, 30, 0, 0, time.UTC),
	}
}

// withMix adds a mix in which the short class has a tail.
func withMix(c *Curve, mixedTail float64) *Curve {
	slo := c.SLO[0]
	c.Mixes = append(c.Mixes, Mix{
		Name: "mix", Shares: map[string]float64{"chat": 0.5, "long": 0.5}, Study: studyOf(poisson(), 1.5, 0.1),
		Squeeze: []Squeeze{{Class: "chat", SLO: slo, Alone: 0.4, Mixed: Value(mixedTail)}},
	})
	return c
}

func one(c ...*Curve) []*Curve { return c }

// rowOf is the row of a quantity; tails by their share.
func rowOf(t *testing.T, c *Comparison, class string, arrivals Arrivals, quantity string, share float64) Row {
	t.Helper()
	for _, r := range c.Rows {
		if r.Class == class && r.Arrivals == arrivals && r.Quantity == quantity && r.Share == share {
			return r
		}
	}
	t.Fatalf("no row %s %s %s %g", class, arrivals, quantity, share)
	return Row{}
}

func TestReleaseGateOfEqualCurves(t *testing.T) {
	c := ReleaseGate(one(withMix(built(4), 0.5)), one(withMix(built(4), 0.5)), GateOptions{Strict: true})
	if c.Outcome != Passed || c.Count(Same) != len(c.Rows) || len(c.Changes) != 0 {
		t.Errorf("equal curves: %s, %v", c.Summary(), c.Shown()[0].Line())
	}
	// Knee and safe rate of three studies and a mix, nine tails at two loads of each, and a squeeze.
	if want := 4*(2+9*2) + 1; len(c.Rows) != want {
		t.Errorf("%d rows, want %d", len(c.Rows), want)
	}
}

func TestReleaseGateFindsAHalvedKnee(t *testing.T) {
	base, next := built(4.1), built(2.2)
	next.Identity.MaxNumSeqs = 4
	c := ReleaseGate(one(base), one(next), GateOptions{})
	if c.Outcome != Regression {
		t.Fatalf("outcome is %s", c.Outcome)
	}
	first := c.Shown()[0].Line()
	if want := "class chat, poisson: knee 4.1/s -> 2.2/s (-46 %, band 5 %): worse; ttft:p99:1s binds; max_num_seqs 8 -> 4"; first != want {
		t.Errorf("the first line is\n%s\nwant\n%s", first, want)
	}
	if r := rowOf(t, c, "long", poisson(), "knee", 0); r.Verdict != Same {
		t.Errorf("the other class is %s", r.Line())
	}
	// The new one was measured up to its own knee, which is below 80 % of the base's.
	if r := rowOf(t, c, "chat", poisson(), "tails", 0.8); r.Line() != "class chat, poisson: tails at 3.28/s (80 % of the base's knee): undecided; the new one was measured up to 2.2/s only" {
		t.Errorf("the tail that was not reached is %s", r.Line())
	}
	if c = ReleaseGate(one(next), one(base), GateOptions{}); rowOf(t, c, "chat", poisson(), "knee", 0).Verdict != Better {
		t.Errorf("the other way round: %s", c.Summary())
	}
}

func TestReleaseGateKnees(t *testing.T) {
	// The base's knee is 4, between 3.88 and 4.12.
	for _, test := range []struct {
		name             string
		knee, low, high  Value
		aa               Value
		status           Status
		want, wantSafe   Verdict
		passes, inStrict bool
	}{
		{"noise", 3.85, 3.7, 4, unknown, StatusOK, Same, Same, true, true},
		{"a fall that its interval covers", 3.6, 3.2, 3.9, unknown, StatusOK, Undecided, Undecided, true, false},
		{"a fall", 3.6, 3.5, 3.7, unknown, StatusOK, Worse, Worse, false, false},
		{"a fall within the A/A band", 3.6, 3.5, 3.7, 0.12, StatusOK, Same, Same, true, true},
		{"a fall that no A/A band excuses", 2.2, 2.1, 2.3, 0.6, StatusOK, Worse, Worse, false, false},
		{"a rise", 4.5, 4.4, 4.6, unknown, StatusOK, Better, Better, true, true},
		{"a rise that its interval covers", 4.5, 4, 4.6, unknown, StatusOK, Same, Better, true, true},
		{"no knee", unknown, unknown, unknown, unknown, StatusNoSafeRate, Worse, Worse, false, false},
		{"interrupted", unknown, unknown, unknown, unknown, StatusInterrupted, Missing, Missing, false, false},
		// It passed at 4/s and was held there.
		{"not reached", unknown, unknown, unknown, unknown, StatusNotReached, Same, Missing, false, false},
	} {
		base, next := built(4), built(4)
		s := &next.Classes[0].Studies[0]
		s.Status, s.Knee.Rate, s.Knee.Low, s.Knee.High = test.status, test.knee, test.low, test.high
		s.SafeRate = 0.9 * test.knee
		next.AA = &AA{Class: "chat", Rate: 2, Band: test.aa}
		c := ReleaseGate(one(base), one(next), GateOptions{})
		if r := rowOf(t, c, "chat", poisson(), "knee", 0); r.Verdict != test.want {
			t.Errorf("%s: %s, want %s", test.name, r.Line(), test.want)
		}
		if r := rowOf(t, c, "chat", poisson(), "safe_rate", 0); r.Verdict != test.wantSafe {
			t.Errorf("%s: %s, want %s", test.name, r.Line(), test.wantSafe)
		}
		if got := c.Outcome == Passed; got != test.passes {
			t.Errorf("%s: outcome is %s", test.name, c.Outcome)
		}
		if got := ReleaseGate(one(base), one(next), GateOptions{Strict: true}).Outcome == Passed; got != test.inStrict {
			t.Errorf("%s: with --strict passes is %v", test.name, got)
		}
	}
}

func TestReleaseGateTails(t *testing.T) {
	slower := func(factor float64) *Curve {
		c := built(4)
		c.Classes[0].Studies[0] = studyOf(poisson(), 4, 0.05*factor)
		return c
	}
	for _, test := range []struct {
		factor float64
		want   Verdict
	}{{1.04, Same}, {1.5, Worse}, {0.5, Better}} {
		c := ReleaseGate(one(built(4)), one(slower(test.factor)), GateOptions{})
		for _, share := range tailShares {
			r := rowOf(t, c, "chat", poisson(), "ttft_p50", share)
			if r.Verdict != test.want || math.Abs(float64(r.Change)-(test.factor-1)) > 1e-9 {
				t.Errorf("%g times: %s", test.factor, r.Line())
			}
		}
	}
	// 5 % and more on few requests are no evidence.
	few := func(factor float64) *Curve {
		c := slower(factor)
		for i := range c.Classes[0].Studies[0].Points {
			c.Classes[0].Studies[0].Points[i].Attempts = 60
		}
		return c
	}
	c := ReleaseGate(one(few(1)), one(few(1.15)), GateOptions{})
	if r := rowOf(t, c, "chat", poisson(), "ttft_p95", 0.5); r.Verdict != Undecided || c.Outcome != Passed {
		t.Errorf("of 60 requests: %s, %s", r.Line(), c.Summary())
	}
	// Faults and early ends leave a point out, and what is between differs then.
	far := slower(1.5)
	s := &far.Classes[0].Studies[0]
	for i := range s.Points {
		if p := &s.Points[i]; p.OfferedRate > 0.11*4 && p.OfferedRate < 0.8*4 {
			p.Faults = []string{"client_limited: the client was late"}
		}
	}
	c = ReleaseGate(one(built(4)), one(far), GateOptions{})
	if r := rowOf(t, c, "chat", poisson(), "ttft_p50", 0.5); r.Verdict != Undecided || !strings.Contains(r.Line(), "far apart") {
		t.Errorf("between loads far apart: %s", r.Line())
	}
}

func TestTailAt(t *testing.T) {
	loads := openLoads(&Study{
		Baseline: func() *Point { p := pointAt(PurposeBaseline, 1, 1e9, 1); p.Concurrency = 1; return &p }(),
		Points:   []Point{pointAt(PurposeProbe, 2, 1e9, 4), pointAt(PurposeProbe, 2.02, 1e9, 4), pointAt(PurposeCeiling, 5, 1e9, 9)},
	}, "")
	for _, test := range []struct {
		rate, want float64
		why        string
	}{
		{0, 1, ""}, {1, 2, ""}, {2, 4, ""}, {2.04, 4, ""}, {3, math.NaN(), "was measured up to 2.01/s only"},
	} {
		got, why := tailAt(loads, tail{"ttft", 50}, test.rate)
		if why != test.why || why == "" && math.Abs(float64(got.Value)-test.want) > 0.02*test.want {
			t.Errorf("at %g: %g, %q, want %g, %q", test.rate, got.Value, why, test.want, test.why)
		}
		if why == "" && !(got.Low < got.Value && got.Value < got.High) {
			t.Errorf("at %g: %g is not between %g and %g", test.rate, got.Value, got.Low, got.High)
		}
	}
	// 0.99^n falls below the half per cent that a two-sided bound at 99 % leaves
	// at n = 528: of fewer, all may lie below the p99.
	for n, bounded := range map[float64]bool{527: false, 528: true} {
		l := openLoad{independent: n, of: map[string]Quantiles{"ttft": exponential(2000, 1)}}
		if m := l.measure(tail{"ttft", 99}); math.IsInf(float64(m.High), 1) == bounded {
			t.Errorf("the upper bound of p99 from %g requests is %g", n, m.High)
		}
	}
	l := openLoad{independent: 2000, of: map[string]Quantiles{"ttft": exponential(2000, 1)}}
	// The ranks of the median are 1000 +- 2.576 sqrt(2000)/2, its quantiles 0.471 and 0.529.
	if m := l.measure(tail{"ttft", 50}); math.Abs(float64(m.Low)-0.919) > 0.01 || math.Abs(float64(m.High)-1.085) > 0.01 {
		t.Errorf("the median's interval is %g to %g", m.Low, m.High)
	}
}

func TestABBACancelsDrift(t *testing.T) {
	// The machine loses 4 % of its first speed between two measurements, the engine is the same.
	at := func(i int) *Curve {
		c := built(4 * (1 - 0.04*float64(i)))
		c.Classes[1].Studies[0] = studyOf(poisson(), 1-0.04*float64(i), 0.2)
		c.Started = c.Started.Add(time.Duration(i) * time.Hour)
		return c
	}
	if c := ReleaseGate(one(at(0)), one(at(2)), GateOptions{}); c.Outcome != Regression {
		t.Errorf("once each, two steps apart: %s", c.Summary())
	}
	c := ReleaseGate(one(at(0), at(3)), one(at(1), at(2)), GateOptions{})
	r := rowOf(t, c, "chat", poisson(), "knee", 0)
	if c.Outcome != Passed || math.Abs(float64(r.Change)) > 1e-9 || math.Abs(r.Band-0.12/0.94) > 1e-9 {
		t.Errorf("ABBA: %s, %s", c.Summary(), r.Line())
	}
	if strings.Contains(strings.Join(c.Notes, "\n"), "drift") {
		t.Errorf("notes: %q", c.Notes)
	}
	c = ReleaseGate(one(at(0), at(1)), one(at(2), at(3)), GateOptions{})
	if !strings.Contains(strings.Join(c.Notes, "\n"), "not measured in the order base, new, new, base") {
		t.Errorf("AABB: notes are %q", c.Notes)
	}
	late := at(3)
	late.Started = late.Started.Add(20 * time.Hour)
	c = ReleaseGate(one(at(0), late), one(at(1), at(2)), GateOptions{})
	if !strings.Contains(strings.Join(c.Notes, "\n"), "uneven distances") {
		t.Errorf("uneven: notes are %q", c.Notes)
	}
	// A regression beyond what the repetitions differ is still found.
	half := func(i int) *Curve {
		c := at(i)
		c.Classes[0].Studies[0] = studyOf(poisson(), 2, 0.05)
		return c
	}
	if c := ReleaseGate(one(at(0), at(3)), one(half(1), half(2)), GateOptions{}); c.Outcome != Regression {
		t.Errorf("ABBA with half the knee: %s", c.Summary())
	}
	other := at(3)
	other.Identity.MaxNumSeqs = 4
	if c := ReleaseGate(one(at(0), other), one(at(1), at(2)), GateOptions{}); c.Outcome != NotComparable {
		t.Errorf("a repetition of another engine: %s", c.Summary())
	}
}

func TestReleaseGateMissing(t *testing.T) {
	next := built(4)
	next.Classes = next.Classes[:1]
	next.Classes[0].Studies = next.Classes[0].Studies[:1]
	c := ReleaseGate(one(built(4)), one(next), GateOptions{})
	if c.Outcome != Regression || c.Count(Missing) != 2 || rowOf(t, c, "long", poisson(), "knee", 0).Verdict != Missing {
		t.Errorf("%s", c.Summary())
	}
	c = ReleaseGate(one(next), one(built(4)), GateOptions{})
	if c.Outcome != Passed || !strings.Contains(strings.Join(c.Notes, "\n"), "class long is in the new one only") {
		t.Errorf("%s, notes %q", c.Summary(), c.Notes)
	}
}

func TestReleaseGateNotComparable(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Curve)
		want   string
	}{
		{"model", func(c *Curve) { c.Identity.Model = "other" }, "model tiny -> other"},
		{"GPU", func(c *Curve) { c.Identity.GPUName = "NVIDIA L4" }, "gpu_name NVIDIA H200 -> NVIDIA L4"},
		{"GPUs", func(c *Curve) { c.Identity.GPUCount = 2 }, "gpu_count 1 -> 2"},
		{"SLO", func(c *Curve) { c.SLO[0].Bound *= 2 }, "slo of class chat: ttft:p99:1s -> ttft:p99:2s"},
		{"SLO of a class", func(c *Curve) {
			c.Classes[1].SLO = []capacity.SLO{{Metric: "e2e", Percentile: 95, Bound: time.Minute}}
		}, "slo of class long: ttft:p99:1s -> e2e:p95:1m0s"},
		{"workload", func(c *Curve) { c.Workload.Hash = strings.Repeat("cd", 32) }, "workload abababab -> cdcdcdcd"},
	} {
		next := built(4)
		test.change(next)
		c := ReleaseGate(one(built(4)), one(next), GateOptions{})
		if c.Outcome != NotComparable || !strings.Contains(c.Summary(), test.want) {
			t.Errorf("%s: %s", test.name, c.Summary())
		}
		allowed := ReleaseGate(one(built(4)), one(next), GateOptions{AllowDifferentWorkload: true})
		if got := allowed.Outcome == Passed; got != (test.name == "workload") {
			t.Errorf("%s, any workload: %s", test.name, allowed.Summary())
		}
	}
	// What a release changes is listed and compared.
	next := built(4)
	next.Identity.EngineVersion, next.Identity.Quantization, next.Identity.KVTokens = "0.11.1", "fp8", 10100
	c := ReleaseGate(one(built(4)), one(next), GateOptions{})
	if c.Outcome != Passed || len(c.Changes) != 1 || c.Changes[0].String() != "engine_version 0.11.0 -> 0.11.1" {
		t.Errorf("changes are %v, %s", c.Changes, c.Summary())
	}
}

func TestReleaseGateSaysWhatIsNotMeasured(t *testing.T) {
	base, next := built(4), built(4)
	base.Source, base.ImportedFrom = Imported, "guidellm"
	next.Estimate = true
	c := ReleaseGate(one(base), one(next), GateOptions{})
	notes := strings.Join(c.Notes, "\n")
	for _, want := range []string{"the base was imported from guidellm", "the new one is an estimate", "the band is the floor of 5 %"} {
		if !strings.Contains(notes, want) {
			t.Errorf("no %q in %s", want, notes)
		}
	}
}

func TestReleaseGateSqueeze(t *testing.T) {
	for _, test := range []struct {
		name              string
		alone, mixedAfter float64
		want              Verdict
	}{
		{"as before", 0.4, 0.5, Same},
		{"squeezed more", 0.4, 0.9, Worse},
		{"squeezed less", 0.4, 0.42, Better},
		{"faster alone", 0.2, 0.5, Same},
		{"slower, alone as well", 0.8, 0.99, Same},
		{"over the bound", 0.9, 1.1, Worse},
	} {
		base, next := withMix(built(4), 0.5), withMix(built(4), test.mixedAfter)
		next.Mixes[0].Squeeze[0].Alone = Value(test.alone)
		c := ReleaseGate(one(base), one(next), GateOptions{})
		if r := rowOf(t, c, "chat", poisson(), "squeeze_ttft_p99", 0); r.Verdict != test.want {
			t.Errorf("%s: %s", test.name, r.Line())
		}
	}
	c := ReleaseGate(one(withMix(built(4), 0.5)), one(withMix(built(4), 1.1)), GateOptions{})
	if first := c.Shown()[0].Line(); !strings.Contains(first, "it passes ttft:p99:1s at the mix's safe rate") {
		t.Errorf("the first line is %s", first)
	}
}

func TestComparisonMarkdown(t *testing.T) {
	base, next := withMix(built(4.1), 0.5), withMix(built(2.2), 0.9)
	next.Identity.MaxNumSeqs = 4
	next.Started = next.Started.Add(time.Hour)
	base.ID, next.ID = base.Identity.ID(), next.Identity.ID()
	var out bytes.Buffer
	if err := ReleaseGate(one(base), one(next), GateOptions{}).WriteMarkdown(&out); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "compare.md")
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("run with -update if this is meant:\n%s", out.String())
	}
}

// drawn are the quantiles of so many exponential latencies.
func drawn(r *rand.Rand, n int, median float64) Quantiles {
	v := make([]float64, n)
	for i := range v {
		v[i] = r.ExpFloat64() * median / math.Ln2
	}
	slices.Sort(v)
	at := func(p float64) Value {
		if float64(n)*(1-p) < 1 {
			return unknown
		}
		return Value(v[int(math.Ceil(p*float64(n)))-1])
	}
	return Quantiles{N: float64(n), Mean: unknown, P10: at(.1), P50: at(.5), P90: at(.9), P95: at(.95), P99: at(.99), P999: at(.999), Max: Value(v[n-1])}
}

// TestReleaseGateErrors draws curves of one engine, and of one that is slower,
// with the scatter of 1,000 requests a load: how often is the gate wrong?
func TestReleaseGateErrors(t *testing.T) {
	const trials, requests = 50, 1000
	r := rand.New(rand.NewPCG(1, 2))
	measured := func(slower float64) *Curve {
		c := built(4)
		c.Classes = c.Classes[:1]
		c.Classes[0].Studies = c.Classes[0].Studies[:1]
		s := &c.Classes[0].Studies[0]
		knee := 4 * (1 + 0.015*r.NormFloat64())
		s.Knee.Rate, s.Knee.Low, s.Knee.High, s.SafeRate = Value(knee), Value(knee*0.97), Value(knee*1.03), Value(0.95*knee)
		for i := range s.Points {
			p := &s.Points[i]
			median := float64(p.TTFT.P50) * slower
			p.Attempts = requests
			p.TTFT, p.TPOT, p.E2E = drawn(r, requests, median), drawn(r, requests, median/10), drawn(r, requests, 5*median)
		}
		return c
	}
	failed := func(slower float64) int {
		n := 0
		for range trials {
			if ReleaseGate(one(measured(1)), one(measured(slower)), GateOptions{}).Outcome != Passed {
				n++
			}
		}
		return n
	}
	alarms, found := failed(1), failed(1.25)
	t.Logf("of %d: %d false alarms, latencies 25 %% higher found %d times", trials, alarms, found)
	if alarms > 1 {
		t.Errorf("%d of %d comparisons of an engine with itself failed", alarms, trials)
	}
	if found < 45 {
		t.Errorf("an engine with latencies 25 %% higher failed %d times of %d", found, trials)
	}
}

// A gate that passes has compared something, and says what it has not.
func TestReleaseGateSaysWhatIsNotCompared(t *testing.T) {
	study := func(c *Curve) *Study { return &c.Classes[0].Studies[0] }
	noKnee := func(c *Curve) {
		for i := range c.Classes {
			for k := range c.Classes[i].Studies {
				s := &c.Classes[i].Studies[k]
				s.Knee, s.SafeRate, s.Status, s.Reason = nil, unknown, StatusInterrupted, "stopped by hand"
			}
		}
	}
	quick := func(from float64) func(*Curve) {
		return func(c *Curve) {
			s := study(c)
			s.Points = slices.DeleteFunc(s.Points, func(p Point) bool { return float64(p.OfferedRate) < from })
		}
	}
	at := func(hours int) func(*Curve) {
		return func(c *Curve) { c.Started = c.Started.Add(time.Duration(hours) * time.Hour) }
	}
	run := func(change func(*Curve)) *Curve { c := built(4); change(c); return c }
	const sameRun, noAA, drift = "are the same run", "no file has the same load twice", "a drift between them does not cancel"
	for _, test := range []struct {
		name       string
		base, next []*Curve
		outcome    GateOutcome
		want, not  []string
	}{
		{"no knee at all", one(run(noKnee)), one(run(noKnee)), NotComparable, []string{
			"not comparable: no class or mix of the base has a knee", "class chat, poisson: knee: undecided; the base has no knee: interrupted: stopped by hand",
		}, nil},
		{"one class without a knee", one(run(func(c *Curve) { study(c).Knee, study(c).SafeRate, study(c).Status = nil, unknown, StatusNoSafeRate })), one(built(4)), Passed,
			[]string{"class chat, poisson: knee not known -> 4/s: undecided; the base has no knee: no_safe_rate"}, nil},
		{"the new one lost all knees", one(built(4)), one(run(noKnee)), Regression, nil, nil},
		{"quick, above 80 % of the knee", one(run(quick(3.3))), one(run(quick(3.3))), Passed, []string{
			"class chat, poisson: tails at 2/s (50 % of the base's knee): undecided; the base was measured from 3.4/s on only",
			"class chat, poisson: tails at 3.2/s (80 % of the base's knee): undecided; the base was measured from 3.4/s on only",
		}, nil},
		{"quick, at different loads", one(run(quick(3.3))), one(run(quick(3.9))), Passed, []string{"the base was measured from 3.4/s on only"}, nil},
		{"nothing usable", one(run(func(c *Curve) { study(c).Points = nil })), one(built(4)), Passed, []string{"tails at 2/s (50 % of the base's knee): undecided; the base has no load with enough requests"}, nil},
		{"a file with itself", one(built(4)), one(built(4)), Passed, []string{"the base and the new one " + sameRun, noAA}, nil},
		{"the same file four times", one(built(4), built(4)), one(built(4), built(4)), Passed, []string{"the base and the new one " + sameRun, "the new one's repetition " + sameRun, noAA, drift}, nil},
		{"the same file as its repetition", one(built(4), built(4)), one(run(at(1)), run(at(2))), Passed, []string{"the base and the base's repetition " + sameRun, drift}, []string{noAA}},
		{"ABBA", one(built(4), run(at(3))), one(run(at(1)), run(at(2))), Passed, nil, []string{sameRun, noAA, drift}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := ReleaseGate(test.base, test.next, GateOptions{})
			var out bytes.Buffer
			if err := c.WriteText(&out); err != nil {
				t.Fatal(err)
			}
			if c.Outcome != test.outcome {
				t.Errorf("outcome is %s", c.Outcome)
			}
			for _, want := range test.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in\n%s", want, out.String())
				}
			}
			for _, not := range test.not {
				if strings.Contains(out.String(), not) {
					t.Errorf("%q in\n%s", not, out.String())
				}
			}
		})
	}
	// Where neither was measured at the usual loads, the lowest that both have stands in.
	slow := run(quick(3.3))
	*study(slow) = studyOf(poisson(), 4, 0.1)
	quick(3.3)(slow)
	c := ReleaseGate(one(run(quick(3.3))), one(slow), GateOptions{})
	if r := rowOf(t, c, "chat", poisson(), "ttft_p50", 0.85); r.Verdict != Worse || c.Outcome != Regression {
		t.Errorf("at the lowest common load: %s, %s", r.Line(), c.Summary())
	}
}
