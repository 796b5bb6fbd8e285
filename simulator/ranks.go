package simulator

import (
	"math"
	"slices"
)

// rank is a scheduler with its front end, its GPUs and the time of its next
// event: what both clocks drive. All times are simulated seconds.
type rank struct {
	scheduler *Scheduler
	meter     *meter
	// frontEnd holds accepted requests that are not in the scheduler yet, by Queued.
	frontEnd queue
	aborts   []abort
	// clock is the time of the last event, end that of the end of the step that runs.
	clock, end float64
	stepping   bool
	// poked is when something from outside wants to be looked at; +Inf when nothing does.
	poked float64
	// asleep ranks begin no step; evict asks for the KV cache to be dropped first.
	asleep, evict bool
}

type abort struct {
	request *Request
	at      float64
}

// newRanks builds the ranks of a valid configuration.
func newRanks(cfg Config) []*rank {
	ranks := make([]*rank, cfg.Ranks)
	for i := range ranks {
		var observer Observer
		if cfg.Observer != nil {
			observer = cfg.Observer(i)
		}
		ranks[i] = &rank{scheduler: NewScheduler(cfg, observer), meter: newMeter(cfg, i), poked: math.Inf(1)}
	}
	return ranks
}

// submit gives a request that Config.Accept accepted to the least loaded
// rank: vLLM's score, in which a request that waits weighs as much as four that run.
func submit(ranks []*rank, r *Request, frontEndDelay float64) int {
	best, least := 0, math.MaxInt
	for i, k := range ranks {
		if load := 4*(k.frontEnd.len()+k.scheduler.Waiting()) + k.scheduler.Running(); load < least {
			best, least = i, load
		}
	}
	r.rank, r.stage = best, stageFrontEnd
	r.Queued = r.Arrival + frontEndDelay
	ranks[best].frontEnd.pushBack(r)
	return best
}

// next is the time of the next event; +Inf when the rank is idle.
func (k *rank) next() float64 {
	if k.stepping {
		return k.end
	}
	t := k.poked
	if k.frontEnd.len() > 0 {
		t = min(t, k.frontEnd.front().Queued)
	}
	return max(t, k.clock)
}

// advance lets every event up to and including a time happen.
func (k *rank) advance(until float64) {
	for t := k.next(); t <= until; t = k.next() {
		k.event(t)
	}
}

// event ends the step that runs, if any, and begins the next.
func (k *rank) event(now float64) {
	k.clock, k.poked = now, math.Inf(1)
	for _, a := range k.aborts {
		if a.request.stage == stageFrontEnd {
			k.frontEnd.remove(a.request)
			k.scheduler.Add(a.request)
		}
		k.scheduler.Abort(a.request, a.at)
	}
	k.aborts = k.aborts[:0]
	if k.stepping {
		k.stepping = false
		k.scheduler.End(now)
	}
	for k.frontEnd.len() > 0 && k.frontEnd.front().Queued <= now {
		k.scheduler.Add(k.frontEnd.popFront())
	}
	if k.evict {
		k.evict = false
		k.scheduler.Evict()
	}
	begin := k.scheduler.Begin
	if k.asleep {
		begin = k.scheduler.Flush
	}
	if duration, ok := begin(now); ok {
		k.stepping, k.end = true, now+duration
		k.meter.step(now, k.scheduler.cost)
	}
}

// abort takes a request out at the rank's next event.
func (k *rank) abort(r *Request, now float64) {
	if r.stage == stageEnded || slices.ContainsFunc(k.aborts, func(a abort) bool { return a.request == r }) {
		return
	}
	k.aborts = append(k.aborts, abort{r, now})
	k.poke(now)
}

// poke asks for an event at a time, when the rank does not step.
func (k *rank) poke(now float64) { k.poked = min(k.poked, now) }

// slow makes the steps that begin from now on take factor times as long.
func (k *rank) slow(factor float64) {
	k.scheduler.Slow(factor)
	k.meter.slow(factor)
}
