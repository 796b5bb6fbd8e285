package capacity

import "math"

// Of an estimate of burstiness: the mean count that a bin must have, how many
// bins there must be, and by how much traffic may be burstier than what the
// curve was measured with.
const (
	burstCount = 5
	burstBins  = 60
	burstLimit = 1.5
)

// Dispersion is how bursty counts of arrivals in bins of equal width are: the
// index of dispersion for counts, without slow drift of the rate,
//
//	mean of (N[i+1] - N[i])^2 / (2 * mean of N)
//
// by von Neumann's differences: 1 of a Poisson process, 1/k of gamma-distributed
// gaps with the shape k where a bin holds many. A bin that is NaN is left out
// with the differences to it. It is NaN without two bins in a row, or without
// arrivals.
func Dispersion(counts []float64) float64 {
	sum, pairs := 0.0, 0.0
	for i := 1; i < len(counts); i++ {
		if d := counts[i] - counts[i-1]; !math.IsNaN(d) {
			sum, pairs = sum+d*d, pairs+1
		}
	}
	return ratio(sum, pairs) / (2 * meanKnown(counts))
}

// meanKnown is the mean of what is known; NaN of nothing, and of nothing but 0.
func meanKnown(values []float64) float64 {
	sum, n := 0.0, 0.0
	for _, v := range values {
		if !math.IsNaN(v) {
			sum, n = sum+v, n+1
		}
	}
	if sum == 0 {
		return math.NaN()
	}
	return sum / n
}

// Burstiness is how bursty traffic is. What is not known is NaN.
type Burstiness struct {
	// BinSeconds is the width of the bins: the smallest that holds 5 arrivals
	// in the mean, as with fewer any traffic looks like Poisson's.
	BinSeconds float64
	// Bins that were known.
	Bins int
	// Dispersion of their counts.
	Dispersion float64
	// Shape is that of gamma-distributed gaps with this dispersion, 1 /
	// Dispersion, as load generators call burstiness; ShapeError is its
	// standard error, about Shape * sqrt(3 / bins).
	Shape, ShapeError float64
}

// NewBurstiness estimates the burstiness of traffic from the arrivals of each
// second, in order, NaN where they are not known. It is not known of fewer than
// 60 bins, of which the standard error would be above 22 %.
func NewBurstiness(perSecond []float64) Burstiness {
	nan := math.NaN()
	b := Burstiness{nan, 0, nan, nan, nan}
	width := math.Max(1, math.Ceil(burstCount/meanKnown(perSecond)))
	if math.IsNaN(width) || width > float64(len(perSecond)) {
		return b
	}
	var counts []float64
	for n := int(width); len(perSecond) >= n; perSecond = perSecond[n:] {
		count := 0.0
		for _, v := range perSecond[:n] {
			count += v
		}
		counts = append(counts, count)
		if !math.IsNaN(count) {
			b.Bins++
		}
	}
	b.BinSeconds = width
	if b.Bins < burstBins {
		return b
	}
	b.Dispersion = Dispersion(counts)
	b.Shape = 1 / b.Dispersion
	b.ShapeError = b.Shape * math.Sqrt(3/float64(b.Bins))
	return b
}

// Burstier tells whether traffic is so much burstier than what a curve was
// measured with that the curve's knees are too high for it: its dispersion is
// more than 1.5 times 1 / shape, the shape being the curve's, 1 of Poisson. Of
// what is not known it is false.
func (b Burstiness) Burstier(shape float64) bool {
	return b.Dispersion > burstLimit/shape
}
