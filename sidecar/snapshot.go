// Package sidecar is the live loop: once an interval it takes readings,
// keeps the window, derives load ratios and publishes one snapshot.
package sidecar

import (
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
)

// Snapshot is everything the product knows at one moment. It is immutable
// once published. A float that is not known is NaN.
type Snapshot struct {
	At     time.Time
	Engine EngineStatus
	// Replicas has one entry per model name and engine rank, sorted; before
	// the first good reading it has one entry with empty names.
	Replicas []Replica
	// Reading is the engine's newest page while it can be trusted, else nil.
	Reading *engine.Reading
	// SLO is what the service promises.
	SLO SLO
	// GPU is what was read of the engine's GPUs, and why not.
	GPU gpu.Snapshot
	// Panics counts panics recovered in the live loop.
	Panics uint64
}

// SLO is what the service promises. A threshold of 0 promises nothing.
type SLO struct {
	// TimeToFirstToken, TokenLatency (between tokens, and per output token)
	// and E2ELatency are thresholds; Objective is the share of requests or
	// tokens that must meet them.
	TimeToFirstToken, TokenLatency, E2ELatency time.Duration
	Objective                                  float64
}

// EngineStatus is the engine as a whole.
type EngineStatus struct {
	URL         string
	Type        engine.Type
	Version     string
	MaxModelLen int
	State       engine.State
	Reason      string
	// Error is the last poll's error in words; empty when it was good.
	Error string
	// LastReading is when the newest good reading arrived; zero before the first.
	LastReading  time.Time
	PollDuration time.Duration
	Series       int
	Available    map[string]bool
	Stats        engine.Stats
	// Startup is how long its last start took that was seen; 0 before one.
	Startup time.Duration
}

// Occupancy is slots in use against slots.
type Occupancy struct {
	Used, Total, Ratio float64
	// Source of Total: flag, metric, blocks, server_info, cmdline or default.
	Source string
}

// Rates are per second over the rate window.
type Rates struct {
	OfferedRequests      float64
	ServedRequests       float64
	PromptTokens         float64
	ComputedPromptTokens float64
	GenerationTokens     float64
	Preemptions          float64
	Steps                float64
}

// Latencies are count-weighted means in seconds over the rate window.
type Latencies struct {
	TimeToFirstToken, InterTokenLatency, QueueTime, PrefillTime float64
	// Step is between the steps of a sequence, each of which brings a token, or
	// with speculative decoding several.
	Step float64
}

// BandwidthSaturation is memory bandwidth in use / achievable bandwidth.
type BandwidthSaturation struct {
	Ratio float64
	// Source is gpm, engine or model: measured, the engine's estimate, or our step model.
	Source string
}

// Replica is one rank of the engine with what was derived for it.
type Replica struct {
	ModelName, Engine string
	State             engine.State
	// LoadRatio is the largest known load ratio, HeadroomRatio is 1 - LoadRatio.
	LoadRatio, HeadroomRatio float64
	LoadRatios               capacity.LoadRatios
	Binding                  capacity.Constraint
	Zone                     capacity.Zone
	Left                     capacity.Left
	SequenceSlots            Occupancy
	TokenSlots               Occupancy
	BatchedTokens            engine.Limit
	RequestsRunning          float64
	RequestsWaiting          float64
	// RateSpan is the time over which Rates and Latencies were taken: the last
	// minute, or less until there is a minute of readings. Rates are not known
	// before MinRateSpan.
	RateSpan  time.Duration
	Rates     Rates
	Latencies Latencies
	// TokensPerStep is the mean of tokens that a step of a sequence gives with
	// speculative decoding, over the last 5 minutes; not known without it.
	TokensPerStep float64
	// BacklogSeconds is how long the engine needs to admit what waits.
	BacklogSeconds float64
	// Bandwidth has the sources that are known, best first.
	Bandwidth []BandwidthSaturation
	Curve     CurveStatus
	// Bottleneck is what limits the replica, and the evidence.
	Bottleneck capacity.Attribution
	// Forecast and Burn are of the load ratio, and known only while the curve is valid.
	Forecast Forecast
	Burn     Burn
	// Reasons say what is not known, and why, in plain words.
	Reasons []string
}

// HistoryPoint is one replica at one past moment, for drawing.
type HistoryPoint struct {
	At                   time.Time
	LoadRatios           capacity.LoadRatios
	LoadRatio            float64
	SequenceSlotRatio    float64
	TokenSlotRatio       float64
	RequestsRunning      float64
	RequestsWaiting      float64
	OfferedRequests      float64
	GenerationTokens     float64
	ComputedPromptTokens float64
	BandwidthSaturation  float64
	TimeToFirstToken     float64
	InterTokenLatency    float64
	State                engine.State
}

// Source is what serves the live state; Sidecar implements it.
type Source interface {
	// Snapshot returns the newest snapshot, nil before the first.
	Snapshot() *Snapshot
	// History returns the points of a replica since a time, oldest first.
	History(modelName, engine string, since time.Time) []HistoryPoint
}
