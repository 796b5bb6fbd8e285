package curve

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(JSONSchema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("curve.json", document); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("curve.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFilesFitTheSchema(t *testing.T) {
	schema := compiledSchema(t)
	paths, err := filepath.Glob("testdata/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no files: %v", err)
	}
	files := map[string][]byte{}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(raw, []byte(`"`+Schema+`"`)) {
			files[path] = raw
		}
	}
	// A curve with as little in it as can be.
	little := example()
	little.Classes, little.Mixes, little.AA, little.ColdStart, little.Coverage, little.Notes, little.Reuse = little.Classes[:1], nil, nil, nil, nil, nil, nil
	little.Classes[0].Studies, little.Identity = nil, Identity{Model: "m"}
	little.ID, little.Client = "", Client{}
	var b bytes.Buffer
	if err := little.Encode(&b); err != nil {
		t.Fatal(err)
	}
	files["a curve with little in it"] = b.Bytes()
	for name, raw := range files {
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(document); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for key, wrong := range map[string]any{"note": "x", "schema": "capacity-curve/v2", "peak_reserve_ratio": -1, "source": "guessed", "started": "yesterday"} {
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		document.(map[string]any)[key] = wrong
		if err := schema.Validate(document); err == nil {
			t.Errorf("%s: %v fits the schema", key, wrong)
		}
	}
}

// TestSchemaHasTheFieldsOfTheTypes follows the types and the schema together:
// each struct is an object with the same keys, and those that may be left out
// are those that the schema does not require.
func TestSchemaHasTheFieldsOfTheTypes(t *testing.T) {
	var root map[string]any
	if err := json.Unmarshal(JSONSchema, &root); err != nil {
		t.Fatal(err)
	}
	w := &schemaWalk{t: t, definitions: root["$defs"].(map[string]any), used: map[string]bool{}}
	w.follow("the curve", reflect.TypeFor[Curve](), root)
	for name := range w.definitions {
		if !w.used[name] {
			t.Errorf("the schema defines %s, which nothing refers to", name)
		}
	}
}

type schemaWalk struct {
	t           *testing.T
	definitions map[string]any
	used        map[string]bool
}

func (w *schemaWalk) follow(path string, typ reflect.Type, schema map[string]any) {
	if alternatives, ok := schema["anyOf"].([]any); ok {
		for _, s := range alternatives {
			w.resolve(s.(map[string]any))
		}
		return
	}
	schema = w.resolve(schema)
	kind := func(want string) {
		types, _ := schema["type"].([]any)
		if schema["type"] != want && !slices.Contains(types, any(want)) && !(want == "string" && (schema["enum"] != nil || schema["const"] != nil)) {
			w.t.Errorf("%s: the schema says %v, the type is %s", path, schema["type"], typ)
		}
	}
	nullable := func(may bool) {
		types, _ := schema["type"].([]any)
		if slices.Contains(types, any("null")) != may {
			w.t.Errorf("%s: the schema says %v, the type is %s", path, schema["type"], typ)
		}
	}
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch {
	case typ == reflect.TypeFor[Value]():
		kind("number")
		nullable(true)
	case reflect.PointerTo(typ).Implements(reflect.TypeFor[json.Unmarshaler]()), typ.Kind() == reflect.String:
		kind("string")
	case typ.Kind() == reflect.Float64:
		kind("number")
		nullable(false)
	case typ.Kind() == reflect.Int, typ.Kind() == reflect.Uint64:
		kind("integer")
	case typ.Kind() == reflect.Bool:
		kind("boolean")
	case typ.Kind() == reflect.Slice:
		kind("array")
		w.follow(path+"[]", typ.Elem(), schema["items"].(map[string]any))
	case typ.Kind() == reflect.Map:
		kind("object")
		w.follow(path+"{}", typ.Elem(), schema["additionalProperties"].(map[string]any))
	case typ.Kind() == reflect.Struct:
		kind("object")
		if schema["additionalProperties"] != false {
			w.t.Errorf("%s: the schema lets other keys in", path)
		}
		properties := schema["properties"].(map[string]any)
		var keys, must []string
		for _, f := range reflect.VisibleFields(typ) {
			key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if key == "" {
				continue
			}
			keys = append(keys, key)
			if options == "" {
				must = append(must, key)
			}
			if p, ok := properties[key].(map[string]any); ok {
				w.follow(path+"."+key, f.Type, p)
			}
		}
		slices.Sort(keys)
		slices.Sort(must)
		if diff := cmp.Diff(keys, slices.Sorted(maps.Keys(properties))); diff != "" {
			w.t.Errorf("%s: keys of the type and of the schema differ (-type +schema):\n%s", path, diff)
		}
		var required []string
		for _, r := range schema["required"].([]any) {
			required = append(required, r.(string))
		}
		slices.Sort(required)
		if diff := cmp.Diff(must, required); diff != "" {
			w.t.Errorf("%s: what must be there differs (-type +schema):\n%s", path, diff)
		}
	default:
		w.t.Errorf("%s: %s has no form in the schema", path, typ)
	}
}

// resolve follows a reference.
func (w *schemaWalk) resolve(schema map[string]any) map[string]any {
	ref, ok := schema["$ref"].(string)
	if !ok {
		return schema
	}
	name := strings.TrimPrefix(ref, "#/$defs/")
	w.used[name] = true
	definition, ok := w.definitions[name].(map[string]any)
	if !ok {
		w.t.Fatalf("the schema refers to %s, which it does not define", ref)
	}
	return definition
}
