// Package curve is the capacity curve: what a replica can serve for each class
// of traffic under an SLO, as it was measured, with the identity of what it
// was measured on. It reads, checks, compares and writes such files; it
// measures nothing.
//
// Rates are requests or tokens per second, times seconds, lengths tokens.
// What is not known is NaN here and null, or absent, in the file.
package curve

import (
	"time"

	"headroom_exporter/capacity"
)

// Schema is the version of the file's form.
const Schema = "capacity-curve/v1"

// Value is a number that may be unknown.
type Value = capacity.Value

// Source is where a curve's numbers come from.
type Source string

// The sources. Only what was measured may page.
const (
	Measured  Source = "measured"
	Imported  Source = "imported"
	Simulated Source = "simulated"
)

// Curve is one capacity curve file.
type Curve struct {
	Schema string `json:"schema"`
	// ID is the SHA-256 of the identity, in hex.
	ID       string   `json:"id"`
	Identity Identity `json:"identity"`
	Source   Source   `json:"source"`
	// ImportedFrom is the tool whose result file it was made of.
	ImportedFrom string `json:"imported_from,omitempty"`
	// Estimate tells that nothing was soaked: knees may be too high.
	Estimate bool `json:"estimate,omitempty"`
	// SLO bounds every class that has none of its own.
	SLO []capacity.SLO `json:"slo"`
	// PeakReserve is the share of the knee that is kept for peaks: the
	// watermark is (1 - PeakReserve) * the knee's lower bound.
	PeakReserve float64 `json:"peak_reserve_ratio"`
	Classes     []Class `json:"classes"`
	// Mixes are several classes at once.
	Mixes []Mix `json:"mixes,omitempty"`
	// AA is what the same load showed twice.
	AA *AA `json:"aa,omitempty"`
	// ColdStart is the engine's first minute after a restart; nil when it was not measured.
	ColdStart *ColdStart `json:"cold_start,omitempty"`
	// Coverage is what the curve rests on, and what is missing.
	Coverage []Coverage `json:"coverage,omitempty"`

	Tool     Tool      `json:"tool"`
	Client   Client    `json:"client"`
	Workload Workload  `json:"workload"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	Notes    []string  `json:"notes,omitempty"`
	// Reuse lets the curve stand for an engine whose identity differs in a field.
	Reuse []Reuse `json:"reuse,omitempty"`
}

// Tool is what measured.
type Tool struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Commit  string `json:"commit,omitempty"`
}

// Client is where the load came from.
type Client struct {
	Host     string `json:"host,omitempty"`
	OS       string `json:"os,omitempty"`
	CPUs     int    `json:"cpus,omitempty"`
	CPUModel string `json:"cpu_model,omitempty"`
	// Dialect is how requests were asked for, such as "completions with token ids".
	Dialect string `json:"dialect,omitempty"`
}

// Workload is what was sent, so that it can be sent again.
type Workload struct {
	// Hash is the SHA-256 of the classes and the trace, in hex; not of the seed:
	// two draws of the same classes are the same workload.
	Hash string `json:"hash"`
	Seed uint64 `json:"seed"`
	// Flags are the flags that make it, for a person.
	Flags string `json:"flags,omitempty"`
}

// Reuse is a permission, signed by a person, to use the curve although a field differs.
type Reuse struct {
	Field      string `json:"field"`
	From       string `json:"from"`
	To         string `json:"to"`
	Reason     string `json:"reason"`
	ApprovedBy string `json:"approved_by"`
}

// Class is one class of traffic and what was found for it.
type Class struct {
	Name   string  `json:"name"`
	Weight float64 `json:"weight"`
	// SLO of the class; empty takes the curve's.
	SLO []capacity.SLO `json:"slo,omitempty"`
	// The shares of lengths, in the engine's bucket bounds.
	PromptHistogram     capacity.Histogram `json:"prompt_histogram"`
	GenerationHistogram capacity.Histogram `json:"generation_histogram"`
	PromptMean          float64            `json:"prompt_tokens_mean"`
	GenerationMean      float64            `json:"generation_tokens_mean"`
	PrefixHitRatio      Value              `json:"prefix_cache_hit_ratio"`
	// SpeculativeTokensPerStep is the mean of tokens that a step of a sequence gives
	// with speculative decoding, 1 + accepted tokens / drafts; 0, or absent, without it.
	SpeculativeTokensPerStep float64 `json:"speculative_tokens_per_step,omitempty"`
	// Studies are one per arrival shape; the first is Poisson where that was measured.
	Studies []Study `json:"studies"`
}

// Study of a class by its arrivals; nil when there is none.
func (c *Class) Study(a Arrivals) *Study {
	for i := range c.Studies {
		if c.Studies[i].Arrivals == a {
			return &c.Studies[i]
		}
	}
	return nil
}

// Mix is several classes at once, by their weights.
type Mix struct {
	Name string `json:"name"`
	// Shares of the requests by class, adding up to 1.
	Shares map[string]float64 `json:"shares"`
	Study
	// Squeeze compares each class in the mix with itself alone at the same
	// load: a long class must not squeeze a short one.
	Squeeze []Squeeze `json:"squeeze,omitempty"`
}

// Squeeze is one tail of a class within a mix and alone, in seconds.
type Squeeze struct {
	Class string       `json:"class"`
	SLO   capacity.SLO `json:"slo"`
	Alone Value        `json:"alone_s"`
	Mixed Value        `json:"mixed_s"`
}

// Arrivals is an arrival shape.
type Arrivals struct {
	// Process is poisson, gamma, or trace; of what is imported also constant, or
	// closed_loop, where each answer calls for the next request.
	Process string `json:"process"`
	// Burstiness is gamma's shape.
	Burstiness float64 `json:"burstiness,omitempty"`
	// Trace names the trace and its SHA-256.
	Trace string `json:"trace,omitempty"`
}

// Study is what was found for one class or mix under one arrival shape.
type Study struct {
	Arrivals Arrivals `json:"arrivals"`
	// SafeRate is the offered rate that passed the soak, or what an estimate
	// puts in its place; unknown when there is none.
	SafeRate Value `json:"safe_requests_per_second"`
	// Status is why SafeRate is what it is: ok, estimate, provisional,
	// no_safe_rate, not_reached (the load was bounded below the knee), interrupted.
	Status Status `json:"status"`
	// Reason of a status other than ok, in words.
	Reason  string   `json:"reason,omitempty"`
	Ceiling *Ceiling `json:"ceiling,omitempty"`
	Knee    *Knee    `json:"knee,omitempty"`
	// Baseline is the latency of a nearly idle engine.
	Baseline *Point  `json:"baseline,omitempty"`
	Points   []Point `json:"points,omitempty"`
	Soak     *Soak   `json:"soak,omitempty"`
	Burst    *Burst  `json:"burst,omitempty"`
	// Curve is the fraction of violations over the offered rate that never
	// falls (pool-adjacent-violators), as published, for each SLO.
	Curve []Violations `json:"violation_curve,omitempty"`
	// Requests and Seconds are what the study cost.
	Requests int     `json:"requests"`
	Seconds  float64 `json:"seconds"`
}

// Status of a study.
type Status string

// The statuses.
const (
	StatusOK          Status = "ok"
	StatusEstimate    Status = "estimate"
	StatusProvisional Status = "provisional"
	StatusNoSafeRate  Status = "no_safe_rate"
	StatusNotReached  Status = "not_reached"
	StatusInterrupted Status = "interrupted"
)

// Violations is one SLO's curve: Fraction[i] of the requests, or gaps, pass the bound at Rate[i].
type Violations struct {
	Class    string       `json:"class,omitempty"`
	SLO      capacity.SLO `json:"slo"`
	Rate     []float64    `json:"requests_per_second"`
	Fraction []float64    `json:"fraction"`
}

// Ceiling is what a closed loop shows: the most that is served whatever the latency.
type Ceiling struct {
	// Rate is mu, the most completions per second.
	Rate Value `json:"requests_per_second"`
	// Residence is the mean time of a request in the engine at the ceiling.
	Residence Value `json:"residence_s"`
	// SequenceSlots is Rate * Residence, by Little's law: how many are usable.
	SequenceSlots Value `json:"sequence_slots"`
	// Expected is how many usable sequence slots the engine's limits allow, the
	// smaller of max_num_seqs and KV tokens / tokens held by a running request.
	Expected Value `json:"sequence_slots_expected"`
	// Steps are the closed-loop points.
	Steps []Point `json:"steps,omitempty"`
}

// Knee is where the binding SLO's violations reach its budget.
type Knee struct {
	Rate Value `json:"requests_per_second"`
	// Low and High bound it with Confidence (0.9), by a block bootstrap. Of what
	// is imported, without a Confidence, they are the last load that passed and the first that failed.
	Low        Value   `json:"low"`
	High       Value   `json:"high"`
	Confidence float64 `json:"confidence"`
	// Watermark is (1 - peak reserve) * min(safe rate, Low).
	Watermark Value `json:"watermark"`
	// BindingSLO is the first bound that gives; for a mix, of BindingClass. It is
	// "queue_growth" or "success" where that gave before any latency.
	BindingSLO   string `json:"binding_slo"`
	BindingClass string `json:"binding_class,omitempty"`
	// Boundary is smooth or cliff. At a cliff CliffFrom passed and CliffTo failed, close together.
	Boundary  string    `json:"boundary"`
	CliffFrom Value     `json:"cliff_from"`
	CliffTo   Value     `json:"cliff_to"`
	BySLO     []SLOKnee `json:"by_slo"`
	// The engine at the knee, between the points beside it.
	PromptTokenRate     Value `json:"prompt_tokens_per_second"`
	GenerationTokenRate Value `json:"generation_tokens_per_second"`
	Concurrency         Value `json:"concurrency"`
	KVPeak              Value `json:"kv_usage_peak"`
	// Bottleneck is what limits there: queue, prefill, decode, kv, slots or client, with the evidence.
	Bottleneck string   `json:"bottleneck,omitempty"`
	Evidence   []string `json:"evidence,omitempty"`
	// Pending is a change that was seen once and counts when it is seen again: a
	// higher knee, or this one when it is a provisional fall.
	Pending *Pending `json:"pending,omitempty"`
}

// Pending is a knee waiting for a second sighting.
type Pending struct {
	Rate Value     `json:"requests_per_second"`
	Seen time.Time `json:"seen"`
}

// SLOKnee is where one SLO gives. Rate is unknown when it held at every rate.
type SLOKnee struct {
	Class string       `json:"class,omitempty"`
	SLO   capacity.SLO `json:"slo"`
	Rate  Value        `json:"requests_per_second"`
	Low   Value        `json:"low"`
	High  Value        `json:"high"`
	// Method is replay (what was sent, served by a queue calibrated to the engine),
	// logistic, isotonic, bracket or above (it held at all points).
	Method string `json:"method"`
}

// Soak is a long run at the safe rate.
type Soak struct {
	Passed bool `json:"passed"`
	// Proven tells that the binomial bound too is within the budget.
	Proven  bool    `json:"proven"`
	Trials  []Point `json:"trials"`
	Seconds float64 `json:"seconds"`
}

// Burst is a multiple of the safe rate for some seconds.
type Burst struct {
	Factor  float64 `json:"factor"`
	Seconds float64 `json:"seconds"`
	// Drain is until no request waits, Recovery until the TTFT is back under its
	// bound for 15 s, both from the end of the burst; unknown when it did not come back.
	Drain      Value `json:"drain_s"`
	Recovery   Value `json:"recovery_s"`
	WorstTTFT  Value `json:"worst_ttft_s"`
	WaitingMax Value `json:"waiting_max"`
}

// AA is the same load twice: what differs is noise.
type AA struct {
	Class string `json:"class"`
	Rate  Value  `json:"requests_per_second"`
	// Band is the largest relative difference between the two, over the p50 and p95 of TTFT and E2E.
	Band   Value   `json:"band_ratio"`
	Points []Point `json:"points,omitempty"`
}

// ColdStart is how an engine answers that has just started.
type ColdStart struct {
	Class string `json:"class"`
	// Seconds from the first request until the median TTFT is within 10 % of
	// the steady one; unknown when that did not come.
	Seconds   Value `json:"seconds"`
	WorstTTFT Value `json:"worst_ttft_s"`
}

// Coverage is one thing that a curve should rest on.
type Coverage struct {
	// Item is baseline, peak, burst, long_tail, mixed_replay, soak, recovery, aa or cold_start.
	Item string `json:"item"`
	Done bool   `json:"done"`
	// Detail says what was done, or what is missing.
	Detail string `json:"detail"`
	// Command fills it; empty when it is done.
	Command string `json:"command,omitempty"`
}

// Purpose of a point.
type Purpose string

// The purposes.
const (
	PurposeBaseline Purpose = "baseline"
	PurposeAA       Purpose = "aa"
	PurposeWarmup   Purpose = "warmup"
	PurposeCeiling  Purpose = "ceiling"
	PurposeProbe    Purpose = "probe"
	PurposeSoak     Purpose = "soak"
	PurposeBurst    Purpose = "burst"
	PurposeImported Purpose = "imported"
)

// Point is one load and everything that was measured under it.
type Point struct {
	Name    string  `json:"name"`
	Purpose Purpose `json:"purpose"`
	// Concurrency of a closed loop; 0 is open loop.
	Concurrency int `json:"concurrency,omitempty"`
	// OfferedRate is requests due per second, CompletedRate those that ended well.
	OfferedRate         Value `json:"offered_requests_per_second"`
	CompletedRate       Value `json:"completed_requests_per_second"`
	PromptTokenRate     Value `json:"prompt_tokens_per_second"`
	GenerationTokenRate Value `json:"generation_tokens_per_second"`
	// Start is since the run's start, Seconds is how long was measured.
	Start   float64 `json:"start_s"`
	Seconds float64 `json:"seconds"`
	// Trimmed is how many seconds at the beginning were found not to be steady and left out.
	Trimmed float64 `json:"trimmed_s,omitempty"`
	// Attempts count; Failures of them did not end as asked.
	Attempts int       `json:"attempts"`
	Failures int       `json:"failures"`
	TTFT     Quantiles `json:"ttft"`
	ITL      Quantiles `json:"itl"`
	TPOT     Quantiles `json:"tpot"`
	E2E      Quantiles `json:"e2e"`
	// Classes are the latencies by class where there are several.
	Classes []ClassLatency `json:"classes,omitempty"`
	Gates   []Gate         `json:"gates,omitempty"`
	// Passed is whether all gates that fail a point passed; nil when one could not tell.
	Passed *bool `json:"passed"`
	// Stopped is why the point was ended early, as failed.
	Stopped string `json:"stopped,omitempty"`
	// Faults are why the point cannot be used.
	Faults []string `json:"faults,omitempty"`

	Engine EngineReadings `json:"engine"`
	GPUs   []GPUReadings  `json:"gpus,omitempty"`
	Client ClientReadings `json:"client"`
}

// ClassLatency is one class within a point.
type ClassLatency struct {
	Class    string    `json:"class"`
	Attempts int       `json:"attempts"`
	Failures int       `json:"failures"`
	TTFT     Quantiles `json:"ttft"`
	ITL      Quantiles `json:"itl"`
	TPOT     Quantiles `json:"tpot"`
	E2E      Quantiles `json:"e2e"`
}

// Quantiles of a latency in seconds. Those that the samples are too few for are unknown.
type Quantiles struct {
	N    float64 `json:"n"`
	Mean Value   `json:"mean"`
	P10  Value   `json:"p10"`
	P50  Value   `json:"p50"`
	P90  Value   `json:"p90"`
	P95  Value   `json:"p95"`
	P99  Value   `json:"p99"`
	P999 Value   `json:"p99_9"`
	Max  Value   `json:"max"`
}

// At is the percentile where it is one of those that are kept, else unknown.
func (q *Quantiles) At(percentile float64) Value {
	switch percentile {
	case 10:
		return q.P10
	case 50:
		return q.P50
	case 90:
		return q.P90
	case 95:
		return q.P95
	case 99:
		return q.P99
	case 99.9:
		return q.P999
	}
	return capacity.Unknown()
}

// GateKind is what the failure of a gate means.
type GateKind string

// The kinds.
const (
	// GateFail fails the point: the load is above the knee.
	GateFail GateKind = "fail"
	// GateRisk is noted only.
	GateRisk GateKind = "risk"
	// GateInvalid voids the point: what was measured is not the engine.
	GateInvalid GateKind = "invalid"
)

// Gate is one thing a point must keep, with the evidence.
type Gate struct {
	// Name is slo, success, queue_growth, waiting, preemptions, kv_usage, client, prefix_cache_hits or
	// length; of what is noted only also stall, cap, foreign_traffic or ttft_cross_check.
	Name  string        `json:"name"`
	Kind  GateKind      `json:"kind"`
	Class string        `json:"class,omitempty"`
	SLO   *capacity.SLO `json:"slo,omitempty"`
	// Passed is nil when the evidence does not tell.
	Passed *bool `json:"passed"`
	// Violations of N, DesignEffect by which they clump, and the one-sided
	// bounds of their fraction (Clopper-Pearson at Confidence on N / DesignEffect).
	Violations   float64 `json:"violations,omitempty"`
	N            float64 `json:"n,omitempty"`
	DesignEffect float64 `json:"design_effect,omitempty"`
	Low          Value   `json:"low"`
	High         Value   `json:"high"`
	Confidence   float64 `json:"confidence,omitempty"`
	// Value against Limit, in the gate's own unit.
	Value Value `json:"value"`
	Limit Value `json:"limit"`
	// Detail says it in words.
	Detail string `json:"detail"`
}

// EngineReadings is what the engine said of itself during a point.
type EngineReadings struct {
	RunningMean    Value `json:"running_mean"`
	RunningMax     Value `json:"running_max"`
	WaitingMean    Value `json:"waiting_mean"`
	WaitingMax     Value `json:"waiting_max"`
	KVMean         Value `json:"kv_usage_mean"`
	KVPeak         Value `json:"kv_usage_peak"`
	Preemptions    Value `json:"preemptions"`
	PrefixHitRatio Value `json:"prefix_cache_hit_ratio"`
	// Mean seconds of a request in the queue, in prefill and in decode, by the engine's histograms.
	QueueSeconds   Value `json:"queue_s"`
	PrefillSeconds Value `json:"prefill_s"`
	DecodeSeconds  Value `json:"decode_s"`
	// SpeculativeTokensPerStep is that of the class, during the point.
	SpeculativeTokensPerStep float64 `json:"speculative_tokens_per_step,omitempty"`
}

// UnknownEngineReadings has nothing known.
func UnknownEngineReadings() EngineReadings {
	u := capacity.Unknown()
	return EngineReadings{u, u, u, u, u, u, u, u, u, u, u, 0}
}

// GPUReadings is what one GPU did during a point.
type GPUReadings struct {
	UUID            string             `json:"uuid"`
	Model           string             `json:"model,omitempty"`
	PowerWatts      Value              `json:"power_watts"`
	SMClockHertz    Value              `json:"sm_clock_hertz"`
	Temperature     Value              `json:"temperature_celsius"`
	Bandwidth       Value              `json:"memory_bandwidth_ratio"`
	SMActive        Value              `json:"sm_active_ratio"`
	ThrottleSeconds map[string]float64 `json:"throttle_seconds,omitempty"`
}

// ClientReadings is what the probe's own client did during a point.
type ClientReadings struct {
	LagP99   Value `json:"schedule_lag_p99_s"`
	CPUShare Value `json:"cpu_ratio"`
	// PeakInFlight is the most requests at once.
	PeakInFlight int `json:"peak_in_flight"`
	// Capped counts requests that a cap held back.
	Capped int `json:"capped,omitempty"`
}
