package capacity_test

import (
	"strings"
	"testing"

	"headroom_exporter/capacity"
)

func TestSLOPresets(t *testing.T) {
	for _, name := range capacity.SLOPresets() {
		slos, err := capacity.SLOPreset(name)
		if err != nil || len(slos) != 2 {
			t.Fatalf("%s: %v, %v", name, slos, err)
		}
		for _, s := range slos {
			if err := s.Validate(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	slos, _ := capacity.SLOPreset("llama2-70b-interactive")
	if got := slos[0].String() + " " + slos[1].String(); got != "ttft:p99:450ms tpot:p99:40ms" {
		t.Errorf("llama2-70b-interactive = %s", got)
	}
	if _, err := capacity.SLOPreset("llama"); err == nil || !strings.Contains(err.Error(), "llama2-70b") {
		t.Errorf("an unknown preset: %v", err)
	}
}
