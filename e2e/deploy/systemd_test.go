package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// systemd reads the unit without a complaint, its program put where the unit
// looks for it.
func TestSystemdUnit(t *testing.T) {
	unit := string(read(t, "deploy/systemd/headroom_exporter.service"))
	const program = "/usr/bin/headroom_exporter"
	// A flag would win over its environment twin, which is where the unit's user puts his.
	if !strings.Contains(unit, "\nExecStart="+program+"\n") {
		t.Error("the unit starts no exporter, or one with flags")
	}
	twins := 0
	for line := range strings.Lines(unit) {
		if twin, ok := strings.CutPrefix(line, "Environment=HEADROOM_EXPORTER_"); ok {
			twins++
			variable, _, _ := strings.Cut(twin, "=")
			checkTwin(t, "HEADROOM_EXPORTER_"+variable)
		}
	}
	if twins == 0 {
		t.Error("the unit keeps the rules' window nowhere")
	}

	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed; it comes with systemd")
	}
	path := filepath.Join(t.TempDir(), "headroom_exporter.service")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(unit, program, product)), 0o600); err != nil {
		t.Fatal(err)
	}
	// Complaints leave the exit status at 0; other units of the machine may
	// have some as well.
	output, err := exec.Command(analyze, "verify", "--man=no", path).CombinedOutput()
	if err != nil || strings.Contains(string(output), "headroom_exporter") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, output)
	}
}

// What the product relies on: it is started again when it ends well because
// the GPU's driver was replaced, and nothing hides the GPU. Before systemd 253
// ProtectClock allows the clock's device alone (systemd issue 18142).
func TestSystemdUnitKeepsTheGPU(t *testing.T) {
	unit := string(read(t, "deploy/systemd/headroom_exporter.service"))
	if !strings.Contains(unit, "\nRestart=always\n") {
		t.Error("the unit does not start the program again whatever its status")
	}
	for _, hides := range []string{"PrivateDevices=", "ProtectClock=", "DeviceAllow=", "DevicePolicy="} {
		if strings.Contains(unit, "\n"+hides) {
			t.Errorf("%s hides the GPU", hides)
		}
	}
}
