package curve_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/simulator"
)

var (
	accuracyFull  = flag.Bool("accuracy.full", false, "judge the live load at every mix's knee, and print the table")
	accuracyKnees = flag.Bool("accuracy.knees", false, "find the true knees again, and write testdata/accuracy.json")
	accuracyJobs  = flag.Int("accuracy.jobs", 2, "how many simulations run at once")
)

const accuracyFile = "testdata/accuracy.json"

// accuracyEngine is one configuration of the bench.
type accuracyEngine struct {
	name                  string
	preset                string
	seqs, batched, blocks int // 0 is the preset's blocks
	tpot                  float64
}

var accuracyEngines = []accuracyEngine{
	{"8b, 256 seqs, 2048 tokens a step", "8b-h100", 256, 2048, 0, 0.05},
	{"8b, 1024 seqs, 8192 tokens a step", "8b-h100", 1024, 8192, 0, 0.1},
	{"8b, 256 seqs, KV cache of 120 000 tokens", "8b-h100", 256, 8192, 7501, 0.1},
	{"70b on 8 GPUs, 256 seqs, 2048 tokens a step", "70b-8xh100", 256, 2048, 0, 0.08},
}

func (e accuracyEngine) config() simulator.Config {
	c, err := simulator.Preset(e.preset)
	if err != nil {
		panic(err)
	}
	c.MaxNumSeqs, c.MaxNumBatchedTokens, c.MaxModelLen = e.seqs, e.batched, 32768
	c.EnablePrefixCaching = false
	if e.blocks > 0 {
		c.NumGPUBlocks = e.blocks
	}
	return c
}

// accuracyClasses are short/short, long/short, short/long and the longest;
// lengths are lognormal with a deviation of half the mean.
var accuracyClasses = []struct {
	name               string
	prompt, generation float64
}{{"chat", 512, 256}, {"rag", 4096, 128}, {"write", 128, 1024}, {"agent", 12000, 300}}

// How true knees are found: a run is as long as the rarest class needs for
// rareRequests that count, within these seconds and as many generated tokens,
// and for a class alone aloneEffort times as long, because every ratio rests
// on it. The first seconds do not count. A request is in violation that misses
// its class's bound at the 95th percentile.
const (
	rareRequests    = 800.0
	simulatedLeast  = 600.0
	simulatedMost   = 6000.0
	simulatedTokens = 8e6
	aloneEffort     = 4.0
	simulatedWarmup = 90.0
	simulatedDrain  = 60.0
	violationBudget = 0.05
	// A class with fewer requests in a run cannot show its tail.
	tailRequests = 60
	// The first token may take this long, or that many times as long as that
	// of the class takes an idle engine at the same percentile.
	firstTokenBound, firstTokenFactor = 2.0, 3.0
)

// accuracyData is the file of true knees with what they were found by.
type accuracyData struct {
	RareRequests   float64              `json:"rare_requests"`
	LeastSeconds   float64              `json:"least_seconds"`
	MostSeconds    float64              `json:"most_seconds"`
	MostTokens     float64              `json:"most_generated_tokens"`
	AloneEffort    float64              `json:"alone_effort"`
	WarmupSeconds  float64              `json:"warmup_seconds"`
	ViolationShare float64              `json:"violation_share"`
	Engines        []accuracyEngineData `json:"engines"`
}

type accuracyEngineData struct {
	Name    string              `json:"name"`
	TPOT    float64             `json:"tpot_s"`
	Classes []accuracyClassData `json:"classes"`
	// Reported mixes are those of the table, Tuning those that choices were made on.
	Reported []accuracyMix `json:"reported"`
	Tuning   []accuracyMix `json:"tuning"`
}

type accuracyClassData struct {
	Name    string  `json:"name"`
	TTFT    float64 `json:"ttft_s"`
	Knee    float64 `json:"knee"`
	Binding string  `json:"binding"`
	// The engine at the knee: what a curve's points show.
	ITL     float64 `json:"itl_s"`
	IdleITL float64 `json:"idle_itl_s"`
	Running float64 `json:"running"`
	KVPeak  float64 `json:"kv_usage_peak"`
}

