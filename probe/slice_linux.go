package probe

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// slice is how long a thread may run before others do: the shortest that
// Linux takes.
const slice = 100 * time.Microsecond

// shortSlices asks Linux to give the threads of this process the CPU often and
// for a short time, where others want it too. From 6.12 on a thread of a
// shorter slice may interrupt one of a longer (kernel/sched/fair.c,
// PREEMPT_SHORT), which is what a client needs that has little to do but on
// time; it takes no more CPU for it, and no privilege. Older kernels ignore
// it. Threads that start later have it of those that start them. Threads with
// a policy of their own, real-time for one, are left alone.
func shortSlices() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			continue
		}
		a, err := unix.SchedGetAttr(id, 0)
		if err != nil || a.Policy != unix.SCHED_NORMAL {
			continue
		}
		a.Runtime = uint64(slice)
		_ = unix.SchedSetAttr(id, a, 0) // without it the client is late more often, and says so
	}
}
