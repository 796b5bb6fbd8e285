package probe

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"headroom_exporter/probe/workload"
)

// Result is what one point showed. Times in seconds; what is not known is null.
type Result struct {
	Name string `json:"name"`
	// Loop is open or closed.
	Loop        string `json:"loop"`
	Concurrency int    `json:"concurrency,omitempty"`
	// PlannedRate, OfferedRate and CompletedRate are requests per second: as
	// asked for, as they were due, and as they ended well inside the window.
	// What ends in the window counts though it began in the warm-up, where
	// requests were sent for the whole window.
	PlannedRate   Value `json:"planned_rate"`
	OfferedRate   Value `json:"offered_rate"`
	CompletedRate Value `json:"completed_rate"`
	// OutputTokenRate is tokens per second that requests which ended well got inside the window.
	OutputTokenRate Value `json:"output_token_rate"`
	// PromptTokenRate is prompt tokens per second of the same requests, each in
	// proportion to the part of its answer that came inside the window.
	PromptTokenRate Value `json:"prompt_token_rate"`
	// Goodput is requests per second that met every bound.
	Goodput Value `json:"goodput"`
	// Start and End are since the run's start; Window is how long was measured.
	Start  float64 `json:"start_s"`
	End    float64 `json:"end_s"`
	Window Value   `json:"window_s"`

	Groups []Group `json:"groups"`
	Gates  []Gate  `json:"gates,omitempty"`

	PeakInFlight int `json:"peak_in_flight"`
	// Capped counts requests that a cap held back, Unsent those that it never let go.
	Capped int `json:"capped"`
	Unsent int `json:"unsent"`
	// ScheduleLag is from when a request could have gone to its first byte.
	ScheduleLag     Summary `json:"schedule_lag"`
	NewConnections  int     `json:"new_connections"`
	ConnectionSetup Summary `json:"connection_setup"`
	// Texts counts prompts that were sent as text, PromptMisses those of them
	// that were more than 2 % and 4 tokens from the length asked for.
	Texts        int `json:"texts,omitempty"`
	PromptMisses int `json:"prompt_misses,omitempty"`
	// OtherModels counts answers that name another model than was asked for, OtherModel is the first such.
	OtherModels int            `json:"other_models,omitempty"`
	OtherModel  string         `json:"other_model,omitempty"`
	LongestGap  Value          `json:"longest_gap_s"`
	Stalls      []StallSpan    `json:"stalls,omitempty"`
	Errors      map[string]int `json:"errors,omitempty"`
	Self        Self           `json:"self"`
	Engine      *EngineSummary `json:"engine,omitempty"`
	GPUs        []GPUSummary   `json:"gpus,omitempty"`
	Interrupted bool           `json:"interrupted,omitempty"`

	// Faults are why the result must not be used, Warnings what to know when using it.
	Faults   []Fault `json:"faults,omitempty"`
	Warnings []Fault `json:"warnings,omitempty"`
}

// Group is one class, tenant, scenario or bucket of prompt lengths, or all of them.
type Group struct {
	Dimension string `json:"dimension"`
	Name      string `json:"name,omitempty"`
	// Attempts are requests that count; Violations those that failed or passed a bound.
	Attempts   int             `json:"attempts"`
	Violations int             `json:"violations"`
	Outcomes   map[Outcome]int `json:"outcomes"`
	Attainment Value           `json:"attainment"`
	// Prompt and Output are mean lengths in tokens of requests that ended well.
	Prompt   Value   `json:"prompt_tokens_mean"`
	Output   Value   `json:"output_tokens_mean"`
	TTFT     Summary `json:"ttft"`
	TTFTSent Summary `json:"ttft_sent"`
	TTFO     Summary `json:"ttfo"`
	TPOT     Summary `json:"tpot"`
	ITL      Summary `json:"itl"`
	ICL      Summary `json:"icl"`
	E2E      Summary `json:"e2e"`
}

// Failures counts requests that did not end as asked, by the engine's doing.
func (g *Group) Failures() int {
	n := 0
	for o, count := range g.Outcomes {
		if o != OK && o != Cancelled {
			n += count
		}
	}
	return n
}

// Gate is one bound of one class, looked at.
type Gate struct {
	Class string       `json:"class"`
	SLO   workload.SLO `json:"slo"`
	// Value is the percentile over all attempts, failures counted as infinite; null when it is
	// infinite or the attempts are too few.
	Value Value   `json:"value"`
	N     float64 `json:"n"`
	// Passed is null when the attempts are too few to tell.
	Passed *bool `json:"passed"`
}

