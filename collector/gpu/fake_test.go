package gpu

import (
	"math"
	"sync"
	"testing"
	"time"
)

// fakeLibrary is NVML in memory, for tests with a fake clock.
type fakeLibrary struct {
	mu      sync.Mutex
	opening error
	// count is what deviceCount says; the devices may be fewer.
	devices []*fakeDevice
	// results by function name replace success; they apply to every device.
	results map[string]code
	// hangs by function name block until the channel is closed.
	hangs map[string]chan struct{}
	// panics by function name.
	panics map[string]bool
	gpm    []float64
	events chan event

	calls                    map[string]int
	samples, sets, shutdowns int
}

func newFakeLibrary(devices ...*fakeDevice) *fakeLibrary {
	l := &fakeLibrary{
		devices: devices, results: map[string]code{}, hangs: map[string]chan struct{}{}, panics: map[string]bool{},
		gpm: []float64{50, 25, 10, 40, 1, 2, 3, 4}, events: make(chan event, 64), calls: map[string]int{},
	}
	for _, d := range devices {
		d.lib = l
		d.kernel = 50
		d.results = map[string]code{}
	}
	return l
}

func (l *fakeLibrary) set(change func(*fakeLibrary)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

func (l *fakeLibrary) enter(name string) code {
	l.mu.Lock()
	l.calls[name]++
	hang, c, boom := l.hangs[name], l.results[name], l.panics[name]
	l.mu.Unlock()
	if boom {
		panic("fake: " + name)
	}
	if hang != nil {
		<-hang
	}
	return c
}

func (l *fakeLibrary) open() error {
	l.enter("open")
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opening
}
func (l *fakeLibrary) shutdown() code {
	l.set(func(l *fakeLibrary) { l.shutdowns++ })
	return l.enter("shutdown")
}
func (l *fakeLibrary) driverVersion() (string, code) { return "570.1", l.enter("driverVersion") }
func (l *fakeLibrary) deviceCount() (int, code) {
	l.mu.Lock()
	n := len(l.devices)
	l.mu.Unlock()
	return n, l.enter("deviceCount")
}
func (l *fakeLibrary) deviceByIndex(i int) (device, code) {
	l.mu.Lock()
	d := l.devices[i]
	l.mu.Unlock()
	return d, d.enter("deviceByIndex")
}
func (l *fakeLibrary) newEventSet() (eventSet, code) {
	l.set(func(l *fakeLibrary) { l.sets++ })
	return fakeEventSet{l}, l.enter("newEventSet")
}
func (l *fakeLibrary) newSample() (sample, code) {
	l.set(func(l *fakeLibrary) { l.samples++ })
	return &fakeSample{l: l}, l.enter("newSample")
}
func (l *fakeLibrary) metrics(older, newer sample, ids []uint32) ([]float64, code) {
	c := l.enter("metrics")
	if a, b := older.(*fakeSample).taken, newer.(*fakeSample).taken; a.IsZero() || !b.After(a) {
		return nil, invalidArgument
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]float64(nil), l.gpm[:len(ids)]...), c
}

type fakeEventSet struct{ l *fakeLibrary }

func (s fakeEventSet) register(device, string, uint64) code { return s.l.enter("register") }
func (s fakeEventSet) free() code                           { s.l.set(func(l *fakeLibrary) { l.sets-- }); return success }
func (s fakeEventSet) wait(ms uint32) (event, code) {
	if c := s.l.enter("wait"); c != success {
		return event{}, c
	}
	select {
	case e := <-s.l.events:
		return e, success
	case <-time.After(time.Duration(ms) * time.Millisecond):
		return event{}, timedOut
	}
}

type fakeSample struct {
	l     *fakeLibrary
	taken time.Time
}

func (s *fakeSample) get(device) code {
	s.taken = time.Now()
	return s.l.enter("sampleGet")
}
func (s *fakeSample) getInstance(d device, _ int) code { return s.get(d) }
func (s *fakeSample) free() code {
	s.l.set(func(l *fakeLibrary) { l.samples-- })
	return success
}

