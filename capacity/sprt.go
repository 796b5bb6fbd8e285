package capacity

import "math"

// Decision is what a sequential test has come to.
type Decision int

// The decisions.
const (
	Undecided Decision = iota
	// Accept: the fraction is the lower one.
	Accept
	// Reject: the fraction is the higher one.
	Reject
)

// SPRT is Wald's sequential probability ratio test (1945) between two
// fractions of violations, one trial at a time. Its trials must be
// independent: violations that come in clumps make it accept too early, so
// it may fail a load early but not pass one.
type SPRT struct {
	good, bad      float64
	accept, reject float64
	ratio          float64
	decision       Decision
}

// NewSPRT is a test of the fraction p0 against p1 > p0, both within (0, 1),
// that rejects p0 wrongly with the probability alpha and accepts it wrongly
// with beta.
func NewSPRT(p0, p1, alpha, beta float64) *SPRT {
	return &SPRT{
		good:   math.Log((1 - p1) / (1 - p0)),
		bad:    math.Log(p1 / p0),
		accept: math.Log(beta / (1 - alpha)),
		reject: math.Log((1 - beta) / alpha),
	}
}

// Observe takes one trial and returns the decision, which stays once it is made.
func (s *SPRT) Observe(violation bool) Decision {
	if s.decision != Undecided {
		return s.decision
	}
	if violation {
		s.ratio += s.bad
	} else {
		s.ratio += s.good
	}
	switch {
	case s.ratio <= s.accept:
		s.decision = Accept
	case s.ratio >= s.reject:
		s.decision = Reject
	}
	return s.decision
}
