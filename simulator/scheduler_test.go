package simulator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tiny is a configuration whose steps can be followed by hand.
func tiny(t testing.TB, change func(*Config)) Config {
	t.Helper()
	cfg := preset(t, "8b-h100", func(c *Config) {
		c.MaxNumSeqs, c.MaxNumBatchedTokens, c.MaxModelLen = 4, 8, 16
		c.BlockSize, c.NumGPUBlocks = 4, 11
		c.EnablePrefixCaching = false
		c.FrontEndDelay = 0
		if change != nil {
			change(c)
		}
	})
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// log is an observer that writes down what it is told.
type log struct {
	steps  []StepStats
	events []string
	// wrong are tokens that come out of order or with another time before them than was told.
	wrong []string
	last  map[*Request]float64
}

func (l *log) StepDone(s StepStats) { l.steps = append(l.steps, s) }
func (l *log) TokenDone(r *Request, index int, at, previous float64) {
	if l.last == nil {
		l.last = map[*Request]float64{}
	}
	before, again := l.last[r]
	if !again {
		before = r.Arrival
	}
	if previous != before || again != (index > 0) || at <= previous {
		l.wrong = append(l.wrong, fmt.Sprintf("%s%d at %v after %v, not %v", r.ID, index, at, previous, before))
	}
	l.last[r] = at
	l.events = append(l.events, fmt.Sprintf("%s%d", r.ID, index))
}
func (l *log) RequestDone(r *Request)    { l.events = append(l.events, r.ID+" done") }
func (l *log) RequestAborted(r *Request) { l.events = append(l.events, r.ID+" aborted") }

// counts are the fields of a step that do not depend on the step-time model.
type counts struct{ Prefill, Recomputed, Decode, Running, Waiting, Preemptions int }

func (l *log) counts() []counts {
	var list []counts
	for _, s := range l.steps {
		list = append(list, counts{s.PrefillTokens, s.PrefillTokensRecomputed, s.DecodeTokens, s.Running, s.Waiting, s.Preemptions})
	}
	return list
}

// drain steps a scheduler until it has nothing to do, one second a step.
func drain(t testing.TB, s *Scheduler, check func()) {
	t.Helper()
	for now := 0.0; now < 1e6; now++ {
		if _, ok := s.Begin(now); !ok {
			return
		}
		if check != nil {
			check()
		}
		s.End(now + 1)
		if check != nil {
			check()
		}
	}
	t.Fatal("the scheduler does not come to an end")
}

// Each row was followed by hand on paper.
func TestScheduler(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Config)
		// requests as prompt and output lengths, named a, b, c...
		requests [][2]int
		steps    []counts
		events   []string
	}{
		{
			name:     "one request",
			requests: [][2]int{{5, 3}},
			steps:    []counts{{5, 0, 0, 1, 0, 0}, {0, 0, 1, 1, 0, 0}, {0, 0, 1, 0, 0, 0}},
			events:   []string{"a0", "a1", "a2", "a done"},
		},
		{
			name:     "a prompt in chunks of the budget, the rest of which goes to the next",
			requests: [][2]int{{10, 1}, {10, 1}},
			// a 8 | a 2 + b 6 | b 4
			steps:  []counts{{8, 0, 0, 1, 1, 0}, {8, 0, 0, 1, 0, 0}, {4, 0, 0, 0, 0, 0}},
			events: []string{"a0", "a done", "b0", "b done"},
		},
		{
			name:     "running decodes go before prompts",
			requests: [][2]int{{2, 4}, {10, 1}},
			// a 2 + b 6 | a 1 + b 4 | a 1 | a 1
			steps:  []counts{{8, 0, 0, 2, 0, 0}, {4, 0, 1, 1, 0, 0}, {0, 0, 1, 1, 0, 0}, {0, 0, 1, 0, 0, 0}},
			events: []string{"a0", "a1", "b0", "b done", "a2", "a3", "a done"},
		},
		{
			name:     "no more than the sequence slots",
			change:   func(c *Config) { c.MaxNumSeqs = 2 },
			requests: [][2]int{{1, 2}, {1, 2}, {1, 1}},
			steps:    []counts{{2, 0, 0, 2, 1, 0}, {0, 0, 2, 0, 1, 0}, {1, 0, 0, 0, 0, 0}},
			events:   []string{"a0", "b0", "a1", "a done", "b1", "b done", "c0", "c done"},
		},
		{
			name:     "long prompts by the threshold, so that others get a share of the budget",
			change:   func(c *Config) { c.LongPrefillTokenThreshold = 3 },
			requests: [][2]int{{7, 1}, {2, 1}},
			// a 3 + b 2 | a 3 | a 1
			steps:  []counts{{5, 0, 0, 1, 0, 0}, {3, 0, 0, 1, 0, 0}, {1, 0, 0, 0, 0, 0}},
			events: []string{"b0", "b done", "a0", "a done"},
		},
		{
			name:     "a full KV cache keeps the queue waiting, in order",
			change:   func(c *Config) { c.NumGPUBlocks = 5; c.MaxNumBatchedTokens = 32 },
			requests: [][2]int{{8, 1}, {12, 1}, {1, 1}},
			// b needs 3 blocks of the 2 that are free; c would fit, but is behind b.
			steps:  []counts{{8, 0, 0, 0, 2, 0}, {13, 0, 0, 0, 0, 0}},
			events: []string{"a0", "a done", "b0", "b done", "c0", "c done"},
		},
		{
			name:     "the tail is preempted, computed again, and nobody is admitted meanwhile",
			change:   func(c *Config) { c.NumGPUBlocks = 5 },
			requests: [][2]int{{4, 6}, {4, 6}, {4, 1}},
			steps: []counts{
				{8, 0, 0, 2, 1, 0}, // a 4, b 4: a block each
				{0, 0, 2, 2, 1, 0}, // a and b take their second block: 4 of 4; c waits
				{0, 0, 2, 2, 1, 0}, {0, 0, 2, 2, 1, 0}, {0, 0, 2, 2, 1, 0},
				// a needs a third block: b is thrown out with 8 tokens computed and 5 made; a makes its last.
				{0, 0, 1, 0, 2, 1},
				// b again: 8 of its 9 tokens in the budget.
				{8, 8, 0, 1, 1, 0},
				// its 9th, which is a generated one, and c.
				{4, 0, 1, 0, 0, 0},
			},
			events: []string{"a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3", "a4", "b4", "a5", "a done", "b5", "b done", "c0", "c done"},
		},
		{
			name:     "what a preemption freed is not given out in its step",
			change:   func(c *Config) { c.NumGPUBlocks = 5; c.MaxNumBatchedTokens = 4 },
			requests: [][2]int{{4, 6}, {4, 6}},
			steps: []counts{
				{4, 0, 0, 1, 1, 0}, // a 4
				{3, 0, 1, 2, 0, 0}, // a 1, b 3
				{1, 0, 1, 2, 0, 0}, // a 1, b 1
				{0, 0, 2, 2, 0, 0}, {0, 0, 2, 2, 0, 0},
				// a's third block costs b its two; a chunk of b would fit the one that is left.
				{0, 0, 1, 0, 1, 1},
				{4, 4, 0, 1, 0, 0}, // b again, 4 of 7
				{2, 2, 1, 1, 0, 0}, // 2 that were computed before, and the newest
				{0, 0, 1, 1, 0, 0}, {0, 0, 1, 0, 0, 0},
			},
			events: []string{"a0", "a1", "a2", "b0", "a3", "b1", "a4", "b2", "a5", "a done", "b3", "b4", "b5", "b done"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var l log
			s := NewScheduler(tiny(t, test.change), &l)
			for i, lengths := range test.requests {
				s.Add(&Request{ID: string(rune('a' + i)), PromptLength: lengths[0], OutputLength: lengths[1]})
			}
			drain(t, s, nil)
			if diff := cmp.Diff(test.steps, l.counts()); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.events, l.events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if s.pool.free != s.cfg.NumGPUBlocks-1 {
				t.Errorf("%d blocks free at the end of %d", s.pool.free, s.cfg.NumGPUBlocks-1)
			}
		})
	}
}

