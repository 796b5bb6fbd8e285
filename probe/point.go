package probe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"headroom_exporter/collector/engine"
	"headroom_exporter/probe/workload"
)

// Point is one load to be put on the engine and measured.
type Point struct {
	Name   string
	Source workload.Source
	// Fill makes a request's prompt: its token ids or its text.
	Fill func(*workload.Request)
	// Prime gives requests that an open loop sends besides, at their planned
	// times, and does not count: they fill an engine that would be full. nil for none.
	Prime workload.Source
	// Concurrency is the closed loop's number of requests in flight; 0 is open
	// loop, in which requests go out at their planned times.
	Concurrency int
	// Rate is the planned mean rate in requests per second, for display; 0 is unknown.
	Rate float64
	// Warmup is how long at the beginning requests are sent and not counted.
	Warmup time.Duration
	// Duration is how long requests are sent after the warm-up; 0 is until the
	// source or Requests end.
	Duration time.Duration
	// Requests is how many are counted at most; 0 is no bound.
	Requests int
	// MaxInflight bounds requests in flight in open loop; 0 is no bound. When
	// it holds one back, the point is marked capped and the time counts.
	MaxInflight int
	// MaxRate bounds requests per second, with bursts of up to one second's worth; 0 is no bound.
	MaxRate float64
	// Drain is how long requests in flight may take after the last was sent;
	// 0 leaves them their own deadline.
	Drain time.Duration
	// SLO are the bounds of every class that ClassSLO does not name.
	SLO      []workload.SLO
	ClassSLO map[string][]workload.SLO
	// SharedPrefixes tells that prompts share prefixes by design, so that hits
	// of the prefix cache are no fault.
	SharedPrefixes bool

	// follow, when set, is told what happens and may end the point.
	follow follower
}

// follower follows a point under way.
type follower interface {
	// begin comes before anything is sent.
	begin(*run)
	// done takes every request as it ended, from many goroutines, and its
	// exchange for the time of the call; nil for one that was never sent. It must not block.
	done(*workload.Request, *Record, *Exchange)
	// look comes after each reading of the engine, about every
	// Readings.Interval, from one goroutine. What it returns ends the point; nil goes on.
	look(engine.Observation) error
}

func (p *Point) validate() error {
	switch {
	case p.Source == nil || p.Fill == nil:
		return errors.New("a point needs a source and a way to make prompts")
	case p.Concurrency < 0 || p.MaxInflight < 0 || p.Requests < 0:
		return fmt.Errorf("point %s: counts must not be negative", p.Name)
	case p.Warmup < 0 || p.Duration < 0 || p.Drain < 0 || p.MaxRate < 0 || p.Rate < 0:
		return fmt.Errorf("point %s: times and rates must not be negative", p.Name)
	}
	return nil
}

// slos returns the bounds of a class.
func (p *Point) slos(class string) []workload.SLO {
	if s, ok := p.ClassSLO[class]; ok {
		return s
	}
	return p.SLO
}

// sleep waits with a timer.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
