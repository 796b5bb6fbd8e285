// Package web serves the newest snapshot: metrics, JSON, the status page and
// health. It reads snapshots and nothing else.
package web

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"headroom_exporter/collector/gpu"
	"headroom_exporter/sidecar"
)

// maxMetricsRequests bounds the answers of /metrics in flight; more are refused with 503.
const maxMetricsRequests = 40

// Config is what the handler needs.
type Config struct {
	// Source of the snapshots; required.
	Source sidecar.Source
	// Registry is what TelemetryPath serves; required. New adds the snapshot's
	// metrics to what the caller has registered.
	Registry *prometheus.Registry
	// Reload is called for a POST to /-/reload; nil when there is nothing to reload.
	Reload func() error
	// Version of the exporter, for people to read.
	Version string
	// Interval of the live loop; required, it decides when the loop counts as stuck.
	Interval time.Duration
	// TelemetryPath of the metrics; "/metrics" when empty.
	TelemetryPath string
	// Logger; required.
	Logger *slog.Logger
}

// reserved are the paths that the handler itself serves.
const (
	pagePath     = "/"
	headroomPath = "/api/v1/headroom"
	historyPath  = "/api/v1/history"
	curvePath    = "/page/curve"
	healthyPath  = "/-/healthy"
	readyPath    = "/-/ready"
	reloadPath   = "/-/reload"
)

func (c *Config) validate() error {
	switch {
	case c.Source == nil:
		return errors.New("web: Source is missing")
	case c.Registry == nil:
		return errors.New("web: Registry is missing")
	case c.Logger == nil:
		return errors.New("web: Logger is missing")
	case c.Interval <= 0:
		return errors.New("web: Interval must be above 0")
	}
	if c.TelemetryPath == "" {
		c.TelemetryPath = "/metrics"
	}
	if !strings.HasPrefix(c.TelemetryPath, "/") {
		return errors.New("web: TelemetryPath " + c.TelemetryPath + " must begin with /")
	}
	if strings.ContainsAny(c.TelemetryPath, " {}\t\n?#") {
		return fmt.Errorf("web: TelemetryPath %q is not a plain path; use one such as /metrics", c.TelemetryPath)
	}
	for _, taken := range []string{pagePath, "/api/", "/page/", "/-/"} {
		if c.TelemetryPath == taken || taken != pagePath && strings.HasPrefix(c.TelemetryPath, taken) {
			return errors.New("web: TelemetryPath " + c.TelemetryPath + " is taken by the exporter itself; choose another, such as /metrics")
		}
	}
	return nil
}

// server answers requests out of the newest snapshot.
type server struct {
	Config
	started time.Time
	panics  atomic.Uint64
}

// New returns the handler of every route of the exporter.
func New(config Config) (http.Handler, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	page, err := newPage(config.Version, config.TelemetryPath)
	if err != nil {
		return nil, err
	}
	s := &server{Config: config, started: time.Now()}
	gpus := gpu.NewMetrics(func() gpu.Snapshot {
		if snapshot := config.Source.Snapshot(); snapshot != nil {
			return snapshot.GPU
		}
		return gpu.Snapshot{Status: gpu.Status{Reason: gpu.Starting}}
	})
	if err := config.Registry.Register(gpus); err != nil {
		return nil, fmt.Errorf("web: registering the GPU metrics: %w", err)
	}
	if err := config.Registry.Register(newCollector(config.Source, config.Logger, &s.panics)); err != nil {
		return nil, fmt.Errorf("web: registering the snapshot's metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle(config.TelemetryPath, promhttp.HandlerFor(config.Registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(config.Logger.Handler(), slog.LevelError),
		// One bad series must not hide the others.
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxMetricsRequests,
	}))
	mux.HandleFunc(headroomPath, s.serveHeadroom)
	mux.HandleFunc(historyPath, s.serveHistory)
	mux.HandleFunc(curvePath, s.serveCurve)
	mux.HandleFunc(healthyPath, s.serveHealthy)
	mux.HandleFunc(readyPath, s.serveReady)
	if config.Reload != nil {
		mux.HandleFunc(reloadPath, s.serveReload)
	}
	mux.Handle(pagePath+"{$}", page)
	mux.HandleFunc(pagePath, s.serveNotFound)
	return s.guard(mux), nil
}
