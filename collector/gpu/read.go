package gpu

import (
	"fmt"
	"maps"
	"math"
	"time"
)

const (
	mega = 1e6
	// kilo turns NVML's milliwatts and millijoules into units.
	kilo = 1e3
)

// ask makes a call about one GPU. A GPU that is lost is asked no more; a code
// that concerns the whole driver ends the session.
func (s *session) ask(t *tracked, name string, f func() code) code {
	if t.lost != "" || s.ended != nil {
		return gpuIsLost
	}
	c := s.call(name, f)
	switch {
	case c == success:
		t.answered++
	case c.losesGPU():
		s.lose(t, c.String())
	case c.endsSession():
		s.ended = &failure{reason: c.reason(), detail: fmt.Sprintf("%s answered %s (code %d)", name, c, int32(c))}
	case !c.absent():
		t.failed, t.lastFailure = t.failed+1, c
	}
	return c
}

func (s *session) lose(t *tracked, why string) {
	t.lost = why
	if id := t.identity.UUID; s.mourned[id] != why {
		// Once, not at each attempt to find it again.
		s.mourned[id] = why
		s.c.logger.Error("GPU lost", "uuid", id, "why", why)
	}
}

// number asks for one number, NaN when it is not known.
func number[T int32 | uint32 | uint64](s *session, t *tracked, name string, f func() (T, code)) float64 {
	var v T
	if s.ask(t, name, func() (c code) { v, c = f(); return c }) != success {
		return math.NaN()
	}
	return float64(v)
}

// read takes one reading.
func (s *session) read(t *tracked, now time.Time) Reading {
	r := t.identity
	r.At = now
	r.XIDs = s.xidList(r)
	t.answered, t.failed = 0, 0
	if t.isInstance() {
		if t.lost == "" && t.parent.lost != "" {
			t.lost = t.parent.lost
		}
		s.readMemory(t, &r)
		s.applyGPM(t, &r, s.gpm(t, now))
	} else {
		s.readGPU(t, &r, now)
	}
	if t.lost == "" && t.answered == 0 && t.failed > 0 {
		// Every call fails where the container lost the device's files.
		s.lose(t, string(t.lastFailure.reason()))
	}
	if t.lost != "" {
		s.freeSamples(t)
		return r.lost(t.lost)
	}
	if _, was := s.mourned[r.UUID]; was {
		delete(s.mourned, r.UUID)
		s.c.logger.Info("GPU can be read again", "uuid", r.UUID)
	}
	s.learn(t, &r)
	r.Capabilities = maps.Clone(t.capabilities)
	return r
}

func (s *session) readMemory(t *tracked, r *Reading) {
	var m memory
	if s.ask(t, "nvmlDeviceGetMemoryInfo", func() (c code) { m, c = t.handle.memory(); return c }) != success {
		return
	}
	if m.total == 0 || m.used > m.total || m.free > m.total {
		s.reject("memory_out_of_range")
		return
	}
	r.MemorySizeBytes, r.MemoryUsedBytes, r.MemoryFreeBytes = float64(m.total), float64(m.used), float64(m.free)
	r.MemoryReservedBytes = float64(m.reserved)
	if m.reserved == 0 {
		// The older call has none: there it is part of what is used.
		r.MemoryReservedBytes = math.NaN()
	}
}

func (s *session) readGPU(t *tracked, r *Reading, now time.Time) {
	if !t.mig {
		// A GPU that is split answers neither; its instances do.
		s.readMemory(t, r)
		var u utilization
		if s.ask(t, "nvmlDeviceGetUtilizationRates", func() (c code) { u, c = t.handle.utilization(); return c }) == success {
			if u.kernel > 100 || u.memory > 100 {
				s.reject("above_one")
			} else {
				r.KernelBusyRatio, r.MemoryBusyRatio = float64(u.kernel)/100, float64(u.memory)/100
			}
		}
	}
	r.PowerWatts = number(s, t, "nvmlDeviceGetPowerUsage", t.handle.powerUsage) / kilo
	r.PowerLimit = number(s, t, "nvmlDeviceGetEnforcedPowerLimit", t.handle.enforcedPowerLimit) / kilo
	r.EnergyJoules = number(s, t, "nvmlDeviceGetTotalEnergyConsumption", t.handle.energy) / kilo
	r.TemperatureCelsius = number(s, t, "nvmlDeviceGetTemperature", t.handle.temperature)
	r.TemperatureMarginCelsius = number(s, t, "nvmlDeviceGetMarginTemperature", t.handle.marginTemperature)
	r.SMClockHertz = mega * number(s, t, "nvmlDeviceGetClockInfo", func() (uint32, code) { return t.handle.clock(clockSM) })
	r.MemoryClockHertz = mega * number(s, t, "nvmlDeviceGetClockInfo", func() (uint32, code) { return t.handle.clock(clockMemory) })
	var reasons uint64
	if s.ask(t, "nvmlDeviceGetCurrentClocksEventReasons", func() (c code) { reasons, c = t.handle.clocksEventReasons(); return c }) == success {
		r.ThrottleActive = throttleActive(reasons)
	}

	fs := wanted(t.links)
	if s.ask(t, "nvmlDeviceGetFieldValues", func() code { return t.handle.fieldValues(fs) }) == success {
		s.applyFields(t, r, fs, now)
	}
	if !t.mig {
		s.applyGPM(t, r, s.gpm(t, now))
	}
}

// maxLinks bounds what is asked for; Rubin's generation has 72.
const maxLinks = 72

