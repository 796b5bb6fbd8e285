package probe

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"headroom_exporter/probe/knee"
	"headroom_exporter/probe/workload"
)

// supply makes the requests of one load.
type supply struct {
	load *knee.Load
	// maxModelLen is the engine's context.
	maxModelLen int
	// content and primeContent decide the tokens, salt keeps the prefix cache
	// apart: no load of any run has prompts of another one's.
	content, primeContent uint64
	salt                  string
}

func newSupply(t *Target, l *knee.Load) *supply {
	return &supply{
		load: l, maxModelLen: t.config.Facts.MaxModelLen,
		content: rand.Uint64(), primeContent: rand.Uint64(), salt: workload.NewCacheSalt(),
	}
}

// shared tells that prompts of the trace share prefixes by design.
func (s *supply) shared() bool {
	r := s.load.Traffic.Replay
	return r != nil && r.Trace != nil && len(r.Trace.Records) > 0 && (r.Trace.BlockSize > 0 || r.Trace.Records[0].SessionID != "")
}

// source gives the requests in the order of their times, always the same.
func (s *supply) source() (workload.Source, error) {
	closed := s.load.Concurrency > 0
	var source workload.Source
	var err error
	switch {
	case s.load.Traffic.Replay != nil:
		source, err = newRepeated(s)
	case s.load.Traffic.Arrivals.Process == "trace":
		return nil, errors.New("its arrivals are a trace, and there is none")
	case closed:
		return s.plan(s.load.Seed, s.content).Source()
	default:
		a := s.load.Traffic.Arrivals
		p := s.plan(s.load.Seed, s.content)
		p.Arrivals = &workload.Arrivals{Process: workload.Process(a.Process), Rate: 1, Burstiness: a.Burstiness}
		source, err = p.Source()
	}
	if err != nil || closed {
		return source, err
	}
	return &stepped{source: source, steps: s.load.Steps, end: s.load.Duration()}, nil
}

func (s *supply) plan(seed, content uint64) workload.Plan {
	return workload.Plan{
		Classes: s.load.Traffic.Classes, MaxModelLen: s.maxModelLen, Seed: seed, ContentSeed: content, CacheSalt: s.salt,
	}
}

// stepped plays a source of one request a second at rates, one after the
// other: what comes at the second n comes when the integral of the rate
// reaches n. For Poisson and gamma that is the process whose clock runs at the
// rate of the moment.
type stepped struct {
	source workload.Source
	steps  []knee.Step
	end    time.Duration
	// before is the integral at the beginning of steps[0], which is at begin.
	before float64
	begin  time.Duration
}

// Next implements workload.Source.
func (s *stepped) Next() (workload.Request, bool) {
	q, ok := s.source.Next()
	if ok {
		q.At = s.at(q.At.Seconds())
	}
	return q, ok
}

// at returns when the integral reaches n, which must not fall; the end when it does not.
func (s *stepped) at(n float64) time.Duration {
	for ; len(s.steps) > 0; s.steps = s.steps[1:] {
		step := s.steps[0]
		if left := n - s.before; left < step.Rate*step.Duration.Seconds() {
			return s.begin + time.Duration(left/step.Rate*float64(time.Second))
		}
		s.before += step.Rate * step.Duration.Seconds()
		s.begin += step.Duration
	}
	return s.end
}

// repeated plays a trace at a mean rate of one request a second, over and
// over, each time with contents of its own.
type repeated struct {
	supply *supply
	round  int
	source workload.Source
	// rate is the trace's own mean rate, count its requests.
	rate, count float64
	index       int
}

func newRepeated(s *supply) (*repeated, error) {
	r := &repeated{supply: s}
	last := time.Duration(0)
	source, err := s.played(0)
	if err != nil {
		return nil, err
	}
	for q := range workload.All(source) {
		r.count++
		last = q.At
	}
	if r.count < 2 || last <= 0 {
		return nil, errors.New("a trace needs requests at different times")
	}
	r.rate = (r.count - 1) / last.Seconds()
	r.source, err = s.played(0)
	return r, err
}

// played is one round of the trace, at its own speed.
func (s *supply) played(round int) (workload.Source, error) {
	p := *s.load.Traffic.Replay
	p.Classes, p.MaxModelLen, p.CacheSalt = s.load.Traffic.Classes, s.maxModelLen, s.salt
	p.Seed, p.ContentSeed = s.load.Seed+uint64(round), s.content+uint64(round)
	p.Speed, p.PeakFactor, p.Requests, p.Duration = 1, 1, 0, 0
	return p.Source()
}

// Next implements workload.Source.
func (r *repeated) Next() (workload.Request, bool) {
	q, ok := r.source.Next()
	if !ok {
		r.round++
		source, err := r.supply.played(r.round)
		if err != nil {
			return q, false // the first round was made the same way
		}
		r.source = source
		if q, ok = source.Next(); !ok {
			return q, false
		}
	}
	at := q.At.Seconds()*r.rate + float64(r.round)*r.count
	q.At = time.Duration(at * float64(time.Second))
	if r.round > 0 && q.SessionID != "" {
		q.SessionID = fmt.Sprintf("%s-round-%d", q.SessionID, r.round)
	}
	q.Index = r.index
	r.index++
	return q, true
}

// primeSpread is how far apart requests that fill the engine are launched:
// fast enough that the first has hardly begun when the last comes, and slow
// enough for the client.
const primeSpread = 250 * time.Microsecond

// prime gives the requests that fill the engine, each with a uniformly random
// share of its output left.
func (s *supply) prime() (workload.Source, error) {
	rng := rand.New(rand.NewPCG(s.load.Seed, primeStream))
	from := *s
	from.content = s.primeContent
	var source workload.Source
	var err error
	if s.load.Traffic.Replay != nil {
		source, err = newRepeated(&from)
	} else {
		source, err = from.plan(^s.load.Seed, from.content).Source()
	}
	if err != nil {
		return nil, err
	}
	p := &prepared{}
	// Later turns of sessions cannot come first; there are at most so many of them.
	for range maxPrimeDraws * s.load.Prime {
		q, ok := source.Next()
		if !ok || len(p.requests) == s.load.Prime {
			break
		}
		if q.Turn > 0 {
			continue
		}
		q.Index, q.At = len(p.requests), time.Duration(len(p.requests))*primeSpread
		q.SessionID, q.Turns = "", 0
		q.MaxTokens = 1 + int(rng.Float64()*float64(q.MaxTokens))
		p.requests = append(p.requests, q)
	}
	return p, nil
}

const (
	// primeStream sets the draws of shares apart from others of the same seed.
	primeStream   = 0x7072696d65
	maxPrimeDraws = 1000
)

// primesDue is how many of n such requests are due at a time.
func primesDue(n int, at time.Duration) int {
	if at < 0 {
		return 0
	}
	return min(n, int(math.Floor(float64(at)/float64(primeSpread)))+1)
}

// prepared is a source of requests that were made before.
type prepared struct{ requests []workload.Request }

// Next implements workload.Source.
func (p *prepared) Next() (workload.Request, bool) {
	if len(p.requests) == 0 {
		return workload.Request{}, false
	}
	q := p.requests[0]
	p.requests = p.requests[1:]
	return q, true
}
