package jsonfile

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const schema = "thing/v1"

// maybe is a number that may be unknown.
type maybe float64

func (m maybe) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(m)) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(m))
}

func (m *maybe) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*m = maybe(math.NaN())
		return nil
	}
	return json.Unmarshal(b, (*float64)(m))
}

type inner struct {
	Name  string `json:"name"`
	Share maybe  `json:"share"`
}

type thing struct {
	Schema string `json:"schema"`
	inner
	Parts   []inner            `json:"parts,omitempty"`
	Single  *inner             `json:"single,omitempty"`
	Yes     *bool              `json:"yes,omitempty"`
	Count   int                `json:"count"`
	Numbers []float64          `json:"numbers"`
	ByName  map[string]float64 `json:"by_name,omitempty"`
	At      time.Time          `json:"at"`
	Hidden  string             `json:"-"`
}

func decode(text string) (thing, error) {
	var v thing
	err := Decode(strings.NewReader(text), 1000, schema, &v)
	return v, err
}

func TestDecode(t *testing.T) {
	got, err := decode(`{"schema": "thing/v1", "name": "a", "parts": [{"name": "b", "share": 0.5}, {"share": null}], "single": {},
		"yes": false, "count": 3, "numbers": [1, 2], "by_name": {"x": 1}, "at": "2026-03-02T09:00:00Z"}`)
	if err != nil {
		t.Fatal(err)
	}
	nan, no := maybe(math.NaN()), false
	want := thing{
		Schema: schema, inner: inner{"a", nan}, Parts: []inner{{"b", 0.5}, {"", nan}}, Single: &inner{"", nan}, Yes: &no, Count: 3,
		Numbers: []float64{1, 2}, ByName: map[string]float64{"x": 1}, At: time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC),
	}
	equal := cmp.Comparer(func(a, b maybe) bool { return a == b || a != a && b != b })
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(thing{}), equal); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var b bytes.Buffer
	if err := Encode(&b, got); err != nil {
		t.Fatal(err)
	}
	const text = `{
  "schema": "thing/v1",
  "name": "a",
  "share": null,
  "parts": [
    {
      "name": "b",
      "share": 0.5
    },
    {
      "name": "",
      "share": null
    }
  ],
  "single": {
    "name": "",
    "share": null
  },
  "yes": false,
  "count": 3,
  "numbers": [1, 2],
  "by_name": {"x": 1},
  "at": "2026-03-02T09:00:00Z"
}
`
	if diff := cmp.Diff(text, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDecodeErrors(t *testing.T) {
	begin := "{\"schema\": \"thing/v1\",\n"
	for _, tt := range []struct{ text, want string }{
		{"", "the file is empty"},
		{" \n\t", "the file is empty"},
		{"{", "line 1: the file is cut off here: its end is missing"},
		{begin + `"count": 1.`, "line 2: the file is cut off here: its end is missing"},
		{begin + `"name": "a`, "line 2: the file is cut off here: its end is missing"},
		{begin + `"yes": tr`, "line 2: the file is cut off here: its end is missing"},
		{begin + `"count": 1. }`, "line 2: invalid character ' ' after decimal point"},
		{"null", "line 1: the file is null, want an object"},
		{" null\n", "line 1: the file is null, want an object"},
		{"\xef\xbb\xbf{}", "the file begins with a byte order mark: save it as UTF-8 without one (BOM)"},
		{"\xff\xfe{\x00}\x00", "the file is in UTF-16: save it as UTF-8"},
		{"\xfe\xff\x00{\x00}", "the file is in UTF-16: save it as UTF-8"},
		{"{\x00}\x00", "the file is in UTF-16: save it as UTF-8"},
		{"[]", "line 1: the file is an array, want an object"},
		{`{"schema": 5}`, "line 1: schema is a number, want a text"},
		{`{"schema": true}`, "line 1: schema is true or false, want a text"},
		{`{}`, `schema is "", want "thing/v1"`},
		{begin + `"count": 1`, "line 2: the file is cut off here: its end is missing"},
		{begin + `"count": 1,}`, "line 2: invalid character '}'"},
		{begin + `"name": "a"} x`, "line 2: invalid character 'x' after top-level value"},
		{begin + `"nmae": "a"}`, `line 2: unknown field "nmae"`},
		{begin + `"Name": "a"}`, `line 2: unknown field "Name"`},
		{begin + `"Hidden": "a"}`, `line 2: unknown field "Hidden"`},
		{begin + "\"parts\": [{},\n{\"size\": 1}]}", `line 3: unknown field "size" in parts[1]`},
		{begin + `"name": "a", "name": "b"}`, "line 2: name is given twice"},
		{begin + `"single": {"name": "a", "name": "b"}}`, "line 2: single.name is given twice"},
		{begin + `"by_name": {"x": 1, "x": 2}}`, "line 2: by_name.x is given twice"},
		{begin + `"by_name": {"x": "y"}}`, `line 2: by_name.x is "y", want a number`},
		{begin + `"by_name": 5}`, "line 2: by_name is 5, want an object"},
		{begin + `"count": 1.5}`, "line 2: count is 1.5, want a whole number"},
		{begin + `"count": null}`, "line 2: count is null, want a whole number"},
		{begin + `"share": []}`, "line 2: share is an array, want a number"},
		{begin + `"yes": "no"}`, `line 2: yes is "no", want true or false`},
		{begin + `"numbers": {}}`, "line 2: numbers is an object, want an array"},
		{begin + `"numbers": [1, "` + strings.Repeat("x", 50) + `"]}`, `line 2: numbers[1] is "xxx`},
		{begin + `"single": []}`, "line 2: single is an array, want an object"},
		{begin + `"at": "noon"}`, "line 2: at: parsing time"},
		{begin + strings.Repeat(" ", 1000), "more than 1000 bytes"},
	} {
		_, err := decode(tt.text)
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) && !strings.HasSuffix(err.Error(), tt.want) {
			t.Errorf("%s: error is %v, want %q", tt.text, err, tt.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"schema": "thing/v1", "name": "a\"]", "parts": [{"share": 0.5}], "single": {}, "numbers": [1, 2], "by_name": {"x": 1}}`)
	f.Fuzz(func(t *testing.T, text string) {
		v, err := decode(text)
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := Encode(&b, v); err != nil {
			t.Fatalf("read but not written: %v", err)
		}
		var again thing
		if err := Decode(&b, 1<<20, schema, &again); err != nil {
			t.Fatalf("written but not read: %v", err)
		}
		equal := cmp.Comparer(func(a, b maybe) bool { return a == b || a != a && b != b })
		if diff := cmp.Diff(v, again, cmp.AllowUnexported(thing{}), equal, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("read again it differs (-first +second):\n%s", diff)
		}
	})
}
