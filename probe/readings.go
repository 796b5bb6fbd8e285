package probe

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
)

// DefaultReadingInterval is how often the engine is read beside a point.
const DefaultReadingInterval = 250 * time.Millisecond

// gpuInterval is how often GPUs are read beside a point.
const gpuInterval = time.Second

// maxEngineSamples bounds the series of a point; beyond, every second sample goes.
const maxEngineSamples = 2000

// Readings watches the engine and the GPUs beside points.
type Readings struct {
	// Poller reads the engine; its interval is Interval.
	Poller   *engine.Poller
	Interval time.Duration
	// GPU, when set, reads the GPUs.
	GPU gpu.Source
	Log *slog.Logger
}

// EngineSample is one reading, with all ranks together.
type EngineSample struct {
	// At is seconds since the run's start.
	At      float64 `json:"at_s"`
	Running Value   `json:"running"`
	Waiting Value   `json:"waiting"`
	KVUsage Value   `json:"kv_usage"`
}

// Range is the least, the mean and the most of a gauge.
type Range struct {
	Min  Value `json:"min"`
	Mean Value `json:"mean"`
	Max  Value `json:"max"`
}

// EngineSummary is what the engine said of itself during a point.
type EngineSummary struct {
	Type    string `json:"type,omitempty"`
	Version string `json:"version,omitempty"`
	State   string `json:"state"`
	// Reason is why the last reading was none.
	Reason   string `json:"reason,omitempty"`
	Readings int    `json:"readings"`
	Missed   int    `json:"missed"`

	Running Range `json:"running"`
	Waiting Range `json:"waiting"`
	KVUsage Range `json:"kv_usage"`
	// Counted from the beginning of the measured part to the end of the drain.
	Preemptions      Value `json:"preemptions"`
	PromptTokens     Value `json:"prompt_tokens"`
	GenerationTokens Value `json:"generation_tokens"`
	PrefixQueries    Value `json:"prefix_cache_queries"`
	PrefixHits       Value `json:"prefix_cache_hits"`
	PrefixHitRatio   Value `json:"prefix_cache_hit_ratio"`
	// TokensPerStep is the mean of tokens that a step of a sequence gave with speculative decoding.
	TokensPerStep Value `json:"speculative_tokens_per_step"`
	// TTFTCount and TTFTMean are of the engine's own histogram, the client's
	// beside them are of its requests whose first token came in the same time,
	// from their first byte sent.
	TTFTCount       Value `json:"ttft_count"`
	TTFTMean        Value `json:"ttft_mean_s"`
	ClientTTFTCount int   `json:"client_ttft_count"`
	ClientTTFTMean  Value `json:"client_ttft_mean_s"`
	// QueueMean, PrefillMean and DecodeMean are of the engine's own histograms:
	// the mean time of a request in the queue, in prefill and in decode.
	QueueMean   Value          `json:"queue_mean_s"`
	PrefillMean Value          `json:"prefill_mean_s"`
	DecodeMean  Value          `json:"decode_mean_s"`
	Samples     []EngineSample `json:"samples,omitempty"`
}

// GPUSummary is what one GPU did during a point.
type GPUSummary struct {
	UUID        string `json:"uuid"`
	Model       string `json:"model,omitempty"`
	Bandwidth   Range  `json:"memory_bandwidth_ratio"`
	SMActive    Range  `json:"sm_active_ratio"`
	Power       Range  `json:"power_watts"`
	SMClock     Range  `json:"sm_clock_hertz"`
	Temperature Range  `json:"temperature_celsius"`
	// ThrottleSeconds by reason, where any was counted.
	ThrottleSeconds map[string]float64 `json:"throttle_seconds,omitempty"`
}

// add widens the range; n is how many values it holds already.
func (r *Range) add(v float64, n *int) {
	if math.IsNaN(v) {
		return
	}
	*n++
	if *n == 1 {
		*r = Range{Value(v), Value(v), Value(v)}
		return
	}
	r.Min, r.Max = min(r.Min, Value(v)), max(r.Max, Value(v))
	r.Mean += (Value(v) - r.Mean) / Value(*n)
}

func unknownRange() Range {
	nan := Value(math.NaN())
	return Range{nan, nan, nan}
}

