package capacity_test

import (
	"math"
	"testing"

	"headroom_exporter/capacity"
)

func TestTokensPerStep(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct{ drafts, accepted, want float64 }{
		{100, 200, 3}, {100, 0, 1}, {0, 0, nan}, {nan, 3, nan}, {100, nan, nan}, {100, -1, nan}, {-1, 1, nan},
	} {
		if got := capacity.TokensPerStep(test.drafts, test.accepted); got != test.want && !(math.IsNaN(got) && math.IsNaN(test.want)) {
			t.Errorf("%v accepted of %v drafts: %v, want %v", test.accepted, test.drafts, got, test.want)
		}
	}
}
