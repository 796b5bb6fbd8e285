package gpu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"
)

// ErrDriverChanged is why Run gives up: the driver was replaced under the
// loaded library. A process keeps the library that it first loaded, so only a
// new process can read GPUs again; the caller should end this one cleanly.
var ErrDriverChanged = errors.New("the GPU driver was replaced under the loaded NVML library: this process must be restarted to read GPUs again")

// How long things may take.
const (
	defaultInterval = 2 * time.Second
	// minInterval keeps polling from slowing the workload through the driver's lock.
	minInterval = time.Second
	// staleIntervals without a complete poll make readings stale.
	staleIntervals = 3
	// shutdownGrace is how long Run waits for the driver when it must end.
	shutdownGrace = 1500 * time.Millisecond
)

// Modes of Config.
const (
	ModeAuto = "auto"
	ModeOff  = "off"
)

// Config is how GPUs are read. Zero fields have the defaults named.
type Config struct {
	// LibraryPath of NVML; empty lets the loader find libnvidia-ml.so.1.
	LibraryPath string
	// Mode is auto (the default) or off.
	Mode string
	// Devices that are the engine's: UUIDs, indices such as 0, MIG instances as
	// 0:1, or all. Empty finds out, see Status.Selection.
	Devices []string
	// Interval between polls, at least 1 s, 2 s by default.
	Interval time.Duration
	// ProcPath is where procfs is mounted, /proc by default.
	ProcPath string
	// PeakBandwidth of one GPU's memory in bytes per second; 0 is read from NVML.
	PeakBandwidth float64
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// Collector polls the GPUs and keeps the newest snapshot.
type Collector struct {
	config    Config
	lib       library
	logger    *slog.Logger
	published atomic.Pointer[Snapshot]
	inFlight  atomic.Pointer[pendingCall]
}

// pendingCall is a driver call that has not returned.
type pendingCall struct {
	name  string
	since time.Time
}

var _ Source = (*Collector)(nil)

// New returns a collector that reads nothing until Run.
func New(config Config) (*Collector, error) {
	if config.Interval == 0 {
		config.Interval = defaultInterval
	}
	if config.Interval < minInterval {
		return nil, fmt.Errorf("gpu: interval is %s: set it to %s or more, polling faster slows the workload", config.Interval, minInterval)
	}
	switch config.Mode {
	case "":
		config.Mode = ModeAuto
	case ModeAuto, ModeOff:
	default:
		return nil, fmt.Errorf("gpu: mode is %q: set it to %s or %s", config.Mode, ModeAuto, ModeOff)
	}
	if !(config.PeakBandwidth >= 0) {
		return nil, fmt.Errorf("gpu: peak bandwidth is %v: set it to bytes per second, or 0 to read it", config.PeakBandwidth)
	}
	return newCollector(config, newLibrary(config.LibraryPath)), nil
}

func newCollector(config Config, lib library) *Collector {
	if config.ProcPath == "" {
		config.ProcPath = "/proc"
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	c := &Collector{config: config, lib: lib, logger: config.Logger}
	first := Snapshot{At: time.Now(), Status: Status{Reason: Starting, Detail: "GPUs are not read yet"}}
	if config.Mode == ModeOff {
		first.Status = Status{Reason: Off, Detail: "reading GPUs is switched off"}
	}
	c.published.Store(&first)
	return c
}

// Run polls until ctx ends, then frees what it holds and returns nil within
// 2 s, even when a driver call hangs: such a call cannot be cancelled and is
// left behind. It returns ErrDriverChanged when the process must be restarted.
// It must be called once.
func (c *Collector) Run(ctx context.Context) error {
	if c.config.Mode == ModeOff {
		<-ctx.Done()
		return nil
	}
	ended := make(chan error, 1)
	go func() { ended <- newOwner(c).run(ctx) }()

	watch := time.NewTicker(c.config.Interval)
	defer watch.Stop()
	stuck := false
	for {
		select {
		case err := <-ended:
			return err
		case <-watch.C:
			s := c.Snapshot().Status
			if now := s.Reason == Stuck; now != stuck {
				stuck = now
				if stuck {
					c.logger.Error("GPU readings dropped", "reason", s.Reason, "detail", s.Detail)
				} else {
					c.logger.Info("the driver call that hung has returned")
				}
			}
		case <-ctx.Done():
			select {
			case err := <-ended:
				return err
			case <-time.After(shutdownGrace):
				if call := c.inFlight.Load(); call != nil {
					c.logger.Warn("leaving a hung driver call behind", "call", call.name, "for", time.Since(call.since))
				}
				return nil
			}
		}
	}
}

// Snapshot is the newest snapshot. When the driver has not answered for three
// intervals its readings are dropped and the reason is Stuck.
func (c *Collector) Snapshot() Snapshot {
	s := *c.published.Load()
	limit := staleIntervals * c.config.Interval
	now := time.Now()
	call := c.inFlight.Load()
	hung := call != nil && now.Sub(call.since) > limit
	if !hung && !(s.Status.Up && now.Sub(s.At) > limit) {
		return s
	}
	s.Status.Up = false
	s.Status.Reason = Stuck
	s.Status.Detail = fmt.Sprintf("no complete poll of the GPUs for %s", now.Sub(s.At).Round(time.Second))
	if call != nil {
		s.Status.InFlight, s.Status.InFlightSince = call.name, call.since
		s.Status.Detail = fmt.Sprintf("the driver call %s has not returned for %s", call.name, now.Sub(call.since).Round(time.Second))
	}
	s.Readings = slices.Clone(s.Readings)
	for i := range s.Readings {
		s.Readings[i] = s.Readings[i].lost(string(Stuck))
	}
	return s
}
