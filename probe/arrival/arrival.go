// Package arrival tells when the bytes of a connection arrived, which is
// before a program that waits for a CPU comes to read them.
package arrival

import (
	"net"
	"sync/atomic"
	"time"
)

// maxWait is the longest time that bytes may have waited for their reader. A
// longer one is a clock that was set in between, and the time of the read
// counts instead.
const maxWait = time.Second

// Conn is a connection that knows when the bytes that were read last had
// arrived. On Linux it is told by the kernel, which stamps a TCP segment when
// the network hands it over (SO_TIMESTAMPNS); where the kernel does not tell,
// it is the time when the read returned.
type Conn struct {
	net.Conn
	epoch   time.Time
	arrived atomic.Int64
	stamps  *stamps // nil where the kernel does not tell
	stamp   int64   // of the last read; 0 without
}

// New watches a connection. Moments are told from an epoch on.
func New(c net.Conn, epoch time.Time) *Conn {
	return &Conn{Conn: c, epoch: epoch, stamps: newStamps(c)}
}

// Arrived is when the last of the bytes that the last Read returned had
// arrived, from the epoch on the monotonic clock; 0 before the first.
func (c *Conn) Arrived() time.Duration { return time.Duration(c.arrived.Load()) }

// Read reads and takes the time. Like that of every stream it is for one
// goroutine at a time.
func (c *Conn) Read(p []byte) (n int, err error) {
	if c.stamps == nil || len(p) == 0 {
		n, err = c.Conn.Read(p)
	} else {
		n, err = c.stamps.read(p)
	}
	if n <= 0 {
		return n, err
	}
	// One reading of both clocks, so that the kernel's wall clock can be told on the monotonic one.
	now := time.Now()
	at := now.Sub(c.epoch)
	if c.stamps != nil {
		before := c.stamp
		c.stamp = c.stamps.last
		if c.stamp != 0 && c.stamp == before {
			return n, err // more of what arrived together
		}
		at -= waited(now, c.stamp)
	}
	// What came later in the stream cannot have arrived before.
	c.arrived.Store(max(int64(at), c.arrived.Load()))
	return n, err
}

// waited is how long bytes had been there at a moment, by the kernel's stamp
// in nanoseconds of the Unix epoch; 0 when that cannot be.
func waited(now time.Time, stamp int64) time.Duration {
	wait := time.Duration(now.UnixNano() - stamp)
	if stamp == 0 || wait < 0 || wait > maxWait {
		return 0
	}
	return wait
}
