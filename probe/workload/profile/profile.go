// Package profile turns recorded traffic into workload classes: what a probe
// must send to stand for it. Its page shows them.
package profile

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"headroom_exporter/probe/workload"
)

// By is what requests are told apart by.
type By string

// The ways to make classes.
const (
	// Auto takes those of scenario, tenant and model that differ, or lengths when none does.
	Auto     By = "auto"
	Scenario By = "scenario"
	Tenant   By = "tenant"
	Model    By = "model"
	Lengths  By = "length"
	// None makes one class of all.
	None By = "none"
)

// Ways lists the ways to make classes.
var Ways = []string{string(Auto), string(Scenario), string(Tenant), string(Model), string(Lengths), string(None)}

// Options of a profile.
type Options struct {
	// Name of the trace, as it is to be shown; SHA256 of its file in hexadecimal.
	Name, SHA256 string
	By           By
	// MaxClasses bounds the number of classes; each costs a probe some 20 minutes.
	MaxClasses int
	// MaxModelLen is the context length, up to which the engine's histograms
	// have buckets; 0 takes what the longest prompt and output need.
	MaxModelLen int
	// Seed spreads timestamps that lie on a grid.
	Seed uint64
	// Tool names the program and its version in the classes file.
	Tool string
}

// Profile is what was found in a trace.
type Profile struct {
	// File is the classes file.
	File workload.File
	// Trace is the trace with its times spread where they lay on a grid.
	Trace *workload.Trace
	// Statistics of all requests, and of each class in the order of File.Classes.
	Statistics workload.Statistics
	Classes    []workload.Statistics
	// TokenShare is each class's share of all prompt and output tokens.
	TokenShare []float64
	// ClassOf is the number of each record's class.
	ClassOf []int
	// Dispersion of all requests, and of each class.
	Dispersion        []Dispersion
	ClassDispersions  [][]Dispersion
	prefixHits        []int
	begin, end        time.Duration
	histogramMaxModel int
}

// Of profiles a trace.
func Of(trace *workload.Trace, o Options) (*Profile, error) {
	if len(trace.Records) < 2 {
		return nil, errors.New("profile: a trace of one request says nothing")
	}
	if o.MaxClasses < 1 || o.MaxClasses > 20 {
		return nil, fmt.Errorf("profile: %d classes at most, want 1 to 20", o.MaxClasses)
	}
	if o.MaxModelLen < 0 || o.MaxModelLen > workload.MaxTokens {
		return nil, fmt.Errorf("profile: a context of %d tokens, want 0 to %d", o.MaxModelLen, workload.MaxTokens)
	}
	p := &Profile{Trace: trace, prefixHits: workload.PrefixHits(trace.Records, trace.BlockSize)}
	p.File = workload.File{Schema: workload.Schema, Tool: o.Tool}
	replay := workload.Replay{Trace: trace, Grid: trace.Grid(), Seed: o.Seed}
	p.note(replay.Notes()...)
	if replay.Grid > 0 {
		p.Trace = trace.Spread(replay.Grid, o.Seed)
	}
	records := p.Trace.Records
	p.begin, p.end = records[0].At, records[len(records)-1].At
	p.Statistics = workload.Describe(records, trace.BlockSize)
	p.histogramMaxModel = o.MaxModelLen
	if p.histogramMaxModel == 0 {
		p.histogramMaxModel = nextBound(max(p.Statistics.Prompt.Max, p.Statistics.Output.Max))
	}

	classes, err := p.split(o)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	p.describe(classes)
	p.File.Trace = &workload.TraceSource{Name: o.Name, Format: trace.Format, SHA256: o.SHA256}
	all := make([]int, len(records))
	for i := range all {
		all[i] = i
	}
	p.File.Trace.Observed, p.Dispersion = p.observe(all, records, p.Statistics)
	p.warn()
	return p, nil
}

func (p *Profile) note(notes ...string) { p.File.Notes = append(p.File.Notes, notes...) }

// nextBound is the smallest bucket bound that holds a length.
func nextBound(length float64) int {
	for _, b := range workload.TokenBounds(10 * workload.MaxTokens) {
		if b >= length {
			return int(b)
		}
	}
	return workload.MaxTokens
}

