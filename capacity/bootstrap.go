package capacity

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Quantile interpolates linearly between the order statistics of a sorted
// slice (type 7 of Hyndman and Fan 1996); NaN without any.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := min(max(q, 0), 1) * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// BlockBootstrap is the sorted distribution of a statistic of several points,
// each measured in blocks of time: in every resample each point has as many of
// its own blocks as it had, drawn with replacement (Carlstein 1986, of blocks
// that do not overlap). blocks are the points' numbers of blocks; the statistic
// gets, by point, the indices of the blocks that were drawn, which it must not
// keep. Resamples whose statistic is NaN are left out.
func BlockBootstrap(blocks []int, resamples int, rng *rand.Rand, statistic func(drawn [][]int) float64) []float64 {
	drawn := make([][]int, len(blocks))
	for i, n := range blocks {
		drawn[i] = make([]int, n)
	}
	var values []float64
	for range resamples {
		for _, d := range drawn {
			for i := range d {
				d[i] = rng.IntN(len(d))
			}
		}
		if v := statistic(drawn); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	slices.Sort(values)
	return values
}
