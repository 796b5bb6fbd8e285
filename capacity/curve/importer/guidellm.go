package importer

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// guideLLM is GuideLLM's report of version 2 (0.8.1). Times that end in _ms are
// milliseconds, all others seconds, clock times since 1970.
type guideLLM struct {
	Metadata struct {
		Version int    `json:"version"`
		Package string `json:"guidellm_version"`
	} `json:"metadata"`
	Benchmarks []guideLLMBenchmark `json:"benchmarks"`
}

type guideLLMBenchmark struct {
	Config struct {
		Strategy struct {
			Type           string  `json:"type_"`
			Rate           float64 `json:"rate"`
			Streams        int     `json:"streams"`
			MaxConcurrency *int    `json:"max_concurrency"`
		} `json:"strategy"`
		Backend struct {
			Model string `json:"model"`
		} `json:"backend"`
	} `json:"config"`
	StartTime float64 `json:"start_time"`
	Duration  float64 `json:"duration"`
	Metrics   struct {
		Totals struct {
			Successful int `json:"successful"`
			Errored    int `json:"errored"`
		} `json:"request_totals"`
		Latency guideLLMMetric `json:"request_latency"`
		TTFT    guideLLMMetric `json:"time_to_first_token_ms"`
		ITL     guideLLMMetric `json:"inter_token_latency_ms"`
		Prompt  guideLLMMetric `json:"prompt_token_count"`
		Output  guideLLMMetric `json:"output_token_count"`
	} `json:"metrics"`
	Requests struct {
		Successful []guideLLMRequest `json:"successful"`
		Errored    []guideLLMRequest `json:"errored"`
		Incomplete []guideLLMRequest `json:"incomplete"`
	} `json:"requests"`
}

type guideLLMMetric struct {
	Successful struct {
		Mean        float64            `json:"mean"`
		Max         float64            `json:"max"`
		Count       float64            `json:"count"`
		Percentiles map[string]float64 `json:"percentiles"`
	} `json:"successful"`
}

type guideLLMRequest struct {
	Info struct {
		Timings struct {
			Targeted   *float64 `json:"targeted_start"`
			Start      *float64 `json:"request_start"`
			FirstToken *float64 `json:"first_token_iteration"`
			LastToken  *float64 `json:"last_token_iteration"`
			ResolveEnd *float64 `json:"resolve_end"`
		} `json:"timings"`
	} `json:"info"`
	Prompt *float64 `json:"prompt_tokens"`
	Output *float64 `json:"output_tokens"`
	// ITL is (last token - first token) / (tokens - 1).
	ITL *float64 `json:"inter_token_latency_ms"`
}

// guideLLMPercentiles are its names of percentiles: p95 is the 95th, p999 the 99.9th.
var guideLLMPercentiles = map[string]float64{
	"p001": 0.1, "p01": 1, "p05": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9,
}

func parseGuideLLM(data []byte) ([]run, error) {
	var report guideLLM
	if err := decode(data, &report); err != nil {
		return nil, err
	}
	switch {
	case report.Metadata.Version != 2:
		return nil, fmt.Errorf("metadata.version is %d, want 2: export it again with GuideLLM 0.8", report.Metadata.Version)
	case len(report.Benchmarks) == 0:
		return nil, errors.New("benchmarks is empty: the run did not end well")
	}
	var runs []run
	for i := range report.Benchmarks {
		r, err := report.Benchmarks[i].run()
		if err != nil {
			return nil, fmt.Errorf("benchmark %d: %w", i+1, err)
		}
		r.version = report.Metadata.Package
		runs = append(runs, r)
	}
	return runs, nil
}

