package importer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"headroom_exporter/capacity/curve"
)

// vllmBench is a result of `vllm bench serve` (0.32). Latencies that end in
// _ms are milliseconds, all others seconds.
type vllmBench struct {
	Date           string   `json:"date"`
	Model          string   `json:"model_id"`
	NumPrompts     int      `json:"num_prompts"`
	RequestRate    any      `json:"request_rate"`
	Burstiness     *float64 `json:"burstiness"`
	MaxConcurrency *int     `json:"max_concurrency"`
	RampUp         *string  `json:"ramp_up_strategy"`

	Duration  float64 `json:"duration"`
	Completed int     `json:"completed"`
	Failed    *int    `json:"failed"`
	Input     float64 `json:"total_input_tokens"`
	Output    float64 `json:"total_output_tokens"`

	// With --save-detailed, by request.
	InputLens  []float64   `json:"input_lens"`
	OutputLens []float64   `json:"output_lens"`
	TTFTs      []float64   `json:"ttfts"`
	ITLs       [][]float64 `json:"itls"`
	StartTimes []float64   `json:"start_times"`
	Errors     []string    `json:"errors"`
	// Always by request, since 0.20 or so.
	Latencies  []float64 `json:"latencies"`
	QueueTimes []float64 `json:"queue_times"`
}

// parseVLLMBench reads one result, several that --append-result put one after
// the other, or the list that a sweep's summary.json is.
func parseVLLMBench(data []byte) ([]run, error) {
	var raw []json.RawMessage
	d := json.NewDecoder(bytes.NewReader(data))
	for {
		var value json.RawMessage
		err := d.Decode(&value)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, jsonError(data, err)
		}
		if bytes.HasPrefix(value, []byte("[")) {
			var list []json.RawMessage
			if err := decode(value, &list); err != nil {
				return nil, err
			}
			raw = append(raw, list...)
			continue
		}
		raw = append(raw, value)
	}
	var runs []run
	for i := range raw {
		r, err := vllmRun(raw[i])
		if err != nil {
			if len(raw) > 1 {
				err = fmt.Errorf("result %d: %w", i+1, err)
			}
			return nil, err
		}
		runs = append(runs, r)
	}
	return runs, nil
}

func vllmRun(data []byte) (run, error) {
	var b vllmBench
	var keys map[string]any
	if err := decode(data, &b); err != nil {
		return run{}, err
	}
	if err := decode(data, &keys); err != nil {
		return run{}, err
	}
	nan := math.NaN()
	r := run{
		model: b.Model, seconds: b.Duration, lag: nan, configured: nan, offered: nan,
		prompt: b.Input / float64(b.Completed), output: b.Output / float64(b.Completed),
		attempts: b.NumPrompts, failures: b.NumPrompts - b.Completed, why: map[string]string{},
	}
	if b.Failed != nil {
		r.attempts, r.failures = b.Completed+*b.Failed, *b.Failed
	}
	ended, err := time.Parse("20060102-150405", b.Date)
	if err != nil {
		return run{}, fmt.Errorf("date is %q, want one such as 20260131-235959", b.Date)
	}
	r.start = ended.Add(-time.Duration(b.Duration * float64(time.Second)))
	if err := b.arrivals(&r); err != nil {
		return run{}, err
	}
	if err := b.records(&r); err != nil {
		return run{}, err
	}
	if r.requests == nil {
		b.summaries(&r, keys)
		r.notes = append(r.notes, "vllm bench: no record of each request (--save-detailed): TTFT and E2E are from when a request was sent, so that waiting in the client is not in them (coordinated omission)")
	} else {
		r.notes = append(r.notes, "vllm bench: TTFT and E2E are from when the client's loop took a request up, which may be later than it was due (coordinated omission)")
	}
	r.notes = append(r.notes,
		"vllm bench: the file does not tell the version of vLLM; times of day are taken as UTC",
		"vllm bench: the first chunk counts as the first token even when its text is empty, as the first of a chat's is",
		"vllm bench: ITL is the gap between two chunks, which is one between two tokens only where each has its own chunk")
	return r, nil
}

