package rules

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/rulefmt"
)

func TestSpan(t *testing.T) {
	for _, tt := range []struct {
		expr string
		want time.Duration
		err  error
	}{
		{"a", 0, nil},
		{"1 + 2", 0, nil},
		{"rate(a[5m])", 5 * time.Minute, nil},
		{"rate(a[5m] offset 10m)", 15 * time.Minute, nil},
		{"a offset 1h", time.Hour, nil},
		{"a offset -1h", 0, nil},
		{"rate(a[5m]) / rate(b[1h])", time.Hour, nil},
		{"max_over_time(rate(a[5m])[30m:10s])", 35 * time.Minute, nil},
		{"max_over_time(rate(a[5m] offset 1m)[30m:10s] offset 2m)", 38 * time.Minute, nil},
		{"max_over_time(max_over_time(rate(a[5m])[30m:])[1h:])", 95 * time.Minute, nil},
		{"sum by (x) (rate(a[5m])) > on (x) b offset 2h", 2 * time.Hour, nil},
		{"a @ 1700000000", 0, errFixedTime},
		{"max_over_time(a[5m:] @ 1700000000)", 5 * time.Minute, errFixedTime},
		{"rate(a[5m] @ end())", 5 * time.Minute, nil},
	} {
		expr, err := promQL.ParseExpr(tt.expr)
		if err != nil {
			t.Fatal(err)
		}
		got, err := span(expr)
		if got != tt.want || !errors.Is(err, tt.err) || (tt.err == nil && err != nil) {
			t.Errorf("span(%s) = %v, %v; want %v, %v", tt.expr, got, err, tt.want, tt.err)
		}
	}
}

// Each refusal names the file, the group and the rule, and says why.
func TestRefusals(t *testing.T) {
	const inRule = `group "g", rule 1, `
	for _, tt := range []struct {
		name, content string
		want          []string
	}{
		{"alert", group("      - alert: Low\n        expr: a < 1\n"), []string{inRule, `"Low"`, "alerting rule"}},
		{"range", group(rule("x", "rate(a[3h])")), []string{inRule, `"x"`, "reads 3h0m0s back", "2h0m0s"}},
		{"range and offset", group(rule("x", "rate(a[90m] offset 31m)")), []string{inRule, "2h1m0s"}},
		{"subquery", group(rule("x", "max_over_time(rate(a[1h])[61m:])")), []string{inRule, "2h1m0s"}},
		{"query offset", "groups:\n  - name: g\n    query_offset: 1h\n    rules:\n" + rule("x", "rate(a[61m])"), []string{inRule, "2h1m0s"}},
		{"fixed time", group(rule("x", "a @ 1700000000")), []string{inRule, "fixed time"}},
		{"computed range", group(rule("x", "rate(a[2m+3m])")), []string{"x", "computes a range"}},
		{"colon", group(rule("level:x:rate", "a")), []string{inRule, `"level:x:rate"`, "colon"}},
		{"job label", group(rule("x", "a") + "        labels: {job: y}\n"), []string{inRule, `"x"`, "label job"}},
		{"instance label", group(rule("x", "a") + "        labels: {instance: y}\n"), []string{inRule, "label instance"}},
		{"label of the group", "groups:\n  - name: g\n    labels: {job: y}\n    rules:\n" + rule("x", "a"), []string{`group "g"`, "label job"}},
		{"label_replace", group(rule("x", `label_replace(a, "job", "$1", "b", "(.*)")`)), []string{inRule, "label job"}},
		{"label_join", group(rule("x", `sum(label_join(a, ("instance"), ",", "b", "c"))`)), []string{inRule, "label instance"}},
		{"count_values", group(rule("x", `count_values("job", a)`)), []string{inRule, "label job"}},
		{"reserved label", group(rule("x", `label_replace(a, "__b", "$1", "b", "(.*)")`)), []string{inRule, "__b", "reserved"}},
		{"native histogram", group(rule("x", "histogram_avg(rate(a[5m]))")), []string{inRule, "histogram_avg", "native histograms"}},
		{"UTF-8 name", group(rule("x.y", "a")), []string{inRule, `"x.y"`, "invalid recording rule name"}},
		{"UTF-8 selector", group(rule("x", `'{"a.b"}'`)), []string{inRule, `"a.b"`, "classic metric name"}},
		{"UTF-8 matcher", group(rule("x", `'{"b.c"="d", __name__="a"}'`)), []string{inRule, `"b.c"`, "classic label name"}},
		{"UTF-8 label", group(rule("x", "a") + "        labels: {b.c: y}\n"), []string{inRule, "b.c"}},
		{"UTF-8 label written", group(rule("x", `label_replace(a, "b.c", "$1", "b", "(.*)")`)), []string{inRule, `"b.c"`, "classic label name"}},
		{"own name", group(rule("headroom_ratio", "a")), []string{inRule, `"headroom_ratio"`, "exposes itself"}},
		{"own prefix", group(rule("headroom_exporter_x", "a")), []string{inRule, "headroom_exporter_"}},
		{"interval", "groups:\n  - name: g\n    interval: 10ms\n    rules:\n" + rule("x", "a"), []string{`group "g"`, "10ms"}},
		{"two faults", group(rule("a:b", "rate(a[3h])")), []string{inRule, "colon", "reads 3h0m0s back"}},
		{"expression", group(rule("x", "rate(a)")), []string{inRule, `"x"`, "could not parse expression"}},
		{"experimental function", group(rule("x", "limitk(1, a)")), []string{inRule, "experimental"}},
		{"no such field", "groups:\n  - name: g\n    intervall: 5s\n", []string{"intervall"}},
		{"no YAML", "groups: [", []string{"yaml"}},
		{"second rule", group(rule("x", "a") + rule("y:z", "a")), []string{`group "g", rule 2, "y:z"`}},
		{"large", "# " + strings.Repeat("x", maxFileBytes), []string{"larger"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := write(t, t.TempDir(), "user.yml", tt.content)
			_, err := New(Config{Files: []string{path}, Reserved: []string{"headroom_ratio"}})
			if err == nil {
				t.Fatal("the file was taken")
			}
			for _, want := range append(tt.want, path) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("one fault takes more than one line: %q", err)
			}
		})
	}
}

