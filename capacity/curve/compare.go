package curve

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"headroom_exporter/capacity"
)

const (
	// minBand is the smallest relative difference that is looked at: two runs of
	// the same engine differ by a few per cent, whatever one does.
	minBand = 0.05
	// coarse is the relative loss that is never called the same, however much
	// the measurements scatter, and the most that an A/A band of latencies
	// excuses of a rate: a knee comes with an interval of its own.
	coarse = 0.25
	// midpoints is how far apart, as a share of the time from the first to the
	// last, the means of the times of A and B may be for a drift to cancel.
	midpoints = 0.25
)

// GateOptions are how strict a comparison is.
type GateOptions struct {
	// Band is the smallest noise band, a ratio; 0 is 5 %.
	Band float64
	// AllowDifferentWorkload compares curves although their workload hashes differ.
	AllowDifferentWorkload bool
	// Strict lets a comparison fail too when something is undecided.
	Strict bool
}

// GateOutcome is what a comparison comes to.
type GateOutcome string

// The outcomes.
const (
	Passed        GateOutcome = "passed"
	Regression    GateOutcome = "regression"
	NotProven     GateOutcome = "undecided"
	NotComparable GateOutcome = "not_comparable"
)

// Verdict is what one quantity of a comparison comes to.
type Verdict string

// The verdicts.
const (
	Same   Verdict = "same"
	Better Verdict = "better"
	Worse  Verdict = "worse"
	// Undecided is worse by more than the band, but not by more than what the
	// measurements leave open.
	Undecided Verdict = "undecided"
	// Missing is what only the base has. It counts as worse.
	Missing Verdict = "missing"
)

// Comparison is a release gate: a new curve against a base.
type Comparison struct {
	Outcome GateOutcome `json:"outcome"`
	// Incomparable is why nothing can be said of a change of the engine.
	Incomparable []string `json:"not_comparable_because,omitempty"`
	Base         []Side   `json:"base"`
	New          []Side   `json:"new"`
	// Changes are the fields of the identity in which the new one differs.
	Changes []FieldChange `json:"identity_changes,omitempty"`
	// Band is the noise band that holds for every row; a row's own may be wider.
	Band float64 `json:"band_ratio"`
	// Rows have the rates first, then the squeeze of mixes, then the tails.
	Rows  []Row    `json:"rows"`
	Notes []string `json:"notes,omitempty"`
}

// Side is one of the curves that are compared.
type Side struct {
	ID       string `json:"id"`
	Source   Source `json:"source"`
	Estimate bool   `json:"estimate,omitempty"`
	Started  string `json:"started,omitempty"`
	Engine   string `json:"engine,omitempty"`
	GPU      string `json:"gpu,omitempty"`
}

// FieldChange is a field of the identity that is known of both and differs.
type FieldChange struct {
	Field string `json:"field"`
	Base  string `json:"base"`
	New   string `json:"new"`
}

func (c FieldChange) String() string { return c.Field + " " + c.Base + " -> " + c.New }

// Row compares one quantity.
type Row struct {
	// Mix is empty for a class alone, Class for a mix as a whole.
	Mix      string   `json:"mix,omitempty"`
	Class    string   `json:"class,omitempty"`
	Arrivals Arrivals `json:"arrivals"`
	// Quantity is knee or safe_rate, in requests per second; a tail such as
	// ttft_p99, in seconds, or tails, for those that one of the two was not
	// measured for; or squeeze_ttft_p99, the tail in the mix over the tail alone.
	Quantity string `json:"quantity"`
	// At is the offered rate of a tail, Share what it is of the base's knee.
	At     Value   `json:"at_requests_per_second"`
	Share  float64 `json:"share_of_base_knee,omitempty"`
	Base   Measure `json:"base"`
	New    Measure `json:"new"`
	Change Value   `json:"change_ratio"`
	// Band is the relative difference up to which it is noise.
	Band    float64  `json:"band_ratio"`
	Verdict Verdict  `json:"verdict"`
	Why     []string `json:"why,omitempty"`
}

// Measure is a number with its interval, whose ends are unknown where there is none.
type Measure struct {
	Value Value `json:"value"`
	Low   Value `json:"low"`
	High  Value `json:"high"`
	// AtLeast tells that the load was bounded below the knee.
	AtLeast bool `json:"at_least,omitempty"`
}

