//go:build !unix

package probe

import (
	"math"
	"time"
)

func resources() (cpu time.Duration, maxRSS float64) { return 0, math.NaN() }

func throttledSeconds() float64 { return math.NaN() }
