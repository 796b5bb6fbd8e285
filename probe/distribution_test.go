package probe

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestPercentileByHand: nearest rank over 1 to 1000 ms.
func TestPercentileByHand(t *testing.T) {
	var d Distribution
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(1000) {
		d.Add(float64(i+1) / 1000)
	}
	for p, want := range map[float64]float64{50: 0.5, 90: 0.9, 95: 0.95, 99: 0.99, 99.9: 0.999} {
		if got := d.Percentile(p, 0); got != want {
			t.Errorf("p%g is %v, want %v", p, got, want)
		}
	}
	// 11 failures are the largest 11 of 1011: the 1001st of them, p99, is one.
	if got := d.Percentile(99, 11); !math.IsInf(got, 1) {
		t.Errorf("p99 with 11 failures is %v", got)
	}
	// With 5 failures p99 of 1005 is the 995th.
	if got := d.Percentile(99, 5); got != 0.995 {
		t.Errorf("p99 with 5 failures is %v", got)
	}
}

func TestPercentileNeedsNumbers(t *testing.T) {
	for p, least := range map[float64]int{50: 2, 90: 10, 95: 20, 99: 100, 99.9: 1000} {
		var d Distribution
		for range least - 1 {
			d.Add(1)
		}
		if got := d.Percentile(p, 0); !math.IsNaN(got) {
			t.Errorf("p%g of %d is %v", p, least-1, got)
		}
		if d.Add(1); d.Percentile(p, 0) != 1 {
			t.Errorf("p%g of %d is %v", p, least, d.Percentile(p, 0))
		}
	}
	var none Distribution
	s, err := json.Marshal(none.Summary())
	if want := `{"n":0,"mean":null,"p50":null,"p90":null,"p95":null,"p99":null,"p99_9":null,"max":null}`; err != nil || string(s) != want {
		t.Errorf("%s, %v", s, err)
	}
}

// TestPercentileOfMany: beyond the exact samples, within 0.05 %.
func TestPercentileOfMany(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var d Distribution
	var all []float64
	for range 4 * exactSamples {
		x := math.Exp(rng.NormFloat64()*2 - 3)
		d.Add(x)
		all = append(all, x)
	}
	slices.Sort(all)
	for _, p := range []float64{1, 50, 90, 99, 99.9} {
		want := all[int(math.Ceil(p/100*float64(len(all))))-1]
		if got := d.Percentile(p, 0); math.Abs(got-want) > 0.0005*want {
			t.Errorf("p%g is %v, want %v", p, got, want)
		}
	}
	if d.Max() != all[len(all)-1] {
		t.Errorf("max %v", d.Max())
	}
}

// TestWeights: one gap that brought k tokens is k samples.
func TestWeights(t *testing.T) {
	var whole, parts Distribution
	whole.AddWeighted(0.02, 3)
	whole.AddWeighted(0.05, 1)
	for range 3 {
		parts.Add(0.02)
	}
	parts.Add(0.05)
	if whole.Summary() != parts.Summary() && show(whole.Summary()) != show(parts.Summary()) {
		t.Errorf("%+v, want %+v", whole.Summary(), parts.Summary())
	}
	var half Distribution
	for range 100 {
		half.AddWeighted(0.02, 1.5)
	}
	if p := half.Percentile(50, 0); math.Abs(p-0.02) > 1e-5 || half.N() != 150 {
		t.Errorf("p50 %v of %v", p, half.N())
	}
	half.AddWeighted(math.NaN(), 1)
	half.AddWeighted(1, 0)
	if half.N() != 150 {
		t.Errorf("n %v after adding nothing", half.N())
	}
}

func BenchmarkDistribution(b *testing.B) {
	var d Distribution
	x := 0.02
	b.ReportAllocs()
	for b.Loop() {
		d.Add(x)
		x = math.Nextafter(x, 1)
	}
}
