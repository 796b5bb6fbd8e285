package gpu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"
)

// Waits before the library is set up anew.
const (
	minBackoff = 5 * time.Second
	maxBackoff = time.Minute
	// reopenAfter is when a session with a lost GPU among healthy ones ends: a
	// new one may find it reset, and releases the handles that a reset needs gone.
	reopenAfter = 30 * time.Second
)

// owner is the goroutine that makes every call of the library. What it keeps
// outlives the library's sessions.
type owner struct {
	c   *Collector
	lib library

	status   Status
	calls    map[string]Call
	rejected map[string]uint64
	xids     map[string]xidCounts
	// expected are the GPUs that were ever found to be ours, in order, as last
	// identified. One that vanishes is lost, not forgotten.
	expected []Reading
	// chosen are the UUIDs last selected by processes.
	chosen []string
	everUp bool
	// mourned is why each lost GPU was last said to be lost.
	mourned map[string]string
}

func newOwner(c *Collector) *owner {
	return &owner{c: c, lib: c.lib, calls: map[string]Call{}, rejected: map[string]uint64{}, xids: map[string]xidCounts{}, mourned: map[string]string{}}
}

// failure ends a session.
type failure struct {
	reason Reason
	detail string
	// lost is why, by UUID, where that is known of each GPU.
	lost map[string]string
}

func (f *failure) Error() string { return string(f.reason) + ": " + f.detail }

// run opens session after session until ctx ends or the driver is replaced.
func (o *owner) run(ctx context.Context) error {
	backoff := minBackoff
	said := Starting
	for {
		opened := time.Now()
		err := o.guard(func() error { return o.session(ctx) })
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			// A healthy session is reopened at once for the sake of a lost GPU.
			continue
		}
		f, ok := errors.AsType[*failure](err)
		if !ok {
			f = &failure{reason: DriverError, detail: err.Error()}
		}
		reason, detail := f.reason, f.detail
		if o.status.Up {
			said = OK
		}
		o.down(f)
		if reason == Mismatch && o.everUp {
			o.c.logger.Error("GPU driver replaced", "detail", detail)
			return ErrDriverChanged
		}
		if reason != said {
			said = reason
			o.c.logger.Warn("GPUs are not read", "reason", reason, "detail", detail)
		}
		if reason == NotBuilt {
			<-ctx.Done()
			return nil
		}
		if time.Since(opened) > maxBackoff {
			backoff = minBackoff
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// guard recovers a panic: the engine's headroom must not die of a GPU reading.
func (o *owner) guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			o.c.inFlight.Store(nil)
			o.status.Panics++
			o.c.logger.Error("panic while reading GPUs", "panic", p, "stack", string(debug.Stack()))
			err = &failure{reason: Panicked, detail: fmt.Sprint(p)}
		}
	}()
	return f()
}

// call makes one driver call, timed, and visible from outside while it lasts.
func (o *owner) call(name string, f func() code) code {
	start := time.Now()
	o.c.inFlight.Store(&pendingCall{name, start})
	c := f()
	o.c.inFlight.Store(nil)
	took := time.Since(start)
	n := o.calls[name]
	n.Count++
	n.Total += took
	n.Max = max(n.Max, took)
	if c != success && !c.absent() && c != timedOut {
		// Replaced, not changed: a published snapshot may hold it.
		n.Errors = maps.Clone(n.Errors)
		if n.Errors == nil {
			n.Errors = map[string]uint64{}
		}
		n.Errors[c.String()]++
	}
	o.calls[name] = n
	return c
}

func (o *owner) reject(reason string) { o.rejected[reason]++ }

// expect adds a GPU to the expected set, or refreshes what is known of it.
func (o *owner) expect(r Reading) {
	at := slices.IndexFunc(o.expected, func(e Reading) bool { return e.UUID == r.UUID })
	if at >= 0 {
		o.expected[at] = r
		return
	}
	o.expected = append(o.expected, r)
}

// down publishes that there are no readings and why.
func (o *owner) down(f *failure) {
	o.status.Up, o.status.Reason, o.status.Detail = false, f.reason, f.detail
	readings := make([]Reading, len(o.expected))
	for i, e := range o.expected {
		e.At = time.Now()
		e.XIDs = o.xidList(e)
		why := string(f.reason)
		if own, ok := f.lost[e.UUID]; ok {
			why = own
		}
		readings[i] = e.lost(why)
	}
	o.publish(readings)
}

func (o *owner) xidList(r Reading) []XIDCount {
	if counts, ok := o.xids[r.UUID]; ok {
		return counts.list()
	}
	return nil
}

func (o *owner) publish(readings []Reading) {
	s := Snapshot{At: time.Now(), Status: o.status, Readings: readings}
	s.Status.Calls = maps.Clone(o.calls)
	s.Status.Rejected = maps.Clone(o.rejected)
	s.Status.Expected = len(o.expected)
	o.c.published.Store(&s)
}
