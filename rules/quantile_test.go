package rules

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	promrules "github.com/prometheus/prometheus/rules"
)

var inf = math.Inf(1)

var percentiles = map[string]float64{"50": 0.50, "95": 0.95, "99": 0.99}

// observed is a histogram of known observations, as one rank's.
type observed struct {
	rank   string
	values []float64 // sorted
	bounds []float64
}

func (o observed) samples(samples []Sample) []Sample {
	counts := make([]float64, len(o.bounds))
	for i, b := range o.bounds {
		n, _ := slices.BinarySearchFunc(o.values, b, func(v, b float64) int {
			if v <= b {
				return -1
			}
			return 1
		})
		counts[i] = float64(n)
	}
	return AppendHistogram(samples, "headroom_engine_e2e_latency_seconds", rankNames, []string{"m", o.rank}, o.bounds, counts, 0, float64(len(o.values)))
}

// intervals returns what the shipped rules record of the histograms: lower and
// upper end by rank and percentile.
func intervals(t *testing.T, all []observed) map[[2]string][2]float64 {
	t.Helper()
	e := open(t, Config{Shipped: true, MaxSeries: 200_000, MaxSamples: 100_000_000, Timeout: time.Minute})
	end := time.Now().Truncate(time.Minute)
	var before, after []Sample
	for _, o := range all {
		before = observed{o.rank, nil, o.bounds}.samples(before)
		after = o.samples(after)
	}
	for _, step := range []struct {
		at      time.Time
		samples []Sample
	}{{end.Add(-time.Minute), before}, {end, after}} {
		if err := e.Append(step.at, step.samples); err != nil {
			t.Fatal(err)
		}
	}
	ev := newEvaluation(t, e)
	ev.groups = slices.DeleteFunc(ev.groups, func(g *promrules.Group) bool { return g.Name() != "latency_e2e_latency" })
	ev.at(t, end)
	ends := map[[2]string][2]float64{}
	for _, r := range e.Recorded() {
		key := [2]string{r.Labels["engine"], r.Labels["percentile"]}
		pair := ends[key]
		switch r.Name {
		case "headroom_engine_e2e_latency_percentile_lower_seconds":
			pair[0] = r.Value
		case "headroom_engine_e2e_latency_percentile_upper_seconds":
			pair[1] = r.Value
		default:
			continue
		}
		ends[key] = pair
	}
	return ends
}

// One observation per bucket shows the ranks themselves: (L-1, U]. Exact ranks
// by T18 of the order-statistic table (p99, 95 %); the normal form that PromQL
// can compute may be one rank wider above, never narrower.
func TestIntervalRanks(t *testing.T) {
	exact := map[int][2]float64{662: {650, 661}, 1000: {983, 997}, 2000: {1971, 1989}}
	var all []observed
	for n := range exact {
		o := observed{rank: strconv.Itoa(n)}
		for i := 1; i <= n; i++ {
			o.values = append(o.values, float64(i))
			o.bounds = append(o.bounds, float64(i))
		}
		o.bounds = append(o.bounds, inf)
		all = append(all, o)
	}
	got := intervals(t, all)
	for n, want := range exact {
		pair := got[[2]string{strconv.Itoa(n), "99"}]
		if pair[0] != want[0]-1 {
			t.Errorf("n = %d: lower rank %v, want %v", n, pair[0]+1, want[0])
		}
		if pair[1] != want[1] && pair[1] != want[1]+1 {
			t.Errorf("n = %d: upper rank %v, want %v or one more", n, pair[1], want[1])
		}
	}
}

// The normal form of the rules is never narrower than the exact binomial
// ranks, whatever n.
func TestIntervalIsConservative(t *testing.T) {
	for percentile, q := range percentiles {
		for n := 1; n <= 30_000; n += 1 + n/60 {
			lower, upper := exactRanks(n, q)
			mean, width := float64(n)*q, 1.96*math.Sqrt(float64(n)*q*(1-q))
			// cum + 1 <= mean - width and cum >= mean + width + 0.5, as in latency.yml.
			if got := math.Floor(mean - width); got > float64(max(lower, 0)) && got > 0 {
				t.Errorf("p%s of %d: lower rank %v above the exact %d", percentile, n, got, lower)
			}
			if got := math.Ceil(mean + width + 0.5); got < float64(upper) {
				t.Errorf("p%s of %d: upper rank %v below the exact %d", percentile, n, got, upper)
			}
		}
	}
}

