package simulator

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestSyntaxErrors holds what Python 3.11's json module says; offsets are in characters.
func TestSyntaxErrors(t *testing.T) {
	for _, c := range []struct {
		text  string
		where int
		what  string
	}{
		{`{`, 1, "Expecting property name enclosed in double quotes"},
		{`{"a`, 1, "Unterminated string starting at"},
		{`{"a"`, 4, "Expecting ':' delimiter"},
		{`{"a":`, 5, "Expecting value"},
		{`{"a":1`, 6, "Expecting ',' delimiter"},
		{`{"a":1,`, 7, "Expecting property name enclosed in double quotes"},
		{`{"a":1,}`, 7, "Expecting property name enclosed in double quotes"},
		{`[1,`, 3, "Expecting value"},
		{`[1`, 2, "Expecting ',' delimiter"},
		{`[1 2]`, 3, "Expecting ',' delimiter"},
		{`[`, 1, "Expecting value"},
		{`  `, 2, "Expecting value"},
		{`{"a":tru}`, 5, "Expecting value"},
		{`"\x"`, 1, `Invalid \escape`},
		{`"\u12"`, 2, `Invalid \uXXXX escape`},
		{"\"a\nb\"", 2, "Invalid control character at"},
		{`01`, 1, "Extra data"},
		{`-`, 0, "Expecting value"},
		{`1.`, 1, "Extra data"},
		{`{1:2}`, 1, "Expecting property name enclosed in double quotes"},
		{`{"a" 1}`, 5, "Expecting ':' delimiter"},
		{`nul`, 0, "Expecting value"},
		{`[1,]`, 3, "Expecting value"},
		{`{"é":x}`, 5, "Expecting value"},
		{`"\`, 0, "Unterminated string starting at"},
		{`{"a":[{"b":"c"},{"d":null}],"e":-1.5e3} x`, 40, "Extra data"},
	} {
		where, what := findSyntaxError([]byte(c.text))
		if got := utf8.RuneCountInString(c.text[:where]); got != c.where || what != c.what {
			t.Errorf("%q: %q at %d, want %q at %d", c.text, what, got, c.what, c.where)
		}
	}
}

// TestPythonString holds what CPython's repr gives.
func TestPythonString(t *testing.T) {
	for text, want := range map[string]string{
		"many":       `'many'`,
		"it's":       `"it's"`,
		`say "it's"`: `'say "it\'s"'`,
		`a\b`:        `'a\\b'`,
		"\n\t\r\x01": `'\n\t\r\x01'`,
		"é日":         `'é日'`,
		"\u200b\x7f": `'\u200b\x7f'`,
		"\u00a0":     `'\xa0'`,
	} {
		if got := pythonString(text); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
}

// TestLaxFields holds what pydantic accepts for a number and a truth value.
func TestLaxFields(t *testing.T) {
	for _, c := range []struct {
		value string
		want  int
		kind  string
	}{
		{`5`, 5, ""}, {`5.0`, 5, ""}, {`"7"`, 7, ""}, {`" 7 "`, 7, ""}, {`true`, 1, ""}, {`false`, 0, ""}, {`null`, -3, ""},
		{`5.5`, 0, "int_from_float"}, {`"x"`, 0, "int_parsing"}, {`[]`, 0, "int_type"}, {`{}`, 0, "int_type"},
		{`1e40`, 0, "int_parsing_size"},
	} {
		f := &fields{object: map[string]json.RawMessage{"n": json.RawMessage(c.value)}}
		got := f.integer("n", -3)
		kind := ""
		if len(f.faults) > 0 {
			kind = f.faults[0].kind
		}
		if kind != c.kind || kind == "" && got != c.want {
			t.Errorf("%s is read as %d %s, want %d %s", c.value, got, kind, c.want, c.kind)
		}
	}
	for value, want := range map[string]string{
		`true`: "true", `false`: "false", `1`: "true", `0`: "false", `"yes"`: "true", `"Off"`: "false", `null`: "true",
		`2`: "bool_parsing", `"maybe"`: "bool_parsing", `[]`: "bool_type",
	} {
		f := &fields{object: map[string]json.RawMessage{"b": json.RawMessage(value)}}
		got := fmt.Sprint(f.truth("b", true))
		if len(f.faults) > 0 {
			got = f.faults[0].kind
		}
		if got != want {
			t.Errorf("%s is read as %s, want %s", value, got, want)
		}
	}
}

// TestAtMostTenFaults keeps an answer small however wrong a body is.
func TestAtMostTenFaults(t *testing.T) {
	body := `{"prompt":[` + strings.Repeat(`"a",1,`, 5000) + `"a"],"max_tokens":"` + strings.Repeat("x", 10000) + `"}`
	_, failure := decodeCompletion([]byte(body), realConfig(t))
	if failure == nil {
		t.Fatal("the body was accepted")
	}
	if n := strings.Count(failure.Message, "\n"); n != 11 || len(failure.Message) > 4000 {
		t.Errorf("%d lines, %d characters", n, len(failure.Message))
	}
	if !strings.HasSuffix(failure.Message, "more errors") {
		t.Errorf("the message ends with %q", failure.Message[len(failure.Message)-40:])
	}
}

func FuzzRequest(f *testing.F) {
	for _, r := range recordedAnswers(f) {
		if r.Body != "" {
			f.Add([]byte(r.Body))
		}
	}
	f.Add([]byte(`{"prompt":[[1],[1.0],null],"stream_options":{"include_usage":"x"}}`))
	f.Add([]byte(strings.Repeat("[", 20000)))
	cfg := realConfig(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		if !json.Valid(body) && len(body) > 0 {
			if where, what := findSyntaxError(body); where < 0 || where > len(body) || what == "" {
				t.Fatalf("a syntax error %q at %d of %d", what, where, len(body))
			}
		}
		for name, decode := range map[string]func([]byte, Config) (*generationRequest, *apiError){
			"completion": decodeCompletion, "chat": decodeChat,
		} {
			g, failure := decode(body, cfg)
			if failure != nil {
				if failure.Message == "" || failure.Type == "" || failure.Code != 400 && failure.Code != 404 {
					t.Fatalf("%s: a failure without cause: %+v", name, failure)
				}
				continue
			}
			if len(g.prompts) == 0 || len(g.prompts) != len(g.maxTokens) {
				t.Fatalf("%s: %d prompts, %d limits", name, len(g.prompts), len(g.maxTokens))
			}
			for i, prompt := range g.prompts {
				if len(prompt) == 0 || g.maxTokens[i] < max(1, g.minTokens) || len(prompt)+g.maxTokens[i] > cfg.MaxModelLen {
					t.Fatalf("%s: %d prompt tokens, %d to %d output tokens", name, len(prompt), g.minTokens, g.maxTokens[i])
				}
				r := &Request{Prompt: prompt, OutputLength: g.maxTokens[i], MaxTokens: g.maxTokens[i]}
				if err := cfg.Accept(r); err != nil {
					t.Fatalf("%s: the engine refuses what was accepted: %v", name, err)
				}
			}
		}
	})
}

func FuzzDetokenize(f *testing.F) {
	f.Add([]byte("hello é"))
	f.Add([]byte{0xff, 0xc3, 0x28})
	f.Fuzz(func(t *testing.T, text []byte) {
		tokens := tokenize(string(text))
		got := detokenize(tokens)
		if utf8.Valid(text) && got != string(text) {
			t.Fatalf("%q comes back as %q", text, got)
		}
		if !utf8.ValidString(got) {
			t.Fatalf("%q is no UTF-8", got)
		}
	})
}

func TestDrawnEndIsGeometric(t *testing.T) {
	const n, minTokens = 20000, 5
	sum := 0.0
	for seed := range uint64(n) {
		end := drawEOS(seed, minTokens)
		if end <= minTokens {
			t.Fatalf("seed %d ends at token %d, before the minimum of %d", seed, end, minTokens)
		}
		sum += float64(end - minTokens)
	}
	// The mean of n draws has a deviation of mean/sqrt(n).
	if mean := sum / n; math.Abs(mean-meanTokensToEOS) > 4*meanTokensToEOS/math.Sqrt(n) {
		t.Errorf("texts end after %.1f tokens, want %d", mean, meanTokensToEOS)
	}
}
