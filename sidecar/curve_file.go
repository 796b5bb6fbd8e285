package sidecar

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
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
// be read leaves the curve before it in force. Only a regular file is read: a
// pipe would hang until somebody writes to it.
type CurveFile struct {
	// Probing, where it is set before Run, tells whether a probe measures the
	// curve of this file anew; it is asked as often as the file is looked at.
	Probing func() bool

	path    string
	logger  *slog.Logger
	current atomic.Pointer[LoadedCurve]
	probing atomic.Bool
	// read is readUnlessKnown, but in tests of a file system that hangs.
	read func(path string, known os.FileInfo) fileState

	// turn is taken by who looks at the file, on demand or by itself; what follows is its holder's.
	turn chan struct{}
	seen os.FileInfo
	// gaveUp tells that the last look did not end in time.
	gaveUp bool
	// looking counts looks that have not ended, those that were given up included.
	looking atomic.Int32
}

// patience is how long a look at the file may take. A file system that hangs
// may never answer, and nothing can end what waits for it.
const patience = 3 * time.Second

// maxLooking bounds the looks that hang: each holds a thread.
const maxLooking = 8

// OpenCurveFile reads a curve file; an error names the file and what is wrong with it.
func OpenCurveFile(path string, logger *slog.Logger) (*CurveFile, error) {
	f := newCurveFile(path, logger)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	found, err := f.look(ctx, nil)
	if err != nil {
		return nil, err
	}
	f.seen = found.state
	f.loaded(found.curve)
	return f, nil
}

func newCurveFile(path string, logger *slog.Logger) *CurveFile {
	return &CurveFile{path: path, logger: logger, read: readUnlessKnown, turn: make(chan struct{}, 1)}
}

// Current returns the curve in force.
func (f *CurveFile) Current() LoadedCurve {
	loaded := *f.current.Load()
	loaded.ProbeRunning = f.probing.Load()
	return loaded
}

// Reload reads the file again. That it cannot be read is also kept for
// Current, and logged; a file system that hangs is such an error, within seconds.
func (f *CurveFile) Reload() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if !f.takeTurn(ctx) {
		return fmt.Errorf("capacity curve: %s: another look at it has not ended; try again", f.path)
	}
	defer f.endTurn()
	found, err := f.look(ctx, nil)
	if err := f.follow(found, err, true); err != nil {
		return fmt.Errorf("capacity curve: %w", err)
	}
	return nil
}

// Run reads the file again when it changes, or could not be read before, until
// the context ends. It looks through symbolic links, as Kubernetes changes a
// mounted ConfigMap by one.
func (f *CurveFile) Run(ctx context.Context) error {
	look := time.NewTicker(curveLookInterval)
	defer look.Stop()
	for {
		f.lookByItself(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
	}
}

func (f *CurveFile) lookByItself(ctx context.Context) {
	look, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if !f.takeTurn(look) {
		return
	}
	defer f.endTurn()
	if f.gaveUp && f.looking.Load() > 0 {
		return // The next one would only hang beside it.
	}
	known := f.seen
	if f.current.Load().Err != nil {
		known = nil // Permissions, or a mount, may be mended without a trace in the file.
	}
	found, err := f.look(look, known)
	if ctx.Err() != nil {
		return
	}
	_ = f.follow(found, err, false) // It is logged, and kept for Current.
}

func (f *CurveFile) takeTurn(ctx context.Context) bool {
	select {
	case f.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (f *CurveFile) endTurn() { <-f.turn }

// look reads the file, unless it is as known, and asks whether a probe runs.
// When the context ends first, what hangs is left behind.
func (f *CurveFile) look(ctx context.Context, known os.FileInfo) (fileState, error) {
	f.gaveUp = true
	if n := f.looking.Load(); n >= maxLooking {
		return fileState{}, fmt.Errorf("%s: %d looks at it hang: its file system does not answer", f.path, n)
	}
	f.looking.Add(1)
	ended := make(chan fileState, 1)
	go func() {
		found := f.read(f.path, known)
		found.probing = f.Probing != nil && f.Probing()
		f.looking.Add(-1)
		ended <- found
	}()
	select {
	case found := <-ended:
		f.gaveUp = false
		return found, found.err
	case <-ctx.Done():
		return fileState{}, fmt.Errorf("%s: not read within %s: its file system does not answer", f.path, patience)
	}
}

// follow puts in force what a look found, and logs it: an error that stays the
// same once only, unless it was asked for.
func (f *CurveFile) follow(found fileState, err error, onDemand bool) error {
	if !f.gaveUp {
		f.noteProbe(found.probing)
	}
	before := f.current.Load()
	switch {
	case err != nil:
		if onDemand || before.Err == nil || before.Err.Error() != err.Error() {
			f.logger.Error("capacity curve not reloaded; the one in force stays", "err", err)
		}
		f.current.Store(&LoadedCurve{Curve: before.Curve, Err: err})
	case found.curve != nil:
		f.seen = found.state
		f.loaded(found.curve)
	}
	return err
}

// loaded puts a curve in force.
func (f *CurveFile) loaded(c *curve.Curve) {
	f.logger.Info("capacity curve loaded", "file", f.path, "model", c.Identity.Model, "measured", c.Finished, "source", string(c.Source))
	f.current.Store(&LoadedCurve{Curve: c})
}

// noteProbe keeps whether a probe runs, and logs when one begins or ends.
func (f *CurveFile) noteProbe(running bool) {
	switch before := f.probing.Swap(running); {
	case running && !before:
		f.logger.Info("a probe measures the capacity curve anew; its load counts as traffic", "file", f.path)
	case before && !running:
		f.logger.Info("the probe of the capacity curve has ended", "file", f.path)
	}
}

// fileState is what a look at a curve's file found.
type fileState struct {
	// curve is nil when the file was as known, or cannot be read.
	curve *curve.Curve
	// state tells one state of the file from another.
	state os.FileInfo
	// probing tells that a probe measures the curve anew.
	probing bool
	err     error
}

// readUnlessKnown reads a regular file, unless it is in a state that is known; nil is none.
func readUnlessKnown(path string, known os.FileInfo) fileState {
	// Looked at before it is opened, since a device may act on that, and
	// opened without waiting, should it become a pipe in between.
	state, err := regular(path, os.Stat)
	if err != nil {
		return fileState{err: err}
	}
	if known != nil && os.SameFile(state, known) && state.Size() == known.Size() && state.ModTime().Equal(known.ModTime()) {
		return fileState{state: state}
	}
	in, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fileState{err: fmt.Errorf("opening the curve file: %w", err)}
	}
	defer in.Close()
	// Of the file that is read, and before it is: a change meanwhile is then seen as one.
	if state, err = regular(path, func(string) (os.FileInfo, error) { return in.Stat() }); err != nil {
		return fileState{err: err}
	}
	c, err := curve.Decode(in)
	if err != nil {
		return fileState{err: fmt.Errorf("%s: %w", path, err)}
	}
	return fileState{curve: c, state: state}
}

// regular is the state of a file that is a regular one.
func regular(path string, stat func(string) (os.FileInfo, error)) (os.FileInfo, error) {
	info, err := stat(path)
	if err != nil {
		return nil, fmt.Errorf("opening the curve file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("opening the curve file: %s: not a regular file", path)
	}
	return info, nil
}

var _ CurveSource = (*CurveFile)(nil)
