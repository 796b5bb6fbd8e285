package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headroom_exporter/collector/engine"
	"headroom_exporter/probe/knee"
	"headroom_exporter/sidecar"
)

// A curve file that cannot be used ends serve at its start, with a line that
// says what is wrong.
func TestServeRefusesABadCurve(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.json")
	if err := os.WriteFile(bad, []byte(`{"schema":"capacity-curve/v1","peak_reserve":0.2}`), 0o644); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(dir, "good.json")
	if err := os.WriteFile(good, demoCurveFile, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, want string
		args       []string
	}{
		{"not there", "no such file", []string{"--curve.file", filepath.Join(dir, "none.json")}},
		{"no file", os.DevNull + ": not a regular file", []string{"--curve.file", os.DevNull}},
		{"no curve", "peak_reserve", []string{"--curve.file", bad}},
		{"a correction that does not exist", "curve.correction", []string{"--curve.file", good, "--curve.correction=always"}},
		{"a field that does not exist", "colour", []string{"--curve.file", good, "--identity", "colour=red"}},
		{"a bound that does not exist", "kv-bound", []string{"--kv-bound=maybe"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			args := append([]string{"serve", "--gpu.nvml=off", "--once"}, test.args...)
			if status := run(t.Context(), args, &out, &errOut); status != 2 {
				t.Errorf("exit status %d, want 2", status)
			}
			text := strings.TrimSpace(errOut.String())
			if !strings.Contains(text, test.want) || strings.Count(text, "\n") > 0 {
				t.Errorf("it says %q, want one line with %q", text, test.want)
			}
		})
	}
}

// --once says of a curve that it was given, and counts an idle engine by it.
func TestOnceWithACurve(t *testing.T) {
	url := simulatedEngine(t, untouched)
	path := filepath.Join(t.TempDir(), "curve.json")
	if err := os.WriteFile(path, demoCurveFile, 0o644); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	run(t.Context(), []string{"serve", "--gpu.nvml=off", "--once", "-o", "json", "--engine.url", url, "--curve.file", path}, &out, &errOut)
	var document struct {
		Replicas []struct {
			Curve struct {
				Valid   bool     `json:"valid"`
				ID      string   `json:"id"`
				Source  string   `json:"source"`
				Reasons []string `json:"reasons"`
			} `json:"curve"`
		} `json:"replicas"`
	}
	if err := json.Unmarshal(out.Bytes(), &document); err != nil {
		t.Fatalf("%v: %s %s", err, out.String(), errOut.String())
	}
	c := document.Replicas[0].Curve
	if c.Source != "simulated" || c.ID == "" {
		t.Errorf("the curve is %+v", c)
	}
	for _, reason := range c.Reasons {
		if strings.HasPrefix(reason, "identity_") {
			t.Errorf("the engine is not the one of its curve: %s", reason)
		}
	}
}

// A curve that does not count in the time of --once is said not to: in the text,
// and with its reasons in the JSON.
func TestOnceWithACurveThatDoesNotCount(t *testing.T) {
	url := simulatedEngine(t, untouched)
	path := filepath.Join(t.TempDir(), "curve.json")
	if err := os.WriteFile(path, demoCurveFile, 0o644); err != nil {
		t.Fatal(err)
	}
	for format, want := range map[string][]string{
		"text": {"by the engine's limits alone, the capacity curve is not used", "Why: "},
		"json": {`"valid": false`, `"identity_model"`, "by the engine's limits alone"},
	} {
		t.Run(format, func(t *testing.T) {
			var out, errOut bytes.Buffer
			// Another model is no matter of waiting.
			args := []string{"serve", "--gpu.nvml=off", "--once", "--once.for=1h", "-o", format, "--engine.url", url, "--curve.file", path, "--identity", "model=another"}
			if status := run(t.Context(), args, &out, &errOut); status != 0 {
				t.Errorf("exit status %d: %s", status, errOut.String())
			}
			for _, text := range want {
				if !strings.Contains(out.String(), text) {
					t.Errorf("it does not say %q: %s", text, out.String())
				}
			}
		})
	}
}

// A probe that measures the curve anew is seen by the lock on its journal, and
// a journal that was left behind by one is none.
func TestProbeBesideTheCurve(t *testing.T) {
	path := filepath.Join(t.TempDir(), "curve.json")
	if err := os.WriteFile(path, demoCurveFile, 0o644); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		file, err := (&curveFlags{file: path, identity: &identityFlags{}}).open(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = file.Run(t.Context()) }()
		seen := func(what string, want bool) {
			t.Helper()
			time.Sleep(6 * time.Second)
			synctest.Wait()
			if got := file.Current().ProbeRunning; got != want {
				t.Errorf("%s: a probe is seen: %v", what, got)
			}
		}
		seen("nothing beside the curve", false)
		journal, err := knee.OpenJournal(partialOf(path), knee.JournalHeader{Config: "c"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		seen("a probe writes", true)
		if err := journal.Close(); err != nil {
			t.Fatal(err)
		}
		seen("it was interrupted, and left its journal", false)
		if err := os.Remove(partialOf(path)); err != nil {
			t.Fatal(err)
		}
		seen("its journal is gone", false)
	})
}

// A POST to /-/reload reads the curve again, and says when it cannot.
func TestReloadOfTheCurve(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "curve.json")
	if err := os.WriteFile(path, demoCurveFile, 0o644); err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	file, err := sidecar.OpenCurveFile(path, logger)
	if err != nil {
		t.Fatal(err)
	}
	poller, err := engine.New(engine.Config{URL: "http://127.0.0.1:1", Interval: time.Second}, logger)
	if err != nil {
		t.Fatal(err)
	}
	defer poller.Close()
	config := sidecar.Config{
		Poller: poller, EngineURL: "http://127.0.0.1:1", Interval: time.Second, Logger: logger, Curve: file,
		SLO: sidecar.SLO{TimeToFirstToken: time.Second, Objective: 0.99},
	}
	(&curveFlags{identity: &identityFlags{}}).configure(&config)
	p := &product{telemetryPath: "/metrics", rules: &rulesFlags{retention: time.Hour}, curve: file, logger: logger}
	if err := p.build(config); err != nil {
		t.Fatal(err)
	}
	defer p.close()
	server := httptest.NewServer(p.handler)
	defer server.Close()
	reload := func() (int, string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/-/reload", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		var body bytes.Buffer
		if _, err := body.ReadFrom(response.Body); err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, body.String()
	}
	if status, body := reload(); status != http.StatusOK {
		t.Errorf("a good file: %d %s", status, body)
	}
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if status, body := reload(); status != http.StatusInternalServerError || !strings.Contains(body, "curve.json") {
		t.Errorf("a bad file: %d %s", status, body)
	}
	if file.Current().Curve == nil || file.Current().Err == nil {
		t.Errorf("after a bad file: %+v", file.Current())
	}
	if err := errors.Join(os.Remove(path), os.Symlink(os.DevNull, path)); err != nil {
		t.Fatal(err)
	}
	if status, body := reload(); status != http.StatusInternalServerError || !strings.Contains(body, "not a regular file") {
		t.Errorf("no file: %d %s", status, body)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, demoCurveFile, 0o644)); err != nil {
		t.Fatal(err)
	}
	if status, body := reload(); status != http.StatusOK || file.Current().Err != nil {
		t.Errorf("a good file again: %d %s, %v", status, body, file.Current().Err)
	}
}
