package engine

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// steady makes the engine serve a page whose counters move with every poll.
func (e *fakeEngine) steady(running, waiting float64) {
	work := 0.0
	e.metrics = func(w http.ResponseWriter, r *http.Request) {
		work++
		serve(classic, vllmPage(1000, busy("0", running, waiting, work)))(w, r)
	}
}

// kill ends the engine's process: its connections are gone, nobody listens.
func (e *fakeEngine) kill(p *Poller) {
	e.refused = true
	p.client.close()
}

// TestFailures has every way in which a page can fail: state and reason at
// once or after the tolerated polls, the last reading kept but not fresh, no
// second request in flight, and the right state within two polls of the end.
func TestFailures(t *testing.T) {
	page := vllmPage(1000, busy("0", 2, 1, 5))
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte(page))
	_ = z.Close()
	tests := map[string]struct {
		fail      func(e *fakeEngine, p *Poller)
		mend      func(e *fakeEngine)
		transient bool
		state     State
		reason    string
	}{
		"refused": {fail: func(e *fakeEngine, p *Poller) { e.kill(p) }, mend: func(e *fakeEngine) { e.refused = false },
			state: StateDown, reason: "connection_refused"},
		"frozen process": {fail: func(e *fakeEngine, p *Poller) { e.frozen = true; p.client.close() }, mend: func(e *fakeEngine) { e.frozen = false },
			transient: true, state: StateDown, reason: "timeout"},
		"hangs, healthy": {fail: func(e *fakeEngine, _ *Poller) { e.metrics = hang },
			transient: true, state: StateStale, reason: "timeout"},
		"everything hangs": {fail: func(e *fakeEngine, _ *Poller) { e.metrics, e.health = hang, hang },
			mend: func(e *fakeEngine) { e.health = status(200) }, transient: true, state: StateDown, reason: "timeout"},
		"slow drip": {fail: func(e *fakeEngine, _ *Poller) {
			e.metrics = func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", classic)
				for i := range page {
					_, _ = io.WriteString(w, page[i:i+1])
					_ = http.NewResponseController(w).Flush()
					select {
					case <-time.After(10 * time.Millisecond):
					case <-r.Context().Done():
						return
					}
				}
			}
		}, transient: true, state: StateStale, reason: "timeout"},
		"cut off": {fail: func(e *fakeEngine, _ *Poller) { e.metrics = cutOff(page) },
			transient: true, state: StateStale, reason: "truncated"},
		"cut off without a length": {fail: func(e *fakeEngine, _ *Poller) { e.metrics = serve(classic, page[:len(page)-5]) },
			transient: true, state: StateStale, reason: "truncated"},
		"connection reset": {fail: func(e *fakeEngine, _ *Poller) {
			e.metrics = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
		}, transient: true, state: StateStale, reason: "connection_reset"},
		"500":         {fail: func(e *fakeEngine, _ *Poller) { e.metrics = status(500) }, state: StateStale, reason: "http_500"},
		"401":         {fail: func(e *fakeEngine, _ *Poller) { e.metrics = status(401) }, state: StateStale, reason: "unauthorized"},
		"503":         {fail: func(e *fakeEngine, _ *Poller) { e.metrics, e.health = status(503), status(503) }, mend: func(e *fakeEngine) { e.health = status(200) }, state: StateDown, reason: "http_503"},
		"bad gateway": {fail: func(e *fakeEngine, _ *Poller) { e.metrics, e.health = status(502), status(502) }, mend: func(e *fakeEngine) { e.health = status(200) }, state: StateDown, reason: "http_502"},
		"HTML 404": {fail: func(e *fakeEngine, _ *Poller) {
			e.metrics = func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(404)
				_, _ = io.WriteString(w, "<html>no</html>")
			}
		}, state: StateStale, reason: "http_404"},
		"HTML":             {fail: func(e *fakeEngine, _ *Poller) { e.metrics = serve("text/html; charset=utf-8", "<!doctype html>") }, state: StateStale, reason: "not_metrics"},
		"HTML as text":     {fail: func(e *fakeEngine, _ *Poller) { e.metrics = serve("text/plain", " \n<html></html>\n") }, state: StateStale, reason: "not_metrics"},
		"malformed":        {fail: func(e *fakeEngine, _ *Poller) { e.metrics = serve(classic, page+"vllm:x{ 1\n") }, state: StateStale, reason: "malformed"},
		"too large":        {fail: func(e *fakeEngine, _ *Poller) { e.metrics = serve(classic, strings.Repeat(page, 40)) }, state: StateStale, reason: "page_too_large"},
		"too large packed": {fail: func(e *fakeEngine, _ *Poller) { e.metrics = bomb(1 << 20) }, state: StateStale, reason: "page_too_large"},
		"says gzip and is not": {fail: func(e *fakeEngine, _ *Poller) {
			e.metrics = func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Encoding", "gzip")
				serve(classic, page)(w, r)
			}
		}, state: StateStale, reason: "encoding"},
		"unknown encoding": {fail: func(e *fakeEngine, _ *Poller) {
			e.metrics = func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Encoding", "br")
				serve(classic, page)(w, r)
			}
		}, state: StateStale, reason: "encoding"},
		"sent to another host": {fail: func(e *fakeEngine, _ *Poller) {
			e.metrics = http.RedirectHandler("http://192.0.2.1/metrics", http.StatusFound).ServeHTTP
		}, state: StateStale, reason: "http_302"},
		"sent in circles": {fail: func(e *fakeEngine, _ *Poller) {
			e.metrics = http.RedirectHandler("/metrics", http.StatusTemporaryRedirect).ServeHTTP
		}, state: StateStale, reason: "http_307"},
		"empty":       {fail: func(e *fakeEngine, _ *Poller) { e.metrics = serve(classic, "") }, state: StateDisabled, reason: "empty_page"},
		"no families": {fail: func(e *fakeEngine, _ *Poller) { e.metrics = serve(classic, "http_requests_total 5\n") }, state: StateDisabled, reason: "no_engine_families"},
		"frozen gauges and no load": {fail: func(e *fakeEngine, _ *Poller) {
			e.metrics = serve(classic, "vllm:cache_config_info{engine=\"0\",block_size=\"16\"} 1\n")
		},
			state: StateStale, reason: "metrics_incomplete"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newFakeEngine(t)
				p := e.poller(t, func(c *Config) { c.MaxPageBytes = int64(10 * len(page)) })
				e.steady(2, 1)
				wantState(t, e.poll(t, p), StateOK, "")
				good := e.poll(t, p)
				test.fail(e, p)
				if test.transient {
					for range tolerated {
						o := e.poll(t, p)
						wantState(t, o, StateOK, "")
						if o.Fresh || o.Err == nil {
							t.Fatal("a failed poll is not visible")
						}
					}
				}
				for range 12 {
					o := e.poll(t, p)
					wantState(t, o, test.state, test.reason)
					if o.Reading != good.Reading || o.Fresh {
						t.Fatal("the last reading was not kept, or is called fresh")
					}
					if o.Stats.Failures[test.reason] == 0 || len(o.Err.Error()) < 20 {
						t.Fatalf("failures are %v, err %v", o.Stats.Failures, o.Err)
					}
				}
				e.steady(3, 0)
				if test.mend != nil {
					test.mend(e)
				}
				e.poll(t, p)
				o := e.poll(t, p)
				wantState(t, o, StateOK, "")
				if !o.Fresh || o.Reading.Ranks[0].Value(RequestsRunning) != 3 {
					t.Error("no fresh reading within two polls")
				}
			})
		})
	}

	t.Run("packed though not asked for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			e.metrics = func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Encoding", "gzip")
				serve(classic, packed.String())(w, r)
			}
			o := e.poll(t, e.poller(t, nil))
			wantState(t, o, StateOK, "")
			wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{RequestsRunning: 2, EngineSteps: 5})
		})
	})

	t.Run("10 MB page", func(t *testing.T) {
		var b strings.Builder
		b.WriteString(page)
		for i := 0; b.Len() < 10<<20; i++ {
			fmt.Fprintf(&b, "http_request_duration_seconds_bucket{handler=\"/v1/%d\",le=\"0.1\"} %d\n", i, i)
		}
		synctest.Test(t, func(t *testing.T) {
			e := newFakeEngine(t)
			p := e.poller(t, nil)
			e.metrics = serve(classic, b.String())
			o := e.poll(t, p)
			wantState(t, o, StateOK, "")
			wantValues(t, &o.Reading.Ranks[0], false, map[Signal]float64{RequestsRunning: 2})
			e.metrics = serve(classic, page)
			e.poll(t, p)
			e.poll(t, p)
			if n, size := len(p.normaliser.pages.known), p.client.body.Cap(); n > 1000 || size > shrinkAbove {
				t.Errorf("%d series and %d bytes are kept after the large page", n, size)
			}
		})
	})
}

