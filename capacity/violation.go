package capacity

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// ViolationPoint is how many requests, or gaps between tokens, were over a
// bound at an offered rate.
type ViolationPoint struct {
	// Rate in requests per second.
	Rate float64
	// Over of Of trials were over the bound.
	Over, Of float64
	// DesignEffect of the violations; less than 1 counts as 1.
	DesignEffect float64
}

// SlopePrior is what is known of a fit's slope beforehand: it lies within
// [Low, High], per request per second, most likely near their geometric mean.
type SlopePrior struct{ Low, High float64 }

// ViolationFit is a logistic curve: the fraction of violations at a rate is
// 1 / (1 + exp(-(Intercept + Slope * rate))).
type ViolationFit struct{ Intercept, Slope float64 }

// Fraction of violations at a rate.
func (f ViolationFit) Fraction(rate float64) float64 {
	return logistic(f.Intercept + f.Slope*rate)
}

// Rate at which the fraction of violations, within (0, 1), is reached. It may
// be below 0.
func (f ViolationFit) Rate(fraction float64) float64 {
	return (logit(fraction) - f.Intercept) / f.Slope
}

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
func logit(p float64) float64    { return math.Log(p / (1 - p)) }

// Errors of FitViolations.
var (
	// ErrAllPass is of points that show no limit: none has violations.
	ErrAllPass = errors.New("no point has violations: the knee lies above the highest rate")
	// ErrAllFail is of points that are all far over the knee.
	ErrAllFail = errors.New("violations at every point are too many to tell where they begin: the knee lies below the lowest rate")
)

// A fraction of violations follows the logistic curve near the knee only.
// Outside these fractions a point says that the curve there is as low, or as
// high, and no more: far below, violations have other causes than the load;
// far above, the queue grows and the fraction depends on for how long. The
// lower one falls to a tenth of the highest fraction seen.
const (
	fitLowest  = 0.001
	fitHighest = 0.35
)

// FitViolations fits the curve by maximum likelihood of the binomial counts,
// divided by their design effect, with a log-normal prior of the slope that
// has [Low, High] as its two standard deviations and is cut off there.
//
// This weighs a point by about its number of violations, as least squares of
// logits with the weights sqrt(v+0.5) would, and takes in points without
// violations as they are: 400 clean requests speak against a fraction of 1 %,
// but do not say which one it is. All points share the mean of the design
// effects by violations: a point whose clump of violations happened not to
// come has no design effect to show, and would by its own, of 1, outweigh the
// others and put the knee too high.
//
// The error is ErrAllPass or ErrAllFail, or names a prior that is none.
func FitViolations(points []ViolationPoint, prior SlopePrior) (ViolationFit, error) {
	l, err := newLikelihood(points, prior)
	if err != nil {
		return ViolationFit{}, err
	}
	slope := maximize(func(b float64) float64 { return l.at(l.intercept(b), b) }, prior.Low, prior.High)
	return ViolationFit{l.intercept(slope), slope}, nil
}

// likelihood is of a curve, given points and a prior of its slope.
type likelihood struct {
	terms      []term
	center, sd float64 // of the logarithm of the slope
}

func newLikelihood(points []ViolationPoint, prior SlopePrior) (*likelihood, error) {
	if !(prior.Low > 0 && prior.Low <= prior.High) || math.IsInf(prior.High, 0) {
		return nil, fmt.Errorf("prior of the slope from %g to %g, want 0 < low <= high", prior.Low, prior.High)
	}
	terms := newTerms(points)
	if !slices.ContainsFunc(terms, func(t term) bool { return t.over > 0 }) {
		return nil, ErrAllPass
	}
	if !slices.ContainsFunc(terms, func(t term) bool { return math.IsInf(t.high, 1) }) {
		return nil, ErrAllFail
	}
	return &likelihood{
		terms:  terms,
		center: math.Log(prior.Low*prior.High) / 2,
		sd:     math.Log(prior.High/prior.Low) / 4,
	}, nil
}

// term is a point's part of the likelihood: over of n effective trials, and
// the logits below and above which it is indifferent.
type term struct {
	rate, over, n float64
	low, high     float64
}

