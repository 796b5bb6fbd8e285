package knee

import "math"

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
	// Seconds that a token takes, and what each running request adds.
	perToken, perRunning float64
	// Seconds to the first token of a request that does not wait: fixed, and per prompt token.
	base, perPrompt float64
	// perComputed is the seconds that a prompt token takes when prompts are all that the engine does.
	perComputed float64
}

// tokenSeconds is the time between two tokens when n requests run.
func (q *queue) tokenSeconds(n int) float64 { return q.perToken + q.perRunning*float64(n) }

// overhead is how many tokens' time a request holds a slot beside its output.
func (q *queue) overhead(j job) float64 {
	return (q.base + q.perPrompt*j.prompt) / q.tokenSeconds(max(1, q.slots/2))
}

// residence is the seconds a request takes when n run and none waits.
func (q *queue) residence(prompt, output float64, n int) float64 {
	return q.base + q.perPrompt*prompt + output*q.tokenSeconds(n)
}

// run serves jobs, sorted by time, on an engine that is slower by a factor,
// and that held running jobs with so many tokens left each when the first came.
func (q *queue) run(jobs []job, slower float64, held []float64, out []served) []served {
	out = out[:0]
	if q.prefill {
		return q.runPrefill(jobs, slower, out)
	}
	// Tokens are made at the same pace for all that run: a request is done
	// when the count of tokens since the start reaches where it stands in the heap.
	var busy slotHeap
	var waiting []int
	head := 0
	for range jobs {
		out = append(out, served{})
	}
	now, tokens := 0.0, 0.0
	if len(jobs) > 0 {
		now = jobs[0].at
	}
	for _, left := range held {
		if len(busy) < q.slots {
			busy.push(slot{left, -1})
		}
	}
	begin := func(i int) {
		j := &jobs[i]
		busy.push(slot{tokens + q.overhead(*j) + j.output, i})
		out[i].ttft = now - j.at + slower*(q.base+q.perPrompt*j.prompt)
	}
	advance := func(until float64) {
		for len(busy) > 0 {
			pace := slower * q.tokenSeconds(len(busy))
			end := now + (busy[0].until-tokens)*pace
			if end > until {
				tokens += (until - now) / pace
				break
			}
			now, tokens = end, busy[0].until
			done := busy.pop()
			if done.job >= 0 {
				out[done.job].e2e = now - jobs[done.job].at
			}
			if head < len(waiting) {
				begin(waiting[head])
				head++
			}
		}
		now = until
	}
	for i := range jobs {
		advance(jobs[i].at)
		if len(busy) < q.slots {
			begin(i)
		} else {
			waiting = append(waiting, i)
		}
	}
	advance(math.Inf(1))
	for i := range out {
		out[i].tpot = (out[i].e2e - out[i].ttft) / max(1, jobs[i].output-1)
	}
	return out
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
