package simulator

import (
	"math"
	"testing"
	"time"
)

// One long step that reads a quarter of the peak bandwidth, seen through windows of a second.
func TestMeterWindow(t *testing.T) {
	cfg := preset(t, "8b-h100", nil)
	m := newMeter(cfg, 0)
	const second = 3.35e12 / 4
	m.step(10, cost{duration: 4, readBytes: 3 * second, writeBytes: second, compute: 1, memory: 2, active: 2})
	// Active for half the step, tensor cores for a quarter, memory for half: 0.35/2 + 0.55/4 + 0.35/2.
	watts := 115 + 585*0.4875
	for _, test := range []struct{ now, share float64 }{
		{9, 0}, {10, 0}, {10.5, 0.5}, {11, 1}, {13, 1}, {14, 1}, {14.75, 0.25}, {15, 0}, {100, 0},
	} {
		r := m.read(nil, test.now, time.Time{}, false)[0]
		for name, pair := range map[string][2]float64{
			"bandwidth":  {r.MemoryBandwidthRatio, 0.25 * test.share},
			"SM":         {r.SMActiveRatio, 0.5 * test.share},
			"tensor":     {r.TensorActiveRatio, 0.25 * test.share},
			"power":      {r.PowerWatts, 115 + (watts-115)*test.share},
			"power left": {r.PowerLimit, 700},
		} {
			if math.Abs(pair[0]-pair[1]) > 1e-9 {
				t.Errorf("at %v s: %s %v, want %v", test.now, name, pair[0], pair[1])
			}
		}
	}
	r := m.read(nil, 100, time.Time{}, false)[0]
	if want := 4*watts + 96*115; math.Abs(r.EnergyJoules-want) > 1e-6 {
		t.Errorf("%v J, want %v", r.EnergyJoules, want)
	}
}

// After one thermal time a GPU has gone 1-1/e of the way to its new temperature.
func TestMeterTemperature(t *testing.T) {
	m := newMeter(preset(t, "8b-h100", nil), 0)
	m.devices[0].uneven = 0
	celsius := func(now float64) float64 { return m.read(nil, now, time.Time{}, false)[0].TemperatureCelsius }
	idle := ambientCelsius + celsiusPerWatt*115
	full := ambientCelsius + celsiusPerWatt*700
	if got := celsius(100); got != math.Round(idle) {
		t.Errorf("idle at %v C, want %v", got, idle)
	}
	m.step(100, cost{duration: thermalTime, active: thermalTime, compute: thermalTime, memory: thermalTime})
	if got, want := celsius(100+thermalTime), math.Round(full+(idle-full)/math.E); got != want {
		t.Errorf("%v C after one thermal time at the limit, want %v", got, want)
	}
}

func TestMeterPowerStaysInItsLimits(t *testing.T) {
	m := newMeter(preset(t, "8b-h100", nil), 0)
	m.step(0, cost{duration: 2, active: 2, compute: 2, memory: 2})
	if got := m.read(nil, 1, time.Time{}, false)[0].PowerWatts; got != 700 {
		t.Errorf("%v W at full load, want the limit", got)
	}
	m.slow(2)
	m.step(2, cost{duration: 2, active: 2, compute: 2, memory: 2})
	if got := m.read(nil, 3, time.Time{}, false)[0]; got.PowerWatts != 115+585/4.0 || got.SMClockHertz != 990e6 {
		t.Errorf("%v W at %v Hz with the clocks halved", got.PowerWatts, got.SMClockHertz)
	}
}
