package capacity

import (
	"cmp"
	"fmt"
	"math"
)

// Bottleneck is what limits an engine.
type Bottleneck string

// The bottlenecks, in the order in which the first wins at the same weight.
const (
	BottleneckThrottled Bottleneck = "gpu_throttled"
	BottleneckCPU       Bottleneck = "cpu"
	BottleneckSlots     Bottleneck = "slots"
	BottleneckKV        Bottleneck = "kv"
	BottleneckPrefill   Bottleneck = "prefill"
	BottleneckDecode    Bottleneck = "decode"
	BottleneckQueue     Bottleneck = "queue"
	// BottleneckNone is of an engine that has little to do.
	BottleneckNone Bottleneck = "none"
	// BottleneckUnknown is of an engine of which too little is known, or whose
	// signs show nothing.
	BottleneckUnknown Bottleneck = "unknown"
)

// Bottlenecks returns all that can limit an engine, in order.
func Bottlenecks() []Bottleneck {
	return []Bottleneck{BottleneckThrottled, BottleneckCPU, BottleneckSlots, BottleneckKV, BottleneckPrefill, BottleneckDecode, BottleneckQueue}
}

// Signs is what an engine and its GPU show over the last minutes. Times are in
// seconds; NaN is unknown and speaks neither for nor against anything.
type Signs struct {
	// LoadRatio is live load against capacity, LoadBasis what it is a share of in
	// words; empty is the knee.
	LoadRatio float64
	LoadBasis string
	// TTFT and ITL at the percentile of their SLO, and its bounds.
	TTFT, TTFTBound, ITL, ITLBound float64
	// TTFTMean, and the mean times of a request in the queue, in prefill and in decode.
	TTFTMean, Queue, Prefill, Decode float64
	// Shares of a step's time by the step-time model.
	Shares StepShares
	// KVUsage is the largest share of the KV cache in use, 0 to 1; Preempted
	// the preemptions as a share of the finished requests.
	KVUsage, Preempted float64
	// Running and Waiting requests, and the most that can run.
	Running, Waiting, SequenceSlots float64
	// BandwidthSaturation is of the GPU's memory, against what can be reached;
	// BandwidthMeasured tells that a counter of the GPU says so, not a model.
	BandwidthSaturation float64
	BandwidthMeasured   bool
	// SMActive is the share of time in which the GPU's multiprocessors worked, 0 to 1.
	SMActive float64
	// Throttled is the share of time, 0 to 1, in which heat or the power brake
	// held clocks down. The plain power cap does not count: it is normal at load.
	Throttled float64
	// ClockRatio is the GPU's clock against the one that the curve was measured at.
	ClockRatio float64
	// StepRate is the engine's steps per second, StepSeconds what the step-time
	// model says that one takes at this load.
	StepRate, StepSeconds float64
}

// UnknownSigns has nothing known.
func UnknownSigns() Signs {
	u := math.NaN()
	return Signs{u, "", u, u, u, u, u, u, u, u, UnknownStepShares(), u, u, u, u, u, u, false, u, u, u, u, u}
}

// Attribution is what limits an engine, and why it is said to.
type Attribution struct {
	Bottleneck Bottleneck
	// Evidence for it, in sentences.
	Evidence []string
	// Weights of all that something speaks for.
	Weights map[Bottleneck]int
}

// Limits of the signs.
const (
	lowLoad        = 0.5  // of the load ratio below which nothing limits
	fullSlots      = 0.97 // of the sequence slots
	fullKV         = 0.90 // of the KV cache
	fullBandwidth  = 0.85 // of what can be reached
	idleSM         = 0.50 // of the time
	busySM         = 0.80
	steppingShare  = 0.70 // of the time that steps should take
	throttledShare = 0.10 // of the time
	slowedClock    = 0.90 // of the curve's
	leadingShare   = 0.30 // of a step's time
	frontEndShare  = 0.50 // of the mean TTFT
)

// The weights of signs. What makes everything slower outweighs a GPU that is
// not fed, that a limit that is reached, as it may be reached because of
// either, and that the phase that takes the time; what any overload shows comes
// last. All signs of a kind together do not outweigh one of the next kind.
const (
	symptom = 1
	phase   = 2
	reached = 6
	unfed   = 12
	cause   = 40
)

// attributionRule speaks for a bottleneck.
type attributionRule struct {
	of     Bottleneck
	weight int
	// why the sign speaks for it.
	why string
	// holds is false when a sign that it rests on is unknown, as comparisons with NaN are.
	holds func(*Signs) bool
	// says is the evidence in numbers.
	says func(*Signs) string
}

