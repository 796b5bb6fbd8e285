package simulator

import (
	"math"
	"strconv"
	"testing"
)

// The wanted texts are what prometheus_client 0.25's floatToGoString gives on
// CPython 3.11; the long ones stand in the captured pages.
func TestPythonFloat(t *testing.T) {
	for want, v := range map[string]float64{
		"0.0":                    0,
		"8.0":                    8,
		"-1.0":                   -1,
		"0.0001":                 0.0001,
		"1e-05":                  0.00001,
		"1.5e-07":                1.5e-7,
		"0.0058597326496978575":  0.0058597326496978575,
		"29.159999999999997":     29.159999999999997,
		"999999.0":               999999,
		"1e+06":                  1e6,
		"1.234567e+06":           1234567,
		"-1234567.0":             -1234567,
		"4.138196992e+09":        4138196992,
		"1.7959562047783606e+09": 1795956204.7783606,
		"3.294070784e+10":        32940707840,
		"1e+11":                  1e11,
		"1.5e+15":                1.5e15,
		"1e+16":                  1e16,
		"2.5e+22":                2.5e22,
		"+Inf":                   math.Inf(1),
		"-Inf":                   math.Inf(-1),
		"NaN":                    math.NaN(),
	} {
		if got := string(appendPythonFloat(nil, v)); got != want {
			t.Errorf("%v is printed %s, want %s", v, got, want)
		}
	}
}

func FuzzPythonFloat(f *testing.F) {
	f.Add(uint64(0))
	f.Add(math.Float64bits(123456789.125))
	f.Add(math.Float64bits(-1e300))
	f.Fuzz(func(t *testing.T, bits uint64) {
		v := math.Float64frombits(bits)
		text := string(appendPythonFloat(nil, v))
		back, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatalf("%v is printed %q: %v", v, text, err)
		}
		if back != v && !(math.IsNaN(back) && math.IsNaN(v)) {
			t.Fatalf("%v is printed %q and reads back as %v", v, text, back)
		}
	})
}

func TestHistogramBoundsAreInclusive(t *testing.T) {
	h := newHistogram([]float64{1, 2})
	for _, v := range []float64{0.5, 1, 1.5, 2, 3} {
		h.observe(v)
	}
	if h.counts[0] != 2 || h.counts[1] != 2 || h.counts[2] != 1 || h.sum != 8 {
		t.Errorf("counts %v, sum %v", h.counts, h.sum)
	}
}

func TestLabelText(t *testing.T) {
	got := labelText(label{"model_name", `a"b\c`}, label{"engine", "0"})
	if want := `engine="0",model_name="a\"b\\c"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
