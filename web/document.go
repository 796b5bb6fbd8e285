package web

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
	"headroom_exporter/sidecar"
)

// documentVersion is raised when a field of the JSON changes its meaning or goes away.
const documentVersion = 1

// document is the answer of /api/v1/headroom and of --once -o json. Seconds,
// bytes, ratios 0..1 and rates per second; null is not known.
type document struct {
	Version            int               `json:"version"`
	Time               time.Time         `json:"time"`
	SnapshotAgeSeconds number            `json:"snapshot_age_seconds"`
	WatermarkRatio     number            `json:"watermark_ratio"`
	Engine             engineDocument    `json:"engine"`
	Replicas           []replicaDocument `json:"replicas"`
	// Models are the ranks of each model together.
	Models []modelDocument `json:"models"`
	GPUs   []gpuDocument   `json:"gpus"`
	// GPUError is why gpus is empty.
	GPUError *string `json:"gpu_error"`
}

type engineDocument struct {
	URL     string       `json:"url"`
	Type    *string      `json:"type"`
	Version *string      `json:"version"`
	State   engine.State `json:"state"`
	// Reason is a short code, Error the last poll's error in words.
	Reason *string `json:"reason"`
	Error  *string `json:"error"`
	// Summary and Advice say in words what the state means and what to do.
	Summary             string  `json:"summary"`
	Advice              *string `json:"advice"`
	AgeSeconds          number  `json:"age_seconds"`
	PollDurationSeconds number  `json:"poll_duration_seconds"`
	MaxModelLength      number  `json:"max_model_length_tokens"`
	Series              number  `json:"series"`
	// MissingSignals are signals that the engine's page does not carry.
	MissingSignals []string `json:"missing_signals"`
	// StartupSeconds is how long the last start took that was seen.
	StartupSeconds number `json:"startup_seconds"`
}

type replicaDocument struct {
	ModelName         string             `json:"model_name"`
	Engine            string             `json:"engine"`
	EngineType        *string            `json:"engine_type"`
	EngineVersion     *string            `json:"engine_version"`
	State             engine.State       `json:"state"`
	Summary           string             `json:"summary"`
	HeadroomRatio     number             `json:"headroom_ratio"`
	BindingConstraint *string            `json:"binding_constraint"`
	Zone              capacity.Zone      `json:"zone"`
	LoadRatio         map[string]number  `json:"load_ratio"`
	Left              leftDocument       `json:"left"`
	Occupancy         occupancyDocuments `json:"occupancy"`
	TokenBudget       limitDocument      `json:"token_budget"`
	Requests          requestsDocument   `json:"requests"`
	Rates             ratesDocument      `json:"rates"`
	Latencies         latenciesDocument  `json:"latencies"`
	// TokensPerStep is what a step of a sequence gives with speculative decoding.
	TokensPerStep  number              `json:"speculative_tokens_per_step"`
	BacklogSeconds number              `json:"backlog_seconds"`
	Bandwidth      *bandwidthDocument  `json:"bandwidth_saturation"`
	Curve          curveDocument       `json:"curve"`
	Bottleneck     *bottleneckDocument `json:"bottleneck"`
	Forecast       *forecastDocument   `json:"forecast"`
	Burn           *burnDocument       `json:"burn"`
	Reasons        []string            `json:"reasons"`
}

// modelDocument is the ranks of one model together.
type modelDocument struct {
	ModelName string `json:"model_name"`
	Ranks     int    `json:"ranks"`
	// LoadRatio, and that by the curve, are the means of the ranks', weighted by their traffic.
	LoadRatio      number `json:"load_ratio"`
	CurveLoadRatio number `json:"curve_load_ratio"`
	// HeadroomRatio is the smallest, which is the binding rank's.
	HeadroomRatio number  `json:"headroom_ratio"`
	BindingRank   *string `json:"binding_rank"`
	// ImbalanceRatio is the largest load ratio / the plain mean.
	ImbalanceRatio number `json:"imbalance_ratio"`
}

func newModelDocument(ranks []*sidecar.Replica) modelDocument {
	d := modelDocument{
		ModelName: ranks[0].ModelName, Ranks: len(ranks),
		LoadRatio: number(loadOverRanks(ranks)), CurveLoadRatio: number(curveOverRanks(ranks)),
		HeadroomRatio: number(worstRank(ranks)), ImbalanceRatio: number(rankImbalance(ranks)),
	}
	if r := bindingRank(ranks); r != nil {
		d.BindingRank = optional(r.Engine)
	}
	return d
}

type leftDocument struct {
	RequestsPerSecond         number `json:"requests_per_second"`
	PromptTokensPerSecond     number `json:"prompt_tokens_per_second"`
	GenerationTokensPerSecond number `json:"generation_tokens_per_second"`
	SequenceSlots             number `json:"sequence_slots"`
	TokenSlots                number `json:"token_slots"`
}

type occupancyDocuments struct {
	SequenceSlots occupancyDocument `json:"sequence_slots"`
	TokenSlots    occupancyDocument `json:"token_slots"`
}

type occupancyDocument struct {
	Used   number  `json:"used"`
	Total  number  `json:"total"`
	Ratio  number  `json:"ratio"`
	Source *string `json:"source"`
}

