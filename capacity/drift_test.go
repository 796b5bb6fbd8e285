package capacity_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"headroom_exporter/capacity"
)

// steady is an observation that counts.
func steady(time, observed float64) capacity.DriftObservation {
	return capacity.DriftObservation{
		Time: time, DriftPoint: capacity.DriftPoint{LoadRatio: 0.6, PrefillShare: 0.4},
		Coverage: 0.95, Observed: observed, Expected: 1,
	}
}

func TestDriftFactor(t *testing.T) {
	at := steady(0, 1).DriftPoint
	for _, test := range []struct {
		ratios []float64
		want   float64
	}{
		{nil, 1},
		{[]float64{1.4, 1.4, 1.4, 1.4}, 1}, // too few
		{[]float64{1.4, 1.4, 1.4, 1.4, 1.4}, 1.4},
		{[]float64{1.2, 9, 1.1, 0.1, 1.3}, 1.2}, // the median
		{[]float64{5, 5, 5, 5, 5}, 2},
		{[]float64{.1, .1, .1, .1, .1}, 0.5},
	} {
		var d capacity.Drift
		for i, r := range test.ratios {
			if !d.Add(steady(float64(i), r)) {
				t.Errorf("%v: not counted", r)
			}
		}
		if got := d.Factor(at); got != test.want || d.Observations(at) != len(test.ratios) {
			t.Errorf("%v: factor %g of %d, want %g", test.ratios, got, d.Observations(at), test.want)
		}
		if other := (capacity.DriftPoint{LoadRatio: 0.6, PrefillShare: 0.6}); d.Factor(other) != 1 || d.Observations(other) != 0 {
			t.Errorf("%v: factor %g in another bucket", test.ratios, d.Factor(other))
		}
	}
}

func TestDriftKeepsWhatIsNew(t *testing.T) {
	var d capacity.Drift
	at := steady(0, 1).DriftPoint
	for i := range 500 {
		d.Add(steady(float64(i), 1))
	}
	for i := range 33 {
		// The median of 64 is between the two in the middle.
		if got := d.Factor(at); got != 1 && i < 32 {
			t.Fatalf("after %d slower ones the factor is %g", i, got)
		}
		d.Add(steady(float64(500+i), 1.3))
	}
	if got := d.Factor(at); got != 1.3 || d.Observations(at) != 64 {
		t.Errorf("factor %g of %d, want 1.3 of 64", got, d.Observations(at))
	}
}

func TestDriftBuckets(t *testing.T) {
	loads := map[float64]int{0.3: 0, 0.49: 0, 0.5: 1, 0.69: 1, 0.7: 2, 0.89: 2, 0.9: 3, 1.7: 3}
	shares := map[float64]int{0: 0, 0.24: 0, 0.25: 1, 0.5: 2, 0.75: 3, 1: 3}
	for load, i := range loads {
		for share, j := range shares {
			var d capacity.Drift
			o := steady(0, 1.5)
			o.DriftPoint = capacity.DriftPoint{LoadRatio: load, PrefillShare: share}
			for range 5 {
				d.Add(o)
			}
			for otherLoad, k := range loads {
				for otherShare, l := range shares {
					want := 1.0
					if i == k && j == l {
						want = 1.5
					}
					if got := d.Factor(capacity.DriftPoint{LoadRatio: otherLoad, PrefillShare: otherShare}); got != want {
						t.Errorf("observed at %g, %g: factor %g at %g, %g, want %g", load, share, got, otherLoad, otherShare, want)
					}
				}
			}
		}
	}
	for _, p := range []capacity.DriftPoint{{0.29, 0.4}, {math.NaN(), 0.4}, {0.6, math.NaN()}, {0.6, -0.1}, {0.6, 1.1}} {
		if got := new(capacity.Drift).Factor(p); got != 1 {
			t.Errorf("%+v is out of range: %g", p, got)
		}
	}
}

