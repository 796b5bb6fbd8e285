package web

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/sidecar"
)

// curveView is a replica against its capacity curve: what the page draws and
// says of it, and the picture of the JSON. Load ratios are by the curve: 1 is
// at the knee of the present mix. What is not known is null in JSON and a gap
// in the picture.
type curveView struct {
	// Summary says in a line how full the replica is, what binds, and which class uses how much.
	Summary string `json:"summary"`
	// Origin says what the curve was measured on, and when.
	Origin string `json:"origin"`
	// SLO says at which latencies the curve has its knees.
	SLO string `json:"-"`
	// WatermarkRatio, and the bounds of the knee's interval, are load ratios: of
	// the present mix, or of the one that the curve declares where none is known.
	WatermarkRatio number `json:"watermark_load_ratio"`
	KneeLowRatio   number `json:"knee_low_load_ratio"`
	KneeHighRatio  number `json:"knee_high_load_ratio"`
	// KneeRate is the offered rate of the present mix at the knee; AtLeast tells
	// that the knee is not known, and not below that.
	KneeRate number `json:"-"`
	AtLeast  bool   `json:"-"`
	// Latency is whose means the picture shows: ttft or itl.
	Latency string `json:"latency"`
	// Now is the live operating point, Trail how it came there, oldest first.
	Now operatingPoint `json:"operating_point"`
	// Trail is left out of the JSON, which has the history apart.
	Trail []operatingPoint `json:"-"`
	// Classes, the one with the largest share of the load first.
	Classes []classView `json:"classes"`
	// Facts are what else a reader must know to believe the number.
	Facts []curveFact `json:"facts"`
}

// operatingPoint is a load, and the mean latency that it has.
type operatingPoint struct {
	UnixMilliseconds int64  `json:"unix_milliseconds"`
	LoadRatio        number `json:"load_ratio"`
	OfferedRate      number `json:"offered_requests_per_second"`
	LatencySeconds   number `json:"latency_seconds"`
}

// classView is one class of the curve in the present traffic.
type classView struct {
	Name string `json:"name"`
	// Rate of the class now, and its knee alone.
	Rate     number `json:"-"`
	KneeRate number `json:"-"`
	// LoadRatio is what the class adds to the load, LoadShare its share of the load.
	LoadRatio number `json:"-"`
	LoadShare number `json:"load_share_ratio"`
	// Points are what was measured of the class alone.
	Points []measuredPoint `json:"points"`
	// place of the class in the curve, which gives its colour.
	place int
}

// measuredPoint is a point of the curve.
type measuredPoint struct {
	LoadRatio      number `json:"load_ratio"`
	OfferedRate    number `json:"offered_requests_per_second"`
	LatencySeconds number `json:"latency_seconds"`
	// Passed is whether it kept the SLO; nil when that could not be told.
	Passed *bool `json:"passed"`
}

// curveFact is one thing that is said of the curve. Note says why, or on what it rests.
type curveFact struct {
	Term  string `json:"term"`
	Value string `json:"value"`
	Note  string `json:"note,omitempty"`
}

const (
	// trailLength is how much of the recent past is shown, in steps of trailStep.
	trailLength = 15 * time.Minute
	trailStep   = 15 * time.Second
)

// newCurveView puts a replica of a snapshot and its history beside its curve;
// nil when it has none.
func newCurveView(s *sidecar.Snapshot, r *sidecar.Replica, history []sidecar.HistoryPoint) *curveView {
	c := r.Curve.Curve
	if c == nil {
		return nil
	}
	load, zones := &r.Curve.Load, r.Curve.Load
	if !(zones.Watermark > 0) {
		zones = c.Load(capacity.Traffic{}, curve.LoadOptions{})
	}
	v := &curveView{
		Summary: describeLoad(r), Origin: originOf(c), SLO: sloWords(c), Latency: pictureLatency(c),
		WatermarkRatio: aboveZero(zones.Watermark), KneeLowRatio: aboveZero(zones.Low), KneeHighRatio: aboveZero(zones.High),
		KneeRate: unknown,
		Now:      operatingPoint{s.At.UnixMilli(), unknown, unknown, unknown},
		Classes:  classViews(r), Facts: curveFacts(r, s.SLO),
	}
	if r.Curve.Valid {
		v.KneeRate, v.AtLeast = aboveZero(load.Knee), slices.Contains(load.Reasons, curve.ReasonKneeUnknown)
	}
	if r.State.Known() {
		v.Now.LoadRatio, v.Now.OfferedRate = number(r.LoadRatios[capacity.Curve]), number(r.Curve.OfferedRequests)
		v.Now.LatencySeconds = aboveZero(v.pick(r.Latencies.TimeToFirstToken, r.Latencies.InterTokenLatency))
	}
	v.Trail = v.trail(history, s.At)
	return v
}

func (v *curveView) pick(ttft, itl float64) float64 {
	if v.Latency == "itl" {
		return itl
	}
	return ttft
}

// pictureLatency is the latency that gives first: that between tokens where
// this is so for every class, else that of the first token. It does not depend
// on the traffic, so that the picture keeps its scale.
func pictureLatency(c *curve.Curve) string {
	between := 0
	for i := range c.Classes {
		s, _ := c.LiveStudy(&c.Classes[i])
		if s == nil || s.Knee == nil {
			continue
		}
		switch metric, _, _ := strings.Cut(s.Knee.BindingSLO, ":"); metric {
		case "itl", "tpot":
			between++
		default:
			return "ttft"
		}
	}
	if between > 0 {
		return "itl"
	}
	return "ttft"
}

