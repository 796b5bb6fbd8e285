package simulator

import (
	"errors"
	"fmt"
	"math"
)

// Result is what a virtual run did. The requests themselves hold their times.
type Result struct {
	// Finished, Unfinished and Rejected requests; those that would arrive after the end are in none.
	Finished, Unfinished, Rejected []*Request
	// Steps with tokens, and the simulated seconds that they took, over all ranks.
	Steps       int
	BusySeconds float64
	// Tokens over all steps; PrefillTokens with those computed again after preemptions.
	PrefillTokens, PrefillTokensRecomputed, DecodeTokens int
	Preemptions                                          int
	PrefixQueries, PrefixHits                            int
	// MeanKVCacheUsage over the busy seconds, and the peak, 0..1.
	MeanKVCacheUsage, PeakKVCacheUsage float64
	// PeakWaiting is the longest queue of a rank at the end of a step.
	PeakWaiting int
}

// RunVirtual runs requests, sorted by Arrival, on a virtual clock from 0 until
// a simulated time, as fast as the machine allows. The same seconds on an
// Engine give the same times. Requests that Config.Accept refuses are
// Rejected; the error is a configuration that cannot be or an order that is wrong.
func RunVirtual(cfg Config, requests []*Request, until float64) (Result, error) {
	if err := cfg.Validate(); err != nil {
		return Result{}, err
	}
	if math.IsNaN(until) || math.IsInf(until, 0) {
		return Result{}, fmt.Errorf("simulator: a run until %v s: give it an end", until)
	}
	var result Result
	observed := cfg.Observer
	cfg.Observer = func(rank int) Observer {
		t := &tally{result: &result}
		if observed != nil {
			t.next = observed(rank)
		}
		return t
	}
	ranks := newRanks(cfg)
	previous := 0.0
	for i, r := range requests {
		if !(r.Arrival >= previous) {
			return Result{}, fmt.Errorf("simulator: request %d arrives at %v s, after one at %v s: %w", i, r.Arrival, previous, errOrder)
		}
		previous = r.Arrival
		if r.Arrival > until {
			break
		}
		if err := cfg.Accept(r); err != nil {
			result.Rejected = append(result.Rejected, r)
			continue
		}
		for _, k := range ranks {
			k.advance(r.Arrival)
		}
		submit(ranks, r, cfg.FrontEndDelay)
	}
	for _, k := range ranks {
		k.advance(until)
	}
	for _, r := range requests {
		switch r.stage {
		case stageEnded:
			result.Finished = append(result.Finished, r)
		case stageFrontEnd, stageWaiting, stageRunning:
			result.Unfinished = append(result.Unfinished, r)
		}
	}
	if result.BusySeconds > 0 {
		result.MeanKVCacheUsage /= result.BusySeconds
	}
	return result, nil
}

var errOrder = errors.New("sort the requests by arrival, from 0 on")

// tally adds the steps of a rank up, and passes everything on.
type tally struct {
	result *Result
	next   Observer
}

func (t *tally) StepDone(s StepStats) {
	r := t.result
	if s.PrefillTokens+s.DecodeTokens > 0 {
		r.Steps++
		r.BusySeconds += s.Duration
	}
	r.PrefillTokens += s.PrefillTokens
	r.PrefillTokensRecomputed += s.PrefillTokensRecomputed
	r.DecodeTokens += s.DecodeTokens
	r.Preemptions += s.Preemptions
	r.PrefixQueries += s.PrefixQueries
	r.PrefixHits += s.PrefixHits
	r.MeanKVCacheUsage += s.KVCacheUsage * s.Duration
	r.PeakKVCacheUsage = max(r.PeakKVCacheUsage, s.KVCacheUsage)
	r.PeakWaiting = max(r.PeakWaiting, s.Waiting)
	if t.next != nil {
		t.next.StepDone(s)
	}
}

func (t *tally) TokenDone(r *Request, index int, at, previous float64) {
	if t.next != nil {
		t.next.TokenDone(r, index, at, previous)
	}
}

func (t *tally) RequestDone(r *Request) {
	if t.next != nil {
		t.next.RequestDone(r)
	}
}

func (t *tally) RequestAborted(r *Request) {
	if t.next != nil {
		t.next.RequestAborted(r)
	}
}
