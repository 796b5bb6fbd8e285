package importer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"time"

	"headroom_exporter/capacity/curve"
)

// aiPerf is profile_export_aiperf.json (AIPerf 0.13, schema 1.4).
type aiPerf struct {
	Version string `json:"aiperf_version"`
	Config  struct {
		Models struct {
			Items []struct {
				Name string `json:"name"`
			} `json:"items"`
		} `json:"models"`
		Phases []struct {
			Name        string   `json:"name"`
			Kind        string   `json:"kind"`
			Type        string   `json:"type"`
			Rate        *float64 `json:"rate"`
			Concurrency *int     `json:"concurrency"`
			Smoothness  *float64 `json:"smoothness"`
			RateRamp    any      `json:"rate_ramp"`
			RateSeries  any      `json:"rate_series"`
		} `json:"phases"`
	} `json:"input_config"`
	Run struct {
		Command string `json:"cli_command"`
	} `json:"run_info"`
	Start string `json:"start_time"`

	Duration  *aiPerfMetric `json:"benchmark_duration"`
	Requests  *aiPerfMetric `json:"request_count"`
	Errors    *aiPerfMetric `json:"error_request_count"`
	Prompt    *aiPerfMetric `json:"input_sequence_length"`
	Output    *aiPerfMetric `json:"output_sequence_length"`
	TTFT      *aiPerfMetric `json:"time_to_first_token"`
	ITL       *aiPerfMetric `json:"inter_token_latency"`
	ICL       *aiPerfMetric `json:"inter_chunk_latency"`
	Latency   *aiPerfMetric `json:"request_latency"`
	Effective *aiPerfMetric `json:"effective_latency"`
	Lag       *aiPerfMetric `json:"credit_to_start_latency"`
}

type aiPerfMetric struct {
	Unit  string   `json:"unit"`
	Avg   float64  `json:"avg"`
	P1    *float64 `json:"p1"`
	P5    *float64 `json:"p5"`
	P10   *float64 `json:"p10"`
	P25   *float64 `json:"p25"`
	P50   *float64 `json:"p50"`
	P75   *float64 `json:"p75"`
	P90   *float64 `json:"p90"`
	P95   *float64 `json:"p95"`
	P99   *float64 `json:"p99"`
	Max   *float64 `json:"max"`
	Count *float64 `json:"count"`
}

// aiPerfRecord is a line of profile_export.jsonl.
type aiPerfRecord struct {
	Metadata struct {
		// CreditIssued is when the rate limiter let the request go.
		CreditIssued *int64 `json:"credit_issued_ns"`
		Start        int64  `json:"request_start_ns"`
		End          int64  `json:"request_end_ns"`
		Phase        string `json:"benchmark_phase"`
		Cancelled    bool   `json:"was_cancelled"`
	} `json:"metadata"`
	Metrics map[string]struct {
		Value json.RawMessage `json:"value"`
		Unit  string          `json:"unit"`
	} `json:"metrics"`
	Error json.RawMessage `json:"error"`
}

