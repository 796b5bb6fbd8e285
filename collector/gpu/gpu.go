// Package gpu describes what is read of a GPU.
package gpu

import (
	"context"
	"time"
)

// Reading is one GPU at one moment. A float is NaN when it is not known.
type Reading struct {
	At    time.Time
	UUID  string
	Index int
	Model string
	// HBM in bytes.
	MemorySizeBytes float64
	MemoryUsedBytes float64
	// MemoryBandwidthRatio is bytes moved / theoretical peak, 0..1.
	MemoryBandwidthRatio float64
	// MemoryBandwidthPeak is the theoretical peak in bytes per second.
	MemoryBandwidthPeak float64
	// SMActiveRatio is the share of time in which the average SM had a warp, 0..1.
	SMActiveRatio float64
	PowerWatts    float64
	PowerLimit    float64
	// SMClockHertz and MemoryClockHertz are current clocks.
	SMClockHertz     float64
	MemoryClockHertz float64
	// TemperatureCelsius of the GPU core.
	TemperatureCelsius float64
}

// Reader gives the newest reading of each GPU without blocking on a driver.
type Reader interface {
	Read(ctx context.Context) ([]Reading, error)
}
