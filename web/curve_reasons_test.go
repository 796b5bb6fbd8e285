package web

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

	"headroom_exporter/sidecar"
)

// reasonsOfCode are the reason codes that the curve can have, read off the
// constants named Reason... of the packages that give them.
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
				if !ok || len(spec.Values) != 1 || !strings.HasPrefix(strings.ToLower(spec.Names[0].Name), "reason") {
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
		if strings.HasSuffix(code, "_") {
			continue // The field or the state that follows is put into words.
		}
		if _, ok := curveReasonWords[code]; !ok {
			t.Errorf("%s is not put into words", code)
		}
	}
	if !slices.Contains(codes, sidecar.ReasonNoCurve) {
		t.Errorf("the codes found are %q", codes)
	}
}
