package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"headroom_exporter/probe"
	"headroom_exporter/probe/workload"
)

// loadFlags say what the probe sends, and when.
type loadFlags struct {
	classes     []string
	classesFile string
	rates       numbers
	concurrency numbers
	matrix      bool
	arrivals    string
	burstiness  numbers
	ramp        string

	trace      *traceFlags
	traceFile  string
	traceSpeed float64
	tracePeak  float64
	traceExact bool

	slo         []string
	requests    int
	duration    time.Duration
	warmup      time.Duration
	drain       time.Duration
	maxInflight int
	maxRate     float64
	seed        uint64
	contentSeed uint64
}

func (f *loadFlags) add(c *kingpin.CmdClause) {
	c.Flag("class", "Workload class; may be repeated: "+workload.ClassSyntax+"; or longest, which fills the engine's context.").StringsVar(&f.classes)
	c.Flag("classes.file", "File with workload classes, such as the profile command writes.").ExistingFileVar(&f.classesFile)
	c.Flag("rate", "Open loop: requests per second; several make several points.").SetValue(&f.rates)
	c.Flag("concurrency", "Closed loop: requests in flight; several make several points.").SetValue(&f.concurrency)
	c.Flag("matrix", "One point for each class alone, at each rate and each burstiness.").BoolVar(&f.matrix)
	c.Flag("arrivals", "Arrival process of the open loop: poisson, constant, or gamma with --burstiness.").Default("poisson").EnumVar(&f.arrivals, "poisson", "constant", "gamma")
	c.Flag("burstiness", "Shape of gamma arrivals: their squared coefficient of variation is 1/burstiness, so that below 1 is burstier than Poisson. Several with --matrix.").SetValue(&f.burstiness)
	c.Flag("ramp", "How the open loop reaches its rate: "+workload.RampSyntax+".").StringVar(&f.ramp)
	c.Flag("trace.file", "Replay recorded traffic.").ExistingFileVar(&f.traceFile)
	f.trace = addTraceFlags(c)
	c.Flag("trace.speed", "Play the trace faster (above 1) or slower.").Default("1").Float64Var(&f.traceSpeed)
	c.Flag("trace.peak-factor", "Multiply the trace's rate at every time and keep its shape.").Default("1").Float64Var(&f.tracePeak)
	c.Flag("trace.keep-grid", "Keep timestamps that lie on a coarse grid instead of spreading them over its slots.").BoolVar(&f.traceExact)
	c.Flag("slo", "Bound that a point must keep, METRIC:pPERCENTILE:BOUND such as ttft:p99:800ms; metrics: "+strings.Join(workload.SLOMetrics, ", ")+". May be repeated.").StringsVar(&f.slo)
	count(c.Flag("requests", "Requests that count at each point; 0 is no bound.").Default("0"), &f.requests)
	c.Flag("duration", "How long each point is measured, after its warm-up; 60s unless --requests or a trace ends it.").Default("0s").DurationVar(&f.duration)
	c.Flag("warmup", "How long each point sends requests that do not count.").Default("5s").DurationVar(&f.warmup)
	c.Flag("drain", "How long requests in flight may take after a point's last one was sent; 0 leaves them their own deadline.").Default("0s").DurationVar(&f.drain)
	count(c.Flag("max-inflight", "Most requests in flight; a point that it holds back is marked. 0 is no bound.").Default("0"), &f.maxInflight)
	c.Flag("max-rate", "Most requests per second; a point that it holds back is marked. 0 is no bound.").Default("0").Float64Var(&f.maxRate)
	c.Flag("seed", "Seed of arrivals, lengths and classes; random when 0, and always written down.").Default("0").Uint64Var(&f.seed)
	c.Flag("content-seed", "Seed of the prompts' tokens; random when 0, so that no run is served from another one's cache.").Default("0").Uint64Var(&f.contentSeed)
}

