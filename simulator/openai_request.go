package simulator

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// generationRequest is a completion or chat completion, checked.
type generationRequest struct {
	chat bool
	// prompts in tokens; each gets one choice.
	prompts [][]int
	// maxTokens of each prompt, cut to what the context leaves.
	maxTokens []int
	minTokens int
	ignoreEOS bool
	// seed is the caller's; hasSeed tells whether there is one.
	seed    uint64
	hasSeed bool

	stream bool
	// includeUsage asks for a last chunk with the usage, continuousUsage for the usage in every chunk.
	includeUsage, continuousUsage bool
	returnTokenIDs                bool
	cacheSalt                     string
}

// defaultMaxTokens is the completions API's.
const defaultMaxTokens = 16

// sampling is what both APIs have in common, before the prompt is known.
type sampling struct {
	model             string
	maxTokens         int
	n                 int
	temperature, topP float64
}

// decodeCompletion reads the body of POST /v1/completions.
func decodeCompletion(body []byte, cfg Config) (*generationRequest, *apiError) {
	object, failure := decodeObject(body)
	if failure != nil {
		return nil, failure
	}
	f := &fields{object: object, prefix: "body"}
	if raw, ok := f.get("prompt"); !ok || string(raw) == `""` {
		return nil, badParameter("prompt", "", "Either prompt or prompt_embeds must be provided and non-empty.")
	}
	if failure := f.checkOptions(); failure != nil {
		return nil, failure
	}
	g := &generationRequest{}
	s := sampling{model: f.text("model", cfg.ModelName)}
	g.prompts = f.prompts("prompt")
	s.maxTokens = f.integer("max_tokens", defaultMaxTokens)
	f.common(g, &s)
	if failure := f.failed(); failure != nil {
		return nil, failure
	}
	if s.model != cfg.ModelName {
		return nil, modelNotFound(s.model, cfg.ModelName)
	}
	if len(g.prompts) == 0 {
		return nil, badRequest("", "You must pass at least one prompt")
	}
	return g, g.complete(&s, cfg, isText(object["prompt"]))
}

// decodeChat reads the body of POST /v1/chat/completions.
func decodeChat(body []byte, cfg Config) (*generationRequest, *apiError) {
	object, failure := decodeObject(body)
	if failure != nil {
		return nil, failure
	}
	f := &fields{object: object, prefix: "body"}
	if failure := f.checkOptions(); failure != nil {
		return nil, failure
	}
	g := &generationRequest{chat: true}
	messages, failure := f.messages("messages")
	if failure != nil {
		return nil, failure
	}
	s := sampling{model: f.text("model", cfg.ModelName)}
	s.maxTokens = f.integer("max_tokens", math.MaxInt)
	s.maxTokens = f.integer("max_completion_tokens", s.maxTokens)
	f.common(g, &s)
	if failure := f.failed(); failure != nil {
		return nil, failure
	}
	if s.model != cfg.ModelName {
		return nil, modelNotFound(s.model, cfg.ModelName)
	}
	if len(messages) == 0 {
		return nil, badRequest("", "Cannot apply chat template to an empty conversation. Provide at least one message.")
	}
	g.prompts = [][]int{tokenize(chatPrompt(messages))}
	return g, g.complete(&s, cfg, true)
}

// checkOptions makes the checks that vLLM makes before any field is read.
func (f *fields) checkOptions() *apiError {
	if f.isSet("stream_options") && !f.isSet("stream") {
		return badParameter("stream_options", "", "Stream options can only be defined when `stream=True`.")
	}
	if raw, ok := f.get("cache_salt"); ok && (raw[0] != '"' || string(raw) == `""`) {
		return badParameter("cache_salt", "", "Parameter 'cache_salt' must be a non-empty string if provided.")
	}
	return nil
}

// common reads the fields that both APIs have after their own.
func (f *fields) common(g *generationRequest, s *sampling) {
	s.n = f.integer("n", 1)
	_, g.hasSeed = f.get("seed")
	g.seed = uint64(f.integer("seed", 0))
	g.stream = f.truth("stream", false)
	if raw, ok := f.get("stream_options"); ok {
		f.streamOptions(g, raw)
	}
	s.temperature = f.number("temperature", 1)
	s.topP = f.number("top_p", 1)
	g.ignoreEOS = f.truth("ignore_eos", false)
	g.minTokens = f.integer("min_tokens", 0)
	g.returnTokenIDs = f.truth("return_token_ids", false)
	g.cacheSalt = f.text("cache_salt", "")
}

func (f *fields) streamOptions(g *generationRequest, raw json.RawMessage) {
	options := &fields{prefix: f.prefix + ".stream_options"}
	if raw[0] != '{' || json.Unmarshal(raw, &options.object) != nil {
		f.fault("stream_options", "model_attributes_type",
			"Input should be a valid dictionary or object to extract fields from", raw)
		return
	}
	g.includeUsage = options.truth("include_usage", false)
	g.continuousUsage = g.includeUsage && options.truth("continuous_usage_stats", false)
	f.faults = append(f.faults, options.faults...)
}

