package curve

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"headroom_exporter/capacity"
)

const (
	// tailConfidence is that of a tail's interval. A comparison has dozens of
	// tails, and one false alarm stops a release.
	tailConfidence = 0.99
	// sameRate is how close, as a ratio, two loads are that count as one.
	sameRate = 0.02
	// wideGap, as a share of the base's knee, is the distance between two loads
	// from which on what lies between them depends on where they are.
	wideGap = 0.25
)

// tailShares are the loads, as shares of the base's knee, at which tails are
// compared. At the knee itself they flip from run to run.
var tailShares = []float64{0.5, 0.8}

// A tail is one percentile of one latency.
type tail struct {
	metric     string
	percentile float64
}

// tailsCompared are in the order in which they are shown.
var tailsCompared = []tail{
	{"ttft", 50}, {"ttft", 95}, {"ttft", 99},
	{"itl", 50}, {"itl", 95}, {"itl", 99},
	{"tpot", 50}, {"tpot", 95}, {"tpot", 99},
	{"e2e", 50}, {"e2e", 95}, {"e2e", 99},
}

const (
	// allTails is the quantity of one row that stands for all tails at a load
	// that one of the two lacks.
	allTails = "tails"
	// noLoad is why a tail is not known at any load.
	noLoad = "has no load with enough requests"
)

func (t tail) String() string { return fmt.Sprintf("%s_p%g", t.metric, t.percentile) }

// openLoad is the latencies of one class, or of all, under one offered rate.
type openLoad struct {
	rate float64
	// independent is how many independent requests they are worth.
	independent float64
	of          map[string]Quantiles
}

// openLoads are the steady open loads of a study, by rate. class picks one
// of a mix; empty takes all together.
func openLoads(s *Study, class string) []openLoad {
	var out []openLoad
	add := func(p *Point, rate Value) {
		if !rate.Known() || !usable(p) {
			return
		}
		l := openLoad{rate: float64(rate), of: map[string]Quantiles{"ttft": p.TTFT, "itl": p.ITL, "tpot": p.TPOT, "e2e": p.E2E}}
		attempts := p.Attempts
		if class != "" {
			k := slices.IndexFunc(p.Classes, func(c ClassLatency) bool { return c.Class == class })
			if k < 0 {
				return
			}
			c := &p.Classes[k]
			attempts, l.of = c.Attempts, map[string]Quantiles{"ttft": c.TTFT, "itl": c.ITL, "tpot": c.TPOT, "e2e": c.E2E}
		}
		l.independent = float64(attempts) / designEffect(p, class)
		out = append(out, l)
	}
	if b := s.Baseline; b != nil {
		switch b.Concurrency {
		case 0:
			add(b, b.OfferedRate)
		case 1:
			add(b, 0) // one request at a time waits for no other: the limit of low rates
		}
	}
	for i := range s.Points {
		if p := &s.Points[i]; p.Concurrency == 0 && slices.Contains([]Purpose{PurposeProbe, PurposeAA, PurposeSoak, PurposeImported}, p.Purpose) {
			add(p, p.OfferedRate)
		}
	}
	if s.Soak != nil {
		for i := range s.Soak.Trials {
			add(&s.Soak.Trials[i], s.Soak.Trials[i].OfferedRate)
		}
	}
	slices.SortStableFunc(out, func(a, b openLoad) int { return cmp.Compare(a.rate, b.rate) })
	return out
}

// usable tells whether a point ran to its end and measured the engine.
func usable(p *Point) bool {
	return p.Stopped == "" && len(p.Faults) == 0 && !slices.ContainsFunc(p.Gates, func(g Gate) bool {
		return g.Kind == GateInvalid && g.Passed != nil && !*g.Passed
	})
}

// designEffect is by how much the point's latencies clump, as its gates found.
func designEffect(p *Point, class string) float64 {
	effect := 1.0
	for i := range p.Gates {
		if g := &p.Gates[i]; class == "" || g.Class == class {
			effect = max(effect, g.DesignEffect)
		}
	}
	return effect
}

// measure is the percentile with its interval by order statistics.
func (l *openLoad) measure(t tail) Measure {
	q := l.of[t.metric]
	m := unknownMeasure()
	m.Value = q.At(t.percentile)
	if !m.Value.Known() {
		return m
	}
	m.Low, m.High = 0, Value(math.Inf(1))
	n := int(min(q.N, l.independent))
	if n < 1 {
		return m
	}
	low, high := capacity.QuantileRanks(n, t.percentile/100, tailConfidence)
	if low > 0 {
		m.Low = min(m.Value, q.between(float64(low)/float64(n)))
	}
	if high > 0 {
		m.High = max(m.Value, q.between(float64(high)/float64(n)))
	}
	return m
}