// split makes classes that only say what they match.
func (p *Profile) split(o Options) ([]workload.Class, error) {
	var keys []By
	switch o.By {
	case Auto:
		for _, by := range []By{Scenario, Tenant, Model} {
			if p.differs(by) {
				keys = append(keys, by)
			}
		}
	case Scenario, Tenant, Model:
		if !p.differs(o.By) {
			return nil, fmt.Errorf("the trace does not tell different %ss apart", o.By)
		}
		keys = []By{o.By}
	case None:
		return []workload.Class{{Name: "all", Weight: 1}}, nil
	case Lengths:
	default:
		return nil, fmt.Errorf("no way %q to make classes: want %s", o.By, strings.Join(Ways, ", "))
	}
	if keys == nil {
		return clusters(p.Trace.Records, o.MaxClasses), nil
	}
	return p.groups(keys, o.MaxClasses), nil
}

// of is the record's scenario, tenant or model.
func (by By) of(r *workload.Record) string {
	switch by {
	case Scenario:
		return r.Scenario
	case Tenant:
		return r.Tenant
	case Model:
		return r.Model
	}
	return ""
}

func (p *Profile) differs(by By) bool {
	for i := range p.Trace.Records {
		if by.of(&p.Trace.Records[i]) != by.of(&p.Trace.Records[0]) {
			return true
		}
	}
	return false
}

// groups makes a class of each combination of names, largest load in tokens
// first; those beyond the most become one class of the rest.
func (p *Profile) groups(keys []By, most int) []workload.Class {
	tokens := map[workload.Match]int{}
	for i := range p.Trace.Records {
		r := &p.Trace.Records[i]
		var m workload.Match
		for _, by := range keys {
			switch by {
			case Scenario:
				m.Scenario = r.Scenario
			case Tenant:
				m.Tenant = r.Tenant
			case Model:
				m.Model = r.Model
			}
		}
		tokens[m] += r.Prompt + r.Output
	}
	matches := make([]workload.Match, 0, len(tokens))
	unnamed := false
	for m := range tokens {
		// An empty name would match every one: such requests belong to the rest.
		if named(m, keys) {
			matches = append(matches, m)
		} else {
			unnamed = true
		}
	}
	slices.SortFunc(matches, func(a, b workload.Match) int {
		if tokens[a] != tokens[b] {
			return tokens[b] - tokens[a]
		}
		return strings.Compare(a.Scenario+"\x00"+a.Tenant+"\x00"+a.Model, b.Scenario+"\x00"+b.Tenant+"\x00"+b.Model)
	})
	if unnamed || len(matches) > most {
		keep := min(len(matches), max(most-1, 0))
		if left := len(matches) - keep; left > 0 {
			p.note(fmt.Sprintf("class rest holds the %d smallest of %d groups: raise the number of classes to tell them apart", left, len(matches)))
		}
		matches = append(matches[:keep], workload.Match{Any: true})
	}
	classes := make([]workload.Class, len(matches))
	taken := map[string]bool{}
	for i := range matches {
		m := matches[i]
		name := "rest"
		if !m.Any {
			name = className(m.Scenario, m.Tenant, m.Model)
		}
		for base, n := name, 2; taken[name]; n++ {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		taken[name] = true
		classes[i] = workload.Class{Name: name, Weight: 1, Match: &m}
	}
	return classes
}

func named(m workload.Match, keys []By) bool {
	for _, by := range keys {
		if by == Scenario && m.Scenario == "" || by == Tenant && m.Tenant == "" || by == Model && m.Model == "" {
			return false
		}
	}
	return true
}

// className joins names to one that a label and a file name can take.
func className(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '_':
			return r
		}
		return '-'
	}, strings.ToLower(strings.Join(parts, "-")))
	if len(name) > 60 {
		name = name[:60]
	}
	return name
}

// describe fills the classes with what their requests are like, and leaves out those without any.
func (p *Profile) describe(classes []workload.Class) {
	for i := range classes {
		// A matcher takes valid classes; the real lengths come below.
		classes[i].Prompt, classes[i].Output = workload.FixedLength(1), workload.FixedLength(1)
	}
	matcher, err := workload.NewMatcher(classes)
	if err != nil {
		panic("profile: classes of its own that are not valid: " + err.Error())
	}
	members := make([][]int, len(classes))
	for i := range p.Trace.Records {
		n, err := matcher.Find(&p.Trace.Records[i])
		if err != nil {
			panic("profile: a request that no class of its own matches: " + err.Error())
		}
		members[n] = append(members[n], i)
	}
	p.ClassOf = make([]int, len(p.Trace.Records))
	total := p.Statistics.Prompt.Mean + p.Statistics.Output.Mean
	for n, c := range classes {
		if len(members[n]) == 0 {
			continue
		}
		records := p.records(members[n])
		s := workload.Describe(records, 0)
		c.Prompt, c.Output = workload.Lengths{}, workload.Lengths{}
		c.Weight = float64(len(records)) / float64(len(p.Trace.Records))
		var d []Dispersion
		c.Observed, d = p.observe(members[n], records, s)
		c.Joint = joint(records, c.Observed.PromptHistogram.Bounds)
		if hit := c.Observed.PrefixHitRatio; hit != nil && *hit >= 0.01 {
			c.Prefix = workload.Prefix{Share: *hit, Groups: p.roots(members[n])}
		}
		for _, i := range members[n] {
			p.ClassOf[i] = len(p.File.Classes)
		}
		p.File.Classes = append(p.File.Classes, c)
		p.Classes = append(p.Classes, s)
		p.ClassDispersions = append(p.ClassDispersions, d)
		p.TokenShare = append(p.TokenShare, c.Weight*(s.Prompt.Mean+s.Output.Mean)/total)
	}
}

