package web

import (
	"math"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/sidecar"
)

// curveDocument is the capacity curve, and the live load by it.
type curveDocument struct {
	Valid bool `json:"valid"`
	// Reasons are short codes. Notice is what a reader must know first, in words:
	// a probe that runs, why the curve does not count or is stale; null when there is nothing.
	Reasons []string `json:"reasons"`
	Notice  *notice  `json:"notice"`
	// Stale are codes why it should be measured again.
	Stale []string `json:"stale"`
	// SLO are the bounds that its knees stand for, as --slo takes them.
	SLO []string `json:"slo"`
	// ID, Source (measured, imported, simulated), Estimate and Measured are of the curve in force.
	ID         *string    `json:"id"`
	Source     *string    `json:"source"`
	Estimate   bool       `json:"estimate"`
	Measured   *time.Time `json:"measured"`
	AgeSeconds number     `json:"age_seconds"`
	// FileError is why what is in the curve's file now is not in force.
	FileError *string `json:"file_error"`
	// CoverageRatio is the share of the live traffic that the curve's classes explain.
	CoverageRatio number `json:"coverage_ratio"`
	// MixSource is histograms, sums, last_valid, declared_default or none; MixReasons are codes of what it lacks.
	MixSource   string   `json:"mix_source"`
	MixReasons  []string `json:"mix_reasons"`
	Completions number   `json:"completions"`
	// LoadRatio is null unless it may be relied on, WatermarkRatio where the zone stable ends.
	LoadRatio number `json:"load_ratio"`
	// StandardErrorRatio is by how much of it the load ratio was raised, for chance.
	StandardErrorRatio number `json:"standard_error_ratio"`
	WatermarkRatio     number `json:"watermark_ratio"`
	OfferedRequests    number `json:"offered_requests_per_second"`
	// KneeRequests is the rate of the present mix at which the load ratio is 1.
	KneeRequests number               `json:"knee_requests_per_second"`
	Classes      []curveClassDocument `json:"classes"`
	Correction   curveCorrection      `json:"correction"`
	Burstiness   curveBurstiness      `json:"burstiness"`
	// TokensPerStep is what a step of a sequence gave with speculative decoding
	// when the curve was measured, of the present mix.
	TokensPerStep number `json:"speculative_tokens_per_step"`
	// ProbeRunning tells that a probe is seen to measure the curve anew.
	ProbeRunning bool                  `json:"probe_running"`
	Differences  []differencesDocument `json:"differences"`
	// Picture is what the page draws; null without a curve.
	Picture *curveView `json:"picture"`
}

type curveClassDocument struct {
	Name string `json:"name"`
	// Requests per second of the class, its share of the requests, and its knee alone.
	Requests     number `json:"requests_per_second"`
	ShareRatio   number `json:"share_ratio"`
	KneeRequests number `json:"knee_requests_per_second"`
	// LoadRatio is what the class adds to the curve's load ratio.
	LoadRatio number `json:"load_ratio"`
}

type curveCorrection struct {
	// Factor is how much slower the engine answers than its curve says.
	Factor  number `json:"factor"`
	Applied bool   `json:"applied"`
	// Mean latencies now / what the curve says.
	TTFTRatio number `json:"time_to_first_token_ratio"`
	ITLRatio  number `json:"inter_token_latency_ratio"`
	// GenerationRatio is generated tokens per second now / what the curve says.
	GenerationRatio number `json:"generation_rate_ratio"`
}

type curveBurstiness struct {
	// DispersionRatio is 1 for random arrivals; Burstier tells that they come
	// in more of bursts than the curve was measured with.
	DispersionRatio number `json:"dispersion_ratio"`
	Burstier        bool   `json:"burstier"`
}

// differencesDocument is a field in which the engine differs from the curve's.
type differencesDocument struct {
	Field  string `json:"field"`
	Stored string `json:"stored"`
	Live   string `json:"live"`
	// Verdict is hard (the curve does not count), soft (it should be measured again) or reuse (allowed by its file).
	Verdict string `json:"verdict"`
}

