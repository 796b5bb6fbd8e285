package main

// fleet shows pools: how many replicas they are worth, need and should have,
// what happens when one or a zone is lost, and where the load is going. All of
// it is recorded by rules/fleet.
var fleet = board{
	uid: "headroom-fleet", title: "Headroom / Fleet and capacity",
	description: "Pools of replicas: how full they are, how many replicas their load is worth and needs, whether they survive the loss of a replica or a zone, and where the load is going. It needs the recording rules of rules/fleet and the target label pool.",
	variables:   []variable{source, namespaces("pool:headroom_replicas:count"), pools("pool:headroom_replicas:count")},
	rows: []row{
		{"Can the pools take what is there, and what is coming?", []panel{
			{
				kind: big, title: "Headroom of the pool", unit: ratio, width: 5, height: 6, decimals: at(0),
				description: "Share of the pool's capacity that is left: 1 - the mean load ratio of its replicas over 5 minutes. The fullest pool first.",
				queries:     []query{{expr: `sort(1 - pool:headroom_load:avg5m{<pool>})`, legend: "{{pool}} {{role}}"}},
				steps:       headroomSteps, empty: "no replica's load is known", runbooks: []string{"HeadroomLow"},
			},
			{
				kind: big, title: "Left after losing a replica", unit: ratio, width: 5, height: 6, decimals: at(0),
				description: "Headroom with one replica lost and its load spread over the others (N-1). Below 0 the loss of one is an overload; none is left of a pool of one.",
				queries:     []query{{expr: `sort(pool:headroom_after_replica_loss:ratio{<pool>})`, legend: "{{pool}} {{role}}"}},
				steps:       headroomSteps, mappings: map[string]string{"-1": "none"}, empty: "no replica's load is known", runbooks: []string{"HeadroomReplicaLossUncovered"},
			},
			{
				kind: big, title: "Left after losing a zone", unit: ratio, width: 5, height: 6, decimals: at(0),
				description: "Headroom with the fullest zone lost; none is left when all replicas are in one. It needs the target label zone.",
				queries:     []query{{expr: `sort(pool:headroom_after_zone_loss:ratio{<pool>})`, legend: "{{pool}} {{role}}"}},
				steps:       headroomSteps, mappings: map[string]string{"-1": "none"}, empty: "the targets have no label zone", runbooks: []string{"HeadroomZoneLossUncovered"},
			},
			{
				kind: big, title: "Replicas to set", unit: number, width: 5, height: 6,
				description: "What to set the number of replicas to: as desired when that is more, one fewer when that is less and safe, as it is otherwise.",
				queries:     []query{{expr: `pool:headroom_replicas_target:max{<pool>}`, legend: "{{pool}} {{role}}"}},
				empty:       "no replica's load is known",
			},
			{
				kind: big, title: "One fewer is safe", unit: number, width: 4, height: 6,
				description: "Whether one replica can go: all are measured by a curve, none of the others would be above the scale-down load now or by the forecast, hardly anything waited, no budget burns.",
				queries:     []query{{expr: `pool:headroom_scale_down_safe:bool{<pool>}`, legend: "{{pool}} {{role}}"}},
				mappings:    yesNo, empty: "no replica is there",
			},
		}},
		{"Replicas", []panel{
			{
				title: "Replicas: there, needed, desired", unit: number, width: 12, height: 9, min: at(0), stairs: true,
				description: "Replicas that count as capacity; those that the load needs with the peak reserve kept; those that the forecast wants with the peak and the failure reserve.",
				queries: []query{
					{expr: `pool:headroom_replicas:count{<pool>}`, legend: "{{pool}} {{role}} there"},
					{expr: `pool:headroom_replicas_needed:ceil{<pool>}`, legend: "{{pool}} {{role}} needed"},
					{expr: `pool:headroom_replicas_desired:ceil{<pool>}`, legend: "{{pool}} {{role}} desired"},
				},
				empty: "no replica is there",
			},
			{
				title: "Replica equivalents and forecast", unit: number, width: 12, height: 9, min: at(0),
				description: "How many full replicas the load would fill: the sum of the load ratios. Its forecast is as far ahead as a new replica takes to start, and never below what the load is now.",
				queries: []query{
					{expr: `pool:headroom_replica_equivalents:sum{<pool>}`, legend: "{{pool}} {{role}} now"},
					{expr: `pool:headroom_replica_equivalents:avg5m{<pool>}`, legend: "{{pool}} {{role}} mean of 5 min"},
					{expr: `pool:headroom_replica_equivalents:forecast{<pool>}`, legend: "{{pool}} {{role}} forecast"},
					{expr: `pool:headroom_replicas:count{<pool>}`, legend: "{{pool}} {{role}} replicas there"},
				},
				empty: "no replica's load is known",
			},
			{
				title: "Headroom after a loss", unit: ratio, width: 12, height: 8, max: at(1),
				description: "Headroom now, with one replica lost, and with the fullest zone lost.",
				queries: []query{
					{expr: `1 - pool:headroom_load:avg5m{<pool>}`, legend: "{{pool}} {{role}} now"},
					{expr: `pool:headroom_after_replica_loss:ratio{<pool>}`, legend: "{{pool}} {{role}} without a replica"},
					{expr: `pool:headroom_after_zone_loss:ratio{<pool>}`, legend: "{{pool}} {{role}} without a zone"},
				},
				empty: "no replica's load is known", runbooks: []string{"HeadroomReplicaLossUncovered"},
			},
			{
				title: "Load after a scale-down", unit: ratio, width: 12, height: 8, min: at(0),
				description: "Load ratio that the others would have had with one replica fewer, at the worst of the last 15 minutes, and the most that is allowed. A pool of one has none.",
				queries: []query{
					{expr: `pool:headroom_scale_down_load:ratio{<pool>}`, legend: "{{pool}} {{role}}"},
					{`max(fleet:headroom_scale_down_load:ratio)`, "allowed", careful},
				},
				empty: "pools of one replica",
			},
			{
				title: "Load by replica", unit: ratio, width: 12, height: 8, min: at(0),
				description: "Load ratio of each replica, of its worst rank. Replicas of one pool that differ are unevenly fed, or not alike.",
				queries: []query{
					{expr: `replica:headroom_load:max{<pool>}`, legend: "{{pool}} {{role}} {{pod}}"},
					{`max(headroom_watermark_ratio{<pool>})`, "watermark", careful},
				},
				empty: "no replica's load is known",
			},
			{
				title: "Replicas by what is known of them", unit: number, width: 6, height: 8, min: at(0), stairs: true,
				description: "Replicas that count as capacity, those whose load is known, and those whose load is measured by a valid curve.",
				queries: []query{
					{expr: `pool:headroom_replicas:count{<pool>}`, legend: "{{pool}} {{role}} there"},
					{expr: `pool:headroom_replicas_known:count{<pool>}`, legend: "{{pool}} {{role}} known"},
					{expr: `pool:headroom_replicas_measured:count{<pool>}`, legend: "{{pool}} {{role}} measured"},
				},
				empty: "no replica is there", runbooks: []string{"HeadroomCurveInvalid"},
			},
			{
				title: "Rank skew", unit: ratio, width: 6, height: 8, min: at(0),
				description: "How much further the worst data-parallel rank of a replica is than its best. Only replicas of several ranks have one.",
				queries:     []query{{expr: `replica:headroom_rank_skew:ratio{<pool>}`, legend: "{{pool}} {{role}} {{pod}}"}},
				empty:       "every replica has one rank", runbooks: []string{"HeadroomRankSkew"},
			},
		}},
		{"Reasons to grow", []panel{
			{
				kind: bars, title: "Triggers", unit: number, width: 8, height: 8, min: at(0), max: at(1),
				description: "Reasons to grow: load forecast, time to first token over its SLO in three windows, a queue that grows, token slots, budget burn. One that is not known is not shown.",
				queries:     []query{{expr: `pool:headroom_scale_up:bool{<pool>}`, legend: "{{pool}} {{role}} {{trigger}}"}},
				steps:       warnAbove, mappings: yesNo, empty: "nothing is known of the pools",
			},
			{
				title: "Requests waiting", unit: number, width: 8, height: 8, min: at(0),
				description: "Requests in the queues of the pool's engines.",
				queries:     []query{{expr: `pool:headroom_requests_waiting:sum{<pool>}`, legend: "{{pool}} {{role}}"}},
				empty:       "no reading of an engine", runbooks: []string{"HeadroomQueueGrowing"},
			},
			{
				title: "Token slots in use", unit: ratio, width: 8, height: 8, min: at(0), max: at(1),
				description: "Share of the pool's KV cache in use over 5 minutes, and the share above which it grows.",
				queries: []query{
					{expr: `pool:headroom_token_slot_occupancy:avg5m{<pool>}`, legend: "{{pool}} {{role}}"},
					{`max(fleet:headroom_scale_up_token_slots:ratio)`, "grows above", careful},
				},
				empty: "the engines do not tell their token slots",
			},
			{
				title: "SLO burn of the pool", unit: times, width: 12, height: 8, min: at(0),
				description: "How many times faster than the objective allows the error budget is spent, over 5 minutes and an hour, and the rate above which the pool grows.",
				queries: []query{
					{expr: `pool:headroom_slo_burn:ratio5m{<pool>}`, legend: "{{pool}} {{role}} {{slo}} 5m"},
					{expr: `pool:headroom_slo_burn:ratio1h{<pool>}`, legend: "{{pool}} {{role}} {{slo}} 1h"},
					{`max(fleet:headroom_scale_up_burn:ratio)`, "grows above", careful},
				},
				empty: "no traffic, or no threshold is a bucket bound", runbooks: []string{"HeadroomSLOBurn"},
			},
			{
				title: "Headroom burn", unit: times, width: 12, height: 8, min: at(0),
				description: "How fast headroom is used up: at 1 what is left is gone when a new replica could serve. Over 10 and 30 minutes; it needs 20 minutes of history.",
				queries: []query{
					{expr: `pool:headroom_burn:deriv10m{<pool>}`, legend: "{{pool}} {{role}} 10m"},
					{expr: `pool:headroom_burn:deriv30m{<pool>}`, legend: "{{pool}} {{role}} 30m"},
				},
				empty: "less than 5 minutes of history", runbooks: []string{"HeadroomLostFast"},
			},
			{
				title: "Start-up lag and forecast lead", unit: seconds, width: 12, height: 8, min: at(0),
				description: "Seconds that a new replica takes until it serves, as measured or assumed, and how far ahead forecasts look for that.",
				queries: []query{
					{expr: `pool:headroom_startup_lag:seconds{<pool>}`, legend: "{{pool}} {{role}} start-up"},
					{expr: `pool:headroom_forecast_lead:seconds{<pool>}`, legend: "{{pool}} {{role}} lead"},
				},
				empty: "no replica is there",
			},
			{
				title: "Time to exhaustion", unit: seconds, width: 12, height: 8, min: at(0),
				description: "Seconds until the pool is full at the pace of the last 30 minutes. Absent while the load does not rise; it needs 20 minutes of history.",
				queries:     []query{{expr: `pool:headroom_time_to_exhaustion:seconds{<pool>}`, legend: "{{pool}} {{role}}"}},
				empty:       "the load does not rise", runbooks: []string{"HeadroomLostFast"},
			},
		}},
		{"By model, class and role", []panel{
			{
				title: "Replica equivalents by model", unit: number, width: 12, height: 8, min: at(0),
				description: "The load of each model in full replicas, and how many replicas of it are known.",
				queries: []query{
					{expr: `model:headroom_replica_equivalents:sum{namespace=~"$namespace"}`, legend: "{{model_name}}"},
					{expr: `model:headroom_replicas_known:count{namespace=~"$namespace"}`, legend: "{{model_name}} replicas"},
				},
				empty: "no replica's load is known",
			},
			{
				title: "Replica equivalents by class", unit: number, width: 12, height: 8, min: at(0), stack: true,
				description: "The load of each class of traffic in full replicas, by the curve: which traffic fills the pool.",
				queries:     []query{{expr: `class:headroom_replica_equivalents:sum{<pool>}`, legend: "{{pool}} {{role}} {{class}}"}},
				empty:       "no curve is in force", runbooks: []string{"HeadroomCurveInvalid"},
			},
			{
				title: "Knee by class, all replicas", unit: requestsPerSecond, width: 12, height: 8, min: at(0),
				description: "Requests per second of one class that the pool's measured replicas serve at their knee, if there is no other traffic.",
				queries:     []query{{expr: `class:headroom_knee_requests:sum{<pool>}`, legend: "{{pool}} {{role}} {{class}}"}},
				empty:       "no curve is in force",
			},
			{
				title: "Load by role", unit: ratio, width: 12, height: 8, min: at(0),
				description: "Load of the prefill and decode pools of a service whose replicas have roles; the higher is the one to grow.",
				queries:     []query{{expr: `pool:headroom_load:avg5m{<pool>, role!=""}`, legend: "{{pool}} {{role}}"}},
				empty:       "the targets have no label role",
			},
		}},
	},
}
