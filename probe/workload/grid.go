package workload

import (
	"math"
	"slices"
	"time"
)

const (
	// Times lie on a grid when so large a share of the steps between
	// different times is a whole number of slots, to within gridTolerance of a slot.
	gridShare     = 0.99
	gridTolerance = 0.01
	// A grid matters when a slot holds so many requests on average: below
	// that, hardly two of them were moved together.
	gridMatters = 0.1
)

// Grid returns the length of the slots that the times of a trace were rounded
// to, or 0 when they were not, or to slots so short that it does not matter.
// Mooncake's conversation trace has slots of 3 s: replayed as it stands it is
// a burst every three seconds.
func (t *Trace) Grid() time.Duration {
	var steps []time.Duration
	for i := 1; i < len(t.Records); i++ {
		if step := t.Records[i].At - t.Records[i-1].At; step > 0 {
			steps = append(steps, step)
		}
	}
	if len(steps) < 10 {
		return 0
	}
	slices.Sort(steps)
	// The slot is the middle one of the steps that are as good as the smallest.
	near := 0
	for near < len(steps) && float64(steps[near]) < 1.5*float64(steps[0]) {
		near++
	}
	slot := steps[near/2]
	fit := 0
	for _, s := range steps {
		slots := float64(s) / float64(slot)
		// Rounding errors of a slot do not add up, but the error of the slot itself does.
		if math.Abs(slots-math.Round(slots)) <= gridTolerance*max(1, math.Round(slots)/10) {
			fit++
		}
	}
	if float64(fit) < gridShare*float64(len(steps)) {
		return 0
	}
	span := t.Records[len(t.Records)-1].At - t.Records[0].At
	if float64(len(t.Records))*slot.Seconds() < gridMatters*span.Seconds() {
		return 0
	}
	return slot
}

// Spread returns the trace with the requests of each slot of a grid spread
// uniformly over it, in their order. The same seed spreads them the same way.
func (t *Trace) Spread(slot time.Duration, seed uint64) *Trace {
	spread := *t
	spread.Records = slices.Clone(t.Records)
	records := spread.Records
	var places []float64
	for i := 0; i < len(records); {
		begin := records[i].At
		j := i
		places = places[:0]
		for ; j < len(records) && records[j].At == begin; j++ {
			places = append(places, uniform(streamKey(seed, domainSlot, uint64(j))))
		}
		slices.Sort(places)
		width := slot
		if j < len(records) {
			width = min(width, records[j].At-begin)
		}
		for k := i; k < j; k++ {
			records[k].At += time.Duration(places[k-i] * float64(width))
		}
		i = j
	}
	return &spread
}