type fakeDevice struct {
	lib     *fakeLibrary
	id      string
	results map[string]code
	kernel  uint32
	pids    []int
}

func (d *fakeDevice) enter(name string) code {
	if c := d.lib.enter(name); c != success {
		return c
	}
	d.lib.mu.Lock()
	defer d.lib.mu.Unlock()
	if c := d.results["*"]; c != success {
		return c
	}
	return d.results[name]
}

func (d *fakeDevice) uuid() (string, code)     { return d.id, d.enter("uuid") }
func (d *fakeDevice) name() (string, code)     { return "NVIDIA H100 80GB HBM3", d.enter("name") }
func (d *fakeDevice) minor() (int, code)       { return 0, notSupported }
func (d *fakeDevice) pciBusID() (string, code) { return "", notSupported }
func (d *fakeDevice) architecture() (uint32, code) {
	return 9, d.enter("architecture")
}
func (d *fakeDevice) memory() (memory, code) {
	return memory{total: 80, reserved: 1, free: 29, used: 50}, d.enter("memory")
}
func (d *fakeDevice) utilization() (utilization, code) {
	d.lib.mu.Lock()
	kernel := d.kernel
	d.lib.mu.Unlock()
	return utilization{kernel: kernel, memory: 10}, d.enter("utilization")
}
func (d *fakeDevice) powerUsage() (uint32, code) { return 350500, d.enter("powerUsage") }
func (d *fakeDevice) enforcedPowerLimit() (uint32, code) {
	return 700000, d.enter("enforcedPowerLimit")
}
func (d *fakeDevice) energy() (uint64, code)           { return 0, notSupported }
func (d *fakeDevice) temperature() (uint32, code)      { return 60, d.enter("temperature") }
func (d *fakeDevice) marginTemperature() (int32, code) { return 0, argumentVersion }
func (d *fakeDevice) clock(clockDomain) (uint32, code) { return 1000, d.enter("clock") }
func (d *fakeDevice) maxClock(domain clockDomain) (uint32, code) {
	return map[clockDomain]uint32{clockSM: 1980, clockMemory: 2619}[domain], d.enter("maxClock")
}
func (d *fakeDevice) busWidth() (uint32, code)           { return 5120, d.enter("busWidth") }
func (d *fakeDevice) clocksEventReasons() (uint64, code) { return 0, d.enter("clocksEventReasons") }
func (d *fakeDevice) fieldValues(fs fields) code {
	for i := range fs {
		fs[i].code = notSupported
	}
	return d.enter("fieldValues")
}
func (d *fakeDevice) computeProcesses() ([]int, code) {
	c := d.enter("computeProcesses")
	d.lib.mu.Lock()
	defer d.lib.mu.Unlock()
	return append([]int(nil), d.pids...), c
}
func (d *fakeDevice) migEnabled() (bool, code)     { return false, notSupported }
func (d *fakeDevice) maxMIGDevices() (int, code)   { return 0, notSupported }
func (d *fakeDevice) migDevice(int) (device, code) { return nil, notSupported }
func (d *fakeDevice) gpuInstance() (int, code)     { return 0, notSupported }
func (d *fakeDevice) supportedEvents() (uint64, code) {
	return eventsWanted, d.enter("supportedEvents")
}
func (d *fakeDevice) gpmSupported() (bool, code) { return true, d.enter("gpmSupported") }

// reading is the reading of a GPU, which must be there.
func (s Snapshot) reading(t *testing.T, id string) Reading {
	t.Helper()
	for _, r := range s.Readings {
		if r.UUID == id {
			return r
		}
	}
	t.Fatalf("no reading of %s among %d", id, len(s.Readings))
	return Reading{}
}

func nan(v float64) bool { return math.IsNaN(v) }
