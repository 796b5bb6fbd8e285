package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/sidecar"
)

// TestCurveLog: that a curve counts, and why it does not, is logged when it
// changes and stays so.
func TestCurveLog(t *testing.T) {
	const (
		counts  = "INFO the capacity curve counts"
		waiting = "INFO the capacity curve does not count yet"
		invalid = "WARN the capacity curve does not count; the headroom is an upper bound"
	)
	// For how many seconds each of these holds; + counts, - has no curve, ! is of an engine that is down.
	type stretch struct {
		seconds int
		what    string
	}
	for _, test := range []struct {
		name      string
		stretches []stretch
		want      []string
	}{
		{"it counts after a while", []stretch{{5, "rates_unknown"}, {30, "few_completions"}, {60, "+"}}, []string{
			waiting + " reasons=few_completions", counts,
		}},
		{"it stops", []stretch{{60, "+"}, {60, "coverage_low"}, {60, "+"}}, []string{counts, invalid + " reasons=coverage_low", counts}},
		{"another reason", []stretch{{60, "identity_model"}, {60, "identity_model identity_gpu_name"}}, []string{
			invalid + " reasons=identity_model", invalid + " reasons=identity_gpu_name,identity_model",
		}},
		{"the reasons in another order", []stretch{{60, "a b"}, {60, "b a"}}, []string{invalid + " reasons=a,b"}},
		{"at the edge", []stretch{{60, "+"}, {3, "coverage_low"}, {3, "+"}, {3, "coverage_low"}, {60, "+"}}, []string{counts}},
		{"without a curve", []stretch{{60, "-"}}, nil},
		{"an engine that was away", []stretch{{60, "+"}, {60, "!"}, {60, "+"}}, []string{counts}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			log := &curveLog{logger: slog.New(slog.NewTextHandler(&out, nil))}
			at := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
			for _, s := range test.stretches {
				for range s.seconds {
					r := sidecar.Replica{ModelName: "m", Engine: "0", State: engine.StateOK}
					r.Curve.Curve = &curve.Curve{}
					switch s.what {
					case "+":
						r.Curve.Valid = true
					case "-":
						r.Curve.Curve, r.Curve.Reasons = nil, []string{sidecar.ReasonNoCurve}
					case "!":
						r.State, r.Curve.Reasons = engine.StateDown, []string{"engine_down"}
					default:
						r.Curve.Reasons = strings.Fields(s.what)
					}
					log.observe(&sidecar.Snapshot{At: at, Replicas: []sidecar.Replica{r}})
					at = at.Add(time.Second)
				}
			}
			var got []string
			for line := range strings.Lines(out.String()) {
				_, rest, _ := strings.Cut(line, "level=")
				level, rest, _ := strings.Cut(rest, " ")
				_, rest, _ = strings.Cut(rest, `"`)
				message, rest, _ := strings.Cut(rest, `"`)
				said := level + " " + message
				if _, reasons, ok := strings.Cut(rest, " reasons="); ok {
					reasons, _, _ = strings.Cut(reasons, " ")
					said += " reasons=" + reasons
				}
				got = append(got, said)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s\n%s", diff, &out)
			}
		})
	}
}
