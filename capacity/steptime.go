package capacity

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"
)

// Limits of a step-time model: what cannot be told apart, or does not foretell
// a shape of requests that it has not seen, is refused.
const (
	// StepConditionLimit bounds the condition number of the weighted points,
	// with each cost scaled to the same length.
	StepConditionLimit = 1e3
	// StepErrorLimit bounds the mean error at shapes left out of the fit.
	StepErrorLimit = 0.10
	// StepMargin is how far, as a share, a load may lie outside the points.
	StepMargin = 0.20
	// A model whose error at shapes left out is larger, or not known as there
	// are too few shapes to leave one out, is marked as extrapolated. With 6
	// shapes it is 2 to 3 % on measured engines; two shapes of three do not tell
	// the costs apart, and may miss the third by a few or by 30 %.
	stepExtrapolated = 0.05
	stepShapes       = 4
)

// ErrStepTime is of points that no step-time model can rest on.
var ErrStepTime = errors.New("no step-time model")

// The costs of a step, in the order of StepTime's coefficients.
const (
	stepBase = iota
	stepPrefill
	stepSequence
	stepContext
	stepCosts
)

var stepCostNames = [stepCosts]string{"base", "prefill tokens", "decode sequences", "context tokens"}

// StepLoad is what one engine step works on, in the mean.
type StepLoad struct {
	// PrefillTokens computed, Sequences decoded, and ContextTokens that these hold.
	PrefillTokens, Sequences, ContextTokens float64
}

// NewStepLoad is the load of a step of so many seconds, from computed prompt
// and generated tokens per second and the mean lengths of a request: in the
// mean a sequence that decodes holds its prompt and half of its generation.
func NewStepLoad(seconds, promptTokenRate, generationTokenRate, prompt, generation float64) StepLoad {
	sequences := generationTokenRate * seconds
	return StepLoad{promptTokenRate * seconds, sequences, sequences * (prompt + generation/2)}
}

func (l StepLoad) row() [stepCosts]float64 {
	return [stepCosts]float64{1, l.PrefillTokens, l.Sequences, l.ContextTokens}
}

// StepPoint is a measured step time.
type StepPoint struct {
	// Shape names the lengths of the requests: all points of a shape are left
	// out together to see whether the others foretell them.
	Shape string
	Load  StepLoad
	// Seconds of a step in the mean, the mean inter-token latency.
	Seconds float64
}

// StepTime is the time of an engine step in seconds, by its load:
//
//	T = base + prefill * tokens + sequence * sequences + context * tokens in context
type StepTime struct {
	// Coefficients of base, prefill tokens, decode sequences and context
	// tokens, in seconds each. A 0 is a cost that the points do not show, not
	// one that is known to be free.
	Coefficients [stepCosts]float64
	// Errors are their standard errors; NaN of a coefficient that is 0.
	Errors [stepCosts]float64
	// MeanError and MaxError are of the points, as a share of the step time.
	// UnseenError is the mean at shapes left out of the fit; NaN when the
	// others cannot tell the costs apart.
	MeanError, MaxError, UnseenError float64
	// Condition is the condition number of the points, each cost scaled to the same length.
	Condition float64
	Shapes    int
	// Extrapolated warns that the model is not known to foretell shapes that it
	// has not seen: a hint to where the time goes, no base for a KneeRate.
	Extrapolated bool

	covariance *mat.SymDense // of all coefficients, 0 where one is 0
	low, high  [stepCosts]float64
}