func (p *Profile) records(members []int) []workload.Record {
	records := make([]workload.Record, len(members))
	for n, i := range members {
		records[n] = p.Trace.Records[i]
	}
	return records
}

// roots counts the different beginnings of the prompts that were served from the cache.
func (p *Profile) roots(members []int) int {
	roots := map[uint64]struct{}{}
	for _, i := range members {
		if p.prefixHits[i] > 0 {
			roots[p.Trace.Records[i].Blocks[0]] = struct{}{}
		}
	}
	return max(len(roots), 1)
}

// observe gives what is written down about records, which have the numbers members.
func (p *Profile) observe(members []int, records []workload.Record, s workload.Statistics) (*workload.Observed, []Dispersion) {
	bounds := workload.TokenBounds(p.histogramMaxModel)
	o := &workload.Observed{
		Requests: len(records), PromptMean: s.Prompt.Mean, OutputMean: s.Output.Mean,
		PromptHistogram: workload.NewHistogram(bounds), OutputHistogram: workload.NewHistogram(bounds),
		GapCV: known(s.GapCV),
	}
	if span := (p.end - p.begin).Seconds(); span > 0 {
		o.Rate = float64(len(records)) / span
	}
	for i := range records {
		o.PromptHistogram.Add(float64(records[i].Prompt), 1)
		o.OutputHistogram.Add(float64(records[i].Output), 1)
	}
	second := p.counts(records, time.Second)
	o.IDC1s, o.PeakToMean1s = known(second.DriftFreeIDC), known(second.PeakToMean)
	o.IDC10s = known(p.counts(records, 10*time.Second).DriftFreeIDC)
	o.PeakToMean60s = known(p.counts(records, time.Minute).PeakToMean)
	d := p.dispersion(records)
	o.Burstiness = known(burstiness(d))
	if p.prefixHits != nil {
		hits, tokens := 0, 0
		for _, i := range members {
			hits += p.prefixHits[i]
			tokens += p.Trace.Records[i].Prompt
		}
		o.PrefixHitRatio = known(float64(hits) / float64(tokens))
	}
	o.RateShape = p.rateShape(records)
	return o, d
}

// counts describes the counts of requests over the span of the whole trace.
func (p *Profile) counts(records []workload.Record, window time.Duration) workload.Counts {
	return workload.DescribeCounts(workload.WindowCounts(records, p.begin, p.end, window))
}

// known is a number that may not be known.
func known(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

// apart is how far classes must be in prompt or output length for live
// traffic to be told apart by the engine's histograms.
const apart = 2

// warn notes what whoever uses the classes should know.
func (p *Profile) warn() {
	var few, alike []string
	for i := range p.Classes {
		name := p.File.Classes[i].Name
		if n := p.Classes[i].Requests; n < fewRequests {
			few = append(few, fmt.Sprintf("%s (%d)", name, n))
		}
		for j := range i {
			a, b := &p.Classes[i], &p.Classes[j]
			if ratio(a.Prompt.Mean, b.Prompt.Mean) < apart && ratio(a.Output.Mean, b.Output.Mean) < apart {
				alike = append(alike, p.File.Classes[j].Name+" and "+name)
			}
		}
	}
	if few != nil {
		p.note(fmt.Sprintf("lengths and shares are rough where a class has fewer than %d requests: %s", fewRequests, strings.Join(few, ", ")))
	}
	if alike != nil {
		p.note(fmt.Sprintf("live traffic cannot be told apart by length where classes are within a factor of %d in prompt and output: %s", apart, strings.Join(alike, ", ")))
	}
}

// fewRequests leave a relative error of 10 % in a share.
const fewRequests = 100

// ratio of the larger to the smaller.
func ratio(a, b float64) float64 { return max(a/b, b/a) }
