package probe

import (
	"context"
	"time"

	"headroom_exporter/probe/workload"
)

// ahead is how many requests are made before they are due.
const ahead = 64

// planned is a request with its body.
type planned struct {
	request workload.Request
	stream  *stream
	// prime tells that it does not count, see Point.Prime.
	prime bool
}

// open sends requests at their planned times, whatever the engine does. The
// times are never shifted: what is late is sent at once, and counts from when
// it was due.
func (u *run) open(ctx, flightCtx context.Context, wait func(context.Context, time.Duration) error) {
	making, stop := context.WithCancel(ctx)
	defer stop()
	next := make(chan planned, ahead)
	go u.make(making, next)
	slots := newSlots(u.point.MaxInflight)
	ended := false
	for p := range next {
		q := p.request
		due := u.zero + q.At
		if u.end != Never && due >= u.end {
			u.full = true
			break
		}
		if !ended {
			if d := due - u.Client.now(); d > 0 && wait(ctx, d) != nil {
				break
			}
		}
		phase := PhasePrime
		if !p.prime {
			phase = u.phaseAt(due)
		}
		if !u.admit(phase) {
			break
		}
		if q.Turn > 0 {
			u.later(ctx, flightCtx, slots, q)
			continue
		}
		ready, ok := due, !ended
		if ok {
			ready, ok = u.clear(ctx, slots, due)
		}
		if ctx.Err() != nil {
			break
		}
		if !ok {
			// The end came while this one was held back: so it is for all behind it.
			ended = true
			u.unsent(&q, due, phase)
			continue
		}
		session := u.sessions.begin(&q)
		u.flights.Go(func() {
			u.sessions.end(session, u.fly(flightCtx, p.stream, &q, due, ready, phase))
			slots.give()
		})
	}
}

// make makes requests with their bodies until the context ends.
func (u *run) make(ctx context.Context, next chan<- planned) {
	defer close(next)
	source := primed{source: u.point.Source, prime: u.point.Prime}
	for {
		q, prime, ok := source.next()
		if !ok {
			return
		}
		p := planned{request: q, prime: prime}
		if q.Turn == 0 {
			u.point.Fill(&p.request)
			p.stream = u.Client.prepare(&p.request)
			// The body has it; what is in flight should not hold it twice.
			p.request.Tokens, p.request.Text = nil, ""
		}
		select {
		case <-ctx.Done():
			return
		case next <- p:
		}
	}
}

// primed is a source with one of requests that do not count, in the order of both.
type primed struct {
	source, prime workload.Source
	// ahead were read from either and wait for their turn.
	ahead, primeAhead *workload.Request
}

func (p *primed) next() (q workload.Request, prime, ok bool) {
	if p.ahead == nil {
		if q, ok := p.source.Next(); ok {
			p.ahead = &q
		}
	}
	if p.primeAhead == nil && p.prime != nil {
		if q, ok := p.prime.Next(); ok {
			p.primeAhead = &q
		}
	}
	switch {
	case p.primeAhead != nil && (p.ahead == nil || p.primeAhead.At <= p.ahead.At):
		q, p.primeAhead = *p.primeAhead, nil
		return q, true, true
	case p.ahead != nil:
		q, p.ahead = *p.ahead, nil
		return q, false, true
	}
	return workload.Request{}, false, false
}

// clear waits until caps let a request go. It returns when that was, and
// false when the end of the point came first.
func (u *run) clear(ctx context.Context, slots slots, due time.Duration) (ready time.Duration, ok bool) {
	if u.end != Never && slots != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(u.end-u.Client.now(), 0))
		defer cancel()
	}
	held := !slots.try()
	if held && slots.take(ctx) != nil {
		u.measured.capped()
		return 0, false
	}
	if d := u.limit.delay(u.Client.now()); d > 0 {
		held = true
		if sleep(ctx, d) != nil {
			slots.give()
			u.measured.capped()
			return 0, false
		}
	}
	if !held {
		return due, true
	}
	u.measured.capped()
	return u.Client.now(), true
}

// later sends a session's later turn when the one before has ended, the think
// time is over and its planned time has come. It is due at the last of these.
func (u *run) later(ctx, flightCtx context.Context, slots slots, q workload.Request) {
	session := u.sessions.begin(&q)
	u.flights.Go(func() {
		end := u.sessions.await(ctx, session)
		due := max(u.zero+q.At, end+q.ThinkTime)
		if sleep(ctx, due-u.Client.now()) != nil || u.end != Never && due >= u.end {
			u.sessions.end(session, u.Client.now())
			return
		}
		ready, ok := u.clear(ctx, slots, due)
		phase := u.phaseAt(due)
		if !ok {
			// An interrupted run has not let this one down.
			if cause := context.Cause(ctx); cause == nil || cause == errDrained {
				u.unsent(&q, due, phase)
			}
			u.sessions.end(session, u.Client.now())
			return
		}
		u.point.Fill(&q)
		s := u.Client.prepare(&q)
		u.sessions.end(session, u.fly(flightCtx, s, &q, due, ready, phase))
		slots.give()
	})
}

// slots are the places in flight; nil is no bound.
type slots chan struct{}

func newSlots(n int) slots {
	if n == 0 {
		return nil
	}
	return make(slots, n)
}

func (s slots) try() bool {
	if s == nil {
		return true
	}
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s slots) take(ctx context.Context) error {
	if s == nil {
		return nil
	}
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s slots) give() {
	if s != nil {
		<-s
	}
}
