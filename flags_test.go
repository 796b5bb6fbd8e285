package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
)

// TestFlagValues: what no flag takes is refused by its name, in one line, before anything runs.
func TestFlagValues(t *testing.T) {
	curves := []string{"curve", "compare", "a", "b"}
	imported := []string{"curve", "import", "a", "--slo=ttft:p99:1s"}
	for _, test := range []struct {
		command []string
		flags   []string
		values  []string
	}{
		{[]string{"probe"}, []string{"max-rate", "trace.speed", "trace.peak-factor", "peak-reserve", "burstiness", "rate", "concurrency"}, []string{"NaN", "Inf", "-inf", "1e999", "x", ""}},
		{[]string{"serve"}, []string{"slo.objective"}, []string{"NaN", "+Inf"}},
		{[]string{"demo"}, []string{"speed", "load.prompt-tokens", "load.output-tokens", "slo.objective"}, []string{"NaN", "Inf"}},
		{[]string{"simulate"}, []string{"speed", "load.prompt-tokens", "load.output-tokens"}, []string{"NaN", "Inf"}},
		{curves, []string{"band"}, []string{"NaN", "Inf"}},
		{imported, []string{"peak-reserve"}, []string{"NaN", "Inf"}},
		{[]string{"probe"}, []string{"request-timeout", "idle-timeout", "stall-after", "max-duration", "duration", "warmup", "drain", "engine.interval"}, []string{"-1s", "-1ns", "x"}},
		{[]string{"probe"}, []string{"connections", "requests", "max-inflight"}, []string{"-1", "1.5", "NaN", "99999999999"}},
		{[]string{"probe"}, []string{"connections"}, []string{"10001"}},
		{[]string{"probe"}, []string{"max-rate"}, []string{"-1"}},
		{[]string{"probe"}, []string{"engine.interval"}, []string{"0s", "1ns", "9ms"}},
		{[]string{"probe"}, []string{"burstiness"}, []string{"0.009", "10001", "1,1e9"}},
		{[]string{"serve"}, []string{"engine.interval", "engine.timeout", "slo.ttft", "slo.itl", "slo.e2e", "storage.retention"}, []string{"-1s"}},
		{[]string{"demo"}, []string{"duration", "engine.interval"}, []string{"-1s"}},
	} {
		for _, flag := range test.flags {
			for _, value := range test.values {
				var out, errOut bytes.Buffer
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				status := run(ctx, append(test.command, "--"+flag+"="+value), &out, &errOut)
				cancel()
				said := errOut.String()
				if status != exitUsage || !strings.Contains(said, "--"+flag) || strings.Count(said, "\n") != 1 || strings.Contains(said, "engine.timeout is") {
					t.Errorf("%v --%s=%s: status %d: %s", test.command, flag, value, status, said)
				}
			}
		}
	}
}

// TestWrongUse: what is wrong and what to do, in a line that names the flag, before anything runs.
func TestWrongUse(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"curve", "foo"}, `expected command but got "foo": want one of show, check, schema, compare, import;`},
		{[]string{"curve"}, "must select a subcommand of 'curve': want one of show, check,"},
		{[]string{"export", "foo"}, "want one of rules, dashboards, alerts;"},
		{[]string{"demo", "--speed=0"}, "--speed 0: must be above 0"},
		{[]string{"simulate", "--speed=-1"}, "--speed -1: must be above 0"},
		{[]string{"demo", "--load.prompt-tokens=-5"}, "--load.prompt-tokens -5: must be from 1 to"},
		{[]string{"demo", "--load.prompt-tokens=0"}, "--load.prompt-tokens 0: must be from 1 to"},
		{[]string{"simulate", "--load.output-tokens=1e300"}, "--load.output-tokens 1e+300: must be from 1 to"},
		{[]string{"demo", "--max-num-batched-tokens=8"}, "--max-num-batched-tokens is 8, less than --max-num-seqs 256"},
		{[]string{"simulate", "--num-gpu-blocks=10"}, "--num-gpu-blocks is 10, which holds 144 tokens, less than --max-model-len"},
		{[]string{"serve", "--curve.file="}, "--curve.file is empty: give the path of a file, or leave the flag out"},
		{[]string{"serve", "--curve.file", ""}, "--curve.file is empty"},
		{[]string{"demo", "--curve.file="}, "--curve.file is empty"},
		{[]string{"probe", "--out.curve="}, "--out.curve is empty"},
		{[]string{"serve", "--engine.header-file="}, "--engine.header-file is empty"},
		{[]string{"serve", "--gpu.nvml=off", "--identity=max_num_seqs=4", "--identity=max_num_seqs=5"}, "--identity max_num_seqs=5: max_num_seqs is given already, as max_num_seqs=4"},
		{[]string{"serve", "--gpu.nvml=off", "--identity=role=both", "--identity=role=both"}, "role is given already"},
	} {
		var out, errOut bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		status := run(ctx, test.args, &out, &errOut)
		cancel()
		if said := errOut.String(); status != exitUsage || !strings.Contains(said, test.want) || strings.Count(said, "\n") != 1 {
			t.Errorf("%q: status %d, %q, want %d and %q", test.args, status, said, exitUsage, test.want)
		}
	}
}

// An environment variable that is empty is not set.
func TestEmptyFileOfEnvironment(t *testing.T) {
	t.Setenv("HEADROOM_EXPORTER_CURVE_FILE", "")
	var out, errOut bytes.Buffer
	if status := run(t.Context(), []string{"serve", "--gpu.nvml=off", "--once.for=0s"}, &out, &errOut); status != exitUsage || !strings.Contains(errOut.String(), "--once.for") {
		t.Errorf("status %d: %s", status, &errOut)
	}
}

// A value of the environment is checked as well.
func TestFlagValueOfEnvironment(t *testing.T) {
	t.Setenv("HEADROOM_EXPORTER_MAX_RATE", "NaN")
	var out, errOut bytes.Buffer
	if status := run(t.Context(), []string{"probe"}, &out, &errOut); status != exitUsage || !strings.Contains(errOut.String(), "--max-rate NaN") {
		t.Errorf("status %d: %s", status, &errOut)
	}
}
