package rules

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// BenchmarkSecond is what one second of the sidecar costs: some 300 series
// appended and the shipped rules evaluated at their intervals, after an hour
// of history. ns/op is the time per second: 10,000,000 is 1 % of a core.
func BenchmarkSecond(b *testing.B) {
	for _, place := range []string{"memory", "disk"} {
		b.Run(place, func(b *testing.B) {
			c := Config{Shipped: true}
			if place == "disk" {
				c.StoragePath = b.TempDir()
			}
			e := open(b, c)
			ev := newEvaluation(b, e)
			at := time.Now().Add(-2 * time.Hour).Truncate(time.Second)
			second := 0
			step := func() {
				if err := e.Append(at, engineSamples(second)); err != nil {
					b.Fatal(err)
				}
				ev.at(b, at)
				at, second = at.Add(time.Second), second+1
			}
			for range 3600 {
				step()
			}
			b.ReportAllocs()
			before := cpu(b)
			for b.Loop() {
				step()
			}
			b.ReportMetric(100*(cpu(b)-before).Seconds()/float64(b.N), "%core")
			b.ReportMetric(e.store.status().series, "series")
			if place == "disk" {
				b.ReportMetric(size(b, c.StoragePath)/float64(second)*3600/1e6, "MB/h")
			}
		})
	}
}

// BenchmarkAppend is what Append alone costs per second.
func BenchmarkAppend(b *testing.B) {
	e := open(b, Config{Shipped: true})
	at := time.Now().Add(-time.Hour)
	samples := engineSamples(1)
	b.ReportAllocs()
	for b.Loop() {
		at = at.Add(time.Millisecond)
		if err := e.Append(at, samples); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(samples)), "samples")
}

// BenchmarkCollect is what one answer of /metrics costs here.
func BenchmarkCollect(b *testing.B) {
	e := open(b, Config{Shipped: true})
	ev := newEvaluation(b, e)
	at := time.Now().Add(-5 * time.Minute).Truncate(time.Minute)
	for second := range 301 {
		if err := e.Append(at, engineSamples(second)); err != nil {
			b.Fatal(err)
		}
		ev.at(b, at)
		at = at.Add(time.Second)
	}
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n = testutil.CollectAndCount(e)
	}
	b.ReportMetric(float64(n), "series")
}

// BenchmarkMove is how long Append waits at most when the storage directory
// fails: a window of two hours is copied to memory.
func BenchmarkMove(b *testing.B) {
	e := open(b, Config{Shipped: true, StoragePath: b.TempDir()})
	at := time.Now().Add(-2 * time.Hour)
	for second := range 7200 {
		if err := e.Append(at, engineSamples(second)); err != nil {
			b.Fatal(err)
		}
		at = at.Add(time.Second)
	}
	for b.Loop() {
		m, err := openMemory(e.config.Retention, e.config.Logger)
		if err != nil {
			b.Fatal(err)
		}
		if err := copyWindow(b.Context(), e.store.current, m, at.Add(-2*time.Hour)); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(m.series()), "series")
		if err := m.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// cpu returns the CPU time that the process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func size(b *testing.B, dir string) float64 {
	total := 0.0
	err := filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			total += float64(info.Size())
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return total
}
