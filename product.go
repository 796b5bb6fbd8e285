package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/common/version"
	"golang.org/x/sync/errgroup"

	"headroom_exporter/collector/gpu"
	"headroom_exporter/rules"
	"headroom_exporter/sidecar"
	"headroom_exporter/web"
)

// product is the sidecar with its rules, its GPUs and its web side; serve and
// demo run it.
type product struct {
	telemetryPath string
	rules         *rulesFlags
	// gpus is nil when something else reads them.
	gpus *gpu.Collector
	// curve is nil without a curve file.
	curve  *sidecar.CurveFile
	logger *slog.Logger

	live      *sidecar.Sidecar
	feed      *sidecar.Feed
	evaluator *rules.Evaluator
	handler   http.Handler
}

// build makes every part. Its errors are the caller's to mend.
func (p *product) build(config sidecar.Config) error {
	evaluator, err := rules.New(rules.Config{
		Files: p.rules.files, Shipped: p.rules.shipped,
		StoragePath: p.rules.storagePath, Retention: p.rules.retention, Interval: config.Interval,
		Reserved: append(web.MetricNames(), sidecar.EngineSeries()...), Logger: p.logger,
	})
	if err != nil {
		return usageError{fmt.Errorf("recording rules: %w", err)}
	}
	p.evaluator = evaluator

	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		versioncollector.NewCollector(name),
		evaluator,
	)
	p.feed = sidecar.NewFeed(evaluator, web.Each, p.logger)
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "headroom_exporter_rules_skipped_snapshots_total",
		Help: "Snapshots that the recording rules did not get, because their store was busy or making samples panicked.",
	}, func() float64 { return float64(p.feed.Skipped()) }))
	words := &curveLog{logger: p.logger}
	config.Published = func(s *sidecar.Snapshot) {
		p.feed.Offer(s)
		words.observe(s)
	}
	if p.live, err = sidecar.New(config); err != nil {
		return usageError{err}
	}
	p.handler, err = web.New(web.Config{
		Source: p.live, Registry: registry,
		TelemetryPath: p.telemetryPath, Interval: config.Interval, Reload: p.reload,
		Version: version.Version, Logger: p.logger,
	})
	if err != nil {
		return usageError{fmt.Errorf("--web.telemetry-path: %w", err)}
	}
	return nil
}

// run runs every part until the context ends.
func (p *product) run(ctx context.Context, listen func(*http.Server) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.live.Run(ctx) })
	group.Go(func() error { return p.feed.Run(ctx) })
	group.Go(func() error { return p.evaluator.Run(ctx) })
	group.Go(func() error { return serveHTTP(ctx, p.handler, listen, p.logger) })
	group.Go(func() error { return p.reloadOnHangup(ctx) })
	if p.gpus != nil {
		group.Go(func() error { return p.gpus.Run(ctx) })
	}
	if p.curve != nil {
		group.Go(func() error { return p.curve.Run(ctx) })
	}
	err := group.Wait()
	p.close()
	if errors.Is(err, gpu.ErrDriverChanged) {
		p.logger.Error("ending, to be started again", "err", err)
		return nil
	}
	return err
}

// close flushes the rules' store, which a hung disk must not delay for ever.
func (p *product) close() {
	closed := make(chan error, 1)
	go func() { closed <- p.evaluator.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			p.logger.Warn("closing the rules' store failed", "err", err)
		}
	case <-time.After(shutdownGrace):
		p.logger.Warn("the rules' store did not close in time", "grace", shutdownGrace)
	}
}

// reloadPatience is how long rule files may take to be read again.
const reloadPatience = 3 * time.Second

// reload reads the rule files and the capacity curve again. What cannot be
// read leaves in force what was before it, and the other is read nevertheless.
func (p *product) reload() error {
	var curveErr error
	if p.curve != nil {
		curveErr = p.curve.Reload() // It logs by itself.
	}
	rulesErr := p.reloadRules()
	if rulesErr != nil {
		p.logger.Error("rule files not reloaded; those in force stay", "err", rulesErr)
	} else {
		p.logger.Info("rule files reloaded")
	}
	return errors.Join(rulesErr, curveErr)
}

// reloadRules does not wait for a file system that hangs.
func (p *product) reloadRules() error {
	ended := make(chan error, 1)
	go func() { ended <- p.evaluator.Reload() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(reloadPatience):
		return fmt.Errorf("rule files: not read within %s: their file system does not answer", reloadPatience)
	}
}

func (p *product) reloadOnHangup(ctx context.Context) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangup:
			_ = p.reload() // It is logged, and on /metrics.
		}
	}
}
