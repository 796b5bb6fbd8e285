package curve

import (
	"math"
	"slices"
	"testing"
	"time"

	"headroom_exporter/capacity"
)

// liveClass is a class of which everything is at one length.
func liveClass(name string, prompt, generation, knee, low float64) Class {
	bounds := capacity.TokenBounds(32768)
	p, g := capacity.NewHistogram(bounds), capacity.NewHistogram(bounds)
	p.Add(prompt, 1)
	g.Add(generation, 1)
	return Class{
		Name: name, Weight: 1, PromptHistogram: p, GenerationHistogram: g, PromptMean: prompt, GenerationMean: generation,
		PrefixHitRatio: 0,
		Studies: []Study{
			{Arrivals: Arrivals{Process: "gamma", Burstiness: 0.5}, SafeRate: 1, Status: StatusOK},
			{Arrivals: Arrivals{Process: "poisson"}, Status: StatusOK, SafeRate: Value(0.95 * knee),
				Knee: &Knee{Rate: Value(knee), Low: Value(low), High: Value(1.1 * knee), Watermark: capacity.Unknown()}},
		},
	}
}

// liveCurve's knees are where 1e-4 s of a prompt token and 4e-4 s of a
// generated one fill a second, so that every class's prefill share is known.
func liveCurve() *Curve {
	c := &Curve{PeakReserve: 0.2}
	for _, k := range []struct {
		name               string
		prompt, generation float64
	}{{"chat", 500, 250}, {"rag", 4000, 100}, {"write", 100, 1000}, {"long", 12000, 300}} {
		knee := 1 / (1e-4*k.prompt + 4e-4*k.generation)
		c.Classes = append(c.Classes, liveClass(k.name, k.prompt, k.generation, knee, 0.9*knee))
	}
	return c
}

// liveTraffic is each class at these shares of its knee, of so many requests
// that chance plays no part.
func liveTraffic(c *Curve, loads ...float64) capacity.Traffic {
	bounds := capacity.TokenBounds(32768)
	t := capacity.Traffic{PromptLengths: capacity.NewHistogram(bounds), GenerationLengths: capacity.NewHistogram(bounds)}
	for i, load := range loads {
		k := &c.Classes[i]
		rate := load * float64(k.Studies[1].Knee.Rate)
		t.Requests += rate
		t.PromptTokens += rate * k.PromptMean
		t.GenerationTokens += rate * k.GenerationMean
		t.PromptLengths.Add(k.PromptMean, 300*rate)
		t.GenerationLengths.Add(k.GenerationMean, 300*rate)
	}
	t.Admitted, t.ComputedPromptTokens, t.Completions = t.Requests, t.PromptTokens, 1e30
	return t
}

func about(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-3*max(1, math.Abs(b))
}

