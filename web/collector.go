package web

import (
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headroom_exporter/collector/gpu"
	"headroom_exporter/sidecar"
)

//go:generate go test -count=1 . -update

// view is what the metric families are read off.
type view struct {
	// snapshot is nil before the first reading.
	snapshot *sidecar.Snapshot
	now      time.Time
	// panics counts panics recovered outside the live loop.
	panics uint64
}

// add publishes one sample of a family. A value that is not known (NaN) is
// not published.
type add func(value float64, labelValues ...string)

// family is one metric family: its description, and how it is read.
type family struct {
	name   string
	kind   prometheus.ValueType
	help   string
	labels []string
	read   func(view, add)
}

// group is the families that a reader looks for together.
type group struct {
	title, intro string
	families     []family
}

// collector exposes the newest snapshot as constant metrics. Collecting does
// no I/O: it never reaches the engine or a driver.
type collector struct {
	source sidecar.Source
	logger *slog.Logger
	panics *atomic.Uint64

	families []family
	descs    []*prometheus.Desc
}

func newCollector(source sidecar.Source, logger *slog.Logger, panics *atomic.Uint64) *collector {
	c := &collector{source: source, logger: logger, panics: panics}
	for _, g := range groups {
		for _, f := range g.families {
			c.families = append(c.families, f)
			c.descs = append(c.descs, prometheus.NewDesc(f.name, f.help, f.labels, nil))
		}
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	v := view{snapshot: c.snapshot(), now: time.Now()}
	for i, f := range c.families {
		v.panics = c.panics.Load()
		c.collect(ch, f, c.descs[i], v)
	}
}

// collect publishes one family. The registry runs collectors in goroutines of
// its own, where a panic would end the process, so it is caught here, and
// costs the rest of this family only.
func (c *collector) collect(ch chan<- prometheus.Metric, f family, desc *prometheus.Desc, v view) {
	defer func() {
		if cause := recover(); cause != nil {
			c.caught(f.name, cause)
		}
	}()
	f.read(v, func(value float64, labelValues ...string) {
		if math.IsNaN(value) {
			return
		}
		for i, label := range labelValues {
			labelValues[i] = strings.ToValidUTF8(label, "\uFFFD")
		}
		m, err := prometheus.NewConstMetric(desc, f.kind, value, labelValues...)
		if err != nil {
			m = prometheus.NewInvalidMetric(desc, fmt.Errorf("making %s: %w", f.name, err))
		}
		ch <- m
	})
}

// snapshot is the newest snapshot; none when asking for it panics.
func (c *collector) snapshot() (s *sidecar.Snapshot) {
	defer func() {
		if cause := recover(); cause != nil {
			c.caught("snapshot", cause)
		}
	}()
	return c.source.Snapshot()
}

func (c *collector) caught(reading string, cause any) {
	c.panics.Add(1)
	c.logger.Error("Collecting metrics panicked", "reading", reading, "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
}

// MetricNames lists the families that New registers: no recording rule may
// use one of these names for its output.
func MetricNames() []string {
	var names []string
	for _, g := range groups {
		for _, f := range g.families {
			names = append(names, f.name)
		}
	}
	for _, m := range gpu.Metrics() {
		names = append(names, m.Name)
	}
	return names
}

// Each calls add for every sample that /metrics shows of a snapshot under a
// name that reads accepts, without going through a registry.
func Each(s *sidecar.Snapshot, reads func(name string) bool, add func(name string, labelNames, labelValues []string, value float64)) {
	v := view{snapshot: s, now: s.At}
	for _, g := range groups {
		for _, f := range g.families {
			if !reads(f.name) {
				continue
			}
			f.read(v, func(value float64, labelValues ...string) {
				if !math.IsNaN(value) {
					add(f.name, f.labels, labelValues, value)
				}
			})
		}
	}
	gpu.Each(&s.GPU, reads, add)
}
