package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"headroom_exporter/probe/knee"
	"headroom_exporter/probe/workload"
)

// TargetConfig says how a search reaches an engine and what it must keep.
type TargetConfig struct {
	// Runner sends the requests. Its Readings are what the search sees of the
	// engine and the GPUs; without them only failures can abort a load.
	Runner *Runner
	// Facts are what the engine told before the load.
	Facts *Facts
	// AllowShared lets the search run beside others' requests.
	AllowShared bool
	// MaxInflight requests at once and MaxRate requests per second bound every load; 0 is no bound.
	MaxInflight int
	MaxRate     float64
	// Drain is how long requests in flight may take after a load's last one was sent; 0 is a minute.
	Drain time.Duration
	// Settle is how long an engine must be as idle as before ahead of each load; 0 is 5 s.
	Settle time.Duration
	// SettleWithin is how long it may take until it is; 0 is a minute.
	SettleWithin time.Duration
	// StaleAfter is how old the newest reading may become under load; 0 is 2 s,
	// or four intervals of the readings where that is more.
	StaleAfter time.Duration
	// Started is what the starts of points count from; zero is the first load.
	Started time.Time
	// Report is told what happens besides, in a line; may be nil.
	Report func(line string)
}

// Target is an engine under a search, on the wall clock: it puts the search's
// loads on it, one at a time, and keeps others on the same engine from harm.
// It implements knee.Engine.
type Target struct {
	config TargetConfig
	// before is how idle the engine was; nil until Begin.
	before *idleness
	// rested tells that no load came since the engine was seen idle.
	rested bool
	// ahead is the time from Started to the first load.
	ahead time.Duration
	begun bool
	notes []string
}

// NewTarget makes a target; it sends nothing yet.
func NewTarget(c TargetConfig) *Target {
	r := Readings{}
	if c.Runner.Readings != nil {
		r = *c.Runner.Readings
	}
	if r.Interval == 0 {
		r.Interval = DefaultReadingInterval
	}
	c.Runner.Readings = &r
	for _, d := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&c.Drain, time.Minute}, {&c.Settle, 5 * time.Second}, {&c.SettleWithin, time.Minute},
		{&c.StaleAfter, max(2*time.Second, 4*r.Interval)},
	} {
		if *d.value == 0 {
			*d.value = d.fallback
		}
	}
	return &Target{config: c}
}

// Notes say what was found out about the engine that bears on the result.
func (t *Target) Notes() []string { return slices.Clone(t.notes) }

func (t *Target) note(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if !slices.Contains(t.notes, line) {
		t.notes = append(t.notes, line)
		t.report("%s", line)
	}
}

func (t *Target) report(format string, args ...any) {
	if t.config.Report != nil {
		t.config.Report(fmt.Sprintf(format, args...))
	}
}

// errStopped is why the requests of a load that its monitor ended were cancelled.
var errStopped = errors.New("cancelled by the probe: the load was ended early")

// Run implements knee.Engine. The context bounds it: a deadline of the whole
// search is the context's. An error that wraps knee.ErrHarm is a *HarmError;
// which load an error is of, the search says.
func (t *Target) Run(ctx context.Context, l *knee.Load, m knee.Monitor) (*knee.Observation, error) {
	if err := sleep(ctx, l.Pause); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := t.settle(ctx); err != nil {
		return nil, err
	}
	f, point, err := t.prepare(l, m)
	if err != nil {
		return nil, err
	}
	t.rested = false
	if !t.begun && !t.config.Started.IsZero() {
		t.ahead = time.Since(t.config.Started)
	}
	t.begun = true
	result, err := t.config.Runner.Run(ctx, point)
	if err != nil {
		return nil, err
	}
	o := f.observation(result)
	o.Point.Start += t.ahead.Seconds()
	switch {
	case f.harm != nil:
		t.recovered(ctx, f)
		return o, f.harm
	case ctx.Err() != nil:
		return o, context.Cause(ctx)
	}
	return o, nil
}

// prepare makes the point of a load, and what follows it.
func (t *Target) prepare(l *knee.Load, m knee.Monitor) (*following, Point, error) {
	c := &t.config
	p := Point{
		Name: l.Name, Fill: c.Facts.Fill, Concurrency: l.Concurrency,
		Warmup: l.Warmup, Duration: l.Duration() - l.Warmup, Drain: c.Drain,
		MaxInflight: c.MaxInflight,
		SLO:         l.Traffic.SLO, ClassSLO: map[string][]workload.SLO{},
	}
	f := &following{target: t, load: l, monitor: m, class: map[string]int{}}
	switch {
	case p.Warmup < 0 || p.Duration <= 0:
		return nil, p, fmt.Errorf("a warm-up of %s within %s leaves nothing to measure", l.Warmup, l.Duration())
	case c.MaxInflight > 0 && l.Concurrency > c.MaxInflight:
		return nil, p, fmt.Errorf("%d requests in flight are more than the %d allowed", l.Concurrency, c.MaxInflight)
	}
	switch {
	case l.Concurrency > 0:
		p.MaxRate = c.MaxRate
	case len(l.Steps) == 1:
		// A search does not ask for more than MaxRate, and what holds back arrivals
		// that happen to come together would be a queue that is not the engine's.
		p.Rate = l.Steps[0].Rate
	}
	for i := range l.Traffic.Classes {
		class := &l.Traffic.Classes[i]
		f.class[class.Name] = i
		p.ClassSLO[class.Name] = l.Traffic.SLOs(i)
		if class.Prefix != (workload.Prefix{}) || class.Session.Turns > 1 {
			p.SharedPrefixes = true
		}
	}
	s := newSupply(t, l)
	p.SharedPrefixes = p.SharedPrefixes || s.shared()
	var err error
	if p.Source, err = s.source(); err != nil {
		return nil, p, err
	}
	if l.Concurrency == 0 {
		// The same arrivals again, to tell at any time how many are due.
		if f.schedule, err = s.source(); err != nil {
			return nil, p, err
		}
		if l.Prime > 0 {
			if p.Prime, err = s.prime(); err != nil {
				return nil, p, err
			}
		}
	}
	p.follow = f
	return f, p, nil
}
