package alerts

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// tableCodes are the codes in the first column of the first table of a document
// after a text.
func tableCodes(t *testing.T, path, after string) []string {
	t.Helper()
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(doc), after)
	if !ok {
		t.Fatalf("%s has no %q", path, after)
	}
	var codes []string
	inTable := false
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "|") {
			if inTable {
				break
			}
			continue
		}
		inTable = true
		first := strings.Split(line, "|")[1]
		for _, match := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(first, -1) {
			codes = append(codes, match[1])
		}
	}
	if len(codes) < 3 {
		t.Fatalf("%s: only the codes %v after %q", path, codes, after)
	}
	return codes
}

// What the label reason may be stands in the runbook, and nothing else does.
func TestRunbooksHaveTheReasons(t *testing.T) {
	const runbooks, headroom = "../docs/runbooks/", "../docs/headroom.md"
	invalid := runbooks + "HeadroomCurveInvalid.md"
	for name, c := range map[string]struct{ runbook, documented []string }{
		"HeadroomCurveInvalid": {
			append(tableCodes(t, invalid, "## What to do"), tableCodes(t, invalid, "These are silent")...),
			tableCodes(t, headroom, "## When the curve counts"),
		},
		"HeadroomCurveStale": {
			tableCodes(t, runbooks+"HeadroomCurveStale.md", "## What it means"),
			tableCodes(t, headroom, "`headroom_curve_stale_reason{reason}` says why"),
		},
	} {
		for _, code := range c.documented {
			if !slices.Contains(c.runbook, code) {
				t.Errorf("the runbook of %s lacks the reason %s", name, code)
			}
		}
		for _, code := range c.runbook {
			if !slices.Contains(c.documented, code) {
				t.Errorf("the runbook of %s has the reason %s, which docs/headroom.md does not", name, code)
			}
		}
	}
	// Of an engine that is down the runbook has the usual reasons.
	polls := tableCodes(t, "../docs/engines.md", "| `down` |")
	for _, code := range tableCodes(t, runbooks+"HeadroomEngineDown.md", "## How to see it") {
		if code != "http_" && !slices.Contains(polls, code) { // which a status follows
			t.Errorf("the runbook of HeadroomEngineDown has the reason %s, which docs/engines.md does not", code)
		}
	}
}
