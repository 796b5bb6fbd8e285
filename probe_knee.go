package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe"
	"headroom_exporter/probe/knee"
	"headroom_exporter/probe/report"
	"headroom_exporter/probe/workload"
)

// kneeFlags are the flags of the probe that are for the search of the knee only.
type kneeFlags struct {
	curve       string
	report      string
	quick       bool
	release     bool
	mix         bool
	mixOnly     bool
	coldStart   bool
	allowShared bool
	resume      bool
	update      bool
	preset      string
	reserve     float64
	identity    *identityFlags
}

func (f *kneeFlags) add(c *kingpin.CmdClause) {
	c.Flag("out.curve", "File for the capacity curve. While the search runs, what was measured is kept beside it in a file that ends in .partial.").StringVar(&f.curve)
	c.Flag("out.report", "File for the curve as an HTML page with its pictures.").StringVar(&f.report)
	c.Flag("quick", "Search: the ceiling and three loads for each class, nothing soaked; the result is an estimate.").BoolVar(&f.quick)
	c.Flag("release", "Search: more requests, a lower safe rate and a longer soak, for a curve that decides on a release.").BoolVar(&f.release)
	c.Flag("mix", "Search: all classes at once as well, by their weights.").BoolVar(&f.mix)
	c.Flag("mix-only", "Search: all classes at once, and none alone; with --update beside the knees that a curve has of them.").BoolVar(&f.mixOnly)
	c.Flag("cold-start", "Search: measure the engine's first answers before all else; restart it right before.").BoolVar(&f.coldStart)
	c.Flag("allow-shared", "Search although others use the engine; it ends at once when it hurts them.").BoolVar(&f.allowShared)
	c.Flag("resume", "Search: go on with what an earlier run with the same flags left in the .partial file.").BoolVar(&f.resume)
	c.Flag("update", "Search: add to the curve file that is there. A lower knee counts at once, a higher one when it was seen twice.").BoolVar(&f.update)
	c.Flag("slo.preset", "Search: the bounds that MLPerf Inference has for a model: "+strings.Join(capacity.SLOPresets(), ", ")+".").StringVar(&f.preset)
	c.Flag("peak-reserve", "Search: share of the knee that the recommended watermark keeps for peaks.").Default("0.2").Float64Var(&f.reserve)
	f.identity = addIdentityFlags(c)
}

// onlyForSearch is of a flag that was given with one load.
func onlyForSearch(flag string) error {
	return fmt.Errorf("%s is for the search of the knee: leave --rate and --concurrency out; that of a trace is searched with --out.curve", flag)
}

func (f *kneeFlags) validate(l *load) error {
	if !l.knee {
		for flag, given := range map[string]bool{
			"--out.report": f.report != "", "--quick": f.quick, "--release": f.release, "--mix": f.mix, "--mix-only": f.mixOnly,
			"--cold-start": f.coldStart, "--allow-shared": f.allowShared, "--resume": f.resume, "--update": f.update, "--slo.preset": f.preset != "",
		} {
			if given {
				return onlyForSearch(flag)
			}
		}
		return nil
	}
	switch {
	case f.quick && f.release:
		return errors.New("--quick and --release exclude each other")
	case !(f.reserve >= 0 && f.reserve < 1):
		return fmt.Errorf("--peak-reserve is %g: want a share from 0 to less than 1", f.reserve)
	case (f.resume || f.update) && f.curve == "":
		return errors.New("--resume and --update need --out.curve")
	case f.mix && f.mixOnly:
		return errors.New("--mix and --mix-only exclude each other")
	case (f.mix || f.mixOnly) && (len(l.classes) == 0 || len(l.classes) == 1 && !l.fill):
		return errors.New("--mix and --mix-only need two classes or more")
	case l.trace != nil && !slices.ContainsFunc(l.classes, func(c workload.Class) bool { return c.Match != nil }):
		return errors.New("--trace.file needs classes that its requests belong to: headroom_exporter profile TRACE --out.classes=FILE makes them, and --classes.file=FILE takes them")
	case f.preset != "" && len(l.slo) > 0:
		return errors.New("--slo and --slo.preset exclude each other")
	}
	var err error
	switch {
	case f.preset != "":
		l.slo, err = capacity.SLOPreset(f.preset)
		if err != nil {
			return fmt.Errorf("--slo.preset: %w", err)
		}
	case len(l.slo) == 0 && slices.ContainsFunc(l.classes, func(c workload.Class) bool { return len(c.SLO) == 0 }) || len(l.classes) == 0:
		l.slo = capacity.DefaultSLO()
	}
	return nil
}

