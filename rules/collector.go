package rules

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	promrules "github.com/prometheus/prometheus/rules"
)

// What an Evaluator says of itself.
var (
	reloadOK = gauge("headroom_exporter_rules_last_reload_successful",
		"1 when the newest attempt to load the rule files put them in force, 0 when a bad file keeps the ones before in force.")
	reloadTime = gauge("headroom_exporter_rules_last_reload_success_timestamp_seconds",
		"When rule files were last put in force, in seconds since 1970.")
	storageUp = gauge("headroom_exporter_rules_storage_up",
		"1 with reason ok when the storage directory keeps the rules' window, 0 when it cannot and the window is in memory only, with the reason: no_space, read_only, permission, locked, future_data or failed. Absent without a storage directory.", "reason")
	rulesFailing = gauge("headroom_exporter_rules_failing",
		"Rules whose newest evaluation failed.")
	rulesPanics = counter("headroom_exporter_rules_panics_total",
		"Panics recovered while rules were evaluated.")
	ruleFailures = counter("headroom_exporter_rule_evaluation_failures_total",
		"Failed evaluations of a rule; absent for a rule that never failed.", "file", "group", "rule")
	groupDuration = gauge("headroom_exporter_rule_group_last_duration_seconds",
		"Duration of the newest evaluation of a rule group, in seconds.", "file", "group")
	groupMissed = counter("headroom_exporter_rule_group_iterations_missed_total",
		"Evaluations of a rule group that were left out because the one before took too long.", "file", "group")
	groupTime = gauge("headroom_exporter_rule_group_last_evaluation_timestamp_seconds",
		"For which moment a rule group was last evaluated, in seconds since 1970.", "file", "group")
	storeSeries = gauge("headroom_exporter_store_series",
		"Series in the window that rules are evaluated on.")
	storeBytes = gauge("headroom_exporter_store_bytes",
		"Bytes of the rules' window in the storage directory; absent while it is in memory.")
	storeDropped = gauge("headroom_exporter_store_dropped_series",
		"Series that rules select but that found no room in the store.")
	storeRefused = counter("headroom_exporter_store_refused_samples_total",
		"Samples that the store refused because it has newer ones: the clock went back.")
	storeFailures = counter("headroom_exporter_store_append_failures_total",
		"Calls in which samples could not be stored.")
)

// own lists them in the order in which they are documented.
var own = []metric{
	reloadOK, reloadTime, rulesFailing, rulesPanics, ruleFailures, groupDuration, groupMissed, groupTime,
	storageUp, storeSeries, storeBytes, storeDropped, storeRefused, storeFailures,
}

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
			if l.Name == model.MetricNameLabel {
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
		m, err := prometheus.NewConstMetric(prometheus.NewDesc(name, text, labelNames, nil), kindOf(name), out.value, labelValues...)
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
			ch <- groupDuration.of(g.GetEvaluationTime().Seconds(), g.File(), g.Name())
			ch <- groupMissed.of(e.missed(g), g.File(), g.Name())
			if at := g.GetLastEvalTimestamp(); !at.IsZero() {
				ch <- groupTime.of(seconds(at), g.File(), g.Name())
			}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, n := range e.failures {
		ch <- ruleFailures.of(float64(n), id.file, id.group, id.rule)
	}
	ch <- rulesFailing.of(float64(len(e.failing)))
	ch <- rulesPanics.of(float64(e.panics))
	ch <- reloadOK.of(truth(e.reloadErr == nil))
	ch <- reloadTime.of(seconds(e.reloadedAt))
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
		reason := store.reason
		if store.durable {
			reason = "ok"
		}
		ch <- storageUp.of(truth(store.durable), reason)
	}
	ch <- storeSeries.of(store.series)
	if store.durable {
		ch <- storeBytes.of(store.bytes)
	}
	ch <- storeDropped.of(float64(e.feed.dropped.Load()))
	ch <- storeRefused.of(float64(e.feed.refused.Load()))
	ch <- storeFailures.of(float64(e.feed.failures.Load()))
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
