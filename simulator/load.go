package simulator

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Load is traffic that is made inside the process, straight into an engine:
// a rate over time, or a recorded trace. The zero value is no load.
type Load struct {
	text string
	// rate in requests per simulated second at a simulated time since the start;
	// at most most. Both are nil and 0 for a trace and for no load.
	rate func(seed uint64, t float64) float64
	most float64
	// trace is replayed from its start again when Loop is set.
	trace *trace
	// Loop repeats a trace for ever; ParseLoad sets it.
	Loop bool
}

// LoadSyntax is what ParseLoad reads.
const LoadSyntax = "off, constant:RATE, ramp:FROM:TO:DURATION, day:PEAK:PERIOD or trace:FORMAT:PATH"

// maxRate in requests per second is far above what any configuration serves.
const maxRate = 1e5

// ParseLoad reads a load in one of the forms of LoadSyntax. Rates are requests
// per second; a DURATION or PERIOD is written as 90s or 10m and counts in
// simulated time; FORMAT is azure or mooncake, and the file is read at once.
// The error is one line that names what is wrong.
//
// ramp goes from one rate to another and stays there. day is a day's traffic
// in PERIOD: a low night, a rise in the morning, the peak at noon, an
// afternoon and a decline in the evening; it begins in the early morning.
func ParseLoad(text string) (Load, error) {
	l, err := parseLoad(text)
	if err != nil {
		return Load{}, fmt.Errorf("load %q: %w", text, err)
	}
	l.text = text
	return l, nil
}

// String is the text that the load was parsed from.
func (l Load) String() string {
	if l.text == "" {
		return "off"
	}
	return l.text
}

func parseLoad(text string) (Load, error) {
	shape, rest, _ := strings.Cut(text, ":")
	arguments := strings.Split(rest, ":")
	switch shape {
	case "off":
		if text != "off" {
			return Load{}, errors.New("off takes no argument")
		}
		return Load{}, nil
	case "constant":
		if len(arguments) != 1 {
			return Load{}, errors.New("want constant:RATE")
		}
		rate, err := parseRate("RATE", arguments[0])
		return Load{rate: constantRate(rate), most: rate}, err
	case "ramp":
		if len(arguments) != 3 {
			return Load{}, errors.New("want ramp:FROM:TO:DURATION")
		}
		from, err1 := parseRate("FROM", arguments[0])
		to, err2 := parseRate("TO", arguments[1])
		duration, err3 := parseSeconds("DURATION", arguments[2])
		return Load{rate: rampRate(from, to, duration), most: max(from, to)}, firstError(err1, err2, err3)
	case "day":
		if len(arguments) != 2 {
			return Load{}, errors.New("want day:PEAK:PERIOD")
		}
		peak, err1 := parseRate("PEAK", arguments[0])
		period, err2 := parseSeconds("PERIOD", arguments[1])
		return Load{rate: dayRate(peak, period), most: peak}, firstError(err1, err2)
	case "trace":
		format, path, ok := strings.Cut(rest, ":")
		if !ok || path == "" {
			return Load{}, errors.New("want trace:FORMAT:PATH")
		}
		t, err := readTrace(format, path)
		return Load{trace: t, Loop: true}, err
	}
	return Load{}, fmt.Errorf("no shape %q: want %s", shape, LoadSyntax)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func parseRate(name, text string) (float64, error) {
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || !(rate >= 0 && rate <= maxRate) {
		return 0, fmt.Errorf("%s is %q: want requests per second from 0 to %g", name, text, float64(maxRate))
	}
	return rate, nil
}

func parseSeconds(name, text string) (float64, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%s is %q: want a time above 0 such as 90s or 10m", name, text)
	}
	return d.Seconds(), nil
}

func constantRate(rate float64) func(uint64, float64) float64 {
	return func(uint64, float64) float64 { return rate }
}

func rampRate(from, to, duration float64) func(uint64, float64) float64 {
	return func(_ uint64, t float64) float64 { return from + (to-from)*min(t/duration, 1) }
}

// dayShape is the share of the peak at an hour: people who work by day, in one time zone.
var dayShape = []struct{ hour, share float64 }{
	{0, .30}, {3, .15}, {5, .15}, {7, .35}, {9, .75}, {11, .95}, {12.5, 1}, {14, .85}, {16, .9}, {18, .7}, {20, .5}, {22, .38}, {24, .30},
}

const (
	// dayBegins is the hour at which a day load begins: the end of the night.
	dayBegins = 5
	// A day has so many slots with a factor of their own, of this deviation.
	daySlots, dayNoise = 96, 0.06
)

func dayRate(peak, period float64) func(uint64, float64) float64 {
	return func(seed uint64, t float64) float64 {
		days := t/period + dayBegins/24.0
		hour := 24 * (days - math.Floor(days))
		slot := days * daySlots
		near := math.Floor(slot)
		noise := lerp(slotNoise(seed, near), slotNoise(seed, near+1), slot-near)
		return peak * min(1, dayShare(hour)*(1+dayNoise*noise))
	}
}

// dayShare joins the points of dayShape by half cosines.
func dayShare(hour float64) float64 {
	for i := 1; i < len(dayShape); i++ {
		a, b := dayShape[i-1], dayShape[i]
		if hour <= b.hour {
			x := (hour - a.hour) / (b.hour - a.hour)
			return lerp(a.share, b.share, (1-math.Cos(math.Pi*x))/2)
		}
	}
	return dayShape[len(dayShape)-1].share
}

func lerp(a, b, x float64) float64 { return a + (b-a)*x }

// slotNoise is a number from -2 to 2 with a deviation of 1 or so, fixed for a
// slot and a seed: the sum of eight uniform ones.
func slotNoise(seed uint64, slot float64) float64 {
	bits := scatter(seed ^ scatter(uint64(int64(slot))))
	sum := 0.0
	for range 8 {
		sum += float64(bits&0xff)/255 - 0.5
		bits >>= 8
	}
	return max(-2, min(2, sum/math.Sqrt(8.0/12)))
}
