package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"headroom_exporter/probe/workload"
)

func TestProfileCommand(t *testing.T) {
	folder := t.TempDir()
	classes, page := filepath.Join(folder, "classes.json"), filepath.Join(folder, "page.html")
	trace := filepath.Join("probe", "workload", "testdata", "mooncake_conversation.jsonl")
	command := func(more ...string) (int, string, string) {
		var out, errOut bytes.Buffer
		status := run(context.Background(), append([]string{"profile", "--out.classes=" + classes, "--out.report=" + page}, more...), &out, &errOut)
		return status, out.String(), errOut.String()
	}
	status, out, errOut := command(trace, "--trace.format=mooncake")
	if status != exitOK || errOut != "" {
		t.Fatalf("status %d: %s", status, errOut)
	}
	for _, want := range []string{"400 requests in 14", "Note: timestamps lie on a grid of 3s", "Written: " + classes} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	file, err := workload.ReadFile(classes)
	if err != nil {
		t.Fatal(err)
	}
	if file.Trace.Name != "mooncake_conversation.jsonl" || len(file.Trace.SHA256) != 64 || len(file.Classes) < 2 || !strings.HasPrefix(file.Tool, name) {
		t.Errorf("the file is %+v", file)
	}
	if html, err := os.ReadFile(page); err != nil || !bytes.Contains(html, []byte("Workload profile: mooncake_conversation.jsonl")) {
		t.Errorf("the page is %.80s, %v", html, err)
	}

	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{trace, "--trace.format=mooncake"}, "the file exists"},
		{[]string{trace, "--force"}, "give its --trace.format"},
		{[]string{trace, "--force", "--trace.format=csv"}, "--trace.format"},
		{[]string{trace, "--force", "--trace.format=azure"}, "parse error on line 1"},
		{[]string{trace, "--force", "--trace.format=timed_trace"}, "is the block size right?"},
		{[]string{trace, "--force", "--trace.format=mooncake", "--by=tenant"}, "does not tell different tenants apart"},
		{[]string{"none.csv", "--force", "--trace.format=azure"}, "opening the trace"},
	} {
		status, _, errOut := command(test.args...)
		if status != exitUsage || !strings.Contains(errOut, test.want) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%q: status %d: %s", test.args, status, errOut)
		}
	}
	if status, _, errOut := command(trace, "--force", "--trace.format=timed_trace", "--trace.unit=1ms", "--trace.block-size=512", "--by=none"); status != exitOK {
		t.Errorf("as timed_trace: status %d: %s", status, errOut)
	}
}
