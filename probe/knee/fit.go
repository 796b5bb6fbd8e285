package knee

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// Measures of the probes and of the fit.
const (
	// probeWorth is how many times a bound's budget ends a probe early.
	probeWorth = 30
	// extraProbes may be added until one probe passes and one does not.
	extraProbes = 3
	// firstMost is the largest share of the ceiling that probing begins at.
	firstMost = 0.9
	// leastSeconds is the shortest probe.
	leastSeconds, mostSeconds = 15, 300
	// kneeConfidence of the interval.
	kneeConfidence = 0.9
	// modelDeviation is what the logarithm of a knee is off by for reasons that
	// resampling does not see: the queue is not the engine, and less so where
	// the KV cache runs out and requests are preempted.
	modelDeviation, kvDeviation = 0.02, 0.035
	// A boundary is a cliff where the violations jump from cliffLow to cliffHigh within cliffGap of the rate.
	cliffLow, cliffHigh, cliffGap = 0.005, 0.2, 0.05
)

// targets are the multiples of the budget at which probes are wanted, in this
// order. A little above the knee the violations are many enough to be
// counted; at the knee itself nothing needs to be extrapolated.
var targets = []float64{1, 3, 1, 5, 2}

// probeKnee measures open-loop points about the knee.
func (s *search) probeKnee(ctx context.Context) error {
	rate := s.firstRate()
	for n := 0; n < s.plan.probes+extraProbes; n++ {
		if s.MaxRate > 0 {
			rate = min(rate, s.MaxRate)
		}
		left := max(s.plan.probes-n, 1)
		d := s.probeSeconds(rate, left)
		if n < 2 {
			d = max(d, leastSeconds)
		}
		if d < leastSeconds || n > 0 && s.outOfRequests(rate, d) {
			s.note("the search ended after %d probes: %d requests and %.0f s were spent", n, s.study.Requests, s.study.Seconds)
			return nil
		}
		l := s.open(s.name("probe %d", n+1), curve.PurposeProbe, rate, d)
		o, err := s.put(ctx, l, func(l *Load) Monitor { return newWatch(l, probeWorth) })
		if err != nil {
			return err
		}
		s.take(rate, &l, o)
		s.study.Points = append(s.study.Points, o.Point)
		s.report("%.3g requests/s: %s", rate, s.summary(o))
		passed, failed := s.bracket()
		if n+1 >= s.plan.probes && passed > 0 && !math.IsInf(failed, 1) {
			return nil
		}
		if s.MaxRate > 0 && rate >= s.MaxRate && passed >= s.MaxRate {
			return nil
		}
		rate = s.nextRate(targets[(n+1)%len(targets)])
	}
	return nil
}

// summary of a point in a line.
func (s *search) summary(o *Observation) string {
	if o.Stopped != "" {
		return "ended early: " + o.Stopped
	}
	var parts []string
	for _, g := range o.Point.Gates {
		if g.Name == "slo" && g.N > 0 {
			what := g.SLO.String()
			if g.Class != "" {
				what += " of " + g.Class
			}
			parts = append(parts, fmt.Sprintf("%.0f of %.0f %s missed %s", g.Violations, g.N, trials(*g.SLO), what))
		}
	}
	if len(parts) == 0 {
		return fmt.Sprintf("%d requests", o.Point.Attempts)
	}
	return strings.Join(parts, ", ")
}

// outOfRequests tells whether a probe would pass MaxRequests.
func (s *search) outOfRequests(rate, d float64) bool {
	return float64(s.study.Requests)+rate*max(d, 1) > float64(s.plan.requests)
}