// readAIPerf reads the summary and, where it lies beside it, the record of each request.
func readAIPerf(path string, data []byte) ([]run, error) {
	records, err := readBounded(filepath.Join(filepath.Dir(path), "profile_export.jsonl"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("profile_export.jsonl beside it: %w", err)
	}
	return parseAIPerf(data, records)
}

func parseAIPerf(data, records []byte) ([]run, error) {
	var a aiPerf
	if err := decode(data, &a); err != nil {
		return nil, err
	}
	nan := math.NaN()
	r := run{
		version: a.Version, command: a.Run.Command, lag: nan, configured: nan, offered: nan, seconds: nan, prompt: nan, output: nan,
		why: map[string]string{},
		notes: []string{
			"aiperf: its inter_token_latency is a mean per request, taken over as TPOT; its inter_chunk_latency, between two chunks, is taken over as ITL, which it is only where each token has its own chunk",
		},
	}
	if len(a.Config.Models.Items) == 1 {
		r.model = a.Config.Models.Items[0].Name
	}
	start, err := time.Parse("2006-01-02T15:04:05.999999", a.Start)
	if err != nil {
		return nil, fmt.Errorf("start_time is %q, want one such as 2026-01-31T23:59:59.5", a.Start)
	}
	r.start = start
	r.notes = append(r.notes, "aiperf: times of day are taken as UTC")
	for _, m := range []struct {
		name string
		from *aiPerfMetric
		into *float64
	}{{"benchmark_duration", a.Duration, &r.seconds}, {"input_sequence_length", a.Prompt, &r.prompt}, {"output_sequence_length", a.Output, &r.output}} {
		if m.from == nil {
			return nil, fmt.Errorf("%s is missing: give the result of a finished run of a text endpoint", m.name)
		}
		*m.into = m.from.Avg
	}
	if a.Duration.Unit != "sec" && a.Duration.Unit != "s" {
		return nil, fmt.Errorf("benchmark_duration is in %q, want sec", a.Duration.Unit)
	}
	if a.Requests != nil {
		r.attempts = int(min(max(a.Requests.Avg, 0), 1e9))
	}
	if a.Errors != nil {
		r.failures = int(min(max(a.Errors.Avg, 0), 1e9))
		r.attempts += r.failures // request_count is of those that ended well
	}
	if err := a.arrivals(&r); err != nil {
		return nil, err
	}
	if len(records) > 0 {
		if err := aiPerfRecords(&r, records); err != nil {
			return nil, fmt.Errorf("profile_export.jsonl beside it: %w", err)
		}
	}
	if r.requests != nil {
		r.notes = append(r.notes, "aiperf: TTFT and E2E are from when its rate limiter let a request go, which may be later than it was due (coordinated omission)")
		return []run{r}, nil
	}
	r.notes = append(r.notes, "aiperf: no profile_export.jsonl beside it: TTFT and E2E are from when a request was sent, so that waiting in the client is not in them (coordinated omission)")
	r.latencies = map[string]latency{}
	for metric, m := range map[string]*aiPerfMetric{ttft: a.TTFT, ttftSent: a.TTFT, tpot: a.ITL, itl: a.ICL, icl: a.ICL, e2e: a.Latency} {
		if m == nil {
			continue
		}
		if r.latencies[metric], err = m.latency(float64(r.attempts - r.failures)); err != nil {
			return nil, fmt.Errorf("%s: %w", metric, err)
		}
	}
	if a.Lag != nil && r.concurrency == 0 {
		lag, err := a.Lag.latency(1)
		if err != nil {
			return nil, fmt.Errorf("credit_to_start_latency: %w", err)
		}
		if v, ok := lag.quantiles[99]; ok {
			r.lag = v
		}
	}
	return []run{r}, nil
}

// unitSeconds is how long a unit of AIPerf is.
func unitSeconds(unit string) (float64, error) {
	switch unit {
	case "sec", "s":
		return 1, nil
	case "ms":
		return 1e-3, nil
	case "us":
		return 1e-6, nil
	case "ns":
		return 1e-9, nil
	}
	return 0, fmt.Errorf("unit is %q, want sec, ms, us or ns", unit)
}

func (m *aiPerfMetric) latency(n float64) (latency, error) {
	unit, err := unitSeconds(m.Unit)
	if err != nil {
		return latency{}, err
	}
	l := latency{n: n, mean: m.Avg * unit, max: math.NaN(), quantiles: map[float64]float64{}}
	if m.Count != nil {
		l.n = *m.Count
	}
	if m.Max != nil {
		l.max = *m.Max * unit
	}
	for p, v := range map[float64]*float64{1: m.P1, 5: m.P5, 10: m.P10, 25: m.P25, 50: m.P50, 75: m.P75, 90: m.P90, 95: m.P95, 99: m.P99} {
		if v != nil {
			l.quantiles[p] = *v * unit
		}
	}
	return l, nil
}

// arrivals are of the one phase that was measured.
func (a *aiPerf) arrivals(r *run) error {
	phase := -1
	for i := range a.Config.Phases {
		if k := a.Config.Phases[i].Kind; k == "profiling" || k == "" && a.Config.Phases[i].Name == "profiling" {
			if phase >= 0 {
				return errors.New("input_config has several measured phases: a point is of one load; give runs of one phase")
			}
			phase = i
		}
	}
	if phase < 0 {
		return errors.New("input_config has no phase that was measured, as AIPerf 0.13 writes it: it cannot be told at which rate requests were sent")
	}
	p := &a.Config.Phases[phase]
	if p.RateRamp != nil || p.RateSeries != nil {
		return errors.New("the rate was changed during the run: a point is of one rate; give runs at a fixed rate")
	}
	switch {
	case p.Type == "concurrency" && p.Concurrency != nil && *p.Concurrency > 0:
		r.arrivals.Process, r.concurrency = "closed_loop", *p.Concurrency
		return nil
	case p.Type == "concurrency":
		r.arrivals.Process, r.concurrency = "closed_loop", 1
		return nil
	case p.Type == "fixed_schedule":
		return errors.New("it replayed a schedule, whose rate the file does not tell: give runs at a fixed rate")
	case p.Rate == nil:
		return fmt.Errorf("the phase of type %q has no rate: give runs at a fixed rate or concurrency", p.Type)
	}
	r.configured, r.offered = *p.Rate, *p.Rate
	switch p.Type {
	case "poisson", "constant":
		r.arrivals.Process = p.Type
	case "gamma":
		r.arrivals = curve.Arrivals{Process: "gamma", Burstiness: 1}
		if p.Smoothness != nil && *p.Smoothness > 0 {
			r.arrivals.Burstiness = *p.Smoothness
		}
	default:
		return fmt.Errorf("the phase is of type %q, want poisson, constant, gamma or concurrency", p.Type)
	}
	if p.Concurrency != nil {
		r.notes = append(r.notes, fmt.Sprintf("aiperf: at most %d requests were in flight, so that at overload less was sent than asked for", *p.Concurrency))
	}
	return nil
}

// aiPerfRecords takes the requests of profile_export.jsonl.
func aiPerfRecords(r *run, data []byte) error {
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxFile)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var record aiPerfRecord
		if err := json.Unmarshal(lines.Bytes(), &record); err != nil {
			return fmt.Errorf("line %d: %w: copy it again, or move it away to import the summary alone", n, err)
		}
		if record.Metadata.Phase != "profiling" {
			continue
		}
		q, err := record.request()
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if r.concurrency > 0 {
			q.due = math.NaN()
		}
		r.requests = append(r.requests, q)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if len(r.requests) > 0 {
		r.fill()
	}
	return nil
}