// plannedPoint is one point before the engine is known.
type plannedPoint struct {
	name        string
	rate        float64
	concurrency int
	burstiness  float64
	classes     []workload.Class
}

// load is what the flags ask for.
type load struct {
	flags   *loadFlags
	seed    uint64
	content uint64
	classes []workload.Class
	// fill tells that the class longest is still to be made.
	fill  bool
	trace *workload.Trace
	// traceSum is the SHA-256 of its file.
	traceSum string
	ramp     workload.Ramp
	slo      []workload.SLO
	points   []plannedPoint
	words    string
	notes    []string

	// knee tells that no load is given: the knee is searched.
	knee bool

	chat, completions bool
}

// resolve checks the flags and plans the points. toCurve tells that a curve
// is asked for, so that a trace is one more load to find the knee of.
func (f *loadFlags) resolve(toCurve bool) (*load, error) {
	l := &load{flags: f, seed: f.seed, content: f.contentSeed}
	if l.seed == 0 {
		l.seed = randomSeed()
	}
	if l.content == 0 {
		l.content = randomSeed()
	}
	modes := 0
	for _, given := range []bool{len(f.rates) > 0, len(f.concurrency) > 0, f.traceFile != ""} {
		if given {
			modes++
		}
	}
	l.knee = modes == 0 || toCurve && len(f.rates) == 0 && len(f.concurrency) == 0
	switch {
	case toCurve && !l.knee:
		return nil, errors.New("--out.curve is for the search of the knee, which chooses its loads itself: leave --rate and --concurrency out, or write --out.results")
	case modes > 1:
		return nil, errors.New("--rate, --concurrency and --trace.file exclude each other")
	case l.knee && (f.requests > 0 || f.duration > 0 || f.drain > 0 || f.traceSpeed != 1 || f.tracePeak != 1):
		return nil, errors.New("--requests, --duration, --drain, --trace.speed and --trace.peak-factor are for one load: the search of the knee chooses them; or give --rate, --concurrency or --trace.file")
	case len(f.rates) == 0 && (f.matrix || f.ramp != "" || f.arrivals != "poisson"):
		return nil, errors.New("--matrix, --ramp and --arrivals need --rate")
	case f.traceFile == "" && (f.traceSpeed != 1 || f.tracePeak != 1 || f.traceExact):
		return nil, errors.New("--trace.speed, --trace.peak-factor and --trace.keep-grid need --trace.file")
	case !(f.traceSpeed > 0) || !(f.tracePeak > 0):
		return nil, errors.New("--trace.speed and --trace.peak-factor must be above 0")
	case !l.knee && (f.arrivals == "gamma") != (len(f.burstiness) > 0):
		return nil, errors.New("--arrivals=gamma and --burstiness are needed together")
	case !l.knee && len(f.burstiness) > 1 && !f.matrix:
		return nil, errors.New("several values of --burstiness need --matrix")
	case f.maxRate < 0:
		return nil, fmt.Errorf("--max-rate %g: must not be negative", f.maxRate)
	}
	for _, shape := range f.burstiness {
		if err := (workload.Arrivals{Process: workload.Gamma, Rate: 1, Burstiness: shape}).Validate(); err != nil {
			return nil, fmt.Errorf("--burstiness: %w", err)
		}
	}
	for _, text := range f.slo {
		s, err := workload.ParseSLO(text)
		if err != nil {
			return nil, fmt.Errorf("--slo: %w", err)
		}
		if slices.ContainsFunc(l.slo, func(o workload.SLO) bool { return o.Metric == s.Metric && o.Percentile == s.Percentile }) {
			return nil, fmt.Errorf("--slo %s: this metric and percentile have a bound already", text)
		}
		l.slo = append(l.slo, s)
	}
	if f.ramp != "" {
		var err error
		if l.ramp, err = workload.ParseRamp(f.ramp); err != nil {
			return nil, fmt.Errorf("--ramp: %w", err)
		}
	}
	if err := l.readClasses(); err != nil {
		return nil, err
	}
	if err := l.readTrace(); err != nil {
		return nil, err
	}
	if !l.knee {
		if err := l.plan(); err != nil {
			return nil, err
		}
	}
	for i := range l.classes {
		l.chat = l.chat || l.classes[i].Chat
		l.completions = l.completions || !l.classes[i].Chat
	}
	l.completions = l.completions || len(l.classes) == 0 || l.fill
	return l, nil
}

