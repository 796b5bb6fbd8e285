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