func TestLoad(t *testing.T) {
	tests := []struct {
		name    string
		loads   []float64
		traffic func(*capacity.Traffic)
		options LoadOptions
		ratio   float64
		zone    capacity.Zone
	}{
		{"two classes add up", []float64{0.3, 0.2, 0, 0}, nil, LoadOptions{}, 0.5, capacity.ZoneStable},
		// The watermark is 0.8 of the lower bound, which is 0.9 of the knee.
		{"at the watermark", []float64{0.3, 0.2, 0.1, 0.11}, nil, LoadOptions{}, 0.71, capacity.ZoneStable},
		{"above the watermark", []float64{0.3, 0.2, 0.1, 0.13}, nil, LoadOptions{}, 0.73, capacity.ZoneRisk},
		{"not clamped", []float64{0, 0, 1, 0.5}, nil, LoadOptions{}, 1.5, capacity.ZoneUnstable},
		{"offered, not served", []float64{0.3, 0.2, 0, 0}, func(t *capacity.Traffic) { t.Requests *= 2.5 }, LoadOptions{}, 1.25, capacity.ZoneUnstable},
		{"slower than its curve", []float64{0.3, 0.2, 0, 0}, nil, LoadOptions{Correction: 1.2}, 0.6, capacity.ZoneStable},
		{"faster than its curve", []float64{0.3, 0.2, 0, 0}, nil, LoadOptions{Correction: 0.7}, 0.5, capacity.ZoneStable},
		{"correction unknown", []float64{0.3, 0.2, 0, 0}, nil, LoadOptions{Correction: math.NaN()}, 0.5, capacity.ZoneStable},
		// A rag request is 0.4 s of prefill of 0.44 s.
		{"half from the prefix cache", []float64{0, 0.88, 0, 0}, func(t *capacity.Traffic) { t.ComputedPromptTokens /= 2 }, LoadOptions{}, 0.48, capacity.ZoneStable},
		{"a write request is hardly prefill", []float64{0, 0, 0.5, 0}, func(t *capacity.Traffic) { t.ComputedPromptTokens /= 2 }, LoadOptions{}, 0.5 * 0.405 / 0.41, capacity.ZoneStable},
		{"fewer tokens are accepted", []float64{0, 0, 0.41, 0}, nil, LoadOptions{Acceptance: 2, CurveAcceptance: 3}, 0.41 * (0.01 + 0.4*1.5) / 0.41, capacity.ZoneStable},
		{"acceptance unknown", []float64{0, 0, 0.41, 0}, nil, LoadOptions{Acceptance: math.NaN(), CurveAcceptance: 3}, 0.41, capacity.ZoneStable},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := liveCurve()
			traffic := liveTraffic(c, test.loads...)
			if test.traffic != nil {
				test.traffic(&traffic)
			}
			l := c.Load(traffic, test.options)
			if !l.Valid || !about(l.Ratio, test.ratio) || l.Zone != test.zone {
				t.Errorf("valid %v, ratio %v, zone %s, want %v, %s; reasons %v", l.Valid, l.Ratio, l.Zone, test.ratio, test.zone, l.Reasons)
			}
			sum := 0.0
			for _, k := range l.Classes {
				sum += k.Ratio
			}
			if !about(sum, l.Estimate) || !about(l.Watermark, 0.72) {
				t.Errorf("classes add up to %v of %v; watermark %v, want 0.72", sum, l.Estimate, l.Watermark)
			}
			left := traffic.Requests * (1/test.ratio - 1)
			if !about(l.Left.RequestsPerSecond, left) || !about(l.Knee, traffic.Requests/test.ratio) ||
				!about(l.Left.GenerationTokensPerSecond, left*traffic.GenerationTokens/traffic.Admitted) ||
				!about(l.Left.PromptTokensPerSecond, left*traffic.ComputedPromptTokens/traffic.Admitted) {
				t.Errorf("left %+v of a knee of %v, want %v requests per second more", l.Left, l.Knee, left)
			}
		})
	}
}

// The ratio is on the safe side of chance: by 1/sqrt(n) of n requests of one
// class, by more of several where those of one weigh more.
func TestStandardError(t *testing.T) {
	for _, test := range []struct {
		loads       []float64
		completions float64
		want        float64
	}{
		{[]float64{0.5}, 100, 0.1},
		{[]float64{0.5}, 10000, 0.01},
		// Per second 0.5/0.15 requests of 0.15 and 0.5/1.32 of 1.32 of the whole load,
		// sqrt(share*0.15^2 + share*1.32^2) / sqrt(n) of 1 / requests per second.
		{[]float64{0.5, 0, 0, 0.5}, 1000, 0.05225},
	} {
		c := liveCurve()
		traffic := liveTraffic(c, test.loads...)
		exact := c.Load(traffic, LoadOptions{}).Estimate
		traffic.Completions = test.completions
		l := c.Load(traffic, LoadOptions{})
		if math.Abs(l.StandardError-test.want) > 1e-4 || !about(l.Estimate, exact*(1+l.StandardError)) {
			t.Errorf("loads %v, %v requests: standard error %v, want %v; ratio %v, without it %v", test.loads, test.completions, l.StandardError, test.want, l.Estimate, exact)
		}
	}
}

// Where prefill and decode cannot be told apart, hits below the curve's weigh
// on everything, and hits above it are no relief.
func TestLoadWithoutPrefillShares(t *testing.T) {
	c := liveCurve()
	c.Classes = c.Classes[:2]
	for i := range c.Classes {
		c.Classes[i].PrefixHitRatio = 0.5
	}
	for _, test := range []struct{ computed, want float64 }{{0.5, 0.4}, {1, 0.8}, {0.25, 0.4}} {
		traffic := liveTraffic(c, 0.2, 0.2)
		traffic.ComputedPromptTokens = test.computed * traffic.PromptTokens
		l := c.Load(traffic, LoadOptions{})
		if !about(l.Ratio, test.want) {
			t.Errorf("%v of the prompts computed: ratio %v, want %v", test.computed, l.Ratio, test.want)
		}
		if slices.Contains(l.Reasons, ReasonPrefillShareUnknown) != (test.computed != 0.5) {
			t.Errorf("%v of the prompts computed: reasons %v", test.computed, l.Reasons)
		}
	}
}

