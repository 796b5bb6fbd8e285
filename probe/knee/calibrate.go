package knee

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/workload"
)

// Measures of the calibration.
const (
	// The engine may be slower than its queue by exp(slowerFrom) to exp(slowerTo), looked at in steps.
	slowerFrom, slowerTo, slowerStep = -0.5, 0.7, 0.02
	// slowerDeviation is how far it is expected to be, as a deviation of the logarithm.
	slowerDeviation = 0.2
	// replayBlock in seconds is the length of the blocks that a resample draws: violations come in clumps.
	replayBlock = 15
	// endlessJobs is how many requests the long run is made of, unitJobs how many tell what they are like.
	endlessJobs, unitJobs = 240000, 30000
	resamples             = 400
)

// bound is one SLO of one class.
type bound struct {
	class, slo int
	capacity.SLO
}

// queued tells whether the bound is of a latency that a queue makes.
func (b *bound) queued() bool {
	return b.Metric == "ttft" || b.Metric == "ttft_sent" || b.Metric == "ttfo" || b.Metric == "e2e"
}

// missed tells whether a job as it was served misses the bound.
func (b *bound) missed(s served) bool {
	if b.Metric == "e2e" {
		return s.e2e > b.Bound.Seconds()
	}
	return s.ttft > b.Bound.Seconds()
}

// bounds of all classes.
func bounds(t *Traffic) []bound {
	var all []bound
	for class := range t.Classes {
		for i, s := range t.SLOs(class) {
			all = append(all, bound{class, i, s})
		}
	}
	return all
}

// learnQueue makes a queue of the points of a closed loop, of which the first
// left the engine nearly idle and the last filled it. requests are those of
// the first, which tell what prompts cost; without them a prompt's cost does
// not depend on its length. It is nil when the points say too little.
func learnQueue(points []curve.Point, requests []Request, unit []job, limits Limits) *queue {
	var q queue
	var running, pace []float64
	for _, p := range points {
		if n, t := float64(p.Engine.RunningMean), float64(p.TPOT.Mean); n > 0 && t > 0 {
			running, pace = append(running, n), append(pace, t)
		}
	}
	if len(running) == 0 || !points[0].TTFT.Mean.Known() {
		return nil
	}
	q.perToken = stat.Mean(pace, nil)
	if len(running) > 1 {
		if a, b := stat.LinearRegression(running, pace, nil, false); a > 0 && b >= 0 {
			q.perToken, q.perRunning = a, b
		}
	}
	q.base = float64(points[0].TTFT.Mean)
	var prompts, first []float64
	for _, r := range requests {
		if !math.IsNaN(r.TTFT) {
			prompts, first = append(prompts, float64(r.PromptTokens)), append(first, r.TTFT)
		}
	}
	if len(first) > 1 && stat.Variance(prompts, nil) > 0 {
		if base, slope := stat.LinearRegression(prompts, first, nil, false); slope > 0 {
			q.base, q.perPrompt = max(base, 0), slope
		}
	}
	last := &points[len(points)-1]
	q.slots = max(1, int(math.Round(float64(last.Engine.RunningMean))))
	if float64(last.Engine.KVPeak) >= kvFull {
		// The KV cache, not the slots, is what ran out.
		q.slots = 1 << 20
		q.capacity = float64(last.Engine.RunningMean) * tokensHeld(unit) / float64(last.Engine.KVMean)
		if limits.KVTokens > 0 {
			q.capacity = limits.KVTokens
		}
		if limits.MaxNumSeqs > 0 {
			q.slots = limits.MaxNumSeqs
		}
	}
	if t := float64(last.PromptTokenRate); t > 0 {
		q.perComputed = 1 / t
	}
	return &q
}

// replays are points as the queue would have served them, at every pace of the grid.
type replays struct {
	queue  *queue
	bounds []bound
	points []replayedPoint
}

