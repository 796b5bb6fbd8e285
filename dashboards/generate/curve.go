package main

// curveRow shows whether the capacity curve counts for a replica, and the load by it.
var curveRow = row{"Capacity curve", []panel{
	curveReasons,
	{
		kind: bars, title: "Reasons to measure again", unit: number, width: 6, height: 8, min: at(0), max: at(1),
		description: "Why the curve should be measured again: its age, drift, a soft difference of its identity. It counts nevertheless.",
		queries:     []query{{expr: `headroom_curve_stale_reason{<pod>}`, legend: "{{pod}}/{{engine}} {{reason}}"}},
		steps:       []step{{0, careful}}, mappings: map[string]string{"1": "measure again"}, empty: "none", runbooks: []string{"HeadroomCurveStale"},
	},
	{
		title: "Coverage", unit: ratio, width: 6, height: 8, min: at(0), max: at(1),
		description: "Share of the live traffic that the curve's classes explain. The curve counts from 0.9 on.",
		queries:     []query{{expr: `headroom_curve_coverage_ratio{<pod>}`, legend: "{{pod}}/{{engine}}"}},
		empty:       "no curve, or too few requests yet", runbooks: []string{"HeadroomCurveUncovered"},
	},
	drift,
	{
		title: "Load by class", unit: ratio, width: 12, height: 8, min: at(0), stack: true,
		description: "What each class of traffic adds to the curve's load ratio; the sum is the load. The dashed line is the watermark of the present mix.",
		queries: []query{
			{expr: `headroom_curve_class_load_ratio{<pod>}`, legend: "{{pod}}/{{engine}} {{class}}"},
			{`max(headroom_curve_watermark_ratio{<pod>})`, "watermark", careful},
			fullLine,
		},
		empty: "no curve, or too few requests yet", runbooks: []string{"HeadroomCurveInvalid"},
	},
	{
		title: "Rate against the knee", unit: requestsPerSecond, width: 12, height: 8, min: at(0),
		description: "Requests per second that arrive, and at which rate of the present mix the curve says full.",
		queries: []query{
			{expr: `headroom_curve_offered_requests_per_second{<pod>}`, legend: "{{pod}}/{{engine}} offered"},
			{expr: `headroom_curve_mix_knee_requests_per_second{<pod>}`, legend: "{{pod}}/{{engine}} knee of the mix"},
		},
		empty: "no curve, or too few requests yet",
	},
}}

var curveReasons = panel{
	kind: bars, title: "Reasons why no curve counts", unit: number, width: 6, height: 8, min: at(0), max: at(1),
	description: "Why no capacity curve is in force: none was given, its identity is not the engine's, too little traffic is covered, too few requests yet.",
	queries:     []query{{expr: `headroom_curve_invalid_reason{<pod>}`, legend: "{{pod}}/{{engine}} {{reason}}"}},
	steps:       []step{{0, bad}}, mappings: map[string]string{"1": "not in force"}, empty: "none: a curve is in force", runbooks: []string{"HeadroomCurveInvalid"},
}

var drift = panel{
	title: "Drift", unit: times, width: 6, height: 8,
	description: "Latency now / what the curve says at this operating point, and the correction factor made of it, 0.5 to 2. Above 1 the engine is slower than when it was measured. It raises the load only with --curve.correction=apply.",
	queries: []query{
		{expr: `headroom_curve_correction_factor{<pod>}`, legend: "{{pod}}/{{engine}} correction"},
		{expr: `headroom_curve_latency_ratio{<pod>}`, legend: "{{pod}}/{{engine}} {{latency}}"},
	},
	empty: "no curve, or nothing to compare yet", runbooks: []string{"HeadroomCurveDrifting"},
}

// outlookRow shows where the load of a replica is going.
var outlookRow = row{"Outlook", []panel{
	{
		title: "Load ratio and its forecast", unit: ratio, width: 8, height: 8, min: at(0),
		description: "The load ratio, and what is expected 15 and 30 minutes ahead. A forecast is hidden while such forecasts are no better than no change; it needs a curve and half an hour of history.",
		queries: []query{
			{expr: `1 - headroom_ratio{<pod>}`, legend: "{{pod}}/{{engine}} now"},
			{expr: `headroom_forecast_load_ratio{<pod>}`, legend: "{{pod}}/{{engine}} in {{horizon}}"},
			fullLine,
		},
		empty: "unknown: the engine's state says why", runbooks: []string{"HeadroomPredictedLost"},
	},
	{
		title: "Skill of the forecast", unit: ratio, width: 8, height: 8, max: at(1),
		description: "1 - mean error of the forecasts of the last day / that of no change. 1 is perfect; below 0 the forecast is worse than none and hidden.",
		queries:     []query{{expr: `headroom_forecast_skill_ratio{<pod>}`, legend: "{{pod}}/{{engine}} {{horizon}}"}},
		empty:       "too few forecasts have been compared with what came",
	},
	{
		title: "Time to the knee", unit: seconds, width: 8, height: 8, min: at(0),
		description: "Seconds until the load ratio is expected to reach 1, and how long it takes to get more capacity. Not drawn when it is not within half an hour.",
		queries: []query{
			{expr: `headroom_forecast_time_to_knee_seconds{<pod>} < +Inf`, legend: "{{pod}}/{{engine}} to the knee"},
			{expr: `headroom_burn_lead_seconds{<pod>}`, legend: "{{pod}}/{{engine}} lead, {{source}}"},
		},
		empty: "no curve is in force", runbooks: []string{"HeadroomPredictedLost"},
	},
	{
		title: "Headroom burn", unit: times, width: 12, height: 8, min: at(0),
		description: "How fast the headroom is used up over 10 and 30 minutes: at 1 it is gone in the time that it takes to get more capacity.",
		queries:     []query{{expr: `headroom_burn_ratio{<pod>}`, legend: "{{pod}}/{{engine}} {{window}}"}},
		empty:       "no curve in force for 8 minutes", runbooks: []string{"HeadroomLostFast"},
	},
	{
		title: "Burstiness of arrivals", unit: times, width: 12, height: 8, min: at(0),
		description: "Variance / mean of the arrivals' counts: 1 when they are random, more when they come in bursts. A knee measured with random arrivals is too high for bursts.",
		queries:     []query{{expr: `headroom_curve_arrival_dispersion_ratio{<pod>}`, legend: "{{pod}}/{{engine}}"}},
		empty:       "no curve, or too few requests yet",
	},
}}
