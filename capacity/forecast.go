package capacity

import (
	"math"
	"slices"
)

// A forecast looks at the last ForecastMinutes one-minute means, of which
// forecastEnough must be known, and not further ahead than
// LongestHorizon minutes.
const (
	ForecastMinutes = 30
	LongestHorizon  = 30
	forecastEnough  = 20
)

// Of the forecast: the minutes whose median is the level and how many of them
// must be known, the level of the test for a trend, and the share of the slope
// that is left one minute later (a trend is worth 9 minutes of it at most).
const (
	levelMinutes  = 5
	levelEnough   = 3
	forecastAlpha = 0.01
	trendDamping  = 0.9
)

// ForecastHorizons are the minutes ahead at which forecasts are compared with
// what came.
func ForecastHorizons() []int { return []int{15, LongestHorizon} }

// Forecast is where a load ratio is going.
type Forecast struct {
	// Level is the load ratio now, the median of the last 5 minutes; NaN when
	// too few minutes are known.
	Level float64
	// Slope per minute, by Theil and Sen; 0 unless the load rises, or falls,
	// beyond chance (Mann-Kendall at 1 %).
	Slope float64
}

// NewForecast makes the forecast from one-minute means of the load ratio, the
// newest last; it looks at the last 30. NaN is a minute that is not known: of
// the 30, 20 must be known, and of the last 5, 3.
//
// The trend is damped because a line drawn on through a quarter of an hour is
// mostly worse than no change on public traces, and even so it may be: see
// ForecastSkill.
func NewForecast(minutes []float64) Forecast {
	minutes = minutes[max(0, len(minutes)-ForecastMinutes):]
	var at, known []float64
	for i, u := range minutes {
		if !math.IsNaN(u) {
			at, known = append(at, float64(i)), append(known, u)
		}
	}
	last := slices.DeleteFunc(slices.Clone(minutes[max(0, len(minutes)-levelMinutes):]), math.IsNaN)
	if len(known) < forecastEnough || len(last) < levelEnough {
		return Forecast{math.NaN(), math.NaN()}
	}
	slices.Sort(last)
	f := Forecast{Level: Quantile(last, 0.5)}
	if trends(known) {
		f.Slope = TheilSen(at, known)
	}
	return f
}

// trends tells whether values rise, or fall, beyond chance. At 30 values the
// normal approximation of MannKendall asks for more than the exact test, S >= 131.
func trends(y []float64) bool {
	s, _ := MannKendall(y)
	if s < 0 {
		s = -s
	}
	n, ties := len(y), tieCorrection(y)
	if ties == 0 {
		return inversionsCDF(n, (n*(n-1)/2-s)/2) <= forecastAlpha
	}
	return trendTail(s, n, ties) <= forecastAlpha
}

// At is the load ratio so many minutes ahead:
//
//	level + slope * (0.9 + 0.9^2 + ... + 0.9^minutes)
//
// and never below 0.
func (f Forecast) At(minutes int) float64 {
	damped := trendDamping * (1 - math.Pow(trendDamping, float64(minutes))) / (1 - trendDamping)
	return math.Max(0, f.Level+f.Slope*damped)
}

// TimeToKnee is in how many seconds the load ratio is expected to reach 1, by
// whole minutes: 0 when it has, +Inf when it is not within 30 minutes, NaN
// when the forecast is not known.
func (f Forecast) TimeToKnee() float64 {
	if math.IsNaN(f.Level) {
		return math.NaN()
	}
	for minutes := range LongestHorizon + 1 {
		if f.At(minutes) >= 1 {
			return 60 * float64(minutes)
		}
	}
	return math.Inf(1)
}

// skillErrors is how many past errors are kept of each horizon: a day's.
const skillErrors = 24 * 60

// ForecastSkill compares the forecasts of the last day with what came, and
// with persistence: the last minute's load ratio, expected to stay. The zero
// value has compared nothing yet. Its memory is bounded: some 50 kB.
type ForecastSkill struct {
	horizons []horizonSkill
}

