package capacity

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SLO is one tail bound: the percentile of a latency must not pass Bound.
type SLO struct {
	// Metric is one of SLOMetrics.
	Metric string
	// Percentile is above 0 and below 100.
	Percentile float64
	Bound      time.Duration
}

// SLOMetrics are the latencies that can be bounded.
var SLOMetrics = []string{"ttft", "ttft_sent", "ttfo", "tpot", "itl", "icl", "e2e"}

// ParseSLO reads METRIC:pPERCENTILE:BOUND, such as ttft:p99:800ms or e2e:p99.9:12s.
func ParseSLO(text string) (SLO, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return SLO{}, fmt.Errorf("slo %q: want METRIC:pPERCENTILE:BOUND such as ttft:p99:800ms", text)
	}
	percentile, err := strconv.ParseFloat(strings.TrimPrefix(parts[1], "p"), 64)
	if err != nil || !strings.HasPrefix(parts[1], "p") {
		return SLO{}, fmt.Errorf("slo %q: percentile is %q, want one such as p99", text, parts[1])
	}
	bound, err := time.ParseDuration(parts[2])
	if err != nil {
		return SLO{}, fmt.Errorf("slo %q: bound is %q, want a time such as 800ms", text, parts[2])
	}
	s := SLO{Metric: parts[0], Percentile: percentile, Bound: bound}
	return s, s.Validate()
}

// Validate returns an error that names what cannot be.
func (s SLO) Validate() error {
	switch {
	case !slices.Contains(SLOMetrics, s.Metric):
		return fmt.Errorf("slo %s: no metric %q, want one of %s", s, s.Metric, strings.Join(SLOMetrics, ", "))
	case !(s.Percentile > 0 && s.Percentile < 100) || math.IsNaN(s.Percentile):
		return fmt.Errorf("slo %s: want a percentile above 0 and below 100", s)
	case s.Bound <= 0:
		return fmt.Errorf("slo %s: want a bound above 0", s)
	}
	return nil
}

// String is the text that ParseSLO reads.
func (s SLO) String() string {
	return fmt.Sprintf("%s:p%s:%s", s.Metric, strconv.FormatFloat(s.Percentile, 'f', -1, 64), s.Bound)
}

// MarshalJSON writes the text form.
func (s SLO) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// UnmarshalJSON reads the text form.
func (s *SLO) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("an slo is a text such as \"ttft:p99:800ms\": %w", err)
	}
	var err error
	*s, err = ParseSLO(text)
	return err
}

// Budget is the share of requests, or of gaps, that may pass Bound.
func (s SLO) Budget() float64 { return 1 - s.Percentile/100 }
