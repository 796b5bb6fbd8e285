package knee_test

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/knee"
	"headroom_exporter/probe/workload"
)

// scripted is an engine that misses each bound by a given share at a rate,
// evenly over time, and serves at most mu requests a second. It says nothing of
// itself, so that knees are found by counts alone.
type scripted struct {
	mu float64
	// missed is the share of a class's requests over a bound.
	missed func(class, slo int, rate float64) float64
	// before is called with the number of a load, from 0; may be nil.
	before func(n int, l *knee.Load) error
	edit   func(n int, o *knee.Observation)
	loads  []knee.Load
}

func (e *scripted) Run(ctx context.Context, l *knee.Load, m knee.Monitor) (*knee.Observation, error) {
	n := len(e.loads)
	e.loads = append(e.loads, *l)
	if e.before != nil {
		if err := e.before(n, l); err != nil {
			return &knee.Observation{Point: curve.Point{Name: l.Name, Engine: curve.UnknownEngineReadings()}}, err
		}
	}
	u := capacity.Unknown()
	o := &knee.Observation{Point: curve.Point{Name: l.Name, Purpose: l.Purpose, Concurrency: l.Concurrency,
		OfferedRate: u, CompletedRate: u, PromptTokenRate: u, GenerationTokenRate: u, Engine: curve.UnknownEngineReadings()}}
	rate := min(float64(l.Concurrency)*2, e.mu)
	if l.Concurrency == 0 {
		rate = l.Steps[0].Rate
		o.Point.OfferedRate = capacity.Value(rate)
	}
	end, warmup := l.Duration().Seconds(), l.Warmup.Seconds()
	owed := make([][]float64, len(l.Traffic.Classes))
	for i := range owed {
		owed[i] = make([]float64, len(l.Traffic.SLOs(i)))
	}
	due := 0
	var ttft []float64
	for at := sampleEvery; at <= end+1; at += sampleEvery {
		for ; float64(due)/rate < min(at, end); due++ {
			q := knee.Request{Class: due % len(owed), Due: float64(due) / rate, TTFT: 0.1, TPOT: 0.01, E2E: 0.5, OK: true, PromptTokens: 10, OutputTokens: 41}
			q.End = q.Due + q.E2E
			if q.Due < warmup {
				continue
			}
			for i := range owed[q.Class] {
				over := 0.0
				if owed[q.Class][i] += e.missed(q.Class, i, rate); owed[q.Class][i] >= 1 {
					owed[q.Class][i]--
					over = 1
				}
				q.Over, q.Of = append(q.Over, over), append(q.Of, 1)
			}
			o.Requests, ttft = append(o.Requests, q), append(ttft, q.TTFT)
			if m != nil {
				m.Request(q)
			}
		}
		s := knee.Sample{At: at, Running: math.NaN(), Waiting: math.NaN(), KVUsage: math.NaN(), Due: due, Done: due}
		o.Samples = append(o.Samples, s)
		if m != nil {
			if o.Stopped = m.Sample(s); o.Stopped != "" {
				break
			}
		}
	}
	o.Point.Seconds, o.Point.Attempts = end-warmup, len(o.Requests)
	o.Point.CompletedRate = capacity.Value(rate)
	o.Point.TTFT, o.Point.E2E = knee.Quantiles(ttft), knee.Quantiles(ttft)
	if e.edit != nil {
		e.edit(n, o)
	}
	return o, ctx.Err()
}

// smooth is a logistic share of violations that is 1 % at a rate.
func smooth(knee, slope float64) func(float64) float64 {
	return func(rate float64) float64 {
		return 1 / (1 + math.Exp(math.Log(99)-slope*(rate-knee)))
	}
}