func TestDriftLeavesOut(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for name, change := range map[string]func(*capacity.DriftObservation){
		"restart":            func(o *capacity.DriftObservation) { o.Restarted = true },
		"probe":              func(o *capacity.DriftObservation) { o.Probing = true },
		"low load":           func(o *capacity.DriftObservation) { o.LoadRatio = 0.29 },
		"unknown load":       func(o *capacity.DriftObservation) { o.LoadRatio = nan },
		"unknown prefill":    func(o *capacity.DriftObservation) { o.PrefillShare = nan },
		"low coverage":       func(o *capacity.DriftObservation) { o.Coverage = 0.89 },
		"unknown coverage":   func(o *capacity.DriftObservation) { o.Coverage = nan },
		"unknown latency":    func(o *capacity.DriftObservation) { o.Observed = nan },
		"no latency":         func(o *capacity.DriftObservation) { o.Observed = 0 },
		"unknown expected":   func(o *capacity.DriftObservation) { o.Expected = nan },
		"nothing expected":   func(o *capacity.DriftObservation) { o.Expected = 0 },
		"an endless latency": func(o *capacity.DriftObservation) { o.Observed = inf },
	} {
		var d capacity.Drift
		for range 10 {
			o := steady(0, 1.5)
			change(&o)
			if d.Add(o) {
				t.Errorf("%s counts", name)
			}
		}
		if d.Observations(steady(0, 1).DriftPoint) != 0 {
			t.Errorf("%s was kept", name)
		}
	}
}

// An engine slowed by 20 % reads so within 10 minutes of observations every
// 5 s, and the input of the alert flips; the curve is not stale by that.
func TestDriftOfSlowedEngine(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	var d capacity.Drift
	at := steady(0, 1).DriftPoint
	now := 0.0
	observe := func(slower float64, n int) {
		for range n {
			now += 5
			d.Add(steady(now, slower*(1+0.1*rng.NormFloat64())))
		}
	}
	observe(1, 720)
	if f := d.Factor(at); math.Abs(f-1) > 0.05 || capacity.Drifting(f) || d.Stale() {
		t.Errorf("before: factor %g", f)
	}
	observe(1.2, 120)
	if f := d.Factor(at); math.Abs(f-1.2) > 0.05 || !capacity.Drifting(f) || d.Stale() {
		t.Errorf("slowed: factor %g, drifting %t, stale %t", f, capacity.Drifting(f), d.Stale())
	}
}

func TestDriftStale(t *testing.T) {
	var d capacity.Drift
	for time := 0.0; time < 60; time += 15 {
		d.Add(steady(time, 1.3))
	}
	// The fifth is the first that gives a factor, at 60 s.
	for time := 60.0; time <= 60+1800; time += 60 {
		if d.Stale() {
			t.Fatalf("stale after %g s", time)
		}
		d.Add(steady(time, 1.3))
	}
	if !d.Stale() {
		t.Error("not stale after half an hour 30 % off")
	}
	for range 64 {
		d.Add(steady(2000, 1.1))
	}
	if d.Stale() {
		t.Error("stale though back within 20 %")
	}
	for time := 3000.0; time < 3000+10*1000; time += 1000 {
		for range 64 {
			d.Add(steady(time, 0.7))
		}
	}
	if d.Stale() {
		t.Error("stale by observations that are too far apart to tell what was between")
	}
}

func TestPessimistic(t *testing.T) {
	for factor, want := range map[float64]float64{0.5: 1, 1: 1, 1.3: 1.3} {
		if got := capacity.Pessimistic(factor); got != want {
			t.Errorf("factor %g: %g applied, want %g", factor, got, want)
		}
	}
	if !math.IsNaN(capacity.Pessimistic(math.NaN())) {
		t.Error("an unknown factor became a number")
	}
	for factor, want := range map[float64]bool{1: false, 1.09: false, 0.91: false, 1.11: true, 0.89: true, math.NaN(): false} {
		if got := capacity.Drifting(factor); got != want {
			t.Errorf("factor %g: drifting %t", factor, got)
		}
	}
}

// A tolerance of its own is what the time counts from.
func TestDriftTolerance(t *testing.T) {
	for _, test := range []struct {
		tolerance, ratio float64
		stale            bool
	}{
		{0, 0.83, false}, {0, 0.79, true}, {0, 1.21, true},
		{capacity.GenerationRateTolerance, 0.86, false}, {capacity.GenerationRateTolerance, 0.83, true},
		{capacity.GenerationRateTolerance, 1.14, false}, {capacity.GenerationRateTolerance, 1.16, true},
	} {
		d := capacity.Drift{Tolerance: test.tolerance}
		for second := 0; second <= capacity.DriftStaleSeconds+60; second += 5 {
			d.Add(steady(float64(second), test.ratio))
		}
		if d.Stale() != test.stale {
			t.Errorf("a ratio of %v with a tolerance of %v: stale %v", test.ratio, test.tolerance, d.Stale())
		}
	}
}
