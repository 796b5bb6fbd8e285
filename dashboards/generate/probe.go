package main

import "fmt"

// probe shows the capacity curves that are in force, and a probe while it measures one.
var probe = board{
	uid: "headroom-probe", title: "Headroom / Probe and curve",
	description: "What was measured: knees by class, the age and identity of each replica's curve, whether it still holds. And the load probe itself while it runs, by its own metrics (probe --web.listen-address).",
	variables:   []variable{source, namespaces("headroom_curve_valid"), pools("headroom_curve_valid"), pods("headroom_curve_valid")},
	rows: []row{
		{"The curve of each replica", []panel{
			{
				kind: big, title: "Curve in force", unit: number, width: 4, height: 7,
				description: "Whether a measured capacity curve counts for the replica.",
				queries:     []query{{expr: `headroom_curve_valid{<pod>}`, legend: "{{pod}}/{{engine}}"}},
				steps:       hintBelow, mappings: yesNo, empty: "no exporter is scraped", runbooks: []string{"HeadroomCurveInvalid"},
			},
			{
				kind: big, title: "Age of the curve", unit: seconds, width: 4, height: 7, decimals: at(1),
				description: "Time since the curve was measured. After 30 days it should be measured again.",
				queries:     []query{{expr: `headroom_curve_age_seconds{<pod>}`, legend: "{{pod}}/{{engine}}"}},
				steps:       []step{{0, good}, {30 * 86400, careful}}, empty: "no curve was given", runbooks: []string{"HeadroomCurveStale"},
			},
			{
				kind: big, title: "Identity", unit: number, width: 8, height: 7, names: true,
				description: "How the id of the curve's identity (model, limits, parallelism, GPU) begins, its source, and whether it is an estimate. Pods of one pool should have the same.",
				queries:     []query{{expr: `label_replace(count by (id, source, estimate) (headroom_curve_info{<pod>}), "begins", "$1", "id", "(.{12}).*")`, legend: "{{begins}}, {{source}}, estimate {{estimate}}"}},
				empty:       "no curve was given",
			},
			{
				kind: big, title: "Curve file in force", unit: number, width: 4, height: 7,
				description: "Whether what is in the curve's file is in force. A file that cannot be read leaves the curve before it in force.",
				queries:     []query{{expr: `headroom_curve_last_reload_successful{<pod>}`, legend: "{{pod}}/{{engine}}"}},
				steps:       warnBelow, mappings: yesNo, empty: "no curve was given", runbooks: []string{"HeadroomCurveInvalid"},
			},
			{
				kind: big, title: "Mix of classes from", unit: number, width: 4, height: 7, names: true,
				description: "Where the mix of classes comes from: histograms is best; sums, last_valid and declared_default are stand-ins.",
				queries:     []query{{expr: `count by (source) (headroom_curve_mix_info{<pod>})`, legend: "{{source}}"}},
				colours:     map[string]string{"histograms": good}, steps: []step{{0, careful}}, empty: "no curve, or no reading",
			},
			{
				kind: bars, title: "Knee by class", unit: requestsPerSecond, width: 12, height: 9, min: at(0),
				description: "Requests per second of one class alone at its knee, as measured: the largest open-loop rate that kept the SLO with a queue that did not grow.",
				queries:     []query{{expr: `headroom_curve_knee_requests_per_second{<pod>}`, legend: "{{pod}}/{{engine}} {{class}}"}},
				empty:       "no curve, or too few requests yet", runbooks: []string{"HeadroomCurveInvalid"},
			},
			{
				title: "Load by the curve and its watermark", unit: ratio, width: 12, height: 9, min: at(0),
				description: "Load ratio by the curve, and the watermark of the present mix: the zone stable ends there.",
				queries: []query{
					{expr: `headroom_load_ratio{<pod>, constraint="curve"}`, legend: "{{pod}}/{{engine}}"},
					{expr: `headroom_curve_watermark_ratio{<pod>}`, legend: "{{pod}}/{{engine}} watermark"},
					fullLine,
				},
				empty: "no curve is in force", runbooks: []string{"HeadroomLow"},
			},
			curveReasons,
			{
				title: "Coverage", unit: ratio, width: 6, height: 8, min: at(0), max: at(1),
				description: "Share of the live traffic that the curve's classes explain. The curve counts from 0.9 on.",
				queries:     []query{{expr: `headroom_curve_coverage_ratio{<pod>}`, legend: "{{pod}}/{{engine}}"}},
				empty:       "no curve, or too few requests yet", runbooks: []string{"HeadroomCurveUncovered"},
			},
			drift,
			{
				title: "Load by class", unit: ratio, width: 6, height: 8, min: at(0), stack: true,
				description: "What each class of traffic adds to the curve's load ratio.",
				queries:     []query{{expr: `headroom_curve_class_load_ratio{<pod>}`, legend: "{{pod}}/{{engine}} {{class}}"}},
				empty:       "no curve, or too few requests yet",
			},
		}},
		{"A probe while it runs", []panel{
			{
				kind: big, title: "Phase of the point", unit: number, width: 6, height: 7, names: true,
				description: "The point under way and its phase: warm-up, prime, measure, drain.",
				queries:     []query{{expr: `headroom_probe_phase{namespace=~"$namespace"} == 1`, legend: "{{point}}: {{phase}}"}},
				empty:       "no probe is measuring",
			},
			{
				kind: big, title: "Time left of the point", unit: seconds, width: 4, height: 7,
				description: "Time until the point under way sends no more, where that is known.",
				queries:     []query{{expr: `headroom_probe_point_remaining_seconds{namespace=~"$namespace"}`, legend: "{{pod}}"}},
				empty:       "no probe is measuring",
			},
			{
				title: "Requests in flight", unit: number, width: 7, height: 7, min: at(0),
				description: "Requests of the probe under way, and those that a cap held back: with any, the load is less open than asked for.",
				queries: []query{
					{expr: `headroom_probe_requests_in_flight{namespace=~"$namespace"}`, legend: "{{pod}} in flight"},
					{expr: `headroom_probe_point_capped_requests{namespace=~"$namespace"}`, legend: "{{pod}} held back"},
				},
				empty: "no probe is scraped",
			},
			{
				title: "Requests that ended, by outcome", unit: requestsPerSecond, width: 7, height: 7, min: at(0),
				description: "Requests of the probe that ended, by class and how. Anything but ok is a violation.",
				queries:     []query{{expr: `sum by (class, outcome) (rate(headroom_probe_requests_total{namespace=~"$namespace"}[$__rate_interval]))`, legend: "{{class}} {{outcome}}"}},
				empty:       "no probe is scraped",
			},
			probeTail("Time to first token, P99", "ttft"),
			probeTail("Time per output token, P99", "tpot"),
			probeTail("End to end, P99", "e2e"),
			{
				title: "Violations", unit: ratio, width: 8, height: 8, min: at(0), max: at(1),
				description: "Share of the measured requests that failed or passed a bound of their SLO.",
				queries: []query{{expr: `sum by (class) (rate(headroom_probe_violations_total{namespace=~"$namespace"}[$__rate_interval]))` +
					` / sum by (class) (rate(headroom_probe_requests_total{namespace=~"$namespace", phase="measure"}[$__rate_interval]))`, legend: "{{class}}"}},
				empty: "no measured request yet",
			},
			{
				title: "Tokens per second", unit: tokensPerSecond, width: 8, height: 8, min: at(0),
				description: "Tokens that the probe's requests brought.",
				queries:     []query{{expr: `sum by (class) (rate(headroom_probe_output_tokens_total{namespace=~"$namespace"}[$__rate_interval]))`, legend: "{{class}}"}},
				empty:       "no probe is scraped",
			},
			{
				title: "Schedule lag, P99", unit: seconds, width: 8, height: 8, min: at(0),
				description: "From the scheduled moment to the first byte sent. Above 10 ms the client limits the load, and the point must not be used.",
				queries:     []query{{expr: `histogram_quantile(0.99, sum by (pod, le) (rate(headroom_probe_schedule_lag_seconds_bucket{namespace=~"$namespace"}[$__rate_interval])))`, legend: "{{pod}}"}},
				empty:       "no measured request yet",
			},
		}},
	},
}

// probeTail is a 99th percentile of what the probe's requests saw.
func probeTail(title, latency string) panel {
	return panel{
		title: title, unit: seconds, width: 8, height: 8, min: at(0),
		description: "Of the measured requests, from the scheduled moment where it starts there, interpolated within the buckets. The probe's report has it exactly.",
		queries: []query{{
			expr:   fmt.Sprintf(`histogram_quantile(0.99, sum by (class, le) (rate(headroom_probe_%s_seconds_bucket{namespace=~"$namespace"}[$__rate_interval])))`, latency),
			legend: "{{class}}",
		}},
		empty: "no measured request yet",
	}
}
