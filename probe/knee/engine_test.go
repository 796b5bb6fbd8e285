package knee_test

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/knee"
	"headroom_exporter/probe/workload"
	"headroom_exporter/simulator"
)

// virtualEngine puts loads on the simulator's scheduler in virtual time,
// without noise: what a search gets wrong on it, it gets wrong by itself.
type virtualEngine struct {
	config simulator.Config
	// drain in seconds is how long requests in flight may take after the last arrival.
	drain float64
	// loads that were asked for, and the simulated seconds and requests that all of them took.
	loads    []knee.Load
	seconds  float64
	requests int
	// edit changes what a load did, for tests of what a search does about it; may be nil.
	edit func(l *knee.Load, o *knee.Observation) error
}

// sampleEvery is the time between two readings, in seconds.
const sampleEvery = 0.25

// flight is a request on its way.
type flight struct {
	simulator.Request
	class   int
	counts  bool
	primed  bool
	over    []float64 // gaps above the bound, for each SLO
	lastGap float64
}

// virtualRun is one load under way.
type virtualRun struct {
	engine    *virtualEngine
	load      *knee.Load
	monitor   knee.Monitor
	scheduler *simulator.Scheduler

	now, end float64 // of the step that runs
	stepping bool
	flights  map[*flight]struct{}
	ended    []*flight // since the last look, that count
	step     simulator.StepStats

	samples     []knee.Sample
	requests    []knee.Request
	due, done   int
	preemptions int
	prompt, out float64 // tokens computed in the measured window
	completed   int
	queueTime   float64
	prefillTime float64
	decodeTime  float64
	gaps        float64 // between tokens, in the measured window, and their sum
	gapTime     float64
	finished    int
	kvPeak      float64
	nextSample  float64
	warmup      float64
	injection   float64
	next        func() *flight // closed loop's source
}

func (e *virtualEngine) Run(ctx context.Context, l *knee.Load, m knee.Monitor) (*knee.Observation, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e.loads = append(e.loads, *l)
	r := &virtualRun{engine: e, load: l, monitor: m, flights: map[*flight]struct{}{},
		warmup: l.Warmup.Seconds(), injection: l.Duration().Seconds()}
	r.scheduler = simulator.NewScheduler(e.config, r)
	stopped, err := r.run()
	if err != nil {
		return nil, err
	}
	o := r.observation(stopped)
	e.seconds += r.now
	e.requests += r.due
	if e.edit != nil {
		if err := e.edit(l, o); err != nil {
			return o, err
		}
	}
	return o, nil
}

// source gives the flights of a plan; at is added to planned times.
func (r *virtualRun) source(arrivals *workload.Arrivals, d time.Duration, seed uint64, at float64) (func() *flight, error) {
	plan := workload.Plan{Classes: r.load.Traffic.Classes, Arrivals: arrivals, Duration: d, Seed: seed,
		MaxModelLen: r.engine.config.MaxModelLen}
	source, err := plan.Source()
	if err != nil {
		return nil, err
	}
	index := map[string]int{}
	for i := range plan.Classes {
		index[plan.Classes[i].Name] = i
	}
	return func() *flight {
		q, ok := source.Next()
		if !ok {
			return nil
		}
		f := &flight{class: index[q.Class]}
		f.Arrival = at + q.At.Seconds()
		f.PromptLength, f.OutputLength, f.MaxTokens = q.PromptTokens, q.MaxTokens, q.MaxTokens
		f.over = make([]float64, len(r.load.Traffic.SLOs(f.class)))
		return f
	}, nil
}

// arrivals of the open loop with the primed requests, sorted.
func (r *virtualRun) arrivals() ([]*flight, error) {
	l := r.load
	var all []*flight
	prime, err := r.source(nil, 0, l.Seed^0x5eed, 0)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(l.Seed, 1))
	for range l.Prime {
		f := prime()
		f.primed = true
		f.OutputLength = 1 + int(rng.Float64()*float64(f.OutputLength-1))
		f.MaxTokens = f.OutputLength
		all = append(all, f)
	}
	at := 0.0
	for i, s := range l.Steps {
		if s.Rate > 0 {
			a := workload.Arrivals{Process: workload.Process(l.Traffic.Arrivals.Process), Rate: s.Rate,
				Burstiness: l.Traffic.Arrivals.Burstiness}
			next, err := r.source(&a, s.Duration, l.Seed+uint64(i)*7919, at)
			if err != nil {
				return nil, err
			}
			for f := next(); f != nil; f = next() {
				all = append(all, f)
			}
		}
		at += s.Duration.Seconds()
	}
	return all, nil
}

