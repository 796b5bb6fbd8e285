package workload

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Class is a named joint distribution of prompt and output length, with how
// its requests are made and what they must reach.
type Class struct {
	Name string `json:"name"`
	// Weight is the class's share of the requests, relative to the weights of the others.
	Weight float64 `json:"weight"`
	// Prompt and Output are the lengths in tokens, drawn independently; absent with Joint.
	Prompt Lengths `json:"prompt,omitzero"`
	Output Lengths `json:"output,omitzero"`
	// Joint draws both lengths together.
	Joint Joint `json:"joint,omitempty"`
	// SLO are the tail bounds of the class; empty takes those of the run.
	SLO []SLO `json:"slo,omitempty"`
	// Chat sends the requests to the chat endpoint.
	Chat bool `json:"chat,omitempty"`
	// NaturalEnd lets the model end its answer; otherwise exactly the drawn output length is asked for.
	NaturalEnd bool `json:"natural_end,omitempty"`
	// Prefix is what the prompts share.
	Prefix Prefix `json:"prefix,omitzero"`
	// Session makes conversations of the requests.
	Session Session `json:"session,omitzero"`
	// Match says which requests of a trace belong to the class; nil for none.
	Match *Match `json:"match,omitempty"`
	// Observed is what a trace said about the class; nil for a class that was written by hand.
	Observed *Observed `json:"observed,omitempty"`
}

// Prefix describes a beginning that prompts of a class share: each request
// takes one of Groups beginnings, of Tokens tokens or of a Share of its own
// prompt. One token at least stays its own.
type Prefix struct {
	Tokens int     `json:"tokens,omitempty"`
	Share  float64 `json:"share,omitempty"`
	// Groups is how many different beginnings there are; 0 counts as 1.
	Groups int `json:"groups,omitempty"`
}

// Session describes conversations: each turn's prompt is everything said
// before, the answers included, and a new part of the class's prompt length.
type Session struct {
	// Turns of each session; 0 and 1 are single requests.
	Turns int `json:"turns,omitempty"`
	// ThinkTime is the mean time in seconds between an answer and the next
	// turn; it is exponentially distributed unless FixedThinkTime.
	ThinkTime      float64 `json:"think_time_seconds,omitempty"`
	FixedThinkTime bool    `json:"fixed_think_time,omitempty"`
	// MaxPrompt ends a session early, before a prompt would be longer than this many tokens; 0 is no bound.
	MaxPrompt int `json:"max_prompt_tokens,omitempty"`
}

// maxThinkTime in seconds bounds a session's pauses to a day.
const maxThinkTime = 24 * 60 * 60

// Validate returns an error that names what is wrong with the class.
func (c *Class) Validate() error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("class %q: %w", c.Name, err)
	}
	return nil
}

func (c *Class) validate() error {
	if !validName(c.Name) {
		return errors.New("a name has 1 to 64 letters, digits, dots, dashes or underscores")
	}
	if !(c.Weight > 0) || math.IsInf(c.Weight, 0) {
		return fmt.Errorf("weight is %g, want more than 0", c.Weight)
	}
	switch {
	case c.Joint != nil && (c.Prompt.given() || c.Output.given()):
		return errors.New("has joint lengths and single ones: give one of them")
	case c.Joint != nil:
		if err := c.Joint.validate(); err != nil {
			return fmt.Errorf("joint: %w", err)
		}
	default:
		if err := c.Prompt.validate(); err != nil {
			return fmt.Errorf("prompt: %w", err)
		}
		if err := c.Output.validate(); err != nil {
			return fmt.Errorf("output: %w", err)
		}
	}
	for i, s := range c.SLO {
		if err := s.Validate(); err != nil {
			return err
		}
		if slices.ContainsFunc(c.SLO[:i], func(o SLO) bool { return o.Metric == s.Metric && o.Percentile == s.Percentile }) {
			return fmt.Errorf("slo %v: this metric and percentile have a bound already", s)
		}
	}
	p := c.Prefix
	switch {
	case p.Tokens < 0 || p.Tokens > MaxTokens:
		return fmt.Errorf("prefix of %d tokens, want 0 to %d", p.Tokens, MaxTokens)
	case !(p.Share >= 0 && p.Share <= 1):
		return fmt.Errorf("prefix share is %g, want 0 to 1", p.Share)
	case p.Tokens > 0 && p.Share > 0:
		return errors.New("prefix has tokens and a share: give one of them")
	case p.Groups < 0 || p.Groups > 1<<30:
		return fmt.Errorf("prefix groups is %d, want 0 to %d", p.Groups, 1<<30)
	}
	s := c.Session
	switch {
	case s.Turns < 0 || s.Turns > 10000:
		return fmt.Errorf("turns is %d, want 0 to 10000", s.Turns)
	case !(s.ThinkTime >= 0 && s.ThinkTime <= maxThinkTime):
		return fmt.Errorf("think time is %g s, want 0 to %d", s.ThinkTime, maxThinkTime)
	case s.MaxPrompt < 0 || s.MaxPrompt > MaxTokens:
		return fmt.Errorf("max prompt is %d tokens, want 0 to %d", s.MaxPrompt, MaxTokens)
	}
	if c.Match != nil {
		if err := c.Match.validate(); err != nil {
			return err
		}
	}
	if c.Observed != nil {
		if err := c.Observed.validate(); err != nil {
			return fmt.Errorf("observed: %w", err)
		}
	}
	return nil
}

func validName(name string) bool {
	if name == "" || len(name) > 64 {
		return false
	}
	for _, r := range name {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
		default:
			return false
		}
	}
	return true
}

// ValidateClasses checks each class and that names differ.
func ValidateClasses(classes []Class) error {
	if len(classes) == 0 {
		return errors.New("no class given")
	}
	seen := map[string]bool{}
	for i := range classes {
		if err := classes[i].Validate(); err != nil {
			return err
		}
		if seen[classes[i].Name] {
			return fmt.Errorf("class %q is given twice", classes[i].Name)
		}
		seen[classes[i].Name] = true
	}
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }
