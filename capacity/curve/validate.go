package curve

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"headroom_exporter/capacity"
)

// Validate returns an error of one line that names the field and value that
// cannot be. A curve that passes it is written and read back as it is.
func (c *Curve) Validate() error {
	if c.Schema != Schema {
		return fmt.Errorf("schema is %q, want %q", c.Schema, Schema)
	}
	if err := checkNumbers(reflect.ValueOf(c).Elem(), "", false); err != nil {
		return err
	}
	return first(
		c.checkIdentity,
		c.checkOrigin,
		c.checkClasses,
		c.checkMixes,
		c.checkExtras,
		c.checkReuse,
	)
}

// first returns the first error.
func first(checks ...func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// at puts the field before an error about it.
func at(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", path, err)
}

// oneOf returns an error for a text that is none of those that exist.
func oneOf[T ~string](path string, value T, exist ...T) error {
	if slices.Contains(exist, value) {
		return nil
	}
	quoted := make([]string, 0, len(exist))
	for _, e := range exist {
		quoted = append(quoted, fmt.Sprintf("%q", string(e)))
	}
	return fmt.Errorf("%s is %q, want one of %s", path, string(value), strings.Join(quoted, ", "))
}

// shares are keys whose number is a share of 1. Others with _ratio may pass 1.
var shares = []string{
	"peak_reserve_ratio", "prefix_cache_hit_ratio", "confidence", "kv_usage_mean", "kv_usage_peak", "gpu_memory_utilization",
}

// signed are keys whose number may be negative.
var signed = []string{"value", "limit", "temperature_celsius"}

// largest bounds every number of a file. What is above it nobody measured.
const largest = 1e12

// checkNumbers looks through everything for a number that none of its kind
// can be: infinite, negative, above largest, or more than 1 for a share. Only a Value may be NaN.
func checkNumbers(v reflect.Value, path string, mayBeNegative bool) error {
	switch v.Kind() {
	case reflect.Float64:
		x := v.Float()
		_, mayBeUnknown := v.Interface().(Value)
		key := path[strings.LastIndex(path, ".")+1:]
		switch {
		case math.IsNaN(x) && mayBeUnknown:
		case math.IsNaN(x), math.IsInf(x, 0):
			return fmt.Errorf("%s is %g, want a finite number", path, x)
		case x < 0 && !mayBeNegative:
			return fmt.Errorf("%s is %g, want 0 or more", path, x)
		case x > 1 && slices.Contains(shares, key):
			return fmt.Errorf("%s is %g, want at most 1", path, x)
		case math.Abs(x) > largest:
			return fmt.Errorf("%s is %g, want at most %g", path, x, largest)
		}
	case reflect.Int:
		if v.Int() < 0 {
			return fmt.Errorf("%s is %d, want 0 or more", path, v.Int())
		}
	case reflect.Pointer:
		if !v.IsNil() {
			return checkNumbers(v.Elem(), path, mayBeNegative)
		}
	case reflect.Slice:
		for i := range v.Len() {
			if err := checkNumbers(v.Index(i), fmt.Sprintf("%s[%d]", path, i), false); err != nil {
				return err
			}
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if err := checkNumbers(v.MapIndex(k), path+"."+k.String(), false); err != nil {
				return err
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case f.Anonymous:
				if err := checkNumbers(v.Field(i), path, false); err != nil {
					return err
				}
				continue
			case key == "": // not written: an SLO's inside, a time's
				continue
			case path != "":
				key = path + "." + key
			}
			if err := checkNumbers(v.Field(i), key, slices.Contains(signed, key[strings.LastIndex(key, ".")+1:])); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Curve) checkIdentity() error {
	if c.Identity.Model == "" {
		return errors.New("identity.model is empty: a curve is of a model")
	}
	for i := range fields {
		if err := at("identity", fields[i].check(fields[i].Text(&c.Identity))); err != nil {
			return err
		}
	}
	if id := c.Identity.ID(); c.ID != id {
		return fmt.Errorf("id is %q, but the identity's hash is %q: a field was changed by hand; to use the curve for another engine add an entry to reuse", c.ID, id)
	}
	return nil
}

func (c *Curve) checkOrigin() error {
	if err := oneOf("source", c.Source, Measured, Imported, Simulated); err != nil {
		return err
	}
	switch {
	case c.Source == Imported && c.ImportedFrom == "":
		return errors.New("imported_from is empty, want the tool that wrote what was imported")
	case c.Source != Imported && c.ImportedFrom != "":
		return fmt.Errorf("imported_from is %q, but source is %q", c.ImportedFrom, c.Source)
	case c.Tool.Name == "":
		return errors.New("tool.name is empty")
	case c.Started.IsZero():
		return errors.New("started is missing")
	case c.Finished.Before(c.Started):
		return fmt.Errorf("finished is %s, before started", c.Finished)
	case c.Source != Imported && c.Workload.Hash == "":
		return errors.New("workload.hash is empty, want a SHA-256 in hex")
	}
	if hash := c.Workload.Hash; hash != "" {
		if b, err := hex.DecodeString(hash); err != nil || len(b) != 32 {
			return fmt.Errorf("workload.hash is %q, want a SHA-256 in hex", hash)
		}
	}
	return checkSLOs("slo", c.SLO)
}

func checkSLOs(path string, slos []capacity.SLO) error {
	for i, s := range slos {
		if err := at(fmt.Sprintf("%s[%d]", path, i), s.Validate()); err != nil {
			return err
		}
	}
	return nil
}

func (c *Curve) checkClasses() error {
	if len(c.Classes) == 0 {
		return errors.New("classes is empty")
	}
	total := 0.0
	for i := range c.Classes {
		class, path := &c.Classes[i], fmt.Sprintf("classes[%d]", i)
		total += class.Weight
		if err := checkName(path+".name", class.Name); err != nil {
			return err
		}
		if class != c.class(class.Name) {
			return fmt.Errorf("%s.name: %q is given twice", path, class.Name)
		}
		for j := range class.Studies {
			study := fmt.Sprintf("%s.studies[%d]", path, j)
			if class.Study(class.Studies[j].Arrivals) != &class.Studies[j] {
				return fmt.Errorf("%s.arrivals: %s is given twice", study, class.Studies[j].Arrivals)
			}
			if err := c.checkStudy(study, &class.Studies[j]); err != nil {
				return err
			}
		}
		err := first(
			func() error { return checkTokensPerStep(path, class.SpeculativeTokensPerStep) },
			func() error { return checkSLOs(path+".slo", class.SLO) },
			func() error { return at(path+".prompt_histogram", class.PromptHistogram.Validate()) },
			func() error { return at(path+".generation_histogram", class.GenerationHistogram.Validate()) },
		)
		if err != nil {
			return err
		}
		if len(class.SLO) == 0 && len(c.SLO) == 0 {
			return fmt.Errorf("%s.slo is empty, and so is the curve's: a knee is of a bound", path)
		}
	}
	if total == 0 {
		return errors.New("classes: their weights add up to 0")
	}
	return nil
}

// checkTokensPerStep of speculative decoding; 0 is without it.
func checkTokensPerStep(path string, n float64) error {
	if n != 0 && n < 1 {
		return fmt.Errorf("%s.speculative_tokens_per_step is %g, want 1 or more: a step gives the model's own token at least", path, n)
	}
	return nil
}

// checkName of a class or mix: it becomes a label and part of a line.
func checkName(path, name string) error {
	if name == "" || strings.TrimSpace(name) != name || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return fmt.Errorf("%s is %q, want a name of printable characters", path, name)
	}
	return nil
}

// class by its name; nil when there is none.
func (c *Curve) class(name string) *Class {
	for i := range c.Classes {
		if c.Classes[i].Name == name {
			return &c.Classes[i]
		}
	}
	return nil
}

func (c *Curve) checkClass(path, name string) error {
	if c.class(name) == nil {
		return fmt.Errorf("%s is %q, but there is no such class", path, name)
	}
	return nil
}

func (c *Curve) checkMixes() error {
	for i := range c.Mixes {
		mix, path := &c.Mixes[i], fmt.Sprintf("mixes[%d]", i)
		if err := checkName(path+".name", mix.Name); err != nil {
			return err
		}
		for j := range i {
			if c.Mixes[j].Name == mix.Name && c.Mixes[j].Arrivals == mix.Arrivals {
				return fmt.Errorf("%s: %q with %s arrivals is given twice", path, mix.Name, mix.Arrivals)
			}
		}
		total := 0.0
		for name, share := range mix.Shares {
			total += share
			if err := c.checkClass(path+".shares", name); err != nil {
				return err
			}
		}
		if math.Abs(total-1) > 1e-6 {
			return fmt.Errorf("%s.shares add up to %g, want 1", path, total)
		}
		if err := c.checkStudy(path, &mix.Study); err != nil {
			return err
		}
		for j, s := range mix.Squeeze {
			where := fmt.Sprintf("%s.squeeze[%d]", path, j)
			if err := c.checkClass(where+".class", s.Class); err != nil {
				return err
			}
			if err := at(where+".slo", s.SLO.Validate()); err != nil {
				return err
			}
		}
	}
	return nil
}

// String is the arrivals' process with what makes it one.
func (a Arrivals) String() string {
	switch {
	case a.Process == "gamma":
		return fmt.Sprintf("gamma(%g)", a.Burstiness)
	case a.Trace != "":
		return fmt.Sprintf("%s(%s)", a.Process, a.Trace)
	}
	return a.Process
}

func (a Arrivals) check(path string) error {
	if err := oneOf(path+".process", a.Process, "poisson", "gamma", "trace", "constant", "closed_loop"); err != nil {
		return err
	}
	switch {
	case a.Process == "gamma" && a.Burstiness == 0:
		return fmt.Errorf("%s.burstiness is 0, want gamma's shape", path)
	case a.Process != "gamma" && a.Burstiness != 0:
		return fmt.Errorf("%s.burstiness is %g, but process is %s", path, a.Burstiness, a.Process)
	case a.Process == "trace" && a.Trace == "":
		return fmt.Errorf("%s.trace is empty, want the trace's name", path)
	case a.Process != "trace" && a.Trace != "":
		return fmt.Errorf("%s.trace is %q, but process is %s", path, a.Trace, a.Process)
	}
	return nil
}

func (c *Curve) checkStudy(path string, s *Study) error {
	if err := s.Arrivals.check(path + ".arrivals"); err != nil {
		return err
	}
	if err := oneOf(path+".status", s.Status, StatusOK, StatusEstimate, StatusProvisional, StatusNoSafeRate, StatusNotReached, StatusInterrupted); err != nil {
		return err
	}
	switch {
	case s.Status == StatusOK && !s.SafeRate.Known():
		return fmt.Errorf("%s.safe_requests_per_second is null, but status is ok", path)
	case s.Status == StatusNoSafeRate && s.SafeRate.Known():
		return fmt.Errorf("%s.safe_requests_per_second is %g, but status is no_safe_rate", path, s.SafeRate)
	}
	if s.Knee != nil {
		if err := c.checkKnee(path+".knee", s.Knee); err != nil {
			return err
		}
		if most := maxSafe * s.Knee.most(); s.SafeRate > most {
			return fmt.Errorf("%s.safe_requests_per_second is %g, but the knee is at most %g: what is safe lies below it", path, s.SafeRate, s.Knee.most())
		}
	}
	for i := range s.Curve {
		if err := c.checkViolations(fmt.Sprintf("%s.violation_curve[%d]", path, i), &s.Curve[i]); err != nil {
			return err
		}
	}
	if s.Baseline != nil {
		if err := c.checkPoint(path+".baseline", s.Baseline); err != nil {
			return err
		}
	}
	if s.Ceiling != nil {
		if err := c.checkPoints(path+".ceiling.steps", s.Ceiling.Steps); err != nil {
			return err
		}
	}
	if s.Soak != nil {
		if err := c.checkPoints(path+".soak.trials", s.Soak.Trials); err != nil {
			return err
		}
	}
	return c.checkPoints(path+".points", s.Points)
}

// maxSafe is how far a safe rate may lie above the upper end of its knee, as a
// ratio: a soak that passed and a fit differ by some per cent.
const maxSafe = 1.5

// most is the upper end of the knee, or the knee where that is not known.
func (k *Knee) most() Value {
	if k.High.Known() {
		return k.High
	}
	return k.Rate
}

// ascending returns an error unless the known values never fall.
func ascending(path string, names []string, values ...Value) error {
	last := -1
	for i, v := range values {
		if !v.Known() {
			continue
		}
		if last >= 0 && v < values[last] {
			return fmt.Errorf("%s.%s is %g, below %s, which is %g", path, names[i], v, names[last], values[last])
		}
		last = i
	}
	return nil
}

// maxInterval is how far the upper end of a knee's interval may lie above the
// knee, as a ratio: what tells so little is no measurement.
const maxInterval = 100

// checkInterval of a knee. That of an imported one is between two loads, which may be far apart.
func (c *Curve) checkInterval(path string, low, rate, high Value) error {
	if c.Source != Imported && high > maxInterval*rate {
		return fmt.Errorf("%s.high is %g, more than %d times requests_per_second, which is %g", path, high, maxInterval, rate)
	}
	return ascending(path, []string{"low", "requests_per_second", "high"}, low, rate, high)
}

func (c *Curve) checkKnee(path string, k *Knee) error {
	err := first(
		func() error { return c.checkInterval(path, k.Low, k.Rate, k.High) },
		func() error {
			return ascending(path, []string{"watermark", "requests_per_second"}, k.Watermark, k.Rate)
		},
		func() error { return ascending(path, []string{"cliff_from", "cliff_to"}, k.CliffFrom, k.CliffTo) },
		func() error { return oneOf(path+".boundary", k.Boundary, "", "smooth", "cliff") },
		func() error {
			return oneOf(path+".bottleneck", k.Bottleneck, "", "queue", "prefill", "decode", "kv", "slots", "client")
		},
	)
	if err != nil {
		return err
	}
	if (k.Low.Known() || k.High.Known()) && (k.Confidence == 0 && c.Source != Imported || k.Confidence == 1) {
		return fmt.Errorf("%s.confidence is %g, but there is an interval: want the share it was made for, such as 0.9", path, k.Confidence)
	}
	if k.BindingSLO != "queue_growth" && k.BindingSLO != "success" && k.BindingSLO != "" {
		if _, err := capacity.ParseSLO(k.BindingSLO); err != nil {
			return at(path+".binding_slo", err)
		}
	}
	if k.BindingClass != "" {
		if err := c.checkClass(path+".binding_class", k.BindingClass); err != nil {
			return err
		}
	}
	for i, s := range k.BySLO {
		where := fmt.Sprintf("%s.by_slo[%d]", path, i)
		err := first(
			func() error { return at(where+".slo", s.SLO.Validate()) },
			func() error {
				return oneOf(where+".method", s.Method, "replay", "logistic", "isotonic", "bracket", "above")
			},
			func() error { return c.checkInterval(where, s.Low, s.Rate, s.High) },
		)
		if err == nil && s.Class != "" {
			err = c.checkClass(where+".class", s.Class)
		}
		if err != nil {
			return err
		}
	}
	if k.Pending != nil && (!k.Pending.Rate.Known() || k.Pending.Seen.IsZero()) {
		return fmt.Errorf("%s.pending lacks its rate or time", path)
	}
	return nil
}

func (c *Curve) checkViolations(path string, v *Violations) error {
	if err := at(path+".slo", v.SLO.Validate()); err != nil {
		return err
	}
	if v.Class != "" {
		if err := c.checkClass(path+".class", v.Class); err != nil {
			return err
		}
	}
	if len(v.Rate) != len(v.Fraction) {
		return fmt.Errorf("%s has %d rates and %d fractions", path, len(v.Rate), len(v.Fraction))
	}
	for i := range v.Rate {
		switch {
		case i > 0 && v.Rate[i] <= v.Rate[i-1]:
			return fmt.Errorf("%s.requests_per_second[%d] is %g, want rising rates", path, i, v.Rate[i])
		case v.Fraction[i] > 1:
			return fmt.Errorf("%s.fraction[%d] is %g, want at most 1", path, i, v.Fraction[i])
		case i > 0 && v.Fraction[i] < v.Fraction[i-1]:
			return fmt.Errorf("%s.fraction[%d] is %g, want fractions that never fall", path, i, v.Fraction[i])
		}
	}
	return nil
}

func (c *Curve) checkPoints(path string, points []Point) error {
	for i := range points {
		if err := c.checkPoint(fmt.Sprintf("%s[%d]", path, i), &points[i]); err != nil {
			return err
		}
	}
	return nil
}

// namedQuantiles are the quantiles of a point or of a class within it.
type namedQuantiles struct {
	name string
	q    *Quantiles
}

func (c *Curve) checkPoint(path string, p *Point) error {
	err := first(
		func() error {
			return oneOf(path+".purpose", p.Purpose, PurposeBaseline, PurposeAA, PurposeWarmup, PurposeCeiling, PurposeProbe,
				PurposeSoak, PurposeBurst, PurposeImported)
		},
		func() error { return checkTokensPerStep(path+".engine", p.Engine.SpeculativeTokensPerStep) },
		func() error {
			return checkLatencies(path, p.Attempts, p.Failures, namedQuantiles{"ttft", &p.TTFT}, namedQuantiles{"itl", &p.ITL}, namedQuantiles{"tpot", &p.TPOT}, namedQuantiles{"e2e", &p.E2E})
		},
	)
	if err != nil {
		return err
	}
	for i := range p.Classes {
		l, where := &p.Classes[i], fmt.Sprintf("%s.classes[%d]", path, i)
		if err := c.checkClass(where+".class", l.Class); err != nil {
			return err
		}
		if err := checkLatencies(where, l.Attempts, l.Failures, namedQuantiles{"ttft", &l.TTFT}, namedQuantiles{"itl", &l.ITL}, namedQuantiles{"tpot", &l.TPOT}, namedQuantiles{"e2e", &l.E2E}); err != nil {
			return err
		}
	}
	for i := range p.Gates {
		if err := checkGate(fmt.Sprintf("%s.gates[%d]", path, i), &p.Gates[i]); err != nil {
			return err
		}
	}
	return nil
}

func checkLatencies(path string, attempts, failures int, all ...namedQuantiles) error {
	if failures > attempts {
		return fmt.Errorf("%s.failures is %d, of %d attempts", path, failures, attempts)
	}
	for _, l := range all {
		q := l.q
		if err := ascending(path+"."+l.name, []string{"p10", "p50", "p90", "p95", "p99", "p99_9", "max"},
			q.P10, q.P50, q.P90, q.P95, q.P99, q.P999, q.Max); err != nil {
			return err
		}
	}
	return nil
}

func checkGate(path string, g *Gate) error {
	if g.Name == "" {
		return fmt.Errorf("%s.name is empty", path)
	}
	if err := oneOf(path+".kind", g.Kind, GateFail, GateRisk, GateInvalid); err != nil {
		return err
	}
	if g.SLO != nil {
		if err := at(path+".slo", g.SLO.Validate()); err != nil {
			return err
		}
	}
	return ascending(path, []string{"low", "high"}, g.Low, g.High)
}

func (c *Curve) checkExtras() error {
	if c.AA != nil {
		if err := c.checkPoints("aa.points", c.AA.Points); err != nil {
			return err
		}
	}
	for i, item := range c.Coverage {
		if err := oneOf(fmt.Sprintf("coverage[%d].item", i), item.Item, "baseline", "peak", "burst", "long_tail", "mixed_replay",
			"soak", "recovery", "aa", "cold_start"); err != nil {
			return err
		}
	}
	return nil
}

func (c *Curve) checkReuse() error {
	for i, r := range c.Reuse {
		path := fmt.Sprintf("reuse[%d]", i)
		if _, err := fieldNamed(r.Field); err != nil {
			return at(path+".field", err)
		}
		for _, must := range []struct{ key, value string }{
			{"from", r.From}, {"to", r.To}, {"reason", r.Reason}, {"approved_by", r.ApprovedBy},
		} {
			if strings.TrimSpace(must.value) == "" {
				return fmt.Errorf("%s.%s is empty: a permission says what, why and by whom", path, must.key)
			}
		}
	}
	return nil
}
