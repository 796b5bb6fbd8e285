package simulator

import (
	"math"
	"math/rand/v2"
	"testing"
)

func moments(values []float64) (mean, sd float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	for _, v := range values {
		sd += (v - mean) * (v - mean) / float64(len(values))
	}
	return mean, math.Sqrt(sd)
}

func TestLengths(t *testing.T) {
	const n = 50_000
	for name, test := range map[string]struct {
		lengths  Lengths
		mean, sd float64
	}{
		"fixed":        {Lengths{Mean: 300, SD: 7}, 300, 0},
		"fixed, named": {Lengths{Distribution: FixedLength, Mean: 300}, 300, 0},
		"normal":       {Lengths{Distribution: NormalLength, Mean: 512, SD: 100}, 512, 100},
		"lognormal":    {Lengths{Distribution: LognormalLength, Mean: 512, SD: 256}, 512, 256},
		"no spread":    {Lengths{Distribution: LognormalLength, Mean: 512}, 512, 0},
		"at least one": {Lengths{Distribution: NormalLength, Mean: -1000, SD: 1}, 1, 0},
		"bounded":      {Lengths{Distribution: NormalLength, Mean: 1000, SD: 1, Min: 3, Max: 20}, 20, 0},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			values := make([]float64, n)
			for i := range values {
				values[i] = float64(test.lengths.Draw(rng))
			}
			mean, sd := moments(values)
			if math.Abs(mean-test.mean) > 0.01*test.mean || math.Abs(sd-test.sd) > 0.03*test.sd+1e-3 {
				t.Errorf("mean %.1f, SD %.1f; want %v, %v", mean, sd, test.mean, test.sd)
			}
		})
	}
}

func TestPoissonRequests(t *testing.T) {
	requests := PoissonRequests(5, 20, 1000, Lengths{Mean: 10}, Lengths{Distribution: LognormalLength, Mean: 50, SD: 20})
	var gaps []float64
	previous := 0.0
	for i, r := range requests {
		gaps = append(gaps, r.Arrival-previous)
		if r.Arrival < previous || r.Arrival >= 1000 || r.PromptLength != 10 || r.MaxTokens != r.OutputLength || r.OutputLength < 1 {
			t.Fatalf("request %d: %+v", i, *r)
		}
		previous = r.Arrival
	}
	// Gaps of a Poisson process are exponential: SD equals mean.
	mean, sd := moments(gaps)
	if math.Abs(mean*20-1) > 0.03 || math.Abs(sd/mean-1) > 0.03 {
		t.Errorf("gaps of mean %v s, SD %v s; want 0.05 both", mean, sd)
	}
	again := PoissonRequests(5, 20, 1000, Lengths{Mean: 10}, Lengths{Distribution: LognormalLength, Mean: 50, SD: 20})
	other := PoissonRequests(6, 20, 1000, Lengths{Mean: 10}, Lengths{Distribution: LognormalLength, Mean: 50, SD: 20})
	last := len(requests) - 1
	if len(again) != len(requests) || again[last].Arrival != requests[last].Arrival || again[last].OutputLength != requests[last].OutputLength {
		t.Error("the same seed gives other requests")
	}
	if other[0].Arrival == requests[0].Arrival {
		t.Error("another seed gives the same requests")
	}
}
