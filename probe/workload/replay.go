package workload

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Replay is a load from a recorded trace.
type Replay struct {
	Trace *Trace
	// Classes that the requests are dealt to, see Match; empty gives all of
	// them the class TraceClass.
	Classes []Class
	// Grid is the length of the slots to spread the times over; Trace.Grid finds it. 0 keeps them.
	Grid time.Duration
	// Speed above 1 plays faster: all times are divided by it. 0 counts as 1.
	Speed float64
	// PeakFactor multiplies the rate at every time, and so the peak, and keeps
	// how long everything takes: below 1 requests are left out at random, above
	// 1 they are repeated shortly after with a content of their own. 0 counts as 1.
	PeakFactor float64
	// MaxModelLen is the engine's context length in tokens: requests that are
	// longer, prompt and output together, are left out. 0 is no bound.
	MaxModelLen int
	// Requests and Duration end the load, whichever comes first; 0 is no bound.
	Requests int
	Duration time.Duration
	// Seed decides what is random: places in a slot, what is left out or
	// repeated. ContentSeed decides the tokens, see Plan.
	Seed, ContentSeed uint64
	CacheSalt         string
}

// TraceClass is the class of replayed requests when no classes are given.
const TraceClass = "trace"

// Source returns the requests of the replay. A prompt's tokens follow from
// its blocks, so that prompts share what they shared when they were recorded;
// without blocks every prompt is its own.
func (p Replay) Source() (Source, error) {
	if p.Trace == nil || len(p.Trace.Records) == 0 {
		return nil, fmt.Errorf("replay: the trace has no requests")
	}
	for _, f := range []struct {
		name  string
		value *float64
		most  float64
	}{{"speed", &p.Speed, 1e6}, {"peak factor", &p.PeakFactor, 1000}} {
		if *f.value == 0 {
			*f.value = 1
		}
		if !(*f.value > 0 && *f.value <= f.most) {
			return nil, fmt.Errorf("replay: %s is %g, want more than 0 and up to %g", f.name, *f.value, f.most)
		}
	}
	if p.Requests < 0 || p.Duration < 0 || p.Grid < 0 || p.MaxModelLen < 0 {
		return nil, fmt.Errorf("replay: %d requests, a duration of %s, a grid of %s and a context of %d tokens, want 0 or more",
			p.Requests, p.Duration, p.Grid, p.MaxModelLen)
	}
	if p.tooLong() == len(p.Trace.Records) {
		return nil, fmt.Errorf("replay: no request of the trace fits the context of %d tokens", p.MaxModelLen)
	}
	r := &replay{Replay: p, records: p.Trace.Records, seen: seenBlocks{}, classes: p.Classes}
	if len(r.classes) == 0 {
		r.classes = []Class{{Name: TraceClass, Weight: 1, Prompt: FixedLength(1), Output: FixedLength(1)}}
	}
	var err error
	if r.matcher, err = NewMatcher(r.classes); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	for i := range r.records {
		if _, err := r.matcher.Find(&r.records[i]); err != nil {
			return nil, fmt.Errorf("replay: request %d: %w", i+1, err)
		}
	}
	if p.Grid > 0 {
		r.records = p.Trace.Spread(p.Grid, p.Seed).Records
	}
	r.meanGap = r.records[len(r.records)-1].At / time.Duration(len(r.records))
	return r, nil
}

// tooLong counts the requests that do not fit the context.
func (p *Replay) tooLong() int {
	n := 0
	for i := range p.Trace.Records {
		if r := &p.Trace.Records[i]; over(r.Prompt+r.Output, p.MaxModelLen) {
			n++
		}
	}
	return n
}

// Notes say what was done to the trace; they belong to the result of a run.
func (p Replay) Notes() []string {
	var notes []string
	if p.Trace.ZeroOutputs > 0 {
		notes = append(notes, fmt.Sprintf("requests without output left out: %d", p.Trace.ZeroOutputs))
	}
	if p.Trace.ZeroPrompts > 0 {
		notes = append(notes, fmt.Sprintf("requests without prompt left out: %d", p.Trace.ZeroPrompts))
	}
	if n := p.tooLong(); n > 0 {
		notes = append(notes, fmt.Sprintf("requests longer than the context of %d tokens left out: %d of %d", p.MaxModelLen, n, len(p.Trace.Records)))
	}
	if p.Grid > 0 {
		notes = append(notes, fmt.Sprintf("timestamps lie on a grid of %s: the requests of each slot are spread uniformly over it (seed %d)", p.Grid, p.Seed))
	}
	if p.Speed != 0 && p.Speed != 1 {
		notes = append(notes, fmt.Sprintf("played %g times as fast", p.Speed))
	}
	if p.PeakFactor != 0 && p.PeakFactor != 1 {
		notes = append(notes, fmt.Sprintf("%g times as many requests at every time (seed %d)", p.PeakFactor, p.Seed))
	}
	return notes
}

