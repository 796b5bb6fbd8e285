package knee_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/knee"
	"headroom_exporter/probe/workload"
	"headroom_exporter/simulator"
)

// byClass fills in what a point says of each of its classes, as a client does.
type byClass struct{ *virtualEngine }

func (e byClass) Run(ctx context.Context, l *knee.Load, m knee.Monitor) (*knee.Observation, error) {
	o, err := e.virtualEngine.Run(ctx, l, m)
	if o == nil || len(l.Traffic.Classes) < 2 {
		return o, err
	}
	for i := range l.Traffic.Classes {
		var ttft, e2e []float64
		for _, q := range o.Requests {
			if q.Class == i {
				ttft, e2e = append(ttft, q.TTFT), append(e2e, q.E2E)
			}
		}
		o.Point.Classes = append(o.Point.Classes, curve.ClassLatency{
			Class: l.Traffic.Classes[i].Name, Attempts: len(ttft),
			TTFT: knee.Quantiles(ttft), E2E: knee.Quantiles(e2e), ITL: knee.Quantiles(nil), TPOT: knee.Quantiles(nil),
		})
	}
	return o, err
}

// eightSlots is an engine with 8 sequence slots.
func eightSlots(t *testing.T) *virtualEngine {
	t.Helper()
	c, err := simulator.Preset("8b-h100")
	if err != nil {
		t.Fatal(err)
	}
	c.MaxNumSeqs, c.EnablePrefixCaching = 8, false
	return &virtualEngine{config: c, drain: 60}
}

// campaign is of two classes, of which the second has long prompts and few tokens.
func campaign(t *testing.T, e knee.Engine, mode knee.Mode) *knee.Campaign {
	t.Helper()
	slo, err := capacity.ParseSLO("ttft:p95:1s")
	if err != nil {
		t.Fatal(err)
	}
	return &knee.Campaign{
		Engine: e, Mode: mode, SLO: []capacity.SLO{slo}, Limits: knee.Limits{MaxNumSeqs: 8}, PeakReserve: 0.2, Seed: 7,
		LengthBounds: workload.TokenBounds(8192),
		Classes: []workload.Class{
			{Name: "short", Weight: 3, Prompt: workload.FixedLength(64), Output: workload.FixedLength(256)},
			{Name: "long", Weight: 1, Prompt: workload.FixedLength(4000), Output: workload.FixedLength(64)},
		},
	}
}

// shapes are the arrivals that a class was studied under.
func shapes(c *curve.Class) (names []string) {
	for i := range c.Studies {
		names = append(names, c.Studies[i].Arrivals.Process)
	}
	return names
}