// measure reads the engine at the class's knee and when it is nearly idle.
func (d *accuracyClassData) measure(e accuracyEngine, class int) {
	shares := make([]float64, len(accuracyClasses))
	shares[class] = 1
	read := func(rate float64) (itl, running, kv float64) {
		w := watch(e.config(), accuracyRequests(77, shares, rate, 600), 600)
		window := w.readings[200:]
		for _, r := range window {
			running += r.running / float64(len(window))
			kv = max(kv, r.kv)
		}
		from, to := window[0], window[len(window)-1]
		return (to.gapSeconds - from.gapSeconds) / (to.gaps - from.gaps), running, kv
	}
	d.ITL, d.Running, d.KVPeak = read(d.Knee)
	d.IdleITL, _, _ = read(d.Knee / 50)
}

type accuracyMix struct {
	// Shares of the requests, and the rate of all of them at the knee.
	Shares []float64 `json:"shares"`
	Knee   float64   `json:"knee"`
	// Binding is the class and the bound that gives there.
	Binding string `json:"binding"`
}

// reportedLoads are shares of the load: every pair and triple of the classes, and all four.
func reportedLoads() [][]float64 {
	var loads [][]float64
	for a := range 4 {
		for b := a + 1; b < 4; b++ {
			for _, share := range []float64{0.5, 0.75, 0.25} {
				l := make([]float64, 4)
				l[a], l[b] = share, 1-share
				loads = append(loads, l)
			}
		}
	}
	for left := range 4 {
		for big := range 4 {
			if big == left {
				continue
			}
			l := []float64{0.25, 0.25, 0.25, 0.25}
			l[big], l[left] = 0.5, 0
			loads = append(loads, l)
		}
	}
	loads = append(loads, []float64{0.25, 0.25, 0.25, 0.25})
	for big := range 4 {
		for second := range 4 {
			if big == second || second == (big+1)%4 {
				continue
			}
			l := []float64{0.15, 0.15, 0.15, 0.15}
			l[big], l[second] = 0.45, 0.25
			loads = append(loads, l)
		}
	}
	loads = append(loads, []float64{0.4, 0.4, 0.1, 0.1}, []float64{0.1, 0.1, 0.4, 0.4}, []float64{0.4, 0.1, 0.1, 0.4})
	return loads
}

// tuningLoads are drawn.
func tuningLoads() [][]float64 {
	rng := rand.New(rand.NewPCG(41, 1))
	var loads [][]float64
	for range 10 {
		l, sum := make([]float64, 4), 0.0
		for i := range l {
			l[i] = rng.ExpFloat64()
			if l[i] < 0.25 {
				l[i] = 0
			}
			sum += l[i]
		}
		for i := range l {
			l[i] /= sum
		}
		loads = append(loads, l)
	}
	return loads
}

// accuracyRequests are a mix's requests until a time, in seconds; the same
// seed gives the same requests at any rate, only closer together.
func accuracyRequests(seed uint64, shares []float64, rate, until float64) []*simulator.Request {
	rng := rand.New(rand.NewPCG(seed, 0))
	var requests []*simulator.Request
	for at := rng.ExpFloat64() / rate; at < until; at += rng.ExpFloat64() / rate {
		class, x := len(shares)-1, rng.Float64()
		for i, s := range shares {
			if x -= s; x < 0 {
				class = i
				break
			}
		}
		requests = append(requests, accuracyRequest(rng, len(requests), class, at))
	}
	return requests
}

func accuracyRequest(rng *rand.Rand, n, class int, at float64) *simulator.Request {
	k := accuracyClasses[class]
	r := &simulator.Request{
		ID: strconv.Itoa(n) + "/" + k.name, Arrival: at,
		PromptLength: spread(k.prompt, 25000).Draw(rng), OutputLength: spread(k.generation, 7000).Draw(rng),
	}
	r.MaxTokens = r.OutputLength
	return r
}

func spread(mean float64, most int) simulator.Lengths {
	return simulator.Lengths{Distribution: simulator.LognormalLength, Mean: mean, SD: mean / 2, Min: 1, Max: most}
}

