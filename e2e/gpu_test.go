package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// h100 is the UUID of the fake's GPU.
const h100 = "GPU-5b2c8f5e-6f0d-4a3c-9a51-0c3f7d2e1a10"

// gpu is a series of that GPU; labels stand as they are sorted on a page.
func gpu(name, before string) string {
	if before != "" {
		before += ","
	}
	return fmt.Sprintf("headroom_gpu_%s{%suuid=%q}", name, before, h100)
}

// gpuAfter is a series of that GPU whose label sorts behind its UUID.
func gpuAfter(name, before, after string) string {
	return strings.TrimSuffix(gpu(name, before), "}") + "," + after + "}"
}

func nvmlUp(reason string) string { return fmt.Sprintf("headroom_gpu_nvml_up{reason=%q}", reason) }

// readings are families that exist only while GPUs are read.
var readings = []string{
	"headroom_gpu_power_watts", "headroom_gpu_memory_used_bytes", "headroom_gpu_memory_bandwidth_ratio", "headroom_gpu_clock_hertz",
	"headroom_gpu_throttle_active", "headroom_gpu_energy_joules_total", "headroom_gpu_sm_active_ratio",
}

// optionalSymbols are the functions that a driver's library may lack, all of them.
var optionalSymbols = strings.Fields(`
	nvmlShutdown nvmlSystemGetDriverVersion nvmlDeviceGetName nvmlDeviceGetPciInfo_v3 nvmlDeviceGetMinorNumber
	nvmlDeviceGetArchitecture nvmlDeviceGetPowerUsage nvmlDeviceGetEnforcedPowerLimit nvmlDeviceGetTotalEnergyConsumption
	nvmlDeviceGetMemoryBusWidth nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetCurrentClocksThrottleReasons
	nvmlDeviceGetSupportedEventTypes nvmlDeviceGetGpuInstanceId nvmlDeviceGetTemperature nvmlDeviceGetMarginTemperature
	nvmlDeviceGetClockInfo nvmlDeviceGetMaxClockInfo nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetMemoryInfo
	nvmlDeviceGetUtilizationRates nvmlDeviceGetFieldValues nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetMigMode
	nvmlDeviceGetMaxMigDeviceCount nvmlDeviceGetMigDeviceHandleByIndex nvmlEventSetCreate nvmlEventSetFree
	nvmlDeviceRegisterEvents nvmlEventSetWait_v2 nvmlGpmQueryDeviceSupport nvmlGpmSampleAlloc nvmlGpmSampleFree
	nvmlGpmSampleGet nvmlGpmMigSampleGet nvmlGpmMetricsGet`)

// gpuScenario is one thing that happens to GPUs, and what must be said of it.
type gpuScenario struct {
	name string
	omit []string // functions that the library lacks
	from []string // what the script says from the start
	args []string
	then []string // what it says once GPUs are read; empty when nothing changes
	// What /metrics must say, and which families it must not have.
	metrics samples
	absent  []string
	// json checks what /api/v1/headroom says; nil when GPUs are read as ever.
	json func(*gpuSays) error
	// log is what the log must say; what only the driver's counters and gauges
	// tell, such as throttling, is not logged.
	log string
	// well mends it; empty when nothing has to be mended or nothing can be.
	well []string
}

