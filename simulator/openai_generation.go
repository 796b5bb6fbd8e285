package simulator

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
)

// meanTokensToEOS is after how many tokens, on average, a text ends by itself
// where the caller lets it: the end is equally likely after each token.
const meanTokensToEOS = 256

// generation is an answer in the making: one sequence to each prompt.
type generation struct {
	engine    *Engine
	sequences []*sequence
	// wake is signalled when a sequence has something for the reader.
	wake chan struct{}

	mu sync.Mutex
	// produced and finished of each sequence are what the engine made so far.
	produced []int
	finished []FinishReason
}

// sequence is one choice, read by one goroutine.
type sequence struct {
	request Request
	index   int
	seed    uint64
	// sent is how many tokens the reader took.
	sent int
	// ended is empty until the reader took the last token.
	ended FinishReason
}

// startGeneration submits the sequences. everyToken asks for a signal at each
// token and not at the ends alone.
func startGeneration(e *Engine, g *generationRequest, id string, seed uint64, everyToken bool) (*generation, error) {
	gen := &generation{
		engine:   e,
		wake:     make(chan struct{}, 1),
		produced: make([]int, len(g.prompts)),
		finished: make([]FinishReason, len(g.prompts)),
	}
	for i, prompt := range g.prompts {
		s := &sequence{index: i, seed: seed + uint64(i)}
		s.request = Request{
			ID:           fmt.Sprintf("%s-%d", id, i),
			Prompt:       prompt,
			MaxTokens:    g.maxTokens[i],
			OutputLength: g.maxTokens[i],
			FinishReason: FinishLength,
			CacheSalt:    g.cacheSalt,
			OnToken: func(index int, _ float64, finished FinishReason) {
				gen.mu.Lock()
				gen.produced[i], gen.finished[i] = index+1, finished
				gen.mu.Unlock()
				if everyToken || finished != "" {
					gen.signal()
				}
			},
		}
		if n := drawEOS(s.seed, g.minTokens); !g.ignoreEOS && n <= g.maxTokens[i] {
			s.request.OutputLength, s.request.FinishReason = n, FinishStop
		}
		gen.sequences = append(gen.sequences, s)
	}
	for _, s := range gen.sequences {
		if _, err := e.Submit(&s.request); err != nil {
			gen.abort()
			return nil, fmt.Errorf("submitting %s: %w", s.request.ID, err)
		}
	}
	return gen, nil
}

// drawEOS is which token of a text is the end of sequence.
func drawEOS(seed uint64, minTokens int) int {
	rng := rand.New(rand.NewPCG(seed, 0))
	// Geometric by inversion; 1-u is never 0.
	n := math.Log(1-rng.Float64()) / math.Log1p(-1.0/meanTokensToEOS)
	return minTokens + 1 + int(n)
}

func (g *generation) signal() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// wait returns when there may be something new, or with the context's error.
func (g *generation) wait(ctx context.Context) error {
	select {
	case <-g.wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take returns the range of tokens that sequence s has made since it was last
// asked, and notes its end. A slow reader gets several tokens at once, as from vLLM.
func (g *generation) take(s *sequence) (from, to int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	from, to = s.sent, g.produced[s.index]
	s.sent, s.ended = to, g.finished[s.index]
	return from, to
}

// abort ends the sequences that are not done.
func (g *generation) abort() {
	for _, s := range g.sequences {
		g.engine.Abort(&s.request)
	}
}

// token is token number index of the sequence.
func (s *sequence) token(index int) int {
	if s.request.FinishReason == FinishStop && index == s.request.OutputLength-1 {
		return tokenEOS
	}
	return generatedToken(s.seed, index)
}

// appendText appends the text of a range of tokens; the end of sequence has none.
func (s *sequence) appendText(b []byte, from, to int) []byte {
	for i := from; i < to; i++ {
		if t := s.token(i); t >= firstByteToken {
			b = append(b, byte(t-firstByteToken))
		}
	}
	return b
}