// trail is the means of each step of the recent past, at fixed times, so that
// it does not flicker. Where nothing is known it has a gap.
func (v *curveView) trail(history []sidecar.HistoryPoint, at time.Time) []operatingPoint {
	type step struct {
		load, rate, latency sum
	}
	last := at.Truncate(trailStep)
	steps := make([]step, int(trailLength/trailStep)+1)
	for i := range history {
		h := &history[i]
		n := len(steps) - 1 - int(last.Sub(h.At.Truncate(trailStep))/trailStep)
		if n < 0 || n >= len(steps) {
			continue
		}
		steps[n].load.add(h.LoadRatios[capacity.Curve])
		steps[n].rate.add(h.OfferedRequests)
		steps[n].latency.add(v.pick(h.TimeToFirstToken, h.InterTokenLatency))
	}
	trail := []operatingPoint{}
	for i := range steps {
		p := operatingPoint{
			last.Add(-time.Duration(len(steps)-1-i) * trailStep).UnixMilli(),
			number(steps[i].load.mean()), number(steps[i].rate.mean()), aboveZero(steps[i].latency.mean()),
		}
		if len(trail) > 0 || known(p.LoadRatio) {
			trail = append(trail, p)
		}
	}
	return trail
}

// sum adds up what is known.
type sum struct{ total, n float64 }

func (s *sum) add(v float64) {
	if !math.IsNaN(v) {
		s.total += v
		s.n++
	}
}

// mean is NaN of nothing.
func (s *sum) mean() float64 { return s.total / s.n }

func known(n number) bool { return !math.IsNaN(float64(n)) && !math.IsInf(float64(n), 0) }

// aboveZero is a number that is known only when it is above 0: a latency or a
// knee of 0 was not measured.
func aboveZero(v float64) number {
	if !(v > 0) || math.IsInf(v, 0) {
		return unknown
	}
	return number(v)
}

// classViews are the classes of the curve, with what they add to the load now.
func classViews(r *sidecar.Replica) []classView {
	c, load := r.Curve.Curve, &r.Curve.Load
	live := map[string]*curve.ClassLoad{}
	if r.State.Known() && !math.IsNaN(load.Ratio) {
		for i := range load.Classes {
			live[load.Classes[i].Name] = &load.Classes[i]
		}
	}
	v := make([]classView, 0, len(c.Classes))
	for i := range c.Classes {
		k := &c.Classes[i]
		study, full := c.LiveStudy(k)
		class := classView{Name: k.Name, Rate: unknown, KneeRate: unknown, LoadRatio: unknown, LoadShare: unknown, Points: []measuredPoint{}, place: i}
		if study != nil && study.Knee != nil {
			class.KneeRate = aboveZero(float64(study.Knee.Rate))
		}
		if l := live[k.Name]; l != nil {
			class.Rate, class.KneeRate, class.LoadRatio = number(l.Rate), aboveZero(l.Knee), number(l.Ratio)
			if load.Estimate > 0 {
				class.LoadShare = number(l.Ratio / load.Estimate)
			}
		}
		if study != nil && full > 0 {
			class.Points = measuredPoints(study, full, pictureLatency(c))
		}
		v = append(v, class)
	}
	slices.SortStableFunc(v, func(a, b classView) int { return cmp.Compare(orZero(b.LoadRatio), orZero(a.LoadRatio)) })
	return v
}

// orZero sorts what is not known among what is nothing.
func orZero(n number) float64 {
	if !known(n) {
		return 0
	}
	return float64(n)
}

// measuredPoints are those of open-loop load and the nearly idle one, by rising
// load, where full is the rate that counts as 1.
func measuredPoints(s *curve.Study, full float64, latency string) []measuredPoint {
	points := []measuredPoint{}
	add := func(p *curve.Point, rate curve.Value) {
		q := &p.TTFT
		if latency == "itl" {
			q = &p.ITL
		}
		at, mean := aboveZero(float64(rate)/full), aboveZero(float64(q.Mean))
		if len(p.Faults) > 0 || !known(at) || !known(mean) {
			return
		}
		points = append(points, measuredPoint{at, number(rate), mean, p.Passed})
	}
	if b := s.Baseline; b != nil {
		// Of a closed loop with few requests what is completed is what came.
		rate := b.OfferedRate
		if !rate.Known() {
			rate = b.CompletedRate
		}
		add(b, rate)
	}
	if s.Soak != nil {
		for i := range s.Soak.Trials {
			add(&s.Soak.Trials[i], s.Soak.Trials[i].OfferedRate)
		}
	}
	for i := range s.Points {
		switch p := &s.Points[i]; p.Purpose {
		case curve.PurposeProbe, curve.PurposeAA, curve.PurposeImported:
			if p.Concurrency == 0 {
				add(p, p.OfferedRate)
			}
		}
	}
	slices.SortStableFunc(points, func(a, b measuredPoint) int { return cmp.Compare(a.LoadRatio, b.LoadRatio) })
	return points
}

// originOf says what a curve was measured on, and when.
func originOf(c *curve.Curve) string {
	parts := []string{string(c.Source)}
	if !c.Finished.IsZero() {
		parts[0] += " " + c.Finished.UTC().Format("2 Jan 2006")
	}
	if c.Estimate {
		parts = append(parts, "an estimate: nothing was soaked")
	}
	if c.Identity.GPUName != "" {
		gpu := c.Identity.GPUName
		if c.Identity.GPUCount > 1 {
			gpu = fmt.Sprintf("%d × %s", c.Identity.GPUCount, gpu)
		}
		parts = append(parts, gpu)
	}
	return strings.Join(parts, ", ")
}