type horizonSkill struct {
	minutes int
	// due are the forecasts not yet come, by the minute they are for: due[i mod minutes].
	due  []pair
	next int
	// errors of what came, a ring.
	errors []pair
	oldest int
}

// pair is of the forecast and of persistence: what they expect, or by how much they were wrong.
type pair struct{ forecast, persistence float64 }

// Add takes the load ratio of one minute, NaN when it is not known, and the
// forecast made at its end. Every minute must be added, in order.
func (s *ForecastSkill) Add(minute float64, f Forecast) {
	if s.horizons == nil {
		for _, h := range ForecastHorizons() {
			due := slices.Repeat([]pair{{math.NaN(), math.NaN()}}, h)
			s.horizons = append(s.horizons, horizonSkill{minutes: h, due: due})
		}
	}
	for i := range s.horizons {
		s.horizons[i].add(minute, f)
	}
}

func (h *horizonSkill) add(minute float64, f Forecast) {
	due := &h.due[h.next]
	e := pair{math.Abs(due.forecast - minute), math.Abs(due.persistence - minute)}
	if !math.IsNaN(e.forecast) && !math.IsNaN(e.persistence) {
		if len(h.errors) < skillErrors {
			h.errors = append(h.errors, e)
		} else {
			h.errors[h.oldest] = e
			h.oldest = (h.oldest + 1) % skillErrors
		}
	}
	*due = pair{f.At(h.minutes), minute}
	h.next = (h.next + 1) % h.minutes
}

// Skill is how good forecasts were at one horizon. Errors are of the load
// ratio; what is not known is NaN.
type Skill struct {
	// Minutes ahead.
	Minutes int
	// Compared is how many forecasts came due, all of them overlapping: only
	// Compared / Minutes of them are independent.
	Compared int
	// MAE is the mean absolute error of the forecast, Persistence that of no change.
	MAE, Persistence float64
	// Ratio is 1 - MAE / Persistence: 1 is perfect, 0 no better than no change.
	// It is not known before as many forecasts were compared as the horizon
	// has minutes.
	Ratio float64
	// Band is what 90 % of the errors were within.
	Band float64
}

// Shown tells whether a forecast at the horizon may be shown: its skill is
// known and not negative.
func (s Skill) Shown() bool { return s.Ratio >= 0 }

// At is the skill at a horizon: one of ForecastHorizons, or else the next
// longer one.
func (s *ForecastSkill) At(minutes int) Skill {
	unknown := Skill{minutes, 0, math.NaN(), math.NaN(), math.NaN(), math.NaN()}
	at := slices.IndexFunc(s.horizons, func(h horizonSkill) bool { return h.minutes >= minutes })
	if at < 0 {
		return unknown
	}
	h := s.horizons[at]
	unknown.Minutes = h.minutes
	if len(h.errors) == 0 {
		return unknown
	}
	skill := Skill{Minutes: h.minutes, Compared: len(h.errors), Ratio: math.NaN()}
	var all []float64
	for _, e := range h.errors {
		skill.MAE += e.forecast / float64(len(h.errors))
		skill.Persistence += e.persistence / float64(len(h.errors))
		all = append(all, e.forecast)
	}
	slices.Sort(all)
	skill.Band = Quantile(all, 0.9)
	switch {
	case skill.Compared < skill.Minutes:
	case skill.MAE == skill.Persistence:
		// Also of a load that never changes, where both are 0.
		skill.Ratio = 0
	default:
		skill.Ratio = 1 - skill.MAE/skill.Persistence
	}
	return skill
}

// TimeToKnee is the forecast's, in seconds, where the skill at that horizon
// lets it be shown, and NaN where not. A load ratio that is at 1 already is
// no forecast and always shown.
func (s *ForecastSkill) TimeToKnee(f Forecast) float64 {
	seconds := f.TimeToKnee()
	if seconds == 0 {
		return 0
	}
	minutes := LongestHorizon
	if !math.IsInf(seconds, 1) && !math.IsNaN(seconds) {
		minutes = int(seconds / 60)
	}
	if !s.At(minutes).Shown() {
		return math.NaN()
	}
	return seconds
}
