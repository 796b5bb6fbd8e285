package e2e

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// ruleFile writes a rule file with one group named user, each rule given as
// name and expression.
func ruleFile(t *testing.T, path string, rules ...string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("groups:\n  - name: user\n    interval: 1s\n    rules:\n")
	for i := 0; i+1 < len(rules); i += 2 {
		fmt.Fprintf(&b, "      - record: %s\n        expr: %s\n", rules[i], rules[i+1])
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const firstTokens = "headroom_engine_time_to_first_token_seconds"

// What the sidecar records is what promtool, which evaluates the same file on
// the same numbers, says it must be.
func TestRecordedSeriesAgreeWithPromtool(t *testing.T) {
	t.Parallel()
	promtool := tool(t, "promtool")
	engine := newPageEngine(t)
	dir := t.TempDir()
	// None of them depends on when within a second a sample was taken.
	file := ruleFile(t, filepath.Join(dir, "user.yml"),
		"user_first_token_p90_seconds", "histogram_quantile(0.9, "+firstTokens+"_bucket)",
		"user_first_token_good_ratio", fmt.Sprintf(`sum by (model_name) (%s_bucket{le="2.5"}) / sum by (model_name) (%[1]s_count)`, firstTokens),
		"user_first_tokens", fmt.Sprintf("max_over_time(%s_count[1m]) - min_over_time(%[1]s_count[1m])", firstTokens),
		"user_changes", fmt.Sprintf("changes(%s_count[1m])", firstTokens),
	)
	s := serve(t, engine.URL, "--rules.file="+file)
	series := `{engine="0",model_name="tiny"}`
	s.waitForSamples("the rules are evaluated", samples{"user_first_tokens" + series: 0})
	before := engine.firstTokens()
	engine.observe(30, 0.3)
	after := engine.firstTokens()
	s.waitForSamples("the rules see new requests", samples{"user_first_tokens" + series: 30, "user_changes" + series: 1})

	page, err := getSamples(s.url)
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(page, func(series string, _ float64) bool { return !strings.HasPrefix(series, "user_") })
	if len(page) != 4 {
		t.Fatalf("recorded are %v, want 4 series", page)
	}
	// agrees runs promtool on the page's numbers as input and what the sidecar
	// recorded, plus an error, as what is expected.
	agrees := func(off float64) error {
		var b strings.Builder
		b.WriteString("rule_files: [user.yml]\nevaluation_interval: 1s\ntests:\n  - interval: 1s\n    input_series:\n")
		for _, series := range slices.Sorted(maps.Keys(after)) {
			fmt.Fprintf(&b, "      - {series: '%s', values: '%v %v %v %v'}\n", series, before[series], before[series], after[series], after[series])
		}
		b.WriteString("    promql_expr_test:\n")
		for _, series := range slices.Sorted(maps.Keys(page)) {
			name, _, _ := strings.Cut(series, "{")
			fmt.Fprintf(&b, "      - {expr: %s, eval_time: 3s, exp_samples: [{labels: '%s', value: %v}]}\n", name, series, page[series]+off)
		}
		test := writeFile(t, dir, "user_test.yml", b.String())
		if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", test).CombinedOutput(); err != nil {
			return fmt.Errorf("promtool test rules: %w\n%s", err, out)
		}
		return nil
	}
	if err := agrees(0); err != nil {
		t.Error(err)
	}
	if agrees(1e-9) == nil {
		t.Error("promtool agrees with numbers that are wrong, so its agreement says nothing")
	}
}

func TestBadRuleFileAtStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, test := range []struct{ name, expr, says string }{
		{"no PromQL", "sum(", "user_bad"},
		{"too far back", "headroom_ratio offset 5h", "further than the store keeps"},
		{"not a rule of ours", `vector(1)`, "headroom_ratio"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			record := "user_bad"
			if test.says == "headroom_ratio" {
				record = "headroom_ratio" // which the exporter exposes itself
			}
			file := ruleFile(t, filepath.Join(dir, strings.ReplaceAll(test.name, " ", "-")+".yml"), "user_good", "vector(1)", record, test.expr)
			p, status := runToEnd(t, nil, "serve", "--web.listen-address="+freeAddress(t), "--rules.file="+file)
			if status != 2 {
				t.Errorf("status is %d, want 2", status)
			}
			lines := p.stderr.lines()
			if len(lines) != 1 {
				t.Errorf("stderr is %q, want one line", lines)
			}
			for _, words := range []string{file, "user", record, test.says} {
				if !strings.Contains(p.stderr.String(), words) {
					t.Errorf("stderr is %q, want it to name %q", lines, words)
				}
			}
		})
	}
}

