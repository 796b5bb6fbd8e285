package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"headroom_exporter/probe/workload"
)

// pipeListener connects an HTTP server and a client in memory, so that both
// live on a virtual clock.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (l *pipeListener) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// asked is a request as the server sees it.
type asked struct {
	Number    int
	Path      string
	Prompt    json.RawMessage `json:"prompt"`
	MaxTokens int             `json:"max_tokens"`
	Body      []byte
	Arrived   time.Time
	// gone is closed when the client is.
	gone <-chan struct{}
}

// answer writes one answer; the connection is cut when it returns errCut.
type answer func(w *events, q asked) error

var errCut = errors.New("cut")

// events writes server-sent events, each of them flushed.
type events struct {
	w http.ResponseWriter
}

func (e *events) raw(text string) {
	io.WriteString(e.w, text)
	e.w.(http.Flusher).Flush()
}

func (e *events) data(format string, args ...any) {
	e.raw("data: " + fmt.Sprintf(format, args...) + "\n\n")
}

func (e *events) status(code int, body string) {
	e.w.Header().Set("Content-Type", "application/json")
	e.w.WriteHeader(code)
	io.WriteString(e.w, body)
}

func (e *events) token() { e.tokens(1) }
func (e *events) usage(prompt, n int) {
	e.data(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, prompt, n)
}
func (e *events) done() { e.raw("data: [DONE]\n\n") }

// tokens sends n tokens in one event, with their ids.
func (e *events) tokens(n int) {
	ids := "7"
	for range n - 1 {
		ids += ",7"
	}
	e.data(`{"choices":[{"index":0,"text":"x","finish_reason":null,"token_ids":[%s]}]}`, ids)
}

// promptLength counts the ids of a request's prompt.
func (q *asked) promptLength() int {
	var ids []int
	if json.Unmarshal(q.Prompt, &ids) != nil {
		return 0
	}
	return len(ids)
}

// fixed answers with the first token after ttft and the others every itl.
func fixed(ttft, itl time.Duration) answer {
	return func(w *events, q asked) error {
		time.Sleep(ttft)
		for i := range q.MaxTokens {
			if i > 0 {
				time.Sleep(itl)
			}
			w.token()
		}
		w.usage(q.promptLength(), q.MaxTokens)
		w.done()
		return nil
	}
}

// bench is a client and a server of exactly known timing on a virtual clock.
type rig struct {
	client *Client
	mu     sync.Mutex
	seen   []asked
	now    int
	most   int
}

// virtual runs a test on a virtual clock with a server that answers as told.
func virtual(t *testing.T, config ClientConfig, a answer, test func(t *testing.T, ctx context.Context, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		r := &rig{}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			q := asked{Path: req.URL.Path, Arrived: time.Now(), gone: req.Context().Done()}
			q.Body, _ = io.ReadAll(req.Body)
			_ = json.Unmarshal(q.Body, &q)
			r.mu.Lock()
			q.Number = len(r.seen)
			r.seen = append(r.seen, q)
			r.now++
			r.most = max(r.most, r.now)
			r.mu.Unlock()
			defer func() {
				r.mu.Lock()
				r.now--
				r.mu.Unlock()
			}()
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			if a(&events{w}, q) != nil {
				panic(http.ErrAbortHandler)
			}
		})}
		var served sync.WaitGroup
		served.Go(func() { _ = server.Serve(l) })
		config.BaseURL, config.Model, config.Dial = "http://engine.test", "m", l.Dial
		if config.Dialect == (Dialect{}) {
			config.Dialect = Dialect{PromptIDs: true, ExactLength: true, TokenIDs: true, Usage: true, CacheSalt: true}
		}
		client, err := NewClient(config)
		if err != nil {
			t.Fatal(err)
		}
		r.client = client
		test(t, t.Context(), r)
		client.Close()
		// What the client gave up is still being answered.
		time.Sleep(time.Minute)
		server.Close()
		served.Wait()
	})
}

// each is a source of equal requests at a constant rate.
type each struct {
	n, made int
	every   time.Duration
	request workload.Request
}

func (e *each) Next() (workload.Request, bool) {
	if e.made == e.n {
		return workload.Request{}, false
	}
	q := e.request
	q.Index, q.At = e.made, time.Duration(e.made)*e.every
	e.made++
	return q, true
}

func requests(n int, every time.Duration) *each {
	return &each{n: n, every: every, request: workload.Request{Class: "c", PromptTokens: 8, MaxTokens: 16, IgnoreEOS: true}}
}

func fill(q *workload.Request) {
	q.Tokens = make([]int, q.PromptTokens)
	for i := range q.Tokens {
		q.Tokens[i] = 1000 + q.Index + i
	}
}

// runner runs points of a rig on the virtual clock.
func (r *rig) runner() *Runner { return &Runner{Client: r.client, wait: sleep} }
