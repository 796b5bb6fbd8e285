package probe

import (
	"math"
	"runtime"
	"runtime/metrics"
	"time"
)

// maxCPUShare of the client's own CPUs is where its numbers stop to be the engine's.
const maxCPUShare = 0.7

// Self is what the client itself used during a point.
type Self struct {
	// CPUSeconds used, and as a share of the CPUs that the client may use.
	CPUSeconds Value `json:"cpu_s"`
	CPUShare   Value `json:"cpu_share"`
	CPUs       int   `json:"cpus"`
	// GCPauses and the longest of them, to the runtime's resolution, in seconds.
	GCPauses   float64 `json:"gc_pauses"`
	GCPauseMax Value   `json:"gc_pause_max_s"`
	// SchedulerP99 is how long a ready goroutine waited for a CPU, in seconds.
	SchedulerP99 Value `json:"scheduler_p99_s"`
	// ThrottledSeconds is how long a CPU limit of the container held the client.
	ThrottledSeconds Value `json:"throttled_s"`
	// MaxRSS is the largest resident memory of the process so far, in bytes.
	MaxRSS Value `json:"max_rss_bytes"`
}

const (
	gcPausesMetric   = "/sched/pauses/total/gc:seconds"
	schedulingMetric = "/sched/latencies:seconds"
)

// selfCheck compares the process before and after a point.
type selfCheck struct {
	began     time.Time
	cpu       time.Duration
	throttled float64
	samples   []metrics.Sample
}

func beginSelf() *selfCheck {
	cpu, _ := resources()
	return &selfCheck{began: time.Now(), cpu: cpu, throttled: throttledSeconds(), samples: readRuntime()}
}

func readRuntime() []metrics.Sample {
	s := []metrics.Sample{{Name: gcPausesMetric}, {Name: schedulingMetric}}
	// New samples have histograms of their own, which the next read leaves alone.
	metrics.Read(s)
	return s
}

func (c *selfCheck) end() Self {
	cpu, rss := resources()
	wall := time.Since(c.began).Seconds()
	s := Self{
		CPUs: runtime.GOMAXPROCS(0), GCPauseMax: Value(math.NaN()), SchedulerP99: Value(math.NaN()),
		CPUSeconds: Value((cpu - c.cpu).Seconds()), MaxRSS: Value(rss),
		ThrottledSeconds: Value(throttledSeconds() - c.throttled),
	}
	s.CPUShare = finite(float64(s.CPUSeconds) / wall / float64(s.CPUs))
	after := readRuntime()
	if n, top, _ := histogramDelta(c.samples[0], after[0]); n > 0 {
		s.GCPauses, s.GCPauseMax = n, Value(top)
	}
	if n, _, p99 := histogramDelta(c.samples[1], after[1]); n > 0 {
		s.SchedulerP99 = Value(p99)
	}
	return s
}

// histogramDelta returns how many values came between two readings, the upper
// bound of the largest and of the 99th percentile.
func histogramDelta(before, after metrics.Sample) (n, top, p99 float64) {
	if before.Value.Kind() != metrics.KindFloat64Histogram || after.Value.Kind() != metrics.KindFloat64Histogram {
		return 0, math.NaN(), math.NaN()
	}
	a, b := before.Value.Float64Histogram(), after.Value.Float64Histogram()
	for i := range b.Counts {
		n += float64(b.Counts[i] - a.Counts[i])
	}
	seen := 0.0
	p99 = math.NaN()
	for i := range b.Counts {
		d := float64(b.Counts[i] - a.Counts[i])
		if d == 0 {
			continue
		}
		upper := b.Buckets[i+1]
		if math.IsInf(upper, 1) {
			upper = b.Buckets[i]
		}
		top = upper
		if seen += d; math.IsNaN(p99) && seen >= 0.99*n {
			p99 = upper
		}
	}
	return n, top, p99
}