// A reload puts a good file in force; a bad one leaves what is in force, and
// that is said to whoever asked and on /metrics.
func TestReload(t *testing.T) {
	t.Parallel()
	engine := newPageEngine(t)
	file := ruleFile(t, filepath.Join(t.TempDir(), "user.yml"), "user_first", "vector(1)")
	s := serve(t, engine.URL, "--rules.file="+file)
	const successful = "headroom_exporter_rules_last_reload_successful"
	s.waitForSamples("the file at start", samples{"user_first": 1, successful: 1})
	post := func() (int, string) {
		t.Helper()
		resp, err := client.Post(s.url+"/-/reload", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}

	ruleFile(t, file, "user_second", "vector(2)")
	s.signal(syscall.SIGHUP)
	s.waitForSamples("a good file by SIGHUP", samples{"user_second": 2, successful: 1}, "user_first")

	ruleFile(t, file, "user_third", "sum(")
	s.signal(syscall.SIGHUP)
	s.waitForSamples("a bad file by SIGHUP", samples{"user_second": 2, successful: 0})
	s.logs("those in force stay")
	if status, body := post(); status != http.StatusInternalServerError || !strings.Contains(body, file) || !strings.Contains(body, "user_third") {
		t.Errorf("a bad file by POST: %d %q, want 500 and the file and rule named", status, body)
	}
	s.waitForSamples("a bad file by POST", samples{"user_second": 2, successful: 0})
	s.waitForState(startLimit, "idle")

	ruleFile(t, file, "user_fourth", "vector(4)")
	if status, body := post(); status != http.StatusOK {
		t.Errorf("a good file by POST: %d %q, want 200", status, body)
	}
	s.waitForSamples("a good file by POST", samples{"user_fourth": 4, successful: 1}, "user_second", "user_third")
	if resp, err := client.Get(s.url + "/-/reload"); err != nil {
		t.Error(err)
	} else if resp.Body.Close(); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET /-/reload answers %s, want 405", resp.Status)
	}
	s.endsWell()
}

// goodRatio is the share of requests that met the threshold over a window.
func goodRatio(window string) string {
	return fmt.Sprintf(`headroom_slo_good_ratio{engine="0",model_name="tiny",slo="ttft",threshold="2.5",window=%q}`, window)
}

// What was before kill -9 is in the windows of the process after it.
func TestWindowsSurviveKill(t *testing.T) {
	t.Parallel()
	engine := newPageEngine(t)
	storage := filepath.Join(t.TempDir(), "storage")
	args := []string{"--storage.path=" + storage, "--slo.ttft=2.5s"}
	s := serve(t, engine.URL, args...)
	up := samples{`headroom_exporter_rules_storage_up{reason="ok"}`: 1}
	s.waitForSamples("the storage is in use", up)
	const threshold = `headroom_slo_events_total{engine="0",model_name="tiny",slo="ttft",threshold="2.5"}`
	s.waitForSamples("the rules have seen what was there", samples{threshold: 12})
	engine.observe(90, 0.3)
	engine.observe(10, 30)
	s.waitForSamples("90 of 100 are good", samples{goodRatio("5m"): 0.9, goodRatio("30m"): 0.9, goodRatio("1h"): 0.9})

	s.kill()
	engine.observe(100, 0.3) // while nobody looks
	s = serve(t, engine.URL, args...)
	// Without the window there would be no event yet, and no ratio.
	s.waitForSamples("190 of 200 are good", samples{goodRatio("5m"): 0.95, goodRatio("30m"): 0.95, goodRatio("1h"): 0.95})
	s.waitForSamples("the storage is in use again", up)
	s.endsWell()

	other := serve(t, engine.URL, "--slo.ttft=2.5s")
	other.waitForSamples("in memory", samples{threshold: 212}, "headroom_exporter_rules_storage_up", "headroom_slo_good_ratio")
}

