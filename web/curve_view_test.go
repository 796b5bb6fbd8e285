package web

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/sidecar"
)

// exampleCurve has the classes chat and rag, with knees of 24 and 4.5 requests per second.
func exampleCurve(t testing.TB) *curve.Curve {
	t.Helper()
	c, err := curve.ReadFile("../capacity/curve/testdata/example.json")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// onExampleCurve puts the first replica under a load of each class as a share of its knee.
func onExampleCurve(t testing.TB, loads ...float64) func(*sidecar.Snapshot) {
	t.Helper()
	c := exampleCurve(t)
	return func(s *sidecar.Snapshot) {
		bounds := c.Classes[0].PromptHistogram.Bounds
		traffic := capacity.Traffic{PromptLengths: capacity.NewHistogram(bounds), GenerationLengths: capacity.NewHistogram(bounds)}
		for i, load := range loads {
			k := &c.Classes[i]
			_, knee := c.LiveStudy(k)
			rate := load * knee
			traffic.Requests += rate
			traffic.PromptTokens += rate * k.PromptMean
			traffic.ComputedPromptTokens += rate * k.PromptMean * (1 - max(0, float64(k.PrefixHitRatio)))
			traffic.GenerationTokens += rate * k.GenerationMean
			for b := range k.PromptHistogram.Counts {
				traffic.PromptLengths.Counts[b] += 300 * rate * k.PromptHistogram.Counts[b]
			}
			for b := range k.GenerationHistogram.Counts {
				traffic.GenerationLengths.Counts[b] += 300 * rate * k.GenerationHistogram.Counts[b]
			}
		}
		traffic.Admitted, traffic.Completions = traffic.Requests, 300*traffic.Requests
		r := &s.Replicas[0]
		load := c.Load(traffic, curve.LoadOptions{})
		r.Curve = sidecar.CurveStatus{
			Valid: load.Valid, Curve: c, Check: &curve.Check{Valid: true}, Load: load, OfferedRequests: traffic.Requests,
			CorrectionFactor: 1.04, TTFTRatio: 1.1, ITLRatio: 1.04, GenerationRatio: nan, TokensPerStep: nan,
		}
		for _, reason := range load.Reasons {
			r.Curve.Reasons = append(r.Curve.Reasons, string(reason))
		}
		r.LoadRatios[capacity.Curve] = load.Ratio
		r.Binding, r.Zone, r.Left = capacity.Curve, load.Zone, load.Left
		r.LoadRatio, r.HeadroomRatio = load.Ratio, 1-load.Ratio
		r.Latencies.TimeToFirstToken, r.Latencies.InterTokenLatency = 0.09, 0.0125
		r.Forecast = sidecar.Forecast{TimeToKnee: math.Inf(1), Horizons: []sidecar.Horizon{
			{LoadRatio: 0.61, Skill: capacity.Skill{Minutes: 15, Compared: 45, MAE: 0.02, Persistence: 0.03, Ratio: 0.33, Band: 0.05}},
			{LoadRatio: 0.62, Skill: capacity.Skill{Minutes: 30, Compared: 30, MAE: 0.04, Persistence: 0.05, Ratio: 0.2, Band: 0.08}},
		}}
		r.Bottleneck = capacity.Attribution{Bottleneck: capacity.BottleneckDecode, Evidence: []string{"a step takes 21 ms, of which 78 % is reading weights and KV cache", "the GPU's memory is at 0.62 of its bandwidth"}}
		r.Burn = sidecar.Burn{Fast: 0.12, Slow: 0.31, Class: capacity.BurnNone, LeadSeconds: 300}
	}
}

// withoutLive is a curve in force of which nothing live is known.
func withoutLive(t testing.TB) func(*sidecar.Snapshot) {
	c := exampleCurve(t)
	return func(s *sidecar.Snapshot) {
		r := &s.Replicas[0]
		r.Curve = sidecar.CurveStatus{
			Reasons: []string{sidecar.ReasonIdentityUnknown}, Curve: c,
			Load: curve.Load{
				Ratio: nan, Estimate: nan, Watermark: nan, Low: nan, High: nan, Knee: nan, Coverage: nan,
				Zone: capacity.ZoneUnknown, Left: capacity.UnknownLeft(), Mix: capacity.Mix{Source: capacity.MixNone, Completions: nan},
			},
			OfferedRequests: nan, CorrectionFactor: nan, TTFTRatio: nan, ITLRatio: nan, GenerationRatio: nan, TokensPerStep: nan,
		}
		r.Forecast = sidecar.Forecast{TimeToKnee: nan}
		r.Burn = sidecar.Burn{Fast: nan, Slow: nan, LeadSeconds: nan, Class: capacity.BurnUnknown}
		r.LoadRatio, r.HeadroomRatio = nan, nan
		r.Latencies = sidecar.Latencies{TimeToFirstToken: nan, InterTokenLatency: nan, QueueTime: nan, PrefillTime: nan}
	}
}

// rise is a history of two hours in which the load by the curve rises to 0.58; half a minute of it is not known.
func rise() []sidecar.HistoryPoint {
	s := build()
	var points []sidecar.HistoryPoint
	for i := range 7200 {
		at := moment.Add(-time.Duration(7199-i) * time.Second)
		p := pointOf(s, at)
		share := float64(i) / 7199
		p.LoadRatios[capacity.Curve], p.OfferedRequests, p.TimeToFirstToken = 0.58*share, 10*share, 0.05+0.04*share
		if i >= 6700 && i < 6730 {
			p = downPoint(at)
		}
		points = append(points, p)
	}
	return points
}

func TestDescribeLoad(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*sidecar.Replica)
		want   string
	}{
		{"the curve binds", func(*sidecar.Replica) {}, "59 % full: the capacity curve binds; chat uses 42 %, rag 17 %"},
		{"slots bind", func(r *sidecar.Replica) { r.LoadRatio, r.Binding = 0.7, capacity.SequenceSlots }, "70 % full: sequence slots bind; by the capacity curve it is 59 % full; chat uses 42 %, rag 17 %"},
		{"by the curve nothing is known", func(r *sidecar.Replica) {
			r.LoadRatio, r.Binding, r.LoadRatios[capacity.Curve] = 0.7, capacity.SequenceSlots, nan
		}, "70 % full: sequence slots bind"},
		{"over full", func(r *sidecar.Replica) { r.LoadRatio, r.LoadRatios[capacity.Curve] = 1.12, 1.12 }, "112 % full: the capacity curve binds; chat uses 42 %, rag 17 %"},
		{"nothing known", func(r *sidecar.Replica) { r.LoadRatio = nan }, "How full it is is not known"},
		{"down", func(r *sidecar.Replica) { r.State = engine.StateDown }, "How full it is is not known"},
		{"idle", func(r *sidecar.Replica) {
			r.LoadRatio, r.LoadRatios[capacity.Curve] = 0, 0
			r.Curve.Load.Classes[0].Ratio, r.Curve.Load.Classes[1].Ratio = 0, 0
		}, "0 % full: the capacity curve binds"},
		{"many classes", func(r *sidecar.Replica) {
			for _, name := range []string{"write", "tools"} {
				r.Curve.Load.Classes = append(r.Curve.Load.Classes, curve.ClassLoad{Name: name, Ratio: 0.05})
			}
			r.Curve.Load.Classes = append(r.Curve.Load.Classes, curve.ClassLoad{Name: "unmeasured", Ratio: nan})
		}, "59 % full: the capacity curve binds; chat uses 42 %, rag 17 %, write 5 %, the others 5 %"},
	} {
		r := build(onExampleCurve(t, 0.41, 0.17)).Replicas[0]
		test.change(&r)
		if got := describeLoad(&r); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// Every code that the curve gives has words of its own.
// Who gave a curve that does not count is not told a headroom as if it did.
func TestUnusedCurveIsSaid(t *testing.T) {
	s := build(inForce)
	r := &s.Replicas[0]
	if text := summarize(r); strings.Contains(text, "not used") {
		t.Errorf("of a curve that counts: %q", text)
	}
	r.Curve.Valid, r.Curve.Reasons = false, []string{string(capacity.ReasonFewCompletions)}
	if text := summarize(r); !strings.Contains(text, " % headroom by the engine's limits alone, the capacity curve is not used") {
		t.Errorf("of one that does not: %q", text)
	}
	var b strings.Builder
	if err := WriteText(&b, s); err != nil {
		t.Fatal(err)
	}
	if want := "fewer than 50 requests were seen to end in the last 15 minutes"; !strings.Contains(b.String(), want) {
		t.Errorf("the report does not say %q:\n%s", want, b.String())
	}
}

func TestDescribeForecast(t *testing.T) {
	skill := func(compared int, ratio float64) []sidecar.Horizon {
		return []sidecar.Horizon{
			{LoadRatio: nan, Skill: capacity.Skill{Minutes: 15, Compared: compared, Ratio: ratio, Band: 0.06}},
			{LoadRatio: nan, Skill: capacity.Skill{Minutes: 30, Compared: compared, Ratio: ratio, Band: 0.08}},
		}
	}
	for _, test := range []struct {
		name        string
		invalid     bool
		forecast    sidecar.Forecast
		value, note string
	}{
		{"no curve", true, sidecar.Forecast{TimeToKnee: 600, Horizons: skill(90, 0.3)}, "–", "a forecast needs a curve that counts"},
		{"above the knee", false, sidecar.Forecast{TimeToKnee: 0}, "at the knee now", ""},
		{"too early", false, sidecar.Forecast{TimeToKnee: nan}, "–", "hidden: it needs most of 30 minutes of readings"},
		{"not compared", false, sidecar.Forecast{TimeToKnee: nan, Horizons: skill(12, nan)}, "–", "hidden: 12 of 30 forecasts have been compared with what came"},
		{"no skill", false, sidecar.Forecast{TimeToKnee: nan, Horizons: skill(90, -0.12)}, "–", "hidden: on this traffic it is worse than expecting no change (skill -0.12 at 30 minutes ahead)"},
		{"gaps", false, sidecar.Forecast{TimeToKnee: nan, Horizons: skill(90, 0.12)}, "–", "hidden: too few of the last minutes are known"},
		{"soon", false, sidecar.Forecast{TimeToKnee: 720, Horizons: skill(90, 0.18)}, "about 12 min", "skill 0.18 against expecting no change, 15 minutes ahead; 9 of 10 were within ±0.06 of the load ratio"},
		{"later", false, sidecar.Forecast{TimeToKnee: 1500, Horizons: skill(90, 0.18)}, "about 25 min", "skill 0.18 against expecting no change, 30 minutes ahead; 9 of 10 were within ±0.08 of the load ratio"},
		{"not soon", false, sidecar.Forecast{TimeToKnee: math.Inf(1), Horizons: skill(90, 0)}, "not within 30 min", "skill 0.00 against expecting no change, 30 minutes ahead; 9 of 10 were within ±0.08 of the load ratio"},
	} {
		got := describeForecast(&sidecar.Replica{Curve: sidecar.CurveStatus{Valid: !test.invalid}, Forecast: test.forecast})
		if got.Value != test.value || got.Note != test.note {
			t.Errorf("%s: %q %q, want %q %q", test.name, got.Value, got.Note, test.value, test.note)
		}
	}
}

func TestDescribeBurn(t *testing.T) {
	for _, test := range []struct {
		burn        sidecar.Burn
		value, note string
	}{
		{sidecar.Burn{Fast: 0.3, Slow: 0.6, Class: capacity.BurnTicket, LeadSeconds: 95, LeadMeasured: true}, "0.30, 0.60", "over 10 and 30 min: ticket; 1 uses the headroom up in 95 s, by when there is more capacity"},
		{sidecar.Burn{Fast: 0, Slow: nan, Class: capacity.BurnUnknown, LeadSeconds: 300}, "0.00", "over 10 min; 1 uses the headroom up in 5 min, by when there is more capacity (assumed: no start of the engine was seen)"},
		{sidecar.Burn{Fast: nan, Slow: nan, Class: capacity.BurnUnknown, LeadSeconds: nan}, "–", "not known before 10 minutes with a curve that counts"},
		{sidecar.Burn{Fast: nan, Slow: nan, Class: capacity.BurnExhausted, LeadSeconds: 300}, "no headroom left", ""},
	} {
		if got := describeBurn(&test.burn); got.Value != test.value || got.Note != test.note {
			t.Errorf("%+v: %q %q, want %q %q", test.burn, got.Value, got.Note, test.value, test.note)
		}
	}
}

// The trail is of the last 15 minutes, in steps, with a gap where nothing was known.
func TestTrail(t *testing.T) {
	s := build(onExampleCurve(t, 0.41, 0.17))
	v := newCurveView(s, &s.Replicas[0], rise())
	if n := len(v.Trail); n != 61 {
		t.Errorf("the trail has %d steps, want 61", n)
	}
	gaps := 0
	for i, p := range v.Trail {
		if !known(p.LoadRatio) {
			gaps++
		}
		if i > 0 && p.UnixMilliseconds-v.Trail[i-1].UnixMilliseconds != trailStep.Milliseconds() {
			t.Errorf("step %d is %d ms after the one before", i, p.UnixMilliseconds-v.Trail[i-1].UnixMilliseconds)
		}
	}
	if gaps != 1 {
		t.Errorf("%d gaps, want 1", gaps)
	}
	// The newest step is the mean of what there is of it.
	if last := v.Trail[len(v.Trail)-1]; math.Abs(float64(last.LoadRatio)-0.58) > 0.005 || last.UnixMilliseconds > moment.UnixMilli() {
		t.Errorf("the newest step is %+v", last)
	}
	if v := newCurveView(s, &s.Replicas[0], nil); len(v.Trail) != 0 {
		t.Errorf("without a history there is a trail of %d", len(v.Trail))
	}
}

// What is not known is null in the JSON, however it came not to be known.
func TestCurveViewUnknown(t *testing.T) {
	states := map[string]*sidecar.Snapshot{
		"nothing live": build(withoutLive(t)),
		"engine down":  build(onExampleCurve(t, 0.41, 0.17), engineDown),
	}
	for name, s := range states {
		v := newCurveView(s, &s.Replicas[0], []sidecar.HistoryPoint{downPoint(moment.Add(-time.Minute)), downPoint(moment)})
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			fmt.Sprintf(`"operating_point":{"unix_milliseconds":%d,"load_ratio":null,"offered_requests_per_second":null,"latency_seconds":null}`, moment.UnixMilli()),
			`"summary":"How full it is is not known"`, `"name":"chat","load_share_ratio":null`,
		} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s: %s is not in %s", name, want, text)
			}
		}
		if len(v.Trail) != 0 {
			t.Errorf("%s: a trail of %d", name, len(v.Trail))
		}
	}
	s := build(onExampleCurve(t, 0, 0))
	s.Replicas[0].Latencies.TimeToFirstToken = nan
	v := newCurveView(s, &s.Replicas[0], nil)
	if v.Now.LoadRatio != 0 || known(v.Now.LatencySeconds) {
		t.Errorf("idle is %+v, want a load of 0 without a latency", v.Now)
	}
	if none := build(); newCurveView(none, &none.Replicas[0], nil) != nil {
		t.Error("without a curve there is a view")
	}
}

