package main

import "fmt"

// headroomSteps colour what is left: none, less than the watermark leaves, enough.
var headroomSteps = []step{{0, bad}, {0, careful}, {1 - watermark, good}}

// watermark is the product's load ratio up to which a replica is stable. Lines
// are drawn from the metric; colours of single numbers cannot be, and a test
// holds this against the product's.
const watermark = 0.80

// hintBelow colours what should be 1, and does no harm while it is not.
var hintBelow = []step{{0, careful}, {1, good}}

// warnAbove colours what should be 0.
var warnAbove = []step{{0, good}, {1, bad}}

// warnBelow colours what should be 1.
var warnBelow = []step{{0, bad}, {1, good}}

var yesNo = map[string]string{"0": "no", "1": "yes"}

var (
	watermarkLine = query{`max(headroom_watermark_ratio{<pod>})`, "watermark", careful}
	fullLine      = query{`max(headroom_watermark_ratio{<pod>}) * 0 + 1`, "full", bad}
)

// replica shows how full a replica is, and why.
var replica = board{
	uid: "headroom-replica", title: "Headroom / Replica",
	description: "How much more a replica can take, what binds it, and why. Headroom first: below it stand its causes, from the queue to the GPU's memory, then the curve that it rests on and where the load is going.",
	variables: []variable{
		source, namespaces("headroom_engine_state"), pools("headroom_engine_state"), pods("headroom_engine_state"),
	},
	rows: []row{
		{"Headroom", []panel{
			{
				kind: big, title: "Headroom now", unit: ratio, width: 7, height: 6, decimals: at(0),
				description: "Share of the replica's capacity that is left under the binding constraint: 1 - the largest load ratio. The fullest replica first. Negative when it is over full. Orange below what the watermark leaves, red at nothing.",
				queries:     []query{{expr: `sort(headroom_ratio{<pod>})`, legend: "{{pod}}/{{engine}}"}},
				steps:       headroomSteps, empty: "unknown: see engine state", runbooks: []string{"HeadroomLow"},
			},
			{
				kind: big, title: "Binding constraint", unit: number, width: 6, height: 6, names: true,
				description: "The constraint with the largest load ratio: what to relieve to gain headroom.",
				queries:     []query{{expr: `headroom_binding_constraint{<pod>} == 1`, legend: "{{pod}}/{{engine}}: {{constraint}}"}},
				empty:       "unknown",
			},
			{
				kind: big, title: "Engine state", unit: number, width: 4, height: 6, names: true,
				description: "What the engine's metrics page is good for: ok and idle can be trusted; stale, disabled, asleep, loading and down cannot, and then there is no headroom.",
				queries:     []query{{expr: `headroom_engine_state{<pod>} == 1`, legend: "{{pod}}: {{state}}"}},
				colours:     map[string]string{"ok": good, "idle": good, "stale": bad, "down": bad, "disabled": bad, "loading": careful, "asleep": careful},
				empty:       "the exporter is not scraped", runbooks: []string{"HeadroomEngineDown", "HeadroomEngineStale"},
			},
			{
				kind: big, title: "Requests per second left", unit: requestsPerSecond, width: 4, height: 6,
				description: "Requests per second of the present traffic mix that it can still take if load grows in proportion. An upper bound while no curve is in force.",
				queries:     []query{{expr: `sort(headroom_requests_per_second{<pod>})`, legend: "{{pod}}/{{engine}}"}},
				empty:       "unknown: no traffic, or no reading",
			},
			{
				kind: big, title: "Curve in force", unit: number, width: 3, height: 6,
				description: "Whether a measured capacity curve counts for this replica. Without one the headroom rests on the engine's limits alone and is an upper bound.",
				queries:     []query{{expr: `headroom_curve_valid{<pod>}`, legend: "{{pod}}/{{engine}}"}},
				steps:       hintBelow, mappings: yesNo, empty: "unknown", runbooks: []string{"HeadroomCurveInvalid"},
			},
			{
				title: "Headroom", unit: ratio, width: 10, height: 9, max: at(1),
				description: "Headroom now and its lowest in the last 5 minutes. The dashed line is what the watermark leaves: below it a replica is at risk.",
				queries: []query{
					{expr: `headroom_ratio{<pod>}`, legend: "{{pod}}/{{engine}}"},
					{expr: `headroom_min_ratio{<pod>, window="5m"}`, legend: "{{pod}}/{{engine}} lowest of 5 min"},
					{`1 - max(headroom_watermark_ratio{<pod>})`, "at the watermark", careful},
				},
				empty: "unknown: the engine's state says why", runbooks: []string{"HeadroomLow"},
			},
			{
				title: "Load ratio by constraint", unit: ratio, width: 10, height: 9, min: at(0),
				description: "Live load / capacity under each constraint; 1 is full, and it is not clamped. The highest line binds. What is not known has no line.",
				queries:     []query{{expr: `headroom_load_ratio{<pod>}`, legend: "{{pod}}/{{engine}} {{constraint}}"}, watermarkLine, fullLine},
				empty:       "unknown: the engine's state says why",
			},
			{
				kind: big, title: "Bottleneck", unit: number, width: 4, height: 9, names: true,
				description: "What limits the replica, by its signs of the last minutes: heat, CPU, slots, KV cache, prefill, decode or the queue; none while it has little to do.",
				queries:     []query{{expr: `headroom_bottleneck{<pod>} == 1`, legend: "{{pod}}/{{engine}}: {{bottleneck}}"}},
				colours:     map[string]string{"none": good}, steps: []step{{0, careful}}, empty: "unknown: the signs show nothing",
			},
			{
				title: "Tokens per second left", unit: tokensPerSecond, width: 12, height: 7, min: at(0),
				description: "Prompt and generated tokens per second of the present mix that it can still take.",
				queries: []query{
					{expr: `headroom_prompt_tokens_per_second{<pod>}`, legend: "{{pod}}/{{engine}} prompt"},
					{expr: `headroom_generation_tokens_per_second{<pod>}`, legend: "{{pod}}/{{engine}} generation"},
				},
				empty: "unknown: no traffic, or no reading",
			},
			{
				title: "Sequence slots left", unit: number, width: 6, height: 7, min: at(0),
				description: "Places in the running batch that are free.",
				queries:     []query{{expr: `headroom_sequence_slots{<pod>}`, legend: "{{pod}}/{{engine}}"}},
				empty:       "unknown: give --engine.max-num-seqs",
			},
			{
				title: "Token slots left", unit: tokens, width: 6, height: 7, min: at(0),
				description: "Tokens of KV cache that are free below its usable share.",
				queries:     []query{{expr: `headroom_token_slots{<pod>}`, legend: "{{pod}}/{{engine}}"}},
				empty:       "unknown: give --engine.kv-tokens",
			},
		}},
		{"Why: slots, queue, rates", []panel{
			{
				title: "Slot occupancy", unit: ratio, width: 8, height: 8, min: at(0), max: at(1),
				description: "Sequence slots and token slots in use / slots. Occupancy is not load: a replica can be full at a third of its KV cache.",
				queries: []query{
					{expr: `headroom_engine_sequence_slot_occupancy_ratio{<pod>}`, legend: "{{pod}}/{{engine}} sequence slots"},
					{expr: `headroom_engine_token_slot_occupancy_ratio{<pod>}`, legend: "{{pod}}/{{engine}} token slots"},
					{`max(headroom_usable_token_slots_ratio{<pod>})`, "usable token slots", careful},
				},
				empty: "the engine does not tell its slots",
			},
			{
				title: "Requests running and waiting", unit: number, width: 8, height: 8, min: at(0),
				description: "Requests in the batch and in the engine's queue. Waiting that only grows is overload, whatever the occupancy says.",
				queries: []query{
					{expr: `headroom_engine_requests_running{<pod>}`, legend: "{{pod}}/{{engine}} running"},
					{expr: `headroom_engine_requests_waiting{<pod>}`, legend: "{{pod}}/{{engine}} waiting"},
				},
				empty: "no reading of the engine", runbooks: []string{"HeadroomQueueGrowing"},
			},
			{
				title: "Queue growth", unit: "suffix:req/s", width: 8, height: 8,
				description: "Slope of the queue's length over a minute and over five; above 0 more arrives than is admitted.",
				queries:     []query{{expr: `headroom_engine_queue_growth_requests_per_second{<pod>}`, legend: "{{pod}}/{{engine}} {{window}}"}},
				empty:       "less than a minute of readings", runbooks: []string{"HeadroomQueueGrowing"},
			},
			{
				title: "Backlog", unit: seconds, width: 8, height: 8, min: at(0),
				description: "Seconds that the engine needs to admit what waits, against the promised time to first token.",
				queries: []query{
					{expr: `headroom_engine_backlog_seconds{<pod>}`, legend: "{{pod}}/{{engine}}"},
					{`max(headroom_slo_ttft_seconds{<pod>})`, "TTFT promised", bad},
				},
				empty: "no rate yet to divide by",
			},
			{
				title: "Requests offered and served", unit: requestsPerSecond, width: 8, height: 8, min: at(0),
				description: "What arrives and what gets its first token. Offered above served is a growing queue.",
				queries: []query{
					{expr: `headroom_engine_offered_requests_per_second{<pod>}`, legend: "{{pod}}/{{engine}} offered"},
					{expr: `headroom_engine_served_requests_per_second{<pod>}`, legend: "{{pod}}/{{engine}} served"},
				},
				empty: "no reading of the engine",
			},
			{
				title: "Token rates", unit: tokensPerSecond, width: 8, height: 8, min: at(0),
				description: "Prompt tokens, those of them that were computed and not found in the prefix cache, and generated tokens.",
				queries: []query{
					{expr: `headroom_engine_prompt_tokens_per_second{<pod>}`, legend: "{{pod}}/{{engine}} prompt"},
					{expr: `headroom_engine_computed_prompt_tokens_per_second{<pod>}`, legend: "{{pod}}/{{engine}} prompt computed"},
					{expr: `headroom_engine_generation_tokens_per_second{<pod>}`, legend: "{{pod}}/{{engine}} generated"},
				},
				empty: "no reading of the engine",
			},
			{
				title: "Preemptions", unit: sequencesPerS, width: 8, height: 8, min: at(0),
				description: "Sequences per second thrown out of the batch to be recomputed: the KV cache is too small for what runs.",
				queries:     []query{{expr: `headroom_engine_preemptions_mean_per_second{<pod>}`, legend: "{{pod}}/{{engine}} {{window}}"}},
				empty:       "the engine does not count them", runbooks: []string{"HeadroomPreemptionSustained"},
			},
			{
				title: "Memory bandwidth saturation", unit: ratio, width: 8, height: 8, min: at(0),
				description: "Device memory bandwidth in use / achievable, by source: gpm is measured, engine is the engine's estimate, model is the exporter's step model. Decode is bound by it.",
				queries:     []query{{expr: `headroom_bandwidth_saturation_ratio{<pod>}`, legend: "{{pod}}/{{engine}} {{source}}"}},
				empty:       "no source: no GPM, no estimate by the engine, no model", runbooks: []string{"HeadroomBandwidthSaturated"},
			},
			{
				title: "Latency pressure by phase", unit: ratio, width: 8, height: 8, min: at(0),
				description: "Mean latency over a minute / its SLO threshold: time to first token for prefill, time between tokens for decode. 1 is as slow as allowed; the higher line is the bottleneck.",
				queries:     []query{{expr: `headroom_engine_latency_pressure_ratio{<pod>}`, legend: "{{pod}}/{{engine}} {{phase}}"}},
				empty:       "no request in the last minute",
			},
		}},
		{"Latency tails and SLO budgets", []panel{
			tail("Time to first token, P99", "time_to_first_token", "headroom_slo_ttft_seconds", "TTFT"),
			tail("Time between tokens, P99", "inter_token_latency", "headroom_slo_itl_seconds", "ITL"),
			tail("End to end, P99", "e2e_latency", "headroom_slo_e2e_seconds", "E2E"),
			{
				title: "Share that met the SLO", unit: ratio, width: 12, height: 8, max: at(1),
				description: "Share of the last 5 minutes' requests (ttft, tpot, e2e) or pairs of tokens (itl) that met the threshold, and the objective. Only where the threshold is a bound of the engine's histogram.",
				queries: []query{
					{expr: `headroom_slo_good_ratio{<pod>, window="5m"}`, legend: "{{pod}}/{{engine}} {{slo}}"},
					{`max(headroom_slo_objective_ratio{<pod>})`, "objective", bad},
				},
				empty: "no traffic, or the threshold is no bucket bound",
			},
			{
				title: "SLO burn rate", unit: times, width: 12, height: 8, min: at(0),
				description: "How many times faster than the objective allows the error budget is spent, of a replica's worst rank, over 5 minutes and an hour. At 1 the budget lasts exactly as long as it was made for.",
				queries: []query{
					{expr: `max by (pod, slo, window) (headroom_slo_burn_rate{<pod>, window=~"5m|1h"})`, legend: "{{pod}} {{slo}} {{window}}"},
					{`max(headroom_slo_objective_ratio{<pod>}) * 0 + 1`, "as allowed", careful},
				},
				empty: "no traffic, or the threshold is no bucket bound", runbooks: []string{"HeadroomSLOBurn"},
			},
			{
				title: "Mean latencies", unit: seconds, width: 24, height: 8, min: at(0),
				description: "Means over the last minute: which stage takes the time. Queue is waiting for a place, prefill is computing the prompt.",
				queries: []query{
					{expr: `headroom_engine_time_to_first_token_mean_seconds{<pod>}`, legend: "{{pod}}/{{engine}} time to first token"},
					{expr: `headroom_engine_queue_time_mean_seconds{<pod>}`, legend: "{{pod}}/{{engine}} queue"},
					{expr: `headroom_engine_prefill_time_mean_seconds{<pod>}`, legend: "{{pod}}/{{engine}} prefill"},
					{expr: `headroom_engine_inter_token_latency_mean_seconds{<pod>}`, legend: "{{pod}}/{{engine}} between tokens"},
				},
				empty: "no request in the last minute",
			},
		}},
		curveRow,
		outlookRow,
		{"The exporter", []panel{
			{
				title: "Age of the readings", unit: seconds, width: 8, height: 7, min: at(0),
				description: "Seconds since the newest good page of the engine, and since the exporter's loop last published. A second or two is usual.",
				queries: []query{
					{expr: `headroom_engine_snapshot_age_seconds{<pod>}`, legend: "{{pod}} engine's page"},
					{expr: `headroom_exporter_snapshot_age_seconds{<pod>}`, legend: "{{pod}} exporter's loop"},
				},
				empty: "the exporter is not scraped",
			},
			{
				title: "Failures", unit: number, width: 8, height: 7, min: at(0),
				description: "Polls of the engine that gave no reading by reason, evaluations of rules that failed, and panics that were caught, each over the rate interval.",
				queries: []query{
					{expr: `sum by (pod, reason) (increase(headroom_exporter_engine_poll_failures_total{<pod>}[$__rate_interval]))`, legend: "{{pod}} poll: {{reason}}"},
					{expr: `sum by (pod, rule) (increase(headroom_exporter_rule_evaluation_failures_total{<pod>}[$__rate_interval]))`, legend: "{{pod}} rule: {{rule}}"},
					{expr: `sum by (pod) (increase(headroom_exporter_panics_total{<pod>}[$__rate_interval]))`, legend: "{{pod}} panics"},
				},
				empty: "none since the exporter started", runbooks: []string{"HeadroomSidecarRulesFailing"},
			},
			{
				kind: bars, title: "Signals that engines lack", unit: number, width: 8, height: 7, min: at(0),
				description: "Signals that are not on the metrics page, by how many of the replicas lack them: what rests on them is unknown.",
				queries:     []query{{expr: `count by (signal) (headroom_engine_signal_available{<pod>} == 0)`, legend: "{{signal}}"}},
				steps:       []step{{0, careful}}, empty: "none: every signal is there", runbooks: []string{"HeadroomInputMissing"},
			},
		}},
	},
}

// tail is the interval of a 99th percentile against its promise.
func tail(title, metric, slo, short string) panel {
	bound := func(end string) string {
		return fmt.Sprintf(`headroom_engine_%s_percentile_%s_seconds{<pod>, percentile="99"}`, metric, end)
	}
	return panel{
		title: title, unit: seconds, width: 8, height: 9, min: at(0),
		description: "With 95 % confidence the percentile of the last 5 minutes lies between the two lines. A wide band means coarse buckets or few requests. Without an upper line the requests are too few to bound it.",
		queries: []query{
			// +Inf says that nothing bounds it; it cannot be drawn.
			{expr: bound("upper") + " < +Inf", legend: "{{pod}}/{{engine}} at most"},
			{expr: bound("lower"), legend: "{{pod}}/{{engine}} above"},
			{"max(" + slo + "{<pod>})", short + " promised", bad},
		},
		empty: "no request in the last 5 minutes", runbooks: []string{"HeadroomSLOBurn"},
	}
}
