package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fault answers one request in the place of the engine; page is what the
// engine would have answered to it.
type fault func(w http.ResponseWriter, r *http.Request, page []byte)

// faultProxy stands between the sidecar and an engine. It passes everything
// on until it is told to break the metrics page, or all pages. It serves one
// request at a time and notes when there was more than one.
type faultProxy struct {
	server *httptest.Server
	engine string

	mutex     sync.Mutex
	broken    fault
	brokenAll bool

	busy     chan struct{}
	overlaps atomic.Int64
	requests atomic.Int64
}

func newFaultProxy(t *testing.T, engineURL string) *faultProxy {
	p := &faultProxy{engine: engineURL, busy: make(chan struct{}, 1)}
	p.server = httptest.NewServer(p)
	t.Cleanup(func() {
		p.server.CloseClientConnections()
		p.server.Close()
	})
	return p
}

// answerWith answers the metrics page with a fault, or every page, the health
// check included; a nil fault mends it.
func (p *faultProxy) answerWith(f fault, everywhere bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.broken, p.brokenAll = f, everywhere
}

func (p *faultProxy) mend() { p.answerWith(nil, false) }

func (p *faultProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.requests.Add(1)
	// A client that gave a request up may send the next one before its end
	// is noticed here, so a short wait is no overlap.
	select {
	case p.busy <- struct{}{}:
	case <-time.After(300 * time.Millisecond):
		p.overlaps.Add(1)
		p.busy <- struct{}{}
	}
	defer func() { <-p.busy }()

	p.mutex.Lock()
	f, all := p.broken, p.brokenAll
	p.mutex.Unlock()
	page, header, status, err := p.fetch(r)
	if f != nil && (all || r.URL.Path == "/metrics") {
		f(w, r, page)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", header.Get("Content-Type"))
	w.WriteHeader(status)
	w.Write(page)
}

func (p *faultProxy) fetch(r *http.Request) (page []byte, header http.Header, status int, err error) {
	// With the client's context: what it gave up must not keep the next one waiting.
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, p.engine+r.URL.RequestURI(), nil)
	if err != nil {
		return nil, nil, 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, nil, 0, err
	}
	defer resp.Body.Close()
	page, err = io.ReadAll(resp.Body)
	return page, resp.Header, resp.StatusCode, err
}

const expositionType = "text/plain; version=1.0.0; charset=utf-8"

// answer writes a whole page.
func answer(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body)
}

// hang takes the request and never answers.
func hang(w http.ResponseWriter, r *http.Request, page []byte) { <-r.Context().Done() }

// drip sends a byte now and then, so that the connection is never silent.
func drip(w http.ResponseWriter, r *http.Request, page []byte) {
	w.Header().Set("Content-Type", expositionType)
	for i := range page {
		if _, err := w.Write(page[i : i+1]); err != nil {
			return
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// cut promises the whole page and closes the connection at two thirds of it.
func cut(w http.ResponseWriter, r *http.Request, page []byte) {
	w.Header().Set("Content-Type", expositionType)
	w.Header().Set("Content-Length", strconv.Itoa(len(page)))
	w.Write(page[:len(page)*2/3])
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// cutLine ends the page well as HTTP sees it, in the middle of a line.
func cutLine(w http.ResponseWriter, r *http.Request, page []byte) {
	end := bytes.LastIndex(page[:len(page)*2/3], []byte("{")) + 5
	answer(w, http.StatusOK, expositionType, page[:end])
}

// grown is the page with foreign series added up to a size.
func grown(size int) fault {
	var foreign bytes.Buffer
	for i := 0; foreign.Len() < size; i++ {
		fmt.Fprintf(&foreign, "foreign_series_with_a_long_name{path=\"/some/long/path/%d\",method=\"GET\"} %d\n", i, i)
	}
	return func(w http.ResponseWriter, r *http.Request, page []byte) {
		w.Header().Set("Content-Type", expositionType)
		w.Header().Set("Content-Length", strconv.Itoa(len(page)+foreign.Len()))
		w.Write(page)
		w.Write(foreign.Bytes())
	}
}

// status answers an error page.
func status(code int) fault {
	return func(w http.ResponseWriter, r *http.Request, page []byte) {
		http.Error(w, http.StatusText(code), code)
	}
}

// html answers 200 with a web page, as a login portal does.
func html(w http.ResponseWriter, r *http.Request, page []byte) {
	answer(w, http.StatusOK, "text/html; charset=utf-8", []byte("<!doctype html><html><body><h1>Sign in</h1></body></html>"))
}

// doubled sends every sample of the running gauge twice.
func doubled(w http.ResponseWriter, r *http.Request, page []byte) {
	var b strings.Builder
	for line := range strings.Lines(string(page)) {
		b.WriteString(line)
		if strings.HasPrefix(line, "vllm:num_requests_running{") {
			b.WriteString(line)
		}
	}
	answer(w, http.StatusOK, expositionType, []byte(b.String()))
}

// frozen answers the same page for ever: gauges above zero, counters that
// stand still.
func frozen(page []byte) fault {
	return func(w http.ResponseWriter, r *http.Request, _ []byte) {
		answer(w, http.StatusOK, expositionType, page)
	}
}
