package gpu

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func raw(v uint64) (b [8]byte) {
	binary.LittleEndian.PutUint64(b[:], v)
	return b
}

func TestFieldValue(t *testing.T) {
	for _, c := range []struct {
		name string
		f    field
		want float64
	}{
		{"double", field{kind: 0, raw: raw(math.Float64bits(71.5))}, 71.5},
		{"uint32 ignores the union's upper half", field{kind: 1, raw: raw(0xdeadbeef_0000002a)}, 42},
		{"unsigned long", field{kind: 2, raw: raw(7)}, 7},
		// A real H100's power throttle time in nanoseconds.
		{"unsigned long long", field{kind: 3, raw: raw(7015662857000)}, 7015662857000},
		{"signed long long", field{kind: 4, raw: raw(math.MaxUint64 - 7)}, -8},
		// A real H100's offset to its slowdown temperature.
		{"int32", field{kind: 5, raw: raw(0x00000000_fffffff8)}, -8},
		{"uint16", field{kind: 6, raw: raw(0xffff_0001)}, 1},
		{"a type that is not known", field{kind: 7, raw: raw(1)}, math.NaN()},
		{"not supported", field{kind: 3, raw: raw(1), code: notSupported}, math.NaN()},
		{"infinite", field{kind: 0, raw: raw(math.Float64bits(math.Inf(1)))}, math.NaN()},
	} {
		if got := c.f.value(); !cmp.Equal(got, c.want, cmpopts.EquateNaNs()) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func FuzzFieldValue(f *testing.F) {
	f.Add(uint32(3), int32(0), uint64(7015662857000))
	f.Add(uint32(0), int32(0), math.Float64bits(math.NaN()))
	f.Add(uint32(5), int32(3), uint64(math.MaxUint64))
	f.Add(uint32(9), int32(-1), uint64(0))
	f.Fuzz(func(t *testing.T, kind uint32, result int32, bits uint64) {
		fs := fields{
			{id: fieldRemapPending, kind: kind, code: code(result), raw: raw(bits)},
			{id: fieldThrottlePower, kind: kind, code: code(result), raw: raw(bits)},
		}
		v := fs[0].value()
		if result != 0 && !math.IsNaN(v) {
			t.Errorf("a field that failed with %d has the value %v", result, v)
		}
		if math.IsInf(v, 0) {
			t.Errorf("infinite from %x of type %d", bits, kind)
		}
		if v := fs.flag(fieldRemapPending); !math.IsNaN(v) && v != 0 && v != 1 {
			t.Errorf("a flag of %v", v)
		}
		for reason, seconds := range throttleSeconds(fs) {
			if !(seconds >= 0) || reason != "sw_power_cap" {
				t.Errorf("throttled for %v by %s", seconds, reason)
			}
		}
		if action := recoveryAction(v); math.IsNaN(v) != (action == "") {
			t.Errorf("recovery action %q of %v", action, v)
		}
	})
}

func TestFieldsOfARequest(t *testing.T) {
	fs := wanted(3)
	seen := map[[2]uint32]bool{}
	links := 0
	for i := range fs {
		key := [2]uint32{fs[i].id, fs[i].scope}
		if seen[key] {
			t.Errorf("field %d scope %d is asked for twice", key[0], key[1])
		}
		seen[key] = true
		if fs[i].id == fieldNVLinkState {
			links++
		}
	}
	if links != 3 {
		t.Errorf("%d link states, want 3", links)
	}
	if v := fs.value(fieldNVLinkState, 9); !math.IsNaN(v) {
		t.Errorf("a field that was not asked for is %v", v)
	}
}

func TestRecoveryAction(t *testing.T) {
	// nvmlDeviceGpuRecoveryAction_t.
	for v, want := range map[float64]string{
		0: "none", 1: "gpu_reset", 2: "node_reboot", 3: "drain_p2p", 4: "drain_and_reset",
		5: "recover_imex_domain", 6: "bus_reset", 7: "system_reboot", 8: "other", -1: "other", 0.5: "other",
	} {
		if got := recoveryAction(v); got != want {
			t.Errorf("action %v is %q, want %q", v, got, want)
		}
	}
	if got := recoveryAction(math.NaN()); got != "" {
		t.Errorf("an unknown action is %q", got)
	}
}

func TestThrottleBits(t *testing.T) {
	for _, c := range []struct {
		mask uint64
		want []string
	}{
		{0, nil},
		// Idle, application clocks and display clocks are no throttling.
		{0x1 | 0x2 | 0x100, nil},
		{0x4, []string{"sw_power_cap"}},
		{0x8 | 0x40, []string{"hw_slowdown", "hw_thermal"}},
		{0x8 | 0x80, []string{"hw_slowdown", "hw_power_brake"}},
		{0x10 | 0x20, []string{"sync_boost", "sw_thermal"}},
		{0x200 | 0x400, []string{"board_limit", "reliability"}},
	} {
		var got []string
		active := throttleActive(c.mask)
		for _, r := range throttleReasons {
			if active[r.name] {
				got = append(got, r.name)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("mask %#x (-want +got):\n%s", c.mask, diff)
		}
		if len(active) != len(throttleReasons) {
			t.Errorf("mask %#x has %d reasons, want each of %d", c.mask, len(active), len(throttleReasons))
		}
	}
}

func TestXIDClasses(t *testing.T) {
	for xid, want := range map[uint64]XIDClass{
		13: RestartApp, 31: RestartApp, 94: RestartApp, 139: RestartApp,
		62: ResetGPU, 95: ResetGPU, 109: ResetGPU, 119: ResetGPU, 120: ResetGPU, 158: ResetGPU,
		79: RestartNode, 151: RestartNode,
		45: Investigate, 48: Investigate, 74: Investigate, 144: Investigate, 150: Investigate,
		154: RecoveryInfo,
		43:  Ignore, 63: Ignore, 92: Ignore, 121: Ignore,
		54: OtherXID, 78: OtherXID, 142: OtherXID, 162: OtherXID, 999: OtherXID,
	} {
		if got := ClassOf(xid); got != want {
			t.Errorf("XID %d is %s, want %s", xid, got, want)
		}
	}
	seen := map[uint64]XIDClass{}
	for class, list := range xidClasses {
		for _, xid := range list {
			if other, twice := seen[xid]; twice {
				t.Errorf("XID %d is both %s and %s", xid, class, other)
			}
			seen[xid] = class
		}
	}
}

func TestPeakBandwidth(t *testing.T) {
	// Clocks and widths of real boards; GB/s as NVIDIA publishes them.
	for _, c := range []struct {
		board               string
		megahertz, bits     float64
		published, atMostBy float64
	}{
		{"A100-SXM4-40GB", 1215, 5120, 1555, 0.001},
		{"H100 SXM5", 2619, 5120, 3350, 0.001},
		{"L40S", 9001, 384, 864, 0.001},
		{"T4", 5001, 256, 320, 0.001},
		{"RTX 3090", 9751, 384, 936, 0.001},
		// These data sheets round down.
		{"H200 SXM", 3201, 6144, 4800, 0.025},
		{"B200", 3996, 8192, 8000, 0.025},
	} {
		got, sane := peakBandwidth(c.megahertz*1e6, c.bits)
		if !sane || math.Abs(got/1e9-c.published) > c.atMostBy*c.published {
			t.Errorf("%s: %.1f GB/s, published %.0f", c.board, got/1e9, c.published)
		}
	}
	for _, c := range []struct{ hertz, bits float64 }{{405e6, 128}, {2619e6, 51200}, {2619e6, 0}} {
		if got, sane := peakBandwidth(c.hertz, c.bits); sane || !math.IsNaN(got) {
			t.Errorf("%v Hz x %v bits is believed to be %v", c.hertz, c.bits, got)
		}
	}
	if got, sane := peakBandwidth(math.NaN(), 5120); !sane || !math.IsNaN(got) {
		t.Errorf("an unknown clock gives %v, sane %v", got, sane)
	}
}

func TestLostCapacity(t *testing.T) {
	healthy := NewReading()
	healthy.RecoveryAction, healthy.RowRemapFailure = "none", 0
	healthy.ThrottleActive = throttleActive(0x4)
	healthy.PowerLimit, healthy.PowerLimitDefault = 700, 700
	healthy.NVLinksActive, healthy.NVLinksExpected = 18, 18
	for _, c := range []struct {
		name   string
		change func(*Reading)
		want   []string
	}{
		{"a power cap at the default limit is normal", func(*Reading) {}, nil},
		{"power limit lowered", func(r *Reading) { r.PowerLimit = 500 }, []string{"power_limit_lowered"}},
		{"row remap failed", func(r *Reading) { r.RowRemapFailure = 1 }, []string{"row_remap_failure"}},
		{"row remap pending costs nothing yet", func(r *Reading) { r.RowRemapPending = 1 }, nil},
		{"link down", func(r *Reading) { r.NVLinksActive = 17 }, []string{"nvlink_inactive"}},
		{"drain demanded", func(r *Reading) { r.RecoveryAction = "drain_p2p" }, []string{"recovery_action"}},
		{"hot", func(r *Reading) { r.ThrottleActive = throttleActive(0x48) }, []string{"hw_thermal"}},
		{"lost", func(r *Reading) { *r = r.lost("gpu_is_lost") }, []string{"gpu_lost"}},
	} {
		r := healthy
		c.change(&r)
		var got []string
		for _, reason := range []string{"gpu_lost", "recovery_action", "row_remap_failure", "hw_thermal", "hw_power_brake", "sw_thermal", "power_limit_lowered", "nvlink_inactive"} {
			if r.LostCapacity()[reason] {
				got = append(got, reason)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	unknown := NewReading()
	if got := unknown.LostCapacity(); len(got) != 1 {
		t.Errorf("of an unknown GPU it says %v, want nothing but that it is there", got)
	}
}
