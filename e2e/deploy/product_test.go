package deploy

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// root is the top of the repository.
const root = "../.."

// product is the program, built as `make build` builds it.
var product string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "headroom-deploy-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "folder for the binary:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	product = filepath.Join(dir, "headroom_exporter")
	if output, err := makeBuild(product); err != nil {
		fmt.Fprintf(os.Stderr, "building the product: %v\n%s", err, output)
		return 1
	}
	return m.Run()
}

// makeBuild runs `make build` into the file named, with more environment
// variables as KEY=VALUE, and returns what make printed.
func makeBuild(binary string, env ...string) ([]byte, error) {
	cmd := exec.Command("make", "-C", root, "--no-print-directory", "build", "BINARY="+binary)
	cmd.Env = append(os.Environ(), env...)
	return cmd.CombinedOutput()
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

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return content
}
