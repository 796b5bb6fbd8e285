package engine

import (
	"math"
	"slices"
	"time"
)

// tracker is what is remembered about one rank between pages.
type tracker struct {
	counters   [numSignals]cumulative
	histograms [numHistograms]cumulativeHistogram
	freshness  freshness
	first      bool
	// resetAt is the generation in which a restart was last counted, and
	// steady when each counter was last read without one.
	generation uint64
	restart    uint64
	steady     [int(numSignals) + int(numHistograms)]uint64
	// peakRunning is the most sequences seen running.
	peakRunning float64
	// used is the cache in use on the last page, by each signal that tells it.
	used map[Signal]float64
}

// normaliser turns pages into ranks.
type normaliser struct {
	pages    *pages
	trackers map[rankKey]*tracker
	start    float64
	rejected uint64
	resets   uint64
}

func newNormaliser(tables []*table, replicaID string) *normaliser {
	return &normaliser{
		pages:    newPages(tables, replicaID),
		trackers: make(map[rankKey]*tracker),
		start:    math.NaN(),
	}
}

// rankSource is where the numbers of a rank come from: its own series, then
// those of series that do not say their rank.
type rankSource struct {
	// name of the rank as it is published.
	name string
	own  *rankCells
	// shared are series of the same model without a rank, when it has one rank only.
	shared *rankCells
	// properties are series without a model, or without a rank; nearest first.
	properties []*rankCells
	tracker    *tracker
}

// signalSet tells for each signal, then for each histogram, whether a page carries it.
type signalSet [int(numSignals) + int(numHistograms)]bool

func (c *signalSet) names() map[string]bool {
	names := make(map[string]bool, len(c))
	for i := range numSignals {
		names[i.String()] = c[i]
	}
	for i := range numHistograms {
		names[i.String()] = c[int(numSignals)+int(i)]
	}
	return names
}

// ranks returns the ranks of a table on the page just read, and which signals the page carries.
func (n *normaliser) ranks(index int, at time.Time) (ranks []Rank, carried signalSet) {
	l, generation := n.pages.layouts[index], n.pages.generation
	restarted := n.restarted(l.table)
	sources := n.sources(l, generation)
	ranks = make([]Rank, len(sources))
	for i := range sources {
		n.fill(&ranks[i], &sources[i], l.table, at, restarted, &carried)
	}
	n.forgetTrackers(sources)
	return ranks, carried
}

// restarted tells whether the process start time changed since the last page.
func (n *normaliser) restarted(t *table) bool {
	s := n.pages.start
	if !t.processStart || s == nil || s.generation != n.pages.generation || math.IsNaN(s.value) {
		return false
	}
	before := n.start
	n.start = s.value
	return !math.IsNaN(before) && before != s.value
}

// onPage tells whether any series of the rank is on the page of a generation.
func (r *rankCells) onPage(generation uint64) bool {
	for i := range r.rows {
		for j := range r.rows[i] {
			if _, ok := r.rows[i][j].value.value(generation); ok {
				return true
			}
		}
	}
	for i := range r.histograms {
		for j := range r.histograms[i] {
			if _, ok := r.histograms[i][j].count.value(generation); ok {
				return true
			}
		}
	}
	return false
}

// sources decides which ranks the page has. Series without a rank label are a
// rank of their own, unless the model has labelled ranks: they belong to the
// only one, and with several nobody can tell whose they are.
func (n *normaliser) sources(l *layout, generation uint64) []rankSource {
	var present, properties []*rankCells
	for _, r := range l.ranks {
		if !r.onPage(generation) {
			continue
		}
		if !r.identifies || r.key.model == "" || r.key.engine == "" {
			properties = append(properties, r)
		}
		if r.identifies {
			present = append(present, r)
		}
	}
	// The most specific first: with a rank before without.
	slices.SortStableFunc(properties, func(a, b *rankCells) int { return specific(b.key) - specific(a.key) })
	out := make([]rankSource, 0, len(present))
	for _, r := range present {
		labelled, replicas := siblings(present, r.key)
		if r.key.engine == "" && labelled > 0 {
			continue
		}
		s := rankSource{own: r, tracker: n.tracker(r.key), name: r.key.engine}
		if s.name == "" {
			s.name = "0"
		}
		if replicas {
			s.name = r.key.replica + "/" + s.name
		}
		if labelled == 1 {
			s.shared = l.byKey[rankKey{model: r.key.model, replica: r.key.replica}]
		}
		for _, p := range properties {
			if p != r && within(p.key.model, r.key.model) && within(p.key.engine, r.key.engine) && within(p.key.replica, r.key.replica) {
				s.properties = append(s.properties, p)
			}
		}
		out = append(out, s)
	}
	return out
}