// probeSeconds is how long a probe is measured, when so many are to come and the soak's share is kept.
func (s *search) probeSeconds(rate float64, left int) float64 {
	warmup := s.openWarmup(rate).Seconds()
	overhead := warmup + 2*s.openResidence(rate)
	keepSeconds, keepRequests := 0.0, 0.0
	if s.Mode != Quick {
		keepSeconds = s.plan.soakSeconds + s.burstReserve(rate)
		keepRequests = min(s.plan.soakSeconds*rate, soakShare*float64(s.plan.requests)) + againShare*float64(s.plan.requests) + rate*s.burstReserve(rate)
	}
	d := (s.plan.seconds-s.study.Seconds-keepSeconds)/float64(left) - overhead
	d = min(d, max(s.plan.pointSeconds, float64(s.plan.pointRequests)/rate), mostSeconds)
	byRequests := (float64(s.plan.requests)-float64(s.study.Requests)-keepRequests)/float64(left)/rate - warmup - s.openResidence(rate)
	return min(d, byRequests)
}

// take adds a point to what the knee is fitted to.
func (s *search) take(rate float64, l *Load, o *Observation) {
	s.probes = append(s.probes, probe{rate, l, o, -1})
	if s.queue == nil || !lengthsKnown(o.Requests) {
		s.queue = nil
		return
	}
	if prefill := s.queuesForPrefill(); s.replays == nil || prefill != s.queue.prefill {
		q := *s.queue
		q.prefill = prefill
		s.queue = &q
		s.replays = &replays{queue: s.queue, bounds: bounds(&s.Traffic)}
		for i := range s.probes {
			s.replay(&s.probes[i])
		}
		return
	}
	s.replay(&s.probes[len(s.probes)-1])
}

// lengthsKnown tells whether the requests say how long they were, without
// which they cannot be replayed.
func lengthsKnown(requests []Request) bool {
	return !slices.ContainsFunc(requests, func(r Request) bool { return r.OutputTokens == 0 })
}

func (s *search) replay(p *probe) {
	p.replay = -1
	if s.replays.replay(p.load, p.obs) {
		p.replay = len(s.replays.points) - 1
	}
}

// queuesForPrefill tells what requests queue for: which of the two queues
// tells their times to first token better, over all probes.
func (s *search) queuesForPrefill() bool {
	if s.queue.perComputed == 0 {
		return false
	}
	slots, prefill := *s.queue, *s.queue
	slots.prefill, prefill.prefill = false, true
	bySlots, byPrefill := 0.0, 0.0
	for _, p := range s.probes {
		if len(p.obs.Requests) == 0 {
			continue
		}
		r := replays{queue: &slots}
		jobs, _ := r.jobs(p.load, p.obs, p.obs.Requests)
		held := r.held(p.obs, p.obs.Requests)
		n := float64(len(p.obs.Requests))
		bySlots += n * slots.correlation(jobs, p.obs.Requests, held)
		byPrefill += n * prefill.correlation(jobs, p.obs.Requests, held)
	}
	return byPrefill > bySlots
}

// over is the largest share of violations of a point, in budgets.
func (p *probe) over(t *Traffic) float64 {
	most := 0.0
	for _, b := range bounds(t) {
		c := count(p.obs.Requests, b.class, b.slo)
		if over, of, _ := c.totals(); of > 0 {
			most = max(most, over/of/b.Budget())
		}
	}
	return most
}

// structural is the gate, other than an SLO's, that failed the point; nil without.
func (p *probe) structural() *curve.Gate {
	for i, g := range p.obs.Point.Gates {
		if g.Kind == curve.GateFail && g.Name != "slo" && g.Passed != nil && !*g.Passed {
			return &p.obs.Point.Gates[i]
		}
	}
	return nil
}

// fails tells whether a point is above the knee by what was seen, proven or not.
func (p *probe) fails(t *Traffic) bool {
	return p.obs.Stopped != "" || p.over(t) > 1 || p.structural() != nil
}

// bracket is the highest rate that passed, 0 without, and the lowest that failed, +Inf without.
func (s *search) bracket() (passed, failed float64) {
	failed = math.Inf(1)
	for i := range s.probes {
		if s.probes[i].fails(&s.Traffic) {
			failed = min(failed, s.probes[i].rate)
		} else {
			passed = max(passed, s.probes[i].rate)
		}
	}
	return passed, failed
}