// quickSettle is how long an engine must be idle ahead of each load of a quick search.
const quickSettle = 2 * time.Second

// settle is how long an engine must be idle ahead of each load; 0 is the target's own.
func (f *kneeFlags) settle() time.Duration {
	if f.quick {
		return quickSettle
	}
	return 0
}

// say tells what a search does and why.
func say(line string) { fmt.Fprintln(os.Stderr, line) }

// partial is where what was measured is kept until the curve is written.
func (f *kneeFlags) partial() string { return partialOf(f.curve) }

// partialOf is where a search keeps what it measures for a curve's file, locked while it runs.
func partialOf(curveFile string) string { return curveFile + ".partial" }

// outputReady says, before any work is done, whether the curve can be written
// and whether nothing of an earlier run would be lost.
func (f *kneeFlags) outputReady(force bool) error {
	if f.curve == "" {
		return nil
	}
	if err := outputsReady(force || f.update, f.curve); err != nil {
		return err
	}
	if _, err := os.Stat(f.curve); f.mixOnly && f.update && errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("--mix-only --update: %s is not there: leave --mix-only out, so that the classes are searched, or leave --update out", f.curve)
	}
	if err := knee.JournalInUse(f.partial()); err != nil {
		return err
	}
	if _, err := os.Stat(f.partial()); !f.resume && err == nil && !force {
		return fmt.Errorf("%s is there from a run that did not end: give --resume to go on with it, or --force to begin anew", f.partial())
	}
	return nil
}

// updatable says, before any work is done, whether the curve that is there can
// take what will be found.
func (f *kneeFlags) updatable(identity curve.Identity) error {
	if !f.update {
		return nil
	}
	stored, err := curve.ReadFile(f.curve)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("--update: %w", err)
	case stored.ID != identity.ID():
		check := stored.Check(identity, time.Now())
		return fmt.Errorf("--update: %s is of another engine (%s): give another --out.curve",
			f.curve, sentence(slices.Concat(check.Hard, check.Soft, check.NotCompared)))
	case f.quick && !stored.Estimate:
		return fmt.Errorf("--update: %s was soaked, and an estimate does not update it: leave --quick out", f.curve)
	}
	return nil
}

// mixable says, before any work is done, whether the curve that is there has
// the classes of a mix that is searched alone: beside other ones it says nothing.
func (f *kneeFlags) mixable(load *load) error {
	if !f.update || !f.mixOnly {
		return nil
	}
	stored, err := curve.ReadFile(f.curve)
	if err != nil {
		return fmt.Errorf("--update: %w", err)
	}
	for i := range load.classes {
		w := &load.classes[i]
		class := curve.Class{Name: w.Name, SLO: w.SLO}
		class.PromptMean, class.GenerationMean = w.Means()
		if !stored.SameClass(&class, load.slo) {
			return fmt.Errorf("--mix-only --update: %s has no class %s of these lengths and bounds: leave --mix-only out, so that it is searched", f.curve, w.Name)
		}
	}
	return nil
}

func (f *kneeFlags) mode() knee.Mode {
	switch {
	case f.quick:
		return knee.Quick
	case f.release:
		return knee.Release
	}
	return knee.Full
}

