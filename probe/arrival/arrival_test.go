package arrival

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestWithoutStamps: where no kernel tells, the read counts.
func TestWithoutStamps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		epoch := time.Now()
		near, far := net.Pipe()
		defer near.Close()
		c := New(near, epoch)
		if c.Arrived() != 0 {
			t.Errorf("before the first read: %v", c.Arrived())
		}
		go func() {
			defer far.Close()
			for range 2 {
				time.Sleep(3 * time.Second)
				far.Write([]byte("ab"))
			}
		}()
		var b [1]byte
		for _, want := range []time.Duration{3, 3, 6, 6} {
			if _, err := c.Read(b[:]); err != nil || c.Arrived() != want*time.Second {
				t.Errorf("arrived %v (%v), want %v", c.Arrived(), err, want*time.Second)
			}
		}
		if _, err := c.Read(b[:]); err == nil || c.Arrived() != 6*time.Second {
			t.Errorf("after the end: %v, error %v", c.Arrived(), err)
		}
	})
}

// TestWaited: a stamp that cannot be right is not used.
func TestWaited(t *testing.T) {
	now := time.Unix(1_800_000_000, 500)
	for _, test := range []struct {
		name  string
		stamp int64
		want  time.Duration
	}{
		{"none", 0, 0},
		{"before the read", now.UnixNano() - 1_500_000, 1500 * time.Microsecond},
		{"at the read", now.UnixNano(), 0},
		{"the clock was set back", now.UnixNano() + 1, 0},
		{"the longest wait", now.Add(-maxWait).UnixNano(), maxWait},
		{"the clock was set forward", now.Add(-maxWait).UnixNano() - 1, 0},
	} {
		if got := waited(now, test.stamp); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