// serveOnMount starts the sidecar with its storage on a small file system of
// its own, mounted with the options given. inside is the storage's path as
// others see it.
func serveOnMount(t *testing.T, engineURL, options string) (s *sidecar, inside string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip("mounting a small file system needs unshare: " + err.Error())
	}
	mount := t.TempDir()
	script := `mount -t tmpfs -o "$0" tmpfs "$1" && shift && exec "$@"`
	if out, err := exec.CommandContext(t.Context(), unshare, "-m", "sh", "-c", script, options, mount, "true").CombinedOutput(); err != nil {
		t.Skipf("no file system can be mounted here: %v: %s", err, out)
	}
	address := freeAddress(t)
	s = &sidecar{url: "http://" + address}
	s.process = startProgram(t, nil, unshare, "-m", "sh", "-c", script, options, mount,
		binary, "serve", "--web.listen-address="+address, "--engine.url="+engineURL, "--storage.path="+mount, "--slo.ttft=2.5s")
	s.answers("/-/ready", s.url)
	return s, filepath.Join("/proc", fmt.Sprint(s.cmd.Process.Pid), "root", mount)
}

// worksInMemory checks that a failing storage costs nothing but what it keeps
// over a restart.
func (s *sidecar) worksInMemory(engine *pageEngine, reason string, want samples) {
	s.t.Helper()
	want[fmt.Sprintf("headroom_exporter_rules_storage_up{reason=%q}", reason)] = 0
	want["headroom_exporter_rules_failing"] = 0
	want["headroom_exporter_store_append_failures_total"] = 0
	s.waitForSamples("in memory: "+reason, want, "headroom_exporter_store_bytes")
	s.waitFor(startLimit, "headroom", knowsHeadroom)
	s.logs("Rules go on in memory")
}

func TestStorageReadOnly(t *testing.T) {
	t.Parallel()
	engine := newPageEngine(t)
	s, _ := serveOnMount(t, engine.URL, "ro,size=16m")
	events := `headroom_slo_events_total{engine="0",model_name="tiny",slo="ttft",threshold="2.5"}`
	s.worksInMemory(engine, "read_only", samples{events: 12})
	engine.observe(10, 0.3)
	s.waitForSamples("the rules go on", samples{events: 22, goodRatio("1h"): 1})
	s.endsWell()
}

func TestStorageFull(t *testing.T) {
	t.Parallel()
	engine := newPageEngine(t)
	s, inside := serveOnMount(t, engine.URL, "size=16m")
	s.waitForSamples("the storage is in use", samples{`headroom_exporter_rules_storage_up{reason="ok"}`: 1,
		`headroom_slo_events_total{engine="0",model_name="tiny",slo="ttft",threshold="2.5"}`: 12})
	engine.observe(90, 0.3)
	engine.observe(10, 30)
	s.waitForSamples("90 of 100 are good", samples{goodRatio("1h"): 0.9})

	filler := filepath.Join(inside, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	// To the last byte: the file system is of 16 MiB.
	for _, block := range []int{1 << 20, 1 << 12, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, block))
		}
	}
	f.Close()
	s.worksInMemory(engine, "no_space", samples{goodRatio("1h"): 0.9})
	engine.observe(100, 0.3)
	s.waitForSamples("the window goes on in memory", samples{goodRatio("1h"): 0.95})

	// Within a minute of there being room, the window is on disk again.
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	eventually(t, 4*startLimit, "the storage is in use again", func() error {
		page, err := getSamples(s.url)
		if err != nil {
			return err
		}
		return page.check(samples{`headroom_exporter_rules_storage_up{reason="ok"}`: 1, goodRatio("1h"): 0.95})
	})
	s.endsWell()
}

