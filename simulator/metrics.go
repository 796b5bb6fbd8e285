package simulator

import (
	"sync"
	"time"
)

// Metrics is what vLLM 0.32 counts of its ranks and of its HTTP requests.
// It is safe for concurrent use.
type Metrics struct {
	cfg     Config
	created float64
	ranks   []*rankMetrics
	http    httpMetrics
}

// NewMetrics returns metrics at zero. Give its Observer method to the engine:
//
//	m := NewMetrics(cfg)
//	cfg.Observer = m.Observer
//	e, err := NewEngine(cfg)
func NewMetrics(cfg Config) *Metrics {
	m := &Metrics{cfg: cfg, created: unixSeconds(time.Now())}
	for range cfg.Ranks {
		m.ranks = append(m.ranks, newRankMetrics(cfg))
	}
	m.http.init(m.created)
	return m
}

// Observer returns the one that counts what a rank does.
func (m *Metrics) Observer(rank int) Observer { return m.ranks[rank] }

func unixSeconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// rankMetrics is one rank's counters; vLLM's IterationStats and SchedulerStats.
type rankMetrics struct {
	mfu bool

	mu                         sync.Mutex
	running, waiting, deferred float64
	kvCacheUsage               float64
	flops, reads, writes       float64
	prefixQueries, prefixHits  float64
	preemptions                float64
	promptTokens, cachedTokens float64
	generatedTokens            float64
	stopped, reachedLength     float64
	sleepLevel                 int

	// iteration is the tokens of the step in progress, outputs how many
	// sequences it gave a token to: vLLM records no iteration without output.
	iteration, outputs int

	requestPromptTokens, requestGenerationTokens, iterationTokens *histogram
	requestMaxGenerationTokens, requestN, requestMaxTokens        *histogram
	timeToFirstToken, interTokenLatency, timePerOutputToken       *histogram
	latency, queueTime, inferenceTime, prefillTime, decodeTime    *histogram
	requestPreemptions, requestComputedTokens                     *histogram
}

func newRankMetrics(cfg Config) *rankMetrics {
	tokens := tokenBounds(cfg.MaxModelLen)
	return &rankMetrics{
		mfu:                        cfg.EnableMFUMetrics,
		requestPromptTokens:        newHistogram(tokens),
		requestGenerationTokens:    newHistogram(tokens),
		iterationTokens:            newHistogram(iterationBounds),
		requestMaxGenerationTokens: newHistogram(tokens),
		requestN:                   newHistogram(requestNBounds),
		requestMaxTokens:           newHistogram(tokens),
		timeToFirstToken:           newHistogram(firstTokenBounds),
		interTokenLatency:          newHistogram(interTokenBounds),
		timePerOutputToken:         newHistogram(interTokenBounds),
		latency:                    newHistogram(requestBounds),
		queueTime:                  newHistogram(requestBounds),
		inferenceTime:              newHistogram(requestBounds),
		prefillTime:                newHistogram(requestBounds),
		decodeTime:                 newHistogram(requestBounds),
		requestPreemptions:         newHistogram(preemptionBounds),
		requestComputedTokens:      newHistogram(tokens),
	}
}

// vLLM's bucket bounds (vllm/v1/metrics/buckets.py).
var (
	firstTokenBounds = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	interTokenBounds = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBounds    = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	iterationBounds  = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	requestNBounds   = []float64{1, 2, 5, 10, 20}
	preemptionBounds = []float64{1, 2, 3, 4, 5, 10, 20}
	blockBounds      = []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800}
)

// tokenBounds is 1, 2 and 5 in each decade up to the context length.
func tokenBounds(maxModelLen int) []float64 {
	var bounds []float64
	for decade := 1; ; decade *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*decade > maxModelLen {
				return bounds
			}
			bounds = append(bounds, float64(m*decade))
		}
	}
}

// StepDone implements Observer.
func (r *rankMetrics) StepDone(s StepStats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = float64(s.Running)
	r.waiting = float64(s.Waiting)
	r.deferred = float64(s.Deferred)
	r.kvCacheUsage = s.KVCacheUsage
	r.preemptions += float64(s.Preemptions)
	r.prefixQueries += float64(s.PrefixQueries)
	r.prefixHits += float64(s.PrefixHits)
	if r.mfu {
		r.flops += s.Flops
		r.reads += s.ReadBytes
		r.writes += s.WriteBytes
	}
	if r.outputs > 0 {
		r.iterationTokens.observe(float64(r.iteration))
		r.iteration, r.outputs = 0, 0
	}
}

// TokenDone implements Observer. A prompt is counted once, when its first
// token is out; what a preemption makes the engine compute again is not.
func (r *rankMetrics) TokenDone(q *Request, index int, at, previous float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.generatedTokens++
	r.iteration++
	r.outputs++
	if index > 0 {
		r.interTokenLatency.observe(at - previous)
		return
	}
	prompt := q.promptTokens()
	r.promptTokens += float64(prompt)
	r.cachedTokens += float64(q.CachedTokens)
	r.iteration += prompt - q.CachedTokens
	r.timeToFirstToken.observe(at - previous)
}

// RequestDone implements Observer.
func (r *rankMetrics) RequestDone(q *Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q.FinishReason == FinishStop {
		r.stopped++
	} else {
		r.reachedLength++
	}
	prompt, output := q.promptTokens(), q.OutputLength
	decode := q.LastToken - q.FirstToken
	r.latency.observe(q.LastToken - q.Arrival)
	r.queueTime.observe(q.FirstScheduled - q.Queued)
	r.prefillTime.observe(q.FirstToken - q.FirstScheduled)
	r.inferenceTime.observe(q.LastToken - q.FirstScheduled)
	r.decodeTime.observe(decode)
	r.requestPreemptions.observe(float64(q.Preemptions))
	r.requestComputedTokens.observe(float64(prompt - q.CachedTokens))
	r.requestPromptTokens.observe(float64(prompt))
	r.requestGenerationTokens.observe(float64(output))
	r.requestMaxGenerationTokens.observe(float64(output))
	r.requestN.observe(1)
	if q.MaxTokens > 0 {
		r.requestMaxTokens.observe(float64(q.MaxTokens))
	}
	if output > 1 {
		r.timePerOutputToken.observe(decode / float64(output-1))
	} else {
		r.timePerOutputToken.observe(0)
	}
}

// RequestAborted implements Observer. vLLM counts a client that went away in
// no finish reason and in no histogram of requests.
func (r *rankMetrics) RequestAborted(*Request) {}

// kvCacheTokens is the label that vLLM gives as a rank's token capacity; it
// counts the block that is never given out too.
func (c Config) kvCacheTokens() int { return int(c.kvCacheMaxConcurrency() * float64(c.MaxModelLen)) }

// kvCacheMaxConcurrency is how many sequences of full length the KV cache holds.
func (c Config) kvCacheMaxConcurrency() float64 {
	perSequence := (c.MaxModelLen + c.BlockSize - 1) / c.BlockSize
	return float64(c.NumGPUBlocks) / float64(perSequence)
}
