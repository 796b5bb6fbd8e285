package sidecar

import (
	"fmt"
	"math"
	"slices"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
	"headroom_exporter/rules"
)

// MinRateSpan is the least span of readings that a rate is told of: over less, one
// prompt that ends between two readings would look like a spike.
const MinRateSpan = 3 * time.Second

// Windows over which readings are averaged.
const (
	// rateWindow is the span of rates and latencies.
	rateWindow = time.Minute
	// stockWindow is the span of the KV cache's mean, of preemptions and of
	// the admission rate. It is the longest, so it is what a window keeps.
	stockWindow = 5 * time.Minute
)

// Model is what the memory bandwidth model needs to know of the model and
// its GPUs. Zero fields are unknown.
type Model struct {
	// WeightBytes are the bytes of weights that one step reads, over all GPUs.
	WeightBytes float64
	// KVBytesPerToken are the KV cache bytes of one token, over all layers and GPUs.
	KVBytesPerToken float64
	// GPUs is the number of GPUs over which the model is spread.
	GPUs int
	// PeakBandwidth is one GPU's theoretical memory bandwidth in bytes per
	// second; 0 takes what its driver tells.
	PeakBandwidth float64
}

// rank follows one rank of the engine.
type rank struct {
	window  window
	mix     mixWindow
	binding capacity.Binding
	history []HistoryPoint

	// lastMix is the last valid mix, and when that was.
	lastMix    capacity.Mix
	lastMixAt  time.Time
	drift      drift
	outlook    outlook
	burstiness capacity.Burstiness
}

// read takes a reading into the rank's windows.
func (r *rank) read(at time.Time, er *engine.Rank, gpus gpuSigns) {
	reading := readingOf(at, er)
	reading.gpu = gpus
	r.window.add(reading)
	r.mix.add(slowReadingOf(at, er))
}

// forget is for a new process of the engine: what another one did says
// nothing of what this one does. The mix is its users', and stays.
func (r *rank) forget() {
	r.window.clear()
	r.mix.clear()
}

// replica derives what is published of a rank, and follows it over time.
func (s *Sidecar) replica(r *rank, er *engine.Rank, at time.Time, memory memoryBandwidth, held heldCurve) Replica {
	rep := s.derive(r, er, memory, held)
	if rep.State.Known() && len(r.window.readings) > 0 {
		rep.Bottleneck = s.attribute(r, &rep, held)
	}
	// Without a curve the ratio is a bound, and where it goes says little.
	ratio := math.NaN()
	if rep.Curve.Valid && !held.probing { // A probe's load goes where the probe wants it.
		ratio = rep.LoadRatio
	}
	if r.outlook.add(at, ratio) {
		r.burstiness = capacity.NewBurstiness(arrivalsPerSecond(r.window.readings))
	}
	if rep.Curve.Valid {
		rep.Forecast, rep.Burn = r.outlook.current(s.startup.took)
	}
	return rep
}