// bomb is a page that gets large when unpacked.
func bomb(size int) http.HandlerFunc {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(bytes.Repeat([]byte("a 1\n"), size/4))
	_ = z.Close()
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		serve(classic, b.String())(w, r)
	}
}

func TestIdleAndOK(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, nil)
		for i, step := range []struct {
			load  load
			state State
		}{
			{busy("0", 0, 0, 4), StateIdle},
			{busy("0", 0, 0, 4), StateIdle},
			{busy("0", 0, 0, 5), StateOK}, // gauges are 0 between two requests
			{busy("0", 0, 0, 5), StateIdle},
			{busy("0", 1, 0, 5), StateOK},
			{busy("0", 0, 2, 5), StateOK},
			{busy("0", 0, 0, 5), StateIdle},
		} {
			e.metrics = serve(classic, vllmPage(1000, step.load))
			if o := e.poll(t, p); o.State != step.state {
				t.Errorf("step %d is %s, want %s", i, o.State, step.state)
			}
		}
		// A request after a long rest is not frozen at once.
		for range 60 {
			wantState(t, e.poll(t, p), StateIdle, "")
		}
		e.metrics = serve(classic, vllmPage(1000, busy("0", 1, 0, 5)))
		wantState(t, e.poll(t, p), StateOK, "")
	})
}

