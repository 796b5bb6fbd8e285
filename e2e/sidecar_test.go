package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// startLimit is how long a program of ours may take until it answers; far
// more than it needs, for a machine that is busy with other tests.
const startLimit = 30 * time.Second

// simulator is a running simulated engine.
type simulator struct {
	*process
	url string
}

// simulate starts an engine and waits until it answers.
func simulate(t *testing.T, args ...string) *simulator {
	t.Helper()
	return simulateAt(t, freeAddress(t), args...)
}

func simulateAt(t *testing.T, address string, args ...string) *simulator {
	t.Helper()
	s := &simulator{url: "http://" + address}
	s.process = start(t, nil, append([]string{"simulate", "--web.listen-address=" + address}, args...)...)
	s.answers("/metrics", s.url)
	return s
}

// sidecar is a running headroom_exporter serve.
type sidecar struct {
	*process
	url string
}

// serve starts the sidecar on an engine, without GPUs, and waits for its
// first snapshot.
func serve(t *testing.T, engineURL string, args ...string) *sidecar {
	t.Helper()
	address := freeAddress(t)
	s := &sidecar{url: "http://" + address}
	s.process = start(t, nil, append([]string{"serve", "--web.listen-address=" + address, "--engine.url=" + engineURL}, args...)...)
	s.answers("/-/ready", s.url)
	return s
}

// answers waits until a page of the process answers 200.
func (p *process) answers(path, url string) {
	p.t.Helper()
	eventually(p.t, startLimit, url+path+" answers", func() error {
		if !p.running() {
			p.t.Fatalf("process ended with status %d: %s", p.cmd.ProcessState.ExitCode(), p.stderr.tail(2000))
		}
		_, err := get(url + path)
		return err
	})
}

// waitFor waits until what the sidecar says passes the check, and returns it.
func (s *sidecar) waitFor(limit time.Duration, what string, check func(*headroom) error) *headroom {
	s.t.Helper()
	var last *headroom
	eventually(s.t, limit, what, func() error {
		h, err := getHeadroom(s.url)
		if err != nil {
			return err
		}
		last = h
		return check(h)
	})
	return last
}

// waitForState waits until the engine as a whole is in one of the states.
func (s *sidecar) waitForState(limit time.Duration, states ...string) *headroom {
	s.t.Helper()
	return s.waitFor(limit, "engine state "+strings.Join(states, " or "), func(h *headroom) error {
		if !slices.Contains(states, h.Engine.State) {
			return fmt.Errorf("state is %s (%s)", h.Engine.State, h.Engine.Reason)
		}
		return nil
	})
}

// knowsHeadroom is a check that every replica's headroom is known.
func knowsHeadroom(h *headroom) error {
	if len(h.Replicas) == 0 {
		return fmt.Errorf("no replica")
	}
	for _, r := range h.Replicas {
		if !known(r.State) || r.HeadroomRatio == nil {
			return fmt.Errorf("replica %q: state %s, headroom %v, reasons %q", r.Engine, r.State, value(r.HeadroomRatio), r.Reasons)
		}
	}
	return nil
}

// polls is how many polls of the engine have ended.
func (s *sidecar) polls() float64 {
	s.t.Helper()
	n, err := getPolls(s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func getPolls(url string) (float64, error) {
	m, err := getMetrics(url)
	if err != nil {
		return 0, err
	}
	n, absent := m.sum("headroom_exporter_engine_polls_total")
	if absent {
		return 0, fmt.Errorf("headroom_exporter_engine_polls_total is absent")
	}
	return n, nil
}

// mustRecover is called the moment the engine is well again: headroom must be
// known within two polls that began after that.
func (s *sidecar) mustRecover() *headroom {
	s.t.Helper()
	before := s.polls()
	// after is the newest count of polls after which headroom was still unknown.
	after := before
	var recovered *headroom
	eventually(s.t, startLimit, "recovery", func() error {
		// Counted before the look at the state: a poll that ends in between
		// must not be held against the sidecar.
		n, err := getPolls(s.url)
		if err != nil {
			return err
		}
		h, err := getHeadroom(s.url)
		if err != nil {
			return err
		}
		if err := knowsHeadroom(h); err != nil {
			after = n
			return err
		}
		recovered = h
		return nil
	})
	// One poll may have been under way when the engine became well.
	if polls := after - before - 1; polls >= 2 {
		s.t.Errorf("headroom still unknown %v whole polls after the engine was well again, want known after 2", polls)
	}
	return recovered
}
