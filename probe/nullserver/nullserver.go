// Package nullserver answers completions in no time or at exactly programmed
// times, so that what is measured through it is the client. It speaks just
// enough HTTP/1.1 to cost much less than any client.
package nullserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"headroom_exporter/probe/arrival"
)

// Config is the programmed timing.
type Config struct {
	// TTFT is from the arrival of the request's last byte to the write of the first token.
	TTFT time.Duration `json:"ttft_ns"`
	// ITL is from one write to the next; with 0 all follow at once.
	ITL time.Duration `json:"itl_ns"`
	// EventsPerWrite are written together; 0 counts as 1.
	EventsPerWrite int `json:"events_per_write"`
}

// Stats is what the server did since it was asked last.
type Stats struct {
	Requests int `json:"requests"`
	Events   int `json:"events"`
	// What really happened: TTFT and E2E are from the arrival of the request's
	// last byte to the write of the first and of the last token, ITL from one
	// write to the next, TPOT its mean over a request.
	TTFT Quantiles `json:"ttft"`
	ITL  Quantiles `json:"itl"`
	TPOT Quantiles `json:"tpot"`
	E2E  Quantiles `json:"e2e"`
	// First and Last request, in seconds since the server began.
	First float64 `json:"first"`
	Last  float64 `json:"last"`
	// Gaps: coefficient of variation of the times between requests.
	GapCV float64 `json:"gap_cv"`
}

// Quantiles of a time in seconds by nearest rank; 0 without any.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// Server is a null server. It is made by New.
type Server struct {
	config Config
	head   []byte
	chunk  []byte
	began  time.Time

	mu       sync.Mutex
	arrivals []float64
	events   int
	// Times of what was answered, in seconds.
	ttfts, itls, tpots, e2es []float64
	// conns that are open, to be closed at the end.
	conns map[net.Conn]struct{}
}

// The paths that are no completions.
const (
	// StatsPath gives Stats and begins anew.
	StatsPath = "/null/stats"
	// ConfigPath takes a Config.
	ConfigPath = "/null/config"
)

// New makes a server.
func New(c Config) *Server {
	return &Server{
		config: c, began: time.Now(), conns: map[net.Conn]struct{}{},
		head:  []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"),
		chunk: httpChunk(`data: {"id":"cmpl-0","object":"text_completion","created":1700000000,"model":"null","choices":[{"index":0,"text":" x","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":[7]}]}` + "\n\n"),
	}
}

func httpChunk(data string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(data), data) }

// Serve answers until the context ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() {
		l.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			c.Close()
		}
	})
	defer stop()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("null server: accepting: %w", err)
		}
		s.mu.Lock()
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		go func() {
			s.connection(c)
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		}()
	}
}

func (s *Server) connection(conn net.Conn) {
	defer conn.Close()
	c := arrival.New(conn, s.began)
	r := bufio.NewReaderSize(c, 8<<10)
	var body []byte
	for {
		method, path, length, err := head(r)
		if err != nil {
			return
		}
		if length > 64<<20 {
			return
		}
		body = slices.Grow(body[:0], length)[:length]
		if _, err := io.ReadFull(r, body); err != nil {
			return
		}
		if method == "POST" && bytes.HasSuffix(path, []byte("/completions")) {
			err = s.complete(c, body)
		} else {
			err = s.other(c, method, string(path), body)
		}
		if err != nil {
			return
		}
	}
}

// head reads a request's line and headers.
func head(r *bufio.Reader) (method string, path []byte, length int, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return "", nil, 0, err
	}
	m, rest, ok := bytes.Cut(line, []byte(" "))
	p, _, ok2 := bytes.Cut(rest, []byte(" "))
	if !ok || !ok2 {
		return "", nil, 0, errors.New("no request line")
	}
	method, path = "GET", bytes.Clone(p)
	if string(m) == "POST" {
		method = "POST"
	}
	for {
		if line, err = r.ReadSlice('\n'); err != nil {
			return "", nil, 0, err
		}
		if len(line) <= 2 {
			return method, path, length, nil
		}
		const name = "content-length:"
		if len(line) > len(name) && bytes.EqualFold(line[:len(name)], []byte(name)) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(name):]))); err != nil || length < 0 {
				return "", nil, 0, errors.New("no content length")
			}
		}
	}
}

var maxTokensKey = []byte(`"max_tokens":`)

