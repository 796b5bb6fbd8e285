// Package probe puts load on an inference engine and measures what it does
// with it. Its numbers are taken from the moment a request was due, so that
// neither the client's delay nor the engine's queue can hide.
package probe

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"headroom_exporter/probe/workload"
)

// ClientConfig says how requests are sent.
type ClientConfig struct {
	// BaseURL of the API, without /v1.
	BaseURL string
	// Model is the served name to ask for.
	Model   string
	Dialect Dialect
	// Header is sent along: authorization and what a gateway wants.
	Header http.Header
	// TLS is for https; nil takes Go's defaults.
	TLS *tls.Config
	// RequestTimeout bounds a request from the moment it was due; 0 is 10 minutes.
	RequestTimeout time.Duration
	// IdleTimeout bounds the time without an event once a stream has shown a token; 0 is 10 s.
	IdleTimeout time.Duration
	// StallAfter is the silence over all streams that counts as a stall of the
	// engine; 0 is 5 s.
	StallAfter time.Duration
	// ConnectTimeout bounds connection set-up; 0 is 10 s.
	ConnectTimeout time.Duration
	// Dial replaces the network in tests.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func (c ClientConfig) withDefaults() ClientConfig {
	for _, d := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&c.RequestTimeout, 10 * time.Minute}, {&c.IdleTimeout, 10 * time.Second},
		{&c.StallAfter, 5 * time.Second}, {&c.ConnectTimeout, 10 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.fallback
		}
	}
	if c.Dial == nil {
		// No keep-alive probes: streams have their own deadlines.
		c.Dial = (&net.Dialer{Timeout: c.ConnectTimeout, KeepAlive: -1}).DialContext
	}
	return c
}

// Client sends requests and reads their streams. It is safe for concurrent use.
type Client struct {
	config    ClientConfig
	transport *http.Transport
	epoch     time.Time
	// completions and chat are the addresses that generate.
	completions, chat *url.URL
	modelMember       []byte // the asked model as servers write it into a chunk
	header            http.Header
	streams           sync.Pool
	watch             watchdog
}

// Bounds of what is read of an answer that is no stream, in bytes.
const maxErrorBody = 4 << 10

// idleConnTimeout is below the 5 s after which uvicorn closes idle
// connections, so that none is taken that is about to go.
const idleConnTimeout = 4 * time.Second

// NewClient makes a client; it sends nothing yet. Close ends it.
func NewClient(config ClientConfig) (*Client, error) {
	config = config.withDefaults()
	base, err := url.Parse(config.BaseURL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("the engine's address is %q; it must look like http://127.0.0.1:8000", config.BaseURL)
	}
	model, err := json.Marshal(config.Model)
	if err != nil {
		return nil, fmt.Errorf("the model's name: %w", err)
	}
	c := &Client{config: config, epoch: time.Now(), modelMember: append([]byte(`"model":`), model...)}
	prefix := strings.TrimRight(base.Path, "/")
	completions, chat := *base, *base
	completions.Path, chat.Path = prefix+"/v1/completions", prefix+"/v1/chat/completions"
	c.completions, c.chat = &completions, &chat
	c.header = config.Header.Clone()
	if c.header == nil {
		c.header = http.Header{}
	}
	c.header["Content-Type"] = []string{"application/json"}
	c.header["Accept"] = []string{"text/event-stream"}
	c.header["User-Agent"] = []string{"headroom_exporter"}
	c.transport = &http.Transport{
		// No proxy: what it adds would be measured as the engine's.
		DialContext:            dialFunc(config.Dial).timing(c.epoch),
		TLSClientConfig:        config.TLS,
		TLSHandshakeTimeout:    config.ConnectTimeout,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // HTTP/1.1 only
		DisableCompression:     true,
		MaxIdleConnsPerHost:    1 << 16,
		IdleConnTimeout:        idleConnTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		// Small: there are thousands of them, and the largest things pass them by.
		ReadBufferSize:  2 << 10,
		WriteBufferSize: 4 << 10,
	}
	c.streams.New = func() any { return new(stream) }
	shortSlices()
	c.watch.start(c)
	return c, nil
}

// Close ends the watchdog and gives idle connections back. Requests must have ended.
func (c *Client) Close() {
	c.watch.stop()
	c.transport.CloseIdleConnections()
}

// now is the time since the client's epoch.
func (c *Client) now() time.Duration { return time.Since(c.epoch) }

// stream is the memory of one request under way.
type stream struct {
	flight flight
	events eventReader
	body   []byte
	// promptIDs is how many token ids the prompt has; 0 for a text.
	promptIDs int
	// open counts readers of the body.
	open   atomic.Int32
	trace  httptrace.ClientTrace
	conn   *timedConn
	reused bool
	began  time.Duration
	waited time.Duration
	clock  func() time.Duration
}

