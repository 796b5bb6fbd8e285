package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"headroom_exporter/probe/workload"
)

// preflightTimeout bounds one request before the load that the model works on.
const preflightTimeout = 60 * time.Second

// askTimeout bounds one question that a server answers by itself.
const askTimeout = 10 * time.Second

// maxAnswer bounds what is read of an answer before the load, in bytes.
const maxAnswer = 1 << 20

// Facts is what the engine told before the load.
type Facts struct {
	Model       string
	MaxModelLen int
	// Vocabulary is the token ids that prompts may be made of.
	Vocabulary workload.Vocabulary
	// Text is how texts are made that have a length in tokens; nil until it is known.
	Text    *workload.TextShape
	Dialect Dialect
	// Notes say what the engine does not take, and what follows from it.
	Notes []string
}

// Preflight asks the engine what it serves and which requests it takes, with
// a few small requests. model may be empty when it serves exactly one. chat
// tells that chat requests will be sent, completions that others will.
func Preflight(ctx context.Context, config ClientConfig, model string, chat, completions bool) (*Facts, error) {
	p := &preflight{config: config, facts: &Facts{Model: model}}
	if err := p.models(ctx); err != nil {
		return nil, err
	}
	p.config.Model = p.facts.Model
	p.config.RequestTimeout = preflightTimeout
	if completions {
		if err := p.dialect(ctx, false); err != nil {
			return nil, err
		}
	}
	if chat {
		if err := p.dialect(ctx, true); err != nil {
			return nil, err
		}
	}
	if chat || !p.facts.Dialect.PromptIDs {
		if err := p.text(ctx, chat); err != nil {
			return nil, err
		}
	}
	return p.facts, nil
}

type preflight struct {
	config ClientConfig
	facts  *Facts
	// asked makes every prompt of the preflight another one.
	asked int
	both  bool
}

