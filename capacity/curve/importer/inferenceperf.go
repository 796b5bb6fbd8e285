package importer

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// inferencePerf is stage_N_lifecycle_metrics.json (inference-perf 0.7). All times are seconds.
type inferencePerf struct {
	Seconds float64 `json:"benchmark_time_seconds"`
	Load    struct {
		Count       int                `json:"count"`
		Delay       map[string]float64 `json:"schedule_delay"`
		Requested   *float64           `json:"requested_rate"`
		Achieved    *float64           `json:"achieved_rate"`
		Concurrency *int               `json:"concurrency"`
	} `json:"load_summary"`
	Successes struct {
		Count   int `json:"count"`
		Latency struct {
			Request map[string]float64 `json:"request_latency"`
			TTFT    map[string]float64 `json:"time_to_first_token"`
			TPOT    map[string]float64 `json:"time_per_output_token"`
			ITL     map[string]float64 `json:"inter_token_latency"`
		} `json:"latency"`
		Prompt map[string]float64 `json:"prompt_tokens"`
		Output map[string]float64 `json:"output_tokens"`
		Length map[string]float64 `json:"output_len"`
	} `json:"successes"`
	Failures struct {
		Count int `json:"count"`
	} `json:"failures"`
}

// inferencePerfFiles are the other reports of the run; each may be absent.
type inferencePerfFiles struct {
	// config is config.yaml, which names the model and the arrivals.
	config []byte
	// stage is inference-perf.partial.stage_N.yaml, which has the time of day.
	stage []byte
	// requests are per_request_lifecycle_metrics.json, of all stages together.
	requests []byte
	// modified is when the result file was written last.
	modified time.Time
}

// stageName is the name of a stage's report, with its number.
var stageName = regexp.MustCompile(`stage_(\d+)_lifecycle_metrics\.json$`)

