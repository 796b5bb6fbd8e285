package plot

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestTicks(t *testing.T) {
	for _, most := range []float64{0, 0.003, 1, 7, 22.3, 1999} {
		ticks, top := LinearTicks(most, 5)
		if len(ticks) < 2 || len(ticks) > 7 || top < most || ticks[len(ticks)-1] != top {
			t.Errorf("ticks to %g are %v, top %g", most, ticks, top)
		}
	}
	if got := fmt.Sprint(LogTicks(3, 600)); got != "[5 10 20 50 100 200 500]" {
		t.Errorf("ticks from 3 to 600 are %s", got)
	}
	for _, test := range []struct {
		most  float64
		n     int
		ticks []float64
	}{
		{27.8, 6, []float64{0, 5, 10, 15, 20, 25, 30}},
		{100, 5, []float64{0, 20, 40, 60, 80, 100}},
		{0, 5, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}},
	} {
		ticks, top := LinearTicks(test.most, test.n)
		if len(ticks) != len(test.ticks) || math.Abs(top-test.ticks[len(test.ticks)-1]) > 1e-9 {
			t.Errorf("to %g: %v, want %v", test.most, ticks, test.ticks)
			continue
		}
		for i := range ticks {
			if math.Abs(ticks[i]-test.ticks[i]) > 1e-9 {
				t.Errorf("to %g: %v, want %v", test.most, ticks, test.ticks)
			}
		}
	}
	for _, test := range []struct {
		from, to float64
		want     int
	}{{0.02, 1, 6}, {5.2, 19, 4}, {0.001, 1, 4}, {1e-12, 1e12, 9}, {0, 1, 0}, {1, 1, 0}, {1, math.Inf(1), 0}, {math.NaN(), 1, 0}} {
		if ticks := LogTicks(test.from, test.to); len(ticks) != test.want {
			t.Errorf("from %g to %g: %v, want %d ticks", test.from, test.to, ticks, test.want)
		}
	}
}

// What is not known breaks a line, and is never drawn at 0.
func TestGapsInALine(t *testing.T) {
	d := New(Frame{Width: 100, Height: 100}, "")
	d.Path([]Point{{1, 1}, {2, 2}, {3, math.NaN()}, {4, 4}, {5, 5}}, "line")
	d.Mark(Pt(3, math.NaN()), Disc, "", "")
	if got, want := string(d.HTML()), `d="M1 1L2 2M4 4L5 5"`; !strings.Contains(got, want) || strings.Contains(got, "circle") {
		t.Errorf("%s, want %s and no mark", got, want)
	}
}

// What is not known is not drawn, in no way; an area needs all of its edge.
func TestUnknownIsNotDrawn(t *testing.T) {
	nan := math.NaN()
	d := New(Frame{Width: 100, Height: 100}, "")
	before := d.Len()
	d.Line(1, 1, nan, 2, "line")
	d.Rect(nan, 0, 5, 5, "bar", "")
	d.Rect(0, 0, nan, 5, "bar", "")
	d.Circle(Pt(nan, 1), 2, "dot", "")
	d.Area([]Point{{1, 1}, {2, nan}, {3, 3}}, "area")
	d.Path([]Point{{1, nan}, {2, 2}}, "line")
	d.Column(5, "start", []Beside{{nan, "lost", "beside"}})
	if d.Len() != before {
		t.Errorf("drawn: %s", d.HTML())
	}
}

func TestTextIsEscaped(t *testing.T) {
	const evil = `<script>"&'`
	d := New(Frame{Width: 100, Height: 100, Class: "small"}, evil)
	d.Text(1, 1, "end", "tick", evil)
	d.Rect(1, 1, 2, 2, "bar", evil)
	d.Circle(Pt(1, 1), 2, "dot", evil)
	d.Mark(Pt(1, 1), Ring, "c0", evil)
	d.Baseline(evil)
	d.YAxis([]float64{1}, Axis{To: 1, End: 1}, func(float64) string { return evil }, evil)
	got := string(d.HTML())
	if strings.Contains(got, "<script") || strings.Count(got, "&lt;script&gt;&#34;&amp;&#39;") != 8 {
		t.Errorf("not escaped, or not there: %s", got)
	}
	if !strings.HasPrefix(got, `<svg viewBox="0 0 100 100" class="small" role="img"`) {
		t.Errorf("the picture begins %.60s", got)
	}
}

// Values beyond an axis are held at its ends; a logarithm of nothing is a gap.
func TestAxis(t *testing.T) {
	linear := Axis{From: 0, To: 10, Start: 100, End: 200}
	logarithmic := Axis{From: 0.01, To: 1, Start: 100, End: 0, Log: true}
	for _, test := range []struct {
		axis        Axis
		value, want float64
	}{
		{linear, 0, 100}, {linear, 2.5, 125}, {linear, 11, 200}, {linear, -1, 100}, {linear, math.NaN(), math.NaN()},
		{logarithmic, 0.1, 50}, {logarithmic, 1, 0}, {logarithmic, 0, math.NaN()}, {logarithmic, -1, math.NaN()},
		{Axis{From: 1, To: 1, Start: 7, End: 9}, 1, 7},
	} {
		if got := test.axis.At(test.value); math.Abs(got-test.want) > 1e-9 || math.IsNaN(got) != math.IsNaN(test.want) {
			t.Errorf("%+v: %g is at %g, want %g", test.axis, test.value, got, test.want)
		}
	}
}
