package rules

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
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
