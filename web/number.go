package web

import (
	"math"
	"strconv"
	"time"

	"headroom_exporter/sidecar"
)

// number is a float in JSON: null when it is not known, and never more digits
// than a live reading has meaning for.
type number float64

var unknown = number(math.NaN())

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) { return n.append(nil), nil }

// append appends the number's JSON to b, rounded to 6 significant digits.
// JSON has no infinity, so an infinite number is null as well.
func (n number) append(b []byte) []byte {
	v := float64(n)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(b, "null"...)
	}
	if a := math.Abs(v); a >= 1e5 && a < 1e15 {
		return strconv.AppendFloat(b, v, 'f', 0, 64)
	}
	return strconv.AppendFloat(b, v, 'g', 6, 64)
}

// seconds is a duration in JSON, in seconds.
func seconds(d time.Duration) number { return number(d.Seconds()) }

// readingAge is the age of the newest good engine reading in seconds; NaN before the first.
func readingAge(s *sidecar.Snapshot, now time.Time) float64 {
	if s.Engine.LastReading.IsZero() {
		return math.NaN()
	}
	return math.Max(0, now.Sub(s.Engine.LastReading).Seconds())
}