func unknownMeasure() Measure {
	return Measure{Value: capacity.Unknown(), Low: capacity.Unknown(), High: capacity.Unknown()}
}

// ReleaseGate compares new curves with base ones: for every class and mix and
// every arrival shape of the base its knee, its safe rate, its tails at half
// and at four fifths of the base's knee, and how much a mix squeezes each class.
// There is at least one curve of each. A base without a single knee is not comparable.
//
// With two of each, measured in the order base, new, new, base (ABBA), a drift
// that is linear in time cancels in the means, and the differences within the
// pairs widen the band.
//
// A loss beyond the band is worse when the intervals are disjoint as well. The
// band is the largest of 5 %, the A/A bands of all files and the differences
// within the pairs.
func ReleaseGate(base, next []*Curve, o GateOptions) *Comparison {
	g := &gate{base: base, next: next, out: &Comparison{}}
	if o.Band == 0 {
		o.Band = minBand
	}
	for _, c := range base {
		g.out.Base = append(g.out.Base, side(c))
	}
	for _, c := range next {
		g.out.New = append(g.out.New, side(c))
	}
	g.out.Changes = changes(base[0].Identity, next[0].Identity)
	g.comparable(o.AllowDifferentWorkload)
	g.noise(o.Band)
	if len(g.out.Incomparable) > 0 {
		g.out.Outcome = NotComparable
		return g.out
	}
	g.repeated()
	g.order()
	g.origins()
	for i := range base[0].Classes {
		class := &base[0].Classes[i]
		for k := range class.Studies {
			g.study(subject{class: class.Name, arrivals: class.Studies[k].Arrivals})
		}
	}
	for i := range base[0].Mixes {
		mix := &base[0].Mixes[i]
		g.study(subject{mix: mix.Name, arrivals: mix.Arrivals})
	}
	g.added()
	g.out.Rows = slices.Concat(g.rates, g.squeezes, g.tails)
	g.out.Outcome = Passed
	switch {
	case !slices.ContainsFunc(g.rates, func(r Row) bool { return r.Quantity == "knee" && r.Base.Value.Known() }):
		// Tails alone do not say what an engine carries.
		g.out.Incomparable = append(g.out.Incomparable, "no class or mix of the base has a knee")
		g.out.Outcome = NotComparable
	case g.out.Count(Worse)+g.out.Count(Missing) > 0:
		g.out.Outcome = Regression
	case o.Strict && g.out.Count(Undecided) > 0:
		g.out.Outcome = NotProven
	}
	return g.out
}

// Count is how many rows have the verdict.
func (c *Comparison) Count(v Verdict) int {
	n := 0
	for i := range c.Rows {
		if c.Rows[i].Verdict == v {
			n++
		}
	}
	return n
}

// gate is a comparison being made.
type gate struct {
	base, next []*Curve
	out        *Comparison
	// aa is the largest A/A band of the files; 0 when none has one.
	aa                     float64
	rates, squeezes, tails []Row
}

// subject is a class or a mix under one arrival shape.
type subject struct {
	class, mix string
	arrivals   Arrivals
}

func (s subject) row(quantity string) Row {
	return Row{Mix: s.mix, Class: s.class, Arrivals: s.arrivals, Quantity: quantity, At: capacity.Unknown(), Change: capacity.Unknown(), Base: unknownMeasure(), New: unknownMeasure()}
}

// of is the subject's study within a curve; nil when there is none.
func (s subject) of(c *Curve) *Study {
	if s.mix != "" {
		if m := s.mixOf(c); m != nil {
			return &m.Study
		}
		return nil
	}
	if class := c.class(s.class); class != nil {
		return class.Study(s.arrivals)
	}
	return nil
}

func (s subject) mixOf(c *Curve) *Mix {
	for i := range c.Mixes {
		if m := &c.Mixes[i]; m.Name == s.mix && m.Arrivals == s.arrivals {
			return m
		}
	}
	return nil
}

// studies are the subject's of several curves, without those that lack it.
func (s subject) studies(curves []*Curve) []*Study {
	var out []*Study
	for _, c := range curves {
		if study := s.of(c); study != nil {
			out = append(out, study)
		}
	}
	return out
}

func side(c *Curve) Side {
	s := Side{
		ID: c.ID, Source: c.Source, Estimate: c.Estimate,
		Engine: strings.TrimSpace(c.Identity.EngineType + " " + c.Identity.EngineVersion), GPU: gpus(c.Identity),
	}
	if !c.Started.IsZero() {
		s.Started = c.Started.UTC().Format("2006-01-02 15:04:05Z")
	}
	return s
}

