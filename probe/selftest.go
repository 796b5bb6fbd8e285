package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"runtime"
	"time"

	"headroom_exporter/probe/nullserver"
	"headroom_exporter/probe/workload"
)

// SelfTestReport is what this client can do on this machine, measured against
// a server that costs much less than the client.
type SelfTestReport struct {
	CPUs int `json:"cpus"`
	// FirstRequest is from the beginning to the first answer, in seconds.
	FirstRequest float64 `json:"first_request_s"`
	// ShortRate is requests per second of 512 prompt tokens and 1 output token.
	ShortRate       float64 `json:"short_requests_per_second"`
	ShortCPU        float64 `json:"short_cpu_s_per_request"`
	ShortPerCore    float64 `json:"short_requests_per_second_per_core"`
	PacedStreams    int     `json:"paced_streams"`
	PacedRate       float64 `json:"paced_events_per_second"`
	PacedCPU        float64 `json:"paced_cpu_s_per_event"`
	PacedPerCore    float64 `json:"paced_events_per_second_per_core"`
	CoalescedRate   float64 `json:"coalesced_events_per_second"`
	CoalescedCPU    float64 `json:"coalesced_cpu_s_per_event"`
	CoalescedPerCPU float64 `json:"coalesced_events_per_second_per_core"`
	// AllocationsPerEvent and BytesPerEvent at the paced peak.
	AllocationsPerEvent float64 `json:"allocations_per_event"`
	BytesPerEvent       float64 `json:"bytes_per_event"`
	// MaxRSS is the largest resident memory up to RSSStreams streams.
	MaxRSS     float64 `json:"max_rss_bytes"`
	RSSStreams int     `json:"max_rss_streams"`
	// Light is an open loop of 10 requests per second, Steady one of 20,000
	// events per second, Half one of half of the paced peak.
	Light, Steady, Half Accuracy
}

// Accuracy is how far the client's words are from the server's.
type Accuracy struct {
	RequestRate float64 `json:"requests_per_second"`
	EventRate   float64 `json:"events_per_second"`
	CPUShare    float64 `json:"cpu_share"`
	LagP50      float64 `json:"lag_p50_s"`
	LagP99      float64 `json:"lag_p99_s"`
	// Biases are the client's quantiles less the server's own. TTFT and E2E
	// begin at the schedule and so hold the lag; TTFTSent begins at the first
	// byte sent, as the server's begins when the request arrives.
	TTFT     Bias `json:"ttft_bias_s"`
	TTFTSent Bias `json:"ttft_sent_bias_s"`
	ITL      Bias `json:"itl_bias_s"`
	TPOT     Bias `json:"tpot_bias_s"`
	E2E      Bias `json:"e2e_bias_s"`
	// ServerLateP99 is how late the server itself was with the first token.
	ServerLateP99 float64 `json:"server_late_p99_s"`
}

// Bias is a difference of two quantiles, in seconds.
type Bias struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// bias is what the client says less what the server did.
func bias(s Summary, truth nullserver.Quantiles) Bias {
	return Bias{P50: float64(s.P50) - truth.P50, P99: orMax(s) - truth.P99}
}

// The timing of the self-test's server where it is paced, and how long the
// load is on before its accuracy is looked at.
const (
	selfTestTTFT   = 200 * time.Millisecond
	selfTestITL    = 20 * time.Millisecond
	selfTestWarmup = 2 * time.Second
)

