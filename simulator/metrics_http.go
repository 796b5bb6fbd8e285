package simulator

import (
	"sync"
	"time"
)

// httpMetrics is what prometheus-fastapi-instrumentator counts for vLLM's API
// server. Durations are in simulated seconds, as all others on the page.
type httpMetrics struct {
	mu        sync.Mutex
	requests  []*httpRequests
	sizes     []*httpSizes
	latencies []*httpLatency
	all       *histogram
	// allCreated is when the series without labels began.
	allCreated float64
}

type httpRequests struct {
	handler, method, status string
	count, created          float64
}

type httpSizes struct {
	handler                        string
	count, requestBytes, sentBytes float64
	created                        float64
}

type httpLatency struct {
	handler, method string
	seconds         *histogram
	created         float64
}

var (
	httpLatencyBounds    = []float64{.1, .5, 1}
	httpAllLatencyBounds = []float64{.01, .025, .05, .075, .1, .25, .5, .75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60}
)

func (h *httpMetrics) init(created float64) {
	h.all = newHistogram(httpAllLatencyBounds)
	h.allCreated = created
}

// httpExchange is one request that was answered.
type httpExchange struct {
	// handler is the route, "none" when there is none.
	handler, method string
	status          int
	// requestBytes and sentBytes are of the Content-Length headers, 0 without one.
	requestBytes, sentBytes int64
	// seconds until the last byte, simulated.
	seconds float64
}

func (h *httpMetrics) observe(x httpExchange) {
	now := unixSeconds(time.Now())
	status := string([]byte{byte('0' + x.status/100), 'x', 'x'})
	h.mu.Lock()
	defer h.mu.Unlock()

	requests := find(&h.requests, func(r *httpRequests) bool {
		return r.handler == x.handler && r.method == x.method && r.status == status
	}, func() *httpRequests {
		return &httpRequests{handler: x.handler, method: x.method, status: status, created: now}
	})
	requests.count++

	sizes := find(&h.sizes, func(s *httpSizes) bool { return s.handler == x.handler },
		func() *httpSizes { return &httpSizes{handler: x.handler, created: now} })
	sizes.count++
	sizes.requestBytes += float64(x.requestBytes)
	sizes.sentBytes += float64(x.sentBytes)

	latency := find(&h.latencies, func(l *httpLatency) bool { return l.handler == x.handler && l.method == x.method },
		func() *httpLatency {
			return &httpLatency{handler: x.handler, method: x.method, seconds: newHistogram(httpLatencyBounds), created: now}
		})
	latency.seconds.observe(x.seconds)
	h.all.observe(x.seconds)
}

// find returns the element that matches, or appends a new one. The lists have
// an element for each route, so that looking through them is cheap.
func find[T any](list *[]*T, match func(*T) bool, make func() *T) *T {
	for _, e := range *list {
		if match(e) {
			return e
		}
	}
	e := make()
	*list = append(*list, e)
	return e
}
