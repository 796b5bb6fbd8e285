//go:build linux && cgo

package gpu

import (
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// boundDevice is a device of the loaded library.
type boundDevice struct {
	b *binding
	d nvml.Device
}

// ask makes a call that is bound to one symbol.
func ask[T any](b *binding, symbol string, call func() (T, nvml.Return)) (T, code) {
	if !b.has(symbol) {
		var zero T
		return zero, functionNotFound
	}
	v, r := call()
	return v, code(r)
}

func (d boundDevice) uuid() (string, code) {
	return ask(d.b, "nvmlDeviceGetUUID", d.d.GetUUID)
}

func (d boundDevice) name() (string, code) {
	return ask(d.b, "nvmlDeviceGetName", d.d.GetName)
}

func (d boundDevice) minor() (int, code) {
	return ask(d.b, "nvmlDeviceGetMinorNumber", d.d.GetMinorNumber)
}

func (d boundDevice) pciBusID() (string, code) {
	if !d.b.has("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo") {
		return "", functionNotFound
	}
	info, r := d.d.GetPciInfo()
	var id strings.Builder
	for _, c := range info.BusId {
		if c == 0 {
			break
		}
		id.WriteByte(byte(c))
	}
	return id.String(), code(r)
}

func (d boundDevice) architecture() (uint32, code) {
	v, c := ask(d.b, "nvmlDeviceGetArchitecture", d.d.GetArchitecture)
	return uint32(v), c
}

func (d boundDevice) memory() (memory, code) {
	v2, c := ask(d.b, "nvmlDeviceGetMemoryInfo_v2", d.d.GetMemoryInfo_v2)
	if !c.absent() {
		return memory{total: v2.Total, reserved: v2.Reserved, free: v2.Free, used: v2.Used}, c
	}
	// The first version counts what is reserved as used.
	v1, c := ask(d.b, "nvmlDeviceGetMemoryInfo", d.d.GetMemoryInfo)
	return memory{total: v1.Total, free: v1.Free, used: v1.Used}, c
}

func (d boundDevice) utilization() (utilization, code) {
	v, c := ask(d.b, "nvmlDeviceGetUtilizationRates", d.d.GetUtilizationRates)
	return utilization{kernel: v.Gpu, memory: v.Memory}, c
}

func (d boundDevice) powerUsage() (uint32, code) {
	return ask(d.b, "nvmlDeviceGetPowerUsage", d.d.GetPowerUsage)
}

func (d boundDevice) enforcedPowerLimit() (uint32, code) {
	return ask(d.b, "nvmlDeviceGetEnforcedPowerLimit", d.d.GetEnforcedPowerLimit)
}

func (d boundDevice) energy() (uint64, code) {
	return ask(d.b, "nvmlDeviceGetTotalEnergyConsumption", d.d.GetTotalEnergyConsumption)
}

func (d boundDevice) temperature() (uint32, code) {
	return ask(d.b, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) {
		return d.d.GetTemperature(nvml.TEMPERATURE_GPU)
	})
}

func (d boundDevice) marginTemperature() (int32, code) {
	v, c := ask(d.b, "nvmlDeviceGetMarginTemperature", d.d.GetMarginTemperature)
	return v.MarginTemperature, c
}

func (d boundDevice) clock(domain clockDomain) (uint32, code) {
	return ask(d.b, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) {
		return d.d.GetClockInfo(nvml.ClockType(domain))
	})
}

func (d boundDevice) maxClock(domain clockDomain) (uint32, code) {
	return ask(d.b, "nvmlDeviceGetMaxClockInfo", func() (uint32, nvml.Return) {
		return d.d.GetMaxClockInfo(nvml.ClockType(domain))
	})
}

func (d boundDevice) busWidth() (uint32, code) {
	return ask(d.b, "nvmlDeviceGetMemoryBusWidth", d.d.GetMemoryBusWidth)
}

func (d boundDevice) clocksEventReasons() (uint64, code) {
	v, c := ask(d.b, "nvmlDeviceGetCurrentClocksEventReasons", d.d.GetCurrentClocksEventReasons)
	if c != functionNotFound {
		return v, c
	}
	// The same bits, under the name that drivers before 535 have.
	return ask(d.b, "nvmlDeviceGetCurrentClocksThrottleReasons", d.d.GetCurrentClocksThrottleReasons)
}

func (d boundDevice) fieldValues(fs fields) code {
	if !d.b.has("nvmlDeviceGetFieldValues") {
		return functionNotFound
	}
	values := make([]nvml.FieldValue, len(fs))
	for i, f := range fs {
		values[i] = nvml.FieldValue{FieldId: f.id, ScopeId: f.scope}
	}
	r := d.d.GetFieldValues(values)
	for i, v := range values {
		fs[i].kind, fs[i].code, fs[i].raw = v.ValueType, code(v.NvmlReturn), v.Value
	}
	return code(r)
}

func (d boundDevice) computeProcesses() ([]int, code) {
	if !d.b.has("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses") {
		return nil, functionNotFound
	}
	infos, r := d.d.GetComputeRunningProcesses()
	pids := make([]int, len(infos))
	for i, info := range infos {
		pids[i] = int(info.Pid)
	}
	return pids, code(r)
}

func (d boundDevice) migEnabled() (bool, code) {
	if !d.b.has("nvmlDeviceGetMigMode") {
		return false, functionNotFound
	}
	current, _, r := d.d.GetMigMode()
	return current == nvml.DEVICE_MIG_ENABLE, code(r)
}

func (d boundDevice) maxMIGDevices() (int, code) {
	return ask(d.b, "nvmlDeviceGetMaxMigDeviceCount", d.d.GetMaxMigDeviceCount)
}

func (d boundDevice) migDevice(index int) (device, code) {
	v, c := ask(d.b, "nvmlDeviceGetMigDeviceHandleByIndex", func() (nvml.Device, nvml.Return) {
		return d.d.GetMigDeviceHandleByIndex(index)
	})
	return boundDevice{d.b, v}, c
}

func (d boundDevice) gpuInstance() (int, code) {
	return ask(d.b, "nvmlDeviceGetGpuInstanceId", d.d.GetGpuInstanceId)
}

func (d boundDevice) supportedEvents() (uint64, code) {
	return ask(d.b, "nvmlDeviceGetSupportedEventTypes", d.d.GetSupportedEventTypes)
}

func (d boundDevice) gpmSupported() (bool, code) {
	v, c := ask(d.b, "nvmlGpmQueryDeviceSupport", d.d.GpmQueryDeviceSupport)
	return v.IsSupportedDevice != 0, c
}
