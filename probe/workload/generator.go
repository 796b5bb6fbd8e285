package workload

import (
	"container/heap"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"math"
	mathrand "math/rand/v2"
	"strconv"
	"time"
)

// Plan is a synthetic load.
type Plan struct {
	Classes []Class
	// Arrivals are the open loop's; nil is closed loop, in which the runner
	// takes a request whenever it has room and a session's turns follow each other.
	Arrivals *Arrivals
	// Requests and Duration end the load, whichever comes first; 0 is no bound.
	// Duration bounds planned times, and so the open loop only.
	Requests int
	Duration time.Duration
	// MaxModelLen is the engine's context length in tokens: what is longer,
	// prompt and output together, is drawn again, and a session ends before it
	// would be. 0 is no bound.
	MaxModelLen int
	// Seed decides arrivals, classes, lengths and think times.
	Seed uint64
	// ContentSeed decides the tokens. Two runs with one of these share their
	// prompts, and the second is served from the prefix cache: take a new one
	// for each run unless that is wanted.
	ContentSeed uint64
	// CacheSalt goes into every request.
	CacheSalt string
}

// NewCacheSalt returns a new random salt in the form that vLLM takes: 32 hexadecimal digits.
func NewCacheSalt() string {
	var b [16]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return hex.EncodeToString(b[:])
}

// Source returns the requests of the plan.
func (p Plan) Source() (Source, error) {
	if err := ValidateClasses(p.Classes); err != nil {
		return nil, err
	}
	if p.Requests < 0 || p.Duration < 0 || p.MaxModelLen < 0 {
		return nil, fmt.Errorf("%d requests, a duration of %s and a context of %d tokens, want 0 or more", p.Requests, p.Duration, p.MaxModelLen)
	}
	g := &generator{plan: p, streams: newStreams(p.Seed)}
	for i := range p.Classes {
		g.drawers = append(g.drawers, newDrawer(&p.Classes[i]))
		if p.tooLong(&g.drawers[i]) == 1 {
			return nil, fmt.Errorf("class %q: its requests do not fit the context of %d tokens", p.Classes[i].Name, p.MaxModelLen)
		}
	}
	if p.Arrivals == nil {
		if p.Duration > 0 {
			return nil, errors.New("a closed loop has no planned times that a duration could bound")
		}
		return g, nil
	}
	if err := p.Arrivals.Validate(); err != nil {
		return nil, err
	}
	g.times = newArrivalTimes(*p.Arrivals, p.Seed)
	g.arrival = g.times.next()
	return g, nil
}

// fitDraws is how many draws tell which share of a class fits the context.
const fitDraws = 2000

// tooLong is about the share of requests that do not fit the context.
func (p *Plan) tooLong(d *drawer) float64 {
	if p.MaxModelLen <= 0 {
		return 0
	}
	rng, n := mathrand.New(mathrand.NewPCG(0, 0)), 0
	for range fitDraws {
		if prompt, output := d.draw(rng); over(prompt+output, p.MaxModelLen) {
			n++
		}
	}
	return float64(n) / fitDraws
}

// Notes say how the load differs from its classes; they belong to the result of a run.
func (p Plan) Notes() []string {
	var notes []string
	for i := range p.Classes {
		d := newDrawer(&p.Classes[i])
		if share := p.tooLong(&d); share > 0 {
			notes = append(notes, fmt.Sprintf("class %s: about %.1f %% of its requests are longer than the context of %d tokens, and others are drawn for them",
				p.Classes[i].Name, 100*share, p.MaxModelLen))
		}
	}
	return notes
}

// draw draws lengths that fit the context.
func (g *generator) draw(n int, rng *mathrand.Rand) (prompt, output int) {
	for range 100 * fitDraws {
		if prompt, output = g.drawers[n].draw(rng); !over(prompt+output, g.plan.MaxModelLen) {
			return prompt, output
		}
	}
	// Source found some that fit: this is next to impossible. Cut then.
	output = min(output, max(g.plan.MaxModelLen/2, 1))
	return max(g.plan.MaxModelLen-output, 1), output
}

// generator makes the requests of a plan. Arrivals begin sessions, most of
// them of one turn; turns that are still to come wait in a heap.
type generator struct {
	plan    Plan
	streams *streams
	drawers []drawer

	times *arrivalTimes
	// arrival is the planned time of session number sessions, the next to begin.
	arrival  time.Duration
	sessions uint64
	pending  pending
	issued   int
}

// Next implements Source.
func (g *generator) Next() (Request, bool) {
	if g.plan.Requests > 0 && g.issued == g.plan.Requests {
		return Request{}, false
	}
	open := g.plan.Arrivals != nil
	var s *session
	if len(g.pending) > 0 && (!open || g.pending[0].at <= g.arrival) {
		s = heap.Pop(&g.pending).(*session)
	} else {
		s = g.begin()
		if open {
			s.at = g.arrival
		}
		g.sessions++
		if open {
			g.arrival = g.times.next()
		}
	}
	if g.plan.Duration > 0 && s.at >= g.plan.Duration {
		return Request{}, false
	}
	r := s.request(&g.plan)
	r.Index = g.issued
	g.issued++
	if s.turn++; s.turn < len(s.turns) {
		if open {
			s.at += s.turns[s.turn].think
		}
		heap.Push(&g.pending, s)
	}
	return r, true
}