// A real engine showed 0.830769 for 54 of 66 blocks: the null block does not count.
func TestKVCacheUsage(t *testing.T) {
	p := newBlockPool(66)
	p.take(nil, 54)
	if got := fmt.Sprintf("%.6f", p.usage()); got != "0.830769" {
		t.Errorf("usage %s, want 0.830769", got)
	}
}

func TestPrefixCache(t *testing.T) {
	tokens := func(from, n int) []int {
		list := make([]int, n)
		for i := range list {
			list[i] = from + i
		}
		return list
	}
	shared := tokens(100, 8)
	for _, test := range []struct {
		name   string
		change func(*Config)
		second *Request
		cached int
	}{
		{"two blocks shared", nil, &Request{Prompt: slices.Concat(shared, tokens(300, 3))}, 8},
		{"the prompt itself: the last token is computed", nil, &Request{Prompt: shared}, 4},
		{"the prompt and one more token", nil, &Request{Prompt: slices.Concat(shared, tokens(7, 1))}, 8},
		{"one block shared", nil, &Request{Prompt: slices.Concat(shared[:7], tokens(300, 3))}, 4},
		{"less than a block shared", nil, &Request{Prompt: slices.Concat(shared[:3], tokens(300, 6))}, 0},
		{"the second block alone", nil, &Request{Prompt: slices.Concat(tokens(300, 4), shared[4:], tokens(1, 1))}, 0},
		{"another salt", nil, &Request{Prompt: slices.Concat(shared, tokens(300, 3)), CacheSalt: "x"}, 0},
		{"a length only", nil, &Request{PromptLength: 11}, 0},
		{"caching off", func(c *Config) { c.EnablePrefixCaching = false }, &Request{Prompt: slices.Concat(shared, tokens(300, 3))}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			var l log
			cfg := tiny(t, func(c *Config) {
				c.EnablePrefixCaching = true
				c.MaxNumBatchedTokens = 16
				if test.change != nil {
					test.change(c)
				}
			})
			s := NewScheduler(cfg, &l)
			first := &Request{ID: "a", Prompt: shared, OutputLength: 1}
			s.Add(first)
			drain(t, s, nil)
			test.second.OutputLength = 1
			s.Add(test.second)
			drain(t, s, nil)
			length := test.second.promptTokens()
			if test.second.CachedTokens != test.cached || first.CachedTokens != 0 {
				t.Errorf("cached %d and %d tokens, want 0 and %d", first.CachedTokens, test.second.CachedTokens, test.cached)
			}
			step := l.steps[len(l.steps)-1]
			queries, hits := length, test.cached
			if !cfg.EnablePrefixCaching {
				queries = 0
			}
			if step.PrefixQueries != queries || step.PrefixHits != hits || step.PrefillTokens != length-test.cached {
				t.Errorf("%d queries, %d hits, %d computed; want %d, %d, %d",
					step.PrefixQueries, step.PrefixHits, step.PrefillTokens, queries, hits, length-test.cached)
			}
		})
	}
	t.Run("the longest unused block is forgotten first", func(t *testing.T) {
		// 4 blocks to give: a leaves 2 behind, then b, which takes 3, evicts a's second block.
		s := NewScheduler(tiny(t, func(c *Config) {
			c.EnablePrefixCaching = true
			c.MaxNumBatchedTokens = 16
			c.NumGPUBlocks = 5
		}), nil)
		again := &Request{Prompt: slices.Concat(shared, tokens(300, 1)), OutputLength: 1}
		for _, r := range []*Request{
			{Prompt: shared, OutputLength: 1},
			{Prompt: tokens(500, 12), OutputLength: 1},
			again,
		} {
			s.Add(r)
			drain(t, s, nil)
		}
		if again.CachedTokens != 4 {
			t.Errorf("%d tokens found, want the first block's 4", again.CachedTokens)
		}
	})
	t.Run("two in one step share blocks", func(t *testing.T) {
		s := NewScheduler(tiny(t, func(c *Config) { c.EnablePrefixCaching = true; c.MaxNumBatchedTokens = 16 }), nil)
		a := &Request{Prompt: slices.Concat(shared, tokens(1, 1)), OutputLength: 2}
		b := &Request{Prompt: slices.Concat(shared, tokens(2, 1)), OutputLength: 2}
		s.Add(a)
		s.Add(b)
		s.Begin(0)
		if b.CachedTokens != 8 || s.pool.free != 10-4 {
			t.Errorf("cached %d with %d blocks free, want 8 with 6", b.CachedTokens, s.pool.free)
		}
	})
}