type limitDocument struct {
	Tokens number  `json:"tokens"`
	Source *string `json:"source"`
}

type requestsDocument struct {
	Running number `json:"running"`
	Waiting number `json:"waiting"`
}

type ratesDocument struct {
	// SpanSeconds is the time over which rates and latencies were taken.
	SpanSeconds          number `json:"span_seconds"`
	OfferedRequests      number `json:"offered_requests_per_second"`
	ServedRequests       number `json:"served_requests_per_second"`
	PromptTokens         number `json:"prompt_tokens_per_second"`
	ComputedPromptTokens number `json:"computed_prompt_tokens_per_second"`
	GenerationTokens     number `json:"generation_tokens_per_second"`
	Preemptions          number `json:"preemptions_per_second"`
	Steps                number `json:"steps_per_second"`
}

type latenciesDocument struct {
	TimeToFirstToken  number `json:"time_to_first_token_seconds"`
	InterTokenLatency number `json:"inter_token_latency_seconds"`
	QueueTime         number `json:"queue_time_seconds"`
	PrefillTime       number `json:"prefill_time_seconds"`
}

type bandwidthDocument struct {
	Ratio  number `json:"ratio"`
	Source string `json:"source"`
}

type gpuDocument struct {
	UUID                              string `json:"uuid"`
	Index                             int    `json:"index"`
	Model                             string `json:"model"`
	MemorySizeBytes                   number `json:"memory_size_bytes"`
	MemoryUsedBytes                   number `json:"memory_used_bytes"`
	MemoryBandwidthRatio              number `json:"memory_bandwidth_ratio"`
	MemoryBandwidthPeakBytesPerSecond number `json:"memory_bandwidth_peak_bytes_per_second"`
	SMActiveRatio                     number `json:"sm_active_ratio"`
	PowerWatts                        number `json:"power_watts"`
	PowerLimitWatts                   number `json:"power_limit_watts"`
	SMClockHertz                      number `json:"sm_clock_hertz"`
	MemoryClockHertz                  number `json:"memory_clock_hertz"`
	TemperatureCelsius                number `json:"temperature_celsius"`
	// Lost is why the GPU cannot be read.
	Lost        *string  `json:"lost"`
	ThrottledBy []string `json:"throttled_by"`
	// RecoveryAction is the driver's own verdict; none when all is well.
	RecoveryAction *string `json:"recovery_action"`
}

// WriteJSON writes a snapshot as the document of /api/v1/headroom, indented,
// with ages as they were when the snapshot was taken.
func WriteJSON(w io.Writer, s *sidecar.Snapshot) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(newDocument(s, s.At)); err != nil {
		return fmt.Errorf("writing the snapshot as JSON: %w", err)
	}
	return nil
}

func newDocument(s *sidecar.Snapshot, now time.Time) document {
	d := document{
		Version:            documentVersion,
		Time:               s.At.UTC().Truncate(time.Millisecond),
		SnapshotAgeSeconds: seconds(now.Sub(s.At)),
		WatermarkRatio:     capacity.Watermark,
		Engine:             newEngineDocument(s, now),
		Replicas:           make([]replicaDocument, 0, len(s.Replicas)),
		Models:             []modelDocument{},
		GPUs:               make([]gpuDocument, 0, len(s.GPU.Readings)),
		GPUError:           optional(gpuError(s.GPU.Status)),
	}
	for i := range s.Replicas {
		d.Replicas = append(d.Replicas, newReplicaDocument(s, &s.Replicas[i]))
	}
	for _, ranks := range ranksByModel(s) {
		d.Models = append(d.Models, newModelDocument(ranks))
	}
	for _, g := range s.GPU.Readings {
		d.GPUs = append(d.GPUs, gpuDocument{
			UUID: g.UUID, Index: g.Index, Model: g.Model,
			MemorySizeBytes: number(g.MemorySizeBytes), MemoryUsedBytes: number(g.MemoryUsedBytes),
			MemoryBandwidthRatio: number(g.MemoryBandwidthRatio), MemoryBandwidthPeakBytesPerSecond: number(g.MemoryBandwidthPeak),
			SMActiveRatio: number(g.SMActiveRatio),
			PowerWatts:    number(g.PowerWatts), PowerLimitWatts: number(g.PowerLimit),
			SMClockHertz: number(g.SMClockHertz), MemoryClockHertz: number(g.MemoryClockHertz),
			TemperatureCelsius: number(g.TemperatureCelsius),
			Lost:               optional(g.Lost), ThrottledBy: throttledBy(&g), RecoveryAction: optional(g.RecoveryAction),
		})
	}
	return d
}

// gpuError says in words why no GPU is read; empty while they are.
func gpuError(s gpu.Status) string {
	switch {
	case s.Up:
		return ""
	case s.Detail != "":
		return s.Detail
	default:
		return "reading GPUs is " + string(s.Reason)
	}
}

// throttledBy lists what holds a GPU's clocks down now, sorted.
func throttledBy(g *gpu.Reading) []string {
	reasons := []string{}
	for reason, active := range g.ThrottleActive {
		if active {
			reasons = append(reasons, reason)
		}
	}
	slices.Sort(reasons)
	return reasons
}