// steepness is b0, the prior of the logistic slope over the rate in units of
// mu: S * (bound - base) / E[S] + 1.5 sqrt(S), and about 1.5 sqrt(S) where no TTFT is bounded.
func (s *search) steepness() float64 {
	slots := max(s.slots, 1)
	b := 1.5 * math.Sqrt(slots)
	if bound := ttftBound(&s.Traffic); !math.IsNaN(bound) && s.residence > 0 {
		base := 0.0
		if s.study.Baseline != nil && s.study.Baseline.TTFT.P50.Known() {
			base = float64(s.study.Baseline.TTFT.P50)
		}
		b += slots * max(bound-base, 0) / s.residence
	}
	return min(max(b, 4), 400)
}

// firstRate is where probing begins: at the queue's knee, or at a share of the ceiling.
func (s *search) firstRate() float64 {
	if knee := s.rateAt(1); knee > 0 {
		return min(knee, firstMost*s.mu)
	}
	share := 0.84
	switch b := s.steepness(); {
	case b <= 25:
		share = 0.55
	case b <= 60:
		share = 0.72
	}
	if s.Prior != nil && s.Prior.Knee != nil && s.Prior.Knee.Rate.Known() && s.Traffic.Arrivals.Burstiness < 1 {
		return 0.88 * float64(s.Prior.Knee.Rate)
	}
	return share * s.mu
}

// rateAt is the rate at which the first bound is missed by a multiple of its budget, as far as is known.
func (s *search) rateAt(multiple float64) float64 {
	rate := math.Inf(1)
	for k, b := range bounds(&s.Traffic) {
		if r := s.estimateOf(k, &b, min(multiple*b.Budget(), 0.3), 0, nil).rate; r < rate {
			rate = r
		}
	}
	if math.IsInf(rate, 1) {
		return math.NaN()
	}
	return rate
}

// nextRate is where the next probe is put.
func (s *search) nextRate(multiple float64) float64 {
	passed, failed := s.bracket()
	step := max(0.03, 2/s.steepness())
	rate := s.rateAt(multiple)
	// Nothing is learned from a rate above one that had to be ended.
	for i := range s.probes {
		if p := &s.probes[i]; p.obs.Stopped != "" {
			rate = min(rate, p.rate*(1-step/2))
		}
	}
	switch {
	case math.IsInf(failed, 1):
		// Nothing failed yet: go up, however the fit sees it.
		up := max(passed*(1+step), passed+step*s.mu)
		if rate > up {
			return rate
		}
		return up
	case passed == 0 && !(rate < failed):
		return failed * (1 - 2*step)
	case math.IsNaN(rate):
		return (passed + failed) / 2
	}
	return rate
}

// fitted is the knee of a bound.
type fitted struct {
	rate, low, high float64
	method          string
}

// Methods of a knee.
const (
	methodReplay   = "replay"
	methodLogistic = "logistic"
	methodBracket  = "bracket"
	methodAbove    = "above"
)

// estimateOf finds the rate at which a bound is missed by a fraction, with an interval when draws are asked for.
func (s *search) estimateOf(k int, b *bound, fraction float64, draws int, rng *rand.Rand) fitted {
	// The long run has no arrivals of a trace.
	if s.queue != nil && b.queued() && s.Traffic.Arrivals.Process != "trace" {
		if f, ok := s.byReplay(k, b, fraction, draws, rng); ok {
			return f
		}
	}
	return s.byCounts(b, fraction, draws, rng)
}

// byReplay is the knee by the calibrated queue; ok is false when the queue does not explain the engine.
func (s *search) byReplay(k int, b *bound, fraction float64, draws int, rng *rand.Rand) (f fitted, ok bool) {
	few := longRun{queue: s.queue, unit: s.unit}
	run := few
	if draws > 0 {
		if s.endless == nil {
			all, err := s.draw(endlessJobs)
			if err != nil {
				return f, false
			}
			s.endless = all
		}
		run.unit = s.endless
	}
	if s.replays == nil {
		return fitted{rate: run.rate(b, fraction, 1), method: methodReplay}, true
	}
	at, resampled := s.replays.calibrate(k, draws, rng)
	if at <= 1 || at >= float64(paces()-2) {
		return f, false
	}
	f = fitted{rate: run.rate(b, fraction, pace(at)), method: methodReplay, low: math.NaN(), high: math.NaN()}
	if math.IsNaN(f.rate) {
		return f, false
	}
	if draws > 0 {
		tail := (1 - kneeConfidence) / 2
		// A slower engine has a lower knee. What the queue gets wrong adds to the interval.
		fast, slow := pace(capacity.Quantile(resampled, tail)), pace(capacity.Quantile(resampled, 1-tail))
		// The same few requests tell by how much.
		center := few.rate(b, fraction, pace(at))
		deviation := modelDeviation
		if s.queue.capacity > 0 {
			deviation = kvDeviation
		}
		f.low, f.high = widen(deviation, f.rate, f.rate*few.rate(b, fraction, slow)/center, f.rate*few.rate(b, fraction, fast)/center)
	}
	return f, true
}

