package knee

import (
	"math"
	"slices"
)

// The engine as a queue. Which requests miss a bound is decided, for the most
// part, by the luck of the draw: a clump of arrivals, a run of long answers.
// That draw is known, since the probe made it. Replayed through a queue that
// is calibrated to the engine, it gives the violations that were to be
// expected of just these requests, and the same queue then tells those of
// endless others. The difference to what was seen calibrates it.
//
// The queue is one of two. Slots: a load-dependent server (Chandy, Herzog and
// Woo 1975, "Parametric analysis of queueing networks"), measured in closed
// loop: up to slots requests decode at once, each token taking perToken +
// perRunning * running seconds, and others wait in the order of arrival.
// Prefill: prompts are computed one after the other.

// job is a request for the queue.
type job struct {
	at             float64
	prompt, output float64
	class          int
}

// served is what the queue does to a job.
type served struct{ ttft, tpot, e2e float64 }

// queue is an engine as a queue.
type queue struct {
	// prefill says that prompts queue for being computed; otherwise requests queue for slots.
	prefill bool
	slots   int
	// capacity is the tokens of the KV cache; 0 is no bound.
	capacity float64
	// Seconds that a token takes, and what each running request adds.
	perToken, perRunning float64
	// Seconds to the first token of a request that does not wait: fixed, and per prompt token.
	base, perPrompt float64
	// perComputed is the seconds that a prompt token takes when prompts are all that the engine does.
	perComputed float64
}

// tokenSeconds is the time between two tokens when n requests run.
func (q *queue) tokenSeconds(n int) float64 { return q.perToken + q.perRunning*float64(n) }

// residence is the seconds a request takes when n run and none waits.
func (q *queue) residence(prompt, output float64, n int) float64 {
	return q.base + q.perPrompt*prompt + output*q.tokenSeconds(n)
}

// run serves jobs, sorted by time, on an engine that is slower by a factor,
// and that held some requests when the first came.
func (q *queue) run(jobs []job, slower float64, held []resident, out []served) []served {
	out = out[:0]
	if q.prefill {
		return q.runPrefill(jobs, slower, out)
	}
	out = slices.Grow(out, len(jobs))
	for range jobs {
		out = append(out, served{ttft: math.NaN()})
	}
	r := queueRun{queue: q, jobs: jobs, out: out, slower: slower}
	r.state = make([]resident, len(jobs), len(jobs)+len(held))
	if len(jobs) > 0 {
		r.now = jobs[0].at
	}
	for i, j := range jobs {
		r.state[i] = resident{j.output, j.prompt}
	}
	r.entered = make([]float64, len(jobs), len(jobs)+len(held))
	for _, h := range held {
		if r.fits(h) {
			r.state = append(r.state, h)
			r.begin(len(r.state) - 1)
		}
	}
	for i := range jobs {
		r.advance(jobs[i].at)
		if r.head == len(r.waiting) && r.fits(r.state[i]) {
			r.begin(i)
		} else {
			r.waiting = append(r.waiting, i)
		}
	}
	r.advance(math.Inf(1))
	for i := range out {
		out[i].tpot = (out[i].e2e - out[i].ttft) / max(1, jobs[i].output-1)
	}
	return out
}

// resident is a request's tokens left to make, and those in the KV cache.
type resident struct{ left, held float64 }

// queueRun is a queue at work. All that run make tokens at the same pace: one
// is done when the count of tokens since the start reaches where it stands in the heap.
type queueRun struct {
	*queue
	jobs   []job
	state  []resident // of each job, as of when it began; then of those that were there before
	out    []served
	slower float64

	now, tokens float64
	busy        slotHeap
	// running are the jobs that run in the order of admission, with some that have ended among
	// them; entered is the count of tokens when a job began, NaN when it does not run.
	running []int
	entered []float64
	n       int
	// kv + n*tokens is how many tokens the KV cache holds.
	kv      float64
	waiting []int
	head    int
}

// fits tells whether a request can begin.
func (r *queueRun) fits(s resident) bool {
	return r.n < r.slots && (r.capacity == 0 || r.n == 0 || r.kv+float64(r.n)*r.tokens+s.held <= r.capacity)
}