// idleFirstToken is the 95th percentile of a class's time to first token on an idle engine.
func (e accuracyEngine) idleFirstToken(class int) float64 {
	rng := rand.New(rand.NewPCG(2, 2))
	var requests []*simulator.Request
	for i := range 400 {
		r := accuracyRequest(rng, i, class, 100*float64(i))
		r.OutputLength, r.MaxTokens = 1, 1
		requests = append(requests, r)
	}
	if _, err := simulator.RunVirtual(e.config(), requests, 40000); err != nil {
		panic(err)
	}
	var times []float64
	for _, r := range requests {
		times = append(times, r.FirstToken-r.Arrival)
	}
	return quantile(times, 0.95)
}

// violations are the largest share of requests past a bound, of the budget, and whose bound that is.
func (e accuracyEngine) violations(classes []accuracyClassData, shares []float64, rate, effort float64, seed uint64) (worst float64, binding string) {
	least, tokens := 1.0, 0.0
	for i, s := range shares {
		if s > 0 {
			least = min(least, s)
		}
		tokens += s * accuracyClasses[i].generation
	}
	seconds := min(max(rareRequests/(rate*least), simulatedLeast), simulatedMost, simulatedTokens/(rate*tokens)) * effort
	end := simulatedWarmup + seconds
	requests := accuracyRequests(seed, shares, rate, end)
	if _, err := simulator.RunVirtual(e.config(), requests, end+simulatedDrain); err != nil {
		panic(err)
	}
	bounds := map[string]float64{}
	for _, c := range classes {
		bounds[c.Name] = c.TTFT
	}
	type count struct{ n, ttft, tpot float64 }
	counts := map[string]*count{}
	for _, r := range requests {
		if r.Arrival < simulatedWarmup {
			continue
		}
		_, class, _ := strings.Cut(r.ID, "/")
		c := counts[class]
		if c == nil {
			c = &count{}
			counts[class] = c
		}
		c.n++
		if r.FirstToken == 0 || r.FirstToken-r.Arrival > bounds[class] {
			c.ttft++
		}
		if r.End > 0 && r.OutputLength > 1 && (r.LastToken-r.FirstToken)/float64(r.OutputLength-1) > e.tpot {
			c.tpot++
		}
	}
	worst = 0.01
	for _, k := range accuracyClasses {
		c := counts[k.name]
		if c == nil || c.n < tailRequests {
			continue
		}
		if v := c.ttft / c.n / violationBudget; v > worst {
			worst, binding = v, k.name+" ttft"
		}
		if v := c.tpot / c.n / violationBudget; v > worst {
			worst, binding = v, k.name+" tpot"
		}
	}
	return worst, binding
}

// knee is the rate at which the violations reach their budget, from a guess:
// a bracket, narrowed by interpolation of the logarithm.
func (e accuracyEngine) knee(classes []accuracyClassData, shares []float64, guess, stride, effort float64, seed uint64) (rate float64, binding string) {
	var low, high, vLow, vHigh float64
	at := guess
	for range 12 {
		v, b := e.violations(classes, shares, at, effort, seed)
		if v > 1 {
			high, vHigh, binding = at, v, b
		} else {
			low, vLow = at, v
		}
		switch {
		case low == 0:
			at = high / stride
		case high == 0:
			at = low * stride
		case high/low < 1.02:
			part := -math.Log(vLow) / (math.Log(vHigh) - math.Log(vLow))
			return low * math.Pow(high/low, part), binding
		default:
			// Away from the ends, so that both of them close in.
			part := -math.Log(vLow) / (math.Log(vHigh) - math.Log(vLow))
			at = low * math.Pow(high/low, min(max(part, 0.2), 0.8))
		}
	}
	return math.Sqrt(low * high), binding
}

