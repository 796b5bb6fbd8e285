package capacity

import (
	"math"

	"gonum.org/v1/gonum/stat"
)

// The windows of headroom burn in seconds: the slow one decides, and the fast
// one confirms that it still goes on. Over less than 10 minutes the slope of a
// service's load is mostly the noise of counting arrivals.
const (
	FastBurnWindow = 600
	SlowBurnWindow = 1800
)

// burnSpan is the share of a window that its samples must span.
const burnSpan = 0.8

// leastHeadroom keeps the burn finite near the knee.
const leastHeadroom = 0.01

// HeadroomBurn is how fast the headroom 1 - u is being used up, over the last
// window seconds of samples of the load ratio u, by
//
//	max(0, slope of u over the window) * lead / max(1 - u, 0.01)
//
// with the slope by least squares, as PromQL's deriv, u that of the last
// sample, and lead the seconds that it takes to get more capacity. At 1 the
// headroom is gone in exactly the lead at this pace. at are the samples' times
// in seconds, in order; samples that are NaN are left out. It is NaN when the
// last sample is, when the others span less than 80 % of the window, or when
// there is no lead.
func HeadroomBurn(at, u []float64, window, lead float64) float64 {
	n := len(u)
	if n == 0 || math.IsNaN(u[n-1]) || !(lead > 0) {
		return math.NaN()
	}
	var x, y []float64
	for i := range u {
		if age := at[n-1] - at[i]; age <= window && !math.IsNaN(u[i]) {
			x, y = append(x, -age), append(y, u[i])
		}
	}
	if len(x) < 3 || -x[0] < burnSpan*window {
		return math.NaN()
	}
	_, slope := stat.LinearRegression(x, y, nil, false)
	return max(0, slope) * lead / max(1-u[n-1], leastHeadroom)
}

// BurnClass is what a headroom burn calls for.
type BurnClass string

// The classes.
const (
	BurnUnknown   BurnClass = "unknown"
	BurnNone      BurnClass = "none"
	BurnTicket    BurnClass = "ticket"
	BurnPage      BurnClass = "page"
	BurnExhausted BurnClass = "exhausted"
)

// ClassifyBurn judges headroom burn over the slow and the fast window at a
// load ratio:
//
//	exhausted  u >= 1
//	page       slow >= 1,   fast >= 0.5,  u >= 0.6
//	ticket     slow >= 0.5, fast >= 0.25, u >= 0.5
//
// What does not hold for 3 minutes should not page, nor for 10 minutes open a
// ticket; that is left to the alert. Without a load ratio it is unknown, and so
// it is without a burn where the load ratio alone would allow an alert.
func ClassifyBurn(slow, fast, u float64) BurnClass {
	switch {
	case math.IsNaN(u):
		return BurnUnknown
	case u >= 1:
		return BurnExhausted
	case u < 0.5:
		return BurnNone
	case math.IsNaN(slow) || math.IsNaN(fast):
		return BurnUnknown
	case slow >= 1 && fast >= 0.5 && u >= 0.6:
		return BurnPage
	case slow >= 0.5 && fast >= 0.25:
		return BurnTicket
	default:
		return BurnNone
	}
}
