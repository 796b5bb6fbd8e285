package simulator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomised is a random load on a random configuration.
type randomised struct {
	cfg      Config
	requests []*Request
	abortIn  map[int][]*Request // by step
	arriveIn map[int][]*Request
}

func randomLoad(t testing.TB, seed uint64, sequences, budget, blocks, threshold uint8, caching bool) randomised {
	rng := rand.New(rand.NewPCG(seed, 1))
	l := randomised{abortIn: map[int][]*Request{}, arriveIn: map[int][]*Request{}}
	l.cfg = preset(t, "8b-h100", func(c *Config) {
		c.MaxNumSeqs = 1 + int(sequences)%12
		c.MaxNumBatchedTokens = c.MaxNumSeqs + int(budget)
		c.BlockSize = 1 + rng.IntN(16)
		c.MaxModelLen = 64
		c.NumGPUBlocks = 2 + (64+c.BlockSize-1)/c.BlockSize + int(blocks)%24
		c.LongPrefillTokenThreshold = int(threshold) % 20
		c.EnablePrefixCaching = caching
	})
	if err := l.cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	for i := range 1 + rng.IntN(60) {
		r := &Request{ID: fmt.Sprint(i), OutputLength: 1 + rng.IntN(32)}
		r.PromptLength = 1 + rng.IntN(64-r.OutputLength)
		if rng.IntN(2) == 0 { // alike up to a random place
			r.Prompt = make([]int, r.PromptLength)
			for j, differs := 0, rng.IntN(64); j < r.PromptLength; j++ {
				r.Prompt[j] = max(0, j-differs)
			}
		}
		step := rng.IntN(80)
		l.arriveIn[step] = append(l.arriveIn[step], r)
		if rng.IntN(5) == 0 {
			step += rng.IntN(30)
			l.abortIn[step] = append(l.abortIn[step], r)
		}
		l.requests = append(l.requests, r)
	}
	return l
}

// checkInvariants compares the pool with what the sequences hold.
func checkInvariants(t testing.TB, s *Scheduler) {
	t.Helper()
	held := make([]int32, len(s.pool.blocks))
	for _, r := range s.running {
		if r.stage != stageRunning {
			t.Fatalf("request %s runs in stage %d", r.ID, r.stage)
		}
		if len(r.blocks) < s.blocksFor(r.computed) || len(r.blocks) > s.blocksFor(r.computed+r.scheduled) {
			t.Fatalf("request %s holds %d blocks for %d + %d tokens", r.ID, len(r.blocks), r.computed, r.scheduled)
		}
		for _, id := range r.blocks {
			held[id]++
		}
	}
	for i := range s.waiting.len() {
		if r := s.waiting.items[s.waiting.head+i]; r.stage != stageWaiting || len(r.blocks) != 0 {
			t.Fatalf("request %s waits in stage %d with %d blocks", r.ID, r.stage, len(r.blocks))
		}
	}
	free := 0
	for id := s.pool.blocks[nullBlock].next; id != nullBlock; id = s.pool.blocks[id].next {
		if free++; free > len(held) {
			t.Fatal("the free list has a loop")
		}
		if held[id] != 0 {
			t.Fatalf("block %d is free and held", id)
		}
	}
	used := 0
	for id, n := range held {
		if s.pool.blocks[id].references != n {
			t.Fatalf("block %d has %d references, %d sequences hold it", id, s.pool.blocks[id].references, n)
		}
		if n > 0 {
			used++
		}
	}
	if held[nullBlock] != 0 {
		t.Fatal("the null block was given out")
	}
	if free != s.pool.free || free+used != len(held)-1 {
		t.Fatalf("%d blocks free, counted as %d; %d used of %d", free, s.pool.free, used, len(held)-1)
	}
	for hash, id := range s.pool.byHash {
		if s.pool.blocks[id].hash != hash {
			t.Fatalf("block %d is known by a hash that it does not have", id)
		}
	}
	if len(s.running) > s.cfg.MaxNumSeqs {
		t.Fatalf("%d sequences run, limit %d", len(s.running), s.cfg.MaxNumSeqs)
	}
}

