package workload

import "headroom_exporter/capacity"

// SLO is one tail bound: the percentile of a latency must not pass Bound.
type SLO = capacity.SLO

// SLOMetrics are the latencies that can be bounded.
var SLOMetrics = capacity.SLOMetrics

// ParseSLO reads METRIC:pPERCENTILE:BOUND, such as ttft:p99:800ms or e2e:p99.9:12s.
func ParseSLO(text string) (SLO, error) { return capacity.ParseSLO(text) }
