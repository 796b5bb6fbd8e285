package knee_test

import (
	"bytes"
	"flag"
	"os"
	"testing"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/knee"
	"headroom_exporter/probe/workload"
	"headroom_exporter/simulator"
)

var demoCurve = flag.Bool("demo.curve", false, "measure the simulated engine of the demo again, and write its curve")

// demoCurveFile is what the demo ships with.
const demoCurveFile = "../../demo_curve.json"

// demoClasses are the demo's own traffic, and longer prompts and answers: an
// unmixing needs classes that traffic could be of.
func demoClasses() []workload.Class {
	lognormal := func(mean float64) workload.Lengths {
		return workload.Lengths{Distribution: workload.Lognormal, Mean: mean, SD: mean / 2}
	}
	return []workload.Class{
		{Name: "chat", Weight: 1, Prompt: lognormal(512), Output: lognormal(256)},
		{Name: "rag", Weight: 1, Prompt: lognormal(3000), Output: lognormal(128)},
		{Name: "write", Weight: 1, Prompt: lognormal(128), Output: lognormal(768)},
	}
}

// The curve of the demo's engine, searched on the simulator in virtual time.
func TestDemoCurve(t *testing.T) {
	if !*demoCurve {
		checkDemoCurve(t)
		return
	}
	config, err := simulator.Preset(simulator.Presets()[0])
	if err != nil {
		t.Fatal(err)
	}
	// No prompt is sent twice.
	config.EnablePrefixCaching = false
	slo := func(text string) capacity.SLO {
		s, err := capacity.ParseSLO(text)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	c := &knee.Campaign{
		Engine: byClass{&virtualEngine{config: config, drain: 60}}, Mode: knee.Full, Classes: demoClasses(),
		SLO:          []capacity.SLO{slo("ttft:p95:2.5s"), slo("tpot:p95:100ms")},
		Limits:       knee.Limits{MaxNumSeqs: config.MaxNumSeqs, MaxNumBatchedTokens: config.MaxNumBatchedTokens, KVTokens: float64(config.TokenSlots()), MaxModelLen: config.MaxModelLen},
		LengthBounds: workload.TokenBounds(config.MaxModelLen), PeakReserve: 0.2, Seed: 1,
		Report: func(line string) { t.Log(line) },
	}
	found, err := c.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	found.Source = curve.Simulated
	found.Identity = curve.Identity{
		Model: config.ModelName, EngineType: "vllm", MaxNumSeqs: config.MaxNumSeqs, MaxNumBatchedTokens: config.MaxNumBatchedTokens,
		MaxModelLen: config.MaxModelLen, KVTokens: float64(config.TokenSlots()), GPUName: config.Hardware.GPU.Model,
		GPUCount: config.Hardware.TensorParallel, PrefixCaching: &yes,
	}
	found.ID = found.Identity.ID()
	found.Tool = curve.Tool{Name: "simulator", Version: "1"}
	found.Workload = curve.Workload{Hash: "0000000000000000000000000000000000000000000000000000000000000000", Seed: c.Seed, Flags: "go test ./probe/knee -run TestDemoCurve -demo.curve"}
	found.Started = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	found.Finished = found.Started.Add(time.Hour)
	found.Notes = []string{"measured on the simulator in virtual time: it says nothing of a real engine"}
	found.Coverage = curve.Cover(found)
	var b bytes.Buffer
	if err := found.Encode(&b); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(demoCurveFile, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// checkDemoCurve holds the shipped curve to what it is said to be.
func checkDemoCurve(t *testing.T) {
	c, err := curve.ReadFile(demoCurveFile)
	if err != nil {
		t.Fatal(err)
	}
	if c.Source != curve.Simulated || len(c.Classes) != len(demoClasses()) {
		t.Errorf("source %s and %d classes, want simulated and %d", c.Source, len(c.Classes), len(demoClasses()))
	}
	for i := range c.Classes {
		k := &c.Classes[i]
		if s := k.Study(curve.Arrivals{Process: "poisson"}); s == nil || s.Knee == nil || !s.Knee.Rate.Known() {
			t.Errorf("class %s has no knee", k.Name)
		}
	}
}