// whole makes a curve complete, so that it can be written, and checks that it can be read.
func whole(t *testing.T, c *curve.Curve) []byte {
	t.Helper()
	c.Identity = curve.Identity{Model: "m", EngineType: "vllm", MaxNumSeqs: 8, MaxModelLen: 8192}
	c.ID = c.Identity.ID()
	c.Tool = curve.Tool{Name: "test", Version: "1"}
	c.Workload = curve.Workload{Hash: strings.Repeat("0", 64), Seed: 7}
	c.Started = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	c.Finished = c.Started.Add(time.Hour)
	c.Coverage = curve.Cover(c)
	var b bytes.Buffer
	if err := c.Encode(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := curve.Decode(bytes.NewReader(b.Bytes())); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestCampaign: everything that a campaign can be asked for is in the curve.
func TestCampaign(t *testing.T) {
	t.Parallel()
	e := eightSlots(t)
	// The engine takes 20 s to be warm: until then a first token takes three times as long.
	e.edit = func(l *knee.Load, o *knee.Observation) error {
		if l.Traffic.Name == "short" {
			o.Point.Engine.SpeculativeTokensPerStep = 2.5 // It drafts for them.
		}
		switch l.Name {
		case "aa 1":
			void(o) // which is put again
		case "cold start":
			for i := range o.Requests {
				if o.Requests[i].Due < 20 {
					o.Requests[i].TTFT *= 3
				}
			}
		}
		return nil
	}
	c := campaign(t, byClass{e}, knee.Full)
	c.Burstiness, c.Mix, c.ColdStart = []float64{0.5}, true, true
	out, err := c.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	whole(t, out)
	if e.loads[0].Name != "cold start" {
		t.Errorf("the first load is %q", e.loads[0].Name)
	}
	// A run of five answers is warm when its median is: three of them then came after 20 s.
	if s := float64(out.ColdStart.Seconds); out.ColdStart.Class != "short" || s < 5 || s > 20 || !out.ColdStart.WorstTTFT.Known() {
		t.Errorf("cold start: %+v", out.ColdStart)
	}
	for i, drafted := range []float64{2.5, 0} {
		if got := out.Classes[i].SpeculativeTokensPerStep; got != drafted {
			t.Errorf("%s: %v tokens a step, want %v", out.Classes[i].Name, got, drafted)
		}
	}
	for i, name := range []string{"short", "long"} {
		class := &out.Classes[i]
		if class.Name != name || !slices.Equal(shapes(class), []string{"poisson", "gamma"}) {
			t.Fatalf("class %d is %s with %v", i, class.Name, shapes(class))
		}
		poisson, gamma := &class.Studies[0], &class.Studies[1]
		if !poisson.SafeRate.Known() || !gamma.SafeRate.Known() || !(gamma.Knee.Rate < poisson.Knee.Rate) {
			t.Errorf("%s: Poisson %s (%s), bursty %s (%s): want both, and the second below the first", name,
				number(poisson.SafeRate), poisson.Reason, number(gamma.SafeRate), gamma.Reason)
		}
		if gamma.Arrivals.Burstiness != 0.5 || poisson.Soak == nil || poisson.Burst == nil {
			t.Errorf("%s: %v, soak %v, burst %v", name, gamma.Arrivals, poisson.Soak, poisson.Burst)
		}
	}
	safe := float64(out.Classes[0].Studies[0].SafeRate)
	if out.AA == nil || out.AA.Class != "short" || math.Abs(float64(out.AA.Rate)-safe/2) > 1e-9 || len(out.AA.Points) != 2 || !(out.AA.Band > 0 && out.AA.Band < 1) {
		t.Errorf("the same load twice: %+v", out.AA)
	}
	if len(out.Mixes) != 1 {
		t.Fatalf("%d mixes", len(out.Mixes))
	}
	mix := &out.Mixes[0]
	if diff := cmp.Diff(map[string]float64{"short": 0.75, "long": 0.25}, mix.Shares); diff != "" || !mix.SafeRate.Known() {
		t.Errorf("shares (-want +got):\n%s\nsafe rate %s: %s", diff, number(mix.SafeRate), mix.Reason)
	}
	for i, s := range mix.Squeeze {
		alone, mixed := safeTail(t, &out.Classes[i].Studies[0], ""), safeTail(t, &mix.Study, s.Class)
		if s.Class != out.Classes[i].Name || s.Alone != alone || s.Mixed != mixed || !s.Alone.Known() || !s.Mixed.Known() {
			t.Errorf("squeeze %+v; the soaks say %s alone and %s in the mix", s, number(alone), number(mixed))
		}
	}
	if len(mix.Squeeze) != 2 {
		t.Errorf("squeeze of %d classes", len(mix.Squeeze))
	}
	var missing []string
	for _, item := range out.Coverage {
		if !item.Done {
			missing = append(missing, item.Item)
		}
	}
	if diff := cmp.Diff([]string{"long_tail", "mixed_replay"}, missing); diff != "" {
		t.Errorf("not covered (-want +got):\n%s", diff)
	}
}

// A mix by itself: its classes are described, and have no knees.
func TestCampaignOfAMixAlone(t *testing.T) {
	t.Parallel()
	e := eightSlots(t)
	c := campaign(t, e, knee.Quick)
	c.Mix, c.MixOnly = true, true
	out, err := c.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Classes) != 2 || len(out.Classes[0].Studies)+len(out.Classes[1].Studies) > 0 || out.AA != nil {
		t.Errorf("%d classes, %d and %d studies", len(out.Classes), len(out.Classes[0].Studies), len(out.Classes[1].Studies))
	}
	if len(out.Mixes) != 1 || !out.Mixes[0].SafeRate.Known() || len(out.Mixes[0].Squeeze) > 0 {
		t.Errorf("mixes %+v", out.Mixes)
	}
	for _, l := range e.loads {
		if len(l.Traffic.Classes) != 2 {
			t.Errorf("load %s is of %d classes", l.Name, len(l.Traffic.Classes))
		}
	}
}

func number(v curve.Value) string { return fmt.Sprintf("%.4g", float64(v)) }

// safeTail is the P95 TTFT of the soak that passed, of one of its classes where it is named.
func safeTail(t *testing.T, s *curve.Study, class string) curve.Value {
	t.Helper()
	if s.Soak == nil || !s.Soak.Passed {
		t.Fatal("no soak passed")
	}
	p := &s.Soak.Trials[len(s.Soak.Trials)-1]
	for _, c := range p.Classes {
		if c.Class == class {
			return c.TTFT.P95
		}
	}
	return p.TTFT.P95
}

// TestCampaignEndsEarly: with whatever error a load ends, the curve has what
// was found until then, and the error says of which class it is.
func TestCampaignEndsEarly(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		err  error
	}{{"interrupted", context.Canceled}, {"harm", knee.ErrHarm}} {
		t.Run(test.name, func(t *testing.T) {
			e := eightSlots(t)
			e.edit = func(l *knee.Load, _ *knee.Observation) error {
				if l.Traffic.Name == "long" && l.Purpose == curve.PurposeProbe {
					return fmt.Errorf("load %s: %w", l.Name, test.err)
				}
				return nil
			}
			c := campaign(t, e, knee.Quick)
			c.Mix = true
			out, err := c.Run(t.Context())
			if !errors.Is(err, test.err) || !strings.Contains(err.Error(), "class long") {
				t.Fatalf("error %v", err)
			}
			after := len(e.loads)
			if last := e.loads[after-1]; last.Traffic.Name != "long" {
				t.Errorf("load %s was put after it", last.Name)
			}
			for what, s := range map[string]*curve.Study{
				"the class": &out.Classes[1].Studies[0], "that before it": &out.Classes[0].Studies[0], "the mix": &out.Mixes[0].Study,
			} {
				if s.Status != curve.StatusInterrupted || s.SafeRate.Known() || !s.Ceiling.Rate.Known() {
					t.Errorf("%s: %s, safe at %s, ceiling %s", what, s.Status, number(s.SafeRate), number(s.Ceiling.Rate))
				}
			}
			if n := len(out.Classes[1].Studies[0].Points); n != 1 {
				t.Errorf("the class has %d points, want what was measured of that which failed", n)
			}
		})
	}
}

