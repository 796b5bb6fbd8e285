package curve

import (
	"cmp"
	"math"
	"slices"
)

// Expected is what the curve says of the engine at one operating point. What
// is not known is NaN.
type Expected struct {
	// LoadRatio at which the curve has as many requests running.
	LoadRatio float64
	// TTFT and Step are mean seconds. Step is between the steps of a sequence, each
	// of which brings a token, or with speculative decoding several.
	TTFT, Step float64
	// GenerationTokenRate is generated tokens per second.
	GenerationTokenRate float64
}

const (
	// highestExpected is how far above the knee open-loop points are looked at: there
	// a queue grows for as long as the point lasts, and its latencies say nothing.
	highestExpected = 1.1
	// mostRunning is how many times as many as at the highest point may run there: the
	// means of full slots are some per cent apart.
	mostRunning = 1.05
)

// Expect is what the curve's points say of a load at which this many requests
// run, which the whole of the curve's engine does; NaN takes the load's own
// ratio. An engine that is slower than its curve has more requests running at
// the same rate, and at the same number running its steps take longer by as
// much as it is slower: so that is the operating point at which latencies are
// compared. Between points it goes as a step's time does; beyond them nothing is
// known. The time to first token is known up to the knee only where no open loop
// was measured above it.
func (c *Curve) Expect(l Load, running float64) Expected {
	unknown := Expected{math.NaN(), math.NaN(), math.NaN(), math.NaN()}
	var parts []expectedPart
	var ratios, rates float64
	high := math.Inf(1)
	for i := range l.Classes {
		k := &l.Classes[i]
		if !(k.Ratio > 0) {
			continue
		}
		p := c.Classes[i].line(k.Full)
		if len(p) == 0 {
			return unknown
		}
		parts = append(parts, expectedPart{p, k.Ratio, k.Rate, k.Full, c.Classes[i].GenerationMean})
		ratios, rates, high = ratios+k.Ratio, rates+k.Rate, min(high, p[len(p)-1].ratio)
	}
	if len(parts) == 0 {
		return unknown
	}
	for i := range parts {
		parts[i].load /= ratios
		parts[i].rate /= rates
	}
	at := l.Estimate
	if most := together(parts, high); !math.IsNaN(running) && !math.IsNaN(most) {
		if running > most {
			return full(parts, high, running)
		}
		low, up := 0.0, high
		for range 40 {
			at = (low + up) / 2
			if together(parts, at) < running {
				low = at
			} else {
				up = at
			}
		}
	}
	if !(at <= high) {
		return unknown
	}
	return Expected{at, sum(parts, at, (*expectedPart).ttft), sum(parts, at, (*expectedPart).step), generation(parts, at)}
}

// linePoint is a point of a class: a load ratio, and what was measured there.
// step is the time between a request's steps, perStep the tokens that one brings,
// decoding the share of the running requests that decode, each of which makes a
// step in that time; the others are at their prompts.
type linePoint struct{ ratio, running, ttft, step, perStep, decoding float64 }

// line is a class's points by rising load, those of the open loop up to a little
// above its knee. Those of the closed loop count at the rate that was served: at that
// as many requests run as in the open loop. Above the knee they are what shows an
// engine that is full, and their requests wait for each other: the time to first
// token is that of the loop.
func (c *Class) line(knee float64) []linePoint {
	s := c.poisson()
	if s == nil || !(knee > 0) {
		return nil
	}
	var line []linePoint
	add := func(p *Point) {
		rate, most, ttft := float64(p.OfferedRate), highestExpected*knee, float64(p.TTFT.Mean)
		if p.Concurrency > 0 {
			rate, most = float64(p.CompletedRate), math.Inf(1)
			if rate > knee {
				ttft = math.NaN()
			}
		}
		if p.Stopped != "" || len(p.Faults) > 0 || !(rate > 0 && rate <= most) {
			return
		}
		// The client counts the time between tokens, however many a step brings.
		running, itl, perStep := float64(p.Engine.RunningMean), float64(p.ITL.Mean), tokensPerStep(p)
		line = append(line, linePoint{rate / knee, running, ttft, itl * perStep, perStep, float64(p.GenerationTokenRate) * itl / running})
	}
	if s.Baseline != nil {
		add(s.Baseline)
	}
	if s.Ceiling != nil {
		for i := range s.Ceiling.Steps {
			add(&s.Ceiling.Steps[i])
		}
	}
	for i := range s.Points {
		switch p := &s.Points[i]; p.Purpose {
		case PurposeProbe, PurposeAA, PurposeSoak, PurposeImported:
			add(p)
		}
	}
	slices.SortStableFunc(line, func(a, b linePoint) int { return cmp.Compare(a.ratio, b.ratio) })
	return line
}

