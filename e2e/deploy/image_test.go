package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	imageName = "localhost/headroom_exporter:test"
	// Where the stand-in of the build base has this machine's Go tree and caches.
	goTree, moduleCache, buildCache = "/gotree", "/modules", "/builds"
)

// The Dockerfile is built for real, on stand-ins for its base images that hold
// this machine's Go tree, C compiler and glibc, because the test has no
// registry; the result is then run.
func TestImage(t *testing.T) {
	b := newBuildah(t)
	stages := stages(t)
	volumes := tagBuildBase(b, stages[0].BaseName)
	tagRunBase(b, stages[1].BaseName)

	build := []string{"build", "--pull-never", "--layers=false", "--file", filepath.Join(root, "Dockerfile"), "--tag", imageName,
		"--build-arg", "VERSION=1.2.3", "--build-arg", "REVISION=0123abc", "--build-arg", "BRANCH=release", "--build-arg", "DATE=2026-11-29T00:00:00Z"}
	for _, volume := range volumes {
		build = append(build, "--volume", volume)
	}
	b.run(append(build, root)...)
	config := imageConfig(b)
	container := b.run("from", "--pull-never", imageName)
	files := b.run("mount", container)
	exporter := config.Entrypoint[0]

	t.Run("says what it is", func(t *testing.T) {
		output := b.run("run", container, "--", exporter, "--version")
		for _, want := range []string{"version 1.2.3", "branch: release", "revision: 0123abc", "2026-11-29T00:00:00Z"} {
			if !strings.Contains(output, want) {
				t.Errorf("--version does not say %q:\n%s", want, output)
			}
		}
		for label, want := range map[string]string{"version": "1.2.3", "revision": "0123abc", "created": "2026-11-29T00:00:00Z"} {
			if got := config.Labels["org.opencontainers.image."+label]; got != want {
				t.Errorf("label %s is %q, want %q", label, got, want)
			}
		}
	})
	t.Run("binds lazily", func(t *testing.T) { checkLazy(t, filepath.Join(files, exporter)) })
	t.Run("holds nothing of the build", func(t *testing.T) {
		for _, path := range []string{"src", "go", "root/.cache", "bin", "usr/bin/make"} {
			if _, err := os.Lstat(filepath.Join(files, path)); err == nil {
				t.Errorf("/%s is in the image", path)
			}
		}
	})
	t.Run("serves as a user who may write nowhere", func(t *testing.T) {
		checkReadOnly(t, files)
		served := serveImage(t, b, container, exporter)
		served.wait("/-/ready", "")
		served.wait("/metrics", `headroom_gpu_nvml_up{reason="library_not_found"} 0`)
		if user := processUser(exporter + "\x00--web.listen-address=" + served.address); user != "65532" {
			t.Errorf("runs as user %q, want 65532", user)
		}
		served.stop()
	})
	t.Run("reads a GPU whose library the node brings", func(t *testing.T) {
		b.run("copy", "--quiet", container, fakeNVML(t), libraryFolder(t, files))
		b.run("copy", "--quiet", container, filepath.Join(root, "collector/gpu/fakenvml/h100.txt"), "/h100.txt")
		served := serveImage(t, b, container, exporter, "--env", "FAKENVML_SCRIPT=/h100.txt")
		served.wait("/metrics", `headroom_gpu_nvml_up{reason="ok"} 1`)
		// memory_used of h100.txt.
		served.wait("/metrics", `headroom_gpu_memory_used_bytes{uuid="GPU-5b2c8f5e-6f0d-4a3c-9a51-0c3f7d2e1a10"} 7.2510078976e+10`)
		served.stop()
	})
}

// tagBuildBase makes the stand-in of the build stage's base and returns the
// folders of this machine that have to be mounted into it.
func tagBuildBase(b *buildah, name string) []string {
	env := goEnv(b.t, "GOROOT", "GOMODCACHE", "GOCACHE")
	// A merged /usr, as on every Debian since 12.
	merged := []string{"bin=usr/bin", "sbin=usr/sbin", "lib=usr/lib", "lib64=usr/lib64", "usr", "tmp", "etc", goTree, moduleCache, buildCache}
	b.tag(name, folder(b.t, merged...),
		"--env", "PATH="+goTree+"/bin:/usr/bin:/bin", "--env", "GOTOOLCHAIN=local", "--env", "GOPROXY=off",
		"--env", "GOMODCACHE="+moduleCache, "--env", "GOCACHE="+buildCache)
	return []string{
		"/usr:/usr:ro", env["GOROOT"] + ":" + goTree + ":ro",
		env["GOMODCACHE"] + ":" + moduleCache + ":ro", env["GOCACHE"] + ":" + buildCache,
	}
}

// tagRunBase makes the stand-in of the run stage's base: glibc alone.
func tagRunBase(b *buildah, name string) {
	output, err := exec.Command("ldd", product).CombinedOutput()
	if err != nil {
		b.t.Fatalf("ldd: %v\n%s", err, output)
	}
	dir := folder(b.t, "tmp")
	libraries := 0
	for line := range strings.Lines(string(output)) {
		for _, field := range strings.Fields(line) {
			if strings.HasPrefix(field, "/") {
				copyFile(b.t, field, filepath.Join(dir, field))
				libraries++
			}
		}
	}
	if libraries == 0 {
		b.t.Fatalf("no library in what ldd says:\n%s", output)
	}
	b.tag(name, dir, "--user", "65532")
}

func goEnv(t *testing.T, names ...string) map[string]string {
	t.Helper()
	output, err := exec.Command("go", append([]string{"env", "-json"}, names...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	if err := json.Unmarshal(output, &env); err != nil {
		t.Fatal(err)
	}
	return env
}

func imageConfig(b *buildah) ocispecs.ImageConfig {
	var image struct{ OCIv1 ocispecs.Image }
	if err := json.Unmarshal([]byte(b.run("inspect", "--type", "image", imageName)), &image); err != nil {
		b.t.Fatal(err)
	}
	return image.OCIv1.Config
}
