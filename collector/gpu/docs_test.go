package gpu

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every reason for which GPUs are not read, and every way in which they are
// chosen, is explained.
func TestDocumentation(t *testing.T) {
	doc, err := os.ReadFile("../../docs/gpu.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("status.go")
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`(?m)^\t\w+\s+Reason = "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if len(reasons) < 15 {
		t.Fatalf("%d reasons were found in the source", len(reasons))
	}
	for _, m := range reasons {
		if !strings.Contains(string(doc), "\n| `"+m[1]+"` |") {
			t.Errorf("reason %s is not explained", m[1])
		}
	}
	for _, how := range []string{selectedByFlag, selectedOnly, selectedByProcess, selectedByDeviceFile, selectedAmbiguous} {
		if !strings.Contains(string(doc), ". `"+how+"`: ") {
			t.Errorf("selection by %s is not explained", how)
		}
	}
}
