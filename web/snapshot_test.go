package web

import (
	"math"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
	"headroom_exporter/sidecar"
)

const model = "meta-llama/Llama-3.1-8B-Instruct"

var (
	moment = time.Date(2026, 11, 29, 14, 3, 7, 250e6, time.UTC)
	nan    = math.NaN()
)

// fixedSource serves what the test puts into it.
type fixedSource struct {
	snapshot *sidecar.Snapshot
	points   map[string][]sidecar.HistoryPoint // by model name and engine
}

func (f *fixedSource) Snapshot() *sidecar.Snapshot { return f.snapshot }

func (f *fixedSource) History(modelName, engine string, since time.Time) []sidecar.HistoryPoint {
	var found []sidecar.HistoryPoint
	for _, p := range f.points[modelName+"/"+engine] {
		if !p.At.Before(since) {
			found = append(found, p)
		}
	}
	return found
}

// build returns the snapshot of a loaded one-rank engine in which everything
// that this version can know is known but the curve, changed as the caller asks.
func build(changes ...func(*sidecar.Snapshot)) *sidecar.Snapshot {
	s := &sidecar.Snapshot{
		At: moment,
		Engine: sidecar.EngineStatus{
			URL: "http://127.0.0.1:8000", Type: engine.TypeVLLM, Version: "0.32.0", MaxModelLen: 8192,
			State: engine.StateOK, LastReading: moment.Add(-250 * time.Millisecond), PollDuration: 3200 * time.Microsecond, Series: 462,
			Available: map[string]bool{"requests_running": true, "kv_cache_usage": true, "sequence_slots": false},
			Stats: engine.Stats{
				Polls: 912, Failures: map[string]uint64{"timeout": 2, "connection_refused": 5},
				DuplicateSamples: 3, CounterResets: 1, RejectedSamples: 4,
			},
		},
		Replicas: []sidecar.Replica{rank("0")},
		GPU:      gpu.Snapshot{Status: gpu.Status{Reason: gpu.LibraryNotFound, Detail: "NVML is not on this machine: libnvidia-ml.so.1 was not found"}},
		SLO:      sidecar.SLO{TimeToFirstToken: 2500 * time.Millisecond, TokenLatency: 100 * time.Millisecond, Objective: 0.99},
		Panics:   1,
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

// rank is a rank with 159 of 256 sequence slots in use, which bind.
func rank(name string) sidecar.Replica {
	ratios := capacity.UnknownLoadRatios()
	ratios[capacity.SequenceSlots] = 0.62109375
	ratios[capacity.TokenSlots] = 0.41
	ratios[capacity.TokenBudget] = 0.25
	ratios[capacity.Queue] = 0
	return sidecar.Replica{
		ModelName: model, Engine: name, State: engine.StateOK,
		LoadRatio: 0.62109375, HeadroomRatio: 0.37890625, LoadRatios: ratios,
		Binding: capacity.SequenceSlots, Zone: capacity.ZoneStable,
		Left:            capacity.Left{RequestsPerSecond: 14.2, PromptTokensPerSecond: 7270.4, GenerationTokensPerSecond: 3635.2, SequenceSlots: 97, TokenSlots: 223546.5},
		SequenceSlots:   sidecar.Occupancy{Used: 159, Total: 256, Ratio: 0.62109375, Source: "default"},
		TokenSlots:      sidecar.Occupancy{Used: 155346.25, Total: 420992, Ratio: 0.369, Source: "metric"},
		BatchedTokens:   engine.Limit{Value: 2048, Source: "cmdline"},
		RequestsRunning: 159, RequestsWaiting: 0,
		Rates:          sidecar.Rates{OfferedRequests: 23.3, ServedRequests: 23.1, PromptTokens: 11929.6, ComputedPromptTokens: 10810.5, GenerationTokens: 5964.8, Preemptions: 0, Steps: 41.5},
		Latencies:      sidecar.Latencies{TimeToFirstToken: 0.182, InterTokenLatency: 0.0213, QueueTime: 0.0042, PrefillTime: 0.121},
		TokensPerStep:  nan,
		BacklogSeconds: 0,
		Bandwidth:      []sidecar.BandwidthSaturation{{Ratio: 0.62, Source: "engine"}, {Ratio: 0.58, Source: "model"}},
		Curve:          sidecar.CurveStatus{Reasons: []string{reasonNoCurve}},
		Reasons:        []string{"capacity curve: none was given", "LoRA: the engine serves no adapters"},
	}
}

// inForce puts a curve in force for every rank: 62 % of the knee, by a mix of two classes.
func inForce(s *sidecar.Snapshot) {
	s.Engine.Startup = 187 * time.Second
	for i := range s.Replicas {
		r := &s.Replicas[i]
		r.Curve = measuredCurve("chat", "rag")
		r.LoadRatios[capacity.Curve], r.Binding = 0.66, capacity.Curve
		r.LoadRatio, r.HeadroomRatio = 0.66, 0.34
		r.Left.RequestsPerSecond, r.Left.PromptTokensPerSecond, r.Left.GenerationTokensPerSecond = 12, 5568, 3072
		r.Bottleneck = capacity.Attribution{Bottleneck: capacity.BottleneckDecode, Evidence: []string{"of a step's time 61 % go to sequences and their context"}}
		r.Forecast = sidecar.Forecast{TimeToKnee: 780, Horizons: []sidecar.Horizon{
			{LoadRatio: 0.74, Skill: capacity.Skill{Minutes: 15, Compared: 240, MAE: 0.03, Persistence: 0.04, Ratio: 0.25, Band: 0.07}},
			{LoadRatio: nan, Skill: capacity.Skill{Minutes: 30, Compared: 225, MAE: 0.06, Persistence: 0.05, Ratio: -0.2, Band: 0.13}},
		}}
		r.Burn = sidecar.Burn{Fast: 0.4, Slow: 0.6, Class: capacity.BurnTicket, LeadSeconds: 187, LeadMeasured: true}
		r.Reasons = nil
	}
}

// measuredCurve is a curve that counts, of classes that share the traffic.
func measuredCurve(classes ...string) sidecar.CurveStatus {
	c := &curve.Curve{
		SLO: []capacity.SLO{{Metric: "ttft", Percentile: 99, Bound: 2500 * time.Millisecond}, {Metric: "itl", Percentile: 99, Bound: 100 * time.Millisecond}},
		ID:  "2f9c5b0e", Source: curve.Measured, Finished: moment.Add(-40 * 24 * time.Hour), Identity: curve.Identity{Model: model},
	}
	load := curve.Load{
		Ratio: 0.66, Estimate: 0.66, Watermark: 0.78, Low: 0.97, High: 1.04, Zone: capacity.ZoneStable, Valid: true, Coverage: 0.97,
		Mix: capacity.Mix{Source: capacity.MixHistograms, Coverage: 0.97, Completions: 6990}, Knee: 35.3, StandardError: 0.012,
	}
	share := 1 / float64(len(classes))
	for _, name := range classes {
		c.Classes = append(c.Classes, curve.Class{Name: name, Weight: 1})
		load.Classes = append(load.Classes, curve.ClassLoad{Name: name, Rate: 23.3 * share, Knee: 35.3, Ratio: 0.66 * share, PrefillShare: nan})
		load.Mix.Classes = append(load.Mix.Classes, capacity.ClassRate{Name: name, Share: share, Rate: 23.3 * share})
	}
	soft := curve.Difference{Field: "engine_version", Stored: "0.31.0", Live: "0.32.0"}
	return sidecar.CurveStatus{
		Valid: true, Curve: c, Age: 40 * 24 * time.Hour, Stale: []string{"engine_version", "age"},
		Check: &curve.Check{Valid: true, Soft: []curve.Difference{soft}, Old: true},
		Load:  load, OfferedRequests: 23.3, CorrectionFactor: 1.04, TTFTRatio: 1.1, ITLRatio: 1.03, GenerationRatio: 0.98, TokensPerStep: nan,
		Burstiness: capacity.Burstiness{BinSeconds: 1, Bins: 300, Dispersion: 1.2, Shape: 0.83, ShapeError: 0.08},
	}
}

// unknownRank is a rank of which nothing is known but its state.
func unknownRank(name string, state engine.State) sidecar.Replica {
	o := sidecar.Occupancy{Used: nan, Total: nan, Ratio: nan}
	return sidecar.Replica{
		ModelName: model, Engine: name, State: state,
		LoadRatio: nan, HeadroomRatio: nan, LoadRatios: capacity.UnknownLoadRatios(),
		Binding: capacity.NoConstraint, Zone: capacity.ZoneUnknown, Left: capacity.UnknownLeft(),
		SequenceSlots: o, TokenSlots: o, BatchedTokens: engine.Limit{Value: nan},
		RequestsRunning: nan, RequestsWaiting: nan,
		Rates:          sidecar.Rates{OfferedRequests: nan, ServedRequests: nan, PromptTokens: nan, ComputedPromptTokens: nan, GenerationTokens: nan, Preemptions: nan, Steps: nan},
		Latencies:      sidecar.Latencies{TimeToFirstToken: nan, InterTokenLatency: nan, QueueTime: nan, PrefillTime: nan},
		TokensPerStep:  nan,
		BacklogSeconds: nan,
	}
}

func withRanks(ranks ...sidecar.Replica) func(*sidecar.Snapshot) {
	return func(s *sidecar.Snapshot) { s.Replicas = ranks }
}

func withGPUs(s *sidecar.Snapshot) {
	known, unread := gpu.NewReading(), gpu.NewReading()
	known.At, known.UUID, known.Model = moment, "GPU-4f2b6c1e-8d0a-4b55-9c1f-0d2f6f3a7b10", "NVIDIA H100 80GB HBM3"
	known.MemorySizeBytes, known.MemoryUsedBytes = 85520809984, 77309411328
	known.MemoryBandwidthRatio, known.MemoryBandwidthPeak, known.MemoryBandwidthPeakSource = 0.57, 3.35e12, "nvml"
	known.SMActiveRatio, known.PowerWatts, known.PowerLimit = 0.81, 512, 700
	known.SMClockHertz, known.MemoryClockHertz, known.TemperatureCelsius = 1.83e9, 2.619e9, 61
	known.ThrottleActive, known.RecoveryAction = map[string]bool{"sw_power_cap": true, "hw_thermal": false}, "none"
	unread.At, unread.UUID, unread.Index, unread.Model = moment, "GPU-90c1d7aa-52f3-4e0e-8a77-c2b1a9e4d321", 1, "NVIDIA H100 80GB HBM3"
	unread.MemorySizeBytes, unread.Lost = 85520809984, "gpu_is_lost"
	s.GPU = gpu.Snapshot{At: moment, Status: gpu.Status{Up: true, Reason: gpu.OK, Visible: 2, Expected: 2, LastSuccess: moment}, Readings: []gpu.Reading{known, unread}}
}

// engineDown is the engine gone, with readings from before still in the rank:
// none of them may be published.
func engineDown(s *sidecar.Snapshot) {
	s.Engine.State, s.Engine.Reason = engine.StateDown, "connection_refused"
	s.Engine.Error = "asking http://127.0.0.1:8000/metrics: connection refused"
	s.Engine.LastReading = moment.Add(-83 * time.Second)
	for i := range s.Replicas {
		s.Replicas[i].State = engine.StateDown
		s.Replicas[i].Reasons = []string{"headroom: the engine is down"}
	}
}

// pointOf is the history point of a snapshot's first replica.
func pointOf(s *sidecar.Snapshot, at time.Time) sidecar.HistoryPoint {
	r := s.Replicas[0]
	return sidecar.HistoryPoint{
		At: at, LoadRatios: r.LoadRatios, LoadRatio: r.LoadRatio,
		SequenceSlotRatio: r.SequenceSlots.Ratio, TokenSlotRatio: r.TokenSlots.Ratio,
		RequestsRunning: r.RequestsRunning, RequestsWaiting: r.RequestsWaiting,
		OfferedRequests: r.Rates.OfferedRequests, GenerationTokens: r.Rates.GenerationTokens, ComputedPromptTokens: r.Rates.ComputedPromptTokens,
		BandwidthSaturation: r.Bandwidth[0].Ratio, TimeToFirstToken: r.Latencies.TimeToFirstToken, InterTokenLatency: r.Latencies.InterTokenLatency,
		State: r.State,
	}
}

// downPoint is a point of which nothing is known.
func downPoint(at time.Time) sidecar.HistoryPoint {
	return sidecar.HistoryPoint{
		At: at, LoadRatios: capacity.UnknownLoadRatios(), LoadRatio: nan, SequenceSlotRatio: nan, TokenSlotRatio: nan,
		RequestsRunning: nan, RequestsWaiting: nan, OfferedRequests: nan, GenerationTokens: nan, ComputedPromptTokens: nan,
		BandwidthSaturation: nan, TimeToFirstToken: nan, InterTokenLatency: nan, State: engine.StateDown,
	}
}
