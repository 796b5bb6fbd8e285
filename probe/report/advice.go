package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// advice is something to do next, and what speaks for it.
type advice struct {
	// About are the classes and mixes it is for.
	About string
	What  string
	// Why is by class, Then for all of them.
	Why  []string
	Then string
}

// advisor collects advice; the same for several classes is said once.
type advisor struct{ list []advice }

func (a *advisor) add(about, what, why, then string) {
	for i := range a.list {
		if x := &a.list[i]; x.What == what {
			x.About += ", " + about
			if !slices.Contains(x.Why, why) {
				x.Why = append(x.Why, why)
			}
			return
		}
	}
	a.list = append(a.list, advice{about, what, []string{why}, then})
}

// advise is what to do next, from what limits each class under its first
// arrival shape and from what the curve does not rest on yet. The reasons are
// conditional: a bottleneck is read from averages, so each change is to be measured.
func advise(c *curve.Curve) []advice {
	var a advisor
	replicas := false
	for _, s := range subjects(c) {
		if !s.First {
			continue
		}
		if s.Study == nil {
			a.add(s.Name, "Measure it.", "", "The curve has no study of this class.")
			continue
		}
		a.byStatus(s)
		if s.Knee != nil {
			a.byBottleneck(s, &c.Identity)
			a.byKnee(s)
			replicas = replicas || s.Knee.Watermark > 0
		}
	}
	if c.AA != nil && c.AA.Band > 0.1 {
		a.add("all", "Find what disturbs the measurement: other load on the host, clocks that change, a shared network.", "",
			"The same load differed by "+percent(c.AA.Band)+" between two runs; smaller changes than that cannot be seen with this curve.")
	}
	if replicas {
		a.add("all", "Size the pool by the watermark: a peak of R requests/s of a class needs R / watermark replicas, rounded up, and one more if one may fail.", "",
			"With several classes add up R / watermark over the classes before rounding.")
	}
	return a.list
}

func (a *advisor) byStatus(s subject) {
	switch s.Status {
	case curve.StatusEstimate:
		a.add(s.Name, "Run the full search (without --quick) before anything pages or scales by these numbers.", "", "Nothing was soaked: an estimate's knee may be too high.")
	case curve.StatusNotReached:
		a.add(s.Name, "Raise the bound of the load (--max-rate, --max-duration) if the engine may be driven to its knee.", "", "The load was bounded below the knee, so what is left above is not known.")
	case curve.StatusInterrupted:
		a.add(s.Name, "Run the same command again with --resume.", "", "What was measured until the interruption is kept.")
	case curve.StatusProvisional:
		a.add(s.Name, "Run the search again ten minutes later or more.", "", "A change counts when it is seen twice.")
	case curve.StatusNoSafeRate:
		a.add(s.Name, "Look whether the nearly idle point keeps the bounds. If not, loosen them or speed the engine up; if it does, search again.", "", "No rate was found safe, whatever the knee says.")
	}
}

// limitText is a limit of the engine with its value when it is known.
func limitText(name string, value float64) string {
	if value > 0 {
		return name + " (now " + number(curve.Value(value)) + ")"
	}
	return name
}

// byBottleneck is what may move the knee.
func (a *advisor) byBottleneck(s subject, id *curve.Identity) {
	k := s.Knee
	evidence := strings.Join(k.Evidence, "; ")
	if evidence == "" {
		evidence = "the search names it as what limits at the knee"
	}
	evidence = s.Name + ": " + evidence + "."
	add := func(what, why, then string) { a.add(s.Name, what, why, then) }
	seqs, tokens := limitText("max_num_seqs", float64(id.MaxNumSeqs)), limitText("max_num_batched_tokens", float64(id.MaxNumBatchedTokens))
	switch k.Bottleneck {
	case "slots":
		if k.KVPeak > 0.9 {
			add("Free KV cache first, then raise "+seqs+".", evidence+" The KV cache was used to "+percent(k.KVPeak)+" as well: with more sequences alone requests would be preempted.", "")
			return
		}
		if id.MaxNumSeqs > 0 && k.KVPeak > 0 {
			evidence += fmt.Sprintf(" The KV cache was used to %s at most", percent(k.KVPeak))
			if room := 0.9 * float64(id.MaxNumSeqs) / float64(k.KVPeak); room < 4*float64(id.MaxNumSeqs) {
				evidence += fmt.Sprintf(", which is room for about %.0f such sequences.", math.Floor(room))
			} else {
				evidence += ", which is room for many times as many sequences."
			}
		}
		add("Raise "+seqs+", if the KV cache allows.", evidence, "More sequences make each step longer: watch TPOT.")
	case "kv":
		add("Give the KV cache more room: a higher "+limitText("gpu_memory_utilization", id.GPUMemoryUtilization)+", an 8-bit KV cache if quality allows, or more GPUs a replica.", evidence, "")
		a.prefixCaching(s, id, "Shared beginnings are held once. This load's prompts may share less or more than yours.")
		add("Or hold fewer tokens: shorter prompts or outputs, long requests on replicas of their own.", "", "A running request holds its prompt and all of its output so far.")
	case "queue":
		a.byQueue(s, id, evidence)
	case "prefill":
		a.prefixCaching(s, id, "What is cached is not computed again.")
		add("Tune the prefill chunk with "+tokens+", or spread prefill over more GPUs (tensor parallel, prefill on replicas of its own).", evidence, "Larger chunks end prefill sooner but hold up the tokens of others.")
	case "decode":
		add("Make a decode step shorter: quantised weights, tensor parallel over more GPUs, or speculative decoding where the batch is small.", evidence, "")
		if slo, err := capacity.ParseSLO(k.BindingSLO); err == nil && slices.Contains([]string{"tpot", "itl", "icl"}, slo.Metric) {
			add("Or lower "+seqs+", at the cost of more waiting.", "", sloName(slo)+" gives first, and a step takes longer the more sequences are in it.")
		}
	case "client":
		add("Run the probe on another machine, or with more CPUs.", evidence, "The engine can do at least this; its knee is not known.")
	}
}

