package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// contains tells whether a text holds all parts.
func contains(text string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}

// balancer sends requests to the replicas of a pool that answer, each to the
// one with the fewest outstanding.
type balancer struct {
	client   *http.Client
	model    string
	replicas []*balanced
	sent     sync.WaitGroup
}

type balanced struct {
	url         string
	outstanding atomic.Int64
	// away until a time in Unix nanoseconds, after it did not answer.
	away atomic.Int64
}

// run sends Poisson arrivals at a rate per second until the context ends.
func (b *balancer) run(ctx context.Context, rate float64) {
	rng := rand.New(rand.NewPCG(7, 7))
	next := time.Now()
	for {
		next = next.Add(time.Duration(rng.ExpFloat64() / rate * 1e9))
		select {
		case <-ctx.Done():
			b.sent.Wait()
			return
		case <-time.After(time.Until(next)):
		}
		b.sent.Go(func() { b.send(ctx) })
	}
}

func (b *balancer) send(ctx context.Context) {
	var best *balanced
	for _, r := range b.replicas {
		if r.away.Load() < time.Now().UnixNano() && (best == nil || r.outstanding.Load() < best.outstanding.Load()) {
			best = r
		}
	}
	if best == nil {
		return
	}
	best.outstanding.Add(1)
	defer best.outstanding.Add(-1)
	body := fmt.Sprintf(`{"model":%q,"prompt":"a question","max_tokens":200,"ignore_eos":true}`, b.model)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, best.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := b.client.Do(request)
	if err != nil {
		best.away.Store(time.Now().Add(2 * time.Second).UnixNano())
		return
	}
	io.Copy(io.Discard, response.Body)
	response.Body.Close()
}

// Three replicas that could not lose one are a ticket. When one of them is
// killed the others get its traffic: that pages, until it is back.
func oneOfThreeKilled(t *testing.T, s *alertStack) {
	// Few sequence slots, so that few requests fill them. An engine with 16 at
	// work gives about 11 answers of 200 tokens per second.
	args := []string{"--max-num-seqs=16"}
	began := time.Now()
	b := &balancer{client: &http.Client{Timeout: time.Minute}}
	var engines []*simulator
	for i, zone := range []string{"a", "b", "c"} {
		e := simulate(t, append(args, fmt.Sprintf("--seed=%d", i+1))...)
		c := s.serve(t, e.url)
		s.scrape("three", fmt.Sprintf("three-%d", i), zone, e.url, c.url)
		engines = append(engines, e)
		b.replicas = append(b.replicas, &balanced{url: e.url})
	}
	b.model = modelName(t, engines[0].url)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		b.run(ctx, 30)
	}()
	defer func() { cancel(); <-stopped }()

	s.wait(t, "tickets", "three", "firing", "HeadroomReplicaLossUncovered")
	if pages := s.unexplained(t, "three", began); len(pages) > 0 {
		s.wrong(t, "somebody was woken before a replica was lost: %v", pages)
	}
	s.serving(t, "three", 3)
	killed := time.Now()
	engines[1].kill()
	down := s.wait(t, "pager", "three", "firing", "HeadroomEngineDown")
	if pod := down.Labels["pod"]; pod != "three-1" {
		t.Errorf("the page is on pod %q", pod)
	}
	low := s.wait(t, "pager", "three", "firing", "HeadroomLow")
	t.Logf("HeadroomEngineDown arrived %.0f s after the kill, HeadroomLow %.0f s", down.arrived.Sub(killed).Seconds()*compression, low.arrived.Sub(killed).Seconds()*compression)
	back := time.Now()
	simulateAt(t, strings.TrimPrefix(engines[1].url, "http://"), args...)
	s.serving(t, "three", 3)
	s.resolved(t, "three")
	t.Logf("all was resolved %.0f s after it was started again", time.Since(back).Seconds()*compression)
}
