package simulator

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// page serves /metrics. vLLM ignores what the client accepts.
func (a *api) page(w http.ResponseWriter, _ *http.Request) {
	a.writePage(w, "1.0.0")
}

// mountedPage serves /metrics/, where vLLM has a second server for the same page.
func (a *api) mountedPage(w http.ResponseWriter, _ *http.Request) {
	a.writePage(w, "0.0.4")
}

func (a *api) writePage(w http.ResponseWriter, version string) {
	text := a.metrics.Page(a.engine.SleepLevel())
	w.Header().Set("Content-Type", "text/plain; version="+version+"; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text)
}

// empty answers that the server is there.
func empty(w http.ResponseWriter, _ *http.Request) {
	// A nil slice keeps net/http from guessing a type for an empty body.
	w.Header()["Content-Type"] = nil
	w.WriteHeader(http.StatusOK)
}

// load answers as vLLM does when it was not asked to track its load.
func (a *api) load(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		ServerLoad int `json:"server_load"`
	}{})
}

func (a *api) version(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Version string `json:"version"`
	}{vllmVersion})
}

type modelCard struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Created     int64             `json:"created"`
	OwnedBy     string            `json:"owned_by"`
	Root        string            `json:"root"`
	Parent      null              `json:"parent"`
	MaxModelLen int               `json:"max_model_len"`
	Permission  []modelPermission `json:"permission"`
}

type modelPermission struct {
	ID                 string `json:"id"`
	Object             string `json:"object"`
	Created            int64  `json:"created"`
	AllowCreateEngine  bool   `json:"allow_create_engine"`
	AllowSampling      bool   `json:"allow_sampling"`
	AllowLogprobs      bool   `json:"allow_logprobs"`
	AllowSearchIndices bool   `json:"allow_search_indices"`
	AllowView          bool   `json:"allow_view"`
	AllowFineTuning    bool   `json:"allow_fine_tuning"`
	Organization       string `json:"organization"`
	Group              null   `json:"group"`
	IsBlocking         bool   `json:"is_blocking"`
}

func (a *api) models(w http.ResponseWriter, _ *http.Request) {
	now := time.Now().Unix()
	card := modelCard{
		ID: a.cfg.ModelName, Object: "model", Created: now, OwnedBy: "vllm", Root: a.cfg.ModelName, MaxModelLen: a.cfg.MaxModelLen,
		Permission: []modelPermission{{
			ID: fmt.Sprintf("modelperm-%016x", scatter(a.cfg.Seed+a.requests.Add(1))), Object: "model_permission", Created: now,
			AllowSampling: true, AllowLogprobs: true, AllowView: true, Organization: "*",
		}},
	}
	writeJSON(w, http.StatusOK, struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{"list", []modelCard{card}})
}

// decodeFields reads the body of a route that takes a model's name; a failure is answered.
func (a *api) decodeFields(w http.ResponseWriter, r *http.Request) (*fields, bool) {
	body, ok := readBody(w, r)
	if !ok {
		return nil, false
	}
	object, failure := decodeObject(body)
	if failure != nil {
		writeError(w, failure)
		return nil, false
	}
	return &fields{object: object, prefix: "body"}, true
}

// check answers what is wrong with the fields or the model; false when something is.
func (a *api) check(w http.ResponseWriter, f *fields, model string) bool {
	failure := f.failed()
	if failure == nil && model != a.cfg.ModelName {
		failure = modelNotFound(model, a.cfg.ModelName)
	}
	if failure != nil {
		writeError(w, failure)
	}
	return failure == nil
}

func (a *api) tokenize(w http.ResponseWriter, r *http.Request) {
	f, ok := a.decodeFields(w, r)
	if !ok {
		return
	}
	model := f.text("model", a.cfg.ModelName)
	var text string
	_, hasPrompt := f.object["prompt"]
	_, hasMessages := f.object["messages"]
	switch {
	case hasPrompt:
		text = f.text("prompt", "")
	case hasMessages:
		messages, failure := f.messages("messages")
		if failure != nil {
			writeError(w, failure)
			return
		}
		text = chatPrompt(messages)
	default:
		f.missing("prompt")
		f.missing("messages")
	}
	asStrings := f.truth("return_token_strs", false)
	if !a.check(w, f, model) {
		return
	}
	tokens := tokenize(text)
	var texts []string
	if asStrings {
		texts = make([]string, len(tokens))
		for i, t := range tokens {
			texts[i] = tokenString(t)
		}
	}
	writeJSON(w, http.StatusOK, struct {
		Count       int      `json:"count"`
		MaxModelLen int      `json:"max_model_len"`
		Tokens      []int    `json:"tokens"`
		TokenStrs   []string `json:"token_strs"`
	}{len(tokens), a.cfg.MaxModelLen, tokens, texts})
}

func (a *api) detokenize(w http.ResponseWriter, r *http.Request) {
	f, ok := a.decodeFields(w, r)
	if !ok {
		return
	}
	model := f.text("model", a.cfg.ModelName)
	tokens := f.tokens("tokens")
	if !a.check(w, f, model) {
		return
	}
	writeJSON(w, http.StatusOK, struct {
		Prompt string `json:"prompt"`
	}{detokenize(tokens)})
}

// sleep puts the engine to sleep at the level of the query, 1 without one.
func (a *api) sleep(w http.ResponseWriter, r *http.Request) {
	level := 1
	if text := r.URL.Query().Get("level"); text != "" {
		f := &fields{object: map[string]json.RawMessage{"level": jsonString(text)}, prefix: "query"}
		level = f.integer("level", 1)
		switch {
		case len(f.faults) == 0 && level > 2:
			f.fault("level", "less_than_equal", "Input should be less than or equal to 2", jsonString(text))
			f.faults[0].context = "'le': 2"
		case len(f.faults) == 0 && level < 0:
			f.fault("level", "greater_than_equal", "Input should be greater than or equal to 0", jsonString(text))
			f.faults[0].context = "'ge': 0"
		}
		if failure := f.failed(); failure != nil {
			writeError(w, failure)
			return
		}
	}
	a.engine.Sleep(level)
	writeJSON(w, http.StatusOK, struct {
		Status string `json:"status"`
		Level  int    `json:"level"`
	}{"sleeping", level})
}

func (a *api) wakeUp(w http.ResponseWriter, _ *http.Request) {
	a.engine.Wake()
	writeJSON(w, http.StatusOK, struct {
		Status string `json:"status"`
		Tags   null   `json:"tags"`
	}{Status: "awake"})
}

func (a *api) isSleeping(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		IsSleeping bool `json:"is_sleeping"`
	}{a.engine.SleepLevel() > 0})
}