// gotConn is called by the transport when it has a connection for the request.
func (s *stream) gotConn(info httptrace.GotConnInfo) {
	s.conn, s.reused = timed(info.Conn), info.Reused
	if s.conn != nil {
		s.conn.arm()
	}
	s.waited = s.clock() - s.began
}

// requestBody is a prepared body as a request's. The transport may still read
// it when an early answer is already there; it closes it when it is done.
type requestBody struct {
	*bytes.Reader
	open *atomic.Int32
}

func (b requestBody) Close() error {
	b.open.Add(-1)
	return nil
}

func (s *stream) newBody() io.ReadCloser {
	s.open.Add(1)
	return &requestBody{bytes.NewReader(s.body), &s.open}
}

// prepare makes a request's body ahead of time.
func (c *Client) prepare(r *workload.Request) *stream {
	s := c.streams.Get().(*stream)
	s.promptIDs = len(r.Tokens)
	s.body = appendBody(s.body[:0], c.config.Model, c.config.Dialect, r)
	return s
}

// Do sends a request that is due at a moment and fills x with what happened.
// It returns when the stream has ended, one of the deadlines has passed or the
// context has ended.
func (c *Client) Do(ctx context.Context, r *workload.Request, due time.Duration, x *Exchange) {
	c.do(ctx, c.prepare(r), r, due, x)
}

func (c *Client) do(ctx context.Context, s *stream, r *workload.Request, due time.Duration, x *Exchange) {
	x.reset()
	ctx, cancel := context.WithCancelCause(ctx)
	c.watch.add(&s.flight, due+c.config.RequestTimeout, cancel)
	c.exchange(ctx, s, r, x)
	c.watch.remove(&s.flight)
	x.End = c.now()
	cancel(nil)
	c.finish(s, r, x)
	s.events.r, s.events.arrived, s.conn = nil, nil, nil
	if s.open.Load() == 0 && cap(s.body) < 1<<20 && cap(s.events.buf) < 1<<20 {
		c.streams.Put(s)
	}
}

// exchange sends the request and reads the answer.
func (c *Client) exchange(ctx context.Context, s *stream, r *workload.Request, x *Exchange) {
	s.conn, s.reused, s.waited, s.clock, s.began = nil, false, 0, c.now, c.now()
	if s.trace.GotConn == nil {
		s.trace.GotConn = s.gotConn
	}
	address := c.completions
	if r.Chat {
		address = c.chat
	}
	req := (&http.Request{
		Method: http.MethodPost, URL: address, Host: address.Host, Header: c.header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		ContentLength: int64(len(s.body)), Body: s.newBody(),
		// Lets the transport try again on a connection that the server closed while it was idle.
		GetBody: func() (io.ReadCloser, error) { return s.newBody(), nil },
	}).WithContext(httptrace.WithClientTrace(ctx, &s.trace))
	resp, err := c.transport.RoundTrip(req)
	x.Headers = c.now()
	x.Connect, x.Reused = s.waited, s.reused
	arrived := c.now
	if s.conn != nil {
		arrived = s.conn.Arrived
		x.Headers = arrived()
		if at := s.conn.sent.Load(); at > 0 {
			x.Sent = time.Duration(at)
		}
	}
	if err != nil {
		x.Headers = Never
		x.fail(ctx, HTTPError, err)
		return
	}
	defer resp.Body.Close()
	x.Status = resp.StatusCode
	if x.Status != http.StatusOK {
		x.Outcome, x.Error = HTTPError, c.refusal(resp)
		return
	}
	if kind := resp.Header.Get("Content-Type"); kind != "" && !strings.HasPrefix(kind, "text/event-stream") {
		x.Outcome, x.Error = StreamError, fmt.Sprintf("the answer is %s, not a stream: %s", kind, c.refusal(resp))
		return
	}
	c.read(ctx, s, resp.Body, arrived, x)
}

// refusal is the beginning of an answer that is not wanted.
func (c *Client) refusal(resp *http.Response) string {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if len(b) == 0 && err != nil {
		return fmt.Sprintf("status %d, and its body cannot be read: %v", resp.StatusCode, err)
	}
	if text := failureText(b); text != "" {
		return text
	}
	return http.StatusText(resp.StatusCode)
}

// fail classifies an error of the transport.
func (x *Exchange) fail(ctx context.Context, otherwise Outcome, err error) {
	x.Outcome = otherwise
	if cause := context.Cause(ctx); cause != nil {
		switch {
		case errors.Is(cause, errRequestTimeout), errors.Is(cause, errIdleTimeout):
			x.Outcome, err = Timeout, cause
		default:
			x.Outcome, err = Cancelled, cause
		}
	}
	x.Error = err.Error()
}