func TestRanksHaveTheirOwnState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, nil)
		show := func(ranks ...load) Observation {
			e.metrics = serve(classic, vllmPage(1000, ranks...))
			return e.poll(t, p)
		}
		asleep := busy("1", 0, 0, 1)
		asleep.awake = 0
		o := show(busy("0", 0, 0, 1), asleep)
		wantState(t, o, StateAsleep, "sleep_mode") // idle and asleep: the worse
		if r := o.Reading.Ranks; r[0].State != StateIdle || r[1].State != StateAsleep {
			t.Errorf("ranks are %s and %s", r[0].State, r[1].State)
		}
		o = show(busy("0", 3, 0, 2), asleep)
		wantState(t, o, StateOK, "")
		for i := range 20 { // rank 0 works on, rank 1 is stuck
			o = show(busy("0", 3, 0, 3+float64(i)), busy("1", 9, 9, 1))
		}
		wantState(t, o, StateOK, "")
		if r := o.Reading.Ranks[1]; r.State != StateStale || r.Reason != "gauges_frozen" {
			t.Errorf("rank 1 is %s %q", r.State, r.Reason)
		}
		// A rank that is gone and comes back goes on counting.
		show(busy("0", 3, 0, 40))
		o = show(busy("0", 3, 0, 41), busy("1", 1, 0, 2), busy("2", 1, 0, 1))
		if len(o.Reading.Ranks) != 3 || o.Reading.Ranks[1].Value(EngineSteps) != 2 {
			t.Errorf("ranks are %+v", o.Reading.Ranks)
		}
	})
}

func TestLoading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, nil)
		e.refused = true
		wantState(t, e.poll(t, p), StateDown, "connection_refused")
		e.refused = false
		e.metrics, e.health = status(503), status(503)
		wantState(t, e.poll(t, p), StateLoading, "http_503")
		e.metrics = hang
		for range tolerated {
			wantState(t, e.poll(t, p), StateLoading, "http_503")
		}
		wantState(t, e.poll(t, p), StateLoading, "timeout")
		e.steady(1, 0)
		e.health = status(200)
		e.poll(t, p)
		wantState(t, e.poll(t, p), StateOK, "")
	})
}

