package web

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/sidecar"
)

// curveSLOs are the bounds that the knees of a curve stand for, those of all
// its classes, each once.
func curveSLOs(c *curve.Curve) []capacity.SLO {
	var all []capacity.SLO
	for i := range c.Classes {
		for _, s := range c.SLOs(&c.Classes[i]) {
			if !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	return all
}

// sloTexts are bounds as --slo takes them.
func sloTexts(slos []capacity.SLO) []string {
	texts := []string{}
	for _, s := range slos {
		texts = append(texts, s.String())
	}
	return texts
}

// sloWords says at which latencies a curve has its knees, such as
//
//	P99 TTFT ≤ 800 ms, P99 ITL ≤ 100 ms
//
// and where a class has bounds of its own, those of each class with its name.
func sloWords(c *curve.Curve) string {
	if !slices.ContainsFunc(c.Classes, func(k curve.Class) bool { return len(k.SLO) > 0 }) {
		return boundWords(c.SLO)
	}
	var words []string
	for i := range c.Classes {
		words = append(words, boundWords(c.SLOs(&c.Classes[i]))+" ("+c.Classes[i].Name+")")
	}
	return strings.Join(words, "; ")
}

func boundWords(slos []capacity.SLO) string {
	words := make([]string, len(slos))
	for i, s := range slos {
		words[i] = fmt.Sprintf("P%s %s ≤ %s", strconv.FormatFloat(s.Percentile, 'f', -1, 64), strings.ToUpper(strings.ReplaceAll(s.Metric, "_", " ")), duration(s.Bound.Seconds()))
	}
	return strings.Join(words, ", ")
}

// otherPromises says where the service promises another latency than the curve
// has its knees at, and what that makes of them. What only one of the two
// bounds is not compared.
func otherPromises(c *curve.Curve, slo sidecar.SLO) []string {
	var words []string
	for _, promise := range []struct {
		metric, latency, flag string
		bound                 time.Duration
	}{
		{"ttft", "a TTFT", "--slo.ttft", slo.TimeToFirstToken}, {"itl", "an ITL", "--slo.itl", slo.TokenLatency},
		{"tpot", "a TPOT", "--slo.itl", slo.TokenLatency}, {"e2e", "an E2E", "--slo.e2e", slo.E2ELatency},
	} {
		var bounds []time.Duration
		for _, s := range curveSLOs(c) {
			if s.Metric == promise.metric {
				bounds = append(bounds, s.Bound)
			}
		}
		if promise.bound <= 0 || len(bounds) == 0 {
			continue
		}
		low, high := slices.Min(bounds), slices.Max(bounds)
		effect := ""
		switch {
		case promise.bound < high:
			effect = "its knee is too high for that"
		case promise.bound > low:
			effect = "its knee is on the safe side of that"
		default:
			continue
		}
		of := duration(low.Seconds())
		if low != high {
			of += " to " + duration(high.Seconds())
		}
		words = append(words, fmt.Sprintf("the service promises %s of %s (%s), the curve is of %s: %s",
			promise.latency, duration(promise.bound.Seconds()), promise.flag, of, effect))
	}
	return words
}
