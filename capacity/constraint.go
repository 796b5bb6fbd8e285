// Package capacity holds the arithmetic of capacity: occupancy, load ratios,
// the binding constraint and what is left. It has no I/O and no clock.
//
// A number that is not known is NaN everywhere in this package, never 0.
package capacity

import "math"

// Constraint is one way in which a replica can be full.
type Constraint int

// The constraints, in the order in which they are shown.
const (
	// Curve: offered load against the measured capacity curve.
	Curve Constraint = iota
	// SequenceSlots: running sequences against max_num_seqs.
	SequenceSlots
	// TokenSlots: KV cache tokens in use against the usable KV cache.
	TokenSlots
	// TokenBudget: tokens per step against max_num_batched_tokens.
	TokenBudget
	// Queue: seconds of backlog against the time to first token that the SLO leaves for it.
	Queue
	// LoRA: distinct running adapters against max_loras.
	LoRA

	NumConstraints
)

// NoConstraint is the binding constraint when no load ratio is known.
const NoConstraint Constraint = -1

var constraintNames = [NumConstraints]string{"curve", "sequence_slots", "token_slots", "token_budget", "queue", "lora"}

// String returns the constraint's name as used in labels and JSON.
func (c Constraint) String() string {
	if c < 0 || c >= NumConstraints {
		return "none"
	}
	return constraintNames[c]
}

// Constraints lists every constraint.
func Constraints() []Constraint {
	all := make([]Constraint, NumConstraints)
	for i := range all {
		all[i] = Constraint(i)
	}
	return all
}

// LoadRatios holds one load ratio per constraint: live load / capacity, 1 is
// full, not clamped, NaN is unknown.
type LoadRatios [NumConstraints]float64

// UnknownLoadRatios returns ratios that are all unknown.
func UnknownLoadRatios() LoadRatios {
	var r LoadRatios
	for i := range r {
		r[i] = math.NaN()
	}
	return r
}

// Max returns the largest known ratio and its constraint; NaN and
// NoConstraint when none is known.
func (r LoadRatios) Max() (float64, Constraint) {
	best, at := math.NaN(), NoConstraint
	for i, v := range r {
		if !math.IsNaN(v) && (at == NoConstraint || v > best) {
			best, at = v, Constraint(i)
		}
	}
	return best, at
}

// Zone is where a load ratio lies against the watermark and the knee.
type Zone string

// The zones.
const (
	ZoneUnknown  Zone = "unknown"
	ZoneStable   Zone = "stable"
	ZoneRisk     Zone = "risk"
	ZoneUnstable Zone = "unstable"
)

// Watermark is the load ratio up to which a replica is stable: 0.80 of full,
// the usual practice of load-aware serving systems.
const Watermark = 0.80

// ZoneOf returns the zone of a load ratio: stable up to the watermark, risk
// up to 1, unstable above.
func ZoneOf(loadRatio float64) Zone {
	switch {
	case math.IsNaN(loadRatio):
		return ZoneUnknown
	case loadRatio <= Watermark:
		return ZoneStable
	case loadRatio <= 1:
		return ZoneRisk
	default:
		return ZoneUnstable
	}
}
