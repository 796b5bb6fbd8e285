package capacity

import "math"

// A new constraint binds only when it leads by more than BindingLead in
// BindingHold samples in a row; otherwise two near-equal constraints would
// change places every second.
const (
	BindingLead = 0.05
	BindingHold = 3
)

// Binding follows the binding constraint of one replica with hysteresis. The
// zero value has none yet.
type Binding struct {
	set        bool
	current    Constraint
	challenger Constraint
	held       int
}

// Update takes the newest load ratios and returns the binding constraint;
// NoConstraint when no ratio is known.
func (b *Binding) Update(r LoadRatios) Constraint {
	top, at := r.Max()
	switch {
	case at == NoConstraint:
		*b = Binding{}
		return NoConstraint
	case !b.set || math.IsNaN(r[b.current]), top > 1 && r[b.current] <= 1:
		// What is over full binds at once when what bound so far is not.
		*b = Binding{set: true, current: at}
	case top-r[b.current] <= BindingLead:
		b.held = 0
	case at == b.challenger && b.held > 0:
		b.held++
	default:
		b.challenger, b.held = at, 1
	}
	if b.held >= BindingHold {
		b.current, b.held = b.challenger, 0
	}
	return b.current
}
