package gpu

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChoose(t *testing.T) {
	two := []candidate{
		{uuid: "GPU-a", index: 0, mig: -1, minor: 4},
		{uuid: "GPU-b", index: 1, mig: -1, minor: 5},
	}
	parent := &candidate{uuid: "GPU-c", index: 0, mig: -1, minor: 0}
	mig := []candidate{
		{uuid: "MIG-x", index: 0, mig: 0, minor: 0, gpu: parent},
		{uuid: "MIG-y", index: 0, mig: 3, minor: 0, gpu: parent},
	}
	for _, c := range []struct {
		name       string
		visible    []candidate
		configured []string
		lists      []processes
		opened     map[int]bool
		chosen     []int
		how        string
		unseen     []string
	}{
		{"the only one", two[:1], nil, nil, nil, []int{0}, selectedOnly, nil},
		{"by UUID in any case", two, []string{"gpu-B"}, nil, nil, []int{1}, selectedByFlag, nil},
		{"by index, twice", two, []string{"1", "1", "0"}, nil, nil, []int{0, 1}, selectedByFlag, nil},
		{"all", two, []string{"all"}, nil, nil, []int{0, 1}, selectedByFlag, nil},
		{"one configured is not visible", two, []string{"0", "GPU-z"}, nil, nil, []int{0}, selectedByFlag, []string{"GPU-z"}},
		{"the only one is not the configured one", two[:1], []string{"GPU-b"}, nil, nil, nil, selectedByFlag, []string{"GPU-b"}},
		{"by compute process", two, nil, []processes{{}, {pids: []int{9}}}, map[int]bool{4: true}, []int{1}, selectedByProcess, nil},
		{"every GPU has a process", two, nil, []processes{{pids: []int{8}}, {pids: []int{9}}}, nil, []int{0, 1}, selectedByProcess, nil},
		{"by open device file", two, nil, []processes{{}, {}}, map[int]bool{4: true, 255: true}, []int{0}, selectedByDeviceFile, nil},
		{"nothing says which", two, nil, []processes{{}, {}}, map[int]bool{255: true}, nil, selectedAmbiguous, nil},
		{"a MIG instance by UUID", mig, []string{"MIG-y"}, nil, nil, []int{1}, selectedByFlag, nil},
		{"a MIG instance by index", mig, []string{"0:3"}, nil, nil, []int{1}, selectedByFlag, nil},
		{"the instances of a GPU", mig, []string{"GPU-c"}, nil, nil, []int{0, 1}, selectedByFlag, nil},
		{"instances share their device file", mig, nil, []processes{{}, {}}, map[int]bool{0: true}, nil, selectedAmbiguous, nil},
		{"a MIG instance by process", mig, nil, []processes{{pids: []int{7}}, {}}, nil, []int{0}, selectedByProcess, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			chosen, how, unseen := choose(c.visible, c.configured, func() []processes { return c.lists }, func() map[int]bool { return c.opened })
			if diff := cmp.Diff(c.chosen, chosen); diff != "" {
				t.Errorf("chosen (-want +got):\n%s", diff)
			}
			if how != c.how {
				t.Errorf("chosen by %s, want %s", how, c.how)
			}
			if diff := cmp.Diff(c.unseen, unseen); diff != "" {
				t.Errorf("unseen (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOpenDeviceFiles(t *testing.T) {
	proc := t.TempDir()
	link := func(pid, fd, target string) {
		t.Helper()
		dir := filepath.Join(proc, pid, "fd")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, fd)); err != nil {
			t.Fatal(err)
		}
	}
	link("12", "3", "/dev/nvidiactl")
	link("12", "4", "/dev/nvidia3")
	link("12", "5", "/dev/nvidia-uvm")
	link("13", "1", "socket:[1]")
	link("14", "9", "/dev/nvidia11")
	link("self", "9", "/dev/nvidia7")
	// What this process holds open says nothing about the engine.
	link(strconv.Itoa(os.Getpid()), "1", "/dev/nvidia8")
	if diff := cmp.Diff(map[int]bool{3: true, 11: true}, openDeviceFiles(proc)); diff != "" {
		t.Errorf("minors (-want +got):\n%s", diff)
	}
	if got := openDeviceFiles(filepath.Join(proc, "absent")); len(got) != 0 {
		t.Errorf("without procfs it found %v", got)
	}
	if !processExists(proc, 12) || processExists(proc, 99) {
		t.Error("a process is taken for another")
	}
}
