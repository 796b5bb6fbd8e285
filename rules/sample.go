package rules

import (
	"slices"

	"github.com/prometheus/prometheus/model/labels"
)

// Sample is the value of one series at one moment. A NaN is a value that is
// not known: it is not stored, and ends the series until it is known again.
type Sample struct {
	Name string
	// LabelNames and LabelValues belong together by position. Names may be
	// shared between samples; neither is written to, nor kept after Append.
	LabelNames, LabelValues []string
	Value                   float64
}

// AppendHistogram appends the samples of one classic histogram to samples:
// name_bucket and name_bound per upper bound, name_sum and name_count.
//
// name_bound is a constant series whose value is the bucket's upper bound.
// PromQL cannot read a number out of a label; with this series a rule can say
// which bucket it means, and answer with a bound.
//
// bounds are upper bounds, ascending, the last +Inf; counts are cumulative.
func AppendHistogram(samples []Sample, name string, labelNames, labelValues []string, bounds, counts []float64, sum, count float64) []Sample {
	bucketNames := append(slices.Clone(labelNames), labels.BucketLabel)
	base := slices.Clip(slices.Clone(labelValues))
	bucket, bound := name+"_bucket", name+"_bound"
	for i, b := range bounds {
		values := append(base, labels.FormatOpenMetricsFloat(b))
		samples = append(samples,
			Sample{bucket, bucketNames, values, counts[i]},
			Sample{bound, bucketNames, values, b},
		)
	}
	return append(samples,
		Sample{name + "_sum", labelNames, base, sum},
		Sample{name + "_count", labelNames, base, count},
	)
}
