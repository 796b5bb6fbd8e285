package capacity

import "gonum.org/v1/gonum/stat"

// MSER finds where the warm-up in a series ends, by the marginal standard
// error rule on means of batch values each, 5 for MSER-5 (White, Cobb and
// Spratt 2000): of the d <= n/2 first of n batches, those are discarded that
// leave the smallest sum (Z - mean)^2 / (n-d)^2. discard is the number of
// values, a multiple of batch. The series is not steady when that d is n/2,
// the most there is to discard, or when it has fewer than 2 batches: measure
// for longer. Values behind the last whole batch are not used.
func MSER(series []float64, batch int) (discard int, steady bool) {
	n := len(series) / batch
	means := make([]float64, n)
	for i := range means {
		means[i] = stat.Mean(series[i*batch:(i+1)*batch], nil)
	}
	best, at := 0.0, 0
	for d := range n/2 + 1 {
		rest := means[d:]
		m := stat.Mean(rest, nil)
		// Rounding must not make a flat series seem to improve for ever.
		rounding := 1e-12 * m * m
		error2 := stat.PopVariance(rest, nil) / float64(len(rest))
		if d == 0 || error2 < best*(1-1e-9)-rounding {
			best, at = error2, d
		}
	}
	return at * batch, n >= 2 && at < n/2
}
