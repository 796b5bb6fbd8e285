package curve

import (
	"bytes"
	"flag"
	"math"
	"os"
	"testing"
	"time"

	"headroom_exporter/capacity"
)

var update = flag.Bool("update", false, "write testdata/example.json")

const exampleFile = "testdata/example.json"

func mustSLO(text string) capacity.SLO {
	s, err := capacity.ParseSLO(text)
	if err != nil {
		panic(err)
	}
	return s
}

func to[T any](v T) *T { return &v }

// exampleIdentity is a replica on two H100s.
func exampleIdentity() Identity {
	return Identity{
		Model: "meta-llama/Llama-3.1-8B-Instruct", Revision: "0e9e39f249a16976918f6564b8830bc894c89659",
		DType: "bfloat16", KVCacheDType: "auto", TensorParallel: 2, PipelineParallel: 1, DataParallel: 1,
		ExpertParallel: to(false), Role: "both", Path: "direct",
		GPUName: "NVIDIA H100 80GB HBM3", GPUCount: 2,
		MaxNumSeqs: 256, MaxNumBatchedTokens: 8192, MaxModelLen: 32768, GPUMemoryUtilization: 0.9, KVTokens: 861_616,
		PrefixCaching: to(true), ChunkedPrefill: to(true), AttentionBackend: "FLASH_ATTN", EnforceEager: to(false),
		EngineType: "vllm", EngineVersion: "0.11.2", DriverVersion: "580.65.06", CUDAVersion: "13.0",
		PowerLimit: 700, MaxSMClock: 1.98e9, Interconnect: "nvlink",
	}
}

// exampleShape is what the example's numbers are made of: a class whose
// latencies rise as those of a queue do, with the knee where the tail passes its bound.
type exampleShape struct {
	name               string
	prompt, generation float64
	ttft               float64 // of an idle engine, in seconds
	itl                float64
	knee               float64 // requests per second
	slots              float64
	slo                []capacity.SLO
}

var exampleClasses = []exampleShape{
	{"chat", 512, 256, 0.045, 0.011, 24, 118, []capacity.SLO{mustSLO("ttft:p99:800ms"), mustSLO("itl:p99:100ms")}},
	{"rag", 6000, 350, 0.310, 0.013, 4.5, 41, []capacity.SLO{mustSLO("ttft:p99:2.5s"), mustSLO("e2e:p99:12s")}},
}

// round to what a person would write.
func round(x float64) Value { return Value(math.Round(1e5*x) / 1e5) }

// quantiles of a latency whose tail is spread by a factor.
func quantiles(n int, p50, spread float64) Quantiles {
	v := func(z float64) Value { return round(p50 * math.Exp(spread*z)) }
	q := Quantiles{N: float64(n), Mean: v(0.5 * spread), P10: v(-1.282), P50: v(0), P90: v(1.282), P95: v(1.645), P99: v(2.326), P999: v(3.09), Max: v(3.4)}
	if n < 1000 {
		q.P999 = capacity.Unknown()
	}
	return q
}

func (s exampleShape) point(name string, purpose Purpose, rate, knee, start, seconds float64) Point {
	load := rate / knee
	// The tail of the queue: e-fold every tenth of the knee.
	fraction := 0.01 * math.Exp(min(10*(load-1), 4.2))
	n := int(rate * seconds)
	passed := fraction <= 0.01
	ttft := s.ttft * (1 + load*load)
	spread := math.Log(s.slo[0].Bound.Seconds()/ttft) / 2.326
	if passed {
		spread *= 0.55 + 0.4*load
	} else {
		spread *= 1 + 0.5*(load-1)
	}
	itl := s.itl * (1 + 0.6*load)
	running := s.slots * min(load, 1.02)
	low, high := fraction*0.55, min(1, fraction*1.8+0.004)
	slo := s.slo[0]
	return Point{
		Name: name, Purpose: purpose,
		OfferedRate: round(rate), CompletedRate: round(min(rate, 1.04*knee)),
		PromptTokenRate: round(rate * s.prompt), GenerationTokenRate: round(min(rate, 1.04*knee) * s.generation),
		Start: start, Seconds: seconds, Trimmed: 12, Attempts: n, Failures: 0,
		TTFT: quantiles(n, ttft, spread), ITL: quantiles(n*int(s.generation-1), itl, 0.25), TPOT: quantiles(n, itl, 0.12),
		E2E: quantiles(n, ttft+s.generation*itl, 0.1),
		Gates: []Gate{
			{
				Name: "slo", Kind: GateFail, SLO: &slo, Passed: &passed, Violations: math.Round(fraction * float64(n)), N: float64(n),
				DesignEffect: 1.7, Low: round(low), High: round(high), Confidence: 0.95, Value: round(fraction), Limit: 0.01,
				Detail: "share of requests whose TTFT passes 800ms",
			},
			{
				Name: "queue_growth", Kind: GateFail, Passed: &passed, Low: capacity.Unknown(), High: capacity.Unknown(),
				Value: round(0.2 * (load - 1)), Limit: 0.05, Detail: "requests in flight per second, by Theil-Sen",
			},
		},
		Passed: &passed,
		Engine: EngineReadings{
			RunningMean: round(0.9 * running), RunningMax: round(math.Ceil(running)), WaitingMean: round(max(0, 20*(load-0.9))), WaitingMax: round(max(0, 60*(load-0.9))),
			KVMean: round(min(0.62*load, 0.95)), KVPeak: round(min(0.74*load, 0.98)), Preemptions: 0, PrefixHitRatio: 0,
			QueueSeconds: round(0.01 * load), PrefillSeconds: round(s.ttft), DecodeSeconds: round(s.generation * itl),
		},
		GPUs: []GPUReadings{
			{UUID: "GPU-3f1c2a70-58d1-4a0b-9a41-0f7be1c9a001", Model: "NVIDIA H100 80GB HBM3", PowerWatts: round(min(690, 300+360*load)),
				SMClockHertz: 1.98e9, Temperature: round(45 + 18*min(load, 1)), Bandwidth: round(min(0.2+0.45*load, 0.92)), SMActive: round(min(0.3+0.5*load, 0.97))},
			{UUID: "GPU-3f1c2a70-58d1-4a0b-9a41-0f7be1c9a002", Model: "NVIDIA H100 80GB HBM3", PowerWatts: capacity.Unknown(),
				SMClockHertz: 1.98e9, Temperature: round(44 + 18*min(load, 1)), Bandwidth: capacity.Unknown(), SMActive: capacity.Unknown(),
				ThrottleSeconds: map[string]float64{"sw_power_cap": 0.4}},
		},
		Client: ClientReadings{LagP99: 0.0004, CPUShare: 0.06, PeakInFlight: int(running) + 20},
	}
}

