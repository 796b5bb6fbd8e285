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

// A value of the environment is checked as well.
func TestFlagValueOfEnvironment(t *testing.T) {
	t.Setenv("HEADROOM_EXPORTER_MAX_RATE", "NaN")
	var out, errOut bytes.Buffer
	if status := run(t.Context(), []string{"probe"}, &out, &errOut); status != exitUsage || !strings.Contains(errOut.String(), "--max-rate NaN") {
		t.Errorf("status %d: %s", status, &errOut)
	}
}
