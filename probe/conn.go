package probe

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"headroom_exporter/probe/arrival"
)

// timedConn is a connection that knows when a request's first byte was handed
// to it and when the bytes of the answer arrived, which no HTTP client tells.
type timedConn struct {
	*arrival.Conn
	clock func() time.Duration
	// sent is when the first byte since arm was written, in nanoseconds; 0 before.
	sent atomic.Int64
}

func (c *timedConn) Write(p []byte) (int, error) {
	if c.sent.Load() == 0 {
		c.sent.Store(int64(c.clock()))
	}
	return c.Conn.Write(p)
}

// arm begins a new request on the connection.
func (c *timedConn) arm() { c.sent.Store(0) }

// timed finds the timedConn below a connection that may be TLS.
func timed(c net.Conn) *timedConn {
	for {
		switch x := c.(type) {
		case *timedConn:
			return x
		case interface{ NetConn() net.Conn }:
			c = x.NetConn()
		default:
			return nil
		}
	}
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// timing wraps the connections of a dialer.
func (dial dialFunc) timing(epoch time.Time) dialFunc {
	clock := func() time.Duration { return time.Since(epoch) }
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &timedConn{Conn: arrival.New(c, epoch), clock: clock}, nil
	}
}
