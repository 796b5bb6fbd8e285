package workload

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
)

// MaxTokens bounds every length, in tokens.
const MaxTokens = 1 << 24

// Distribution is the shape of random lengths.
type Distribution string

// The distributions.
const (
	Fixed     Distribution = "fixed"
	Normal    Distribution = "normal"
	Lognormal Distribution = "lognormal"
	Buckets   Distribution = "buckets"
)

// Lengths draws lengths in tokens. Mean and SD are those before rounding and
// before Min and Max apply: what lies outside is set to the bound.
type Lengths struct {
	Distribution Distribution `json:"distribution"`
	Mean         float64      `json:"mean,omitempty"`
	SD           float64      `json:"sd,omitempty"`
	// Min is at least 1; a Max of 0 is no bound.
	Min int `json:"min,omitempty"`
	Max int `json:"max,omitempty"`
	// Buckets are drawn by weight, then uniformly inside.
	Buckets []Bucket `json:"buckets,omitempty"`
}

// Bucket is the lengths From to To, both included, with a relative weight.
type Bucket struct {
	From   int     `json:"from"`
	To     int     `json:"to"`
	Weight float64 `json:"weight"`
}

// FixedLength is a length that is always the same.
func FixedLength(tokens int) Lengths { return Lengths{Distribution: Fixed, Mean: float64(tokens)} }

func (l Lengths) given() bool { return l.Distribution != "" }

func (l Lengths) validate() error {
	switch l.Distribution {
	case "":
		return errors.New("no length given")
	case Buckets:
		if l.Mean != 0 || l.SD != 0 || l.Min != 0 || l.Max != 0 {
			return errors.New("buckets take no mean, sd, min or max")
		}
		return validateBuckets(l.Buckets)
	case Fixed, Normal, Lognormal:
	default:
		return fmt.Errorf("no distribution %q: want fixed, normal, lognormal or buckets", l.Distribution)
	}
	switch {
	case l.Buckets != nil:
		return fmt.Errorf("%s takes no buckets", l.Distribution)
	case !(l.Mean >= 1 && l.Mean <= MaxTokens):
		return fmt.Errorf("mean is %g tokens, want 1 to %d", l.Mean, MaxTokens)
	case !(l.SD >= 0 && l.SD <= MaxTokens):
		return fmt.Errorf("sd is %g tokens, want 0 to %d", l.SD, MaxTokens)
	case l.Distribution == Fixed && l.SD != 0:
		return errors.New("fixed takes no sd")
	case l.Min < 0 || l.Max < 0 || l.Min > MaxTokens || l.Max > MaxTokens:
		return fmt.Errorf("min is %d and max is %d, want 0 to %d", l.Min, l.Max, MaxTokens)
	case l.Max > 0 && l.Min > l.Max:
		return fmt.Errorf("min %d is above max %d", l.Min, l.Max)
	}
	return nil
}

func validateBuckets(buckets []Bucket) error {
	if len(buckets) == 0 {
		return errors.New("no buckets given")
	}
	total := 0.0
	for i, b := range buckets {
		switch {
		case b.From < 1 || b.To < b.From || b.To > MaxTokens:
			return fmt.Errorf("bucket %d is %d to %d tokens, want 1 <= from <= to <= %d", i+1, b.From, b.To, MaxTokens)
		case !(b.Weight >= 0) || math.IsInf(b.Weight, 0):
			return fmt.Errorf("bucket %d has weight %g, want 0 or more", i+1, b.Weight)
		}
		total += b.Weight
	}
	if !(total > 0) || math.IsInf(total, 0) {
		return fmt.Errorf("the weights of the buckets add up to %g, want more than 0", total)
	}
	return nil
}

// bounds are the smallest and the largest length that can be drawn.
func (l Lengths) bounds() (low, high float64) {
	high = MaxTokens
	if l.Max > 0 {
		high = float64(l.Max)
	}
	return max(float64(l.Min), 1), high
}