// Where a threshold is no bound nobody can say what met it: it is said which
// bounds are near, and there is no ratio.
func TestSLOThresholdThatIsNoBound(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	s := serve(t, engine.url, "--slo.ttft=3s", "--slo.itl=100ms")
	h := s.waitFor(startLimit, "headroom", knowsHeadroom)
	if reasons := reasonsOf(h); !strings.Contains(reasons, "--slo.ttft=3s is not a bucket bound") || !strings.Contains(reasons, "use 2.5s or 5s") || strings.Contains(reasons, "--slo.itl") {
		t.Errorf("reasons are %q, want the threshold with the bounds 2.5s and 5s, and nothing of --slo.itl", reasons)
	}
	const rank = `engine="0",model_name="meta-llama/Meta-Llama-3-8B-Instruct",slo=`
	s.waitForSamples("which thresholds are bounds", samples{
		"headroom_slo_threshold_is_bound{" + rank + `"ttft"}`: 0, "headroom_slo_threshold_is_bound{" + rank + `"itl"}`: 1,
	})
	eventually(t, startLimit, "a ratio for the other", func() error {
		page, err := getSamples(s.url)
		if err != nil {
			return err
		}
		itl := 0
		for series := range page {
			if strings.HasPrefix(series, "headroom_slo_good") && strings.Contains(series, `slo="ttft"`) {
				t.Errorf("%s is there", series)
			}
			if strings.HasPrefix(series, "headroom_slo_good_ratio") && strings.Contains(series, `slo="itl"`) {
				itl++
			}
		}
		if itl != 3 {
			return fmt.Errorf("%d ratios for the time between tokens, want one for each of 3 windows", itl)
		}
		return nil
	})
}

// exportRules exports the shipped rules and returns the files.
func exportRules(t *testing.T, dir string) []string {
	t.Helper()
	p, status := runToEnd(t, nil, "export", "rules", dir)
	if status != 0 || len(p.stdout.lines()) == 0 {
		t.Fatalf("export rules ended with %d and wrote %q", status, p.stdout.lines())
	}
	return p.stdout.lines()
}

func TestExportedRulesPassPromtool(t *testing.T) {
	t.Parallel()
	promtool := tool(t, "promtool")
	dir := t.TempDir()
	files := exportRules(t, dir)
	if err := os.CopyFS(filepath.Join(filepath.Dir(files[0]), "tests"), os.DirFS(filepath.Join("..", "rules", "sidecar", "tests"))); err != nil {
		t.Fatal(err)
	}
	var tests []string
	for _, f := range files {
		tests = append(tests, filepath.Join(filepath.Dir(f), "tests", strings.TrimSuffix(filepath.Base(f), ".yml")+"_test.yml"))
	}
	for _, args := range [][]string{
		append([]string{"check", "rules", "--lint=all", "--lint-fatal"}, files...),
		append([]string{"test", "rules"}, tests...),
	} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s %s: %v\n%s", args[0], args[1], err, out)
		}
	}
}

// One GPU that tells everything, one rank, every shipped rule at work, a
// threshold for everything, a store on disk: all that /metrics says. Estimates
// of the bandwidth beside the measured one are asked for by flags, and more.
func TestSeriesOfOneGPUWithRules(t *testing.T) {
	t.Parallel()
	const limit = 410
	engine := simulate(t, "--load=constant:8")
	g := newFakeGPUs(t, nil)
	s := g.serve(engine.url, "--storage.path="+filepath.Join(t.TempDir(), "storage"), "--slo.e2e=30s")
	var records []string
	for _, f := range exportRules(t, t.TempDir()) {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^\s*- record: (\S+)$`).FindAllStringSubmatch(string(text), -1) {
			records = append(records, m[1])
		}
	}
	eventually(t, 3*startLimit, "every shipped rule records", func() error {
		page, err := getMetrics(s.url)
		if err != nil {
			return err
		}
		for _, name := range records {
			if page[name] == nil {
				return fmt.Errorf("%s is absent", name)
			}
		}
		return nil
	})
	body := mustGet(t, s.url+"/metrics")
	n := seriesOf(body)
	t.Logf("%d series in %d bytes", n, len(body))
	if n > limit {
		t.Errorf("%d series, want at most %d", n, limit)
	}
}
