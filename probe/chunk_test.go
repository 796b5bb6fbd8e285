package probe

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var compareChunks = cmp.AllowUnexported(chunk{})

func TestChunks(t *testing.T) {
	nothing := chunk{tokenIDs: unknown, promptTokens: unknown, completionTokens: unknown, cachedTokens: unknown}
	with := func(change func(*chunk)) chunk {
		c := nothing
		change(&c)
		return c
	}
	for _, test := range []struct {
		name, data string
		want       chunk
	}{
		{"text", `{"choices":[{"index":0,"text":"x","finish_reason":null}]}`, with(func(c *chunk) { c.choices, c.text = 1, true })},
		{"empty text with a token", `{"choices":[{"index":0,"text":"","token_ids":[297]}]}`, with(func(c *chunk) { c.choices, c.tokenIDs = 1, 1 })},
		{"empty text without", `{"choices":[{"index":0,"text":"","token_ids":null}]}`, with(func(c *chunk) { c.choices = 1 })},
		{"several tokens", `{"choices":[{"text":"abc","token_ids":[1, 2 ,3]}]}`, with(func(c *chunk) { c.choices, c.text, c.tokenIDs = 1, true, 3 })},
		{"role only", `{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}`, with(func(c *chunk) { c.choices = 1 })},
		{"content null", `{"choices":[{"delta":{"content":null}}]}`, with(func(c *chunk) { c.choices = 1 })},
		{"content", `{"choices":[{"delta":{"content":"x"}}]}`, with(func(c *chunk) { c.choices, c.text = 1, true })},
		{"reasoning", `{"choices":[{"delta":{"reasoning_content":"x"}}]}`, with(func(c *chunk) { c.choices, c.reasoning = 1, true })},
		{"reasoning, new name", `{"choices":[{"delta":{"reasoning":"x","content":null}}]}`, with(func(c *chunk) { c.choices, c.reasoning = 1, true })},
		{"tool call", `{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}`, with(func(c *chunk) { c.choices, c.tool = 1, true })},
		{"no tool call", `{"choices":[{"delta":{"tool_calls":[]}}]}`, with(func(c *chunk) { c.choices = 1 })},
		{"ids in the delta", `{"choices":[{"delta":{"content":"","token_ids":[5,6]}}]}`, with(func(c *chunk) { c.choices, c.tokenIDs = 1, 2 })},
		{"length", `{"choices":[{"text":"","finish_reason":"length"}]}`, with(func(c *chunk) { c.choices, c.finish = 1, finishLength })},
		{"stop", `{"choices":[{"text":"","finish_reason":"stop"}]}`, with(func(c *chunk) { c.choices, c.finish = 1, finishOther })},
		{"usage", `{"choices":[],"usage":{"prompt_tokens":22,"total_tokens":30,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":16}}}`,
			with(func(c *chunk) { c.promptTokens, c.completionTokens, c.cachedTokens = 22, 8, 16 })},
		{"usage null", `{"choices":[{"text":"x"}],"usage":null}`, with(func(c *chunk) { c.choices, c.text = 1, true })},
		{"two choices", `{"choices":[{"text":"x","token_ids":[1]},{"text":"y","token_ids":[2]}]}`, with(func(c *chunk) { c.choices, c.text, c.tokenIDs = 2, true, 2 })},
		{"error", `{"error":{"message":"no \"way\"","code":500}}`, with(func(c *chunk) { c.failure = []byte(`{"message":"no \"way\"","code":500}`) })},
		{"no error", `{"error":null,"choices":[]}`, nothing},
		{"escapes", `{"choices":[{"text":"\"\\","logprobs":{"a":[1.5,-2e3,true,false]}}]}`, with(func(c *chunk) { c.choices, c.text = 1, true })},
		{"escaped key", `{"ch\u006fices":[{"text":"x"}]}`, with(func(c *chunk) { c.choices, c.text = 1, true })},
		{"white space", " { \"choices\" : [ { \"text\" : \"x\" } ] } ", with(func(c *chunk) { c.choices, c.text = 1, true })},
		{"float counts", `{"choices":[{"text":"x","logprobs":0.5}],"created":1.7e9}`, with(func(c *chunk) { c.choices, c.text = 1, true })},
		{"nothing", `{}`, nothing},
	} {
		t.Run(test.name, func(t *testing.T) {
			var fast, slow chunk
			if err := parseChunk([]byte(test.data), &fast); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(test.want, fast, compareChunks); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
			if err := parseChunkSlowly([]byte(test.data), &slow); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(test.want, slow, compareChunks); d != "" {
				t.Errorf("encoding/json: -want +got\n%s", d)
			}
		})
	}
	for _, bad := range []string{"", "x", "[]", "null", `{"choices":[{"text":"x"}`, `{"choices":[{"text":"x"}]} x`, `{"choices":{"text":1}}`, `{"a":01}`, "{\"a\":\"\x01\"}"} {
		var c chunk
		err := parseChunk([]byte(bad), &c)
		if slow := parseChunkSlowly([]byte(bad), &c); (err == nil) != (slow == nil) && bad != "{\"a\":\"\x01\"}" {
			t.Errorf("%q: %v, encoding/json: %v", bad, err, slow)
		}
	}
}

// FuzzChunk: whatever both understand, the scanner and encoding/json
// understand alike.
func FuzzChunk(f *testing.F) {
	for _, s := range []string{
		`{"choices":[{"index":0,"text":"x","finish_reason":"length","token_ids":[1,2]}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`,
		`{"choices":[{"delta":{"content":"","reasoning_content":"r","tool_calls":[{}]},"logprobs":null}]}`,
		`{"error":{"message":"m"}}`, `{"usage":{"prompt_tokens_details":{"cached_tokens":3}}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var fast, slow chunk
		s := scanner{b: data}
		fast = chunk{tokenIDs: unknown, promptTokens: unknown, completionTokens: unknown, cachedTokens: unknown}
		if !s.chunk(&fast) || !s.end() {
			return
		}
		if parseChunkSlowly(data, &slow) != nil {
			// The scanner does not look into the strings that it skips.
			return
		}
		if d := cmp.Diff(slow, fast, compareChunks); d != "" && !ambiguous(data) {
			t.Errorf("%q: -encoding/json +scanner\n%s", data, d)
		}
	})
}

// ambiguous tells that JSON itself leaves open what is meant: a key twice, or
// one that differs in case only, which encoding/json takes too.
func ambiguous(data []byte) bool {
	text := string(data)
	for _, r := range text {
		if r >= 0x80 || r >= 'A' && r <= 'Z' {
			return true
		}
	}
	for _, key := range []string{"choices", "usage", "error", "text", "delta", "token_ids", "finish_reason", "content", "reasoning",
		"reasoning_content", "tool_calls", "function_call", "prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens"} {
		if strings.Count(text, `"`+key+`"`) > 1 {
			return true
		}
	}
	return false
}
