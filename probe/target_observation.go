package probe

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/knee"
)

// observation is what the load did, as the search takes it.
func (f *following) observation(r *Result) *knee.Observation {
	f.tell(math.Inf(1))
	slices.SortFunc(f.requests, func(a, b knee.Request) int { return cmp.Compare(a.Due, b.Due) })
	p := point(r, f.run.measured)
	p.Purpose = f.load.Purpose
	if p.Purpose == curve.PurposeWarmup {
		// Nothing of a warm-up is used, so that nothing voids it.
		for i := range p.Gates {
			p.Gates[i].Kind = curve.GateRisk
		}
	}
	stopped := f.stopped
	if f.harm != nil {
		stopped = f.harm.Reason
		p.Faults = append(p.Faults, "aborted for safety: "+f.harm.Evidence)
	}
	p.Stopped = stopped
	return &knee.Observation{Point: p, Requests: f.requests, Samples: f.samples, Stopped: stopped}
}

// point is a result in the curve's form.
func point(r *Result, m *measurement) curve.Point {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := r.All()
	p := curve.Point{
		Name: r.Name, Concurrency: r.Concurrency,
		OfferedRate: r.OfferedRate, CompletedRate: r.CompletedRate,
		PromptTokenRate: r.PromptTokenRate, GenerationTokenRate: r.OutputTokenRate,
		Start: r.Start, Seconds: float64(r.Window), Attempts: all.Attempts, Failures: all.Failures(),
		Engine: curve.UnknownEngineReadings(),
		Client: curve.ClientReadings{
			LagP99: r.ScheduleLag.P99, CPUShare: r.Self.CPUShare, PeakInFlight: r.PeakInFlight, Capped: r.Capped,
		},
	}
	if math.IsNaN(p.Seconds) || p.Seconds < 0 {
		p.Seconds = 0
	}
	if !p.Client.LagP99.Known() {
		// Of fewer than 100 requests the latest one is the 99th percentile.
		p.Client.LagP99 = r.ScheduleLag.Max
	}
	g := m.group(byAll, "")
	p.TTFT, p.ITL, p.TPOT, p.E2E = quantiles(&g.ttft), quantiles(&g.itl), quantiles(&g.tpot), quantiles(&g.e2e)
	var classes []curve.ClassLatency
	for i := range r.Groups {
		if of := &r.Groups[i]; of.Dimension == byClass {
			g := m.groups[groupKey{byClass, of.Name}]
			classes = append(classes, curve.ClassLatency{
				Class: of.Name, Attempts: of.Attempts, Failures: of.Failures(),
				TTFT: quantiles(&g.ttft), ITL: quantiles(&g.itl), TPOT: quantiles(&g.tpot), E2E: quantiles(&g.e2e),
			})
		}
	}
	if len(classes) > 1 {
		slices.SortFunc(classes, func(a, b curve.ClassLatency) int { return cmp.Compare(a.Class, b.Class) })
		p.Classes = classes
	}
	if e := r.Engine; e != nil {
		p.Engine = curve.EngineReadings{
			RunningMean: e.Running.Mean, RunningMax: e.Running.Max, WaitingMean: e.Waiting.Mean, WaitingMax: e.Waiting.Max,
			KVMean: e.KVUsage.Mean, KVPeak: e.KVUsage.Max, Preemptions: e.Preemptions, PrefixHitRatio: e.PrefixHitRatio,
			QueueSeconds: e.QueueMean, PrefillSeconds: e.PrefillMean, DecodeSeconds: e.DecodeMean,
		}
		if e.TokensPerStep.Known() {
			p.Engine.SpeculativeTokensPerStep = float64(e.TokensPerStep)
		}
	}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		p.GPUs = append(p.GPUs, curve.GPUReadings{
			UUID: g.UUID, Model: g.Model, PowerWatts: g.Power.Mean, SMClockHertz: g.SMClock.Mean,
			Temperature: g.Temperature.Mean, Bandwidth: g.Bandwidth.Mean, SMActive: g.SMActive.Mean,
			ThrottleSeconds: g.ThrottleSeconds,
		})
	}
	validity(&p, r)
	return p
}

