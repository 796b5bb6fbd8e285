package report

import (
	"fmt"
	"math"
	"strings"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// advice is something to do next, and what speaks for it.
type advice struct {
	// About is the class or mix; empty is the whole curve.
	About string
	What  string
	Why   string
}

// advise is what to do next, from what limits each class under its first
// arrival shape and from what the curve does not rest on yet. The reasons are
// conditional: a bottleneck is read from averages, so each change is to be measured.
func advise(c *curve.Curve) []advice {
	var out []advice
	for _, s := range subjects(c) {
		if !s.First {
			continue
		}
		if s.Study == nil {
			out = append(out, advice{s.Name, "Measure it.", "The curve has no study of this class."})
			continue
		}
		out = append(out, byStatus(s)...)
		if s.Knee != nil {
			out = append(out, byBottleneck(s, &c.Identity)...)
			out = append(out, byKnee(s)...)
		}
	}
	if c.AA != nil && c.AA.Band > 0.1 {
		out = append(out, advice{"", "Find what disturbs the measurement: other load on the host, clocks that change, a shared network.",
			"The same load differed by " + percent(c.AA.Band) + " between two runs; smaller changes than that cannot be seen with this curve."})
	}
	return out
}

func byStatus(s subject) []advice {
	switch s.Status {
	case curve.StatusEstimate:
		return []advice{{s.Name, "Run the full search (without --quick) before anything pages or scales by these numbers.", "Nothing was soaked: an estimate's knee may be too high."}}
	case curve.StatusNotReached:
		return []advice{{s.Name, "Raise the bound of the load (--max-rate, --max-duration) if the engine may be driven to its knee.", "The load was bounded below the knee, so what is left above is not known."}}
	case curve.StatusInterrupted:
		return []advice{{s.Name, "Run the same command again with --resume.", "What was measured until the interruption is kept."}}
	case curve.StatusProvisional:
		return []advice{{s.Name, "Run the search again ten minutes later or more.", "A change counts when it is seen twice."}}
	case curve.StatusNoSafeRate:
		return []advice{{s.Name, "Check whether the bound can be kept at all: look at the nearly idle point, then loosen the bound or speed the engine up.", "No rate passed."}}
	}
	return nil
}

// limitText is a limit of the engine with its value when it is known.
func limitText(name string, value float64) string {
	if value > 0 {
		return name + " (now " + number(curve.Value(value)) + ")"
	}
	return name
}

// byBottleneck is what may move the knee.
func byBottleneck(s subject, id *curve.Identity) []advice {
	k := s.Knee
	evidence := strings.Join(k.Evidence, "; ")
	if evidence == "" {
		evidence = "at the knee the search names " + k.Bottleneck + " as what limits"
	}
	add := func(what, why string) advice { return advice{s.Name, what, why} }
	seqs, tokens := limitText("max_num_seqs", float64(id.MaxNumSeqs)), limitText("max_num_batched_tokens", float64(id.MaxNumBatchedTokens))
	switch k.Bottleneck {
	case "slots":
		if k.KVPeak > 0.9 {
			return []advice{add("Free KV cache first, then raise "+seqs+".", evidence+". The KV cache was used to "+percent(k.KVPeak)+" as well: with more sequences alone requests would be preempted.")}
		}
		why := evidence + "."
		if id.MaxNumSeqs > 0 && k.KVPeak > 0 {
			room := math.Floor(0.9 * float64(id.MaxNumSeqs) / float64(k.KVPeak))
			why += fmt.Sprintf(" The KV cache was used to %s at most, which is room for about %s such sequences.", percent(k.KVPeak), number(curve.Value(room)))
		}
		return []advice{add("Raise "+seqs+", if the KV cache allows.", why+" More sequences make each step longer: watch TPOT.")}
	case "kv":
		out := []advice{add("Give the KV cache more room: a higher "+limitText("gpu_memory_utilization", id.GPUMemoryUtilization)+", an 8-bit KV cache if quality allows, or more GPUs a replica.", evidence+".")}
		if id.PrefixCaching != nil && !*id.PrefixCaching {
			out = append(out, add("Turn prefix caching on, if the real prompts share beginnings.", "Shared beginnings are held once. This load's prompts may share less or more than yours."))
		}
		return append(out, add("Or hold fewer tokens: shorter prompts or outputs, long requests on replicas of their own.", "A running request holds its prompt and all of its output so far."))
	case "queue":
		return []advice{add("If sequence slots and KV cache were free while requests waited, raise "+tokens+" in steps; if not, the slots are the limit.", evidence+". A larger step budget takes waiting prompts in sooner and makes a step longer: watch ITL.")}
	case "prefill":
		out := []advice{}
		if id.PrefixCaching != nil && !*id.PrefixCaching {
			out = append(out, add("Turn prefix caching on, if the real prompts share beginnings.", evidence+". What is cached is not computed again."))
		}
		return append(out, add("Tune the prefill chunk with "+tokens+", or spread prefill over more GPUs (tensor parallel, prefill on replicas of its own).", evidence+". Larger chunks end prefill sooner but hold up the tokens of others."))
	case "decode":
		return []advice{add("Make a decode step shorter: quantised weights, tensor parallel over more GPUs, or speculative decoding where the batch is small.", evidence+"."),
			add("If the bound of TPOT or ITL gives first, a lower "+seqs+" keeps it at the cost of more waiting.", "A step takes longer the more sequences are in it.")}
	case "client":
		return []advice{add("Run the probe on another machine, or with more CPUs.", evidence+". The engine can do at least this; its knee is not known.")}
	}
	return nil
}

// byKnee is what the form of the knee asks for.
func byKnee(s subject) []advice {
	k := s.Knee
	var out []advice
	if k.Boundary == "cliff" {
		why := "The engine does not slow down gradually."
		if known(k.CliffFrom) && known(k.CliffTo) {
			why = "At " + rate(k.CliffFrom) + " requests/s it passed, at " + rate(k.CliffTo) + " it failed altogether."
		}
		out = append(out, advice{s.Name, "Keep away from the knee and shed load before it: it is a cliff.", why})
	}
	if p := k.Pending; p != nil && known(p.Rate) {
		out = append(out, advice{s.Name, "Measure again: a knee of " + rate(p.Rate) + " requests/s was seen once.", "A rise counts when it is seen twice" + seenOn(p) + "."})
	}
	if slo, err := capacity.ParseSLO(k.BindingSLO); err == nil && (slo.Metric == "itl" || slo.Metric == "icl") && k.Bottleneck == "prefill" {
		out = append(out, advice{s.Name, "Consider gating TPOT instead of " + sloName(slo) + ".", "With chunked prefill the tail of the gaps is the length of a step with a full chunk, at nearly any load: the bound then measures how often prompts come rather than saturation."})
	}
	if known(k.Watermark) && k.Watermark > 0 {
		out = append(out, advice{s.Name, "For a load of R requests/s plan R / " + rate(k.Watermark) + " replicas, rounded up, and one more if one may fail.", "The watermark keeps the peak reserve below the knee of one replica."})
	}
	return out
}

func seenOn(p *curve.Pending) string {
	if p.Seen.IsZero() {
		return ""
	}
	return "; the first was on " + p.Seen.Format("2006-01-02 15:04")
}
