package arrival

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stamps reads a TCP connection with the kernel's receive timestamps.
type stamps struct {
	conn net.Conn
	raw  syscall.RawConn
	// last is the stamp of the last read in nanoseconds of the Unix epoch; 0 without.
	last int64

	// What one read is about, kept here so that it allocates nothing, which
	// unix.Recvmsg does for each call.
	vector  unix.Iovec
	message unix.Msghdr
	control [64]byte
	n       int
	err     error
	recv    func(fd uintptr) bool
}

// newStamps asks the kernel for timestamps; nil where it does not give any.
func newStamps(c net.Conn) *stamps {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	})
	if err != nil || refused != nil {
		return nil
	}
	s := &stamps{conn: c, raw: raw}
	s.message.Iov, s.message.Control = &s.vector, &s.control[0]
	s.message.SetIovlen(1)
	s.recv = s.receive
	return s
}

// read reads into p, which is not empty.
func (s *stamps) read(p []byte) (int, error) {
	s.n, s.err, s.last = 0, nil, 0
	s.vector.Base = &p[0]
	s.vector.SetLen(len(p))
	err := s.raw.Read(s.recv)
	s.vector.Base = nil
	if err == nil {
		err = s.err
	}
	return s.n, err
}

// receive reads once; false when there is nothing yet.
func (s *stamps) receive(fd uintptr) bool {
	for {
		s.message.SetControllen(len(s.control))
		n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&s.message)), 0)
		switch errno {
		case 0:
			s.n = int(n)
			s.last = stampIn(s.control[:s.message.Controllen])
			if n == 0 {
				s.err = io.EOF
			}
			return true
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			s.err = &net.OpError{
				Op: "read", Net: s.conn.LocalAddr().Network(), Source: s.conn.LocalAddr(), Addr: s.conn.RemoteAddr(),
				Err: os.NewSyscallError("recvmsg", errno),
			}
			return true
		}
	}
}

// stampIn finds the timestamp among a message's controls, in nanoseconds; 0 without.
func stampIn(controls []byte) int64 {
	for len(controls) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(controls)
		if err != nil {
			return 0
		}
		if h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_TIMESTAMPNS {
			// A struct timespec of the kernel's word size.
			switch len(data) {
			case 16:
				return int64(binary.NativeEndian.Uint64(data))*1e9 + int64(binary.NativeEndian.Uint64(data[8:]))
			case 8:
				return int64(int32(binary.NativeEndian.Uint32(data)))*1e9 + int64(binary.NativeEndian.Uint32(data[4:]))
			}
			return 0
		}
		controls = rest
	}
	return 0
}
