package simulator

import "slices"

// Scheduler is one rank's continuous batching as vLLM V1 does it: a token
// budget for each step, running sequences first, prompts in chunks, and
// preemption of the newest sequence when the KV cache is full.
//
// It has no clock and no goroutine: Begin forms a batch and says how long its
// step takes, End delivers what the step made. Requests must pass Config.Accept.
type Scheduler struct {
	cfg      Config
	observer Observer
	pool     *blockPool
	slowdown float64

	waiting queue
	// running in the order of admission; batch is the part of them that the step computes.
	running, batch []*Request
	sequences      uint64

	// step is what the step that runs does, with what happened since the last one.
	step StepStats
	cost cost
	// changed tells that requests or blocks changed in a way that no step has reported yet.
	changed bool

	hits   []int32   // admit's
	spares [][]int32 // block lists of ended sequences, for new ones
}

// NewScheduler returns an empty scheduler of a valid configuration; observer may be nil.
func NewScheduler(cfg Config, observer Observer) *Scheduler {
	return &Scheduler{cfg: cfg, observer: observer, pool: newBlockPool(cfg.NumGPUBlocks), slowdown: 1}
}

// Running and Waiting are the numbers of requests in the batch and in the queue.
func (s *Scheduler) Running() int { return len(s.running) }
func (s *Scheduler) Waiting() int { return s.waiting.len() }

// Slow makes the steps that begin from now on take factor times as long.
func (s *Scheduler) Slow(factor float64) { s.slowdown = factor }

// Add puts a request at the end of the queue.
func (s *Scheduler) Add(r *Request) {
	s.sequences++
	r.sequence = s.sequences
	r.stage = stageWaiting
	s.waiting.pushBack(r)
}

// Abort takes a request out at once, also out of a step that runs. A request
// that has ended is left alone.
func (s *Scheduler) Abort(r *Request, now float64) {
	switch r.stage {
	case stageWaiting:
		s.waiting.remove(r)
	case stageRunning:
		s.running = slices.DeleteFunc(s.running, func(x *Request) bool { return x == r })
		s.releaseAll(r)
	default:
		return
	}
	s.changed = true
	r.stage = stageEnded
	r.End = now
	if s.observer != nil {
		s.observer.RequestAborted(r)
	}
}

// Evict preempts every running sequence and empties the prefix cache, between steps.
func (s *Scheduler) Evict() {
	for len(s.running) > 0 {
		s.preemptTail()
	}
	s.pool.forget()
	s.changed = true
}

// Flush begins a step without tokens when something changed that no step has
// reported, as vLLM does after aborts; else ok is false.
func (s *Scheduler) Flush(now float64) (duration float64, ok bool) {
	if !s.changed {
		return 0, false
	}
	return s.begin(now, batch{}), true
}

// Begin forms the batch of the step that starts now, in simulated seconds,
// and returns its duration; ok is false when there is nothing to do. End must
// follow before the next Begin.
func (s *Scheduler) Begin(now float64) (duration float64, ok bool) {
	budget := s.cfg.MaxNumBatchedTokens
	var b batch
	s.batch = s.batch[:0]
	preempted := false

	for i := 0; i < len(s.running) && budget > 0; i++ {
		r := s.running[i]
		n := s.chunk(r.tokens()-r.computed, budget)
		for !s.extend(r, n) {
			preempted = true
			if s.preemptTail() == r {
				break
			}
		}
		if r.stage != stageRunning {
			break
		}
		budget -= n
		s.schedule(r, n, &b)
	}

	for !preempted && s.waiting.len() > 0 && budget > 0 && len(s.running) < s.cfg.MaxNumSeqs {
		r := s.waiting.front()
		n, ok := s.admit(r, budget)
		if !ok {
			break
		}
		s.waiting.popFront()
		r.stage = stageRunning
		if r.Preemptions == 0 {
			r.FirstScheduled = now
		}
		s.running = append(s.running, r)
		budget -= n
		s.schedule(r, n, &b)
	}

	if len(s.batch) == 0 {
		return s.Flush(now)
	}
	return s.begin(now, b), true
}

func (s *Scheduler) begin(now float64, b batch) float64 {
	s.cost = s.cfg.Hardware.cost(b).slowed(s.slowdown)
	s.step.Start, s.step.Duration = now, s.cost.duration
	s.step.Flops, s.step.ReadBytes, s.step.WriteBytes = s.cost.flops, s.cost.readBytes, s.cost.writeBytes
	return s.cost.duration
}

// chunk is how many of the tokens that a sequence lacks it gets in one step.
func (s *Scheduler) chunk(lacking, budget int) int {
	if t := s.cfg.LongPrefillTokenThreshold; t > 0 {
		lacking = min(lacking, t)
	}
	return min(lacking, budget)
}

// extend gives a running sequence the blocks for n more tokens, or nothing when there are too few.
func (s *Scheduler) extend(r *Request, n int) bool {
	need := s.blocksFor(r.computed+n) - len(r.blocks)
	if need > s.pool.free {
		return false
	}
	if need > 0 {
		r.blocks = s.pool.take(r.blocks, need)
	}
	s.remember(r, r.computed+n)
	return true
}

