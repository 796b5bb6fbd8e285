//go:build linux && cgo

package gpu

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const uuid = "GPU-5b2c8f5e-6f0d-4a3c-9a51-0c3f7d2e1a10"

const up = `headroom_gpu_nvml_up{reason="ok"}`

// of is a GPU's series; labels come as they are sorted on a page.
func of(name, labels string) string {
	before, after := "", ""
	for _, l := range strings.Split(labels, ",") {
		switch {
		case l == "":
		case l < "uuid":
			before += l + ","
		default:
			after += "," + l
		}
	}
	return fmt.Sprintf("headroom_gpu_%s{%suuid=%q%s}", name, before, uuid, after)
}

func (p page) check(t *testing.T, want map[string]float64) {
	t.Helper()
	for series, value := range want {
		if got, ok := p[series]; !ok {
			t.Errorf("%s is absent, want %v", series, value)
		} else if got != value {
			t.Errorf("%s is %v, want %v", series, got, value)
		}
	}
}

// absent fails for each name that has a series.
func (p page) absent(t *testing.T, names ...string) {
	t.Helper()
	for series := range p {
		name, _, _ := strings.Cut(series, "{")
		if slices.Contains(names, strings.TrimPrefix(name, "headroom_gpu_")) {
			t.Errorf("%s %v is present", series, p[series])
		}
	}
}

func TestHealthyH100(t *testing.T) {
	t.Parallel()
	c := startChild(t, buildFake(t), newScript(t))
	// GPM needs a second poll.
	p := c.until(of("memory_bandwidth_ratio", `source="gpm"`), 0.715)
	p.check(t, map[string]float64{
		up:                                           1,
		"headroom_gpu_collect_stuck":                 0,
		"headroom_gpu_visible":                       1,
		"headroom_gpu_expected":                      1,
		"headroom_gpu_selection_ambiguous":           0,
		of("up", ""):                                 1,
		of("memory_size_bytes", ""):                  85520809984,
		of("memory_used_bytes", ""):                  72510078976,
		of("memory_reserved_bytes", ""):              550502400,
		of("memory_free_bytes", ""):                  85520809984 - 72510078976 - 550502400,
		of("sm_active_ratio", ""):                    0.935,
		of("sm_occupancy_ratio", ""):                 0.4125,
		of("tensor_active_ratio", ""):                0.375,
		of("kernel_busy_ratio", ""):                  0.98,
		of("memory_busy_ratio", ""):                  0.54,
		of("power_watts", ""):                        612.345,
		of("power_limit_watts", ""):                  700,
		of("power_limit_default_watts", ""):          700,
		of("energy_joules_total", ""):                123456789.012,
		of("temperature_margin_celsius", ""):         26,
		of("temperature_celsius", `sensor="core"`):   61,
		of("temperature_celsius", `sensor="memory"`): 70,
		of("clock_hertz", `domain="sm"`):             1755e6,
		of("clock_hertz", `domain="memory"`):         2619e6,
		of("clock_max_hertz", `domain="sm"`):         1980e6,
		// 2619 MHz x 2 x 5120 / 8: NVIDIA publishes 3350 GB/s.
		of("memory_bandwidth_peak_bytes_per_second", `source="nvml"`): 3352.32e9,
		of("throttle_seconds_total", `reason="sw_power_cap"`):         7015.662857,
		of("throttle_active", `reason="hw_thermal"`):                  0,
		of("nvlinks_active", ""):                                      4,
		of("nvlinks_expected", ""):                                    4,
		of("nvlink_receive_bytes_per_second", ""):                     2048 * 1048576,
		of("nvlink_transmit_bytes_per_second", ""):                    1024 * 1048576,
		of("pcie_transmit_bytes_per_second", ""):                      12 * 1048576,
		of("pcie_receive_bytes_per_second", ""):                       34 * 1048576,
		of("ecc_errors_lifetime", `severity="corrected"`):             2,
		of("ecc_errors_total", `severity="uncorrected"`):              0,
		of("row_remap_pending", ""):                                   0,
		of("recovery_action", `action="none"`):                        1,
		of("capability", `feature="gpm"`):                             1,
		of("capability", `feature="xid_events"`):                      1,
		of("capacity_lost", `reason="recovery_action"`):               0,
		// Errors that cost the GPU are there before the first one occurs.
		fmt.Sprintf(`headroom_gpu_xid_events_total{class="restart_node",uuid=%q,xid="79"}`, uuid):                                                                                             0,
		fmt.Sprintf(`headroom_gpu_info{arch="hopper",driver="570.124.06",index="0",mig_profile="",model="NVIDIA H100 80GB HBM3",parent_uuid="",pci_bus_id="00000000:19:00.0",uuid=%q}`, uuid): 1,
	})
	p.absent(t, "collect_errors_total", "samples_rejected_total", "xid_last_timestamp_seconds")
	t.Logf("%d series for one GPU", len(p)-1)
	if len(p)-1 > 120 {
		t.Errorf("%d series for one GPU, want at most 120", len(p)-1)
	}
	c.end()
}

