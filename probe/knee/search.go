package knee

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// ErrInvalid is of a search that cannot go on because what it measures is not
// the engine: the client was too slow, answers came from the prefix cache, or
// lengths were not as asked.
var ErrInvalid = errors.New("what was measured is not the engine")

// plan is what a mode spends.
type plan struct {
	// requests and seconds bound a study; they include those of the soak.
	requests int
	seconds  float64
	// probes at most, each of so many requests at least if time allows.
	probes, pointRequests int
	pointSeconds          float64
	// margin of the safe rate below the knee.
	margin      float64
	soakSeconds float64
}

var plans = map[Mode]plan{
	Quick:   {requests: 4000, seconds: 240, probes: 3, pointRequests: 200, pointSeconds: 40, margin: 0.95},
	Full:    {requests: 11400, seconds: 1140, probes: 5, pointRequests: 400, pointSeconds: 100, margin: 0.95, soakSeconds: 300},
	Release: {requests: 60000, seconds: 4800, probes: 6, pointRequests: 800, pointSeconds: 180, margin: 0.93, soakSeconds: 600},
}

// errSpent ends a search that would send more than MaxRequests.
var errSpent = errors.New("the bound of requests is reached")

// search is a search under way.
type search struct {
	Config
	plan  plan
	study *curve.Study
	notes []string

	// unit are requests of the traffic at one a second: what its lengths are
	// like. endless are many more, drawn when a knee is to be exact.
	unit, endless []job
	// steps of the ceiling, and what they showed: the most that is served,
	// seconds in the engine, slots, and the engine as a queue, nil when it is not known.
	steps                []closedPoint
	mu, residence, slots float64
	queue                *queue

	// probes are the open-loop points, the soaks among them.
	probes  []probe
	replays *replays
}

// probe is an open-loop point.
type probe struct {
	rate float64
	load *Load
	obs  *Observation
	// replay is the index of the point's replay; -1 without.
	replay int
}

// Search finds the knee of one kind of traffic and a safe rate below it. A
// search that ends early returns what it has found, with the error of the
// context, ErrHarm, ErrBusy or ErrInvalid.
func Search(ctx context.Context, c Config) (*curve.Study, error) {
	s, err := newSearch(c)
	if err != nil {
		return nil, err
	}
	err = s.run(ctx)
	if errors.Is(err, errSpent) {
		s.settleSpent(err)
		err = nil
	}
	if err != nil {
		s.study.Status = curve.StatusInterrupted
		s.study.Reason = err.Error()
		s.study.SafeRate = capacity.Unknown()
	}
	s.finish()
	if err == nil {
		s.report("%s", s.outcome())
	}
	return s.study, err
}

// outcome of a search that came to its end, in a line.
func (s *search) outcome() string {
	if k := s.study.Knee; k != nil && k.Rate.Known() {
		return fmt.Sprintf("done: the knee is %.3g requests/s (%.3g to %.3g)", float64(k.Rate), float64(k.Low), float64(k.High))
	}
	return "done: " + s.study.Reason
}

func newSearch(c Config) (*search, error) {
	if c.Engine == nil || len(c.Traffic.Classes) == 0 {
		return nil, errors.New("a knee search needs an engine and a class")
	}
	p, ok := plans[c.Mode]
	if !ok {
		return nil, fmt.Errorf("knee search: no mode %q, want quick, full or release", c.Mode)
	}
	for i := range c.Traffic.Classes {
		if len(c.Traffic.SLOs(i)) == 0 {
			return nil, fmt.Errorf("class %s: a knee needs an SLO such as ttft:p99:800ms", c.Traffic.Classes[i].Name)
		}
	}
	if c.MaxRequests > 0 {
		p.requests = c.MaxRequests
	}
	u := capacity.Unknown()
	return &search{
		Config: c, plan: p, mu: math.NaN(), residence: math.NaN(), slots: math.NaN(),
		study: &curve.Study{Arrivals: c.Traffic.Arrivals, SafeRate: u, Status: curve.StatusInterrupted},
	}, nil
}