func TestLoadIsUnknownRatherThanWrong(t *testing.T) {
	nan := math.NaN()
	last := func(c *Curve) capacity.Mix { return c.Load(liveTraffic(c, 0.2, 0.2, 0.1, 0.1), LoadOptions{}).Mix }
	tests := []struct {
		name    string
		curve   func(*Curve)
		traffic func(*capacity.Traffic)
		last    time.Duration // age; 0 is none
		valid   bool
		ratio   float64
		source  capacity.MixSource
		reason  capacity.Reason
	}{
		{"offered unknown", nil, func(t *capacity.Traffic) { t.Requests = nan }, time.Minute, false, nan, capacity.MixNone, capacity.ReasonRatesUnknown},
		{"tokens unknown", nil, func(t *capacity.Traffic) { t.GenerationTokens = nan }, time.Minute, false, nan, capacity.MixNone, capacity.ReasonRatesUnknown},
		{"tokens negative", nil, func(t *capacity.Traffic) { t.GenerationTokens = -1 }, 0, false, nan, capacity.MixNone, capacity.ReasonRatesUnknown},
		{"lengths unknown", nil, func(t *capacity.Traffic) { t.PromptLengths = capacity.Histogram{} }, 0, true, 0.6, capacity.MixSums, capacity.ReasonNoHistograms},
		{"nothing, and no mix before", nil, func(t *capacity.Traffic) { *t = capacity.Traffic{} }, 0, true, 0, capacity.MixDefault, ReasonDefaultMix},
		{"nothing, after a mix", nil, func(t *capacity.Traffic) { *t = capacity.Traffic{} }, time.Minute, true, 0, capacity.MixLast, ReasonLastMix},
		{"nothing, the mix too old", nil, func(t *capacity.Traffic) { *t = capacity.Traffic{} }, 31 * time.Minute, true, 0, capacity.MixDefault, capacity.ReasonNoTraffic},
		{"stuck, after a mix", nil, func(t *capacity.Traffic) { t.Admitted = 0 }, time.Minute, true, 0.6, capacity.MixLast, capacity.ReasonNotAdmitted},
		{"stuck, and no mix before", nil, func(t *capacity.Traffic) { t.Admitted = 0 }, 0, false, nan, capacity.MixDefault, capacity.ReasonNotAdmitted},
		{"few, and no mix before", nil, func(t *capacity.Traffic) { t.Completions = 10 }, 0, false, nan, capacity.MixHistograms, capacity.ReasonFewCompletions},
		{"few, after a mix", nil, func(t *capacity.Traffic) { t.Completions = 10 }, time.Minute, true, 0.6, capacity.MixLast, ReasonLastMix},
		{"a knee unknown", func(c *Curve) {
			c.Classes[1].Studies[1].Knee, c.Classes[1].Studies[1].SafeRate = nil, capacity.Unknown()
		},
			nil, 0, false, nan, capacity.MixHistograms, ReasonClassWithoutKnee},
		{"a knee unknown, and the rest is above", func(c *Curve) {
			c.Classes[1].Studies[1].Knee, c.Classes[1].Studies[1].SafeRate = nil, capacity.Unknown()
		},
			func(t *capacity.Traffic) { t.Requests *= 4 }, 0, false, 1.6, capacity.MixHistograms, capacity.ReasonCoverageLow},
		{"only a safe rate", func(c *Curve) { c.Classes[1].Studies[1].Knee = nil }, nil, 0, true, 0.4 + 0.2/0.95, capacity.MixHistograms, ReasonKneeUnknown},
		{"no class", func(c *Curve) { c.Classes = nil }, nil, 0, false, nan, capacity.MixNone, capacity.ReasonNoClasses},
		{"no study", func(c *Curve) { c.Classes[3].Studies = nil }, nil, 0, false, nan, capacity.MixHistograms, ReasonClassWithoutKnee},
		{"outside", nil, func(t *capacity.Traffic) {
			slices.Reverse(t.GenerationLengths.Counts)
		}, time.Minute, false, nan, capacity.MixHistograms, capacity.ReasonCoverageLow},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := liveCurve()
			traffic := liveTraffic(c, 0.2, 0.2, 0.1, 0.1)
			var o LoadOptions
			if test.last > 0 {
				o.Last, o.LastAge = last(c), test.last
			}
			if test.curve != nil {
				test.curve(c)
			}
			if test.traffic != nil {
				test.traffic(&traffic)
			}
			l := c.Load(traffic, o)
			if l.Valid != test.valid || !about(l.Ratio, test.ratio) || l.Mix.Source != test.source ||
				test.reason != "" && !slices.Contains(l.Reasons, test.reason) {
				t.Errorf("valid %v, ratio %v, of %s, reasons %v, want %v, %v, %s, %s",
					l.Valid, l.Ratio, l.Mix.Source, l.Reasons, test.valid, test.ratio, test.source, test.reason)
			}
			if !l.Valid && (l.Zone == capacity.ZoneStable || l.Ratio <= 1 || !math.IsNaN(l.Left.RequestsPerSecond)) {
				t.Errorf("not valid, and comfortable: %+v", l)
			}
			if math.IsNaN(l.Ratio) != (l.Zone == capacity.ZoneUnknown) {
				t.Errorf("ratio %v in zone %s", l.Ratio, l.Zone)
			}
		})
	}
}

