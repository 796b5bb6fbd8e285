package capacity

import (
	"cmp"
	"math"
	"slices"
)

// Of drift: the least load ratio and coverage at which latencies are compared,
// how many comparisons a bucket must have and keeps, and the bounds of the
// correction factor.
const (
	driftLoad     = 0.3
	driftCoverage = 0.9
	driftEnough   = 5
	driftKept     = 64
	driftLow      = 0.5
	driftHigh     = 2.0
)

// The buckets: four of the load ratio, from driftLoad on, by four of the share
// of prefill.
const driftBuckets = 4

var driftLoads = [driftBuckets]float64{driftLoad, 0.5, 0.7, 0.9}

// A factor that is off by more than DriftAlert is drift to look into, one off
// by more than DriftStale for DriftStaleSeconds makes the curve stale. A gap
// between observations of more than driftGap seconds begins that time anew.
const (
	DriftAlert        = 0.10
	DriftStale        = 0.20
	DriftStaleSeconds = 1800
	driftGap          = 600
)

// The tolerance of generated tokens per second against the curve's, and the
// share of the KV cache in use from which on they are compared: with less the
// rate is that of the traffic, as the throughput analyzer of llm-d's workload
// variant autoscaler has it.
const (
	GenerationRateTolerance = 0.15
	GenerationRateKVUsage   = 0.3
)

// DriftPoint is where an engine works: its load ratio by the curve, and the
// share of prefill in that, 0 to 1.
type DriftPoint struct{ LoadRatio, PrefillShare float64 }

// DriftObservation is a latency, or a rate, against what the curve expects at the same
// operating point. NaN is unknown.
type DriftObservation struct {
	// Time in seconds on any clock that does not go back.
	Time float64
	DriftPoint
	// Coverage is the share of the traffic that the curve's classes explain.
	Coverage float64
	// Observed and Expected are the same latency or rate, in the same unit.
	Observed, Expected float64
	// Restarted tells of an engine that started less than 10 minutes ago,
	// Probing of a probe's own load. Neither is compared: a cold engine would
	// poison the factor.
	Restarted, Probing bool
}

// Drift follows how much slower, or faster, an engine answers than its curve
// says: the median of observed / expected latency in each of 4 x 4 buckets of
// operating points. A bucket keeps its last 64 comparisons: at one every 5 s it
// has forgotten what was before a change after 5 minutes there. The zero value
// has seen nothing. One Drift is for one latency, or one rate.
type Drift struct {
	// Tolerance is by how much the factor may be off before Stale counts the time; 0 takes DriftStale.
	Tolerance float64

	buckets [driftBuckets][driftBuckets]driftBucket
	// since when the factor has been off by more than the tolerance, and until
	// when that was seen; off tells whether it is.
	off          bool
	since, until float64
}

// driftBucket is a ring of ratios.
type driftBucket struct {
	ratios []float64
	oldest int
}

func (b *driftBucket) add(ratio float64) {
	if len(b.ratios) < driftKept {
		b.ratios = append(b.ratios, ratio)
		return
	}
	b.ratios[b.oldest] = ratio
	b.oldest = (b.oldest + 1) % driftKept
}

// Add takes an observation and tells whether it counts: at a load ratio of 0.3
// or more, a coverage of 0.9 or more, with both latencies known and above 0,
// neither after a restart nor during a probe.
func (d *Drift) Add(o DriftObservation) bool {
	b := d.bucket(o.DriftPoint)
	if b == nil || o.Restarted || o.Probing || !(o.Coverage >= driftCoverage) || !(o.Observed > 0 && o.Expected > 0) || math.IsInf(o.Observed/o.Expected, 0) {
		return false
	}
	b.add(o.Observed / o.Expected)
	switch factor := b.factor(); {
	case math.Abs(factor-1) <= cmp.Or(d.Tolerance, DriftStale):
		d.off = false
	case !d.off || o.Time-d.until > driftGap:
		d.off, d.since, d.until = true, o.Time, o.Time
	default:
		d.until = o.Time
	}
	return true
}

// bucket of an operating point; nil out of range.
func (d *Drift) bucket(p DriftPoint) *driftBucket {
	if !(p.LoadRatio >= driftLoad) || !(p.PrefillShare >= 0 && p.PrefillShare <= 1) {
		return nil
	}
	load := 0
	for load+1 < driftBuckets && p.LoadRatio >= driftLoads[load+1] {
		load++
	}
	return &d.buckets[load][min(int(p.PrefillShare*driftBuckets), driftBuckets-1)]
}

// factor is the bucket's, 1 while it has too few ratios.
func (b *driftBucket) factor() float64 {
	if len(b.ratios) < driftEnough {
		return 1
	}
	sorted := slices.Clone(b.ratios)
	slices.Sort(sorted)
	return min(max(Quantile(sorted, 0.5), driftLow), driftHigh)
}

// Factor is the correction factor at an operating point: how many times longer
// latencies are than the curve says, within 0.5 and 2. It is 1 where nothing is
// known: out of the range that is compared, or with fewer than 5 comparisons.
func (d *Drift) Factor(p DriftPoint) float64 {
	if b := d.bucket(p); b != nil {
		return b.factor()
	}
	return 1
}

// Observations is how many comparisons the factor at an operating point rests on.
func (d *Drift) Observations(p DriftPoint) int {
	if b := d.bucket(p); b != nil {
		return len(b.ratios)
	}
	return 0
}

// Drifting tells whether a factor is off by more than 10 %.
func Drifting(factor float64) bool { return math.Abs(factor-1) > DriftAlert }

// Stale tells whether the factor has been off by more than the tolerance through the
// last 30 minutes in which it was observed.
func (d *Drift) Stale() bool { return d.off && d.until-d.since >= DriftStaleSeconds }

// Pessimistic is the part of a correction factor that may be applied to a load
// ratio: max(factor, 1). An engine that answers faster than its curve has not
// shown that it can take more.
func Pessimistic(factor float64) float64 { return math.Max(factor, 1) }