// search finds the knees and writes the curve.
func (f *probeFlags) search(ctx context.Context, c *connection, load *load, out io.Writer) error {
	identity, err := f.engineIdentity(ctx, c, load)
	if err != nil {
		return err
	}
	if err := f.knee.updatable(identity); err != nil {
		return usageError{err}
	}
	if err := f.knee.mixable(load); err != nil {
		return usageError{err}
	}
	campaign, err := f.campaign(c, load, identity)
	if err != nil {
		return usageError{err}
	}
	target := probe.NewTarget(probe.TargetConfig{
		Runner: c.runner, Facts: c.facts, AllowShared: f.knee.allowShared, MaxInflight: f.load.maxInflight, MaxRate: f.load.maxRate,
		Settle: f.knee.settle(), Started: c.started, Report: say,
	})
	campaign.Engine = &shownEngine{engine: target, progress: newProgress(c.runner, 0)}
	started := c.started
	journal, err := f.journal(c, load, identity, campaign.Engine)
	if err != nil {
		return usageError{err}
	}
	if journal != nil {
		defer journal.Close()
		campaign.Engine, started = journal, journal.Started()
	}
	found, err := campaign.Run(ctx)
	found.Identity, found.ID = identity, identity.ID()
	found.Tool = curve.Tool{Name: name, Version: version.Version, Commit: version.Revision}
	found.Client = clientOf(&f.client)
	found.Workload = curve.Workload{Hash: load.hash(), Seed: load.seed, Flags: strings.Join(os.Args[1:], " ")}
	found.Started, found.Finished = started.UTC(), time.Now().UTC()
	found.Notes = append(slices.Concat(c.facts.Notes, load.notes, target.Notes()), found.Notes...)
	if note := enginesNote(journal); note != "" {
		found.Notes = append(found.Notes, note)
	}
	found.Coverage = curve.Cover(found)
	if c.runner.Records != nil {
		err = errors.Join(err, c.runner.Records.Close())
	}
	if err != nil {
		if journal != nil && journal.Stored() == 0 {
			// There is nothing to go on with, and nothing in the way of the next run.
			err = errors.Join(err, journal.Remove())
		}
		return f.unfinished(found, err, out)
	}
	return f.deliver(found, journal, out)
}

// engineIdentity is what the curve will say that it was measured on. An engine
// without metrics is known by the flags alone.
func (f *probeFlags) engineIdentity(ctx context.Context, c *connection, load *load) (curve.Identity, error) {
	// The readings beside a load are many a second; here is time to wait for an answer.
	config := f.engine
	config.Interval = max(config.Interval, pagePatience)
	identity, err := readIdentity(ctx, config, &gpuFlags{nvml: f.gpuMode, devices: f.gpus}, f.knee.identity.overrides)
	if err == nil || ctx.Err() != nil {
		return identity, err
	}
	load.notes = append(load.notes, fmt.Sprintf("the engine's identity could not be read and rests on --identity: %v", err))
	identity = curve.Identity{Model: c.facts.Model, MaxModelLen: c.facts.MaxModelLen}
	if err := f.knee.identity.apply(&identity); err != nil {
		return identity, usageError{err}
	}
	return identity, nil
}

// campaign is what is searched for.
func (f *probeFlags) campaign(c *connection, load *load, identity curve.Identity) (*knee.Campaign, error) {
	bounds := workload.TokenBounds(max(c.facts.MaxModelLen, 1<<15))
	if c.facts.MaxModelLen > 0 {
		bounds = workload.TokenBounds(c.facts.MaxModelLen)
	}
	campaign := &knee.Campaign{
		Classes: load.classes, SLO: load.slo, Mode: f.knee.mode(), Burstiness: f.load.burstiness, Mix: f.knee.mix || f.knee.mixOnly, MixOnly: f.knee.mixOnly,
		ColdStart: f.knee.coldStart, LengthBounds: bounds, MaxRate: f.load.maxRate, PeakReserve: f.knee.reserve, Seed: load.seed,
		Limits: knee.Limits{
			MaxNumSeqs: identity.MaxNumSeqs, MaxNumBatchedTokens: identity.MaxNumBatchedTokens,
			KVTokens: identity.KVTokens, MaxModelLen: c.facts.MaxModelLen,
		},
		Report: say,
	}
	// What does not fit the engine's context is a wrong flag, and no search that ended early.
	if _, err := (workload.Plan{Classes: load.classes, MaxModelLen: c.facts.MaxModelLen, Seed: load.seed}).Source(); err != nil {
		return nil, err
	}
	if load.trace == nil {
		return campaign, nil
	}
	replay := load.replay(c.facts, load.content)
	replay.Classes = slices.DeleteFunc(slices.Clone(load.classes), func(c workload.Class) bool { return c.Match == nil })
	campaign.Replay = &replay
	campaign.ReplayName = fmt.Sprintf("%s sha256:%s", filepath.Base(f.load.traceFile), load.traceSum)
	load.notes = append(load.notes, replay.Notes()...)
	return campaign, nil
}