// study of a class at a knee, which arrivals in bursts lower.
func (s exampleShape) study(arrivals Arrivals, knee float64) Study {
	st := Study{
		Arrivals: arrivals, Status: StatusOK, SafeRate: round(0.92 * knee),
		Ceiling: &Ceiling{Rate: round(1.05 * knee), Residence: round(s.slots / (1.05 * knee)), SequenceSlots: Value(s.slots), Expected: round(1.06 * s.slots)},
		Knee: &Knee{
			Rate: Value(knee), Low: round(0.94 * knee), High: round(1.05 * knee), Confidence: 0.9, Watermark: round(0.8 * 0.92 * knee),
			BindingSLO: s.slo[0].String(), Boundary: "smooth", CliffFrom: capacity.Unknown(), CliffTo: capacity.Unknown(),
			BySLO: []SLOKnee{
				{SLO: s.slo[0], Rate: Value(knee), Low: round(0.94 * knee), High: round(1.05 * knee), Method: "logistic"},
				{SLO: s.slo[1], Rate: capacity.Unknown(), Low: capacity.Unknown(), High: capacity.Unknown(), Method: "above"},
			},
			PromptTokenRate: Value(knee * s.prompt), GenerationTokenRate: Value(knee * s.generation), Concurrency: Value(s.slots), KVPeak: 0.74,
			Bottleneck: "queue", Evidence: []string{"requests wait 0.6 s at the knee, prefill takes " + time.Duration(s.ttft*1e9).String()},
		},
		Soak:  &Soak{Passed: true, Proven: true, Seconds: 300, Trials: []Point{s.point("soak 1", PurposeSoak, 0.92*knee, knee, 620, 300)}},
		Burst: &Burst{Factor: 2, Seconds: 10, Drain: 14.2, Recovery: 21.5, WorstTTFT: 3.9, WaitingMax: 88},
	}
	baseline := s.point("baseline", PurposeBaseline, 0.05*knee, knee, 30, 60)
	st.Baseline = &baseline
	st.Ceiling.Steps = []Point{s.point("concurrency 128", PurposeCeiling, 1.05*knee, knee, 95, 60)}
	st.Ceiling.Steps[0].Concurrency, st.Ceiling.Steps[0].OfferedRate = 128, capacity.Unknown()
	curve := Violations{SLO: s.slo[0]}
	for i, load := range []float64{0.55, 0.72, 0.84, 0.94, 1.0, 1.08, 1.16} {
		p := s.point("probe "+string(rune('1'+i)), PurposeProbe, load*knee, knee, 160+float64(i)*75, 60)
		st.Points = append(st.Points, p)
		curve.Rate = append(curve.Rate, float64(p.OfferedRate))
		curve.Fraction = append(curve.Fraction, float64(p.Gates[0].Value))
		st.Requests += p.Attempts
		st.Seconds += p.Seconds + 15
	}
	st.Curve = []Violations{curve}
	return st
}

