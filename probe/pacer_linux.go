package probe

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pacer waits for moments. Go's timers wake up to a millisecond late when
// nothing else runs, because the poller below them counts in milliseconds; a
// timer that is a file descriptor wakes it to within tens of microseconds.
type pacer struct {
	fd    int
	timer *os.File
}

func newPacer() (*pacer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a timer: %w", err)
	}
	return &pacer{fd: fd, timer: os.NewFile(uintptr(fd), "timerfd")}, nil
}

func (p *pacer) close() { p.timer.Close() }

// fine is the last part of a wait, for which the descriptor is used. It
// cannot be interrupted.
const fine = 5 * time.Millisecond

// wait returns after d, or with an error when the context ends before.
func (p *pacer) wait(ctx context.Context, d time.Duration) error {
	begin := time.Now()
	if d > fine {
		if err := sleep(ctx, d-fine); err != nil {
			return err
		}
		d -= time.Since(begin)
	}
	if d <= 0 {
		return ctx.Err()
	}
	if err := unix.TimerfdSettime(p.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil); err != nil {
		return fmt.Errorf("setting a timer: %w", err)
	}
	var expirations [8]byte
	if _, err := p.timer.Read(expirations[:]); err != nil {
		return fmt.Errorf("waiting for a timer: %w", err)
	}
	return ctx.Err()
}
