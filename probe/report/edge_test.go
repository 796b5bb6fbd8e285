package report

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

// unknowns makes every value in it unknown.
func unknowns(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			unknowns(v.Elem())
		}
	case reflect.Struct:
		if _, ok := v.Interface().(time.Time); ok {
			return
		}
		for i := range v.NumField() {
			unknowns(v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			unknowns(v.Index(i))
		}
	case reflect.Float64:
		if v.Type() == reflect.TypeFor[curve.Value]() {
			v.SetFloat(math.NaN())
		}
	}
}

// scaled multiplies every value in it.
func scaled(v reflect.Value, by float64) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			scaled(v.Elem(), by)
		}
	case reflect.Struct:
		if _, ok := v.Interface().(time.Time); ok {
			return
		}
		for i := range v.NumField() {
			scaled(v.Field(i), by)
		}
	case reflect.Slice:
		for i := range v.Len() {
			scaled(v.Index(i), by)
		}
	case reflect.Float64:
		if v.Type() == reflect.TypeFor[curve.Value]() {
			v.SetFloat(v.Float() * by)
		}
	}
}

// checkPage holds the page well-formed, without anything loaded, and without
// numbers that are none.
func checkPage(t *testing.T, page string) {
	t.Helper()
	for _, bad := range []string{"NaN", "Inf", "http://", "https://", "<script", "url(", "@import", "%!"} {
		if strings.Contains(page, bad) {
			at := strings.Index(page, bad)
			t.Errorf("the page contains %q: …%s…", bad, page[max(0, at-80):min(len(page), at+80)])
		}
	}
	for i, picture := range svgs(page) {
		d := xml.NewDecoder(strings.NewReader(picture))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Errorf("picture %d is not well-formed: %v\n%.300s", i+1, err, picture)
				break
			}
		}
	}
}

// svgs are the pictures of a page.
func svgs(page string) []string {
	var out []string
	for _, part := range strings.Split(page, "<svg ")[1:] {
		body, _, _ := strings.Cut(part, "</svg>")
		out = append(out, "<svg "+body+"</svg>")
	}
	return out
}

// drawings are the pictures in figures.
func drawings(page string) int { return strings.Count(page, "<figure") }

func TestUnusualCurves(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*curve.Curve)
		// verdict is a part of the first verdict; empty wants none at all.
		verdict  string
		contains []string
		pictures int
	}{
		{"as it is", func(*curve.Curve) {}, "chat: safe at 22.1 requests/s (Poisson); the knee is 24.0 (22.6 to 25.2, 90 %)", []string{"stable", "risk", "unstable"}, 20},
		{"nothing at all", func(c *curve.Curve) { *c = curve.Curve{} }, "", []string{"nothing was measured"}, 0},
		{"no study", func(c *curve.Curve) { c.Classes[0].Studies, c.Mixes = nil, nil; c.Classes = c.Classes[:1] }, "chat: nothing was measured", []string{"not measured", "Measure it."}, 0},
		{"a mix alone", func(c *curve.Curve) {
			for i := range c.Classes {
				c.Classes[i].Studies = nil
			}
		}, "chat: nothing was measured", []string{"No class has a knee: serve counts no load by this curve"}, 11},
		{"nothing known", func(c *curve.Curve) { unknowns(reflect.ValueOf(c)) }, "chat: no safe rate (Poisson)", []string{"nothing to draw"}, 0},
		{"one point", func(c *curve.Curve) {
			s := &c.Classes[0].Studies[0]
			*s = curve.Study{Arrivals: s.Arrivals, Status: curve.StatusNoSafeRate, Reason: "the first point failed.", SafeRate: capacity.Unknown(), Points: s.Points[6:7]}
			c.Classes[0].Studies, c.Classes, c.Mixes = c.Classes[0].Studies[:1], c.Classes[:1], nil
		}, "chat: no safe rate (Poisson): the first point failed", []string{"Look whether the nearly idle point keeps the bounds."}, 9},
		{"interrupted", func(c *curve.Curve) {
			s := &c.Classes[0].Studies[0]
			s.Status, s.Reason, s.SafeRate, s.Knee, s.Soak, s.Burst, s.Curve = curve.StatusInterrupted, "stopped by a signal", capacity.Unknown(), nil, nil, nil, nil
		}, "chat: interrupted before there was a safe rate (Poisson): stopped by a signal", []string{"Interrupted: ", "--resume"}, 20},
		{"estimate", func(c *curve.Curve) { c.Estimate = true }, "chat (estimate): safe at about 22.1 requests/s (Poisson), not soaked", []string{"An estimate: nothing was soaked"}, 20},
		{"simulated", func(c *curve.Curve) { c.Source = curve.Simulated }, "chat (simulated): ", []string{"Simulated: "}, 20},
		{"imported", func(c *curve.Curve) { c.Source, c.ImportedFrom = curve.Imported, "guidellm" }, "chat (imported from guidellm): ", []string{"Imported: ", "result file of guidellm"}, 20},
		{"closed loop", func(c *curve.Curve) {
			s := &c.Classes[0].Studies[0]
			s.Arrivals = curve.Arrivals{Process: "closed_loop"}
			s.Baseline, s.Soak = nil, nil
			for i := range s.Points {
				s.Points[i].Concurrency, s.Points[i].OfferedRate = i+1, capacity.Unknown()
			}
			c.Classes[0].Studies, c.Classes, c.Mixes = c.Classes[0].Studies[:1], c.Classes[:1], nil
		}, "(closed loop)", []string{"completed requests/s, closed loop"}, 9},
		{"not reached", func(c *curve.Curve) {
			s := &c.Classes[0].Studies[0]
			s.Status, s.Reason, s.Knee = curve.StatusNotReached, "--max-rate=20", nil
		}, "chat: safe at 22.1 requests/s at least (Poisson), the knee was not reached: --max-rate=20", []string{"--max-rate"}, 20},
		{"the queue grows first", func(c *curve.Curve) { c.Classes[0].Studies[0].Knee.BindingSLO = "queue_growth" }, "the queue grows before any latency gives", nil, 20},
		{"huge", func(c *curve.Curve) { scaled(reflect.ValueOf(c), 1e12) }, "chat: safe at 22.1T", nil, 20},
		{"tiny", func(c *curve.Curve) { scaled(reflect.ValueOf(c), 1e-9) }, "chat: safe at 2.2e-08 requests/s", nil, 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := brief(t)
			test.change(c)
			page, summary, verdicts := htmlOf(t, c), markdownOf(t, c), Verdicts(c)
			checkPage(t, page)
			if strings.Contains(summary, "NaN") || strings.Contains(summary, "%!") {
				t.Errorf("the summary holds a number that is none:\n%s", summary)
			}
			switch {
			case test.verdict == "" && len(verdicts) > 0:
				t.Errorf("verdicts %q, want none", verdicts)
			case test.verdict != "" && (len(verdicts) == 0 || !strings.Contains(verdicts[0], test.verdict)):
				t.Errorf("verdicts %q, want the first to contain %q", verdicts, test.verdict)
			}
			for _, want := range test.contains {
				if !strings.Contains(page, want) {
					t.Errorf("the page does not contain %q", want)
				}
			}
			if n := drawings(page); n != test.pictures {
				t.Errorf("%d pictures, want %d", n, test.pictures)
			}
			if n := strings.Count(page, `role="img"`) - strings.Count(page, `role="img" aria-label=""`); n < test.pictures {
				t.Errorf("%d pictures say what they show, want %d", n, test.pictures)
			}
		})
	}
}

