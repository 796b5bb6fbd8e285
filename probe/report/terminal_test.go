package report

import (
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
)

const terminalExample = "testdata/terminal.txt"

func terminalOf(t *testing.T, c *curve.Curve, width int) string {
	t.Helper()
	var b strings.Builder
	if err := Terminal(&b, c, width); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func fileCurve(t *testing.T) *curve.Curve {
	t.Helper()
	c, err := curve.ReadFile("../../capacity/curve/testdata/example.json")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestTerminalExample holds the text of the example as it was looked at.
func TestTerminalExample(t *testing.T) {
	got := terminalOf(t, fileCurve(t), 80)
	if *update {
		if err := os.WriteFile(terminalExample, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(terminalExample)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("%s is not what is written now: look at it and run go test ./probe/report -update\n%s", terminalExample, got)
	}
}

// TestTerminalPlaces looks for each mark where the numbers put it: the column
// of a rate is its share of the axis, the row of the bound has its label.
func TestTerminalPlaces(t *testing.T) {
	c := fileCurve(t)
	c.Classes = c.Classes[:1]
	c.Classes[0].Studies = c.Classes[0].Studies[:1]
	c.Mixes = nil
	study := &c.Classes[0].Studies[0]
	lines := strings.Split(terminalOf(t, c, 100), "\n")
	begin := 0
	for i, line := range lines {
		if strings.HasPrefix(line, "chat, Poisson: P99 TTFT") {
			begin = i + 1
		}
	}
	if begin == 0 {
		t.Fatal("no picture")
	}
	picture := lines[begin : begin+tailRows]
	columns := 100 - gutter - 1
	most := 1.16 * 24 * 1.03 // the highest point and some room
	column := func(rate float64) int {
		return gutter + int(rate/most*float64(columns-1)+0.5)
	}
	at := func(line string, column int) rune {
		runes := []rune(line)
		if column >= len(runes) {
			return ' '
		}
		return runes[column]
	}
	for i, line := range picture {
		for what, place := range map[string]struct {
			rate float64
			own  rune
		}{"knee": {24, runeKnee}, "watermark": {float64(study.Knee.Watermark), runeWatermark}} {
			// A mark or the bound's line may cover it.
			if r := at(line, column(place.rate)); r != place.own && !strings.ContainsRune("oSx-", r) {
				t.Errorf("line %d has %q at the %s", i+1, r, what)
			}
		}
	}
	marks := strings.Count(strings.Join(picture, ""), "o") + strings.Count(strings.Join(picture, ""), "x") + strings.Count(strings.Join(picture, ""), "S")
	if marks != 9 { // the baseline, seven points and the soak
		t.Errorf("%d marks, want 9:\n%s", marks, strings.Join(picture, "\n"))
	}
	// Points above the bound are above its line, those below it are below.
	bound := -1
	for i, line := range picture {
		if strings.Contains(line, "800 ms |") {
			bound = i
		}
	}
	for i, line := range picture {
		if strings.Contains(line, "x") && i > bound || strings.ContainsAny(line, "oS") && i < bound {
			t.Errorf("a mark on the wrong side of the bound, which is line %d: %s", bound+1, line)
		}
	}
}

// TestTerminalUnusual: curves of which little is known.
func TestTerminalUnusual(t *testing.T) {
	nan := capacity.Unknown()
	for name, change := range map[string]func(c *curve.Curve){
		"no study": func(c *curve.Curve) { c.Classes[0].Studies = nil },
		"no knee":  func(c *curve.Curve) { c.Classes[0].Studies[0].Knee = nil },
		"nothing known": func(c *curve.Curve) {
			k := curve.UnknownKnee()
			c.Classes[0].Studies[0].Knee = &k
			c.Classes[0].Studies[0].SafeRate = nan
		},
		"no points": func(c *curve.Curve) {
			s := &c.Classes[0].Studies[0]
			s.Points, s.Baseline, s.Soak = nil, nil, nil
		},
		"no latencies": func(c *curve.Curve) {
			for i := range c.Classes[0].Studies[0].Points {
				c.Classes[0].Studies[0].Points[i].TTFT.P99 = nan
			}
		},
		"no bounds":    func(c *curve.Curve) { c.SLO, c.Classes[0].SLO = nil, nil },
		"growth gives": func(c *curve.Curve) { c.Classes[0].Studies[0].Knee.BindingSLO = "queue_growth" },
		"a rate of 0": func(c *curve.Curve) {
			c.Classes[0].Studies[0].Points = c.Classes[0].Studies[0].Points[:1]
			c.Classes[0].Studies[0].Points[0].OfferedRate = 0
		},
		"one curve point": func(c *curve.Curve) {
			v := &c.Classes[0].Studies[0].Curve[0]
			v.Rate, v.Fraction = v.Rate[:1], v.Fraction[:1]
		},
		"controls in names": func(c *curve.Curve) { c.Classes[0].Name = "a\x1b[31m\nb"; c.Notes = []string{"x\x1b]0;y\x07"} },
	} {
		c := fileCurve(t)
		change(c)
		for _, width := range []int{0, 80, 1000} {
			text := terminalOf(t, c, width)
			if strings.Contains(text, "NaN") || strings.Contains(text, "\x1b") || !utf8.ValidString(text) {
				t.Errorf("%s, width %d:\n%s", name, width, text)
			}
		}
	}
	if err := Terminal(failing{}, fileCurve(t), 80); err == nil || !strings.Contains(err.Error(), "writing the curve") {
		t.Errorf("error is %v", err)
	}
}