var attributionRules = []attributionRule{
	{
		BottleneckThrottled, cause, "clocks that are held down make every phase slower, and then queues, slots and the KV cache fill",
		func(s *Signs) bool { return s.Throttled >= throttledShare },
		func(s *Signs) string {
			return fmt.Sprintf("heat or the power brake held the GPU's clocks down %s of the time", percent(s.Throttled))
		},
	},
	{
		BottleneckThrottled, cause, "the curve was measured at another clock, so that its knees are not reached",
		func(s *Signs) bool { return s.ClockRatio <= slowedClock },
		func(s *Signs) string {
			return fmt.Sprintf("the GPU's clock is %s of that of the curve", percent(s.ClockRatio))
		},
	},
	{
		BottleneckCPU, unfed, "a GPU that idles while requests wait, with slots and KV cache free, is not fed: the time goes to scheduling, sampling or detokenising on the CPU",
		func(s *Signs) bool {
			return s.SMActive <= idleSM && s.Running >= 1 && s.Waiting >= 1 && s.Running < fullSlots*s.SequenceSlots && s.KVUsage < fullKV
		},
		func(s *Signs) string {
			return fmt.Sprintf("the GPU worked %s of the time only, with %.3g requests running and %.3g waiting", percent(s.SMActive), s.Running, s.Waiting)
		},
	},
	{
		BottleneckCPU, unfed, "the engine steps less often than steps take, and the GPU is not busy with slower ones: the time goes between steps",
		func(s *Signs) bool {
			return s.StepRate*s.StepSeconds <= steppingShare && s.Running >= 1 && s.SMActive < busySM
		},
		func(s *Signs) string {
			return fmt.Sprintf("%.3g steps/s of %.3g ms each fill %s of the time only, with %.3g requests running", s.StepRate, 1e3*s.StepSeconds, percent(s.StepRate*s.StepSeconds), s.Running)
		},
	},
	{
		BottleneckCPU, unfed, "time to first token that passes neither in the queue nor in prefill passes before the engine's core: reading and tokenising requests",
		func(s *Signs) bool {
			return s.TTFT > s.TTFTBound && s.TTFTMean-s.Queue-s.Prefill >= frontEndShare*s.TTFTMean
		},
		func(s *Signs) string {
			return fmt.Sprintf("of a mean TTFT of %.3g s, %.3g s pass in the queue and %.3g s in prefill", s.TTFTMean, s.Queue, s.Prefill)
		},
	},
	{
		BottleneckSlots, reached, "requests wait while as many run as may",
		func(s *Signs) bool {
			return s.Running >= fullSlots*s.SequenceSlots && s.SequenceSlots > 0 && s.Waiting >= 1
		},
		func(s *Signs) string {
			return fmt.Sprintf("%.3g of %.0f sequence slots run and %.3g requests wait", s.Running, s.SequenceSlots, s.Waiting)
		},
	},
	{
		BottleneckKV, reached, "requests wait, or are thrown out, while the KV cache is full",
		func(s *Signs) bool { return s.KVUsage >= fullKV && (s.Waiting >= 1 || s.Preempted > 0) },
		func(s *Signs) string {
			if s.Waiting >= 1 {
				return fmt.Sprintf("the KV cache is %s full and %.3g requests wait", percent(s.KVUsage), s.Waiting)
			}
			return fmt.Sprintf("the KV cache is %s full and requests are preempted", percent(s.KVUsage))
		},
	},
	{
		BottleneckKV, reached, "only a KV cache without room preempts; a few are normal at the knee",
		func(s *Signs) bool { return s.Preempted > PreemptionLimit },
		func(s *Signs) string {
			return fmt.Sprintf("preemptions are %s of the finished requests, of which %s are normal", percent(s.Preempted), percent(PreemptionLimit))
		},
	},
	{
		BottleneckPrefill, phase, "computing prompts takes more of a step than generating tokens",
		func(s *Signs) bool { return s.Shares.Prefill >= leadingShare && s.Shares.Prefill > s.Shares.decode() },
		func(s *Signs) string {
			return fmt.Sprintf("of a step's time %s go to prompts, %s to sequences and their context, %s to the base", percent(s.Shares.Prefill), percent(s.Shares.decode()), percent(s.Shares.Base))
		},
	},
	{
		BottleneckPrefill, phase, "prefill alone uses up most of the bound of TTFT, without any queue",
		func(s *Signs) bool { return s.Prefill >= 0.5*s.TTFTBound },
		func(s *Signs) string {
			return fmt.Sprintf("prefill takes %.3g s of a TTFT bound of %.3g s", s.Prefill, s.TTFTBound)
		},
	},
	{
		BottleneckPrefill, symptom, "TTFT gives before ITL, and not because of a queue",
		func(s *Signs) bool {
			return s.TTFT > s.TTFTBound && s.ITL <= s.ITLBound && (s.Queue <= s.Prefill || s.Waiting < 1)
		},
		func(s *Signs) string {
			return fmt.Sprintf("TTFT is %.3g s, over its bound of %.3g s, while ITL is %.3g ms, within %.3g ms", s.TTFT, s.TTFTBound, 1e3*s.ITL, 1e3*s.ITLBound)
		},
	},
	{
		BottleneckPrefill, symptom, "requests spend more time on their prompts than on their tokens",
		func(s *Signs) bool { return s.Prefill > s.Decode },
		func(s *Signs) string {
			return fmt.Sprintf("a request spends %.3g s in prefill and %.3g s in decode", s.Prefill, s.Decode)
		},
	},
	{
		BottleneckDecode, phase, "generating tokens takes more of a step than computing prompts",
		func(s *Signs) bool { return s.Shares.decode() >= leadingShare && s.Shares.decode() > s.Shares.Prefill },
		func(s *Signs) string {
			return fmt.Sprintf("of a step's time %s go to sequences and their context, %s to prompts, %s to the base", percent(s.Shares.decode()), percent(s.Shares.Prefill), percent(s.Shares.Base))
		},
	},
	{
		BottleneckDecode, phase, "a decode step reads all weights and the context: where the memory gives no more, neither do steps",
		func(s *Signs) bool { return s.BandwidthSaturation >= fullBandwidth && s.BandwidthMeasured },
		func(s *Signs) string {
			return fmt.Sprintf("memory bandwidth is %s saturated, as the GPU counts", percent(s.BandwidthSaturation))
		},
	},
	{
		// A low one speaks for nothing: it falls with the load, as steps come to compute more.
		BottleneckDecode, symptom, "a model of the bytes that a step reads says that the memory gives no more",
		func(s *Signs) bool { return s.BandwidthSaturation >= fullBandwidth && !s.BandwidthMeasured },
		func(s *Signs) string {
			return fmt.Sprintf("memory bandwidth is %s saturated, by a model of what steps read", percent(s.BandwidthSaturation))
		},
	},
	{
		BottleneckDecode, symptom, "ITL gives, which is the time of a step, and prompts are not what takes it",
		func(s *Signs) bool { return s.ITL > s.ITLBound && (s.Prefill <= s.Decode || s.TTFT <= s.TTFTBound) },
		func(s *Signs) string {
			return fmt.Sprintf("ITL is %.3g ms, over its bound of %.3g ms", 1e3*s.ITL, 1e3*s.ITLBound)
		},
	},
	{
		BottleneckQueue, symptom, "requests wait longer than their prompts take, which any overload shows",
		func(s *Signs) bool { return s.Waiting >= 1 && s.Queue > s.Prefill },
		func(s *Signs) string {
			return fmt.Sprintf("a request waits %.3g s and is %.3g s in prefill, with %.3g waiting", s.Queue, s.Prefill, s.Waiting)
		},
	},
}