func newTerms(points []ViolationPoint) []term {
	highest := 0.0
	for _, p := range points {
		if p.Of > 0 {
			highest = max(highest, p.Over/p.Of)
		}
	}
	lowest := min(fitLowest, highest/10)
	effect := sharedDesignEffect(points)
	var terms []term
	for _, p := range points {
		if !(p.Of > 0) {
			continue
		}
		t := term{rate: p.Rate, over: p.Over / effect, n: p.Of / effect, low: math.Inf(-1), high: math.Inf(1)}
		switch fraction := p.Over / p.Of; {
		case fraction > fitHighest:
			t.over, t.high = fitHighest*t.n, logit(fitHighest)
		case fraction < lowest:
			t.low = logit(fraction)
		}
		terms = append(terms, t)
	}
	return terms
}

// sharedDesignEffect is the mean of the points' design effects by violations,
// of the points near the knee where there are any.
func sharedDesignEffect(points []ViolationPoint) float64 {
	var near, all, nearOver, allOver float64
	for _, p := range points {
		effect := max(1, p.DesignEffect)
		all, allOver = all+p.Over*effect, allOver+p.Over
		if p.Over <= fitHighest*p.Of {
			near, nearOver = near+p.Over*effect, nearOver+p.Over
		}
	}
	switch {
	case nearOver > 0:
		return near / nearOver
	case allOver > 0:
		return all / allOver
	default:
		return 1
	}
}

// at is the logarithm of the likelihood. Each term is concave in its logit,
// and flat beyond its own best; so is the prior within its bounds. So there is
// one peak.
func (l *likelihood) at(intercept, slope float64) float64 {
	sum := 0.0
	if l.sd > 0 {
		z := (math.Log(slope) - l.center) / l.sd
		sum = -z * z / 2
	}
	for _, t := range l.terms {
		x := min(max(intercept+slope*t.rate, t.low), t.high)
		// log p = x - log(1+e^x), log(1-p) = -log(1+e^x)
		sum += t.over*x - t.n*(max(x, 0)+math.Log1p(math.Exp(-math.Abs(x))))
	}
	return sum
}

// intercept is the likeliest for a slope: where the expected violations are
// those seen.
func (l *likelihood) intercept(slope float64) float64 {
	excess := func(a float64) (sum, derivative float64) {
		for _, t := range l.terms {
			if x := a + slope*t.rate; x >= t.low && x <= t.high {
				p := logistic(x)
				sum += t.n*p - t.over
				derivative += t.n * p * (1 - p)
			}
		}
		return sum, derivative
	}
	// At every rate the fraction lies between these logits.
	const extreme = 40
	low, high := math.Inf(1), math.Inf(-1)
	a, over := 0.0, 0.0
	for _, t := range l.terms {
		low, high = min(low, -extreme-slope*t.rate), max(high, extreme-slope*t.rate)
		if t.over > 0 {
			over += t.over
			a += (logit(t.over/t.n) - slope*t.rate - a) * t.over / over
		}
	}
	// Newton's method from the mean of what each point alone says, kept within
	// a bracket that halves when it fails.
	for range 200 {
		sum, derivative := excess(a)
		if sum > 0 {
			high = a
		} else {
			low = a
		}
		next := a - sum/derivative
		if !(next > low && next < high) {
			next = (low + high) / 2
		}
		if math.Abs(next-a) < 1e-10 {
			return next
		}
		a = next
	}
	return a
}

// maximize finds the highest point of a function with one peak, by golden
// section of the logarithm.
func maximize(f func(float64) float64, low, high float64) float64 {
	const golden = 0.6180339887498949
	a, b := math.Log(low), math.Log(high)
	c, d := b-golden*(b-a), a+golden*(b-a)
	fc, fd := f(math.Exp(c)), f(math.Exp(d))
	for b-a > 1e-5 {
		if fc > fd {
			b, d, fd = d, c, fc
			c = b - golden*(b-a)
			fc = f(math.Exp(c))
		} else {
			a, c, fc = c, d, fd
			d = a + golden*(b-a)
			fd = f(math.Exp(d))
		}
	}
	return math.Exp((a + b) / 2)
}