// between is the quantile at a share of the samples, between the kept ones
// beside it: linear in -log(1-share), as an exponential tail is. Below the
// lowest it is 0, above the highest the maximum.
func (q *Quantiles) between(share float64) Value {
	x0, y0 := 0.0, 0.0
	for _, p := range []float64{10, 50, 90, 95, 99, 99.9} {
		y := float64(q.At(p))
		if math.IsNaN(y) {
			continue
		}
		x := -math.Log1p(-p / 100)
		if share <= p/100 {
			if y0 == 0 {
				return Value(y0)
			}
			return Value(y0 + (y-y0)*(-math.Log1p(-share)-x0)/(x-x0))
		}
		x0, y0 = x, y
	}
	if q.Max.Known() {
		return q.Max
	}
	return Value(math.Inf(1))
}

// located is a tail at a rate, with the two loads that it lies between.
type located struct {
	Measure
	from, to float64
}

// step is the loads at one rate, give or take sameRate.
type step struct {
	rate  float64
	loads []*openLoad
	// independent is the sum of theirs.
	independent float64
}

func (s *step) add(l *openLoad) {
	n := max(1, l.independent)
	s.loads = append(s.loads, l)
	s.independent += n
	s.rate += n / s.independent * (l.rate - s.rate)
}

// measure is the geometric mean of the loads' tails, weighted by requests.
func (s *step) measure(t tail) Measure {
	m, n := s.loads[0].measure(t), max(1, s.loads[0].independent)
	for _, l := range s.loads[1:] {
		more := max(1, l.independent)
		n += more
		m = blend(m, l.measure(t), more/n)
	}
	return m
}

// tailAt finds a tail at a rate: log-linear between the loads beside it. why
// says what is missing where it is unknown.
func tailAt(loads []openLoad, t tail, rate float64) (at located, why string) {
	at.Measure = unknownMeasure()
	var steps []step
	for i := range loads {
		l := &loads[i]
		q := l.of[t.metric]
		if !(q.At(t.percentile) > 0) {
			continue
		}
		if k := len(steps) - 1; k < 0 || l.rate > steps[k].rate*(1+sameRate) {
			steps = append(steps, step{rate: l.rate})
		}
		steps[len(steps)-1].add(l)
	}
	switch {
	case len(steps) == 0:
		return at, noLoad
	case rate > steps[len(steps)-1].rate*(1+sameRate):
		return at, fmt.Sprintf("was measured up to %s/s only", short(steps[len(steps)-1].rate))
	case rate < steps[0].rate*(1-sameRate):
		return at, fmt.Sprintf("was measured from %s/s on only", short(steps[0].rate))
	}
	k := slices.IndexFunc(steps, func(s step) bool { return s.rate >= rate*(1-sameRate) })
	if b := &steps[k]; k == 0 || b.rate <= rate*(1+sameRate) {
		return located{b.measure(t), b.rate, b.rate}, ""
	}
	a, b := &steps[k-1], &steps[k]
	return located{blend(a.measure(t), b.measure(t), (rate-a.rate)/(b.rate-a.rate)), a.rate, b.rate}, ""
}

// blend is the geometric mean of two measures with the weight w, above 0 and
// below 1, for the second.
func blend(a, b Measure, w float64) Measure {
	mean := func(x, y Value) Value { return Value(math.Exp((1-w)*math.Log(float64(x)) + w*math.Log(float64(y)))) }
	m := Measure{Value: mean(a.Value, b.Value), Low: 0, High: Value(math.Inf(1))}
	if a.Low > 0 && b.Low > 0 {
		m.Low = mean(a.Low, b.Low)
	}
	if !math.IsInf(float64(a.High), 1) && !math.IsInf(float64(b.High), 1) {
		m.High = mean(a.High, b.High)
	}
	return m
}

// tailsOf compares the tails of a class alone, or of each class of a mix.
func (g *gate) tailsOf(s subject, knee Measure) {
	reference := float64(knee.Value)
	if !knee.Value.Known() {
		// Without a knee, as in an imported file, the base's own loads must do.
		reference = 0
		for _, l := range openLoads(s.of(g.base[0]), "") {
			reference = max(reference, l.rate)
		}
	}
	if reference == 0 {
		return
	}
	classes := []string{s.class}
	if s.mix != "" {
		classes = classesOf(s.of(g.base[0]))
	}
	for _, class := range classes {
		compared := false
		for _, share := range tailShares {
			compared = g.tailsAt(s, class, share, reference) || compared
		}
		if compared {
			continue
		}
		// A quick search measures near the knee only: rather there than nowhere.
		if rate := g.lowestCommon(s, class); rate > 0 && rate < reference {
			g.tailsAt(s, class, rate/reference, reference)
		}
	}
}