func (b *guideLLMBenchmark) run() (run, error) {
	const mean = "GuideLLM has no gaps between tokens, its inter_token_latency is a mean per request: give tpot:pP:BOUND, which is that"
	seconds, fraction := math.Modf(b.StartTime)
	nan := math.NaN()
	r := run{
		model: b.Config.Backend.Model, start: time.Unix(int64(seconds), int64(fraction*1e9)).UTC(), seconds: b.Duration,
		lag: nan, configured: nan, offered: nan,
		attempts: b.Metrics.Totals.Successful + b.Metrics.Totals.Errored, failures: b.Metrics.Totals.Errored,
		prompt: b.Metrics.Prompt.Successful.Mean, output: b.Metrics.Output.Successful.Mean,
		why: map[string]string{itl: mean, icl: mean},
		notes: []string{
			"guidellm: its inter_token_latency is a mean per request, taken over as TPOT; its time_per_output_token includes the first token and is not taken over",
		},
	}
	if err := b.arrivals(&r); err != nil {
		return run{}, err
	}
	if n := len(b.Requests.Successful); n > 0 && n >= b.Metrics.Totals.Successful {
		b.records(&r)
		return r, nil
	}
	r.notes = append(r.notes,
		"guidellm: the records are a sample or absent: latencies are its summaries, from when a request was sent (coordinated omission), TPOT weighted by tokens, E2E to the end of the stream")
	r.latencies = map[string]latency{
		ttft: b.Metrics.TTFT.latency(1000), ttftSent: b.Metrics.TTFT.latency(1000),
		tpot: b.Metrics.ITL.latency(1000), e2e: b.Metrics.Latency.latency(1),
	}
	return r, nil
}

// latency in seconds, of which a unit of theirs is one part in per.
func (m *guideLLMMetric) latency(per float64) latency {
	s := &m.Successful
	l := latency{n: s.Count, mean: s.Mean / per, max: s.Max / per, quantiles: map[float64]float64{}}
	for name, v := range s.Percentiles {
		if p, ok := guideLLMPercentiles[name]; ok {
			l.quantiles[p] = v / per
		}
	}
	return l
}

func (b *guideLLMBenchmark) arrivals(r *run) error {
	s := &b.Config.Strategy
	switch s.Type {
	case "poisson", "constant":
		r.arrivals.Process, r.configured, r.offered = s.Type, s.Rate, s.Rate
	case "trace":
		r.arrivals.Process, r.arrivals.Trace = "trace", "replay"
		// The rate is what the records show.
	case "synchronous":
		r.arrivals.Process, r.concurrency = "closed_loop", 1
	case "concurrent":
		r.arrivals.Process, r.concurrency = "closed_loop", s.Streams
		if s.Streams < 1 {
			return fmt.Errorf("strategy concurrent has %d streams, want 1 or more", s.Streams)
		}
	case "throughput":
		// As many as it may at once: nothing is sent at a rate.
		r.arrivals.Process, r.concurrency = "closed_loop", max(r.attempts, 1)
		if s.MaxConcurrency != nil && *s.MaxConcurrency > 0 {
			r.concurrency = min(*s.MaxConcurrency, r.concurrency)
		}
	default:
		return fmt.Errorf("strategy is %q, want poisson, constant, trace, synchronous, concurrent or throughput", s.Type)
	}
	return nil
}

// maxLate is the most by which a request can have been late, in seconds.
// Version 0.8.1 gives some requests a targeted start near 0 instead of a time.
const maxLate = 3600

func (b *guideLLMBenchmark) records(r *run) {
	known := func(v *float64) float64 {
		if v == nil {
			return math.NaN()
		}
		return *v
	}
	add := func(list []guideLLMRequest, failed, cancelled bool) {
		for i := range list {
			q := &list[i]
			t := &q.Info.Timings
			sent := known(t.Start)
			if math.IsNaN(sent) {
				continue // never sent
			}
			one := request{
				due: known(t.Targeted), sent: sent, ttft: known(t.FirstToken) - sent, e2e: known(t.LastToken) - sent,
				tpot: known(q.ITL) / 1000, prompt: known(q.Prompt), output: known(q.Output), failed: failed,
			}
			if r.concurrency > 0 || !(math.Abs(one.sent-one.due) < maxLate) {
				one.due = math.NaN()
			}
			if cancelled {
				if one.age = known(t.ResolveEnd) - sent; !(one.age > 0) {
					continue
				}
				one.e2e, one.tpot = math.NaN(), math.NaN()
			}
			r.requests = append(r.requests, one)
		}
	}
	add(b.Requests.Successful, false, false)
	add(b.Requests.Errored, true, false)
	add(b.Requests.Incomplete, false, true)
	r.fill()
	r.notes = append(r.notes, "guidellm: E2E ends at the last token, as the curve defines it, not at the end of the stream")
	if r.concurrency == 0 {
		r.notes = append(r.notes, "guidellm: TTFT and E2E are from when a request was due; one that was cancelled at the end counts when it was already older than the bound")
	}
}
