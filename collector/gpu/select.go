package gpu

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// How the engine's GPUs were told from others.
const (
	selectedByFlag       = "flag"
	selectedOnly         = "only"
	selectedByProcess    = "process"
	selectedByDeviceFile = "device_file"
	selectedAmbiguous    = "ambiguous"
)

// candidate is a GPU, or a MIG instance of one, that may be the engine's.
type candidate struct {
	handle device
	uuid   string
	index  int
	// mig is the index of a MIG instance in its GPU, else -1.
	mig int
	// minor is the number of the GPU's device file, -1 when it is not known.
	minor int
	gpu   *candidate
}

// is says whether a configured device names c.
func (c *candidate) is(device string) bool {
	switch {
	case device == "all", strings.EqualFold(device, c.uuid), device == strconv.Itoa(c.index):
		return true
	case c.gpu != nil:
		return strings.EqualFold(device, c.gpu.uuid) || device == strconv.Itoa(c.index)+":"+strconv.Itoa(c.mig)
	}
	return false
}

// processes are the compute processes of a GPU that this container can see.
type processes struct{ pids []int }

// choose says which candidates are the engine's and how that is known, and
// which configured devices are not among them. With several candidates and no
// configuration, those are ours that have a compute process which exists in
// our process namespace (the driver tells of no other one, or older drivers of
// the host's), else those whose device file such a process holds open.
func choose(visible []candidate, configured []string, lists func() []processes, opened func() map[int]bool) (chosen []int, how string, unseen []string) {
	if len(configured) > 0 {
		for _, device := range configured {
			found := false
			for i := range visible {
				if visible[i].is(device) {
					found = true
					if !slices.Contains(chosen, i) {
						chosen = append(chosen, i)
					}
				}
			}
			if !found {
				unseen = append(unseen, device)
			}
		}
		slices.Sort(chosen)
		return chosen, selectedByFlag, unseen
	}
	if len(visible) == 1 {
		return []int{0}, selectedOnly, nil
	}
	for i, list := range lists() {
		if len(list.pids) > 0 {
			chosen = append(chosen, i)
		}
	}
	if len(chosen) > 0 {
		return chosen, selectedByProcess, nil
	}
	minors := opened()
	for i := range visible {
		// Instances of a GPU share its device file.
		if visible[i].gpu == nil && minors[visible[i].minor] {
			chosen = append(chosen, i)
		}
	}
	if len(chosen) > 0 {
		return chosen, selectedByDeviceFile, nil
	}
	return nil, selectedAmbiguous, nil
}

func processExists(proc string, pid int) bool {
	_, err := os.Stat(filepath.Join(proc, strconv.Itoa(pid)))
	return err == nil
}

// openDeviceFiles are the minor numbers of the /dev/nvidia files that other
// processes hold open, as far as their descriptors may be read.
func openDeviceFiles(proc string) map[int]bool {
	minors := map[int]bool{}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return minors
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		descriptors := filepath.Join(proc, entry.Name(), "fd")
		files, err := os.ReadDir(descriptors)
		if err != nil {
			continue
		}
		for _, f := range files {
			target, err := os.Readlink(filepath.Join(descriptors, f.Name()))
			if err != nil {
				continue
			}
			number, ok := strings.CutPrefix(target, "/dev/nvidia")
			if minor, err := strconv.Atoi(number); ok && err == nil {
				minors[minor] = true
			}
		}
	}
	return minors
}
