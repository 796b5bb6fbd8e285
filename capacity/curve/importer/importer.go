// Package importer makes a capacity curve of the result files of other load
// generators: GuideLLM, AIPerf, inference-perf and vllm bench. Each names and
// measures its latencies in its own way; what is taken over is translated
// into the curve's definitions, and what cannot be is left out and said.
//
// A curve that was imported is an estimate: nothing was soaked, the client was
// not watched, and the engine's own state is unknown.
package importer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// Format is the kind of a result file.
type Format string

// The formats.
const (
	// GuideLLM is benchmarks.json of `guidellm run` (report version 2).
	GuideLLM Format = "guidellm"
	// AIPerf is profile_export_aiperf.json of `aiperf profile`; profile_export.jsonl
	// is read where it lies beside it.
	AIPerf Format = "aiperf"
	// InferencePerf is stage_N_lifecycle_metrics.json of `inference-perf`; the
	// other reports are read where they lie beside it.
	InferencePerf Format = "inference-perf"
	// VLLMBench is the result of `vllm bench serve --save-result`, and run=N.json
	// or summary.json of `vllm bench sweep serve`.
	VLLMBench Format = "vllm-bench"
)

// Formats are all formats' names.
var Formats = []string{string(GuideLLM), string(AIPerf), string(InferencePerf), string(VLLMBench)}

// Options are what the files do not say.
type Options struct {
	// Format of the files; empty recognises each by its content.
	Format Format
	// Class is the name of the class of traffic that was sent.
	Class string
	// SLO bounds the latencies; a knee is of a bound.
	SLO []capacity.SLO
	// PeakReserve is the share of the knee that is kept for peaks.
	PeakReserve float64
	// Identity is what the engine is known to have been; the model is taken
	// from the files when it is empty.
	Identity curve.Identity
}

// className is the probe's rule for classes: a curve's are matched with them by name.
var className = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// differentFiles returns an error when a file is given twice, by whatever path:
// its requests would count twice.
func differentFiles(paths []string) error {
	infos := make([]os.FileInfo, len(paths))
	for i, path := range paths {
		var err error
		if infos[i], err = os.Stat(path); err != nil {
			continue // reading it says why
		}
		for k := range i {
			if infos[k] != nil && os.SameFile(infos[k], infos[i]) {
				return fmt.Errorf("%s is given twice: leave one out", path)
			}
		}
	}
	return nil
}

// Import reads result files of one tool and one class of traffic as a curve. An error
// is one line that names the file, what is wrong with it and what to do.
func Import(paths []string, o Options) (*curve.Curve, error) {
	switch {
	case len(paths) == 0:
		return nil, errors.New("no result file is given")
	case len(o.SLO) == 0:
		return nil, errors.New("no SLO is given: a knee is of a bound, such as ttft:p99:800ms")
	}
	for _, s := range o.SLO {
		if err := s.Validate(); err != nil {
			return nil, err
		}
	}
	if !className.MatchString(o.Class) {
		return nil, fmt.Errorf("class %q: a name has 1 to 64 letters, digits, dots, dashes or underscores", o.Class)
	}
	if err := differentFiles(paths); err != nil {
		return nil, err
	}
	var runs []run
	for _, path := range paths {
		read, err := readFile(path, o.Format)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		runs = append(runs, read...)
	}
	return assemble(runs, o)
}

// assemble makes the curve of runs.
func assemble(runs []run, o Options) (*curve.Curve, error) {
	if err := together(runs); err != nil {
		return nil, err
	}
	notes := &notes{}
	c := &curve.Curve{
		Identity: o.Identity, Source: curve.Imported, Estimate: true, SLO: o.SLO, PeakReserve: o.PeakReserve,
		Tool: curve.Tool{Name: string(runs[0].format), Version: versions(runs)},
	}
	c.ImportedFrom = strings.TrimSpace(c.Tool.Name + " " + c.Tool.Version)
	if c.Tool.Version == "" {
		c.ImportedFrom += " (version unknown)"
	}
	if err := identify(&c.Identity, runs, notes); err != nil {
		return nil, err
	}
	notes.add("imported: knees are estimates, nothing was soaked, and the engine's queue and KV cache were not read")
	class := curve.Class{Name: o.Class, Weight: 1, PrefixHitRatio: capacity.Unknown()}
	lengths(&class, runs, c.Identity.MaxModelLen, notes)
	for i := range runs {
		widen(c, &runs[i])
	}
	groups := byArrivals(runs)
	for _, group := range groups {
		study, err := studyOf(group, o, c.Started)
		if err != nil {
			return nil, err
		}
		class.Studies = append(class.Studies, study)
	}
	for _, group := range groups {
		for i := range group {
			notes.add(group[i].notes...)
		}
	}
	c.Classes = []curve.Class{class}
	if missing := unknownHard(&c.Identity); len(missing) > 0 {
		notes.add("not known, and so not compared with an engine: " + strings.Join(missing, ", ") + " (--identity NAME=VALUE)")
	}
	c.Notes = notes.all
	c.Workload.Flags = runs[0].command
	c.Schema, c.ID = curve.Schema, c.Identity.ID()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("the files do not make a curve: %w", err)
	}
	return c, nil
}