func (r *virtualRun) run() (stopped string, err error) {
	var open []*flight
	if r.load.Concurrency > 0 {
		if r.next, err = r.source(nil, 0, r.load.Seed, 0); err != nil {
			return "", err
		}
		for range r.load.Concurrency {
			open = append(open, r.next())
		}
	} else if open, err = r.arrivals(); err != nil {
		return "", err
	}
	for {
		// The next event is the end of a step, an arrival or a reading, whichever comes first.
		t := r.nextSample
		if r.stepping {
			t = min(t, r.end)
		}
		if len(open) > 0 {
			t = min(t, open[0].Arrival)
		}
		r.now = t
		if r.stepping && t == r.end {
			r.stepping = false
			r.scheduler.End(t)
		}
		for len(open) > 0 && open[0].Arrival <= t {
			r.launch(open[0])
			open = open[1:]
		}
		if !r.stepping {
			if d, ok := r.scheduler.Begin(t); ok {
				r.stepping, r.end = true, t+d
			}
		}
		if t < r.nextSample {
			continue
		}
		r.nextSample += sampleEvery
		if stopped := r.look(); stopped != "" && t < r.injection {
			r.cancel()
			return stopped, nil
		}
		if t >= r.injection && (len(r.flights) == 0 || t >= r.injection+r.engine.drain) {
			r.cancel()
			return "", nil
		}
	}
}

func (r *virtualRun) launch(f *flight) {
	f.counts = !f.primed && f.Arrival >= r.warmup
	r.due++
	r.flights[f] = struct{}{}
	slos := r.load.Traffic.SLOs(f.class)
	f.OnToken = func(index int, at float64, finished simulator.FinishReason) {
		if index > 0 {
			for i, s := range slos {
				if (s.Metric == "itl" || s.Metric == "icl") && at-f.lastGap > s.Bound.Seconds() {
					f.over[i]++
				}
			}
		}
		if index > 0 && at >= r.warmup && at < r.injection {
			r.gaps++
			r.gapTime += at - f.lastGap
		}
		f.lastGap = at
		if finished != "" {
			r.finish(f, at)
		}
	}
	r.scheduler.Add(&f.Request)
}

func (r *virtualRun) finish(f *flight, at float64) {
	delete(r.flights, f)
	r.done++
	if at >= r.warmup && at < r.injection {
		r.completed++
	}
	if f.counts {
		r.queueTime += f.FirstScheduled - f.Arrival
		r.prefillTime += f.FirstToken - f.FirstScheduled
		r.decodeTime += f.LastToken - f.FirstToken
		r.finished++
		r.ended = append(r.ended, f)
	}
	// The closed loop refills at once.
	if r.next != nil && at < r.injection {
		n := r.next()
		n.Arrival = at
		r.launch(n)
	}
}

// look takes a reading and tells the monitor what happened.
func (r *virtualRun) look() string {
	for _, f := range r.ended {
		q := f.record(r.load.Traffic.SLOs(f.class), true)
		r.requests = append(r.requests, q)
		if r.monitor != nil {
			r.monitor.Request(q)
		}
	}
	r.ended = r.ended[:0]
	s := knee.Sample{At: r.now, Running: float64(r.scheduler.Running()), Waiting: float64(r.scheduler.Waiting()),
		KVUsage: r.step.KVCacheUsage, Preemptions: float64(r.preemptions), Due: r.due, Done: r.done}
	r.samples = append(r.samples, s)
	if r.monitor == nil {
		return ""
	}
	return r.monitor.Sample(s)
}

// cancel ends what is in flight: only what passed a bound already counts, and after a drain all do.
func (r *virtualRun) cancel() {
	for f := range r.flights {
		if !f.counts {
			continue
		}
		late := r.now >= r.injection
		for _, s := range r.load.Traffic.SLOs(f.class) {
			age := r.now - f.Arrival
			late = late || s.Metric == "e2e" && age > s.Bound.Seconds() ||
				s.Metric == "ttft" && f.FirstToken == 0 && age > s.Bound.Seconds()
		}
		if late {
			f.End = r.now
			r.requests = append(r.requests, f.record(r.load.Traffic.SLOs(f.class), false))
		}
	}
}

