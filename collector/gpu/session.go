package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// waitSlice bounds one wait for events, and with it how long the end of
	// the process may be delayed.
	waitSlice = 100 * time.Millisecond
	// selectEvery bounds how often process lists are asked for: that call takes
	// milliseconds under a lock that the workload needs as well.
	selectEvery = time.Minute
	// minPollGap keeps a flood of events from polling without pause.
	minPollGap = 200 * time.Millisecond
)

// session is the library from its initialisation to its shutdown.
type session struct {
	*owner
	driver string
	gpus   []*tracked
	events eventSet
	// ended is why no further call will work.
	ended *failure
	// selected is when the selection was last made.
	selected time.Time
}

// session reads GPUs until ctx ends, or fails with why it no longer can. It
// returns nil to be opened anew.
func (o *owner) session(ctx context.Context) error {
	s := &session{owner: o}
	var opening error
	o.call("nvmlInit", func() code { opening = o.lib.open(); return success })
	if oe, ok := errors.AsType[*openError](opening); ok {
		return &failure{reason: oe.reason, detail: oe.text}
	} else if opening != nil {
		return fmt.Errorf("opening the NVML library: %w", opening)
	}
	defer s.close()
	s.call("nvmlSystemGetDriverVersion", func() (c code) { s.driver, c = o.lib.driverVersion(); return c })
	if err := s.discover(); err != nil {
		return err
	}
	o.everUp = true
	var lostSince time.Time
	for ctx.Err() == nil {
		start := time.Now()
		if err := s.poll(start); err != nil {
			return err
		}
		if !s.anyLost() {
			lostSince = time.Time{}
		} else if lostSince.IsZero() {
			lostSince = start
		} else if start.Sub(lostSince) >= reopenAfter {
			return nil
		}
		next := start.Add(o.c.config.Interval)
		if now := time.Now(); !next.After(now) {
			// Falling behind must not turn into polling without pause.
			next = now.Add(o.c.config.Interval)
		}
		s.idle(ctx, next)
		if o.status.SelectionAmbiguous || o.status.Selection == selectedByProcess || o.status.Selection == selectedByDeviceFile {
			if time.Since(s.selected) >= selectEvery {
				if err := s.discover(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// poll reads every GPU and publishes.
func (s *session) poll(start time.Time) error {
	readings := make([]Reading, 0, len(s.expected))
	found := map[string]bool{}
	alive := 0
	for _, t := range s.gpus {
		r := s.read(t, start)
		if s.ended != nil {
			return s.ended
		}
		if r.Lost == "" {
			alive++
		}
		found[r.UUID] = true
		readings = append(readings, r)
	}
	for _, e := range s.expected {
		if !found[e.UUID] {
			e.At, e.XIDs = start, s.xidList(e)
			readings = append(readings, e.lost("not_visible"))
		}
	}
	if alive == 0 {
		lost := map[string]string{}
		for _, r := range readings {
			lost[r.UUID] = r.Lost
		}
		return &failure{DevicesLost, fmt.Sprintf("none of the %d expected GPUs can be read: %s", len(readings), readings[0].Lost), lost}
	}
	if !s.status.Up {
		s.c.logger.Info("reading GPUs", "gpus", alive, "of", len(readings), "driver", s.driver, "selected_by", s.status.Selection)
	}
	s.status.Up, s.status.Reason, s.status.Detail = true, OK, ""
	s.status.LastSuccess = time.Now()
	s.status.CollectDuration = s.status.LastSuccess.Sub(start)
	s.publish(readings)
	return nil
}

func (s *session) anyLost() bool {
	return len(s.gpus) < len(s.expected) || slices.ContainsFunc(s.gpus, func(t *tracked) bool { return t.lost != "" })
}

// idle waits for events until next. An event ends it early: the driver's
// verdict may have changed.
func (s *session) idle(ctx context.Context, next time.Time) {
	for ctx.Err() == nil {
		left := time.Until(next)
		if left <= 0 {
			return
		}
		if s.events == nil {
			select {
			case <-ctx.Done():
			case <-time.After(left):
			}
			return
		}
		var e event
		c := s.call("nvmlEventSetWait", func() (c code) {
			e, c = s.events.wait(uint32(max(1, min(left, waitSlice).Milliseconds())))
			return c
		})
		switch c {
		case success:
			s.note(e)
			next = minTime(next, time.Now().Add(minPollGap))
		case timedOut:
		default:
			// Waiting on would spin. The next session registers anew.
			s.c.logger.Warn("GPU events are no longer received", "code", c)
			s.freeEvents()
		}
	}
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// note counts an event.
func (s *session) note(e event) {
	if e.kind != eventXID {
		s.c.logger.Warn("GPU event", "event", eventName(e.kind), "uuid", e.uuid)
		return
	}
	s.c.logger.Warn("GPU error", "xid", e.data, "class", ClassOf(e.data), "uuid", e.uuid)
	counts, ok := s.xids[e.uuid]
	if !ok || !counts.add(e.data, time.Now()) {
		s.reject("xid_not_counted")
	}
}

// close frees what the session holds. The library must be shut down even
// when GPUs are lost: an open handle keeps the driver from being unloaded.
func (s *session) close() {
	for _, t := range s.gpus {
		s.freeSamples(t)
	}
	s.freeEvents()
	s.call("nvmlShutdown", s.lib.shutdown)
}

func (s *session) freeEvents() {
	if s.events == nil {
		return
	}
	s.call("nvmlEventSetFree", s.events.free)
	s.events = nil
	for _, t := range s.gpus {
		if !t.isInstance() {
			t.capabilities["xid_events"] = false
		}
	}
}

// watch registers the whole GPUs for events. What happened before is not told.
func (s *session) watch() {
	if s.events != nil {
		return
	}
	set, c := eventSet(nil), success
	if c = s.call("nvmlEventSetCreate", func() (c code) { set, c = s.lib.newEventSet(); return c }); c != success {
		return
	}
	registered := 0
	for _, t := range s.gpus {
		if t.isInstance() {
			continue
		}
		var kinds uint64
		c := s.call("nvmlDeviceGetSupportedEventTypes", func() (c code) { kinds, c = t.handle.supportedEvents(); return c })
		if c != success || kinds&eventXID == 0 {
			continue
		}
		if s.call("nvmlDeviceRegisterEvents", func() code { return set.register(t.handle, t.identity.UUID, kinds&eventsWanted) }) == success {
			t.capabilities["xid_events"] = true
			registered++
		}
	}
	s.events = set
	if registered == 0 {
		s.freeEvents()
	}
}
