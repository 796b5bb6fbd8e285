package sidecar_test

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
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
		{"with a curve", true, "the load is 46 % of the knee"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := smallCurve()
				f := &fakeEngine{ranks: []fakeRank{{running: 2, kvUsage: 0.1}}}
				rate, change := 1.7, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil })
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

// Every family of the page absent, not a number, impossible, begun anew, and
// standing still, one at a time: what is published then is not known, or is what it was with all of
// them there. Nowhere does headroom grow for want of a number.
func TestEveryInputUnknown(t *testing.T) {
	families := regexp.MustCompile(`(?m)^# TYPE vllm:(\w+) `).FindAllStringSubmatch((&fakeEngine{ranks: []fakeRank{{drafts: 1}}}).page(), -1)
	if len(families) < 15 {
		t.Fatalf("only %d families on the page", len(families))
	}
	// published is what a replica says after a minute and a half of work, the last part of it with a fault.
	published := func(t *testing.T, fault func(*fakeEngine)) (r sidecar.Replica) {
		synctest.Test(t, func(t *testing.T) {
			c := pointedCurve()
			c.Classes[0].SpeculativeTokensPerStep = 3
			for i := range c.Classes[0].Studies[0].Points {
				c.Classes[0].Studies[0].Points[i].Engine.SpeculativeTokensPerStep = 3
			}
			f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
			s := newSidecar(t, f, withCurve(c, func() (curve.Identity, error) { return c.Identity, nil }))
			work := func(int) {
				f.ranks[0].second(2, 100, 50, 50)
				f.ranks[0].drafts += 50
				f.ranks[0].accepted += 100
			}
			run(s, 75, work)
			fault(f)
			run(s, 15, work)
			r = s.Snapshot().Replicas[0]
		})
		return r
	}
	whole := published(t, func(*fakeEngine) {})
	if !whole.Curve.Valid || math.IsNaN(whole.HeadroomRatio) {
		t.Fatalf("with all there: %q", whole.Curve.Reasons)
	}
	same := func(a, b float64) bool { return math.Abs(a-b) <= 0.1*math.Abs(b)+1e-9 }
	always := func(value string) func() func(string, string) string {
		return func() func(string, string) string { return func(string, string) string { return value } }
	}
	// since takes the values of the fault's beginning into account.
	since := func(value func(first, now float64) float64) func() func(string, string) string {
		return func() func(string, string) string {
			first := map[string]float64{}
			return func(series, text string) string {
				now, err := strconv.ParseFloat(text, 64)
				if err != nil {
					return text
				}
				if _, ok := first[series]; !ok {
					first[series] = now
				}
				return fmt.Sprint(value(first[series], now))
			}
		}
	}
	faults := map[string]func() func(series, value string) string{
		"not a number": always("NaN"), "infinite": always("+Inf"), "below 0": always("-1"), "no number at all": always("much"),
		"begins anew":  since(func(first, now float64) float64 { return now - first }),
		"stands still": since(func(first, _ float64) float64 { return first }),
	}
	for _, family := range families {
		name := family[1]
		breaks := map[string]func(*fakeEngine){
			"absent": func(f *fakeEngine) { f.without = regexp.MustCompile("vllm:" + name + `(_bucket|_sum|_count)?[{ ]`) },
		}
		for fault, garble := range faults {
			if fault == "stands still" && strings.HasPrefix(name, "spec_decode") {
				continue // An engine counts a draft and what is accepted of it at once.
			}
			breaks[fault] = func(f *fakeEngine) { f.garbled, f.garble = name, garble() }
		}
		for fault, break_ := range breaks {
			t.Run(name+" "+fault, func(t *testing.T) {
				r := published(t, break_)
				for _, v := range []struct {
					what      string
					got, want float64
				}{
					{"load ratio by the curve", r.LoadRatios[capacity.Curve], whole.LoadRatios[capacity.Curve]},
					{"coverage", r.Curve.Load.Coverage, whole.Curve.Load.Coverage},
					{"correction factor", r.Curve.CorrectionFactor, whole.Curve.CorrectionFactor},
					{"tokens a step", r.TokensPerStep, whole.TokensPerStep},
					{"offered", r.Curve.OfferedRequests, whole.Curve.OfferedRequests},
				} {
					if !math.IsNaN(v.got) && !same(v.got, v.want) {
						t.Errorf("%s is %v, with all there it is %v", v.what, v.got, v.want)
					}
				}
				if r.HeadroomRatio > whole.HeadroomRatio+0.05 {
					t.Errorf("headroom is %v, with all there it is %v", r.HeadroomRatio, whole.HeadroomRatio)
				}
				// Without the curve it is said to be a bound.
				if r.Curve.Valid && r.Left.RequestsPerSecond > 1.1*whole.Left.RequestsPerSecond {
					t.Errorf("%v requests are left, with all there %v", r.Left.RequestsPerSecond, whole.Left.RequestsPerSecond)
				}
			})
		}
	}
}
