package capacity

import (
	"math"

	"gonum.org/v1/gonum/mathext"
)

// binomialCDF is P(X <= k) of X ~ Bin(n, p), by its identity with the
// regularised incomplete beta function: I_{1-p}(n-k, k+1).
func binomialCDF(k, n int, p float64) float64 {
	switch {
	case k < 0:
		return 0
	case k >= n:
		return 1
	}
	return mathext.RegIncBeta(float64(n-k), float64(k+1), 1-p)
}

// UpperFraction is the one-sided upper confidence bound of a fraction of
// which violations in n trials were seen, 0.95 for 95 % (Clopper and Pearson
// 1934): the fraction at which so few violations have the probability
// 1-confidence. Counts need not be whole, as when a design effect divided
// them. Without trials it is 1.
func UpperFraction(violations, n, confidence float64) float64 {
	if !(n > 0) || violations >= n {
		return 1
	}
	violations = max(0, violations)
	if violations == 0 {
		return -math.Expm1(math.Log1p(-confidence) / n)
	}
	return mathext.InvRegIncBeta(violations+1, n-violations, confidence)
}

// LowerFraction is the lower bound that belongs to UpperFraction: the
// fraction at which so many violations have the probability 1-confidence.
// Without trials it is 0.
func LowerFraction(violations, n, confidence float64) float64 {
	if !(n > 0) || violations <= 0 {
		return 0
	}
	if violations >= n {
		return math.Pow(1-confidence, 1/n)
	}
	return mathext.InvRegIncBeta(violations, n-violations+1, 1-confidence)
}

// QuantileRanks are the ranks, from 1, of the two among n sorted samples
// between which the quantile q lies with the confidence: the largest low with
// P(Bin(n, q) <= low-1) and the smallest high with P(Bin(n, q) >= high) of at
// most (1-confidence)/2 (David and Nagaraja, Order Statistics, 7.1). A rank
// is 0 where too few samples leave none.
func QuantileRanks(n int, q, confidence float64) (low, high int) {
	tail := (1 - confidence) / 2
	low = smallest(0, n, func(k int) bool { return binomialCDF(k, n, q) > tail })
	// P(Bin(n, q) >= k) is P(Bin(n, 1-q) <= n-k), which loses no digits.
	high = smallest(1, n+1, func(k int) bool { return k > n || binomialCDF(n-k, n, 1-q) <= tail })
	if high > n {
		high = 0
	}
	return low, high
}

// smallest is the smallest whole number from low to high that holds, of a
// condition that holds from some number on; high holds.
func smallest(low, high int, holds func(int) bool) int {
	for low < high {
		if mid := low + (high-low)/2; holds(mid) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

// DesignEffect is by how much violations come in clumps: the variance of the
// violations per block of time, as counted, over the one that independent
// trials would have, sum (v - p n)^2 / (N p (1-p)), at least 1 (Kish 1965).
// Divide violations and trials by it before a test of independent samples.
// over and of are each block's violations and trials. Clumps that are longer
// than a block are seen in part only.
func DesignEffect(over, of []float64) float64 {
	violations, trials := 0.0, 0.0
	for i := range of {
		violations += over[i]
		trials += of[i]
	}
	p := violations / trials
	if !(p > 0 && p < 1) {
		return 1
	}
	sum := 0.0
	for i := range of {
		d := over[i] - p*of[i]
		sum += d * d
	}
	return max(1, sum/(trials*p*(1-p)))
}

// AABand is how far two measurements of the same load lie apart: the largest
// |a-b| / mean of the pairs. A pair of which one is unknown, or whose mean is
// not above 0, says nothing; it is NaN without any other.
func AABand(a, b []float64) float64 {
	band := math.NaN()
	for i := range a {
		mean := (a[i] + b[i]) / 2
		if !(mean > 0) {
			continue
		}
		if d := math.Abs(a[i]-b[i]) / mean; !(d <= band) {
			band = d
		}
	}
	return band
}
