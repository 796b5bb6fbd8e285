package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Process is how arrivals are spread around their rate.
type Process string

// The arrival processes.
const (
	// Constant has equal gaps; the first arrival is at 0.
	Constant Process = "constant"
	// Poisson has exponential gaps (CV 1).
	Poisson Process = "poisson"
	// Gamma has gamma gaps with the burstiness as shape: CV^2 = 1/burstiness.
	Gamma Process = "gamma"
)

// maxRate in requests per second is far above what any replica serves.
const maxRate = 1e6

// Arrivals is when requests arrive in open loop: absolute offsets that do not
// depend on the answers. They are not rescaled to a total: the number in a
// time varies as the process has it.
type Arrivals struct {
	Process Process
	// Rate in requests per second; after the ramp if there is one.
	Rate float64
	// Burstiness is the shape of Gamma; the other processes take none.
	Burstiness float64
	// Ramp leads up, or down, to Rate.
	Ramp Ramp
}

// Validate returns an error that names what is wrong.
func (a Arrivals) Validate() error {
	switch a.Process {
	case Constant, Poisson:
		if a.Burstiness != 0 && !(a.Process == Poisson && a.Burstiness == 1) {
			return fmt.Errorf("arrivals: burstiness is %g, but only gamma arrivals take one", a.Burstiness)
		}
	case Gamma:
		if !(a.Burstiness >= 0.01 && a.Burstiness <= 1e4) {
			return fmt.Errorf("arrivals: burstiness is %g, want 0.01 (bursts) to 10000 (even); 1 is Poisson", a.Burstiness)
		}
	default:
		return fmt.Errorf("arrivals: no process %q, want constant, poisson or gamma", a.Process)
	}
	if !(a.Rate > 0 && a.Rate <= maxRate) {
		return fmt.Errorf("arrivals: rate is %g, want more than 0 and up to %g requests per second", a.Rate, float64(maxRate))
	}
	return a.Ramp.validate()
}

// arrivalTimes gives the offset of each arrival, without end. Arrival number i
// draws from a stream of its own.
//
// It is a renewal process of rate 1 whose clock runs at the rate of the
// moment: the i-th arrival is when the integral of the rate reaches the i-th
// sum of gaps. The first gap is the rest of one that began before the run
// (for a gamma gap, a uniform share of a gamma of shape+1: the length-biased
// gap), so that the expected number of arrivals is the integral of the rate
// from the very start.
type arrivalTimes struct {
	arrivals Arrivals
	clock    clock
	streams  *streams
	sum      float64
	number   uint64
}

func newArrivalTimes(a Arrivals, seed uint64) *arrivalTimes {
	return &arrivalTimes{arrivals: a, clock: a.clock(), streams: newStreams(seed)}
}

func (t *arrivalTimes) next() time.Duration {
	t.sum += t.arrivals.gap(t.streams.at(domainArrival, t.number), t.number == 0)
	t.number++
	return seconds(min(t.clock.at(t.sum), maxOffset))
}

// maxOffset in seconds keeps offsets within a time.Duration, which ends after 292 years.
const maxOffset = 9e9

// gap draws one gap with a mean of 1.
func (a Arrivals) gap(rng *rand.Rand, first bool) float64 {
	switch {
	case a.Process == Constant && first:
		return 0
	case a.Process == Constant:
		return 1
	case a.Process == Poisson:
		return rng.ExpFloat64()
	case first:
		return rng.Float64() * gamma(rng, a.Burstiness+1) / a.Burstiness
	}
	return gamma(rng, a.Burstiness) / a.Burstiness
}

// gamma draws from a gamma distribution of a shape and scale 1 (Marsaglia and
// Tsang 2000; below a shape of 1, a power of a uniform number times a draw of shape+1).
func gamma(rng *rand.Rand, shape float64) float64 {
	boost := 1.0
	if shape < 1 {
		boost = math.Pow(1-rng.Float64(), 1/shape)
		shape++
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v *= v * v
		if math.Log(1-rng.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return boost * d * v
		}
	}
}

// streams gives each number of each domain a random stream of its own, so
// that what one request draws does not depend on what others drew.
type streams struct {
	seed uint64
	pcg  rand.PCG
	rng  *rand.Rand
}

func newStreams(seed uint64) *streams {
	s := &streams{seed: seed}
	s.rng = rand.New(&s.pcg)
	return s
}

// at returns the stream of a number; it is valid until the next call.
func (s *streams) at(domain, n uint64) *rand.Rand {
	key := streamKey(s.seed, domain, n)
	s.pcg.Seed(key, mix(key))
	return s.rng
}