// TestCampaignTakesTurns: of the searches that are under way each puts a load,
// one after the other, and finds what it finds by itself.
func TestCampaignTakesTurns(t *testing.T) {
	t.Parallel()
	e := eightSlots(t)
	c := campaign(t, e, knee.Quick)
	c.Mix = true
	var said []string
	c.Report = func(line string) { said = append(said, line) }
	together, err := c.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := "short, long and the mix take turns, a load each; at most 4 min of load"; !strings.HasPrefix(said[0], want) {
		t.Errorf("it begins with %q, want %q", said[0], want)
	}
	for _, name := range []string{"short", "long", "mix"} {
		if !slices.ContainsFunc(said, func(line string) bool { return strings.HasPrefix(line, name+": done: the knee is ") }) {
			t.Errorf("the end of %s is not said: %q", name, said)
		}
	}
	of := map[string][]string{}
	for i := range e.loads {
		of[e.loads[i].Traffic.Name] = append(of[e.loads[i].Traffic.Name], e.loads[i].Name)
	}
	var want, got []string
	for turn := range len(e.loads) {
		for _, name := range []string{"short", "long", "mix"} {
			if turn < len(of[name]) {
				want = append(want, of[name][turn])
			}
		}
	}
	for i := range e.loads {
		got = append(got, e.loads[i].Name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("loads by turns (-want +got):\n%s", diff)
	}
	for i := range together.Classes {
		c := campaign(t, eightSlots(t), knee.Quick)
		c.Classes = c.Classes[i : i+1]
		alone, err := c.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if a, b := alone.Classes[0].Studies[0].Knee.Rate, together.Classes[i].Studies[0].Knee.Rate; a != b {
			t.Errorf("%s: knee %s alone, %s in turn", together.Classes[i].Name, number(a), number(b))
		}
	}
}

// TestCampaignVoid: of a class whose loads are void no curve is made, and the
// others are searched to their end all the same, so that only it is left.
func TestCampaignVoid(t *testing.T) {
	t.Parallel()
	e := eightSlots(t)
	e.edit = func(l *knee.Load, o *knee.Observation) error {
		if l.Traffic.Name == "short" && l.Purpose == curve.PurposeProbe {
			void(o)
		}
		return nil
	}
	c := campaign(t, e, knee.Quick)
	c.Mix = true
	out, err := c.Run(t.Context())
	if !errors.Is(err, knee.ErrInvalid) || !strings.Contains(err.Error(), "class short") || strings.Contains(err.Error(), "long") {
		t.Errorf("error %v", err)
	}
	if short := &out.Classes[0].Studies[0]; short.Status != curve.StatusInterrupted {
		t.Errorf("the class: %s", short.Status)
	}
	for name, s := range map[string]*curve.Study{"the other class": &out.Classes[1].Studies[0], "the mix": &out.Mixes[0].Study} {
		if s.Status != curve.StatusEstimate || !s.SafeRate.Known() {
			t.Errorf("%s: %s (%s)", name, s.Status, s.Reason)
		}
	}
}

// TestCampaignGoesOn: a campaign that is cut off and begun again with its
// journal puts no load twice and ends with the curve of one that was not.
func TestCampaignGoesOn(t *testing.T) {
	t.Parallel()
	run := func(path string, e *virtualEngine) (*curve.Curve, error) {
		t.Helper()
		journal, err := knee.OpenJournal(path, knee.JournalHeader{Config: "the same"}, byClass{e})
		if err != nil {
			t.Fatal(err)
		}
		defer journal.Close()
		return campaign(t, journal, knee.Quick).Run(t.Context())
	}
	atOnce := eightSlots(t)
	want, err := run(filepath.Join(t.TempDir(), "whole"), atOnce)
	if err != nil {
		t.Fatal(err)
	}
	names := func(loads []knee.Load) (names []string) {
		for i := range loads {
			names = append(names, loads[i].Name)
		}
		return names
	}
	all := names(atOnce.loads)
	cut := len(all) / 2
	path := filepath.Join(t.TempDir(), "cut")
	first := eightSlots(t)
	first.edit = func(*knee.Load, *knee.Observation) error {
		if len(first.loads) > cut {
			return context.Canceled
		}
		return nil
	}
	if _, err := run(path, first); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	second := eightSlots(t)
	got, err := run(path, second)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all[cut:], names(second.loads)); diff != "" {
		t.Errorf("loads that were put after the cut (-want +got):\n%s", diff)
	}
	if !bytes.Equal(withoutStarts(t, want), withoutStarts(t, got)) {
		t.Errorf("the curves differ:\n%s", cmp.Diff(string(withoutStarts(t, want)), string(withoutStarts(t, got))))
	}
}

