package deploy

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dustin/go-humanize"
	core "k8s.io/api/core/v1"
)

// checkFlags fails for arguments that are no flags of `serve`.
func checkFlags(t *testing.T, args []string) {
	t.Helper()
	help, err := exec.Command(product, "help", "serve").Output()
	if err != nil {
		t.Fatalf("help serve: %v", err)
	}
	var known []string
	for _, match := range regexp.MustCompile(`(?m)^\s+(?:-\w, )?--(?:\[no-\])?([a-z.-]+)`).FindAllSubmatch(help, -1) {
		known = append(known, string(match[1]))
	}
	if !slices.Contains(known, "engine.url") {
		t.Fatalf("the flags were not found in\n%s", help)
	}
	for _, arg := range args {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !strings.HasPrefix(arg, "--") || !slices.Contains(known, name) {
			t.Errorf("%q is no flag of serve", arg)
		}
	}
}

// checkTwin fails for a variable that is the environment twin of no flag of `serve`.
func checkTwin(t *testing.T, variable string) {
	t.Helper()
	help, err := exec.Command(product, "help", "serve").Output()
	if err != nil {
		t.Fatalf("help serve: %v", err)
	}
	if !strings.Contains(string(help), "$"+variable+")") {
		t.Errorf("%s is the twin of no flag of serve", variable)
	}
}

// memoryLimit returns GOMEMLIMIT in bytes.
func memoryLimit(t *testing.T, env []core.EnvVar) int64 {
	t.Helper()
	for _, variable := range env {
		if variable.Name == "GOMEMLIMIT" {
			return bytesOf(t, variable.Value)
		}
	}
	t.Fatal("GOMEMLIMIT is not set")
	return 0
}

func bytesOf(t *testing.T, text string) int64 {
	t.Helper()
	size, err := humanize.ParseBytes(text)
	if err != nil {
		t.Fatal(err)
	}
	return int64(size)
}

// What docs/deploy.md names are flags too. Those of other programs in it have
// no dot in their names.
func TestDocumentedFlags(t *testing.T) {
	flags := regexp.MustCompile(`--[a-z]+(?:\.[a-z]+(?:-[a-z]+)*)+`).FindAllString(string(read(t, "docs/deploy.md")), -1)
	if len(flags) == 0 {
		t.Fatal("docs/deploy.md names no flag")
	}
	checkFlags(t, flags)
}
