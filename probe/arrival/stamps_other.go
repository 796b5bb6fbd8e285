//go:build !linux

package arrival

import (
	"errors"
	"net"
)

// stamps is for Linux alone.
type stamps struct{ last int64 }

func newStamps(net.Conn) *stamps { return nil }

func (*stamps) read([]byte) (int, error) { return 0, errors.ErrUnsupported }
