package workload

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Histogram counts lengths in buckets: Counts[i] is the weight of lengths
// above Bounds[i-1] and up to Bounds[i]; one more count is for those above
// the last bound. Counts are not cumulative and need not be whole.
type Histogram struct {
	Bounds []float64 `json:"le"`
	Counts []float64 `json:"counts"`
}

// TokenBounds are vLLM's bucket bounds for token counts: 1, 2 and 5 in each
// decade, up to the context length.
func TokenBounds(maxModelLen int) []float64 {
	var bounds []float64
	for decade := 1; ; decade *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*decade > maxModelLen {
				return bounds
			}
			bounds = append(bounds, float64(m*decade))
		}
	}
}

// NewHistogram is an empty histogram.
func NewHistogram(bounds []float64) Histogram {
	return Histogram{Bounds: slices.Clone(bounds), Counts: make([]float64, len(bounds)+1)}
}

// Add counts a length with a weight.
func (h *Histogram) Add(length, weight float64) {
	i, _ := slices.BinarySearch(h.Bounds, length)
	h.Counts[i] += weight
}

// Total is the sum of the counts.
func (h Histogram) Total() float64 {
	total := 0.0
	for _, c := range h.Counts {
		total += c
	}
	return total
}

func (h Histogram) validate() error {
	if len(h.Bounds) == 0 || len(h.Counts) != len(h.Bounds)+1 {
		return fmt.Errorf("%d bounds and %d counts, want one count more than bounds", len(h.Bounds), len(h.Counts))
	}
	for i, b := range h.Bounds {
		if math.IsNaN(b) || math.IsInf(b, 0) || i > 0 && b <= h.Bounds[i-1] {
			return fmt.Errorf("bound %d is %g, want finite and rising", i+1, b)
		}
	}
	for i, c := range h.Counts {
		if !(c >= 0) || math.IsInf(c, 0) {
			return fmt.Errorf("count %d is %g, want 0 or more", i+1, c)
		}
	}
	if t := h.Total(); !(t > 0) || math.IsInf(t, 0) {
		return errors.New("counts nothing")
	}
	return nil
}

// Histograms are the shares of the class's prompt and output lengths in
// buckets of the given bounds: those that were observed when their bounds are
// the same, else those of the distributions. Sessions lengthen prompts as they
// go on, which is left out here.
func (c *Class) Histograms(bounds []float64) (prompt, output Histogram) {
	if o := c.Observed; o != nil && slices.Equal(o.PromptHistogram.Bounds, bounds) && slices.Equal(o.OutputHistogram.Bounds, bounds) {
		return o.PromptHistogram.shares(), o.OutputHistogram.shares()
	}
	if c.Joint != nil {
		prompt, output = NewHistogram(bounds), NewHistogram(bounds)
		for _, cell := range c.Joint {
			prompt.Add(float64(cell.Prompt), cell.Weight)
			output.Add(float64(cell.Output), cell.Weight)
		}
		return prompt.shares(), output.shares()
	}
	return c.Prompt.histogram(bounds), c.Output.histogram(bounds)
}

func (h Histogram) shares() Histogram {
	total := h.Total()
	s := NewHistogram(h.Bounds)
	for i, c := range h.Counts {
		s.Counts[i] = c / total
	}
	return s
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
