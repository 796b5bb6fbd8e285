package capacity

import (
	"fmt"
	"strings"
	"time"
)

// DefaultSLO is what a search of the knee bounds when it is told nothing else.
func DefaultSLO() []SLO {
	return []SLO{
		{Metric: "ttft", Percentile: 99, Bound: 800 * time.Millisecond},
		{Metric: "e2e", Percentile: 99, Bound: 12 * time.Second},
	}
}

// mlperf are the bounds of TTFT and TPOT at p99 for the server and the
// interactive scenario (mlcommons/inference, loadgen/mlperf.conf, v6.0).
var mlperf = []struct {
	name       string
	ttft, tpot time.Duration
}{
	{"llama3.1-8b", 2000 * time.Millisecond, 100 * time.Millisecond},
	{"llama3.1-8b-interactive", 500 * time.Millisecond, 30 * time.Millisecond},
	{"llama2-70b", 2000 * time.Millisecond, 200 * time.Millisecond},
	{"llama2-70b-interactive", 450 * time.Millisecond, 40 * time.Millisecond},
	{"llama3.1-405b", 6000 * time.Millisecond, 175 * time.Millisecond},
	{"llama3.1-405b-interactive", 4500 * time.Millisecond, 80 * time.Millisecond},
	{"deepseek-r1", 2000 * time.Millisecond, 80 * time.Millisecond},
	{"deepseek-r1-interactive", 1500 * time.Millisecond, 15 * time.Millisecond},
	{"gpt-oss-120b", 3000 * time.Millisecond, 80 * time.Millisecond},
	{"gpt-oss-120b-interactive", 2000 * time.Millisecond, 15 * time.Millisecond},
}

// SLOPresets lists the names that SLOPreset knows.
func SLOPresets() []string {
	names := make([]string, len(mlperf))
	for i, p := range mlperf {
		names[i] = p.name
	}
	return names
}

// SLOPreset returns the bounds that MLPerf Inference sets for a model.
func SLOPreset(name string) ([]SLO, error) {
	for _, p := range mlperf {
		if p.name == name {
			return []SLO{{Metric: "ttft", Percentile: 99, Bound: p.ttft}, {Metric: "tpot", Percentile: 99, Bound: p.tpot}}, nil
		}
	}
	return nil, fmt.Errorf("no preset %q, want one of %s", name, strings.Join(SLOPresets(), ", "))
}
