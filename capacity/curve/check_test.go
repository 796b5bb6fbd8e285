package curve

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headroom_exporter/capacity"
)

// TestUncounted: of which classes a load cannot be counted.
func TestUncounted(t *testing.T) {
	c := built(4)
	check := func(what string, want ...string) {
		t.Helper()
		if got := c.Uncounted(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	check("with knees")
	c.Classes[1].Studies[0].Knee = nil
	check("with a safe rate")
	c.Classes[1].Studies[0].SafeRate = capacity.Unknown()
	check("with neither", "long")
	c.Classes[0].Studies = nil
	check("with a mix alone", "chat", "long")
	withMix(c, 0.4)
	check("with a mix alone", "chat", "long")
}

// TestSameClass: a class is another one by its name, lengths and bounds.
func TestSameClass(t *testing.T) {
	c := built(4)
	for name, test := range map[string]struct {
		change func(class *Class, slo *[]capacity.SLO)
		want   bool
	}{
		"the same":                {func(*Class, *[]capacity.SLO) {}, true},
		"lengths drawn again":     {func(class *Class, _ *[]capacity.SLO) { class.PromptMean *= 1.01 }, true},
		"another name":            {func(class *Class, _ *[]capacity.SLO) { class.Name = "batch" }, false},
		"longer prompts":          {func(class *Class, _ *[]capacity.SLO) { class.PromptMean *= 2 }, false},
		"longer outputs":          {func(class *Class, _ *[]capacity.SLO) { class.GenerationMean *= 2 }, false},
		"without bounds":          {func(_ *Class, slo *[]capacity.SLO) { *slo = nil }, false},
		"the same bounds, of its": {func(class *Class, slo *[]capacity.SLO) { class.SLO, *slo = *slo, nil }, true},
	} {
		class, slo := c.Classes[0], c.SLO
		test.change(&class, &slo)
		if got := c.SameClass(&class, slo); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestID wants the hash of the sorted JSON, written out here.
func TestID(t *testing.T) {
	i := Identity{Model: "a<b>&c", MaxNumSeqs: 8, PrefixCaching: to(false), KVTokens: 861616, GPUMemoryUtilization: 0.9, MaxSMClock: 1.98e9}
	const text = `{"gpu_memory_utilization":0.9,"kv_tokens":861616,"max_num_seqs":8,"max_sm_clock_hertz":1980000000,"model":"a<b>&c","prefix_caching":false}`
	sum := sha256.Sum256([]byte(text))
	if got, want := i.ID(), hex.EncodeToString(sum[:]); got != want {
		t.Errorf("the ID is %s, want %s", got, want)
	}
	if other := (Identity{Model: "a"}).ID(); other == i.ID() {
		t.Error("two identities have one ID")
	}
}

// TestFieldsAreComplete wants each field of the struct in the table once, and nothing else.
func TestFieldsAreComplete(t *testing.T) {
	var keys []string
	for i := range reflect.TypeFor[Identity]().NumField() {
		key, _, _ := strings.Cut(reflect.TypeFor[Identity]().Field(i).Tag.Get("json"), ",")
		keys = append(keys, key)
	}
	if diff := cmp.Diff(keys, FieldNames()); diff != "" {
		t.Errorf("fields of the struct and of the table differ (-struct +table):\n%s", diff)
	}
	var soft []string
	for _, f := range Fields() {
		if !f.Hard {
			soft = append(soft, f.Name)
		}
	}
	if diff := cmp.Diff([]string{"engine_version", "driver_version", "cuda_version", "power_limit_watts", "max_sm_clock_hertz", "interconnect"}, soft); diff != "" {
		t.Errorf("soft fields (-want +got):\n%s", diff)
	}
}

func TestSet(t *testing.T) {
	// What Get tells of one identity, Set gives another.
	want := exampleIdentity()
	want.Quantization, want.MIGProfile, want.SpeculativeMethod, want.SpeculativeTokens, want.MaxLoRAs, want.MaxLoRARank = "fp8", "1g.10gb", "eagle", 4, 8, 16
	var got Identity
	for _, name := range FieldNames() {
		value, err := want.Get(name)
		if err != nil || value == "" {
			t.Errorf("%s is %q (%v)", name, value, err)
		}
		if err := got.Set(name, value); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := got.Set("revision", ""); err != nil || got.Revision != "" {
		t.Errorf("an empty text leaves %q (%v)", got.Revision, err)
	}
	for _, tt := range []struct{ name, value, want string }{
		{"modell", "x", `identity has no field "modell", want one of model, revision,`},
		{"max_num_seqs", "8.5", `max_num_seqs is "8.5", want a whole number above 0`},
		{"max_num_seqs", "0", `max_num_seqs is "0", want a whole number above 0`},
		{"kv_tokens", "many", `kv_tokens is "many", want a number above 0`},
		{"kv_tokens", "NaN", `kv_tokens is "NaN", want a number above 0`},
		{"kv_tokens", "Inf", `kv_tokens is "Inf", want a number above 0`},
		{"enforce_eager", "on", `enforce_eager is "on", want true or false`},
		{"role", "decoder", `role is "decoder", want one of prefill, decode, both`},
		{"path", "proxy", `path is "proxy", want one of direct, router, pd`},
	} {
		if err := got.Set(tt.name, tt.value); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s=%s: error is %v, want %q", tt.name, tt.value, err, tt.want)
		}
	}
	if _, err := got.Get("modell"); err == nil {
		t.Error("a field that does not exist has a value")
	}
}

func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		field, stored, live string
		want                string // hard, soft, same or unknown
	}{
		{"model", "a", "b", "hard"},
		{"model", "a", "", "hard"},
		{"revision", "a", "", "unknown"},
		{"revision", "", "a", "unknown"},
		{"max_num_seqs", "256", "128", "hard"},
		{"kv_tokens", "100000", "102000", "same"},
		{"kv_tokens", "100000", "98000", "same"},
		{"kv_tokens", "100000", "102001", "hard"},
		{"kv_tokens", "100000", "97999", "hard"},
		{"gpu_memory_utilization", "0.9", "0.89", "hard"},
		{"prefix_caching", "true", "false", "hard"},
		{"prefix_caching", "false", "", "unknown"},
		{"enforce_eager", "false", "false", "same"},
		{"engine_type", "vllm", "sglang", "hard"},
		{"engine_version", "0.11.2", "0.11.9", "same"},
		{"engine_version", "v0.11.2", "0.11.0rc1.dev5+g1a2b3c", "same"},
		{"engine_version", "0.11.2", "0.11rc1", "same"},
		{"engine_version", "0.11.2", "0.12.0", "soft"},
		{"engine_version", "0.11.2", "1.11.2", "soft"},
		{"engine_version", "nightly", "nightly", "same"},
		{"engine_version", "nightly", "0.11.2", "soft"},
		{"driver_version", "580.65.06", "580.95.05", "same"},
		{"driver_version", "580.65.06", "590.44.01", "soft"},
		{"cuda_version", "12.8", "13.0", "soft"},
		{"power_limit_watts", "700", "665", "same"},
		{"power_limit_watts", "700", "735", "same"},
		{"power_limit_watts", "700", "664", "soft"},
		{"power_limit_watts", "700", "400", "soft"},
		{"max_sm_clock_hertz", "1980000000", "1755000000", "soft"},
		{"interconnect", "nvlink", "pcie", "soft"},
	} {
		stored, live := Identity{Model: "m"}, Identity{Model: "m"}
		if err := stored.Set(tt.field, tt.stored); err != nil {
			t.Fatal(err)
		}
		if err := live.Set(tt.field, tt.live); err != nil {
			t.Fatal(err)
		}
		differences, notCompared := Compare(stored, live)
		got := "same"
		d := Difference{Field: tt.field, Stored: tt.stored, Live: tt.live, Hard: slices.ContainsFunc(Fields(), func(f Field) bool { return f.Name == tt.field && f.Hard })}
		switch {
		case len(differences) == 1 && differences[0] == d && d.Hard:
			got = "hard"
		case len(differences) == 1 && differences[0] == d:
			got = "soft"
		case len(notCompared) == 1 && notCompared[0] == d:
			got = "unknown"
		case len(differences)+len(notCompared) > 0:
			t.Fatalf("%s: %v, %v", tt.field, differences, notCompared)
		}
		if got != tt.want {
			t.Errorf("%s: %q and %q are %s, want %s", tt.field, tt.stored, tt.live, got, tt.want)
		}
	}
}

func TestCheck(t *testing.T) {
	c := example()
	live := func(set ...string) Identity {
		i := exampleIdentity()
		for _, s := range set {
			name, value, _ := strings.Cut(s, "=")
			if err := i.Set(name, value); err != nil {
				t.Fatal(err)
			}
		}
		return i
	}
	seqs := Reuse{Field: "max_num_seqs", From: "256", To: "128", Reason: "r", ApprovedBy: "a"}
	version := Reuse{Field: "engine_version", From: "0.11", To: "0.12", Reason: "r", ApprovedBy: "a"}
	for _, tt := range []struct {
		name                     string
		live                     Identity
		reuse                    []Reuse
		after                    time.Duration
		valid                    bool
		invalid, stale, silenced []string
		notCompared              []string
	}{
		{name: "the same", live: live(), valid: true},
		{name: "hard", live: live("max_num_seqs=128", "dtype=float16"), invalid: []string{"dtype", "max_num_seqs"}},
		{name: "soft", live: live("engine_version=0.12.0", "power_limit_watts=500"), valid: true, stale: []string{"engine_version", "power_limit_watts"}},
		{name: "reused", live: live("max_num_seqs=128"), reuse: []Reuse{seqs}, valid: true, silenced: []string{"max_num_seqs"}},
		{name: "reused by its minor", live: live("engine_version=0.12.3"), reuse: []Reuse{version}, valid: true, silenced: []string{"engine_version"}},
		{name: "reuse is of another value", live: live("max_num_seqs=64"), reuse: []Reuse{seqs}, invalid: []string{"max_num_seqs"}},
		{name: "reuse is from another value", live: live("engine_version=0.12.3"), reuse: []Reuse{{Field: "engine_version", From: "0.10", To: "0.12"}}, valid: true, stale: []string{"engine_version"}},
		{name: "30 days", live: live(), after: MaxAge, valid: true},
		{name: "older", live: live("engine_version=0.12.0"), after: MaxAge + time.Second, valid: true, stale: []string{"engine_version", "age"}},
		{name: "a clock that is ahead", live: live(), after: -clockSkew, valid: true},
		{name: "in the future", live: live("dtype=float16"), after: -clockSkew - time.Second, invalid: []string{"dtype", "finished"}},
		{name: "not known", live: live("revision=", "attention_backend="), valid: true, notCompared: []string{"revision", "attention_backend"}},
		{name: "model not known", live: live("model="), reuse: []Reuse{{Field: "model", From: c.Identity.Model}}, invalid: []string{"model"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c.Reuse = tt.reuse
			got := c.Check(tt.live, c.Finished.Add(tt.after))
			var silenced []string
			for _, s := range got.Silenced {
				silenced = append(silenced, s.Field)
				if s.Reuse.Field != s.Field {
					t.Errorf("%s is silenced by the entry of %s", s.Field, s.Reuse.Field)
				}
			}
			if got.Valid != tt.valid || got.Age != max(0, tt.after) || !slices.Equal(got.Invalid(), tt.invalid) || !slices.Equal(got.Stale(), tt.stale) ||
				!slices.Equal(silenced, tt.silenced) || !slices.Equal(names(got.NotCompared), tt.notCompared) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestNumbersThatJSONLacks(t *testing.T) {
	c := example()
	c.Identity.PowerLimit = math.Inf(1)
	c.ID = c.Identity.ID()
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "identity.power_limit_watts is +Inf") {
		t.Errorf("error is %v", err)
	}
}

// What is not known is null, and a permission keeps its difference.
func TestCheckJSON(t *testing.T) {
	d := Difference{Field: "dtype", Live: "float16", Hard: true}
	got, err := json.Marshal([]any{d, Silenced{d, Reuse{Field: "dtype"}}})
	const difference = `{"field":"dtype","stored":null,"live":"float16","hard":true`
	want := `[` + difference + `},` + difference + `,"reuse":{"field":"dtype","from":"","to":"","reason":"","approved_by":""}}]`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}
