package capacity_test

import (
	"compress/gzip"
	"encoding/csv"
	"os"
	"strconv"
	"testing"
)

// second is what arrived in one second of a trace.
type second struct{ requests, promptTokens, generationTokens float64 }

// readTrace reads testdata/arrivals.csv.gz: each second of one of its traces.
func readTrace(t *testing.T, name string) []second {
	t.Helper()
	f, err := os.Open("testdata/arrivals.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(unzipped).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var trace []second
	for _, row := range rows[1:] {
		if row[0] != name {
			continue
		}
		var v [4]float64
		for i, text := range row[1:] {
			if v[i], err = strconv.ParseFloat(text, 64); err != nil {
				t.Fatal(err)
			}
		}
		for len(trace) < int(v[0]) {
			trace = append(trace, second{})
		}
		trace = append(trace, second{v[1], v[2], v[3]})
	}
	return trace
}

// requests of each bin of so many seconds; the last one, if not full, is left out.
func requests(trace []second, width int) []float64 {
	var counts []float64
	for ; len(trace) >= width; trace = trace[width:] {
		n := 0.0
		for _, s := range trace[:width] {
			n += s.requests
		}
		counts = append(counts, n)
	}
	return counts
}