// optional are the functions that a library may lack.
var optional = []string{
	"nvmlShutdown", "nvmlErrorString", "nvmlSystemGetDriverVersion",
	"nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetArchitecture",
	"nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTotalEnergyConsumption",
	"nvmlDeviceGetMemoryBusWidth", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons",
	"nvmlDeviceGetSupportedEventTypes", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetTemperature",
	"nvmlDeviceGetMarginTemperature", "nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo",
	"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetFieldValues",
	"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount",
	"nvmlDeviceGetMigDeviceHandleByIndex", "nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents",
	"nvmlEventSetWait_v2", "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmSampleGet",
	"nvmlGpmMigSampleGet", "nvmlGpmMetricsGet",
}

// required are those without which no GPU can be named.
var required = []string{"nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}

// A call whose function is not looked up first, or another in its place, ends
// the process on a driver that lacks it.
func TestEveryCallIsGated(t *testing.T) {
	gated := map[string]bool{}
	for _, name := range []string{"nvml_linux.go", "nvml_device_linux.go"} {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`"(nvml\w+)"`).FindAllStringSubmatch(string(source), -1) {
			gated[m[1]] = true
		}
		for _, m := range regexp.MustCompile(`ask\(d\.b, "nvml(?:Device)?(\w+)", d\.d\.(\w+)\)`).FindAllStringSubmatch(string(source), -1) {
			if m[1] != m[2] {
				t.Errorf("%s calls %s behind the symbol of %s", name, m[2], m[1])
			}
		}
		// Every method of the library's objects that is called stands in a
		// function that looks something up.
		for _, f := range strings.Split(string(source), "\nfunc ")[1:] {
			calls := regexp.MustCompile(`\b(?:b\.api|d\.d|s\.s|handle)\.[A-Z]\w+`).MatchString(strings.ReplaceAll(f, "b.api.Extensions", ""))
			if looks := strings.Contains(f, ".has(") || strings.Contains(f, "ask(") || strings.Contains(f, "lib.Lookup("); calls && !looks {
				t.Errorf("%s: ungated: func %s", name, strings.SplitN(f, "\n", 2)[0])
			}
		}
	}
	for _, name := range append(slices.Clone(optional), required...) {
		if name == "nvmlErrorString" {
			// go-nvml calls it to format a code, which the binding never does.
			continue
		}
		if !gated[name] {
			t.Errorf("%s is left out of a library and asked for nowhere", name)
		}
		delete(gated, name)
	}
	// What is left are the older versions of functions.
	for name := range gated {
		newer := slices.ContainsFunc(append(slices.Clone(optional), required...), func(o string) bool {
			base, _, _ := strings.Cut(name, "_v")
			return o != name && strings.HasPrefix(o, base+"_v")
		})
		if !newer {
			t.Errorf("no library is tried without %s", name)
		}
	}
}

func TestMissingSymbols(t *testing.T) {
	// Two GPUs, one of them split, so that every function is called.
	lines := append(migLines(), "* gpus 2", "1 uuid GPU-1", "1 name NVIDIA H100 80GB HBM3", "1 gpm 1", "1 mig 0",
		"1 events_supported 59407", "1 memory_total 85520809984", "1 memory_used 1", "1 gpm.2 1")
	for _, symbol := range optional {
		t.Run(symbol, func(t *testing.T) {
			t.Parallel()
			c := startChild(t, buildFake(t, symbol), newScript(t, lines...))
			p := c.until(up, 1)
			first := p["headroom_gpu_last_success_timestamp_seconds"]
			for p["headroom_gpu_last_success_timestamp_seconds"] == first {
				if p = c.metrics(); p == nil {
					t.Fatalf("the process ended: %v\n%s", c.cmd.Wait(), c.stderr)
				}
			}
			p.check(t, map[string]float64{up: 1})
			c.end()
		})
	}
	t.Run("all", func(t *testing.T) {
		t.Parallel()
		c := startChild(t, buildFake(t, optional...), newScript(t))
		// Nothing is left to read, which is no error of the GPU.
		p := c.until(up, 1)
		p.check(t, map[string]float64{of("up", ""): 1, of("capability", `feature="gpm"`): 0, of("capability", `feature="power"`): 0})
		p.absent(t, "power_watts", "memory_used_bytes", "energy_joules_total", "collect_errors_total", "memory_bandwidth_ratio")
		c.end()
	})
	for _, symbol := range required {
		t.Run(symbol, func(t *testing.T) {
			t.Parallel()
			c := startChild(t, buildFake(t, symbol), newScript(t))
			c.until(`headroom_gpu_nvml_up{reason="symbol_missing"}`, 0)
			c.end()
		})
	}
}