// tailsAt compares the tails of a class at a share of the reference rate, and
// tells whether any could be. Of those that were not measured one row says why.
func (g *gate) tailsAt(s subject, class string, share, reference float64) (compared bool) {
	first, lacking := len(g.tails), 0
	of := map[string][]string{} // the tails by why they are not compared
	for _, t := range tailsCompared {
		row, ok := g.tail(s, class, t, share, reference)
		if ok && row.Quantity == allTails {
			of[row.Why[0]] = append(of[row.Why[0]], tailName(t.String()))
		}
		switch {
		case !ok:
			lacking++
		case row.Quantity != allTails:
			compared = true
			g.tails = append(g.tails, row)
		case !slices.ContainsFunc(g.tails[first:], func(r Row) bool { return r.Quantity == allTails && slices.Equal(r.Why, row.Why) }):
			g.tails = append(g.tails, row)
		}
	}
	for i := range g.tails[first:] {
		if r := &g.tails[first+i]; compared && r.Quantity == allTails {
			r.Why = []string{r.Why[0] + ", of " + strings.Join(of[r.Why[0]], ", ")}
		}
	}
	if lacking == len(tailsCompared) {
		row := s.row(allTails)
		row.Class, row.Share, row.At, row.Band = class, share, Value(share*reference), g.out.Band
		row.Verdict, row.Why = Undecided, []string{"the base " + noLoad}
		g.tails = append(g.tails, row)
	}
	return compared
}

// lowestCommon is the lowest rate of a load that all curves were measured at,
// or on either side of; 0 when there is none.
func (g *gate) lowestCommon(s subject, class string) float64 {
	if s.mix == "" {
		class = ""
	}
	lowest, highest := 0.0, math.Inf(1)
	for _, study := range s.studies(slices.Concat(g.base, g.next)) {
		loads := slices.DeleteFunc(openLoads(study, class), func(l openLoad) bool {
			return !slices.ContainsFunc(tailsCompared, func(t tail) bool { q := l.of[t.metric]; return q.At(t.percentile) > 0 })
		})
		if len(loads) == 0 {
			return 0
		}
		lowest, highest = max(lowest, loads[0].rate), min(highest, loads[len(loads)-1].rate)
	}
	if lowest > highest*(1+sameRate) {
		return 0
	}
	return lowest
}

// classesOf are the classes that a mix's points tell apart; one empty name when none.
func classesOf(s *Study) []string {
	var out []string
	for i := range s.Points {
		for _, c := range s.Points[i].Classes {
			if !slices.Contains(out, c.Class) {
				out = append(out, c.Class)
			}
		}
	}
	if out == nil {
		return []string{""}
	}
	slices.Sort(out)
	return out
}

// tail compares one tail at a share of the reference rate. It is none where the
// base has it at no load.
func (g *gate) tail(s subject, class string, t tail, share, reference float64) (Row, bool) {
	row := s.row(t.String())
	row.Class, row.Share, row.At = class, share, Value(share*reference)
	row.Band = g.out.Band
	within := class
	if s.mix == "" {
		within = "" // all requests are of the class
	}
	find := func(curves []*Curve) (Measure, float64, []located, string) {
		var list []Measure
		var at []located
		missing := ""
		for _, study := range s.studies(curves) {
			l, why := tailAt(openLoads(study, within), t, share*reference)
			if why != "" {
				missing = why
				continue
			}
			list, at = append(list, l.Measure), append(at, l)
		}
		m, apart := combine(list)
		return m, apart, at, missing
	}
	var pairs [2]float64
	var from, to []located
	var missing string
	row.Base, pairs[0], from, missing = find(g.base)
	if !row.Base.Value.Known() {
		row.Quantity, row.Verdict = allTails, Undecided
		row.Why = []string{"the base " + missing}
		return row, missing != noLoad
	}
	row.New, pairs[1], to, missing = find(g.next)
	if !row.New.Value.Known() {
		row.Quantity, row.Base, row.Verdict = allTails, unknownMeasure(), Undecided
		row.Why = []string{"the new one " + missing}
		return row, true
	}
	row.decide(false, pairs)
	if row.Verdict == Worse && gapsDiffer(slices.Concat(from, to), reference) {
		row.Verdict = Undecided
		row.Why = append(row.Why, "the loads on either side are far apart and not the same in both")
	}
	return row, true
}