// As in vLLM, a step without tokens follows when aborts leave nothing to do:
// that is what brings the gauges back to zero.
func TestAbort(t *testing.T) {
	var l log
	s := NewScheduler(tiny(t, func(c *Config) { c.MaxNumSeqs = 2 }), &l)
	requests := make([]*Request, 4)
	for i := range requests {
		requests[i] = &Request{ID: string(rune('a' + i)), PromptLength: 2, OutputLength: 9}
		s.Add(requests[i])
	}
	s.Begin(0)
	s.Abort(requests[0], 0.5) // in the step
	s.Abort(requests[2], 0.5) // in the queue
	s.End(1)
	s.Abort(requests[1], 1)
	s.Abort(requests[1], 1)
	s.Begin(1)
	s.End(2)
	s.Abort(requests[3], 2.5)
	if d, ok := s.Begin(3); !ok || d != s.cfg.Hardware.Overhead {
		t.Errorf("flush of %v s, %v", d, ok)
	}
	s.End(4)
	if _, ok := s.Begin(5); ok {
		t.Error("an idle scheduler begins a step")
	}
	if diff := cmp.Diff([]string{"a aborted", "c aborted", "b0", "b aborted", "d0", "d aborted"}, l.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]counts{{4, 0, 0, 1, 1, 0}, {2, 0, 0, 1, 0, 0}, {0, 0, 0, 0, 0, 0}}, l.counts()); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if last := l.steps[2]; last.KVCacheUsage != 0 || last.ReadBytes != 0 || s.pool.free != 10 {
		t.Errorf("after all are gone: %+v, %d blocks free", last, s.pool.free)
	}
	if requests[3].End != 2.5 {
		t.Errorf("ended at %v, want 2.5", requests[3].End)
	}
}