// siblings counts the labelled ranks of a rank's model and replica, and tells
// whether the model has other replicas on the page.
func siblings(present []*rankCells, key rankKey) (labelled int, replicas bool) {
	for _, r := range present {
		if r.key.model != key.model {
			continue
		}
		if r.key.replica != key.replica {
			replicas = true
		} else if r.key.engine != "" {
			labelled++
		}
	}
	return labelled, replicas
}

// within tells whether a property with this label, empty for any, holds for a rank.
func within(property, rank string) bool { return property == "" || property == rank }

func specific(k rankKey) int {
	n := 0
	for _, part := range []string{k.model, k.engine, k.replica} {
		if part != "" {
			n++
		}
	}
	return n
}

func (n *normaliser) tracker(key rankKey) *tracker {
	t := n.trackers[key]
	if t == nil {
		t = &tracker{first: true, peakRunning: math.NaN(), used: make(map[Signal]float64)}
		n.trackers[key] = t
	}
	return t
}

// forgetTrackers bounds what is kept about ranks that are gone.
func (n *normaliser) forgetTrackers(now []rankSource) {
	if len(n.trackers) <= 2*maxRanks {
		return
	}
	keep := make(map[rankKey]*tracker, len(now))
	for _, s := range now {
		keep[s.own.key] = s.tracker
	}
	n.trackers = keep
}

// fill reads one rank.
func (n *normaliser) fill(r *Rank, s *rankSource, t *table, at time.Time, restarted bool, carried *signalSet) {
	r.ModelName, r.Engine = s.own.key.model, s.name
	for i := range r.values {
		r.values[i] = math.NaN()
	}
	r.SequenceSlots, r.BatchedTokens, r.TokenSlots = unknownLimit(), unknownLimit(), unknownLimit()
	tr := s.tracker
	tr.generation++
	counted, moved, progressed, fell := false, false, false, false
	var present [numSignals]bool
	judge := func(i int, v verdict, m bool) {
		counted, moved = true, moved || m
		// A fall is a change, but no work.
		progressed = progressed || m && v == follow
		if v == reset {
			// A counter that comes back later than the others belongs to the restart already counted.
			fell = fell || tr.steady[i] >= tr.restart
		}
		if v != hold {
			tr.steady[i] = tr.generation
		}
	}
	for i := range t.rows {
		row := &t.rows[i]
		value, a, ok := n.find(s, i, row)
		if !ok {
			continue
		}
		present[row.signal] = true
		value, rejected := row.kind.check(value)
		if rejected {
			n.rejected++
		}
		if math.IsNaN(value) {
			continue
		}
		carried[row.signal] = true
		if row.kind.cumulative() {
			var v verdict
			var m bool
			value, v, m = tr.counters[row.signal].update(value, restarted)
			judge(int(row.signal), v, m)
		}
		if row.signal == KVCacheUsage || row.signal == KVCacheTokensUsed {
			// Engines that count when a request ends show in between only by this that they work.
			moved = moved || value != tr.used[row.signal]
			tr.used[row.signal] = value
		}
		r.values[row.signal] = value
		r.limitFromMetric(row.signal, value, a)
	}
	for i := range t.histograms {
		raw := n.findHistogram(s, i, &t.histograms[i])
		if raw == nil {
			continue
		}
		signal := t.histograms[i].signal
		index := int(numSignals) + int(signal)
		carried[index] = true
		h, v, m := tr.histograms[signal].update(raw, restarted)
		judge(index, v, m)
		r.histograms[signal] = h
	}
	if t.silentUntilFirstStep && present[EngineSteps] && tr.neverStepped() {
		for _, s := range []Signal{RequestsRunning, RequestsWaiting, KVCacheUsage} {
			if !present[s] {
				r.values[s] = 0
			}
		}
	}
	if fell {
		n.resets++
		tr.restart = tr.generation
	}
	if v := r.Value(RequestsRunning); !(v <= tr.peakRunning) && !math.IsNaN(v) {
		tr.peakRunning = v
	}
	if restarted {
		tr.peakRunning = r.Value(RequestsRunning)
	}
	r.peakRunning = tr.peakRunning
	r.State, r.Reason = tr.freshness.judge(at, r, counted, moved, progressed, tr.first || fell || restarted)
	tr.first = false
}

