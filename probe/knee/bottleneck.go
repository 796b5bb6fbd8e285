package knee

import (
	"fmt"
	"math"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// describe says what the engine does at the knee and what limits it there.
func (s *search) describe(k *curve.Knee) {
	if len(s.probes) == 0 {
		return
	}
	rate := float64(k.Rate)
	if math.IsNaN(rate) {
		rate = float64(k.Low)
	}
	at := func(value func(*curve.Point) curve.Value) curve.Value { return s.between(rate, value) }
	k.PromptTokenRate = at(func(p *curve.Point) curve.Value { return p.PromptTokenRate })
	k.GenerationTokenRate = at(func(p *curve.Point) curve.Value { return p.GenerationTokenRate })
	k.KVPeak = at(func(p *curve.Point) curve.Value { return p.Engine.KVPeak })
	k.Concurrency = at(func(p *curve.Point) curve.Value { return p.Engine.RunningMean + p.Engine.WaitingMean })
	k.Bottleneck, k.Evidence = s.bottleneck()
	s.warnOfChunks()
}

// between interpolates a reading between the points beside a rate.
func (s *search) between(rate float64, value func(*curve.Point) curve.Value) curve.Value {
	belowRate, aboveRate := math.Inf(-1), math.Inf(1)
	below, above := capacity.Unknown(), capacity.Unknown()
	for i := range s.probes {
		p := &s.probes[i]
		v := value(&p.obs.Point)
		if !v.Known() {
			continue
		}
		if p.rate <= rate && p.rate > belowRate {
			belowRate, below = p.rate, v
		}
		if p.rate >= rate && p.rate < aboveRate {
			aboveRate, above = p.rate, v
		}
	}
	switch {
	case !below.Known():
		return above
	case !above.Known() || aboveRate == belowRate:
		return below
	}
	share := capacity.Value((rate - belowRate) / (aboveRate - belowRate))
	return below + share*(above-below)
}

// slotsFull is the share of the sequence slots, kvFull of the KV cache, from which on it is full.
const slotsFull, kvFull = 0.97, 0.9

// bottleneck names what limits the engine at the knee by the point nearest
// above it, where the limit shows.
func (s *search) bottleneck() (name string, evidence []string) {
	p := s.nearest()
	e := &p.obs.Point.Engine
	for _, g := range p.obs.Point.Gates {
		if g.Name == "client" && g.Passed != nil && !*g.Passed {
			return "client", []string{g.Detail}
		}
	}
	expected := s.expectedSlots()
	add := func(format string, args ...any) { evidence = append(evidence, fmt.Sprintf(format, args...)) }
	add("at %.4g requests/s: %.3g running and %.3g waiting on average, %.0f and %.0f at most",
		p.rate, float64(e.RunningMean), float64(e.WaitingMean), float64(e.RunningMax), float64(e.WaitingMax))
	waiting := float64(e.WaitingMax) > 0
	if q, f, d := float64(e.QueueSeconds), float64(e.PrefillSeconds), float64(e.DecodeSeconds); !math.IsNaN(q + f + d) {
		add("a request spent %.3g s in the queue, %.3g s in prefill and %.3g s in decode on average", q, f, d)
	}
	if e.KVPeak.Known() {
		add("the KV cache was %s full at most, with %.0f preemptions", percent(float64(e.KVPeak)), float64(e.Preemptions))
	}
	slots := float64(s.Limits.MaxNumSeqs)
	switch {
	case waiting && float64(e.KVPeak) >= kvFull && !(slots > 0 && float64(e.RunningMax) >= slots):
		return "kv", evidence
	case waiting && (slots > 0 && float64(e.RunningMax) >= slotsFull*slots || slots == 0 && s.queue != nil && !s.queue.prefill && float64(e.RunningMax) >= slotsFull*expected):
		return "slots", evidence
	case waiting && s.queue != nil && s.queue.prefill:
		add("times to first token follow the prompts that are ahead, not the slots that are free")
		return "prefill", evidence
	case !waiting && s.bindsOn("ttft"):
		return "prefill", evidence
	case s.bindsOn("tpot") || s.bindsOn("itl") || s.bindsOn("icl") || s.bindsOn("e2e"):
		if float64(e.PrefillSeconds) > float64(e.DecodeSeconds) {
			return "prefill", evidence
		}
		return "decode", evidence
	}
	return "queue", evidence
}

// nearest is the lowest point above the knee, else the highest.
func (s *search) nearest() *probe {
	best := &s.probes[0]
	rate := float64(s.study.Knee.Rate)
	for i := range s.probes {
		p := &s.probes[i]
		above, bestAbove := p.rate >= rate, best.rate >= rate
		if above && (!bestAbove || p.rate < best.rate) || !above && !bestAbove && p.rate > best.rate {
			best = p
		}
	}
	return best
}

// bindsOn tells whether the knee's bound is of a latency.
func (s *search) bindsOn(metric string) bool {
	slo, err := capacity.ParseSLO(s.study.Knee.BindingSLO)
	return err == nil && slo.Metric == metric
}

// warnOfChunks notes a bound of the gaps between tokens that a step with a full
// chunk of prompt passes at any load: it measures how often prompts are
// computed, not how full the engine is.
func (s *search) warnOfChunks() {
	if s.queue == nil || s.Limits.MaxNumBatchedTokens == 0 || s.queue.perPrompt == 0 {
		return
	}
	step := s.queue.perToken + s.queue.perPrompt*float64(s.Limits.MaxNumBatchedTokens)
	for _, b := range bounds(&s.Traffic) {
		if (b.Metric == "itl" || b.Metric == "icl") && b.Bound.Seconds() < step {
			text := fmt.Sprintf("a step with a full chunk of %d prompt tokens takes about %.3g s, more than %s allows: the bound tells how often prompts are computed rather than how full the engine is; "+
				"lower max_num_batched_tokens or bound the TPOT", s.Limits.MaxNumBatchedTokens, step, b.SLO)
			s.noteOnce(text)
		}
	}
}