func (record *aiPerfRecord) request() (request, error) {
	const second = 1e9
	var wrong error
	number := func(name string) float64 {
		m, ok := record.Metrics[name]
		if !ok {
			return math.NaN()
		}
		var v float64
		if err := json.Unmarshal(m.Value, &v); err != nil {
			wrong = fmt.Errorf("%s is %s, want a number", name, m.Value)
		}
		return v
	}
	seconds := func(name string) float64 {
		m, ok := record.Metrics[name]
		if !ok {
			return math.NaN()
		}
		unit, err := unitSeconds(m.Unit)
		if err != nil {
			wrong = fmt.Errorf("%s: %w", name, err)
		}
		return number(name) * unit
	}
	m := &record.Metadata
	q := request{
		due: math.NaN(), sent: float64(m.Start) / second, ttft: seconds("time_to_first_token"), tpot: seconds("inter_token_latency"), e2e: seconds("request_latency"),
		prompt: number("input_sequence_length"), output: number("output_sequence_length"),
		failed: len(record.Error) > 0 && string(record.Error) != "null" && !m.Cancelled,
	}
	if m.CreditIssued != nil {
		// Nanoseconds since 1970 are more than a float64 holds exactly: the difference is taken first.
		q.due = q.sent - float64(m.Start-*m.CreditIssued)/second
	}
	if m.Cancelled {
		q.age = max(float64(m.End-m.Start)/second, least)
		q.tpot, q.e2e = math.NaN(), math.NaN()
	}
	if gaps, ok := record.Metrics["inter_chunk_latency"]; ok {
		unit, err := unitSeconds(gaps.Unit)
		if err == nil {
			err = json.Unmarshal(gaps.Value, &q.gaps)
		}
		if err != nil {
			return q, fmt.Errorf("inter_chunk_latency: %w", err)
		}
		for i := range q.gaps {
			q.gaps[i] *= unit
		}
	}
	return q, wrong
}
