package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Dependencies point one way: a package may import those listed here, of ours.
var mayImport = map[string][]string{
	"capacity":                nil,
	"rules":                   nil,
	"rules/fleet":             nil,
	"alerts":                  nil,
	"dashboards":              nil,
	"collector/engine":        nil,
	"collector/gpu":           nil,
	"sidecar":                 {"capacity", "capacity/curve", "collector/engine", "collector/gpu", "rules"},
	"web":                     {"capacity", "capacity/curve", "collector/engine", "collector/gpu", "plot", "sidecar"},
	"plot":                    nil,
	"simulator":               {"collector/gpu"},
	"capacity/jsonfile":       nil,
	"capacity/curve":          {"capacity", "capacity/jsonfile"},
	"capacity/curve/importer": {"capacity", "capacity/curve"},
	"probe/workload":          {"capacity", "capacity/jsonfile"},
	"probe/workload/profile":  {"capacity", "plot", "probe/workload"},
	"probe/knee":              {"capacity", "capacity/curve", "probe/workload"},
	"probe/report":            {"capacity", "capacity/curve", "plot"},
	"probe/arrival":           nil,
	"probe/nullserver":        {"probe/arrival"},
	"probe":                   {"capacity", "capacity/curve", "collector/engine", "collector/gpu", "probe/arrival", "probe/knee", "probe/nullserver", "probe/workload"},
}

func TestDependenciesPointOneWay(t *testing.T) {
	const module = "headroom_exporter"
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...").Output()
	if err != nil {
		t.Fatalf("listing packages: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		name := strings.TrimPrefix(strings.TrimPrefix(fields[0], module), "/")
		if name == "" {
			continue // main wires everything
		}
		allowed, known := mayImport[name]
		if !known {
			t.Errorf("package %s has no place in the map of the house: say here what it may import", name)
		}
		for _, imported := range fields[1:] {
			if ours, ok := strings.CutPrefix(imported, module); ok && !slices.Contains(allowed, strings.TrimPrefix(ours, "/")) {
				t.Errorf("%s imports %s", name, imported)
			}
		}
	}
}