// journal is where what is measured is kept, and what an earlier run left with
// --resume; nil without a file for the curve.
func (f *probeFlags) journal(c *connection, load *load, identity curve.Identity, engine knee.Engine) (*knee.Journal, error) {
	if f.knee.curve == "" {
		return nil, nil
	}
	h := f.journalHeader(load, identity)
	h.Started, h.Engine = c.started.UTC(), c.base
	open := knee.OpenJournal
	if f.force && !f.knee.resume {
		open = knee.BeginJournal
	}
	journal, err := open(f.knee.partial(), h, engine)
	if err != nil {
		return nil, err
	}
	if n := journal.Stored(); n > 0 {
		say(fmt.Sprintf("going on after %d loads: what was seen of them is said again, and not measured again", n))
	}
	if earlier := slices.DeleteFunc(journal.Engines(), func(url string) bool { return url == c.base }); len(earlier) > 0 {
		say(fmt.Sprintf("what is kept was measured at %s, and the rest will be at %s: the curve will be of both engines", strings.Join(earlier, " and "), c.base))
	}
	return journal, nil
}

// enginesNote says that the loads of a curve were put on several engines; empty when they were not.
func enginesNote(j *knee.Journal) string {
	if j == nil || len(j.Engines()) < 2 {
		return ""
	}
	return fmt.Sprintf("measured on %d engines of the same identity, as the search was gone on with elsewhere: %s", len(j.Engines()), strings.Join(j.Engines(), ", "))
}

// journalHeader names what a search is of. One that goes on with another's
// measurements must be of the same.
func (f *probeFlags) journalHeader(load *load, identity curve.Identity) knee.JournalHeader {
	h := knee.JournalHeader{Fields: map[string]string{
		"workload":     load.hash(),
		"seed":         strconv.FormatUint(load.seed, 10),
		"mode":         string(f.knee.mode()),
		"slo":          fmt.Sprint(load.slo),
		"burstiness":   f.load.burstiness.String(),
		"mix":          strconv.FormatBool(f.knee.mix),
		"mix-only":     strconv.FormatBool(f.knee.mixOnly),
		"cold-start":   strconv.FormatBool(f.knee.coldStart),
		"max-rate":     fmt.Sprint(f.load.maxRate),
		"max-inflight": strconv.Itoa(f.load.maxInflight),
	}}
	for _, field := range curve.Fields() {
		// An engine that was started again has a few blocks more or less.
		if text := field.Text(&identity); field.Hard && field.Name != "kv_tokens" && text != "" {
			h.Fields["engine's "+field.Name] = text
		}
	}
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(h.Fields)) {
		fmt.Fprintf(sum, "%s=%s\n", name, h.Fields[name])
	}
	h.Config = fmt.Sprintf("%x", sum.Sum(nil))
	return h
}

// earlierSeed is the seed of the search that --resume goes on with.
func (f *kneeFlags) earlierSeed() (uint64, error) {
	h, err := knee.ReadJournalHeader(f.partial())
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("--resume: there is no %s: leave the flag out to begin anew", f.partial())
	}
	if err != nil {
		return 0, fmt.Errorf("--resume: %s: %w", f.partial(), err)
	}
	seed, err := strconv.ParseUint(h.Fields["seed"], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("--resume: %s: it does not say its search's seed: give it with --seed", f.partial())
	}
	return seed, nil
}

// unfinished prints what is known of a search that ended early, and how to go on.
func (f *probeFlags) unfinished(found *curve.Curve, err error, out io.Writer) error {
	for _, line := range report.Verdicts(ended(found)) {
		fmt.Fprintln(out, line)
	}
	text := saidOnce(err)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		text = "the search was ended early and no curve is written"
	}
	failure := errors.New(text + f.goOn("--resume"))
	if errors.Is(err, knee.ErrHarm) {
		return safetyError{failure}
	}
	return failure
}

// ended is a curve with the studies that came to their end only: why the
// others did not is what the search ended with.
func ended(c *curve.Curve) *curve.Curve {
	interrupted := func(s curve.Study) bool { return s.Status == curve.StatusInterrupted }
	out := *c
	out.Classes, out.Mixes = nil, nil
	for _, class := range c.Classes {
		class.Studies = slices.DeleteFunc(slices.Clone(class.Studies), interrupted)
		if len(class.Studies) > 0 {
			out.Classes = append(out.Classes, class)
		}
	}
	for _, mix := range c.Mixes {
		if !interrupted(mix.Study) {
			out.Mixes = append(out.Mixes, mix)
		}
	}
	return &out
}

// saidOnce is an error in a line. What several parts ran into, such as a full disk, is said once.
func saidOnce(err error) string {
	var said []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, line) }) {
			said = append(said, line)
		}
	}
	return strings.Join(said, "; ")
}