// decode is the share of a step that grows with what decodes: all but the base
// and prefill, so that a cost that is not identified counts as its neighbour's.
func (s StepShares) decode() float64 { return 1 - s.Base - s.Prefill }

func percent(share float64) string { return fmt.Sprintf("%.3g %%", 100*share) }

// Attribute names what limits an engine. Each sign speaks for one bottleneck
// with the weight of its kind, the heaviest wins. At a load ratio below 0.5
// with latencies within their bounds, or when all that is known of the load is
// that nothing waits, nothing limits.
func Attribute(s Signs) Attribution {
	if a, settled := s.idle(); settled {
		return a
	}
	a := Attribution{Bottleneck: BottleneckUnknown, Weights: map[Bottleneck]int{}}
	evidence := map[Bottleneck][]string{}
	for _, r := range attributionRules {
		if r.holds(&s) {
			a.Weights[r.of] += r.weight
			evidence[r.of] = append(evidence[r.of], r.says(&s)+": "+r.why)
		}
	}
	for _, b := range Bottlenecks() {
		if a.Weights[b] > a.Weights[a.Bottleneck] {
			a.Bottleneck = b
		}
	}
	if a.Evidence = evidence[a.Bottleneck]; a.Bottleneck == BottleneckUnknown {
		a.Evidence = []string{"the engine is loaded, and nothing that is known of it says what limits it"}
	}
	return a
}

// idle settles what needs no rules: an engine with little to do, or unknown.
func (s *Signs) idle() (a Attribution, settled bool) {
	none := func(format string, args ...any) (Attribution, bool) {
		return Attribution{Bottleneck: BottleneckNone, Evidence: []string{fmt.Sprintf(format, args...)}}, true
	}
	ttft, itl := s.TTFT/s.TTFTBound, s.ITL/s.ITLBound
	switch {
	case ttft > 1 || itl > 1 || s.Preempted > PreemptionLimit:
		return a, false
	case s.LoadRatio < lowLoad:
		return none("the load is %s of %s", percent(s.LoadRatio), cmp.Or(s.LoadBasis, "the knee"))
	case s.LoadRatio >= lowLoad || s.Waiting >= 1:
		return a, false
	case !math.IsNaN(s.Waiting):
		return none("no request waits")
	case ttft <= 1 && itl <= 1:
		return none("TTFT is at %s of its bound and ITL at %s", percent(ttft), percent(itl))
	default:
		return Attribution{Bottleneck: BottleneckUnknown, Evidence: []string{"neither the load nor a latency against its bound is known"}}, true
	}
}
