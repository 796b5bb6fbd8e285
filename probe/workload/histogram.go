package workload

import (
	"math"
	"slices"

	"headroom_exporter/capacity"
)

// Histogram counts lengths in buckets.
type Histogram = capacity.Histogram

// TokenBounds are vLLM's bucket bounds for token counts: 1, 2 and 5 in each
// decade, up to the context length.
func TokenBounds(maxModelLen int) []float64 { return capacity.TokenBounds(maxModelLen) }

// NewHistogram is an empty histogram.
func NewHistogram(bounds []float64) Histogram { return capacity.NewHistogram(bounds) }

// Histograms are the shares of the class's prompt and output lengths in
// buckets of the given bounds: those that were observed when their bounds are
// the same, else those of the distributions. Sessions lengthen prompts as they
// go on, which is left out here.
func (c *Class) Histograms(bounds []float64) (prompt, output Histogram) {
	if o := c.Observed; o != nil && slices.Equal(o.PromptHistogram.Bounds, bounds) && slices.Equal(o.OutputHistogram.Bounds, bounds) {
		return o.PromptHistogram.Shares(), o.OutputHistogram.Shares()
	}
	if c.Joint != nil {
		prompt, output = NewHistogram(bounds), NewHistogram(bounds)
		for _, cell := range c.Joint {
			prompt.Add(float64(cell.Prompt), cell.Weight)
			output.Add(float64(cell.Output), cell.Weight)
		}
		return prompt.Shares(), output.Shares()
	}
	return c.Prompt.histogram(bounds), c.Output.histogram(bounds)
}

func (l Lengths) histogram(bounds []float64) Histogram {
	h := NewHistogram(bounds)
	below := 0.0
	for i, b := range bounds {
		up := l.cdf(b)
		h.Counts[i] = max(up-below, 0)
		below = up
	}
	h.Counts[len(bounds)] = max(1-below, 0)
	return h
}

// Means are the class's mean prompt and output length in tokens, as observed
// or as the distributions have it. A class of sessions has longer prompts
// than this from its second turn on.
func (c *Class) Means() (prompt, output float64) {
	if o := c.Observed; o != nil {
		return o.PromptMean, o.OutputMean
	}
	if c.Joint != nil {
		total := 0.0
		for _, cell := range c.Joint {
			prompt += cell.Weight * float64(cell.Prompt)
			output += cell.Weight * float64(cell.Output)
			total += cell.Weight
		}
		return prompt / total, output / total
	}
	return c.Prompt.mean(), c.Output.mean()
}

// mean is the expected length, rounding and bounds included: the sum over
// n >= 0 of P(length > n), in steps as fine as the distribution is.
func (l Lengths) mean() float64 {
	switch {
	case l.Distribution == Buckets:
		sum, total := 0.0, 0.0
		for _, b := range l.Buckets {
			sum += b.Weight * float64(b.From+b.To) / 2
			total += b.Weight
		}
		return sum / total
	case l.SD == 0:
		low, high := l.bounds()
		return min(max(math.Round(l.Mean), low), high)
	}
	// The integral of the tail by the trapezoid rule on a grid that is fine
	// near 0 and goes out to where nothing is left.
	low, high := l.bounds()
	high = min(high, l.Mean+40*l.SD)
	sum, x := low, low
	tail := 1 - l.cdf(x)
	for x < high {
		next := min(x+max(1, math.Floor(x/512)), high)
		nextTail := 1 - l.cdf(next)
		if next-x == 1 {
			sum += tail
		} else {
			sum += (next - x) * (tail + nextTail) / 2
		}
		x, tail = next, nextTail
	}
	return sum
}
