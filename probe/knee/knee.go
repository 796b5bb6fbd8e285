// Package knee finds how much load of a kind an engine takes under tail SLOs:
// the closed-loop ceiling, the knee, a safe rate that is soaked, and how it
// stands a burst. It decides what to send and judges what came back; an
// Engine sends it, on the wall clock or on a virtual one.
package knee

import (
	"context"
	"errors"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/workload"
)

// Traffic is what the requests of a study are like; the study varies its rate only.
type Traffic struct {
	// Name of the class, or of the mix.
	Name string
	// Classes by their weights; one for a class alone.
	Classes  []workload.Class
	Arrivals curve.Arrivals
	// SLO bounds every class that has none of its own.
	SLO []capacity.SLO
	// Replay is the trace of arrivals from a trace; its speed follows from the
	// rate. nil for other arrivals.
	Replay *workload.Replay
}

// SLOs are the bounds of a class by its index.
func (t *Traffic) SLOs(class int) []capacity.SLO {
	if s := t.Classes[class].SLO; len(s) > 0 {
		return s
	}
	return t.SLO
}

// Load is one load to put on an engine.
type Load struct {
	// Name is unique within a run: with the same name and the same run it is the same load.
	Name string
	// Repeats is the name of the load that was void and is put again with this one; empty for none.
	Repeats string
	Purpose curve.Purpose
	Traffic *Traffic
	// Pause is for how long the engine and the client are left alone ahead of the load.
	Pause time.Duration
	// Concurrency is the closed loop's number of requests in flight; 0 is open loop.
	Concurrency int
	// Steps are the open loop's rates, one after the other; the closed loop has one, with the rate 0.
	Steps []Step
	// Prime is how many requests are launched at 0, with uniformly random
	// shares of their output left, so that the engine is as full as it will be. They do not count.
	Prime int
	// Warmup is how long at the beginning, within the first step, requests do not count.
	Warmup time.Duration
	// Seed of arrivals and lengths. Prompts' contents are never the same twice.
	Seed uint64
}

// Step is a rate, in requests per second, for a time.
type Step struct {
	Rate     float64
	Duration time.Duration
}

// Duration of all steps.
func (l *Load) Duration() time.Duration {
	var d time.Duration
	for _, s := range l.Steps {
		d += s.Duration
	}
	return d
}

// Request is one request that counts, as it ended. Times are seconds since
// the load's start; what is not known is NaN.
type Request struct {
	// Class is the index in Traffic.Classes.
	Class int
	// Due is when it was scheduled, End when it ended.
	Due, End        float64
	TTFT, TPOT, E2E float64
	// OK tells that it ended as asked.
	OK bool
	// PromptTokens and OutputTokens are its lengths as they were planned; 0 is unknown.
	PromptTokens, OutputTokens int
	// Over of Of trials passed the bound, for each of the class's SLOs: one trial
	// per request, or per gap between tokens for ITL and ICL. A request that
	// failed is over in one trial more.
	Over, Of []float64
}

// Sample is the engine and the client at a moment, in seconds since the
// load's start. What is not known is NaN.
type Sample struct {
	At                        float64
	Running, Waiting, KVUsage float64
	// Preemptions since the load's start.
	Preemptions float64
	// Due and Done are requests so far, all phases; Unsent of those due are held back by a cap.
	Due, Done, Unsent int
}

// Monitor follows a load. It is called from one goroutine at a time.
type Monitor interface {
	// Request takes a request that counts, in the order of their ends.
	Request(Request)
	// Sample takes a reading, about four a second, and returns why the load is
	// to be ended early; empty goes on.
	Sample(Sample) (stop string)
}

// Observation is what a load did.
type Observation struct {
	// Point has the rates, latencies, readings and the gates about validity
	// (client, prefix cache hits, length) filled in; Search adds its own.
	Point curve.Point
	// Requests that count, in the order of Due.
	Requests []Request
	Samples  []Sample
	// Stopped is what the Monitor said; empty when the load ran to its end.
	// Then requests in flight were cancelled, and are not among Requests unless
	// they had passed a bound already.
	Stopped string
}

// Engine puts loads on an engine, one at a time.
type Engine interface {
	// Run puts a load on the engine once it is as idle as it was before the
	// search, and returns what it did. The monitor may be nil. When the context
	// ends, what was measured is returned with the context's error. ErrHarm and
	// ErrBusy end a search.
	Run(ctx context.Context, l *Load, m Monitor) (*Observation, error)
}

// Errors that an Engine wraps.
var (
	// ErrHarm is of a load that was aborted because it hurt others or the GPU.
	ErrHarm = errors.New("aborted for safety")
	// ErrBusy is of an engine that did not become as idle as before.
	ErrBusy = errors.New("the engine does not become idle")
)

// Mode is how much a search proves.
type Mode string

// The modes.
const (
	// Quick is the ceiling and three points: an estimate.
	Quick Mode = "quick"
	// Full is the whole procedure.
	Full Mode = "full"
	// Release has more requests a point, a lower safe rate and a longer soak.
	Release Mode = "release"
)

// Limits are the engine's own, for a cross-check; 0 is unknown.
type Limits struct {
	MaxNumSeqs          int
	MaxNumBatchedTokens int
	KVTokens            float64
	MaxModelLen         int
}

// Config is one search.
type Config struct {
	Engine  Engine
	Traffic Traffic
	Mode    Mode
	Limits  Limits
	// MaxRate in requests per second and MaxRequests bound what is sent; 0 is no bound.
	// A load that would pass MaxRequests is not begun; what a closed loop sends is known once one was measured.
	MaxRate     float64
	MaxRequests int
	// PeakReserve is the share of the knee kept for peaks.
	PeakReserve float64
	// Prior is a study of the same classes under other arrivals, where the
	// search begins; nil without.
	Prior *curve.Study
	Seed  uint64
	// Report is told what is done and why, in a line; may be nil.
	Report func(line string)
}
