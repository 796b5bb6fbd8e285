package rules

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric describes one metric family for documentation.
type Metric struct {
	Name, Help string
	// Labels are those of every series of a metric of our own. Of a recorded
	// metric they are those that its rules set; the others come from what it
	// is computed from.
	Labels  []string
	Counter bool
}

// SelfMetrics describes what an Evaluator says of itself on /metrics.
func SelfMetrics() []Metric {
	all := make([]Metric, len(own))
	for i, m := range own {
		all[i] = m.Metric
	}
	return all
}

// metric is a metric of the evaluator's own.
type metric struct {
	Metric
	desc *prometheus.Desc
}

func gauge(name, help string, labelNames ...string) metric {
	return metric{Metric{name, help, labelNames, false}, prometheus.NewDesc(name, help, labelNames, nil)}
}

func counter(name, help string, labelNames ...string) metric {
	m := gauge(name, help, labelNames...)
	m.Counter = true
	return m
}

// of returns a sample of the metric.
func (m metric) of(v float64, labelValues ...string) prometheus.Metric {
	for i, value := range labelValues {
		labelValues[i] = strings.ToValidUTF8(value, "\uFFFD")
	}
	made, err := prometheus.NewConstMetric(m.desc, kindOf(m.Name), v, labelValues...)
	if err != nil {
		return prometheus.NewInvalidMetric(m.desc, fmt.Errorf("making %s: %w", m.Name, err))
	}
	return made
}

// kindOf tells a counter by its name: rules record values without a type.
func kindOf(name string) prometheus.ValueType {
	if strings.HasSuffix(name, "_total") {
		return prometheus.CounterValue
	}
	return prometheus.GaugeValue
}