// expectRestart makes the next lower value of a counter a restart at once:
// the engine was gone, so that no second look is needed.
func (n *normaliser) expectRestart() {
	for _, t := range n.trackers {
		for i := range t.counters {
			t.counters[i].watch.lower = true
		}
		for i := range t.histograms {
			t.histograms[i].watch.lower = true
		}
	}
}

// neverStepped tells that the rank has done nothing since its engine started.
func (t *tracker) neverStepped() bool {
	for _, s := range []Signal{EngineSteps, PromptTokens, GenerationTokens} {
		if c := &t.counters[s]; !c.seen || c.last != 0 {
			return false
		}
	}
	return true
}

// find returns the value of a row for a rank by its first present alias.
func (n *normaliser) find(s *rankSource, i int, row *row) (float64, *alias, bool) {
	generation := n.pages.generation
	for j := range row.aliases {
		a := &row.aliases[j]
		if v, ok := s.own.rows[i][j].number(a, generation); ok {
			return v, a, true
		}
		if s.shared != nil {
			if v, ok := s.shared.rows[i][j].number(a, generation); ok {
				return v, a, true
			}
		}
		if row.kind != info {
			continue
		}
		for _, p := range s.properties {
			if v, ok := p.rows[i][j].number(a, generation); ok {
				return v, a, true
			}
		}
	}
	return math.NaN(), nil, false
}

func (c *aliasCells) number(a *alias, generation uint64) (float64, bool) {
	v, ok := c.value.value(generation)
	if !ok {
		return v, false
	}
	if a.times.name != "" {
		f, ok := c.times.value(generation)
		if !ok {
			return math.NaN(), false
		}
		v *= f
	}
	if a.over.name != "" {
		f, ok := c.over.value(generation)
		if !ok || !(f > 0) {
			return math.NaN(), false
		}
		v /= f
	}
	if a.minus.name != "" {
		less, ok := c.minus.value(generation)
		if !ok {
			return math.NaN(), false
		}
		v -= less
	}
	if more, ok := c.plus.value(generation); ok {
		v += more
	}
	return v * a.unit(), true
}

// findHistogram returns a row's histogram by its first complete alias.
func (n *normaliser) findHistogram(s *rankSource, i int, row *histogramRow) *Histogram {
	for j := range row.aliases {
		if h := s.own.histograms[i][j].histogram(n.pages.generation); h != nil {
			return h
		}
		if s.shared != nil {
			if h := s.shared.histograms[i][j].histogram(n.pages.generation); h != nil {
				return h
			}
		}
	}
	return nil
}

// histogram returns what the page of a generation has; nil unless it is
// whole: a +Inf bucket, ascending counts, a sum and a count.
func (c *histogramCells) histogram(generation uint64) *Histogram {
	sum, okSum := c.sum.value(generation)
	count, okCount := c.count.value(generation)
	b := &c.buckets
	if !okSum || !okCount || !(count >= 0) || math.IsInf(count, 0) || math.IsNaN(sum) || math.IsInf(sum, 0) || len(b.bounds) == 0 {
		return nil
	}
	h := &Histogram{Bounds: b.bounds, Counts: make([]float64, 0, len(b.bounds)), Sum: sum, Count: count}
	var bounds []float64 // only when some of the buckets known are not on this page
	before := 0.0
	for i, c := range b.cells {
		n, ok := c.value(generation)
		if !ok {
			if bounds == nil {
				bounds = append(make([]float64, 0, len(b.bounds)), b.bounds[:i]...)
			}
			continue
		}
		if !(n >= before) || math.IsInf(n, 0) {
			return nil
		}
		if bounds != nil {
			bounds = append(bounds, b.bounds[i])
		}
		h.Counts = append(h.Counts, n)
		before = n
	}
	if bounds != nil {
		h.Bounds = bounds
	}
	if len(h.Bounds) == 0 || !math.IsInf(h.Bounds[len(h.Bounds)-1], 1) {
		return nil
	}
	return h
}
