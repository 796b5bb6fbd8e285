package engine

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// rankKey is whose number a series carries. Engine and model are empty where
// the page does not say.
type rankKey struct{ model, engine, replica string }

// layout holds the series of one table, sorted by rank, signal and alias.
type layout struct {
	table     *table
	replicaID string
	targets   map[string][]target
	ranks     []*rankCells
	// described are series whose labels say how the engine was started.
	described []described
	// full tells that a page had more than an engine exports.
	full  bool
	byKey map[rankKey]*rankCells
}

// target is a place that a sample name feeds.
type target struct {
	alias alias
	// put is the place of a plain number, buckets that of a histogram's buckets.
	put     func(r *rankCells) **cell
	buckets func(r *rankCells) *buckets
	info    bool
}

// aliasCells are the cells of one alias.
type aliasCells struct{ value, times, over, plus, minus *cell }

type histogramCells struct {
	buckets    buckets
	sum, count *cell
}

// buckets has cells by ascending bound.
type buckets struct {
	bounds []float64
	cells  []*cell
}

// rankCells are the series of one rank.
type rankCells struct {
	key rankKey
	// identifies tells that a series here is more than a property of the engine.
	identifies bool
	rows       [][]aliasCells
	histograms [][]histogramCells
}

// cell adds up the series that make one number.
type cell struct {
	summands []summand
	// newest takes the label of the series with the largest value instead.
	newest bool
}

// summand is series that repeat the same number; the largest counts.
type summand struct {
	key   string
	parts []part
}

// part is a series, or a number taken from its labels.
type part struct {
	series    *series
	labelled  bool
	labelling float64
}

func (p part) value() float64 {
	if p.labelled {
		return p.labelling
	}
	return p.series.value
}

// value returns the cell's number on the page of a generation; false when the page has none.
func (c *cell) value(generation uint64) (float64, bool) {
	if c == nil {
		return math.NaN(), false
	}
	if c.newest {
		return c.latest(generation)
	}
	sum, present := 0.0, false
	for i := range c.summands {
		largest, found := 0.0, false
		for _, p := range c.summands[i].parts {
			if p.series.generation != generation {
				continue
			}
			if v := p.value(); !found {
				largest, found = v, true
			} else {
				largest = math.Max(largest, v)
			}
		}
		if found {
			sum, present = sum+largest, true
		}
	}
	return sum, present
}

func (c *cell) latest(generation uint64) (value float64, present bool) {
	at := math.Inf(-1)
	for i := range c.summands {
		for _, p := range c.summands[i].parts {
			if s := p.series; s.generation == generation && s.value > at {
				at, value, present = s.value, p.labelling, true
			}
		}
	}
	return value, present
}

func newLayout(t *table, replicaID string) *layout {
	l := &layout{table: t, replicaID: replicaID, targets: make(map[string][]target), byKey: make(map[rankKey]*rankCells)}
	for i, r := range t.rows {
		for j, a := range r.aliases {
			l.aim(a.name, target{alias: a, put: func(c *rankCells) **cell { return &c.rows[i][j].value }, info: r.kind == info})
			for _, o := range []struct {
				operand
				put func(*aliasCells) **cell
			}{
				{a.times, func(c *aliasCells) **cell { return &c.times }},
				{a.over, func(c *aliasCells) **cell { return &c.over }},
				{a.plus, func(c *aliasCells) **cell { return &c.plus }},
				{a.minus, func(c *aliasCells) **cell { return &c.minus }},
			} {
				if o.name != "" {
					l.aim(o.name, target{
						alias: alias{match: o.match, follows: a.follows}, info: r.kind == info,
						put: func(c *rankCells) **cell { return o.put(&c.rows[i][j]) },
					})
				}
			}
		}
	}
	for i, r := range t.histograms {
		for j, a := range r.aliases {
			l.aim(a.name+"_bucket", target{alias: a, buckets: func(c *rankCells) *buckets { return &c.histograms[i][j].buckets }})
			l.aim(a.name+"_sum", target{alias: a, put: func(c *rankCells) **cell { return &c.histograms[i][j].sum }})
			l.aim(a.name+"_count", target{alias: a, put: func(c *rankCells) **cell { return &c.histograms[i][j].count }})
		}
	}
	return l
}

func (l *layout) aim(name string, t target) { l.targets[name] = append(l.targets[name], t) }

// add puts a series in its places, until the layout is full.
func (l *layout) add(key string, set labels.Labels, s *series) {
	if !l.full {
		l.full = !l.put(key, set, s)
	}
}

