//go:build unix

package probe

import (
	"bufio"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// resources returns the CPU time used so far and the largest resident memory in bytes.
func resources() (cpu time.Duration, maxRSS float64) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0, math.NaN()
	}
	unit := 1024.0 // Linux and most others count kibibytes
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		unit = 1
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), float64(u.Maxrss) * unit
}

// throttledSeconds is how long the container's CPU limit has held it; NaN when
// that cannot be known.
func throttledSeconds() float64 {
	f, err := os.Open("/sys/fs/cgroup/cpu.stat")
	if err != nil {
		return math.NaN()
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if digits, ok := strings.CutPrefix(lines.Text(), "throttled_usec "); ok {
			if us, err := strconv.ParseFloat(digits, 64); err == nil {
				return us / 1e6
			}
		}
	}
	return math.NaN()
}
