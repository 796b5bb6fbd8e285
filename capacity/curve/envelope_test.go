package curve

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func near(a Value, b float64) bool { return math.Abs(float64(a)-b) <= 1e-9*math.Abs(b) }

func TestEnvelope(t *testing.T) {
	c := withMix(built(4), 0.5)
	rows := c.Envelope(4)
	if len(rows) != 4 {
		t.Fatalf("%d rows, want three studies and a mix", len(rows))
	}
	r := rows[0]
	if r.Class != "chat" || r.Arrivals != poisson() || !near(r.SafeRate, 3.6) || !near(r.Knee, 4) || r.BindingSLO != "ttft:p99:1s" || len(r.SLO) != 1 {
		t.Errorf("the first row is %+v", r)
	}
	// The file's watermark is 0.72 of the knee, of which N-1 leaves three quarters;
	// the knee has 100 prompt and 32 generation tokens a request.
	if !near(r.Watermark, 2.88) || !near(r.NMinusOne, 2.16) || !near(r.PromptTokenRate, 360) || !near(r.GenerationTokenRate, 115.2) {
		t.Errorf("watermark %g, at N-1 %g, tokens %g and %g", r.Watermark, r.NMinusOne, r.PromptTokenRate, r.GenerationTokenRate)
	}
	if r.GPU != "NVIDIA H200" || !slices.Contains(r.Limits, Limit{"max_num_seqs", "8"}) || r.Estimate {
		t.Errorf("on %s with %v", r.GPU, r.Limits)
	}
	for rate, want := range map[float64]Zone{2.88: Stable, 2.9: Risk, 4: Risk, 4.1: Unstable} {
		if got := r.Zones.Of(rate); got != want {
			t.Errorf("%g is %s, want %s", rate, got, want)
		}
	}
	if rows[1].Arrivals.Process != "gamma" || rows[3].Mix != "mix" || rows[3].Shares["chat"] != 0.5 {
		t.Errorf("rows are %+v", rows)
	}

	// What the file does not hold follows from what it does.
	k := c.Classes[0].Studies[0].Knee
	k.Watermark, k.PromptTokenRate, k.GenerationTokenRate = unknown, unknown, unknown
	k = c.Mixes[0].Knee
	k.PromptTokenRate = unknown
	rows = c.Envelope(0)
	// 0.8 * min(3.6, 0.97*4); the class's mean lengths are 128 and 32.
	if r = rows[0]; !near(r.Watermark, 2.88) || !near(r.PromptTokenRate, 3.6*128) || !near(r.GenerationTokenRate, 3.6*32) {
		t.Errorf("watermark %g, tokens %g and %g", r.Watermark, r.PromptTokenRate, r.GenerationTokenRate)
	}
	if r.Replicas != 1 || r.NMinusOne != 0 {
		t.Errorf("one replica has %g at N-1", r.NMinusOne)
	}
	if !near(rows[3].PromptTokenRate, 1.35*(128+700)/2) {
		t.Errorf("the mix has %g prompt tokens/s", rows[3].PromptTokenRate)
	}
	c.Classes[0].Studies[0].Knee = nil
	if r = c.Envelope(2)[0]; r.Knee.Known() || r.Watermark.Known() || r.NMinusOne.Known() || r.Zones.Of(1) != "" {
		t.Errorf("without a knee: %+v", r)
	}
}

// T34 of the reference: per-replica load u <= w (N-1)/N with w = 0.85.
func TestNMinusOne(t *testing.T) {
	c := built(4)
	c.Classes[0].Studies[0].Knee.Watermark = 0.85
	for replicas, want := range map[int]float64{2: 0.425, 3: 0.85 * 2 / 3, 4: 0.6375, 8: 0.74375} {
		if got := c.Envelope(replicas)[0].NMinusOne; !near(got, want) {
			t.Errorf("%d replicas: %g, want %g", replicas, got, want)
		}
	}
}

