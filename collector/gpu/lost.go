package gpu

import "math"

// LostCapacity says by reason whether a reading tells of capacity that is
// lost or degraded. A reason of which nothing is known has no entry.
func (r *Reading) LostCapacity() map[string]bool {
	lost := map[string]bool{"gpu_lost": r.Lost != ""}
	if r.Lost != "" || r.ParentUUID != "" {
		return lost
	}
	if r.RecoveryAction != "" {
		lost["recovery_action"] = r.RecoveryAction != "none"
	}
	if !math.IsNaN(r.RowRemapFailure) {
		lost["row_remap_failure"] = r.RowRemapFailure != 0
	}
	if r.ThrottleActive != nil {
		lost["hw_thermal"] = r.ThrottleActive["hw_thermal"]
		lost["hw_power_brake"] = r.ThrottleActive["hw_power_brake"]
		lost["sw_thermal"] = r.ThrottleActive["sw_thermal"]
		// A power cap under load is normal unless the limit was lowered.
		if known(r.PowerLimit, r.PowerLimitDefault) {
			lost["power_limit_lowered"] = r.ThrottleActive["sw_power_cap"] && r.PowerLimit < r.PowerLimitDefault
		}
	}
	if known(r.NVLinksActive, r.NVLinksExpected) {
		lost["nvlink_inactive"] = r.NVLinksActive < r.NVLinksExpected
	}
	return lost
}

func known(values ...float64) bool {
	for _, v := range values {
		if math.IsNaN(v) {
			return false
		}
	}
	return true
}
