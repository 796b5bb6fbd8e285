package engine

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the generated parts of docs/engines.md")

const enginesDoc = "../../docs/engines.md"

// engineNames are the engines as their makers write them, in the order of the documentation.
var engineNames = []struct {
	engine Type
	name   string
}{
	{TypeVLLM, "vLLM"}, {TypeRay, "Ray Serve LLM"}, {TypeSGLang, "SGLang"}, {TypeTRTLLM, "trtllm-serve"},
	{TypeTriton, "Triton"}, {TypeTGI, "TGI"}, {TypeLlamaCpp, "llama.cpp"},
}

// TestDocumentation holds the tables of docs/engines.md equal to the tables that are in force.
func TestDocumentation(t *testing.T) {
	raw, err := os.ReadFile(enginesDoc)
	if err != nil {
		t.Fatal(err)
	}
	if len(engineNames) != len(tables) {
		t.Fatalf("%d engines are documented, %d are read", len(engineNames), len(tables))
	}
	doc := string(raw)
	parts := map[string]string{"engines": engineRows(), "signals": signalRows()}
	for _, e := range engineNames {
		parts["names of "+string(e.engine)] = nameRows(tableOf(tables, e.engine))
	}
	for name, want := range parts {
		begin, end := "<!-- "+name+": written by go generate ./collector/engine -->\n", "<!-- end -->\n"
		before, rest, ok := strings.Cut(doc, begin)
		got, after, okEnd := strings.Cut(rest, end)
		if !ok || !okEnd {
			t.Errorf("%s has no part %q", enginesDoc, name)
			continue
		}
		if *update {
			doc = before + begin + want + end + after
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s is out of date, run go generate ./collector/engine (-want +got):\n%s", name, diff)
		}
	}
	if *update {
		if err := os.WriteFile(enginesDoc, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReasonsAreDocumented: every reason that the code can give is explained.
func TestReasonsAreDocumented(t *testing.T) {
	raw, err := os.ReadFile(enginesDoc)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	written := regexp.MustCompile(`(?:failure\(|Reason(?:, f\.\w+)? = |Reason: |reason\w+ += )"([a-z][a-z0-9_]+)"`)
	found := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range written.FindAllStringSubmatch(string(source), -1) {
			found[m[1]] = true
		}
	}
	for _, certain := range []string{"timeout", "connection_refused", "gauges_frozen", "sleep_mode", "not_metrics", "http_404", "empty_page", "request"} {
		if !found[certain] {
			t.Errorf("reason %s was not found in the source", certain)
		}
	}
	for reason := range found {
		if !strings.Contains(string(raw), "| `"+reason+"`") && !strings.Contains(string(raw), ", `"+reason+"`") {
			t.Errorf("reason %s is not explained in %s", reason, enginesDoc)
		}
	}
	for _, s := range States {
		if !strings.Contains(string(raw), "| `"+string(s)+"` |") {
			t.Errorf("state %s is not explained in %s", s, enginesDoc)
		}
	}
}

func engineRows() string {
	var b strings.Builder
	b.WriteString("| engine | `--engine.type` | known by names that begin with | port | page | limits also from |\n|---|---|---|---|---|---|\n")
	for _, e := range engineNames {
		t := tableOf(tables, e.engine)
		var signs, limits []string
		for _, s := range t.signatures() {
			signs = append(signs, "`"+s+"`")
		}
		if t.bareLabel != "" {
			signs = append(signs, "none, with a label `"+t.bareLabel+"`")
		}
		if path, _, _ := strings.Cut(t.infoPath, "?"); path != "" {
			limits = append(limits, "`"+path+"`")
		}
		if t.commandLine != nil {
			limits = append(limits, "its command line")
		}
		if t.defaults != nil {
			limits = append(limits, "its documented defaults")
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | `%s` | %s |\n", e.name, t.engine, strings.Join(signs, ", "), dash(t.defaultPort), t.metricsPath, dash(strings.Join(limits, ", ")))
	}
	return b.String()
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

func signalRows() string {
	var names []string
	for s := range numSignals {
		names = append(names, s.String())
	}
	for h := range numHistograms {
		names = append(names, h.String())
	}
	var b strings.Builder
	b.WriteString("| signal |")
	for _, e := range engineNames {
		b.WriteString(" " + e.name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat(":-:|", len(engineNames)) + "\n")
	for _, name := range names {
		b.WriteString("| `" + name + "` |")
		for _, e := range engineNames {
			cell := "–"
			if e.engine.Gives(name) {
				cell = "yes"
			}
			if e.engine == TypeTriton && cell == "yes" && !tableOf(tables, TypeTriton).givesItself(name) {
				cell = "vLLM"
			}
			b.WriteString(" " + cell + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func nameRows(t *table) string {
	var b strings.Builder
	b.WriteString("| signal | read from, the first that is there |\n|---|---|\n")
	add := func(signal string, aliases []alias) {
		var all []string
		for _, a := range aliases {
			all = append(all, a.text(t))
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", signal, strings.Join(all, "; "))
	}
	for i := range t.rows {
		add(t.rows[i].signal.String(), t.rows[i].aliases)
	}
	for i := range t.histograms {
		add(t.histograms[i].signal.String(), t.histograms[i].aliases)
	}
	return b.String()
}

// givesItself tells whether a signal is read from a name that only this engine uses.
func (t *table) givesItself(name string) bool {
	return slices.ContainsFunc(t.rows, func(r row) bool {
		return r.signal.String() == name && slices.ContainsFunc(r.aliases, func(a alias) bool { return t.signedBy(t.written(a.name)) })
	})
}

// text writes an alias as a reader of the engine's page would look for it.
func (a alias) text(t *table) string {
	s := operand{a.name, a.match}.text(t)
	switch {
	case a.list:
		s = "entries in label `" + a.label + "` of the newest " + s
	case a.newest:
		s = "label `" + a.label + "` of the newest " + s
	case a.timesLabel != "":
		s = "labels `" + a.label + "` × `" + a.timesLabel + "` of " + s
	case a.label != "":
		s = "label `" + a.label + "` of " + s
	}
	for _, o := range []struct {
		sign string
		operand
	}{{" × ", a.times}, {" / ", a.over}, {" - ", a.minus}, {" + ", a.plus}} {
		if o.name != "" {
			s += o.sign + o.operand.text(t)
		}
	}
	return s
}

func (o operand) text(t *table) string {
	var labels []string
	for _, m := range o.match {
		if len(m.values) == 1 {
			labels = append(labels, fmt.Sprintf("%s=%q", m.label, m.values[0]))
		} else {
			labels = append(labels, fmt.Sprintf("%s=~%q", m.label, strings.Join(m.values, "|")))
		}
	}
	selector := ""
	if len(labels) > 0 {
		// A bar would end the table's cell.
		selector = strings.ReplaceAll("{"+strings.Join(labels, ",")+"}", "|", `\|`)
	}
	return "`" + t.written(o.name) + selector + "`"
}

// written is a name with the prefix under which the engine writes it.
func (t *table) written(name string) string {
	for _, p := range t.prefixes {
		if t.signedBy(p + name) {
			return p + name
		}
	}
	for _, p := range t.prefixes {
		if !slices.ContainsFunc(t.signs, func(sign string) bool { return strings.HasPrefix(sign, p) }) {
			return p + name
		}
	}
	return name
}