func newEngineDocument(s *sidecar.Snapshot, now time.Time) engineDocument {
	e := &s.Engine
	words := describeState(e, readingAge(s, now))
	return engineDocument{
		URL: e.URL, Type: optional(string(e.Type)), Version: optional(e.Version),
		State: e.State, Reason: optional(e.Reason), Error: optional(e.Error),
		Summary: words.summary, Advice: optional(words.advice),
		AgeSeconds:          number(readingAge(s, now)),
		PollDurationSeconds: seconds(e.PollDuration),
		MaxModelLength:      number(positive(e.MaxModelLen)),
		Series:              number(positive(e.Series)),
		MissingSignals:      missingSignals(e),
		StartupSeconds:      number(positiveSeconds(e.Startup)),
	}
}

// spanSeconds is the time that rates rest on, unknown when there is none.
func spanSeconds(span time.Duration) number {
	if span <= 0 {
		return unknown
	}
	return number(span.Seconds())
}

func newReplicaDocument(s *sidecar.Snapshot, r *sidecar.Replica) replicaDocument {
	d := replicaDocument{
		ModelName: r.ModelName, Engine: r.Engine,
		EngineType: optional(string(s.Engine.Type)), EngineVersion: optional(s.Engine.Version),
		State: r.State,
		Zone:  capacity.ZoneUnknown,
		Curve: newCurveDocument(s, r),
		// What was known before a reading went bad is not known now.
		HeadroomRatio: unknown,
		LoadRatio:     loadRatios(capacity.UnknownLoadRatios()),
		Left:          leftDocument{unknown, unknown, unknown, unknown, unknown},
		Occupancy:     occupancyDocuments{occupancyDocument{Used: unknown, Total: unknown, Ratio: unknown}, occupancyDocument{Used: unknown, Total: unknown, Ratio: unknown}},
		TokenBudget:   limitDocument{Tokens: unknown},
		Requests:      requestsDocument{unknown, unknown},
		Rates:         ratesDocument{unknown, unknown, unknown, unknown, unknown, unknown, unknown, unknown},
		Latencies:     latenciesDocument{unknown, unknown, unknown, unknown}, TokensPerStep: unknown, BacklogSeconds: unknown,
		Summary: summarize(r),
		Reasons: list(r.Reasons),
	}
	if !r.State.Known() {
		return d
	}
	d.HeadroomRatio = number(r.HeadroomRatio)
	d.Zone = r.Zone
	d.LoadRatio = loadRatios(r.LoadRatios)
	if r.Binding != capacity.NoConstraint {
		d.BindingConstraint = optional(r.Binding.String())
	}
	l := r.Left
	d.Left = leftDocument{number(l.RequestsPerSecond), number(l.PromptTokensPerSecond), number(l.GenerationTokensPerSecond), number(l.SequenceSlots), number(l.TokenSlots)}
	d.Occupancy = occupancyDocuments{newOccupancyDocument(r.SequenceSlots), newOccupancyDocument(r.TokenSlots)}
	d.TokenBudget = limitDocument{number(r.BatchedTokens.Value), optional(r.BatchedTokens.Source)}
	d.Requests = requestsDocument{number(r.RequestsRunning), number(r.RequestsWaiting)}
	d.Rates = ratesDocument{
		spanSeconds(r.RateSpan),
		number(r.Rates.OfferedRequests), number(r.Rates.ServedRequests), number(r.Rates.PromptTokens), number(r.Rates.ComputedPromptTokens),
		number(r.Rates.GenerationTokens), number(r.Rates.Preemptions), number(r.Rates.Steps),
	}
	d.Latencies = latenciesDocument{
		number(r.Latencies.TimeToFirstToken), number(r.Latencies.InterTokenLatency), number(r.Latencies.QueueTime), number(r.Latencies.PrefillTime),
	}
	d.TokensPerStep, d.BacklogSeconds = number(r.TokensPerStep), number(r.BacklogSeconds)
	if len(r.Bandwidth) > 0 {
		d.Bandwidth = &bandwidthDocument{number(r.Bandwidth[0].Ratio), r.Bandwidth[0].Source}
	}
	d.Bottleneck = newBottleneckDocument(r.Bottleneck)
	if r.Curve.Valid {
		d.Forecast, d.Burn = newForecastDocument(r.Forecast), newBurnDocument(r.Burn)
	}
	return d
}

func newOccupancyDocument(o sidecar.Occupancy) occupancyDocument {
	return occupancyDocument{number(o.Used), number(o.Total), number(o.Ratio), optional(o.Source)}
}

func loadRatios(ratios capacity.LoadRatios) map[string]number {
	named := make(map[string]number, capacity.NumConstraints)
	for _, c := range capacity.Constraints() {
		named[c.String()] = number(ratios[c])
	}
	return named
}

// optional is nil, null in JSON, when there is nothing to say.
func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// list is an empty list, not null, when there is nothing to say.
func list(texts []string) []string {
	if texts == nil {
		return []string{}
	}
	return texts
}