// TestRestartWithoutStartTime follows an engine with several API servers,
// which exports no process start time: after it was gone, a lower counter is a
// restart at once, and a fresh process that does nothing is idle at once.
func TestRestartWithoutStartTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, nil)
		e.metrics = serve(classic, vllmPage(0, busy("0", 2, 0, 50)))
		e.poll(t, p)
		e.kill(p)
		for range 30 {
			wantState(t, e.poll(t, p), StateDown, "connection_refused")
		}
		e.refused = false
		e.metrics = serve(classic, vllmPage(0, load{engine: "0", awake: 1}))
		o := e.poll(t, p)
		wantState(t, o, StateIdle, "")
		if steps := o.Reading.Ranks[0].Value(EngineSteps); steps != 50 || o.Stats.CounterResets != 1 {
			t.Errorf("steps are %v with %d resets, want 50 with 1", steps, o.Stats.CounterResets)
		}
		e.metrics = serve(classic, vllmPage(0, busy("0", 1, 0, 3)))
		o = e.poll(t, p)
		wantState(t, o, StateOK, "")
		if steps := o.Reading.Ranks[0].Value(EngineSteps); steps != 53 {
			t.Errorf("steps are %v, want 53", steps)
		}
	})
}

// TestRestart follows an engine that is killed and comes back as another process.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, nil)
		version := "0.31.0"
		e.paths["/version"] = func(w http.ResponseWriter, r *http.Request) {
			serve("application/json", fmt.Sprintf("{\"version\":%q}", version))(w, r)
		}
		e.metrics = serve(classic, vllmPage(1000, busy("0", 2, 0, 50), busy("1", 2, 0, 70)))
		for range 4 {
			e.poll(t, p)
		}
		e.kill(p)
		wantState(t, e.poll(t, p), StateDown, "connection_refused")
		e.refused, version = false, "0.32.0"
		// The new process has already done more than the old one on rank 0.
		e.metrics = serve(classic, vllmPage(2000, busy("0", 1, 0, 60), busy("1", 1, 0, 3)))
		o := e.poll(t, p)
		wantState(t, o, StateOK, "")
		if a, b := o.Reading.Ranks[0].Value(EngineSteps), o.Reading.Ranks[1].Value(EngineSteps); a != 110 || b != 73 {
			t.Errorf("steps are %v and %v, want 110 and 73", a, b)
		}
		if h := o.Reading.Ranks[1].Histogram(TimeToFirstToken); h.Count != 73 || h.Counts[2] != 73 {
			t.Errorf("first tokens are %+v", h)
		}
		if o.Stats.CounterResets != 2 {
			t.Errorf("%d resets, want one per rank", o.Stats.CounterResets)
		}
		for range 3 {
			o = e.poll(t, p)
		}
		if o.Version != "0.32.0" || o.Stats.CounterResets != 2 {
			t.Errorf("version %q, %d resets", o.Version, o.Stats.CounterResets)
		}
	})
}

func TestCancelledPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if o := p.Poll(ctx); o.State != StateDown || o.Reason != "cancelled" || o.Err == nil {
			t.Errorf("observation is %+v", o)
		}
		e.steady(1, 0)
		wantState(t, e.poll(t, p), StateOK, "")
		if o := p.Poll(ctx); o.State != StateOK || o.Fresh || len(o.Stats.Failures) != 0 {
			t.Errorf("observation is %+v", o)
		}
	})
}

// TestPollCancelledForACause: what ended the caller, here its own port in use,
// must not be read as the engine's fault, however the request words it.
func TestPollCancelledForACause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		ctx, cancel := context.WithCancelCause(t.Context())
		p, err := New(Config{URL: "http://127.0.0.1:8000", ProcPath: t.TempDir(), RoundTripper: roundTrip(func(*http.Request) (*http.Response, error) {
			cancel(errors.New("listen tcp :9845: address already in use"))
			return nil, context.Cause(ctx)
		})}, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if o := p.Poll(ctx); o.Reason != "cancelled" || len(o.Stats.Failures) != 0 {
			t.Errorf("reason %q, failures %v", o.Reason, o.Stats.Failures)
		}
		if log.Len() != 0 {
			t.Errorf("the log blames the engine: %s", log.String())
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestPollIsSingleFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		p := e.poller(t, nil)
		e.metrics = hang
		done := make(chan struct{})
		go func() { defer close(done); p.Poll(t.Context()) }()
		time.Sleep(100 * time.Millisecond)
		if p.mu.TryLock() {
			t.Error("a second poll could start")
		}
		<-done
		if e.count("/metrics") != 1 {
			t.Errorf("asked %v", e.asked)
		}
	})
}