// put puts a series in its places; false when the page has more than an engine exports.
func (l *layout) put(key string, set labels.Labels, s *series) bool {
	for _, label := range l.table.totalLabels {
		if set.Get(label) != "" {
			return true
		}
	}
	if l.replicaID != "" && len(l.table.replicaLabels) > 0 && l.replica(set) != l.replicaID {
		return true
	}
	l.describe(key, set, s)
	for _, t := range l.targets[key] {
		if !matches(t.alias.match, set) {
			continue
		}
		p := part{series: s}
		if t.alias.label != "" {
			p.labelled, p.labelling = true, t.alias.fromLabels(set)
			if math.IsNaN(p.labelling) { // the label is missing or "None"
				continue
			}
		}
		var c **cell
		r := l.rank(set)
		if r == nil {
			return false
		}
		if t.buckets != nil {
			bound, ok := leBound(set.Get(labels.BucketLabel))
			if !ok {
				continue
			}
			b := t.buckets(r)
			if c = b.at(bound); len(b.bounds) > maxParts {
				return false
			}
		} else {
			c = t.put(r)
		}
		r.identifies = r.identifies || !t.info && !t.alias.follows
		if *c == nil {
			*c = &cell{newest: t.alias.newest}
		}
		summand := ""
		if !t.info { // a property stands on every series again, it is no sum
			summand = l.summandKey(set)
		}
		if !(*c).add(summand, p) {
			return false
		}
	}
	return true
}

// replica is the identity of the replica that a series is of; empty where the page has one only.
func (l *layout) replica(set labels.Labels) string {
	for _, label := range l.table.replicaLabels {
		if id := set.Get(label); id != "" {
			return id
		}
	}
	return ""
}

func (l *layout) rank(set labels.Labels) *rankCells {
	key := rankKey{model: bounded(set.Get(l.table.modelLabel)), engine: bounded(set.Get(l.table.rankLabel)), replica: bounded(l.replica(set))}
	if key.model == l.table.noModel {
		key.model = ""
	}
	if r := l.byKey[key]; r != nil {
		return r
	}
	if len(l.ranks) == maxRanks {
		return nil
	}
	r := &rankCells{key: key, rows: make([][]aliasCells, len(l.table.rows)), histograms: make([][]histogramCells, len(l.table.histograms))}
	for i := range r.rows {
		r.rows[i] = make([]aliasCells, len(l.table.rows[i].aliases))
	}
	for i := range r.histograms {
		r.histograms[i] = make([]histogramCells, len(l.table.histograms[i].aliases))
	}
	l.byKey[key] = r
	l.ranks = append(l.ranks, r)
	slices.SortFunc(l.ranks, func(a, b *rankCells) int { return compareRanks(a.key, b.key) })
	return r
}

// maxLabelBytes is how much of a label is copied from a page: each stands in
// dozens of series of ours.
const maxLabelBytes = 512

func bounded(label string) string {
	if len(label) <= maxLabelBytes {
		return label
	}
	return strings.ToValidUTF8(label[:maxLabelBytes], "")
}

// summandKey is every label but those that only repeat a number.
func (l *layout) summandKey(set labels.Labels) string {
	var b strings.Builder
	set.Range(func(label labels.Label) {
		if label.Name == model.MetricNameLabel || label.Name == labels.BucketLabel || slices.Contains(l.table.duplicateLabels, label.Name) {
			return
		}
		b.WriteString(strconv.Quote(label.Name))
		b.WriteString(strconv.Quote(label.Value))
	})
	return b.String()
}

// add takes a part; false when the cell would grow beyond what an engine exports.
func (c *cell) add(key string, p part) bool {
	for i := range c.summands {
		if c.summands[i].key == key {
			c.summands[i].parts = append(c.summands[i].parts, p)
			return c.newest || len(c.summands[i].parts) <= maxParts
		}
	}
	c.summands = append(c.summands, summand{key: key, parts: []part{p}})
	return len(c.summands) <= maxParts
}

func (b *buckets) at(bound float64) **cell {
	i, found := slices.BinarySearch(b.bounds, bound)
	if !found {
		// A copy: readings share the old one.
		b.bounds = slices.Insert(slices.Clone(b.bounds), i, bound)
		b.cells = slices.Insert(b.cells, i, nil)
	}
	return &b.cells[i]
}

func matches(need []match, set labels.Labels) bool {
	for _, m := range need {
		if !slices.Contains(m.values, set.Get(m.label)) {
			return false
		}
	}
	return true
}

// fromLabels is the number that an alias reads from labels, NaN when it is not there.
func (a alias) fromLabels(set labels.Labels) float64 {
	if a.list {
		list := set.Get(a.label)
		if list == "" {
			return 0
		}
		return float64(strings.Count(list, ",") + 1)
	}
	v := labelNumber(set, a.label)
	if a.timesLabel != "" {
		v *= labelNumber(set, a.timesLabel)
	}
	return v
}

// labelNumber reads a label as a capacity: NaN unless it is finite and above zero.
func labelNumber(set labels.Labels, name string) float64 {
	v, err := strconv.ParseFloat(set.Get(name), 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) {
		return math.NaN()
	}
	return v
}

// compareRanks sorts by model, replica, then rank, by number where it is one.
func compareRanks(a, b rankKey) int {
	if c := cmp.Or(cmp.Compare(a.model, b.model), cmp.Compare(a.replica, b.replica)); c != 0 {
		return c
	}
	x, errX := strconv.Atoi(a.engine)
	y, errY := strconv.Atoi(b.engine)
	if errX == nil && errY == nil {
		return cmp.Compare(x, y)
	}
	return cmp.Compare(a.engine, b.engine)
}
