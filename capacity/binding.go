package capacity

// A new constraint binds only when the one before it is led by more than
// BindingLead in BindingHold readings in a row; otherwise two near-equal
// constraints would change places every second. By more than BindingGap it
// binds at once: what is far from the largest is not what binds.
const (
	BindingLead = 0.05
	BindingGap  = 0.2
	BindingHold = 3
)

// Binding follows the binding constraint of one replica with hysteresis. The
// zero value has none yet.
type Binding struct {
	set     bool
	current Constraint
	// led is how many readings in a row another constraint has led by more than BindingLead.
	led int
}

// Update takes the newest load ratios and returns the binding constraint;
// NoConstraint when no ratio is known, or none is above 0.
func (b *Binding) Update(r LoadRatios) Constraint {
	top, at := r.Max()
	if !(top > 0) {
		*b = Binding{}
		return NoConstraint
	}
	current := r[b.current]
	lead := top - current
	if b.led++; lead <= BindingLead {
		b.led = 0
	}
	switch {
	case !b.set, !(current > 0), lead > BindingGap, b.led >= BindingHold,
		top > 1 && current <= 1: // What is over full binds at once when what bound so far is not.
		*b = Binding{set: true, current: at}
	}
	return b.current
}
