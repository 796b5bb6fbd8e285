package main

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"headroom_exporter/sidecar"
)

// curveLogHold is how long a replica's curve must count, or not, before that
// is logged: at the edge of what it explains it may change with every reading.
const curveLogHold = 10 * time.Second

// curveLog logs when the capacity curve comes to count for a replica, when it
// stops, and when why it does not is another reason.
type curveLog struct {
	logger   *slog.Logger
	replicas map[[2]string]*curveVerdict
}

// curveVerdict is what was logged of a replica, and what it would be now.
type curveVerdict struct {
	logged, now string
	since       time.Time
}

// observe takes a snapshot. It is called by one goroutine.
func (l *curveLog) observe(s *sidecar.Snapshot) {
	replicas := map[[2]string]*curveVerdict{}
	for i := range s.Replicas {
		r := &s.Replicas[i]
		key := [2]string{r.ModelName, r.Engine}
		v := l.replicas[key]
		if v == nil {
			v = &curveVerdict{}
		}
		// An engine that is not there has a line of its own, and of no curve there is nothing to say.
		if r.State.Known() && r.Curve.Curve != nil {
			v.follow(l.logger, s.At, r)
		}
		replicas[key] = v
	}
	l.replicas = replicas
}

// follow logs what has been so for a while.
func (v *curveVerdict) follow(logger *slog.Logger, at time.Time, r *sidecar.Replica) {
	c := &r.Curve
	verdict := "counts"
	if !c.Valid {
		reasons := slices.Clone(c.Reasons)
		slices.Sort(reasons)
		verdict = strings.Join(reasons, ",")
	}
	if verdict != v.now {
		v.now, v.since = verdict, at
	}
	if v.now == v.logged || at.Sub(v.since) < curveLogHold {
		return
	}
	v.logged = v.now
	attrs := []any{"model", r.ModelName, "engine", r.Engine, "id", c.Curve.ID}
	switch {
	case c.Valid:
		logger.Info("the capacity curve counts", attrs...)
	case c.Waiting():
		logger.Info("the capacity curve does not count yet", append(attrs, "reasons", v.now, "why", strings.Join(c.Why(), "; "))...)
	default:
		logger.Warn("the capacity curve does not count; the headroom is an upper bound", append(attrs, "reasons", v.now, "why", strings.Join(c.Why(), "; "))...)
	}
}