// gapsDiffer tells whether tails were read off between loads so far apart, and
// so different, that the reading alone may make the difference.
func gapsDiffer(all []located, reference float64) bool {
	wide := false
	from, to := []float64{}, []float64{}
	for _, l := range all {
		wide = wide || l.to-l.from > wideGap*reference
		from, to = append(from, l.from), append(to, l.to)
	}
	spread := max(slices.Max(from)-slices.Min(from), slices.Max(to)-slices.Min(to))
	return wide && spread > minBand*reference
}

// squeeze compares what a mix does to each of its classes: its tail in the mix
// over its tail alone. It is worse when that ratio and the mixed tail both grew
// beyond the band, since a class that became faster alone is not squeezed more
// by that; and when the mixed tail passes the class's bound, whatever the base did.
func (g *gate) squeeze(s subject) {
	mix := s.mixOf(g.base[0])
	if s.mix == "" || mix == nil {
		return
	}
	for i := range mix.Squeeze {
		q := &mix.Squeeze[i]
		row := s.row(fmt.Sprintf("squeeze_%s_p%g", q.SLO.Metric, q.SLO.Percentile))
		row.Class, row.Band = q.Class, g.out.Band
		var pairs [2]float64
		base, next := squeezes(g.base, s, q), squeezes(g.next, s, q)
		row.Base, pairs[0] = combine(ratios(base))
		row.New, pairs[1] = combine(ratios(next))
		before, _ := combine(mixed(base))
		now, _ := combine(mixed(next))
		switch {
		case !now.Value.Known() && !row.Base.Value.Known():
			continue
		case !now.Value.Known():
			row.Verdict = Missing
			row.Why = []string{"the new one does not tell the class apart in the mix"}
			g.squeezes = append(g.squeezes, row)
			continue
		}
		row.Verdict = Same
		if row.Base.Value.Known() && row.New.Value.Known() {
			row.decide(false, pairs)
		}
		row.Why = append(row.Why, fmt.Sprintf("in the mix %s -> %s", seconds(before.Value), seconds(now.Value)))
		if row.Verdict == Worse {
			g.mixedTail(s, q, &row, float64(now.Value/before.Value-1))
		}
		if bound := q.SLO.Bound.Seconds(); float64(now.Value) > bound {
			row.Verdict = Worse
			row.Why = append(row.Why, fmt.Sprintf("it passes %s at the mix's safe rate", q.SLO))
		}
		g.squeezes = append(g.squeezes, row)
	}
}

// mixedTail tempers a squeeze that grew: the mixed tail must have grown too,
// and by more than the number of requests leaves open.
func (g *gate) mixedTail(s subject, q *Squeeze, row *Row, grown float64) {
	if grown <= row.Band {
		row.Verdict = Same
		row.Why = append(row.Why, "the class alone became faster, the mix did not become slower")
		return
	}
	t := tail{q.SLO.Metric, q.SLO.Percentile}
	base, next := s.of(g.base[0]), s.of(g.next[0])
	a, why := tailAt(openLoads(base, q.Class), t, float64(base.SafeRate))
	b, whyNot := tailAt(openLoads(next, q.Class), t, float64(next.SafeRate))
	if why == "" && whyNot == "" && b.Low <= a.High {
		row.Verdict = Undecided
		row.Why = append(row.Why, "the intervals of the tail in the mix overlap")
	}
}

// squeezes are the same class's and bound's of several curves.
func squeezes(curves []*Curve, s subject, like *Squeeze) []Squeeze {
	var out []Squeeze
	for _, c := range curves {
		if m := s.mixOf(c); m != nil {
			for _, q := range m.Squeeze {
				if q.Class == like.Class && q.SLO == like.SLO {
					out = append(out, q)
				}
			}
		}
	}
	return out
}

func ratios(list []Squeeze) []Measure {
	out := make([]Measure, len(list))
	for i, q := range list {
		out[i] = unknownMeasure()
		if q.Alone > 0 {
			out[i].Value = q.Mixed / q.Alone
		}
	}
	return out
}

func mixed(list []Squeeze) []Measure {
	out := make([]Measure, len(list))
	for i, q := range list {
		out[i] = unknownMeasure()
		out[i].Value = q.Mixed
	}
	return out
}
