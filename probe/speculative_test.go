package probe

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/probe/knee"
)

// drafting adds to an engine's page what one with speculative decoding tells;
// each reading finds as many drafts more, and accepted tokens of them.
type drafting struct {
	http.RoundTripper
	drafts, accepted, read int
}

func (d *drafting) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := d.RoundTripper.RoundTrip(r)
	if err != nil || r.URL.Path != "/metrics" {
		return response, err
	}
	page, err := io.ReadAll(response.Body)
	response.Body.Close()
	d.read++
	var b bytes.Buffer
	for line := range strings.Lines(string(page)) {
		if line != "# EOF\n" {
			b.WriteString(line)
		}
		if labels, ok := strings.CutPrefix(line, "vllm:num_requests_running{"); ok {
			labels, _, _ = strings.Cut(labels, "}")
			fmt.Fprintf(&b, "# TYPE vllm:spec_decode_num_drafts counter\nvllm:spec_decode_num_drafts_total{%s} %d\n", labels, d.drafts*d.read)
			fmt.Fprintf(&b, "# TYPE vllm:spec_decode_num_accepted_tokens counter\nvllm:spec_decode_num_accepted_tokens_total{%s} %d\n", labels, d.accepted*d.read)
		}
	}
	response.Body, response.ContentLength = io.NopCloser(&b), int64(b.Len())
	return response, err
}

// TestTokensPerStep: what a step of speculative decoding gave is read beside
// the load and stands in the curve's point; without drafts nothing does.
func TestTokensPerStep(t *testing.T) {
	for _, test := range []struct {
		name             string
		drafts, accepted int
		want             float64
	}{
		{"two of each draft are accepted", 100, 200, 3},
		{"nothing is drafted", 0, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			simulated(t, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
				pages := &http.Transport{DialContext: client.config.Dial}
				defer pages.CloseIdleConnections()
				poller, err := engine.New(engine.Config{
					URL: client.config.BaseURL, Interval: DefaultReadingInterval, ProcPath: t.TempDir(),
					RoundTripper: &drafting{RoundTripper: pages, drafts: test.drafts, accepted: test.accepted},
				}, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				defer poller.Close()
				runner.Readings = &Readings{Poller: poller, Interval: DefaultReadingInterval}
				target := NewTarget(TargetConfig{Runner: runner, Facts: facts})
				o, err := target.Run(t.Context(), &knee.Load{
					Name: "p", Purpose: curve.PurposeProbe, Traffic: chatTraffic(t, "ttft:p99:800ms"),
					Steps: []knee.Step{{Rate: 2, Duration: 3 * time.Second}}, Seed: 1,
				}, &monitor{})
				if err != nil {
					t.Fatal(err)
				}
				if got := o.Point.Engine.SpeculativeTokensPerStep; got != test.want {
					t.Errorf("%v tokens a step, want %v", got, test.want)
				}
			})
		})
	}
}