// totals are counters of all ranks together.
type totals struct {
	preemptions, prompt, generation, queries, hits float64
	drafts, accepted                               float64
	ttft, queue, prefill, decode                   moments
}

// moments are a histogram's count and sum.
type moments struct{ count, sum float64 }

// meanSince is the mean of what came after before.
func (m moments) meanSince(before moments) Value {
	return Value((m.sum - before.sum) / (m.count - before.count))
}

func total(r *engine.Reading) totals {
	sum := func(s engine.Signal) float64 {
		t := 0.0
		for i := range r.Ranks {
			t += r.Ranks[i].Value(s)
		}
		return t
	}
	t := totals{
		preemptions: sum(engine.Preemptions), prompt: sum(engine.PromptTokens), generation: sum(engine.GenerationTokens),
		queries: sum(engine.PrefixCacheQueries), hits: sum(engine.PrefixCacheHits),
		drafts: sum(engine.SpeculativeDrafts), accepted: sum(engine.SpeculativeAccepted),
	}
	for _, h := range []struct {
		to     *moments
		signal engine.HistogramSignal
	}{{&t.ttft, engine.TimeToFirstToken}, {&t.queue, engine.QueueTime}, {&t.prefill, engine.PrefillTime}, {&t.decode, engine.DecodeTime}} {
		for i := range r.Ranks {
			of := r.Ranks[i].Histogram(h.signal)
			if of == nil {
				*h.to = moments{math.NaN(), math.NaN()}
				break
			}
			h.to.count += of.Count
			h.to.sum += of.Sum
		}
	}
	return t
}

// watch is one point's readings.
type watch struct {
	readings *Readings
	client   *Client
	// start of the run, from which samples are dated, and of what counts.
	start, from time.Duration

	cancel context.CancelFunc
	done   sync.WaitGroup

	last    engine.Observation
	summary EngineSummary
	running int
	waiting int
	kv      int
	// length is SGLang's own mean of tokens a step, over the readings.
	length        Range
	lengths       int
	stride, count int
	baseline      *totals
	baselineFrom  time.Duration
	newest        *engine.Reading

	gpus  map[string]*gpuWatch
	order []string
	shown atomic.Pointer[EngineSample]
}

// sample is the newest reading; nil without.
func (w *watch) sample() *EngineSample {
	if w == nil {
		return nil
	}
	return w.shown.Load()
}

type gpuWatch struct {
	GPUSummary
	counts        [5]int
	first, latest map[string]float64
}

// begin takes a first reading and goes on until end. nil readings watch nothing.
func (r *Readings) begin(ctx context.Context, c *Client) *watch {
	if r == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{readings: r, client: c, cancel: cancel, stride: 1, from: Never, gpus: map[string]*gpuWatch{}}
	w.summary.Running, w.summary.Waiting, w.summary.KVUsage, w.length = unknownRange(), unknownRange(), unknownRange(), unknownRange()
	if r.Poller != nil {
		w.poll(ctx)
		w.baselineAt(0)
	}
	return w
}

// run goes on reading until end; what counts begins at from.
func (w *watch) run(ctx context.Context, start, from time.Duration, u *run) {
	if w == nil {
		return
	}
	m := u.measured
	w.start, w.from = start, from
	if w.client.now() >= from-lead-watchEvery && w.baseline != nil {
		// No warm-up: the first reading was the last before the load.
		m.cross(w.baselineFrom)
	} else {
		w.baseline = nil
	}
	ctx, cancel := context.WithCancel(ctx)
	first := w.cancel
	w.cancel = func() { cancel(); first() }
	if w.readings.Poller != nil || u.point.follow != nil {
		w.done.Go(func() {
			for sleep(ctx, w.readings.Interval) == nil {
				if w.readings.Poller != nil {
					w.poll(ctx)
					w.gauge()
				}
				if w.baseline == nil && w.client.now() >= from {
					w.baselineAt(from)
					if w.baseline != nil {
						m.cross(w.baselineFrom)
					}
				}
				if ctx.Err() == nil {
					u.look(w.last)
				}
			}
		})
	}
	if w.readings.GPU != nil {
		w.done.Go(func() {
			for {
				w.readGPUs()
				if sleep(ctx, gpuInterval) != nil {
					return
				}
			}
		})
	}
}

