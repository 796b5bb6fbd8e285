//go:build unix && !aix && !solaris

package knee

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockFile takes the file for this process, until it is closed or the process
// ends, however it ends. False is of a file that another one has. A file
// system that knows no locks leaves the file open to all.
func lockFile(f *os.File) (bool, error) {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case errors.Is(err, errors.ErrUnsupported), errors.Is(err, syscall.ENOLCK):
			return true, nil
		default:
			return err == nil, err
		}
	}
}

// lockHolder is the process that has a file locked, as Linux tells in
// /proc/locks; 0 is not known, as with a file system whose numbers differ there.
func lockHolder(f *os.File) int {
	var s syscall.Stat_t
	if syscall.Fstat(int(f.Fd()), &s) != nil {
		return 0
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return 0
	}
	defer locks.Close()
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(uint64(s.Dev)), unix.Minor(uint64(s.Dev)), s.Ino)
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF
		if w := strings.Fields(lines.Text()); len(w) >= 6 && w[1] == "FLOCK" && w[5] == file {
			pid, _ := strconv.Atoi(w[4])
			return max(pid, 0) // -1 is of a process that cannot be seen from here
		}
	}
	return 0
}
