package simulator

import (
	"math"
	"math/rand/v2"
	"strconv"
)

// Distribution is the shape of random lengths.
type Distribution string

// The distributions.
const (
	FixedLength     Distribution = "fixed"
	NormalLength    Distribution = "normal"
	LognormalLength Distribution = "lognormal"
)

// Lengths draws lengths in tokens with a mean and a standard deviation, which
// are those before rounding and before the bounds apply.
type Lengths struct {
	// Distribution; empty is FixedLength.
	Distribution Distribution
	Mean, SD     float64
	// Min and Max bound what is drawn; Min is at least 1, and a Max of 0 is no bound.
	Min, Max int
}

// Draw draws one length.
func (l Lengths) Draw(rng *rand.Rand) int {
	x := l.Mean
	switch l.Distribution {
	case NormalLength:
		x += l.SD * rng.NormFloat64()
	case LognormalLength:
		// The mean and variance of exp(N(mu, s2)) are exp(mu+s2/2) and (exp(s2)-1) exp(2mu+s2).
		s2 := math.Log1p(l.SD * l.SD / (l.Mean * l.Mean))
		x = math.Exp(math.Log(l.Mean) - s2/2 + math.Sqrt(s2)*rng.NormFloat64())
	}
	most := float64(math.MaxInt32)
	if l.Max > 0 {
		most = float64(l.Max)
	}
	return int(min(max(math.Round(x), float64(l.Min), 1), most))
}

// PoissonRequests draws the requests of a Poisson process of a rate per second
// over a time in seconds, sorted by arrival. The same seed gives the same requests.
func PoissonRequests(seed uint64, rate, duration float64, prompt, output Lengths) []*Request {
	rng := rand.New(rand.NewPCG(seed, 0))
	var requests []*Request
	for at := rng.ExpFloat64() / rate; at < duration; at += rng.ExpFloat64() / rate {
		r := &Request{
			ID:           strconv.Itoa(len(requests)),
			Arrival:      at,
			PromptLength: prompt.Draw(rng),
			OutputLength: output.Draw(rng),
		}
		r.MaxTokens = r.OutputLength
		requests = append(requests, r)
	}
	return requests
}