// TestAccuracyKnees finds the true knees of the classes and of every mix, and makes their file.
func TestAccuracyKnees(t *testing.T) {
	if !*accuracyKnees {
		t.Skip("finding 200 knees takes long: -accuracy.knees")
	}
	data := accuracyData{RareRequests: rareRequests, LeastSeconds: simulatedLeast, MostSeconds: simulatedMost,
		MostTokens: simulatedTokens, AloneEffort: aloneEffort, WarmupSeconds: simulatedWarmup, ViolationShare: violationBudget}
	for _, e := range accuracyEngines {
		d := accuracyEngineData{Name: e.name, TPOT: e.tpot, Classes: make([]accuracyClassData, 4)}
		inParallel(4, func(i int) {
			k, shares := accuracyClasses[i], make([]float64, 4)
			shares[i] = 1
			d.Classes[i] = accuracyClassData{Name: k.name, TTFT: max(firstTokenBound, firstTokenFactor*e.idleFirstToken(i))}
			bounds := []accuracyClassData{d.Classes[i]}
			guess, _ := e.knee(bounds, shares, 12000/(k.prompt+6*k.generation), 1.3, 0.5, 11)
			d.Classes[i].Knee, d.Classes[i].Binding = e.knee(bounds, shares, guess, 1.05, aloneEffort, 12)
			d.Classes[i].measure(e, i)
			t.Logf("%s: %+v", e.name, d.Classes[i])
		})
		find := func(loads [][]float64) []accuracyMix {
			mixes := make([]accuracyMix, len(loads))
			inParallel(len(loads), func(i int) {
				shares, rate := make([]float64, 4), 0.0
				for c, load := range loads[i] {
					shares[c] = load * d.Classes[c].Knee
					rate += shares[c]
				}
				for c := range shares {
					shares[c] /= rate
				}
				m := accuracyMix{Shares: shares}
				m.Knee, m.Binding = e.knee(d.Classes, shares, 1.04*rate, 1.07, 1, 100+uint64(i))
				mixes[i] = m
				t.Logf("%s: %v knee %.3f, rule %.3f (%s)", e.name, loads[i], m.Knee, rate/m.Knee, m.Binding)
			})
			return mixes
		}
		d.Tuning, d.Reported = find(tuningLoads()), find(reportedLoads())
		data.Engines = append(data.Engines, d)
		writeAccuracy(t, data)
	}
}

func inParallel(n int, do func(i int)) {
	var group sync.WaitGroup
	slots := make(chan struct{}, *accuracyJobs)
	for i := range n {
		slots <- struct{}{}
		group.Go(func() {
			do(i)
			<-slots
		})
	}
	group.Wait()
}

// accuracyCurve is a curve of the classes with their true knees.
func accuracyCurve(e accuracyEngine, d accuracyEngineData) *curve.Curve {
	c := &curve.Curve{PeakReserve: 0.2, Identity: curve.Identity{MaxNumSeqs: e.seqs}}
	bounds := capacity.TokenBounds(32768)
	rng := rand.New(rand.NewPCG(5, 5))
	for i, k := range accuracyClasses {
		at := d.Classes[i]
		knee, point := capacity.Value(at.Knee), func(rate, itl, running float64) curve.Point {
			p := curve.Point{Purpose: curve.PurposeProbe, OfferedRate: capacity.Value(rate), Engine: curve.UnknownEngineReadings()}
			p.ITL.Mean, p.Engine.RunningMean = capacity.Value(itl), capacity.Value(running)
			return p
		}
		class := curve.Class{Name: k.name, Weight: 1, PrefixHitRatio: 0,
			PromptHistogram: capacity.NewHistogram(bounds), GenerationHistogram: capacity.NewHistogram(bounds),
			Studies: []curve.Study{{Arrivals: curve.Arrivals{Process: "poisson"}, SafeRate: knee,
				Knee:   &curve.Knee{Rate: knee, Low: knee, High: knee, Watermark: capacity.Unknown(), KVPeak: capacity.Value(at.KVPeak)},
				Points: []curve.Point{point(at.Knee/50, at.IdleITL, at.Running/50), point(at.Knee, at.ITL, at.Running)}}}}
		const n = 5000
		for j := range n {
			r := accuracyRequest(rng, j, i, 0)
			class.PromptHistogram.Add(float64(r.PromptLength), 1)
			class.GenerationHistogram.Add(float64(r.OutputLength), 1)
			class.PromptMean += float64(r.PromptLength) / n
			class.GenerationMean += float64(r.OutputLength) / n
		}
		c.Classes = append(c.Classes, class)
	}
	return c
}

