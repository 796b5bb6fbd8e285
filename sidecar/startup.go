package sidecar

import (
	"time"

	"headroom_exporter/collector/engine"
)

// settling is how long after an engine's start its latencies are not compared
// with a curve's: it still compiles, and its caches are cold.
const settling = 10 * time.Minute

// startup measures how long an engine takes to start: from when it was first
// seen down or loading until it first serves.
type startup struct {
	// begun is when it was seen not to serve; zero while it does.
	begun time.Time
	// served is whether it has served since the exporter's start, started when it last began to.
	served  bool
	started time.Time
	// took is how long the last start took that was seen whole; 0 before one.
	took time.Duration
}

// observe follows the engine's state; restarted tells that its counters fell.
func (s *startup) observe(o engine.Observation, restarted bool) {
	at, state := o.At, o.State
	switch {
	case state == engine.StateDown || state == engine.StateLoading:
		if s.begun.IsZero() {
			s.begun = at
		}
	case state.Known():
		// An engine that only hung, or was not to be reached, has not started.
		if restarted || !s.served && !s.begun.IsZero() && unused(o.Reading) {
			s.started = at
			if !s.begun.IsZero() {
				s.took = at.Sub(s.begun)
			}
		}
		s.served, s.begun = true, time.Time{}
	}
}

// settled tells whether the last start that was seen is long ago.
func (s *startup) settled(at time.Time) bool {
	return s.started.IsZero() || at.Sub(s.started) >= settling
}

// unused tells that no request has ended yet, as just after an engine's start.
func unused(r *engine.Reading) bool {
	for i := range r.Ranks {
		if r.Ranks[i].Value(engine.RequestsFinished) > 0 {
			return false
		}
	}
	return true
}