// models finds the model's name.
func (p *preflight) models(ctx context.Context) error {
	var answer struct {
		Data []struct {
			ID          string `json:"id"`
			MaxModelLen int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := p.get(ctx, "/v1/models", &answer); err != nil {
		var silent *silentError
		var connection *net.OpError
		switch {
		case errors.As(err, &silent) && (p.facts.Model == "" || errors.As(err, &connection) && connection.Op == "dial"):
			return err
		case p.facts.Model == "":
			return fmt.Errorf("asking for the model: %w%s", err, advice(err))
		}
		p.note("the engine does not list its models (%v)", err)
		return nil
	}
	var names []string
	for _, m := range answer.Data {
		names = append(names, m.ID)
		if m.ID == p.facts.Model || p.facts.Model == "" && len(answer.Data) == 1 {
			p.facts.Model, p.facts.MaxModelLen = m.ID, m.MaxModelLen
			return nil
		}
	}
	if p.facts.Model == "" {
		return fmt.Errorf("the engine serves %d models (%s); choose one with --model", len(names), strings.Join(names, ", "))
	}
	return fmt.Errorf("the engine does not serve %q but %s", p.facts.Model, strings.Join(names, ", "))
}

// statusError is an answer with another status than 200.
type statusError struct {
	path   string
	status int
	text   string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("the engine answers %s with status %d: %s", e.path, e.status, e.text)
}

// silentError is the error of an engine that gave no answer at all.
type silentError struct {
	url string
	err error
}

func (e *silentError) Error() string {
	why := e.err
	var call *os.SyscallError
	var connection *net.OpError
	switch {
	case errors.As(why, &call):
		why = call.Err // the address is said already
	case errors.As(why, &connection):
		why = connection.Err
	}
	return fmt.Sprintf("no answer from %s: %v; start the engine, or give its address with --engine.url", e.url, why)
}

func (e *silentError) Unwrap() error { return e.err }

// advice is what may help where a server does not list its models: nothing
// where it does not answer at all.
func advice(err error) string {
	var refused *statusError
	switch {
	case !errors.As(err, &refused):
		return ""
	case refused.status == http.StatusUnauthorized || refused.status == http.StatusForbidden:
		return "; give its key with --engine.bearer-token-file"
	}
	return "; name it with --model"
}

func (p *preflight) note(format string, args ...any) {
	p.facts.Notes = append(p.facts.Notes, fmt.Sprintf(format, args...))
}

// get asks for JSON.
func (p *preflight) get(ctx context.Context, path string, answer any) error {
	return p.ask(ctx, http.MethodGet, path, nil, answer)
}

func (p *preflight) ask(ctx context.Context, method, path string, body []byte, answer any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("nothing came within %s", askTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(p.config.BaseURL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("asking the engine: %w", err)
	}
	for name, values := range p.config.Header {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{TLSClientConfig: p.config.TLS, DisableKeepAlives: true, DialContext: p.config.Dial}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		if why := context.Cause(ctx); why != nil {
			err = why
		}
		return &silentError{p.config.BaseURL, err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("asking the engine for %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return &statusError{path, resp.StatusCode, failureText(b)}
	}
	if err := json.Unmarshal(b, answer); err != nil {
		return fmt.Errorf("reading the answer to %s: %w", path, err)
	}
	return nil
}

// trial sends one small request.
func (p *preflight) trial(ctx context.Context, d Dialect, q workload.Request) (Exchange, error) {
	config := p.config
	config.Dialect = d
	c, err := NewClient(config)
	if err != nil {
		return Exchange{}, err
	}
	defer c.Close()
	var x Exchange
	c.Do(ctx, &q, c.now(), &x)
	return x, ctx.Err()
}

// trialTokens is the output of a trial: enough for more than one chunk.
const trialTokens = 4

func (p *preflight) request(chat bool, ids []int) workload.Request {
	p.asked++
	q := workload.Request{
		Text: fmt.Sprintf("%d: say something", p.asked), MaxTokens: trialTokens, Chat: chat, IgnoreEOS: true,
		CacheSalt: workload.NewCacheSalt(),
	}
	if !chat && ids != nil {
		q.Tokens, q.PromptTokens, q.Text = ids, len(ids), ""
	}
	return q
}

// dialect tries from everything to nothing until the engine takes a request.
func (p *preflight) dialect(ctx context.Context, chat bool) error {
	full := Dialect{PromptIDs: !chat, ExactLength: true, TokenIDs: true, Usage: true, CacheSalt: true}
	if p.both {
		// The completions endpoint was tried before: what it did not take is not tried again.
		ids := p.facts.Dialect.PromptIDs
		full = p.facts.Dialect
		full.PromptIDs = ids
	}
	var tries []Dialect
	for _, d := range []Dialect{
		full,
		{PromptIDs: full.PromptIDs, ExactLength: true, TokenIDs: true, Usage: true},
		{PromptIDs: full.PromptIDs, ExactLength: true, Usage: true},
		{PromptIDs: full.PromptIDs, Usage: true},
		{ExactLength: true, TokenIDs: true, Usage: true, CacheSalt: true},
		{ExactLength: true, Usage: true},
		{Usage: true},
		{},
	} {
		if len(tries) == 0 || tries[len(tries)-1] != d {
			tries = append(tries, d)
		}
	}
	var first string
	for _, d := range tries {
		var ids []int
		if d.PromptIDs && !chat {
			var err error
			if ids, err = p.vocabulary(ctx, d); err != nil {
				return err
			}
			if ids == nil {
				continue
			}
		}
		x, err := p.trial(ctx, d, p.request(chat, ids))
		if err != nil {
			return err
		}
		if first == "" {
			first = x.Error
		}
		switch {
		case x.Outcome == HTTPError && x.Status >= 400 && x.Status < 500 && x.Status != http.StatusUnauthorized &&
			x.Status != http.StatusForbidden && x.Status != http.StatusNotFound && x.Status != http.StatusTooManyRequests:
			continue
		case x.Outcome == LengthMismatch && d.ExactLength:
			p.note("the engine does not give exact lengths: %s", x.Error)
		case x.Outcome != OK && x.Outcome != LengthMismatch:
			return fmt.Errorf("a small request failed (%s, status %d): %s", x.Outcome, x.Status, x.Error)
		}
		return p.settle(ctx, chat, d, ids, x)
	}
	return fmt.Errorf("the engine takes no form of a small request: %s", first)
}

// settle takes a dialect that works and asks for token counts another way if
// chunks do not say them.
func (p *preflight) settle(ctx context.Context, chat bool, d Dialect, ids []int, x Exchange) error {
	if x.FirstTokens < 0 && d.Usage {
		try := d
		try.TokenIDs, try.ContinuousUsage = false, true
		again, err := p.trial(ctx, try, p.request(chat, ids))
		if err != nil {
			return err
		}
		if again.FirstTokens >= 0 && (again.Outcome == OK || again.Outcome == LengthMismatch) {
			d, x = try, again
		}
	}
	if x.FirstTokens < 0 {
		p.note("chunks do not say how many tokens they carry: ITL is spread evenly over them")
	}
	if d.Usage && x.TokensFrom != "usage" {
		p.note("the engine sends no usage: tokens are counted from %s", orNothing(x.TokensFrom))
	}
	for _, missing := range []struct {
		has  bool
		what string
	}{
		{d.ExactLength, "min_tokens and ignore_eos: answers end where the model ends them"},
		{d.CacheSalt, "cache_salt: prompts differ in their first tokens instead"},
		{d.PromptIDs || chat, "token ids as a prompt: texts are sent"},
	} {
		if !missing.has {
			p.note("the engine does not take %s", missing.what)
		}
	}
	if !p.both {
		p.facts.Dialect = d
		p.both = true
		return nil
	}
	// One dialect for both endpoints: what both take.
	a := &p.facts.Dialect
	a.ExactLength, a.TokenIDs = a.ExactLength && d.ExactLength, a.TokenIDs && d.TokenIDs
	a.Usage, a.CacheSalt = a.Usage && d.Usage, a.CacheSalt && d.CacheSalt
	a.ContinuousUsage = a.Usage && (a.ContinuousUsage || d.ContinuousUsage)
	return nil
}

func orNothing(from string) string {
	if from == "" {
		return "nothing"
	}
	return from
}

// vocabulary finds token ids that the engine takes, and returns a prompt of
// them; nil when it takes none.
func (p *preflight) vocabulary(ctx context.Context, d Dialect) ([]int, error) {
	for size := 1 << 15; size >= 64; size /= 2 {
		known := size
		if size == 1<<15 {
			known = 0 // at least as many as are ever used
		}
		v := workload.SafeVocabulary(known)
		ids := make([]int, 16)
		for i := range ids {
			ids[i] = v.First + (i*7+p.asked*131)%v.Count
		}
		ids[15] = v.First + v.Count - 1
		x, err := p.trial(ctx, d, p.request(false, ids))
		if err != nil {
			return nil, err
		}
		if x.Outcome == OK || x.Outcome == LengthMismatch {
			p.facts.Vocabulary = v
			return ids, nil
		}
		// vLLM refuses an id that it does not have inside the stream.
		refused := x.Outcome == StreamError || x.Outcome == HTTPError && (x.Status == http.StatusBadRequest || x.Status == http.StatusUnprocessableEntity)
		if !refused {
			return nil, fmt.Errorf("a small request failed (%s, status %d): %s", x.Outcome, x.Status, x.Error)
		}
	}
	return nil, nil
}

// textWords are the lengths in words from which the length of texts is learnt.
var textWords = []int{16, 128, 64, 256}

// text learns how many tokens the engine makes of a text.
func (p *preflight) text(ctx context.Context, chat bool) error {
	var scale workload.TextScale
	source, err := workload.Plan{
		Classes: []workload.Class{{Name: "text", Weight: 1, Prompt: workload.FixedLength(1 << 10), Output: workload.FixedLength(1)}},
		Seed:    1, ContentSeed: uint64(time.Now().UnixNano()),
	}.Source()
	if err != nil {
		return err
	}
	for _, words := range textWords {
		q, _ := source.Next()
		q.MakeText(workload.TextShape{TokensPerWord: float64(q.PromptTokens) / float64(words)})
		if got := len(strings.Fields(q.Text)); got > 0 {
			words = got
		}
		q.MaxTokens, q.Chat, q.IgnoreEOS = 1, chat, true
		x, err := p.trial(ctx, p.facts.Dialect, q)
		if err != nil {
			return err
		}
		if x.Outcome == HTTPError && x.Status == http.StatusBadRequest {
			continue // longer than the engine's context
		}
		tokens := x.PromptTokens
		if tokens < 0 && !chat {
			tokens = p.tokenize(ctx, q.Text)
		}
		if tokens < 0 {
			p.facts.Text = &workload.TextShape{TokensPerWord: 1}
			p.note("the engine does not say how long prompts are: one word counts as one token")
			return nil
		}
		scale.Observe(words, tokens)
	}
	shape, err := scale.Shape()
	if err != nil {
		return fmt.Errorf("learning the length of texts: %w", err)
	}
	p.facts.Text = &shape
	return nil
}

// tokenize asks for the length of a text; unknown when the engine does not say.
func (p *preflight) tokenize(ctx context.Context, text string) int {
	body, err := json.Marshal(map[string]any{"model": p.facts.Model, "prompt": text})
	if err != nil {
		return unknown
	}
	var answer struct {
		Count *int `json:"count"`
	}
	if p.ask(ctx, http.MethodPost, "/tokenize", body, &answer) != nil {
		return unknown
	}
	return count(answer.Count)
}

// Fill makes prompts as the engine takes them.
func (f *Facts) Fill(q *workload.Request) {
	if q.Chat || !f.Dialect.PromptIDs {
		shape := workload.TextShape{TokensPerWord: 1}
		if f.Text != nil {
			shape = *f.Text
		}
		q.MakeText(shape)
		return
	}
	q.MakeTokens(f.Vocabulary)
}

// Open opens connections ahead of the load, so that the first requests do not
// wait for them.
func (c *Client) Open(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, c.config.ConnectTimeout)
	defer cancel()
	base := *c.completions
	base.Path = strings.TrimSuffix(base.Path, "/v1/completions") + "/health"
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for range n {
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			req := (&http.Request{Method: http.MethodGet, URL: &base, Host: base.Host, Header: c.header}).WithContext(ctx)
			resp, err := c.transport.RoundTrip(req)
			if err == nil {
				_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
				resp.Body.Close()
			}
			if err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(errs) == 0 && ctx.Err() != nil {
		errs = append(errs, ctx.Err())
	}
	if len(errs) > 0 {
		return fmt.Errorf("opening %d connections: %w", n, errors.Join(errs[:1]...))
	}
	return nil
}