// FitStepTime fits the model to measured points by non-negative least squares
// of relative errors. The error wraps ErrStepTime and says why there is no
// model: points that cannot be, costs that cannot be told apart, or shapes
// that the others do not foretell.
func FitStepTime(points []StepPoint) (*StepTime, error) {
	for _, p := range points {
		row := p.Load.row()
		if !(p.Seconds > 0) || math.IsInf(p.Seconds, 0) || slices.ContainsFunc(row[:], func(v float64) bool { return !(v >= 0) || math.IsInf(v, 0) }) {
			return nil, fmt.Errorf("%w: shape %q has a step of %g s with %g prefill tokens, %g sequences and %g context tokens, want known numbers that are not negative",
				ErrStepTime, p.Shape, p.Seconds, p.Load.PrefillTokens, p.Load.Sequences, p.Load.ContextTokens)
		}
	}
	if len(points) <= stepCosts {
		return nil, fmt.Errorf("%w: %d points for %d costs, want more points", ErrStepTime, len(points), stepCosts)
	}
	var shapes []string
	for _, p := range points {
		if !slices.Contains(shapes, p.Shape) {
			shapes = append(shapes, p.Shape)
		}
	}
	m := &StepTime{Shapes: len(shapes)}
	var rank int
	if m.Condition, rank = stepCondition(points); !(m.Condition <= StepConditionLimit) {
		return nil, fmt.Errorf("%w: %d shapes of requests tell only %d of the %d costs of a step apart (condition number %.3g, limit %g): probe at least %d shapes, short and long prompts with short and long generations",
			ErrStepTime, len(shapes), rank, stepCosts, m.Condition, StepConditionLimit, stepShapes)
	}
	m.fit(points)
	if m.UnseenError = unseenError(points, shapes); m.UnseenError > StepErrorLimit {
		return nil, fmt.Errorf("%w: the step time of a shape left out is missed by %.1f %% in the mean (limit %.0f %%): probe more shapes of requests",
			ErrStepTime, 100*m.UnseenError, 100*StepErrorLimit)
	}
	m.Extrapolated = !(m.UnseenError <= stepExtrapolated)
	return m, nil
}

// stepRows are the points, divided by their step time and each column scaled
// to the length 1, and the lengths.
func stepRows(points []StepPoint) (rows [][]float64, norms [stepCosts]float64) {
	for _, p := range points {
		row := p.Load.row()
		floats.Scale(1/p.Seconds, row[:])
		rows = append(rows, row[:])
		for j, v := range row {
			norms[j] = math.Hypot(norms[j], v)
		}
	}
	for _, row := range rows {
		for j := range row {
			if norms[j] > 0 {
				row[j] /= norms[j]
			}
		}
	}
	return rows, norms
}

// stepCondition is the condition number of the points, and how many costs
// they tell apart within its limit.
func stepCondition(points []StepPoint) (condition float64, rank int) {
	rows, _ := stepRows(points)
	a := mat.NewDense(len(rows), stepCosts, slices.Concat(rows...))
	var svd mat.SVD
	if !svd.Factorize(a, mat.SVDNone) {
		return math.Inf(1), 0
	}
	values := svd.Values(nil)
	for _, v := range values {
		if v*StepConditionLimit >= values[0] {
			rank++
		}
	}
	return values[0] / values[len(values)-1], rank
}

// stepCoefficients is the fit alone.
func stepCoefficients(points []StepPoint) (c [stepCosts]float64) {
	rows, norms := stepRows(points)
	for j, x := range NNLS(rows, slices.Repeat([]float64{1}, len(rows))) {
		if norms[j] > 0 {
			c[j] = x / norms[j]
		}
	}
	return c
}

// unseenError leaves out one shape after another and is the mean relative
// error, over all points, of the fit to the others; NaN when some of these
// fits has no single solution.
func unseenError(points []StepPoint, shapes []string) float64 {
	sum := 0.0
	for _, shape := range shapes {
		of := func(p StepPoint) bool { return p.Shape == shape }
		others := slices.DeleteFunc(slices.Clone(points), of)
		if condition, _ := stepCondition(others); !(condition <= StepConditionLimit) {
			return math.NaN()
		}
		c := stepCoefficients(others)
		for _, p := range points {
			if of(p) {
				sum += relativeError(c, p)
			}
		}
	}
	return sum / float64(len(points))
}

func relativeError(c [stepCosts]float64, p StepPoint) float64 {
	row := p.Load.row()
	return math.Abs(floats.Dot(c[:], row[:])/p.Seconds - 1)
}

