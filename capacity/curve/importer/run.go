package importer

import (
	"fmt"
	"math"
	"slices"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// run is one load of one result file, in seconds, tokens and the curve's
// definitions. What is not known is NaN.
type run struct {
	format  Format
	file    string
	version string
	// command started it, as far as it is known.
	command string
	model   string

	arrivals curve.Arrivals
	// concurrency of a closed loop; 0 is open loop.
	concurrency int
	// configured is the rate that was asked for, offered the one that was sent.
	configured, offered float64
	start               time.Time
	seconds             float64
	attempts, failures  int
	// lag is how long a request was sent after it was due, at the 99th percentile.
	lag float64
	// prompt and output are mean lengths.
	prompt, output float64

	// requests are what was recorded of each; nil where the file has summaries only.
	requests []request
	// promptLengths and outputLengths are of each request, where they are known.
	promptLengths, outputLengths []float64
	// latencies by metric, where there are no requests.
	latencies map[string]latency
	// why a metric is not taken over.
	why map[string]string

	notes []string
}

// request is one request as it was recorded.
type request struct {
	// due is when it was to be sent, sent when it was, in seconds of any clock.
	due, sent float64
	// ttft and e2e are from sent.
	ttft, tpot, e2e float64
	// gaps between chunks of the answer.
	gaps           []float64
	prompt, output float64
	failed         bool
	// age of a request that the tool cancelled at its end; else 0.
	age float64
}

// latency is a tool's own summary of a latency.
type latency struct {
	n, mean, max float64
	// quantiles by the percentile.
	quantiles map[float64]float64
}

// The metrics that are imported.
const (
	ttft     = "ttft"
	ttftSent = "ttft_sent"
	tpot     = "tpot"
	itl      = "itl"
	icl      = "icl"
	e2e      = "e2e"
)

// late is how long after it was due the request was sent; 0 where that is not known.
func (r *request) late() float64 {
	if d := r.sent - r.due; d > 0 {
		return d
	}
	return 0
}

// values of a metric of a request that ended well.
func (r *request) values(metric string) []float64 {
	switch metric {
	case ttft:
		return []float64{r.late() + r.ttft}
	case ttftSent:
		return []float64{r.ttft}
	case tpot:
		return []float64{r.tpot}
	case e2e:
		return []float64{r.late() + r.e2e}
	case itl, icl:
		return r.gaps
	}
	return nil
}

// maxTokensPerChunk is up to where gaps between chunks pass for gaps between tokens.
const maxTokensPerChunk = 1.01

// fill takes what the records tell: the counts, the lengths, the rate that was sent.
func (r *run) fill() {
	var due, lags []float64
	tokens, gaps := 0.0, 0
	r.attempts, r.failures = 0, 0
	for i := range r.requests {
		q := &r.requests[i]
		switch {
		case !math.IsNaN(q.due):
			due = append(due, q.due)
		case !math.IsNaN(q.sent):
			due = append(due, q.sent)
		}
		if !math.IsNaN(q.sent - q.due) {
			lags = append(lags, q.late())
		}
		if q.age > 0 {
			continue
		}
		r.attempts++
		if q.failed {
			r.failures++
			continue
		}
		r.promptLengths, r.outputLengths = append(r.promptLengths, q.prompt), append(r.outputLengths, q.output)
		if len(q.gaps) > 0 {
			tokens += q.output
			gaps += len(q.gaps) + 1
		}
	}
	r.prompt, r.output = mean(r.promptLengths), mean(r.outputLengths)
	if len(lags) > 0 {
		slices.Sort(lags)
		r.lag = capacity.Quantile(lags, 0.99)
	}
	// n requests have n-1 gaps between them.
	if len(due) > 1 && r.concurrency == 0 {
		if span := slices.Max(due) - slices.Min(due); span > 0 {
			r.offered = float64(len(due)-1) / span
		}
	}
	if gaps > 0 && tokens > maxTokensPerChunk*float64(gaps) {
		r.why[itl] = fmt.Sprintf("%.2f tokens came in a chunk on average, and gaps are between chunks: give icl:pP:BOUND, or tpot", tokens/float64(gaps))
	}
}

// offeredNote says when what was sent is not what was asked for.
func (r *run) offeredNote() {
	if r.concurrency == 0 && math.Abs(r.offered/r.configured-1) > 0.1 {
		r.notes = append(r.notes, fmt.Sprintf("%s: %.3g requests/s were asked for, but %.3g were sent, which is what counts", r.file, r.configured, r.offered))
	}
}

// tail is a quantile and what is behind it.
type tail struct {
	// value is infinite when too many requests failed.
	value float64
	// n trials, of which so many were over the bound; NaN when only the quantile is known.
	n, over float64
}

// tail is the quantile that an SLO bounds. A request that failed
// passed every bound: it counts as infinite. One that was cancelled counts when it was
// older than the bound, else it says nothing.
func (r *run) tail(s capacity.SLO) (tail, error) {
	if why := r.why[s.Metric]; why != "" {
		return tail{}, fmt.Errorf("%s: %s cannot be judged: %s", r.file, s, why)
	}
	missing := func(todo string) error {
		return fmt.Errorf("%s: %s cannot be judged: the file does not have it; %s", r.file, s, todo)
	}
	if r.requests == nil {
		l, ok := r.latencies[s.Metric]
		if !ok {
			return tail{}, missing("let the tool measure it, or leave this SLO out")
		}
		failed := float64(r.failures)
		if r.attempts > 0 && failed/float64(r.attempts) > s.Budget() {
			return tail{math.Inf(1), l.n + failed, math.NaN()}, nil
		}
		value, ok := l.quantiles[s.Percentile]
		if !ok {
			return tail{}, missing(fmt.Sprintf("let the tool write p%g or a record of each request", s.Percentile))
		}
		return tail{value, l.n + failed, math.NaN()}, nil
	}
	var values []float64
	for i := range r.requests {
		q := &r.requests[i]
		switch {
		case q.failed && len(q.values(s.Metric)) == 0 && s.Metric != itl && s.Metric != icl:
		case q.failed:
			values = append(values, math.Inf(1))
		case q.age > 0 && (s.Metric == e2e || s.Metric == ttft && math.IsNaN(q.ttft)):
			if age := q.age + q.late(); age > s.Bound.Seconds() {
				values = append(values, age)
			}
		case q.age > 0 && s.Metric == ttftSent && math.IsNaN(q.ttft):
			if q.age > s.Bound.Seconds() {
				values = append(values, q.age)
			}
		default:
			for _, v := range q.values(s.Metric) {
				if !math.IsNaN(v) {
					values = append(values, v)
				}
			}
		}
	}
	if len(values) == 0 {
		return tail{}, missing("let the tool measure it, or leave this SLO out")
	}
	slices.Sort(values)
	within, _ := slices.BinarySearchFunc(values, s.Bound.Seconds(), func(v, bound float64) int {
		if v <= bound {
			return -1
		}
		return 1
	})
	return tail{quantile(values, s.Percentile/100), float64(len(values)), float64(len(values) - within)}, nil
}

// quantile is capacity.Quantile for values that may end in infinite ones.
func quantile(sorted []float64, q float64) float64 {
	v := capacity.Quantile(sorted, q)
	if math.IsNaN(v) || math.IsInf(v, 1) {
		return sorted[int(q*float64(len(sorted)-1))]
	}
	return v
}

// quantiles of a metric as a point has them: of the requests that ended well.
func (r *run) quantiles(metric string) curve.Quantiles {
	u := capacity.Unknown()
	out := curve.Quantiles{Mean: u, P10: u, P50: u, P90: u, P95: u, P99: u, P999: u, Max: u}
	if r.why[metric] != "" {
		return out
	}
	var at func(percentile float64) curve.Value
	if l, ok := r.latencies[metric]; ok && r.requests == nil {
		out.N, out.Mean, out.Max = l.n, capacity.Value(l.mean), capacity.Value(l.max)
		at = func(p float64) curve.Value {
			if v, ok := l.quantiles[p]; ok {
				return capacity.Value(v)
			}
			return u
		}
	} else {
		var values []float64
		for i := range r.requests {
			if q := &r.requests[i]; !q.failed && q.age == 0 {
				values = append(values, q.values(metric)...)
			}
		}
		values = slices.DeleteFunc(values, math.IsNaN)
		if len(values) == 0 {
			return out
		}
		slices.Sort(values)
		out.N, out.Mean, out.Max = float64(len(values)), capacity.Value(mean(values)), capacity.Value(values[len(values)-1])
		at = func(p float64) curve.Value { return capacity.Value(capacity.Quantile(values, p/100)) }
	}
	// A quantile is unknown where fewer than one sample would lie above it.
	known := func(p float64) curve.Value {
		if out.N > 0 && out.N*(1-p/100) < 1-1e-9 {
			return u
		}
		return at(p)
	}
	out.P10, out.P50, out.P90, out.P95, out.P99, out.P999 = at(10), at(50), known(90), known(95), known(99), known(99.9)
	return out
}

// point of the curve. origin is when the curve's first run began.
func (r *run) point(o Options, origin time.Time) (curve.Point, error) {
	ended := float64(r.attempts - r.failures)
	p := curve.Point{
		Purpose: curve.PurposeImported, Concurrency: r.concurrency,
		OfferedRate: capacity.Value(r.offered), CompletedRate: capacity.Value(ended / r.seconds),
		PromptTokenRate: capacity.Value(ended * r.prompt / r.seconds), GenerationTokenRate: capacity.Value(ended * r.output / r.seconds),
		Start: r.start.Sub(origin).Seconds(), Seconds: r.seconds, Attempts: r.attempts, Failures: r.failures,
		TTFT: r.quantiles(ttft), ITL: r.quantiles(itl), TPOT: r.quantiles(tpot), E2E: r.quantiles(e2e),
		Engine: curve.UnknownEngineReadings(),
		Client: curve.ClientReadings{LagP99: capacity.Value(r.lag), CPUShare: capacity.Unknown()},
	}
	if r.concurrency > 0 {
		p.Name, p.OfferedRate = fmt.Sprintf("concurrency %d", r.concurrency), capacity.Unknown()
		return p, nil
	}
	p.Name = fmt.Sprintf("%.4g/s", r.offered)
	passed := true
	for _, s := range o.SLO {
		found, err := r.tail(s)
		if err != nil {
			return p, err
		}
		if few := math.Ceil(1/s.Budget() - 1e-9); found.n < few {
			r.notes = append(r.notes, fmt.Sprintf("%s: p%g of %.0f at %.3g requests/s is little more than the largest: %.0f or more make one", r.file, s.Percentile, found.n, r.offered, few))
		}
		ok := found.value <= s.Bound.Seconds()
		passed = passed && ok
		g := curve.Gate{
			Name: "slo", Kind: curve.GateFail, SLO: &s, Passed: &ok, Low: capacity.Unknown(), High: capacity.Unknown(),
			Value: capacity.Value(found.value), Limit: capacity.Value(s.Bound.Seconds()),
			Detail: fmt.Sprintf("p%g of %.0f is %.4g s", s.Percentile, found.n, found.value),
		}
		if !math.IsNaN(found.over) {
			g.Violations, g.N = found.over, found.n
		}
		if math.IsInf(found.value, 1) {
			g.Value = capacity.Unknown()
			g.Detail = fmt.Sprintf("%d of %d requests failed", r.failures, r.attempts)
		}
		p.Gates = append(p.Gates, g)
	}
	p.Passed = &passed
	r.clientGate(&p, o.SLO)
	return p, nil
}

// maxLagShare is the share of the tightest bound that the client may be late at its 99th percentile.
const maxLagShare = 0.1

// clientGate notes a client that sent late: what it measured then is in part itself.
func (r *run) clientGate(p *curve.Point, slos []capacity.SLO) {
	limit := math.Inf(1)
	for _, s := range slos {
		if s.Metric == ttft || s.Metric == ttftSent || s.Metric == e2e {
			limit = min(limit, maxLagShare*s.Bound.Seconds())
		}
	}
	if math.IsNaN(r.lag) || math.IsInf(limit, 1) {
		return
	}
	ok := r.lag <= limit
	p.Gates = append(p.Gates, curve.Gate{
		Name: "client", Kind: curve.GateRisk, Passed: &ok, Low: capacity.Unknown(), High: capacity.Unknown(),
		Value: capacity.Value(r.lag), Limit: capacity.Value(limit),
		Detail: fmt.Sprintf("the tool sent %.3g s late at its p99", r.lag),
	})
	if !ok {
		r.notes = append(r.notes, fmt.Sprintf("%s: at %.3g requests/s the tool itself sent %.3g s late at its p99, over %.3g s: the engine may take more than this point shows, or less", r.file, r.offered, r.lag, limit))
	}
}

// lengths fills in the class's lengths, from the records where there are any.
func lengths(c *curve.Class, runs []run, maxModelLen int, notes *notes) {
	var prompts, outputs, weights []float64
	records := true
	for i := range runs {
		r := &runs[i]
		if len(r.promptLengths) == 0 || len(r.outputLengths) == 0 {
			records = false
		}
	}
	if records {
		for i := range runs {
			prompts, outputs = append(prompts, runs[i].promptLengths...), append(outputs, runs[i].outputLengths...)
		}
	} else {
		notes.add("lengths: each file's mean only, so that the histograms are spikes; real traffic is wider")
		for i := range runs {
			prompts, outputs = append(prompts, runs[i].prompt), append(outputs, runs[i].output)
			weights = append(weights, float64(runs[i].attempts-runs[i].failures))
		}
	}
	c.PromptHistogram, c.PromptMean = histogram(prompts, weights, maxModelLen)
	c.GenerationHistogram, c.GenerationMean = histogram(outputs, weights, maxModelLen)
}

// histogram of lengths in the engine's buckets, as shares, and the mean.
func histogram(lengths, weights []float64, maxModelLen int) (capacity.Histogram, float64) {
	longest := maxModelLen
	for _, l := range lengths {
		// The next bound above a length is at most 2.5 times it.
		longest = max(longest, int(min(2.5*l, 1e9))+1)
	}
	h := capacity.NewHistogram(capacity.TokenBounds(longest))
	sum, total := 0.0, 0.0
	for i, l := range lengths {
		w := 1.0
		if weights != nil {
			w = weights[i]
		}
		h.Add(l, w)
		sum, total = sum+l*w, total+w
	}
	return h.Shares(), sum / total
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}
