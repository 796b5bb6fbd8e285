package knee

import (
	"context"
	"fmt"
	"math"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// Measures of the soak and the burst.
const (
	// soakTries is how often a lower rate is soaked after one that failed, soakStep the lower rate.
	soakTries = 3
	soakStep  = 0.96
	// soakLeast in seconds is the shortest soak.
	soakLeast = 45
	// soakExtended in seconds is a release's second soak, when the first proves too little.
	soakExtended = 900
	// soakShare of the study's requests is the soak's, againShare that of another one after it.
	soakShare, againShare = 0.3, 0.1

	burstFactor  = 2
	burstSeconds = 10
	// recoverySteady is for how long the TTFT must be within its bound, recoveryMost how long that is waited for.
	recoverySteady = 15
	recoveryMost   = 120
)

// soak runs at the safe rate for long, and at lower ones where that fails.
func (s *search) soak(ctx context.Context) error {
	rate := s.safe()
	soak := &curve.Soak{}
	s.study.Soak = soak
	for try := range soakTries + 1 {
		length := s.soakSeconds(rate)
		o, err := s.soakOnce(ctx, s.name("soak %d", try+1), rate, length)
		if err != nil {
			return err
		}
		passed, why := s.soakPassed(o)
		if passed && s.Mode == Release && !soak.Proven {
			if o, err = s.soakOnce(ctx, s.name("soak %d extended", try+1), rate, soakExtended); err != nil {
				return err
			}
			if passed, why = s.soakPassed(o); passed && !soak.Proven {
				passed, why = false, "it passed, but does not prove it"
			}
		}
		if passed {
			soak.Passed = true
			if s.study.Status != curve.StatusNotReached {
				s.study.Status = curve.StatusOK
			}
			s.refit()
			s.setSafe(rate)
			s.report("safe at %.4g requests/s: soaked for %.0f s", rate, length)
			return nil
		}
		s.report("the soak at %.4g requests/s failed: %s", rate, why)
		s.refit()
		rate = min(soakStep*rate, max(s.safe(), 0.8*rate))
	}
	s.study.Status = curve.StatusNoSafeRate
	s.study.Reason = fmt.Sprintf("%d soaks failed, the last at %.4g requests/s", len(soak.Trials), float64(soak.Trials[len(soak.Trials)-1].OfferedRate))
	return nil
}

// refit fits the knee again, with the soaks among the points; what the study's status is stays.
func (s *search) refit() {
	status, reason := s.study.Status, s.study.Reason
	before := *s.study.Knee
	s.settleKnee()
	if !s.study.Knee.Rate.Known() {
		*s.study.Knee = before
	}
	s.study.Status, s.study.Reason = status, reason
}

// soakSeconds is how long a rate is soaked: what the study has left after a
// soak that failed is still a test.
func (s *search) soakSeconds(rate float64) float64 {
	length := min(s.plan.soakSeconds, soakShare*float64(s.plan.requests)/rate)
	left := s.plan.seconds - s.study.Seconds - s.burstReserve(rate)
	leftRequests := (float64(s.plan.requests)-float64(s.study.Requests))/rate - s.burstReserve(rate)
	return max(min(length, left, leftRequests), min(length, soakLeast), leastSeconds)
}

// burstReserve is the seconds that the burst, and the warm-up of the soak before it, take.
func (s *search) burstReserve(rate float64) float64 {
	return 2*s.openWarmup(rate).Seconds() + burstSeconds + recoverySteady + 2*s.openResidence(rate)
}

func (s *search) soakOnce(ctx context.Context, name string, rate, length float64) (*Observation, error) {
	l := s.open(name, curve.PurposeSoak, rate, length)
	o, err := s.put(ctx, l, func(l *Load) Monitor { return newWatch(l, 1) })
	if o != nil {
		s.study.Soak.Trials = append(s.study.Soak.Trials, o.Point)
		s.study.Soak.Seconds += o.Point.Seconds
	}
	if err == nil {
		s.take(rate, &l, o)
	}
	return o, err
}

// soakPassed tells whether a soak kept every budget, as counted, and notes whether that is proven.
func (s *search) soakPassed(o *Observation) (passed bool, why string) {
	if o.Stopped != "" {
		return false, o.Stopped
	}
	proven := true
	for _, g := range o.Point.Gates {
		if g.Kind != curve.GateFail {
			continue
		}
		if g.Name == "slo" {
			if g.Value > g.Limit {
				return false, g.Detail
			}
			proven = proven && g.Passed != nil && *g.Passed
		} else if g.Passed != nil && !*g.Passed {
			return false, g.Name + ": " + g.Detail
		}
	}
	s.study.Soak.Proven = proven
	return true, ""
}

// burst doubles the safe rate for a while and follows the engine back.
func (s *search) burst(ctx context.Context) error {
	if !s.study.SafeRate.Known() {
		return nil
	}
	rate := float64(s.study.SafeRate)
	peak := burstFactor * rate
	if s.MaxRate > 0 {
		peak = min(peak, s.MaxRate)
	}
	l := s.open(s.name("burst"), curve.PurposeBurst, rate, 0)
	before := l.Warmup
	l.Steps = []Step{{rate, before}, {peak, burstSeconds * time.Second}, {rate, seconds(s.recoverySeconds(rate, peak))}}
	w := newRecovery(&s.Traffic, before.Seconds()+burstSeconds)
	if _, err := s.put(ctx, l, func(*Load) Monitor { return w }); err != nil {
		return err
	}
	b := &curve.Burst{Factor: peak / rate, Seconds: burstSeconds, Drain: capacity.Value(w.drain), Recovery: capacity.Value(w.recovery),
		WorstTTFT: capacity.Value(w.worst), WaitingMax: capacity.Value(w.waitingMax)}
	s.study.Burst = b
	s.report("a burst of %.3g requests/s for %d s: drained after %.3g s, recovered after %.3g s", peak, burstSeconds, w.drain, w.recovery)
	return nil
}

// recoverySeconds is how long an engine is given to come back from a burst, by
// what the study has left: a little more than was planned, since nothing follows.
func (s *search) recoverySeconds(rate, peak float64) float64 {
	const more = 1.04
	before := s.openWarmup(rate).Seconds()
	left := more*s.plan.seconds - s.study.Seconds - before - burstSeconds
	byRequests := (more*float64(s.plan.requests)-float64(s.study.Requests)-peak*burstSeconds)/rate - before - s.openResidence(rate)
	return max(min(recoveryMost, left, byRequests), recoverySteady+5)
}

// recovery follows an engine after a burst, and ends the load when it has recovered. It is a Monitor.
type recovery struct {
	traffic *Traffic
	end     float64 // of the burst
	// drain and recovery in seconds after the end, NaN until they are known.
	drain, recovery float64
	worst           float64
	waitingMax      float64
	ttft            []lateness
}

// lateness is a first token, and whether it was too late.
type lateness struct {
	at   float64
	over bool
}

func newRecovery(t *Traffic, end float64) *recovery {
	return &recovery{traffic: t, end: end, drain: math.NaN(), recovery: math.NaN(), worst: math.NaN(), waitingMax: math.NaN()}
}

// Request implements Monitor.
func (r *recovery) Request(q Request) {
	if !(q.TTFT <= r.worst) && !math.IsNaN(q.TTFT) {
		r.worst = q.TTFT
	}
	for i, s := range r.traffic.SLOs(q.Class) {
		if s.Metric == "ttft" {
			r.ttft = append(r.ttft, lateness{q.Due, q.Over[i] > 0})
		}
	}
}

// Sample implements Monitor.
func (r *recovery) Sample(s Sample) string {
	if !(s.Waiting <= r.waitingMax) && !math.IsNaN(s.Waiting) {
		r.waitingMax = s.Waiting
	}
	if s.At < r.end {
		return ""
	}
	if s.Waiting == 0 && math.IsNaN(r.drain) {
		r.drain = s.At - r.end
	}
	// The time since which the share of those too late is within the budget.
	since := r.end
	budget := 0.01
	for class := range r.traffic.Classes {
		for _, slo := range r.traffic.SLOs(class) {
			if slo.Metric == "ttft" {
				budget = slo.Budget()
			}
		}
	}
	over, of := 0.0, 0.0
	for i := len(r.ttft) - 1; i >= 0; i-- {
		of++
		if r.ttft[i].over {
			over++
		}
		if over > max(budget*of, 0.5) {
			since = max(since, r.ttft[i].at)
			break
		}
	}
	if s.At-since >= recoverySteady && !(math.IsNaN(r.drain) && !math.IsNaN(s.Waiting)) {
		r.recovery = since - r.end
		return "recovered"
	}
	return ""
}