func checkLoad(t testing.TB, l randomised) (preemptions, hits int) {
	t.Helper()
	var observed log
	s := NewScheduler(l.cfg, &observed)
	tokens := make(map[*Request]int)
	var added []*Request
	last, now := 0, 0.0
	for step := range l.arriveIn {
		last = max(last, step)
	}
	for step := range l.abortIn {
		last = max(last, step)
	}
	for i := 0; ; i++ {
		if i > 100_000 {
			t.Fatal("the scheduler does not come to an end")
		}
		now = float64(i)
		for _, r := range l.arriveIn[i] {
			r.OnToken = func(index int, at float64, finished FinishReason) {
				if index != tokens[r] || at != now+1 || (finished != "") != (index == r.OutputLength-1) {
					t.Fatalf("request %s: token %d at %v, finished %q, after %d tokens", r.ID, index, at, finished, tokens[r])
				}
				tokens[r]++
			}
			r.Arrival = now
			s.Add(r)
			added = append(added, r)
		}
		_, ok := s.Begin(now)
		if !ok && i > last {
			break
		}
		checkInvariants(t, s)
		if n := s.step.PrefillTokens + s.step.DecodeTokens; n > l.cfg.MaxNumBatchedTokens {
			t.Fatalf("%d tokens in a step, budget %d", n, l.cfg.MaxNumBatchedTokens)
		}
		for _, r := range l.abortIn[i] { // in the step, or idle
			s.Abort(r, now+0.5)
		}
		if ok {
			s.End(now + 1)
		}
		checkInvariants(t, s)
		if s.step.Preemptions != 0 {
			t.Fatal("a step's numbers are left over")
		}
	}

	if len(observed.wrong) > 0 {
		t.Fatal(observed.wrong)
	}
	aborted := map[*Request]bool{}
	for _, list := range l.abortIn {
		for _, r := range list {
			aborted[r] = true
		}
	}
	var scheduled []float64
	prompts, outputs := 0, 0
	for _, r := range added {
		preemptions += r.Preemptions
		if r.stage != stageEnded || len(r.blocks) != 0 {
			t.Fatalf("request %s is left in stage %d with %d blocks", r.ID, r.stage, len(r.blocks))
		}
		if tokens[r] == r.OutputLength && !(r.Arrival <= r.FirstScheduled && r.FirstScheduled < r.FirstToken && r.FirstToken <= r.LastToken && r.LastToken == r.End) {
			t.Fatalf("request %s has its times out of order", r.ID)
		}
		if !aborted[r] && tokens[r] != r.OutputLength {
			t.Fatalf("request %s has %d of %d tokens", r.ID, tokens[r], r.OutputLength)
		}
		if !aborted[r] {
			scheduled = append(scheduled, r.FirstScheduled)
		}
		prompts += r.promptTokens() - r.CachedTokens
		outputs += r.OutputLength - 1
	}
	if !slices.IsSorted(scheduled) {
		t.Fatalf("not first come, first served: %v", scheduled)
	}
	if s.pool.free != l.cfg.NumGPUBlocks-1 || len(s.running) != 0 || s.waiting.len() != 0 {
		t.Fatalf("at the end %d of %d blocks are free, %d run, %d wait", s.pool.free, l.cfg.NumGPUBlocks-1, len(s.running), s.waiting.len())
	}
	var prefill, again, decode, counted int
	for _, step := range observed.steps {
		prefill += step.PrefillTokens
		again += step.PrefillTokensRecomputed
		decode += step.DecodeTokens
		hits += step.PrefixHits
		counted += step.Preemptions
	}
	if counted != preemptions {
		t.Fatalf("steps count %d preemptions, requests %d", counted, preemptions)
	}
	// Without aborts and reuse every token of a sequence is computed once, but the last.
	if len(aborted) == 0 && !l.cfg.EnablePrefixCaching && (prefill-again != prompts || decode != outputs) {
		t.Fatalf("%d prompt and %d generated tokens computed, want %d and %d", prefill-again, decode, prompts, outputs)
	}
	return preemptions, hits
}

func TestSchedulerUnderRandomLoad(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	preemptions, hits := 0, 0
	for seed := range uint64(200) {
		n := rng.Uint32()
		l := randomLoad(t, seed, uint8(n), uint8(n>>8), uint8(n>>16), uint8(n>>24), seed%2 == 0)
		if seed%4 == 1 {
			clear(l.abortIn)
		}
		p, h := checkLoad(t, l)
		preemptions += p
		hits += h
	}
	if preemptions < 100 || hits < 1000 {
		t.Errorf("only %d preemptions and %d prefix hits: the loads do not test them", preemptions, hits)
	}
}

func FuzzScheduler(f *testing.F) {
	f.Add(uint64(1), uint8(4), uint8(8), uint8(3), uint8(0), true)
	f.Add(uint64(2), uint8(11), uint8(0), uint8(0), uint8(5), false)
	f.Add(uint64(3), uint8(0), uint8(255), uint8(23), uint8(1), true)
	f.Fuzz(func(t *testing.T, seed uint64, sequences, budget, blocks, threshold uint8, caching bool) {
		checkLoad(t, randomLoad(t, seed, sequences, budget, blocks, threshold, caching))
	})
}
