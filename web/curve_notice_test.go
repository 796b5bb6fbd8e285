package web

import (
	"strings"
	"testing"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/sidecar"
)

// What a reader must know comes first: a probe, then why the curve does not
// count, or that it is stale.
func TestCurveNotice(t *testing.T) {
	const probe, again, none, upper = "A probe measures the capacity curve anew", "The capacity curve should be measured again", "No capacity curve yet", "The capacity curve is not in force"
	good := func() sidecar.CurveStatus {
		c := measuredCurve("chat")
		c.Stale = nil
		return c
	}
	with := func(change func(*sidecar.CurveStatus)) sidecar.CurveStatus {
		c := good()
		change(&c)
		return c
	}
	overByCoverage := func(c *sidecar.CurveStatus) {
		c.Valid, c.Reasons = false, []string{string(capacity.ReasonCoverageLow)}
		c.Load.Ratio, c.Load.Valid, c.Load.Coverage = 1.15, false, 0.6
	}
	for _, test := range []struct {
		name   string
		status sidecar.CurveStatus
		// title begins the notice, empty when there is none; text and not are in it, and are not.
		title     string
		text, not []string
	}{
		{"a good curve", good(), "", nil, nil},
		{"no curve", sidecar.CurveStatus{Reasons: []string{reasonNoCurve}}, none, []string{"upper bound", "from the engine's own limits"}, nil},
		{"does not count", with(func(c *sidecar.CurveStatus) {
			c.Valid, c.Reasons, c.Load.Ratio = false, []string{string(capacity.ReasonFewCompletions)}, nan
		}), upper, []string{"Why: fewer than 50 requests", "from the engine's own limits"}, nil},
		{"over full by what it explains", with(overByCoverage), "Above the knee by a part of the traffic alone",
			[]string{"at least what is shown", "its classes explain less than 90 % of the traffic"}, []string{"upper bound", "engine's own limits"}},
		{"another engine's version", with(func(c *sidecar.CurveStatus) { c.Stale, c.Age = []string{"engine_version"}, time.Hour }), again,
			[]string{"Why: engine_version was 0.31.0, is 0.32.0."}, []string{"days ago"}},
		{"old", with(func(c *sidecar.CurveStatus) {
			c.Stale, c.Age, c.Check = []string{"age"}, 2464*24*time.Hour+time.Hour, &curve.Check{Valid: true, Old: true}
		}), again, []string{"it is older than 30 days", "It was measured 2,464 days ago."}, nil},
		// That it is stale is not what keeps it from counting.
		{"stale, and does not count", with(func(c *sidecar.CurveStatus) {
			c.Valid, c.Reasons, c.Stale, c.Load.Ratio = false, []string{string(capacity.ReasonNoTraffic)}, []string{"age"}, nan
		}), upper, nil, []string{again}},
		{"a probe runs", with(func(c *sidecar.CurveStatus) { c.ProbeRunning = true }), probe, []string{"its load counts as traffic"}, []string{again}},
		{"a probe runs, of a stale curve", with(func(c *sidecar.CurveStatus) { c.ProbeRunning, c.Stale = true, []string{"age"} }), probe, []string{again, "it is older than 30 days"}, nil},
		{"a probe runs, and the load is above the knee", with(func(c *sidecar.CurveStatus) { overByCoverage(c); c.ProbeRunning = true }), probe, []string{"Above the knee by a part"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := curveNotice(&test.status)
			if n == nil || test.title == "" {
				if n != nil || test.title != "" {
					t.Errorf("the notice is %v, want one that begins with %q", n, test.title)
				}
				return
			}
			if !strings.HasPrefix(n.Title, test.title) {
				t.Errorf("it begins with %q, want %q", n.Title, test.title)
			}
			whole := n.Title + " " + n.Text
			for _, want := range test.text {
				if !strings.Contains(whole, want) {
					t.Errorf("%q does not say %q", whole, want)
				}
			}
			for _, wrong := range test.not {
				if strings.Contains(whole, wrong) {
					t.Errorf("%q says %q", whole, wrong)
				}
			}
		})
	}
}

// The JSON and the report have the notice, while the headline stays as it is.
func TestNoticeWhileAProbeRuns(t *testing.T) {
	s := build(inForce, func(s *sidecar.Snapshot) { s.Replicas[0].Curve.ProbeRunning = true })
	if title := at(t, decode(t, s), "replicas.0.curve.notice.title").(string); !strings.HasPrefix(title, "A probe measures") {
		t.Errorf("the notice of the JSON begins with %q", title)
	}
	if got, want := at(t, decode(t, s), "replicas.0.summary"), at(t, decode(t, build(inForce)), "replicas.0.summary"); got != want {
		t.Errorf("the headline is %q, want %q", got, want)
	}
	var b strings.Builder
	if err := WriteText(&b, s); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "\n  A probe measures the capacity curve anew") {
		t.Errorf("the report does not say it:\n%s", b.String())
	}
}

// The two rates of what is offered are told apart, with what chance adds to the load ratio.
func TestDescribeOffered(t *testing.T) {
	s := build(inForce)
	r := &s.Replicas[0]
	f := describeOffered(r)
	if want := "by the last seconds; under Traffic it is the mean of the last minute. The load ratio is raised by 1.2 %, one standard error of the mix, so that chance does not make it too low"; f.Value != "23.3 /s" || f.Note != want {
		t.Errorf("%q %q, want %q", f.Value, f.Note, want)
	}
	r.Curve.Load.StandardError = nan
	if f := describeOffered(r); f.Note != "by the last seconds; under Traffic it is the mean of the last minute" {
		t.Errorf("without an error: %q", f.Note)
	}
	r.Curve.OfferedRequests = nan
	if f := describeOffered(r); f.Value != dash || f.Note != "not known" {
		t.Errorf("without a rate: %q %q", f.Value, f.Note)
	}
	engineDown(s)
	r.Curve.OfferedRequests = 23.3
	if f := describeOffered(r); f.Value != dash {
		t.Errorf("while the engine is down: %q", f.Value)
	}
}
