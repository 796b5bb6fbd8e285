package probe

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// maxGroups bounds the tenants and scenarios that are told apart.
const maxGroups = 200

// group gathers what one class, tenant, scenario or prompt length did.
type group struct {
	attempts, violations int
	outcomes             map[Outcome]int
	ttft, ttftSent, ttfo Distribution
	tpot, itl, icl, e2e  Distribution
	// completions and promptTokens, completionTokens are of requests that ended
	// as asked; counted of them say how many tokens came.
	completions, counted           int
	promptTokens, completionTokens float64
}

// values returns the distribution that an SLO's metric looks at.
func (g *group) values(metric string) *Distribution {
	switch metric {
	case "ttft":
		return &g.ttft
	case "ttft_sent":
		return &g.ttftSent
	case "ttfo":
		return &g.ttfo
	case "tpot":
		return &g.tpot
	case "itl":
		return &g.itl
	case "icl":
		return &g.icl
	case "e2e":
		return &g.e2e
	}
	return nil
}

type groupKey struct{ dimension, name string }

// The dimensions by which requests are told apart.
const (
	byAll      = "all"
	byClass    = "class"
	byTenant   = "tenant"
	byScenario = "scenario"
	byPrompt   = "prompt_tokens"
)

// measurement gathers the requests of one point. Its memory does not grow with their number.
type measurement struct {
	mu     sync.Mutex
	groups map[groupKey]*group
	names  map[string]int
	// lag is from when a request could have gone to when its first byte did.
	lag, connect Distribution
	newConns     int
	cappedCount  int
	unsentCount  int
	errors       map[string]int
	// texts were sent instead of token ids; promptMisses of them were not as long as asked for.
	texts, promptMisses int
	longestGap          float64
	// otherModels are answers that name another model, otherModel the first such.
	otherModels int
	otherModel  string
	// firstDue, lastDue and lastEnd bound the requests that count, which are due
	// in number, censored ones too.
	firstDue, lastDue, lastEnd time.Duration
	due                        int
	// What was served: by the requests that count, and by all within the window,
	// those too that began before it or ended after it. Without them a loop of
	// long requests seems to serve less than it does.
	windowBegin, windowEnd time.Duration
	counted, inWindow      served

	crossFrom  time.Duration
	crossCount int
	crossSum   float64

	liveTTFT, liveE2E Distribution
	liveDone, failed  int
}

// served sums up requests that were answered.
type served struct {
	requests int
	// tokens that were generated, NaN when an answer did not say how many.
	tokens, prompts float64
}

// add a request of which a share of its tokens was served.
func (s *served) add(rec *Record, share float64) {
	s.prompts += share * float64(rec.PromptTokens)
	if rec.CompletionTokens < 0 {
		s.tokens = math.NaN()
	}
	s.tokens += share * float64(rec.CompletionTokens)
}

// within is the share of an answer's tokens that came between two times, as if
// they had come evenly.
func (x *Exchange) within(begin, end time.Duration) float64 {
	if x.Last <= x.First {
		if x.First > begin && x.First <= end {
			return 1
		}
		return 0
	}
	return max(0, float64(min(x.Last, end)-max(x.First, begin))/float64(x.Last-x.First))
}

func newMeasurement(p *Point, zero time.Duration) *measurement {
	m := &measurement{
		groups: map[groupKey]*group{}, names: map[string]int{}, errors: map[string]int{},
		firstDue: Never, lastDue: Never, lastEnd: Never, windowEnd: Never, crossFrom: Never,
		windowBegin: zero + p.Warmup,
	}
	if p.Duration > 0 {
		m.windowEnd = m.windowBegin + p.Duration
	}
	return m
}

func (m *measurement) group(dimension, name string) *group {
	k := groupKey{dimension, name}
	if g := m.groups[k]; g != nil {
		return g
	}
	if m.names[dimension] >= maxGroups {
		k.name = "(other)"
		if g := m.groups[k]; g != nil {
			return g
		}
	}
	m.names[dimension]++
	g := &group{outcomes: map[Outcome]int{}}
	m.groups[k] = g
	return g
}

// promptBuckets are upper bounds of prompt lengths in tokens.
var promptBuckets = []int{256, 1024, 4096, 16384, 65536}