// derive turns a rank's reading and its window into what is published.
func (s *Sidecar) derive(r *rank, er *engine.Rank, memory memoryBandwidth, held heldCurve) Replica {
	rep := unknownReplica(er.ModelName, er.Engine, er.State)
	rep.Curve = held.status
	if held.probing {
		rep.Reasons = append(rep.Reasons, "a probe measures the capacity curve anew, and its requests count as traffic")
	}
	if !er.State.Known() || len(r.window.readings) == 0 {
		r.binding = capacity.Binding{}
		rep.Reasons = append(rep.Reasons, stateReason(er.State, er.Reason))
		rep.Curve = held.status.unread(er.State)
		return rep
	}
	now := &r.window.readings[len(r.window.readings)-1]
	stock, recent := r.window.readings, r.window.punctual(rateWindow)

	rep.RequestsRunning, rep.RequestsWaiting = now.running, now.waiting
	rep.SequenceSlots = occupancy(now.running, er.SequenceSlots)
	rep.TokenSlots = occupancy(er.Value(engine.KVCacheTokensUsed), er.TokenSlots)
	if math.IsNaN(rep.TokenSlots.Used) {
		rep.TokenSlots.Used = now.kvUsage * rep.TokenSlots.Total
	}
	// The engine's own share is the truth where capacity in tokens is an estimate.
	if !math.IsNaN(now.kvUsage) {
		rep.TokenSlots.Ratio = now.kvUsage
	}
	rep.BatchedTokens = er.BatchedTokens

	rep.RateSpan = span(recent)
	rep.Rates = Rates{
		OfferedRequests:      offeredRequests(recent),
		ServedRequests:       rate(recent, admittedRequests),
		PromptTokens:         rate(recent, func(r *reading) float64 { return r.promptTokens }),
		ComputedPromptTokens: rate(recent, func(r *reading) float64 { return r.computedTokens }),
		GenerationTokens:     rate(recent, func(r *reading) float64 { return r.generationTokens }),
		Preemptions:          rate(recent, func(r *reading) float64 { return r.preemptions }),
		Steps:                rate(recent, func(r *reading) float64 { return r.steps }),
	}
	rep.Latencies = Latencies{
		TimeToFirstToken:  meanOf(recent, func(r *reading) total { return r.firstToken }),
		InterTokenLatency: meanOf(recent, func(r *reading) total { return r.interToken }),
		QueueTime:         meanOf(recent, func(r *reading) total { return r.queueTime }),
		PrefillTime:       meanOf(recent, func(r *reading) total { return r.prefillTime }),
	}
	rep.TokensPerStep = tokensPerStep(stock)
	rep.Latencies.Step = stepLatency(recent, rep.TokensPerStep)
	rep.BacklogSeconds = backlogSeconds(stock, rateWindow)

	usage := mean(stock, func(r *reading) float64 { return r.kvUsage })
	idle := now.running == 0 && now.waiting == 0
	if math.IsNaN(now.kvUsage) || idle {
		// The mean smooths what work does; an empty replica is empty at once.
		usage = rep.TokenSlots.Ratio
	}
	computed := rep.Rates.ComputedPromptTokens
	if r.window.quiet() && !math.IsNaN(computed) {
		computed = 0 // What was computed a minute ago is no load of now.
	}
	preempted, _ := increase(stock, func(r *reading) float64 { return r.preemptions })
	finished, _ := increase(stock, func(r *reading) float64 { return r.finished })
	rep.LoadRatios = capacity.Operation{
		RequestsRunning:      now.running,
		SequenceSlots:        er.SequenceSlots.Value,
		TokenSlotUsage:       usage,
		Preemptions:          preempted,
		RequestsFinished:     finished,
		ComputedPromptTokens: computed,
		InterTokenLatency:    rep.Latencies.InterTokenLatency,
		BatchedTokens:        er.BatchedTokens.Value,
		Backlog:              rep.BacklogSeconds,
		QueueBudget:          capacity.QueueBudget(s.config.SLO.TimeToFirstToken.Seconds(), rep.Latencies.PrefillTime),
	}.LoadRatios()
	if s.config.TokenSlotsUnbound {
		rep.LoadRatios[capacity.TokenSlots] = math.NaN()
	}
	rep.LoadRatios[capacity.LoRA] = loraRatio(er, now.waiting)
	rep.Curve = s.curveStatus(held, r, &rep)
	rep.LoadRatios[capacity.Curve] = rep.Curve.Load.Ratio
	rep.Bandwidth = s.bandwidth(&rep, memory, stock, recent)
	if rep.Curve.Valid {
		rep.Reasons = append(rep.Reasons, curveWords(&rep.Curve)...)
	} else {
		rep.Reasons = append(rep.Reasons, noCurve(&rep.Curve))
	}
	rep.Reasons = append(rep.Reasons, s.missing(&rep, er)...)
	if preempted > 0 && rep.LoadRatios[capacity.TokenSlots] >= 1 {
		rep.Reasons = append(rep.Reasons, fmt.Sprintf("%.0f preemptions among %.0f finished requests in the last %.0f s: the KV cache counts as full", preempted, finished, stock[len(stock)-1].at.Sub(stock[0].at).Seconds()))
	}

	rep.Reasons = append(rep.Reasons, s.config.SLO.unmeasurable(er)...)

	rep.Binding = r.binding.Update(rep.LoadRatios)
	// Without both stocks a comfortable number would rest on what happens to be
	// known, unless a curve says what the engine can take. An engine that can
	// never tell its KV cache is judged by the rest.
	if !rep.Curve.Valid && (math.IsNaN(rep.LoadRatios[capacity.SequenceSlots]) || math.IsNaN(rep.LoadRatios[capacity.TokenSlots]) && s.judgesTokenSlots()) {
		return rep
	}
	rep.LoadRatio, _ = rep.LoadRatios.Max()
	rep.HeadroomRatio = 1 - rep.LoadRatio
	rep.Zone = rep.zone()
	rep.Left = rep.left(idle)
	if rep.LoadRatio > 1 {
		rep.Left = rep.Left.AtMost(0)
	}
	rep.Left.SequenceSlots = capacity.SequenceSlotsLeft(rep.SequenceSlots.Used, rep.SequenceSlots.Total)
	rep.Left.TokenSlots = capacity.TokenSlotsLeft(rep.TokenSlots.Used, rep.TokenSlots.Total)
	return rep
}