// admit gives the first waiting sequence its cached blocks and those for a
// first chunk of n tokens. It gets nothing while there are too few for all of
// its tokens, as is vLLM's default (scheduler_reserve_full_isl): long prompts
// that were let in chunk by chunk would throw each other out without end.
func (s *Scheduler) admit(r *Request, budget int) (n int, ok bool) {
	tokens := r.tokens()
	s.hits = s.hits[:0]
	if s.cfg.EnablePrefixCaching {
		// At least one token is computed: a step must have something to sample from.
		usable := (tokens - 1) / s.cfg.BlockSize
		r.extendHashes(usable*s.cfg.BlockSize, s.cfg.BlockSize)
		s.hits = s.pool.cached(s.hits, r.hashes[:usable])
	}
	cached := len(s.hits) * s.cfg.BlockSize
	n = s.chunk(tokens-cached, budget)
	if s.blocksFor(tokens)-len(s.hits)+s.pool.freeAmong(s.hits) > s.pool.free {
		return 0, false
	}
	s.pool.share(s.hits)
	r.blocks = s.pool.take(append(s.spare(), s.hits...), s.blocksFor(cached+n)-len(s.hits))
	r.computed, r.remembered = cached, len(s.hits)
	s.remember(r, cached+n)
	if r.Preemptions == 0 {
		r.CachedTokens = cached
		if s.cfg.EnablePrefixCaching {
			s.step.PrefixQueries += tokens
			s.step.PrefixHits += cached
		}
	}
	return n, true
}

// schedule puts n tokens of a sequence into the batch.
func (s *Scheduler) schedule(r *Request, n int, b *batch) {
	r.scheduled = n
	s.batch = append(s.batch, r)
	b.add(r.computed, n)
	from, to := r.computed, r.computed+n
	again := max(0, min(to, r.everComputed)-from)
	// Of what is new, the positions behind the prompt are generated tokens.
	decode := max(0, to-max(from+again, r.promptTokens()))
	s.step.PrefillTokens += n - decode
	s.step.PrefillTokensRecomputed += again
	s.step.DecodeTokens += decode
}

// preemptTail throws the newest sequence out of the batch, to the front of the queue.
func (s *Scheduler) preemptTail() *Request {
	last := len(s.running) - 1
	r := s.running[last]
	s.running[last] = nil
	s.running = s.running[:last]
	s.releaseAll(r)
	r.stage = stageWaiting
	r.Preemptions++
	s.step.Preemptions++
	s.waiting.pushFront(r)
	return r
}

// End delivers the tokens of the step at its end, in the order of the batch.
func (s *Scheduler) End(now float64) {
	ended := false
	for i, r := range s.batch {
		s.batch[i] = nil
		if r.stage != stageRunning { // aborted in the step
			continue
		}
		r.computed += r.scheduled
		r.everComputed = max(r.everComputed, r.computed)
		if r.computed == r.tokens() {
			s.emit(r, now)
			ended = ended || r.stage == stageEnded
		}
	}
	s.batch = s.batch[:0]
	if ended {
		s.running = slices.DeleteFunc(s.running, func(r *Request) bool { return r.stage == stageEnded })
	}
	s.step.Running, s.step.Waiting = len(s.running), s.waiting.len()
	s.step.KVCacheUsage = s.pool.usage()
	if s.observer != nil {
		s.observer.StepDone(s.step)
	}
	s.step = StepStats{}
	s.changed = false
}

// emit makes the next token of a sequence.
func (s *Scheduler) emit(r *Request, now float64) {
	index, previous := r.generated, r.LastToken
	if index == 0 {
		previous = r.Arrival
		r.FirstToken = now
	}
	r.generated++
	r.LastToken = now
	finished := FinishReason("")
	if r.generated == r.OutputLength {
		finished = r.finishReason()
		r.End = now
		r.stage = stageEnded
		s.releaseAll(r)
	}
	if s.observer != nil {
		s.observer.TokenDone(r, index, now, previous)
	}
	if r.OnToken != nil {
		r.OnToken(index, now, finished)
	}
	if finished != "" && s.observer != nil {
		s.observer.RequestDone(r)
	}
}

// remember lets the full blocks of the first n tokens be found by later requests.
func (s *Scheduler) remember(r *Request, n int) {
	full := n / s.cfg.BlockSize
	if !s.cfg.EnablePrefixCaching || full <= r.remembered {
		return
	}
	r.extendHashes(n, s.cfg.BlockSize)
	for ; r.remembered < full; r.remembered++ {
		s.pool.remember(r.blocks[r.remembered], r.hashes[r.remembered])
	}
}

func (s *Scheduler) releaseAll(r *Request) {
	s.pool.release(r.blocks)
	s.spares = append(s.spares, r.blocks[:0])
	r.blocks, r.remembered = nil, 0
}

// spare is an empty list of blocks whose memory an ended sequence left.
func (s *Scheduler) spare() []int32 {
	last := len(s.spares) - 1
	if last < 0 {
		return nil
	}
	list := s.spares[last]
	s.spares = s.spares[:last]
	return list
}

func (s *Scheduler) blocksFor(tokens int) int {
	return (tokens + s.cfg.BlockSize - 1) / s.cfg.BlockSize
}