func promptBucket(tokens int) string {
	i, _ := slices.BinarySearch(promptBuckets, tokens)
	if i == len(promptBuckets) {
		return fmt.Sprintf("> %d", promptBuckets[i-1])
	}
	return fmt.Sprintf("<= %d", promptBuckets[i])
}

// each calls f for every group that a record belongs to.
func (m *measurement) each(rec *Record, f func(*group)) {
	f(m.group(byAll, ""))
	f(m.group(byClass, rec.Class))
	if rec.Tenant != "" {
		f(m.group(byTenant, rec.Tenant))
	}
	if rec.Scenario != "" {
		f(m.group(byScenario, rec.Scenario))
	}
	f(m.group(byPrompt, promptBucket(rec.PromptTokens)))
}

// add takes one request that was sent.
func (m *measurement) add(rec *Record, x *Exchange, due, ready time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crossFrom >= 0 && x.First > m.crossFrom && x.Sent >= 0 {
		m.crossCount++
		m.crossSum += (x.First - x.Sent).Seconds()
	}
	m.liveDone++
	m.liveTTFT.addCoarse(rec.TTFT)
	m.liveE2E.addCoarse(rec.E2E)
	if rec.Failed() {
		m.failed++
	}
	good := rec.Outcome == OK
	if good && m.windowEnd >= 0 {
		if share := x.within(m.windowBegin, m.windowEnd); share > 0 {
			m.inWindow.add(rec, share)
		}
		if x.End > m.windowBegin && x.End <= m.windowEnd {
			m.inWindow.requests++
		}
	}
	if rec.Phase != PhaseMeasure {
		return
	}
	if good && (m.windowEnd < 0 || x.End <= m.windowEnd) {
		m.counted.requests++
		m.counted.add(rec, 1)
	}
	if x.Sent >= 0 {
		m.lag.Add((x.Sent - ready).Seconds())
	}
	if !x.Reused {
		m.newConns++
		m.connect.Add(x.Connect.Seconds())
	}
	m.span(due, x.End)
	if rec.Error != "" {
		m.countError(string(rec.Outcome) + ": " + rec.Error)
	}
	if x.OtherModel != "" {
		if m.otherModels++; m.otherModel == "" {
			m.otherModel = x.OtherModel
		}
	}
	m.longestGap = max(m.longestGap, x.LongestGap().Seconds())
	m.each(rec, func(g *group) {
		g.outcomes[rec.Outcome]++
		if rec.Outcome == Cancelled && !rec.Violation {
			return // censored: it tells nothing
		}
		g.attempts++
		if rec.Violation {
			g.violations++
		}
		g.ttft.Add(rec.TTFT)
		g.ttftSent.Add(rec.TTFTSent)
		g.ttfo.Add(rec.TTFO)
		g.tpot.Add(rec.TPOT)
		g.e2e.Add(rec.E2E)
		for _, gap := range x.Gaps {
			g.icl.Add(gap.Length.Seconds())
			if weight := x.weight(gap); weight > 0 {
				g.itl.AddWeighted(gap.Length.Seconds()/weight, weight)
			}
		}
		if good {
			g.completions++
			g.promptTokens += float64(rec.PromptTokens)
			if rec.CompletionTokens >= 0 {
				g.counted++
				g.completionTokens += float64(rec.CompletionTokens)
			}
		}
	})
}

// unsent takes a request that was due and never sent.
func (m *measurement) unsent(rec *Record, due time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if rec.Phase != PhaseMeasure {
		return
	}
	m.unsentCount++
	m.span(due, due)
	m.countError(string(rec.Outcome) + ": " + rec.Error)
	m.each(rec, func(g *group) {
		g.outcomes[rec.Outcome]++
		g.attempts++
		g.violations++
	})
}

func (m *measurement) span(due, end time.Duration) {
	m.due++
	if m.firstDue < 0 || due < m.firstDue {
		m.firstDue = due
	}
	m.lastDue, m.lastEnd = max(m.lastDue, due), max(m.lastEnd, end)
}

// maxErrors bounds how many different errors are told apart.
const maxErrors = 50

func (m *measurement) countError(text string) {
	if _, known := m.errors[text]; !known && len(m.errors) >= maxErrors {
		text = "(other errors)"
	}
	m.errors[text]++
}