func (w *watch) poll(ctx context.Context) {
	w.last = w.readings.Poller.Poll(ctx)
	if w.last.Fresh {
		w.newest = w.last.Reading
		w.summary.Readings++
	} else if ctx.Err() == nil {
		w.summary.Missed++
	}
}

// baselineAt takes the newest reading as the beginning of what is counted.
func (w *watch) baselineAt(from time.Duration) {
	if w.newest == nil || !w.last.Fresh {
		return
	}
	at := w.newest.At.Sub(w.client.epoch)
	if at < from {
		return
	}
	t := total(w.newest)
	w.baseline, w.baselineFrom = &t, at
}

// gauge shows the newest reading's gauges and, while load is measured, adds them.
func (w *watch) gauge() {
	if !w.last.Fresh || w.newest == nil {
		return
	}
	s := EngineSample{At: (w.newest.At.Sub(w.client.epoch) - w.start).Seconds()}
	kv := math.NaN()
	running, waiting := 0.0, 0.0
	for i := range w.newest.Ranks {
		rank := &w.newest.Ranks[i]
		running += rank.Value(engine.RequestsRunning)
		waiting += rank.Value(engine.RequestsWaiting)
		if u := rank.Value(engine.KVCacheUsage); math.IsNaN(kv) || u > kv {
			kv = u
		}
	}
	s.Running, s.Waiting, s.KVUsage = Value(running), Value(waiting), Value(kv)
	w.shown.Store(&s)
	if w.client.now() < w.from {
		return
	}
	w.summary.Running.add(running, &w.running)
	w.summary.Waiting.add(waiting, &w.waiting)
	w.summary.KVUsage.add(kv, &w.kv)
	for i := range w.newest.Ranks {
		if n := w.newest.Ranks[i].Value(engine.SpeculativeLength); n >= 1 {
			w.length.add(n, &w.lengths)
		}
	}
	if w.count++; w.count%w.stride != 0 {
		return
	}
	if w.summary.Samples = append(w.summary.Samples, s); len(w.summary.Samples) == maxEngineSamples {
		kept := w.summary.Samples[:0]
		for i := 1; i < maxEngineSamples; i += 2 {
			kept = append(kept, w.summary.Samples[i])
		}
		w.summary.Samples = kept
		w.stride *= 2
	}
}

func (w *watch) readGPUs() {
	s := w.readings.GPU.Snapshot()
	if !s.Status.Up || s.Status.SelectionAmbiguous {
		// What is stale, or may be another engine's, says nothing of this point.
		return
	}
	for i := range s.Readings {
		r := &s.Readings[i]
		g := w.gpus[r.UUID]
		if g == nil {
			g = &gpuWatch{GPUSummary: GPUSummary{
				UUID: r.UUID, Model: r.Model, Bandwidth: unknownRange(), SMActive: unknownRange(),
				Power: unknownRange(), SMClock: unknownRange(), Temperature: unknownRange(),
			}, first: r.ThrottleSeconds}
			w.gpus[r.UUID] = g
			w.order = append(w.order, r.UUID)
		}
		g.latest = r.ThrottleSeconds
		for k, add := range []struct {
			to *Range
			v  float64
		}{
			{&g.Bandwidth, r.MemoryBandwidthRatio}, {&g.SMActive, r.SMActiveRatio}, {&g.Power, r.PowerWatts},
			{&g.SMClock, r.SMClockHertz}, {&g.Temperature, r.TemperatureCelsius},
		} {
			add.to.add(add.v, &g.counts[k])
		}
	}
}