// byQueue tells by what was free at the knee which limit requests wait for.
func (a *advisor) byQueue(s subject, id *curve.Identity, evidence string) {
	k := s.Knee
	slots := float64(k.Concurrency) / float64(id.MaxNumSeqs)
	seqs, tokens := limitText("max_num_seqs", float64(id.MaxNumSeqs)), limitText("max_num_batched_tokens", float64(id.MaxNumBatchedTokens))
	used := fmt.Sprintf(" At the knee %s requests were in the engine, of %d sequence slots, and the KV cache was used to %s.", number(k.Concurrency), id.MaxNumSeqs, percent(k.KVPeak))
	switch {
	case k.KVPeak > 0.9:
		a.add(s.Name, "Give the KV cache more room, or hold fewer tokens: requests seem to wait for it.", evidence+" The KV cache was used to "+percent(k.KVPeak)+" at the knee.", "")
	case id.MaxNumSeqs > 0 && slots > 0.9:
		a.add(s.Name, "Raise "+seqs+": requests seem to wait for a sequence slot.", evidence+used, "More sequences make each step longer: watch TPOT.")
	case id.MaxNumSeqs > 0 && known(k.Concurrency) && known(k.KVPeak):
		a.add(s.Name, "Try a larger "+tokens+" in steps: requests wait although slots and KV cache are free, which points to the token budget of a step.", evidence+used, "A larger budget takes waiting prompts in sooner and makes a step longer: watch ITL.")
	default:
		a.add(s.Name, "Look whether sequence slots or KV cache were full while requests waited; if neither was, try a larger "+tokens+".", evidence, "A larger budget takes waiting prompts in sooner and makes a step longer: watch ITL.")
	}
}

func (a *advisor) prefixCaching(s subject, id *curve.Identity, why string) {
	if id.PrefixCaching != nil && !*id.PrefixCaching {
		a.add(s.Name, "Turn prefix caching on, if the real prompts share beginnings.", "", why)
	}
}

// byKnee is what the form of the knee asks for.
func (a *advisor) byKnee(s subject) {
	k := s.Knee
	if k.Boundary == "cliff" {
		why := "The engine does not slow down gradually."
		if known(k.CliffFrom) && known(k.CliffTo) {
			why = s.Name + ": at " + rate(k.CliffFrom) + " requests/s it passed, at " + rate(k.CliffTo) + " it failed altogether."
		}
		a.add(s.Name, "Keep away from the knee and shed load before it: it is a cliff.", why, "")
	}
	if p := k.Pending; p != nil && known(p.Rate) {
		a.add(s.Name, "Measure again: a knee of "+rate(p.Rate)+" requests/s was seen once.", "A rise counts when it is seen twice"+seenOn(p)+".", "")
	}
	if slo, err := capacity.ParseSLO(k.BindingSLO); err == nil && (slo.Metric == "itl" || slo.Metric == "icl") && k.Bottleneck == "prefill" {
		a.add(s.Name, "Consider gating TPOT instead of "+sloName(slo)+".", "", "With chunked prefill the tail of the gaps is the length of a step with a full chunk, at nearly any load: the bound then measures how often prompts come rather than saturation.")
	}
}

func seenOn(p *curve.Pending) string {
	if p.Seen.IsZero() {
		return ""
	}
	return "; the first was on " + p.Seen.Format("2006-01-02 15:04")
}