// session is a conversation under way. A single request is one of one turn.
type session struct {
	number uint64
	class  *Class
	turns  []turn
	turn   int
	at     time.Duration
	// said is what was said in the turns before.
	said content
}

// turn is what one turn adds.
type turn struct {
	prompt, output int
	think          time.Duration
	prefix         piece
}

// begin draws the next session with all its turns.
func (g *generator) begin() *session {
	rng := g.streams.at(domainLengths, g.sessions)
	n := 0
	if len(g.drawers) > 1 {
		n = pick(rng.Float64(), len(g.drawers), func(i int) float64 { return g.plan.Classes[i].Weight })
	}
	class := &g.plan.Classes[n]
	s := &session{number: g.sessions, class: class}
	total := 0
	for i := range max(class.Session.Turns, 1) {
		var t turn
		if i > 0 {
			// Each turn has a stream of its own: more turns do not change the earlier ones.
			rng = g.streams.at(domainSession, turnNumber(g.sessions, i))
			t.think = thinkTime(class.Session, rng)
		}
		t.prompt, t.output = g.draw(n, rng)
		if i == 0 {
			t.prefix = prefixPiece(class, n, t.prompt, g.plan.ContentSeed, rng)
		}
		prompt := total + t.prompt
		if i > 0 && (prompt > MaxTokens || over(prompt, class.Session.MaxPrompt) || over(prompt+t.output, g.plan.MaxModelLen)) {
			break
		}
		total += t.prompt + t.output
		s.turns = append(s.turns, t)
	}
	return s
}

// over says whether a length is above a bound that is not 0.
func over(length, bound int) bool { return bound > 0 && length > bound }

func turnNumber(session uint64, turn int) uint64 { return session<<14 | uint64(turn) }

func thinkTime(s Session, rng *mathrand.Rand) time.Duration {
	if s.FixedThinkTime {
		return seconds(s.ThinkTime)
	}
	return seconds(s.ThinkTime * rng.ExpFloat64())
}

// prefixPiece draws the beginning that a prompt shares; one token stays its own.
func prefixPiece(c *Class, number, prompt int, contentSeed uint64, rng *mathrand.Rand) piece {
	length := c.Prefix.Tokens
	if c.Prefix.Share > 0 {
		length = int(math.Round(c.Prefix.Share * float64(prompt)))
	}
	length = min(length, prompt-1)
	if length <= 0 {
		return piece{}
	}
	group := uint64(0)
	if c.Prefix.Groups > 1 {
		group = uint64(rng.IntN(c.Prefix.Groups))
	}
	return piece{key: streamKey(contentSeed, domainPrefix, uint64(number)<<32|group), length: length}
}

// request makes the request of the turn that is due.
func (s *session) request(p *Plan) Request {
	t := s.turns[s.turn]
	r := Request{
		Class: s.class.Name, At: s.at,
		MaxTokens: t.output, CacheSalt: p.CacheSalt,
		Chat: s.class.Chat, IgnoreEOS: !s.class.NaturalEnd,
	}
	number := turnNumber(s.number, s.turn)
	own := piece{key: streamKey(p.ContentSeed, domainRequest, number), length: t.prompt - t.prefix.length}
	if len(s.turns) == 1 {
		r.PromptTokens, r.PrefixTokens = t.prompt, t.prefix.length
		if t.prefix.length > 0 {
			r.content = content{t.prefix, own}
		} else {
			r.content = content{own}
		}
		return r
	}
	r.SessionID = "session-" + strconv.FormatUint(s.number, 10)
	r.Turn, r.Turns, r.ThinkTime = s.turn, len(s.turns), t.think
	r.PrefixTokens = t.prefix.length
	if s.turn > 0 {
		// The last answer was said, but no prompt held it yet.
		r.PrefixTokens = s.said.length() - s.turns[s.turn-1].output
	}
	if t.prefix.length > 0 {
		s.said = append(s.said, t.prefix)
	}
	s.said = append(s.said, own)
	// The request keeps what was said so far; the next turn appends behind it.
	r.content = s.said[:len(s.said):len(s.said)]
	r.PromptTokens = r.content.length()
	s.said = append(s.said, piece{key: streamKey(p.ContentSeed, domainAnswer, number), length: t.output})
	return r
}

func (c content) length() int {
	total := 0
	for _, p := range c {
		total += p.length
	}
	return total
}

// pending holds sessions by when their next turn is due.
type pending []*session

func (p pending) Len() int { return len(p) }
func (p pending) Less(i, j int) bool {
	if p[i].at != p[j].at {
		return p[i].at < p[j].at
	}
	return p[i].number < p[j].number
}
func (p pending) Swap(i, j int) { p[i], p[j] = p[j], p[i] }
func (p *pending) Push(x any)   { *p = append(*p, x.(*session)) }
func (p *pending) Pop() any {
	old := *p
	last := old[len(old)-1]
	*p = old[:len(old)-1]
	return last
}

// All yields the requests of a source.
func All(s Source) iter.Seq[Request] {
	return func(yield func(Request) bool) {
		for r, ok := s.Next(); ok && yield(r); r, ok = s.Next() {
		}
	}
}