// end takes a last reading and fills in the result.
func (w *watch) end(ctx context.Context, result *Result, m *measurement) {
	if w == nil {
		return
	}
	w.cancel()
	w.done.Wait()
	for _, uuid := range w.order {
		g := w.gpus[uuid]
		for reason, s := range g.latest {
			if d := s - g.first[reason]; d > 0 {
				if g.ThrottleSeconds == nil {
					g.ThrottleSeconds = map[string]float64{}
				}
				g.ThrottleSeconds[reason] = d
			}
		}
		result.GPUs = append(result.GPUs, g.GPUSummary)
	}
	if w.readings.Poller == nil {
		return
	}
	// The last counts may be published a moment after the last token, and an
	// interrupted run wants its last reading too.
	ctx = context.WithoutCancel(ctx)
	_ = sleep(ctx, w.readings.Interval)
	w.poll(ctx)
	s := w.summary
	s.Type, s.Version = string(w.last.Type), w.last.Version
	s.State, s.Reason = string(w.last.State), w.last.Reason
	nan := Value(math.NaN())
	s.Preemptions, s.PromptTokens, s.GenerationTokens, s.PrefixQueries, s.PrefixHits = nan, nan, nan, nan, nan
	s.PrefixHitRatio, s.TTFTCount, s.TTFTMean, s.ClientTTFTMean = nan, nan, nan, nan
	s.QueueMean, s.PrefillMean, s.DecodeMean, s.TokensPerStep = nan, nan, nan, w.length.Mean
	if w.baseline != nil && w.newest != nil && w.last.Fresh {
		a, b := *w.baseline, total(w.newest)
		s.Preemptions = Value(b.preemptions - a.preemptions)
		s.PromptTokens, s.GenerationTokens = Value(b.prompt-a.prompt), Value(b.generation-a.generation)
		s.PrefixQueries, s.PrefixHits = Value(b.queries-a.queries), Value(b.hits-a.hits)
		s.PrefixHitRatio = s.PrefixHits / s.PrefixQueries
		if n := Value(capacity.TokensPerStep(b.drafts-a.drafts, b.accepted-a.accepted)); n.Known() {
			s.TokensPerStep = n
		}
		s.TTFTCount, s.TTFTMean = Value(b.ttft.count-a.ttft.count), b.ttft.meanSince(a.ttft)
		s.QueueMean, s.PrefillMean, s.DecodeMean = b.queue.meanSince(a.queue), b.prefill.meanSince(a.prefill), b.decode.meanSince(a.decode)
		m.mu.Lock()
		s.ClientTTFTCount = m.crossCount
		s.ClientTTFTMean = Value(m.crossSum / float64(m.crossCount))
		m.mu.Unlock()
	}
	result.Engine = &s
}

// frontEnd is how much earlier, in seconds, a client's TTFT may begin and
// later it may end than the engine's: an engine begins when its front end has
// read and tokenised the request, and ends before that has written the answer.
// Of a real vLLM with a tiny model on an idle machine it was 5 ms, of 32.
const frontEnd = 0.010

// judge compares the engine's words with what the client saw.
func (s *EngineSummary) judge(p *Point, fault, warn func(code, format string, args ...any)) {
	if s.Readings == 0 {
		warn(FaultEngineUnread, "the engine's metrics could not be read (%s): nothing vouches for what the client saw", s.Reason)
		return
	}
	if math.IsNaN(float64(s.TTFTCount)) {
		warn(FaultEngineUnread, "the engine's metrics do not cover the point: %d readings, %d missed", s.Readings, s.Missed)
		return
	}
	if ratio := float64(s.PrefixHitRatio); ratio > maxHitShare && !p.SharedPrefixes {
		fault(FaultCacheHits, "%.1f %% of the prompt tokens came from the prefix cache, though every prompt is unlike the others", 100*ratio)
	}
	if s.Preemptions > 0 {
		warn(FaultPreemptions, "the engine preempted %.0f sequences: its KV cache was full", float64(s.Preemptions))
	}
	if extra := float64(s.TTFTCount) - float64(s.ClientTTFTCount); extra > max(2, 0.01*float64(s.ClientTTFTCount)) {
		warn(FaultForeign, "the engine began %.0f answers, %d of them for this client: others use it too", float64(s.TTFTCount), s.ClientTTFTCount)
		return
	}
	engineMean, clientMean := float64(s.TTFTMean), float64(s.ClientTTFTMean)
	if d := clientMean - engineMean; d > frontEnd+0.1*engineMean || -d > max(0.005, 0.1*engineMean) {
		warn(FaultCrossCheck, "mean TTFT is %s here and %s by the engine's own histogram: look at the network and at the client",
			seconds(clientMean), seconds(engineMean))
	}
}