func (s *search) run(ctx context.Context) error {
	if err := s.drawLengths(); err != nil {
		return err
	}
	if err := s.warmUp(ctx); err != nil {
		return err
	}
	if s.Prior != nil && s.Prior.Ceiling != nil {
		s.takePrior()
	} else if err := s.findCeiling(ctx); err != nil {
		return err
	}
	if !(s.mu > 0) {
		return fmt.Errorf("%s: nothing was served in closed loop: %w", s.Traffic.Name, ErrInvalid)
	}
	if err := s.probeKnee(ctx); err != nil {
		return err
	}
	s.settleKnee()
	if s.study.Status == curve.StatusNoSafeRate {
		return nil
	}
	if s.Mode == Quick {
		s.estimate()
		return nil
	}
	if err := s.soak(ctx); err != nil {
		return err
	}
	return s.burst(ctx)
}

// name is a load's, unique within a run.
func (s *search) name(format string, args ...any) string {
	shape := s.Traffic.Arrivals.Process
	if s.Traffic.Arrivals.Burstiness != 0 {
		shape = fmt.Sprintf("%s-%g", shape, s.Traffic.Arrivals.Burstiness)
	}
	return s.Traffic.Name + " " + shape + " " + fmt.Sprintf(format, args...)
}

func (s *search) report(format string, args ...any) {
	if s.Report != nil {
		s.Report(s.Traffic.Name + ": " + fmt.Sprintf(format, args...))
	}
}

// seed of a load or of a draw follows from its name: a search that is begun again asks for the same.
func (s *search) seed(name string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", s.Seed, name)
	return h.Sum64()
}

const (
	// attempts is how often a load is put at most, until it is not void.
	attempts = 3
	// pause is how long is waited ahead of the last one: what made the client
	// slow twice in a row may go by.
	pause = 5 * time.Second
)

// repetition makes of a load that was void the n-th one in its place. The
// journal knows them by their names: they are the same in every run.
func repetition(l *Load, n int) {
	if n == 1 {
		l.Repeats = l.Name
	}
	l.Name = l.Repeats + " again"
	if n > 1 {
		l.Name += fmt.Sprintf(" %d", n)
	}
	if n == attempts-1 {
		l.Pause = pause
	}
}

// voidError is of a load that was void each time, with what a person can do.
func voidError(l *Load, gate *curve.Gate) error {
	advice := ""
	if gate.Name == "client" {
		advice = "; the probe needs a quieter machine, a CPU of its own or a higher priority (chrt -r 1)"
	}
	return fmt.Errorf("%s, %d times: %w: %s: %s%s", cmp.Or(l.Repeats, l.Name), attempts, ErrInvalid, gate.Name, gate.Detail, advice)
}

// put puts a load on the engine. A load that turns out invalid is put again, twice at most.
func (s *search) put(ctx context.Context, l Load, monitor func(*Load) Monitor) (*Observation, error) {
	l.Traffic = &s.Traffic
	for attempt := 1; ; attempt++ {
		l.Seed = s.seed(l.Name)
		if s.MaxRequests > 0 && s.study.Requests+s.planned(&l) > s.MaxRequests {
			return nil, fmt.Errorf("%s: %w: %d of %d were sent", l.Name, errSpent, s.study.Requests, s.MaxRequests)
		}
		var m Monitor
		if monitor != nil {
			m = monitor(&l)
		}
		o, err := s.Engine.Run(ctx, &l, m)
		if o != nil {
			s.spend(&l, o)
		}
		if err != nil {
			if o != nil && l.Purpose == curve.PurposeProbe {
				judge(&l, o)
				o.Point.Passed = nil
				o.Point.Faults = append(o.Point.Faults, err.Error())
				s.study.Points = append(s.study.Points, o.Point)
			}
			return o, fmt.Errorf("%s: %w", l.Name, err)
		}
		if l.Purpose == curve.PurposeProbe || l.Purpose == curve.PurposeSoak {
			trim(&l, o)
		}
		judge(&l, o)
		gate := invalid(&o.Point)
		if gate == nil {
			return o, nil
		}
		o.Point.Faults = append(o.Point.Faults, gate.Name+": "+gate.Detail)
		s.study.Points = append(s.study.Points, o.Point)
		if attempt == attempts {
			return o, voidError(&l, gate)
		}
		s.report("%s cannot be used and is done again: %s: %s", l.Name, gate.Name, gate.Detail)
		repetition(&l, attempt)
	}
}