// arrivals tells the open from the closed loop.
func (b *vllmBench) arrivals(r *run) error {
	rate := math.Inf(1)
	switch v := b.RequestRate.(type) {
	case float64:
		rate = v
	case string:
		var err error
		if rate, err = strconv.ParseFloat(v, 64); err != nil {
			return fmt.Errorf("request_rate is %q, want a number or inf", v)
		}
	case nil:
	default:
		return fmt.Errorf("request_rate is %v, want a number or inf", v)
	}
	switch {
	case b.RampUp != nil:
		return errors.New("the rate was ramped up during the run: a point is of one rate; give runs without --ramp-up-strategy")
	case math.IsInf(rate, 1):
		r.arrivals.Process, r.concurrency = "closed_loop", r.attempts
		if b.MaxConcurrency != nil && *b.MaxConcurrency > 0 {
			r.concurrency = *b.MaxConcurrency
		}
		return nil
	}
	r.configured, r.offered = rate, rate
	switch {
	case b.Burstiness == nil || *b.Burstiness == 1:
		r.arrivals.Process = "poisson"
	case *b.Burstiness > 0:
		r.arrivals = curve.Arrivals{Process: "gamma", Burstiness: *b.Burstiness}
	default:
		return fmt.Errorf("burstiness is %g, want a number above 0", *b.Burstiness)
	}
	if b.MaxConcurrency != nil {
		r.notes = append(r.notes, fmt.Sprintf("vllm bench: at most %d requests were in flight, so that at overload less was sent than asked for", *b.MaxConcurrency))
	}
	return nil
}

// records takes the arrays of --save-detailed.
func (b *vllmBench) records(r *run) error {
	n := len(b.TTFTs)
	if n == 0 {
		return nil
	}
	for _, a := range []struct {
		name string
		n    int
		must bool
	}{
		{"input_lens", len(b.InputLens), true}, {"output_lens", len(b.OutputLens), true}, {"itls", len(b.ITLs), true}, {"errors", len(b.Errors), true},
		{"latencies", len(b.Latencies), false}, {"start_times", len(b.StartTimes), false}, {"queue_times", len(b.QueueTimes), false},
	} {
		if a.n != n && (a.must || a.n != 0) {
			return fmt.Errorf("ttfts has %d entries and %s %d: the file was changed", n, a.name, a.n)
		}
	}
	nan := math.NaN()
	for i := range n {
		q := request{due: nan, sent: nan, ttft: b.TTFTs[i], tpot: nan, gaps: b.ITLs[i], prompt: b.InputLens[i], output: b.OutputLens[i], failed: b.Errors[i] != ""}
		if b.StartTimes != nil {
			q.sent = b.StartTimes[i]
		}
		if b.QueueTimes != nil {
			q.due = q.sent - b.QueueTimes[i]
		}
		if b.Latencies != nil {
			q.e2e = b.Latencies[i]
		} else {
			q.e2e = q.ttft + mean(q.gaps)*float64(len(q.gaps))
		}
		if q.output > 1 {
			q.tpot = max(q.e2e-q.ttft, 0) / (q.output - 1)
		}
		r.requests = append(r.requests, q)
	}
	r.fill()
	return nil
}

// summaries takes the keys such as mean_ttft_ms and p99_ttft_ms.
func (b *vllmBench) summaries(r *run, keys map[string]any) {
	r.latencies = map[string]latency{}
	gaps := math.NaN()
	if b.Output > float64(b.Completed) {
		gaps = b.Output - float64(b.Completed)
	}
	for theirs, m := range map[string]struct {
		ours []string
		n    float64
	}{
		"ttft": {[]string{ttft, ttftSent}, float64(b.Completed)},
		"tpot": {[]string{tpot}, float64(b.Completed)},
		"itl":  {[]string{itl, icl}, gaps},
		"e2el": {[]string{e2e}, float64(b.Completed)},
	} {
		l := latency{n: m.n, mean: math.NaN(), max: math.NaN(), quantiles: map[float64]float64{}}
		for key, value := range keys {
			name, ok := strings.CutSuffix(key, "_"+theirs+"_ms")
			v, number := value.(float64)
			if !ok || !number {
				continue
			}
			switch name {
			case "mean":
				l.mean = v / 1000
			case "median":
				l.quantiles[50] = v / 1000
			default:
				if p, err := strconv.ParseFloat(strings.TrimPrefix(name, "p"), 64); err == nil && strings.HasPrefix(name, "p") {
					l.quantiles[p] = v / 1000
				}
			}
		}
		if math.IsNaN(l.mean) || math.IsNaN(l.n) {
			continue
		}
		for _, metric := range m.ours {
			r.latencies[metric] = l
		}
	}
}