// Fault is a reason with its evidence.
type Fault struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// The codes of faults and warnings.
const (
	FaultClientLimited  = "client_limited"
	FaultFailures       = "failures"
	FaultLengthMismatch = "length_mismatch"
	FaultStall          = "stall"
	FaultCapped         = "capped"
	FaultInterrupted    = "interrupted"
	FaultNothing        = "nothing_measured"
	FaultCacheHits      = "prefix_cache_hits"
	FaultGate           = "slo"
	FaultTooFew         = "too_few_requests"
	FaultCrossCheck     = "ttft_disagrees"
	FaultEngineUnread   = "engine_not_read"
	FaultPreemptions    = "preemptions"
	FaultTokens         = "tokens_not_counted"
	FaultForeign        = "foreign_traffic"
	FaultPromptLength   = "prompt_length"
	FaultOtherModel     = "other_model"
)

// StallSpan is a stall in seconds since the run's start.
type StallSpan struct {
	From    float64 `json:"from_s"`
	To      float64 `json:"to_s"`
	Streams int     `json:"streams"`
}

func (r *Result) setStalls(stalls []Stall, start time.Duration) {
	for _, s := range stalls {
		r.Stalls = append(r.Stalls, StallSpan{From: (s.From - start).Seconds(), To: (s.To - start).Seconds(), Streams: s.Streams})
	}
}

// All is the group of all requests.
func (r *Result) All() *Group {
	for i := range r.Groups {
		if r.Groups[i].Dimension == byAll {
			return &r.Groups[i]
		}
	}
	return &Group{}
}

// gates looks at every bound of every class.
func (r *Result) gates(p *Point, m *measurement) {
	var classes []string
	for k := range m.groups {
		if k.dimension == byClass {
			classes = append(classes, k.name)
		}
	}
	slices.Sort(classes)
	for _, class := range classes {
		g := m.groups[groupKey{byClass, class}]
		for _, slo := range p.slos(class) {
			r.Gates = append(r.Gates, g.gate(class, slo))
		}
	}
}

func (g *group) gate(class string, slo workload.SLO) Gate {
	d := g.values(slo.Metric)
	// An attempt without a value counts as infinitely late. Only TPOT may be
	// absent from a good answer (of one token), and gaps have no attempts.
	missing := max(float64(g.attempts)-d.N(), 0)
	switch slo.Metric {
	case "tpot":
		missing = min(missing, float64(g.attempts-g.outcomes[OK]))
	case "itl", "icl":
		missing = 0
	}
	v := d.Percentile(slo.Percentile, missing)
	gate := Gate{Class: class, SLO: slo, Value: Value(v), N: d.N() + missing}
	if !math.IsNaN(v) {
		passed := v <= slo.Bound.Seconds()
		gate.Passed = &passed
	}
	return gate
}

// Limits of the client's own part in a result.
const (
	// maxLag is the schedule lag at p99, in seconds, above which the client is measured with the engine.
	maxLag = 0.010
	// maxLagShare of the tightest bound that starts at the schedule does so too.
	maxLagShare = 0.05
	// maxMismatchShare of requests may have another length than asked for.
	maxMismatchShare = 0.01
	// maxFailureShare of requests may fail.
	maxFailureShare = 0.01
	// maxHitShare of the looked up prompt tokens may come from the prefix cache unasked.
	maxHitShare = 0.01
)

