// Package gpu reads GPUs through NVIDIA's management library (NVML).
//
// One goroutine owns the library. It publishes immutable snapshots; everybody
// else reads the newest one with its age and never waits for the driver, so
// that a driver call that hangs costs the GPU readings and nothing else.
package gpu

import (
	"maps"
	"math"
	"time"
)

// Reading is one GPU, or one MIG instance of a GPU, at one moment. A float is
// NaN, a string empty and a map nil when it is not known.
type Reading struct {
	At    time.Time
	UUID  string
	Index int
	Model string
	// Architecture is the generation: hopper, ada...
	Architecture string
	// Driver is the driver's version.
	Driver string
	// PCIBusID as domain:bus:device.function.
	PCIBusID string
	// MIGProfile is the profile of a MIG instance, such as 1g.10gb.
	MIGProfile string
	// ParentUUID is the GPU of a MIG instance. An instance has memory and GPM
	// readings only: the rest belongs to the whole GPU and stands there, once.
	ParentUUID string
	// Lost is why a GPU of the expected set cannot be read; empty while it can.
	Lost string

	// HBM in bytes; size = reserved + used + free.
	MemorySizeBytes     float64
	MemoryUsedBytes     float64
	MemoryFreeBytes     float64
	MemoryReservedBytes float64
	// MemoryBandwidthRatio is bytes moved / theoretical peak, 0..1. It is not
	// known for a MIG instance: what GPM relates it to there is undocumented.
	MemoryBandwidthRatio float64
	// MemoryBandwidthPeak is the theoretical peak in bytes per second.
	MemoryBandwidthPeak float64
	// MemoryBandwidthPeakSource is flag or nvml.
	MemoryBandwidthPeakSource string

	// SMActiveRatio is the share of time in which the average SM had a warp, 0..1.
	SMActiveRatio float64
	// SMOccupancyRatio is resident warps / the most that fit, 0..1.
	SMOccupancyRatio float64
	// TensorActiveRatio is the share of time in which a tensor core was busy, 0..1.
	TensorActiveRatio float64
	// KernelBusyRatio is the share of time with at least one kernel running and
	// MemoryBusyRatio that in which memory was touched at all, 0..1. Neither
	// says how much of the GPU was used.
	KernelBusyRatio float64
	MemoryBusyRatio float64

	PowerWatts float64
	// PowerLimit is the limit in force and PowerLimitDefault the one that the
	// board boots with, in watts.
	PowerLimit        float64
	PowerLimitDefault float64
	// EnergyJoules counts from the driver's load.
	EnergyJoules float64

	// SMClockHertz and MemoryClockHertz are current clocks.
	SMClockHertz        float64
	MemoryClockHertz    float64
	SMClockMaxHertz     float64
	MemoryClockMaxHertz float64
	// ThrottleActive is which of the throttle reasons hold the clocks now.
	ThrottleActive map[string]bool
	// ThrottleSeconds counts, by reason, the time that clocks were held.
	ThrottleSeconds map[string]float64

	// TemperatureCelsius of the GPU core.
	TemperatureCelsius       float64
	MemoryTemperatureCelsius float64
	// TemperatureMarginCelsius is how far the nearest slowdown is.
	TemperatureMarginCelsius float64

	// ECC errors since the driver's load, and over the board's life.
	ECCCorrected           float64
	ECCUncorrected         float64
	ECCCorrectedLifetime   float64
	ECCUncorrectedLifetime float64
	// Rows of HBM that were replaced by spares, by the error that led to it.
	RemappedRowsCorrected   float64
	RemappedRowsUncorrected float64
	// RowRemapPending is 1 when a reset will replace a row; RowRemapFailure is
	// 1 when there was no spare left. Else 0.
	RowRemapPending float64
	RowRemapFailure float64

	// NVLinksExpected is the number of links that the GPU has; 0 when none of
	// them was ever seen active.
	NVLinksActive                float64
	NVLinksExpected              float64
	NVLinkReceiveBytesPerSecond  float64
	NVLinkTransmitBytesPerSecond float64
	PCIeReceiveBytesPerSecond    float64
	PCIeTransmitBytesPerSecond   float64

	// RecoveryAction is the driver's own verdict: none, gpu_reset, node_reboot...
	RecoveryAction string
	// XIDs are the errors that NVML reported since this process started, and
	// those that cost the GPU at 0 while they did not occur.
	XIDs []XIDCount
	// Capabilities says by feature whether this GPU and driver can tell.
	Capabilities map[string]bool
}

// XIDCount is one XID's occurrences on one GPU.
type XIDCount struct {
	XID   uint64
	Class XIDClass
	Count uint64
	// Last is zero when it has not occurred.
	Last time.Time
}

// NewReading is a reading of which nothing is known: its floats are NaN.
func NewReading() Reading {
	nan := math.NaN()
	return Reading{
		MemorySizeBytes: nan, MemoryUsedBytes: nan, MemoryFreeBytes: nan, MemoryReservedBytes: nan,
		MemoryBandwidthRatio: nan, MemoryBandwidthPeak: nan,
		SMActiveRatio: nan, SMOccupancyRatio: nan, TensorActiveRatio: nan,
		KernelBusyRatio: nan, MemoryBusyRatio: nan,
		PowerWatts: nan, PowerLimit: nan, PowerLimitDefault: nan, EnergyJoules: nan,
		SMClockHertz: nan, MemoryClockHertz: nan, SMClockMaxHertz: nan, MemoryClockMaxHertz: nan,
		TemperatureCelsius: nan, MemoryTemperatureCelsius: nan, TemperatureMarginCelsius: nan,
		ECCCorrected: nan, ECCUncorrected: nan, ECCCorrectedLifetime: nan, ECCUncorrectedLifetime: nan,
		RemappedRowsCorrected: nan, RemappedRowsUncorrected: nan,
		RowRemapPending: nan, RowRemapFailure: nan,
		NVLinksActive: nan, NVLinksExpected: nan,
		NVLinkReceiveBytesPerSecond: nan, NVLinkTransmitBytesPerSecond: nan,
		PCIeReceiveBytesPerSecond: nan, PCIeTransmitBytesPerSecond: nan,
	}
}

// lost is the same GPU with nothing known but its identity and its errors.
func (r Reading) lost(why string) Reading {
	l := NewReading()
	l.At, l.UUID, l.Index, l.Model = r.At, r.UUID, r.Index, r.Model
	l.Architecture, l.Driver, l.PCIBusID = r.Architecture, r.Driver, r.PCIBusID
	l.MIGProfile, l.ParentUUID = r.MIGProfile, r.ParentUUID
	l.XIDs, l.Capabilities = r.XIDs, maps.Clone(r.Capabilities)
	l.Lost = why
	return l
}

// Source gives the newest snapshot without blocking on a driver.
type Source interface {
	Snapshot() Snapshot
}