// example is a full curve: two classes under two arrival shapes, and a mix.
func example() *Curve {
	c := &Curve{
		Schema: Schema, Identity: exampleIdentity(), Source: Measured,
		SLO: []capacity.SLO{mustSLO("ttft:p99:800ms"), mustSLO("itl:p99:100ms")}, PeakReserve: 0.2,
		Tool:   Tool{Name: "headroom_exporter", Version: "1.0.0", Commit: "240c233"},
		Client: Client{Host: "probe-0", OS: "linux", CPUs: 16, CPUModel: "AMD EPYC 9454", Dialect: "completions with token ids"},
		Workload: Workload{
			Hash: "5d41402abc4b2a76b9719d911017c5925d41402abc4b2a76b9719d911017c592", Seed: 7,
			Flags: "--class=chat:weight=3,prompt=512,output=256 --class=rag:weight=1,prompt=6000,output=350",
		},
		Started: time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC), Finished: time.Date(2026, 3, 2, 10, 12, 30, 0, time.UTC),
		Notes:     []string{"GPU 1 did not tell its power"},
		AA:        &AA{Class: "chat", Rate: 6, Band: 0.021},
		ColdStart: &ColdStart{Class: "chat", Seconds: 41, WorstTTFT: 6.3},
		Coverage: []Coverage{
			{Item: "baseline", Done: true, Detail: "60 s at 5 % of the knee, both classes"},
			{Item: "peak", Done: true, Detail: "7 points to 116 % of the knee"},
			{Item: "burst", Done: true, Detail: "2 x the safe rate for 10 s"},
			{Item: "long_tail", Done: false, Detail: "no class fills the context", Command: "headroom_exporter probe --class=longest --out.curve=longest.json"},
			{Item: "mixed_replay", Done: true, Detail: "3 chat : 1 rag"},
			{Item: "soak", Done: true, Detail: "300 s, proven"},
			{Item: "recovery", Done: true, Detail: "back in 21.5 s"},
			{Item: "aa", Done: true, Detail: "2 x 30 s, band 2.1 %"},
			{Item: "cold_start", Done: true, Detail: "steady after 41 s"},
		},
		Reuse: []Reuse{{Field: "driver_version", From: "580.65.06", To: "590.44.01", Reason: "same knees in a quick run after the upgrade", ApprovedBy: "capacity team, 2026-03-09"}},
	}
	for i, s := range exampleClasses {
		class := Class{
			Name: s.name, Weight: []float64{3, 1}[i], PromptMean: s.prompt, GenerationMean: s.generation, PrefixHitRatio: 0,
			PromptHistogram: capacity.NewHistogram(capacity.TokenBounds(32768)), GenerationHistogram: capacity.NewHistogram(capacity.TokenBounds(32768)),
			Studies: []Study{s.study(Arrivals{Process: "poisson"}, s.knee), s.study(Arrivals{Process: "gamma", Burstiness: 0.4}, 0.86*s.knee)},
		}
		if i > 0 {
			class.SLO = s.slo
		}
		for z := -2.0; z <= 2; z += 0.25 {
			class.PromptHistogram.Add(math.Round(s.prompt*math.Exp(0.35*z-0.06)), math.Exp(-z*z/2))
			class.GenerationHistogram.Add(math.Round(s.generation*math.Exp(0.5*z-0.12)), math.Exp(-z*z/2))
		}
		class.PromptHistogram, class.GenerationHistogram = class.PromptHistogram.Shares(), class.GenerationHistogram.Shares()
		c.Classes = append(c.Classes, class)
	}
	mixed := exampleShape{"mix", 1884, 279.5, 0.11, 0.012, 11.2, 86, exampleClasses[0].slo}.study(Arrivals{Process: "poisson"}, 11.2)
	mixed.Knee.BindingClass = "chat"
	for i := range mixed.Points {
		p := &mixed.Points[i]
		for j, s := range exampleClasses {
			share := []float64{0.75, 0.25}[j]
			n := int(share * float64(p.Attempts))
			load := float64(p.OfferedRate) / 11.2
			p.Classes = append(p.Classes, ClassLatency{
				Class: s.name, Attempts: n, TTFT: quantiles(n, s.ttft*(1+load*load), 0.7), ITL: quantiles(n*int(s.generation-1), s.itl*(1+load), 0.3),
				TPOT: quantiles(n, s.itl*(1+load), 0.15), E2E: quantiles(n, s.ttft+s.generation*s.itl*(1+load), 0.1),
			})
		}
	}
	c.Mixes = []Mix{{
		Name: "3 chat : 1 rag", Shares: map[string]float64{"chat": 0.75, "rag": 0.25}, Study: mixed,
		Squeeze: []Squeeze{{Class: "chat", SLO: exampleClasses[0].slo[0], Alone: 0.41, Mixed: 0.47}, {Class: "rag", SLO: exampleClasses[1].slo[0], Alone: 1.62, Mixed: 1.7}},
	}}
	c.ID = c.Identity.ID()
	return c
}

// TestExampleFile holds testdata/example.json equal to what Encode writes.
func TestExampleFile(t *testing.T) {
	var b bytes.Buffer
	if err := example().Encode(&b); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(exampleFile, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(raw, b.Bytes()) {
		t.Errorf("%s is not what is written now: run go test ./capacity/curve -update", exampleFile)
	}
	c, err := ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := c.Encode(&again); err != nil || !bytes.Equal(raw, again.Bytes()) {
		t.Errorf("read and written it differs (%v)", err)
	}
}
