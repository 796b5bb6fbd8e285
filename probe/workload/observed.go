package workload

import (
	"errors"
	"fmt"
	"math"
)

// Observed is what a trace said about a class. Numbers that are not known are absent.
type Observed struct {
	Requests int `json:"requests"`
	// Rate per second over the span of the trace.
	Rate       float64 `json:"rate_per_second"`
	PromptMean float64 `json:"prompt_mean"`
	OutputMean float64 `json:"output_mean"`
	// PromptHistogram and OutputHistogram have the engine's bucket bounds.
	PromptHistogram Histogram `json:"prompt_histogram"`
	OutputHistogram Histogram `json:"output_histogram"`
	// GapCV is the coefficient of variation of the inter-arrival gaps.
	GapCV *float64 `json:"gap_cv,omitempty"`
	// IDC is the index of dispersion of the counts in 1 s and in 10 s, free of slow drift.
	IDC1s  *float64 `json:"idc_1s,omitempty"`
	IDC10s *float64 `json:"idc_10s,omitempty"`
	// Burstiness is the gamma shape that the dispersion stands for (1 is Poisson, less is burstier).
	Burstiness *float64 `json:"burstiness,omitempty"`
	// PeakToMean of the rate in windows of 1 s and 60 s.
	PeakToMean1s  *float64 `json:"peak_to_mean_1s,omitempty"`
	PeakToMean60s *float64 `json:"peak_to_mean_60s,omitempty"`
	// PrefixHitRatio is the share of prompt tokens that an endless prefix cache would have held.
	PrefixHitRatio *float64 `json:"prefix_hit_ratio,omitempty"`
	// RateShape is the rate over time, relative to its mean.
	RateShape *RateShape `json:"rate_shape,omitempty"`
}

// RateShape is a rate in steps of a length, relative to its mean: over the
// trace, or over the hours of a day when the trace is longer than one.
type RateShape struct {
	StepSeconds float64 `json:"step_seconds"`
	// HourOfDay says that the steps are the hours 0 to 23 of the trace's clock.
	HourOfDay bool      `json:"hour_of_day,omitempty"`
	Relative  []float64 `json:"relative"`
}

func (o *Observed) validate() error {
	switch {
	case o.Requests < 1:
		return fmt.Errorf("requests is %d, want 1 or more", o.Requests)
	case !(o.Rate >= 0) || math.IsInf(o.Rate, 0):
		return fmt.Errorf("rate is %g, want 0 or more", o.Rate)
	case !(o.PromptMean >= 1) || !(o.OutputMean >= 1):
		return fmt.Errorf("means are %g and %g tokens, want 1 or more", o.PromptMean, o.OutputMean)
	}
	if err := o.PromptHistogram.Validate(); err != nil {
		return fmt.Errorf("prompt histogram: %w", err)
	}
	if err := o.OutputHistogram.Validate(); err != nil {
		return fmt.Errorf("output histogram: %w", err)
	}
	for name, v := range map[string]*float64{
		"gap_cv": o.GapCV, "idc_1s": o.IDC1s, "idc_10s": o.IDC10s, "burstiness": o.Burstiness,
		"peak_to_mean_1s": o.PeakToMean1s, "peak_to_mean_60s": o.PeakToMean60s, "prefix_hit_ratio": o.PrefixHitRatio,
	} {
		if v != nil && (!(*v >= 0) || math.IsInf(*v, 0)) {
			return fmt.Errorf("%s is %g, want 0 or more", name, *v)
		}
	}
	if s := o.RateShape; s != nil {
		if !(s.StepSeconds > 0) || len(s.Relative) == 0 {
			return errors.New("rate shape: want steps of a length above 0")
		}
		for _, v := range s.Relative {
			if !(v >= 0) || math.IsInf(v, 0) {
				return fmt.Errorf("rate shape: %g is no relative rate", v)
			}
		}
	}
	return nil
}
