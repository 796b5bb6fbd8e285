package gpu

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const interval = 2 * time.Second

// start runs a collector on a fake clock and gives how to end it.
func start(t *testing.T, lib library, change ...func(*Config)) (c *Collector, stop func() error) {
	t.Helper()
	config := Config{Mode: ModeAuto, Interval: interval, ProcPath: t.TempDir(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	for _, f := range change {
		f(&config)
	}
	c = newCollector(config, lib)
	if s := c.Snapshot().Status; s.Up || s.Reason != Starting && config.Mode == ModeAuto {
		t.Errorf("before the first poll it says %+v", s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	return c, func() error { cancel(); return <-ended }
}

// after lets time pass until everything is waiting again.
func after(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestFirstPollHasNoWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newFakeLibrary(&fakeDevice{id: "GPU-a"})
		c, stop := start(t, lib)
		synctest.Wait()
		r := c.Snapshot().reading(t, "GPU-a")
		if r.PowerWatts != 350.5 || r.MemoryUsedBytes != 50 || r.MemoryBandwidthPeak != 3352.32e9 {
			t.Errorf("power %v W, memory %v, peak %v", r.PowerWatts, r.MemoryUsedBytes, r.MemoryBandwidthPeak)
		}
		// Two samples are needed; energy and the margin do not exist here.
		if !nan(r.MemoryBandwidthRatio) || !nan(r.SMActiveRatio) || !nan(r.EnergyJoules) || !nan(r.TemperatureMarginCelsius) {
			t.Errorf("known without a window or the feature: %v %v %v %v", r.MemoryBandwidthRatio, r.SMActiveRatio, r.EnergyJoules, r.TemperatureMarginCelsius)
		}
		after(interval)
		r = c.Snapshot().reading(t, "GPU-a")
		if r.MemoryBandwidthRatio != 0.4 || r.SMActiveRatio != 0.5 || r.SMOccupancyRatio != 0.25 || r.TensorActiveRatio != 0.1 {
			t.Errorf("GPM: %v %v %v %v", r.MemoryBandwidthRatio, r.SMActiveRatio, r.SMOccupancyRatio, r.TensorActiveRatio)
		}
		if r.PCIeTransmitBytesPerSecond != 1<<20 || r.NVLinkReceiveBytesPerSecond != 3<<20 {
			t.Errorf("links: %v %v", r.PCIeTransmitBytesPerSecond, r.NVLinkReceiveBytesPerSecond)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if lib.samples != 0 || lib.sets != 0 || lib.shutdowns != 1 {
			t.Errorf("left at the end: %d samples, %d event sets; shut down %d times", lib.samples, lib.sets, lib.shutdowns)
		}
	})
}

func TestHangDropsReadingsAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newFakeLibrary(&fakeDevice{id: "GPU-a"})
		c, stop := start(t, lib)
		after(interval + time.Millisecond)
		release := make(chan struct{})
		lib.set(func(l *fakeLibrary) { l.hangs["powerUsage"] = release })
		// The hang begins with the next poll; for three intervals the readings hold.
		after(3*interval - 10*time.Millisecond)
		if s := c.Snapshot(); !s.Status.Up {
			t.Errorf("dropped too early: %+v", s.Status)
		}
		after(20 * time.Millisecond)
		s := c.Snapshot()
		if s.Status.Up || s.Status.Reason != Stuck || s.Status.InFlight != "nvmlDeviceGetPowerUsage" {
			t.Errorf("status is %+v", s.Status)
		}
		if r := s.reading(t, "GPU-a"); r.Lost != "stuck" || !nan(r.MemoryUsedBytes) {
			t.Errorf("the readings are still there: %+v", r)
		}
		if !strings.Contains(s.Status.Detail, "nvmlDeviceGetPowerUsage") {
			t.Errorf("the detail says %q", s.Status.Detail)
		}
		lib.set(func(l *fakeLibrary) { delete(l.hangs, "powerUsage") })
		close(release)
		after(interval)
		if s := c.Snapshot(); !s.Status.Up || s.reading(t, "GPU-a").PowerWatts != 350.5 {
			t.Errorf("it does not recover: %+v", s.Status)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestEndDuringHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, name := range []string{"open", "temperature", "wait"} {
			lib := newFakeLibrary(&fakeDevice{id: "GPU-a"})
			release := make(chan struct{})
			lib.hangs[name] = release
			c, stop := start(t, lib)
			after(4 * interval)
			if s := c.Snapshot(); s.Status.Reason != Stuck {
				t.Errorf("%s: %+v", name, s.Status)
			}
			begin := time.Now()
			if err := stop(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(begin); took > 2*time.Second {
				t.Errorf("%s: the end took %s", name, took)
			}
			close(release)
			after(time.Second)
		}
	})
}

func TestLostGPUComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &fakeDevice{id: "GPU-a"}, &fakeDevice{id: "GPU-b"}
		lib := newFakeLibrary(a, b)
		c, stop := start(t, lib, func(c *Config) { c.Devices = []string{"all"} })
		after(interval)
		lib.set(func(*fakeLibrary) { b.results["*"] = resetRequired })
		after(interval)
		s := c.Snapshot()
		if !s.Status.Up || s.reading(t, "GPU-a").Lost != "" || s.reading(t, "GPU-b").Lost != "reset_required" {
			t.Errorf("%+v, a %q, b %q", s.Status, s.reading(t, "GPU-a").Lost, s.reading(t, "GPU-b").Lost)
		}
		lib.set(func(l *fakeLibrary) { l.calls["temperature"] = 0 })
		after(5 * interval)
		lib.set(func(l *fakeLibrary) {
			if n := l.calls["temperature"]; n != 5 {
				t.Errorf("%d temperatures in 5 intervals, want those of the GPU that is there", n)
			}
		})
		// It vanishes from the list: still expected, still lost.
		lib.set(func(l *fakeLibrary) { l.devices = []*fakeDevice{a} })
		after(time.Minute)
		if s := c.Snapshot(); s.Status.Expected != 2 || s.reading(t, "GPU-b").Lost != "not_visible" || s.reading(t, "GPU-a").Lost != "" {
			t.Errorf("%+v, b %q", s.Status, s.reading(t, "GPU-b").Lost)
		}
		lib.set(func(l *fakeLibrary) { l.devices = []*fakeDevice{b, a}; b.results["*"] = success })
		after(time.Minute)
		if s := c.Snapshot(); s.reading(t, "GPU-b").Lost != "" || s.reading(t, "GPU-a").Lost != "" || s.Status.Visible != 2 {
			t.Errorf("%+v, b %q", s.Status, s.reading(t, "GPU-b").Lost)
		}
		stop()
	})
}

func TestAllLostIsRetriedWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDevice{id: "GPU-a"}
		lib := newFakeLibrary(d)
		log := &strings.Builder{}
		c, stop := start(t, lib, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
		after(interval)
		lib.set(func(l *fakeLibrary) { d.results["*"] = gpuIsLost; l.calls["open"] = 0 })
		after(interval)
		s := c.Snapshot()
		if s.Status.Up || s.Status.Reason != DevicesLost || s.reading(t, "GPU-a").Lost != "gpu_is_lost" {
			t.Errorf("%+v, lost %q", s.Status, s.reading(t, "GPU-a").Lost)
		}
		after(10 * time.Minute)
		lib.set(func(l *fakeLibrary) {
			// 5, 10, 20, 40 s and then once a minute.
			if n := l.calls["open"]; n < 10 || n > 14 {
				t.Errorf("opened %d times in 10 minutes", n)
			}
			d.results["*"] = success
		})
		after(2 * time.Minute)
		if s := c.Snapshot(); !s.Status.Up {
			t.Errorf("it does not come back: %+v", s.Status)
		}
		stop()
		// Said once, not at each of the attempts.
		for words, times := range map[string]int{"GPU lost": 1, "GPUs are not read": 1, "GPU can be read again": 1, "reading GPUs": 2} {
			if n := strings.Count(log.String(), `msg="`+words+`"`); n != times {
				t.Errorf("the log says %q %d times, want %d:\n%s", words, n, times, log)
			}
		}
	})
}

func TestDriverReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newFakeLibrary(&fakeDevice{id: "GPU-a"})
		c, stop := start(t, lib)
		after(interval)
		lib.set(func(l *fakeLibrary) { l.results["fieldValues"] = versionMismatch })
		after(interval)
		if err := stop(); !errors.Is(err, ErrDriverChanged) {
			t.Errorf("ended with %v", err)
		}
		if s := c.Snapshot(); s.Status.Up || s.Status.Reason != Mismatch {
			t.Errorf("%+v", s.Status)
		}
		if lib.shutdowns != 1 || lib.samples != 0 {
			t.Errorf("shut down %d times with %d samples left", lib.shutdowns, lib.samples)
		}
	})
}

// A mismatch from the start is no reason to end: a restart would meet it again.
func TestMismatchFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newFakeLibrary()
		lib.opening = &openError{Mismatch, "code 18"}
		c, stop := start(t, lib)
		after(time.Hour)
		if s := c.Snapshot(); s.Status.Up || s.Status.Reason != Mismatch {
			t.Errorf("%+v", s.Status)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestPanicIsCountedAndLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newFakeLibrary(&fakeDevice{id: "GPU-a"})
		lib.panics["temperature"] = true
		c, stop := start(t, lib)
		after(time.Second)
		if s := c.Snapshot(); s.Status.Up || s.Status.Reason != Panicked || s.Status.Panics != 1 {
			t.Errorf("%+v", s.Status)
		}
		lib.set(func(l *fakeLibrary) { l.panics["temperature"] = false })
		after(10 * time.Second)
		if s := c.Snapshot(); !s.Status.Up || s.Status.Panics != 1 {
			t.Errorf("%+v", s.Status)
		}
		stop()
		if lib.samples != 0 || lib.sets != 0 {
			t.Errorf("left: %d samples, %d event sets", lib.samples, lib.sets)
		}
	})
}

func TestGPMValuesThatAreNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDevice{id: "GPU-a"}
		lib := newFakeLibrary(d)
		c, stop := start(t, lib)
		after(interval)
		lib.set(func(l *fakeLibrary) { l.gpm = []float64{101, math.NaN(), -1, 40, 1, 2, 3, 4} })
		after(interval)
		s := c.Snapshot()
		r := s.reading(t, "GPU-a")
		if r.SMActiveRatio != 1 || !nan(r.SMOccupancyRatio) || !nan(r.TensorActiveRatio) || r.MemoryBandwidthRatio != 0.4 {
			t.Errorf("%v %v %v %v", r.SMActiveRatio, r.SMOccupancyRatio, r.TensorActiveRatio, r.MemoryBandwidthRatio)
		}
		if s.Status.Rejected["above_one"] != 1 || s.Status.Rejected["gpm_no_value"] != 2 {
			t.Errorf("rejected %v", s.Status.Rejected)
		}
		// A GPU that is busy and moves no byte for three polls does not tell the truth.
		lib.set(func(l *fakeLibrary) { l.gpm = make([]float64, 8); d.kernel = 95 })
		after(2 * interval)
		if r := c.Snapshot().reading(t, "GPU-a"); r.MemoryBandwidthRatio != 0 {
			t.Errorf("after two polls %v", r.MemoryBandwidthRatio)
		}
		after(interval)
		if r := c.Snapshot().reading(t, "GPU-a"); !nan(r.MemoryBandwidthRatio) {
			t.Errorf("after three polls %v", r.MemoryBandwidthRatio)
		}
		// An idle one does.
		lib.set(func(l *fakeLibrary) { d.kernel = 0 })
		after(interval)
		if r := c.Snapshot().reading(t, "GPU-a"); r.MemoryBandwidthRatio != 0 {
			t.Errorf("idle: %v", r.MemoryBandwidthRatio)
		}
		stop()
	})
}

func TestEventPollsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newFakeLibrary(&fakeDevice{id: "GPU-a"})
		c, stop := start(t, lib)
		after(interval + 300*time.Millisecond)
		at := time.Now()
		for range 10 {
			lib.events <- event{uuid: "GPU-a", kind: eventXID, data: 48}
		}
		lib.events <- event{uuid: "GPU-gone", kind: eventXID, data: 79}
		lib.events <- event{uuid: "GPU-a", kind: eventRecoveryAction}
		after(300 * time.Millisecond)
		s := c.Snapshot()
		if s.At.Before(at) {
			t.Errorf("no poll since the event: %s before", at.Sub(s.At))
		}
		found := false
		for _, x := range s.reading(t, "GPU-a").XIDs {
			if x.XID == 48 {
				found = true
				if x.Count != 10 || x.Class != Investigate || x.Last.Sub(at).Abs() > 200*time.Millisecond {
					t.Errorf("%+v, sent at %s", x, at)
				}
			}
		}
		if !found || s.Status.Rejected["xid_not_counted"] != 1 {
			t.Errorf("found %v, rejected %v", found, s.Status.Rejected)
		}
		stop()
	})
}

// Waiting on an event set that fails at once would spin.
func TestBrokenEventsDoNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newFakeLibrary(&fakeDevice{id: "GPU-a"})
		lib.results["wait"] = gpuIsLost
		c, stop := start(t, lib)
		after(10*interval + time.Millisecond)
		lib.set(func(l *fakeLibrary) {
			if l.calls["wait"] != 1 || l.calls["powerUsage"] != 11 {
				t.Errorf("%d waits and %d polls in 10 intervals", l.calls["wait"], l.calls["powerUsage"])
			}
		})
		if r := c.Snapshot().reading(t, "GPU-a"); r.Capabilities["xid_events"] {
			t.Error("it claims to receive XIDs")
		}
		stop()
	})
}

func TestSelectionFollowsTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &fakeDevice{id: "GPU-a"}, &fakeDevice{id: "GPU-b"}
		lib := newFakeLibrary(a, b)
		proc := t.TempDir()
		c, stop := start(t, lib, func(c *Config) { c.ProcPath = proc })
		after(interval)
		s := c.Snapshot()
		if !s.Status.Up || !s.Status.SelectionAmbiguous || len(s.Readings) != 2 {
			t.Errorf("%+v", s.Status)
		}
		process := func(pid string, pids []int, d *fakeDevice) {
			if err := os.MkdirAll(filepath.Join(proc, pid), 0o700); err != nil {
				t.Fatal(err)
			}
			lib.set(func(*fakeLibrary) { d.pids = pids })
		}
		// A process of another namespace does not exist in ours.
		lib.set(func(*fakeLibrary) { a.pids = []int{4000} })
		process("17", []int{17}, b)
		after(2 * time.Minute)
		s = c.Snapshot()
		if s.Status.SelectionAmbiguous || s.Status.Selection != selectedByProcess || len(s.Readings) != 1 || s.Readings[0].UUID != "GPU-b" {
			t.Errorf("%+v with %d readings", s.Status, len(s.Readings))
		}
		lib.set(func(l *fakeLibrary) {
			if n := l.calls["computeProcesses"]; n > 8 {
				t.Errorf("process lists asked for %d times in 2 minutes of 2 GPUs", n)
			}
		})
		// Between two lives of the engine its GPUs stay the same.
		lib.set(func(*fakeLibrary) { b.pids = nil })
		after(2 * time.Minute)
		if s := c.Snapshot(); s.Status.SelectionAmbiguous || len(s.Readings) != 1 || s.Readings[0].UUID != "GPU-b" {
			t.Errorf("%+v with %d readings", s.Status, len(s.Readings))
		}
		// A second worker starts.
		process("18", []int{18}, a)
		process("17", []int{17}, b)
		after(2 * time.Minute)
		if s := c.Snapshot(); len(s.Readings) != 2 || s.Status.Expected != 2 {
			t.Errorf("%+v with %d readings", s.Status, len(s.Readings))
		}
		// The engine moves: the GPU that it left is not lost.
		lib.set(func(*fakeLibrary) { b.pids = nil })
		after(2 * time.Minute)
		if s := c.Snapshot(); len(s.Readings) != 1 || s.Readings[0].UUID != "GPU-a" || s.Status.Expected != 1 {
			t.Errorf("%+v with %d readings", s.Status, len(s.Readings))
		}
		stop()
		if lib.samples != 0 {
			t.Errorf("%d samples left", lib.samples)
		}
	})
}

func TestConfiguredGPUIsAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newFakeLibrary(&fakeDevice{id: "GPU-a"})
		c, stop := start(t, lib, func(c *Config) { c.Devices = []string{"GPU-z"} })
		after(interval)
		s := c.Snapshot()
		if s.Status.Reason != DeviceNotFound || !strings.Contains(s.Status.Detail, "GPU-z") || s.reading(t, "GPU-z").Lost == "" {
			t.Errorf("%+v", s.Status)
		}
		stop()
	})
}

func TestNoPermissionForSomeGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &fakeDevice{id: "GPU-a"}, &fakeDevice{id: "GPU-b"}
		lib := newFakeLibrary(a, b)
		a.results["deviceByIndex"] = noPermission
		c, stop := start(t, lib)
		after(interval)
		if s := c.Snapshot(); !s.Status.Up || s.Status.Visible != 1 || s.Status.Selection != selectedOnly || s.Readings[0].UUID != "GPU-b" {
			t.Errorf("%+v", s.Status)
		}
		stop()
	})
}

func TestPeakFromFlag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newFakeLibrary(&fakeDevice{id: "GPU-a"})
		c, stop := start(t, lib, func(c *Config) { c.PeakBandwidth = 4.8e12 })
		after(interval)
		if r := c.Snapshot().Readings[0]; r.MemoryBandwidthPeak != 4.8e12 || r.MemoryBandwidthPeakSource != "flag" {
			t.Errorf("peak %v by %s", r.MemoryBandwidthPeak, r.MemoryBandwidthPeakSource)
		}
		stop()
	})
}

func TestOffReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newFakeLibrary(&fakeDevice{id: "GPU-a"})
		c, stop := start(t, lib, func(c *Config) { c.Mode = ModeOff })
		after(time.Minute)
		if s := c.Snapshot(); s.Status.Up || s.Status.Reason != Off || len(lib.calls) != 0 {
			t.Errorf("%+v after calls %v", s.Status, lib.calls)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestNewRefusesConfig(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Interval: 100 * time.Millisecond}, "interval"},
		{Config{Mode: "on"}, "mode"},
		{Config{PeakBandwidth: math.NaN()}, "peak bandwidth"},
		{Config{PeakBandwidth: -1}, "peak bandwidth"},
	} {
		if _, err := New(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want an error about %s", c.config, err, c.want)
		}
	}
	if _, err := New(Config{}); err != nil {
		t.Errorf("defaults: %v", err)
	}
}

func BenchmarkSnapshot(b *testing.B) {
	c := newCollector(Config{Mode: ModeAuto, Interval: interval}, newFakeLibrary())
	for b.Loop() {
		c.Snapshot()
	}
}