// replayedPoint has the violations of each bound by blocks of time: those seen
// and those of the queue at each pace.
type replayedPoint struct {
	seen     [][]float64
	expected [][][]float64 // by bound, pace, block
	blocks   int
}

func paces() int { return int(math.Round((slowerTo-slowerFrom)/slowerStep)) + 1 }

func pace(i float64) float64 { return math.Exp(slowerFrom + slowerStep*i) }

// replay adds a point, if it has requests.
func (r *replays) replay(l *Load, o *Observation) bool {
	requests := o.Requests
	if o.Stopped != "" && len(requests) > 0 {
		// Of the requests that were cancelled only those that had missed a bound are known.
		longest := 0.0
		for _, b := range r.bounds {
			longest = max(longest, b.Bound.Seconds())
		}
		_, to := injection(l, o)
		requests = requests[:len(requests)-len(laterThan(requests, to-longest))]
	}
	if len(requests) == 0 {
		return false
	}
	from := requests[0].Due
	p := replayedPoint{blocks: int((requests[len(requests)-1].Due-from)/replayBlock) + 1}
	jobs, first := r.jobs(l, o, requests)
	for _, b := range r.bounds {
		seen := make([]float64, p.blocks)
		for _, q := range requests {
			if q.Class == b.class && q.Over[b.slo] > 0 {
				seen[int((q.Due-from)/replayBlock)]++
			}
		}
		p.seen = append(p.seen, seen)
		p.expected = append(p.expected, make([][]float64, paces()))
	}
	var out []served
	held := r.held(o, requests)
	for i := range paces() {
		out = r.queue.run(jobs, pace(float64(i)), held, out)
		for k := range r.bounds {
			expected := make([]float64, p.blocks)
			for n, q := range requests {
				if q.Class == r.bounds[k].class && r.bounds[k].missed(out[first+n]) {
					expected[int((q.Due-from)/replayBlock)]++
				}
			}
			p.expected[k][i] = expected
		}
	}
	r.points = append(r.points, p)
	return true
}

// laterThan are the requests that were due after a time.
func laterThan(requests []Request, at float64) []Request {
	i, _ := slices.BinarySearchFunc(requests, at, func(r Request, at float64) int {
		if r.Due <= at {
			return -1
		}
		return 1
	})
	return requests[i:]
}

// atStart is the reading when the first request that counts was due.
func atStart(o *Observation, at float64) (Sample, bool) {
	for _, s := range o.Samples {
		if s.At >= at {
			return s, !math.IsNaN(s.Running)
		}
	}
	return Sample{}, false
}

// jobs are the requests, behind those that waited when the first was due.
func (r *replays) jobs(l *Load, o *Observation, requests []Request) (jobs []job, first int) {
	if s, ok := atStart(o, requests[0].Due); ok && s.Waiting > 0 {
		prompt, output := meanLengths(requests)
		for range int(s.Waiting) {
			jobs = append(jobs, job{requests[0].Due, prompt, output, -1})
		}
	}
	first = len(jobs)
	for _, q := range requests {
		jobs = append(jobs, job{q.Due, float64(q.PromptTokens), float64(q.OutputTokens), q.Class})
	}
	return jobs, first
}

func meanLengths(requests []Request) (prompt, output float64) {
	for _, q := range requests {
		prompt += float64(q.PromptTokens)
		output += float64(q.OutputTokens)
	}
	return prompt / float64(len(requests)), output / float64(len(requests))
}

// held are those that ran when the first request was due: a
// random share of the length-biased output.
func (r *replays) held(o *Observation, requests []Request) []resident {
	s, ok := atStart(o, requests[0].Due)
	if !ok {
		return nil
	}
	total := 0.0
	for _, q := range requests {
		total += float64(q.OutputTokens)
	}
	rng := rand.New(rand.NewPCG(1, uint64(len(requests))))
	all := make([]resident, int(s.Running))
	for i := range all {
		at := rng.Float64() * total
		for _, q := range requests {
			if at -= float64(q.OutputTokens); at <= 0 {
				made := rng.Float64() * float64(q.OutputTokens)
				all[i] = resident{left: float64(q.OutputTokens) - made, held: float64(q.PromptTokens) + made}
				break
			}
		}
	}
	return all
}