func (m *StepTime) fit(points []StepPoint) {
	m.Coefficients = stepCoefficients(points)
	squares := 0.0
	for i, p := range points {
		e := relativeError(m.Coefficients, p)
		squares += e * e
		m.MeanError += e / float64(len(points))
		m.MaxError = max(m.MaxError, e)
		for j, v := range p.Load.row() {
			if i == 0 {
				m.low[j], m.high[j] = v, v
			}
			m.low[j], m.high[j] = min(m.low[j], v), max(m.high[j], v)
		}
	}
	var active []int
	for j, c := range m.Coefficients {
		if c > 0 {
			active = append(active, j)
		}
	}
	rows, norms := stepRows(points)
	normal := mat.NewSymDense(len(active), nil)
	for _, row := range rows {
		for i, j := range active {
			for k := i; k < len(active); k++ {
				normal.SetSym(i, k, normal.At(i, k)+row[j]*row[active[k]])
			}
		}
	}
	m.covariance = mat.NewSymDense(stepCosts, nil)
	for j := range m.Errors {
		m.Errors[j] = math.NaN()
	}
	var inverse mat.SymDense
	var factor mat.Cholesky
	// The condition of the points was checked: these columns are independent.
	if !factor.Factorize(normal) || factor.InverseTo(&inverse) != nil {
		return
	}
	variance := squares / float64(len(points)-len(active))
	for i, j := range active {
		for k := i; k < len(active); k++ {
			m.covariance.SetSym(j, active[k], variance*inverse.At(i, k)/(norms[j]*norms[active[k]]))
		}
		m.Errors[j] = math.Sqrt(m.covariance.At(j, j))
	}
}

// deviation is the standard error of something with this gradient by the
// coefficients (delta method).
func (m *StepTime) deviation(gradient [stepCosts]float64) float64 {
	g := mat.NewVecDense(stepCosts, gradient[:])
	return math.Sqrt(mat.Inner(g, m.covariance, g))
}

// Within is nil for a load that the model may be used at, and says which part
// of it lies more than 20 % outside the points.
func (m *StepTime) Within(l StepLoad) error {
	for j, v := range l.row() {
		if !(v >= m.low[j]*(1-StepMargin) && v <= m.high[j]*(1+StepMargin)) {
			return fmt.Errorf("step-time model: %s of %.4g in a step are outside of what was probed, %.4g to %.4g", stepCostNames[j], v, m.low[j], m.high[j])
		}
	}
	return nil
}

// Seconds is the time of a step at a load and its standard error.
func (m *StepTime) Seconds(l StepLoad) (seconds, deviation float64) {
	row := l.row()
	return floats.Dot(m.Coefficients[:], row[:]), m.deviation(row)
}

// KneeRate is the rate of requests of these mean lengths, per second, at which
// steps take as long as bound, and its standard error:
//
//	(1 - base/bound) / (prefill*prompt + sequence*generation + context*generation*(prompt + generation/2))
//
// It knows nothing of tails, of the queue and of memory, and is 0 for a bound
// that an empty step passes. Whether the load there was probed is for Within.
func (m *StepTime) KneeRate(bound, prompt, generation float64) (rate, deviation float64) {
	c := m.Coefficients
	if bound <= c[stepBase] {
		return 0, math.NaN()
	}
	perRequest := [stepCosts]float64{0, prompt, generation, generation * (prompt + generation/2)}
	cost := floats.Dot(c[:], perRequest[:])
	rate = (1 - c[stepBase]/bound) / cost
	gradient := [stepCosts]float64{-1 / (bound * cost)}
	for j := stepPrefill; j < stepCosts; j++ {
		gradient[j] = -rate * perRequest[j] / cost
	}
	return rate, m.deviation(gradient)
}

// StepShares are the parts of a step's time, together 1. A part whose
// coefficient is 0 is NaN: not identified.
type StepShares struct{ Base, Prefill, Sequences, Context float64 }

// UnknownStepShares has nothing known.
func UnknownStepShares() StepShares {
	nan := math.NaN()
	return StepShares{nan, nan, nan, nan}
}

// Shares says where a step's time goes at a load: nothing is known at one that
// is not Within.
func (m *StepTime) Shares(l StepLoad) StepShares {
	if m.Within(l) != nil {
		return UnknownStepShares()
	}
	seconds, _ := m.Seconds(l)
	var part [stepCosts]float64
	for j, v := range l.row() {
		part[j] = math.NaN()
		if c := m.Coefficients[j]; c > 0 {
			part[j] = c * v / seconds
		}
	}
	return StepShares{part[stepBase], part[stepPrefill], part[stepSequence], part[stepContext]}
}
