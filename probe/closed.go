package probe

import (
	"context"
	"sync"
	"time"

	"headroom_exporter/probe/workload"
)

// closed keeps a number of requests in flight: each of so many users sends
// its next one when the one before has ended and its think time is over.
func (u *run) closed(ctx, flightCtx context.Context) {
	if sleep(ctx, u.zero-u.Client.now()) != nil {
		return
	}
	injecting, stop := context.WithCancel(ctx)
	defer stop()
	if u.end != Never {
		// Think times end with the point.
		injecting, stop = context.WithTimeout(injecting, u.end-u.Client.now())
		defer stop()
	}
	source := &sharedSource{source: u.point.Source}
	var users sync.WaitGroup
	for range u.point.Concurrency {
		users.Go(func() { u.user(injecting, flightCtx, source) })
	}
	users.Wait()
	u.full = u.end != Never && u.Client.now() >= u.end
}

// user sends one session after the other.
func (u *run) user(ctx, flightCtx context.Context, source *sharedSource) {
	for ctx.Err() == nil {
		session := source.take()
		if session == nil {
			return
		}
		ended := u.Client.now()
		for i := range session {
			q := &session[i]
			due := ended + q.ThinkTime
			if q.Turn == 0 || q.ThinkTime == 0 {
				due = u.Client.now()
			}
			if sleep(ctx, due-u.Client.now()) != nil || u.end != Never && due >= u.end {
				return
			}
			if d := u.limit.delay(u.Client.now()); d > 0 {
				u.measured.capped()
				if sleep(ctx, d) != nil {
					return
				}
			}
			u.point.Fill(q)
			s := u.Client.prepare(q)
			// A closed loop has no schedule to be late for: a user who is held
			// back, or whose prompt is still being made, has not asked yet.
			due = u.Client.now()
			phase := u.phaseAt(due)
			if !u.admit(phase) {
				return
			}
			u.flights.Add(1)
			ended = u.fly(flightCtx, s, q, due, due, phase)
			u.flights.Done()
		}
	}
}

// sharedSource gives whole sessions to users.
type sharedSource struct {
	mu     sync.Mutex
	source workload.Source
	// ahead is a request that was read and belongs to the next session.
	ahead *workload.Request
}

// take returns the requests of the next session in the order of their turns,
// one for a request that stands alone; nil at the end.
func (s *sharedSource) take() []workload.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, ok := s.next()
	if !ok {
		return nil
	}
	session := []workload.Request{first}
	for first.SessionID != "" {
		q, ok := s.next()
		if !ok {
			break
		}
		if q.SessionID != first.SessionID {
			s.ahead = &q
			break
		}
		session = append(session, q)
		if q.Turn+1 == q.Turns {
			break
		}
	}
	return session
}

func (s *sharedSource) next() (workload.Request, bool) {
	if s.ahead != nil {
		q := *s.ahead
		s.ahead = nil
		return q, true
	}
	return s.source.Next()
}

// sessions order the turns of sessions in open loop.
type sessions struct {
	mu   sync.Mutex
	last map[string]*turn
}

// turn is one turn of a session under way.
type turn struct {
	session string
	// before is the turn before; nil for the first.
	before *turn
	done   chan struct{}
	ended  time.Duration
}

// begin notes a turn; nil for a request that stands alone.
func (s *sessions) begin(q *workload.Request) *turn {
	if q.SessionID == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = make(map[string]*turn)
	}
	t := &turn{session: q.SessionID, before: s.last[q.SessionID], done: make(chan struct{})}
	s.last[q.SessionID] = t
	if q.Turns > 0 && q.Turn+1 == q.Turns {
		delete(s.last, q.SessionID)
	}
	return t
}

// await waits for the end of the turn before and returns when it was.
func (s *sessions) await(ctx context.Context, t *turn) time.Duration {
	if t.before == nil {
		return 0
	}
	select {
	case <-t.before.done:
	case <-ctx.Done():
		return 0
	}
	ended := t.before.ended
	t.before = nil
	return ended
}

func (s *sessions) end(t *turn, at time.Duration) {
	if t != nil {
		t.ended = at
		close(t.done)
	}
}

// rateLimit is a bound on requests per second that allows bursts of one
// second's worth (the generic cell rate algorithm of ITU-T I.371).
type rateLimit struct {
	mu   sync.Mutex
	gap  time.Duration
	next time.Duration
}

func newRateLimit(rate float64) *rateLimit {
	if rate <= 0 {
		return nil
	}
	return &rateLimit{gap: time.Duration(float64(time.Second) / rate)}
}

// delay takes a place and returns how long to wait for it.
func (l *rateLimit) delay(now time.Duration) time.Duration {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = max(l.next, now-time.Second+l.gap)
	at := l.next
	l.next += l.gap
	return at - now
}
