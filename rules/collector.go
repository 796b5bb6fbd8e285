package rules

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/model/labels"
	promrules "github.com/prometheus/prometheus/rules"
)

var groupLabels = []string{"file", "group"}

// What an Evaluator says of itself.
var (
	reloadOK = prometheus.NewDesc("headroom_exporter_rules_last_reload_successful",
		"1 when the newest attempt to load the rule files put them in force, 0 when a bad file keeps the ones before in force.", nil, nil)
	reloadTime = prometheus.NewDesc("headroom_exporter_rules_last_reload_success_timestamp_seconds",
		"When rule files were last put in force, in seconds since 1970.", nil, nil)
	storageUp = prometheus.NewDesc("headroom_exporter_rules_storage_up",
		"1 when the storage directory keeps the rules' window, 0 when it cannot and the window is in memory only; reason says why: no_space, read_only, permission, locked, future_data or failed. Absent without a storage directory.", []string{"reason"}, nil)
	rulesFailing = prometheus.NewDesc("headroom_exporter_rules_failing",
		"Rules whose newest evaluation failed.", nil, nil)
	rulesPanics = prometheus.NewDesc("headroom_exporter_rules_panics_total",
		"Panics recovered while rules were evaluated.", nil, nil)
	ruleFailures = prometheus.NewDesc("headroom_exporter_rule_evaluation_failures_total",
		"Failed evaluations of a rule; absent for a rule that never failed.", []string{"file", "group", "rule"}, nil)
	groupDuration = prometheus.NewDesc("headroom_exporter_rule_group_last_duration_seconds",
		"Duration of the newest evaluation of a rule group, in seconds.", groupLabels, nil)
	groupMissed = prometheus.NewDesc("headroom_exporter_rule_group_iterations_missed_total",
		"Evaluations of a rule group that were left out because the one before took too long.", groupLabels, nil)
	groupTime = prometheus.NewDesc("headroom_exporter_rule_group_last_evaluation_timestamp_seconds",
		"For which moment a rule group was last evaluated, in seconds since 1970.", groupLabels, nil)
	storeSeries = prometheus.NewDesc("headroom_exporter_store_series",
		"Series in the window that rules are evaluated on.", nil, nil)
	storeBytes = prometheus.NewDesc("headroom_exporter_store_bytes",
		"Bytes of the rules' window in the storage directory; absent while it is in memory.", nil, nil)
	storeDropped = prometheus.NewDesc("headroom_exporter_store_dropped_series",
		"Series that rules select but that found no room in the store.", nil, nil)
	storeRefused = prometheus.NewDesc("headroom_exporter_store_refused_samples_total",
		"Samples that the store refused because it has newer ones: the clock went back.", nil, nil)
	storeFailures = prometheus.NewDesc("headroom_exporter_store_append_failures_total",
		"Calls in which samples could not be stored.", nil, nil)
)

// Describe implements prometheus.Collector. It describes nothing, because
// what rules record is not known beforehand.
func (e *Evaluator) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector: the newest value of every recorded
// series, without a time, and how the rules do. It evaluates nothing.
func (e *Evaluator) Collect(ch chan<- prometheus.Metric) {
	e.collectRecorded(ch)
	e.collectGroups(ch)
	e.collectStore(ch)
}

func (e *Evaluator) collectRecorded(ch chan<- prometheus.Metric) {
	help := e.rules.Load().help
	for _, out := range e.outputs.current(time.Now()) {
		var name string
		var labelNames, labelValues []string
		out.labels.Range(func(l labels.Label) {
			if l.Name == labels.MetricName {
				name = l.Value
				return
			}
			labelNames = append(labelNames, l.Name)
			labelValues = append(labelValues, strings.ToValidUTF8(l.Value, "\uFFFD"))
		})
		text, inForce := help[name]
		if !inForce {
			continue // Its rule is gone.
		}
		kind := prometheus.GaugeValue
		if strings.HasSuffix(name, "_total") {
			kind = prometheus.CounterValue
		}
		m, err := prometheus.NewConstMetric(prometheus.NewDesc(name, text, labelNames, nil), kind, out.value, labelValues...)
		if err != nil {
			// One series that cannot be exposed must not cost the whole page.
			e.config.Logger.Debug("A recorded series cannot be exposed", "series", out.labels.String(), "err", err)
			continue
		}
		ch <- m
	}
}

func (e *Evaluator) collectGroups(ch chan<- prometheus.Metric) {
	if groups := e.groups.Load(); groups != nil {
		for _, g := range *groups {
			ch <- gauge(groupDuration, g.GetEvaluationTime().Seconds(), g.File(), g.Name())
			ch <- counter(groupMissed, e.missed(g), g.File(), g.Name())
			if at := g.GetLastEvalTimestamp(); !at.IsZero() {
				ch <- gauge(groupTime, seconds(at), g.File(), g.Name())
			}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, n := range e.failures {
		ch <- counter(ruleFailures, float64(n), id.file, id.group, id.rule)
	}
	ch <- gauge(rulesFailing, float64(len(e.failing)))
	ch <- counter(rulesPanics, float64(e.panics))
	ch <- gauge(reloadOK, truth(e.reloadErr == nil))
	ch <- gauge(reloadTime, seconds(e.reloadedAt))
}

// missed reads how many evaluations a group has missed off Prometheus' own counter.
func (e *Evaluator) missed(g *promrules.Group) float64 {
	var m dto.Metric
	if err := e.metrics.IterationsMissed.WithLabelValues(promrules.GroupKey(g.File(), g.Name())).Write(&m); err != nil {
		return 0
	}
	return m.GetCounter().GetValue()
}

func (e *Evaluator) collectStore(ch chan<- prometheus.Metric) {
	store := e.store.status()
	if store.configured {
		ch <- gauge(storageUp, truth(store.durable), store.reason)
	}
	ch <- gauge(storeSeries, store.series)
	if store.durable {
		ch <- gauge(storeBytes, store.bytes)
	}
	ch <- gauge(storeDropped, float64(e.feed.dropped.Load()))
	ch <- counter(storeRefused, float64(e.feed.refused.Load()))
	ch <- counter(storeFailures, float64(e.feed.failures.Load()))
}

func gauge(d *prometheus.Desc, v float64, labelValues ...string) prometheus.Metric {
	return sample(d, prometheus.GaugeValue, v, labelValues)
}

func counter(d *prometheus.Desc, v float64, labelValues ...string) prometheus.Metric {
	return sample(d, prometheus.CounterValue, v, labelValues)
}

func sample(d *prometheus.Desc, kind prometheus.ValueType, v float64, labelValues []string) prometheus.Metric {
	for i, value := range labelValues {
		labelValues[i] = strings.ToValidUTF8(value, "\uFFFD")
	}
	m, err := prometheus.NewConstMetric(d, kind, v, labelValues...)
	if err != nil {
		return prometheus.NewInvalidMetric(d, fmt.Errorf("making %s: %w", d, err))
	}
	return m
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
