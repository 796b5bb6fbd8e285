package sidecar

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"headroom_exporter/capacity/curve"
)

// curveLookInterval is how often a curve file is looked at for a change.
const curveLookInterval = 5 * time.Second

// LoadedCurve is the capacity curve in force, and how its file stands.
type LoadedCurve struct {
	// Curve is nil when none was given.
	Curve *curve.Curve
	// Err is why what is in the file now is not in force; nil when it is.
	Err error
	// ProbeRunning tells that a probe is seen to measure it anew.
	ProbeRunning bool
}

// CurveSource gives the curve in force; CurveFile implements it. It must not block.
type CurveSource interface {
	Current() LoadedCurve
}

// FixedCurve is a curve that never changes.
type FixedCurve struct{ Curve *curve.Curve }

// Current returns the curve.
func (f FixedCurve) Current() LoadedCurve { return LoadedCurve{Curve: f.Curve} }

// CurveFile keeps the curve of a file, and follows the file. One that cannot
// be read leaves the curve before it in force.
type CurveFile struct {
	// Probing, where it is set before Run, tells whether a probe measures the
	// curve of this file anew; it is asked as often as the file is looked at.
	Probing func() bool

	path    string
	logger  *slog.Logger
	current atomic.Pointer[LoadedCurve]
	probing atomic.Bool

	// mutex guards reading: on demand and by itself.
	mutex sync.Mutex
	seen  os.FileInfo
}

// OpenCurveFile reads a curve file; an error names the file and what is wrong with it.
func OpenCurveFile(path string, logger *slog.Logger) (*CurveFile, error) {
	f := &CurveFile{path: path, logger: logger}
	// The look comes first: a change between the two is then seen as one.
	f.seen = f.look()
	c, err := curve.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f.current.Store(&LoadedCurve{Curve: c})
	return f, nil
}

// Current returns the curve in force.
func (f *CurveFile) Current() LoadedCurve {
	loaded := *f.current.Load()
	loaded.ProbeRunning = f.probing.Load()
	return loaded
}

// Reload reads the file again. An error is also kept for Current, and logged.
func (f *CurveFile) Reload() error {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.reload()
}

// Run reads the file again when it changes, until the context ends. It looks
// through symbolic links, as Kubernetes changes a mounted ConfigMap by one.
func (f *CurveFile) Run(ctx context.Context) error {
	look := time.NewTicker(curveLookInterval)
	defer look.Stop()
	for {
		f.lookForProbe()
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
			f.mutex.Lock()
			if !f.unchanged() {
				_ = f.reload() // It is logged, and kept for Current.
			}
			f.mutex.Unlock()
		}
	}
}

// lookForProbe asks whether a probe runs, and logs when one begins or ends.
func (f *CurveFile) lookForProbe() {
	if f.Probing == nil {
		return
	}
	running := f.Probing()
	switch before := f.probing.Swap(running); {
	case running && !before:
		f.logger.Info("a probe measures the capacity curve anew; its load counts as traffic", "file", f.path)
	case before && !running:
		f.logger.Info("the probe of the capacity curve has ended", "file", f.path)
	}
}

// look is what tells one state of the file from another; nil when it is not there.
func (f *CurveFile) look() os.FileInfo {
	info, err := os.Stat(f.path)
	if err != nil {
		return nil
	}
	return info
}

func (f *CurveFile) unchanged() bool {
	now := f.look()
	if now == nil || f.seen == nil {
		return now == nil && f.seen == nil
	}
	return os.SameFile(now, f.seen) && now.Size() == f.seen.Size() && now.ModTime().Equal(f.seen.ModTime())
}

func (f *CurveFile) reload() error {
	f.seen = f.look()
	before := f.Current()
	c, err := curve.ReadFile(f.path)
	if err != nil {
		f.logger.Error("capacity curve not reloaded; the one in force stays", "err", err)
		f.current.Store(&LoadedCurve{Curve: before.Curve, Err: err})
		return fmt.Errorf("capacity curve: %w", err)
	}
	f.logger.Info("capacity curve loaded", "file", f.path, "model", c.Identity.Model, "measured", c.Finished, "source", string(c.Source))
	f.current.Store(&LoadedCurve{Curve: c})
	return nil
}

var _ CurveSource = (*CurveFile)(nil)