// messages reads the turns of a chat; a content may be a text or a list of text parts.
func (f *fields) messages(name string) ([]message, *apiError) {
	raw, ok := f.object[name]
	if !ok {
		f.missing(name)
		return nil, nil
	}
	raw = bytes.TrimSpace(raw)
	var elements []json.RawMessage
	if raw[0] != '[' || json.Unmarshal(raw, &elements) != nil {
		f.fault(name, "list_type", "Input should be a valid list", raw)
		return nil, nil
	}
	var messages []message
	for i, e := range elements {
		turn := &fields{prefix: f.prefix + "." + name + "." + strconv.Itoa(i)}
		if json.Unmarshal(e, &turn.object) != nil || turn.object == nil {
			f.fault(name+"."+strconv.Itoa(i), "dict_type", "Input should be a valid dictionary", e)
			continue
		}
		if _, ok := turn.object["role"]; !ok {
			turn.missing("role")
		}
		m := message{role: turn.text("role", "")}
		content, failure := turn.content()
		if failure != nil {
			return nil, failure
		}
		m.content = content
		f.faults = append(f.faults, turn.faults...)
		messages = append(messages, m)
	}
	return messages, nil
}

func (f *fields) content() (string, *apiError) {
	raw, ok := f.get("content")
	if !ok || raw[0] != '[' {
		return f.text("content", ""), nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		f.fault("content", "list_type", "Input should be a valid list of content parts", raw)
		return "", nil
	}
	texts := make([]string, 0, len(parts))
	for _, p := range parts {
		if p.Type != "text" {
			return "", badRequest("", "content parts of type "+pythonString(p.Type)+" are not supported, the model reads text only")
		}
		texts = append(texts, p.Text)
	}
	return strings.Join(texts, "\n"), nil
}

// isText tells a prompt given as text from token ids.
func isText(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) > 0 && (raw[0] == '"' || raw[0] == '[' && bytes.HasPrefix(bytes.TrimSpace(raw[1:]), []byte(`"`)))
}

// complete checks the prompts and the sampling against the limits, and cuts
// the tokens to generate to what the context leaves.
func (g *generationRequest) complete(s *sampling, cfg Config, text bool) *apiError {
	limit := cfg.MaxModelLen
	if s.maxTokens != math.MaxInt && s.maxTokens > limit {
		return badParameter("max_tokens", strconv.Itoa(s.maxTokens),
			"max_tokens=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", s.maxTokens, limit)
	}
	for _, prompt := range g.prompts {
		if failure := checkPrompt(prompt, limit, text); failure != nil {
			return failure
		}
	}
	switch {
	case s.n < 1:
		return badRequest("", "n must be at least 1, got "+strconv.Itoa(s.n)+".")
	case s.n > 1:
		return badParameter("n", strconv.Itoa(s.n), "n must be 1: the simulator gives one choice to a prompt.")
	case !(s.temperature >= 0):
		return badFloat("temperature", s.temperature, "temperature must be non-negative, got ")
	case !(s.topP > 0 && s.topP <= 1):
		return badFloat("top_p", s.topP, "top_p must be in (0, 1], got ")
	}
	for _, prompt := range g.prompts {
		allowed := min(s.maxTokens, limit-len(prompt))
		switch {
		case allowed < 1:
			return badParameter("max_tokens", strconv.Itoa(allowed), "max_tokens must be at least 1, got %d.", allowed)
		case g.minTokens < 0:
			return badRequest("", "min_tokens must be greater than or equal to 0, got "+strconv.Itoa(g.minTokens)+".")
		case g.minTokens > allowed:
			return badRequest("", "min_tokens must be less than or equal to max_tokens="+strconv.Itoa(allowed)+
				", got "+strconv.Itoa(g.minTokens)+".")
		}
		g.maxTokens = append(g.maxTokens, allowed)
	}
	return nil
}

func checkPrompt(prompt []int, limit int, text bool) *apiError {
	length := len(prompt)
	if length == 0 {
		return badRequest("", "The decoder prompt cannot be empty")
	}
	if length > limit {
		// vLLM stops tokenising a text one token beyond the limit.
		amount := strconv.Itoa(length)
		if text {
			length = limit + 1
			amount = "at least " + strconv.Itoa(length)
		}
		return badParameter("input_tokens", strconv.Itoa(length),
			"This model's maximum context length is %d tokens. However, your prompt contains %s input tokens, "+
				"which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.", limit, amount)
	}
	for _, id := range prompt {
		if id >= vocabulary {
			return badRequest("", "Token id "+strconv.Itoa(id)+" is out of vocabulary")
		}
	}
	return nil
}

func badFloat(param string, value float64, message string) *apiError {
	text := string(appendRepr(nil, value))
	return badParameter(param, text, "%s%s.", message, text)
}
