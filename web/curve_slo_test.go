package web

import (
	"slices"
	"strings"
	"testing"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/sidecar"
)

func bounds(t *testing.T, texts ...string) []capacity.SLO {
	t.Helper()
	var all []capacity.SLO
	for _, text := range texts {
		s, err := capacity.ParseSLO(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// For what latencies the knees stand is said in words and as the flag takes
// it, and where the service promises others.
func TestCurveSLO(t *testing.T) {
	promised := sidecar.SLO{TimeToFirstToken: 2500 * time.Millisecond, TokenLatency: 100 * time.Millisecond, Objective: 0.99}
	for _, test := range []struct {
		name     string
		slo, own []string // of the curve, and of its second class
		promised sidecar.SLO
		words    string
		texts    []string
		others   []string
	}{
		{"as promised", []string{"ttft:p99:2.5s", "itl:p99:100ms"}, nil, promised,
			"P99 TTFT ≤ 2.5 s, P99 ITL ≤ 100 ms", []string{"ttft:p99:2.5s", "itl:p99:100ms"}, nil},
		{"looser than promised", []string{"ttft:p99.9:800ms"}, nil, sidecar.SLO{TimeToFirstToken: 100 * time.Millisecond, TokenLatency: 100 * time.Millisecond},
			"P99.9 TTFT ≤ 800 ms", []string{"ttft:p99.9:800ms"},
			[]string{"the service promises a TTFT of 100 ms (--slo.ttft), the curve is of 800 ms: its knee is too high for that"}},
		{"stricter than promised", []string{"ttft:p99:800ms", "tpot:p95:50ms", "e2e:p99:12s"}, nil, sidecar.SLO{TimeToFirstToken: 800 * time.Millisecond, TokenLatency: 100 * time.Millisecond, E2ELatency: 10 * time.Second},
			"P99 TTFT ≤ 800 ms, P95 TPOT ≤ 50 ms, P99 E2E ≤ 12.0 s", []string{"ttft:p99:800ms", "tpot:p95:50ms", "e2e:p99:12s"},
			[]string{"the service promises a TPOT of 100 ms (--slo.itl), the curve is of 50 ms: its knee is on the safe side of that",
				"the service promises an E2E of 10.0 s (--slo.e2e), the curve is of 12.0 s: its knee is too high for that"}},
		{"a class has its own", []string{"ttft:p99:800ms"}, []string{"ttft:p99:3s"}, promised,
			"P99 TTFT ≤ 800 ms (chat); P99 TTFT ≤ 3.0 s (rag)", []string{"ttft:p99:800ms", "ttft:p99:3s"},
			[]string{"the service promises a TTFT of 2.5 s (--slo.ttft), the curve is of 800 ms to 3.0 s: its knee is too high for that"}},
		{"nothing promised of it", []string{"e2e:p99:12s", "ttft_sent:p99:800ms"}, nil, promised,
			"P99 E2E ≤ 12.0 s, P99 TTFT SENT ≤ 800 ms", []string{"e2e:p99:12s", "ttft_sent:p99:800ms"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &curve.Curve{SLO: bounds(t, test.slo...), Classes: []curve.Class{{Name: "chat"}, {Name: "rag", SLO: bounds(t, test.own...)}}}
			if got := sloWords(c); got != test.words {
				t.Errorf("in words %q, want %q", got, test.words)
			}
			if got := sloTexts(curveSLOs(c)); !slices.Equal(got, test.texts) {
				t.Errorf("as the flag takes it %q, want %q", got, test.texts)
			}
			if got := otherPromises(c, test.promised); !slices.Equal(got, test.others) {
				t.Errorf("promised is %q, want %q", got, test.others)
			}
		})
	}
}

// The page, the JSON, the metric and the text all say it.
func TestKneeSaysItsSLO(t *testing.T) {
	s := build(onExampleCurve(t, 0.41, 0.17))
	section := curveSectionOf(t, s, nil, "")
	for _, want := range []string{"The knee is at P99 TTFT ≤ 800 ms, P99 ITL ≤ 100 ms (chat); P99 TTFT ≤ 2.5 s", "the service promises a TTFT of 2.5 s (--slo.ttft), the curve is of 800 ms"} {
		if !strings.Contains(section, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	var b strings.Builder
	if err := WriteText(&b, s); err != nil {
		t.Fatal(err)
	}
	if want := "requests/s of this mix   P99 TTFT ≤ 800 ms, P99 ITL ≤ 100 ms"; !strings.Contains(b.String(), want) {
		t.Errorf("the report does not say %q:\n%s", want, b.String())
	}
	if texts := at(t, decode(t, s), "replicas.0.curve.slo").([]any); len(texts) != 4 || texts[0] != "ttft:p99:800ms" {
		t.Errorf("the JSON has the bounds %v", texts)
	}
	found := false
	for name := range series(t, s) {
		found = found || strings.HasPrefix(name, "headroom_curve_info{") && strings.Contains(name, `slo="ttft:p99:800ms,itl:p99:100ms,ttft:p99:2.5s,e2e:p99:12s"`)
	}
	if !found {
		t.Error("no headroom_curve_info with the bounds")
	}
	// Without a curve there is nothing to say, and that is a list too.
	if texts := at(t, decode(t, build()), "replicas.0.curve.slo").([]any); len(texts) > 0 {
		t.Errorf("without a curve the bounds are %v", texts)
	}
}
