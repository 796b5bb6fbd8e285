package capacity_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/stat"

	"headroom_exporter/capacity"
)

// ramp has n values from first to last.
func ramp(n int, first, last float64) []float64 {
	y := make([]float64, n)
	for i := range y {
		y[i] = first + (last-first)*float64(i)/float64(n-1)
	}
	return y
}

func TestForecast(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	gap := func(y []float64, at ...int) []float64 {
		y = slices.Clone(y)
		for _, i := range at {
			y[i] = nan
		}
		return y
	}
	rising := ramp(30, 0.60, 0.89) // 0.01 a minute
	tests := []struct {
		name    string
		minutes []float64
		want    capacity.Forecast
		toKnee  float64
	}{
		{"steady", ramp(30, 0.5, 0.5), capacity.Forecast{0.5, 0}, inf},
		// 0.87 + 0.01 * (0.9 + 0.81 + ...) never passes 0.96.
		{"too slow", rising, capacity.Forecast{0.87, 0.01}, inf},
		// 0.85 + 0.02 * (0.9 + ... + 0.9^18) = 1.003, and 0.99999 after 17 minutes.
		{"reaches it", ramp(30, 0.31, 0.89), capacity.Forecast{0.85, 0.02}, 18 * 60},
		{"over it", ramp(30, 0.80, 1.09), capacity.Forecast{1.07, 0.01}, 0},
		{"falls", ramp(30, 0.89, 0.60), capacity.Forecast{0.62, -0.01}, inf},
		{"only the last 30 minutes", append(ramp(40, 5, 2), ramp(30, 0.5, 0.5)...), capacity.Forecast{0.5, 0}, inf},
		{"gaps keep their place", gap(rising, 3, 4, 5, 11, 12, 20), capacity.Forecast{0.87, 0.01}, inf},
		{"a gap at the end", gap(rising, 28, 29), capacity.Forecast{0.86, 0.01}, inf},
		{"the present is not known", gap(rising, 26, 28, 29), capacity.Forecast{nan, nan}, nan},
		{"too few minutes", rising[11:], capacity.Forecast{nan, nan}, nan},
		{"just enough", rising[10:], capacity.Forecast{0.87, 0.01}, inf},
		{"nothing", nil, capacity.Forecast{nan, nan}, nan},
		// Exactly at 1 % the trend counts: S = 131 has p = 0.0097, S = 129 0.0107.
		{"not a trend yet", withS(30, 129), capacity.Forecast{Slope: 0}, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := capacity.NewForecast(test.minutes)
			if test.want.Level != 0 && !near(f.Level, test.want.Level) || !near(f.Slope, test.want.Slope) {
				t.Errorf("%+v, want %+v", f, test.want)
			}
			if got := f.TimeToKnee(); !near(got, test.toKnee) {
				t.Errorf("time to the knee %g s, want %g", got, test.toKnee)
			}
		})
	}
	if f := capacity.NewForecast(withS(30, 131)); !(f.Slope > 0) {
		t.Errorf("S = 131 of 30 minutes is a trend at 1 %%: %+v", f)
	}
}

// near tells that two numbers are the same, unknown and infinite ones too.
func near(a, b float64) bool {
	return a == b || math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-9*max(1, math.Abs(b))
}

func TestForecastAt(t *testing.T) {
	f := capacity.Forecast{Level: 0.5, Slope: 0.1}
	for minutes, want := range map[int]float64{0: 0.5, 1: 0.59, 2: 0.671, 1000: 1.4} {
		if got := f.At(minutes); !near(got, want) {
			t.Errorf("%d minutes ahead %g, want %g", minutes, got, want)
		}
	}
	if got := (capacity.Forecast{Level: 0.1, Slope: -0.1}).At(30); got != 0 {
		t.Errorf("a falling load ratio goes to %g, want no less than 0", got)
	}
}

// skillOf forecasts each minute of a series from those before it.
func skillOf(minutes []float64) *capacity.ForecastSkill {
	return skillWith(minutes, func(f capacity.Forecast) capacity.Forecast { return f })
}

func skillWith(minutes []float64, change func(capacity.Forecast) capacity.Forecast) *capacity.ForecastSkill {
	var s capacity.ForecastSkill
	for i, u := range minutes {
		s.Add(u, change(capacity.NewForecast(minutes[:i+1])))
	}
	return &s
}

