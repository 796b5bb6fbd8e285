package knee_test

import (
	"context"
	"flag"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"headroom_exporter/probe/knee"
)

var (
	accuracySeeds = flag.Int("accuracy-seeds", 0, "seeds of each scenario for the table of docs/accuracy.md; 0 is a short check")
	accuracyFrom  = flag.Uint64("accuracy-from", 5000, "the first of these seeds")
	accuracyTuned = flag.Bool("accuracy-tuned", false, "the scenarios that the procedure was developed on, instead of the reported ones")
	accuracyMode  = flag.String("accuracy-mode", "full", "full, quick or release")
	accuracyOnly  = flag.String("accuracy-only", "", "only the scenario of this name, and only our method")
)

// finding is what a method makes of a scenario.
type finding struct {
	safe, low, high, knee float64
	seconds               float64
	requests              int
	status                string
}

// ours is the search.
func ours(sc *scenario, seed uint64) finding {
	e := sc.engine()
	s, err := knee.Search(context.Background(), sc.config(e, knee.Mode(*accuracyMode), seed))
	if err != nil {
		panic(err)
	}
	f := finding{safe: float64(s.SafeRate), seconds: e.seconds, requests: e.requests, status: string(s.Status)}
	f.low, f.high, f.knee = math.NaN(), math.NaN(), math.NaN()
	if s.Knee != nil {
		f.low, f.high, f.knee = float64(s.Knee.Low), float64(s.Knee.High), float64(s.Knee.Rate)
	}
	return f
}

// passes runs an open-loop point from an empty engine, as other tools do, and
// tells whether the share of violations was within every budget.
func passes(sc *scenario, e *virtualEngine, rate, length float64, seed uint64) bool {
	t := sc.traffic()
	o, err := e.Run(context.Background(), &knee.Load{Name: fmt.Sprint(rate), Traffic: &t, Seed: seed + uint64(1000*rate),
		Steps: []knee.Step{{Rate: rate, Duration: time.Duration(length * float64(time.Second))}}}, nil)
	if err != nil {
		panic(err)
	}
	for i, s := range t.SLO {
		over, of := 0.0, 0.0
		for _, r := range o.Requests {
			over, of = over+r.Over[i], of+r.Of[i]
		}
		if over > s.Budget()*of {
			return false
		}
	}
	return true
}

// bisection doubles the rate until a point of 1,000 requests fails, and halves the gap down to 5 %.
func bisection(sc *scenario, seed uint64) finding {
	e := sc.engine()
	low, high := 0.0, 0.5
	for passes(sc, e, high, 1000/high, seed) {
		low, high = high, 2*high
	}
	for high-low > 0.05*high {
		if middle := (low + high) / 2; passes(sc, e, middle, 1000/middle, seed) {
			low = middle
		} else {
			high = middle
		}
	}
	return finding{safe: low, knee: low, low: math.NaN(), high: math.NaN(), seconds: e.seconds, requests: e.requests}
}

// sweep measures ten rates for 60 s each, evenly spaced between that of one
// request after the other and that of a full engine, and takes the highest before the first that fails.
func sweep(sc *scenario, seed uint64) finding {
	e := sc.engine()
	t := sc.traffic()
	closed := func(concurrency int) float64 {
		o, err := e.Run(context.Background(), &knee.Load{Name: "closed", Traffic: &t, Seed: seed, Concurrency: concurrency,
			Steps: []knee.Step{{Duration: time.Minute}}}, nil)
		if err != nil {
			panic(err)
		}
		return float64(o.Point.CompletedRate)
	}
	first, last := closed(1), closed(512)
	best := math.NaN()
	for i := range 10 {
		rate := first + (last-first)*float64(i)/9
		if !passes(sc, e, rate, 60, seed) {
			break
		}
		best = rate
	}
	return finding{safe: best, knee: best, low: math.NaN(), high: math.NaN(), seconds: e.seconds, requests: e.requests}
}

// unsafe is how far above the true knee a rate is not safe.
const unsafe = 0.02

// score is how a method did over the seeds of one scenario, or of all.
type score struct {
	errors           []float64
	kneeErrors       []float64
	unsafe, none     int
	covered, claimed int
	minutes          []float64
	requests         []float64
}

func (s *score) add(f finding, truth float64) {
	s.minutes, s.requests = append(s.minutes, f.seconds/60), append(s.requests, float64(f.requests))
	if !math.IsNaN(f.low) && !math.IsNaN(f.high) {
		s.claimed++
		if f.low <= truth && truth <= f.high {
			s.covered++
		}
	}
	if math.IsNaN(f.safe) {
		s.none++
		return
	}
	s.errors, s.kneeErrors = append(s.errors, f.safe/truth-1), append(s.kneeErrors, f.knee/truth-1)
	if f.safe > truth*(1+unsafe) {
		s.unsafe++
	}
}

