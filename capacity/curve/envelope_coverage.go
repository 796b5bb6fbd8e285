package curve

import (
	"fmt"
	"slices"
	"strings"
)

// longShare is the share of the context length from which on a class counts
// as one of the longest requests that the engine serves.
const longShare = 0.5

// Cover lists what a curve should rest on, whether it does, and the command
// that fills what is missing. In a command FILE stands for the curve's own
// file; TRACE, its FORMAT and CLASSES are the user's.
func Cover(c *Curve) []Coverage {
	return []Coverage{
		c.coverClasses("baseline", "the latency of a nearly idle engine", func(s *Study) string {
			if s.Baseline == nil {
				return ""
			}
			return "TTFT p50 " + seconds(s.Baseline.TTFT.P50)
		}),
		c.coverClasses("peak", "the knee", func(s *Study) string {
			if s.Knee == nil || !s.Knee.Rate.Known() {
				return ""
			}
			return "knee " + short(float64(s.Knee.Rate)) + "/s"
		}),
		c.coverBurst(),
		c.coverLongTail(),
		c.coverReplay(),
		c.coverClasses("soak", "a long run at the safe rate", func(s *Study) string {
			if s.Soak == nil || !s.Soak.Passed {
				return ""
			}
			return short(s.Soak.Seconds) + " s"
		}),
		c.coverClasses("recovery", "a burst at the safe rate, and how long it takes to get over it", func(s *Study) string {
			switch {
			case s.Burst == nil:
				return ""
			case !s.Burst.Recovery.Known():
				return fmt.Sprintf("did not recover from %g times for %s s", s.Burst.Factor, short(s.Burst.Seconds))
			}
			return fmt.Sprintf("%s after %g times for %s s", seconds(s.Burst.Recovery), s.Burst.Factor, short(s.Burst.Seconds))
		}),
		c.coverAA(),
		c.coverColdStart(),
	}
}

// command is how to measure what is missing, by the flags that made the curve.
func (c *Curve) command(more string) string {
	words := []string{"headroom_exporter", "probe"}
	flags := strings.Fields(c.Workload.Flags)
	for i := 0; i < len(flags); i++ {
		name, _, joined := strings.Cut(flags[i], "=")
		switch {
		case i == 0 && name == "probe":
		case slices.Contains([]string{"--quick", "--force", "--resume", "--update", "--cold-start", "--mix-only"}, name):
			// A quick run measures neither a soak nor a burst, one of a mix alone no class; the others are of one run.
		case strings.HasPrefix(name, "--out."):
			if !joined {
				i++ // its value
			}
		default:
			words = append(words, flags[i])
		}
	}
	if c.Workload.Flags == "" {
		words = append(words, "--classes.file=CLASSES")
		for _, s := range c.SLO {
			words = append(words, "--slo="+s.String())
		}
	}
	if more != "" {
		words = append(words, more)
	}
	return strings.Join(append(words, "--update", "--out.curve=FILE"), " ")
}

// missing is an item that nothing fills yet.
func (c *Curve) missing(item, detail, more string) Coverage {
	return Coverage{Item: item, Detail: detail, Command: c.command(more)}
}

// coverClasses is an item that every class must have under its first arrival
// shape. found says in words what a study has of it; empty is nothing.
func (c *Curve) coverClasses(item, what string, found func(*Study) string) Coverage {
	var done, without []string
	for i := range c.Classes {
		class := &c.Classes[i]
		text := ""
		if len(class.Studies) > 0 {
			text = found(&class.Studies[0])
		}
		if text == "" {
			without = append(without, class.Name)
			continue
		}
		done = append(done, class.Name+" "+text)
	}
	switch {
	case len(without) == 0 && len(done) > 0:
		return Coverage{Item: item, Done: true, Detail: strings.Join(done, "; ")}
	case len(done) == 0:
		detail := what + " was not measured"
		if mixed := c.foundInMixes(found); mixed != "" {
			detail = what + " was measured of no class alone, only of mixes: " + mixed
		}
		return c.missing(item, detail, "")
	}
	return c.missing(item, what+" was not measured of "+strings.Join(without, ", "), "")
}

// foundInMixes is what the mixes have of an item of classes; empty is nothing.
func (c *Curve) foundInMixes(found func(*Study) string) string {
	var mixed []string
	for i := range c.Mixes {
		if text := found(&c.Mixes[i].Study); text != "" {
			mixed = append(mixed, c.Mixes[i].Name+" "+text)
		}
	}
	return strings.Join(mixed, "; ")
}

