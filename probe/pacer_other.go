//go:build !linux

package probe

import (
	"context"
	"time"
)

// pacer waits for moments with Go's timers.
type pacer struct{}

func newPacer() (*pacer, error) { return &pacer{}, nil }

func (*pacer) close() {}

func (*pacer) wait(ctx context.Context, d time.Duration) error { return sleep(ctx, d) }