// left is what can be offered on top, per second: of each unit the least that
// any constraint leaves. The curve has rates of its own, which a step shows in
// at once, and knows what is left without any traffic too.
func (r *Replica) left(idle bool) capacity.Left {
	load := r.rateRatio()
	if idle {
		load = math.NaN() // There is no mix of which more could be taken.
	}
	// Tokens are counted as they are served; what is offered brings as many more.
	offered := r.Rates.OfferedRequests / r.Rates.ServedRequests
	l := capacity.UnknownLeft()
	l.RequestsPerSecond = capacity.ScaleRate(r.Rates.OfferedRequests, load)
	l.PromptTokensPerSecond = capacity.ScaleRate(offered*r.Rates.ComputedPromptTokens, load)
	l.GenerationTokensPerSecond = capacity.ScaleRate(offered*r.Rates.GenerationTokens, load)
	if !r.Curve.Valid {
		return l
	}
	least := func(byCurve, byOthers float64) float64 {
		if byOthers < byCurve {
			return byOthers
		}
		return byCurve
	}
	curve := r.Curve.Load.Left
	l.RequestsPerSecond = least(curve.RequestsPerSecond, l.RequestsPerSecond)
	l.PromptTokensPerSecond = least(curve.PromptTokensPerSecond, l.PromptTokensPerSecond)
	l.GenerationTokensPerSecond = least(curve.GenerationTokensPerSecond, l.GenerationTokensPerSecond)
	return l
}

// zone is the worst of what the constraints say: each has its watermark, the
// curve one of its own.
func (r *Replica) zone() capacity.Zone {
	if !r.Curve.Valid {
		return capacity.ZoneOf(r.LoadRatio)
	}
	others := r.LoadRatios
	others[capacity.Curve] = math.NaN()
	other, _ := others.Max()
	for _, z := range []capacity.Zone{capacity.ZoneUnstable, capacity.ZoneRisk} {
		if r.Curve.Load.Zone == z || capacity.ZoneOf(other) == z {
			return z
		}
	}
	return r.Curve.Load.Zone
}

// loraRatio is distinct adapters that run / those that may run at once. When
// all slots are taken and nothing waits, it is not known whether another
// adapter is wanted at all: then it is unknown, not full.
func loraRatio(er *engine.Rank, waiting float64) float64 {
	ratio := capacity.Occupancy(er.Value(engine.LoRAAdapters), er.Value(engine.LoRASlots))
	if ratio >= 1 && waiting == 0 {
		return math.NaN()
	}
	return ratio
}

// rateRatio returns the load ratio that holds for rates, but for a curve that
// counts. It is the largest one; only the queue says something else: a backlog
// is what overload piled up over time, and says how long that lasted. Where it is
// the largest, it leaves per second the rate at which the engine admits while
// requests wait, less what is offered; where it is not, it says nothing of rates.
func (r *Replica) rateRatio() float64 {
	ratios := r.LoadRatios
	_, largest := ratios.Max()
	ratios[capacity.Queue] = math.NaN()
	if largest == capacity.Queue && r.RequestsWaiting > 0 {
		admitted := r.RequestsWaiting / r.BacklogSeconds
		ratios[capacity.Queue] = r.Rates.OfferedRequests / admitted
	}
	if r.Curve.Valid {
		ratios[capacity.Curve] = math.NaN()
	}
	load, _ := ratios.Max()
	return load
}

// judgesTokenSlots tells whether the KV cache is a constraint that is to be known.
func (s *Sidecar) judgesTokenSlots() bool { return s.givesTokenSlots() && !s.config.TokenSlotsUnbound }

// givesTokenSlots tells whether the engine can tell its KV cache usage at all.
func (s *Sidecar) givesTokenSlots() bool {
	return s.engineType.Gives(engine.KVCacheUsage.String()) || s.engineType.Gives(engine.KVCacheTokensUsed.String())
}

