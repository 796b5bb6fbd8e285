package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// dash stands for what is not known.
const dash = "–"

// known tells whether a value is a finite number.
func known(v curve.Value) bool { return !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) }

// number writes a value with about three digits, with k, M, G or T behind it from 10,000 on.
func number(v curve.Value) string {
	x := float64(v)
	switch a := math.Abs(x); {
	case !known(v):
		return dash
	case a == 0:
		return "0"
	case a >= 1e15 || a < 0.00095:
		return strconv.FormatFloat(x, 'g', 2, 64)
	case a >= 0.9995e12:
		return digits(x/1e12) + "T"
	case a >= 0.9995e9:
		return digits(x/1e9) + "G"
	case a >= 0.9995e6:
		return digits(x/1e6) + "M"
	case a >= 9995:
		return digits(x/1e3) + "k"
	}
	return digits(x)
}

// digits writes three significant digits, and all those before the point, without zeros at the end.
func digits(x float64) string {
	decimals := 0
	if a := math.Abs(x); a < 99.95 && a > 0 {
		decimals = 2 - int(math.Floor(math.Log10(a*1.0005)))
	}
	s := strconv.FormatFloat(x, 'f', decimals, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// rate writes requests or tokens per second with the decimals that a person
// compares by: one from 10 on, two below, none from 1,000 on.
func rate(v curve.Value) string {
	switch a := math.Abs(float64(v)); {
	case !known(v) || a >= 9995 || a < 0.1:
		return number(v)
	case a >= 999.5:
		return strconv.FormatFloat(float64(v), 'f', 0, 64)
	case a >= 9.995:
		return strconv.FormatFloat(float64(v), 'f', 1, 64)
	}
	return strconv.FormatFloat(float64(v), 'f', 2, 64)
}

// seconds writes a time in the unit that fits.
func seconds(v curve.Value) string {
	x := float64(v)
	switch a := math.Abs(x); {
	case !known(v):
		return dash
	case a == 0:
		return "0 s"
	case a < 0.9995e-3:
		return digits(x*1e6) + " µs"
	case a < 0.9995:
		return digits(x*1e3) + " ms"
	case a < 600:
		return digits(x) + " s"
	case a < 3*3600:
		return digits(x/60) + " min"
	}
	return number(curve.Value(x/3600)) + " h"
}

// percent writes a ratio.
func percent(v curve.Value) string {
	if !known(v) {
		return dash
	}
	return number(100*v) + " %"
}

// oneLine puts a space in the place of line breaks and other control
// characters, which a name in a file may hold and a terminal would obey.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

// metricName is how a latency is written.
func metricName(metric string) string {
	if metric == "ttft_sent" {
		return "TTFT from sending"
	}
	return strings.ToUpper(metric)
}

// percentileName is P99 or P99.9.
func percentileName(p float64) string { return "P" + strconv.FormatFloat(p, 'f', -1, 64) }

// sloName is a bound without its limit, such as P99 TTFT.
func sloName(s capacity.SLO) string { return percentileName(s.Percentile) + " " + metricName(s.Metric) }

// sloText is a bound as a person writes it, such as P99 TTFT ≤ 800 ms.
func sloText(s capacity.SLO) string { return sloName(s) + " ≤ " + bound(s) }

func bound(s capacity.SLO) string { return seconds(curve.Value(s.Bound.Seconds())) }

// bindingText is what gives first, in words.
func bindingText(k *curve.Knee) string {
	var text string
	switch k.BindingSLO {
	case "":
		return dash
	case "queue_growth":
		text = "the queue grows"
	case "success":
		text = "requests fail"
	default:
		text = k.BindingSLO
		if s, err := capacity.ParseSLO(k.BindingSLO); err == nil {
			text = sloText(s)
		}
	}
	if k.BindingClass != "" {
		text += " of " + k.BindingClass
	}
	return text
}

// arrivalsName is an arrival shape in words.
func arrivalsName(a curve.Arrivals) string {
	switch {
	case a.Process == "poisson":
		return "Poisson"
	case a.Process == "gamma":
		return "gamma, burstiness " + number(curve.Value(a.Burstiness))
	case a.Process == "trace" && a.Trace != "":
		return "trace " + traceName(a.Trace)
	case a.Process == "":
		return "arrivals not known"
	}
	return strings.ReplaceAll(a.Process, "_", " ")
}

// traceName cuts a hash in a trace's name to its first 8 digits.
func traceName(name string) string {
	words := strings.Fields(name)
	for i, w := range words {
		hash := strings.TrimPrefix(w, "sha256:")
		if len(hash) == 64 && strings.Trim(hash, "0123456789abcdef") == "" {
			words[i] = hash[:8]
		}
	}
	return strings.Join(words, " ")
}

// interval is a knee with its bounds, such as 34.0 (33.1 to 34.8).
func interval(v, low, high curve.Value) string {
	if !known(v) {
		return dash
	}
	text := rate(v)
	if known(low) || known(high) {
		text += " (" + rate(low) + " to " + rate(high) + ")"
	}
	return text
}

// span writes a length of time with its two largest units.
func span(d time.Duration) string {
	d = d.Round(time.Second)
	switch {
	case d >= 24*time.Hour:
		return fmt.Sprintf("%d d %d h", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%d s", d/time.Second)
}

// sharesText is a mix in words, the largest share first.
func sharesText(shares map[string]float64) string {
	var names []string
	for name := range shares {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if shares[a] != shares[b] {
			if shares[a] > shares[b] {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	for i, name := range names {
		names[i] = name + " " + percent(curve.Value(shares[name]))
	}
	return strings.Join(names, ", ")
}

// subject is a class or a mix with one of its studies.
type subject struct {
	Name string
	// Class is nil for a mix, Mix for a class.
	Class *curve.Class
	Mix   *curve.Mix
	*curve.Study
	// SLO bounds the class; a mix has the bounds of its classes.
	SLO []bounded
	// First tells the first study of a class or mix, by which it is known.
	First bool
	// LessOne is what each of so many replicas may carry, for each of fleets, so
	// that one may fail.
	LessOne []curve.Value
}

// bounded is an SLO with the class that it bounds; the class is empty for a class alone.
type bounded struct {
	Class string
	capacity.SLO
}

func (b bounded) name() string {
	if b.Class == "" {
		return sloName(b.SLO)
	}
	return b.Class + ": " + sloName(b.SLO)
}

// fleets are the numbers of replicas that the envelope shows the loss of one for.
var fleets = []int{2, 4, 8}

// measured fills in what the envelope holds of a study: n is its row.
func (s *subject) measured(study *curve.Study, envelopes [][]curve.EnvelopeRow, n int) {
	s.Study, s.LessOne = study, nil
	for _, rows := range envelopes {
		s.LessOne = append(s.LessOne, rows[n].NMinusOne)
	}
	if k := study.Knee; k != nil && !known(k.Watermark) {
		with, knee := *study, *k
		knee.Watermark = envelopes[0][n].Watermark
		with.Knee = &knee
		s.Study = &with
	}
}

// subjects are all studies of a curve in order; a class without one has a nil Study.
func subjects(c *curve.Curve) []subject {
	var out []subject
	var envelopes [][]curve.EnvelopeRow
	for _, n := range fleets {
		envelopes = append(envelopes, c.Envelope(n))
	}
	row := 0
	slo := func(class *curve.Class) []capacity.SLO {
		if len(class.SLO) > 0 {
			return class.SLO
		}
		return c.SLO
	}
	for i := range c.Classes {
		class := &c.Classes[i]
		s := subject{Name: class.Name, Class: class, First: true}
		for _, b := range slo(class) {
			s.SLO = append(s.SLO, bounded{SLO: b})
		}
		if len(class.Studies) == 0 {
			out = append(out, s)
		}
		for k := range class.Studies {
			s.First = k == 0
			s.measured(&class.Studies[k], envelopes, row)
			row++
			out = append(out, s)
		}
	}
	for i := range c.Mixes {
		mix := &c.Mixes[i]
		s := subject{Name: mix.Name, Mix: mix, First: i == 0 || c.Mixes[i-1].Name != mix.Name}
		s.measured(&mix.Study, envelopes, row)
		row++
		for k := range c.Classes {
			if _, in := mix.Shares[c.Classes[k].Name]; in {
				for _, b := range slo(&c.Classes[k]) {
					s.SLO = append(s.SLO, bounded{c.Classes[k].Name, b})
				}
			}
		}
		out = append(out, s)
	}
	return out
}
