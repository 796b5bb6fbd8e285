package main

// gpu shows the GPUs of the replicas: what they do, what holds them down and
// what is broken.
var gpu = board{
	uid: "headroom-gpu", title: "Headroom / GPU",
	description: "GPUs of the replicas, read through NVML: memory, multiprocessors, bandwidth with its source, power, clocks, what holds them down, and faults that cost capacity.",
	variables:   []variable{source, namespaces("headroom_gpu_visible"), pools("headroom_gpu_visible"), pods("headroom_gpu_visible")},
	rows: []row{
		{"Is a GPU lost or broken?", []panel{
			{
				kind: big, title: "GPUs readable", unit: number, width: 4, height: 6,
				description: "1 for each GPU that can be read, 0 for one that is lost.",
				queries:     []query{{expr: `headroom_gpu_up{<pod>}`, legend: "{{pod}} {{gpu}}"}},
				steps:       warnBelow, mappings: map[string]string{"0": "lost", "1": "up"}, empty: "no GPU is read", runbooks: []string{"HeadroomGPULost"},
			},
			{
				kind: big, title: "NVML", unit: number, width: 4, height: 6, names: true,
				description: "Whether GPUs are read through NVML, and the reason when they are not.",
				queries:     []query{{expr: `headroom_gpu_nvml_up{<pod>}`, legend: "{{pod}}: {{reason}}"}},
				colours:     map[string]string{"ok": good, "off": plain}, steps: warnBelow, empty: "the exporter is not scraped", runbooks: []string{"HeadroomGPUUnreadable"},
			},
			{
				kind: big, title: "Recovery action", unit: number, width: 4, height: 6, names: true,
				description: "What the driver demands to recover a GPU; none is well.",
				queries:     []query{{expr: `max by (pod, action) (headroom_gpu_recovery_action{<pod>} == 1)`, legend: "{{pod}}: {{action}}"}},
				colours:     map[string]string{"none": good}, steps: []step{{0, bad}}, empty: "the driver does not say", runbooks: []string{"HeadroomGPUNeedsReset", "HeadroomGPUNeedsReboot"},
			},
			{
				kind: bars, title: "Capacity lost", unit: number, width: 12, height: 6, min: at(0), max: at(1),
				description: "Reasons that cost capacity now. Without any nothing is lost.",
				queries:     []query{{expr: `max by (pod, reason) (headroom_gpu_capacity_lost{<pod>}) == 1`, legend: "{{pod}} {{reason}}"}},
				steps:       warnAbove, mappings: map[string]string{"1": "lost"}, empty: "none",
			},
		}},
		{"What the GPUs do", []panel{
			{
				title: "Device memory (HBM)", unit: byteCount, width: 12, height: 8, min: at(0),
				description: "Device memory in use, what the driver reserves, and its size. An engine takes its cache at the start: this says little about load.",
				queries: []query{
					{expr: `headroom_gpu_memory_used_bytes{<pod>}`, legend: "{{pod}} {{gpu}} used"},
					{expr: `headroom_gpu_memory_reserved_bytes{<pod>}`, legend: "{{pod}} {{gpu}} reserved"},
					{`max(headroom_gpu_memory_size_bytes{<pod>})`, "size", bad},
				},
				empty: "no GPU is read",
			},
			{
				title: "Multiprocessors", unit: ratio, width: 12, height: 8, min: at(0), max: at(1),
				description: "SM active, SM occupancy and tensor cores active, by GPM. Kernel busy is what nvidia-smi calls utilisation: time with any kernel running, however small.",
				queries: []query{
					{expr: `headroom_gpu_sm_active_ratio{<pod>}`, legend: "{{pod}} {{gpu}} SM active"},
					{expr: `headroom_gpu_sm_occupancy_ratio{<pod>}`, legend: "{{pod}} {{gpu}} SM occupancy"},
					{expr: `headroom_gpu_tensor_active_ratio{<pod>}`, legend: "{{pod}} {{gpu}} tensor active"},
					{expr: `headroom_gpu_kernel_busy_ratio{<pod>}`, legend: "{{pod}} {{gpu}} kernel busy"},
				},
				empty: "no GPU is read",
			},
			{
				title: "Memory bandwidth / theoretical peak", unit: ratio, width: 12, height: 8, min: at(0), max: at(1),
				description: "Bytes moved / theoretical peak, measured, with its source. Memory busy is time in which memory was touched, not bandwidth.",
				queries: []query{
					{expr: `headroom_gpu_memory_bandwidth_ratio{<pod>}`, legend: "{{pod}} {{gpu}} {{source}}"},
					{expr: `headroom_gpu_memory_busy_ratio{<pod>}`, legend: "{{pod}} {{gpu}} memory busy"},
				},
				empty: "GPM is on Hopper and newer only", runbooks: []string{"HeadroomBandwidthSaturated"},
			},
			{
				title: "Memory bandwidth / achievable", unit: ratio, width: 12, height: 8, min: at(0),
				description: "Bandwidth in use / achievable, by source: gpm is measured, engine and model are estimates. The peak is never achieved; 1 here is what can be.",
				queries:     []query{{expr: `headroom_bandwidth_saturation_ratio{<pod>}`, legend: "{{pod}}/{{engine}} {{source}}"}},
				empty:       "no source", runbooks: []string{"HeadroomBandwidthSaturated"},
			},
			{
				title: "NVLink", unit: bytesPerSecond, width: 8, height: 8, min: at(0),
				description: "Bytes received and sent over NVLink per second.",
				queries: []query{
					{expr: `headroom_gpu_nvlink_receive_bytes_per_second{<pod>}`, legend: "{{pod}} {{gpu}} received"},
					{expr: `headroom_gpu_nvlink_transmit_bytes_per_second{<pod>}`, legend: "{{pod}} {{gpu}} sent"},
				},
				empty: "GPM does not tell, or there is none",
			},
			{
				title: "NVLinks that work", unit: number, width: 8, height: 8, min: at(0), stairs: true,
				description: "NVLinks that are active, and those that the GPU has.",
				queries: []query{
					{expr: `headroom_gpu_nvlinks_active{<pod>}`, legend: "{{pod}} {{gpu}} active"},
					{`max(headroom_gpu_nvlinks_expected{<pod>})`, "expected", careful},
				},
				empty: "no GPU is read", runbooks: []string{"HeadroomGPUNVLinkDown"},
			},
			{
				title: "PCIe", unit: bytesPerSecond, width: 8, height: 8, min: at(0),
				description: "Bytes received and sent over PCIe per second.",
				queries: []query{
					{expr: `headroom_gpu_pcie_receive_bytes_per_second{<pod>}`, legend: "{{pod}} {{gpu}} received"},
					{expr: `headroom_gpu_pcie_transmit_bytes_per_second{<pod>}`, legend: "{{pod}} {{gpu}} sent"},
				},
				empty: "GPM does not tell",
			},
		}},
		{"Power, clocks, heat", []panel{
			{
				title: "Power", unit: watts, width: 8, height: 8, min: at(0),
				description: "Power drawn, the limit in force, and the limit that the board boots with. A lowered limit moves the knee.",
				queries: []query{
					{expr: `headroom_gpu_power_watts{<pod>}`, legend: "{{pod}} {{gpu}} drawn"},
					{expr: `headroom_gpu_power_limit_watts{<pod>}`, legend: "{{pod}} {{gpu}} limit"},
					{`max(headroom_gpu_power_limit_default_watts{<pod>})`, "default limit", careful},
				},
				empty: "no GPU is read",
			},
			{
				title: "Clocks", unit: hertz, width: 8, height: 8, min: at(0),
				description: "Clocks of the multiprocessors and the memory, and their maxima.",
				queries: []query{
					{expr: `headroom_gpu_clock_hertz{<pod>}`, legend: "{{pod}} {{gpu}} {{domain}}"},
					{`max(headroom_gpu_clock_max_hertz{<pod>, domain="sm"})`, "sm at most", careful},
					{`max(headroom_gpu_clock_max_hertz{<pod>, domain="memory"})`, "memory at most", careful},
				},
				empty: "no GPU is read",
			},
			{
				title: "Temperature", unit: celsius, width: 8, height: 8,
				description: "Temperature by sensor, and degrees to the nearest slowdown.",
				queries: []query{
					{expr: `headroom_gpu_temperature_celsius{<pod>}`, legend: "{{pod}} {{gpu}} {{sensor}}"},
					{expr: `headroom_gpu_temperature_margin_celsius{<pod>}`, legend: "{{pod}} {{gpu}} to slowdown"},
				},
				empty: "no GPU is read",
			},
			{
				title: "Clocks held down, share of time", unit: ratio, width: 12, height: 8, min: at(0), max: at(1),
				description: "Share of time in which a reason held the clocks down, from the driver's own counters: nothing between two scrapes is missed. sw_power_cap is usual at high load; thermal and brake reasons are not.",
				queries:     []query{{expr: `sum by (pod, uuid, reason) (rate(headroom_gpu_throttle_seconds_total{<pod>}[$__rate_interval]))`, legend: "{{pod}} {{gpu}} {{reason}}"}},
				empty:       "the driver does not count them", runbooks: []string{"HeadroomGPUThrottled"},
			},
			{
				title: "Energy drawn, as power", unit: watts, width: 6, height: 8, min: at(0),
				description: "Rate of the energy counter: the true mean power, which samples of the power can miss.",
				queries:     []query{{expr: `sum by (pod, uuid) (rate(headroom_gpu_energy_joules_total{<pod>}[$__rate_interval]))`, legend: "{{pod}} {{gpu}}"}},
				empty:       "the driver does not count it",
			},
			{
				title: "Energy per 1,000 tokens", unit: joules, width: 6, height: 8, min: at(0),
				description: "Energy that the GPUs drew in 5 minutes per 1,000 tokens: generated only, and computed ones too.",
				queries: []query{
					{expr: `headroom_gpu_energy_per_1000_generation_tokens_joules{<pod>}`, legend: "{{pod}} generated"},
					{expr: `headroom_gpu_energy_per_1000_tokens_joules{<pod>}`, legend: "{{pod}} computed"},
				},
				empty: "no traffic, or no energy counter",
			},
		}},
		{"Faults", []panel{
			{
				title: "XID errors", unit: number, width: 8, height: 8, min: at(0),
				description: "XID errors that NVML reported in the rate interval, by XID and what it calls for. One that was not seen yet is 0 where it is known beforehand, and not drawn otherwise.",
				queries:     []query{{expr: `sum by (pod, uuid, xid, class) (increase(headroom_gpu_xid_events_total{<pod>}[$__rate_interval]))`, legend: "{{pod}} {{gpu}} XID {{xid}} {{class}}"}},
				empty:       "none since the exporter started", runbooks: []string{"HeadroomGPUNeedsReset", "HeadroomGPUNeedsReboot"},
			},
			{
				kind: big, title: "Last XID", unit: ago, width: 4, height: 8,
				description: "When an XID error was last reported, by XID.",
				queries:     []query{{expr: `1000 * max by (pod, xid) (headroom_gpu_xid_last_timestamp_seconds{<pod>})`, legend: "{{pod}} XID {{xid}}"}},
				empty:       "none since the exporter started",
			},
			{
				title: "ECC errors", unit: number, width: 6, height: 8, min: at(0),
				description: "Errors of the device memory in the rate interval that were corrected and that could not be.",
				queries:     []query{{expr: `sum by (pod, uuid, severity) (increase(headroom_gpu_ecc_errors_total{<pod>}[$__rate_interval]))`, legend: "{{pod}} {{gpu}} {{severity}}"}},
				empty:       "ECC is off, or the driver does not count",
			},
			{
				kind: bars, title: "Row remapping", unit: number, width: 6, height: 8, min: at(0),
				description: "Rows of device memory replaced by spares after corrected and uncorrected errors, whether a reset is needed to replace one, and whether one could not be: then the board must be.",
				queries: []query{
					{expr: `headroom_gpu_remapped_rows{<pod>}`, legend: "{{pod}} {{gpu}}: {{cause}}"},
					{expr: `headroom_gpu_row_remap_pending{<pod>}`, legend: "{{pod}} {{gpu}}: pending"},
					{expr: `headroom_gpu_row_remap_failure{<pod>}`, legend: "{{pod}} {{gpu}}: failure"},
				},
				colours: map[string]string{"corrected": plain, "uncorrected": plain}, steps: warnAbove, empty: "the GPU does not remap rows", runbooks: []string{"HeadroomGPURowRemap"},
			},
			{
				title: "Age of the readings", unit: seconds, width: 8, height: 8, min: at(0),
				description: "Seconds since the newest complete poll of the GPUs.",
				queries:     []query{{expr: `time() - headroom_gpu_last_success_timestamp_seconds{<pod>}`, legend: "{{pod}}"}},
				empty:       "no GPU is read",
			},
			{
				title: "Duration of a poll", unit: seconds, width: 8, height: 8, min: at(0),
				description: "How long the newest complete poll of the GPUs took.",
				queries:     []query{{expr: `headroom_gpu_collect_duration_seconds{<pod>}`, legend: "{{pod}}"}},
				empty:       "no GPU is read",
			},
			{
				title: "Driver calls that failed", unit: number, width: 8, height: 8, min: at(0),
				description: "Calls into the driver that failed in the rate interval, by function and return code, and readings that were not believed.",
				queries: []query{
					{expr: `sum by (pod, call, code) (increase(headroom_gpu_collect_errors_total{<pod>}[$__rate_interval]))`, legend: "{{pod}} {{call}} {{code}}"},
					{expr: `sum by (pod, reason) (increase(headroom_gpu_samples_rejected_total{<pod>}[$__rate_interval]))`, legend: "{{pod}} not believed: {{reason}}"},
				},
				empty: "none since the exporter started",
			},
		}},
	},
}