// A load that the curve's classes do not explain is not shown as comfortable.
func TestCurveViewLowCoverage(t *testing.T) {
	s := build(onExampleCurve(t, 0.2, 0.1))
	r := &s.Replicas[0]
	r.Curve.Valid, r.Curve.Load.Valid, r.Curve.Load.Ratio, r.Curve.Load.Coverage = false, false, nan, 0.62
	r.Curve.Reasons, r.LoadRatios[capacity.Curve] = []string{string(capacity.ReasonCoverageLow)}, nan
	v := newCurveView(s, r, nil)
	if known(v.Now.LoadRatio) {
		t.Errorf("the live point is at %v", v.Now.LoadRatio)
	}
	if f := v.Facts[0]; f.Value != "does not count" || !strings.HasPrefix(f.Note, "Why: its classes explain less than 90 % of the traffic. Another SLO") {
		t.Errorf("said of the curve: %q %q", f.Value, f.Note)
	}
	if f := v.Facts[2]; !strings.HasPrefix(f.Value, "62 %") {
		t.Errorf("said of the coverage: %q %q", f.Value, f.Note)
	}
}

// Where no knee of a class is known, the rate that counts as full is not called one.
func TestCurveViewWithoutAKnee(t *testing.T) {
	s := build(onExampleCurve(t, 0.41, 0.17))
	r := &s.Replicas[0]
	c := *r.Curve.Curve
	c.Classes = slices.Clone(c.Classes)
	c.Classes[1].Studies = slices.Clone(c.Classes[1].Studies)
	c.Classes[1].Studies[0].Knee = nil
	r.Curve.Curve = &c
	r.Curve.Load.Classes[1].Knee = nan
	r.Curve.Load.Reasons = append(r.Curve.Load.Reasons, curve.ReasonKneeUnknown)
	v := newCurveView(s, r, nil)
	if !strings.Contains(string(v.picture(640)), ">knee at least ") {
		t.Error("the picture calls it a knee")
	}
	if k := v.Classes[1]; k.Name != "rag" || known(k.KneeRate) || len(k.Points) == 0 {
		t.Errorf("of the class is shown %+v, want its points and no knee", k)
	}
	engineDown(s)
	if k := newCurveView(s, r, nil).Classes[1]; known(k.KneeRate) {
		t.Errorf("while the engine is down its knee is %v", k.KneeRate)
	}
	r.State = engine.StateOK
	var b strings.Builder
	if err := WriteText(&b, s); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "  knee, at least  ") {
		t.Errorf("the report calls it a knee:\n%s", b.String())
	}
}