// changes lists the fields that both identities know and in which they differ.
// Unlike Compare it tells patch versions apart: a change of one may be what is tested.
func changes(a, b Identity) []FieldChange {
	var out []FieldChange
	for _, f := range fields {
		f.Parts = 0
		if x, y := f.Text(&a), f.Text(&b); x != "" && y != "" && !f.same(x, y) {
			out = append(out, FieldChange{Field: f.Name, Base: x, New: y})
		}
	}
	return out
}

// mustEqual are the fields without which the two are different things.
var mustEqual = []string{"model", "gpu_name", "gpu_count", "mig_profile"}

// comparable finds why the curves say nothing about a change of the engine.
func (g *gate) comparable(anyWorkload bool) {
	refuse := func(format string, args ...any) {
		g.out.Incomparable = append(g.out.Incomparable, fmt.Sprintf(format, args...))
	}
	for _, c := range g.out.Changes {
		if slices.Contains(mustEqual, c.Field) {
			refuse("%s", c)
		}
	}
	for _, pair := range [][]*Curve{g.base, g.next} {
		for _, again := range pair[1:] {
			differences, _ := Compare(pair[0].Identity, again.Identity)
			for _, d := range differences {
				if d.Hard {
					refuse("a file and its repetition are of different engines: %s", d)
				}
			}
		}
	}
	others := slices.Concat(g.base[1:], g.next)
	for _, c := range others {
		if a, b := g.base[0].Workload.Hash, c.Workload.Hash; !anyWorkload && a != "" && b != "" && a != b {
			refuse("workload %.8s -> %.8s: the classes or the trace differ (--allow-different-workload compares them all the same)", a, b)
			break
		}
	}
	for i := range g.base[0].Classes {
		class := &g.base[0].Classes[i]
		for _, c := range others {
			other := c.class(class.Name)
			if other == nil {
				continue
			}
			if a, b := slos(g.base[0].SLOs(class)), slos(c.SLOs(other)); a != b {
				refuse("slo of class %s: %s -> %s", class.Name, a, b)
				break
			}
		}
	}
}