func (l *load) readClasses() error {
	f := l.flags
	if f.classesFile != "" {
		file, err := workload.ReadFile(f.classesFile)
		if err != nil {
			return fmt.Errorf("--classes.file: %w", err)
		}
		l.classes = file.Classes
	}
	for _, text := range f.classes {
		if text == "longest" {
			l.fill = true
			continue
		}
		c, err := workload.ParseClass(text)
		if err != nil {
			return fmt.Errorf("--class: %w", err)
		}
		l.classes = append(l.classes, c)
	}
	if len(l.classes) == 0 && !l.fill && f.traceFile == "" {
		l.classes = workload.Builtin()[:1]
	}
	if len(l.classes) == 0 {
		return nil
	}
	return workload.ValidateClasses(l.classes)
}

func (l *load) readTrace() error {
	f := l.flags
	if f.traceFile == "" {
		return nil
	}
	var err error
	l.trace, l.traceSum, err = f.trace.read(f.traceFile)
	return err
}

// plan makes the list of points.
func (l *load) plan() error {
	f := l.flags
	l.words = f.arrivals
	switch {
	case l.trace != nil:
		l.words = fmt.Sprintf("trace %s (%s, %d requests, SHA-256 %s)", filepath.Base(f.traceFile), f.trace.format, len(l.trace.Records), l.traceSum)
		l.points = []plannedPoint{{name: "trace", classes: l.classes}}
		return nil
	case len(f.concurrency) > 0:
		l.words = "closed loop"
		for _, n := range f.concurrency {
			if n != float64(int(n)) || n > 1<<20 {
				return fmt.Errorf("--concurrency: %g is no number of requests", n)
			}
			l.points = append(l.points, plannedPoint{name: fmt.Sprintf("c=%d", int(n)), concurrency: int(n), classes: l.classes})
		}
	default:
		for _, rate := range f.rates {
			if f.maxRate > 0 && rate > f.maxRate {
				return fmt.Errorf("--rate %g is above --max-rate %g", rate, f.maxRate)
			}
		}
		l.openPoints()
	}
	var names []string
	for i := range l.classes {
		names = append(names, l.classes[i].Name)
	}
	if l.fill {
		names = append(names, "longest")
	}
	l.words += ", classes " + strings.Join(names, ", ")
	return nil
}

func (l *load) openPoints() {
	f := l.flags
	shapes := []float64(f.burstiness)
	if len(shapes) == 0 {
		shapes = []float64{0}
	}
	mixes := [][]workload.Class{l.classes}
	if f.matrix && len(l.classes) > 1 {
		mixes = nil
		for _, c := range l.classes {
			mixes = append(mixes, []workload.Class{c})
		}
	}
	for _, mix := range mixes {
		for _, shape := range shapes {
			for _, rate := range f.rates {
				p := plannedPoint{name: fmt.Sprintf("%g/s", rate), rate: rate, burstiness: shape, classes: mix}
				if len(shapes) > 1 {
					p.name += fmt.Sprintf(" b=%g", shape)
				}
				if len(mixes) > 1 {
					p.name = mix[0].Name + " " + p.name
				}
				l.points = append(l.points, p)
			}
		}
	}
}

