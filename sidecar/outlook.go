package sidecar

import (
	"math"
	"time"

	"headroom_exporter/capacity"
)

// outlookStep is over how long load ratios are averaged for the burn. It
// divides a minute, which is what forecasts are made of.
const outlookStep = 10 * time.Second

const (
	stepsPerMinute = int(time.Minute / outlookStep)
	// burnSteps cover capacity.SlowBurnWindow.
	burnSteps = capacity.SlowBurnWindow/int(outlookStep/time.Second) + 1
	// most steps that are made up for after a pause of the loop.
	outlookCatchUp = capacity.ForecastMinutes * stepsPerMinute
)

// defaultLead is how long it takes to get more capacity while no start of the
// engine was seen: loading an image and a model takes minutes.
const defaultLead = 5 * time.Minute

// Burn is how fast headroom is used up; NaN is not known.
type Burn struct {
	// Fast and Slow are over capacity.FastBurnWindow and SlowBurnWindow: at 1
	// the headroom is gone in LeadSeconds.
	Fast, Slow float64
	Class      capacity.BurnClass
	// LeadSeconds is how long it takes to get more capacity: the engine's
	// start, if LeadMeasured, or an assumption.
	LeadSeconds  float64
	LeadMeasured bool
}

// Forecast is where the load ratio is going. What has no skill against
// persistence is NaN.
type Forecast struct {
	// TimeToKnee in seconds: 0 at or above it, +Inf when it is not within half an hour.
	TimeToKnee float64
	Horizons   []Horizon
}

// Horizon is the forecast so many minutes ahead.
type Horizon struct {
	// LoadRatio expected; NaN where the skill does not let it be shown.
	LoadRatio float64
	Skill     capacity.Skill
}

// outlook follows a rank's load ratio over half an hour.
type outlook struct {
	// end of the step that is being averaged; zero before the first.
	end        time.Time
	sum, known float64
	samples    float64

	// at and ratio are the means of the last steps, minutes those of the last minutes.
	at, ratio []float64
	minutes   []float64
	// inMinute are the steps of the minute that is not over.
	inMinute []float64

	skill    capacity.ForecastSkill
	forecast capacity.Forecast
	fresh    bool
}

// add takes the load ratio of one moment, NaN when it is not known. It
// returns whether a step ended.
func (o *outlook) add(at time.Time, ratio float64) (ended bool) {
	if o.end.IsZero() {
		o.end = at.Truncate(outlookStep).Add(outlookStep)
	}
	for n := 0; !at.Before(o.end); n++ {
		if n == outlookCatchUp {
			o.end = at.Truncate(outlookStep).Add(outlookStep)
			break
		}
		o.step()
		ended = true
	}
	o.samples++
	if !math.IsNaN(ratio) {
		o.sum += ratio
		o.known++
	}
	return ended
}

// step ends a step: its mean is known when most of it is.
func (o *outlook) step() {
	mean := math.NaN()
	if o.known > 0 && 2*o.known >= o.samples {
		mean = o.sum / o.known
	}
	o.at = keepLast(append(o.at, float64(o.end.UnixNano())/1e9), burnSteps)
	o.ratio = keepLast(append(o.ratio, mean), burnSteps)
	o.end = o.end.Add(outlookStep)
	o.sum, o.known, o.samples = 0, 0, 0
	if o.inMinute = append(o.inMinute, mean); len(o.inMinute) < stepsPerMinute {
		return
	}
	o.minutes = keepLast(append(o.minutes, meanOfMost(o.inMinute)), capacity.ForecastMinutes)
	o.inMinute = o.inMinute[:0]
	o.forecast = capacity.NewForecast(o.minutes)
	o.skill.Add(o.minutes[len(o.minutes)-1], o.forecast)
	o.fresh = true
}

// current is the forecast and the burn as of the last step. start is how long
// the engine takes to start, 0 when that was not seen.
func (o *outlook) current(start time.Duration) (Forecast, Burn) {
	f := unknownForecast()
	b := unknownBurn()
	b.LeadSeconds, b.LeadMeasured = start.Seconds(), start > 0
	if !b.LeadMeasured {
		b.LeadSeconds = defaultLead.Seconds()
	}
	if n := len(o.ratio); n > 0 {
		b.Fast = capacity.HeadroomBurn(o.at, o.ratio, capacity.FastBurnWindow, b.LeadSeconds)
		b.Slow = capacity.HeadroomBurn(o.at, o.ratio, capacity.SlowBurnWindow, b.LeadSeconds)
		b.Class = capacity.ClassifyBurn(b.Slow, b.Fast, o.ratio[n-1])
	}
	if !o.fresh {
		return f, b
	}
	f.TimeToKnee = o.skill.TimeToKnee(o.forecast)
	for _, minutes := range capacity.ForecastHorizons() {
		h := Horizon{LoadRatio: math.NaN(), Skill: o.skill.At(minutes)}
		if h.Skill.Shown() {
			h.LoadRatio = o.forecast.At(minutes)
		}
		f.Horizons = append(f.Horizons, h)
	}
	return f, b
}

func unknownForecast() Forecast { return Forecast{TimeToKnee: math.NaN()} }

func unknownBurn() Burn {
	return Burn{Fast: math.NaN(), Slow: math.NaN(), Class: capacity.BurnUnknown, LeadSeconds: math.NaN()}
}

// meanOfMost is the mean of what is known, if that is most of it.
func meanOfMost(values []float64) float64 {
	var sum, known float64
	for _, v := range values {
		if !math.IsNaN(v) {
			sum, known = sum+v, known+1
		}
	}
	if 2*known < float64(len(values)) || known == 0 {
		return math.NaN()
	}
	return sum / known
}

// keepLast keeps the last n values, in place.
func keepLast(values []float64, n int) []float64 {
	if drop := len(values) - n; drop > 0 {
		return append(values[:0], values[drop:]...)
	}
	return values
}

// arrivalsPerSecond counts arrivals in bins of a second, NaN where a bin is
// not known, as when readings are further apart, or after one that was late.
func arrivalsPerSecond(rs []reading) []float64 {
	var counts []float64
	last := 0
	for i := 1; i < len(rs); i++ {
		apart := rs[i].at.Sub(rs[last].at)
		if apart < 900*time.Millisecond {
			continue
		}
		count := arrivals(rs[last : i+1]).Count
		if apart > 1500*time.Millisecond || rs[last].late > 0 {
			count = math.NaN()
		}
		counts, last = append(counts, count), i
	}
	return counts
}
