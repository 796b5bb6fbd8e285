package sidecar

import (
	"context"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"headroom_exporter/collector/engine"
	"headroom_exporter/rules"
)

// Recorder takes the samples of one moment; rules.Evaluator implements it.
type Recorder interface {
	// Reads tells whether samples of a name are of any use.
	Reads(name string) bool
	Append(at time.Time, samples []rules.Sample) error
}

// Exposition calls add for every sample that is exposed of a snapshot under a
// name that reads accepts.
type Exposition func(s *Snapshot, reads func(name string) bool, add func(name string, labelNames, labelValues []string, value float64))

// Feed gives the recording rules what they may use: every metric that the
// exporter exposes, and the engine's counters and histograms under names of
// their own. It works beside the live loop, because a disk that hangs must
// not hold the loop up; a snapshot that comes while it is busy is left out.
type Feed struct {
	recorder Recorder
	exposed  Exposition
	logger   *slog.Logger
	waiting  chan *Snapshot
	skipped  atomic.Uint64
	samples  []rules.Sample
	failed   bool
}

// NewFeed returns a feed of what is exposed.
func NewFeed(recorder Recorder, exposed Exposition, logger *slog.Logger) *Feed {
	return &Feed{recorder: recorder, exposed: exposed, logger: logger, waiting: make(chan *Snapshot, 1)}
}

// Offer hands a snapshot over without waiting.
func (f *Feed) Offer(s *Snapshot) {
	select {
	case f.waiting <- s:
	default:
		f.skipped.Add(1)
	}
}

// Skipped is how many snapshots were left out, because the feed was busy or panicked.
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
	defer func() {
		if p := recover(); p != nil {
			f.skipped.Add(1)
			f.logger.Error("feeding the recording rules panicked", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	f.samples = f.samples[:0]
	f.exposed(s, f.recorder.Reads, func(name string, labelNames, labelValues []string, value float64) {
		f.samples = append(f.samples, rules.Sample{Name: name, LabelNames: labelNames, LabelValues: labelValues, Value: value})
	})
	f.samples = appendEngine(f.samples, s, f.recorder.Reads)
	err := f.recorder.Append(s.At, f.samples)
	switch {
	case err != nil && !f.failed:
		f.logger.Warn("recording rules miss samples", "err", err)
	case err == nil && f.failed:
		f.logger.Info("recording rules get samples again")
	}
	f.failed = err != nil
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

// histogramParts are the series that a histogram is fed as.
var histogramParts = []string{"_bucket", "_bound", "_sum", "_count"}

const enginePrefix = "headroom_engine_"

func counterName(c engine.Signal) string {
	return enginePrefix + strings.TrimPrefix(c.String(), "engine_") + "_total"
}

var rankLabels = []string{"model_name", "engine"}

// appendEngine appends the counters and histograms of each rank whose reading
// can be trusted.
func appendEngine(samples []rules.Sample, s *Snapshot, reads func(name string) bool) []rules.Sample {
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
			if v := r.Value(c); !math.IsNaN(v) && reads(counterName(c)) {
				samples = append(samples, rules.Sample{Name: counterName(c), LabelNames: rankLabels, LabelValues: labels, Value: v})
			}
		}
		for _, h := range engineHistograms {
			name := enginePrefix + h.signal.String() + h.unit
			if histogram := r.Histogram(h.signal); histogram != nil && slices.ContainsFunc(histogramParts, func(part string) bool { return reads(name + part) }) {
				samples = rules.AppendHistogram(samples, name, rankLabels, labels,
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
		for _, part := range histogramParts {
			names = append(names, enginePrefix+h.signal.String()+h.unit+part)
		}
	}
	return names
}
