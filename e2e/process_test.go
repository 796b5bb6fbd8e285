package e2e

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is the product, built once for all tests.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "headroom-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "folder for the binary:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "headroom_exporter")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = ".."
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building the product:", err)
		return 1
	}
	return m.Run()
}

// process is one run of a program, killed when its test ends.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout output
	stderr output
	exited chan struct{}
}

// start runs the product with the arguments and, beside the test's own, the
// environment variables given as KEY=VALUE.
func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	return startProgram(t, env, binary, args...)
}

func startProgram(t *testing.T, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program, args...), exited: make(chan struct{})}
	p.cmd.Env = append(cleanEnvironment(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	// A group of its own, so that the children of a program end with it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A grandchild that holds the pipes open must not keep Wait from returning.
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting %s %s: %v", filepath.Base(program), strings.Join(args, " "), err)
	}
	go func() {
		p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s %s\nstdout:\n%s\nstderr:\n%s", filepath.Base(program), strings.Join(args, " "), p.stdout.tail(4000), p.stderr.tail(8000))
		}
	})
	return p
}

// cleanEnvironment is the test's environment without what configures the product.
func cleanEnvironment() []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "HEADROOM_EXPORTER_") {
			env = append(env, entry)
		}
	}
	return env
}

// running tells whether the process has not ended yet.
func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// signal sends a signal to the process and its children.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(-p.cmd.Process.Pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		p.t.Errorf("sending %v to process %d: %v", s, p.cmd.Process.Pid, err)
	}
}

// kill ends the process and its children at once and waits until it has ended.
func (p *process) kill() {
	p.t.Helper()
	if p.running() {
		p.signal(syscall.SIGKILL)
	}
	<-p.exited
}

// status waits for the process to end and returns its exit status; -1 when a
// signal ended it.
func (p *process) status(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		p.t.Fatalf("process still runs after %v", limit)
		return -1
	}
}

// output keeps what a process wrote.
type output struct {
	mutex sync.Mutex
	bytes bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.bytes.Write(b)
}

func (o *output) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.bytes.String()
}

// lines returns the lines that are not empty.
func (o *output) lines() []string {
	return strings.FieldsFunc(o.String(), func(r rune) bool { return r == '\n' })
}

// tail returns at most the last n bytes.
func (o *output) tail(n int) string {
	text := o.String()
	return text[max(0, len(text)-n):]
}

// freeAddress returns a loopback address on which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("looking for a free port: %v", err)
	}
	defer l.Close()
	return l.Addr().String()
}

// eventually calls check until it returns nil, and fails the test with its
// last error when that takes longer than the limit.
func eventually(t *testing.T, limit time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// tool returns the path of a program that tests need: one that was built into
// e2e/bin, else one on the path. Without it the test is skipped, or fails
// where E2E_REQUIRE_TOOLS is set.
func tool(t *testing.T, name string) string {
	t.Helper()
	if path, err := filepath.Abs(filepath.Join("bin", name)); err == nil {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, name+" is not installed; make test installs it as root on Debian")
	}
	return path
}

// missing skips the test for the reason given, or fails it where
// E2E_REQUIRE_TOOLS is set.
func missing(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("E2E_REQUIRE_TOOLS") != "" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}