func (s *score) merge(o *score) {
	s.errors, s.kneeErrors = append(s.errors, o.errors...), append(s.kneeErrors, o.kneeErrors...)
	s.minutes, s.requests = append(s.minutes, o.minutes...), append(s.requests, o.requests...)
	s.unsafe, s.none, s.covered, s.claimed = s.unsafe+o.unsafe, s.none+o.none, s.covered+o.covered, s.claimed+o.claimed
}

func at(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(values))
	return v[min(int(q*float64(len(v))), len(v)-1)]
}

func (s *score) runs() int { return len(s.errors) + s.none }

func (s *score) row(method, name string) string {
	covered := "-"
	if s.claimed > 0 {
		covered = fmt.Sprintf("%.0f %%", 100*float64(s.covered)/float64(s.claimed))
	}
	return fmt.Sprintf("| %s | %s | %+.1f %% | %+.1f .. %+.1f %% | %.1f %% | %d | %s | %.1f (%.1f) | %.0f (%.0f) |", method, name,
		100*at(s.errors, 0.5), 100*at(s.errors, 0.05), 100*at(s.errors, 0.95), 100*float64(s.unsafe)/float64(s.runs()), s.none, covered,
		at(s.minutes, 0.5), at(s.minutes, 1), at(s.requests, 0.5), at(s.requests, 1))
}

const head = `| method | scenario | median error | 5 % .. 95 % | unsafe | no answer | interval holds | minutes (most) | requests (most) |
|---|---|--:|--:|--:|--:|--:|--:|--:|`

// scores runs a method over scenarios and seeds on all cores.
func scores(t testing.TB, method func(*scenario, uint64) finding, scenarios []scenario, seeds int, from uint64) []score {
	all := make([]score, len(scenarios))
	var wg sync.WaitGroup
	var mutex sync.Mutex
	room := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range scenarios {
		truth := trueKnee(t, &scenarios[i])
		for seed := range seeds {
			wg.Go(func() {
				room <- struct{}{}
				f := method(&scenarios[i], from+uint64(seed))
				<-room
				mutex.Lock()
				defer mutex.Unlock()
				if testing.Verbose() {
					t.Logf("%s %d: knee %.4g [%.4g, %.4g] safe %.4g, true %.4g (%+.1f %%, safe %+.1f %%) %s %.0f s", scenarios[i].Name, seed, f.knee, f.low, f.high,
						f.safe, truth, 100*(f.knee/truth-1), 100*(f.safe/truth-1), f.status, f.seconds)
				}
				all[i].add(f, truth)
			})
		}
	}
	wg.Wait()
	return all
}

// TestAccuracy holds the search to what docs/accuracy.md says of it: with
// -accuracy-seeds it prints that table.
func TestAccuracy(t *testing.T) {
	scenarios := reported
	if *accuracyTuned {
		scenarios = tuned
	}
	seeds := *accuracySeeds
	if seeds == 0 {
		scenarios, seeds = tuned[:1], 2
	}
	methods := []struct {
		name string
		find func(*scenario, uint64) finding
	}{{"search", ours}, {"double and bisect, 1,000 requests", bisection}, {"sweep, 10 x 60 s", sweep}}
	if *accuracyOnly != "" {
		methods = methods[:1]
		scenarios = slices.DeleteFunc(slices.Clone(scenarios), func(s scenario) bool {
			return *accuracyOnly != "all" && !strings.Contains(*accuracyOnly, s.Name)
		})
	}
	if *accuracySeeds == 0 {
		methods = methods[:1]
	}
	fmt.Println(head)
	for i, m := range methods {
		var total score
		for j, s := range scores(t, m.find, scenarios, seeds, *accuracyFrom) {
			fmt.Println(s.row(m.name, scenarios[j].Name))
			total.merge(&s)
		}
		fmt.Println(total.row(m.name, "all"))
		if i > 0 {
			continue
		}
		if e := at(total.errors, 0.5); !(e >= -0.1 && e <= 0) {
			t.Errorf("median error of the safe rate is %+.1f %%, want -10 .. 0", 100*e)
		}
		if share := float64(total.unsafe) / float64(total.runs()); *accuracyMode != "quick" && share > 0.05 {
			t.Errorf("%.1f %% of the runs are unsafe, want 5 at most", 100*share)
		}
		if m := at(total.minutes, 1); *accuracyMode == "full" && m > 20.5 {
			t.Errorf("a search took %.1f minutes, want 20 at most", m)
		}
		if n := at(total.requests, 1); *accuracyMode == "full" && n > 12000 {
			t.Errorf("a search took %.0f requests, want 12,000 at most", n)
		}
	}
}
