package sidecar_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/sidecar"
)

// reasonsOfCode are the reason codes that the curve can have, read off the
// constants named Reason... and Stale... of the packages that give them.
func reasonsOfCode(t *testing.T) []string {
	t.Helper()
	codes := []string{}
	for _, dir := range []string{"../capacity", "../capacity/curve", "../sidecar"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no Go files: %v", dir, err)
		}
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				spec, ok := n.(*ast.ValueSpec)
				if !ok || len(spec.Values) != 1 {
					return true
				}
				if name := strings.ToLower(spec.Names[0].Name); !strings.HasPrefix(name, "reason") && !strings.HasPrefix(name, "stale") {
					return true
				}
				if value, ok := spec.Values[0].(*ast.BasicLit); ok && value.Kind == token.STRING {
					code, err := strconv.Unquote(value.Value)
					if err != nil {
						t.Fatal(err)
					}
					codes = append(codes, code)
				}
				return true
			})
		}
	}
	slices.Sort(codes)
	return codes
}

// docs/headroom.md lists every reason code of the curve and no other, and each has words.
func TestCurveReasonsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/headroom.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## When the curve counts")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string]bool{}
	for _, line := range strings.Split(section, "\n") {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, code := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cells[1], -1) {
				documented[code[1]] = true
			}
		}
	}
	codes := reasonsOfCode(t)
	if got := slices.Sorted(maps.Keys(documented)); !slices.Equal(got, codes) {
		t.Errorf("docs/headroom.md has the reasons\n%q, the code has\n%q", got, codes)
	}
	for _, code := range codes {
		// What follows a prefix is put into words by itself.
		if words := sidecar.DescribeReasons([]string{code}, nil)[0]; !strings.HasSuffix(code, "_") && strings.HasSuffix(words, " differs") {
			t.Errorf("%s is not put into words: %q", code, words)
		}
	}
	if !slices.Contains(codes, sidecar.ReasonNoCurve) || !slices.Contains(codes, sidecar.StaleDrift) {
		t.Errorf("the codes found are %q", codes)
	}
}

// Words for people, the most important first, and what stands aside after all else.
func TestReasonsInWords(t *testing.T) {
	check := &curve.Check{
		Hard: []curve.Difference{{Field: "max_num_seqs", Stored: "256", Live: "128", Hard: true}},
		Soft: []curve.Difference{{Field: "engine_version", Stored: "0.31.0", Live: "0.32.0"}},
	}
	for _, test := range []struct{ codes, want []string }{
		{nil, []string{}},
		{[]string{"identity_max_num_seqs"}, []string{"max_num_seqs was 256, is 128"}},
		{[]string{"engine_version"}, []string{"engine_version was 0.31.0, is 0.32.0"}},
		{[]string{"identity_gpu_name"}, []string{"gpu name differs"}},
		{[]string{"few_completions"}, []string{"fewer than 50 requests were seen to end in the last 15 minutes"}},
		{
			[]string{string(curve.ReasonLastMix), string(capacity.ReasonFewCompletions), string(capacity.ReasonCoverageLow), "identity_max_num_seqs", "engine_down", sidecar.ReasonFuture},
			[]string{
				"the engine is down", "it says that it was measured later than now: the clock here, or the one there, is wrong", "max_num_seqs was 256, is 128",
				"its classes explain less than 90 % of the traffic", "fewer than 50 requests were seen to end in the last 15 minutes",
				"no mix of now is seen; the last one stands in",
			},
		},
		{[]string{sidecar.StaleAge, "engine_version", sidecar.StaleDrift}, []string{
			"latencies have been far from what it says for half an hour", "it is older than 30 days", "engine_version was 0.31.0, is 0.32.0",
		}},
	} {
		if got := sidecar.DescribeReasons(test.codes, check); !slices.Equal(got, test.want) {
			t.Errorf("%q: %q, want %q", test.codes, got, test.want)
		}
	}
}
