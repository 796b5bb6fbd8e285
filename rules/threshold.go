package rules

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Threshold checks that an SLO threshold is an upper bound of the engine's
// histogram, because only there a bucket counts exactly what met it. flag
// names the threshold in the error, which names the nearest bounds. It
// returns the bound, in seconds, to be fed to the rules as a constant.
func Threshold(flag string, threshold time.Duration, bounds []float64) (float64, error) {
	want := threshold.Seconds()
	below, above := math.Inf(-1), math.Inf(1)
	for _, b := range bounds {
		switch {
		case b == want:
			return b, nil
		case b < want:
			below = max(below, b)
		default:
			above = min(above, b)
		}
	}
	nearest := slices.DeleteFunc([]float64{below, above}, func(b float64) bool { return math.IsInf(b, 0) })
	if len(nearest) == 0 {
		return math.NaN(), fmt.Errorf("%s=%v: the engine's histogram has no finite bounds to compare it with", flag, threshold)
	}
	words := make([]string, len(nearest))
	for i, b := range nearest {
		words[i] = strconv.FormatFloat(b, 'g', -1, 64) + "s"
	}
	return math.NaN(), fmt.Errorf("%s=%v is not a bucket bound of the engine's histogram, so nobody can say how much traffic met it: use %s",
		flag, threshold, strings.Join(words, " or "))
}
