package knee

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// Measures of the ceiling.
const (
	ceilingFirst = 4
	ceilingMost  = 4096
	// ceilingGain is the least by which twice the concurrency must serve more.
	ceilingGain = 0.05
	// ceilingDisagreement is how far the slots that were found may be from those expected.
	ceilingDisagreement = 0.15
	// warmupSteady is how much the pace may change between two waves of a warm engine.
	warmupSteady = 0.05
	warmupWaves  = 3
)

// closedPoint is a closed loop and what it did.
type closedPoint struct {
	concurrency int
	obs         *Observation
}

// completions per second. Tokens per second over the mean lengths of the
// traffic are free of which lengths happened to be drawn; without a reading of
// them it is the counter of requests done, all phases, since those that count
// are not those that end in the time.
func (s *search) completions(p *closedPoint, l *Load) float64 {
	var total job
	for _, j := range s.unit {
		total.prompt += j.prompt
		total.output += j.output
	}
	n := float64(len(s.unit))
	byTokens := (float64(p.obs.Point.PromptTokenRate)*n/total.prompt + float64(p.obs.Point.GenerationTokenRate)*n/total.output) / 2
	if byTokens > 0 {
		return byTokens
	}
	from, to := injection(l, p.obs)
	var first, last *Sample
	for i, s := range p.obs.Samples {
		if s.At < from || s.At > to {
			continue
		}
		if first == nil {
			first = &p.obs.Samples[i]
		}
		last = &p.obs.Samples[i]
	}
	if first == nil || last.At <= first.At {
		return float64(p.obs.Point.CompletedRate)
	}
	return float64(last.Done-first.Done) / (last.At - first.At)
}

// expectedSlots is how many sequence slots the engine's limits let this
// traffic use: KV tokens over those that a running request holds at a random
// moment, (E[in*out] + E[out(out+1)/2]) / E[out], and no more than max_num_seqs.
func (s *search) expectedSlots() float64 {
	slots := math.NaN()
	if s.Limits.MaxNumSeqs > 0 {
		slots = float64(s.Limits.MaxNumSeqs)
	}
	if s.Limits.KVTokens > 0 {
		if kv := s.Limits.KVTokens / tokensHeld(s.unit); !(kv >= slots) {
			slots = kv
		}
	}
	return slots
}

// warmUp sends waves until the engine's pace is steady. Their results are not used.
func (s *search) warmUp(ctx context.Context) error {
	concurrency := 32
	if e := s.expectedSlots(); !math.IsNaN(e) {
		concurrency = int(min(max(e, ceilingFirst), 256))
	}
	pace := math.NaN()
	for i := range warmupWaves {
		o, err := s.put(ctx, Load{
			Name: s.name("warm-up %d", i+1), Purpose: curve.PurposeWarmup, Concurrency: concurrency,
			Steps: []Step{{Duration: 10 * time.Second}},
		}, nil)
		if err != nil {
			return err
		}
		now := float64(o.Point.E2E.P50)
		if math.IsNaN(now) || math.Abs(now-pace) < warmupSteady*pace {
			break
		}
		pace = now
		if i == 0 && s.Mode == Quick {
			// A second wave only shows that the first was enough: the ceiling does, too.
			break
		}
	}
	return nil
}

// findCeiling doubles the concurrency until that serves no more.
func (s *search) findCeiling(ctx context.Context) error {
	expected := s.expectedSlots()
	c := &curve.Ceiling{Rate: capacity.Unknown(), Residence: capacity.Unknown(), SequenceSlots: capacity.Unknown(), Expected: capacity.Value(expected)}
	s.study.Ceiling = c
	concurrency := ceilingFirst
	previous := math.NaN()
	for {
		d := s.stepDuration()
		l := Load{
			Name: s.name("ceiling %d", concurrency), Purpose: curve.PurposeCeiling, Concurrency: concurrency,
			Warmup: s.ceilingWarmup(), Steps: []Step{{Duration: s.ceilingWarmup() + d}},
		}
		o, err := s.put(ctx, l, nil)
		if err != nil {
			return err
		}
		p := closedPoint{concurrency, o}
		s.steps = append(s.steps, p)
		c.Steps = append(c.Steps, o.Point)
		s.noteBaseline(o)
		rate := s.completions(&p, &l)
		s.residence = float64(o.Point.E2E.P50)
		if rate > s.mu || math.IsNaN(s.mu) {
			s.mu = rate
		}
		s.report("closed loop of %d: %.3g requests/s", concurrency, rate)
		waits := float64(o.Point.Engine.WaitingMean) > 0.5
		gain := (rate - previous) / previous
		previous = rate
		capped := s.MaxRate > 0 && rate > (1-ceilingGain)*s.MaxRate
		if waits || capped || gain < ceilingGain || concurrency*2 > ceilingMost ||
			s.Limits.MaxNumSeqs > 0 && concurrency >= s.Limits.MaxNumSeqs*2 {
			break
		}
		concurrency *= 2
		// Few steps are enough when it is known where they lead.
		for float64(concurrency*4) < expected {
			concurrency *= 2
		}
	}
	s.characterise(c)
	return nil
}

// stepDuration is how long a closed loop is measured.
func (s *search) stepDuration() time.Duration {
	least, residences := 20.0, 3.0
	if s.Mode == Quick {
		least, residences = 10, 1.5
	}
	if math.IsNaN(s.residence) {
		return seconds(least)
	}
	return seconds(min(max(least, residences*s.residence), 60))
}

// ceilingWarmup is the time in which a closed loop gets out of step: about a residence.
func (s *search) ceilingWarmup() time.Duration {
	if math.IsNaN(s.residence) {
		return 5 * time.Second
	}
	return seconds(min(max(2, 2*s.residence), 30))
}

func seconds(v float64) time.Duration {
	return time.Duration(v * float64(time.Second)).Round(time.Millisecond)
}

// noteBaseline keeps the latencies of the engine when it is nearly idle.
func (s *search) noteBaseline(o *Observation) {
	if s.study.Baseline == nil {
		b := o.Point
		b.Purpose = curve.PurposeBaseline
		s.study.Baseline = &b
	}
}

// characterise says what the closed loops showed.
func (s *search) characterise(c *curve.Ceiling) {
	c.Rate = capacity.Value(s.mu)
	last := s.steps[len(s.steps)-1]
	running := float64(last.obs.Point.Engine.RunningMean)
	if math.IsNaN(running) {
		running = float64(last.concurrency)
	}
	// By Little's law; the engine's queue is not part of it.
	c.SequenceSlots = capacity.Value(running)
	c.Residence = capacity.Value(running / s.mu)
	s.residence = running / s.mu
	s.slots = running
	if expected := float64(c.Expected); math.Abs(running-expected) > ceilingDisagreement*expected {
		// Requests also wait where prompts alone keep the engine busy.
		if kv := float64(last.obs.Point.Engine.KVPeak) >= kvFull; kv || running > expected {
			s.note("%.0f sequence slots were used at the ceiling where the engine's limits allow %.0f: look at what else holds KV cache, or at the limits given", running, expected)
		}
	}
	s.queue = learnQueue(c.Steps, s.steps[0].obs.Requests, s.unit, s.Limits)
}

// note adds to the study's reason what a person should know.
func (s *search) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.noteOnce(text)
}

func (s *search) noteOnce(text string) {
	if !slices.Contains(s.notes, text) {
		s.notes = append(s.notes, text)
		s.report("%s", text)
	}
}
