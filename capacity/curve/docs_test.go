package curve

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocumentation holds the table of docs/curve.md equal to the one in force.
func TestDocumentation(t *testing.T) {
	raw, err := os.ReadFile("../../docs/curve.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "<!-- identity: checked by go test ./capacity/curve -->\n")
	got, _, ok := strings.Cut(rest, "<!-- end -->\n")
	if !ok {
		t.Fatal("docs/curve.md has no table of the identity")
	}
	want := "| field | when it differs | compared |\n| --- | --- | --- |\n"
	for _, f := range Fields() {
		severity, compared := "soft", "exactly"
		if f.Hard {
			severity = "hard"
		}
		switch {
		case f.Tolerance > 0:
			compared = fmt.Sprintf("within %g %%", 100*f.Tolerance)
		case f.Parts == 1:
			compared = "to the major version"
		case f.Parts == 2:
			compared = "to the minor version"
		}
		want += fmt.Sprintf("| `%s` | %s | %s |\n", f.Name, severity, compared)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/curve.md is out of date (-want +got):\n%s", diff)
	}
}
