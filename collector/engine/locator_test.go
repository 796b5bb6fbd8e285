package engine

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const trtllmIdle = "trtllm_num_requests_running{model_name=\"m\"} 0\ntrtllm_num_requests_waiting{model_name=\"m\"} 0\n"

// asks polls n times and returns how often either page was asked for.
func (e *fakeEngine) asks(t *testing.T, p *Poller, n int) (o Observation, queue, prometheus int) {
	t.Helper()
	queue, prometheus = e.count("/metrics"), e.count("/prometheus/metrics")
	for range n {
		o = e.poll(t, p)
	}
	return o, e.count("/metrics") - queue, e.count("/prometheus/metrics") - prometheus
}

// TestQueueIsLeftAlone: an engine of unknown type whose /metrics is a queue keeps what is in it.
func TestQueueIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		e.metrics = func(http.ResponseWriter, *http.Request) { t.Error("the queue was read") }
		p := e.poller(t, nil)
		// Before its first request the page holds nothing of the engine.
		e.paths["/prometheus/metrics"] = serve(classic, "python_info 1\n")
		o, _, _ := e.asks(t, p, 3)
		wantState(t, o, StateDisabled, "no_engine_families")
		// Old builds count requests, and say nothing of the load.
		e.paths["/prometheus/metrics"] = serve(classic, capture(t, "trtllm-serve-noprefix-partial.prom"))
		o, _, _ = e.asks(t, p, 3)
		wantState(t, o, StateStale, "metrics_incomplete")
		e.paths["/prometheus/metrics"] = serve(classic, trtllmIdle)
		o, _, prometheus := e.asks(t, p, 3)
		wantState(t, o, StateIdle, "")
		if o.Type != TypeTRTLLM || prometheus != 3 {
			t.Errorf("type %q, asked %d times", o.Type, prometheus)
		}
		e.refused = true
		p.client.close()
		e.asks(t, p, 3)
		e.refused = false
		o, _, _ = e.asks(t, p, 3)
		wantState(t, o, StateIdle, "")
	})
}

// TestPageIsLookedForOnce: everybody else is asked for the page of trtllm-serve once, and again after having been gone.
func TestPageIsLookedForOnce(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"404": nil, "HTML": serve("text/html", "<html></html>"), "403": status(403), "500": status(500), "hangs": hang,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newFakeEngine(t)
				e.metrics = serve(classic, vllmPage(0, busy("0", 0, 0, 1)))
				if answer != nil {
					e.paths["/prometheus/metrics"] = answer
				}
				p := e.poller(t, nil)
				o, queue, prometheus := e.asks(t, p, 20)
				wantState(t, o, StateIdle, "")
				if lost := 20 - queue; prometheus != 1 || lost != 0 && !(name == "hangs" && lost == 1) {
					t.Errorf("asked %d and %d times", queue, prometheus)
				}
				e.refused = true
				p.client.close()
				e.asks(t, p, 5)
				e.refused = false
				if o, _, prometheus = e.asks(t, p, 10); prometheus != 1 || o.State != StateIdle {
					t.Errorf("after the restart: %s, asked %d times", o.State, prometheus)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // neither with a type nor with a page
		e := newFakeEngine(t)
		e.metrics = serve(classic, vllmPage(0, busy("0", 0, 0, 1)))
		for _, change := range []func(*Config){
			func(c *Config) { c.Type = TypeVLLM }, func(c *Config) { c.URL += "/metrics" },
		} {
			if _, _, n := e.asks(t, e.poller(t, change), 3); n != 0 {
				t.Errorf("asked %d times", n)
			}
		}
	})
}

// TestQueueThatWasRead: one answer in JSON is enough, and it does not end there for ever.
func TestQueueThatWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		e.metrics = serve("application/json", `[{"iter":1}]`)
		p := e.poller(t, nil)
		o, queue, _ := e.asks(t, p, 10)
		wantState(t, o, StateStale, "not_metrics")
		if !strings.Contains(o.Err.Error(), "/prometheus/metrics") {
			t.Errorf("error is %v", o.Err)
		}
		if queue != 1 {
			t.Errorf("the queue was read %d times", queue)
		}
		// Its own page is switched on: it is found at the next poll.
		e.paths["/prometheus/metrics"] = serve(classic, trtllmIdle)
		o, queue, _ = e.asks(t, p, 1)
		wantState(t, o, StateIdle, "")
		if queue != 0 {
			t.Errorf("the queue was read %d times", queue)
		}
		// Another engine behind the same address: found at once, for its page is no longer there.
		delete(e.paths, "/prometheus/metrics")
		e.metrics = serve(classic, vllmPage(0, busy("0", 0, 0, 1)))
		o, _, _ = e.asks(t, p, 2)
		wantState(t, o, StateIdle, "")
		if o.Type != TypeVLLM {
			t.Errorf("type is %q", o.Type)
		}
	})
	synctest.Test(t, func(t *testing.T) { // what looked like a queue is asked again after minutes
		e := newFakeEngine(t)
		e.metrics = serve("application/json", `[]`)
		p := e.poller(t, nil)
		e.asks(t, p, 2)
		e.metrics = serve(classic, vllmPage(0, busy("0", 0, 0, 1)))
		begin := time.Now()
		for e.poll(t, p).State != StateIdle {
			if time.Since(begin) > 10*time.Minute {
				t.Fatal("never found")
			}
		}
		if found := time.Since(begin); found < 4*time.Minute {
			t.Errorf("asked again after %v", found)
		}
	})
}

// TestLoadingPage: who is not ready says so on every page, and is found when it is.
func TestLoadingPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		e.metrics, e.health = status(503), status(503)
		e.paths["/prometheus/metrics"] = status(503)
		p := e.poller(t, nil)
		o, _, _ := e.asks(t, p, 5)
		wantState(t, o, StateLoading, "http_503")
		e.metrics, e.health = serve("application/json", "[]"), status(200)
		e.paths["/prometheus/metrics"] = serve(classic, trtllmIdle)
		o, queue, _ := e.asks(t, p, 3)
		wantState(t, o, StateIdle, "")
		if queue != 0 {
			t.Error("the queue was read " + fmt.Sprint(queue) + " times")
		}
	})
}

// TestOneJSONAnswerDoesNotBlind: an engine that is known to give metrics on
// /metrics is asked there again right after something else answered once.
func TestOneJSONAnswerDoesNotBlind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, nil)
		e.steady(1, 0)
		wantState(t, e.poll(t, p), StateOK, "")
		good := e.metrics
		e.metrics = serve("application/json", `{"error":"try again"}`)
		wantState(t, e.poll(t, p), StateStale, "not_metrics")
		e.metrics = good
		e.poll(t, p)
		if o := e.poll(t, p); o.State != StateOK || !o.Fresh {
			t.Errorf("two polls later the state is %s %q", o.State, o.Reason)
		}
	})
}
