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

var demoCurve = flag.Bool("demo.curve", false, "measure the simulated engine of the demo again, and write its curves")

const (
	// demoCurveFile is what the demo ships with.
	demoCurveFile = "../../demo_curve.json"
	// azureCurveFile is the same engine's, for the conversations of the Azure
	// trace: the scenarios of alerts replay them.
	azureCurveFile = "../../e2e/testdata/azure_curve.json"
)

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

// azureClasses are the lengths of the trace, in one class.
func azureClasses(t *testing.T) []workload.Class {
	t.Helper()
	f, err := os.Open("../workload/testdata/azure_conv.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	trace, err := workload.ReadTrace(f, workload.ReadOptions{Format: workload.Azure})
	if err != nil {
		t.Fatal(err)
	}
	c := workload.Class{Name: "conversation", Weight: 1}
	for _, r := range trace.Records {
		c.Joint = append(c.Joint, workload.JointCell{Prompt: r.Prompt, Output: r.Output, Weight: 1})
	}
	return []workload.Class{c}
}

// The curves of the demo's engine, searched on the simulator in virtual time.
func TestDemoCurve(t *testing.T) {
	for path, classes := range map[string][]workload.Class{demoCurveFile: demoClasses(), azureCurveFile: azureClasses(t)} {
		if *demoCurve {
			writeDemoCurve(t, path, classes)
		}
		checkDemoCurve(t, path, classes)
	}
}

func writeDemoCurve(t *testing.T, path string, classes []workload.Class) {
	t.Helper()
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
		Engine: byClass{&virtualEngine{config: config, drain: 60}}, Mode: knee.Full, Classes: classes,
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
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// checkDemoCurve holds a written curve to what it is said to be.
func checkDemoCurve(t *testing.T, path string, classes []workload.Class) {
	t.Helper()
	c, err := curve.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if c.Source != curve.Simulated || len(c.Classes) != len(classes) {
		t.Errorf("%s: source %s and %d classes, want simulated and %d", path, c.Source, len(c.Classes), len(classes))
	}
	for i := range c.Classes {
		k := &c.Classes[i]
		if s := k.Study(curve.Arrivals{Process: "poisson"}); s == nil || s.Knee == nil || !s.Knee.Rate.Known() {
			t.Errorf("%s: class %s has no knee", path, k.Name)
		}
	}
}
