package simulator

import (
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// process writes the python_* and process_* families with this process's own
// values; Go's garbage collector has one generation, which stands in for Python's youngest.
func (w *pageWriter) process() {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	for _, f := range []struct {
		name, help string
		youngest   float64
	}{
		{"python_gc_objects_collected_total", "Objects collected during gc", float64(memory.Frees)},
		{"python_gc_objects_uncollectable_total", "Uncollectable objects found during GC", 0},
		{"python_gc_collections_total", "Number of times this generation was collected", float64(memory.NumGC)},
	} {
		w.header(f.name, f.help, "counter")
		for generation, value := range []float64{f.youngest, 0, 0} {
			w.sample(f.name, "", labelText(label{"generation", string(rune('0' + generation))}), value)
		}
	}

	version := strings.TrimPrefix(runtime.Version(), "go")
	parts := append(strings.SplitN(version, ".", 3), "", "")
	w.header("python_info", "Python platform information", "gauge")
	w.sample("python_info", "", labelText(
		label{"implementation", "Go"},
		label{"major", parts[0]},
		label{"minor", parts[1]},
		label{"patchlevel", parts[2]},
		label{"version", version},
	), 1)

	values := processValues()
	for _, f := range []struct{ name, help, kind string }{
		{"process_virtual_memory_bytes", "Virtual memory size in bytes.", "gauge"},
		{"process_resident_memory_bytes", "Resident memory size in bytes.", "gauge"},
		{"process_start_time_seconds", "Start time of the process since unix epoch in seconds.", "gauge"},
		{"process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", "counter"},
		{"process_open_fds", "Number of open file descriptors.", "gauge"},
		{"process_max_fds", "Maximum number of open file descriptors.", "gauge"},
	} {
		if v, ok := values[f.name]; ok {
			w.header(f.name, f.help, f.kind)
			w.sample(f.name, "", "", v)
		}
	}
}

// processValues reads what this platform tells of the process; where it tells
// nothing the map is empty.
func processValues() map[string]float64 {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := registry.Gather()
	if err != nil {
		return nil
	}
	values := make(map[string]float64, len(families))
	for _, f := range families {
		m := f.GetMetric()[0]
		values[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return values
}
