package workload

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// RampShape is how a rate goes from one value to another.
type RampShape string

// The shapes of a ramp.
const (
	Linear      RampShape = "linear"
	Exponential RampShape = "exponential"
	Step        RampShape = "step"
)

// Ramp is a change of the rate in time, from the start of the run. The zero value is none.
type Ramp struct {
	Shape RampShape
	// From is the rate at the start, in requests per second.
	From float64
	Over time.Duration
	// Steps of equal length divide Over when the shape is Step: the first has
	// the rate From, and after the last comes the final rate.
	Steps int
}

// RampSyntax is what ParseRamp reads.
const RampSyntax = "linear:FROM:DURATION, exponential:FROM:DURATION or step:FROM:DURATION:STEPS"

// ParseRamp reads a ramp in one of the forms of RampSyntax; FROM is in requests per second.
func ParseRamp(text string) (Ramp, error) {
	parts := strings.Split(text, ":")
	wrong := func(why string) (Ramp, error) {
		return Ramp{}, fmt.Errorf("ramp %q: %s: want %s", text, why, RampSyntax)
	}
	r := Ramp{Shape: RampShape(parts[0])}
	want := 3
	if r.Shape == Step {
		want = 4
	}
	if len(parts) != want {
		return wrong("the parts are not right")
	}
	var err error
	if r.From, err = strconv.ParseFloat(parts[1], 64); err != nil {
		return wrong(fmt.Sprintf("FROM is %q", parts[1]))
	}
	if r.Over, err = time.ParseDuration(parts[2]); err != nil {
		return wrong(fmt.Sprintf("DURATION is %q", parts[2]))
	}
	if r.Shape == Step {
		if r.Steps, err = strconv.Atoi(parts[3]); err != nil {
			return wrong(fmt.Sprintf("STEPS is %q", parts[3]))
		}
	}
	if err := r.validate(); err != nil {
		return Ramp{}, fmt.Errorf("ramp %q: %w", text, err)
	}
	return r, nil
}

func (r Ramp) validate() error {
	switch r.Shape {
	case "":
		if r != (Ramp{}) {
			return errors.New("ramp: no shape given")
		}
		return nil
	case Linear, Step:
	case Exponential:
		if r.From == 0 {
			return errors.New("an exponential ramp cannot begin at 0")
		}
	default:
		return fmt.Errorf("no ramp %q, want linear, exponential or step", r.Shape)
	}
	switch {
	case !(r.From >= 0 && r.From <= maxRate):
		return fmt.Errorf("a ramp from %g, want 0 to %g requests per second", r.From, float64(maxRate))
	case r.Over <= 0:
		return fmt.Errorf("a ramp over %s, want more than 0", r.Over)
	case r.Shape == Step && (r.Steps < 1 || r.Steps > 10000):
		return fmt.Errorf("a ramp of %d steps, want 1 to 10000", r.Steps)
	case r.Shape != Step && r.Steps != 0:
		return fmt.Errorf("a %s ramp takes no steps", r.Shape)
	}
	return nil
}

// clock tells when the integral of a rate over time reaches a value.
type clock []stretch

// stretch is a part of the time in which the rate changes in one way: from
// rate, by slope per second when linear, or as rate*exp(growth*t).
type stretch struct {
	// begin is the time, before the integral of the rate, where the stretch begins.
	begin, before       float64
	rate, slope, growth float64
}

func (a Arrivals) clock() clock {
	over := a.Ramp.Over.Seconds()
	switch a.Ramp.Shape {
	case Linear:
		return clock{
			{rate: a.Ramp.From, slope: (a.Rate - a.Ramp.From) / over},
			{begin: over, before: over * (a.Ramp.From + a.Rate) / 2, rate: a.Rate},
		}
	case Exponential:
		growth := math.Log(a.Rate/a.Ramp.From) / over
		before := over * a.Rate
		if growth != 0 {
			before = (a.Rate - a.Ramp.From) / growth
		}
		return clock{{rate: a.Ramp.From, growth: growth}, {begin: over, before: before, rate: a.Rate}}
	case Step:
		var c clock
		before, n := 0.0, float64(a.Ramp.Steps)
		for i := range a.Ramp.Steps {
			rate := a.Ramp.From + (a.Rate-a.Ramp.From)*float64(i)/n
			c = append(c, stretch{begin: over * float64(i) / n, before: before, rate: rate})
			before += rate * over / n
		}
		return append(c, stretch{begin: over, before: before, rate: a.Rate})
	}
	return clock{{rate: a.Rate}}
}

// at returns the time in seconds at which the integral reaches sum.
func (c clock) at(sum float64) float64 {
	last := c[0]
	for _, s := range c[1:] {
		// Where a stretch with no rate begins and ends at one sum, the time is its end.
		if s.before > sum || s.before == sum && last.rate > 0 {
			break
		}
		last = s
	}
	left := sum - last.before
	switch {
	case left <= 0:
		return last.begin
	case last.slope != 0:
		// The root of rate*t + slope*t^2/2 = left that does not cancel.
		return last.begin + 2*left/(last.rate+math.Sqrt(max(last.rate*last.rate+2*last.slope*left, 0)))
	case last.growth != 0:
		return last.begin + math.Log1p(last.growth*left/last.rate)/last.growth
	}
	return last.begin + left/last.rate
}
