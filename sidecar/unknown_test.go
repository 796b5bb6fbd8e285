package sidecar_test

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"testing/synctest"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/sidecar"
)

// floats visits every float of a value by its path, but for what is behind a pointer.
func floats(path string, v reflect.Value, visit func(path string, value float64)) {
	switch v.Kind() {
	case reflect.Float64:
		visit(path, v.Float())
	case reflect.Struct:
		for i := range v.NumField() {
			floats(path+"."+v.Type().Field(i).Name, v.Field(i), visit)
		}
	case reflect.Array, reflect.Slice:
		for i := range v.Len() {
			floats(fmt.Sprintf("%s[%d]", path, i), v.Index(i), visit)
		}
	}
}

// What is not known is NaN, never 0: of a replica of which nothing is known
// that is every float, and of one that was read once every float that is 0.
func TestUnknownIsNaN(t *testing.T) {
	c := smallCurve()
	given := withCurve(c, func() (curve.Identity, error) { return c.Identity, nil })
	t.Run("down", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSidecar(t, &fakeEngine{down: true}, given)
			run(s, 10, nil)
			visited := 0
			floats("Replica", reflect.ValueOf(s.Snapshot().Replicas[0]), func(path string, v float64) {
				if visited++; !math.IsNaN(v) {
					t.Errorf("%s is %v", path, v)
				}
			})
			if visited < 60 {
				t.Errorf("only %d floats were looked at", visited)
			}
		})
	})
	for readings := range 4 {
		t.Run(fmt.Sprintf("read %d times", readings+1), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeEngine{ranks: []fakeRank{{running: 4, waiting: 2, kvUsage: 0.36}}}
				s := newSidecar(t, f, given)
				run(s, readings+1, func(int) { f.ranks[0].second(2, 100, 50, 50) })
				floats("Replica", reflect.ValueOf(s.Snapshot().Replicas[0]), func(path string, v float64) {
					if v == 0 && path != "Replica.Rates.Preemptions" { // there are none
						t.Errorf("%s is 0", path)
					}
				})
			})
		})
	}
}

// A rate is not told of a span in which one request would be a spike.
func TestRatesNeedASpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		s := newSidecar(t, f, nil)
		run(s, 1, nil)
		f.ranks[0].second(40, 100, 50, 50) // at once
		for range 8 {
			run(s, 1, nil)
			r := s.Snapshot().Replicas[0]
			want := nan
			if r.RateSpan >= sidecar.MinRateSpan {
				want = 4000 / r.RateSpan.Seconds()
			}
			near(t, fmt.Sprintf("prompt tokens/s over %s", r.RateSpan), r.Rates.ComputedPromptTokens, want)
		}
	})
}

// The load that is named is that of the constraint with the largest ratio.
func TestEvidenceNamesTheConstraint(t *testing.T) {
	for _, test := range []struct {
		name  string
		curve bool
		want  string
	}{
		{"without a curve", false, "the load is 25 % of the sequence slots"},
		{"with a curve", true, "the load is 47.5 % of the knee"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := smallCurve()
				f := &fakeEngine{ranks: []fakeRank{{running: 2, kvUsage: 0.1}}}
				rate, change := 1.9, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil })
				if !test.curve {
					change = nil
				}
				s := newSidecar(t, f, change)
				run(s, 90, func(int) { f.ranks[0].second(rate, 100, 50, 50) })
				b := s.Snapshot().Replicas[0].Bottleneck
				if b.Bottleneck != capacity.BottleneckNone || len(b.Evidence) != 1 || b.Evidence[0] != test.want {
					t.Errorf("%s: %q, want %q", b.Bottleneck, b.Evidence, test.want)
				}
			})
		})
	}
}