// exactRanks returns the largest L with P(Bin(n,q) <= L-1) <= 2.5 % (0 without
// one) and the smallest U with P(Bin(n,q) >= U) <= 2.5 % (n+1 without one).
func exactRanks(n int, q float64) (lower, upper int) {
	all, _ := math.Lgamma(float64(n + 1))
	probability := func(k int) float64 {
		a, _ := math.Lgamma(float64(k + 1))
		b, _ := math.Lgamma(float64(n - k + 1))
		return math.Exp(all - a - b + float64(k)*math.Log(q) + float64(n-k)*math.Log1p(-q))
	}
	const tail = 0.025
	sum := 0.0
	for k := 0; k <= n; k++ {
		if sum += probability(k); sum > tail {
			break
		}
		lower = k + 1
	}
	sum, upper = 0, n+1
	for k := n; k >= 0; k-- {
		if sum += probability(k); sum > tail {
			break
		}
		upper = k
	}
	return lower, upper
}

// The interval holds the quantile of what was observed in each of 1,000 random
// histograms, and the quantile of the distribution that it was drawn from as
// often as it claims.
func TestIntervalHoldsQuantile(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 11))
	var all []observed
	type distribution struct{ quantile func(float64) float64 }
	var drawn []distribution
	for i := range 1000 {
		scale := math.Exp(random.NormFloat64())
		d := []distribution{
			{quantile: func(q float64) float64 { return -scale * math.Log1p(-q) }},                                         // exponential
			{quantile: func(q float64) float64 { return scale * math.Pow(1-q, -0.7) }},                                     // Pareto
			{quantile: func(q float64) float64 { return scale * q }},                                                       // uniform
			{quantile: func(q float64) float64 { return scale * math.Exp(math.Sqrt2*math.Erfinv(2*q-1)) }},                 // lognormal
			{quantile: func(q float64) float64 { return scale * map[bool]float64{true: 1 + q, false: 20 + q}[q <= 0.97] }}, // two modes
		}[i%5]
		o := observed{rank: strconv.Itoa(i)}
		for range 1 + int(math.Exp(random.Float64()*math.Log(3000))) {
			o.values = append(o.values, d.quantile(random.Float64()))
		}
		slices.Sort(o.values)
		for range 3 + random.IntN(18) {
			o.bounds = append(o.bounds, scale*math.Exp(3*random.NormFloat64()))
		}
		slices.Sort(o.bounds)
		o.bounds = append(slices.Compact(o.bounds), inf)
		all, drawn = append(all, o), append(drawn, d)
	}
	got := intervals(t, all)
	if len(got) != len(all)*len(percentiles) {
		t.Fatalf("%d intervals, want %d", len(got), len(all)*len(percentiles))
	}
	held, finite := 0, 0
	for i, o := range all {
		for percentile, q := range percentiles {
			pair := got[[2]string{o.rank, percentile}]
			holds := func(v float64) bool { return pair[0] < v && v <= pair[1] }
			if v := o.values[int(math.Ceil(q*float64(len(o.values))))-1]; !holds(v) {
				t.Errorf("histogram %d, n = %d, p%s: observed %v is not in (%v, %v]", i, len(o.values), percentile, v, pair[0], pair[1])
			}
			if holds(drawn[i].quantile(q)) {
				held++
			}
			if pair[1] < inf && pair[0] > 0 {
				finite++
			}
		}
	}
	share := float64(held) / float64(len(got))
	if share < 0.95 {
		t.Errorf("the distribution's quantile was held in %.1f %% of cases, want 95 %%", 100*share)
	}
	if finite < len(got)/4 {
		t.Errorf("only %d of %d intervals say anything on both sides", finite, len(got))
	}
	t.Logf("held the distribution's quantile in %.2f %%; %d of %d intervals have two informative ends", 100*share, finite, len(got))
}