// correlation is how well the queue tells the times to first token of a point.
func (q *queue) correlation(jobs []job, requests []Request, held []resident) float64 {
	out := q.run(jobs, 1, held, nil)
	var seen, told []float64
	for i, r := range requests {
		if !math.IsNaN(r.TTFT) {
			seen = append(seen, math.Log(r.TTFT+1e-3))
			told = append(told, math.Log(out[len(jobs)-len(requests)+i].ttft+1e-3))
		}
	}
	if len(seen) < 2 {
		return 0
	}
	return stat.Correlation(seen, told, nil)
}

// sums are a point's violations of a bound over blocks, all of them when drawn is nil.
func sums(blocks []float64, drawn []int) float64 {
	total := 0.0
	if drawn == nil {
		for _, v := range blocks {
			total += v
		}
		return total
	}
	for _, i := range drawn {
		total += blocks[i]
	}
	return total
}

// slower is how much slower than the queue the engine is by a bound's
// violations, as a place on the grid: where what was seen is nearest to what
// was expected. spread is each point's variance of the difference.
func (r *replays) slower(k int, spread []float64, drawn [][]int) float64 {
	n := paces()
	objective := make([]float64, n)
	for j := range r.points {
		p := &r.points[j]
		var d []int
		if drawn != nil {
			d = drawn[j]
		}
		seen := sums(p.seen[k], d)
		for i := range n {
			difference := seen - sums(p.expected[k][i], d)
			objective[i] += difference * difference / spread[j]
		}
	}
	best := 0
	for i := range objective {
		x := (slowerFrom + slowerStep*float64(i)) / slowerDeviation
		objective[i] += x * x
		if objective[i] < objective[best] {
			best = i
		}
	}
	if best == 0 || best == n-1 {
		return float64(best)
	}
	// The lowest point of the parabola through the three around it.
	a, b, c := objective[best-1], objective[best], objective[best+1]
	if curvature := a - 2*b + c; curvature > 0 {
		return float64(best) + (a-c)/(2*curvature)
	}
	return float64(best)
}

// spreads are the variances of the difference between what was seen and what
// is expected at a place of the grid.
func (r *replays) spreads(k int, at float64) []float64 {
	i := min(max(int(math.Round(at)), 0), paces()-1)
	var all []float64
	for _, p := range r.points {
		sum, total := 0.0, 0.0
		for b := range p.blocks {
			d := p.seen[k][b] - p.expected[k][i][b]
			sum += d * d
			total += p.seen[k][b] + p.expected[k][i][b]
		}
		all = append(all, 2+sum+total/2)
	}
	return all
}

// calibrate is the pace by a bound, and its resamples by blocks.
func (r *replays) calibrate(k int, draws int, rng *rand.Rand) (at float64, resampled []float64) {
	at = -slowerFrom / slowerStep
	var spread []float64
	for range 3 {
		spread = r.spreads(k, at)
		at = r.slower(k, spread, nil)
	}
	if draws == 0 {
		return at, nil
	}
	blocks := make([]int, len(r.points))
	for j := range r.points {
		blocks[j] = r.points[j].blocks
	}
	resampled = capacity.BlockBootstrap(blocks, draws, rng, func(drawn [][]int) float64 { return r.slower(k, spread, drawn) })
	return at, resampled
}