// Without GPM or fields the older calls give what they can.
func TestOlderDriver(t *testing.T) {
	t.Parallel()
	library := buildFake(t, "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlGpmQueryDeviceSupport")
	s := newScript(t, "0 clocks_event_reasons 4", "0 field.198 1000000")
	c := startChild(t, library, s)
	p := c.until(up, 1)
	p.check(t, map[string]float64{
		of("throttle_active", `reason="sw_power_cap"`): 1,
		of("capability", `feature="gpm"`):              0,
		// The older call counts what is reserved as used.
		of("memory_used_bytes", ""): 72510078976 + 550502400,
	})
	p.absent(t, "memory_reserved_bytes", "memory_bandwidth_ratio", "sm_active_ratio")
	c.until(of("pcie_receive_bytes_per_second", ""), 0)
	c.end()
}

func TestGPULost(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	c := startChild(t, buildFake(t), s)
	c.until(up, 1)
	s.append("0 result 15")
	p := c.until(`headroom_gpu_nvml_up{reason="devices_lost"}`, 0)
	p.check(t, map[string]float64{
		of("up", ""):                             0,
		"headroom_gpu_expected":                  1,
		of("capacity_lost", `reason="gpu_lost"`): 1,
	})
	p.absent(t, "power_watts", "memory_used_bytes", "memory_bandwidth_ratio", "throttle_active", "energy_joules_total")
	// Its errors so far are not forgotten.
	p.check(t, map[string]float64{fmt.Sprintf(`headroom_gpu_xid_events_total{class="restart_node",uuid=%q,xid="79"}`, uuid): 0})
	c.end()
}

func TestOneOfTwoGPUsLost(t *testing.T) {
	t.Parallel()
	s := newScript(t, "* gpus 2", "1 uuid GPU-1", "1 power_milliwatts 1000")
	c := startChild(t, buildFake(t), s, "GPU_TEST_DEVICES=all")
	c.until(`headroom_gpu_up{uuid="GPU-1"}`, 1)
	s.append("0 result.nvmlDeviceGetPowerUsage 15")
	c.until(of("up", ""), 0).check(t, map[string]float64{
		up: 1, `headroom_gpu_up{uuid="GPU-1"}`: 1, `headroom_gpu_power_watts{uuid="GPU-1"}`: 1,
		`headroom_gpu_collect_errors_total{call="nvmlDeviceGetPowerUsage",code="gpu_is_lost"}`: 1,
	})
	c.end()
}

func TestHungCall(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	c := startChild(t, buildFake(t), s)
	c.until(up, 1)
	s.append("0 hang.nvmlDeviceGetPowerUsage 1")
	p := c.until("headroom_gpu_collect_stuck", 1)
	p.check(t, map[string]float64{`headroom_gpu_nvml_up{reason="stuck"}`: 0, of("up", ""): 0})
	p.absent(t, "power_watts", "memory_used_bytes", "memory_bandwidth_ratio", "clock_hertz")
	// The page is there at once, every time, while the call hangs.
	var took []float64
	for range 200 {
		took = append(took, c.metrics()["gather_seconds"])
	}
	slices.Sort(took)
	t.Logf("collecting during the hang: p50 %.3f ms, p99 %.3f ms", took[100]*1e3, took[198]*1e3)
	s.append("0 hang.nvmlDeviceGetPowerUsage 0")
	c.until(up, 1).check(t, map[string]float64{"headroom_gpu_collect_stuck": 0, of("up", ""): 1, of("power_watts", ""): 612.345})
	// The end is not delayed by a call that hangs.
	s.append("0 hang.nvmlDeviceGetTemperature 1")
	c.until("headroom_gpu_collect_stuck", 1)
	c.end()
	if !strings.Contains(c.stderr.String(), "leaving a hung driver call behind") {
		t.Errorf("the log does not name the call that was left behind:\n%s", c.stderr)
	}
}

