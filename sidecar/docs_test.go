package sidecar_test

import (
	"os"
	"strings"
	"testing"

	"headroom_exporter/sidecar"
)

// Every series that rules may read of the engine is named in docs/rules.md.
func TestEngineSeriesAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sidecar.EngineSeries() {
		if !strings.HasSuffix(name, "_total") {
			name = name[:strings.LastIndexByte(name, '_')] // a part of a histogram
		}
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("%s is not documented", name)
		}
	}
}
