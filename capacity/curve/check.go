package curve

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"headroom_exporter/capacity"
)

// MaxAge is how old a curve may be before it should be measured again:
// engines, drivers and traffic change without any field of the identity.
const MaxAge = 30 * 24 * time.Hour

// ID is the SHA-256, in hex, of the identity's JSON with its keys sorted and
// nothing between them, as `jq -cjS .identity FILE | sha256sum` gives it.
func (i Identity) ID() string {
	var keys map[string]json.RawMessage
	// Neither step can fail: an identity is texts, numbers and booleans, and
	// Validate refuses the numbers that JSON lacks.
	_ = json.Unmarshal(compact(i), &keys)
	sum := sha256.Sum256(compact(keys))
	return hex.EncodeToString(sum[:])
}

// compact is a value's JSON without HTML's escapes, which other tools do not write.
func compact(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	return bytes.TrimSpace(b.Bytes())
}

// clockSkew is how far the clocks of two machines may be apart.
const clockSkew = 10 * time.Minute

// Difference is a field in which two identities differ.
type Difference struct {
	Field  string `json:"field"`
	Stored string `json:"stored"`
	Live   string `json:"live"`
	Hard   bool   `json:"hard"`
}

// String words it.
func (d Difference) String() string {
	return fmt.Sprintf("%s was %s, is %s", d.Field, known(d.Stored), known(d.Live))
}

// MarshalJSON writes what is not known as null.
func (d Difference) MarshalJSON() ([]byte, error) { return json.Marshal(d.document()) }

// differenceDocument is a difference as JSON.
type differenceDocument struct {
	Field  string  `json:"field"`
	Stored *string `json:"stored"`
	Live   *string `json:"live"`
	Hard   bool    `json:"hard"`
}

func (d Difference) document() differenceDocument {
	orNull := func(text string) *string {
		if text == "" {
			return nil
		}
		return &text
	}
	return differenceDocument{d.Field, orNull(d.Stored), orNull(d.Live), d.Hard}
}

func known(text string) string {
	if text == "" {
		return "not known"
	}
	return text
}

// Compare returns the fields in which an engine differs from the one a curve
// was measured on, and those that only one of the two sides knows: they are
// not compared. A model that one side does not know is a difference: without it
// nothing says that the two are the same.
func Compare(stored, live Identity) (differences, notCompared []Difference) {
	for i := range fields {
		f := &fields[i]
		d := Difference{Field: f.Name, Stored: f.Text(&stored), Live: f.Text(&live), Hard: f.Hard}
		switch {
		case d.Stored == "" && d.Live == "":
		case (d.Stored == "" || d.Live == "") && f.Name != "model":
			notCompared = append(notCompared, d)
		case !f.same(d.Stored, d.Live):
			differences = append(differences, d)
		}
	}
	return differences, notCompared
}

// Check is whether a curve holds for an engine.
type Check struct {
	// Valid tells that no hard difference is left, and that it was not measured in the future.
	Valid bool         `json:"valid"`
	Hard  []Difference `json:"hard,omitempty"`
	// Soft differences do not make it invalid: it should be measured again.
	Soft []Difference `json:"soft,omitempty"`
	// Silenced are those that an entry of reuse allows.
	Silenced []Silenced `json:"silenced,omitempty"`
	// NotCompared are fields that only one side knows.
	NotCompared []Difference `json:"not_compared,omitempty"`
	// Age since it was measured; Old, a soft reason, tells that it is above MaxAge.
	Age time.Duration `json:"-"`
	Old bool          `json:"old"`
	// Future, a hard reason, tells that it says it ended later than now: its
	// time, or the clock here, is wrong, and its age is not known.
	Future bool `json:"future,omitempty"`
}

// Silenced is a difference, and the permission to use the curve in spite of it.
type Silenced struct {
	Difference
	Reuse Reuse `json:"reuse"`
}

// MarshalJSON writes the difference's fields and the permission.
func (s Silenced) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		differenceDocument
		Reuse Reuse `json:"reuse"`
	}{s.Difference.document(), s.Reuse})
}

// Check compares the curve with an engine at a time.
func (c *Curve) Check(live Identity, now time.Time) Check {
	differences, notCompared := Compare(c.Identity, live)
	check := Check{NotCompared: notCompared, Age: max(0, now.Sub(c.Finished)), Future: c.Future(now)}
	check.Old = check.Age > MaxAge
	for _, d := range differences {
		r := c.reuse(d)
		switch {
		case r != nil:
			check.Silenced = append(check.Silenced, Silenced{d, *r})
		case d.Hard:
			check.Hard = append(check.Hard, d)
		default:
			check.Soft = append(check.Soft, d)
		}
	}
	check.Valid = len(check.Hard) == 0 && !check.Future
	return check
}

// Future tells whether the curve says it ended later than now, by more than
// two clocks differ.
func (c *Curve) Future(now time.Time) bool { return c.Finished.After(now.Add(clockSkew)) }

// Uncounted are the names of the classes whose load cannot be counted, as
// neither a knee nor a safe rate of them alone is known. A curve that has
// no other never counts: a mix's knee says nothing of its classes.
func (c *Curve) Uncounted() []string {
	var out []string
	for i := range c.Classes {
		if _, knee := c.LiveStudy(&c.Classes[i]); !(knee > 0) {
			out = append(out, c.Classes[i].Name)
		}
	}
	return out
}

// SameClass tells whether the curve has a class of this name with the same
// lengths and bounds; slo are the bounds of one that has none of its own.
func (c *Curve) SameClass(class *Class, slo []capacity.SLO) bool {
	stored := c.class(class.Name)
	u := updater{stored: c, probed: &Curve{SLO: slo}}
	return stored != nil && u.comparable(stored, class)
}

// Invalid are the reasons why the curve does not hold: names of fields, and
// finished where that is in the future.
func (c *Check) Invalid() []string {
	reasons := names(c.Hard)
	if c.Future {
		reasons = append(reasons, "finished")
	}
	return reasons
}

// Stale are the reasons to measure it again: names of fields, and age.
func (c *Check) Stale() []string {
	reasons := names(c.Soft)
	if c.Old {
		reasons = append(reasons, "age")
	}
	return reasons
}

func names(differences []Difference) []string {
	var out []string
	for _, d := range differences {
		out = append(out, d.Field)
	}
	return out
}

// reuse is the entry that allows a difference; nil without one.
func (c *Curve) reuse(d Difference) *Reuse {
	f, err := fieldNamed(d.Field)
	if err != nil || d.Live == "" {
		return nil
	}
	for i := range c.Reuse {
		r := &c.Reuse[i]
		if r.Field == d.Field && f.same(r.From, d.Stored) && f.same(r.To, d.Live) {
			return r
		}
	}
	return nil
}