// widen adds the deviation of the model to an interval about a rate.
func widen(deviation, rate, low, high float64) (float64, float64) {
	side := func(bound float64) float64 { return math.Hypot(math.Log(bound/rate), 1.645*deviation) }
	return rate * math.Exp(-side(min(low, rate))), rate * math.Exp(side(max(high, rate)))
}

// byCounts is the knee by a logistic fit to the counts.
func (s *search) byCounts(b *bound, fraction float64, draws int, rng *rand.Rand) fitted {
	f := fitted{rate: math.NaN(), low: math.NaN(), high: math.NaN(), method: methodLogistic}
	if len(s.probes) == 0 {
		return f
	}
	counts := make([]counter, len(s.probes))
	for i := range s.probes {
		counts[i] = count(s.probes[i].obs.Requests, b.class, b.slo)
	}
	center := s.steepness() / s.mu
	prior := capacity.SlopePrior{Low: center / 2, High: 2 * center}
	if !b.queued() {
		prior = capacity.SlopePrior{Low: center / 3, High: 10 * center}
	}
	fit := func(drawn [][]int) (float64, error) {
		points := make([]capacity.ViolationPoint, len(counts))
		for i := range counts {
			over, of, effect := counts[i].totals()
			if drawn != nil {
				over, of = sums(counts[i].over, drawn[i]), sums(counts[i].of, drawn[i])
			}
			points[i] = capacity.ViolationPoint{Rate: s.probes[i].rate, Over: over, Of: of, DesignEffect: effect}
		}
		v, err := capacity.FitViolations(points, prior)
		if err != nil {
			return math.NaN(), err
		}
		return max(v.Rate(fraction), 0), nil
	}
	rate, err := fit(nil)
	passed, failed := s.bracketOf(counts, b)
	switch {
	case errors.Is(err, capacity.ErrAllPass):
		f.method = methodAbove
		f.low = passed
		return f
	case err != nil && passed > 0:
		f.rate, f.low, f.high, f.method = (passed+failed)/2, passed, failed, methodBracket
		return f
	case err != nil:
		return f
	}
	f.rate = rate
	// The fit is not trusted far outside of what was measured.
	if !math.IsInf(failed, 1) && passed > 0 && passed < failed && (rate < passed*0.9 || rate > failed*1.1) {
		f.rate, f.method = (passed+failed)/2, methodBracket
	}
	if draws > 0 {
		blocks := make([]int, len(counts))
		for i := range counts {
			blocks[i] = len(counts[i].of)
		}
		all := capacity.BlockBootstrap(blocks, draws, rng, func(drawn [][]int) float64 { r, _ := fit(drawn); return r })
		tail := (1 - kneeConfidence) / 2
		f.low, f.high = widen(modelDeviation, f.rate, capacity.Quantile(all, tail), capacity.Quantile(all, 1-tail))
	}
	return f
}

// bracketOf is bracket for the violations of one bound.
func (s *search) bracketOf(counts []counter, b *bound) (passed, failed float64) {
	failed = math.Inf(1)
	for i := range counts {
		over, of, _ := counts[i].totals()
		if of > 0 && over/of > b.Budget() {
			failed = min(failed, s.probes[i].rate)
		} else if of > 0 {
			passed = max(passed, s.probes[i].rate)
		}
	}
	return passed, failed
}

// settleKnee fits every bound and makes the study's knee of the lowest.
func (s *search) settleKnee() {
	u := capacity.Unknown()
	k := &curve.Knee{Rate: u, Low: u, High: u, Confidence: kneeConfidence, Watermark: u, Boundary: "smooth", CliffFrom: u, CliffTo: u,
		PromptTokenRate: u, GenerationTokenRate: u, Concurrency: u, KVPeak: u}
	s.study.Knee = k
	all := bounds(&s.Traffic)
	lowest := math.Inf(1)
	for i, b := range all {
		f := s.estimateOf(i, &b, b.Budget(), resamples, s.rng(s.name("bootstrap")))
		name := ""
		if len(s.Traffic.Classes) > 1 {
			name = s.Traffic.Classes[b.class].Name
		}
		k.BySLO = append(k.BySLO, curve.SLOKnee{Class: name, SLO: b.SLO, Rate: capacity.Value(f.rate), Low: capacity.Value(f.low),
			High: capacity.Value(f.high), Method: f.method})
		if f.rate < lowest {
			lowest = f.rate
			k.Rate, k.Low, k.High = capacity.Value(f.rate), capacity.Value(f.low), capacity.Value(f.high)
			k.BindingSLO, k.BindingClass = b.SLO.String(), name
		}
	}
	s.structuralKnee(k)
	s.cliff(k)
	s.settleStatus(k)
	s.describe(k)
}

// structuralKnee lowers the knee to where the queue grows, or requests fail, before any latency gives.
func (s *search) structuralKnee(k *curve.Knee) {
	failed, gate := math.Inf(1), ""
	for i := range s.probes {
		p := &s.probes[i]
		if g := p.structural(); g != nil && p.over(&s.Traffic) <= 1 && p.rate < failed {
			failed, gate = p.rate, g.Name
		}
	}
	if math.IsInf(failed, 1) || float64(k.Rate) <= failed {
		return
	}
	passed := 0.0
	for i := range s.probes {
		if p := &s.probes[i]; p.rate < failed && !p.fails(&s.Traffic) {
			passed = max(passed, p.rate)
		}
	}
	k.Rate, k.Low, k.High, k.BindingSLO, k.BindingClass = capacity.Value((passed+failed)/2), capacity.Value(passed), capacity.Value(failed), gate, ""
	if passed == 0 {
		k.Rate, k.Low = capacity.Unknown(), capacity.Unknown()
	}
}

// cliff finds a jump of the violations between two neighbours; the knee is then
// its lower end. A jump that the replay expects of these very requests is a clump of arrivals.
func (s *search) cliff(k *curve.Knee) {
	sorted := slices.Clone(s.probes)
	slices.SortFunc(sorted, func(a, b probe) int { return cmp.Compare(a.rate, b.rate) })
	for i := range max(len(sorted)-1, 0) {
		a, b := &sorted[i], &sorted[i+1]
		for n, x := range bounds(&s.Traffic) {
			share := func(p *probe) float64 {
				c := count(p.obs.Requests, x.class, x.slo)
				over, of, _ := c.totals()
				return over / of
			}
			if share(a) < cliffLow && share(b) > cliffHigh && b.rate-a.rate < cliffGap*b.rate && !s.expects(n, b) {
				k.Boundary = "cliff"
				k.CliffFrom, k.CliffTo = capacity.Value(a.rate), capacity.Value(b.rate)
				if !(float64(k.Rate) <= a.rate) {
					k.Rate, k.Low, k.High = capacity.Value(a.rate), capacity.Value(min(float64(k.Low), a.rate)), capacity.Value(b.rate)
				}
				return
			}
		}
	}
}

// expects tells whether the replay explains the violations of a point: at
// least half of what was seen is due to the requests that were drawn.
func (s *search) expects(k int, p *probe) bool {
	if s.replays == nil || p.replay < 0 || !s.replays.bounds[k].queued() {
		return false
	}
	at, _ := s.replays.calibrate(k, 0, nil)
	point := &s.replays.points[p.replay]
	i := min(max(int(math.Round(at)), 0), paces()-1)
	return 2*sums(point.expected[k][i], nil) > sums(point.seen[k], nil)
}

