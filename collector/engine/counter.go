package engine

import "slices"

// resetWatch decides whether a lower reading is a restart. Engines with
// several API servers can show one page with less on it, so that without a
// new start time a value must be lower twice in a row.
type resetWatch struct {
	lower bool
}

// verdict of one reading.
type verdict uint8

const (
	follow verdict = iota // the new value counts on from the old one
	hold                  // lower for the first time: keep the old value
	reset                 // counted from zero again
)

func (w *resetWatch) judge(fell, restarted bool) verdict {
	switch {
	case restarted:
		w.lower = false
		return reset
	case !fell:
		w.lower = false
		return follow
	case !w.lower:
		w.lower = true
		return hold
	default:
		w.lower = false
		return reset
	}
}

// cumulative is a counter over restarts of the engine: base is what was
// counted before the last of them.
type cumulative struct {
	seen       bool
	base, last float64
	watch      resetWatch
}

// update takes a raw value and returns the corrected one.
func (c *cumulative) update(raw float64, restarted bool) (value float64, v verdict, moved bool) {
	if !c.seen {
		c.seen, c.last = true, raw
		return raw, follow, true
	}
	moved = raw != c.last
	v = c.watch.judge(raw < c.last, restarted)
	switch v {
	case hold:
		return c.base + c.last, v, moved
	case reset:
		c.base += c.last
	}
	c.last = raw
	return c.base + c.last, v, moved
}

// cumulativeHistogram is a histogram over restarts of the engine.
type cumulativeHistogram struct {
	base, last *Histogram
	watch      resetWatch
}

// update takes a raw histogram and returns the corrected one.
func (c *cumulativeHistogram) update(raw *Histogram, restarted bool) (h *Histogram, v verdict, moved bool) {
	if c.last == nil {
		c.last = raw
		return raw, follow, true
	}
	rebucketed := !slices.Equal(raw.Bounds, c.last.Bounds)
	moved = rebucketed || raw.Count != c.last.Count
	v = c.watch.judge(rebucketed || histogramFell(raw, c.last), restarted)
	if v == hold {
		return plus(c.last, c.base), v, moved
	}
	if v == reset {
		c.base = plus(c.last, c.base)
		if rebucketed {
			c.base = rebucket(c.base, raw.Bounds)
		}
	}
	c.last = raw
	return plus(raw, c.base), v, moved
}

func histogramFell(now, before *Histogram) bool {
	if now.Count < before.Count {
		return true
	}
	for i, n := range now.Counts {
		if n < before.Counts[i] {
			return true
		}
	}
	return false
}

// plus adds two histograms of the same bounds; b may be nil.
func plus(a, b *Histogram) *Histogram {
	if b == nil {
		return a
	}
	h := &Histogram{Bounds: a.Bounds, Counts: make([]float64, len(a.Counts)), Sum: a.Sum + b.Sum, Count: a.Count + b.Count}
	for i := range h.Counts {
		h.Counts[i] = a.Counts[i] + b.Counts[i]
	}
	return h
}

// rebucket keeps a histogram's total under other bounds; how it was spread is lost.
func rebucket(h *Histogram, bounds []float64) *Histogram {
	r := &Histogram{Bounds: bounds, Counts: make([]float64, len(bounds)), Sum: h.Sum, Count: h.Count}
	r.Counts[len(bounds)-1] = h.Count
	return r
}