// watcher reads the simulated engine as a scrape every second does.
type watcher struct {
	second   int
	readings []engineReading
	now      engineReading
}

// engineReading is the engine's counters, histograms and gauges at a second.
type engineReading struct {
	firstTokens, prompts, generated, completions float64
	gaps, gapSeconds                             float64
	running, waiting, kv, preemptions            float64
	promptLengths, generationLengths             capacity.Histogram
}

func newWatcher() *watcher {
	bounds := capacity.TokenBounds(32768)
	return &watcher{now: engineReading{promptLengths: capacity.NewHistogram(bounds), generationLengths: capacity.NewHistogram(bounds)}}
}

func (w *watcher) TokenDone(r *simulator.Request, index int, at, previous float64) {
	w.now.generated++
	if index == 0 {
		w.now.firstTokens++
		w.now.prompts += float64(r.PromptLength)
		return
	}
	w.now.gaps++
	w.now.gapSeconds += at - previous
}

func (w *watcher) RequestDone(r *simulator.Request) {
	w.now.completions++
	w.now.promptLengths.Add(float64(r.PromptLength), 1)
	w.now.generationLengths.Add(float64(r.OutputLength), 1)
}

func (w *watcher) RequestAborted(*simulator.Request) {}

func (w *watcher) StepDone(s simulator.StepStats) {
	w.now.preemptions += float64(s.Preemptions)
	w.now.running, w.now.waiting, w.now.kv = float64(s.Running), float64(s.Waiting), s.KVCacheUsage
	for ; float64(w.second) <= s.Start+s.Duration; w.second++ {
		r := w.now
		r.promptLengths.Counts = slices.Clone(r.promptLengths.Counts)
		r.generationLengths.Counts = slices.Clone(r.generationLengths.Counts)
		w.readings = append(w.readings, r)
	}
}

// arrivals of the last seconds before one.
func (w *watcher) arrivals(at, seconds int) capacity.Arrivals {
	from, to := w.readings[at-seconds], w.readings[at]
	return capacity.Arrivals{Count: to.firstTokens + to.waiting - from.firstTokens - from.waiting, Seconds: float64(seconds)}
}

// traffic of the mix window before a second, widened as the sidecar widens it.
func (w *watcher) traffic(at int) capacity.Traffic {
	seconds := int(capacity.MixWindow.Seconds())
	t := w.trafficOver(at, min(seconds, at))
	for ; seconds < min(int(capacity.MixWindowMax.Seconds()), at) && !t.Enough(); seconds += 15 {
		t = w.trafficOver(at, min(seconds+15, at))
	}
	return t
}

func (w *watcher) trafficOver(at, seconds int) capacity.Traffic {
	from, to := w.readings[at-seconds], w.readings[at]
	s := float64(seconds)
	t := capacity.Traffic{
		Requests: capacity.OfferedRate(w.arrivals(at, seconds), w.arrivals(at, min(5, at)), w.arrivals(at, min(15, at)), w.arrivals(at, min(60, at))),
		Admitted: (to.firstTokens - from.firstTokens) / s, PromptTokens: (to.prompts - from.prompts) / s,
		GenerationTokens: (to.generated - from.generated) / s, Completions: to.completions - from.completions,
		PromptLengths: difference(to.promptLengths, from.promptLengths), GenerationLengths: difference(to.generationLengths, from.generationLengths),
	}
	t.ComputedPromptTokens = t.PromptTokens
	return t
}

func difference(to, from capacity.Histogram) capacity.Histogram {
	d := capacity.NewHistogram(to.Bounds)
	for i := range d.Counts {
		d.Counts[i] = to.Counts[i] - from.Counts[i]
	}
	return d
}

// watch runs requests on an engine and reads it every second.
func watch(cfg simulator.Config, requests []*simulator.Request, until float64) *watcher {
	w := newWatcher()
	cfg.Observer = func(int) simulator.Observer { return w }
	if _, err := simulator.RunVirtual(cfg, requests, until); err != nil {
		panic(err)
	}
	return w
}