// quantiles of a distribution in the curve's form.
func quantiles(d *Distribution) curve.Quantiles {
	s := d.Summary()
	return curve.Quantiles{
		N: s.N, Mean: s.Mean, P10: Value(d.Percentile(10, 0)), P50: s.P50, P90: s.P90, P95: s.P95, P99: s.P99, P999: s.P999, Max: s.Max,
	}
}

// validity adds the gates that tell whether what was measured is the engine,
// and those that are noted only.
func validity(p *curve.Point, r *Result) {
	details := map[string]string{}
	for _, faults := range [][]Fault{r.Warnings, r.Faults} {
		for _, f := range faults {
			if details[f.Code] != "" {
				details[f.Code] += "; "
			}
			details[f.Code] += f.Detail
		}
	}
	unknown := Value(math.NaN())
	gate := func(name string, kind curve.GateKind, passed *bool, value, limit Value, detail string) {
		p.Gates = append(p.Gates, curve.Gate{
			Name: name, Kind: kind, Passed: passed, Value: value, Limit: limit, Low: unknown, High: unknown, Detail: detail,
		})
	}
	verdict := func(known, passed bool) *bool {
		if !known {
			return nil
		}
		return &passed
	}
	has := func(code string) bool {
		return slices.ContainsFunc(r.Faults, func(f Fault) bool { return f.Code == code })
	}

	limited := has(FaultClientLimited)
	limit, _ := r.lagLimit()
	if share := maxLagShare * float64(p.E2E.P50); p.Concurrency > 0 && share > limit {
		// A closed loop has no schedule to keep, and serves less by the share of
		// a request's time that the client adds.
		limit = share
		limited = limited && (float64(p.Client.LagP99) > limit || float64(p.Client.CPUShare) > maxCPUShare)
	}
	detail := details[FaultClientLimited]
	if !limited {
		detail = fmt.Sprintf("requests went out %s late at p99, the client used %s of its CPUs",
			seconds(float64(p.Client.LagP99)), percent(p.Client.CPUShare))
	}
	gate("client", curve.GateInvalid, verdict(p.Client.LagP99.Known(), !limited), p.Client.LagP99, Value(limit), detail)

	hits := p.Engine.PrefixHitRatio
	switch {
	case has(FaultCacheHits):
		detail = details[FaultCacheHits]
	case hits.Known():
		detail = percent(hits) + " of the prompt tokens came from the prefix cache"
	default:
		detail = "the engine does not say what its prefix cache served"
	}
	gate("prefix_cache_hits", curve.GateInvalid, verdict(hits.Known(), !has(FaultCacheHits)), hits, maxHitShare, detail)

	all := r.All()
	misses := Value(float64(all.Outcomes[LengthMismatch]) / float64(all.Attempts))
	detail = details[FaultLengthMismatch]
	if detail == "" {
		detail = fmt.Sprintf("%d of %d answers have another length than was asked for", all.Outcomes[LengthMismatch], all.Attempts)
	}
	gate("length", curve.GateInvalid, verdict(all.Attempts > 0, !has(FaultLengthMismatch)), misses, maxMismatchShare, detail)

	for _, risk := range []struct{ code, name string }{
		{FaultStall, "stall"}, {FaultCapped, "cap"}, {FaultForeign, "foreign_traffic"}, {FaultCrossCheck, "ttft_cross_check"},
	} {
		if details[risk.code] != "" {
			gate(risk.name, curve.GateRisk, verdict(true, false), unknown, unknown, details[risk.code])
		}
	}
	for _, code := range []string{FaultNothing, FaultInterrupted} {
		if has(code) {
			p.Faults = append(p.Faults, details[code])
		}
	}
}
