package capacity

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// exactTrend is the number of values up to which the distribution of
// Mann-Kendall's S is computed, not approximated.
const exactTrend = 20

// MannKendall tests for a rising trend: s is the number of pairs that rise
// minus that of pairs that fall, p the probability of an s as large or larger
// without a trend. p is exact up to 20 values without ties (Kendall, Rank
// Correlation Methods, 1975); for others it is the normal approximation, with
// the variance corrected for ties and for continuity. Fewer than 2 values, or
// equal ones, show nothing: p is 1.
func MannKendall(y []float64) (s int, p float64) {
	for i := range y {
		for _, later := range y[i+1:] {
			s += cmp.Compare(later, y[i])
		}
	}
	return s, trendTail(s, len(y), tieCorrection(y))
}

// tieCorrection is the sum of t(t-1)(2t+5) over the groups of t equal values.
func tieCorrection(y []float64) float64 {
	sum, t := 0.0, 0.0
	sorted := slices.Sorted(slices.Values(y))
	for i, v := range sorted {
		t++
		if i+1 == len(sorted) || sorted[i+1] != v {
			sum += t * (t - 1) * (2*t + 5)
			t = 0
		}
	}
	return sum
}

// trendTail is P(S >= s) of n values in random order.
func trendTail(s, n int, ties float64) float64 {
	if n <= exactTrend && ties == 0 {
		// S is all pairs less twice those that fall.
		return inversionsCDF(n, (n*(n-1)/2-s)/2)
	}
	m := float64(n)
	variance := (m*(m-1)*(2*m+5) - ties) / 18
	if variance <= 0 {
		return 1
	}
	return distuv.UnitNormal.Survival((float64(s) - 1) / math.Sqrt(variance))
}

// inversionsCDF is the probability that a random order of n values has at
// most k pairs that fall. The i-th value falls behind 0 to i-1 of those
// before it, each as likely.
func inversionsCDF(n, k int) float64 {
	p := make([]float64, n*(n-1)/2+1)
	p[0] = 1
	for i := 2; i <= n; i++ {
		next := make([]float64, len(p))
		sum := 0.0
		for d := range next {
			sum += p[d]
			if d >= i {
				sum -= p[d-i]
			}
			next[d] = sum / float64(i)
		}
		p = next
	}
	sum := 0.0
	for _, q := range p[:min(k+1, len(p))] {
		sum += q
	}
	return sum
}

// TrendCritical is the smallest S of Mann-Kendall's test, one-sided, that n
// values without ties reach with a probability of at most alpha when there is
// no trend. It is more than S can be where n is too small for that level.
func TrendCritical(n int, alpha float64) int {
	all := n * (n - 1) / 2
	falling := smallest(0, all+1, func(k int) bool { return k > all || trendTail(all-2*k, n, 0) > alpha })
	return all - 2*(falling-1)
}

// TheilSen is the median of the slopes between all pairs of points (Theil
// 1950, Sen 1968). Pairs with the same x have none; it is NaN without any.
func TheilSen(x, y []float64) float64 {
	var slopes []float64
	for i := range x {
		for j := i + 1; j < len(x); j++ {
			if x[i] != x[j] {
				slopes = append(slopes, (y[j]-y[i])/(x[j]-x[i]))
			}
		}
	}
	slices.Sort(slopes)
	return Quantile(slopes, 0.5)
}

// Trend is what a queue does under a steady load.
type Trend int

// The trends.
const (
	NotGrowing Trend = iota
	// GrowthRisk is a queue that may grow: either too slowly to tell it from
	// the noise of arrivals, or too unsteadily.
	GrowthRisk
	Growing
)

// String returns the trend's name.
func (t Trend) String() string {
	switch t {
	case Growing:
		return "growing"
	case GrowthRisk:
		return "risk"
	default:
		return "not growing"
	}
}

// Levels of the queue's test: how often chance alone may make a queue seem to
// rise, and the share of the arrivals that must stay behind to matter.
const (
	growthAlpha = 0.01
	growthShare = 0.02
)

// Growth is whether a queue grows, and why it is said to.
type Growth struct {
	Trend Trend
	// S is Mann-Kendall's, Critical the S at which it is no longer chance, at 1 %.
	S, Critical int
	// Slope is Theil-Sen's, in requests per second.
	Slope float64
	// Share is Slope / arrival rate, the share of the arrivals that stays
	// behind; Limit is what it must reach to be more than the noise of arrivals.
	Share, Limit float64
}

// QueueGrowth judges the mean of running + waiting requests in consecutive
// blocks of blockSeconds each, at rate arrivals per second and so many
// arrivals in all. The queue grows when S is beyond chance and the slope
// shows at least max(2 %, 1/sqrt(arrivals)) of the arrivals to stay behind
// (the noise floor of BLIS, composite.go); with one of the two alone it is at
// risk. A block that is NaN is left out. Fewer than 5 blocks cannot prove
// growth.
func QueueGrowth(blocks []float64, blockSeconds, rate, arrivals float64) Growth {
	var at, y []float64
	for i, b := range blocks {
		if !math.IsNaN(b) {
			at, y = append(at, float64(i)*blockSeconds), append(y, b)
		}
	}
	g := Growth{Slope: TheilSen(at, y), Critical: TrendCritical(len(y), growthAlpha)}
	g.S, _ = MannKendall(y)
	g.Share = ratio(g.Slope, rate)
	g.Limit = max(growthShare, 1/math.Sqrt(arrivals))
	switch rises, matters := g.S >= g.Critical, g.Share >= g.Limit; {
	case rises && matters:
		g.Trend = Growing
	case rises || matters:
		g.Trend = GrowthRisk
	}
	return g
}