func TestShippedFiles(t *testing.T) {
	dir := t.TempDir()
	one := write(t, dir, "one.yml", group(rule("x", "a")))
	two := write(t, dir, "two.yml", group(rule("y", "b")))
	glob := filepath.Join(dir, "*.yml")
	for _, tt := range []struct {
		files, want []string
		err         error
	}{
		{[]string{one, two}, []string{one, two}, nil},
		{[]string{glob}, []string{one, two}, nil},
		{[]string{two, glob, dir + "/./one.yml"}, []string{two, one}, nil},
		{[]string{filepath.Join(dir, "none-*.yml")}, nil, nil},
		{[]string{filepath.Join(dir, "none.yml")}, nil, fs.ErrNotExist},
		{[]string{filepath.Join(dir, "[")}, nil, filepath.ErrBadPattern},
	} {
		c, err := Config{Files: tt.files}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		set, err := load(c)
		if !errors.Is(err, tt.err) || (tt.err == nil) != (err == nil) {
			t.Errorf("loading %v: %v, want %v", tt.files, err, tt.err)
		}
		if err == nil {
			if diff := cmp.Diff(tt.want, set.files); diff != "" {
				t.Errorf("loading %v: %s", tt.files, diff)
			}
		}
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{
		{Retention: time.Minute},
		{Interval: time.Millisecond},
		{Timeout: -1},
		{MaxSamples: -1},
		{MaxSeries: -1},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

func TestHelp(t *testing.T) {
	help, err := helpOf("f.yml", []byte(`# About the file.
groups:
  - name: g
    rules:
      # A section.

      # What x is,
      # in two lines.
      - record: x
        expr: a
      # Not read: x has its text.
      - record: x
        expr: b
      - record: y
        expr: c
`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"x": "What x is, in two lines.", "y": "Recorded by group g of rule file f.yml."}
	if diff := cmp.Diff(want, help); diff != "" {
		t.Error(diff)
	}
}

// What Files returns is good for loading as one's own.
func TestFilesLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	if err := os.CopyFS(dir, Files()); err != nil {
		t.Fatal(err)
	}
	written, err := filepath.Glob(filepath.Join(dir, "*.yml"))
	if err != nil || len(written) != len(shippedFiles()) || len(written) == 0 {
		t.Fatalf("wrote %v, %v", written, err)
	}
	c, err := Config{Files: written}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := load(c); err != nil {
		t.Error(err)
	}
}

// Every shipped rule has a help text of its own.
func TestShippedHelp(t *testing.T) {
	c, err := Config{Shipped: true}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	set, err := load(c)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range set.help {
		if strings.HasPrefix(text, "Recorded by") || !strings.HasSuffix(text, ".") {
			t.Errorf("%s: help text %q", name, text)
		}
	}
}

func TestThreshold(t *testing.T) {
	bounds := []float64{0.25, 0.5, 1, 2.5, inf}
	for _, tt := range []struct {
		threshold time.Duration
		bounds    []float64
		want      float64
		err       string
	}{
		{2500 * time.Millisecond, bounds, 2.5, ""},
		{250 * time.Millisecond, bounds, 0.25, ""},
		{2 * time.Second, bounds, 0, "--slo.ttft=2s is not a bucket bound of the engine's histogram, so nobody can say how much traffic met it: use 1s or 2.5s"},
		{100 * time.Millisecond, bounds, 0, "--slo.ttft=100ms is not a bucket bound of the engine's histogram, so nobody can say how much traffic met it: use 0.25s"},
		{time.Minute, bounds, 0, "--slo.ttft=1m0s is not a bucket bound of the engine's histogram, so nobody can say how much traffic met it: use 2.5s"},
		{time.Minute, []float64{inf}, 0, "--slo.ttft=1m0s: the engine's histogram has no finite bounds to compare it with"},
	} {
		got, err := Threshold("--slo.ttft", tt.threshold, tt.bounds)
		if tt.err != "" {
			if err == nil || err.Error() != tt.err {
				t.Errorf("Threshold(%v): error %v, want %s", tt.threshold, err, tt.err)
			}
		} else if err != nil || got != tt.want {
			t.Errorf("Threshold(%v) = %v, %v; want %v", tt.threshold, got, err, tt.want)
		}
	}
}

func FuzzLoad(f *testing.F) {
	for _, name := range shippedFiles() {
		content, err := shipped.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(content))
	}
	f.Add(group(rule("x", `label_replace(a, "job", "$1", "b", "(.*)")`)))
	c, err := Config{}.withDefaults()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content string) {
		set := &ruleSet{groups: map[string]*rulefmt.RuleGroups{}, help: map[string]string{}}
		open := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil }
		if err := set.add("fuzz.yml", open, limits{retention: c.Retention}, c.Logger); err != nil {
			return
		}
		for record := range set.help {
			if strings.Contains(record, ":") {
				t.Errorf("%q was taken", record)
			}
		}
	})
}

func TestShippedMetrics(t *testing.T) {
	all, err := ShippedMetrics()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]Metric{}
	for _, m := range all {
		if _, double := byName[m.Name]; double {
			t.Errorf("%s is described twice", m.Name)
		}
		byName[m.Name] = m
	}
	want := Metric{
		Name:   "headroom_slo_good_ratio",
		Help:   "Share of events in the window that met the SLO threshold, 0 to 1; absent without events. Exact, but for a window that holds a counter reset.",
		Labels: []string{"window"},
	}
	if diff := cmp.Diff(want, byName[want.Name]); diff != "" {
		t.Error(diff)
	}
	if m := byName["headroom_slo_events_total"]; !m.Counter || !slices.Equal(m.Labels, []string{"slo"}) {
		t.Errorf("%+v", m)
	}
}
