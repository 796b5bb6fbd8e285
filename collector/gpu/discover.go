package gpu

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// tracked is a GPU or MIG instance whose readings are taken.
type tracked struct {
	handle device
	// parent is the GPU of a MIG instance and instance its GPU instance id.
	parent   *tracked
	instance int
	mig      bool

	// identity is what does not change while the session lasts, the rest unknown.
	identity     Reading
	capabilities map[string]bool
	lost         string
	// answered and failed count the calls of one poll, lastFailure is the last code.
	answered, failed int
	lastFailure      code

	links        int
	linkEverSeen bool
	gpm          gpmWindow
	counters     map[uint32]counter
}

func (t *tracked) isInstance() bool { return t.parent != nil }

// discover finds the visible GPUs and selects ours. It may be repeated in a
// session; GPUs that stay selected keep their state.
func (s *session) discover() error {
	s.selected = time.Now()
	var count int
	if c := s.call("nvmlDeviceGetCount", func() (c code) { count, c = s.lib.deviceCount(); return c }); c != success {
		return &failure{reason: c.reason(), detail: fmt.Sprintf("counting GPUs: %s (code %d)", c, int32(c))}
	}
	var visible []candidate
	refused, asked := success, ""
	gpus := 0
	for index := range count {
		found, call, c := s.candidates(index)
		if c != success {
			// A count includes GPUs that this container may not open.
			refused, asked = c, call
			continue
		}
		gpus++
		visible = append(visible, found...)
	}
	s.status.Visible = gpus
	if len(visible) == 0 {
		why := fmt.Sprintf("none of %d GPUs can be opened: %s answered %s (code %d)", count, asked, refused, int32(refused))
		switch {
		case count == 0:
			return &failure{reason: NoDevice, detail: "NVML works and sees no GPU: is one given to this container?"}
		case refused == gpuIsLost || refused == gpuNotFound || refused == resetRequired:
			return &failure{reason: DevicesLost, detail: why}
		}
		return &failure{reason: refused.reason(), detail: why}
	}

	chosen, how, unseen := choose(visible, s.c.config.Devices, func() []processes { return s.processLists(visible) }, func() map[int]bool {
		return openDeviceFiles(s.c.config.ProcPath)
	})
	if how == selectedAmbiguous && len(s.chosen) > 0 {
		// The engine is between two lives; its GPUs are still the same.
		for i, v := range visible {
			if slices.Contains(s.chosen, v.uuid) {
				chosen = append(chosen, i)
			}
		}
		how = selectedByProcess
	}
	for _, device := range unseen {
		if strings.HasPrefix(device, "GPU-") || strings.HasPrefix(device, "MIG-") {
			missing := NewReading()
			missing.UUID = device
			s.expect(missing)
		}
	}
	if len(chosen) == 0 && how != selectedAmbiguous {
		return &failure{reason: DeviceNotFound, detail: fmt.Sprintf("none of the configured devices is visible: %s", strings.Join(unseen, ", "))}
	}
	if len(unseen) > 0 {
		s.c.logger.Warn("configured GPUs are not visible", "devices", strings.Join(unseen, ", "))
	}
	if how == selectedAmbiguous {
		chosen = chosen[:0]
		for i := range visible {
			chosen = append(chosen, i)
		}
	}
	s.status.SelectionAmbiguous = how == selectedAmbiguous
	s.status.Selection = how
	if how == selectedByProcess || how == selectedByDeviceFile {
		s.chosen = s.chosen[:0]
		for _, i := range chosen {
			s.chosen = append(s.chosen, visible[i].uuid)
		}
	}
	s.track(visible, chosen)
	return nil
}

// candidates are what can be selected of one GPU: itself, or its MIG instances;
// else which call refused it, and how.
func (s *session) candidates(index int) (found []candidate, refused string, c code) {
	gpu := candidate{index: index, mig: -1, minor: -1}
	if c := s.call("nvmlDeviceGetHandleByIndex", func() (c code) { gpu.handle, c = s.lib.deviceByIndex(index); return c }); c != success {
		return nil, "nvmlDeviceGetHandleByIndex", c
	}
	if c := s.call("nvmlDeviceGetUUID", func() (c code) { gpu.uuid, c = gpu.handle.uuid(); return c }); c != success {
		return nil, "nvmlDeviceGetUUID", c
	}
	s.call("nvmlDeviceGetMinorNumber", func() (c code) {
		minor, c := gpu.handle.minor()
		if c == success {
			gpu.minor = minor
		}
		return c
	})
	enabled, most := false, 0
	s.call("nvmlDeviceGetMigMode", func() (c code) { enabled, c = gpu.handle.migEnabled(); return c })
	if enabled {
		s.call("nvmlDeviceGetMaxMigDeviceCount", func() (c code) { most, c = gpu.handle.maxMIGDevices(); return c })
	}
	var instances []candidate
	for i := range most {
		one := candidate{index: index, mig: i, minor: gpu.minor, gpu: &gpu}
		c := success
		// Indices have holes, which are no errors.
		s.call("nvmlDeviceGetMigDeviceHandleByIndex", func() code {
			one.handle, c = gpu.handle.migDevice(i)
			if c == notFound || c == invalidArgument {
				return success
			}
			return c
		})
		if c != success {
			continue
		}
		if s.call("nvmlDeviceGetUUID", func() (c code) { one.uuid, c = one.handle.uuid(); return c }) == success {
			instances = append(instances, one)
		}
	}
	if len(instances) > 0 {
		return instances, "", success
	}
	return []candidate{gpu}, "", success
}

