package web

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headroom_exporter/capacity"
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
			{"headroom_binding_constraint", gauge, "1 for the constraint with the largest load ratio, 0 for the others.",
				with("constraint"), freshEach(readBinding)},
			{"headroom_requests_per_second", gauge, "Requests per second of the present traffic mix that the replica can still take if load grows in proportion; an upper bound while headroom_curve_valid is 0.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Left.RequestsPerSecond })},
			{"headroom_prompt_tokens_per_second", gauge, "Prompt tokens per second of the present traffic mix that the replica can still take.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Left.PromptTokensPerSecond })},
			{"headroom_generation_tokens_per_second", gauge, "Generated tokens per second of the present traffic mix that the replica can still take.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Left.GenerationTokensPerSecond })},
			{"headroom_sequence_slots", gauge, "Sequence slots that are free.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Left.SequenceSlots })},
			{"headroom_token_slots", gauge, "Token slots (tokens of KV cache) that are free below the usable share of the cache.",
				rankLabels, fresh(func(r *sidecar.Replica) float64 { return r.Left.TokenSlots })},
			{"headroom_watermark_ratio", gauge, "Load ratio up to which a replica counts as stable (constant).",
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
		intro: "Whether the measured capacity curve counts for this replica.",
		families: []family{
			{"headroom_curve_valid", gauge, "1 when a capacity curve is in force for this replica, 0 when headroom rests on the engine's limits alone.",
				rankLabels, named(func(r *sidecar.Replica, add rankAdd) { add(truth(r.Curve.Valid)) })},
			{"headroom_curve_invalid_reason", gauge, "1 for each reason why no capacity curve is in force.",
				with("reason"), named(readCurveReasons)},
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
		ranks := map[string][]*sidecar.Replica{}
		for i := range s.Replicas {
			if r := &s.Replicas[i]; r.ModelName != "" || r.Engine != "" {
				ranks[r.ModelName] = append(ranks[r.ModelName], r)
			}
		}
		for model, of := range ranks {
			add(fold(of), model)
		}
	})
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
