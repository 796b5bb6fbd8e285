package web

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"headroom_exporter/sidecar"
)

// past returns points a second apart that end at moment, with the given load ratios.
func past(ratios ...float64) []sidecar.HistoryPoint {
	s := build()
	points := make([]sidecar.HistoryPoint, len(ratios))
	for i, v := range ratios {
		at := moment.Add(-time.Duration(len(ratios)-1-i) * time.Second)
		if points[i] = pointOf(s, at); math.IsNaN(v) {
			points[i] = downPoint(at)
		}
		points[i].LoadRatio = v
	}
	return points
}

func TestDownsample(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 299, 300, 301, 450, 899, 900, 1801, 7200} {
		ratios := make([]float64, n)
		for i := range ratios {
			if ratios[i] = random.Float64(); random.IntN(4) == 0 {
				ratios[i] = nan
			}
		}
		points := past(ratios...)
		length := time.Duration(max(n, 1)) * time.Second
		kept := downsample(points, length, maxHistoryPoints)
		if n <= maxHistoryPoints && len(kept) != n || len(kept) > maxHistoryPoints {
			t.Errorf("%d points became %d", n, len(kept))
		}
		if n > maxHistoryPoints && len(kept) < maxHistoryPoints/2 {
			t.Errorf("%d points became only %d", n, len(kept))
		}
		original := map[time.Time]float64{}
		for _, p := range points {
			original[p.At] = p.LoadRatio
		}
		for i, p := range kept {
			if want, there := original[p.At]; !there || want != p.LoadRatio && !math.IsNaN(want) {
				t.Errorf("kept point %v %v is none of the points", p.At, p.LoadRatio)
			}
			if i > 0 && !p.At.After(kept[i-1].At) {
				t.Errorf("point %d is not after the one before", i)
			}
		}
		// No point lies above the kept one of its slice.
		slice := length.Nanoseconds()/int64(maxHistoryPoints-1) + 1
		highest := map[int64]float64{}
		for _, p := range kept {
			highest[p.At.UnixNano()/slice] = p.LoadRatio
		}
		if n > maxHistoryPoints {
			for _, p := range points {
				if h := highest[p.At.UnixNano()/slice]; p.LoadRatio > h || math.IsNaN(h) && !math.IsNaN(p.LoadRatio) {
					t.Errorf("%d points: %v at %v is above the kept %v", n, p.LoadRatio, p.At, h)
				}
			}
		}
	}
}

func TestHistory(t *testing.T) {
	ratios := make([]float64, 1000)
	for i := range ratios {
		ratios[i] = 0.5
	}
	ratios[700], ratios[999] = 1.7, nan
	source := &fixedSource{
		snapshot: build(withRanks(rank("0"), rank("1"))),
		points:   map[string][]sidecar.HistoryPoint{model + "/0": past(ratios...), model + "/1": past(0.25, 0.5)},
	}
	h := handlerOf(t, source)
	type answer struct {
		Seconds  int
		Replicas []struct {
			Engine           string
			UnixMilliseconds []int64               `json:"unix_milliseconds"`
			State            []string              `json:"state"`
			LoadRatio        []*float64            `json:"load_ratio"`
			LoadRatios       map[string][]*float64 `json:"load_ratios"`
		}
	}
	ask := func(query string) (a answer) {
		t.Helper()
		r := get(h, "GET", "/api/v1/history"+query)
		if err := json.Unmarshal([]byte(bodyOf(t, r)), &a); err != nil || r.StatusCode != 200 {
			t.Fatalf("%d %v", r.StatusCode, err)
		}
		return a
	}

	whole := ask("")
	if whole.Seconds != 900 || len(whole.Replicas) != 2 {
		t.Fatalf("%d seconds of %d replicas, want 900 of 2", whole.Seconds, len(whole.Replicas))
	}
	first := whole.Replicas[0]
	n := len(first.UnixMilliseconds)
	if n > 300 || n < 200 || len(first.LoadRatio) != n || len(first.State) != n || len(first.LoadRatios["queue"]) != n {
		t.Errorf("columns of %d, %d, %d and %d points, want the same, at most 300", n, len(first.LoadRatio), len(first.State), len(first.LoadRatios["queue"]))
	}
	if first.UnixMilliseconds[0] < moment.Add(-900*time.Second).UnixMilli() {
		t.Error("a point is older than asked for")
	}
	highest := 0.0
	for _, v := range first.LoadRatio {
		if v != nil {
			highest = max(highest, *v)
		}
	}
	if highest != 1.7 {
		t.Errorf("the peak is %v, want 1.7", highest)
	}
	if last := ask("?seconds=1&engine=0").Replicas[0]; len(last.LoadRatio) != 2 || last.LoadRatio[1] != nil || last.State[1] != "down" {
		t.Errorf("what is not known is not null: %+v", last)
	}

	if one := ask("?engine=1&model_name=" + model); len(one.Replicas) != 1 || one.Replicas[0].Engine != "1" || len(one.Replicas[0].LoadRatio) != 2 {
		t.Errorf("asked for rank 1, got %+v", one)
	}
	if none := ask("?engine=7"); none.Replicas == nil || len(none.Replicas) != 0 {
		t.Errorf("asked for a rank that is not there, got %+v", none)
	}
	for _, bad := range []string{"0", "-1", "7201", "15m", "1e3", "NaN"} {
		r := get(h, "GET", "/api/v1/history?seconds="+bad)
		if body := bodyOf(t, r); r.StatusCode != 400 || !strings.Contains(body, fmt.Sprintf(`seconds=\"%s\"`, bad)) {
			t.Errorf("seconds=%s: %d %s, want a 400 that names it", bad, r.StatusCode, body)
		}
	}
}

func BenchmarkHistory(b *testing.B) {
	ratios := make([]float64, 900)
	h := handlerOf(b, &fixedSource{snapshot: build(), points: map[string][]sidecar.HistoryPoint{model + "/0": past(ratios...)}})
	b.ReportAllocs()
	for b.Loop() {
		get(h, "GET", "/api/v1/history")
	}
}
