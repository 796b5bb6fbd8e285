package capacity

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

// EffectiveSize is how many equal lengths tell as much of their sum as these do
// (Kish 1965): (sum of lengths)^2 / sum of lengths^2, each taken to be in the
// middle of its bucket. It is 0 without a count.
func (h Histogram) EffectiveSize() float64 {
	var sum, squares, low float64
	for i, c := range h.Counts {
		high := low
		if i < len(h.Bounds) {
			high = h.Bounds[i]
		}
		middle := (low + high) / 2
		sum += c * middle
		squares += c * middle * middle
		low = high
	}
	if sum == 0 {
		return 0
	}
	return sum * sum / squares
}

// Validate returns an error that names what cannot be.
func (h Histogram) Validate() error {
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

// Shares is the histogram with counts that add up to 1.
func (h Histogram) Shares() Histogram {
	total := h.Total()
	s := NewHistogram(h.Bounds)
	for i, c := range h.Counts {
		s.Counts[i] = c / total
	}
	return s
}