// Whatever names and texts hold is text, on the page and in the summary.
func TestTextsAreEscaped(t *testing.T) {
	const evil = `<script>alert(1)</script>"'&|` + "`\n# x"
	c := example(t)
	c.Identity.Model, c.Classes[0].Name, c.Mixes[0].Name = evil, evil, evil
	c.Notes, c.ImportedFrom, c.Source = []string{evil}, evil, curve.Imported
	c.Coverage = []curve.Coverage{{Item: evil, Detail: evil, Command: evil}}
	for i := range c.Classes[0].Studies {
		s := &c.Classes[0].Studies[i]
		s.Arrivals.Process, s.Knee.Evidence, s.Knee.Bottleneck = evil, []string{evil}, evil
		for k := range s.Points {
			p := &s.Points[k]
			p.Name, p.Stopped, p.Faults = evil, evil, []string{evil}
			for n := range p.Gates {
				p.Gates[n].Name, p.Gates[n].Detail, p.Gates[n].SLO = evil, evil, nil
			}
		}
	}
	page, summary := htmlOf(t, c), markdownOf(t, c)
	checkPage(t, page)
	if !strings.Contains(page, "&lt;script&gt;alert(1)") {
		t.Error("the page does not show the name")
	}
	outside := summary
	for line := range strings.Lines(summary) {
		if strings.Contains(line, "alert(1)") && strings.HasPrefix(line, "- [ ] ") {
			outside = strings.ReplaceAll(outside, line, "") // the command is code, where nothing is markup
		}
	}
	if strings.Contains(outside, "<script") || strings.Contains(outside, "\n# x") {
		t.Errorf("the summary has markup of a name's:\n%s", outside)
	}
	for _, v := range Verdicts(c) {
		if strings.ContainsAny(v, "\n\r") {
			t.Errorf("the verdict %q is not one line", v)
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, test := range []struct {
		value                  float64
		number, rate, duration string
	}{
		{math.NaN(), "–", "–", "–"},
		{math.Inf(1), "–", "–", "–"},
		{0, "0", "0", "0 s"},
		{0.0000004, "4e-07", "4e-07", "0.4 µs"},
		{0.0123, "0.0123", "0.0123", "12.3 ms"},
		{0.8, "0.8", "0.80", "800 ms"},
		{0.9996, "1", "1.00", "1 s"},
		{4.5, "4.5", "4.50", "4.5 s"},
		{9.996, "10", "10.0", "10 s"},
		{99.96, "100", "100.0", "100 s"},
		{1234, "1234", "1234", "20.6 min"},
		{9999, "10k", "10k", "167 min"},
		{12345678, "12.3M", "12.3M", "3429 h"},
		{2.5e12, "2.5T", "2.5T", "694M h"},
		{3e18, "3e+18", "3e+18", "833T h"},
	} {
		v := curve.Value(test.value)
		if n, r, d := number(v), rate(v), seconds(v); n != test.number || r != test.rate || d != test.duration {
			t.Errorf("%g is written %q, %q, %q, want %q, %q, %q", test.value, n, r, d, test.number, test.rate, test.duration)
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestWriteErrors(t *testing.T) {
	c := example(t)
	if err := HTML(failing{}, c); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("HTML: %v, want the writer's error", err)
	}
	if err := Markdown(failing{}, c); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("Markdown: %v, want the writer's error", err)
	}
}