// Where no knee is known of a class none is told, though the rate that is
// known to be safe counts as full; of one without traffic there is nothing to say.
func TestLoadWithoutAKnee(t *testing.T) {
	for _, test := range []struct {
		rag    float64
		reason bool
	}{{0.2, true}, {0, false}} {
		c := liveCurve()
		traffic, knee := liveTraffic(c, 0.2, test.rag, 0, 0), float64(c.Classes[1].Studies[1].Knee.Rate)
		c.Classes[1].Studies[1].Knee = nil
		l := c.Load(traffic, LoadOptions{})
		if slices.Contains(l.Reasons, ReasonKneeUnknown) != test.reason || !l.Valid {
			t.Errorf("rag at %v: valid %v, reasons %v", test.rag, l.Valid, l.Reasons)
		}
		if k := l.Classes[1]; !math.IsNaN(k.Knee) || !about(k.Full, 0.95*knee) || !about(k.Ratio, test.rag/0.95) {
			t.Errorf("rag at %v: knee %v, full at %v, ratio %v", test.rag, k.Knee, k.Full, k.Ratio)
		}
		if k := l.Classes[0]; !about(k.Knee, k.Full) || !(k.Knee > 0) {
			t.Errorf("chat: knee %v, full at %v", k.Knee, k.Full)
		}
	}
}

// The interval of the mix's knee is that of its classes: here each is from 0.9 to 1.1 of the knee.
func TestLoadInterval(t *testing.T) {
	c := liveCurve()
	if l := c.Load(liveTraffic(c, 0.3, 0.2, 0, 0), LoadOptions{}); !about(l.Low, 0.9) || !about(l.High, 1.1) {
		t.Errorf("the interval of the knee is from %v to %v, want 0.9 to 1.1", l.Low, l.High)
	}
	c.Classes[1].Studies[1].Knee.High = capacity.Unknown()
	if l := c.Load(liveTraffic(c, 0.3, 0.2, 0, 0), LoadOptions{}); !math.IsNaN(l.Low) || !math.IsNaN(l.High) {
		t.Errorf("with a class whose interval is open it is from %v to %v, want unknown", l.Low, l.High)
	}
	if l := c.Load(liveTraffic(c, 0.3, 0, 0.1, 0), LoadOptions{}); !about(l.Low, 0.9) || !about(l.High, 1.1) {
		t.Errorf("a class without traffic makes it %v to %v, want 0.9 to 1.1", l.Low, l.High)
	}
}

func TestLiveStudy(t *testing.T) {
	c := liveCurve()
	if s, knee := c.LiveStudy(&c.Classes[0]); s != &c.Classes[0].Studies[1] || !about(knee, float64(s.Knee.Rate)) {
		t.Errorf("study %+v with a knee of %v, want the one of Poisson arrivals", s, knee)
	}
	c.Classes[0].Studies = c.Classes[0].Studies[:1]
	if s, knee := c.LiveStudy(&c.Classes[0]); s == nil || knee != 1 {
		t.Errorf("study %+v with a knee of %v, want the first, with its safe rate", s, knee)
	}
	c.Classes[0].Studies = nil
	if s, knee := c.LiveStudy(&c.Classes[0]); s != nil || !math.IsNaN(knee) {
		t.Errorf("study %+v with a knee of %v, want none", s, knee)
	}
}

