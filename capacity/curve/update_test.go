package curve

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom_exporter/capacity"
)

// kneeAt is a curve of one class whose knee is at a rate, probed some minutes after noon.
func kneeAt(rate float64, minutes int) *Curve {
	c := smallExample()
	c.Started = time.Date(2026, 3, 2, 11, 0, 0, 0, time.UTC)
	c.Finished = time.Date(2026, 3, 2, 12, minutes, 0, 0, time.UTC)
	c.Classes[0].Studies[0] = exampleClasses[0].study(Arrivals{Process: "poisson"}, rate)
	return c
}

func withStatus(c *Curve, status Status) *Curve {
	s := &c.Classes[0].Studies[0]
	s.Status = status
	if status == StatusNoSafeRate {
		s.SafeRate, s.Knee = capacity.Unknown(), nil
	}
	return c
}

func TestUpdate(t *testing.T) {
	type step struct {
		probed *Curve
		want   Outcome
		// The knee and status that are in force afterwards.
		knee   float64
		status Status
	}
	for _, tt := range []struct {
		name  string
		band  float64
		steps []step
	}{
		{"noise stays out", 0, []step{{kneeAt(104, 15), Kept, 100, StatusOK}, {kneeAt(96, 30), Kept, 100, StatusOK}}},
		{"a wide A/A band", 0.12, []step{{kneeAt(89, 15), Kept, 100, StatusOK}, {kneeAt(111, 30), Kept, 100, StatusOK}, {kneeAt(87, 45), Fell, 87, StatusProvisional}}},
		{"a narrow A/A band", 0.01, []step{{kneeAt(96, 15), Kept, 100, StatusOK}, {kneeAt(94, 30), Fell, 94, StatusProvisional}}},
		{"a fall is seen again", 0, []step{{kneeAt(80, 15), Fell, 80, StatusProvisional}, {kneeAt(81, 25), Confirmed, 81, StatusOK}}},
		{"a fall is seen again too soon", 0, []step{
			{kneeAt(80, 15), Fell, 80, StatusProvisional}, {kneeAt(81, 24), Kept, 80, StatusProvisional}, {kneeAt(81, 26), Confirmed, 81, StatusOK},
		}},
		{"a fall goes on", 0, []step{{kneeAt(80, 15), Fell, 80, StatusProvisional}, {kneeAt(60, 30), Fell, 60, StatusProvisional}, {kneeAt(60, 45), Confirmed, 60, StatusOK}}},
		{"a fall was noise", 0, []step{
			{kneeAt(80, 15), Fell, 80, StatusProvisional}, {kneeAt(100, 30), Waiting, 80, StatusProvisional}, {kneeAt(101, 45), Rose, 101, StatusOK},
		}},
		{"a rise waits", 0, []step{{kneeAt(120, 15), Waiting, 100, StatusOK}, {kneeAt(122, 25), Rose, 122, StatusOK}}},
		{"a rise is seen again too soon", 0, []step{
			{kneeAt(120, 15), Waiting, 100, StatusOK}, {kneeAt(130, 20), Waiting, 100, StatusOK}, {kneeAt(122, 25), Rose, 122, StatusOK},
		}},
		{"a rise is not seen again", 0, []step{
			{kneeAt(120, 15), Waiting, 100, StatusOK}, {kneeAt(101, 30), Kept, 100, StatusOK}, {kneeAt(120, 45), Waiting, 100, StatusOK},
		}},
		{"a fall after a rise", 0, []step{
			{kneeAt(120, 15), Waiting, 100, StatusOK}, {kneeAt(80, 30), Fell, 80, StatusProvisional}, {kneeAt(80, 45), Confirmed, 80, StatusOK},
		}},
		{"nothing passes any more", 0, []step{
			{withStatus(kneeAt(1, 15), StatusNoSafeRate), Fell, 0, StatusNoSafeRate},
			{withStatus(kneeAt(1, 30), StatusNoSafeRate), Kept, 0, StatusNoSafeRate},
			{kneeAt(100, 45), Waiting, 0, StatusNoSafeRate},
			{kneeAt(100, 50), Waiting, 0, StatusNoSafeRate},
			{kneeAt(100, 58), Rose, 100, StatusOK},
		}},
		{"what was interrupted or bounded tells nothing", 0, []step{
			{withStatus(kneeAt(50, 15), StatusInterrupted), Kept, 100, StatusOK},
			{withStatus(kneeAt(50, 30), StatusNotReached), Kept, 100, StatusOK},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stored := kneeAt(100, 0)
			for i, s := range tt.steps {
				oldBytes, newBytes := encoded(t, stored), encoded(t, s.probed)
				out, changes, err := Update(stored, s.probed, tt.band)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(encoded(t, stored), oldBytes) || !bytes.Equal(encoded(t, s.probed), newBytes) {
					t.Fatal("a curve was changed")
				}
				encoded(t, out) // it is valid
				study := out.Classes[0].Studies[0]
				knee := 0.0
				if study.Knee != nil && study.Knee.Rate.Known() {
					knee = float64(study.Knee.Rate)
				}
				if len(changes) != 1 || changes[0].Outcome != s.want || knee != s.knee || study.Status != s.status {
					t.Fatalf("step %d: %v, knee %g %s; want %s, knee %g %s", i+1, changes, knee, study.Status, s.want, s.knee, s.status)
				}
				if !out.Finished.Equal(s.probed.Finished) {
					t.Errorf("it is as old as %s", out.Finished)
				}
				stored = out
			}
		})
	}
}

