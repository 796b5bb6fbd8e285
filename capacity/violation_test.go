package capacity_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"headroom_exporter/capacity"
)

// truth has its knee, 1 % of violations, at 9.0811 per second.
var truth = capacity.ViolationFit{Intercept: -32.75742, Slope: 3.1012}

const knee = 9.0811

var rates = []float64{7, 8, 8.5, 9, 9.5, 10}

// counts are those that trials at the rates have under the truth, each seen as
// many times as the design effect: clumps.
func counts(rng *rand.Rand, trials int, clump float64) []capacity.ViolationPoint {
	var points []capacity.ViolationPoint
	for _, rate := range rates {
		p := capacity.ViolationPoint{Rate: rate, Of: float64(trials) * clump, DesignEffect: clump}
		for range trials {
			if rng.Float64() < truth.Fraction(rate) {
				p.Over += clump
			}
		}
		if p.Over == 0 {
			p.DesignEffect = 1 // What clean blocks show.
		}
		points = append(points, p)
	}
	return points
}

func TestViolationFit(t *testing.T) {
	if got := truth.Rate(0.01); math.Abs(got-knee) > 1e-4 {
		t.Errorf("knee %g, want %g", got, knee)
	}
	if got := truth.Fraction(truth.Rate(0.2)); !same(got, 0.2) {
		t.Errorf("fraction %g at its own rate, want 0.2", got)
	}
}

func TestFitViolationsRecoversTheTruth(t *testing.T) {
	var exact []capacity.ViolationPoint
	for _, rate := range rates {
		exact = append(exact, capacity.ViolationPoint{Rate: rate, Over: 1e6 * truth.Fraction(rate), Of: 1e6})
	}
	rng := rand.New(rand.NewPCG(1, 2))
	tests := []struct {
		name        string
		points      []capacity.ViolationPoint
		slope, rate float64 // largest relative errors
	}{
		{"expected counts", exact, 1e-3, 1e-5},
		{"2,000 trials a point", counts(rng, 2000, 1), 0.15, 0.01},
		{"400 trials a point", counts(rng, 400, 1), 0.3, 0.03},
	}
	for _, test := range tests {
		fit, err := capacity.FitViolations(test.points, capacity.SlopePrior{Low: 1, High: 6})
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if e := math.Abs(fit.Slope/truth.Slope - 1); e > test.slope {
			t.Errorf("%s: slope %g, want %g", test.name, fit.Slope, truth.Slope)
		}
		if e := math.Abs(fit.Rate(0.01)/knee - 1); e > test.rate {
			t.Errorf("%s: knee %g, want %g", test.name, fit.Rate(0.01), knee)
		}
	}
}

// When violations come in clumps, most points near the knee are clean; the
// knee must not seem higher for it.
func TestFitViolationsInClumps(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var errs []float64
	for range 200 {
		fit, err := capacity.FitViolations(counts(rng, 40, 20), capacity.SlopePrior{Low: 1.5, High: 6})
		if err != nil {
			t.Fatal(err)
		}
		errs = append(errs, fit.Rate(0.01)/knee-1)
	}
	slices.Sort(errs)
	if m := capacity.Quantile(errs, 0.5); math.Abs(m) > 0.01 {
		t.Errorf("median error of the knee %g, want within 0.01", m)
	}
	if worst := capacity.Quantile(errs, 0.95); worst > 0.06 {
		t.Errorf("1 in 20 knees is too high by %g, want 0.06 at most", worst)
	}
}

func TestFitViolationsPrior(t *testing.T) {
	points := []capacity.ViolationPoint{
		{Rate: 9, Over: 20, Of: 2000, DesignEffect: 1},
		{Rate: 10, Over: 400, Of: 2000, DesignEffect: 1},
	}
	tests := []struct {
		name  string
		prior capacity.SlopePrior
		want  float64
	}{
		{"as seen", capacity.SlopePrior{Low: 0.5, High: 20}, math.Log(0.2/0.8) - math.Log(0.01/0.99)},
		{"no steeper", capacity.SlopePrior{Low: 1, High: 2}, 2},
		{"no flatter", capacity.SlopePrior{Low: 5, High: 9}, 5},
		{"known", capacity.SlopePrior{Low: 4, High: 4}, 4},
	}
	for _, test := range tests {
		fit, err := capacity.FitViolations(points, test.prior)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if math.Abs(fit.Slope/test.want-1) > 0.02 {
			t.Errorf("%s: slope %g, want %g", test.name, fit.Slope, test.want)
		}
	}
	// One point says where the curve is, the prior how steep.
	fit, err := capacity.FitViolations(points[:1], capacity.SlopePrior{Low: 1, High: 4})
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(fit.Slope-2) > 1e-5 || math.Abs(fit.Rate(0.01)-9) > 1e-6 {
		t.Errorf("of one point: slope %g, knee %g; want 2, 9", fit.Slope, fit.Rate(0.01))
	}
}