// unmeasurable says which promises cannot be measured on a rank, because the
// threshold is no bound of the engine's histogram.
func (s SLO) unmeasurable(er *engine.Rank) []string {
	var reasons []string
	for _, promise := range []struct {
		flag      string
		threshold time.Duration
		histogram engine.HistogramSignal
	}{
		{"--slo.ttft", s.TimeToFirstToken, engine.TimeToFirstToken},
		{"--slo.itl", s.TokenLatency, engine.InterTokenLatency},
		{"--slo.e2e", s.E2ELatency, engine.E2ELatency},
	} {
		h := er.Histogram(promise.histogram)
		if promise.threshold == 0 || h == nil {
			continue
		}
		if _, err := rules.Threshold(promise.flag, promise.threshold, h.Bounds); err != nil {
			reasons = append(reasons, "no SLO ratio: "+err.Error())
		}
	}
	return reasons
}

// bandwidth returns the memory bandwidth saturation by each source that can
// say something, the more trustworthy first.
func (s *Sidecar) bandwidth(rep *Replica, memory memoryBandwidth, stock, recent []reading) []BandwidthSaturation {
	var known []BandwidthSaturation
	add := func(source string, bytesPerSecond, peak float64) {
		saturation := capacity.BandwidthSaturation(bytesPerSecond, peak, capacity.AchievableBandwidth)
		if !math.IsNaN(saturation) {
			known = append(known, BandwidthSaturation{Ratio: saturation, Source: source})
		}
	}
	add("gpm", memory.measured, 1)
	// The counters exist, and stand at zero, when the engine does not estimate.
	if newest := stock[len(stock)-1]; newest.bytesMoved > 0 {
		add("engine", rate(recent, func(r *reading) float64 { return r.bytesMoved }), memory.peak)
	}
	if m := s.config.Model; m.WeightBytes > 0 && m.KVBytesPerToken > 0 && m.GPUs > 0 {
		usage := mean(recent, func(r *reading) float64 { return r.kvUsage })
		add("model", rep.Rates.Steps*capacity.StepBytes(m.WeightBytes, usage*rep.TokenSlots.Total, m.KVBytesPerToken, m.GPUs), memory.peak)
	}
	return known
}

// memoryBandwidth is what the GPUs tell of one rank's device memory; NaN is
// not known.
type memoryBandwidth struct {
	// measured is the share of the peak in use on the busiest GPU.
	measured float64
	// peak is one GPU's theoretical bandwidth in bytes per second.
	peak float64
}

// memoryBandwidth reads it off the engine's GPUs; what is configured as the
// peak comes before what a driver tells. Nothing is measured when the engine
// has several ranks, because nobody tells which GPU is whose, and nothing at
// all is told while it is not known which GPUs are the engine's.
func (s *Sidecar) memoryBandwidth(gpus gpu.Snapshot, ranks int) memoryBandwidth {
	memory := memoryBandwidth{measured: math.NaN(), peak: math.NaN()}
	if !gpus.Status.SelectionAmbiguous {
		for i := range gpus.Readings {
			r := &gpus.Readings[i]
			if ratio := r.MemoryBandwidthRatio; ranks == 1 && !(ratio <= memory.measured) && !math.IsNaN(ratio) {
				memory.measured = ratio
			}
			// The slowest of several GPUs is waited for.
			if peak := r.MemoryBandwidthPeak; !(peak >= memory.peak) && !math.IsNaN(peak) {
				memory.peak = peak
			}
		}
	}
	if slices.ContainsFunc(gpus.Readings, func(r gpu.Reading) bool { return r.ParentUUID != "" }) {
		memory.peak = math.NaN() // A MIG instance has a part of its GPU's.
	}
	if configured := s.config.Model.PeakBandwidth; configured > 0 {
		memory.peak = configured
	}
	return memory
}