// judgement is what each estimator says at a mix's knee, where 1 is right.
type judgement struct {
	live      curve.Load
	offered   float64 // of the true rate
	labels    float64 // the rule with the true rates: what is left is noise and unmixing
	withKV    float64 // the larger of it and the KV cache's load ratio
	sums      float64
	tokens    float64
	threshold float64
	running   float64
	// shares[class] as they are, and as they were found.
	mix accuracyMix
}

// judge puts a mix at its knee and reads the end of it, where a window can be as wide as it may.
func judge(e accuracyEngine, d accuracyEngineData, c *curve.Curve, m accuracyMix, warmup int, seed uint64) judgement {
	end := warmup + int(capacity.MixWindowMax.Seconds())
	w := watch(e.config(), accuracyRequests(seed, m.Shares, m.Knee, float64(end+5)), float64(end+5))
	t := w.traffic(end)
	j := judgement{live: c.Load(t, curve.LoadOptions{}), mix: m, offered: t.Requests / m.Knee}
	for i, s := range m.Shares {
		j.labels += s * m.Knee / d.Classes[i].Knee
	}
	noLengths := t
	noLengths.PromptLengths, noLengths.GenerationLengths = capacity.Histogram{}, capacity.Histogram{}
	j.sums = c.Load(noLengths, curve.LoadOptions{}).Estimate
	j.tokens = tokenWeights(c, t)
	var kv, waiting, running float64
	window := w.readings[end-int(capacity.MixWindow.Seconds()) : end]
	for _, r := range window {
		kv, waiting, running = kv+r.kv, waiting+r.waiting, running+r.running
	}
	n := float64(len(window))
	first, last := window[0], window[len(window)-1]
	bounds := capacity.Operation{RequestsRunning: last.running, TokenSlotUsage: kv / n,
		Preemptions: last.preemptions - first.preemptions, RequestsFinished: last.completions - first.completions}.LoadRatios()
	j.withKV = max(j.live.Estimate, bounds[capacity.TokenSlots])
	j.threshold = max(kv/n/0.8, waiting/n/5)
	j.running = running / n / float64(e.seqs)
	return j
}

// tokenWeights is P/P* + G/G*, with the weights that make the classes' knees as full as can be.
func tokenWeights(c *curve.Curve, t capacity.Traffic) float64 {
	var rows [][]float64
	for i := range c.Classes {
		k := &c.Classes[i]
		knee := float64(k.Studies[0].Knee.Rate)
		rows = append(rows, []float64{knee * k.PromptMean, knee * k.GenerationMean})
	}
	x := capacity.NNLS(rows, []float64{1, 1, 1, 1})
	return x[0]*t.PromptTokens + x[1]*t.GenerationTokens
}

func readAccuracy(t *testing.T) accuracyData {
	raw, err := os.ReadFile(accuracyFile)
	if err != nil {
		t.Fatal(err)
	}
	var data accuracyData
	if err := json.Unmarshal(raw, &data); err != nil {
		t.Fatal(err)
	}
	if len(data.Engines) != len(accuracyEngines) {
		t.Fatalf("%s has %d engines, want %d: run go test -run TestAccuracyKnees -accuracy.knees", accuracyFile, len(data.Engines), len(accuracyEngines))
	}
	return data
}

