package gpu

import "math"

// throttleReasons are the clocks event reasons that hold clocks down while
// there is work (nvmlClocksEventReason*): idle, application and display
// clocks are settings, not throttling. Field counts the reason's time in
// nanoseconds and is 0 where NVML counts none.
var throttleReasons = []struct {
	name  string
	bit   uint64
	field uint32
}{
	{"sw_power_cap", 0x4, fieldThrottlePower},
	{"hw_slowdown", 0x8, 0},
	{"sync_boost", 0x10, fieldThrottleSyncBoost},
	{"sw_thermal", 0x20, fieldThrottleSWThermal},
	{"hw_thermal", 0x40, fieldThrottleHWThermal},
	{"hw_power_brake", 0x80, fieldThrottlePowerBrake},
	{"board_limit", 0x200, 0},
	{"reliability", 0x400, 0},
}

// throttleActive spells a mask of clocks event reasons out.
func throttleActive(mask uint64) map[string]bool {
	active := make(map[string]bool, len(throttleReasons))
	for _, r := range throttleReasons {
		active[r.name] = mask&r.bit != 0
	}
	return active
}

// throttleSeconds are the times by reason that the driver counts; nil when
// there is none.
func throttleSeconds(fs fields) map[string]float64 {
	var seconds map[string]float64
	for _, r := range throttleReasons {
		if r.field == 0 {
			continue
		}
		if ns := fs.count(r.field, 0); !math.IsNaN(ns) {
			if seconds == nil {
				seconds = map[string]float64{}
			}
			seconds[r.name] = ns / 1e9
		}
	}
	return seconds
}
