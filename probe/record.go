package probe

import (
	"math"
	"strconv"
	"time"

	"headroom_exporter/probe/workload"
)

// Phase is the part of a point that a request belongs to.
type Phase string

// The phases. Only requests of PhaseMeasure count.
const (
	PhaseWarmup  Phase = "warmup"
	PhasePrime   Phase = "prime"
	PhaseMeasure Phase = "measure"
	PhaseDrain   Phase = "drain"
)

// Record is one request as it is measured and written. Moments are seconds
// since the run's start; NaN and negative counts are unknown and are left out.
type Record struct {
	Point, Class, Tenant, Scenario, Session string
	Index, Turn                             int
	Phase                                   Phase

	Scheduled, Sent, Headers, FirstToken, LastToken, End float64
	// Connect is how long the request waited for a connection, in seconds.
	Connect float64

	// PromptTokens is what the engine counted, else what was asked for.
	PromptTokens, CompletionTokens, CachedTokens int
	Chunks                                       int

	// TTFT and E2E run from the scheduled moment, TTFTSent from the first byte
	// written, TTFO is TTFT of the first token that is no reasoning. ITL is
	// the request's mean, ICL its longest gap. In seconds.
	TTFT, TTFTSent, TTFO, TPOT, ITL, ICL, E2E float64

	Outcome Outcome
	Status  int
	Error   string
	// Violation tells that the request failed or passed an SLO's bound.
	Violation bool
}

func newRecord(point string, r *workload.Request, due time.Duration, x *Exchange, start time.Duration, phase Phase) Record {
	since := func(t time.Duration) float64 {
		if t < 0 {
			return math.NaN()
		}
		return (t - start).Seconds()
	}
	between := func(from, to time.Duration) float64 {
		if from < 0 || to < 0 {
			return math.NaN()
		}
		return (to - from).Seconds()
	}
	known := func(v float64, ok bool) float64 {
		if !ok {
			return math.NaN()
		}
		return v
	}
	rec := Record{
		Point: point, Class: r.Class, Tenant: r.Tenant, Scenario: r.Scenario, Session: r.SessionID,
		Index: r.Index, Turn: r.Turn, Phase: phase,
		Scheduled: since(due), Sent: since(x.Sent), Headers: since(x.Headers),
		FirstToken: since(x.First), LastToken: since(x.Last), End: since(x.End),
		Connect:      x.Connect.Seconds(),
		PromptTokens: x.PromptTokens, CompletionTokens: x.CompletionTokens, CachedTokens: x.CachedTokens,
		Chunks: x.Chunks,
		TTFT:   between(due, x.First), TTFTSent: between(x.Sent, x.First), TTFO: between(due, x.FirstOutput),
		TPOT: known(x.TPOT()), ITL: known(x.ITL()), E2E: math.NaN(), ICL: math.NaN(),
		Outcome: x.Outcome, Status: x.Status, Error: x.Error,
	}
	if rec.PromptTokens < 0 {
		rec.PromptTokens = r.PromptTokens
	}
	if len(x.Gaps) > 0 {
		rec.ICL = x.LongestGap().Seconds()
	}
	if x.Outcome == OK || x.Outcome == LengthMismatch {
		rec.E2E = between(due, x.Last)
	}
	return rec
}

// metric returns the value that an SLO on the metric looks at; NaN when unknown.
func (r *Record) metric(name string) float64 {
	switch name {
	case "ttft":
		return r.TTFT
	case "ttft_sent":
		return r.TTFTSent
	case "ttfo":
		return r.TTFO
	case "tpot":
		return r.TPOT
	case "itl":
		return r.ITL
	case "icl":
		return r.ICL
	case "e2e":
		return r.E2E
	}
	return math.NaN()
}

// Failed tells that the request did not end as asked, by the engine's doing.
func (r *Record) Failed() bool { return r.Outcome != OK && r.Outcome != Cancelled }

// judge sets Violation. What the probe cancelled is censored: it violates
// when it was older than a bound already.
func (r *Record) judge(slos []workload.SLO) {
	r.Violation = r.Failed()
	for _, s := range slos {
		bound := s.Bound.Seconds()
		if r.metric(s.Metric) > bound {
			r.Violation = true
		}
		if r.Outcome == Cancelled && r.age(s.Metric) > bound {
			r.Violation = true
		}
	}
}

// age is how long a cancelled request had waited for what the metric measures.
func (r *Record) age(metric string) float64 {
	switch {
	case metric == "e2e", (metric == "ttft" || metric == "ttfo") && math.IsNaN(r.FirstToken):
		return r.End - r.Scheduled
	}
	return math.NaN()
}

// appendJSON appends the record as one line, without the line feed.
func (r *Record) appendJSON(b []byte) []byte {
	b = append(b, '{')
	text := func(name, v string) {
		if v != "" {
			b = appendString(appendName(b, name), v)
		}
	}
	integer := func(name string, v int) { b = strconv.AppendInt(appendName(b, name), int64(v), 10) }
	number := func(name string, v float64) {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			b = strconv.AppendFloat(appendName(b, name), math.Round(v*1e9)/1e9, 'f', -1, 64)
		}
	}
	text("point", r.Point)
	text("class", r.Class)
	text("tenant", r.Tenant)
	text("scenario", r.Scenario)
	text("session", r.Session)
	integer("index", r.Index)
	if r.Session != "" {
		integer("turn", r.Turn)
	}
	text("phase", string(r.Phase))
	number("scheduled_s", r.Scheduled)
	number("sent_s", r.Sent)
	number("headers_s", r.Headers)
	number("first_token_s", r.FirstToken)
	number("last_token_s", r.LastToken)
	number("end_s", r.End)
	number("connect_s", r.Connect)
	for _, c := range [...]struct {
		name  string
		count int
	}{{"prompt_tokens", r.PromptTokens}, {"completion_tokens", r.CompletionTokens}, {"cached_tokens", r.CachedTokens}} {
		if c.count >= 0 {
			integer(c.name, c.count)
		}
	}
	integer("chunks", r.Chunks)
	number("ttft_s", r.TTFT)
	number("ttft_sent_s", r.TTFTSent)
	number("ttfo_s", r.TTFO)
	number("tpot_s", r.TPOT)
	number("itl_s", r.ITL)
	number("icl_max_s", r.ICL)
	number("e2e_s", r.E2E)
	text("outcome", string(r.Outcome))
	if r.Status != 0 {
		integer("status", r.Status)
	}
	text("error", r.Error)
	if r.Violation {
		b = append(appendName(b, "violation"), "true"...)
	}
	return append(b, '}')
}

// appendName appends a member's name, after a comma unless it is the first.
func appendName(b []byte, name string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	return append(append(append(b, '"'), name...), '"', ':')
}
