package arrival

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pair is a TCP connection over the loopback interface.
func pair(tb testing.TB) (near, far *net.TCPConn) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { a.Close() })
	b, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { b.Close() })
	limit := time.Now().Add(10 * time.Second)
	a.SetDeadline(limit)
	b.SetDeadline(limit)
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// readable returns when there is something to read.
func readable(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK)
		return err != unix.EAGAIN
	}); err != nil {
		t.Fatal(err)
	}
}

// TestKernelStamps: what lay in the socket when the reader came had arrived
// before he came, and what arrived together has one time.
func TestKernelStamps(t *testing.T) {
	near, far := pair(t)
	epoch := time.Now()
	c := New(near, epoch)
	// The kernel begins to stamp a moment after it was asked to, and the two
	// clocks are not read at exactly the same moment: one good reading will do.
	for begin := time.Now(); ; {
		wrote := time.Since(epoch)
		if _, err := far.Write([]byte("ab")); err != nil {
			t.Fatal(err)
		}
		readable(t, near)
		came := time.Since(epoch)
		var b [1]byte
		if _, err := c.Read(b[:]); err != nil || b[0] != 'a' {
			t.Fatalf("read %q: %v", b, err)
		}
		first, stamp := c.Arrived(), c.stamp
		if _, err := c.Read(b[:]); err != nil || b[0] != 'b' {
			t.Fatalf("read %q: %v", b, err)
		}
		if stamp != 0 && c.Arrived() != first {
			t.Errorf("two parts of one segment arrived at %v and %v", first, c.Arrived())
		}
		if stamp != 0 && wrote <= first && first <= came {
			return
		}
		if time.Since(begin) > 5*time.Second {
			t.Fatalf("written after %v, there at %v, but arrived at %v (stamp %d)", wrote, came, first, stamp)
		}
	}
}

// TestErrors: a stamped read ends as any other does.
func TestErrors(t *testing.T) {
	var b [1]byte
	for _, test := range []struct {
		name string
		end  func(near, far *net.TCPConn)
		want error
	}{
		{"the other side closed", func(_, far *net.TCPConn) { far.Close() }, io.EOF},
		{"the other side reset", func(_, far *net.TCPConn) { far.SetLinger(0); far.Close() }, syscall.ECONNRESET},
		{"closed", func(near, _ *net.TCPConn) { near.Close() }, net.ErrClosed},
		{"deadline", func(near, _ *net.TCPConn) { near.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
	} {
		near, far := pair(t)
		c := New(near, time.Now())
		test.end(near, far)
		if n, err := c.Read(b[:]); n != 0 || !errors.Is(err, test.want) {
			t.Errorf("%s: %d bytes, %v", test.name, n, err)
		}
		if c.Arrived() != 0 {
			t.Errorf("%s: arrived at %v", test.name, c.Arrived())
		}
	}
	near, _ := pair(t)
	if n, err := New(near, time.Now()).Read(nil); n != 0 || err != nil {
		t.Errorf("an empty read: %d bytes, %v", n, err)
	}
}

func TestReadAllocatesNothing(t *testing.T) {
	near, far := pair(t)
	c := New(near, time.Now())
	b := make([]byte, 16)
	if n := testing.AllocsPerRun(100, func() {
		far.Write(b[:1])
		c.Read(b)
	}); n != 0 {
		t.Errorf("%v allocations a read", n)
	}
}

// message is a control message as the kernel writes it.
func message(level, kind int32, data []byte) []byte {
	b := make([]byte, unix.CmsgSpace(len(data)))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(len(data)))
	copy(b[unix.CmsgLen(0):], data)
	return b
}

func TestStampIn(t *testing.T) {
	long := binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, 1_700_000_000), 123_456_789)
	short := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, 1_700_000_000), 123_456_789)
	const want = 1_700_000_000_123_456_789
	stamp := message(unix.SOL_SOCKET, unix.SCM_TIMESTAMPNS, long)
	other := message(unix.IPPROTO_IP, unix.IP_TTL, make([]byte, 4))
	for _, test := range []struct {
		name     string
		controls []byte
		want     int64
	}{
		{"none", nil, 0},
		{"64 bit", stamp, want},
		{"32 bit", message(unix.SOL_SOCKET, unix.SCM_TIMESTAMPNS, short), want},
		{"behind another", append(other[:len(other):len(other)], stamp...), want},
		{"another alone", other, 0},
		{"of another size", message(unix.SOL_SOCKET, unix.SCM_TIMESTAMPNS, long[:12]), 0},
		{"cut", stamp[:len(stamp)-1], 0},
		{"cut in its head", stamp[:unix.SizeofCmsghdr-1], 0},
	} {
		if got := stampIn(test.controls); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	for _, test := range []struct {
		name string
		of   func(*net.TCPConn) net.Conn
	}{
		{"stamped", func(c *net.TCPConn) net.Conn { return New(c, time.Now()) }},
		{"plain", func(c *net.TCPConn) net.Conn { return c }},
	} {
		b.Run(test.name, func(b *testing.B) {
			near, far := pair(b)
			near.SetDeadline(time.Time{})
			far.SetDeadline(time.Time{})
			c, p := test.of(near), make([]byte, 256)
			b.ReportAllocs()
			for b.Loop() {
				far.Write(p)
				c.Read(p)
			}
		})
	}
}