// number returns the digits after a key; 0 without.
func number(body, key []byte) int {
	i := bytes.LastIndex(body, key)
	if i < 0 {
		return 0
	}
	n := 0
	for _, c := range body[i+len(key):] {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// complete streams max_tokens tokens, one an event.
func (s *Server) complete(c *arrival.Conn, body []byte) error {
	received := s.began.Add(c.Arrived())
	s.mu.Lock()
	config := s.config
	s.arrivals = append(s.arrivals, received.Sub(s.began).Seconds())
	s.mu.Unlock()
	tokens := max(number(body, maxTokensKey), 1)
	batch := max(config.EventsPerWrite, 1)
	prompt := 1
	if i := bytes.Index(body, []byte(`"prompt":[`)); i >= 0 {
		prompt += bytes.Count(body[i:i+bytes.IndexByte(body[i:], ']')], []byte(","))
	}
	tail := fmt.Appendf(nil, `data: {"id":"cmpl-0","object":"text_completion","created":1700000000,"model":"null","choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}`, prompt, prompt+tokens, tokens)
	tail = append(tail, "\n\ndata: [DONE]\n\n"...)

	buffer := append(make([]byte, 0, 512), s.head...)
	due := received.Add(config.TTFT)
	var first, last time.Duration
	var gaps []float64
	for sent := 0; sent < tokens; {
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		}
		n := min(batch, tokens-sent)
		for range n {
			buffer = append(buffer, s.chunk...)
		}
		begun := sent > 0
		if sent += n; sent == tokens {
			buffer = append(buffer, httpChunk(string(tail))...)
			buffer = append(buffer, "0\r\n\r\n"...)
		}
		wrote := time.Since(received)
		if _, err := c.Write(buffer); err != nil {
			return err
		}
		switch {
		case !begun:
			first = wrote
		case config.ITL > 0:
			gaps = append(gaps, (wrote - last).Seconds())
		}
		last = wrote
		buffer = buffer[:0]
		due = due.Add(config.ITL)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events += tokens
	s.ttfts = append(s.ttfts, first.Seconds())
	s.e2es = append(s.e2es, last.Seconds())
	if len(gaps) > 0 {
		s.itls = append(s.itls, gaps...)
		s.tpots = append(s.tpots, (last-first).Seconds()/float64(tokens-min(batch, tokens)))
	}
	return nil
}

// other answers what is asked besides completions.
func (s *Server) other(c net.Conn, method, path string, body []byte) error {
	var answer any = map[string]any{"status": "ok"}
	switch path {
	case "/v1/models":
		answer = map[string]any{"object": "list", "data": []map[string]any{{"id": "null", "object": "model", "max_model_len": 1 << 20}}}
	case StatsPath:
		answer = s.take()
	case ConfigPath:
		var next Config
		if err := json.Unmarshal(body, &next); err != nil {
			return err
		}
		s.mu.Lock()
		s.config = next
		s.mu.Unlock()
	}
	b, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
	return err
}

// take returns the statistics and begins anew.
func (s *Server) take() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{Requests: len(s.arrivals), Events: s.events}
	if len(s.arrivals) > 0 {
		st.First, st.Last = slices.Min(s.arrivals), slices.Max(s.arrivals)
		slices.Sort(s.arrivals)
		st.GapCV = gapCV(s.arrivals)
	}
	st.TTFT, st.ITL, st.TPOT, st.E2E = quantiles(s.ttfts), quantiles(s.itls), quantiles(s.tpots), quantiles(s.e2es)
	s.ttfts, s.itls, s.tpots, s.e2es = s.ttfts[:0], s.itls[:0], s.tpots[:0], s.e2es[:0]
	s.arrivals, s.events = s.arrivals[:0], 0
	return st
}

// quantiles sorts the values.
func quantiles(values []float64) Quantiles {
	n := len(values)
	if n == 0 {
		return Quantiles{}
	}
	slices.Sort(values)
	return Quantiles{P50: values[(n-1)/2], P99: values[(n*99+99)/100-1]}
}

// gapCV is the standard deviation of the gaps over their mean; 0 when there are too few.
func gapCV(sorted []float64) float64 {
	n := float64(len(sorted) - 1)
	if n < 2 {
		return 0
	}
	mean := (sorted[len(sorted)-1] - sorted[0]) / n
	square := 0.0
	for i := 1; i < len(sorted); i++ {
		d := sorted[i] - sorted[i-1] - mean
		square += d * d
	}
	if mean == 0 {
		return 0
	}
	return math.Sqrt(square/n) / mean
}