// draw draws one length.
func (l Lengths) draw(rng *rand.Rand) int {
	x := l.Mean
	switch l.Distribution {
	case Normal:
		x += l.SD * rng.NormFloat64()
	case Lognormal:
		mu, sigma := l.lognormal()
		x = math.Exp(mu + sigma*rng.NormFloat64())
	case Buckets:
		b := l.Buckets[pick(rng.Float64(), len(l.Buckets), func(i int) float64 { return l.Buckets[i].Weight })]
		return b.From + rng.IntN(b.To-b.From+1)
	}
	low, high := l.bounds()
	return int(min(max(math.Round(x), low), high))
}

// lognormal returns the parameters of the logarithm: the mean and variance of
// exp(N(mu, s2)) are exp(mu+s2/2) and (exp(s2)-1) exp(2mu+s2).
func (l Lengths) lognormal() (mu, sigma float64) {
	s2 := math.Log1p(l.SD * l.SD / (l.Mean * l.Mean))
	return math.Log(l.Mean) - s2/2, math.Sqrt(s2)
}

// cdf is the probability of a length up to x tokens.
func (l Lengths) cdf(x float64) float64 {
	if l.Distribution == Buckets {
		below, total := 0.0, 0.0
		for _, b := range l.Buckets {
			total += b.Weight
			inside := math.Floor(x) - float64(b.From) + 1
			below += b.Weight * min(max(inside/float64(b.To-b.From+1), 0), 1)
		}
		return below / total
	}
	low, high := l.bounds()
	switch {
	case x < low:
		return 0
	case x >= high:
		return 1
	}
	// A length is what rounds to it: up to x means below floor(x) + 1/2.
	edge := math.Floor(x) + 0.5
	z := math.Inf(1)
	switch {
	case l.Distribution == Lognormal && l.SD > 0:
		mu, sigma := l.lognormal()
		z = (math.Log(edge) - mu) / sigma
	case l.Distribution == Normal && l.SD > 0:
		z = (edge - l.Mean) / l.SD
	case math.Round(l.Mean) > edge:
		return 0
	}
	return math.Erfc(-z/math.Sqrt2) / 2
}

// Joint draws prompt and output length together, by the weights of its cells.
type Joint []JointCell

// JointCell is one pair of lengths in tokens with a relative weight.
type JointCell struct {
	Prompt int     `json:"prompt"`
	Output int     `json:"output"`
	Weight float64 `json:"weight"`
}

func (j Joint) validate() error {
	if len(j) == 0 {
		return errors.New("no cells given")
	}
	total := 0.0
	for i, c := range j {
		switch {
		case c.Prompt < 1 || c.Prompt > MaxTokens || c.Output < 1 || c.Output > MaxTokens:
			return fmt.Errorf("cell %d is %d and %d tokens, want 1 to %d", i+1, c.Prompt, c.Output, MaxTokens)
		case !(c.Weight >= 0) || math.IsInf(c.Weight, 0):
			return fmt.Errorf("cell %d has weight %g, want 0 or more", i+1, c.Weight)
		}
		total += c.Weight
	}
	if !(total > 0) || math.IsInf(total, 0) {
		return fmt.Errorf("the weights of the cells add up to %g, want more than 0", total)
	}
	return nil
}

// pick returns the item that a uniform number u falls on when the items lie
// side by side, as wide as their weights.
func pick(u float64, n int, weight func(int) float64) int {
	total := 0.0
	for i := range n {
		total += weight(i)
	}
	u *= total
	last := 0
	for i := range n {
		w := weight(i)
		if w == 0 {
			continue
		}
		if u < w {
			return i
		}
		u -= w
		last = i
	}
	return last
}

// drawer draws the lengths of one class.
type drawer struct {
	class *Class
	// below holds the running sums of the joint weights.
	below []float64
}

func newDrawer(c *Class) drawer {
	d := drawer{class: c}
	total := 0.0
	for _, cell := range c.Joint {
		total += cell.Weight
		d.below = append(d.below, total)
	}
	return d
}

func (d *drawer) draw(rng *rand.Rand) (prompt, output int) {
	if d.below == nil {
		return d.class.Prompt.draw(rng), d.class.Output.draw(rng)
	}
	u := rng.Float64() * d.below[len(d.below)-1]
	i := sort.Search(len(d.below), func(i int) bool { return d.below[i] > u })
	cell := d.class.Joint[min(i, len(d.below)-1)]
	return cell.Prompt, cell.Output
}