func gpuScenarios() []gpuScenario {
	return []gpuScenario{
		{
			name: "healthy H100",
			metrics: samples{
				nvmlUp("ok"): 1, "headroom_gpu_collect_stuck": 0, "headroom_gpu_visible": 1, "headroom_gpu_selection_ambiguous": 0,
				gpu("up", ""): 1, gpu("power_watts", ""): 612.345, gpu("memory_used_bytes", ""): 72510078976,
				gpu("memory_bandwidth_ratio", `source="gpm"`): 0.715, gpu("sm_active_ratio", ""): 0.935,
				gpu("memory_bandwidth_peak_bytes_per_second", `source="nvml"`): 3352.32e9,
				gpu("energy_joules_total", ""):                                 123456789.012,
				gpu("capacity_lost", `reason="gpu_lost"`):                      0,
			},
			absent: []string{"headroom_gpu_collect_errors_total", "headroom_gpu_samples_rejected_total"},
			json: func(g *gpuSays) error {
				if len(g.GPUs) != 1 || g.GPUs[0].UUID != h100 || g.GPUs[0].PowerWatts == nil || *g.GPUs[0].PowerWatts != 612.345 {
					return fmt.Errorf("gpus are %+v", g.GPUs)
				}
				return nil
			},
			log: "selected_by=only",
		},
		{
			name: "every optional symbol missing", omit: optionalSymbols,
			metrics: samples{nvmlUp("ok"): 1, gpu("up", ""): 1, gpu("capability", `feature="gpm"`): 0, gpu("capability", `feature="power"`): 0},
			absent:  append([]string{"headroom_gpu_collect_errors_total"}, readings...),
		},
		{
			name: "a required symbol missing", omit: []string{"nvmlDeviceGetUUID"},
			metrics: samples{nvmlUp("symbol_missing"): 0}, absent: readings,
			json: gpuError("nvmlDeviceGetUUID answered function_not_found"), log: "symbol_missing",
		},
		{
			name: "GPU lost", then: []string{"0 result 15"},
			metrics: samples{nvmlUp("devices_lost"): 0, gpu("up", ""): 0, "headroom_gpu_expected": 1, gpu("capacity_lost", `reason="gpu_lost"`): 1},
			absent:  readings, json: lostGPU, log: "devices_lost", well: []string{"0 result 0"},
		},
		{
			name: "no device", from: []string{"* gpus 0"},
			metrics: samples{nvmlUp("no_device"): 0, "headroom_gpu_visible": 0}, absent: readings,
			json: gpuError("sees no GPU"), log: "no_device", well: []string{"* gpus 1"},
		},
		{
			name: "MIG", args: []string{"--gpu.device=MIG-0"},
			from: []string{"0 mig 1", "0 result.nvmlDeviceGetMemoryInfo_v2 4",
				"0/0 uuid MIG-0", "0/0 name NVIDIA H100 80GB HBM3 MIG 1g.10gb", "0/0 gpu_instance 7",
				"0/0 memory_total 10200547328", "0/0 memory_used 5000000000", "0/0 memory_reserved 1000", "0/0 gpm.2 50", "0/0 gpm.10 20"},
			metrics: samples{
				nvmlUp("ok"): 1, `headroom_gpu_memory_used_bytes{uuid="MIG-0"}`: 5000000000, `headroom_gpu_sm_active_ratio{uuid="MIG-0"}`: 0.5,
				gpu("power_watts", ""): 612.345, // the whole GPU's, and told once
				fmt.Sprintf(`headroom_gpu_info{arch="hopper",driver="570.124.06",index="0",mig_profile="1g.10gb",model="NVIDIA H100 80GB HBM3",parent_uuid=%q,pci_bus_id="00000000:19:00.0",uuid="MIG-0"}`, h100): 1,
			},
			absent: []string{"headroom_gpu_memory_bandwidth_ratio", "headroom_gpu_collect_errors_total"},
			log:    "selected_by=flag",
		},
		{
			name: "XID arrives", then: []string{"0 event 1 8 79", "0 event 2 8 94", "0 event 3 8 94", "0 field.230 2"},
			metrics: samples{
				nvmlUp("ok"): 1,
				gpuAfter("xid_events_total", `class="restart_node"`, `xid="79"`): 1,
				gpuAfter("xid_events_total", `class="restart_app"`, `xid="94"`):  2,
				gpu("recovery_action", `action="node_reboot"`):                   1,
				gpu("capacity_lost", `reason="recovery_action"`):                 1,
			},
			json: func(g *gpuSays) error {
				if len(g.GPUs) != 1 || g.GPUs[0].RecoveryAction == nil || *g.GPUs[0].RecoveryAction != "node_reboot" {
					return fmt.Errorf("gpus are %+v", g.GPUs)
				}
				return nil
			},
			log: "xid=79 class=restart_node", well: []string{"0 field.230 0"},
		},
		{
			name: "throttling", then: []string{"0 clocks_event_reasons 204", "0 field.270 2500000000", "0 power_limit_milliwatts 500000"},
			metrics: samples{
				nvmlUp("ok"): 1, gpu("throttle_active", `reason="hw_thermal"`): 1, gpu("throttle_active", `reason="sw_thermal"`): 0,
				gpu("throttle_seconds_total", `reason="hw_thermal"`):   2.5,
				gpu("capacity_lost", `reason="hw_thermal"`):            1,
				gpu("capacity_lost", `reason="power_limit_lowered"`):   1,
				gpu("power_limit_watts", ""):                           500,
				gpu("throttle_seconds_total", `reason="sw_power_cap"`): 7015.662857,
			},
			json: func(g *gpuSays) error {
				if len(g.GPUs) != 1 || !slices.Contains(g.GPUs[0].ThrottledBy, "hw_thermal") {
					return fmt.Errorf("gpus are %+v", g.GPUs)
				}
				return nil
			},
			well: []string{"0 clocks_event_reasons 0", "0 power_limit_milliwatts 700000"},
		},
		{
			name: "ECC errors and a row remap pending", then: []string{"0 field.4 1", "0 field.143 1", "0 field.144 1", "0 field.230 1"},
			metrics: samples{
				nvmlUp("ok"): 1, gpu("ecc_errors_total", `severity="uncorrected"`): 1, gpu("remapped_rows", `cause="uncorrected"`): 1,
				gpu("row_remap_pending", ""): 1, gpu("row_remap_failure", ""): 0, gpu("recovery_action", `action="gpu_reset"`): 1,
				gpu("capacity_lost", `reason="row_remap_failure"`): 0, gpu("capacity_lost", `reason="recovery_action"`): 1,
			},
			well: []string{"0 field.144 0", "0 field.230 0"},
		},
	}
}