// What the driver says instead of working.
func TestNoGPUs(t *testing.T) {
	library := buildFake(t)
	for _, c := range []struct {
		name, line string
		reason     Reason
	}{
		{"no device", "* gpus 0", NoDevice},
		{"driver not loaded", "* result.nvmlInit_v2 9", DriverNotLoaded},
		{"library and driver differ from the start", "* result.nvmlInit_v2 18", Mismatch},
		{"no permission for the driver", "* result.nvmlInit_v2 4", Permission},
		{"no access to the devices", "* result.nvmlInit_v2 999", DeviceAccessLost},
		{"no permission for the only device", "0 result.nvmlDeviceGetHandleByIndex_v2 4", Permission},
		{"access to the device taken away", "0 result.nvmlDeviceGetHandleByIndex_v2 999", DeviceAccessLost},
		{"device off the bus", "0 result.nvmlDeviceGetHandleByIndex_v2 15", DevicesLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := startChild(t, library, newScript(t, c.line))
			p.until(fmt.Sprintf("headroom_gpu_nvml_up{reason=%q}", c.reason), 0)
			p.end()
		})
	}
	t.Run("no library", func(t *testing.T) {
		t.Parallel()
		p := startChild(t, "libnvidia-ml-absent.so.1", nil)
		p.until(`headroom_gpu_nvml_up{reason="library_not_found"}`, 0)
		p.end()
		if want := "cannot open shared object file"; !strings.Contains(p.stderr.String(), want) {
			t.Errorf("the log has not the loader's words %q:\n%s", want, p.stderr)
		}
	})
}

// Access to the device files is taken away while it runs.
func TestDeviceAccessLost(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	c := startChild(t, buildFake(t), s)
	c.until(up, 1)
	s.append("0 result 999")
	p := c.until(of("up", ""), 0)
	if p[up] == 1 {
		t.Error("up without a GPU that answers")
	}
	c.end()
	if !strings.Contains(c.stderr.String(), "device_access_lost") {
		t.Errorf("the log does not say device_access_lost:\n%s", c.stderr)
	}
}

func migLines() []string {
	return []string{
		"0 mig 1", "0 result.nvmlDeviceGetMemoryInfo_v2 4",
		"0/0 uuid MIG-0", "0/0 name NVIDIA H100 80GB HBM3 MIG 1g.10gb", "0/0 gpu_instance 7",
		"0/0 memory_total 10200547328", "0/0 memory_used 5000000000", "0/0 memory_reserved 1000", "0/0 gpm.2 50", "0/0 gpm.10 20",
		// An instance that tells what is the whole GPU's must not be asked.
		"0/0 power_milliwatts 1000",
		"0/3 uuid MIG-3", "0/3 name NVIDIA H100 80GB HBM3 MIG 2g.20gb", "0/3 gpu_instance 9",
		"0/3 memory_total 20400547328", "0/3 memory_used 6000000000", "0/3 gpm.2 25",
	}
}

func TestMIG(t *testing.T) {
	library := buildFake(t)
	t.Run("one instance by its UUID", func(t *testing.T) {
		t.Parallel()
		c := startChild(t, library, newScript(t, migLines()...), "GPU_TEST_DEVICES=MIG-0")
		p := c.until(`headroom_gpu_sm_active_ratio{uuid="MIG-0"}`, 0.5)
		p.check(t, map[string]float64{
			up: 1, "headroom_gpu_expected": 2, "headroom_gpu_selection_ambiguous": 0,
			`headroom_gpu_memory_used_bytes{uuid="MIG-0"}`: 5000000000,
			// The whole GPU's readings stand at the GPU, once.
			of("power_watts", ""):         612.345,
			of("energy_joules_total", ""): 123456789.012,
			fmt.Sprintf(`headroom_gpu_info{arch="hopper",driver="570.124.06",index="0",mig_profile="1g.10gb",model="NVIDIA H100 80GB HBM3",parent_uuid=%q,pci_bus_id="00000000:19:00.0",uuid="MIG-0"}`, uuid): 1,
		})
		p.absent(t, "collect_errors_total", "memory_bandwidth_ratio", "kernel_busy_ratio")
		for _, series := range []string{`headroom_gpu_power_watts{uuid="MIG-0"}`, `headroom_gpu_memory_used_bytes{uuid="MIG-3"}`, of("memory_used_bytes", "")} {
			if _, ok := p[series]; ok {
				t.Errorf("%s is present", series)
			}
		}
		c.end()
	})
	t.Run("several and nothing says which", func(t *testing.T) {
		t.Parallel()
		c := startChild(t, library, newScript(t, migLines()...))
		c.until(up, 1).check(t, map[string]float64{
			"headroom_gpu_selection_ambiguous": 1, "headroom_gpu_visible": 1,
			`headroom_gpu_up{uuid="MIG-0"}`: 1, `headroom_gpu_up{uuid="MIG-3"}`: 1,
		})
		c.end()
	})
}