func TestFitViolationsFarFromTheKnee(t *testing.T) {
	prior := capacity.SlopePrior{Low: 1, High: 4}
	at := func(extra ...capacity.ViolationPoint) float64 {
		points := append([]capacity.ViolationPoint{{Rate: 9, Over: 4, Of: 400}, {Rate: 10, Over: 40, Of: 400}}, extra...)
		fit, err := capacity.FitViolations(points, prior)
		if err != nil {
			t.Fatal(err)
		}
		return fit.Rate(0.01)
	}
	plain := at()
	tests := []struct {
		name  string
		extra capacity.ViolationPoint
		want  func(rate float64) bool
	}{
		{"an overload where one is expected says nothing", capacity.ViolationPoint{Rate: 14, Over: 400, Of: 400}, func(r float64) bool { return math.Abs(r/plain-1) < 1e-4 }},
		{"a background of slow requests at a low rate says nothing", capacity.ViolationPoint{Rate: 3, Over: 9, Of: 10_000}, func(r float64) bool { return math.Abs(r/plain-1) < 1e-4 }},
		{"an overload below the knee lowers it", capacity.ViolationPoint{Rate: 8.5, Over: 400, Of: 400}, func(r float64) bool { return r < 0.95*plain }},
		{"a clean point beside the knee raises it", capacity.ViolationPoint{Rate: 9.2, Over: 0, Of: 400}, func(r float64) bool { return r > 1.005*plain }},
		{"an empty point says nothing", capacity.ViolationPoint{Rate: 9.2}, func(r float64) bool { return r == plain }},
	}
	for _, test := range tests {
		if r := at(test.extra); !test.want(r) {
			t.Errorf("%s: knee %g after %g", test.name, r, plain)
		}
	}
	half := at(capacity.ViolationPoint{Rate: 9.5, Over: 200, Of: 400})
	if all := at(capacity.ViolationPoint{Rate: 9.5, Over: 400, Of: 400}); !same(all, half) {
		t.Errorf("knee %g with all over the bound, %g with half: how deep an overload is must not matter", all, half)
	}
}

// The fit knows no units, and counts only as many trials as are independent.
func TestFitViolationsScales(t *testing.T) {
	points := counts(rand.New(rand.NewPCG(1, 2)), 400, 1)
	prior := capacity.SlopePrior{Low: 1, High: 6}
	fit, err := capacity.FitViolations(points, prior)
	if err != nil {
		t.Fatal(err)
	}
	scaled := slices.Clone(points)
	slices.Reverse(scaled)
	for i := range scaled {
		scaled[i].Rate *= 1000
		scaled[i].Over *= 7
		scaled[i].Of *= 7
		scaled[i].DesignEffect = 7
	}
	again, err := capacity.FitViolations(scaled, capacity.SlopePrior{Low: prior.Low / 1000, High: prior.High / 1000})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := again.Rate(0.01)/1000, fit.Rate(0.01); math.Abs(got/want-1) > 1e-5 {
		t.Errorf("knee %g, want %g", got, want)
	}
}

func TestFitViolationsErrors(t *testing.T) {
	prior := capacity.SlopePrior{Low: 1, High: 4}
	clean := capacity.ViolationPoint{Rate: 8, Over: 0, Of: 400}
	over := capacity.ViolationPoint{Rate: 12, Over: 200, Of: 400}
	tests := []struct {
		name   string
		points []capacity.ViolationPoint
		prior  capacity.SlopePrior
		want   error // nil is any
	}{
		{"no points", nil, prior, capacity.ErrAllPass},
		{"all clean", []capacity.ViolationPoint{clean, clean}, prior, capacity.ErrAllPass},
		{"all overloaded", []capacity.ViolationPoint{over, over}, prior, capacity.ErrAllFail},
		{"no prior", []capacity.ViolationPoint{clean, over}, capacity.SlopePrior{}, nil},
		{"prior upside down", []capacity.ViolationPoint{clean, over}, capacity.SlopePrior{Low: 4, High: 1}, nil},
		{"prior without an end", []capacity.ViolationPoint{clean, over}, capacity.SlopePrior{Low: 4, High: math.Inf(1)}, nil},
	}
	for _, test := range tests {
		_, err := capacity.FitViolations(test.points, test.prior)
		if err == nil || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", test.name, err, test.want)
		}
	}
}

func FuzzFitViolations(f *testing.F) {
	f.Add([]byte{0, 10, 200}, 1.0, 4.0)
	f.Add([]byte{0, 0, 255}, 0.001, 0.002)
	f.Add([]byte{200, 100, 0}, 10.0, 10.0)
	f.Fuzz(func(t *testing.T, over []byte, low, high float64) {
		if !(low >= 1e-3 && high >= low && high <= 1e3) || len(over) > 20 {
			t.Skip("this is no range of slopes")
		}
		var points []capacity.ViolationPoint
		for i, v := range over {
			points = append(points, capacity.ViolationPoint{Rate: float64(i + 1), Over: float64(v), Of: 255, DesignEffect: float64(1 + v%5)})
		}
		prior := capacity.SlopePrior{Low: low, High: high}
		fit, err := capacity.FitViolations(points, prior)
		if err != nil {
			t.Skip("these points say where the knee is not")
		}
		const slack = 1e-5
		if !(fit.Slope >= low*(1-slack) && fit.Slope <= high*(1+slack)) || math.IsNaN(fit.Intercept) || math.IsInf(fit.Intercept, 0) {
			t.Fatalf("%v of %v", fit, over)
		}
	})
}
