package engine

import (
	"math"
	"time"
)

// freezeAfter is how long gauges may stand above zero while no counter moves.
const freezeAfter = 15 * time.Second

// Reasons of a rank's state.
const (
	reasonFrozen     = "gauges_frozen"
	reasonIncomplete = "metrics_incomplete"
	reasonAsleep     = "sleep_mode"
)

// freshness judges one rank's readings over time.
type freshness struct {
	// alive is when the rank last moved a counter or had nothing to do.
	alive time.Time
}

// judge returns the state of a reading. counted tells that the page has any
// counter of the rank, moved that one of them or the cache in use changed since the last page,
// progressed that one of them rose, first that there was no last page of this
// engine process.
//
// Idle and frozen go by requests alone: cache in use without requests is
// normal where another engine still has to fetch it.
func (f *freshness) judge(at time.Time, r *Rank, counted, moved, progressed, first bool) (State, string) {
	running, waiting := r.Value(RequestsRunning), r.Value(RequestsWaiting)
	busy := running > 0 || waiting > 0
	if moved || first || !busy {
		f.alive = at
	}
	switch {
	case r.Value(Awake) == 0:
		return StateAsleep, reasonAsleep
	case math.IsNaN(running):
		return StateStale, reasonIncomplete
	case busy && counted && at.Sub(f.alive) > freezeAfter:
		return StateStale, reasonFrozen
	case running == 0 && waiting == 0 && (!progressed || first):
		return StateIdle, ""
	default:
		return StateOK, ""
	}
}

// engineState is the state of an engine whose ranks were read: ok when any
// works, idle when all are, else the worst.
func engineState(ranks []Rank) (State, string) {
	idle, worst, reason := 0, StateIdle, ""
	for i := range ranks {
		switch r := &ranks[i]; r.State {
		case StateOK:
			return StateOK, ""
		case StateIdle:
			idle++
		case StateStale:
			if worst != StateStale {
				worst, reason = StateStale, r.Reason
			}
		case StateAsleep:
			if worst == StateIdle {
				worst, reason = StateAsleep, r.Reason
			}
		}
	}
	if idle == len(ranks) {
		return StateIdle, ""
	}
	return worst, reason
}

// tolerated is how many transient failures in a row keep the last state.
const tolerated = 3

// machine is the state of the engine as a whole over polls.
type machine struct {
	state  State
	reason string
	// transient counts transient failures in a row.
	transient int
	// ready tells that the engine gave a reading since it was last gone.
	ready bool
}

// read takes the state of a good reading.
func (m *machine) read(state State, reason string) {
	m.state, m.reason, m.transient, m.ready = state, reason, 0, true
}

// disabled takes a page without an engine's samples.
func (m *machine) disabled(reason string) {
	m.state, m.reason, m.transient, m.ready = StateDisabled, reason, 0, true
}

// keeps tells whether a failure leaves the state as it is; it counts the failure.
func (m *machine) keeps(f *Failure) bool {
	if !f.Transient {
		m.transient = 0
		return false
	}
	m.transient++
	// What is known stays known for a while; a state that says that nothing is
	// known gives way at once to what is wrong now.
	switch m.state {
	case StateOK, StateIdle, StateAsleep, StateLoading:
		return m.transient <= tolerated
	default:
		return false
	}
}

// health is what /health said.
type health int

const (
	// healthNone: no answer.
	healthNone health = 0
	healthOK   health = 200
	// healthUnavailable: loading, or dead behind a server that still runs.
	healthUnavailable health = 503
)

// failed takes a failure that counts and the health check after it.
func (m *machine) failed(f *Failure, h health) {
	m.reason = f.Reason
	switch {
	case h == healthNone:
		m.state, m.ready = StateDown, false
	case h == healthUnavailable && !m.ready:
		m.state = StateLoading
	case h >= 500:
		m.state = StateDown
	default: // something answers, if only to say no
		m.state = StateStale
	}
}