// record is the request as it ended.
func (f *flight) record(slos []capacity.SLO, ok bool) knee.Request {
	q := knee.Request{Class: f.class, Due: f.Arrival, End: f.End, TTFT: math.NaN(), TPOT: math.NaN(), E2E: math.NaN(), OK: ok,
		PromptTokens: f.PromptLength, OutputTokens: f.OutputLength}
	if f.FirstToken > 0 {
		q.TTFT = f.FirstToken - f.Arrival
	}
	if ok {
		q.E2E = f.LastToken - f.Arrival
		if f.OutputLength > 1 {
			q.TPOT = (f.LastToken - f.FirstToken) / float64(f.OutputLength-1)
		}
	}
	for i, s := range slos {
		over, of := f.over[i], 1.0
		value := math.NaN()
		switch s.Metric {
		case "itl", "icl":
			of = float64(max(f.OutputLength-1, 0))
		case "ttft":
			value = q.TTFT
		case "tpot":
			value = q.TPOT
			if math.IsNaN(value) {
				of = 0
			}
		case "e2e":
			value = q.E2E
		}
		if value > s.Bound.Seconds() {
			over = 1
		}
		if !ok {
			over, of = 1, 1
		}
		q.Over, q.Of = append(q.Over, over), append(q.Of, of)
	}
	return q
}

func (r *virtualRun) observation(stopped string) *knee.Observation {
	l := r.load
	measured := min(r.now, r.injection) - r.warmup
	p := curve.Point{Name: l.Name, Purpose: l.Purpose, Concurrency: l.Concurrency,
		Start: r.engine.seconds, Seconds: measured, Attempts: len(r.requests),
		OfferedRate: capacity.Unknown(), CompletedRate: capacity.Value(float64(r.completed) / measured),
		PromptTokenRate: capacity.Value(r.prompt / measured), GenerationTokenRate: capacity.Value(r.out / measured),
		Engine: curve.UnknownEngineReadings()}
	if l.Concurrency == 0 {
		p.OfferedRate = capacity.Value(l.Steps[0].Rate)
	}
	var ttft, tpot, e2e []float64
	for _, q := range r.requests {
		if !q.OK {
			p.Failures++
		}
		ttft, tpot, e2e = append(ttft, q.TTFT), append(tpot, q.TPOT), append(e2e, q.E2E)
	}
	p.TTFT, p.TPOT, p.E2E, p.ITL = knee.Quantiles(ttft), knee.Quantiles(tpot), knee.Quantiles(e2e), knee.Quantiles(nil)
	p.ITL.N, p.ITL.Mean = r.gaps, capacity.Value(r.gapTime/r.gaps)
	var running, waiting, kv, n float64
	g := &p.Engine
	g.RunningMax, g.WaitingMax, g.KVPeak = 0, 0, capacity.Value(r.kvPeak)
	for _, s := range r.samples {
		if s.At >= r.warmup && s.At <= r.injection {
			n++
			running, waiting, kv = running+s.Running, waiting+s.Waiting, kv+s.KVUsage
			g.RunningMax, g.WaitingMax = max(g.RunningMax, capacity.Value(s.Running)), max(g.WaitingMax, capacity.Value(s.Waiting))
		}
	}
	g.RunningMean, g.WaitingMean, g.KVMean = capacity.Value(running/n), capacity.Value(waiting/n), capacity.Value(kv/n)
	g.Preemptions, g.PrefixHitRatio = capacity.Value(r.preemptions), 0
	if r.finished > 0 {
		f := float64(r.finished)
		g.QueueSeconds, g.PrefillSeconds, g.DecodeSeconds = capacity.Value(r.queueTime/f), capacity.Value(r.prefillTime/f), capacity.Value(r.decodeTime/f)
	}
	for _, name := range []string{"client", "prefix_cache_hits", "length"} {
		passed := true
		p.Gates = append(p.Gates, curve.Gate{Name: name, Kind: curve.GateInvalid, Passed: &passed, Low: capacity.Unknown(),
			High: capacity.Unknown(), Value: 0, Limit: capacity.Unknown(), Detail: "simulated"})
	}
	sortByDue(r.requests)
	return &knee.Observation{Point: p, Requests: r.requests, Samples: r.samples, Stopped: stopped}
}

// StepDone, TokenDone, RequestDone and RequestAborted implement simulator.Observer.
func (r *virtualRun) StepDone(s simulator.StepStats) {
	r.step = s
	r.preemptions += s.Preemptions
	if r.now >= r.warmup && r.now < r.injection {
		r.prompt += float64(s.PrefillTokens)
		r.out += float64(s.DecodeTokens)
		r.kvPeak = max(r.kvPeak, s.KVCacheUsage)
	}
}

func (r *virtualRun) TokenDone(*simulator.Request, int, float64, float64) {}
func (r *virtualRun) RequestDone(*simulator.Request)                      {}
func (r *virtualRun) RequestAborted(*simulator.Request)                   {}

func sortByDue(requests []knee.Request) {
	slices.SortStableFunc(requests, func(a, b knee.Request) int { return cmp.Compare(a.Due, b.Due) })
}
