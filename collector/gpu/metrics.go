package gpu

import (
	"math"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// add publishes one sample of a family; a value that is NaN is left out.
type add func(value float64, labels ...string)

// family is one metric family: its description and how it is read.
type family struct {
	name   string
	kind   prometheus.ValueType
	help   string
	labels []string
	read   func(*Snapshot, add)
}

// metrics exposes a snapshot.
type metrics struct {
	source func() Snapshot
	descs  []*prometheus.Desc
}

// NewMetrics exposes what source gives as headroom_gpu_* metrics. Collecting
// does no I/O: source must give a snapshot that exists already.
func NewMetrics(source func() Snapshot) prometheus.Collector {
	m := &metrics{source: source}
	for _, f := range families {
		m.descs = append(m.descs, prometheus.NewDesc(f.name, f.help, f.labels, nil))
	}
	return m
}

// Metric describes a family that NewMetrics exposes.
type Metric struct {
	Name, Type, Help string
	Labels           []string
}

// Metrics are the families that NewMetrics exposes, for documentation.
func Metrics() []Metric {
	list := make([]Metric, len(families))
	for i, f := range families {
		kind := "gauge"
		if f.kind == counted {
			kind = "counter"
		}
		list[i] = Metric{Name: f.name, Type: kind, Help: f.help, Labels: f.labels}
	}
	return list
}

// Each calls add for every sample of a snapshot under a name that reads
// accepts, without going through a registry.
func Each(s *Snapshot, reads func(name string) bool, add func(name string, labelNames, labelValues []string, value float64)) {
	for _, f := range families {
		if !reads(f.name) {
			continue
		}
		f.read(s, func(value float64, labelValues ...string) {
			if !math.IsNaN(value) {
				add(f.name, f.labels, labelValues, value)
			}
		})
	}
}

func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		ch <- d
	}
}

