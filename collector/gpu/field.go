package gpu

import (
	"encoding/binary"
	"math"
)

// Field ids (NVML_FI_DEV_*).
const (
	fieldECCCorrected           = 3
	fieldECCUncorrected         = 4
	fieldECCCorrectedLifetime   = 5
	fieldECCUncorrectedLifetime = 6
	fieldThrottlePower          = 74
	fieldThrottleSyncBoost      = 76
	fieldMemoryTemperature      = 82
	fieldNVLinkCount            = 91
	fieldNVLinkTransmitKiB      = 138
	fieldNVLinkReceiveKiB       = 139
	fieldRemappedCorrected      = 142
	fieldRemappedUncorrected    = 143
	fieldRemapPending           = 144
	fieldRemapFailure           = 145
	fieldNVLinkState            = 165
	fieldPowerLimitDefault      = 189
	fieldPCIeTransmitBytes      = 197
	fieldPCIeReceiveBytes       = 198
	fieldRecoveryAction         = 230
	fieldThrottleSWThermal      = 269
	fieldThrottleHWThermal      = 270
	fieldThrottlePowerBrake     = 271
)

// allLinks as a scope sums a field over a GPU's NVLinks.
const allLinks = math.MaxUint32

// Types of a field's value (nvmlValueType_t).
const (
	typeDouble = iota
	typeUint32
	typeUint64
	typeUint64Long
	typeInt64
	typeInt32
	typeUint16
)

// field is one NVML field value: asked for by id and scope, answered by the
// rest (nvmlFieldValue_t).
type field struct {
	id, scope uint32
	kind      uint32
	code      code
	raw       [8]byte
}

// value is the field's number, NaN when it is not known. The union is read in
// little-endian order: NVML exists on no other.
func (f *field) value() float64 {
	if f.code != success {
		return math.NaN()
	}
	switch f.kind {
	case typeDouble:
		v := math.Float64frombits(binary.LittleEndian.Uint64(f.raw[:]))
		if math.IsInf(v, 0) {
			return math.NaN()
		}
		return v
	case typeUint32:
		return float64(binary.LittleEndian.Uint32(f.raw[:]))
	case typeUint64, typeUint64Long:
		return float64(binary.LittleEndian.Uint64(f.raw[:]))
	case typeInt64:
		return float64(int64(binary.LittleEndian.Uint64(f.raw[:])))
	case typeInt32:
		return float64(int32(binary.LittleEndian.Uint32(f.raw[:])))
	case typeUint16:
		return float64(binary.LittleEndian.Uint16(f.raw[:]))
	}
	return math.NaN()
}

// fields are the answers to one request.
type fields []field

// value is the number of a field, NaN when it was not asked for or is not known.
func (fs fields) value(id, scope uint32) float64 {
	for i := range fs {
		if fs[i].id == id && fs[i].scope == scope {
			return fs[i].value()
		}
	}
	return math.NaN()
}

// count is value for what cannot be negative.
func (fs fields) count(id, scope uint32) float64 {
	if v := fs.value(id, scope); v >= 0 {
		return v
	}
	return math.NaN()
}

// flag is value for what is 0 or 1.
func (fs fields) flag(id uint32) float64 {
	switch v := fs.value(id, 0); v {
	case 0, 1:
		return v
	}
	return math.NaN()
}

// wanted are the fields that a poll asks for in one call, with the states of
// the first links NVLinks.
func wanted(links int) fields {
	ids := []uint32{
		fieldECCCorrected, fieldECCUncorrected, fieldECCCorrectedLifetime, fieldECCUncorrectedLifetime,
		fieldThrottlePower, fieldThrottleSyncBoost, fieldThrottleSWThermal, fieldThrottleHWThermal, fieldThrottlePowerBrake,
		fieldMemoryTemperature, fieldPowerLimitDefault,
		fieldRemappedCorrected, fieldRemappedUncorrected, fieldRemapPending, fieldRemapFailure,
		fieldPCIeTransmitBytes, fieldPCIeReceiveBytes, fieldRecoveryAction, fieldNVLinkCount,
	}
	fs := make(fields, 0, len(ids)+links+2)
	for _, id := range ids {
		fs = append(fs, field{id: id})
	}
	if links > 0 {
		fs = append(fs, field{id: fieldNVLinkTransmitKiB, scope: allLinks}, field{id: fieldNVLinkReceiveKiB, scope: allLinks})
	}
	for link := range links {
		fs = append(fs, field{id: fieldNVLinkState, scope: uint32(link)})
	}
	return fs
}

// recoveryActions by nvmlDeviceGpuRecoveryAction_t.
var recoveryActions = []string{
	"none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset",
	"recover_imex_domain", "bus_reset", "system_reboot",
}

// recoveryAction is the name of the driver's verdict; empty when it is not
// known, and other for one that is newer than this list.
func recoveryAction(v float64) string {
	switch {
	case math.IsNaN(v):
		return ""
	case v >= 0 && v < float64(len(recoveryActions)) && v == math.Trunc(v):
		return recoveryActions[int(v)]
	}
	return "other"
}