// withoutStarts is a curve as JSON without when its points began.
func withoutStarts(t *testing.T, c *curve.Curve) []byte {
	t.Helper()
	for i := range c.Classes {
		s := &c.Classes[i].Studies[0]
		s.Baseline.Start = 0
		for _, points := range [][]curve.Point{s.Points, s.Ceiling.Steps} {
			for i := range points {
				points[i].Start = 0
			}
		}
	}
	return whole(t, c)
}

// TestCampaignNoise: what was measured of the client instead of the engine is no noise band.
func TestCampaignNoise(t *testing.T) {
	t.Parallel()
	e := eightSlots(t)
	e.edit = func(l *knee.Load, o *knee.Observation) error {
		if l.Purpose == curve.PurposeAA && l.Name != "aa 1" {
			void(o)
		}
		return nil
	}
	c := campaign(t, e, knee.Full)
	c.Classes, c.MaxRequests = c.Classes[:1], 2000
	out, err := c.Run(t.Context())
	if !errors.Is(err, knee.ErrInvalid) || out.AA != nil || !strings.Contains(err.Error(), "aa 2, 3 times") {
		t.Errorf("error %v, noise %+v", err, out.AA)
	}
}

// void makes an observation one of the client, and far off.
func void(o *knee.Observation) {
	no := false
	o.Point.Gates[0].Passed = &no
	o.Point.TTFT.P50 *= 100
}