func slo(t *testing.T, text string) capacity.SLO {
	t.Helper()
	s, err := capacity.ParseSLO(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func scriptedConfig(t *testing.T, e *scripted, mode knee.Mode) knee.Config {
	return knee.Config{Engine: e, Mode: mode, Seed: 1, PeakReserve: 0.2, Traffic: knee.Traffic{
		Name: "chat", Arrivals: curve.Arrivals{Process: "poisson"}, SLO: []capacity.SLO{slo(t, "ttft:p99:1s")},
		Classes: []workload.Class{{Name: "chat", Weight: 1, Prompt: workload.FixedLength(10), Output: workload.FixedLength(41)}}}}
}

func all(f func(float64) float64) func(int, int, float64) float64 {
	return func(_, _ int, rate float64) float64 { return f(rate) }
}

func TestSearchStatuses(t *testing.T) {
	cliff := func(rate float64) float64 {
		if rate < 8.2 {
			return 0
		}
		return 0.6
	}
	for _, test := range []struct {
		name       string
		mode       knee.Mode
		missed     func(float64) float64
		maxRate    float64
		status     curve.Status
		kneeLow    float64
		kneeHigh   float64
		boundary   string
		soaked     bool
		reasonHas  string
		safeAtMost float64
	}{
		{"full", knee.Full, smooth(8, 2), 0, curve.StatusOK, 7.8, 8.2, "smooth", true, "", 8},
		{"quick", knee.Quick, smooth(8, 2), 0, curve.StatusEstimate, 7.6, 8.4, "smooth", false, "no soak", 8},
		{"cliff", knee.Full, cliff, 0, curve.StatusOK, 7.5, 8.2, "cliff", true, "", 8.2},
		{"bounded below the knee", knee.Full, smooth(8, 2), 5, curve.StatusNotReached, math.NaN(), math.NaN(), "smooth", true, "bounded", 5},
		{"nothing passes", knee.Full, func(float64) float64 { return 0.5 }, 0, curve.StatusNoSafeRate, math.NaN(), math.NaN(), "smooth", false, "no rate", math.NaN()},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := &scripted{mu: 12, missed: all(test.missed)}
			c := scriptedConfig(t, e, test.mode)
			c.MaxRate = test.maxRate
			s, err := knee.Search(context.Background(), c)
			if err != nil {
				t.Fatal(err)
			}
			if s.Status != test.status || !strings.Contains(s.Reason, test.reasonHas) {
				t.Errorf("status %s, %q", s.Status, s.Reason)
			}
			if k := float64(s.Knee.Rate); !math.IsNaN(test.kneeLow) && !(k >= test.kneeLow && k <= test.kneeHigh) || math.IsNaN(test.kneeLow) && !math.IsNaN(k) {
				t.Errorf("knee %g, want %g to %g", k, test.kneeLow, test.kneeHigh)
			}
			if s.Knee.Boundary != test.boundary {
				t.Errorf("boundary %s", s.Knee.Boundary)
			}
			if got := s.Soak != nil && s.Soak.Passed; got != test.soaked {
				t.Errorf("soak %+v", s.Soak)
			}
			if safe := float64(s.SafeRate); !math.IsNaN(test.safeAtMost) && !(safe > 0 && safe <= test.safeAtMost) || math.IsNaN(test.safeAtMost) && !math.IsNaN(safe) {
				t.Errorf("safe rate %g, want up to %g", safe, test.safeAtMost)
			}
			if test.status == curve.StatusOK {
				if want := 0.8 * math.Min(float64(s.SafeRate), float64(s.Knee.Low)); math.Abs(float64(s.Knee.Watermark)-want) > 1e-9 {
					t.Errorf("watermark %g, want %g", float64(s.Knee.Watermark), want)
				}
				if s.Burst == nil || s.Burst.Factor != 2 || s.Burst.Recovery != 0 {
					t.Errorf("burst %+v", s.Burst)
				}
			}
			if closed := slices.IndexFunc(e.loads, func(l knee.Load) bool { return l.Purpose == curve.PurposeProbe }); test.maxRate > 0 && closed != 3 {
				t.Errorf("%d loads ahead of the first probe, want a warm-up, a closed loop and one that reaches the bound", closed)
			}
			for _, l := range e.loads {
				for _, step := range l.Steps {
					if test.maxRate > 0 && step.Rate > test.maxRate {
						t.Errorf("%s has %g requests/s, above the bound of %g", l.Name, step.Rate, test.maxRate)
					}
				}
			}
		})
	}
}

