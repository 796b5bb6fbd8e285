package simulator

import (
	"slices"
	"testing"
)

// A request that waits, also in the front end, weighs as much as four that run.
func TestSubmitToTheLeastLoadedRank(t *testing.T) {
	cfg := preset(t, "8b-h100", func(c *Config) { c.Ranks = 3 })
	ranks := newRanks(cfg)
	submitTo := func(n int, at float64) (chosen []int) {
		for range n {
			chosen = append(chosen, submit(ranks, &Request{Arrival: at, PromptLength: 10, OutputLength: 100}, cfg.FrontEndDelay))
		}
		return chosen
	}
	if got := submitTo(5, 0); !slices.Equal(got, []int{0, 1, 2, 0, 1}) {
		t.Errorf("at first to ranks %v", got)
	}
	for _, k := range ranks {
		k.advance(0.1)
	}
	// Two, two and one run now: 2, 2, 1; each that waits adds four.
	if got := submitTo(4, 0.1); !slices.Equal(got, []int{2, 0, 1, 2}) {
		t.Errorf("then to ranks %v", got)
	}
}

func TestRankNeverGoesBack(t *testing.T) {
	k := newRanks(preset(t, "8b-h100", nil))[0]
	k.advance(0)
	k.poke(5)
	k.advance(5)
	k.poke(4)
	if got := k.next(); got != 5 {
		t.Errorf("next event at %v after one at 5", got)
	}
}
