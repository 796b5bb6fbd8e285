package web

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/sidecar"
)

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

var (
	noLabels    = []string(nil)
	modelLabels = []string{"model_name"}
	rankLabels  = []string{"model_name", "engine"}
)

// with returns the rank labels and one more.
func with(label string) []string { return append(slices.Clone(rankLabels), label) }

// groups is every metric that this package exposes. /metrics is read off it,
// and docs/metrics.md is written from it.
var groups = []group{
	{
		title: "Headroom",
		intro: "What a replica can still take. Published only while the engine's state is ok or idle; a number that is not known has no series.",
		families: []family{
			{"headroom_ratio", gauge, "Share of the replica's capacity that is left under the binding constraint: 1 - the largest known load ratio. Negative when the replica is over full.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.HeadroomRatio })},
			{"headroom_load_ratio", gauge, "Live load / capacity under one constraint: 1 is full, above 1 is too much, not clamped. A constraint that is not known has no series.",
				with("constraint"), freshEach(readLoadRatios)},
			{"headroom_binding_constraint", gauge, "1 for the constraint that binds, 0 for the others: the one with the largest load ratio, or the one that was it while it is at most 0.2 smaller and for at most two readings more than 0.05. None binds while no ratio is above 0.",
				with("constraint"), freshEach(readBinding)},
			{"headroom_requests_per_second", gauge, "Requests per second of the present traffic mix that the replica can still take, the least that any constraint leaves if load grows in proportion: at most headroom_curve_mix_knee_requests_per_second - headroom_curve_offered_requests_per_second while headroom_curve_valid is 1, an upper bound while it is 0.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Left.RequestsPerSecond })},
			{"headroom_prompt_tokens_per_second", gauge, "Prompt tokens per second of the present traffic mix that the replica can still take.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Left.PromptTokensPerSecond })},
			{"headroom_generation_tokens_per_second", gauge, "Generated tokens per second of the present traffic mix that the replica can still take.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Left.GenerationTokensPerSecond })},
			{"headroom_sequence_slots", gauge, "Sequence slots that are free.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Left.SequenceSlots })},
			{"headroom_token_slots", gauge, "Token slots (tokens of KV cache) that are free below the usable share of the cache.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Left.TokenSlots })},
			{"headroom_watermark_ratio", gauge, "Load ratio up to which a replica counts as stable under the constraints other than the curve, which has its own (constant).",
				noLabels, constant(capacity.Watermark)},
			{"headroom_slo_ttft_seconds", gauge, "Time to first token that the service promises, in seconds (constant).",
				noLabels, promise(func(s sidecar.SLO) time.Duration { return s.TimeToFirstToken })},
			{"headroom_slo_itl_seconds", gauge, "Time between two tokens that the service promises, in seconds (constant).",
				noLabels, promise(func(s sidecar.SLO) time.Duration { return s.TokenLatency })},
			{"headroom_slo_tpot_seconds", gauge, "Time per output token that the service promises, in seconds (constant, the same as between two tokens).",
				noLabels, promise(func(s sidecar.SLO) time.Duration { return s.TokenLatency })},
			{"headroom_slo_e2e_seconds", gauge, "Time to the last token that the service promises, in seconds (constant).",
				noLabels, promise(func(s sidecar.SLO) time.Duration { return s.E2ELatency })},
			{"headroom_slo_objective_ratio", gauge, "Share of requests or tokens that must keep the promises (constant).",
				noLabels, ofSnapshot(func(s *sidecar.Snapshot, _ view, add add) { add(s.SLO.Objective) })},
			{"headroom_usable_token_slots_ratio", gauge, "Share of the KV cache's token slots that counts as capacity (constant).",
				noLabels, constant(capacity.UsableTokenSlots)},
		},
	},
	{
		title: "Headroom over the ranks of a pod",
		intro: "One series per model. Absent when a part of it is not known.",
		families: []family{
			{"headroom_worst_rank_ratio", gauge, "Smallest headroom ratio of the ranks whose state is ok or idle.",
				modelLabels, perModel(worstRank)},
			{"headroom_all_ranks_load_ratio", gauge, "Load ratio of all ranks together: the mean of theirs, weighted by the requests that they are offered. Only of several ranks.",
				modelLabels, severalRanks(loadOverRanks)},
			{"headroom_rank_imbalance_ratio", gauge, "Largest load ratio of a model's ranks / the mean of them: 1 is even, the number of ranks is all on one. Only of several ranks.",
				modelLabels, severalRanks(rankImbalance)},
			{"headroom_binding_rank", gauge, "1 for the rank with the largest load ratio, 0 for the model's others. Only of several ranks.",
				rankLabels, readBindingRank},
			{"headroom_all_ranks_curve_load_ratio", gauge, "Load ratio by the capacity curve of all ranks together: the mean of theirs, weighted by the requests that they are offered.",
				modelLabels, perModel(curveOverRanks)},
			{"headroom_all_ranks_requests_per_second", gauge, "Requests per second of the present traffic mix that all ranks together can still take.",
				modelLabels, perModel(sumOf(func(r *sidecar.Replica) float64 { return r.Left.RequestsPerSecond }))},
			{"headroom_all_ranks_sequence_slots", gauge, "Sequence slots that are free on all ranks together.",
				modelLabels, perModel(sumOf(func(r *sidecar.Replica) float64 { return r.Left.SequenceSlots }))},
			{"headroom_all_ranks_token_slots", gauge, "Token slots that are free below the usable share of the cache on all ranks together.",
				modelLabels, perModel(sumOf(func(r *sidecar.Replica) float64 { return r.Left.TokenSlots }))},
		},
	},
	{
		title: "Capacity curve",
		intro: "Whether the measured capacity curve counts for this replica, and the live load by it. What rests on the curve is there only while it counts, with one exception: where the part of the traffic that its classes explain is above the knee by itself, the load ratio by the curve and those of its classes are there, and headroom rests on them, although headroom_curve_valid is 0.",
		families: []family{
			{"headroom_curve_valid", gauge, "1 when a capacity curve is in force for this replica, 0 when headroom rests on the engine's limits alone, or on the part of an overload that the curve explains.",
				rankLabels, named(func(r *sidecar.Replica, add rankAdd) { add(truth(r.Curve.Valid && r.State.Known())) })},
			{"headroom_curve_invalid_reason", gauge, "1 for each reason why no capacity curve is in force.",
				with("reason"), named(readCurveReasons)},
			{"headroom_curve_stale_reason", gauge, "1 for each reason to measure the capacity curve again; it counts nevertheless.",
				with("reason"), named(func(r *sidecar.Replica, add rankAdd) {
					for _, reason := range r.Curve.Stale {
						add(1, reason)
					}
				})},
			{"headroom_curve_info", gauge, "Always 1; the labels say which capacity curve was given: the id of its identity, its source (measured, imported or simulated), whether it is an estimate, and the bounds that its knees stand for, as --slo takes them.",
				append(with("id"), "source", "estimate", "slo"), ofCurve(func(r *sidecar.Replica, add rankAdd) {
					c := r.Curve.Curve
					add(1, c.ID, string(c.Source), strconv.FormatBool(c.Estimate), strings.Join(sloTexts(curveSLOs(c)), ","))
				})},
			{"headroom_curve_age_seconds", gauge, "Seconds since the capacity curve was measured.",
				rankLabels, ofCurve(func(r *sidecar.Replica, add rankAdd) { add(curveAge(&r.Curve)) })},
			{"headroom_curve_last_reload_successful", gauge, "1 when what is in the capacity curve's file is in force, 0 when it could not be read and the curve before it stays.",
				rankLabels, ofCurve(func(r *sidecar.Replica, add rankAdd) { add(truth(r.Curve.FileError == "")) })},
			{"headroom_curve_coverage_ratio", gauge, "Share of the live traffic that the curve's classes explain; the curve counts from 0.9 on.",
				rankLabels, byCurve(func(c *sidecar.CurveStatus) float64 { return c.Load.Coverage })},
			{"headroom_curve_mix_info", gauge, "Always 1; the label says where the mix of classes comes from: histograms, sums, last_valid, declared_default or none.",
				with("source"), freshEach(func(r *sidecar.Replica, add rankAdd) {
					if r.Curve.Curve != nil {
						add(1, string(r.Curve.Load.Mix.Source))
					}
				})},
			{"headroom_curve_offered_requests_per_second", gauge, "Requests per second that arrive, as the load is judged by: a step shows within seconds.",
				rankLabels, byCurve(func(c *sidecar.CurveStatus) float64 { return c.OfferedRequests })},
			{"headroom_curve_standard_error_ratio", gauge, "By how much of it the curve's load ratio was raised, as it rests on no more requests than ended: one standard error.",
				rankLabels, valid(func(r *sidecar.Replica) float64 { return r.Curve.Load.StandardError })},
			{"headroom_curve_mix_knee_requests_per_second", gauge, "Requests per second of the present mix at which the curve's load ratio is 1: its knee, or where a class of it has none that is known (headroom_curve_knee_requests_per_second is not there) a rate that is known to be safe.",
				rankLabels, valid(func(r *sidecar.Replica) float64 { return r.Curve.Load.Knee })},
			{"headroom_curve_watermark_ratio", gauge, "The curve's load ratio at its watermark, of the present mix: the zone stable ends there.",
				rankLabels, valid(func(r *sidecar.Replica) float64 { return r.Curve.Load.Watermark })},
			{"headroom_curve_knee_requests_per_second", gauge, "Requests per second of a class alone at its knee, where that is known; the first 16 classes of the curve.",
				with("class"), freshEach(readClasses(func(k *curve.ClassLoad) float64 { return k.Knee }))},
			{"headroom_curve_class_load_ratio", gauge, "What a class adds to the curve's load ratio; the first 16 classes of the curve.",
				with("class"), freshEach(readClasses(func(k *curve.ClassLoad) float64 { return k.Ratio }))},
			{"headroom_curve_correction_factor", gauge, "How many times longer latencies are than the curve says at this operating point, 0.5 to 2; 1 where too little was compared. It raises the load ratio only with --curve.correction=apply.",
				rankLabels, byCurve(func(c *sidecar.CurveStatus) float64 { return c.CorrectionFactor })},
			{"headroom_curve_latency_ratio", gauge, "Mean latency of the last minute / what the curve says at this operating point, by latency: time_to_first_token or inter_token_latency.",
				with("latency"), freshEach(func(r *sidecar.Replica, add rankAdd) {
					if r.Curve.Curve != nil {
						add(r.Curve.TTFTRatio, "time_to_first_token")
						add(r.Curve.ITLRatio, "inter_token_latency")
					}
				})},
			{"headroom_curve_generation_rate_ratio", gauge, "Generated tokens per second of the last minute / what the curve says at as many running requests. Only with 30 % or more of the KV cache in use: with less the rate is that of the traffic.",
				rankLabels, byCurve(func(c *sidecar.CurveStatus) float64 { return c.GenerationRatio })},
			{"headroom_curve_speculative_tokens_per_step", gauge, "Tokens that a step of a sequence gave with speculative decoding when the curve was measured, of the present mix.",
				rankLabels, byCurve(func(c *sidecar.CurveStatus) float64 { return c.TokensPerStep })},
			{"headroom_curve_probe_running", gauge, "1 while a probe is seen to measure this curve anew, whose load counts as traffic, 0 while none is.",
				rankLabels, ofCurve(func(r *sidecar.Replica, add rankAdd) { add(truth(r.Curve.ProbeRunning)) })},
			{"headroom_curve_arrival_dispersion_ratio", gauge, "How bursty arrivals are: variance / mean of their counts, 1 when they are random. Not there before at least 60 s of arrivals.",
				rankLabels, byCurve(func(c *sidecar.CurveStatus) float64 { return c.Burstiness.Dispersion })},
		},
	},
	{
		title: "Outlook",
		intro: "Where the load ratio is going, and what limits the replica. Forecast and burn are there only while the capacity curve counts.",
		families: []family{
			{"headroom_forecast_time_to_knee_seconds", gauge, "Seconds until the load ratio is expected to reach 1: 0 when it has, +Inf when it is not within half an hour. Hidden while such forecasts are no better than no change.",
				rankLabels, valid(func(r *sidecar.Replica) float64 { return r.Forecast.TimeToKnee })},
			{"headroom_forecast_load_ratio", gauge, "Load ratio expected at a horizon. Hidden while such forecasts are no better than no change.",
				with("horizon"), freshEach(readHorizons(func(h *sidecar.Horizon) float64 { return h.LoadRatio }))},
			{"headroom_forecast_skill_ratio", gauge, "1 - mean error of the forecasts of the last day / that of no change: 1 is perfect, below 0 is worse than no change.",
				with("horizon"), freshEach(readHorizons(func(h *sidecar.Horizon) float64 { return h.Skill.Ratio }))},
			{"headroom_burn_ratio", gauge, "How fast the headroom is used up over a window: at 1 it is gone in the time that it takes to get more capacity.",
				with("window"), freshEach(func(r *sidecar.Replica, add rankAdd) {
					if r.Curve.Valid {
						add(r.Burn.Fast, "10m")
						add(r.Burn.Slow, "30m")
					}
				})},
			{"headroom_burn_lead_seconds", gauge, "Seconds that it takes to get more capacity, by source: measured is the engine's last start, default an assumption.",
				with("source"), freshEach(func(r *sidecar.Replica, add rankAdd) {
					if r.Curve.Valid {
						add(r.Burn.LeadSeconds, leadSource(r.Burn))
					}
				})},
			{"headroom_bottleneck", gauge, "1 for what limits the replica, 0 for the others: gpu_throttled, cpu, slots, kv, prefill, decode, queue, or none.",
				with("bottleneck"), freshEach(readBottleneck)},
		},
	},
	{
		title: "Engine",
		intro: "What the engine says of itself, normalised. Numbers per rank are published only while that rank's state is ok or idle.",
		families: []family{
			{"headroom_engine_state", gauge, "1 for the state of the engine as a whole, 0 for the others: ok, idle (nothing to do), stale (answers, cannot be trusted), disabled (no engine metrics on the page), asleep, loading, down.",
				[]string{"state"}, ofSnapshot(func(s *sidecar.Snapshot, v view, add add) {
					for _, state := range engine.States {
						add(truth(s.Engine.State == state), string(state))
					}
				})},
			{"headroom_engine_rank_state", gauge, "1 for the state of the rank, 0 for the others.",
				with("state"), named(func(r *sidecar.Replica, add rankAdd) {
					for _, state := range engine.States {
						add(truth(r.State == state), string(state))
					}
				})},
			{"headroom_engine_info", gauge, "Always 1; the labels say what the engine is.",
				[]string{"engine_type", "engine_version"}, ofSnapshot(func(s *sidecar.Snapshot, v view, add add) {
					if s.Engine.Type != engine.TypeUnknown {
						add(1, string(s.Engine.Type), s.Engine.Version)
					}
				})},
			{"headroom_engine_snapshot_age_seconds", gauge, "Seconds since the newest good page of engine metrics arrived.",
				noLabels, ofSnapshot(func(s *sidecar.Snapshot, v view, add add) { add(readingAge(s, v.now)) })},
			{"headroom_engine_signal_available", gauge, "1 when the engine's page carries the signal, 0 when it does not.",
				[]string{"signal"}, ofSnapshot(func(s *sidecar.Snapshot, v view, add add) {
					for signal, available := range s.Engine.Available {
						add(truth(available), signal)
					}
				})},
			{"headroom_engine_startup_seconds", gauge, "Seconds that the engine's last start took that was seen, from down or loading until it served.",
				noLabels, ofSnapshot(func(s *sidecar.Snapshot, v view, add add) { add(positiveSeconds(s.Engine.Startup)) })},
			{"headroom_engine_series", gauge, "Samples on the engine's metrics page.",
				noLabels, ofSnapshot(func(s *sidecar.Snapshot, v view, add add) { add(positive(s.Engine.Series)) })},
			{"headroom_engine_max_model_length_tokens", gauge, "Longest sequence that the engine takes, in tokens.",
				noLabels, ofSnapshot(func(s *sidecar.Snapshot, v view, add add) { add(positive(s.Engine.MaxModelLen)) })},
			{"headroom_engine_limit_info", gauge, "Always 1; the label source says where the value of a limit comes from: flag, metric, blocks (KV blocks x block size), server_info, cmdline or default.",
				append(with("limit"), "source"), freshEach(readLimits)},

			{"headroom_engine_sequence_slots", gauge, "Sequence slots of the rank (max_num_seqs).",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.SequenceSlots.Total })},
			{"headroom_engine_sequence_slots_used", gauge, "Sequence slots in use.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.SequenceSlots.Used })},
			{"headroom_engine_sequence_slot_occupancy_ratio", gauge, "Sequence slots in use / sequence slots; above 1 only when the limit that was given is wrong.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.SequenceSlots.Ratio })},
			{"headroom_engine_token_slots", gauge, "Token slots of the rank: tokens that its KV cache holds.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.TokenSlots.Total })},
			{"headroom_engine_token_slots_used", gauge, "Token slots in use.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.TokenSlots.Used })},
			{"headroom_engine_token_slot_occupancy_ratio", gauge, "Token slots in use / token slots.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.TokenSlots.Ratio })},
			{"headroom_engine_token_budget", gauge, "Tokens that one engine step may compute (max_num_batched_tokens).",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.BatchedTokens.Value })},

			{"headroom_engine_requests_running", gauge, "Requests in the running batch.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.RequestsRunning })},
			{"headroom_engine_requests_waiting", gauge, "Requests in the engine's queue.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.RequestsWaiting })},
			{"headroom_engine_backlog_seconds", gauge, "Seconds that the engine needs to admit what waits.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.BacklogSeconds })},

			{"headroom_engine_offered_requests_per_second", gauge, "Requests per second that arrive: first tokens per second, which count requests that are cancelled later, plus the growth of the queue.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Rates.OfferedRequests })},
			{"headroom_engine_served_requests_per_second", gauge, "Requests per second that get their first token.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Rates.ServedRequests })},
			{"headroom_engine_prompt_tokens_per_second", gauge, "Prompt tokens per second, those found in the prefix cache included.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Rates.PromptTokens })},
			{"headroom_engine_computed_prompt_tokens_per_second", gauge, "Prompt tokens per second that were computed, not found in the prefix cache.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Rates.ComputedPromptTokens })},
			{"headroom_engine_generation_tokens_per_second", gauge, "Generated tokens per second.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Rates.GenerationTokens })},
			{"headroom_engine_preemptions_per_second", gauge, "Sequences per second thrown out of the batch to be recomputed.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Rates.Preemptions })},
			{"headroom_engine_steps_per_second", gauge, "Engine steps (forward passes) per second.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Rates.Steps })},

			{"headroom_engine_speculative_tokens_per_step", gauge, "Mean of tokens that a step of a sequence gives with speculative decoding, 1 + accepted tokens / drafts over the last 5 minutes. Only while the engine drafts.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.TokensPerStep })},

			{"headroom_engine_time_to_first_token_mean_seconds", gauge, "Mean time to first token over the last minute, in seconds.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Latencies.TimeToFirstToken })},
			{"headroom_engine_inter_token_latency_mean_seconds", gauge, "Mean time between tokens of a request over the last minute, in seconds.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Latencies.InterTokenLatency })},
			{"headroom_engine_queue_time_mean_seconds", gauge, "Mean time that requests spent in the engine's queue over the last minute, in seconds.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Latencies.QueueTime })},
			{"headroom_engine_prefill_time_mean_seconds", gauge, "Mean time that requests spent in prefill over the last minute, in seconds.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Latencies.PrefillTime })},

			{"headroom_bandwidth_saturation_ratio", gauge, "Device memory bandwidth in use / achievable bandwidth, by source: gpm is measured, engine is the engine's own estimate, model is this exporter's step model.",
				with("source"), freshEach(func(r *sidecar.Replica, add rankAdd) {
					for _, b := range r.Bandwidth {
						add(b.Ratio, b.Source)
					}
				})},
		},
	},
	{
		title: "Exporter",
		intro: "How the exporter itself does.",
		families: []family{
			{"headroom_exporter_snapshot_age_seconds", gauge, "Seconds since the live loop published its newest snapshot; grows when the loop stands still.",
				noLabels, ofSnapshot(func(s *sidecar.Snapshot, v view, add add) { add(v.now.Sub(s.At).Seconds()) })},
			{"headroom_exporter_engine_polls_total", counter, "Polls of the engine's metrics page.",
				noLabels, stat(func(st *engine.Stats) uint64 { return st.Polls })},
			{"headroom_exporter_engine_poll_failures_total", counter, "Polls that gave no reading, by reason.",
				[]string{"reason"}, ofSnapshot(func(s *sidecar.Snapshot, v view, add add) {
					for _, reason := range slices.Sorted(maps.Keys(s.Engine.Stats.Failures)) {
						add(float64(s.Engine.Stats.Failures[reason]), reason)
					}
				})},
			{"headroom_exporter_engine_poll_duration_seconds", gauge, "Duration of the newest request for the engine's metrics page, in seconds.",
				noLabels, ofSnapshot(func(s *sidecar.Snapshot, v view, add add) { add(s.Engine.PollDuration.Seconds()) })},
			{"headroom_exporter_engine_duplicate_samples_total", counter, "Samples that appeared more than once on one page.",
				noLabels, stat(func(st *engine.Stats) uint64 { return st.DuplicateSamples })},
			{"headroom_exporter_engine_resets_total", counter, "Restarts of the engine's counters at 0, one per rank and restart of the engine.",
				noLabels, stat(func(st *engine.Stats) uint64 { return st.CounterResets })},
			{"headroom_exporter_engine_rejected_samples_total", counter, "Values of the engine that cannot be, such as a usage above 1.",
				noLabels, stat(func(st *engine.Stats) uint64 { return st.RejectedSamples })},
			{"headroom_exporter_panics_total", counter, "Panics that were caught, in the live loop and while answering requests.",
				noLabels, func(v view, add add) {
					n := v.panics
					if v.snapshot != nil {
						n += v.snapshot.Panics
					}
					add(float64(n))
				}},
		},
	},
}

// rankAdd publishes one sample of a rank; extra are the label values after the rank's own.
type rankAdd func(value float64, extra ...string)

// ofSnapshot reads nothing before the first snapshot.
func ofSnapshot(read func(*sidecar.Snapshot, view, add)) func(view, add) {
	return func(v view, add add) {
		if v.snapshot != nil {
			read(v.snapshot, v, add)
		}
	}
}

// constant publishes a number that never changes, so that queries need not repeat it.
func constant(value float64) func(view, add) {
	return func(_ view, add add) { add(value) }
}

// promise publishes one threshold of the SLO, if it is promised.
func promise(threshold func(sidecar.SLO) time.Duration) func(view, add) {
	return ofSnapshot(func(s *sidecar.Snapshot, _ view, add add) {
		if t := threshold(s.SLO); t > 0 {
			add(t.Seconds())
		}
	})
}

// named reads every rank that has a name, whatever its state.
func named(read func(*sidecar.Replica, rankAdd)) func(view, add) {
	return ofSnapshot(func(s *sidecar.Snapshot, _ view, add add) {
		for i := range s.Replicas {
			r := &s.Replicas[i]
			if r.ModelName == "" && r.Engine == "" {
				continue
			}
			read(r, func(value float64, extra ...string) {
				add(value, append([]string{r.ModelName, r.Engine}, extra...)...)
			})
		}
	})
}

// freshEach reads the ranks whose numbers may be published.
func freshEach(read func(*sidecar.Replica, rankAdd)) func(view, add) {
	return named(func(r *sidecar.Replica, add rankAdd) {
		if r.State.Known() {
			read(r, add)
		}
	})
}

// fresh reads one number of each rank whose numbers may be published.
func fresh(value func(*sidecar.Replica) float64) func(view, add) {
	return freshEach(func(r *sidecar.Replica, add rankAdd) { add(value(r)) })
}

func stat(value func(*engine.Stats) uint64) func(view, add) {
	return ofSnapshot(func(s *sidecar.Snapshot, _ view, add add) { add(float64(value(&s.Engine.Stats))) })
}

// perModel folds the ranks of each model into one number.
func perModel(fold func([]*sidecar.Replica) float64) func(view, add) {
	return ofSnapshot(func(s *sidecar.Snapshot, _ view, add add) {
		for _, ranks := range ranksByModel(s) {
			add(fold(ranks), ranks[0].ModelName)
		}
	})
}

// ranksByModel are the ranks that have a name, those of each model together.
func ranksByModel(s *sidecar.Snapshot) [][]*sidecar.Replica {
	var models [][]*sidecar.Replica
	for i := range s.Replicas {
		r := &s.Replicas[i]
		if r.ModelName == "" && r.Engine == "" {
			continue
		}
		at := slices.IndexFunc(models, func(ranks []*sidecar.Replica) bool { return ranks[0].ModelName == r.ModelName })
		if at < 0 {
			models = append(models, nil)
			at = len(models) - 1
		}
		models[at] = append(models[at], r)
	}
	return models
}

// severalRanks folds the ranks of each model that has more than one.
func severalRanks(fold func([]*sidecar.Replica) float64) func(view, add) {
	return perModel(func(ranks []*sidecar.Replica) float64 {
		if len(ranks) < 2 {
			return math.NaN()
		}
		return fold(ranks)
	})
}

// loadOverRanks is the load ratio of ranks together.
func loadOverRanks(ranks []*sidecar.Replica) float64 {
	return overRanks(ranks,
		func(r *sidecar.Replica) float64 { return r.LoadRatio },
		func(r *sidecar.Replica) float64 { return r.Rates.OfferedRequests })
}

// rankImbalance is the largest load ratio / the mean; unknown without any load.
func rankImbalance(ranks []*sidecar.Replica) float64 {
	most, sum := math.Inf(-1), 0.0
	for _, r := range ranks {
		if !r.State.Known() {
			return math.NaN()
		}
		most, sum = math.Max(most, r.LoadRatio), sum+r.LoadRatio // math.Max keeps NaN
	}
	if !(sum > 0) {
		return math.NaN()
	}
	return most * float64(len(ranks)) / sum
}

// bindingRank is the one with the largest load ratio, the first of equals; nil
// when a rank that serves does not know its own, for that one may be it.
func bindingRank(ranks []*sidecar.Replica) *sidecar.Replica {
	var binding *sidecar.Replica
	for _, r := range ranks {
		switch {
		case !r.State.Known():
		case math.IsNaN(r.LoadRatio):
			return nil
		case binding == nil || r.LoadRatio > binding.LoadRatio:
			binding = r
		}
	}
	return binding
}

func readBindingRank(v view, add add) {
	if v.snapshot == nil {
		return
	}
	for _, ranks := range ranksByModel(v.snapshot) {
		binding := bindingRank(ranks)
		if binding == nil || len(ranks) < 2 {
			continue
		}
		for _, r := range ranks {
			if r.State.Known() {
				add(truth(r == binding), r.ModelName, r.Engine)
			}
		}
	}
}

// worstRank is the smallest headroom ratio of the ranks that serve; unknown
// when one of them does not know its own, for that one may be the worst.
func worstRank(ranks []*sidecar.Replica) float64 {
	worst := math.Inf(1)
	for _, r := range ranks {
		if r.State.Known() {
			worst = math.Min(worst, r.HeadroomRatio) // math.Min keeps NaN
		}
	}
	if math.IsInf(worst, 1) {
		return math.NaN()
	}
	return worst
}

// sumOf adds a number up over all ranks; unknown when one of the parts is.
func sumOf(value func(*sidecar.Replica) float64) func([]*sidecar.Replica) float64 {
	return func(ranks []*sidecar.Replica) float64 {
		sum := 0.0
		for _, r := range ranks {
			if !r.State.Known() {
				return math.NaN()
			}
			sum += value(r)
		}
		return sum
	}
}

func readLoadRatios(r *sidecar.Replica, add rankAdd) {
	for _, c := range capacity.Constraints() {
		add(r.LoadRatios[c], c.String())
	}
}

func readBinding(r *sidecar.Replica, add rankAdd) {
	if r.Binding == capacity.NoConstraint {
		return
	}
	for _, c := range capacity.Constraints() {
		add(truth(r.Binding == c), c.String())
	}
}

func readCurveReasons(r *sidecar.Replica, add rankAdd) {
	for _, reason := range r.Curve.Reasons {
		add(1, reason)
	}
}

// ofCurve reads every rank with a name for which a curve was given, whatever its state.
func ofCurve(read func(*sidecar.Replica, rankAdd)) func(view, add) {
	return named(func(r *sidecar.Replica, add rankAdd) {
		if r.Curve.Curve != nil {
			read(r, add)
		}
	})
}

// byCurve reads one number of the curve of each rank whose numbers may be published.
func byCurve(value func(*sidecar.CurveStatus) float64) func(view, add) {
	return freshEach(func(r *sidecar.Replica, add rankAdd) {
		if r.Curve.Curve != nil {
			add(value(&r.Curve))
		}
	})
}

// valid reads one number of each rank whose curve counts.
func valid(value func(*sidecar.Replica) float64) func(view, add) {
	return freshEach(func(r *sidecar.Replica, add rankAdd) {
		if r.Curve.Valid {
			add(value(r))
		}
	})
}

// curveAge in seconds; unknown of a curve that says it was measured later than now.
func curveAge(c *sidecar.CurveStatus) float64 {
	if c.Check != nil && c.Check.Future {
		return math.NaN()
	}
	return c.Age.Seconds()
}

// maxClasses bounds the series of a curve's classes.
const maxClasses = 16

// readClasses reads the classes of a load that may be relied on.
func readClasses(value func(*curve.ClassLoad) float64) func(*sidecar.Replica, rankAdd) {
	return func(r *sidecar.Replica, add rankAdd) {
		if r.Curve.Curve == nil || math.IsNaN(r.Curve.Load.Ratio) {
			return
		}
		for i := range min(len(r.Curve.Load.Classes), maxClasses) {
			k := &r.Curve.Load.Classes[i]
			add(value(k), k.Name)
		}
	}
}

func readHorizons(value func(*sidecar.Horizon) float64) func(*sidecar.Replica, rankAdd) {
	return func(r *sidecar.Replica, add rankAdd) {
		if !r.Curve.Valid {
			return
		}
		for i := range r.Forecast.Horizons {
			h := &r.Forecast.Horizons[i]
			add(value(h), fmt.Sprintf("%dm", h.Skill.Minutes))
		}
	}
}

func readBottleneck(r *sidecar.Replica, add rankAdd) {
	if r.Bottleneck.Bottleneck == "" || r.Bottleneck.Bottleneck == capacity.BottleneckUnknown {
		return
	}
	for _, b := range append(capacity.Bottlenecks(), capacity.BottleneckNone) {
		add(truth(r.Bottleneck.Bottleneck == b), string(b))
	}
}

// curveOverRanks is the curve's load ratio of a pod's ranks together.
func curveOverRanks(ranks []*sidecar.Replica) float64 {
	if slices.ContainsFunc(ranks, func(r *sidecar.Replica) bool { return r.Curve.Curve == nil }) {
		return math.NaN()
	}
	return overRanks(ranks,
		func(r *sidecar.Replica) float64 { return r.Curve.Load.Ratio },
		func(r *sidecar.Replica) float64 { return r.Curve.OfferedRequests })
}

// overRanks is the mean of a ratio over ranks, weighted by their requests;
// unknown when it is of one of them. Without any requests the ranks weigh the same.
func overRanks(ranks []*sidecar.Replica, ratio, requests func(*sidecar.Replica) float64) float64 {
	var weighted, plain, offered float64
	for _, r := range ranks {
		if !r.State.Known() {
			return math.NaN()
		}
		weighted += ratio(r) * requests(r)
		plain += ratio(r)
		offered += requests(r)
	}
	if offered == 0 {
		return plain / float64(len(ranks))
	}
	return weighted / offered
}

func readLimits(r *sidecar.Replica, add rankAdd) {
	for _, l := range limitsOf(r) {
		if l.Known() {
			add(1, l.name, l.Source)
		}
	}
}

// namedLimit is a limit of the engine under the name of the constraint that it sets.
type namedLimit struct {
	name string
	engine.Limit
}

func limitsOf(r *sidecar.Replica) []namedLimit {
	return []namedLimit{
		{capacity.SequenceSlots.String(), engine.Limit{Value: r.SequenceSlots.Total, Source: r.SequenceSlots.Source}},
		{capacity.TokenSlots.String(), engine.Limit{Value: r.TokenSlots.Total, Source: r.TokenSlots.Source}},
		{capacity.TokenBudget.String(), r.BatchedTokens},
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// positive returns n, or unknown when n is 0 because nobody said.
func positive(n int) float64 {
	if n <= 0 {
		return math.NaN()
	}
	return float64(n)
}

// positiveSeconds returns a duration in seconds, or unknown when there was none.
func positiveSeconds(d time.Duration) float64 {
	if d <= 0 {
		return math.NaN()
	}
	return d.Seconds()
}
