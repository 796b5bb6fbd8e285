package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
	"headroom_exporter/probe/knee"
)

// curveCommandOf runs a subcommand of curve.
func curveCommandOf(args ...string) (status int, out, errOut string) {
	var stdout, stderr bytes.Buffer
	status = run(context.Background(), append([]string{"curve"}, args...), &stdout, &stderr)
	return status, stdout.String(), stderr.String()
}

func exampleCurve(t *testing.T) (path string, c *curve.Curve) {
	t.Helper()
	path = filepath.Join("capacity", "curve", "testdata", "example.json")
	c, err := curve.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, c
}

func TestCurveCheck(t *testing.T) {
	url := captured(t, "vllm-0.32-idle.prom")
	live, err := readIdentity(context.Background(), engine.Config{URL: url}, &gpuFlags{nvml: gpu.ModeOff}, []string{"max_num_seqs=8", "driver_version=580.1"})
	if err != nil {
		t.Fatal(err)
	}
	_, c := exampleCurve(t)
	c.Identity, c.ID = live, live.ID()
	c.Finished = time.Now().Add(-26 * time.Hour)
	c.Started = c.Finished.Add(-time.Hour)
	c.Reuse = []curve.Reuse{{Field: "max_num_seqs", From: "8", To: "7", Reason: "no run has more", ApprovedBy: "ops"}}
	path := filepath.Join(t.TempDir(), "curve.json")
	if err := writeOutput(path, false, c.Encode); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name     string
		identity []string
		status   int
		out      []string
		errOut   string
	}{
		{"the same", []string{"max_num_seqs=8", "driver_version=580.2"}, 0, []string{
			path + " holds for " + url, "1 days 2 hours ago\n", "model           tiny    tiny    same", "driver_version  580.1   580.2   same",
		}, ""},
		{"half the slots", []string{"max_num_seqs=4"}, 1, []string{"does not hold for", "max_num_seqs", "differs (hard: the curve does not hold)", "not compared"},
			"headroom_exporter: " + path + " does not hold for this engine: max_num_seqs was 8, is 4\n"},
		{"reused", []string{"max_num_seqs=7"}, 0, []string{"differs, reuse allowed by ops: no run has more"}, ""},
		{"soft", []string{"max_num_seqs=8", "driver_version=600.1"}, 0, []string{"; measure again: driver_version", "differs (soft: measure again)"}, ""},
		{"wrong use", []string{"slots=8"}, 2, nil, `--identity slots=8: identity has no field "slots"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := []string{"check", path, "--engine.url=" + url, "--gpu.nvml=off"}
			for _, i := range tt.identity {
				args = append(args, "--identity="+i)
			}
			status, out, errOut := curveCommandOf(args...)
			if status != tt.status || !strings.Contains(errOut, tt.errOut) || tt.errOut == "" && errOut != "" {
				t.Errorf("status %d, want %d; %s", status, tt.status, errOut)
			}
			for _, want := range tt.out {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in:\n%s", want, out)
				}
			}
		})
	}
	status, out, _ := curveCommandOf("check", path, "--engine.url="+url, "--gpu.nvml=off", "--identity=max_num_seqs=4", "-o", "json")
	var answer struct {
		Version  int
		Valid    bool
		Hard     []curve.Difference
		Age      float64        `json:"age_seconds"`
		Identity curve.Identity `json:"live_identity"`
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		t.Fatal(err)
	}
	want := curve.Difference{Field: "max_num_seqs", Stored: "8", Live: "4", Hard: true}
	if status != 1 || answer.Version != 1 || answer.Valid || len(answer.Hard) != 1 || answer.Hard[0] != want || answer.Age < 26*3600 || answer.Identity.MaxNumSeqs != 4 {
		t.Errorf("status %d, %+v", status, answer)
	}
}

func TestCurveCheckUnreadable(t *testing.T) {
	path, _ := exampleCurve(t)
	half := filepath.Join(t.TempDir(), "half.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(half, raw[:len(raw)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	url := captured(t, "vllm-0.32-idle.prom")
	for _, tt := range []struct{ path, url, want string }{
		{"none.json", url, "opening the curve file: open none.json"},
		{half, url, half + ": reading the curve: line "},
		{path, "http://127.0.0.1:1", "reading the engine: "},
		{path, "nowhere", "--engine.url"},
	} {
		status, out, errOut := curveCommandOf("check", tt.path, "--engine.url="+tt.url, "--gpu.nvml=off")
		if status != 2 || out != "" || !strings.Contains(errOut, tt.want) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s at %s: status %d, %q; want %q in one line", tt.path, tt.url, status, errOut, tt.want)
		}
	}
}

// What a person may take for a curve, or a curve for sound, and is not.
func TestCurveFilesThatAreNone(t *testing.T) {
	path, c := exampleCurve(t)
	folder := t.TempDir()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		file := filepath.Join(folder, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	cut, _, _ := strings.Cut(string(raw), ".08,")
	c.Finished = time.Now().AddDate(72, 0, 0)
	var b bytes.Buffer
	if err := c.Encode(&b); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		file   string
		status int
		want   string
	}{
		{"", exitUsage, "or - for standard input"},
		{write("empty.json", ""), exitUsage, "the file is empty"},
		{write("cut.json", cut+"."), exitUsage, "the file is cut off here"},
		{write("curve.json.partial", `{"schema": "`+knee.JournalSchema+`", "config": "ab"}`+"\n{}\n"), exitUsage, "a search left that did not end, not a curve: the same probe command with --resume"},
		{write("future.json", b.String()), exitFailed, "in the future"},
	} {
		if status, _, errOut := curveCommandOf("show", tt.file); status != tt.status || !strings.Contains(errOut, tt.want) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s: status %d, %s", tt.file, status, errOut)
		}
	}
	url := captured(t, "vllm-0.32-idle.prom")
	status, out, errOut := curveCommandOf("check", filepath.Join(folder, "future.json"), "--engine.url="+url, "--gpu.nvml=off", "--identity=model="+c.Identity.Model)
	if status != exitFailed || !strings.Contains(errOut, "in the future") || strings.Contains(out, "ago") {
		t.Errorf("check: status %d, %s\n%s", status, errOut, out)
	}
	// With the model alone known of the file, little is said.
	c.Finished, c.Identity = time.Now(), curve.Identity{Model: "tiny"}
	c.ID = c.Identity.ID()
	b.Reset()
	if err := c.Encode(&b); err != nil {
		t.Fatal(err)
	}
	status, out, _ = curveCommandOf("check", write("little.json", b.String()), "--engine.url="+url, "--gpu.nvml=off")
	if headline, _, _ := strings.Cut(out, "\n"); status != exitOK || !strings.HasSuffix(headline, "only the model could be compared") {
		t.Errorf("check: status %d\n%s", status, out)
	}
	if _, out, _ = curveCommandOf("check", filepath.Join(folder, "little.json"), "--engine.url="+url, "--gpu.nvml=off", "-o", "json"); !strings.Contains(out, `"stored": null`) || strings.Contains(out, `"stored": ""`) {
		t.Errorf("check as JSON:\n%s", out)
	}
}

// TestCurveCheckWithoutKnees: a curve that holds and counts no load says so.
func TestCurveCheckWithoutKnees(t *testing.T) {
	url := captured(t, "vllm-0.32-idle.prom")
	for _, test := range []struct {
		name    string
		without int // of the classes
		status  int
		want    string
	}{
		{"all have one", 0, exitOK, ""},
		{"one has none", 1, exitOK, "no knee is known of chat: serve counts that traffic as not covered"},
		{"a mix alone", 2, exitFailed, "No class has a knee: serve counts no load by this curve"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, c := exampleCurve(t)
			for i := range test.without {
				c.Classes[i].Studies = nil
			}
			c.Finished, c.Identity = time.Now(), curve.Identity{Model: "tiny"}
			c.ID = c.Identity.ID()
			path := filepath.Join(t.TempDir(), "curve.json")
			if err := writeOutput(path, false, c.Encode); err != nil {
				t.Fatal(err)
			}
			status, out, errOut := curveCommandOf("check", path, "--engine.url="+url, "--gpu.nvml=off")
			if status != test.status || (errOut == "") != (test.status == exitOK) || !strings.Contains(out, test.want) || test.want == "" && strings.Contains(out, "knee") {
				t.Errorf("status %d, %s\n%s", status, errOut, out)
			}
			_, out, _ = curveCommandOf("check", path, "--engine.url="+url, "--gpu.nvml=off", "-o", "json")
			var answer struct {
				WithoutKnee []string `json:"classes_without_knee"`
			}
			if err := json.Unmarshal([]byte(out), &answer); err != nil || len(answer.WithoutKnee) != test.without {
				t.Errorf("%v, %v in:\n%s", err, answer.WithoutKnee, out)
			}
			if _, out, _ := curveCommandOf("show", path); strings.Contains(out, "No class has a knee") != (test.without == 2) {
				t.Errorf("shown:\n%s", out)
			}
		})
	}
}

// A lone - is standard input, for every command that reads a curve.
func TestCurveFromStandardInput(t *testing.T) {
	path, c := exampleCurve(t)
	url := captured(t, "vllm-0.32-idle.prom")
	model := "--identity=model=" + c.Identity.Model
	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"show", "-", "-o", "markdown"}, exitOK, "## Capacity of meta-llama"},
		{[]string{"show", "-o", "markdown", "--", "-"}, exitOK, "## Capacity of meta-llama"},
		{[]string{"check", "-", "--engine.url=" + url, "--gpu.nvml=off", model}, exitFailed, "/dev/stdin does not hold for"},
		{[]string{"compare", path, "-"}, exitOK, "same"},
		{[]string{"compare", "-", path}, exitOK, "same"},
		{[]string{"compare", "-", "-"}, exitUsage, "- is given twice, and standard input can be read once"},
		{[]string{"compare", path, path, "--base-again", "-", "--new-again", "-"}, exitUsage, "- is given twice"},
		{[]string{"import", "-", "-", "--slo=ttft:p99:1s"}, exitUsage, "- is given twice"},
		{[]string{"compare", path, "-", "--out.json", "-"}, exitUsage, "writing /dev/stdin: it is no file"},
	} {
		status, out, errOut := fromFile(t, path, test.args...)
		if status != test.status || !strings.Contains(out+errOut, test.want) {
			t.Errorf("%q: status %d, %s, want %d and %q in %.300s", test.args, status, errOut, test.status, test.want, out)
		}
	}
}

// fromFile runs a subcommand of curve with a file as its standard input.
func fromFile(t *testing.T, path string, args ...string) (status int, out, errOut string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	before := os.Stdin
	os.Stdin = file
	defer func() { os.Stdin = before }()
	return curveCommandOf(args...)
}

func TestCurveShow(t *testing.T) {
	path, _ := exampleCurve(t)
	for format, want := range map[string]string{
		"text": "P99 TTFT over offered requests/s", "json": `"schema": "capacity-curve/v1"`, "markdown": "## Capacity of meta-llama", "html": "<!doctype html>",
	} {
		status, out, errOut := curveCommandOf("show", path, "-o", format)
		if status != 0 || errOut != "" || !strings.Contains(strings.ToLower(out), strings.ToLower(want)) {
			t.Errorf("%s: status %d, %s, no %q in %.300s", format, status, errOut, want, out)
		}
	}
	if raw, err := os.ReadFile(path); err != nil {
		t.Error(err)
	} else if _, out, _ := curveCommandOf("show", path, "-o", "json"); out != string(raw) {
		t.Error("as JSON it is not the file")
	}
	if status, _, errOut := curveCommandOf("show", "none.json"); status != 2 || !strings.Contains(errOut, "opening the curve file") {
		t.Errorf("status %d, %s", status, errOut)
	}
	if status, out, _ := curveCommandOf("schema"); status != 0 || out != string(curve.JSONSchema) {
		t.Errorf("schema: status %d", status)
	}
}