// maxLengthRatio is by how much the mean lengths of two runs of one class may differ.
const maxLengthRatio = 1.5

// together returns an error for runs that do not belong in one class of one curve.
func together(runs []run) error {
	if len(runs) == 0 {
		return errors.New("the files hold no measurement: give result files of at least one finished run")
	}
	first := &runs[0]
	for i := range runs {
		r := &runs[i]
		for k := range i {
			if r.same(&runs[k]) {
				return fmt.Errorf("%s holds the same run as %s: leave one out", r.file, runs[k].file)
			}
		}
		if r.format != first.format {
			return fmt.Errorf("%s is of %s, but %s of %s: their latencies are not the same thing; import one tool's files at a time", r.file, r.format, first.file, first.format)
		}
		for _, l := range []struct {
			name string
			a, b float64
		}{{"prompt", first.prompt, r.prompt}, {"output", first.output, r.output}} {
			if math.Max(l.a/l.b, l.b/l.a) > maxLengthRatio {
				return fmt.Errorf("%s has %ss of %.4g tokens on average, but %s of %.4g: they are two classes; import them one by one", r.file, l.name, l.b, first.file, l.a)
			}
		}
	}
	return nil
}

// same tells whether two are copies of one run.
func (r *run) same(o *run) bool {
	return !r.start.IsZero() && r.start.Equal(o.start) && r.seconds == o.seconds && r.attempts == o.attempts &&
		r.concurrency == o.concurrency && r.prompt == o.prompt && r.output == o.output
}

// versions of the tool; more than one where they differ.
func versions(runs []run) string {
	var all []string
	for i := range runs {
		if v := runs[i].version; v != "" && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return strings.Join(all, ", ")
}

// identify fills in the model, which the identity must have.
func identify(id *curve.Identity, runs []run, notes *notes) error {
	model, file := "", ""
	for i := range runs {
		r := &runs[i]
		switch {
		case r.model == "":
		case model == "":
			model, file = r.model, r.file
		case r.model != model && id.Model == "":
			return fmt.Errorf("%s is of model %q, but %s of %q: import them one by one", r.file, r.model, file, model)
		}
	}
	switch {
	case id.Model == "" && model == "":
		return fmt.Errorf("%s does not name the model: give --identity model=NAME, and what else is known of the engine, such as %s", runs[0].file, strings.Join(unknownHard(id), ", "))
	case id.Model == "":
		id.Model = model
	case model != "" && model != id.Model:
		notes.add(fmt.Sprintf("the files call the model %q", model))
	}
	return nil
}

// unknownHard are the fields in which an engine must not differ and that are not known.
func unknownHard(id *curve.Identity) []string {
	var names []string
	for _, f := range curve.Fields() {
		if text, err := id.Get(f.Name); err == nil && text == "" && f.Hard && f.Name != "model" {
			names = append(names, f.Name)
		}
	}
	return names
}

// widen the curve's time to hold the run's.
func widen(c *curve.Curve, r *run) {
	end := r.start.Add(time.Duration(r.seconds * float64(time.Second)))
	if c.Started.IsZero() || r.start.Before(c.Started) {
		c.Started = r.start
	}
	if end.After(c.Finished) {
		c.Finished = end
	}
}

// byArrivals groups runs by their arrivals, Poisson first and closed loops last,
// each ordered by the rate, or by the concurrency.
func byArrivals(runs []run) [][]run {
	order := []string{"poisson", "gamma", "constant", "trace", "closed_loop"}
	slices.SortStableFunc(runs, func(a, b run) int {
		return cmp.Or(
			cmp.Compare(slices.Index(order, a.arrivals.Process), slices.Index(order, b.arrivals.Process)),
			cmp.Compare(a.arrivals.Burstiness, b.arrivals.Burstiness),
			cmp.Compare(a.arrivals.Trace, b.arrivals.Trace),
			cmp.Compare(a.concurrency, b.concurrency),
			cmp.Compare(a.offered, b.offered),
		)
	})
	var groups [][]run
	for i := range runs {
		if i == 0 || runs[i].arrivals != runs[i-1].arrivals {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], runs[i])
	}
	return groups
}

// notes keeps each note once.
type notes struct{ all []string }

func (n *notes) add(texts ...string) {
	for _, t := range texts {
		if !slices.Contains(n.all, t) {
			n.all = append(n.all, t)
		}
	}
}