func TestEvict(t *testing.T) {
	var l log
	s := NewScheduler(tiny(t, func(c *Config) { c.EnablePrefixCaching = true }), &l)
	r := &Request{ID: "a", PromptLength: 5, OutputLength: 3}
	s.Add(r)
	s.Begin(0)
	s.End(1)
	s.Evict()
	if _, ok := s.Flush(1); !ok {
		t.Error("nothing to report after all was thrown out")
	}
	s.End(2)
	if last := l.steps[1]; last.Running != 0 || last.Waiting != 1 || last.KVCacheUsage != 0 || last.Preemptions != 1 || len(s.pool.byHash) != 0 {
		t.Errorf("after eviction: %+v", last)
	}
	drain(t, s, nil)
	if r.generated != 3 || r.Preemptions != 1 {
		t.Errorf("%d tokens, %d preemptions", r.generated, r.Preemptions)
	}
}

// load is a random load on a random configuration.
type load struct {
	cfg      Config
	requests []*Request
	abortIn  map[int][]*Request // by step
	arriveIn map[int][]*Request
}

func randomLoad(t testing.TB, seed uint64, sequences, budget, blocks, threshold uint8, caching bool) load {
	rng := rand.New(rand.NewPCG(seed, 1))
	l := load{abortIn: map[int][]*Request{}, arriveIn: map[int][]*Request{}}
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

func checkLoad(t testing.TB, l load) (preemptions, hits int) {
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
