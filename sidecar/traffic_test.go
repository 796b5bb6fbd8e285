package sidecar

import (
	"math"
	"testing"
	"time"

	"headroom_exporter/collector/engine"
)

// The window of a mix is five minutes where they hold enough requests, and as
// much more as it takes, 15 minutes at most.
func TestMixWindow(t *testing.T) {
	for _, test := range []struct {
		name string
		// short requests of 750 tokens and long ones of 15000 per step of 15 s
		short, long float64
		noLengths   bool
		want        time.Duration
	}{
		{"many alike", 150, 0, false, 5 * time.Minute},
		{"400 alike in ten minutes", 10, 0, false, 10 * time.Minute},
		{"too few in any", 1, 0, false, 15 * time.Minute},
		// (40*750 + 4*15000)^2 / (40*750^2 + 4*15000^2) are 8.8 a step.
		{"many, but the few long ones are most of the load", 40, 4, false, 11*time.Minute + 30*time.Second},
		{"few, of unknown lengths", 2, 0, true, 6*time.Minute + 15*time.Second},
		{"many, of unknown lengths", 100, 0, true, 5 * time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			var w mixWindow
			bounds := []float64{500, 1000, 10000, 20000, math.Inf(1)}
			for i := range 80 {
				n := float64(i)
				r := slowReading{at: time.Unix(0, 0).Add(time.Duration(i) * mixStep), finished: n * (test.short + test.long)}
				if !test.noLengths {
					h := &engine.Histogram{Bounds: bounds, Counts: []float64{0, n * test.short, n * test.short, r.finished, r.finished}, Count: r.finished}
					r.promptLengths, r.generationLengths = h, h
				}
				w.add(r)
			}
			if got := w.newest.at.Sub(w.steps[w.from].at); got != test.want {
				t.Errorf("the window is %s, want %s", got, test.want)
			}
			if c := w.traffic().Completions; c != test.want.Seconds()/mixStep.Seconds()*(test.short+test.long) {
				t.Errorf("%g requests ended in it", c)
			}
		})
	}
}

// Requests arrive steadily, and some pages come late: made in time and held up,
// made late, or not at all for a while. The rate is what it was throughout.
func TestArrivalRateWithLateReadings(t *testing.T) {
	const rate = 33
	type page struct{ made, came float64 } // seconds
	usual := func(from, to int) []page {
		var pages []page
		for at := from; at < to; at++ {
			pages = append(pages, page{float64(at), float64(at)})
		}
		return pages
	}
	for _, test := range []struct {
		name string
		// late pages come after 90 s.
		late []page
		// resume is when pages come as usual again.
		resume int
	}{
		{"none", nil, 90},
		{"held up on its way", []page{{90, 94}}, 95},
		{"made late", []page{{94, 94}}, 95},
		{"held up for long", []page{{90, 102}}, 103},
		{"nothing for a while, then an old page", []page{{97, 105}}, 106},
		{"one after another", []page{{90, 93.5}, {94, 98.5}, {99, 103}}, 104},
		{"held up by turns", []page{{90, 93.5}, {94, 94}, {95, 99}, {99.5, 99.5}}, 101},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := window{span: stockWindow}
			pages := append(append(usual(0, 90), test.late...), usual(test.resume, test.resume+80)...)
			for _, p := range pages {
				begun := rate * p.made
				w.add(reading{
					at: time.Unix(0, 0).Add(time.Duration(p.came * float64(time.Second))), running: 5,
					finished: begun, firstToken: total{sum: begun, count: begun},
				})
				got := w.arrivalRate()
				switch {
				case p.came < MinRateSpan.Seconds():
					if !math.IsNaN(got) {
						t.Errorf("after %g s: %g", p.came, got)
					}
				case !(got > 0.9*rate && got < 1.1*rate):
					t.Errorf("after %g s, of a page made after %g s: %.1f requests/s, want %d", p.came, p.made, got, rate)
				}
			}
		})
	}
}

// Of an engine that always takes long to answer a step is seen all the same, by
// no more than is sure.
func TestArrivalRateOfASlowPage(t *testing.T) {
	w := window{span: stockWindow}
	begun, at := 0.0, 0.0
	seconds := func(n, apart, rate float64) (last float64) {
		for end := at + n; at < end; {
			at += apart
			begun += apart * rate
			w.add(reading{at: time.Unix(0, 0).Add(time.Duration(at * float64(time.Second))), running: 5, finished: begun, firstToken: total{sum: begun, count: begun}})
			last = w.arrivalRate()
		}
		return last
	}
	if got := seconds(120, 1, 20); math.Abs(got-20) > 1 {
		t.Fatalf("%g requests/s, want 20", got)
	}
	if got := seconds(15, 3, 40); got < 30 || got > 41 {
		t.Errorf("15 s after a step to 40 requests/s, while pages take long: %g", got)
	}
	if got := seconds(60, 3, 40); got < 38 || got > 41 {
		t.Errorf("a minute later: %g", got)
	}
}

// What came in the second after a late reading is not known, so bursts that are
// none do not make arrivals look bursty.
func TestArrivalsPerSecondAfterALateReading(t *testing.T) {
	w := window{span: stockWindow}
	for _, p := range []struct{ made, came int }{{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 7}, {8, 8}, {9, 9}} {
		begun := 10 * float64(p.made)
		w.add(reading{at: time.Unix(int64(p.came), 0), running: 5, finished: begun, firstToken: total{count: begun}})
	}
	got, want := arrivalsPerSecond(w.readings), []float64{10, 10, 10, math.NaN(), math.NaN(), 10}
	if len(got) != len(want) {
		t.Fatalf("%v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] && !(math.IsNaN(got[i]) && math.IsNaN(want[i])) {
			t.Errorf("%v, want %v", got, want)
			break
		}
	}
}
