package curve

import "headroom_exporter/capacity"

// EnvelopeRow is what one replica takes of one class, or mix, under one
// arrival shape, and what to leave of it. Rates are per replica, per second.
type EnvelopeRow struct {
	Class    string             `json:"class,omitempty"`
	Mix      string             `json:"mix,omitempty"`
	Shares   map[string]float64 `json:"shares,omitempty"`
	Arrivals Arrivals           `json:"arrivals"`
	SafeRate Value              `json:"safe_requests_per_second"`
	Status   Status             `json:"status"`
	Reason   string             `json:"reason,omitempty"`
	Knee     Value              `json:"knee_requests_per_second"`
	// KneeLow and KneeHigh bound the knee with Confidence.
	KneeLow      Value   `json:"knee_low"`
	KneeHigh     Value   `json:"knee_high"`
	Confidence   float64 `json:"confidence,omitempty"`
	BindingSLO   string  `json:"binding_slo,omitempty"`
	BindingClass string  `json:"binding_class,omitempty"`
	Zones        Zones   `json:"zones"`
	// Watermark is the most to run at with the peak reserve kept.
	Watermark Value `json:"watermark"`
	// NMinusOne is the most to run at so that Replicas-1 keep the watermark when
	// one is lost: watermark * (N-1)/N. It is a model: the load is taken to spread
	// evenly over the replicas that are left. 0 for one replica, whose loss nothing takes up.
	Replicas  int   `json:"replicas"`
	NMinusOne Value `json:"n_minus_one_watermark"`
	// The tokens at the safe rate.
	PromptTokenRate     Value `json:"prompt_tokens_per_second"`
	GenerationTokenRate Value `json:"generation_tokens_per_second"`
	// GPU is those of the replica, Limits what the engine allows itself.
	GPU    string  `json:"gpu,omitempty"`
	Limits []Limit `json:"limits,omitempty"`
	// SLO bounds the class; those of a mix are its classes'.
	SLO []capacity.SLO `json:"slo,omitempty"`
	// Estimate tells that nothing was soaked.
	Estimate bool `json:"estimate,omitempty"`
}

// Zones are offered rates: stable up to Stable, at risk up to Risk, unstable above.
type Zones struct {
	// Stable is the watermark.
	Stable Value `json:"stable_up_to"`
	// Risk is the knee.
	Risk Value `json:"risk_up_to"`
}

// Zone is where an offered rate lies.
type Zone string

// The zones.
const (
	Stable   Zone = "stable"
	Risk     Zone = "risk"
	Unstable Zone = "unstable"
)

// Of is the zone of an offered rate; empty where the zones are not known.
func (z Zones) Of(rate float64) Zone {
	switch {
	case rate <= float64(z.Stable):
		return Stable
	case rate <= float64(z.Risk):
		return Risk
	case rate > float64(z.Risk):
		return Unstable
	}
	return ""
}

// Limit is one limit of the engine.
type Limit struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// envelopeLimits are the fields of the identity that bound what an engine takes.
var envelopeLimits = []string{"max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_tokens"}

// Envelope is a row for each class and mix under each arrival shape, of a
// pool of so many replicas like the one measured; fewer than 1 count as 1.
func (c *Curve) Envelope(replicas int) []EnvelopeRow {
	replicas = max(1, replicas)
	var limits []Limit
	for _, name := range envelopeLimits {
		if value, err := c.Identity.Get(name); err == nil && value != "" {
			limits = append(limits, Limit{name, value})
		}
	}
	row := func(s *Study, promptMean, generationMean float64) EnvelopeRow {
		r := EnvelopeRow{
			Arrivals: s.Arrivals, SafeRate: s.SafeRate, Status: s.Status, Reason: s.Reason,
			Knee: capacity.Unknown(), KneeLow: capacity.Unknown(), KneeHigh: capacity.Unknown(),
			Watermark: capacity.Unknown(), Replicas: replicas, GPU: gpus(c.Identity), Limits: limits,
			Estimate:            c.Estimate || s.Status == StatusEstimate,
			PromptTokenRate:     s.SafeRate * Value(promptMean),
			GenerationTokenRate: s.SafeRate * Value(generationMean),
		}
		if k := s.Knee; k != nil {
			r.Knee, r.KneeLow, r.KneeHigh, r.Confidence = k.Rate, k.Low, k.High, k.Confidence
			r.BindingSLO, r.BindingClass = k.BindingSLO, k.BindingClass
			r.Watermark = k.Watermark
			if !k.Watermark.Known() {
				r.Watermark = Watermark(c.PeakReserve, s.SafeRate, k.Low)
			}
			// Measured tokens are nearer the truth than the asked-for lengths.
			share := s.SafeRate / k.Rate
			if k.PromptTokenRate.Known() && share.Known() {
				r.PromptTokenRate = k.PromptTokenRate * share
			}
			if k.GenerationTokenRate.Known() && share.Known() {
				r.GenerationTokenRate = k.GenerationTokenRate * share
			}
		}
		r.Zones = Zones{Stable: r.Watermark, Risk: r.Knee}
		r.NMinusOne = r.Watermark * Value(replicas-1) / Value(replicas)
		return r
	}
	var rows []EnvelopeRow
	for i := range c.Classes {
		class := &c.Classes[i]
		for k := range class.Studies {
			r := row(&class.Studies[k], class.PromptMean, class.GenerationMean)
			r.Class, r.SLO = class.Name, c.SLOs(class)
			rows = append(rows, r)
		}
	}
	for i := range c.Mixes {
		mix := &c.Mixes[i]
		prompt, generation := c.means(mix)
		r := row(&mix.Study, prompt, generation)
		r.Mix, r.Shares = mix.Name, mix.Shares
		rows = append(rows, r)
	}
	return rows
}

// means are the mean lengths of a mix's requests.
func (c *Curve) means(m *Mix) (prompt, generation float64) {
	for i := range c.Classes {
		share := m.Shares[c.Classes[i].Name]
		prompt += share * c.Classes[i].PromptMean
		generation += share * c.Classes[i].GenerationMean
	}
	return prompt, generation
}
