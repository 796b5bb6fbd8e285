package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/probe/workload"
)

func TestCurveImport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "curve.json")
	data := filepath.Join("capacity", "curve", "importer", "testdata")
	rate := func(r string) string { return filepath.Join(data, "vllm-bench", "rate-"+r+".json") }
	command := func(args ...string) (int, string, string) {
		var out, errOut bytes.Buffer
		status := run(context.Background(), append([]string{"curve", "import", "--out.curve=" + file}, args...), &out, &errOut)
		return status, out.String(), errOut.String()
	}
	status, out, errOut := command(rate("20"), rate("4"), rate("10"), "--slo=ttft:p99:1s", "--slo=tpot:p95:50ms", "--class=short",
		"--identity=max_num_seqs=4", "--identity=gpu_name=NVIDIA H200", "--peak-reserve=0.5")
	if status != exitOK || errOut != "" {
		t.Fatalf("status %d: %s", status, errOut)
	}
	for _, want := range []string{"vllm-bench (version unknown), model tiny: class short, prompts of 129 and outputs of 32", "knee 18.3 requests/s, between 10 and 20, by ttft:p99:1s; watermark 5.02 (an estimate)", "Written: " + file} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	c, err := curve.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if c.Identity.MaxNumSeqs != 4 || c.Identity.GPUName != "NVIDIA H200" || c.Source != curve.Imported {
		t.Errorf("identity %+v, source %s", c.Identity, c.Source)
	}
	var shown, showErr bytes.Buffer
	if status := run(context.Background(), []string{"curve", "show", file}, &shown, &showErr); status != exitOK || !strings.Contains(shown.String(), "short") {
		t.Errorf("curve show: status %d: %s%s", status, shown.String(), showErr.String())
	}

	slo := "--slo=ttft:p99:1s"
	copied := filepath.Join(t.TempDir(), "copy.json")
	raw, err := os.ReadFile(rate("4"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	for engine, noted := range map[string]bool{"vllm": false, "foo": true} {
		status, out, _ := command(rate("4"), slo, "--force", "--identity=engine_type="+engine)
		if got := strings.Contains(out, "engine_type "+engine+" is none that is known"); status != exitOK || got != noted {
			t.Errorf("engine %s: status %d\n%s", engine, status, out)
		}
	}
	// The probe and the import take the same names.
	for _, name := range []string{"../a", "a b", "", strings.Repeat("a", 65), "a/b", "ä", "chat", "Chat_1.x-y", strings.Repeat("a", 64)} {
		class := workload.Class{Name: name, Weight: 1, Prompt: workload.FixedLength(1), Output: workload.FixedLength(1)}
		status, _, errOut := command(rate("4"), slo, "--force", "--class="+name)
		if want := class.Validate(); (want == nil) != (status == exitOK) || want != nil && !strings.Contains(errOut, want.Error()) {
			t.Errorf("%q: status %d, %s; the probe says %v", name, status, errOut, want)
		}
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{rate("4"), slo}, "the file exists"},
		{[]string{rate("4"), "--force"}, "slo"},
		{[]string{slo, "--force"}, "files"},
		{[]string{rate("4"), "--slo=ttft:99:1s", "--force"}, "percentile is"},
		{[]string{rate("4"), slo, "--force", "--from=locust"}, "--from"},
		{[]string{rate("4"), slo, "--force", "--from=guidellm"}, "this is a result of vllm-bench"},
		{[]string{rate("4"), slo, "--force", "--identity=max_num_seqs=none"}, "want a whole number above 0"},
		{[]string{rate("4"), slo, "--force", "--peak-reserve=1"}, "--peak-reserve is 1"},
		{[]string{"none.json", slo, "--force"}, "none.json: opening the result file"},
		{[]string{rate("4"), slo, "--force", "--class= "}, "name"},
		{[]string{rate("4"), rate("10"), filepath.Join(data, "vllm-bench", "..", "vllm-bench", "rate-4.json"), slo, "--force"}, "rate-4.json is given twice"},
		{[]string{rate("4"), copied, slo, "--force"}, "copy.json holds the same run as"},
		{[]string{rate("4"), slo, "--force", "--identity=kv_tokens=1e300"}, "kv_tokens is 1e+300, want at most 1e+12"},
		{[]string{rate("4"), slo, "--force", "--identity=gpu_memory_utilization=90"}, "want at most 1"},
	} {
		status, _, errOut := command(test.args...)
		if status != exitUsage || !strings.Contains(errOut, test.want) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%q: status %d: %s", test.args, status, errOut)
		}
	}
}
