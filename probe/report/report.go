// Package report shows a capacity curve to a person: a verdict in a line, a
// summary in Markdown for a pull request, a picture for the terminal, and one
// HTML page that needs nothing else. It computes nothing that the curve does not hold.
package report

import (
	"strings"

	"headroom_exporter/capacity/curve"
)

// Verdict is Verdicts in one text, a line each.
func Verdict(c *curve.Curve) string { return strings.Join(Verdicts(c), "\n") }

// Verdicts are what a curve says of each class, and of each mix, under the
// first of its arrival shapes, in a line. A line begins with what its numbers
// are where they are not measured, or an estimate.
func Verdicts(c *curve.Curve) []string {
	var lines []string
	for _, s := range subjects(c) {
		if s.First {
			lines = append(lines, verdict(c, s))
		}
	}
	return lines
}

// Uncounted says of a curve by which no load can ever be counted that it is
// one; empty where a class has a knee or a safe rate.
func Uncounted(c *curve.Curve) string {
	if len(c.Classes) == 0 || len(c.Uncounted()) < len(c.Classes) {
		return ""
	}
	return "No class has a knee: serve counts no load by this curve, and its headroom stays an upper bound."
}

// origin is what kind of numbers these are; empty for a full measurement.
func origin(c *curve.Curve) string {
	var words []string
	switch c.Source {
	case curve.Simulated:
		words = append(words, "simulated")
	case curve.Imported:
		words = append(words, strings.TrimSpace("imported from "+c.ImportedFrom))
		if c.ImportedFrom == "" {
			words[0] = "imported"
		}
	}
	if c.Estimate {
		words = append(words, "estimate")
	}
	return strings.Join(words, ", ")
}

// verdict is one study in a line.
func verdict(c *curve.Curve, s subject) string {
	head := s.Name
	if o := origin(c); o != "" {
		head += " (" + o + ")"
	}
	return oneLine(head + ": " + finding(c, s))
}

// finding is a verdict without its name and origin.
func finding(c *curve.Curve, s subject) string {
	if s.Study == nil {
		return "nothing was measured"
	}
	under := " (" + arrivalsName(s.Arrivals) + ")"
	if s.Mix != nil {
		under = " (" + sharesText(s.Mix.Shares) + "; " + arrivalsName(s.Arrivals) + ")"
	}
	var parts []string
	switch {
	case known(s.SafeRate) && (s.Status == curve.StatusEstimate || c.Estimate):
		parts = append(parts, "safe at about "+rate(s.SafeRate)+" requests/s"+under+", not soaked")
	case known(s.SafeRate) && s.Status == curve.StatusNotReached:
		parts = append(parts, "safe at "+rate(s.SafeRate)+" requests/s at least"+under+", the knee was not reached")
	case known(s.SafeRate):
		parts = append(parts, "safe at "+rate(s.SafeRate)+" requests/s"+under)
	case s.Status == curve.StatusNotReached:
		parts = append(parts, "the knee was not reached"+under)
	case s.Status == curve.StatusInterrupted:
		parts = append(parts, "interrupted before there was a safe rate"+under)
	default:
		parts = append(parts, "no safe rate"+under)
	}
	if known(s.SafeRate) && (s.Status == curve.StatusProvisional || s.Status == curve.StatusInterrupted) {
		parts[0] += ", " + string(s.Status)
	}
	if s.Status != curve.StatusOK && s.Reason != "" {
		parts[0] += ": " + strings.TrimSuffix(s.Reason, ".")
	}
	if k := s.Knee; k != nil {
		if known(k.Rate) {
			text := "the knee is " + rate(k.Rate)
			if known(k.Low) && known(k.High) {
				text += " (" + rate(k.Low) + " to " + rate(k.High)
				if k.Confidence > 0 {
					text += ", " + percent(curve.Value(k.Confidence))
				}
				text += ")"
			}
			parts = append(parts, text)
		}
		if k.BindingSLO != "" {
			switch k.BindingSLO {
			case "queue_growth", "success":
				parts = append(parts, bindingText(k)+" before any latency gives")
			default:
				parts = append(parts, bindingText(k)+" gives first")
			}
		}
		if known(k.Watermark) && s.Status != curve.StatusNoSafeRate {
			parts = append(parts, "run at most "+rate(k.Watermark)+" to keep "+percent(curve.Value(c.PeakReserve))+" for peaks")
		}
	}
	return strings.Join(parts, "; ")
}
