package probe

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestShortSlices: the kernel takes the slice where it knows slices, and
// nothing else about a thread changes.
func TestShortSlices(t *testing.T) {
	id := unix.Getpid()
	before, err := unix.SchedGetAttr(id, 0)
	if err != nil {
		t.Skip("no scheduling attributes here:", err)
	}
	shortSlices()
	after, err := unix.SchedGetAttr(id, 0)
	if err != nil {
		t.Fatal(err)
	}
	if before.Policy == unix.SCHED_NORMAL && before.Runtime != 0 && after.Runtime != uint64(slice) {
		t.Errorf("the slice is %d ns, want %d", after.Runtime, uint64(slice))
	}
	after.Runtime = before.Runtime
	if *after != *before {
		t.Errorf("before %+v, after %+v", before, after)
	}
}
