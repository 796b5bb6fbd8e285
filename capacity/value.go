package capacity

import (
	"encoding/json"
	"math"
)

// Value is a number that may be unknown: NaN here, null in JSON.
type Value float64

// MarshalJSON writes null for what is not known.
func (v Value) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(v))
}

// UnmarshalJSON reads null as NaN.
func (v *Value) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*v = Value(math.NaN())
		return nil
	}
	return json.Unmarshal(b, (*float64)(v))
}

// Unknown is the value that is not known.
func Unknown() Value { return Value(math.NaN()) }

// Known tells whether the value is known.
func (v Value) Known() bool { return !math.IsNaN(float64(v)) }