// coverBurst wants the knee of every class under arrivals that come in bursts.
func (c *Curve) coverBurst() Coverage {
	const item, more = "burst", "--burstiness=0.5"
	var done, without []string
	for i := range c.Classes {
		class := &c.Classes[i]
		k := slices.IndexFunc(class.Studies, func(s Study) bool {
			return s.Arrivals.Process == "gamma" && s.Arrivals.Burstiness < 1 && s.Knee != nil && s.Knee.Rate.Known()
		})
		if k < 0 {
			without = append(without, class.Name)
			continue
		}
		s := &class.Studies[k]
		done = append(done, fmt.Sprintf("%s knee %s/s with %s", class.Name, short(float64(s.Knee.Rate)), s.Arrivals))
	}
	switch {
	case len(without) == 0 && len(done) > 0:
		return Coverage{Item: item, Done: true, Detail: strings.Join(done, "; ")}
	case len(done) == 0:
		return c.missing(item, "no class was measured with bursty arrivals", more)
	}
	return c.missing(item, "not measured with bursty arrivals: "+strings.Join(without, ", "), more)
}

// coverLongTail wants a class whose requests fill much of the engine's context.
func (c *Curve) coverLongTail() Coverage {
	const item, more = "long_tail", "--class=longest"
	longest, name := 0.0, ""
	for i := range c.Classes {
		if l := &c.Classes[i]; len(l.Studies) > 0 && l.PromptMean+l.GenerationMean > longest {
			longest, name = l.PromptMean+l.GenerationMean, l.Name
		}
	}
	limit := float64(c.Identity.MaxModelLen)
	switch {
	case name == "":
		return c.missing(item, "no class was measured", more)
	case limit == 0:
		return c.missing(item, fmt.Sprintf("the longest class, %s, has %s tokens, and the engine's context length is not known", name, short(longest)), more)
	case longest < longShare*limit:
		return c.missing(item, fmt.Sprintf("the longest class, %s, has %s tokens of the %s that the engine takes", name, short(longest), short(limit)), more)
	}
	return Coverage{Item: item, Done: true, Detail: fmt.Sprintf("%s has %s tokens of the %s that the engine takes", name, short(longest), short(limit))}
}

// coverReplay wants recorded traffic of several classes, played again.
func (c *Curve) coverReplay() Coverage {
	const item, more = "mixed_replay", "--trace.file=TRACE --trace.format=FORMAT"
	mixed := false
	for i := range c.Mixes {
		m := &c.Mixes[i]
		if m.Arrivals.Process == "trace" {
			return Coverage{Item: item, Done: true, Detail: "mix " + m.Name + " replays " + m.Arrivals.Trace}
		}
		mixed = true
	}
	if mixed {
		return c.missing(item, "classes were mixed, but no recorded traffic was replayed", more)
	}
	if len(c.Classes) < 2 {
		return c.missing(item, "no recorded traffic was replayed", more)
	}
	return c.missing(item, "classes were measured alone only", "--mix "+more)
}

func (c *Curve) coverAA() Coverage {
	if c.AA == nil || !c.AA.Band.Known() {
		return c.missing("aa", "the same load was not measured twice: how much is noise is not known", "")
	}
	return Coverage{Item: "aa", Done: true, Detail: fmt.Sprintf("%s at %s/s differs by %s", c.AA.Class, short(float64(c.AA.Rate)), percent(float64(c.AA.Band)))}
}

func (c *Curve) coverColdStart() Coverage {
	const item = "cold_start"
	switch {
	case c.ColdStart == nil:
		return c.missing(item, "the first minutes after a restart were not measured: restart the engine right before", "--cold-start")
	case !c.ColdStart.Seconds.Known():
		return Coverage{Item: item, Done: true, Detail: fmt.Sprintf("%s did not become steady, worst TTFT %s", c.ColdStart.Class, seconds(c.ColdStart.WorstTTFT))}
	}
	return Coverage{Item: item, Done: true, Detail: fmt.Sprintf("%s steady after %s, worst TTFT %s", c.ColdStart.Class, seconds(c.ColdStart.Seconds), seconds(c.ColdStart.WorstTTFT))}
}