// SelfTest measures the client against a null server at an address, each step
// for a duration. say is told what goes on.
func SelfTest(ctx context.Context, address string, step time.Duration, say func(string)) (*SelfTestReport, error) {
	t := &selfTest{address: address, step: step, report: &SelfTestReport{CPUs: runtime.GOMAXPROCS(0)}}
	begin := time.Now()
	if err := t.configure(ctx, nullserver.Config{}); err != nil {
		return nil, err
	}
	if _, err := t.closed(ctx, "first request", 1, 1, 1, 1); err != nil {
		return nil, err
	}
	t.report.FirstRequest = time.Since(begin).Seconds()
	for _, s := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"short requests", t.short}, {"coalesced events", t.coalesced}, {"paced events", t.paced},
		{"accuracy at light load", func(ctx context.Context) error { return t.accuracy(ctx, 10, &t.report.Light) }},
		{"accuracy at 20,000 events/s", func(ctx context.Context) error {
			return t.accuracy(ctx, min(steadyEvents, t.report.PacedRate)/pacedTokens, &t.report.Steady)
		}},
		{"accuracy at half of the peak", func(ctx context.Context) error {
			return t.accuracy(ctx, t.report.PacedRate/2/pacedTokens, &t.report.Half)
		}},
	} {
		say(s.name)
		if err := s.run(ctx); err != nil {
			return nil, fmt.Errorf("self-test: %s: %w", s.name, err)
		}
	}
	return t.report, nil
}

type selfTest struct {
	address string
	step    time.Duration
	report  *SelfTestReport
}

// configure sets the server's timing and forgets what it counted.
func (t *selfTest) configure(ctx context.Context, c nullserver.Config) error {
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := t.ask(ctx, http.MethodPost, nullserver.ConfigPath, body, nil); err != nil {
		return err
	}
	return t.ask(ctx, http.MethodGet, nullserver.StatsPath, nil, nil)
}

func (t *selfTest) ask(ctx context.Context, method, path string, body []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, t.address+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("asking the null server: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("asking the null server: %w", err)
	}
	defer resp.Body.Close()
	if answer == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

func (t *selfTest) client() (*Client, error) {
	return NewClient(ClientConfig{
		BaseURL: t.address, Model: "null",
		Dialect: Dialect{PromptIDs: true, ExactLength: true, TokenIDs: true, Usage: true},
	})
}

// point fills in what the points of a self-test have in common.
func (t *selfTest) run(ctx context.Context, p Point, prompt, output, requests int, arrivals *workload.Arrivals) (*Result, error) {
	c, err := t.client()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return t.runOn(ctx, c, p, prompt, output, requests, arrivals)
}

func (t *selfTest) runOn(ctx context.Context, c *Client, p Point, prompt, output, requests int, arrivals *workload.Arrivals) (*Result, error) {
	var err error
	p.Source, err = workload.Plan{
		Classes:  []workload.Class{{Name: "self-test", Weight: 1, Prompt: workload.FixedLength(prompt), Output: workload.FixedLength(output)}},
		Arrivals: arrivals, Requests: requests, Seed: 1,
	}.Source()
	if err != nil {
		return nil, err
	}
	vocabulary := workload.SafeVocabulary(0)
	p.Fill = func(q *workload.Request) { q.MakeTokens(vocabulary) }
	result, err := (&Runner{Client: c}).Run(ctx, p)
	if err != nil {
		return nil, err
	}
	if all := result.All(); all.Outcomes[OK] == 0 || all.Failures() > 0 {
		return nil, fmt.Errorf("outcomes %v: %s", all.Outcomes, result.mostErrors())
	}
	return result, nil
}

func (t *selfTest) closed(ctx context.Context, name string, concurrency, prompt, output, requests int) (*Result, error) {
	p := Point{Name: name, Concurrency: concurrency, Duration: t.step}
	if requests > 0 {
		p.Duration = 0
	}
	return t.run(ctx, p, prompt, output, requests, nil)
}

func (t *selfTest) short(ctx context.Context) error {
	if err := t.configure(ctx, nullserver.Config{}); err != nil {
		return err
	}
	r, err := t.closed(ctx, "short", 64, 512, 1, 0)
	if err != nil {
		return err
	}
	n := float64(r.All().Outcomes[OK])
	t.report.ShortRate = float64(r.CompletedRate)
	t.report.ShortCPU = float64(r.Self.CPUSeconds) / n
	t.report.ShortPerCore = 1 / t.report.ShortCPU
	return nil
}

func (t *selfTest) coalesced(ctx context.Context) error {
	if err := t.configure(ctx, nullserver.Config{EventsPerWrite: 32}); err != nil {
		return err
	}
	const output = 256
	r, err := t.closed(ctx, "coalesced", 32, 16, output, 0)
	if err != nil {
		return err
	}
	events := float64(r.All().Outcomes[OK]) * output
	t.report.CoalescedRate = float64(r.CompletedRate) * output
	t.report.CoalescedCPU = float64(r.Self.CPUSeconds) / events
	t.report.CoalescedPerCPU = 1 / t.report.CoalescedCPU
	return nil
}

// pacedTokens is the output of paced requests, rssStreams the number of
// streams up to which memory is looked at, steadyEvents a rate of events.
const (
	pacedTokens  = 32
	rssStreams   = 1400
	steadyEvents = 20_000
)

// paced doubles streams that bring one event every 20 ms until client or
// server cannot follow.
func (t *selfTest) paced(ctx context.Context) error {
	if err := t.configure(ctx, nullserver.Config{TTFT: selfTestITL, ITL: selfTestITL}); err != nil {
		return err
	}
	for _, streams := range []int{200, 400, 800, 1400, 2000, 2800} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := t.closed(ctx, "paced", streams, 16, pacedTokens, 0)
		if err != nil {
			return err
		}
		runtime.ReadMemStats(&after)
		if streams <= rssStreams {
			_, t.report.MaxRSS = resources()
			t.report.RSSStreams = streams
		}
		events := float64(r.All().Outcomes[OK]) * pacedTokens
		rate := float64(r.CompletedRate) * pacedTokens
		if rate > t.report.PacedRate {
			t.report.PacedStreams, t.report.PacedRate = streams, rate
			t.report.PacedCPU = float64(r.Self.CPUSeconds) / events
			t.report.PacedPerCore = 1 / t.report.PacedCPU
			t.report.AllocationsPerEvent = float64(after.Mallocs-before.Mallocs) / events
			t.report.BytesPerEvent = float64(after.TotalAlloc-before.TotalAlloc) / events
		}
		if asked := float64(streams) / selfTestITL.Seconds(); rate < 0.8*asked {
			return nil
		}
	}
	return nil
}