// gpuError is a check that no GPU is read, for a reason that has the words.
func gpuError(words string) func(*gpuSays) error {
	return func(g *gpuSays) error {
		if g.GPUError == nil || !strings.Contains(*g.GPUError, words) {
			return fmt.Errorf("gpu_error is %v, want words with %q", value(g.GPUError), words)
		}
		return nil
	}
}

// lostGPU is a check that the GPU is named as lost and has no number any more.
func lostGPU(g *gpuSays) error {
	if g.GPUError == nil || len(g.GPUs) != 1 || g.GPUs[0].Lost == nil || g.GPUs[0].PowerWatts != nil {
		return fmt.Errorf("gpu_error is %v, gpus are %+v", value(g.GPUError), g.GPUs)
	}
	return nil
}

func getGPUSays(url string) (*gpuSays, error) {
	body, err := get(url + "/api/v1/headroom")
	if err != nil {
		return nil, err
	}
	var g gpuSays
	if err := json.Unmarshal(body, &g); err != nil {
		return nil, fmt.Errorf("decoding headroom: %w in %s", err, body)
	}
	return &g, nil
}

// endsWell ends the process as an orchestrator does; it must end with status 0.
func (p *process) endsWell() time.Duration {
	p.t.Helper()
	begun := time.Now()
	p.signal(syscall.SIGTERM)
	if status := p.status(startLimit); status != 0 {
		p.t.Errorf("status after SIGTERM is %d, want 0", status)
	}
	return time.Since(begun)
}

// logs waits until the log has the words.
func (p *process) logs(words string) {
	p.t.Helper()
	eventually(p.t, startLimit, "the log", func() error {
		if !strings.Contains(p.stderr.String(), words) {
			return fmt.Errorf("it does not say %q", words)
		}
		return nil
	})
}

// Whatever happens to the GPUs: it is said on /metrics, in the JSON and in the
// log, the engine's headroom goes on, the process lives, and once all is well
// the readings are back.
func TestGPUScenarios(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	for _, scenario := range gpuScenarios() {
		t.Run(scenario.name, func(t *testing.T) {
			t.Parallel()
			g := newFakeGPUs(t, scenario.omit, scenario.from...)
			s := g.serve(engine.url, scenario.args...)
			if len(scenario.then) > 0 {
				s.waitForSamples("GPUs are read", samples{nvmlUp("ok"): 1})
				g.say(scenario.then...)
			}
			s.waitForSamples(scenario.name, scenario.metrics, scenario.absent...)
			s.waitFor(startLimit, "headroom", knowsHeadroom)
			if scenario.json == nil {
				scenario.json = func(g *gpuSays) error {
					if g.GPUError != nil || len(g.GPUs) == 0 {
						return fmt.Errorf("gpu_error is %v, gpus are %+v", value(g.GPUError), g.GPUs)
					}
					return nil
				}
			}
			says, err := getGPUSays(s.url)
			if err != nil {
				t.Fatal(err)
			}
			if err := scenario.json(says); err != nil {
				t.Errorf("/api/v1/headroom: %v", err)
			}
			s.logs(scenario.log)
			t.Logf("gpu_error: %v; the log:\n%s", value(says.GPUError), strings.Join(s.stderr.lines(), "\n"))
			if len(scenario.well) > 0 {
				g.say(scenario.well...)
				s.waitForSamples("all is well again", samples{
					nvmlUp("ok"): 1, gpu("up", ""): 1, gpu("power_watts", ""): 612.345,
					gpu("capacity_lost", `reason="gpu_lost"`): 0, gpu("capacity_lost", `reason="recovery_action"`): 0, gpu("capacity_lost", `reason="hw_thermal"`): 0,
				})
			}
			s.endsWell()
		})
	}
}

