package gpu

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// full is a snapshot in which everything is known.
func full() Snapshot {
	r := NewReading()
	v := reflect.ValueOf(&r).Elem()
	for i := range v.NumField() {
		if v.Field(i).Kind() == reflect.Float64 {
			v.Field(i).SetFloat(1)
		}
	}
	r.UUID, r.RecoveryAction = "GPU-a", "none"
	r.ThrottleActive = throttleActive(0)
	r.ThrottleSeconds = map[string]float64{"sw_power_cap": 1}
	r.Capabilities = map[string]bool{"gpm": true}
	counts := newXIDCounts()
	counts.add(79, time.Unix(1_800_000_000, 0))
	r.XIDs = counts.list()
	return Snapshot{Status: Status{
		Up: true, Reason: OK, LastSuccess: time.Unix(1_800_000_000, 0), Rejected: map[string]uint64{"above_one": 1},
		Calls: map[string]Call{"nvmlDeviceGetName": {Errors: map[string]uint64{"unknown": 1}}},
	}, Readings: []Reading{r}}
}

func TestMetricsAreClean(t *testing.T) {
	problems, err := testutil.CollectAndLint(NewMetrics(full))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewMetrics(full))
	got, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(families) {
		t.Errorf("%d of %d families have a series when everything is known", len(got), len(families))
	}
}

func TestUnknownIsAbsent(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewMetrics(func() Snapshot {
		r := NewReading()
		r.UUID = "GPU-a"
		return Snapshot{Readings: []Reading{r}, Status: Status{Reason: Off}}
	}))
	got, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range got {
		switch name := strings.TrimPrefix(f.GetName(), "headroom_gpu_"); name {
		case "up", "info", "capacity_lost":
		case "nvml_up", "collect_stuck", "visible", "expected", "selection_ambiguous", "collect_panics_total":
		default:
			t.Errorf("%s has a series though nothing is known", f.GetName())
		}
	}
}

// Each float of a reading starts unknown, whoever adds one.
func TestNewReadingKnowsNothing(t *testing.T) {
	for _, r := range []Reading{NewReading(), full().Readings[0].lost("gone")} {
		v := reflect.ValueOf(r)
		for i := range v.NumField() {
			if v.Field(i).Kind() == reflect.Float64 && !math.IsNaN(v.Field(i).Float()) {
				t.Errorf("%s is %v", v.Type().Field(i).Name, v.Field(i))
			}
		}
		if r.RecoveryAction != "" || r.ThrottleActive != nil || r.ThrottleSeconds != nil {
			t.Errorf("known: %+v", r)
		}
	}
}