// goOn says where what was measured is, and with which flags the same command
// goes on from there; empty when nothing was kept.
func (f *probeFlags) goOn(flags string) string {
	if f.knee.curve == "" {
		return "; with --out.curve it could be continued"
	}
	if _, err := os.Stat(f.knee.partial()); err != nil {
		return ""
	}
	return fmt.Sprintf("; what was measured is in %s: the same command with %s goes on from there", f.knee.partial(), flags)
}

// deliver writes the curve and everything made of it.
func (f *probeFlags) deliver(found *curve.Curve, journal *knee.Journal, out io.Writer) error {
	if f.knee.update {
		updated, err := f.updated(found)
		if err != nil {
			return err
		}
		found = updated
	}
	var err error
	for _, file := range []struct {
		path  string
		write func(io.Writer) error
	}{
		{f.knee.curve, found.Encode},
		{f.results, found.Encode},
		{f.summary, func(w io.Writer) error { return report.Markdown(w, found) }},
		{f.knee.report, func(w io.Writer) error { return report.HTML(w, found) }},
	} {
		if file.path != "" {
			err = errors.Join(err, writeOutput(file.path, f.force || f.knee.update && file.path == f.knee.curve, file.write))
		}
	}
	switch {
	case err != nil && f.knee.curve != "":
		err = errors.New(oneLine(err) + f.goOn("--resume --force"))
	case journal != nil:
		err = journal.Remove()
	}
	switch f.output {
	case "json":
		err = errors.Join(err, found.Encode(out))
	case "markdown":
		err = errors.Join(err, report.Markdown(out, found))
	default:
		width, ok := terminalWidth(os.Stdout)
		if !ok {
			width = pipeWidth
		}
		err = errors.Join(err, report.Terminal(out, found, width))
		// Last, where it is still seen.
		_, printed := fmt.Fprintf(out, "\n%s\n", report.Verdict(found))
		err = errors.Join(err, printed)
		if text := report.Uncounted(found); text != "" {
			_, printed := fmt.Fprintln(out, text)
			err = errors.Join(err, printed)
		}
	}
	if err != nil {
		return asFailure(err)
	}
	return unsafe(found)
}

// updated is the curve that is there already with what was found added.
func (f *probeFlags) updated(found *curve.Curve) (*curve.Curve, error) {
	stored, err := curve.ReadFile(f.knee.curve)
	if errors.Is(err, os.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--update: %w; what was found is in %s", err, f.knee.partial())
	}
	band := 0.0
	if found.AA != nil && found.AA.Band.Known() {
		band = float64(found.AA.Band)
	}
	updated, changes, err := curve.Update(stored, found, band)
	if err != nil {
		return nil, fmt.Errorf("--update: %w; what was found is in %s", err, f.knee.partial())
	}
	for _, c := range changes {
		say(c.String())
	}
	updated.Coverage = curve.Cover(updated) // What was stored counts too.
	return updated, nil
}

// unsafe is the error of a curve that has a study without a safe rate.
func unsafe(c *curve.Curve) error {
	var without []string
	note := func(name string, s *curve.Study) {
		if !s.SafeRate.Known() {
			without = append(without, fmt.Sprintf("%s, %s: %s", name, s.Arrivals.Process, s.Reason))
		}
	}
	for i := range c.Classes {
		for k := range c.Classes[i].Studies {
			note("class "+c.Classes[i].Name, &c.Classes[i].Studies[k])
		}
	}
	for i := range c.Mixes {
		note(c.Mixes[i].Name, &c.Mixes[i].Study)
	}
	if len(without) == 0 {
		return nil
	}
	return errors.New("no safe rate for " + strings.Join(without, "; "))
}

// clientOf describes this machine and how requests are asked for.
func clientOf(c *probe.ClientConfig) curve.Client {
	host, _ := os.Hostname() // for a person only
	dialect := "texts"
	if c.Dialect.PromptIDs {
		dialect = "token ids"
	}
	return curve.Client{Host: host, OS: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0), Dialect: "prompts as " + dialect}
}

// shownEngine shows a load's progress while it runs.
type shownEngine struct {
	engine   knee.Engine
	progress *probe.Progress
	loads    int
}

func (e *shownEngine) Run(ctx context.Context, l *knee.Load, m knee.Monitor) (*knee.Observation, error) {
	e.loads++
	defer showProgress(ctx, e.progress, e.loads)()
	return e.engine.Run(ctx, l, m)
}
