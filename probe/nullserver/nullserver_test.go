package nullserver

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// one is a listener with one connection in memory.
type one struct {
	conn   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *one) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *one) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *one) Addr() net.Addr { return &net.UnixAddr{} }

// TestTiming: tokens come when they are programmed to, and an HTTP library
// understands the answer.
func TestTiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &one{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
		s := New(Config{TTFT: 200 * time.Millisecond, ITL: 20 * time.Millisecond})
		ctx, cancel := context.WithCancel(t.Context())
		var serving sync.WaitGroup
		serving.Go(func() {
			if err := s.Serve(ctx, l); err != nil {
				t.Error(err)
			}
		})
		client, server := net.Pipe()
		l.conn <- server
		reader := bufio.NewReader(client)
		send := func(method, path, body string) *http.Response {
			req, err := http.NewRequestWithContext(ctx, method, "http://null"+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if err := req.Write(client); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(reader, req)
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		for range 2 { // the connection is kept
			begin := time.Now()
			resp := send("POST", "/v1/completions", `{"prompt":[1,2,3],"max_tokens":5,"min_tokens":5}`)
			var at []time.Duration
			lines := bufio.NewScanner(resp.Body)
			last := ""
			for lines.Scan() {
				if strings.Contains(lines.Text(), `"text"`) {
					at = append(at, time.Since(begin))
				}
				if lines.Text() != "" {
					if strings.Contains(lines.Text(), "usage") && !strings.Contains(lines.Text(), `"prompt_tokens":3,"total_tokens":8,"completion_tokens":5`) {
						t.Errorf("usage: %s", lines.Text())
					}
					last = lines.Text()
				}
			}
			if len(at) != 5 || at[0] != 200*time.Millisecond || at[4] != 280*time.Millisecond || last != "data: [DONE]" {
				t.Errorf("tokens at %v, last line %q", at, last)
			}
		}
		var seen Stats
		if err := json.NewDecoder(send("GET", StatsPath, "").Body).Decode(&seen); err != nil {
			t.Fatal(err)
		}
		if seen.Requests != 2 || seen.Events != 10 || seen.TTFT != (Quantiles{0.2, 0.2}) || seen.E2E != (Quantiles{0.28, 0.28}) ||
			seen.ITL != (Quantiles{0.02, 0.02}) || seen.TPOT != (Quantiles{0.02, 0.02}) {
			t.Errorf("%+v", seen)
		}
		io.Copy(io.Discard, send("POST", ConfigPath, `{"ttft_ns":0,"itl_ns":0,"events_per_write":4}`).Body)
		begin := time.Now()
		io.Copy(io.Discard, send("POST", "/v1/completions", `{"max_tokens":64}`).Body)
		if time.Since(begin) != 0 {
			t.Errorf("it took %v", time.Since(begin))
		}
		cancel()
		client.Close()
		serving.Wait()
	})
}
