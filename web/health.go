package web

import (
	"fmt"
	"net/http"
	"time"
)

// A live loop is stuck when nothing new came for stuckIntervals intervals, or
// for stuckAfter where intervals are short.
const (
	stuckIntervals = 10
	stuckAfter     = 30 * time.Second
)

// serveHealthy answers 200 while the live loop publishes. Whether the engine
// answers plays no part: restarting the exporter would not mend the engine.
func (s *server) serveHealthy(w http.ResponseWriter, _ *http.Request) {
	newest, what := s.started, "No snapshot yet; the exporter is"
	if snapshot := s.Source.Snapshot(); snapshot != nil {
		newest, what = snapshot.At, "The newest snapshot is"
	}
	age, limit := time.Since(newest), max(stuckIntervals*s.Interval, stuckAfter)
	if age > limit {
		s.text(w, http.StatusServiceUnavailable, fmt.Sprintf("Stuck. %s %.1f s old, more than %.0f s.\n", what, age.Seconds(), limit.Seconds()))
		return
	}
	s.text(w, http.StatusOK, fmt.Sprintf("Healthy. %s %.1f s old.\n", what, age.Seconds()))
}

// serveReady answers 200 once there is a first snapshot, whatever it says.
func (s *server) serveReady(w http.ResponseWriter, _ *http.Request) {
	if s.Source.Snapshot() == nil {
		s.text(w, http.StatusServiceUnavailable, "Not ready: there is no snapshot yet.\n")
		return
	}
	s.text(w, http.StatusOK, "Ready.\n")
}

// serveReload reads the rule files again. A bad file leaves the old ones in force.
func (s *server) serveReload(w http.ResponseWriter, _ *http.Request) {
	if err := s.Reload(); err != nil {
		s.text(w, http.StatusInternalServerError, fmt.Sprintf("Not reloaded: %v\n", err))
		return
	}
	s.text(w, http.StatusOK, "Reloaded.\n")
}

func (s *server) text(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	if _, err := w.Write([]byte(text)); err != nil {
		s.Logger.Debug("The client went away", "err", err)
	}
}