// text notes whether a text was as long in tokens as asked for.
func (m *measurement) text(good bool) {
	m.mu.Lock()
	m.texts++
	if !good {
		m.promptMisses++
	}
	m.mu.Unlock()
}

func (m *measurement) capped() {
	m.mu.Lock()
	m.cappedCount++
	m.mu.Unlock()
}

// cross begins the comparison with the engine's own histogram at a moment.
func (m *measurement) cross(from time.Duration) {
	m.mu.Lock()
	m.crossFrom = from
	m.mu.Unlock()
}

// Live is what is known of a point under way, of every phase.
type Live struct {
	Done, Failed, Capped int
	// TTFTP50, TTFTP99 and E2EP50 in seconds; NaN when too few are done.
	TTFTP50, TTFTP99, E2EP50 float64
}

func (m *measurement) live() Live {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Live{
		Done: m.liveDone, Failed: m.failed, Capped: m.cappedCount,
		TTFTP50: m.liveTTFT.Percentile(50, 0), TTFTP99: m.liveTTFT.Percentile(99, 0), E2EP50: m.liveE2E.Percentile(50, 0),
	}
}

// addCoarse adds a sample to the histogram at once, for readers that look often.
func (d *Distribution) addCoarse(seconds float64) {
	if math.IsNaN(seconds) {
		return
	}
	if d.total == 0 || seconds < d.low {
		d.low = seconds
	}
	d.top = max(d.top, seconds)
	d.total++
	d.sum += seconds
	d.add(nanoseconds(seconds), 1)
}

// result sums the point up. full tells that requests were sent for the whole
// duration, which then is the window; else it is from the first to the last.
func (m *measurement) result(p *Point, full bool) *Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.group(byAll, "")
	r := &Result{
		Name: p.Name, Loop: "open", Concurrency: p.Concurrency, PlannedRate: Value(p.Rate),
		Capped: m.cappedCount, Unsent: m.unsentCount, LongestGap: Value(m.longestGap),
		ScheduleLag: m.lag.Summary(), NewConnections: m.newConns, ConnectionSetup: m.connect.Summary(),
		Errors: m.errors, Texts: m.texts, PromptMisses: m.promptMisses,
		OtherModels: m.otherModels, OtherModel: m.otherModel,
	}
	if p.Concurrency > 0 {
		r.Loop = "closed"
	}
	if p.Rate == 0 {
		r.PlannedRate = Value(math.NaN())
	}
	window := (m.lastEnd - m.firstDue).Seconds()
	offered := float64(m.due-1) / (m.lastDue - m.firstDue).Seconds()
	done := m.counted
	if full {
		window = p.Duration.Seconds()
		offered = float64(m.due) / window
		done = m.inWindow
	}
	r.Window = Value(window)
	r.OfferedRate = finite(offered)
	r.CompletedRate = finite(float64(done.requests) / window)
	r.OutputTokenRate = finite(done.tokens / window)
	r.PromptTokenRate = finite(done.prompts / window)
	r.Goodput = finite(float64(all.attempts-all.violations) / window)
	for k, g := range m.groups {
		r.Groups = append(r.Groups, g.summary(k, p))
	}
	slices.SortFunc(r.Groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(dimensionOrder(a.Dimension), dimensionOrder(b.Dimension)),
			cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	r.gates(p, m)
	return r
}

func dimensionOrder(d string) int {
	return slices.Index([]string{byAll, byClass, byTenant, byScenario, byPrompt}, d)
}

// finite makes infinities unknown.
func finite(v float64) Value {
	if math.IsInf(v, 0) || v < 0 {
		v = math.NaN()
	}
	return Value(v)
}

func (g *group) summary(k groupKey, p *Point) Group {
	return Group{
		Dimension: k.dimension, Name: k.name,
		Attempts: g.attempts, Violations: g.violations, Outcomes: g.outcomes,
		Attainment: Value(1 - float64(g.violations)/float64(g.attempts)),
		Prompt:     Value(g.promptTokens / float64(g.completions)), Output: Value(g.completionTokens / float64(g.counted)),
		TTFT: g.ttft.Summary(), TTFTSent: g.ttftSent.Summary(), TTFO: g.ttfo.Summary(),
		TPOT: g.tpot.Summary(), ITL: g.itl.Summary(), ICL: g.icl.Summary(), E2E: g.e2e.Summary(),
	}
}
