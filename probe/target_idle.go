package probe

import (
	"context"
	"fmt"
	"math"
	"time"

	"headroom_exporter/collector/engine"
	"headroom_exporter/probe/knee"
)

// How long the engine is looked at before a search. In the first part the
// probe's own small requests may still be on the page.
const (
	beginFor   = 3 * time.Second
	beginGrace = time.Second
	// sharedFor is how long an engine is looked at that others use.
	sharedFor = 10 * time.Second
)

// maxKVAbove is how much more of the KV cache may be in use than before.
const maxKVAbove = 0.05

// idleness is how idle an engine is with nothing of ours on it.
type idleness struct {
	// readable tells that it could be read.
	readable bool
	// The most of each gauge; NaN is unknown.
	running, waiting, kv float64
	// begun counts the answers that began meanwhile.
	begun float64
}

// others tells that requests were there.
func (i *idleness) others() bool { return i.running+i.waiting > 0 || i.begun > 0 }

func (i *idleness) String() string {
	return fmt.Sprintf("%s running, %s waiting, %s of the KV cache in use",
		number(Value(i.running), 0), number(Value(i.waiting), 0), percent(Value(i.kv)))
}

// more is the larger of two gauges, of which NaN is not known.
func more(a, b float64) float64 {
	if math.IsNaN(a) || b > a {
		return b
	}
	return a
}

// read reads the engine once, if it can be.
func (t *Target) read(ctx context.Context) engine.Observation {
	p := t.config.Runner.Readings.Poller
	if p == nil {
		return engine.Observation{Reason: "nothing reads them"}
	}
	return p.Poll(ctx)
}

// Begin looks for a few seconds how idle the engine is, and remembers it.
// Others' requests are refused with an error that wraps knee.ErrBusy, unless
// sharing is allowed. Run calls it when nobody did.
func (t *Target) Begin(ctx context.Context) error {
	nan := math.NaN()
	before := &idleness{running: nan, waiting: nan, kv: nan}
	begin, until := time.Now(), beginFor
	var first *engine.Reading
	var last engine.Observation
	for ctx.Err() == nil && time.Since(begin) < until {
		last = t.read(ctx)
		if last.Fresh && time.Since(begin) >= beginGrace {
			g := gaugesOf(&last)
			before.readable = true
			before.running, before.waiting, before.kv = more(before.running, g.running), more(before.waiting, g.waiting), more(before.kv, g.kv)
			if first == nil {
				first = last.Reading
			}
			before.begun = total(last.Reading).ttft.count - total(first).ttft.count
			if t.config.AllowShared && before.others() {
				until = sharedFor
			}
		}
		_ = sleep(ctx, t.config.Runner.Readings.Interval)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch {
	case !before.readable:
		t.note("the engine's metrics cannot be read (%s): others' requests cannot be seen, and only failures and GPUs end a load for safety", last.Reason)
	case math.IsNaN(before.running + before.waiting):
		t.note("the engine does not say what runs and waits: between loads only the probe's own requests are waited for")
	}
	if before.others() {
		if !t.config.AllowShared {
			return fmt.Errorf("%w: with nothing of the probe on it, it had up to %s and began %s answers in %s; wait until it is free, or give --allow-shared",
				knee.ErrBusy, before, number(Value(before.begun), 0), beginFor-beginGrace)
		}
		t.note("others use the engine: up to %s before the first load", before)
	}
	t.before, t.rested = before, true
	return nil
}

// settle waits until the engine is as idle as it was before the search.
func (t *Target) settle(ctx context.Context) error {
	if t.before == nil {
		if err := t.Begin(ctx); err != nil {
			return err
		}
	}
	if t.rested || !t.before.readable {
		return context.Cause(ctx)
	}
	begin := time.Now()
	var since time.Time
	for {
		o := t.read(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		why := t.before.busier(&o)
		switch {
		case why != "":
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		}
		if why == "" && time.Since(since) >= t.config.Settle {
			t.rested = true
			return nil
		}
		if time.Since(begin) >= t.config.SettleWithin {
			if why == "" {
				why = "it comes and goes"
			}
			return fmt.Errorf("%w: after %s without a request of the probe: %s; before the search: %s", knee.ErrBusy, t.config.SettleWithin, why, t.before)
		}
		if sleep(ctx, t.config.Runner.Readings.Interval) != nil {
			return context.Cause(ctx)
		}
	}
}

// busier says in which way the engine is busier than it was; empty when it is not.
func (i *idleness) busier(o *engine.Observation) string {
	if !o.Fresh {
		return "its metrics cannot be read (" + o.Reason + ")"
	}
	g := gaugesOf(o)
	switch {
	case g.running > i.running+1:
		return fmt.Sprintf("%.0f requests run", g.running)
	case g.waiting > i.waiting:
		return fmt.Sprintf("%.0f requests wait", g.waiting)
	case g.kv > i.kv+maxKVAbove:
		return fmt.Sprintf("%s of the KV cache is in use", percent(Value(g.kv)))
	}
	return ""
}

// recoverWithin is how long an engine is watched after a load was aborted.
const recoverWithin = 10 * time.Second

// recovered watches until nothing waits in an engine whose load was aborted,
// but for what did before.
func (t *Target) recovered(ctx context.Context, f *following) {
	h := f.harm
	h.Drained = (f.lastEnd - h.noticed).Seconds()
	h.Recovered = math.NaN()
	if !t.before.readable {
		return
	}
	// Also when the caller has had enough: an aborted load is not left behind unseen.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recoverWithin)
	defer cancel()
	for ctx.Err() == nil {
		o := t.read(ctx)
		if gaugesOf(&o).waiting <= t.before.waiting {
			h.Recovered = (t.config.Runner.Client.now() - h.noticed).Seconds()
			return
		}
		_ = sleep(ctx, t.config.Runner.Readings.Interval)
	}
}
