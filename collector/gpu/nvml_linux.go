//go:build linux && cgo

package gpu

import (
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const defaultLibrary = "libnvidia-ml.so.1"

// binding calls NVML through go-nvml. Calling a function that the loaded
// library lacks ends the process in the dynamic loader, without a panic that
// could be recovered, so every call asks has first. For the same reason codes
// are never formatted by go-nvml, which calls nvmlErrorString.
type binding struct {
	path    string
	api     nvml.Interface
	symbols map[string]bool
}

func newLibrary(path string) library {
	if path == "" {
		path = defaultLibrary
	}
	return &binding{path: path, api: nvml.New(nvml.WithLibraryPath(path))}
}

// has says whether the library exports one of the names that a call may be bound to.
func (b *binding) has(names ...string) bool {
	for _, name := range names {
		found, asked := b.symbols[name]
		if !asked {
			found = b.api.Extensions().LookupSymbol(name) == nil
			b.symbols[name] = found
		}
		if found {
			return true
		}
	}
	return false
}

func (b *binding) open() error {
	// go-nvml drops the loader's words and initialises before symbols can be
	// looked up, so the library is first opened by hand.
	lib := dl.New(b.path, dl.RTLD_LAZY)
	if err := lib.Open(); err != nil {
		return &openError{LibraryNotFound, fmt.Sprintf("loading %s: %v", b.path, err)}
	}
	defer lib.Close()
	if lib.Lookup("nvmlInit_v2") != nil && lib.Lookup("nvmlInit") != nil {
		return &openError{SymbolMissing, b.path + " has no nvmlInit"}
	}
	b.symbols = map[string]bool{}
	if c := code(b.api.Init()); c != success {
		return &openError{c.reason(), fmt.Sprintf("initialising %s: %s (code %d)", b.path, c, int32(c))}
	}
	return nil
}

func (b *binding) shutdown() code {
	if !b.has("nvmlShutdown") {
		return functionNotFound
	}
	return code(b.api.Shutdown())
}

func (b *binding) driverVersion() (string, code) {
	if !b.has("nvmlSystemGetDriverVersion") {
		return "", functionNotFound
	}
	v, r := b.api.SystemGetDriverVersion()
	return v, code(r)
}

func (b *binding) deviceCount() (int, code) {
	if !b.has("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount") {
		return 0, functionNotFound
	}
	n, r := b.api.DeviceGetCount()
	return n, code(r)
}

func (b *binding) deviceByIndex(index int) (device, code) {
	if !b.has("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex") {
		return nil, functionNotFound
	}
	d, r := b.api.DeviceGetHandleByIndex(index)
	return boundDevice{b, d}, code(r)
}

func (b *binding) newEventSet() (eventSet, code) {
	if !b.has("nvmlEventSetCreate") || !b.has("nvmlEventSetFree") {
		return nil, functionNotFound
	}
	s, r := b.api.EventSetCreate()
	return &boundEventSet{b, s, map[nvml.Device]string{}}, code(r)
}

func (b *binding) newSample() (sample, code) {
	if !b.has("nvmlGpmSampleAlloc") || !b.has("nvmlGpmSampleFree") {
		return nil, functionNotFound
	}
	s, r := b.api.GpmSampleAlloc()
	return boundSample{b, s}, code(r)
}

func (b *binding) metrics(older, newer sample, ids []uint32) ([]float64, code) {
	if !b.has("nvmlGpmMetricsGet") {
		return nil, functionNotFound
	}
	// The array's length changes from release to release of go-nvml.
	var g nvml.GpmMetricsGetType
	g.NumMetrics = uint32(len(ids))
	g.Sample1, g.Sample2 = older.(boundSample).s, newer.(boundSample).s
	for i, id := range ids {
		g.Metrics[i].MetricId = id
	}
	if r := b.api.GpmMetricsGet(&g); r != nvml.SUCCESS {
		return nil, code(r)
	}
	values := make([]float64, len(ids))
	for i := range ids {
		values[i] = g.Metrics[i].Value
		if g.Metrics[i].NvmlReturn != 0 {
			values[i] = math.NaN()
		}
	}
	return values, success
}

type boundEventSet struct {
	b     *binding
	s     nvml.EventSet
	uuids map[nvml.Device]string
}

func (s *boundEventSet) register(d device, uuid string, kinds uint64) code {
	if !s.b.has("nvmlDeviceRegisterEvents") {
		return functionNotFound
	}
	handle := d.(boundDevice).d
	s.uuids[handle] = uuid
	return code(handle.RegisterEvents(kinds, s.s))
}

func (s *boundEventSet) wait(milliseconds uint32) (event, code) {
	if !s.b.has("nvmlEventSetWait_v2", "nvmlEventSetWait") {
		return event{}, functionNotFound
	}
	e, r := s.s.Wait(milliseconds)
	return event{uuid: s.uuids[e.Device], kind: e.EventType, data: e.EventData}, code(r)
}

func (s *boundEventSet) free() code {
	if !s.b.has("nvmlEventSetFree") {
		return functionNotFound
	}
	return code(s.s.Free())
}

type boundSample struct {
	b *binding
	s nvml.GpmSample
}

func (s boundSample) get(d device) code {
	if !s.b.has("nvmlGpmSampleGet") {
		return functionNotFound
	}
	return code(s.s.Get(d.(boundDevice).d))
}

func (s boundSample) getInstance(d device, instance int) code {
	if !s.b.has("nvmlGpmMigSampleGet") {
		return functionNotFound
	}
	return code(s.s.MigGet(d.(boundDevice).d, instance))
}

func (s boundSample) free() code {
	if !s.b.has("nvmlGpmSampleFree") {
		return functionNotFound
	}
	return code(s.s.Free())
}
