package workload

import (
	"errors"
	"fmt"
	"math"
)

// Match says which requests of a trace belong to a class: those of a tenant,
// scenario and model (empty takes any; the first class that fits wins), or those whose lengths are nearer to
// the class's centre than to any other's, in ratios.
type Match struct {
	Tenant   string  `json:"tenant,omitempty"`
	Scenario string  `json:"scenario,omitempty"`
	Model    string  `json:"model,omitempty"`
	Prompt   float64 `json:"prompt,omitempty"`
	Output   float64 `json:"output,omitempty"`
	// Any takes what no class before took.
	Any bool `json:"any,omitempty"`
}

func (m *Match) byLength() bool { return m.Prompt != 0 || m.Output != 0 }

func (m *Match) validate() error {
	if !m.byLength() {
		if *m == (Match{}) {
			return errors.New("match is empty: give a tenant, scenario or model, or the centre of the lengths")
		}
		if m.Any && *m != (Match{Any: true}) {
			return errors.New("match takes any request, and names too: give one of them")
		}
		return nil
	}
	if !(m.Prompt >= 1 && m.Prompt <= MaxTokens && m.Output >= 1 && m.Output <= MaxTokens) {
		return fmt.Errorf("match has the centre %g and %g tokens, want 1 to %d", m.Prompt, m.Output, MaxTokens)
	}
	if m.Any || m.Tenant != "" || m.Scenario != "" || m.Model != "" {
		return errors.New("match has names and a centre: give one of them")
	}
	return nil
}

// Matcher finds the class of a request of a trace.
type Matcher struct{ classes []Class }

// NewMatcher returns a matcher of classes, all of which must say what they
// match, by names or by lengths. One class alone may match everything.
func NewMatcher(classes []Class) (Matcher, error) {
	if err := ValidateClasses(classes); err != nil {
		return Matcher{}, err
	}
	for i := range classes {
		switch c := &classes[i]; {
		case c.Match == nil && len(classes) > 1:
			return Matcher{}, fmt.Errorf("class %q does not say which requests of the trace it matches: take the classes that profile wrote", c.Name)
		case c.Match != nil && c.Match.byLength() != classes[0].Match.byLength():
			return Matcher{}, errors.New("some classes match names and others lengths")
		}
	}
	return Matcher{classes}, nil
}

// Find returns the number of the record's class; the error is that none matches.
func (m Matcher) Find(r *Record) (int, error) {
	if m.classes[0].Match == nil {
		return 0, nil
	}
	if m.classes[0].Match.byLength() {
		best, distance := 0, math.Inf(1)
		for i := range m.classes {
			c := m.classes[i].Match
			x, y := math.Log(float64(r.Prompt)/c.Prompt), math.Log(float64(r.Output)/c.Output)
			if d := x*x + y*y; d < distance {
				best, distance = i, d
			}
		}
		return best, nil
	}
	for i := range m.classes {
		c := m.classes[i].Match
		if (c.Tenant == "" || c.Tenant == r.Tenant) && (c.Scenario == "" || c.Scenario == r.Scenario) && (c.Model == "" || c.Model == r.Model) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("no class matches the tenant %q, scenario %q and model %q", r.Tenant, r.Scenario, r.Model)
}