// settleStatus tells a knee from none.
func (s *search) settleStatus(k *curve.Knee) {
	passed, failed := s.bracket()
	switch {
	case !math.IsInf(failed, 1) && k.Rate.Known() && k.Rate > 0:
		s.study.Status = curve.StatusEstimate
	case math.IsInf(failed, 1) && passed > 0 && (s.MaxRate > 0 && passed >= s.MaxRate || !k.Rate.Known() || s.MaxRequests > 0):
		s.study.Status = curve.StatusNotReached
		s.study.Reason = fmt.Sprintf("every rate up to %.4g requests/s passed and the load was bounded there: the knee lies higher", passed)
		k.Rate, k.High, k.BindingSLO = capacity.Unknown(), capacity.Unknown(), ""
		k.Low = capacity.Value(passed)
	case math.IsInf(failed, 1) && passed > 0:
		s.study.Status = curve.StatusEstimate
	default:
		s.study.Status = curve.StatusNoSafeRate
		s.study.Reason = "no rate that was probed passed"
		if !math.IsInf(failed, 1) {
			s.study.Reason += fmt.Sprintf(", the lowest was %.4g requests/s", failed)
		}
	}
}

// noteExtrapolated says why a knee is not where a reader of the points looks for it.
func (s *search) noteExtrapolated() {
	k := s.study.Knee
	if k == nil || !k.Rate.Known() {
		return
	}
	switch passed, failed := s.bracket(); {
	case math.IsInf(failed, 1):
		s.note("no load missed a bound: the knee is where the queue that they show would, with arrivals as they usually come")
	case passed > float64(k.Rate):
		s.note("%.3g requests/s passed, by arrivals that came more evenly than they usually do: the knee is where those would miss a bound", passed)
	}
}

// safe is the rate to soak: a margin below the knee and within its interval.
func (s *search) safe() float64 {
	k := s.study.Knee
	if s.study.Status == curve.StatusNotReached {
		return float64(k.Low)
	}
	rate := s.plan.margin * float64(k.Rate)
	if k.Low.Known() {
		rate = min(rate, float64(k.Low))
	}
	return rate
}

// setSafe publishes a safe rate and the watermark that follows.
func (s *search) setSafe(rate float64) {
	s.study.SafeRate = capacity.Value(rate)
	k := s.study.Knee
	low := rate
	if k.Low.Known() {
		low = min(low, float64(k.Low))
	}
	k.Watermark = capacity.Value((1 - s.PeakReserve) * low)
}

// estimate ends a quick search.
func (s *search) estimate() {
	s.setSafe(s.safe())
	if s.study.Status == curve.StatusEstimate {
		s.study.Reason = "three points and no soak"
	}
}

// violationCurves are the violations over the rate that never fall, for each bound.
func (s *search) violationCurves() []curve.Violations {
	sorted := slices.Clone(s.probes)
	slices.SortStableFunc(sorted, func(a, b probe) int { return cmp.Compare(a.rate, b.rate) })
	var all []curve.Violations
	for _, b := range bounds(&s.Traffic) {
		v := curve.Violations{SLO: b.SLO}
		if len(s.Traffic.Classes) > 1 {
			v.Class = s.Traffic.Classes[b.class].Name
		}
		var share, weight []float64
		for _, p := range sorted {
			c := count(p.obs.Requests, b.class, b.slo)
			over, of, effect := c.totals()
			if !(of > 0) {
				continue
			}
			at, n := over/of, of/effect
			if k := len(v.Rate) - 1; k >= 0 && v.Rate[k] == p.rate {
				// The same rate again, as a soak at a probe's: one point of the curve.
				share[k] = (share[k]*weight[k] + at*n) / (weight[k] + n)
				weight[k] += n
				continue
			}
			v.Rate, share, weight = append(v.Rate, p.rate), append(share, at), append(weight, n)
		}
		v.Fraction = capacity.Isotonic(share, weight)
		if len(v.Rate) > 0 {
			all = append(all, v)
		}
	}
	return all
}