func TestXIDArrives(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	c := startChild(t, buildFake(t), s)
	c.until(of("capability", `feature="xid_events"`), 1)
	// 79: fallen off the bus; 94: contained error; 154 with a new verdict.
	s.append("0 event 1 8 79", "0 event 2 8 94", "0 event 3 8 94", "0 event 4 8 154", "0 field.230 2")
	c.until(of("recovery_action", `action="node_reboot"`), 1)
	p := c.until(fmt.Sprintf(`headroom_gpu_xid_events_total{class="recovery_info",uuid=%q,xid="154"}`, uuid), 1)
	p.check(t, map[string]float64{
		fmt.Sprintf(`headroom_gpu_xid_events_total{class="restart_node",uuid=%q,xid="79"}`, uuid): 1,
		fmt.Sprintf(`headroom_gpu_xid_events_total{class="restart_app",uuid=%q,xid="94"}`, uuid):  2,
		fmt.Sprintf(`headroom_gpu_xid_events_total{class="reset_gpu",uuid=%q,xid="119"}`, uuid):   0,
		of("recovery_action", `action="none"`):                                                    0,
		of("capacity_lost", `reason="recovery_action"`):                                           1,
	})
	for _, xid := range []string{"79", "94", "154"} {
		if at := p[of("xid_last_timestamp_seconds", "xid=\""+xid+"\"")]; at < 1.7e9 {
			t.Errorf("last occurrence of XID %s is at %v", xid, at)
		}
	}
	if _, ok := p[of("xid_last_timestamp_seconds", `xid="119"`)]; ok {
		t.Error("an XID that did not occur has a last occurrence")
	}
	c.end()
}

func TestThrottling(t *testing.T) {
	t.Parallel()
	s := newScript(t, "0 clocks_event_reasons 204", "0 field.270 2500000000", "0 field.271 1500000000", "0 field.269 500000000",
		"0 power_limit_milliwatts 500000")
	c := startChild(t, buildFake(t), s)
	c.until(up, 1).check(t, map[string]float64{
		of("throttle_active", `reason="sw_power_cap"`):          1,
		of("throttle_active", `reason="hw_slowdown"`):           1,
		of("throttle_active", `reason="hw_thermal"`):            1,
		of("throttle_active", `reason="hw_power_brake"`):        1,
		of("throttle_active", `reason="sw_thermal"`):            0,
		of("throttle_active", `reason="reliability"`):           0,
		of("throttle_seconds_total", `reason="hw_thermal"`):     2.5,
		of("throttle_seconds_total", `reason="hw_power_brake"`): 1.5,
		of("throttle_seconds_total", `reason="sw_thermal"`):     0.5,
		of("capacity_lost", `reason="hw_thermal"`):              1,
		of("capacity_lost", `reason="hw_power_brake"`):          1,
		of("capacity_lost", `reason="power_limit_lowered"`):     1,
	})
	c.end()
}

func TestECCAndRowRemapPending(t *testing.T) {
	t.Parallel()
	s := newScript(t, "0 field.3 5", "0 field.4 1", "0 field.5 7", "0 field.6 3", "0 field.142 2", "0 field.143 1", "0 field.144 1", "0 field.230 1")
	c := startChild(t, buildFake(t), s)
	c.until(up, 1).check(t, map[string]float64{
		of("ecc_errors_total", `severity="corrected"`):      5,
		of("ecc_errors_total", `severity="uncorrected"`):    1,
		of("ecc_errors_lifetime", `severity="corrected"`):   7,
		of("ecc_errors_lifetime", `severity="uncorrected"`): 3,
		of("remapped_rows", `cause="corrected"`):            2,
		of("remapped_rows", `cause="uncorrected"`):          1,
		of("row_remap_pending", ""):                         1,
		of("row_remap_failure", ""):                         0,
		of("recovery_action", `action="gpu_reset"`):         1,
		// Pending costs nothing yet, the demanded reset does.
		of("capacity_lost", `reason="row_remap_failure"`): 0,
		of("capacity_lost", `reason="recovery_action"`):   1,
	})
	c.end()
}

func TestLibraryReplaced(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	c := startChild(t, buildFake(t), s)
	c.until(up, 1)
	s.append("* result 18")
	words, err := c.wait()
	if err != nil || !strings.Contains(words, ErrDriverChanged.Error()) {
		t.Errorf("ended with %v, saying %q; want an end of its own that says %q", err, words, ErrDriverChanged)
	}
}