func (r *queueRun) begin(i int) {
	s := &r.state[i]
	extra := 0.0
	if i < len(r.jobs) {
		j := &r.jobs[i]
		first := r.base + r.perPrompt*s.held
		extra = first / r.tokenSeconds(max(1, min(r.slots, r.n+1)))
		if math.IsNaN(r.out[i].ttft) {
			r.out[i].ttft = r.now - j.at + r.slower*first
		}
	}
	if i == len(r.entered) {
		r.entered = append(r.entered, 0)
	}
	r.entered[i] = r.tokens
	r.kv += s.held - r.tokens
	r.n++
	r.busy.push(slot{r.tokens + extra + s.left, i, r.tokens})
	if r.capacity > 0 {
		r.running = append(r.running, i)
	}
}

// leave takes a request that runs out, done or preempted.
func (r *queueRun) leave(i int) {
	r.kv -= r.state[i].held - r.entered[i]
	r.entered[i] = math.NaN()
	r.n--
}

// advance lets everything happen up to a time.
func (r *queueRun) advance(until float64) {
	for r.n > 0 {
		for r.entered[r.busy[0].job] != r.busy[0].entered {
			r.busy.pop() // of one that was preempted
		}
		pace := r.slower * r.tokenSeconds(r.n)
		next := r.busy[0].until
		full := r.capacity > 0 && r.n > 1 && (r.capacity-r.kv)/float64(r.n) < next
		if full {
			next = max((r.capacity-r.kv)/float64(r.n), r.tokens)
		}
		end := r.now + (next-r.tokens)*pace
		if end > until {
			r.tokens += (until - r.now) / pace
			break
		}
		r.now, r.tokens = end, next
		if full {
			r.preempt()
			continue
		}
		done := r.busy.pop()
		r.leave(done.job)
		if done.job < len(r.jobs) {
			r.out[done.job].e2e = r.now - r.jobs[done.job].at
		}
		for r.head < len(r.waiting) && r.fits(r.state[r.waiting[r.head]]) {
			r.head++
			r.begin(r.waiting[r.head-1])
		}
	}
	r.now = until
}

// preempt throws out the one that began last, to the front of the queue. What
// it had made is computed again when it comes back.
func (r *queueRun) preempt() {
	for {
		i := r.running[len(r.running)-1]
		r.running = r.running[:len(r.running)-1]
		if math.IsNaN(r.entered[i]) {
			continue
		}
		made := r.tokens - r.entered[i]
		r.leave(i)
		if s := &r.state[i]; i < len(r.jobs) {
			made = min(made, max(s.left-1, 0))
			s.left, s.held = s.left-made, s.held+made
			if r.head > 0 {
				r.head--
				r.waiting[r.head] = i
			} else {
				r.waiting = slices.Insert(r.waiting, 0, i)
			}
		}
		return
	}
}

func (q *queue) runPrefill(jobs []job, slower float64, out []served) []served {
	free := 0.0
	// A prompt is computed faster when nothing else is: what is left of a first
	// token's time beside that is the engine's own.
	for _, j := range jobs {
		free = max(free, j.at) + slower*q.perComputed*j.prompt
		s := served{ttft: free - j.at + slower*max(0, q.base+(q.perPrompt-q.perComputed)*j.prompt), tpot: slower * q.tokenSeconds(q.slots/2)}
		s.e2e = s.ttft + j.output*s.tpot
		out = append(out, s)
	}
	return out
}

// slot is taken until the count of tokens reaches until.
type slot struct {
	until float64
	job   int
	// entered tells a job's stay from an earlier one.
	entered float64
}

// slotHeap is a binary heap with the slot first that is free first.
type slotHeap []slot

func (h *slotHeap) push(s slot) {
	*h = append(*h, s)
	old := *h
	i := len(old) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if old[parent].until <= s.until {
			break
		}
		old[i] = old[parent]
		i = parent
	}
	old[i] = s
}

func (h *slotHeap) pop() slot {
	old := *h
	first, last := old[0], old[len(old)-1]
	old = old[:len(old)-1]
	*h = old
	i := 0
	for len(old) > 0 {
		child := 2*i + 1
		if child >= len(old) {
			break
		}
		if child+1 < len(old) && old[child+1].until < old[child].until {
			child++
		}
		if last.until <= old[child].until {
			break
		}
		old[i] = old[child]
		i = child
	}
	if len(old) > 0 {
		old[i] = last
	}
	return first
}