// accuracy compares with the server's own times in open loop.
func (t *selfTest) accuracy(ctx context.Context, rate float64, a *Accuracy) error {
	if err := t.configure(ctx, nullserver.Config{TTFT: selfTestTTFT, ITL: selfTestITL}); err != nil {
		return err
	}
	c, err := t.client()
	if err != nil {
		return err
	}
	defer c.Close()
	// The first point opens the connections; what it showed is forgotten on both sides.
	var r *Result
	for _, duration := range []time.Duration{selfTestWarmup, t.step} {
		if err := t.ask(ctx, http.MethodGet, nullserver.StatsPath, nil, nil); err != nil {
			return err
		}
		r, err = t.runOn(ctx, c, Point{Name: "accuracy", Duration: duration, Rate: rate}, 16, pacedTokens, 0,
			&workload.Arrivals{Process: workload.Poisson, Rate: rate})
		if err != nil {
			return err
		}
	}
	var truth nullserver.Stats
	if err := t.ask(ctx, http.MethodGet, nullserver.StatsPath, nil, &truth); err != nil {
		return err
	}
	all := r.All()
	*a = Accuracy{
		RequestRate: float64(r.OfferedRate), EventRate: float64(r.OfferedRate) * pacedTokens,
		CPUShare: float64(r.Self.CPUShare),
		LagP50:   float64(r.ScheduleLag.P50), LagP99: orMax(r.ScheduleLag),
		TTFT: bias(all.TTFT, truth.TTFT), TTFTSent: bias(all.TTFTSent, truth.TTFT),
		ITL: bias(all.ITL, truth.ITL), TPOT: bias(all.TPOT, truth.TPOT), E2E: bias(all.E2E, truth.E2E),
		ServerLateP99: truth.TTFT.P99 - selfTestTTFT.Seconds(),
	}
	return nil
}

// orMax is the 99th percentile or, with too few samples for one, the largest.
func orMax(s Summary) float64 {
	if math.IsNaN(float64(s.P99)) {
		return float64(s.Max)
	}
	return float64(s.P99)
}
