package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerui"
	"github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"
)

// bases answers for base images without a registry: a Linux with a PATH.
type bases struct{}

func (bases) ResolveImageConfig(_ context.Context, ref string, _ sourceresolver.Opt) (string, digest.Digest, []byte, error) {
	config, err := json.Marshal(ocispecs.Image{
		Platform: ocispecs.Platform{OS: "linux", Architecture: "amd64"},
		Config:   ocispecs.ImageConfig{Env: []string{"PATH=/usr/bin:/bin"}},
	})
	return ref, digest.FromBytes(config), config, err
}

// convert lets BuildKit make its build graph of a Dockerfile, and returns the
// image's configuration and what its linter has to say.
func convert(t *testing.T, dockerfile []byte, args map[string]string) (ocispecs.ImageConfig, []string) {
	t.Helper()
	var warnings []string
	result, err := dockerfile2llb.Dockerfile2LLB(t.Context(), dockerfile, dockerfile2llb.ConvertOpt{
		Config:         dockerui.Config{BuildArgs: args, LinterConfig: &linter.Config{ExperimentalAll: true}},
		TargetPlatform: &ocispecs.Platform{OS: "linux", Architecture: "amd64"},
		MetaResolver:   bases{},
		Warn: func(rule, _, _, message string, _ []parser.Range) {
			warnings = append(warnings, rule+": "+message)
		},
	})
	if err != nil {
		t.Fatalf("BuildKit refuses the Dockerfile: %v", err)
	}
	return result.Image.Config.ImageConfig, warnings
}

func TestImageConfig(t *testing.T) {
	config, warnings := convert(t, read(t, "Dockerfile"), map[string]string{
		"VERSION": "1.2.3", "REVISION": "abc", "DATE": "2026-11-29T00:00:00Z",
	})
	if len(warnings) > 0 {
		t.Errorf("BuildKit's linter: %s", strings.Join(warnings, "; "))
	}
	want := ocispecs.ImageConfig{
		User:         "65532:65532",
		ExposedPorts: map[string]struct{}{"9845/tcp": {}},
		Env: []string{
			"PATH=/usr/bin:/bin",
			"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility",
		},
		Entrypoint: []string{"/usr/bin/headroom_exporter"},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "headroom_exporter",
			"org.opencontainers.image.description": "How much more load an LLM inference replica can take: a Prometheus exporter and sidecar",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     "1.2.3",
			"org.opencontainers.image.revision":    "abc",
			"org.opencontainers.image.created":     "2026-11-29T00:00:00Z",
		},
	}
	if diff := cmp.Diff(want, config); diff != "" {
		t.Errorf("image configuration (-want +got):\n%s", diff)
	}
}

// The linter would see faults of the kinds that a Dockerfile gets over time.
func TestLinterSees(t *testing.T) {
	for _, test := range []struct{ name, from, to, want string }{
		{"a relative folder", "WORKDIR /src", "WORKDIR src", "WorkdirRelativePath"},
		{"a shell entrypoint", `ENTRYPOINT ["/usr/bin/headroom_exporter"]`, "ENTRYPOINT /usr/bin/headroom_exporter", "JSONArgsRecommended"},
		{"an undeclared argument", `version="$VERSION"`, `version="$VERSOIN"`, "UndefinedVar"},
	} {
		t.Run(test.name, func(t *testing.T) {
			good := read(t, "Dockerfile")
			bad := bytes.ReplaceAll(good, []byte(test.from), []byte(test.to))
			if bytes.Equal(good, bad) {
				t.Fatalf("%q is not in the Dockerfile", test.from)
			}
			_, warnings := convert(t, bad, nil)
			if !slices.ContainsFunc(warnings, func(w string) bool { return strings.HasPrefix(w, test.want+":") }) {
				t.Errorf("no %s in %q", test.want, warnings)
			}
		})
	}
}

// stages returns the stages of the Dockerfile.
func stages(t *testing.T) []instructions.Stage {
	t.Helper()
	result, err := parser.Parse(bytes.NewReader(read(t, "Dockerfile")))
	if err != nil {
		t.Fatal(err)
	}
	stages, _, err := instructions.Parse(result.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(stages) != 2 {
		t.Fatalf("%d stages, want a build and a run stage", len(stages))
	}
	return stages
}

func TestBases(t *testing.T) {
	stages := stages(t)
	build := regexp.MustCompile(`^golang:([0-9.]+)-([a-z]+)$`).FindStringSubmatch(stages[0].BaseName)
	run := regexp.MustCompile(`/base-nossl-debian([0-9]+):nonroot$`).FindStringSubmatch(stages[1].BaseName)
	if build == nil || run == nil {
		t.Fatalf("bases %q and %q: want golang:VERSION-RELEASE and a distroless base of glibc", stages[0].BaseName, stages[1].BaseName)
	}
	if module := string(read(t, "go.mod")); !strings.Contains(module, "\ngo "+build[1]+"\n") {
		t.Errorf("the build stage has Go %s, go.mod names another", build[1])
	}
	releases := map[string]string{"12": "bookworm", "13": "trixie", "14": "forky"}
	if releases[run[1]] != build[2] {
		t.Errorf("built on Debian %s, run on Debian %s: the run stage's glibc may be older", build[2], run[1])
	}
}

func TestBuildStage(t *testing.T) {
	var cgo bool
	var commands []string
	for _, command := range stages(t)[0].Commands {
		switch command := command.(type) {
		case *instructions.EnvCommand:
			for _, pair := range command.Env {
				cgo = cgo || pair.Key == "CGO_ENABLED" && pair.Value == "1"
			}
		case *instructions.RunCommand:
			commands = append(commands, strings.Join(command.CmdLine, " "))
		}
	}
	if !cgo {
		t.Error("CGO_ENABLED=1 is not set: without a C compiler the build would drop NVML silently")
	}
	// One command, and that the Makefile's: its flags are tested in binary_test.go.
	if len(commands) != 1 || !regexp.MustCompile(`^(GOCACHE=\S+ )?make build [^;&|]*$`).MatchString(commands[0]) {
		t.Errorf("the build stage runs %q, want make build alone", commands)
	}
	for _, command := range stages(t)[1].Commands {
		if run, ok := command.(*instructions.RunCommand); ok {
			t.Errorf("the run stage has no shell, but runs %q", run.CmdLine)
		}
	}
}
