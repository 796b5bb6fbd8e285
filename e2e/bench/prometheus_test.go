package main

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Whatever the shipped rules read, Prometheus must get: renamed from the
// engine's page, or from the exporter, so that both do the same work.
func TestInputsHoldWhatRulesRead(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "rules", "sidecar", "*.yml"))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := namesOf(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range rules.reads {
		if slices.Contains(rules.records, name) {
			t.Errorf("%s is both read and recorded", name)
		}
	}
	text, err := os.ReadFile(filepath.Join("..", "testdata", "vllm-0.32-loaded-queued.prom"))
	if err != nil {
		t.Fatal(err)
	}
	in := newInputs(newPage(string(text)))
	in.take([]byte("# HELP headroom_ratio Help.\nheadroom_ratio{engine=\"0\"} 0.5\nheadroom_mean_ratio{window=\"1m\"} 0.5\ngo_threads 9\n"), rules.reads)
	w := httptest.NewRecorder()
	in.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	page := w.Body.String()
	if !strings.Contains(page, "headroom_ratio{engine=\"0\"} 0.5\n") || strings.Contains(page, "go_threads") || strings.Contains(page, "headroom_mean_ratio") {
		t.Errorf("the page is %q, want of the exporter what rules read and nothing else", page)
	}
	// A bound's value is its label.
	bounds := regexp.MustCompile(`(?m)^(\w+)_bound\{.*le="(.*?)".*\} (.*)$`).FindAllStringSubmatch(page, -1)
	found := map[string]int{}
	for _, b := range bounds {
		found[b[1]]++
		if b[2] != b[3] {
			t.Errorf("%s has the value %s", b[0], b[3])
		}
	}
	// As many as vLLM 0.32 has buckets, +Inf included.
	for name, want := range map[string]int{
		"headroom_engine_time_to_first_token_seconds": 23, "headroom_engine_inter_token_latency_seconds": 20,
		"headroom_engine_time_per_output_token_seconds": 20, "headroom_engine_e2e_latency_seconds": 22,
	} {
		if found[name] != want {
			t.Errorf("%s has %d bounds, want %d", name, found[name], want)
		}
	}
	// What comes from neither of them.
	renamed := "|"
	for _, n := range engineNames {
		renamed += strings.NewReplacer("${1}", "(?:time_to_first_token|inter_token_latency|bucket|sum|count)", "${2}", "(?:bucket|sum|count)").Replace(n[1]) + "|"
	}
	engine := regexp.MustCompile("^(?:" + strings.Trim(renamed, "|") + ")$")
	for _, name := range rules.reads {
		if strings.HasPrefix(name, "headroom_engine_") && !engine.MatchString(name) && !strings.HasSuffix(name, "_bound") &&
			!slices.Contains([]string{"headroom_engine_requests_waiting", "headroom_engine_sequence_slot_occupancy_ratio", "headroom_engine_token_slot_occupancy_ratio"}, name) {
			t.Errorf("%s is read by a rule, and Prometheus does not get it", name)
		}
	}
}