func TestUpdateClasses(t *testing.T) {
	stored, probed := example(), example()
	probed.Finished = stored.Finished.Add(time.Hour)
	probed.PeakReserve = 0.5
	// Of the classes one is longer now, one is new, and one is gone; the mix has other shares.
	probed.Classes[0].PromptMean *= 1.1
	probed.Classes[1].Name = "code"
	probed.Mixes[0].Name = "new"
	probed.Mixes[0].Shares = map[string]float64{"chat": 0.5, "code": 0.5}
	probed.Mixes[0].Squeeze = nil
	probed.Mixes[0].Points = nil
	probed.SLO = []capacity.SLO{mustSLO("ttft:p99:1s")}
	probed.AA, probed.ColdStart, probed.Reuse = nil, nil, nil
	out, changes, err := Update(stored, probed, 0)
	if err != nil {
		t.Fatal(err)
	}
	encoded(t, out)
	var got []string
	for _, c := range changes {
		got = append(got, c.Name+" "+string(c.Outcome))
	}
	if want := []string{"chat added", "chat added", "code added", "code added", "new added"}; !slices.Equal(got, want) {
		t.Errorf("changes are %q, want %q", got, want)
	}
	if len(out.Classes) != 3 || len(out.Mixes) != 2 || out.AA != stored.AA || out.ColdStart != stored.ColdStart || len(out.Reuse) != 1 {
		t.Errorf("%d classes, %d mixes, %v, %v, %v", len(out.Classes), len(out.Mixes), out.AA, out.ColdStart, out.Reuse)
	}
	// What was not probed keeps its bounds, under the new peak reserve.
	rag := out.class("rag")
	if k := rag.Studies[0].Knee; !slices.Equal(rag.SLO, stored.Classes[1].SLO) || k.Watermark != 0.5*rag.Studies[0].SafeRate {
		t.Errorf("rag has the bounds %v and the watermark %g at the safe rate %g", rag.SLO, k.Watermark, rag.Studies[0].SafeRate)
	}
	// A class and a mix probed again are compared.
	again := example()
	again.Finished = stored.Finished.Add(time.Hour)
	_, changes, err = Update(stored, again, 0)
	if err != nil || len(changes) != 5 {
		t.Fatalf("%v (%v)", changes, err)
	}
	for _, c := range changes {
		if c.Outcome != Kept {
			t.Errorf("%s", c)
		}
	}
	if text := changes[0].String(); text != "chat under poisson arrivals: kept (24 to 24 requests/s)" {
		t.Errorf("%q", text)
	}
}

func TestUpdateRefuses(t *testing.T) {
	stored := example()
	for want, change := range map[string]func(c *Curve){
		ErrOtherIdentity.Error():                                  func(c *Curve) { c.Identity.MaxNumSeqs = 1 },
		"a simulated curve does not update one that was measured": func(c *Curve) { c.Source = Simulated },
		"an estimate does not update":                             func(c *Curve) { c.Estimate = true },
		"not after the stored one":                                func(c *Curve) { c.Finished = stored.Finished },
	} {
		probed := example()
		probed.Finished = stored.Finished.Add(time.Hour)
		change(probed)
		_, _, err := Update(stored, probed, 0)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q", err, want)
		}
		if want == ErrOtherIdentity.Error() && !errors.Is(err, ErrOtherIdentity) {
			t.Error("it cannot be told by errors.Is")
		}
	}
}

func TestWatermark(t *testing.T) {
	nan := capacity.Unknown()
	for _, tt := range []struct{ safe, low, want Value }{
		{10, 12, 8}, {12, 10, 8}, {10, nan, 8}, {nan, 10, 8}, {nan, nan, nan},
	} {
		if got := Watermark(0.2, tt.safe, tt.low); got != tt.want && (got.Known() || tt.want.Known()) {
			t.Errorf("safe %g, low %g: %g, want %g", tt.safe, tt.low, got, tt.want)
		}
	}
}

// A mix that is measured by itself is added, and leaves the classes' knees as they were.
func TestUpdateWithAMixAlone(t *testing.T) {
	stored, probed := kneeAt(100, 0), kneeAt(100, 15)
	stored.Classes[0].PrefixHitRatio = 0.25
	probed.Classes[0].Studies, probed.Classes[0].PrefixHitRatio = nil, capacity.Unknown()
	probed.Mixes = []Mix{{Name: "mix", Shares: map[string]float64{probed.Classes[0].Name: 1}, Study: exampleClasses[0].study(Arrivals{Process: "poisson"}, 70)}}
	updated, changes, err := Update(stored, probed, 0)
	if err != nil {
		t.Fatal(err)
	}
	class := &updated.Classes[0]
	if len(class.Studies) != len(stored.Classes[0].Studies) || rateOf(&class.Studies[0]) != 100 || class.PrefixHitRatio != 0.25 {
		t.Errorf("the class has %d studies, a knee of %v and a hit ratio of %v", len(class.Studies), rateOf(&class.Studies[0]), class.PrefixHitRatio)
	}
	if len(updated.Mixes) != 1 || rateOf(&updated.Mixes[0].Study) != 70 || len(changes) != 1 || changes[0].Outcome != Added || changes[0].Name != "mix" {
		t.Errorf("%d mixes, changes %v", len(updated.Mixes), changes)
	}
}
