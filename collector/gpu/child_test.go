//go:build linux && cgo

package gpu

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// childInterval is above the shortest GPM window and below what New accepts:
// these tests run in real time.
const childInterval = 150 * time.Millisecond

// A missing symbol or a crash in the library ends the process, so each fake
// library is loaded by this test binary started anew.
func TestMain(m *testing.M) {
	if library := os.Getenv("GPU_TEST_LIBRARY"); library != "" {
		os.Exit(serveChild(library))
	}
	os.Exit(m.Run())
}

// serveChild runs a collector and answers commands on stdin: "metrics" with
// the exposition and a line that is a dot, "stop" by ending Run.
func serveChild(library string) int {
	ctx, cancel := context.WithCancel(context.Background())
	var devices []string
	if d := os.Getenv("GPU_TEST_DEVICES"); d != "" {
		devices = strings.Split(d, ",")
	}
	c := newCollector(Config{LibraryPath: library, Mode: ModeAuto, Devices: devices, Interval: childInterval, ProcPath: os.Getenv("GPU_TEST_PROC")}, newLibrary(library))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewMetrics(c.Snapshot))
	go func() {
		commands := bufio.NewScanner(os.Stdin)
		for commands.Scan() {
			if commands.Text() == "stop" {
				break
			}
			start := time.Now()
			families, err := registry.Gather()
			if err != nil {
				fmt.Println("gather:", err)
			}
			took := time.Since(start)
			for _, f := range families {
				if _, err := expfmt.MetricFamilyToText(os.Stdout, f); err != nil {
					fmt.Println("text:", err)
				}
			}
			fmt.Printf("gather_seconds %v\n.\n", took.Seconds())
		}
		cancel()
	}()
	err := c.Run(ctx)
	fmt.Printf("run: %v\n", err)
	return 0
}

// nvmlHeader is the folder of go-nvml's nvml.h, which the fake is built with.
var nvmlHeader = sync.OnceValues(func() (string, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	return filepath.Join(strings.TrimSpace(string(dir)), "pkg", "nvml"), err
})

// buildFake builds the fake library without the functions named.
func buildFake(t *testing.T, omit ...string) string {
	t.Helper()
	for _, tool := range []string{"make", "cc", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the fake libnvidia-ml needs %s to be built: %v", tool, err)
		}
	}
	header, err := nvmlHeader()
	if err != nil {
		t.Fatalf("finding nvml.h: %v", err)
	}
	out := t.TempDir()
	build := exec.CommandContext(t.Context(), "make", "-s", "-C", "fakenvml", "OUT="+out, "HEADER="+header, "OMIT="+strings.Join(omit, " "))
	// The flags of a make that runs this test are not the fake's.
	build.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the fake libnvidia-ml: %v\n%s", err, text)
	}
	return filepath.Join(out, "libnvidia-ml.so.1")
}

// script is what a running fake answers.
type script struct {
	t    *testing.T
	path string
}

// newScript starts with a healthy H100 and appends lines, which win.
func newScript(t *testing.T, lines ...string) *script {
	t.Helper()
	healthy, err := os.ReadFile("fakenvml/h100.txt")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t, filepath.Join(t.TempDir(), "script")}
	s.write(string(healthy) + strings.Join(lines, "\n") + "\n")
	return s
}

func (s *script) append(lines ...string) {
	s.t.Helper()
	old, err := os.ReadFile(s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(string(old) + strings.Join(lines, "\n") + "\n")
}

// write replaces the file at once, so that no call sees half of it.
func (s *script) write(text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path+".new", []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(s.path+".new", s.path); err != nil {
		s.t.Fatal(err)
	}
}

// child is a process with a collector on a fake library.
type child struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Scanner
	stderr *bytes.Buffer
}

func startChild(t *testing.T, library string, s *script, env ...string) *child {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	// The race detector's runtime sleeps for a second at the end of a process.
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "GPU_TEST_LIBRARY="+library, "GPU_TEST_PROC="+t.TempDir())
	if s != nil {
		cmd.Env = append(cmd.Env, "FAKENVML_SCRIPT="+s.path)
	}
	cmd.Env = append(cmd.Env, env...)
	c := &child{t: t, cmd: cmd, stderr: &bytes.Buffer{}}
	cmd.Stderr = c.stderr
	var err error
	if c.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.stdout = bufio.NewScanner(out)
	c.stdout.Buffer(nil, 1<<20)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the child's log:\n%s", c.stderr)
		}
	})
	return c
}

// page is an exposition: value by series as written, sorted labels included.
type page map[string]float64

// metrics asks for the page; nil when the process has ended.
func (c *child) metrics() page {
	c.t.Helper()
	if _, err := io.WriteString(c.stdin, "metrics\n"); err != nil {
		return nil
	}
	p := page{}
	for c.stdout.Scan() {
		line := c.stdout.Text()
		if line == "." {
			return p
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		series, value, ok := cutLast(line)
		if !ok {
			c.t.Fatalf("not a sample: %q", line)
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			c.t.Fatalf("not a sample: %q: %v", line, err)
		}
		p[series] = v
	}
	return nil
}

func cutLast(line string) (before, after string, found bool) {
	i := strings.LastIndexByte(line, ' ')
	if i < 0 {
		return line, "", false
	}
	return line[:i], line[i+1:], true
}

// until asks for the page until it has the series at the value.
func (c *child) until(series string, value float64) page {
	c.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var p page
	for time.Now().Before(deadline) {
		p = c.metrics()
		if p == nil {
			c.t.Fatalf("the process ended while waiting for %s %v: %v\n%s", series, value, c.cmd.Wait(), c.stderr)
		}
		if v, ok := p[series]; ok && v == value {
			return p
		}
		<-tick.C
	}
	c.t.Fatalf("no %s %v on the page; it has %v", series, value, p)
	return nil
}

// stop ends the child and gives its last words and exit status.
func (c *child) stop() (words string, err error) {
	c.t.Helper()
	io.WriteString(c.stdin, "stop\n")
	return c.wait()
}

func (c *child) wait() (words string, err error) {
	for c.stdout.Scan() {
		words += c.stdout.Text() + "\n"
	}
	return words, c.cmd.Wait()
}

// end stops a child that must end well.
func (c *child) end() {
	c.t.Helper()
	if words, err := c.stop(); err != nil || words != "run: <nil>\n" {
		c.t.Errorf("ended with %v, saying %q", err, words)
	}
}
