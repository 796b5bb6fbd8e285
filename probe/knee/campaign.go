package knee

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/workload"
)

// Campaign searches the knees of several kinds of traffic on one engine, in
// turn: see inTurn.
type Campaign struct {
	Engine  Engine
	Classes []workload.Class
	// SLO bounds every class that has none of its own.
	SLO    []capacity.SLO
	Mode   Mode
	Limits Limits
	// Burstiness are gamma shapes that each class is studied under beside Poisson.
	Burstiness []float64
	// Mix studies all classes at once, by their weights; MixOnly studies none alone.
	Mix, MixOnly bool
	// Replay is a trace that is studied at varying speed, with its name and the
	// classes that its requests belong to; nil for none.
	Replay     *workload.Replay
	ReplayName string
	// ColdStart measures the first minute of an engine that has just started.
	ColdStart bool
	// LengthBounds are the bucket bounds of the classes' histograms, in tokens.
	LengthBounds []float64

	MaxRate     float64
	MaxRequests int
	PeakReserve float64
	Seed        uint64
	// Report is told what is done and why, in a line; may be nil.
	Report func(line string)
}

// Run returns a curve with everything but identity, tool, client and times.
// When a search ends with an error, the curve has what was found until then.
func (c *Campaign) Run(ctx context.Context) (*curve.Curve, error) {
	out := &curve.Curve{
		Schema: curve.Schema, Source: curve.Measured, Estimate: c.Mode == Quick, SLO: c.SLO, PeakReserve: c.PeakReserve,
	}
	for i := range c.Classes {
		out.Classes = append(out.Classes, c.class(&c.Classes[i]))
	}
	if c.ColdStart {
		cold, err := c.coldStart(ctx)
		if err != nil {
			return out, fmt.Errorf("cold start: %w", err)
		}
		out.ColdStart = cold
	}
	var searches []func(Engine) error
	var names []string
	if !c.MixOnly {
		for i := range c.Classes {
			names = append(names, c.Classes[i].Name)
			searches = append(searches, func(e Engine) error { return c.alone(ctx, e, i, out) })
		}
	}
	var mixes []*curve.Mix
	add := func(what string, t Traffic) {
		mix := &curve.Mix{Name: t.Name}
		mixes = append(mixes, mix)
		names = append(names, "the "+t.Name)
		searches = append(searches, func(e Engine) error {
			if err := c.mix(ctx, e, t, mix); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
	}
	if c.Mix && len(c.Classes) > 1 {
		add("mix of all classes", Traffic{Name: "mix", Classes: c.Classes, Arrivals: curve.Arrivals{Process: "poisson"}})
	}
	if c.Replay != nil {
		add("trace", Traffic{
			Name: "trace", Classes: c.Replay.Classes, Arrivals: curve.Arrivals{Process: "trace", Trace: c.ReplayName}, Replay: c.Replay,
		})
	}
	if c.Report != nil && len(searches) > 1 {
		c.Report(fmt.Sprintf("%s and %s take turns, a load each; at most %.0f min of load for each, and for each kind of arrivals",
			strings.Join(names[:len(names)-1], ", "), names[len(names)-1], plans[c.Mode].seconds/60))
	}
	err := inTurn(c.Engine, searches)
	for _, mix := range mixes {
		if mix.Shares != nil {
			mix.Squeeze = squeeze(mix, out)
			out.Mixes = append(out.Mixes, *mix)
		}
	}
	return out, err
}

// alone searches a class by itself. The first one is what the same load is put on twice of.
func (c *Campaign) alone(ctx context.Context, e Engine, i int, out *curve.Curve) error {
	class, classes := &out.Classes[i], c.Classes[i:i+1]
	if err := c.studies(ctx, e, class, classes); err != nil {
		return fmt.Errorf("class %s: %w", class.Name, err)
	}
	if i > 0 || c.Mode == Quick {
		return nil
	}
	aa, err := c.aa(ctx, e, class, classes)
	if err != nil {
		return fmt.Errorf("the same load twice: %w", err)
	}
	out.AA = aa
	return nil
}

// class describes a class; its studies follow.
func (c *Campaign) class(w *workload.Class) curve.Class {
	prompt, generation := w.Histograms(c.LengthBounds)
	class := curve.Class{
		Name: w.Name, Weight: w.Weight, SLO: w.SLO, PromptHistogram: prompt, GenerationHistogram: generation,
		PrefixHitRatio: capacity.Unknown(),
	}
	class.PromptMean, class.GenerationMean = w.Means()
	return class
}

func (c *Campaign) config(e Engine, t Traffic, prior *curve.Study) Config {
	t.SLO = c.SLO
	return Config{
		Engine: e, Mode: c.Mode, Limits: c.Limits, MaxRate: c.MaxRate, MaxRequests: c.MaxRequests,
		PeakReserve: c.PeakReserve, Prior: prior, Seed: c.Seed, Report: c.Report, Traffic: t,
	}
}

// studies searches a class under every arrival shape.
func (c *Campaign) studies(ctx context.Context, e Engine, class *curve.Class, classes []workload.Class) error {
	t := Traffic{Name: class.Name, Classes: classes, Arrivals: curve.Arrivals{Process: "poisson"}}
	poisson, err := Search(ctx, c.config(e, t, nil))
	if poisson == nil {
		return err
	}
	class.Studies = append(class.Studies, *poisson)
	class.PrefixHitRatio, class.SpeculativeTokensPerStep = hitRatio(poisson), tokensPerStep(poisson)
	if err != nil {
		return err
	}
	for _, shape := range c.Burstiness {
		t.Arrivals = curve.Arrivals{Process: "gamma", Burstiness: shape}
		study, err := Search(ctx, c.config(e, t, poisson))
		if study != nil {
			class.Studies = append(class.Studies, *study)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// hitRatio is the prefix cache's, of the study's last point that has one.
func hitRatio(s *curve.Study) curve.Value {
	for _, p := range slices.Backward(s.Points) {
		if p.Engine.PrefixHitRatio.Known() {
			return p.Engine.PrefixHitRatio
		}
	}
	return capacity.Unknown()
}

// tokensPerStep is that of speculative decoding, of the study's last point
// that has one; 0 without it.
func tokensPerStep(s *curve.Study) float64 {
	for _, p := range slices.Backward(s.Points) {
		if n := p.Engine.SpeculativeTokensPerStep; n > 0 {
			return n
		}
	}
	return 0
}

// mix searches several classes at once.
func (c *Campaign) mix(ctx context.Context, e Engine, t Traffic, mix *curve.Mix) error {
	study, err := Search(ctx, c.config(e, t, nil))
	if study == nil {
		return err
	}
	mix.Study, mix.Shares = *study, map[string]float64{}
	total := 0.0
	for i := range t.Classes {
		total += t.Classes[i].Weight
	}
	for i := range t.Classes {
		mix.Shares[t.Classes[i].Name] += t.Classes[i].Weight / total
	}
	return err
}

// squeeze compares the tails of each class in the mix with those of the class
// alone, each at its safe rate.
func squeeze(mix *curve.Mix, c *curve.Curve) []curve.Squeeze {
	mixed := safePoint(&mix.Study)
	if mixed == nil {
		return nil
	}
	var out []curve.Squeeze
	for i := range c.Classes {
		class := &c.Classes[i]
		alone := class.Study(curve.Arrivals{Process: "poisson"})
		if alone == nil || safePoint(alone) == nil {
			continue
		}
		k := slices.IndexFunc(mixed.Classes, func(l curve.ClassLatency) bool { return l.Class == class.Name })
		if k < 0 {
			continue
		}
		in, p := &mixed.Classes[k], safePoint(alone)
		slos := class.SLO
		if len(slos) == 0 {
			slos = c.SLO
		}
		for _, s := range slos {
			out = append(out, curve.Squeeze{
				Class: class.Name, SLO: s,
				Alone: tail(s, p.TTFT, p.ITL, p.TPOT, p.E2E), Mixed: tail(s, in.TTFT, in.ITL, in.TPOT, in.E2E),
			})
		}
	}
	return out
}

// safePoint is the point at the safe rate: the last soak, else the fastest one that passed.
func safePoint(s *curve.Study) *curve.Point {
	if s.Soak != nil && s.Soak.Passed && len(s.Soak.Trials) > 0 {
		return &s.Soak.Trials[len(s.Soak.Trials)-1]
	}
	var best *curve.Point
	for i := range s.Points {
		p := &s.Points[i]
		if p.Passed != nil && *p.Passed && (best == nil || p.OfferedRate > best.OfferedRate) {
			best = p
		}
	}
	return best
}

// tail is the percentile that an SLO looks at, where it is one of those that are kept.
func tail(s capacity.SLO, ttft, itl, tpot, e2e curve.Quantiles) curve.Value {
	of := map[string]curve.Quantiles{"ttft": ttft, "itl": itl, "tpot": tpot, "e2e": e2e}
	q, ok := of[s.Metric]
	if !ok {
		return capacity.Unknown()
	}
	return q.At(s.Percentile)
}

// aaShare of the safe rate is the load that is put on twice.
const aaShare = 0.5

// aa puts the same load on twice. What differs is noise of the machine and of
// the draw: arrivals and lengths are drawn anew.
func (c *Campaign) aa(ctx context.Context, e Engine, class *curve.Class, classes []workload.Class) (*curve.AA, error) {
	safe := class.Studies[0].SafeRate
	if !safe.Known() {
		return nil, nil
	}
	traffic := &Traffic{Name: class.Name, Classes: classes, Arrivals: curve.Arrivals{Process: "poisson"}, SLO: c.SLO}
	rate := aaShare * float64(safe)
	out := &curve.AA{Class: class.Name, Rate: curve.Value(rate)}
	for i := range 2 {
		l := &Load{
			Name: fmt.Sprintf("aa %d", i+1), Purpose: curve.PurposeAA, Traffic: traffic,
			Steps: []Step{{Rate: rate, Duration: aaWarmup + aaDuration}}, Warmup: aaWarmup, Seed: c.Seed + uint64(i),
		}
		o, err := e.Run(ctx, l, nil)
		for n := 1; n < attempts && err == nil && invalid(&o.Point) != nil; n++ {
			repetition(l, n)
			o, err = e.Run(ctx, l, nil)
		}
		if err != nil {
			return nil, err
		}
		if gate := invalid(&o.Point); gate != nil {
			return nil, voidError(l, gate)
		}
		o.Point.Purpose = curve.PurposeAA
		out.Points = append(out.Points, o.Point)
	}
	values := func(p *curve.Point) []float64 {
		return []float64{float64(p.TTFT.P50), float64(p.TTFT.P95), float64(p.E2E.P50), float64(p.E2E.P95)}
	}
	out.Band = curve.Value(capacity.AABand(values(&out.Points[0]), values(&out.Points[1])))
	return out, nil
}