func readInferencePerf(path string, data []byte) ([]run, error) {
	var f inferencePerfFiles
	folder := filepath.Dir(path)
	for _, s := range []struct {
		name string
		into *[]byte
	}{
		{"config.yaml", &f.config}, {"per_request_lifecycle_metrics.json", &f.requests},
		{"inference-perf.partial.stage_" + stageNumber(path) + ".yaml", &f.stage},
	} {
		content, err := readBounded(filepath.Join(folder, s.name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s beside it: %w", s.name, err)
		}
		*s.into = content
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	f.modified = info.ModTime()
	return parseInferencePerf(data, f)
}

// stageNumber is the number in the name of a stage's report; empty when it has another name.
func stageNumber(path string) string {
	m := stageName.FindStringSubmatch(filepath.Base(path))
	if m == nil {
		return ""
	}
	return m[1]
}

func parseInferencePerf(data []byte, f inferencePerfFiles) ([]run, error) {
	var p inferencePerf
	if err := decode(data, &p); err != nil {
		return nil, err
	}
	nan := math.NaN()
	r := run{
		seconds: p.Seconds, lag: nan, configured: nan, offered: nan, prompt: nan, output: nan,
		attempts: p.Successes.Count + p.Failures.Count, failures: p.Failures.Count,
		latencies: map[string]latency{}, why: map[string]string{},
		notes: []string{
			"inference-perf: the files do not tell its version",
			"inference-perf: TTFT and E2E are from when a request was sent; what it was late is not in them (coordinated omission), see schedule_lag_p99_s of each point",
			"inference-perf: reasoning does not count as the first token",
		},
	}
	switch {
	case p.Load.Concurrency != nil && *p.Load.Concurrency > 0:
		r.arrivals.Process, r.concurrency = "closed_loop", *p.Load.Concurrency
	case p.Load.Requested == nil || p.Load.Achieved == nil:
		return nil, errors.New("it has no requested_rate: it is the summary of all stages; give the stage_N_lifecycle_metrics.json files")
	default:
		r.configured, r.offered = *p.Load.Requested, *p.Load.Achieved
		r.arrivals.Process = "poisson"
		if lag, ok := p.Load.Delay["p99"]; ok {
			r.lag = max(lag, 0) // the sender wakes a little early at times
		}
	}
	if err := f.apply(&r); err != nil {
		return nil, err
	}
	for _, l := range []struct {
		into *float64
		from []map[string]float64
	}{{&r.prompt, []map[string]float64{p.Successes.Prompt}}, {&r.output, []map[string]float64{p.Successes.Output, p.Successes.Length}}} {
		for _, from := range l.from {
			if v, ok := from["mean"]; ok {
				*l.into = v
				break
			}
		}
	}
	n := float64(p.Successes.Count)
	latencies := &p.Successes.Latency
	for metric, m := range map[string]struct {
		values map[string]float64
		n      float64
	}{
		ttft: {latencies.TTFT, n}, ttftSent: {latencies.TTFT, n}, tpot: {latencies.TPOT, n}, e2e: {latencies.Request, n},
		itl: {latencies.ITL, n * max(r.output-1, 0)}, icl: {latencies.ITL, n * max(r.output-1, 0)},
	} {
		if len(m.values) == 0 {
			continue
		}
		l := latency{n: m.n, mean: nan, max: nan, quantiles: map[float64]float64{}}
		for key, v := range m.values {
			switch key {
			case "mean":
				l.mean = v
			case "max":
				l.max = v
			case "median":
				l.quantiles[50] = v
			default:
				if percentile, err := strconv.ParseFloat(strings.TrimPrefix(key, "p"), 64); err == nil && strings.HasPrefix(key, "p") {
					l.quantiles[percentile] = v
				}
			}
		}
		r.latencies[metric] = l
	}
	return []run{r}, nil
}

// apply takes what the other reports tell.
func (f *inferencePerfFiles) apply(r *run) error {
	var config struct {
		Server struct {
			Model string `yaml:"model_name"`
		} `yaml:"server"`
		Load struct {
			Type string `yaml:"type"`
		} `yaml:"load"`
	}
	if err := yaml.Unmarshal(f.config, &config); err != nil {
		return fmt.Errorf("config.yaml beside it: %s", strings.ReplaceAll(err.Error(), "\n", " "))
	}
	r.model = config.Server.Model
	if r.concurrency == 0 {
		switch t := config.Load.Type; t {
		case "", "poisson":
		case "constant":
			r.notes = append(r.notes, "inference-perf: its constant load has random, exponential gaps, and is taken as Poisson")
		default:
			return fmt.Errorf("config.yaml beside it: load.type is %q, want poisson, constant or concurrent", t)
		}
	}
	var stage struct {
		Run struct {
			Time struct {
				Start string `yaml:"start"`
			} `yaml:"time"`
		} `yaml:"run"`
	}
	if err := yaml.Unmarshal(f.stage, &stage); err != nil {
		return fmt.Errorf("the stage's yaml beside it: %s", strings.ReplaceAll(err.Error(), "\n", " "))
	}
	if at := stage.Run.Time.Start; at != "" {
		start, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			return fmt.Errorf("the stage's yaml beside it: run.time.start is %q, want a time such as 2026-01-31T23:59:59Z", at)
		}
		r.start = start.UTC()
	} else {
		seconds := min(max(r.seconds, 0), 1e9)
		r.start = f.modified.Add(-time.Duration(seconds * float64(time.Second))).UTC()
		r.notes = append(r.notes, "inference-perf: no inference-perf.partial.stage_N.yaml beside it: the time is the file's own")
	}
	if len(f.requests) == 0 {
		return nil
	}
	var requests []struct {
		Info struct {
			Input    *float64 `json:"input_tokens"`
			Response *struct {
				Output *float64 `json:"output_tokens"`
			} `json:"response_metrics"`
		} `json:"info"`
		Error any `json:"error"`
	}
	if err := decode(f.requests, &requests); err != nil {
		return fmt.Errorf("per_request_lifecycle_metrics.json beside it: %w", err)
	}
	for _, q := range requests {
		if q.Error == nil && q.Info.Input != nil && q.Info.Response != nil && q.Info.Response.Output != nil {
			r.promptLengths = append(r.promptLengths, *q.Info.Input)
			r.outputLengths = append(r.outputLengths, *q.Info.Response.Output)
		}
	}
	return nil
}
