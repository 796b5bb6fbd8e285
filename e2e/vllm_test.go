package e2e

import (
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// vllmReport turns the tests against a real vLLM on; make e2e-vllm sets it.
var vllmReport = flag.String("vllm.report", "", "run the scenarios against a real vLLM and write what the product said as a Markdown table to this file")

// vllmLimit is how long a vLLM may take until it is ready, and how long it
// may take to come into a situation; a CPU build on a busy machine is slow.
const (
	vllmStartLimit = 8 * time.Minute
	vllmLimit      = 3 * time.Minute
)

// TestVLLM drives a real vLLM through what happens to a replica, three times:
// with 8 sequence slots, with a KV cache that is too small for them, and with
// two data-parallel ranks.
func TestVLLM(t *testing.T) {
	if *vllmReport == "" {
		t.Skip("scenarios against a real vLLM are run by make e2e-vllm")
	}
	if os.Getenv("E2E_VLLM_DIR") == "" || os.Getenv("E2E_VLLM_SERVE") == "" {
		t.Skip("no real vLLM to test against: set E2E_VLLM_DIR and E2E_VLLM_SERVE, see CONTRIBUTING.md")
	}
	report := &report{}
	// Written whatever happens: what was said before a failure explains it.
	defer report.write(t, *vllmReport)

	t.Run("8 sequences", func(t *testing.T) { eightSequences(t, report) })
	t.Run("66 blocks", func(t *testing.T) { smallCache(t, report) })
	t.Run("2 ranks", func(t *testing.T) { twoRanks(t, report) })
}

// vllm is a running vLLM.
type vllm struct {
	*process
	url, model string
}

// vllmPaced is for a machine whose speed changes.
var vllmPaced = flag.Bool("vllm.paced", false, "with -vllm.knee and -vllm.headroom: let a step of vLLM take as long as on a GPU, so that the machine need not be quiet")

// startSearchedVLLM starts a vLLM whose knees are searched, with at most so many
// slots, three times as many where its steps are paced (see testdata/vllm), and waits
// until it is ready. It returns how many it has.
func startSearchedVLLM(t *testing.T, address string, slots int) (v *vllm, max string) {
	t.Helper()
	var env, flags []string
	if *vllmPaced {
		folder, err := filepath.Abs(filepath.Join("testdata", "vllm"))
		if err != nil {
			t.Fatal(err)
		}
		env = []string{"PYTHONPATH=" + folder, "PYTHONDONTWRITEBYTECODE=1"}
		flags = []string{"--worker-cls", "paced_worker.PacedWorker"}
		slots *= 3
	}
	max = strconv.Itoa(slots)
	v = launchVLLM(t, env, address, append(flags, "--max-num-seqs", max, "--no-enable-prefix-caching")...)
	v.waitReady(t)
	return v, max
}

// startVLLM starts a vLLM on an address without waiting for it.
func startVLLM(t *testing.T, address string, flags ...string) *vllm {
	t.Helper()
	return launchVLLM(t, nil, address, flags...)
}

func launchVLLM(t *testing.T, env []string, address string, flags ...string) *vllm {
	t.Helper()
	v := &vllm{url: "http://" + address, model: "tiny"}
	if m := os.Getenv("E2E_VLLM_MODEL"); m != "" {
		v.model = m
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	serve := strings.Fields(os.Getenv("E2E_VLLM_SERVE"))
	args := append(serve[1:], os.Getenv("E2E_VLLM_DIR"), v.model, port)
	v.process = startProgram(t, env, serve[0], append(args, flags...)...)
	return v
}

func (v *vllm) waitReady(t *testing.T) {
	t.Helper()
	eventually(t, vllmStartLimit, "vLLM is ready", func() error {
		if !v.running() {
			t.Fatalf("vLLM ended: %s", v.stderr.tail(3000))
		}
		_, err := get(v.url + "/health")
		return err
	})
}

func eightSequences(t *testing.T, report *report) {
	address := freeAddress(t)
	flags := []string{"--max-num-seqs", "8"}
	s := serve(t, "http://"+address)
	record := report.recorder("`--max-num-seqs 8`")

	h := s.waitForState(startLimit, "down")
	record("not started", h)
	v := startVLLM(t, address, flags...)
	v.waitReady(t)
	s.mustRecover()
	h = s.waitFor(vllmLimit, "idle, with the engine's version", func(h *headroom) error {
		if h.Engine.State != "idle" || h.Replicas[0].EngineVersion == "" {
			return fmt.Errorf("state is %s, version %q", h.Engine.State, h.Replicas[0].EngineVersion)
		}
		return nil
	})
	record("idle", h)
	r := onlyReplica(t, h)
	if r.EngineType != "vllm" || r.ModelName != v.model {
		t.Errorf("it is a %q with model %q, want a vllm with model %q", r.EngineType, r.ModelName, v.model)
	}
	wantSlots(t, r, 8)
	wantHeadroom(t, r, 0.99, 1)

	// The same answers that the simulator is held against.
	if diff := cmp.Diff(vllmAnswers(t, v.model, 2048), askOpenAI(t, v.url, v.model, 2048)); diff != "" {
		t.Errorf("this vLLM answers the openai client differently than the recorded one (-recorded +this):\n%s", diff)
	}

	half := send(t, v.url, v.model, 4, 64, 1900)
	h = s.waitFor(vllmLimit, "4 running", running(4, 0))
	record("loaded: 4 requests", h)
	r = onlyReplica(t, h)
	wantRatio(t, "sequence slots", r.LoadRatio["sequence_slots"], 0.5, 0.5)
	wantZone(t, r, "stable")
	// Rates need some seconds of it.
	s.waitFor(vllmLimit, "a generation rate", func(h *headroom) error {
		if rate := h.Replicas[0].Rates["generation_tokens_per_second"]; rate == nil || *rate <= 0 {
			return fmt.Errorf("generation rate is %v", value(rate))
		}
		return nil
	})

	rest := send(t, v.url, v.model, 12, 64, 1900)
	h = s.waitFor(vllmLimit, "8 running, 8 waiting", running(8, 8))
	record("queued: 16 requests", h)
	r = onlyReplica(t, h)
	wantRatio(t, "sequence slots", r.LoadRatio["sequence_slots"], 1, 1)
	wantHeadroom(t, r, -1000, 0)
	if r.BindingConstraint == nil || !slices.Contains([]string{"sequence_slots", "queue"}, *r.BindingConstraint) {
		t.Errorf("binding is %v, want sequence_slots or queue", value(r.BindingConstraint))
	}
	// The first eight take longer than the queue may, so the queue overflows.
	h = s.waitFor(vllmLimit, "a queue that is too long", func(h *headroom) error {
		r := h.Replicas[0]
		if value(r.Zone) != "unstable" || value(r.BindingConstraint) != "queue" {
			return fmt.Errorf("zone is %v, binding %v, load ratios %s", value(r.Zone), value(r.BindingConstraint), loads(r.LoadRatio))
		}
		return nil
	})
	record("queued for longer than the TTFT promise allows", h)

	half.leave()
	rest.leave()
	h = s.waitFor(vllmLimit, "idle after the clients left", func(h *headroom) error {
		if h.Engine.State != "idle" {
			return fmt.Errorf("state is %s", h.Engine.State)
		}
		return running(0, 0)(h)
	})
	record("clients gone", h)
	wantRatio(t, "sequence slots", onlyReplica(t, h).LoadRatio["sequence_slots"], 0, 0)

	v.kill()
	h = s.waitForState(startLimit, "down")
	record("engine killed", h)
	if err := publishesNoHeadroom(s.url); err != nil {
		t.Errorf("with a dead engine: %v", err)
	}
	v = startVLLM(t, address, flags...)
	v.waitReady(t)
	s.mustRecover()
	h = s.waitForState(vllmLimit, "idle")
	record("engine back", h)
	r = onlyReplica(t, h)
	wantSlots(t, r, 8)
	wantHeadroom(t, r, 0.99, 1)
	if n, absent := mustMetrics(t, s.url).sum("headroom_exporter_engine_resets_total"); absent || n < 1 {
		t.Errorf("%v counter resets are counted after a restart, want at least 1", n)
	}
	v.kill()
}

func smallCache(t *testing.T, report *report) {
	address := freeAddress(t)
	record := report.recorder("`--max-num-seqs 8 --num-gpu-blocks-override 66`")
	v := startVLLM(t, address, "--max-num-seqs", "8", "--num-gpu-blocks-override", "66")
	v.waitReady(t)
	s := serve(t, v.url)
	h := s.waitForState(vllmLimit, "idle")
	record("idle", h)
	r := onlyReplica(t, h)
	// 66 blocks of 32 tokens, as the engine itself says.
	if total := r.Occupancy.TokenSlots.Total; total == nil || *total < 65*32 || *total > 66*32 {
		t.Errorf("token slots are %v from %v, want 66 blocks of 32", value(total), value(r.Occupancy.TokenSlots.Source))
	}

	load := send(t, v.url, v.model, 12, 64, 600)
	h = s.waitFor(vllmLimit, "preemptions", func(h *headroom) error {
		r := h.Replicas[0]
		if rate := r.Rates["preemptions_per_second"]; rate == nil || *rate <= 0 {
			return fmt.Errorf("preemption rate is %v, token slots %v, running %v", value(rate), value(r.Occupancy.TokenSlots.Ratio), value(r.Requests.Running))
		}
		if len(r.LoadRatio) == 0 || r.LoadRatio["token_slots"] == nil {
			return fmt.Errorf("the token slots' load ratio is not known")
		}
		return nil
	})
	record("preempting: 12 requests", h)
	r = onlyReplica(t, h)
	wantHeadroom(t, r, -1000, 0.2)
	if n := r.Requests.Waiting; n == nil || *n < 1 {
		t.Errorf("waiting is %v, want preempted and new requests in the queue", value(n))
	}
	load.wait(t)
	h = s.waitForState(vllmLimit, "idle")
	record("preempted, all done", h)
	v.kill()
}

func twoRanks(t *testing.T, report *report) {
	address := freeAddress(t)
	record := report.recorder("`--max-num-seqs 4 --data-parallel-size 2`")
	v := startVLLM(t, address, "--max-num-seqs", "4", "--data-parallel-size", "2")
	v.waitReady(t)
	s := serve(t, v.url)
	ranks := func(h *headroom) error {
		if err := knowsHeadroom(h); err != nil {
			return err
		}
		if len(h.Replicas) != 2 || h.Replicas[0].Engine != "0" || h.Replicas[1].Engine != "1" {
			return fmt.Errorf("%d replicas", len(h.Replicas))
		}
		return nil
	}
	// No request has been served yet: such a page carries no gauges.
	h := s.waitFor(vllmLimit, "two idle ranks", func(h *headroom) error {
		if h.Engine.State != "idle" {
			return fmt.Errorf("state is %s (%s)", h.Engine.State, h.Engine.Reason)
		}
		return ranks(h)
	})
	record("idle, no request yet", h)
	for _, r := range h.Replicas {
		wantSlots(t, r, 4)
		wantHeadroom(t, r, 0.99, 1)
	}

	load := send(t, v.url, v.model, 16, 64, 1900)
	h = s.waitFor(vllmLimit, "both ranks full with a queue", func(h *headroom) error {
		if err := ranks(h); err != nil {
			return err
		}
		for _, r := range h.Replicas {
			if value(r.Requests.Running) != 4.0 || r.Requests.Waiting == nil || *r.Requests.Waiting < 1 {
				return fmt.Errorf("rank %s: running %v, waiting %v", r.Engine, value(r.Requests.Running), value(r.Requests.Waiting))
			}
		}
		return nil
	})
	record("queued: 16 requests", h)
	for _, r := range h.Replicas {
		wantRatio(t, "sequence slots of rank "+r.Engine, r.LoadRatio["sequence_slots"], 1, 1)
		wantHeadroom(t, r, -1000, 0)
	}
	m := mustMetrics(t, s.url)
	worst, absent := m.sum("headroom_worst_rank_ratio", "model_name", v.model)
	if absent || worst > 0 {
		t.Errorf("headroom_worst_rank_ratio is %v (absent: %v), want at most 0", worst, absent)
	}
	load.leave()
	h = s.waitForState(vllmLimit, "idle")
	record("clients gone", h)
	v.kill()
	h = s.waitForState(startLimit, "down")
	record("engine killed", h)
	if err := publishesNoHeadroom(s.url); err != nil {
		t.Errorf("with a dead engine: %v", err)
	}
}

func mustMetrics(t *testing.T, url string) exposition {
	t.Helper()
	m, err := getMetrics(url)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func onlyReplica(t *testing.T, h *headroom) replica {
	t.Helper()
	if len(h.Replicas) != 1 {
		t.Fatalf("there are %d replicas, want 1", len(h.Replicas))
	}
	return h.Replicas[0]
}

// running is a check for exact numbers of requests in the only replica.
func running(running, waiting float64) func(*headroom) error {
	return func(h *headroom) error {
		if len(h.Replicas) == 0 {
			return fmt.Errorf("no replica")
		}
		r := h.Replicas[0].Requests
		if value(r.Running) != running || value(r.Waiting) != waiting {
			return fmt.Errorf("%v running, %v waiting", value(r.Running), value(r.Waiting))
		}
		return knowsHeadroom(h)
	}
}

func wantSlots(t *testing.T, r replica, want float64) {
	t.Helper()
	if slots := r.Occupancy.SequenceSlots; value(slots.Total) != want {
		t.Errorf("rank %s has %v sequence slots from %v, want %v", r.Engine, value(slots.Total), value(slots.Source), want)
	}
}

func wantRatio(t *testing.T, what string, got *float64, low, high float64) {
	t.Helper()
	if got == nil || *got < low || *got > high {
		t.Errorf("%s: load ratio is %v, want %v to %v", what, value(got), low, high)
	}
}

func wantHeadroom(t *testing.T, r replica, low, high float64) {
	t.Helper()
	if r.HeadroomRatio == nil || *r.HeadroomRatio < low || *r.HeadroomRatio > high {
		t.Errorf("rank %s: headroom ratio is %v, want %v to %v", r.Engine, value(r.HeadroomRatio), low, high)
	}
}

func wantZone(t *testing.T, r replica, want string) {
	t.Helper()
	if value(r.Zone) != want {
		t.Errorf("rank %s: zone is %v, want %s", r.Engine, value(r.Zone), want)
	}
}

// report collects what the product said, one row for each rank and situation.
type report struct{ rows []string }

// recorder returns what records the situations of one engine.
func (p *report) recorder(flags string) func(situation string, h *headroom) {
	return func(situation string, h *headroom) {
		for _, r := range h.Replicas {
			state := h.Engine.State
			if h.Engine.Reason != "" {
				state += " (" + h.Engine.Reason + ")"
			}
			p.rows = append(p.rows, fmt.Sprintf("| %s | %s | %s | %s | %s / %s | %s | %s | %s | %s | %s | %s |",
				flags, situation, r.Engine, state,
				number(r.Requests.Running), number(r.Requests.Waiting),
				slots(r.Occupancy.SequenceSlots), slots(r.Occupancy.TokenSlots),
				loads(r.LoadRatio), optionalText(r.BindingConstraint), optionalText(r.Zone), number(r.HeadroomRatio)))
		}
	}
}

func (p *report) write(t *testing.T, path string) {
	text := "| engine's flags | situation | rank | state | running / waiting | sequence slots | token slots | load ratios | binding | zone | headroom |\n" +
		"|---|---|---|---|---|---|---|---|---|---|---|\n" + strings.Join(p.rows, "\n") + "\n"
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Errorf("folder of the report: %v", err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Errorf("writing the report: %v", err)
	}
}

func number(p *float64) string {
	if p == nil {
		return "–"
	}
	return fmt.Sprintf("%.4g", *p)
}

func optionalText(p *string) string {
	if p == nil {
		return "–"
	}
	return *p
}

func slots(o occupancy) string {
	if o.Total == nil && o.Used == nil {
		return "–"
	}
	return fmt.Sprintf("%s of %s (%s)", number(o.Used), number(o.Total), optionalText(o.Source))
}

func loads(ratios map[string]*float64) string {
	var known []string
	for constraint, ratio := range ratios {
		if ratio != nil {
			known = append(known, constraint+" "+number(ratio))
		}
	}
	if len(known) == 0 {
		return "–"
	}
	slices.Sort(known)
	return strings.Join(known, ", ")
}
