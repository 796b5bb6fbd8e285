package simulator

import (
	"fmt"
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
			name:     "a prompt waits until there is room for all of it, not for a chunk",
			change:   func(c *Config) { c.NumGPUBlocks = 5; c.MaxNumBatchedTokens = 12 },
			requests: [][2]int{{8, 2}, {12, 1}},
			// a leaves 4 of the budget and 2 blocks; b needs 3.
			steps:  []counts{{8, 0, 0, 1, 1, 0}, {0, 0, 1, 0, 1, 0}, {12, 0, 0, 0, 0, 0}},
			events: []string{"a0", "a1", "a done", "b0", "b done"},
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