// The same answers lead to the same questions: a search is resumed from its journal.
func TestSearchIsDeterministic(t *testing.T) {
	run := func() []knee.Load {
		e := &scripted{mu: 12, missed: all(smooth(8, 2))}
		if _, err := knee.Search(context.Background(), scriptedConfig(t, e, knee.Full)); err != nil {
			t.Fatal(err)
		}
		for i := range e.loads {
			e.loads[i].Traffic = nil
		}
		return e.loads
	}
	first, second := run(), run()
	if !reflect.DeepEqual(first, second) {
		t.Errorf("%+v\nthen\n%+v", first, second)
	}
	seen := map[string]bool{}
	for _, l := range first {
		if seen[l.Name] {
			t.Errorf("two loads are called %s", l.Name)
		}
		seen[l.Name] = true
	}
}

func TestSearchInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	probes := 0
	e := &scripted{mu: 12, missed: all(smooth(8, 2))}
	e.before = func(_ int, l *knee.Load) error {
		if l.Purpose == curve.PurposeProbe {
			if probes++; probes == 3 {
				cancel()
			}
		}
		return nil
	}
	s, err := knee.Search(ctx, scriptedConfig(t, e, knee.Full))
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if s.Status != curve.StatusInterrupted || s.SafeRate.Known() || s.Ceiling == nil || len(s.Points) != 3 {
		t.Errorf("status %s, safe %g, %d points", s.Status, float64(s.SafeRate), len(s.Points))
	}
}

func TestSearchEndsForSafety(t *testing.T) {
	e := &scripted{mu: 12, missed: all(smooth(8, 2))}
	e.before = func(n int, _ *knee.Load) error {
		if n == 4 {
			return knee.ErrHarm
		}
		return nil
	}
	s, err := knee.Search(context.Background(), scriptedConfig(t, e, knee.Full))
	if !errors.Is(err, knee.ErrHarm) || s.Status != curve.StatusInterrupted || len(e.loads) != 5 {
		t.Errorf("%v, %s, %d loads", err, s.Status, len(e.loads))
	}
}

// A point that did not measure the engine is done again, twice at most; then the search ends.
func TestSearchRepeatsInvalidPoints(t *testing.T) {
	for _, test := range []struct {
		times int
		ends  bool
		again []string
	}{
		{1, false, []string{"again"}},
		{2, false, []string{"again", "again 2"}},
		{3, true, []string{"again", "again 2"}},
	} {
		e := &scripted{mu: 12, missed: all(smooth(8, 2))}
		left := test.times
		e.edit = func(_ int, o *knee.Observation) {
			if o.Point.Purpose == curve.PurposeProbe && left > 0 {
				left--
				failed := false
				o.Point.Gates = append(o.Point.Gates, curve.Gate{Name: "client", Kind: curve.GateInvalid, Passed: &failed, Detail: "the schedule was 30 ms late"})
			}
		}
		s, err := knee.Search(context.Background(), scriptedConfig(t, e, knee.Full))
		if errors.Is(err, knee.ErrInvalid) != test.ends {
			t.Errorf("%d times: %v", test.times, err)
		}
		if err != nil && !(strings.Contains(err.Error(), "probe 1, 3 times") && strings.Contains(err.Error(), "30 ms late") && strings.Contains(err.Error(), "chrt -r 1")) {
			t.Errorf("%d times: %v; want what is wrong and what to do", test.times, err)
		}
		var again []string
		for _, l := range e.loads {
			if name, repeats := strings.CutPrefix(l.Name, "chat poisson probe 1 "); repeats {
				again = append(again, name)
			}
			if last := strings.HasSuffix(l.Name, " again 2"); last != (l.Pause > 0) {
				t.Errorf("%s comes after a pause of %s", l.Name, l.Pause)
			}
		}
		if !slices.Equal(again, test.again) || len(s.Points[0].Faults) == 0 {
			t.Errorf("%d times: done again as %q, faults %v", test.times, again, s.Points[0].Faults)
		}
	}
}