// missing says in words what of a replica is not known or only assumed, and
// what to do about it.
func (s *Sidecar) missing(rep *Replica, er *engine.Rank) []string {
	var reasons []string
	lr := rep.LoadRatios
	if math.IsNaN(rep.RequestsRunning) {
		reasons = append(reasons, "running requests unknown: the engine exports none")
	} else if math.IsNaN(lr[capacity.SequenceSlots]) {
		reasons = append(reasons, "sequence slots unknown: set --engine.max-num-seqs")
	} else if rep.RequestsRunning > er.SequenceSlots.Value {
		reasons = append(reasons, fmt.Sprintf("%.0f sequences run where the limit is said to be %.0f (source: %s): the limit is wrong", rep.RequestsRunning, er.SequenceSlots.Value, er.SequenceSlots.Source))
	} else if er.SequenceSlots.Source == "default" {
		reasons = append(reasons, fmt.Sprintf("sequence slots are the engine's documented default (%.0f), not read from it: set --engine.max-num-seqs", er.SequenceSlots.Value))
	}
	if s.config.TokenSlotsUnbound {
		// It was said that a full KV cache says nothing.
	} else if !s.givesTokenSlots() {
		reasons = append(reasons, "KV cache usage unknown: this kind of engine never tells it, so the headroom rests on sequence slots and queue alone")
	} else if math.IsNaN(lr[capacity.TokenSlots]) {
		reasons = append(reasons, "KV cache usage unknown: the engine exports none, or its size is not known: set --engine.kv-tokens")
	} else if math.IsNaN(rep.TokenSlots.Total) {
		reasons = append(reasons, "KV cache size in tokens unknown: set --engine.kv-tokens")
	} else if er.TokenSlots.Source == "blocks" {
		reasons = append(reasons, "KV cache size is blocks times block size, which is too large for hybrid and MLA models: set --engine.kv-tokens")
	}
	if math.IsNaN(lr[capacity.TokenBudget]) {
		switch {
		case !er.BatchedTokens.Known():
			reasons = append(reasons, "token budget unknown: set --engine.max-num-batched-tokens")
		case math.IsNaN(rep.Rates.ComputedPromptTokens):
			reasons = append(reasons, "token budget load unknown: no rate of computed prompt tokens yet")
		case math.IsNaN(rep.RequestsRunning):
			// Said above.
		default:
			reasons = append(reasons, "token budget load unknown: nothing was decoded in the last minute, so the step time is not known")
		}
	} else if er.BatchedTokens.Source == "default" {
		reasons = append(reasons, fmt.Sprintf("the token budget is the engine's documented default (%.0f), not read from it: set --engine.max-num-batched-tokens", er.BatchedTokens.Value))
	}
	if math.IsNaN(rep.RequestsWaiting) {
		reasons = append(reasons, "queue unknown: the engine exports no waiting requests")
	} else if math.IsNaN(lr[capacity.Queue]) {
		reasons = append(reasons, "queue unknown: requests wait, and since when is not known yet")
	}
	if len(rep.Bandwidth) == 0 {
		reasons = append(reasons, "memory bandwidth saturation unknown: no GPU measures it; for an estimate set --gpu.memory-bandwidth unless the GPU's driver tells it, and either run the engine with --enable-mfu-metrics or set --model.weight-bytes and --model.kv-bytes-per-token")
	}
	return reasons
}

func stateReason(state engine.State, reason string) string {
	text := map[engine.State]string{
		engine.StateStale:    "the engine answers, but its metrics cannot be trusted",
		engine.StateDisabled: "the metrics page holds no engine metrics: is the engine run with --disable-log-stats, or is this another server's page?",
		engine.StateAsleep:   "the engine is asleep",
		engine.StateLoading:  "the engine is loading",
		engine.StateDown:     "the engine does not answer",
	}[state]
	if text == "" {
		text = "no reading yet"
	}
	if reason != "" {
		text += " (" + reason + ")"
	}
	return text
}

func occupancy(used float64, total engine.Limit) Occupancy {
	o := Occupancy{Used: used, Total: math.NaN(), Ratio: math.NaN(), Source: total.Source}
	if total.Known() {
		o.Total = total.Value
		o.Ratio = capacity.Occupancy(used, total.Value)
	}
	return o
}

// unknownReplica is a replica of which nothing but its state is known.
func unknownReplica(modelName, engineRank string, state engine.State) Replica {
	n := math.NaN()
	unknown := Occupancy{Used: n, Total: n, Ratio: n}
	return Replica{
		ModelName: modelName, Engine: engineRank, State: state,
		LoadRatio: n, HeadroomRatio: n, LoadRatios: capacity.UnknownLoadRatios(),
		Binding: capacity.NoConstraint, Zone: capacity.ZoneUnknown, Left: capacity.UnknownLeft(),
		SequenceSlots: unknown, TokenSlots: unknown, BatchedTokens: engine.Limit{Value: n},
		RequestsRunning: n, RequestsWaiting: n,
		Rates:          Rates{n, n, n, n, n, n, n},
		Latencies:      Latencies{n, n, n, n, n},
		TokensPerStep:  n,
		BacklogSeconds: n,
		Curve:          unknownCurve(ReasonNoCurve),
		Bottleneck:     capacity.Attribution{Bottleneck: capacity.BottleneckUnknown},
		Forecast:       unknownForecast(),
		Burn:           unknownBurn(),
	}
}
