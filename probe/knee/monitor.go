package knee

import (
	"fmt"
	"math"

	"headroom_exporter/capacity"
)

// A load is ended before its time only as failed: a stretch without violations
// proves nothing, since violations come in clumps, but enough of them do.
const (
	// blockSeconds is the length of the blocks of time that counts are made in.
	blockSeconds = 5
	// stopAlpha is the chance, over all looks, that a load within the budget is ended.
	stopAlpha = 0.02
	// stopRow is how many violations in a row end a load.
	stopRow = 40
	// A backlog has risen in backlogRises of the last backlogBlocks blocks, while less than
	// backlogServed of what was due was done. A slope alone, or the most that were ever in
	// flight, would miss a load just above the capacity or take the drain for growth.
	backlogBlocks = 5
	backlogRises  = 4
	backlogServed = 0.97
)

// watch ends a load that has failed. It is a Monitor.
type watch struct {
	load *Load
	// worth is how many times a bound's budget its violations must be above to
	// end the load. For a probe it is more than one: a rate that is a little
	// too high says most about where the knee is, when it is measured to its end.
	worth float64

	// Counts by class and SLO, and by block within.
	counts [][]counter
	row    int
	rowOf  string
	// block is the number of the current block of time; backlog, due and done are at the ends of blocks.
	block           int
	backlog         []float64
	due, done       []int
	injectionBlocks int
}

// counter counts the trials of one bound in blocks of time.
type counter struct {
	over, of []float64
}

func (c *counter) add(block int, over, of float64) {
	for len(c.of) <= block {
		c.over, c.of = append(c.over, 0), append(c.of, 0)
	}
	c.over[block] += over
	c.of[block] += of
}

// totals are the violations, the trials and the design effect.
func (c *counter) totals() (over, of, effect float64) {
	for i := range c.of {
		over += c.over[i]
		of += c.of[i]
	}
	return over, of, capacity.DesignEffect(c.over, c.of)
}

func newWatch(l *Load, worth float64) *watch {
	w := &watch{load: l, worth: worth, injectionBlocks: max(1, int(l.Duration().Seconds()/blockSeconds))}
	for i := range l.Traffic.Classes {
		w.counts = append(w.counts, make([]counter, len(l.Traffic.SLOs(i))))
	}
	return w
}

// Request implements Monitor.
func (w *watch) Request(r Request) {
	violated := ""
	for i, s := range w.load.Traffic.SLOs(r.Class) {
		w.counts[r.Class][i].add(int(max(r.Due, 0)/blockSeconds), r.Over[i], r.Of[i])
		if r.Over[i] > 0 {
			violated = s.String()
		}
	}
	if violated == "" && r.OK {
		w.row = 0
		return
	}
	w.row++
	w.rowOf = violated
	if violated == "" {
		w.rowOf = "an answer at all"
	}
}

// Sample implements Monitor.
func (w *watch) Sample(s Sample) string {
	if s.At < w.load.Warmup.Seconds() || s.At >= w.load.Duration().Seconds() {
		return ""
	}
	if w.row >= stopRow {
		return fmt.Sprintf("%d requests in a row missed %s", w.row, w.rowOf)
	}
	block := int(s.At / blockSeconds)
	if block == w.block {
		return ""
	}
	w.block = block
	if why := w.backlogGrows(s); why != "" {
		return why
	}
	return w.overBudget()
}

// overBudget tells whether a bound is beyond its budget, however the rest goes.
func (w *watch) overBudget() string {
	confidence := 1 - stopAlpha/float64(w.injectionBlocks)
	for class := range w.counts {
		for i, s := range w.load.Traffic.SLOs(class) {
			over, of, effect := w.counts[class][i].totals()
			if over < 3 {
				continue
			}
			limit := min(s.Budget()*w.worth, (1+s.Budget())/2)
			if low := capacity.LowerFraction(over/effect, of/effect, confidence); low > limit {
				return fmt.Sprintf("%.0f of %.0f missed %s: at least %.2g of all, %.2g may", over, of, s, low, s.Budget())
			}
		}
	}
	return ""
}

// backlogGrows tells whether more and more requests wait while fewer are done than come.
func (w *watch) backlogGrows(s Sample) string {
	if math.IsNaN(s.Waiting) {
		return ""
	}
	w.backlog = append(w.backlog, s.Waiting+float64(s.Unsent))
	w.due, w.done = append(w.due, s.Due), append(w.done, s.Done)
	last := len(w.backlog) - 1
	if last < backlogBlocks {
		return ""
	}
	rises := 0
	for i := last - backlogBlocks + 1; i <= last; i++ {
		if w.backlog[i] > w.backlog[i-1] {
			rises++
		}
	}
	due, done := w.due[last]-w.due[last-backlogBlocks], w.done[last]-w.done[last-backlogBlocks]
	// A growing queue of a handful is an ordinary clump of arrivals.
	least := max(5, 0.1*float64(due))
	if rises >= backlogRises && float64(done) < backlogServed*float64(due) && w.backlog[last] >= least &&
		w.backlog[last]-w.backlog[last-backlogBlocks] >= least {
		return fmt.Sprintf("the backlog rose in %d of %d blocks of %d s, from %.0f to %.0f, and %d of %d due were done",
			rises, backlogBlocks, blockSeconds, w.backlog[last-backlogBlocks], w.backlog[last], done, due)
	}
	return ""
}