func writeAccuracy(t *testing.T, data accuracyData) {
	raw, err := json.MarshalIndent(data, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(accuracyFile, append(raw, '\n'), 0o666); err != nil {
		t.Fatal(err)
	}
}

// estimators are the columns of the table.
var estimators = []struct {
	name string
	of   func(judgement) float64
}{
	{"live load ratio", func(j judgement) float64 { return j.live.Estimate }},
	{"the larger of it and KV cache", func(j judgement) float64 { return j.withKV }},
	{"sum of rate/knee, class rates known", func(j judgement) float64 { return j.labels }},
	{"live load ratio from sums alone", func(j judgement) float64 { return j.sums }},
	{"token weights P/P*+G/G*", func(j judgement) float64 { return j.tokens }},
	{"max(KV/0.8, queue/5)", func(j judgement) float64 { return j.threshold }},
	{"running/max_num_seqs", func(j judgement) float64 { return j.running }},
}

// quantile of values by the nearest rank.
func quantile(values []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return s[min(len(s)-1, max(0, int(math.Ceil(q*float64(len(s))))-1))]
}

func share(values []float64, low, high float64) float64 {
	n := 0
	for _, v := range values {
		if v >= low && v <= high {
			n++
		}
	}
	return float64(n) / float64(len(values))
}

// accuracyTable is the result in Markdown.
func accuracyTable(judgements []judgement) string {
	var b strings.Builder
	b.WriteString("| at the true knee, where 1 is right | min | 5 % | median | 95 % | max | in 0.90..1.15 | below 0.90 |\n|---|---|---|---|---|---|---|---|\n")
	for _, e := range estimators {
		var v []float64
		for _, j := range judgements {
			v = append(v, e.of(j))
		}
		fmt.Fprintf(&b, "| %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.0f %% | %.0f %% |\n", e.name,
			slices.Min(v), quantile(v, 0.05), quantile(v, 0.5), quantile(v, 0.95), slices.Max(v),
			100*share(v, 0.90, 1.15), 100*share(v, math.Inf(-1), math.Nextafter(0.90, 0)))
	}
	return b.String()
}

// quickMix is the first of three reported mixes of long requests, which take least to simulate.
const quickMix = 14

// found are the shares that were found.
func found(j judgement) []float64 {
	var shares []float64
	for _, c := range j.live.Mix.Classes {
		shares = append(shares, c.Share)
	}
	return shares
}

// accuracyWarmup is how many seconds a mix runs at its knee before the window.
const accuracyWarmup = 120

func judgeAll(data accuracyData, mixes func(accuracyEngineData) []accuracyMix) [][]judgement {
	var all [][]judgement
	for i, d := range data.Engines {
		c, list := accuracyCurve(accuracyEngines[i], d), mixes(d)
		judged := make([]judgement, len(list))
		inParallel(len(list), func(k int) {
			judged[k] = judge(accuracyEngines[i], d, c, list[k], accuracyWarmup, 1000+uint64(k))
		})
		all = append(all, judged)
	}
	return all
}

// The live load ratio, from what an engine shows of five to fifteen minutes, at knees of
// mixes that the curve was not probed with. The short form judges three mixes for
// two engines, the full one prints the table.
func TestAccuracy(t *testing.T) {
	data := readAccuracy(t)
	mixes := func(d accuracyEngineData) []accuracyMix { return d.Reported[quickMix : quickMix+3] }
	if !*accuracyFull {
		data.Engines = data.Engines[:2]
	} else {
		tuning := slices.Concat(judgeAll(data, func(d accuracyEngineData) []accuracyMix { return d.Tuning })...)
		t.Logf("mixes that choices were made on:\n%s", accuracyTable(tuning))
		mixes = func(d accuracyEngineData) []accuracyMix { return d.Reported }
	}
	all := judgeAll(data, mixes)
	for i, judged := range all {
		if *accuracyFull {
			t.Logf("%s:\n%s", data.Engines[i].Name, accuracyTable(judged))
		}
		for _, j := range judged {
			if r := j.live.Estimate; !(r >= 0.9 && r <= 1.15) {
				t.Logf("%s: %.3f (by the sum with known rates %.3f), of %s, offered %.3f of the true rate, coverage %.3f, shares %.3v found as %.3v, bound by %s",
					data.Engines[i].Name, r, j.labels, j.live.Resource, j.offered, j.live.Coverage, j.mix.Shares, found(j), j.mix.Binding)
			}
			if !j.live.Valid {
				t.Errorf("%s, shares %.3v: not valid: %v, coverage %.3f", data.Engines[i].Name, j.mix.Shares, j.live.Reasons, j.live.Coverage)
			}
		}
	}
	judged := slices.Concat(all...)
	if *accuracyFull {
		t.Logf("all %d:\n%s", len(judged), accuracyTable(judged))
	}
	var ratios []float64
	for _, j := range judged {
		ratios = append(ratios, j.live.Estimate)
	}
	if m := quantile(ratios, 0.5); !(m >= 0.95 && m <= 1.10) {
		t.Errorf("the median load ratio at the knee is %.3f, want 0.95 to 1.10", m)
	}
	if !*accuracyFull {
		if low, high := slices.Min(ratios), slices.Max(ratios); !(low >= 0.90 && high <= 1.20) {
			t.Errorf("the load ratios at the knees are %.3f to %.3f, want 0.90 to 1.20", low, high)
		}
		return
	}
	if s := share(ratios, 0.90, 1.15); s < 0.90 {
		t.Errorf("%.0f %% are within 0.90 and 1.15, want 90 %% at least", 100*s)
	}
	if m := slices.Min(ratios); m < 0.90 {
		t.Errorf("the least is %.3f, want 0.90 at least: it shows headroom that is not there", m)
	}
}

// Traffic that no class is like shows as such within one window, and is never comfortable.
func TestAccuracyOutsideTheClasses(t *testing.T) {
	data := readAccuracy(t)
	c := accuracyCurve(accuracyEngines[0], data.Engines[0])
	for _, o := range []struct {
		name               string
		prompt, generation int
	}{{"retrieval, longer than the longest", 22000, 60}, {"classification", 1500, 4}, {"translation", 40, 40}, {"code", 2000, 2500}} {
		t.Run(o.name, func(t *testing.T) {
			const change = 310
			requests := accuracyRequests(3, data.Engines[0].Reported[0].Shares, 4, change)
			rng := rand.New(rand.NewPCG(9, 9))
			for at := change + 0.5; at < change+310; at += 0.5 {
				r := accuracyRequest(rng, 0, 0, at)
				r.PromptLength, r.OutputLength = spread(float64(o.prompt), 25000).Draw(rng), spread(float64(o.generation), 6000).Draw(rng)
				r.MaxTokens = r.OutputLength
				requests = append(requests, r)
			}
			w := watch(accuracyEngines[0].config(), requests, change+310)
			before, after := c.Load(w.traffic(change), curve.LoadOptions{}), c.Load(w.traffic(change+300), curve.LoadOptions{})
			if !before.Valid || before.Zone != capacity.ZoneStable {
				t.Errorf("the classes' own traffic: valid %v, zone %s, coverage %.3f, reasons %v", before.Valid, before.Zone, before.Coverage, before.Reasons)
			}
			if after.Valid || !(after.Coverage < capacity.MinCoverage) || !slices.Contains(after.Reasons, capacity.ReasonCoverageLow) {
				t.Errorf("after one window: valid %v, coverage %.3f, reasons %v", after.Valid, after.Coverage, after.Reasons)
			}
			if after.Ratio <= 1 || after.Zone == capacity.ZoneStable || after.Zone == capacity.ZoneRisk {
				t.Errorf("after one window the ratio is %.3f in zone %s, which is comfortable", after.Ratio, after.Zone)
			}
		})
	}
}

// Twice the load: the offered rate shows it within 5 s, while the engine serves what it can.
func TestAccuracyOfAStep(t *testing.T) {
	data := readAccuracy(t)
	d := data.Engines[0]
	c := accuracyCurve(accuracyEngines[0], d)
	m := d.Reported[0]
	const step = 310
	seeds := uint64(1)
	if *accuracyFull {
		seeds = 20
	}
	for seed := range seeds {
		requests := accuracyRequests(20+seed, m.Shares, 0.75*m.Knee, step)
		for _, r := range accuracyRequests(30+seed, m.Shares, 1.5*m.Knee, 10) {
			r.Arrival += step
			requests = append(requests, r)
		}
		w := watch(accuracyEngines[0].config(), requests, step+10)
		before, after := c.Load(w.traffic(step), curve.LoadOptions{}), c.Load(w.traffic(step+5), curve.LoadOptions{})
		if !(before.Ratio < 0.95) || !(after.Ratio > 1) || after.Zone != capacity.ZoneUnstable {
			t.Errorf("seed %d: ratio %.3f before the step and %.3f 5 s after it, want below 0.95 and above 1", seed, before.Ratio, after.Ratio)
		}
		// What a rate of served requests would say at the same moment, over its usual minute.
		from, to := w.readings[step-55], w.readings[step+5]
		if served := (to.firstTokens - from.firstTokens) / 60 / m.Knee; !(served < 0.95) {
			t.Errorf("seed %d: by what is served the ratio is %.3f: the step is no test", seed, served)
		}
	}
}