// Each bound of each class has its knee; the lowest binds.
func TestSearchBindingSLO(t *testing.T) {
	short, long := smooth(10, 2), smooth(7, 2)
	e := &scripted{mu: 12, missed: func(class, i int, rate float64) float64 {
		switch {
		case class == 0:
			return short(rate)
		case i == 1:
			return long(rate)
		}
		return 0
	}}
	c := scriptedConfig(t, e, knee.Full)
	c.Traffic.Classes = []workload.Class{c.Traffic.Classes[0], c.Traffic.Classes[0]}
	c.Traffic.Classes[0].Name, c.Traffic.Classes[1].Name = "short", "long"
	c.Traffic.Classes[1].SLO = []capacity.SLO{slo(t, "ttft:p99:3s"), slo(t, "e2e:p99:12s")}
	s, err := knee.Search(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if s.Knee.BindingClass != "long" || s.Knee.BindingSLO != "e2e:p99:12s" || math.Abs(float64(s.Knee.Rate)-7) > 0.3 {
		t.Errorf("%s of %s binds at %g", s.Knee.BindingSLO, s.Knee.BindingClass, float64(s.Knee.Rate))
	}
	if n := len(s.Knee.BySLO); n != 3 {
		t.Fatalf("%d knees", n)
	}
	if k := s.Knee.BySLO[1]; k.Method != "above" || k.Rate.Known() {
		t.Errorf("a bound that held has %+v", k)
	}
	for _, v := range s.Curve {
		for i := range v.Fraction[1:] {
			if v.Fraction[i+1] < v.Fraction[i] || v.Rate[i+1] < v.Rate[i] {
				t.Errorf("the curve of %s falls: %v at %v", v.SLO, v.Fraction, v.Rate)
			}
		}
	}
}

// The bound of requests ends a search wherever it is, and what was found until then is kept.
func TestSearchMaxRequests(t *testing.T) {
	for _, test := range []struct {
		most     int
		statuses []curve.Status
	}{
		{900, []curve.Status{curve.StatusNotReached}},
		{3000, []curve.Status{curve.StatusNotReached, curve.StatusProvisional}},
		{7000, []curve.Status{curve.StatusOK, curve.StatusProvisional}},
	} {
		e := &scripted{mu: 12, missed: all(smooth(8, 2))}
		c := scriptedConfig(t, e, knee.Full)
		c.MaxRequests = test.most
		s, err := knee.Search(context.Background(), c)
		if err != nil {
			t.Fatal(err)
		}
		if s.Requests > test.most || !slices.Contains(test.statuses, s.Status) {
			t.Errorf("%d requests of %d, %s: %s", s.Requests, test.most, s.Status, s.Reason)
		}
		if s.Status != curve.StatusOK && s.Reason == "" {
			t.Errorf("%d requests: no reason", test.most)
		}
	}
}

func TestQuantiles(t *testing.T) {
	var v []float64
	for i := range 100 {
		v = append(v, float64(100-i))
	}
	q := knee.Quantiles(append(v, math.NaN()))
	if q.N != 100 || q.P10 != 10 || q.P50 != 50 || q.P95 != 95 || q.P99 != 99 || q.P999.Known() || q.Max != 100 || q.Mean != 50.5 {
		t.Errorf("%+v", q)
	}
	if q := knee.Quantiles(nil); q.N != 0 || q.P50.Known() || q.Mean.Known() {
		t.Errorf("of nothing: %+v", q)
	}
}