func TestCover(t *testing.T) {
	item := func(c *Curve, name string) Coverage {
		list := Cover(c)
		k := slices.IndexFunc(list, func(c Coverage) bool { return c.Item == name })
		if k < 0 {
			t.Fatalf("no item %s", name)
		}
		return list[k]
	}
	var names []string
	for _, c := range Cover(built(4)) {
		names = append(names, c.Item)
	}
	if got := strings.Join(names, " "); got != "baseline peak burst long_tail mixed_replay soak recovery aa cold_start" {
		t.Errorf("items are %s", got)
	}

	c := built(4)
	c.Workload.Flags = "probe --class=chat:prompt=128,output=32 --quick --out.curve old.json --out.report=a.html --slo=ttft:p99:1s"
	const command = "headroom_exporter probe --class=chat:prompt=128,output=32 --slo=ttft:p99:1s"
	const end = " --update --out.curve=FILE"
	for _, test := range []struct {
		item    string
		done    bool
		detail  string
		command string
	}{
		{"baseline", false, "the latency of a nearly idle engine was not measured", command + end},
		{"peak", true, "chat knee 4/s; long knee 1/s", ""},
		{"burst", false, "not measured with bursty arrivals: long", command + " --burstiness=0.5" + end},
		{"long_tail", true, "long has 716 tokens of the 1024 that the engine takes", ""},
		{"mixed_replay", false, "classes were measured alone only", command + " --mix --trace.file=TRACE --trace.format=FORMAT" + end},
		{"soak", false, "a long run at the safe rate was not measured", command + end},
		{"aa", false, "the same load was not measured twice: how much is noise is not known", command + end},
		{"cold_start", false, "the first minutes after a restart were not measured: restart the engine right before", command + " --cold-start" + end},
	} {
		if got := item(c, test.item); got.Done != test.done || got.Detail != test.detail || got.Command != test.command {
			t.Errorf("%s: %+v", test.item, got)
		}
	}

	baseline := pointAt(PurposeBaseline, 0.1, 1e9, 0.05)
	for i := range c.Classes {
		s := &c.Classes[i].Studies[0]
		s.Baseline, s.Soak, s.Burst = &baseline, &Soak{Passed: true, Seconds: 300}, &Burst{Factor: 2, Seconds: 10, Recovery: 4}
	}
	c.Classes[1].Studies[0].Burst.Recovery = unknown
	c.Classes[1].Studies = append(c.Classes[1].Studies, studyOf(Arrivals{Process: "gamma", Burstiness: 0.5}, 0.8, 0.2))
	c.AA = &AA{Class: "chat", Rate: 2, Band: 0.031}
	c.ColdStart = &ColdStart{Class: "chat", Seconds: 41, WorstTTFT: 12}
	c.Mixes = []Mix{{Name: "trace", Study: studyOf(Arrivals{Process: "trace", Trace: "chat.jsonl"}, 1, 0.1)}}
	for name, detail := range map[string]string{
		"baseline":     "chat TTFT p50 50 ms; long TTFT p50 50 ms",
		"burst":        "chat knee 3.2/s with gamma(0.5); long knee 0.8/s with gamma(0.5)",
		"mixed_replay": "mix trace replays chat.jsonl",
		"soak":         "chat 300 s; long 300 s",
		"recovery":     "chat 4 s after 2 times for 10 s; long did not recover from 2 times for 10 s",
		"aa":           "chat at 2/s differs by 3.1 %",
		"cold_start":   "chat steady after 41 s, worst TTFT 12 s",
	} {
		if got := item(c, name); !got.Done || got.Detail != detail || got.Command != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}

	// A mix that was searched alone says so, and does not stand for its classes.
	c = built(4)
	c.Mixes = []Mix{{Name: "mix", Study: studyOf(Arrivals{Process: "poisson"}, 3, 0.1)}}
	for i := range c.Classes {
		c.Classes[i].Studies = nil
	}
	if got := item(c, "peak"); got.Done || got.Detail != "the knee was measured of no class alone, only of mixes: mix knee 3/s" {
		t.Errorf("a mix alone: %+v", got)
	}

	c = built(4)
	c.Identity.MaxModelLen = 32768
	want := "headroom_exporter probe --classes.file=CLASSES --slo=ttft:p99:1s --class=longest --update --out.curve=FILE"
	if got := item(c, "long_tail"); got.Done || got.Command != want || !strings.Contains(got.Detail, "716 tokens of the 32768") {
		t.Errorf("long_tail: %+v", got)
	}
	for _, got := range Cover(&Curve{}) {
		if got.Done || got.Command == "" {
			t.Errorf("an empty curve rests on %+v", got)
		}
	}
}