// answerTimes asks for /metrics many times, each answer within the client's
// 5 s, and notes how long they took.
func (s *sidecar) answerTimes(when string) {
	s.t.Helper()
	const scrapes = 300
	var took []time.Duration
	for range scrapes {
		begun := time.Now()
		mustGet(s.t, s.url+"/metrics")
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	s.t.Logf("%d answers of /metrics %s: p50 %v, p99 %v, longest %v", scrapes, when, took[scrapes/2], took[scrapes*99/100-1], took[scrapes-1])
}

// A driver call that never returns costs the GPU readings and nothing else:
// not an answer, not the headroom, not the end of the process.
func TestGPUCallHangs(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	for _, call := range []string{"nvmlDeviceGetPowerUsage", "nvmlInit_v2"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			g := newFakeGPUs(t, nil)
			hang := "* hang." + call
			if call == "nvmlInit_v2" {
				g.say(hang + " 1") // at the start there is nothing else to do
			}
			s := g.serve(engine.url)
			if call != "nvmlInit_v2" {
				s.waitForSamples("GPUs are read", samples{nvmlUp("ok"): 1, gpu("up", ""): 1})
				g.say(hang + " 1")
			}
			s.waitForSamples("the hang is said", samples{nvmlUp("stuck"): 0, "headroom_gpu_collect_stuck": 1}, readings...)
			s.waitFor(startLimit, "headroom", knowsHeadroom)
			says, err := getGPUSays(s.url)
			if err != nil {
				t.Fatal(err)
			}
			if err := gpuError("has not returned")(says); err != nil {
				t.Error(err)
			}
			s.answerTimes("during the hang")
			s.logs("GPU readings dropped")

			g.say(hang + " 0")
			s.waitForSamples("readings are back", samples{nvmlUp("ok"): 1, gpu("up", ""): 1, gpu("power_watts", ""): 612.345, "headroom_gpu_collect_stuck": 0})
			s.answerTimes("after it")
			s.logs("the driver call that hung has returned")
			g.say("0 hang.nvmlDeviceGetTemperature 1")
			s.waitForSamples("it hangs again", samples{nvmlUp("stuck"): 0})
			t.Logf("SIGTERM during a hang: ended after %v", s.endsWell())
			s.logs("leaving a hung driver call behind")
		})
	}
}

// A process cannot load the new driver's library: it ends in a clean way, and
// what starts it again finds all well.
func TestGPULibraryReplaced(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	g := newFakeGPUs(t, nil)
	s := g.serve(engine.url)
	s.waitForSamples("GPUs are read", samples{nvmlUp("ok"): 1})
	g.say("* result 18")
	if status := s.status(2 * startLimit); status != 0 {
		t.Errorf("status is %d, want 0", status)
	}
	s.logs("ending, to be started again")
	s.logs("driver was replaced")
	// Started again while library and driver still differ, it waits and serves.
	again := g.serve(engine.url)
	again.waitForSamples("the mismatch is said", samples{nvmlUp("mismatch"): 0}, readings...)
	again.waitFor(startLimit, "headroom", knowsHeadroom)
	g.say("* result 0")
	again.waitForSamples("GPUs are read again", samples{nvmlUp("ok"): 1, gpu("up", ""): 1})
	again.endsWell()
}