// slos is a list of bounds as a text that does not depend on their order.
func slos(list []capacity.SLO) string {
	words := make([]string, len(list))
	for i, s := range list {
		words[i] = s.String()
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// noise finds the band that holds for every row.
func (g *gate) noise(floor float64) {
	for _, c := range slices.Concat(g.base, g.next) {
		if c.AA != nil && c.AA.Band.Known() {
			g.aa = max(g.aa, float64(c.AA.Band))
		}
	}
	g.out.Band = max(floor, g.aa)
	switch {
	case g.aa == 0 && !again(g.base) && !again(g.next):
		g.note("no file has the same load twice (A/A): the band is the floor of %s", percent(floor))
	case g.aa > coarse:
		g.note("the same load twice differed by %s: losses of tails below that are not seen; rates are held to %s", percent(g.aa), percent(coarse))
	}
	if g.aa > coarse {
		g.aa = coarse
	}
	g.aa = max(floor, g.aa)
}

// sameRun tells whether two curves are of one run: of one identity, begun at one moment.
func sameRun(a, b *Curve) bool { return a.ID == b.ID && a.Started.Equal(b.Started) }

// again tells whether a curve was measured a second time.
func again(curves []*Curve) bool { return len(curves) > 1 && !sameRun(curves[0], curves[1]) }

// repeated notes files that are the same run: what they have in common is no evidence.
func (g *gate) repeated() {
	names := []string{"the base", "the base's repetition"}[:len(g.base)]
	names = append(names, []string{"the new one", "the new one's repetition"}[:len(g.next)]...)
	all := slices.Concat(g.base, g.next)
	for i := range all {
		for k := range i {
			if !all[k].Started.IsZero() && sameRun(all[k], all[i]) {
				g.note("%s and %s are the same run (id and start time): that they agree proves nothing", names[k], names[i])
				break
			}
		}
	}
}

// order notes when files that should have been measured A B B A were not.
func (g *gate) order() {
	if len(g.base) != 2 || len(g.next) != 2 {
		return
	}
	order := []*Curve{g.base[0], g.next[0], g.next[1], g.base[1]}
	for _, c := range order {
		if c.Started.IsZero() {
			g.note("not all files say when they were measured: a drift between them may not cancel")
			return
		}
	}
	if !(order[0].Started.Before(order[1].Started) && order[1].Started.Before(order[2].Started) && order[2].Started.Before(order[3].Started)) {
		g.note("the files were not measured in the order base, new, new, base: a drift between them does not cancel")
		return
	}
	at := func(i int) float64 { return order[i].Started.Sub(order[0].Started).Seconds() }
	if math.Abs(at(1)+at(2)-at(3))/2 > midpoints*at(3) {
		g.note("the four were measured at uneven distances in time: a drift between them does not quite cancel")
	}
}

// origins says which numbers are less than measured.
func (g *gate) origins() {
	for i, c := range slices.Concat(g.base, g.next) {
		name := "the base"
		if i >= len(g.base) {
			name = "the new one"
		}
		switch c.Source {
		case Imported:
			g.note("%s was imported%s: how it was measured is not known", name, prefixed(" from ", c.ImportedFrom))
		case Simulated:
			g.note("%s was simulated", name)
		}
		if c.Estimate {
			g.note("%s is an estimate: nothing was soaked", name)
		}
	}
}

// added says what only the new one has.
func (g *gate) added() {
	for i := range g.next[0].Classes {
		if name := g.next[0].Classes[i].Name; g.base[0].class(name) == nil {
			g.note("class %s is in the new one only: it is not compared", name)
		}
	}
}

func (g *gate) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(g.out.Notes, text) {
		g.out.Notes = append(g.out.Notes, text)
	}
}

// study compares one class or mix under one arrival shape.
func (g *gate) study(s subject) {
	base, next := s.studies(g.base), s.studies(g.next)
	if len(next) < len(g.next) {
		row := s.row("knee")
		row.Base, _ = combine(measures(base, kneeOf))
		row.Band, row.Verdict = g.aa, Missing
		row.Why = []string{"the new one was not measured with it"}
		g.rates = append(g.rates, row)
		return
	}
	knee, ok := g.knee(s, base, next)
	g.rates = append(g.rates, knee)
	if !ok {
		knee.Verdict = "" // it tempers nothing
	}
	if row, ok := g.safeRate(s, base, next, knee.Verdict); ok {
		g.rates = append(g.rates, row)
	}
	g.squeeze(s)
	g.tailsOf(s, knee.Base)
}

// knee compares where the tails give; false where the base does not have it.
func (g *gate) knee(s subject, base, next []*Study) (Row, bool) {
	row := s.row("knee")
	row.Band = g.aa
	var pairs [2]float64
	row.Base, pairs[0] = combine(measures(base, kneeOf))
	row.New, pairs[1] = combine(measures(next, kneeOf))
	switch {
	case !row.Base.Value.Known():
		row.Verdict = Undecided
		row.Why = []string{"the base has no knee" + prefixed(": ", statusOf(base[0]))}
		return row, false
	case !row.New.Value.Known():
		g.lost(&row, next)
		return row, true
	}
	row.decide(true, pairs)
	if a, b := binding(base[0]), binding(next[0]); b != "" {
		why := b + " binds"
		if a != b && a != "" {
			why += " (before, " + a + ")"
		}
		row.Why = append(row.Why, why)
	}
	if row.Base.AtLeast {
		row.Why = append(row.Why, "the base was not measured up to its knee")
	}
	if row.New.AtLeast {
		row.Why = append(row.Why, "the new one was not measured up to its knee")
	}
	g.explain(&row)
	return row, true
}

// safeRate compares what one may run at. It follows from the knee and from a
// soak, so that a fall which the knee's interval covers is not yet one.
func (g *gate) safeRate(s subject, base, next []*Study, knee Verdict) (Row, bool) {
	row := s.row("safe_rate")
	row.Band = g.aa
	var pairs [2]float64
	row.Base, pairs[0] = combine(measures(base, safeRateOf))
	row.New, pairs[1] = combine(measures(next, safeRateOf))
	switch {
	case !row.Base.Value.Known():
		return row, false
	case !row.New.Value.Known():
		g.lost(&row, next)
		return row, true
	}
	row.decide(true, pairs)
	if row.Verdict == Worse && knee != "" && knee != Worse && knee != Missing {
		row.Verdict = Undecided
		row.Why = append(row.Why, "the knee, from which it follows, is "+string(knee))
	}
	g.explain(&row)
	return row, true
}

// lost is the verdict on a rate that the base has and the new one lacks.
func (g *gate) lost(row *Row, next []*Study) {
	row.Verdict = Missing
	for _, s := range next {
		if s.Status == StatusNoSafeRate {
			row.Verdict = Worse
		}
		if s.Status != StatusOK {
			row.Why = append(row.Why, statusOf(s))
		}
	}
	g.explain(row)
}

// statusOf is a study's status with its reason.
func statusOf(s *Study) string { return string(s.Status) + prefixed(": ", s.Reason) }

// explain names beside a loss what differs in the engine.
func (g *gate) explain(row *Row) {
	if row.Verdict == Same || row.Verdict == Better {
		return
	}
	for _, c := range g.out.Changes {
		row.Why = append(row.Why, c.String())
	}
}

func binding(s *Study) string {
	if s.Knee == nil {
		return ""
	}
	return strings.TrimSpace(s.Knee.BindingSLO + prefixed(" of ", s.Knee.BindingClass))
}

// kneeOf is a study's knee. Where the load was bounded below it, it is at
// least the highest load that passed.
func kneeOf(s *Study) Measure {
	m := unknownMeasure()
	if s.Knee != nil && s.Knee.Rate.Known() {
		m.Value, m.Low, m.High = s.Knee.Rate, s.Knee.Low, s.Knee.High
		return m
	}
	if s.Status != StatusNotReached {
		return m
	}
	for i := range s.Points {
		p := &s.Points[i]
		if p.Concurrency == 0 && p.Passed != nil && *p.Passed && !(p.OfferedRate <= m.Value) {
			m = Measure{Value: p.OfferedRate, Low: p.OfferedRate, High: Value(math.Inf(1)), AtLeast: true}
		}
	}
	return m
}

func safeRateOf(s *Study) Measure {
	m := unknownMeasure()
	m.Value = s.SafeRate
	return m
}

func measures(studies []*Study, of func(*Study) Measure) []Measure {
	out := make([]Measure, len(studies))
	for i, s := range studies {
		out[i] = of(s)
	}
	return out
}

// combine is the mean of what is known, and how far apart the two of a pair
// are, as a share of the mean. The mean of the intervals is wider than the
// interval of the mean, never narrower.
func combine(list []Measure) (mean Measure, apart float64) {
	list = slices.DeleteFunc(slices.Clone(list), func(m Measure) bool { return !m.Value.Known() })
	if len(list) == 0 {
		return unknownMeasure(), 0
	}
	low, high := list[0].Value, list[0].Value
	for _, m := range list {
		n := Value(len(list))
		mean.Value += m.Value / n
		mean.Low += m.Low / n
		mean.High += m.High / n
		mean.AtLeast = mean.AtLeast || m.AtLeast
		low, high = min(low, m.Value), max(high, m.Value)
	}
	if mean.Value > 0 {
		apart = float64((high - low) / mean.Value)
	}
	return mean, apart
}

// decide gives the verdict on two known values. pairs are how far apart the
// measurements of each side are; more tells that more is better.
func (r *Row) decide(more bool, pairs [2]float64) {
	r.Band = max(r.Band, pairs[0], pairs[1])
	r.Change = r.New.Value/r.Base.Value - 1
	loss, covered := float64(r.Change), r.New.Low <= r.Base.High
	if more {
		loss, covered = -loss, r.New.High >= r.Base.Low
	}
	gained := r.New.High < r.Base.Low
	if more {
		gained = r.New.Low > r.Base.High
	}
	bounded := r.Base.Low.Known() && r.Base.High.Known() && r.New.Low.Known() && r.New.High.Known()
	r.Verdict = Same
	switch {
	case !r.Change.Known() || math.IsInf(float64(r.Change), 0):
		r.Verdict = Undecided
		r.Why = append(r.Why, "the base is 0")
	case loss > r.Band && covered:
		r.Verdict = Undecided
		r.Why = append(r.Why, "the intervals overlap")
	case loss > r.Band:
		r.Verdict = Worse
	case loss > coarse:
		r.Verdict = Undecided
		r.Why = append(r.Why, "the measurements differ too much among themselves to tell")
	case -loss > r.Band && (gained || !bounded):
		r.Verdict = Better
	}
}
