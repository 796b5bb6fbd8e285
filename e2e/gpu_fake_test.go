package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// fakeGPUs is a libnvidia-ml of our own, and the script that says what it answers.
type fakeGPUs struct {
	t               *testing.T
	library, script string
}

// newFakeGPUs builds the fake library without the functions named in omit. Its
// script is a healthy H100 and the lines given, which win over what is before them.
func newFakeGPUs(t *testing.T, omit []string, lines ...string) *fakeGPUs {
	t.Helper()
	for _, program := range []string{"make", "cc"} {
		if _, err := exec.LookPath(program); err != nil {
			missing(t, "the fake libnvidia-ml cannot be built: "+err.Error())
		}
	}
	source := filepath.Join("..", "collector", "gpu", "fakenvml")
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "make", "-s", "-C", source, "OUT="+dir, "OMIT="+strings.Join(omit, " "))
	// The flags of a make that runs this test are not the fake's.
	build.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the fake libnvidia-ml: %v\n%s", err, text)
	}
	healthy, err := os.ReadFile(filepath.Join(source, "h100.txt"))
	if err != nil {
		t.Fatal(err)
	}
	g := &fakeGPUs{t, filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join(dir, "script")}
	g.write(string(healthy))
	g.say(lines...)
	return g
}

// say appends lines to the script; they win over those before them.
func (g *fakeGPUs) say(lines ...string) {
	g.t.Helper()
	before, err := os.ReadFile(g.script)
	if err != nil {
		g.t.Fatal(err)
	}
	g.write(string(before) + strings.Join(lines, "\n") + "\n")
}

// write replaces the script at once, so that no call sees half of it.
func (g *fakeGPUs) write(text string) {
	g.t.Helper()
	if err := os.WriteFile(g.script+".new", []byte(text), 0o600); err != nil {
		g.t.Fatal(err)
	}
	if err := os.Rename(g.script+".new", g.script); err != nil {
		g.t.Fatal(err)
	}
}

// serve starts the sidecar on an engine and these GPUs.
func (g *fakeGPUs) serve(engineURL string, args ...string) *sidecar {
	g.t.Helper()
	return serveWith(g.t, []string{"FAKENVML_SCRIPT=" + g.script}, engineURL, append([]string{"--gpu.nvml=" + g.library}, args...)...)
}

// serveWith starts the sidecar with environment variables.
func serveWith(t *testing.T, env []string, engineURL string, args ...string) *sidecar {
	t.Helper()
	address := freeAddress(t)
	s := &sidecar{url: "http://" + address}
	s.process = start(t, env, append([]string{"serve", "--web.listen-address=" + address, "--engine.url=" + engineURL}, args...)...)
	s.answers("/-/ready", s.url)
	return s
}

// samples is a metrics page: value by series as written.
type samples map[string]float64

func getSamples(url string) (samples, error) {
	body, err := get(url + "/metrics")
	if err != nil {
		return nil, err
	}
	all := samples{}
	for line := range strings.Lines(string(body)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if at < 0 {
			return nil, fmt.Errorf("not a sample: %q", line)
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("not a sample: %q: %w", line, err)
		}
		all[line[:at]] = v
	}
	return all, nil
}

// check returns how the page differs from the values wanted and from having
// no series of the families named.
func (s samples) check(want samples, absent ...string) error {
	var wrong []string
	for series, value := range want {
		if got, ok := s[series]; !ok {
			wrong = append(wrong, series+" is absent")
		} else if got != value {
			wrong = append(wrong, fmt.Sprintf("%s is %v, want %v", series, got, value))
		}
	}
	for series := range s {
		if name, _, _ := strings.Cut(series, "{"); slices.Contains(absent, name) {
			wrong = append(wrong, series+" is there")
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return fmt.Errorf("%s", strings.Join(wrong, "; "))
	}
	return nil
}

// waitForSamples waits until the metrics page has the values and none of the
// families that must be absent.
func (s *sidecar) waitForSamples(what string, want samples, absent ...string) {
	s.t.Helper()
	eventually(s.t, 2*startLimit, what, func() error {
		if !s.running() {
			s.t.Fatalf("%s: the process ended with status %d: %s", what, s.cmd.ProcessState.ExitCode(), s.stderr.tail(2000))
		}
		page, err := getSamples(s.url)
		if err != nil {
			return err
		}
		return page.check(want, absent...)
	})
}

// gpuSays is the part of /api/v1/headroom that is about GPUs.
type gpuSays struct {
	GPUs []struct {
		UUID           string   `json:"uuid"`
		PowerWatts     *float64 `json:"power_watts"`
		Lost           *string  `json:"lost"`
		ThrottledBy    []string `json:"throttled_by"`
		RecoveryAction *string  `json:"recovery_action"`
	} `json:"gpus"`
	GPUError *string `json:"gpu_error"`
	Replicas []struct {
		Bandwidth *struct {
			Ratio  float64 `json:"ratio"`
			Source string  `json:"source"`
		} `json:"bandwidth_saturation"`
	} `json:"replicas"`
}
