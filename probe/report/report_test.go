package report

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"headroom_exporter/capacity/curve"
)

var update = flag.Bool("update", false, "write the golden files")

// equalToFile holds a text equal to a file, or writes the file with -update.
func equalToFile(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n"))
		t.Errorf("%s is not what the code gives (-file +code); go test ./probe/report -update writes it:\n%s", path, diff)
	}
}

// example is the curve that the curve package ships for tests, read anew.
func example(t *testing.T) *curve.Curve {
	t.Helper()
	c, err := curve.ReadFile("../../capacity/curve/testdata/example.json")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// brief is the example with one class under one arrival shape, a class without
// a study, and the mix.
func brief(t *testing.T) *curve.Curve {
	t.Helper()
	c := example(t)
	c.Classes[0].Studies, c.Classes[1].Studies = c.Classes[0].Studies[:1], nil
	return c
}

func htmlOf(t *testing.T, c *curve.Curve) string {
	t.Helper()
	var b strings.Builder
	if err := HTML(&b, c); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func markdownOf(t *testing.T, c *curve.Curve) string {
	t.Helper()
	var b strings.Builder
	if err := Markdown(&b, c); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestExample(t *testing.T) {
	c := example(t)
	equalToFile(t, "testdata/example.md", markdownOf(t, c))
	equalToFile(t, "testdata/example.txt", Verdict(c)+"\n")
	c = brief(t)
	c.Mixes = nil
	equalToFile(t, "testdata/example.html", htmlOf(t, c))
}
