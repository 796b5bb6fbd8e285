package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"headroom_exporter/probe/workload"
)

// TestWhatPeopleSee runs a point with two classes and a failing bound and
// looks at everything that is shown of it.
func TestWhatPeopleSee(t *testing.T) {
	virtual(t, ClientConfig{}, fixed(200*time.Millisecond, 20*time.Millisecond), func(t *testing.T, ctx context.Context, r *rig) {
		source, err := workload.Plan{
			Classes: []workload.Class{
				{Name: "short", Weight: 1, Prompt: workload.FixedLength(100), Output: workload.FixedLength(4)},
				{Name: "long", Weight: 1, Prompt: workload.FixedLength(2000), Output: workload.FixedLength(8)},
			},
			Arrivals: &workload.Arrivals{Process: workload.Constant, Rate: 20}, Seed: 1,
		}.Source()
		if err != nil {
			t.Fatal(err)
		}
		runner := r.runner()
		registry := prometheus.NewRegistry()
		runner.Observer = NewMetrics(runner, registry)
		var plain, redrawn bytes.Buffer
		shown, stop := context.WithCancel(ctx)
		ended := make(chan struct{}, 2)
		for _, p := range []*Progress{
			{Runner: runner, Out: &plain, Points: 3},
			{Runner: runner, Out: &redrawn, Redraw: true, Width: 60, Points: 3},
		} {
			go func() { p.Run(shown, 2); ended <- struct{}{} }()
		}
		result, err := runner.Run(ctx, Point{
			Name: "20/s", Source: source, Rate: 20, Warmup: 5 * time.Second, Duration: 10 * time.Second,
			Fill:     func(q *workload.Request) { q.MakeTokens(workload.SafeVocabulary(0)) },
			SLO:      []workload.SLO{{Metric: "ttft", Percentile: 50, Bound: 250 * time.Millisecond}},
			ClassSLO: map[string][]workload.SLO{"long": {{Metric: "e2e", Percentile: 50, Bound: 300 * time.Millisecond}}},
		})
		stop()
		<-ended
		<-ended
		if err != nil {
			t.Fatal(err)
		}
		// Every long request takes 0.2 + 7 x 0.02 s.
		if got := codes(result.Faults); got != FaultGate {
			t.Errorf("faults %v", result.Faults)
		}
		long := 0
		for i := range result.Groups {
			if g := &result.Groups[i]; g.Dimension == byClass && g.Name == "long" {
				long = g.Attempts
				if g.Violations != long || g.Attainment != 0 {
					t.Errorf("class long: %+v", g)
				}
			}
		}
		all := result.All()
		if all.Attempts != 200 || all.Violations != long || long == 0 {
			t.Errorf("%d attempts, %d violations, %d long", all.Attempts, all.Violations, long)
		}
		near(t, "goodput", result.Goodput, float64(200-long)/10)
		near(t, "attainment", all.Attainment, 1-float64(long)/200)

		lines := strings.Split(strings.TrimSpace(plain.String()), "\n")
		if want := "[2/3] 20/s  warmup  5 s, 10 s left  20."; len(lines) < 3 || !strings.HasPrefix(lines[0], want) {
			t.Errorf("progress:\n%s\nwant first %q", plain.String(), want)
		}
		for line := range strings.SplitSeq(redrawn.String(), clearLine) {
			if len([]rune(line)) > 59 || strings.Contains(line, "\n") {
				t.Errorf("a redrawn line does not fit: %q", line)
			}
		}

		if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
			t.Errorf("series: %v %v", problems, err)
		}
		const series = `
# HELP headroom_probe_violations_total Measured requests that failed or passed a bound of their SLO.
# TYPE headroom_probe_violations_total counter
headroom_probe_violations_total{class="long"} %
headroom_probe_violations_total{class="short"} 0
`
		want := strings.Replace(series, "%", itoa(long), 1)
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "headroom_probe_violations_total"); err != nil {
			t.Error(err)
		}

		report := Report{Tool: "t", Engine: "http://e", Model: "m", Workload: "a|b", Results: []*Result{result}, Notes: []string{"a note"}}
		if report.Usable() {
			t.Error("a report with a fault is usable")
		}
		var text, markdown, object bytes.Buffer
		for _, write := range []error{report.WriteText(&text), report.WriteMarkdown(&markdown), report.WriteJSON(&object)} {
			if write != nil {
				t.Fatal(write)
			}
		}
		for _, want := range []string{"class long", "class short", "prompt_tokens <= 256", "prompt_tokens <= 4096", "NOT USABLE, slo: e2e:p50:300ms of class \"long\": p50 is 340 ms", "a note"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("the text has no %q:\n%s", want, text.String())
			}
			if !strings.Contains(markdown.String(), want) {
				t.Errorf("the summary has no %q:\n%s", want, markdown.String())
			}
		}
		var back Report
		if err := json.Unmarshal(object.Bytes(), &back); err != nil {
			t.Fatal(err)
		}
		// 200 requests cannot tell a p99.9: null, which is read as unknown.
		if g := back.Results[0].All(); !math.IsNaN(float64(g.TTFT.P999)) || g.Attempts != 200 {
			t.Errorf("read back: %+v", g)
		}
	})
}

func TestSeconds(t *testing.T) {
	for s, want := range map[float64]string{
		0: "0 µs", 0.0000123: "12 µs", 0.00123: "1.23 ms", 0.0456: "45.60 ms", 0.789: "789 ms", 1.5: "1.50 s", 250: "250 s",
		math.Inf(1): "-",
	} {
		if got := seconds(s); got != want {
			t.Errorf("%v is %q, want %q", s, got, want)
		}
	}
}
