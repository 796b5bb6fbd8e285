package sidecar

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"headroom_exporter/collector/engine"
	"headroom_exporter/rules"
)

// Recorder takes the samples of one moment; rules.Evaluator implements it.
type Recorder interface {
	Append(at time.Time, samples []rules.Sample) error
}

// Feed gives the recording rules what they may use: every metric that the
// exporter exposes, and the engine's counters and histograms under names of
// their own. It works beside the live loop, because a disk that hangs must
// not hold the loop up; a snapshot that comes while it is busy is left out.
type Feed struct {
	recorder Recorder
	gatherer prometheus.Gatherer
	logger   *slog.Logger
	waiting  chan *Snapshot
	skipped  atomic.Uint64
	failed   bool
}

// NewFeed returns a feed of what a gatherer exposes.
func NewFeed(recorder Recorder, gatherer prometheus.Gatherer, logger *slog.Logger) *Feed {
	return &Feed{recorder: recorder, gatherer: gatherer, logger: logger, waiting: make(chan *Snapshot, 1)}
}

// Offer hands a snapshot over without waiting.
func (f *Feed) Offer(s *Snapshot) {
	select {
	case f.waiting <- s:
	default:
		f.skipped.Add(1)
	}
}

// Skipped is how many snapshots were left out because the feed was busy.
func (f *Feed) Skipped() uint64 { return f.skipped.Load() }

// Run feeds until the context ends.
func (f *Feed) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-f.waiting:
			f.feed(s)
		}
	}
}

func (f *Feed) feed(s *Snapshot) {
	families, err := f.gatherer.Gather()
	if err == nil {
		samples := make([]rules.Sample, 0, 1024)
		for _, family := range families {
			samples = appendFamily(samples, family)
		}
		err = f.recorder.Append(s.At, appendEngine(samples, s))
	}
	switch {
	case err != nil && !f.failed:
		f.logger.Warn("recording rules miss samples", "err", err)
	case err == nil && f.failed:
		f.logger.Info("recording rules get samples again")
	}
	f.failed = err != nil
}

// appendFamily appends the samples of a gathered family of counters or gauges.
func appendFamily(samples []rules.Sample, family *dto.MetricFamily) []rules.Sample {
	for _, m := range family.GetMetric() {
		value := m.GetGauge().GetValue()
		if family.GetType() == dto.MetricType_COUNTER {
			value = m.GetCounter().GetValue()
		}
		names, values := make([]string, len(m.GetLabel())), make([]string, len(m.GetLabel()))
		for i, l := range m.GetLabel() {
			names[i], values[i] = l.GetName(), l.GetValue()
		}
		samples = append(samples, rules.Sample{Name: family.GetName(), LabelNames: names, LabelValues: values, Value: value})
	}
	return samples
}

// engineCounters are the engine's counters that rules may use.
var engineCounters = []engine.Signal{
	engine.Preemptions, engine.PromptTokens, engine.PromptTokensComputed, engine.GenerationTokens,
	engine.RequestsFinished, engine.EngineSteps, engine.PrefixCacheQueries, engine.PrefixCacheHits,
}

// engineHistograms are the engine's histograms that rules may use, with the
// unit that ends their names.
var engineHistograms = []struct {
	signal engine.HistogramSignal
	unit   string
}{
	{engine.TimeToFirstToken, "_seconds"},
	{engine.InterTokenLatency, "_seconds"},
	{engine.TimePerOutputToken, "_seconds"},
	{engine.E2ELatency, "_seconds"},
	{engine.QueueTime, "_seconds"},
	{engine.PrefillTime, "_seconds"},
	{engine.DecodeTime, "_seconds"},
	{engine.PromptLength, "_tokens"},
	{engine.GenerationLength, "_tokens"},
}

const enginePrefix = "headroom_engine_"

func counterName(c engine.Signal) string {
	return enginePrefix + strings.TrimPrefix(c.String(), "engine_") + "_total"
}

var rankLabels = []string{"model_name", "engine"}

// appendEngine appends the counters and histograms of each rank whose reading
// can be trusted.
func appendEngine(samples []rules.Sample, s *Snapshot) []rules.Sample {
	if s.Reading == nil {
		return samples
	}
	for i := range s.Reading.Ranks {
		r := &s.Reading.Ranks[i]
		if !r.State.Known() {
			continue
		}
		labels := []string{r.ModelName, r.Engine}
		for _, c := range engineCounters {
			if v := r.Value(c); !math.IsNaN(v) {
				samples = append(samples, rules.Sample{Name: counterName(c), LabelNames: rankLabels, LabelValues: labels, Value: v})
			}
		}
		for _, h := range engineHistograms {
			if histogram := r.Histogram(h.signal); histogram != nil {
				samples = rules.AppendHistogram(samples, enginePrefix+h.signal.String()+h.unit, rankLabels, labels,
					histogram.Bounds, histogram.Counts, histogram.Sum, histogram.Count)
			}
		}
	}
	return samples
}

// EngineSeries lists the names that a feed gives the engine's own numbers;
// no rule may record one of them.
func EngineSeries() []string {
	var names []string
	for _, c := range engineCounters {
		names = append(names, counterName(c))
	}
	for _, h := range engineHistograms {
		for _, part := range []string{"_bucket", "_bound", "_sum", "_count"} {
			names = append(names, enginePrefix+h.signal.String()+h.unit+part)
		}
	}
	return names
}
