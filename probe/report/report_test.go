package report

import (
	"flag"
	"math"
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

// A gate that only notes fails no point, and says in words what it saw.
func TestNotedGates(t *testing.T) {
	c := brief(t)
	c.Mixes = nil
	no, unknown := false, curve.Value(math.NaN())
	p := &c.Classes[0].Studies[0].Points[0]
	gate := func(name string, kind curve.GateKind, detail string) curve.Gate {
		return curve.Gate{Name: name, Kind: kind, Passed: &no, Value: 0.0289, Limit: 0.0469, Low: unknown, High: unknown, Detail: detail}
	}
	p.Gates = []curve.Gate{gate("queue_growth", curve.GateRisk, "a Mann-Kendall S of 40 (chance up to 32)"), gate("success", curve.GateFail, "5 of 10 requests failed")}
	text := markdownOf(t, c)
	failed, noted, ok := strings.Cut(text, "### Noted, without failing a point\n")
	if !ok || !strings.Contains(noted, "queue growth (a Mann-Kendall S of 40 (chance up to 32))") || strings.Contains(failed, "queue growth (a Mann") || !strings.Contains(failed, "success (5 of 10 requests failed)") {
		t.Errorf("Markdown:\n%s", text)
	}
	if strings.Contains(noted, "success (") {
		t.Errorf("a failed gate is among the noted:\n%s", text)
	}
	if page := htmlOf(t, c); !strings.Contains(page, `<span class="word risk">noted</span>`) || !strings.Contains(page, `<span class="word unstable">failed</span></td><td class="left">fail</td>`) {
		t.Error("the page does not tell noted from failed")
	}
	var b strings.Builder
	if err := Terminal(&b, c, 100); err != nil {
		t.Fatal(err)
	}
	if want := "noted, failing no point: queue growth at " + rate(p.OfferedRate); !strings.Contains(b.String(), want) || strings.Contains(b.String(), "no point: success") {
		t.Errorf("no %q in\n%s", want, b.String())
	}
}
