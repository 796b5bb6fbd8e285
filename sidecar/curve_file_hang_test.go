package sidecar

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"headroom_exporter/capacity/curve"
)

// hangingFile is a curve file of the model "before", in a file system that
// hangs until answers is set; what it was asked before goes on hanging until release.
func hangingFile(t *testing.T) (f *CurveFile, answers *atomic.Bool, asked *atomic.Int32) {
	f = newCurveFile("curve.json", slog.New(slog.DiscardHandler))
	f.current.Store(&LoadedCurve{Curve: &curve.Curve{Identity: curve.Identity{Model: "before"}}})
	answers, asked = &atomic.Bool{}, &atomic.Int32{}
	release := make(chan struct{})
	f.read = func(string, os.FileInfo) fileState {
		asked.Add(1)
		if !answers.Load() {
			<-release
		}
		return fileState{curve: &curve.Curve{Identity: curve.Identity{Model: "after"}}}
	}
	t.Cleanup(func() {
		close(release)
		synctest.Wait()
	})
	return f, answers, asked
}

func model(f *CurveFile) string { return f.Current().Curve.Identity.Model }

// Reading on demand answers although the file system does not, and the curve
// comes into force as soon as that answers again.
func TestCurveFileThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, answers, _ := hangingFile(t)
		for range 2 {
			began := time.Now()
			err := f.Reload()
			if err == nil || !strings.Contains(err.Error(), "curve.json: not read within 3s: its file system does not answer") || time.Since(began) > 2*patience {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
			if model(f) != "before" || f.Current().Err == nil {
				t.Errorf("in force: %s, %v", model(f), f.Current().Err)
			}
		}
		answers.Store(true)
		if err := f.Reload(); err != nil || model(f) != "after" || f.Current().Err != nil {
			t.Errorf("it answers again: %v, in force: %s, %v", err, model(f), f.Current().Err)
		}
	})
}

// Each look that hangs holds a thread: on demand there is an end to them, and
// by itself one is enough.
func TestCurveFileHangsNoMoreThan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, asked := hangingFile(t)
		for range maxLooking {
			_ = f.Reload()
		}
		if err := f.Reload(); err == nil || !strings.Contains(err.Error(), "8 looks at it hang") {
			t.Errorf("one too many: %v", err)
		}
		if n := asked.Load(); n != maxLooking {
			t.Errorf("%d looks, want %d", n, maxLooking)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f, answers, asked := hangingFile(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = f.Run(ctx)
		}()
		time.Sleep(time.Minute)
		if n := asked.Load(); n != 1 || f.Current().Err == nil {
			t.Errorf("%d looks, error %v, want 1 and one", n, f.Current().Err)
		}
		answers.Store(true)
		if err := f.Reload(); err != nil {
			t.Errorf("on demand: %v", err)
		}
		cancel()
		<-ended
	})
}

// A look that hangs does not hold up the end of the program.
func TestCurveFileThatHangsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, _ := hangingFile(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = f.Run(ctx)
		}()
		synctest.Wait() // It hangs now.
		began := time.Now()
		cancel()
		<-ended
		if time.Since(began) > 0 {
			t.Errorf("it ended after %s", time.Since(began))
		}
		if f.Current().Err != nil {
			t.Errorf("being ended is told as %v", f.Current().Err)
		}
	})
}