// replay makes the requests of a trace, one record after the other.
type replay struct {
	Replay
	records []Record
	classes []Class
	matcher Matcher
	meanGap time.Duration
	seen    seenBlocks

	next   int
	copies []time.Duration
	// copy is the number of the next one of record next-1.
	copy   int
	issued int
}

// Next implements Source.
func (p *replay) Next() (Request, bool) {
	for p.copy == len(p.copies) {
		if p.next == len(p.records) {
			return Request{}, false
		}
		p.copies, p.copy = p.times(p.next), 0
		p.next++
	}
	at := time.Duration(float64(p.copies[p.copy]) / p.Speed)
	if p.Requests > 0 && p.issued == p.Requests || p.Duration > 0 && at >= p.Duration {
		return Request{}, false
	}
	r := p.request(p.next-1, p.copy)
	r.At, r.Index = at, p.issued
	p.copy++
	p.issued++
	return r, true
}

// times returns when the copies of a record are due, none when it is left
// out. Copies come between it and the next record, no later than a mean gap,
// so that a pause stays one.
func (p *replay) times(i int) []time.Duration {
	record := &p.records[i]
	if over(record.Prompt+record.Output, p.MaxModelLen) {
		return nil
	}
	whole := math.Floor(p.PeakFactor)
	n := int(whole)
	if p.draw(domainThin, i, 0) < p.PeakFactor-whole {
		n++
	}
	room := p.meanGap
	if i+1 < len(p.records) {
		room = min(room, p.records[i+1].At-record.At)
	}
	at := make([]time.Duration, n)
	for c := range at {
		at[c] = record.At
		if c > 0 {
			at[c] += time.Duration(p.draw(domainClone, i, c) * float64(room))
		}
	}
	slices.Sort(at)
	return at
}

// draw is a random number for a copy of a record; the requests of a session
// share those of its first, so that sessions stay whole.
func (p *replay) draw(domain uint64, i, c int) float64 {
	n := uint64(i)
	if id := p.records[i].SessionID; id != "" && domain == domainThin {
		n = hashText(id)
	}
	return uniform(streamKey(p.Seed, domain, n) + mix(uint64(c)))
}

// hashText is FNV-1a.
func hashText(text string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}

func (p *replay) request(i, c int) Request {
	record := &p.records[i]
	n, _ := p.matcher.Find(record) // Source has checked them all
	class := &p.classes[n]
	r := Request{
		Class: class.Name, Tenant: record.Tenant, Scenario: record.Scenario,
		PromptTokens: record.Prompt, MaxTokens: record.Output, CacheSalt: p.CacheSalt,
		SessionID: record.SessionID, Turn: record.Turn, ThinkTime: time.Duration(float64(record.Delay) / p.Speed),
		Chat: class.Chat, IgnoreEOS: !class.NaturalEnd,
	}
	if c > 0 && r.SessionID != "" {
		r.SessionID = fmt.Sprintf("%s-copy-%d", r.SessionID, c)
	}
	// The copies of number c share among each other what the originals do.
	universe := p.ContentSeed
	if c > 0 {
		universe = mix(p.ContentSeed + mix(uint64(c)))
	}
	if record.Blocks == nil {
		r.content = content{{key: streamKey(universe, domainRequest, uint64(i)), length: record.Prompt}}
		return r
	}
	r.content = make(content, len(record.Blocks))
	keys := make([]uint64, len(record.Blocks))
	size := p.Trace.BlockSize
	for b, id := range record.Blocks {
		keys[b] = streamKey(universe, domainBlock, id)
		r.content[b] = piece{key: keys[b], length: min(size, record.Prompt-b*size)}
	}
	r.PrefixTokens = p.seen.hit(keys, size, record.Prompt)
	return r
}
