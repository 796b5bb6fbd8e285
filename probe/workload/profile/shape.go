package profile

import (
	"math"
	"time"

	"headroom_exporter/probe/workload"
)

// Dispersion is how counts of requests vary in windows of a length.
type Dispersion struct {
	Window time.Duration
	workload.Counts
	Windows int
}

// windows are the lengths at which dispersion is looked at.
var windows = []time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute,
}

// minWindows are needed for a dispersion to mean anything: with n windows its
// relative error is about sqrt(3/n).
const minWindows = 30

func (p *Profile) dispersion(records []workload.Record) []Dispersion {
	var d []Dispersion
	for _, w := range windows {
		counts := workload.WindowCounts(records, p.begin, p.end, w)
		if len(counts) < minWindows {
			break
		}
		d = append(d, Dispersion{Window: w, Counts: workload.DescribeCounts(counts), Windows: len(counts)})
	}
	return d
}

// minCount is the mean count from which on the dispersion is near its limit.
const minCount = 5

// burstiness is the shape of gamma arrivals that are dispersed alike: 1 / IDC
// without drift, in the shortest windows that hold 5 requests on average. It is
// within the range that gamma arrivals take.
func burstiness(dispersions []Dispersion) float64 {
	for _, d := range dispersions {
		if d.Mean >= minCount && d.DriftFreeIDC > 0 {
			return min(max(1/d.DriftFreeIDC, 0.01), 10000)
		}
	}
	return math.NaN()
}

// shapeSteps are the lengths of the steps in which a rate over time is
// written down: the shortest that needs no more than maxSteps.
var shapeSteps = []time.Duration{
	10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 4 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour,
}

const maxSteps = 180

// rateShape is the rate over the hours of a day when the trace tells the time
// and covers a day, else over the trace; nil when the trace is shorter than two steps.
func (p *Profile) rateShape(records []workload.Record) *workload.RateShape {
	if !p.Trace.Start.IsZero() && p.end-p.begin >= 24*time.Hour {
		return p.hours(records)
	}
	step := p.step()
	counts := workload.WindowCounts(records, p.begin, p.end, step)
	if len(counts) < 2 {
		return nil
	}
	return relative(step, counts)
}

// step is the length of the steps over the trace.
func (p *Profile) step() time.Duration {
	for _, s := range shapeSteps {
		if (p.end-p.begin)/s <= maxSteps {
			return s
		}
	}
	return (p.end - p.begin) / maxSteps
}

func relative(step time.Duration, counts []float64) *workload.RateShape {
	mean := workload.DescribeCounts(counts).Mean
	if mean == 0 {
		return nil
	}
	s := &workload.RateShape{StepSeconds: step.Seconds(), Relative: make([]float64, len(counts))}
	for i, c := range counts {
		s.Relative[i] = math.Round(c/mean*1e4) / 1e4
	}
	return s
}

// hours is the rate in each hour of the day, by the clock of the trace; each
// hour counts by how long the trace covers it.
func (p *Profile) hours(records []workload.Record) *workload.RateShape {
	var counts, covered [24]float64
	for i := range records {
		counts[p.Trace.Start.Add(records[i].At).Hour()]++
	}
	for at := p.begin; at < p.end; {
		now := p.Trace.Start.Add(at)
		next := min(at+now.Truncate(time.Hour).Add(time.Hour).Sub(now), p.end)
		covered[now.Hour()] += (next - at).Hours()
		at = next
	}
	rates := make([]float64, 24)
	for h := range rates {
		if covered[h] > 0 {
			rates[h] = counts[h] / covered[h]
		}
	}
	s := relative(time.Hour, rates)
	if s != nil {
		s.HourOfDay = true
	}
	return s
}