func newCurveDocument(s *sidecar.Snapshot, r *sidecar.Replica) curveDocument {
	c, l := &r.Curve, &r.Curve.Load
	d := curveDocument{
		Valid: c.Valid && r.State.Known(), Reasons: list(c.Reasons), Notice: curveNotice(c), Stale: list(c.Stale), SLO: []string{},
		AgeSeconds: unknown, FileError: optional(c.FileError),
		CoverageRatio: unknown, MixSource: string(capacity.MixNone), MixReasons: []string{}, Completions: unknown,
		LoadRatio: unknown, StandardErrorRatio: unknown, WatermarkRatio: unknown, OfferedRequests: unknown, KneeRequests: unknown,
		Classes: []curveClassDocument{}, Differences: differencesOf(c.Check),
		Correction: curveCorrection{Factor: unknown, TTFTRatio: unknown, ITLRatio: unknown, GenerationRatio: unknown},
		Burstiness: curveBurstiness{DispersionRatio: unknown}, TokensPerStep: unknown, ProbeRunning: c.ProbeRunning,
		Picture: newCurveView(s, r, nil),
	}
	if c.Curve == nil {
		return d
	}
	measured := c.Curve.Finished.UTC()
	d.ID, d.Source, d.Estimate, d.Measured = optional(c.Curve.ID), optional(string(c.Curve.Source)), c.Curve.Estimate, &measured
	d.SLO, d.AgeSeconds = sloTexts(curveSLOs(c.Curve)), number(curveAge(c))
	if !r.State.Known() {
		return d
	}
	d.CoverageRatio, d.MixSource, d.Completions = number(l.Coverage), string(l.Mix.Source), number(l.Mix.Completions)
	for _, r := range l.Reasons {
		d.MixReasons = append(d.MixReasons, string(r))
	}
	d.LoadRatio, d.OfferedRequests = number(l.Ratio), number(c.OfferedRequests)
	d.Correction = curveCorrection{number(c.CorrectionFactor), c.CorrectionApplied, number(c.TTFTRatio), number(c.ITLRatio), number(c.GenerationRatio)}
	d.TokensPerStep = number(c.TokensPerStep)
	d.Burstiness = curveBurstiness{number(c.Burstiness.Dispersion), c.Burstier}
	if c.Valid {
		d.WatermarkRatio, d.KneeRequests = number(l.Watermark), number(l.Knee)
	}
	// The load by classes is the ratio's, and as little to be relied on as it.
	if !math.IsNaN(l.Ratio) {
		d.StandardErrorRatio = number(l.StandardError)
		for i, k := range l.Classes {
			d.Classes = append(d.Classes, curveClassDocument{k.Name, number(k.Rate), number(l.Mix.Classes[i].Share), number(k.Knee), number(k.Ratio)})
		}
	}
	return d
}

func differencesOf(check *curve.Check) []differencesDocument {
	all := []differencesDocument{}
	if check == nil {
		return all
	}
	add := func(d curve.Difference, verdict string) {
		all = append(all, differencesDocument{d.Field, d.Stored, d.Live, verdict})
	}
	for _, d := range check.Hard {
		add(d, "hard")
	}
	for _, d := range check.Soft {
		add(d, "soft")
	}
	for _, d := range check.Silenced {
		add(d.Difference, "reuse")
	}
	return all
}

// bottleneckDocument is what limits a replica.
type bottleneckDocument struct {
	// Kind is gpu_throttled, cpu, slots, kv, prefill, decode, queue, none or unknown.
	Kind     string   `json:"kind"`
	Evidence []string `json:"evidence"`
}

func newBottleneckDocument(a capacity.Attribution) *bottleneckDocument {
	if a.Bottleneck == "" {
		a.Bottleneck = capacity.BottleneckUnknown
	}
	return &bottleneckDocument{string(a.Bottleneck), list(a.Evidence)}
}

// forecastDocument is where the load ratio is going.
type forecastDocument struct {
	// State says what time_to_knee_seconds is: reached, within, or beyond half
	// an hour; without skill or unknown it is null.
	State             string            `json:"state"`
	TimeToKneeSeconds number            `json:"time_to_knee_seconds"`
	Horizons          []horizonDocument `json:"horizons"`
}

type horizonDocument struct {
	Seconds number `json:"seconds"`
	// LoadRatio is null without skill.
	LoadRatio number `json:"load_ratio"`
	// SkillRatio is 1 - mean error / that of no change; BandRatio is what 90 % of the errors were within.
	SkillRatio number `json:"skill_ratio"`
	BandRatio  number `json:"band_ratio"`
	Compared   int    `json:"compared"`
}

func newForecastDocument(f sidecar.Forecast) *forecastDocument {
	d := &forecastDocument{State: "unknown", TimeToKneeSeconds: number(f.TimeToKnee), Horizons: []horizonDocument{}}
	switch {
	case f.TimeToKnee == 0:
		d.State = "reached"
	case math.IsInf(f.TimeToKnee, 1):
		d.State = "beyond"
	case f.TimeToKnee > 0:
		d.State = "within"
	}
	for _, h := range f.Horizons {
		if d.State == "unknown" && h.Skill.Ratio < 0 {
			d.State = "no_skill"
		}
		d.Horizons = append(d.Horizons, horizonDocument{number(60 * h.Skill.Minutes), number(h.LoadRatio), number(h.Skill.Ratio), number(h.Skill.Band), h.Skill.Compared})
	}
	return d
}

// burnDocument is how fast the headroom is used up.
type burnDocument struct {
	// Class is none, ticket, page, exhausted or unknown.
	Class   string               `json:"class"`
	Windows []burnWindowDocument `json:"windows"`
	// LeadSeconds is how long it takes to get more capacity, by LeadSource: measured, or default.
	LeadSeconds number `json:"lead_seconds"`
	LeadSource  string `json:"lead_source"`
}

type burnWindowDocument struct {
	Seconds number `json:"seconds"`
	// BurnRatio is 1 when the headroom is gone in exactly the lead.
	BurnRatio number `json:"burn_ratio"`
}

func newBurnDocument(b sidecar.Burn) *burnDocument {
	return &burnDocument{
		Class: string(b.Class), LeadSeconds: number(b.LeadSeconds), LeadSource: leadSource(b),
		Windows: []burnWindowDocument{{capacity.FastBurnWindow, number(b.Fast)}, {capacity.SlowBurnWindow, number(b.Slow)}},
	}
}

func leadSource(b sidecar.Burn) string {
	if b.LeadMeasured {
		return "measured"
	}
	return "default"
}
