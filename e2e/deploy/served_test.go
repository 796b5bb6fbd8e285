package deploy

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// served is the image's program while it serves, with no engine to read.
type served struct {
	t       *testing.T
	cmd     *exec.Cmd
	address string
	logs    *bytes.Buffer
	stopped bool
}

// serveImage starts the program in a container, with more options of
// `buildah run`.
func serveImage(t *testing.T, b *buildah, container, exporter string, options ...string) *served {
	t.Helper()
	s := &served{t: t, address: freeAddress(t), logs: &bytes.Buffer{}}
	args := append(append([]string{"run"}, options...), container, "--",
		exporter, "--web.listen-address="+s.address, "--engine.url=http://127.0.0.1:1")
	s.cmd = b.command(args...)
	s.cmd.Stdout, s.cmd.Stderr = s.logs, s.logs
	s.cmd.WaitDelay = 5 * time.Second
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	return s
}

// wait asks for the path until the answer is 200 and holds the text, for at
// most 20 seconds.
func (s *served) wait(path, text string) {
	s.t.Helper()
	var last error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if last = s.get(path, text); last == nil {
			return
		}
	}
	s.end()
	s.t.Fatalf("%v\n%s", last, s.logs)
}

func (s *served) get(path, text string) error {
	response, err := (&http.Client{Timeout: 5 * time.Second}).Get("http://" + s.address + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 10<<20))
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK || !strings.Contains(string(body), text) {
		return fmt.Errorf("%s answers %s without %q:\n%s", path, response.Status, text, body)
	}
	return nil
}

// stop ends the program as Kubernetes would and fails if it still listens.
func (s *served) stop() {
	s.t.Helper()
	s.end()
	if conn, err := net.Dial("tcp", s.address); err == nil {
		conn.Close()
		s.t.Error("still listens after SIGTERM")
	}
}

func (s *served) end() {
	if s.stopped {
		return
	}
	s.stopped = true
	if err := s.cmd.Cancel(); err != nil {
		s.t.Errorf("SIGTERM: %v", err)
	}
	// Its status is buildah's, and says nothing of the program's.
	s.cmd.Wait()
}

// checkReadOnly fails when a file may be written by everybody. Isolation by
// chroot cannot make the root file system read-only; that no mode lets the
// user write comes to the same.
func checkReadOnly(t *testing.T, files string) {
	t.Helper()
	err := filepath.WalkDir(files, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Type()&os.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o002 != 0 {
			t.Errorf("%s may be written by everybody", strings.TrimPrefix(path, files))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// fakeNVML builds the GPU collector's fake of NVIDIA's library.
func fakeNVML(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	output, err := exec.Command("make", "-C", filepath.Join(root, "collector/gpu/fakenvml"), "OUT="+folder).CombinedOutput()
	if err != nil {
		t.Fatalf("building the fake of NVML: %v\n%s", err, output)
	}
	return filepath.Join(folder, "libnvidia-ml.so.1")
}

// libraryFolder returns where the image has its C library, as a path in it,
// with a slash at its end: the NVIDIA container toolkit puts NVML there too.
func libraryFolder(t *testing.T, files string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(files, "lib/*/libc.so.6"))
	if err != nil || len(found) != 1 {
		t.Fatalf("C libraries %q: %v", found, err)
	}
	return strings.TrimPrefix(filepath.Dir(found[0]), files) + "/"
}

// processUser returns the user id of the process whose command line begins as
// given, empty when there is none.
func processUser(commandLine string) string {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(content, []byte(commandLine)) {
			continue
		}
		status, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
		for line := range strings.Lines(string(status)) {
			if fields := strings.Fields(line); fields[0] == "Uid:" {
				return fields[2] // the effective one
			}
		}
	}
	return ""
}

// freeAddress returns a loopback address that nothing listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