func TestForecastSkill(t *testing.T) {
	t.Run("a load that never changes", func(t *testing.T) {
		s := skillOf(ramp(100, 0.5, 0.5))
		got := s.At(15)
		if got.Ratio != 0 || got.MAE != 0 || got.Band != 0 || got.Compared != 100-19-15 || !got.Shown() {
			t.Errorf("%+v, want a skill of 0 over 66 forecasts", got)
		}
	})
	t.Run("a long ramp", func(t *testing.T) {
		// 15 minutes ahead the load is 0.15 higher; the damped trend, from the median two
		// minutes back, expects 0.01*9*(1-0.9^15) - 0.02 of it.
		got := skillOf(ramp(101, 0, 1)).At(15)
		expected := 0.01*9*(1-math.Pow(0.9, 15)) - 0.02
		if !near(got.Persistence, 0.15) || !near(got.MAE, 0.15-expected) || !near(got.Ratio, expected/0.15) || !near(got.Band, got.MAE) {
			t.Errorf("%+v, want MAE %g against 0.15", got, 0.15-expected)
		}
	})
	t.Run("jumps that persistence follows sooner", func(t *testing.T) {
		var y []float64
		for i := range 240 {
			y = append(y, 0.3+0.4*float64(i/40%2))
		}
		s := skillOf(y)
		if got := s.At(15); !(got.Ratio < 0) || got.Shown() {
			t.Errorf("%+v, want it hidden", got)
		}
		if got := s.TimeToKnee(capacity.Forecast{Level: 0.95, Slope: 0.02}); !math.IsNaN(got) {
			t.Errorf("a forecast without skill says %g s", got)
		}
		if got := s.TimeToKnee(capacity.Forecast{Level: 1.05}); got != 0 {
			t.Errorf("%g s to the knee above it, want 0 whatever the skill", got)
		}
	})
	t.Run("not known yet", func(t *testing.T) {
		s := skillOf(ramp(48, 0.5, 0.5)) // 20 to begin, 15 ahead: 14 compared
		got := s.At(15)
		if got.Compared != 14 || !math.IsNaN(got.Ratio) || got.Shown() {
			t.Errorf("%+v, want it hidden with 14 compared", got)
		}
		for _, minutes := range []int{16, 30, 31} {
			if got := s.At(minutes); !math.IsNaN(got.Ratio+got.MAE+got.Band) || got.Shown() {
				t.Errorf("%d minutes: %+v, want nothing known", minutes, got)
			}
		}
		if got := new(capacity.ForecastSkill).At(15); got.Shown() || !math.IsNaN(got.MAE) {
			t.Errorf("%+v of nothing", got)
		}
		if got := s.TimeToKnee(capacity.Forecast{Level: 0.5}); !math.IsNaN(got) {
			t.Errorf("%g s to the knee, want NaN without a known skill", got)
		}
	})
	t.Run("gaps are not compared", func(t *testing.T) {
		y := ramp(100, 0.5, 0.5)
		y[60], y[90] = math.NaN(), math.NaN()
		// Each missing minute is due once, and once there is no persistence to compare with
		// that is due before the end: minute 60, not 90.
		if got := skillOf(y).At(15).Compared; got != 66-3 {
			t.Errorf("%d compared, want 63", got)
		}
	})
	t.Run("a day is kept", func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 1))
		var s capacity.ForecastSkill
		for range 2000 {
			u := rng.Float64()
			s.Add(u, capacity.Forecast{Level: u})
		}
		for range 24*60 + 15 {
			s.Add(0.5, capacity.Forecast{Level: 0.5})
		}
		if got := s.At(15); got.Compared != 24*60 || got.MAE != 0 {
			t.Errorf("%+v, want the last day's alone", got)
		}
	})
}

// What public traces say of the forecast; docs/accuracy.md has these numbers.
// The unit does not matter: forecasts of a rate and of a load ratio are alike.
func TestForecastSkillOnTraces(t *testing.T) {
	tests := []struct {
		trace             string
		minutes, compared int
		mae, persistence  float64 // of the mean rate
		skill, levelAlone float64
		shown             bool
	}{
		{"azure_conv", 15, 24, 0.431, 0.332, -0.298, 0.008, false},
		{"azure_conv", 30, 9, 0.417, 0.423, 0.013, 0.214, false},
		{"azure_code", 15, 23, 0.841, 0.958, 0.122, 0.122, true},
		{"azure_code", 30, 8, 1.137, 1.115, -0.020, -0.020, false},
		{"mooncake_conversation", 15, 24, 0.087, 0.114, 0.242, 0.159, true},
		{"mooncake_conversation", 30, 9, 0.085, 0.092, 0.070, -0.226, false},
	}
	for _, test := range tests {
		perMinute := requests(readTrace(t, test.trace), 60)
		mean := stat.Mean(perMinute, nil)
		floats.Scale(1/mean, perMinute)
		got := skillOf(perMinute).At(test.minutes)
		level := skillWith(perMinute, func(f capacity.Forecast) capacity.Forecast {
			if f.Slope != 0 && !math.IsNaN(f.Slope) {
				f.Slope = 0
			}
			return f
		}).At(test.minutes)
		skill, levelAlone := 1-got.MAE/got.Persistence, 1-level.MAE/level.Persistence
		t.Logf("%-21s %d min ahead: %2d forecasts, MAE %.3f, persistence %.3f, skill %+.3f, 90 %% within %.2f, shown %t; without the slope %+.3f",
			test.trace, got.Minutes, got.Compared, got.MAE, got.Persistence, skill, got.Band, got.Shown(), levelAlone)
		if got.Compared != test.compared || got.Shown() != test.shown || math.Abs(got.MAE-test.mae) > 0.0005 ||
			math.Abs(got.Persistence-test.persistence) > 0.0005 || math.Abs(skill-test.skill) > 0.0005 || math.Abs(levelAlone-test.levelAlone) > 0.0005 {
			t.Errorf("want %+v", test)
		}
	}
}
