package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

func TestCurveCompare(t *testing.T) {
	folder := t.TempDir()
	example := filepath.Join("capacity", "curve", "testdata", "example.json")
	// write puts a changed example into a file.
	write := func(name string, change func(*curve.Curve)) string {
		t.Helper()
		c, err := curve.ReadFile(example)
		if err != nil {
			t.Fatal(err)
		}
		change(c)
		c.ID = c.Identity.ID()
		path := filepath.Join(folder, name)
		if err := writeOutput(path, false, c.Encode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	half := write("half.json", func(c *curve.Curve) {
		c.Identity.MaxNumSeqs /= 2
		s := &c.Classes[0].Studies[0]
		s.SafeRate /= 2
		s.Knee.Rate, s.Knee.Low, s.Knee.High, s.Knee.Watermark = s.Knee.Rate/2, s.Knee.Low/2, s.Knee.High/2, s.Knee.Watermark/2
	})
	other := write("other.json", func(c *curve.Curve) { c.Identity.Model = "another" })
	workload := write("workload.json", func(c *curve.Curve) { c.Workload.Hash = strings.Repeat("0", 64) })
	closed := write("closed.json", func(c *curve.Curve) {
		c.Mixes = nil
		for i := range c.Classes {
			for k := range c.Classes[i].Studies {
				s := &c.Classes[i].Studies[k]
				s.Knee, s.SafeRate, s.Status = nil, capacity.Unknown(), curve.StatusInterrupted
			}
		}
	})
	broken := filepath.Join(folder, "broken.json")
	if err := os.WriteFile(broken, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	command := func(args ...string) (int, string, string) {
		var out, errOut bytes.Buffer
		status := run(context.Background(), append([]string{"curve", "compare"}, args...), &out, &errOut)
		return status, out.String(), errOut.String()
	}

	for _, test := range []struct {
		args   []string
		status int
		out    string
		err    string
	}{
		{[]string{example, example}, exitOK, "Release gate passed", ""},
		{[]string{example, half}, exitFailed, "class chat, poisson: knee", "release gate: regression"},
		{[]string{example, half, "--base-again=" + example, "--new-again=" + half}, exitFailed, "worse", "release gate: regression"},
		{[]string{example, half, "-o", "markdown"}, exitFailed, "| worse | class chat, poisson | knee |", "regression"},
		{[]string{example, other}, exitUsage, "Release gate not comparable", "not comparable: model"},
		{[]string{example, workload}, exitUsage, "not comparable", "--allow-different-workload"},
		{[]string{example, workload, "--allow-different-workload"}, exitOK, "passed", ""},
		{[]string{closed, closed}, exitUsage, "Release gate not comparable", "no class or mix of the base has a knee"},
		{[]string{example, broken}, exitUsage, "", broken},
		{[]string{example, filepath.Join(folder, "none.json")}, exitUsage, "", "none.json"},
		{[]string{example, example, "--base-again=" + example}, exitUsage, "", "needed together"},
		{[]string{example, example, "--band=2"}, exitUsage, "", "--band is 2"},
		{[]string{example, example, "--out.json=" + half}, exitUsage, "", "the file exists"},
	} {
		status, out, errOut := command(test.args...)
		if status != test.status || !strings.Contains(out, test.out) || !strings.Contains(errOut, test.err) || strings.Count(errOut, "\n") > 1 {
			t.Errorf("%q: status %d\n%s\n%s", test.args, status, out, errOut)
		}
	}

	// Why, in one line: the class, the knees, and what differs in the engine.
	_, out, _ := command(example, half)
	if !strings.Contains(out, "-50 %") || !strings.Contains(out, "max_num_seqs 256 -> 128") {
		t.Errorf("no reason in\n%s", out)
	}

	asJSON, asMarkdown := filepath.Join(folder, "gate.json"), filepath.Join(folder, "gate.md")
	status, out, errOut := command(example, half, "-o", "json", "--out.json="+asJSON, "--out.markdown="+asMarkdown)
	var comparison curve.Comparison
	if err := json.Unmarshal([]byte(out), &comparison); err != nil || status != exitFailed || comparison.Outcome != curve.Regression {
		t.Errorf("status %d, %v, outcome %s: %s", status, err, comparison.Outcome, errOut)
	}
	if data, err := os.ReadFile(asJSON); err != nil || string(data) != out {
		t.Errorf("%s, %v", data, err)
	}
	if data, err := os.ReadFile(asMarkdown); err != nil || !bytes.HasPrefix(data, []byte("# Release gate regression")) {
		t.Errorf("%.80s, %v", data, err)
	}
}