// judge finds the faults.
func (r *Result) judge(p *Point) {
	all := r.All()
	fault := func(code, format string, args ...any) {
		r.Faults = append(r.Faults, Fault{code, fmt.Sprintf(format, args...)})
	}
	warn := func(code, format string, args ...any) {
		r.Warnings = append(r.Warnings, Fault{code, fmt.Sprintf(format, args...)})
	}
	if r.Interrupted {
		fault(FaultInterrupted, "it was ended early")
	}
	if all.TTFT.N == 0 {
		fault(FaultNothing, "no request brought a token")
	}
	if n := all.Failures(); all.Attempts > 0 && float64(n) > maxFailureShare*float64(all.Attempts) {
		fault(FaultFailures, "%d of %d requests failed: %s", n, all.Attempts, r.mostErrors())
	} else if n > 0 {
		warn(FaultFailures, "%d of %d requests failed: %s", n, all.Attempts, r.mostErrors())
	}
	if n := all.Outcomes[LengthMismatch]; float64(n) > maxMismatchShare*float64(all.Attempts) {
		fault(FaultLengthMismatch, "%d of %d answers have another length than was asked for", n, all.Attempts)
	}
	for _, s := range r.Stalls {
		fault(FaultStall, "nothing came on %d streams for %.1f s, from second %.1f on: percentiles of such a run describe the stall", s.Streams, s.To-s.From, s.From)
	}
	r.judgeClient(p, fault)
	if r.Capped > 0 {
		fault(FaultCapped, "a cap held %d requests back (%d were never sent): the load was less open than asked for", r.Capped, r.Unsent)
	}
	switch {
	case all.TTFT.N == 0 || all.Outcomes[OK] == 0:
	case math.IsNaN(float64(all.Output)):
		warn(FaultTokens, "the engine does not say how many tokens it made, so that TPOT is not known")
	case all.TPOT.N == 0 && all.Output > 1:
		warn(FaultTokens, "every answer came at one moment, so that TPOT is not known")
	}
	if float64(r.PromptMisses) > maxMismatchShare*float64(r.Texts) {
		warn(FaultPromptLength, "%d of %d prompts sent as text are more than 2 %% and 4 tokens from the length asked for", r.PromptMisses, r.Texts)
	}
	if r.OtherModels > 0 {
		warn(FaultOtherModel, "%d answers name another model than was asked for: %q", r.OtherModels, r.OtherModel)
	}
	for _, g := range r.Gates {
		switch {
		case g.Passed == nil:
			fault(FaultTooFew, "%s: %.0f requests of class %q are too few for a p%g", g.SLO, g.N, g.Class, g.SLO.Percentile)
		case !*g.Passed:
			what := "is infinite, failures count"
			if !math.IsInf(float64(g.Value), 0) {
				what = "is " + seconds(float64(g.Value))
			}
			fault(FaultGate, "%s of class %q: p%g %s", g.SLO, g.Class, g.SLO.Percentile, what)
		}
	}
	if r.Engine != nil {
		r.Engine.judge(p, fault, warn)
	}
}

// judgeClient finds whether the client could keep its schedule.
func (r *Result) judgeClient(p *Point, fault func(code, format string, args ...any)) {
	lag, at := float64(r.ScheduleLag.P99), "at p99"
	if math.IsNaN(lag) {
		// Of fewer than 100 requests, one that was late is more than 1 %.
		lag, at = float64(r.ScheduleLag.Max), fmt.Sprintf("at most, of %.0f requests", r.ScheduleLag.N)
	}
	if limit, of := r.lagLimit(); lag > limit {
		why := "the client itself"
		if r.Self.CPUShare < maxCPUShare/2 {
			why = "something else"
		}
		fault(FaultClientLimited, "requests went out %s late %s, more than %s: %s kept this machine busy; the client used %.0f %% of its CPUs, connection set-up took %s at most",
			seconds(lag), at, of, why, 100*float64(r.Self.CPUShare), seconds(float64(r.ConnectionSetup.Max)))
	}
	if share := float64(r.Self.CPUShare); share > maxCPUShare {
		fault(FaultClientLimited, "the client used %.0f %% of its CPUs", 100*share)
	}
}

// lagLimit is how late requests may go out, in seconds, and in words what that is of.
func (r *Result) lagLimit() (limit float64, of string) {
	limit, of = maxLag, "10 ms"
	for _, g := range r.Gates {
		bound := g.SLO.Bound.Seconds()
		if (g.SLO.Metric == "ttft" || g.SLO.Metric == "ttfo" || g.SLO.Metric == "e2e") && bound*maxLagShare < limit {
			limit, of = bound*maxLagShare, fmt.Sprintf("5 %% of %s", g.SLO)
		}
	}
	return limit, of
}

// mostErrors names the most frequent errors.
func (r *Result) mostErrors() string {
	texts := make([]string, 0, len(r.Errors))
	for text := range r.Errors {
		if !strings.HasPrefix(text, string(Cancelled)) {
			texts = append(texts, text)
		}
	}
	slices.SortFunc(texts, func(a, b string) int {
		if d := r.Errors[b] - r.Errors[a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	const shown = 3
	var out []string
	for _, text := range texts[:min(shown, len(texts))] {
		out = append(out, fmt.Sprintf("%d x %s", r.Errors[text], text))
	}
	if more := len(texts) - shown; more > 0 {
		out = append(out, fmt.Sprintf("%d more kinds", more))
	}
	return strings.Join(out, "; ")
}

// Usable tells that no fault forbids to use the result.
func (r *Result) Usable() bool { return len(r.Faults) == 0 }

// seconds writes a time in the unit that suits it.
func seconds(s float64) string {
	switch {
	case math.IsNaN(s), math.IsInf(s, 0):
		return "-"
	case s < 0.001:
		return fmt.Sprintf("%.0f µs", s*1e6)
	case s < 0.1:
		return fmt.Sprintf("%.2f ms", s*1e3)
	case s < 1:
		return fmt.Sprintf("%.0f ms", s*1e3)
	case s < 100:
		return fmt.Sprintf("%.2f s", s)
	}
	return fmt.Sprintf("%.0f s", s)
}