func (s *session) applyFields(t *tracked, r *Reading, fs fields, now time.Time) {
	// The driver's own words about the GPU may come as a field's code as well.
	for i := range fs {
		if c := fs[i].code; c.losesGPU() || c.endsSession() {
			s.ask(t, "nvmlDeviceGetFieldValues", func() code { return c })
			return
		}
	}
	r.ECCCorrected, r.ECCUncorrected = fs.count(fieldECCCorrected, 0), fs.count(fieldECCUncorrected, 0)
	r.ECCCorrectedLifetime, r.ECCUncorrectedLifetime = fs.count(fieldECCCorrectedLifetime, 0), fs.count(fieldECCUncorrectedLifetime, 0)
	r.ThrottleSeconds = throttleSeconds(fs)
	r.MemoryTemperatureCelsius = fs.value(fieldMemoryTemperature, 0)
	if r.MemoryTemperatureCelsius == 0 {
		// Boards without the sensor say 0.
		r.MemoryTemperatureCelsius = math.NaN()
	}
	r.PowerLimitDefault = fs.count(fieldPowerLimitDefault, 0) / kilo
	r.RemappedRowsCorrected, r.RemappedRowsUncorrected = fs.count(fieldRemappedCorrected, 0), fs.count(fieldRemappedUncorrected, 0)
	r.RowRemapPending, r.RowRemapFailure = fs.flag(fieldRemapPending), fs.flag(fieldRemapFailure)
	r.RecoveryAction = recoveryAction(fs.value(fieldRecoveryAction, 0))

	// GPM measures these where there is GPM, and then replaces them.
	r.PCIeTransmitBytesPerSecond = s.rate(t, fieldPCIeTransmitBytes, wide(fs, fieldPCIeTransmitBytes), now)
	r.PCIeReceiveBytesPerSecond = s.rate(t, fieldPCIeReceiveBytes, wide(fs, fieldPCIeReceiveBytes), now)
	r.NVLinkTransmitBytesPerSecond = 1024 * s.rate(t, fieldNVLinkTransmitKiB, fs.count(fieldNVLinkTransmitKiB, allLinks), now)
	r.NVLinkReceiveBytesPerSecond = 1024 * s.rate(t, fieldNVLinkReceiveKiB, fs.count(fieldNVLinkReceiveKiB, allLinks), now)
	s.applyLinks(t, r, fs)
}

// applyLinks counts NVLinks. A board that has links and no bridge never shows
// one active, and expects none.
func (s *session) applyLinks(t *tracked, r *Reading, fs fields) {
	if t.links == 0 {
		if n := fs.count(fieldNVLinkCount, 0); n > 0 && n <= maxLinks {
			t.links = int(n)
			states := wanted(t.links)
			if s.ask(t, "nvmlDeviceGetFieldValues", func() code { return t.handle.fieldValues(states) }) != success {
				return
			}
			fs = states
		}
	}
	if t.links == 0 {
		return
	}
	active, answered := 0, 0
	for link := range t.links {
		switch fs.value(fieldNVLinkState, uint32(link)) {
		case 1, 2, 3:
			// Active, asleep to save power, or without traffic: it works.
			active++
			answered++
		case 0:
			answered++
		}
	}
	if answered == 0 {
		return
	}
	t.linkEverSeen = t.linkEverSeen || active > 0
	r.NVLinksActive, r.NVLinksExpected = float64(active), 0
	if t.linkEverSeen {
		r.NVLinksExpected = float64(t.links)
	}
}

// wide is a byte counter of 64 bits. One of 32 bits wraps within a tenth of a
// second at PCIe's speed, so that its difference says nothing.
func wide(fs fields, id uint32) float64 {
	for i := range fs {
		if fs[i].id == id && (fs[i].kind == typeUint64 || fs[i].kind == typeUint64Long) {
			return fs[i].value()
		}
	}
	return math.NaN()
}

// counter is the last value of a growing number.
type counter struct {
	value float64
	at    time.Time
}

// rate is a counter's growth per second since the previous poll.
func (s *session) rate(t *tracked, id uint32, value float64, now time.Time) float64 {
	last, seen := t.counters[id]
	if math.IsNaN(value) {
		delete(t.counters, id)
		return math.NaN()
	}
	t.counters[id] = counter{value, now}
	elapsed := now.Sub(last.at).Seconds()
	if !seen || elapsed <= 0 {
		return math.NaN()
	}
	if value < last.value {
		s.reject("counter_decreased")
		return math.NaN()
	}
	return (value - last.value) / elapsed
}

// learn notes what this GPU can tell. What was told once is expected from
// then on, so that its absence can be noticed.
func (s *session) learn(t *tracked, r *Reading) {
	told := map[string]bool{"memory": known(r.MemoryUsedBytes)}
	if !t.isInstance() {
		maps.Copy(told, map[string]bool{
			"utilization":           known(r.KernelBusyRatio),
			"memory_bandwidth_peak": known(r.MemoryBandwidthPeak),
			"power":                 known(r.PowerWatts),
			"energy":                known(r.EnergyJoules),
			"clocks":                known(r.SMClockHertz, r.MemoryClockHertz),
			"throttle_reasons":      r.ThrottleActive != nil,
			"throttle_time":         r.ThrottleSeconds != nil,
			"temperature":           known(r.TemperatureCelsius),
			"memory_temperature":    known(r.MemoryTemperatureCelsius),
			"margin_temp":           known(r.TemperatureMarginCelsius),
			"ecc":                   known(r.ECCUncorrected),
			"row_remap":             known(r.RowRemapPending),
			"nvlink":                known(r.NVLinksActive),
			"recovery_action":       r.RecoveryAction != "",
		})
	}
	for feature, can := range told {
		t.capabilities[feature] = t.capabilities[feature] || can
	}
}