func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.source()
	for i, f := range families {
		f.read(&s, func(value float64, labels ...string) {
			if !math.IsNaN(value) {
				ch <- prometheus.MustNewConstMetric(m.descs[i], f.kind, value, labels...)
			}
		})
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// each reads one family of every expected GPU, lost ones included.
func each(read func(*Reading, add)) func(*Snapshot, add) {
	return func(s *Snapshot, add add) {
		for i := range s.Readings {
			r := &s.Readings[i]
			read(r, func(value float64, labels ...string) { add(value, append([]string{r.UUID}, labels...)...) })
		}
	}
}

// value reads one number of every GPU.
func value(of func(*Reading) float64) func(*Snapshot, add) {
	return each(func(r *Reading, add add) { add(of(r)) })
}

const (
	gauge   = prometheus.GaugeValue
	counted = prometheus.CounterValue
)

func labels(more ...string) []string { return append([]string{"uuid"}, more...) }

var families = slices.Concat(statusFamilies, readingFamilies, healthFamilies)

var statusFamilies = []family{
	{"headroom_gpu_nvml_up", gauge, "1 while GPUs are read through NVML; 0 when they are not, with the reason.", []string{"reason"},
		func(s *Snapshot, add add) { add(truth(s.Status.Up), string(s.Status.Reason)) }},
	{"headroom_gpu_collect_stuck", gauge, "1 when a driver call has hung for three intervals and the GPU readings were dropped.", nil,
		func(s *Snapshot, add add) { add(truth(s.Status.Reason == Stuck)) }},
	{"headroom_gpu_visible", gauge, "GPUs that this process can open.", nil,
		func(s *Snapshot, add add) { add(float64(s.Status.Visible)) }},
	{"headroom_gpu_expected", gauge, "GPUs, and MIG instances with their GPU, that are read or were; one that vanishes stays expected.", nil,
		func(s *Snapshot, add add) { add(float64(s.Status.Expected)) }},
	{"headroom_gpu_selection_ambiguous", gauge, "1 when several GPUs are visible and nothing says which are the engine's; no derived ratio uses them then.", nil,
		func(s *Snapshot, add add) { add(truth(s.Status.SelectionAmbiguous)) }},
	{"headroom_gpu_last_success_timestamp_seconds", gauge, "When the newest complete poll of the GPUs ended.", nil,
		func(s *Snapshot, add add) {
			if !s.Status.LastSuccess.IsZero() {
				add(float64(s.Status.LastSuccess.UnixMilli()) / 1e3)
			}
		}},
	{"headroom_gpu_collect_duration_seconds", gauge, "Duration of the newest complete poll of the GPUs.", nil,
		func(s *Snapshot, add add) {
			if !s.Status.LastSuccess.IsZero() {
				add(s.Status.CollectDuration.Seconds())
			}
		}},
	{"headroom_gpu_collect_errors_total", counted, "Driver calls that failed, by NVML function and return code. That a reading does not exist is no failure.", []string{"call", "code"},
		func(s *Snapshot, add add) {
			for name, call := range s.Status.Calls {
				for code, n := range call.Errors {
					add(float64(n), name, code)
				}
			}
		}},
	{"headroom_gpu_samples_rejected_total", counted, "Readings that were not believed, by reason.", []string{"reason"},
		func(s *Snapshot, add add) {
			for reason, n := range s.Status.Rejected {
				add(float64(n), reason)
			}
		}},
	{"headroom_gpu_collect_panics_total", counted, "Panics recovered while reading GPUs.", nil,
		func(s *Snapshot, add add) { add(float64(s.Status.Panics)) }},
}

var readingFamilies = []family{
	{"headroom_gpu_up", gauge, "1 while this GPU can be read, 0 while it is lost.", labels(),
		value(func(r *Reading) float64 { return truth(r.Lost == "") })},
	{"headroom_gpu_info", gauge, "Always 1; the labels say which GPU it is.", labels("index", "model", "arch", "driver", "pci_bus_id", "mig_profile", "parent_uuid"),
		each(func(r *Reading, add add) {
			add(1, strconv.Itoa(r.Index), r.Model, r.Architecture, r.Driver, r.PCIBusID, r.MIGProfile, r.ParentUUID)
		})},
	{"headroom_gpu_capability", gauge, "1 when this GPU, driver and container can tell of a feature; its series are expected then.", labels("feature"),
		each(func(r *Reading, add add) {
			for feature, can := range r.Capabilities {
				add(truth(can), feature)
			}
		})},
	{"headroom_gpu_memory_size_bytes", gauge, "Size of the device memory.", labels(), value(func(r *Reading) float64 { return r.MemorySizeBytes })},
	{"headroom_gpu_memory_used_bytes", gauge, "Device memory in use, without what the driver reserves.", labels(), value(func(r *Reading) float64 { return r.MemoryUsedBytes })},
	{"headroom_gpu_memory_free_bytes", gauge, "Device memory that is free.", labels(), value(func(r *Reading) float64 { return r.MemoryFreeBytes })},
	{"headroom_gpu_memory_reserved_bytes", gauge, "Device memory that the driver and firmware reserve.", labels(), value(func(r *Reading) float64 { return r.MemoryReservedBytes })},
	{"headroom_gpu_memory_bandwidth_ratio", gauge, "Bytes moved to and from device memory / theoretical peak, 0 to 1, as measured by GPM since the previous poll.", labels("source"),
		each(func(r *Reading, add add) { add(r.MemoryBandwidthRatio, "gpm") })},
	{"headroom_gpu_memory_bandwidth_peak_bytes_per_second", gauge, "Theoretical peak of the device memory's bandwidth, and where it comes from: flag or nvml.", labels("source"),
		each(func(r *Reading, add add) { add(r.MemoryBandwidthPeak, r.MemoryBandwidthPeakSource) })},
	{"headroom_gpu_sm_active_ratio", gauge, "Share of time in which the average streaming multiprocessor had a warp, 0 to 1.", labels(), value(func(r *Reading) float64 { return r.SMActiveRatio })},
	{"headroom_gpu_sm_occupancy_ratio", gauge, "Resident warps / the most that fit, 0 to 1.", labels(), value(func(r *Reading) float64 { return r.SMOccupancyRatio })},
	{"headroom_gpu_tensor_active_ratio", gauge, "Share of time in which tensor cores were busy, 0 to 1.", labels(), value(func(r *Reading) float64 { return r.TensorActiveRatio })},
	{"headroom_gpu_kernel_busy_ratio", gauge, "Share of time with at least one kernel running, 0 to 1. It does not say how much of the GPU was used.", labels(), value(func(r *Reading) float64 { return r.KernelBusyRatio })},
	{"headroom_gpu_memory_busy_ratio", gauge, "Share of time in which device memory was touched, 0 to 1. It is time, not bandwidth.", labels(), value(func(r *Reading) float64 { return r.MemoryBusyRatio })},
	{"headroom_gpu_power_watts", gauge, "Power drawn.", labels(), value(func(r *Reading) float64 { return r.PowerWatts })},
	{"headroom_gpu_power_limit_watts", gauge, "Power limit in force, out-of-band caps included.", labels(), value(func(r *Reading) float64 { return r.PowerLimit })},
	{"headroom_gpu_power_limit_default_watts", gauge, "Power limit that the board boots with.", labels(), value(func(r *Reading) float64 { return r.PowerLimitDefault })},
	{"headroom_gpu_energy_joules_total", counted, "Energy since the driver was loaded.", labels(), value(func(r *Reading) float64 { return r.EnergyJoules })},
	{"headroom_gpu_clock_hertz", gauge, "Clock by domain: sm, memory.", labels("domain"),
		each(func(r *Reading, add add) { add(r.SMClockHertz, "sm"); add(r.MemoryClockHertz, "memory") })},
	{"headroom_gpu_clock_max_hertz", gauge, "Maximum clock by domain: sm, memory.", labels("domain"),
		each(func(r *Reading, add add) { add(r.SMClockMaxHertz, "sm"); add(r.MemoryClockMaxHertz, "memory") })},
	{"headroom_gpu_temperature_celsius", gauge, "Temperature by sensor: core, memory.", labels("sensor"),
		each(func(r *Reading, add add) {
			add(r.TemperatureCelsius, "core")
			add(r.MemoryTemperatureCelsius, "memory")
		})},
	{"headroom_gpu_temperature_margin_celsius", gauge, "Degrees to the nearest slowdown.", labels(), value(func(r *Reading) float64 { return r.TemperatureMarginCelsius })},
	{"headroom_gpu_nvlinks_active", gauge, "NVLinks that work.", labels(), value(func(r *Reading) float64 { return r.NVLinksActive })},
	{"headroom_gpu_nvlinks_expected", gauge, "NVLinks that the GPU has; 0 when none was ever seen active.", labels(), value(func(r *Reading) float64 { return r.NVLinksExpected })},
	{"headroom_gpu_nvlink_receive_bytes_per_second", gauge, "Bytes received over NVLink per second since the previous poll.", labels(), value(func(r *Reading) float64 { return r.NVLinkReceiveBytesPerSecond })},
	{"headroom_gpu_nvlink_transmit_bytes_per_second", gauge, "Bytes sent over NVLink per second since the previous poll.", labels(), value(func(r *Reading) float64 { return r.NVLinkTransmitBytesPerSecond })},
	{"headroom_gpu_pcie_receive_bytes_per_second", gauge, "Bytes received over PCIe per second since the previous poll.", labels(), value(func(r *Reading) float64 { return r.PCIeReceiveBytesPerSecond })},
	{"headroom_gpu_pcie_transmit_bytes_per_second", gauge, "Bytes sent over PCIe per second since the previous poll.", labels(), value(func(r *Reading) float64 { return r.PCIeTransmitBytesPerSecond })},
}

var healthFamilies = []family{
	{"headroom_gpu_throttle_active", gauge, "1 while a reason holds the clocks down.", labels("reason"),
		each(func(r *Reading, add add) {
			for reason, on := range r.ThrottleActive {
				add(truth(on), reason)
			}
		})},
	{"headroom_gpu_throttle_seconds_total", counted, "Time in which a reason held the clocks down, since the driver was loaded.", labels("reason"),
		each(func(r *Reading, add add) {
			for reason, seconds := range r.ThrottleSeconds {
				add(seconds, reason)
			}
		})},
	{"headroom_gpu_ecc_errors_total", counted, "ECC errors since the driver was loaded, by severity: corrected, uncorrected.", labels("severity"),
		each(func(r *Reading, add add) { add(r.ECCCorrected, "corrected"); add(r.ECCUncorrected, "uncorrected") })},
	{"headroom_gpu_ecc_errors_lifetime", gauge, "ECC errors over the board's life, by severity: corrected, uncorrected.", labels("severity"),
		each(func(r *Reading, add add) {
			add(r.ECCCorrectedLifetime, "corrected")
			add(r.ECCUncorrectedLifetime, "uncorrected")
		})},
	{"headroom_gpu_remapped_rows", gauge, "Rows of device memory replaced by spares, by the errors that led to it: corrected, uncorrected.", labels("cause"),
		each(func(r *Reading, add add) {
			add(r.RemappedRowsCorrected, "corrected")
			add(r.RemappedRowsUncorrected, "uncorrected")
		})},
	{"headroom_gpu_row_remap_pending", gauge, "1 when a reset of the GPU will replace a row.", labels(), value(func(r *Reading) float64 { return r.RowRemapPending })},
	{"headroom_gpu_row_remap_failure", gauge, "1 when a row could not be replaced: the board must be.", labels(), value(func(r *Reading) float64 { return r.RowRemapFailure })},
	{"headroom_gpu_xid_events_total", counted, "XID errors that NVML reported since this process started, by XID and its class.", labels("xid", "class"),
		each(func(r *Reading, add add) {
			for _, x := range r.XIDs {
				add(float64(x.Count), strconv.FormatUint(x.XID, 10), string(x.Class))
			}
		})},
	{"headroom_gpu_xid_last_timestamp_seconds", gauge, "When an XID error was last reported.", labels("xid"),
		each(func(r *Reading, add add) {
			for _, x := range r.XIDs {
				if !x.Last.IsZero() {
					add(float64(x.Last.UnixMilli())/1e3, strconv.FormatUint(x.XID, 10))
				}
			}
		})},
	{"headroom_gpu_recovery_action", gauge, "1 for the action that the driver demands to recover this GPU, 0 for the others.", labels("action"),
		each(func(r *Reading, add add) {
			if r.RecoveryAction == "" {
				return
			}
			for _, action := range append([]string{"other"}, recoveryActions...) {
				add(truth(action == r.RecoveryAction), action)
			}
		})},
	{"headroom_gpu_capacity_lost", gauge, "1 when a reason costs capacity now.", labels("reason"),
		each(func(r *Reading, add add) {
			for reason, lost := range r.LostCapacity() {
				add(truth(lost), reason)
			}
		})},
}
