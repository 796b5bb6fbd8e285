package probe

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// Progress shows what a runner is at.
type Progress struct {
	Runner *Runner
	Out    io.Writer
	// Redraw writes one line over and over, for a terminal of Width columns;
	// without it a line is written every few seconds.
	Redraw bool
	Width  int
	// Points is how many there are; 0 is not known.
	Points int
}

// Intervals of the two ways to show progress.
const (
	redrawEvery = 250 * time.Millisecond
	lineEvery   = 5 * time.Second
)

// clearLine returns to the beginning of the line and erases it.
const clearLine = "\r\x1b[K"

// Run shows the point number until the context ends.
func (p *Progress) Run(ctx context.Context, number int) {
	every := lineEvery
	if p.Redraw {
		every = redrawEvery
		defer fmt.Fprint(p.Out, clearLine)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	last, lastSent := time.Duration(0), 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s, ok := p.Runner.Status()
		if !ok {
			continue
		}
		rate := 0.0
		if d := s.Elapsed - last; d > 0 {
			rate = float64(s.Sent-lastSent) / d.Seconds()
		}
		last, lastSent = s.Elapsed, s.Sent
		line := p.line(number, s, rate)
		if !p.Redraw {
			fmt.Fprintln(p.Out, line)
			continue
		}
		if r := []rune(line); p.Width > 1 && len(r) >= p.Width {
			line = string(r[:p.Width-1])
		}
		fmt.Fprint(p.Out, clearLine+line)
	}
}

// line is one line of progress; the rate is of the time since the line before.
func (p *Progress) line(n int, s Status, rate float64) string {
	var b strings.Builder
	of := ""
	if p.Points > 0 {
		of = fmt.Sprintf("/%d", p.Points)
	}
	fmt.Fprintf(&b, "[%d%s] %s  %s  %.0f s", n, of, s.Point, s.Phase, s.Elapsed.Seconds())
	if s.Left != Never {
		fmt.Fprintf(&b, ", %.0f s left", s.Left.Seconds())
	}
	fmt.Fprintf(&b, "  %.1f/s  %d in flight  %d done", rate, s.InFlight, s.Live.Done)
	if s.Live.Failed > 0 {
		fmt.Fprintf(&b, "  %d FAILED", s.Live.Failed)
	}
	if s.Live.Capped > 0 {
		fmt.Fprintf(&b, "  %d CAPPED", s.Live.Capped)
	}
	fmt.Fprintf(&b, "  TTFT p50 %s p99 %s", seconds(s.Live.TTFTP50), seconds(s.Live.TTFTP99))
	if e := s.Engine; e != nil {
		fmt.Fprintf(&b, "  engine: %s running %s waiting %s KV", number(e.Running, 0), number(e.Waiting, 0), percent(e.KVUsage))
	}
	return b.String()
}
