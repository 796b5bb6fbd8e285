package web

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/sidecar"
)

func curveSectionOf(t *testing.T, s *sidecar.Snapshot, points []sidecar.HistoryPoint, query string) string {
	t.Helper()
	source := &fixedSource{snapshot: s, points: map[string][]sidecar.HistoryPoint{model + "/0": points}}
	r := get(handlerOf(t, source), "GET", "/page/curve"+query)
	if r.StatusCode != 200 || r.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("%d %s", r.StatusCode, r.Header.Get("Content-Type"))
	}
	return bodyOf(t, r)
}

// The part of the page as it is written, a tag a line.
func TestCurveSection(t *testing.T) {
	for file, s := range map[string]*sidecar.Snapshot{
		"curve.html":          build(onExampleCurve(t, 0.41, 0.17)),
		"curve_unknown.html":  build(withoutLive(t)),
		"curve_overfull.html": build(onExampleCurve(t, 2.1, 0.3)),
		"curve_none.html":     build(),
	} {
		var points []sidecar.HistoryPoint
		if file == "curve.html" {
			points = rise()
		}
		text := curveSectionOf(t, s, points, "?width=640")
		equalToFile(t, "testdata/"+file, strings.ReplaceAll(text, "><", ">\n<"))
	}
}

// What is not known is not drawn: no live point, no trail, and no number of it.
func TestCurvePictureUnknown(t *testing.T) {
	text := curveSectionOf(t, build(withoutLive(t)), []sidecar.HistoryPoint{downPoint(moment.Add(-time.Minute))}, "")
	picture, _, _ := strings.Cut(text, "<figcaption")
	if strings.Contains(text, `class="bar`) {
		t.Error("a class has a bar")
	}
	for _, drawn := range []string{`class="live"`, `class="trail`, "upright now"} {
		if strings.Contains(picture, drawn) {
			t.Errorf("the picture has %s", drawn)
		}
	}
	for _, there := range []string{`class="band stable"`, `class="band unstable"`, `class="upright knee"`, `class="interval"`, `class="measured line c0"`, "The live operating point is not known."} {
		if !strings.Contains(picture, there) {
			t.Errorf("the picture lacks %s", there)
		}
	}
	if hit := regexp.MustCompile(`NaN|Inf|unknown|>0(\.0)? ?(%|/s)`).FindString(text); hit != "" {
		t.Errorf("what is not known is written as %q", hit)
	}

	// A load without a latency is a line without a point.
	s := build(onExampleCurve(t, 0, 0))
	s.Replicas[0].Latencies.TimeToFirstToken = nan
	picture, _, _ = strings.Cut(curveSectionOf(t, s, nil, ""), "<figcaption")
	if strings.Contains(picture, `class="live"`) || !strings.Contains(picture, "upright now") {
		t.Error("an idle engine has a point, or no line")
	}

	// A watermark that is not known leaves out the zones below the knee.
	s = build(onExampleCurve(t, 0.41, 0.17))
	v := newCurveView(s, &s.Replicas[0], nil)
	v.WatermarkRatio, v.KneeLowRatio = unknown, unknown
	text = string(v.picture(640))
	if strings.Contains(text, "band stable") || strings.Contains(text, "band risk") || strings.Contains(text, "interval") || !strings.Contains(text, "band unstable") {
		t.Error("zones are drawn whose bounds are not known")
	}
	// Without latencies there is no axis of them.
	for i := range v.Classes {
		v.Classes[i].Points = nil
	}
	v.Now.LatencySeconds = unknown
	text = string(v.picture(640))
	if strings.Contains(text, "log scale") || strings.Contains(text, "NaN") || !strings.Contains(text, "upright now") {
		t.Errorf("without latencies: %s", text)
	}
}

// The picture is as wide as its place, within bounds, and a load beyond its axis is held at its end.
func TestCurvePictureFits(t *testing.T) {
	s := build(onExampleCurve(t, 4.1, 0.3))
	for query, want := range map[string]string{
		"": "0 0 720 ", "?width=320": "0 0 320 ", "?width=1": "0 0 260 ", "?width=99999": "0 0 1200 ", "?width=640&engine=0": "0 0 640 ",
	} {
		text := curveSectionOf(t, s, nil, query)
		if !strings.Contains(text, `<svg viewBox="`+want) {
			t.Errorf("%s: no picture of %s", query, want)
		}
		if !strings.Contains(text, ", load ratio 4.") {
			t.Errorf("%s: a load beyond the axis is not told", query)
		}
	}
}

func TestCurveSectionRefuses(t *testing.T) {
	h := handlerOf(t, &fixedSource{snapshot: build()})
	for path, want := range map[string]int{
		"/page/curve?width=0": 400, "/page/curve?width=1e3": 400, "/page/curve?engine=7": 404, "/page/curve?model_name=other": 404, "/page/": 404,
	} {
		if r := get(h, "GET", path); r.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, r.StatusCode, want)
		}
	}
	if r := get(h, "POST", "/page/curve"); r.StatusCode != 405 {
		t.Errorf("POST: %d", r.StatusCode)
	}
	if r := get(handlerOf(t, &fixedSource{}), "GET", "/page/curve"); r.StatusCode != 503 {
		t.Errorf("before the first snapshot: %d", r.StatusCode)
	}
}

// Names come from files and engines; none of them is markup.
func TestCurveSectionEscapes(t *testing.T) {
	const evil = `"><script>alert('x')</script>&`
	s := build(onExampleCurve(t, 0.41, 0.17))
	r := &s.Replicas[0]
	c := *r.Curve.Curve
	c.Identity.GPUName = evil
	c.Classes = append(c.Classes[:0:0], c.Classes...)
	c.Classes[0].Name, r.Curve.Load.Classes[0].Name = evil, evil
	r.Curve.Curve, r.Curve.FileError = &c, evil
	r.Curve.Valid, r.Curve.Reasons = false, []string{evil}
	r.Bottleneck = capacity.Attribution{Bottleneck: capacity.BottleneckKV, Evidence: []string{evil}}
	text := curveSectionOf(t, s, nil, "")
	if strings.Contains(text, "<script") || strings.Contains(text, `"">`) {
		t.Errorf("a name is markup: %s", text)
	}
	if n := strings.Count(text, "&lt;script&gt;"); n < 6 {
		t.Errorf("%d of the names are there", n)
	}
	if hit := regexp.MustCompile(`\sstyle="|\son[a-z]+="|\shref="|\ssrc="`).FindString(text); hit != "" {
		t.Errorf("%q, which the page's policy forbids", hit)
	}
}

func BenchmarkCurveSection(b *testing.B) {
	h := handlerOf(b, &fixedSource{snapshot: build(onExampleCurve(b, 0.41, 0.17)), points: map[string][]sidecar.HistoryPoint{model + "/0": rise()}})
	b.ReportAllocs()
	for b.Loop() {
		get(h, "GET", "/page/curve")
	}
}