// What is measured on the GPU comes before the engine's estimate, and that
// before our model; the source is always told.
func TestBandwidthSaturationSource(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	proxy := newFaultProxy(t, engine.url)
	begun := time.Now()
	// The engine's counters stand at 0, as vLLM's do without --enable-mfu-metrics;
	// here they say 1 TB/s, half of it read.
	const bytesPerSecond = 1e12
	counters := regexp.MustCompile(`(?m)^(vllm:estimated_(?:read|write)_bytes_per_gpu_total\{.*\}) .*$`)
	proxy.answerWith(func(w http.ResponseWriter, r *http.Request, page []byte) {
		half := fmt.Appendf(nil, "${1} %v", 1+time.Since(begun).Seconds()*bytesPerSecond/2)
		answer(w, http.StatusOK, expositionType, counters.ReplaceAll(page, half))
	}, false)
	g := newFakeGPUs(t, nil)
	s := g.serve(proxy.server.URL, "--model.weight-bytes=15GiB", "--model.kv-bytes-per-token=128KiB")
	source := func(want string, ratio, tolerance float64) {
		t.Helper()
		eventually(t, 2*startLimit, "saturation from "+want, func() error {
			says, err := getGPUSays(s.url)
			if err != nil {
				return err
			}
			if len(says.Replicas) != 1 || says.Replicas[0].Bandwidth == nil {
				return fmt.Errorf("no bandwidth saturation")
			}
			b := says.Replicas[0].Bandwidth
			if b.Source != want || !(b.Ratio > 0) || math.Abs(b.Ratio-ratio) > tolerance {
				return fmt.Errorf("it is %v from %s, want %v from %s", b.Ratio, b.Source, ratio, want)
			}
			return nil
		})
	}
	const achievable, peak = 0.85, 3352.32e9
	source("gpm", 0.715/achievable, 1e-4)
	// GPM no longer answers; the peak is still the driver's.
	g.say("* result.nvmlGpmMetricsGet 3", "* result.nvmlGpmSampleGet 3")
	source("engine", bytesPerSecond/(achievable*peak), 0.05)
	// The engine no longer estimates.
	proxy.mend()
	source("model", 0.5, 0.5)
	g.say("* result.nvmlGpmMetricsGet 0", "* result.nvmlGpmSampleGet 0")
	source("gpm", 0.715/achievable, 1e-4)
}

// The demo and a single reading take the same GPUs.
func TestGPUsInDemoAndOnce(t *testing.T) {
	t.Parallel()
	g := newFakeGPUs(t, nil)
	env := []string{"FAKENVML_SCRIPT=" + g.script}
	demo := start(t, env, "demo", "--web.listen-address="+freeAddress(t), "--engine.listen-address="+freeAddress(t), "--gpu.nvml="+g.library)
	s := &sidecar{process: demo, url: printedURL(t, demo)}
	s.waitForSamples("the demo's GPU is the fake's", samples{nvmlUp("ok"): 1, gpu("power_watts", ""): 612.345})

	engine := simulate(t, constantLoad...)
	once, status := runToEnd(t, env, "serve", "--engine.url="+engine.url, "--gpu.nvml="+g.library, "--once", "--output=json")
	var says gpuSays
	if err := json.Unmarshal([]byte(once.stdout.String()), &says); err != nil || status != 0 {
		t.Fatalf("--once ended with %d and wrote %s: %v", status, once.stdout.tail(2000), err)
	}
	if len(says.GPUs) != 1 || says.GPUs[0].PowerWatts == nil || *says.GPUs[0].PowerWatts != 612.345 {
		t.Errorf("--once tells of the GPUs %+v", says.GPUs)
	}
}

// What a reader sees when a GPU is well, when it is throttled and when its
// driver hangs.
func TestPageShowsGPUs(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	g := newFakeGPUs(t, nil)
	s := g.serve(engine.url)
	s.waitFor(startLimit, "headroom", knowsHeadroom)
	p := openPage(t, s.url+"/")
	reads := func(picture string, words ...string) {
		t.Helper()
		eventually(t, 2*startLimit, "the page shows "+picture, func() error {
			text := strings.ToLower(p.text())
			for _, w := range words {
				if !strings.Contains(text, strings.ToLower(w)) {
					return fmt.Errorf("it does not say %q: %.3000q", w, text)
				}
			}
			return nil
		})
		p.shows(strings.ToLower(words[0]))
	}
	reads("a healthy GPU", "H100", "612", "measured on the GPU")
	g.say("0 clocks_event_reasons 64")
	reads("throttling", "throttled by hw thermal", "H100")
	g.say("0 hang.nvmlDeviceGetPowerUsage 1")
	reads("a hang", "lost: the driver call nvmlDeviceGetPowerUsage has not returned")
	p.isClean(s.url)
}