// expectedPart is a class within a mix: its line, its shares of the load and of
// the requests, its knee alone, and the tokens that a request generates.
type expectedPart struct {
	line       []linePoint
	load, rate float64
	knee       float64
	tokens     float64
}

// full is what is expected where more run than at the highest load that all parts
// were measured at: up to where each is at its own highest, steps become longer as
// more run. A queue is there, so of latencies nothing else is known.
func full(parts []expectedPart, high, running float64) Expected {
	last := func(value func(linePoint) float64) float64 {
		return sum(parts, math.Inf(1), func(p *expectedPart, at float64) float64 { return p.load * p.between(at, value) })
	}
	from, to := together(parts, high), last(func(l linePoint) float64 { return l.running })
	if running > mostRunning*max(from, to) {
		return Expected{math.NaN(), math.NaN(), math.NaN(), math.NaN()}
	}
	step := sum(parts, high, (*expectedPart).step)
	if to > from {
		step += min((running-from)/(to-from), 1) * (last(func(l linePoint) float64 { return l.step }) - step)
	}
	return Expected{LoadRatio: high, TTFT: math.NaN(), Step: step, GenerationTokenRate: math.NaN()}
}

// together is how many requests of all parts run at a load ratio.
func together(parts []expectedPart, at float64) float64 {
	step := sum(parts, at, (*expectedPart).step)
	return sum(parts, at, func(p *expectedPart, at float64) float64 { return p.among(at, step) })
}

// generation is the tokens per second of all parts: of what runs the part that
// decodes, as it does alone, makes a step every time between steps.
func generation(parts []expectedPart, at float64) float64 {
	step := sum(parts, at, (*expectedPart).step)
	return sum(parts, at, func(p *expectedPart, at float64) float64 {
		return p.among(at, step) * p.between(at, func(l linePoint) float64 { return l.decoding }) / step * p.perStep(at)
	})
}

func sum(parts []expectedPart, at float64, value func(*expectedPart, float64) float64) float64 {
	total := 0.0
	for i := range parts {
		total += value(&parts[i], at)
	}
	return total
}

// running is how many requests a part alone would have. What is offered runs for
// as long as its steps take, so that running / load grows as alone does.
func (p *expectedPart) running(at float64) float64 {
	if at == 0 {
		return 0 // An idle engine runs nothing.
	}
	return p.load * at / p.between(at, func(l linePoint) float64 { return l.ratio / l.running })
}

// alone is the time between steps of the class alone. A step takes a base, and
// what comes while it lasts: t = base + load * share * t, so that 1/t falls
// linearly with the load.
func (p *expectedPart) alone(at float64) float64 {
	return 1 / p.between(at, func(l linePoint) float64 { return 1 / l.step })
}

// idle is the time between steps where there is no load: the line of 1/t, see
// alone, through the two lowest points. Few requests at a time can be a good part
// of the load, where each is long.
func (p *expectedPart) idle() float64 {
	a, b := p.line[0], p.line[1]
	slope := (1/b.step - 1/a.step) / (b.ratio - a.ratio)
	if !(slope < 0) {
		return a.step
	}
	return 1 / (1/a.step - slope*a.ratio)
}

// Every request has a part in the same steps, so what a class does to them is its share of the load.
func (p *expectedPart) step(at float64) float64 { return p.load * p.alone(at) }

func (p *expectedPart) ttft(at float64) float64 {
	return p.rate * p.between(at, func(l linePoint) float64 { return l.ttft })
}

func (p *expectedPart) perStep(at float64) float64 {
	return p.between(at, func(l linePoint) float64 { return l.perStep })
}

// among is how many requests of a part run among others. Alone it has its own
// time between steps, here that of all; by as much as this is longer or shorter
// do its requests stay, and by Little's law as many more or fewer run.
func (p *expectedPart) among(at, step float64) float64 {
	running := p.running(at)
	longer := p.tokens / p.perStep(at) * (step - p.alone(at))
	if math.IsNaN(longer) {
		return running
	}
	return max(running+p.load*at*p.knee*longer, 0)
}

// between interpolates linearly; an engine with less to do than at the lowest
// point is as it was there.
func (p *expectedPart) between(at float64, value func(linePoint) float64) float64 {
	i, _ := slices.BinarySearchFunc(p.line, at, func(l linePoint, at float64) int { return cmp.Compare(l.ratio, at) })
	switch {
	case i == len(p.line):
		return value(p.line[i-1])
	case i == 0 || p.line[i].ratio == p.line[i-1].ratio:
		return value(p.line[i])
	}
	a, b := p.line[i-1], p.line[i]
	return value(a) + (value(b)-value(a))*(at-a.ratio)/(b.ratio-a.ratio)
}