// planned is about how many requests a load will send.
func (s *search) planned(l *Load) int {
	n := float64(l.Prime + l.Concurrency)
	if l.Concurrency > 0 && s.mu > 0 {
		n += s.mu * l.Duration().Seconds()
	}
	for _, step := range l.Steps {
		n += step.Rate * step.Duration.Seconds()
	}
	return int(n)
}

// settleSpent makes the most of what was measured before the requests ran out.
func (s *search) settleSpent(err error) {
	passed, failed := s.bracket()
	switch {
	case s.study.SafeRate.Known():
		s.note("there was no burst: %v", err)
		return
	case len(s.probes) > 0 && s.study.Knee == nil:
		s.settleKnee()
	}
	switch {
	case s.study.Status == curve.StatusNoSafeRate:
	case s.study.Knee != nil && passed > 0 && !math.IsInf(failed, 1):
		s.setSafe(s.safe())
		s.study.Status, s.study.Reason = curve.StatusProvisional, "nothing was soaked: "+err.Error()
	default:
		s.study.Status, s.study.Reason = curve.StatusNotReached, err.Error()
	}
}

// spend adds what a load took.
func (s *search) spend(l *Load, o *Observation) {
	if n := len(o.Samples); n > 0 {
		s.study.Requests += o.Samples[n-1].Due
		s.study.Seconds += o.Samples[n-1].At
		return
	}
	s.study.Requests += l.Prime + o.Point.Attempts
	s.study.Seconds += l.Duration().Seconds()
}

// finish fills in what follows from the points.
func (s *search) finish() {
	s.noteExtrapolated()
	if len(s.notes) > 0 {
		s.study.Reason = strings.Join(append(slices.DeleteFunc([]string{s.study.Reason}, func(r string) bool { return r == "" }), s.notes...), "; ")
	}
	s.study.Curve = s.violationCurves()
}

// drawLengths draws what the traffic's requests are like.
func (s *search) drawLengths() (err error) {
	s.unit, err = s.draw(unitJobs)
	return err
}

// draw draws requests of the traffic at one a second, the same ones each time.
func (s *search) draw(n int) ([]job, error) {
	t := s.Traffic
	if t.Arrivals.Process == "trace" {
		t.Arrivals = curve.Arrivals{Process: "poisson"}
	}
	jobs, err := drawJobs(&t, s.Limits.MaxModelLen, s.seed("endless"), n)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Traffic.Name, err)
	}
	return jobs, nil
}

// takePrior begins where a study under other arrivals ended.
func (s *search) takePrior() {
	c := *s.Prior.Ceiling
	s.study.Ceiling = &c
	s.mu, s.residence, s.slots = float64(c.Rate), float64(c.Residence), float64(c.SequenceSlots)
	s.study.Baseline = s.Prior.Baseline
	s.queue = learnQueue(c.Steps, nil, s.unit, s.Limits)
}

// rng draws for a purpose.
func (s *search) rng(name string) *rand.Rand {
	seed := s.seed(name)
	return rand.New(rand.NewPCG(seed, seed>>1))
}

// open is an open-loop load at a rate, primed and with a warm-up.
func (s *search) open(name string, purpose curve.Purpose, rate float64, measured float64) Load {
	warmup := s.openWarmup(rate)
	return Load{
		Name: name, Purpose: purpose, Prime: int(math.Round(rate * s.openResidence(rate))), Warmup: warmup,
		Steps: []Step{{Rate: rate, Duration: warmup + seconds(measured)}},
	}
}

// openResidence is the seconds that a request is in the engine at a rate, without a wait.
func (s *search) openResidence(rate float64) float64 {
	if s.queue == nil {
		return s.residence
	}
	var total job
	for _, j := range s.unit {
		total.prompt += j.prompt
		total.output += j.output
	}
	prompt, output := total.prompt/float64(len(s.unit)), total.output/float64(len(s.unit))
	// Little's law with a pace that depends on how many run: a fixed point.
	r := s.queue.residence(prompt, output, 1)
	for range 30 {
		r = s.queue.residence(prompt, output, int(min(rate*r, s.slots)))
	}
	return min(r, s.residence)
}

// openWarmup lets the primed engine come into the state that the rate gives it.
func (s *search) openWarmup(rate float64) time.Duration {
	return seconds(min(max(6, 3*s.openResidence(rate)), 60))
}
