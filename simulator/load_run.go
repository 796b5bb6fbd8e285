package simulator

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"
)

// LoadConfig is what the requests of a load are like.
type LoadConfig struct {
	// PromptMean and OutputMean in tokens; 0 is 512 and 256. Lengths are
	// lognormal with a deviation of half the mean. A trace has its own.
	PromptMean, OutputMean float64
	// Seed of arrivals and lengths: the same seed gives the same requests at the same times.
	Seed uint64
}

// maxOutstanding requests of a load may be waiting or running; beyond them
// arrivals are dropped, so that a load above what the engine serves, or a
// sleeping engine, does not fill the memory.
const maxOutstanding = 10000

// Run submits the load to the engine, on the engine's clock, until the context
// ends, the engine stops, or a trace that is not looped is over. Requests that
// do not fit the model's context are cut to it. The error is the context's, or
// nil at the end of the trace.
func (l Load) Run(ctx context.Context, e *Engine, cfg LoadConfig) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	began := e.Now()
	var outstanding atomic.Int64
	for at, r := range l.requests(e.Config(), cfg) {
		if err := waitUntil(ctx, e, timer, began+at); err != nil {
			return err
		}
		if r == nil || outstanding.Load() >= maxOutstanding {
			continue
		}
		r.OnToken = func(_ int, _ float64, finished FinishReason) {
			if finished != "" {
				outstanding.Add(-1)
			}
		}
		outstanding.Add(1)
		if _, err := e.Submit(r); err != nil {
			return fmt.Errorf("load %s: %w", l, err)
		}
	}
	if l.rate == nil && l.trace != nil {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// waitUntil returns when the engine's clock shows a simulated time.
func waitUntil(ctx context.Context, e *Engine, timer *time.Timer, at float64) error {
	for {
		left := at - e.Now()
		if left <= 0 {
			return ctx.Err()
		}
		// At least a nanosecond, so that a rest below it ends.
		timer.Reset(max(1, time.Duration(left/e.Config().Speed*1e9)))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// requests yields the requests of the load with their times in simulated
// seconds since its start. A nil request is a time at which none came, so that
// a rate of 0 yields too.
func (l Load) requests(engine Config, cfg LoadConfig) iter.Seq2[float64, *Request] {
	if l.trace != nil {
		return l.traced(engine)
	}
	return func(yield func(float64, *Request) bool) {
		if l.rate == nil || l.most == 0 {
			return
		}
		rng := rand.New(rand.NewPCG(cfg.Seed, 0))
		prompt, output := lengthsAbout(cfg.PromptMean, 512), lengthsAbout(cfg.OutputMean, 256)
		at, n := 0.0, 0
		for {
			// Thinning (Lewis and Shedler 1979): arrivals at the highest rate,
			// each kept with the probability of the rate at its time.
			at += rng.ExpFloat64() / l.most
			var r *Request
			if rng.Float64()*l.most < l.rate(cfg.Seed, at) {
				r = newLoadRequest(engine, n, prompt.Draw(rng), output.Draw(rng))
				n++
			}
			if !yield(at, r) {
				return
			}
		}
	}
}

func lengthsAbout(mean, fallback float64) Lengths {
	if mean == 0 {
		mean = fallback
	}
	return Lengths{Distribution: LognormalLength, Mean: mean, SD: mean / 2, Min: 1}
}

// traced yields the requests of the trace, once or for ever.
func (l Load) traced(engine Config) iter.Seq2[float64, *Request] {
	return func(yield func(float64, *Request) bool) {
		n := 0
		for begin := 0.0; ; begin += l.trace.period {
			for i := range l.trace.records {
				rec := &l.trace.records[i]
				r := newLoadRequest(engine, n, rec.prompt, rec.output)
				if engine.EnablePrefixCaching && rec.blocks != nil {
					r.Prompt = rec.tokens(r.PromptLength)
				}
				if !yield(begin+rec.at, r) {
					return
				}
				n++
			}
			if !l.Loop {
				return
			}
		}
	}
}

// newLoadRequest cuts the lengths to what the context holds: first the
// output to half of it, then the prompt to the rest.
func newLoadRequest(engine Config, n, prompt, output int) *Request {
	if prompt+output > engine.MaxModelLen {
		output = min(output, max(1, engine.MaxModelLen/2))
		prompt = min(prompt, engine.MaxModelLen-output)
	}
	return &Request{
		ID:           "load-" + strconv.Itoa(n),
		PromptLength: prompt,
		OutputLength: output,
		MaxTokens:    output,
		FinishReason: FinishLength,
	}
}