// liveResources gives the classes points: chat has long steps at its knee, rag
// has nearly all of the 100 slots.
func liveResources(c *Curve) {
	c.Classes = c.Classes[:2]
	c.Identity.MaxNumSeqs = 100
	for i, at := range []struct{ itl, running, kv Value }{{0.020, 20, 0.3}, {0.0125, 95, 0.5}} {
		s := &c.Classes[i].Studies[1]
		s.Knee.KVPeak = at.kv
		for _, load := range []Value{0.1, 1} {
			p := Point{Purpose: PurposeProbe, OfferedRate: load * s.Knee.Rate, Engine: UnknownEngineReadings()}
			p.ITL.Mean, p.Engine.RunningMean = 0.010, load*at.running
			if load == 1 {
				p.ITL.Mean = at.itl
			}
			s.Points = append(s.Points, p)
		}
	}
}

// Classes that are full by different resources leave room for each other.
func TestLoadOfResources(t *testing.T) {
	tests := []struct {
		name     string
		change   func(*Curve)
		loads    []float64
		ratio    float64
		resource Resource
	}{
		{"chat alone", nil, []float64{1, 0}, 1, StepTime},
		{"rag alone", nil, []float64{0, 1}, 1, SequenceSlots},
		// An idle step is 9.474 ms of chat, 1/(1/10 + (1/10-1/20)*0.1/0.9), and 9.783 of rag. Steps: 0.5 of chat, and
		// of rag 0.5 * (1-9.783/12.5) / (1-9.474/20); slots: 0.5 * 0.2 + 0.5. Then a third of the way to 1.
		{"half of each", nil, []float64{0.5, 0.5}, 18.5 / 23, StepTime},
		{"little of chat", nil, []float64{0.1, 0.9}, 0.92 + 0.08/3, SequenceSlots},
		{"slots of the engine unknown", func(c *Curve) { c.Identity.MaxNumSeqs = 0 }, []float64{0.1, 0.9}, 0.9 + 0.1*20/95 + 0.1*75/95/3, SequenceSlots},
		{"the KV cache is full with rag", func(c *Curve) { c.Classes[1].Studies[1].Knee.KVPeak = 1 }, []float64{0.2, 0.8}, 0.86 + 0.14/3, TokenSlots},
		{"no idle point", func(c *Curve) { c.Classes[0].Studies[1].Points = c.Classes[0].Studies[1].Points[1:] }, []float64{0.5, 0.5}, 1, ""},
		{"no point at the knee", func(c *Curve) { c.Classes[1].Studies[1].Points[1].OfferedRate *= 0.85 }, []float64{0.5, 0.5}, 1, ""},
		{"running unknown", func(c *Curve) { c.Classes[1].Studies[1].Points[1].Engine.RunningMean = capacity.Unknown() }, []float64{0.5, 0.5}, 1, ""},
		{"KV cache unknown", func(c *Curve) { c.Classes[0].Studies[1].Knee.KVPeak = capacity.Unknown() }, []float64{0.5, 0.5}, 1, ""},
		{"steps do not lengthen", func(c *Curve) { c.Classes[0].Studies[1].Points[1].ITL.Mean = 0.010 }, []float64{0.5, 0.5}, 1, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := liveCurve()
			liveResources(c)
			if test.change != nil {
				test.change(c)
			}
			l := c.Load(liveTraffic(c, test.loads...), LoadOptions{})
			if !l.Valid || !about(l.Ratio, test.ratio) || l.Resource != test.resource {
				t.Errorf("valid %v, ratio %v of %q, want %v of %q", l.Valid, l.Ratio, l.Resource, test.ratio, test.resource)
			}
			if slices.Contains(l.Reasons, ReasonResourcesUnknown) != (test.resource == "") {
				t.Errorf("resource %q, reasons %v", l.Resource, l.Reasons)
			}
			// The interval and the watermark move with the ratio: all are rates of the same mix.
			if !about(l.Watermark, 0.72) || !about(l.Low, 0.9) || !about(l.Classes[0].Ratio+l.Classes[1].Ratio, l.Ratio) {
				t.Errorf("watermark %v, low %v, classes %+v", l.Watermark, l.Low, l.Classes)
			}
		})
	}
}
