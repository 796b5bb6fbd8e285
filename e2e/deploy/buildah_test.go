package deploy

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// buildah runs buildah with a store of its own and nothing but chroot for
// isolation, which works inside a container too.
type buildah struct {
	t   *testing.T
	dir string
}

func newBuildah(t *testing.T) *buildah {
	t.Helper()
	if _, err := exec.LookPath("buildah"); err != nil {
		missing(t, "buildah is not installed; make test installs it as root on Debian")
	}
	if os.Getuid() != 0 {
		missing(t, "building an image by chroot needs root")
	}
	return &buildah{t: t, dir: t.TempDir()}
}

// command returns a run of buildah that has not started. It gets a mount
// namespace of its own: what it mounts ends with it, so that removing the
// test's folder removes nothing that was mounted there.
func (b *buildah) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(b.t.Context(), "buildah", append([]string{
		"--root", filepath.Join(b.dir, "root"), "--runroot", filepath.Join(b.dir, "runroot"), "--storage-driver", "vfs",
	}, args...)...)
	// Cache mounts are kept under TMPDIR.
	cmd.Env = append(os.Environ(), "BUILDAH_ISOLATION=chroot", "TMPDIR="+b.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Unshareflags: syscall.CLONE_NEWNS}
	// The group, because the program in the container is a grandchild.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	return cmd
}

// run returns what buildah printed, without the white space around it.
func (b *buildah) run(args ...string) string {
	b.t.Helper()
	output, err := b.command(args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			b.t.Fatalf("buildah %s: %v\n%s\n%s", strings.Join(args, " "), err, output, exit.Stderr)
		}
		b.t.Fatalf("buildah %s: %v", strings.Join(args, " "), err)
	}
	return string(bytes.TrimSpace(output))
}

// tag makes an image of a folder and gives it the name, with options of
// `buildah config`.
func (b *buildah) tag(name, folder string, config ...string) {
	b.t.Helper()
	container := b.run("from", "scratch")
	b.run("copy", "--quiet", container, folder, "/")
	if len(config) > 0 {
		b.run(append(append([]string{"config"}, config...), container)...)
	}
	b.run("commit", "--quiet", "--rm", container, name)
}

// folder returns an empty folder with the subfolders and symbolic links given;
// a link is written as name=target.
func folder(t *testing.T, entries ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, entry := range entries {
		name, target, isLink := strings.Cut(entry, "=")
		path := filepath.Join(dir, name)
		if !isLink {
			target = path
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if isLink {
			err = os.Symlink(target, path)
		} else {
			err = os.MkdirAll(path, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// copyFile copies what a path leads to, symbolic links followed.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	source, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(target, source); err != nil {
		t.Fatal(err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
}
