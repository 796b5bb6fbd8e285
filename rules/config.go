// Package rules evaluates recording rules inside the sidecar, on samples that
// the live loop hands over once an interval. Evaluation and storage are
// Prometheus' own: rules.Manager and promql.Engine over tsdb. This is the only
// package that imports them.
//
// Data flows one way: Append stores the samples that some rule selects, the
// rule groups read them and store what they compute, and Collect exposes the
// newest value of each computed series under its recorded name.
package rules

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config is what an Evaluator needs to know. The zero value of a field means
// its default, where one is named.
type Config struct {
	// Files are the user's rule files: paths or glob patterns. A path must
	// exist; a pattern may match nothing.
	Files []string
	// Shipped tells whether the rule files that are built in are evaluated.
	Shipped bool
	// StoragePath is the directory that keeps the window over a restart.
	// Empty keeps it in memory only.
	StoragePath string
	// Retention is how far back a rule may look; default 2 h.
	Retention time.Duration
	// Interval is the time between two calls of Append, and between two
	// evaluations of a group that states no interval; default 1 s.
	Interval time.Duration
	// Timeout of one rule's evaluation; default 5 s.
	Timeout time.Duration
	// MaxSamples that one rule's evaluation may hold in memory; default 5,000,000.
	MaxSamples int
	// MaxSeries that are stored; samples of more are dropped and counted; default 5,000.
	MaxSeries int
	// Reserved are the names that the exporter exposes, or feeds in, itself:
	// no rule may record one of them.
	Reserved []string
	// Logger may be nil.
	Logger *slog.Logger
	// Registerer takes the internal metrics of Prometheus' engine, rule
	// groups and store, prefixed headroom_exporter_. They are some 150 series
	// and for debugging only: nil leaves them out.
	Registerer prometheus.Registerer
}

const (
	defaultRetention  = 2 * time.Hour
	defaultInterval   = time.Second
	defaultTimeout    = 5 * time.Second
	defaultMaxSamples = 5_000_000
	defaultMaxSeries  = 5_000

	minRetention = 10 * time.Minute
	minInterval  = 100 * time.Millisecond
)

// withDefaults returns the configuration with its defaults filled in, or what
// is wrong with it.
func (c Config) withDefaults() (Config, error) {
	setDefault(&c.Retention, defaultRetention)
	setDefault(&c.Interval, defaultInterval)
	setDefault(&c.Timeout, defaultTimeout)
	setDefault(&c.MaxSamples, defaultMaxSamples)
	setDefault(&c.MaxSeries, defaultMaxSeries)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var errs []error
	if c.Retention < minRetention {
		errs = append(errs, fmt.Errorf("storage retention %v is below %v", c.Retention, minRetention))
	}
	if c.Interval < minInterval {
		errs = append(errs, fmt.Errorf("rule interval %v is below %v", c.Interval, minInterval))
	}
	if c.Timeout < 0 || c.MaxSamples < 0 || c.MaxSeries < 0 {
		errs = append(errs, errors.New("limits of rule evaluation must not be negative"))
	}
	return c, errors.Join(errs...)
}

func setDefault[T time.Duration | int](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// lookback is how old the newest sample of a series may be before an instant
// selector no longer sees it. Short, so that a dead engine does not look
// alive; never below the shipped groups' interval, so that one group sees
// what another recorded.
func (c Config) lookback() time.Duration {
	return max(5*c.Interval, 5*time.Second)
}
