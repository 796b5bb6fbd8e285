package probe

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the run's Prometheus series. It observes a runner.
type Metrics struct {
	runner     *Runner
	requests   *prometheus.CounterVec
	violations *prometheus.CounterVec
	tokens     *prometheus.CounterVec
	ttft       *prometheus.HistogramVec
	tpot       *prometheus.HistogramVec
	e2e        *prometheus.HistogramVec
	lag        prometheus.Histogram
	inFlight   *prometheus.Desc
	capped     *prometheus.Desc
	phase      *prometheus.Desc
	left       *prometheus.Desc
}

// The bounds of vLLM's own histograms, so that both can be laid over each other.
var (
	ttftBounds = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	tpotBounds = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	e2eBounds  = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	lagBounds  = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 10}
)

// NewMetrics makes the series of a runner and registers them.
func NewMetrics(runner *Runner, registry prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "headroom_probe_" + name, Help: help}, labels)
	}
	histogram := func(name, help string, bounds []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "headroom_probe_" + name, Help: help, Buckets: bounds}, []string{"class"})
	}
	gauge := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("headroom_probe_"+name, help, labels, nil)
	}
	m := &Metrics{
		runner:     runner,
		requests:   counter("requests_total", "Requests of the probe that ended, by how.", "class", "phase", "outcome"),
		violations: counter("violations_total", "Measured requests that failed or passed a bound of their SLO.", "class"),
		tokens:     counter("output_tokens_total", "Tokens that the probe's requests brought.", "class"),
		ttft:       histogram("ttft_seconds", "Time from the scheduled moment to the first token, measured requests.", ttftBounds),
		tpot:       histogram("tpot_seconds", "Time per output token after the first, measured requests.", tpotBounds),
		e2e:        histogram("e2e_seconds", "Time from the scheduled moment to the last token, measured requests.", e2eBounds),
		lag:        prometheus.NewHistogram(prometheus.HistogramOpts{Name: "headroom_probe_schedule_lag_seconds", Help: "Time from the scheduled moment to the first byte sent, measured requests.", Buckets: lagBounds}),
		inFlight:   gauge("requests_in_flight", "Requests of the probe under way."),
		capped:     gauge("point_capped_requests", "Requests of the point under way that a cap held back."),
		phase:      gauge("phase", "1 for the phase of the point under way.", "point", "phase"),
		left:       gauge("point_remaining_seconds", "Time until the point under way sends no more, where that is known."),
	}
	registry.MustRegister(m)
	return m
}

func (m *Metrics) vectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.violations, m.tokens, m.ttft, m.tpot, m.e2e, m.lag}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range m.vectors() {
		v.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{m.inFlight, m.capped, m.phase, m.left} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, v := range m.vectors() {
		v.Collect(ch)
	}
	s, running := m.runner.Status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(m.inFlight, float64(s.InFlight))
	if !running {
		return
	}
	gauge(m.capped, float64(s.Live.Capped))
	for _, p := range []Phase{PhaseWarmup, PhasePrime, PhaseMeasure, PhaseDrain} {
		on := 0.0
		if p == s.Phase {
			on = 1
		}
		gauge(m.phase, on, s.Point, string(p))
	}
	if s.Left != Never {
		gauge(m.left, s.Left.Seconds())
	}
}

// RequestDone implements Observer.
func (m *Metrics) RequestDone(r *Record) {
	m.requests.WithLabelValues(r.Class, string(r.Phase), string(r.Outcome)).Inc()
	m.tokens.WithLabelValues(r.Class).Add(float64(max(r.CompletionTokens, 0)))
	if r.Phase != PhaseMeasure {
		return
	}
	violations := m.violations.WithLabelValues(r.Class)
	if r.Violation {
		violations.Inc()
	}
	observe := func(o prometheus.Observer, v float64) {
		if v == v { // not NaN
			o.Observe(v)
		}
	}
	observe(m.ttft.WithLabelValues(r.Class), r.TTFT)
	observe(m.tpot.WithLabelValues(r.Class), r.TPOT)
	observe(m.e2e.WithLabelValues(r.Class), r.E2E)
	observe(m.lag, r.Sent-r.Scheduled)
}