// longest makes the class that fills the engine's context, now that it is known.
func (l *load) longest(maxModelLen int) error {
	if !l.fill {
		return nil
	}
	if maxModelLen == 0 {
		return errors.New("--class=longest: the engine does not say how long its context is; give a class with lengths")
	}
	c, err := workload.Longest(maxModelLen)
	if err != nil {
		return err
	}
	if l.flags.matrix && len(l.classes) > 0 {
		l.classes = append(l.classes, c)
		l.points = nil
		l.openPoints()
		return nil
	}
	l.classes = append(l.classes, c)
	for i := range l.points {
		l.points[i].classes = l.classes
	}
	return nil
}

// defaultDuration of a point that nothing else ends.
const defaultDuration = time.Minute

// ready makes the points, now that the engine is known.
func (l *load) ready(facts *probe.Facts) ([]probe.Point, error) {
	points := make([]probe.Point, len(l.points))
	for i, p := range l.points {
		var err error
		if points[i], err = l.point(p, facts); err != nil {
			return nil, err
		}
	}
	return points, nil
}

// point makes a point of a plan.
func (l *load) point(p plannedPoint, facts *probe.Facts) (probe.Point, error) {
	f := l.flags
	out := probe.Point{
		Name: p.name, Fill: facts.Fill, Concurrency: p.concurrency, Rate: p.rate,
		Warmup: f.warmup, Duration: f.duration, Requests: f.requests, Drain: f.drain,
		MaxInflight: f.maxInflight, MaxRate: f.maxRate, SLO: l.slo, ClassSLO: map[string][]workload.SLO{},
	}
	for i := range p.classes {
		c := &p.classes[i]
		if len(c.SLO) > 0 {
			out.ClassSLO[c.Name] = c.SLO
		}
		if c.Prefix != (workload.Prefix{}) || c.Session.Turns > 1 {
			out.SharedPrefixes = true
		}
	}
	salt := workload.NewCacheSalt()
	// Each point has prompts of its own: the second must not be served from the first one's cache.
	content := l.content + uint64(slices.IndexFunc(l.points, func(q plannedPoint) bool { return q.name == p.name }))<<40
	var err error
	if l.trace != nil {
		replay := l.replay(facts, content)
		replay.Classes, replay.CacheSalt = p.classes, salt
		l.notes = append(l.notes, replay.Notes()...)
		out.SharedPrefixes = l.trace.BlockSize > 0
		if len(l.trace.Records) > 0 && !out.SharedPrefixes {
			out.SharedPrefixes = l.trace.Records[0].SessionID != ""
		}
		out.Source, err = replay.Source()
		return out, err
	}
	if out.Duration == 0 && out.Requests == 0 {
		out.Duration = defaultDuration
	}
	plan := workload.Plan{Classes: p.classes, Seed: l.seed, ContentSeed: content, CacheSalt: salt, MaxModelLen: facts.MaxModelLen}
	if p.concurrency == 0 {
		plan.Arrivals = &workload.Arrivals{Process: workload.Process(f.arrivals), Rate: p.rate, Burstiness: p.burstiness, Ramp: l.ramp}
	}
	if out.Source, err = plan.Source(); err != nil {
		return out, err
	}
	for _, note := range plan.Notes() {
		if !slices.Contains(l.notes, note) {
			l.notes = append(l.notes, note)
		}
	}
	return out, nil
}

// replay is the trace at the speed of the flags.
func (l *load) replay(facts *probe.Facts, content uint64) workload.Replay {
	r := workload.Replay{
		Trace: l.trace, Speed: l.flags.traceSpeed, PeakFactor: l.flags.tracePeak,
		Seed: l.seed, ContentSeed: content, MaxModelLen: facts.MaxModelLen,
	}
	if !l.flags.traceExact {
		r.Grid = l.trace.Grid()
	}
	return r
}

// hash is the SHA-256 of what is sent, in hex: the classes and the trace. Two
// draws of the same classes are the same workload.
func (l *load) hash() string {
	text, err := json.Marshal(struct {
		Classes []workload.Class
		Trace   string
	}{l.classes, l.traceSum})
	if err != nil {
		panic(fmt.Sprintf("classes are plain data: %v", err))
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}
