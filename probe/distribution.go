package probe

import (
	"math"
	"math/bits"
	"slices"

	"headroom_exporter/capacity"
)

// Value is a number that may be unknown: NaN here, null in JSON.
type Value = capacity.Value

// exactSamples is up to how many samples a Distribution keeps them all.
const exactSamples = 1 << 14

// Distribution gathers durations in seconds, each with a weight. Up to 16,384
// samples of weight 1 its percentiles are exact; beyond that they are within
// 0.05 %, in memory that does not grow.
type Distribution struct {
	exact []float64
	coarse
	total    float64
	sum      float64
	low, top float64
}

// coarse is a histogram of logarithmic-linear buckets: each
// power of two of nanoseconds is split into 1,024 parts. Powers that hold
// nothing take no memory.
type coarse struct {
	octaves [64]*[1024]float64
}

func (c *coarse) add(ns uint64, weight float64) {
	o, sub := octave(ns)
	if c.octaves[o] == nil {
		c.octaves[o] = new([1024]float64)
	}
	c.octaves[o][sub] += weight
}

func octave(ns uint64) (o, sub int) {
	width := bits.Len64(ns)
	if width <= 10 {
		return 0, int(ns)
	}
	return width - 10, int(ns >> (width - 11) & 1023)
}

// middle of a bucket in seconds.
func middle(o, sub int) float64 {
	if o == 0 {
		return float64(sub) * 1e-9
	}
	return math.Ldexp(1024+float64(sub)+0.5, o-1) * 1e-9
}

// Add adds a sample in seconds.
func (d *Distribution) Add(seconds float64) { d.AddWeighted(seconds, 1) }

// AddWeighted adds a sample that stands for weight samples. NaN is left out.
func (d *Distribution) AddWeighted(seconds, weight float64) {
	if math.IsNaN(seconds) || !(weight > 0) {
		return
	}
	seconds = max(seconds, 0)
	if d.total == 0 || seconds < d.low {
		d.low = seconds
	}
	d.top = max(d.top, seconds)
	before := d.total
	d.total += weight
	d.sum += seconds * weight
	whole := weight == math.Trunc(weight) && d.total <= exactSamples
	if whole && before == float64(len(d.exact)) {
		for range int(weight) {
			d.exact = append(d.exact, seconds)
		}
		return
	}
	for _, x := range d.exact {
		d.add(nanoseconds(x), 1)
	}
	d.exact = nil
	d.add(nanoseconds(seconds), weight)
}

func nanoseconds(seconds float64) uint64 { return uint64(math.Round(seconds * 1e9)) }

// N is the number of samples.
func (d *Distribution) N() float64 { return d.total }

// Mean in seconds; NaN without samples.
func (d *Distribution) Mean() float64 { return d.sum / d.total }

// Max in seconds; NaN without samples.
func (d *Distribution) Max() float64 {
	if d.total == 0 {
		return math.NaN()
	}
	return d.top
}

// Percentile is the smallest sample that at least p of 100 samples do not
// pass (nearest rank). missing samples count as infinitely large. It is NaN
// when there are too few samples to tell: fewer than 1/(1-p).
func (d *Distribution) Percentile(p, missing float64) float64 {
	all := d.total + missing
	share := p / 100
	if all == 0 || all*(1-share) < 1-1e-9 {
		return math.NaN()
	}
	rank := math.Ceil(all*share - 1e-9)
	if rank > d.total {
		return math.Inf(1)
	}
	if n := len(d.exact); n > 0 {
		slices.Sort(d.exact)
		return d.exact[min(max(int(rank), 1), n)-1]
	}
	seen := 0.0
	for o, buckets := range d.octaves {
		if buckets == nil {
			continue
		}
		for sub, weight := range buckets {
			if seen += weight; seen >= rank-1e-6 {
				return min(max(middle(o, sub), d.low), d.top)
			}
		}
	}
	return d.top
}

// Summary is what is published of a distribution, in seconds. A percentile
// that n cannot support is null.
type Summary struct {
	N    float64 `json:"n"`
	Mean Value   `json:"mean"`
	P50  Value   `json:"p50"`
	P90  Value   `json:"p90"`
	P95  Value   `json:"p95"`
	P99  Value   `json:"p99"`
	P999 Value   `json:"p99_9"`
	Max  Value   `json:"max"`
}

// Summary returns the published form.
func (d *Distribution) Summary() Summary {
	p := func(percent float64) Value { return Value(d.Percentile(percent, 0)) }
	return Summary{
		N: math.Round(d.total), Mean: Value(d.Mean()),
		P50: p(50), P90: p(90), P95: p(95), P99: p(99), P999: p(99.9), Max: Value(d.Max()),
	}
}
