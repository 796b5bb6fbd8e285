package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// runToEnd runs a command that ends by itself and returns its exit status.
func runToEnd(t *testing.T, env []string, args ...string) (*process, int) {
	t.Helper()
	p := start(t, env, args...)
	return p, p.status(startLimit)
}

func TestWrongUsageIsOneLineAndStatus2(t *testing.T) {
	t.Parallel()
	occupied := freeAddress(t)
	simulateAt(t, occupied, "--load=off")
	notYAML := filepath.Join(t.TempDir(), "web.yml")
	if err := os.WriteFile(notYAML, []byte("tls_server_config: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		says string // what the line must name
	}{
		{[]string{"serve", "--no-such-flag"}, "no-such-flag"},
		{[]string{"no-such-command"}, "no-such-command"},
		{[]string{"serve", "--engine.url=ftp://127.0.0.1"}, "ftp"},
		{[]string{"serve", "--engine.url=://"}, "engine"},
		{[]string{"serve", "--engine.type=nothing"}, "engine.type"},
		{[]string{"serve", "--engine.interval=soon"}, "soon"},
		{[]string{"serve", "--engine.interval=-1s"}, "interval"},
		{[]string{"serve", "--engine.max-num-seqs=-1"}, "max-num-seqs"},
		{[]string{"serve", "--engine.tls.ca-file=missing.pem"}, "missing.pem"},
		{[]string{"serve", "--web.config.file=missing.yml"}, "missing.yml"},
		{[]string{"serve", "--web.config.file=" + notYAML}, "web.yml"},
		{[]string{"serve", "--web.telemetry-path=metrics"}, "telemetry"},
		{[]string{"serve", "--once", "--output=xml"}, "output"},
		{[]string{"serve", "--log.level=loud"}, "log.level"},
		{[]string{"serve", "--slo.ttft=-1s"}, "ttft"},
		{[]string{"simulate", "--load=constant:fast"}, "fast"},
		{[]string{"simulate", "--load=sometimes"}, "sometimes"},
		{[]string{"simulate", "--preset=no-such-preset"}, "preset"},
		{[]string{"simulate", "--num-gpu-blocks=-3"}, "-3"},
		{[]string{"simulate", "--speed=0"}, "peed"},
		{[]string{"demo", "--load=trace:azure:missing.csv"}, "missing.csv"},
		{[]string{"demo", "--web.listen-address=nowhere"}, "nowhere"},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			t.Parallel()
			p, status := runToEnd(t, nil, test.args...)
			if status != 2 {
				t.Errorf("exit status is %d, want 2", status)
			}
			lines := p.stderr.lines()
			if len(lines) != 1 || !strings.Contains(lines[0], test.says) {
				t.Errorf("stderr is %q, want one line that names %q", lines, test.says)
			}
			if out := p.stdout.String(); out != "" {
				t.Errorf("stdout is %q, want nothing", out)
			}
		})
	}
}

// A lone - is standard input, a pipe here.
func TestStandardInput(t *testing.T) {
	t.Parallel()
	example, err := os.ReadFile(filepath.Join("..", "capacity", "curve", "testdata", "example.json"))
	if err != nil {
		t.Fatal(err)
	}
	trace, err := os.ReadFile(filepath.Join("..", "probe", "workload", "testdata", "azure_conv.csv"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, test := range []struct {
		in   []byte
		args []string
		says string
	}{
		{example, []string{"curve", "show", "-", "-o", "json"}, string(example)},
		{trace, []string{"profile", "-", "--trace.format=azure", "--out.classes=" + filepath.Join(dir, "c.json"), "--out.report=" + filepath.Join(dir, "r.html")}, "Written: "},
	} {
		command := exec.CommandContext(t.Context(), binary, test.args...)
		command.Stdin = bytes.NewReader(test.in)
		out, err := command.CombinedOutput()
		if err != nil || !strings.Contains(string(out), test.says) {
			t.Errorf("%q: %v: %.500s", test.args, err, out)
		}
	}
}

func TestTakenPortIsSaid(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	simulateAt(t, address, "--load=off")
	for _, command := range []string{"serve", "simulate"} {
		p, status := runToEnd(t, nil, command, "--web.listen-address="+address, "--log.level=error")
		if status != 1 {
			t.Errorf("%s on a taken port: exit status is %d, want 1", command, status)
		}
		if lines := p.stderr.lines(); len(lines) != 1 || !strings.Contains(lines[0], address) {
			t.Errorf("%s on a taken port: stderr is %q, want one line that names %s", command, lines, address)
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{"--help": "simulate", "--version": "headroom_exporter, version"} {
		p, status := runToEnd(t, nil, flag)
		if status != 0 {
			t.Errorf("%s: exit status is %d, want 0", flag, status)
		}
		if out := p.stdout.String() + p.stderr.String(); !strings.Contains(out, want) {
			t.Errorf("%s prints %q, want it to name %q", flag, out, want)
		}
	}
}

func TestOnce(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	nobody := "http://" + freeAddress(t)

	p, status := runToEnd(t, nil, "serve", "--once", "--engine.url="+engine.url)
	if status != 0 {
		t.Errorf("text: exit status is %d, want 0", status)
	}
	if out := p.stdout.String(); !strings.Contains(out, "headroom") || !strings.Contains(out, modelName(t, engine.url)) {
		t.Errorf("text is %q", out)
	}
	if out := p.stderr.String(); out != "" {
		t.Errorf("text: stderr is %q, want nothing", out)
	}

	p, status = runToEnd(t, nil, "--once", "-o", "json", "--engine.url="+engine.url)
	if status != 0 {
		t.Errorf("json: exit status is %d, want 0", status)
	}
	h, err := decodeHeadroom([]byte(p.stdout.String()))
	if err != nil {
		t.Fatal(err)
	}
	if err := knowsHeadroom(h); err != nil {
		t.Error(err)
	}

	for _, format := range []string{"text", "json"} {
		p, status := runToEnd(t, nil, "--once", "-o", format, "--engine.url="+nobody)
		if status != 1 {
			t.Errorf("%s without an engine: exit status is %d, want 1", format, status)
		}
		if out := p.stdout.String(); !strings.Contains(out, "down") {
			t.Errorf("%s without an engine: stdout is %q, want it to say down", format, out)
		}
	}
}

func TestFlagsHaveEnvironmentTwins(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	address := freeAddress(t)
	p := start(t, []string{
		"HEADROOM_EXPORTER_ENGINE_URL=" + engine.url,
		"HEADROOM_EXPORTER_WEB_LISTEN_ADDRESS=" + address,
		"HEADROOM_EXPORTER_ENGINE_INTERVAL=300ms",
		"HEADROOM_EXPORTER_ENGINE_MAX_NUM_SEQS=77",
	})
	p.answers("/-/ready", "http://"+address)
	s := &sidecar{process: p, url: "http://" + address}
	h := s.waitFor(startLimit, "headroom", knowsHeadroom)
	if h.Engine.URL != engine.url {
		t.Errorf("the engine is at %s, want %s", h.Engine.URL, engine.url)
	}
	slots := h.Replicas[0].Occupancy.SequenceSlots
	if slots.Total == nil || *slots.Total != 77 || slots.Source == nil || *slots.Source != "flag" {
		t.Errorf("sequence slots are %v from %v, want 77 from flag", value(slots.Total), value(slots.Source))
	}
}