func (s *session) processLists(visible []candidate) []processes {
	lists := make([]processes, len(visible))
	for i, v := range visible {
		s.call("nvmlDeviceGetComputeRunningProcesses", func() (c code) { lists[i].pids, c = v.handle.computeProcesses(); return c })
		lists[i].pids = slices.DeleteFunc(lists[i].pids, func(pid int) bool { return !processExists(s.c.config.ProcPath, pid) })
	}
	return lists
}

// track makes the chosen candidates the GPUs that are read.
func (s *session) track(visible []candidate, chosen []int) {
	// What is visible and no longer selected is somebody else's, not lost.
	ours, others := map[string]bool{}, map[string]bool{}
	for i, v := range visible {
		set := others
		if slices.Contains(chosen, i) {
			set = ours
		}
		set[v.uuid] = true
		if v.gpu != nil {
			set[v.gpu.uuid] = true
		}
	}
	s.expected = slices.DeleteFunc(s.expected, func(e Reading) bool { return others[e.UUID] && !ours[e.UUID] })

	old := s.gpus
	s.gpus = nil
	add := func(v *candidate, parent *tracked) *tracked {
		for _, t := range slices.Concat(s.gpus, old) {
			if t.identity.UUID == v.uuid {
				if !slices.Contains(s.gpus, t) {
					s.gpus = append(s.gpus, t)
				}
				return t
			}
		}
		t := s.identify(v, parent)
		s.gpus = append(s.gpus, t)
		return t
	}
	for _, i := range chosen {
		v := &visible[i]
		var parent *tracked
		if v.gpu != nil {
			parent = add(v.gpu, nil)
			parent.mig = true
		}
		add(v, parent)
	}
	changed := len(old) != len(s.gpus)
	for _, t := range old {
		if !slices.Contains(s.gpus, t) {
			s.freeSamples(t)
			changed = true
		}
	}
	for _, t := range s.gpus {
		s.expect(t.identity)
		if !t.isInstance() && s.xids[t.identity.UUID] == nil {
			s.xids[t.identity.UUID] = newXIDCounts()
		}
	}
	if changed {
		s.freeEvents()
		s.watch()
	}
}

// identify reads what does not change.
func (s *session) identify(v *candidate, parent *tracked) *tracked {
	t := &tracked{handle: v.handle, parent: parent, capabilities: map[string]bool{}, counters: map[uint32]counter{}}
	r := NewReading()
	r.UUID, r.Index, r.Driver = v.uuid, v.index, s.driver
	s.call("nvmlDeviceGetName", func() (c code) { r.Model, c = t.handle.name(); return c })
	if parent != nil {
		// A MIG instance's name is its GPU's, the word MIG, and its profile.
		if _, profile, ok := strings.Cut(r.Model, " MIG "); ok {
			r.MIGProfile = profile
		}
		p := parent.identity
		r.Model, r.Architecture, r.PCIBusID, r.ParentUUID = p.Model, p.Architecture, p.PCIBusID, p.UUID
		t.instance = -1
		s.call("nvmlDeviceGetGpuInstanceId", func() code {
			id, c := t.handle.gpuInstance()
			if c == success {
				t.instance = id
			}
			return c
		})
		t.identity = r
		s.openGPM(t)
		return t
	}
	s.call("nvmlDeviceGetPciInfo", func() (c code) { r.PCIBusID, c = t.handle.pciBusID(); return c })
	var generation uint32
	if s.call("nvmlDeviceGetArchitecture", func() (c code) { generation, c = t.handle.architecture(); return c }) == success {
		r.Architecture = architectures[generation]
	}
	// Maxima and the bus width are properties of the board.
	r.SMClockMaxHertz = mega * number(s, t, "nvmlDeviceGetMaxClockInfo", func() (uint32, code) { return t.handle.maxClock(clockSM) })
	r.MemoryClockMaxHertz = mega * number(s, t, "nvmlDeviceGetMaxClockInfo", func() (uint32, code) { return t.handle.maxClock(clockMemory) })
	width := number(s, t, "nvmlDeviceGetMemoryBusWidth", t.handle.busWidth)
	if peak := s.c.config.PeakBandwidth; peak > 0 {
		r.MemoryBandwidthPeak, r.MemoryBandwidthPeakSource = peak, "flag"
	} else if peak, sane := peakBandwidth(r.MemoryClockMaxHertz, width); !math.IsNaN(peak) {
		r.MemoryBandwidthPeak, r.MemoryBandwidthPeakSource = peak, "nvml"
	} else if !sane {
		s.reject("peak_bandwidth_out_of_range")
	}
	t.identity = r
	s.openGPM(t)
	return t
}
