package simulator

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"headroom_exporter/collector/gpu"
)

// The shares of the power between idle and limit that are taken by kernels
// that run at all, by the tensor cores and by the memory, and how fast a GPU
// warms up. Stylised: a full prefill draws about the limit, decode about 60 % of it.
const (
	activePower  = 0.35
	computePower = 0.55
	memoryPower  = 0.35

	meterWindow    = 1.0  // s
	thermalTime    = 30.0 // s
	ambientCelsius = 30.0
	celsiusPerWatt = 0.055
	unevenCelsius  = 4.0 // between the coolest and the warmest slot
)

// meter turns the steps of one rank into readings of its GPUs, which all do
// the same. It has its own lock, so that it can be read while steps run.
type meter struct {
	cfg     Config
	devices []device

	mu       sync.Mutex
	steps    []meteredStep // those that reach into the last window, in order
	slowdown float64
	// celsius without the slot's own difference, and joules since the start, at the time metered.
	celsius, joules, metered float64
}

type device struct {
	index  int
	uuid   string
	uneven float64
}

type meteredStep struct{ start, end, bytes, active, compute, watts float64 }

func newMeter(cfg Config, rank int) *meter {
	m := &meter{cfg: cfg, slowdown: 1}
	rng := rand.New(rand.NewPCG(cfg.Seed, uint64(rank)))
	for i := range cfg.Hardware.TensorParallel {
		a, b := rng.Uint64(), rng.Uint64()
		m.devices = append(m.devices, device{
			index:  rank*cfg.Hardware.TensorParallel + i,
			uuid:   fmt.Sprintf("GPU-%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&0xffffffffffff),
			uneven: (rng.Float64() - 0.5) * unevenCelsius,
		})
	}
	m.celsius = ambientCelsius + celsiusPerWatt*cfg.Hardware.GPU.IdleWatts
	return m
}

// slow caps the clocks: power falls with their square.
func (m *meter) slow(factor float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slowdown = factor
}

// step records a step that begins now.
func (m *meter) step(now float64, c cost) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := &m.cfg.Hardware
	s := meteredStep{
		start: now, end: now + c.duration,
		bytes: c.readBytes + c.writeBytes, active: c.active, compute: c.compute,
		watts: h.GPU.IdleWatts,
	}
	if c.active > 0 {
		load := (activePower*c.active + computePower*c.compute + memoryPower*c.memory) / c.duration
		s.watts += (h.GPU.LimitWatts - h.GPU.IdleWatts) * min(load, 1) / (m.slowdown * m.slowdown)
	}
	gone := 0
	for gone < len(m.steps) && m.steps[gone].end < now-meterWindow {
		gone++
	}
	if gone > len(m.steps)/2 {
		m.steps = m.steps[:copy(m.steps, m.steps[gone:])]
	}
	m.steps = append(m.steps, s)
	m.draw(now, h.GPU.IdleWatts)
	m.draw(s.end, s.watts)
}

// draw lets a power be drawn up to a time: energy adds up, and the
// temperature moves towards that of the power.
func (m *meter) draw(until, watts float64) {
	if until <= m.metered {
		return
	}
	target := ambientCelsius + celsiusPerWatt*watts
	m.celsius = target + (m.celsius-target)*math.Exp((m.metered-until)/thermalTime)
	m.joules += watts * (until - m.metered)
	m.metered = until
}

// read appends the readings of the rank's GPUs over the window before now.
func (m *meter) read(list []gpu.Reading, now float64, at time.Time, asleep bool) []gpu.Reading {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := &m.cfg.Hardware
	from := now - meterWindow
	var bytes, active, compute, busy, energy float64
	for _, s := range m.steps {
		if in := min(s.end, now) - max(s.start, from); in > 0 {
			share := in / (s.end - s.start)
			bytes += share * s.bytes
			active += share * s.active
			compute += share * s.compute
			energy += in * s.watts
			busy += in
		}
	}
	m.draw(now, h.GPU.IdleWatts)
	used := m.cfg.memoryUsed()
	if asleep {
		used = h.RuntimeBytes
	}
	for _, d := range m.devices {
		r := gpu.NewReading()
		r.At = at
		r.UUID, r.Index, r.Model = d.uuid, d.index, h.GPU.Model
		r.MemorySizeBytes, r.MemoryUsedBytes, r.MemoryFreeBytes = h.GPU.MemoryBytes, used, h.GPU.MemoryBytes-used
		r.MemoryReservedBytes = 0
		r.MemoryBandwidthRatio = bytes / meterWindow / h.GPU.MemoryBandwidth
		r.MemoryBandwidthPeak = h.GPU.MemoryBandwidth
		r.SMActiveRatio = active / meterWindow
		r.KernelBusyRatio = r.SMActiveRatio
		r.TensorActiveRatio = compute / meterWindow
		r.PowerWatts = (energy + (meterWindow-busy)*h.GPU.IdleWatts) / meterWindow
		r.PowerLimit, r.PowerLimitDefault = h.GPU.LimitWatts, h.GPU.LimitWatts
		r.EnergyJoules = m.joules
		r.SMClockHertz, r.SMClockMaxHertz = h.GPU.SMClock/m.slowdown, h.GPU.SMClock
		r.MemoryClockHertz, r.MemoryClockMaxHertz = h.GPU.MemoryClock, h.GPU.MemoryClock
		r.TemperatureCelsius = math.Round(m.celsius + d.uneven)
		list = append(list, r)
	}
	return list
}