// drawJobs draws requests of the traffic at one a second, on average.
func drawJobs(t *Traffic, maxModelLen int, seed uint64, n int) ([]job, error) {
	plan := workload.Plan{
		Classes: t.Classes, MaxModelLen: maxModelLen, Seed: seed, Requests: n,
		Arrivals: &workload.Arrivals{Process: workload.Process(t.Arrivals.Process), Rate: 1, Burstiness: t.Arrivals.Burstiness},
	}
	source, err := plan.Source()
	if err != nil {
		return nil, err
	}
	class := map[string]int{}
	for i := range t.Classes {
		class[t.Classes[i].Name] = i
	}
	var jobs []job
	for r := range workload.All(source) {
		jobs = append(jobs, job{r.At.Seconds(), float64(r.PromptTokens), float64(r.MaxTokens), class[r.Class]})
	}
	return jobs, nil
}

// longRun tells what fraction of endless requests misses a bound at a rate.
type longRun struct {
	queue *queue
	unit  []job // at one a second
	jobs  []job
	out   []served
}

func (e *longRun) fraction(b *bound, rate, slower float64) float64 {
	e.jobs = e.jobs[:0]
	for _, j := range e.unit {
		j.at /= rate
		e.jobs = append(e.jobs, j)
	}
	e.out = e.queue.run(e.jobs, slower, nil, e.out)
	over, of := 0.0, 0.0
	// The first came to an empty queue.
	for i := len(e.jobs) / 50; i < len(e.jobs); i++ {
		if e.jobs[i].class == b.class {
			of++
			if b.missed(e.out[i]) {
				over++
			}
		}
	}
	return over / of
}

// rate is the one at which a bound is missed by a fraction: a bracket by part
// of the requests, then two secants of the logarithm of the fraction over all. It is NaN when even an idle engine misses it as often.
func (e *longRun) rate(b *bound, fraction, slower float64) float64 {
	excess := func(rate float64) float64 { return math.Log((e.fraction(b, rate, slower) + 1e-6) / fraction) }
	low, high := 0.0, e.capacity(slower)
	few := e.part(len(e.unit) / 20)
	if few.fraction(b, high/100, slower) > fraction {
		return math.NaN()
	}
	// Fewer requests lead near it.
	few = e.part(len(e.unit) / 6)
	for high-low > 0.03*high {
		if middle := (low + high) / 2; few.fraction(b, middle, slower) > fraction {
			high = middle
		} else {
			low = middle
		}
	}
	low, high = 0.97*low, 1.03*high
	below, above := excess(low), excess(high)
	for above < 0 && high < 2*e.capacity(slower) {
		low, below = high, above
		high *= 1.05
		above = excess(high)
	}
	for below > 0 && low > high/100 {
		high, above = low, below
		low *= 0.95
		below = excess(low)
	}
	at := low + (high-low)*min(max(-below/(above-below), 0.1), 0.9)
	if x := excess(at); x > 0 {
		high, above = at, x
	} else {
		low, below = at, x
	}
	return low + (high-low)*min(max(-below/(above-below), 0), 1)
}

// part is a run of the first n requests.
func (e *longRun) part(n int) longRun {
	return longRun{queue: e.queue, unit: e.unit[:max(min(n, len(e.unit)), 1)]}
}

// capacity is the rate at which all slots, or the computing of prompts, are always taken.
func (e *longRun) capacity(slower float64) float64 {
	total := 0.0
	n := e.queue.slots
	if e.queue.capacity > 0 {
		n = min(n, max(1, int(e.queue.capacity/tokensHeld(e.unit))))
	}
	for _, j := range e.unit {
		if e.queue.prefill {
			total += e.queue.perComputed * j.prompt
		} else {
			total += (e.queue.tokenSeconds(n)*j.output + e.queue.base + e.queue.perPrompt*j.prompt) / float64(n)
		}
	}
	return 1.05 * float64(len(e.unit)) / (total * slower)
}

// tokensHeld is how many tokens of KV cache a running request holds at a
// random moment: (E[in*out] + E[out(out+1)/2]) / E[out].
func tokensHeld(unit []job) float64 {
	steps, held := 0.0, 0.0
	for _, j := range unit {
		steps += j.output
		held += j.prompt*j.output + j.output*(j.output+1)/2
	}
	return held / steps
}
