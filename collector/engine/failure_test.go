package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestRequestFailure(t *testing.T) {
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for _, test := range []struct {
		err       error
		reason    string
		transient bool
	}{
		{dial(&net.DNSError{Err: "no such host", Name: "h", IsNotFound: true}), "name_not_resolved", false},
		{dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), "connection_refused", false},
		{dial(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), "connection_failed", false},
		{dial(os.NewSyscallError("connect", syscall.ETIMEDOUT)), "timeout", true},
		{os.NewSyscallError("read", syscall.ECONNRESET), "connection_reset", true},
		{os.NewSyscallError("write", syscall.EPIPE), "connection_reset", true},
		{io.EOF, "connection_reset", true},
		{io.ErrUnexpectedEOF, "truncated", true},
		{context.DeadlineExceeded, "timeout", true},
		{os.ErrDeadlineExceeded, "timeout", true},
		{context.Canceled, "cancelled", true},
		{http.ErrSchemeMismatch, "tls", false},
		{tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, "tls", false},
		{errors.New("malformed HTTP response"), "connection_failed", false},
	} {
		f := requestFailure("http://h/metrics", &url.Error{Op: "Get", URL: "http://h/metrics", Err: fmt.Errorf("around it: %w", test.err)})
		if f.Reason != test.reason || f.Transient != test.transient || !errors.Is(f, test.err) {
			t.Errorf("%v is %s, transient %v; want %s, %v", test.err, f.Reason, f.Transient, test.reason, test.transient)
		}
	}
}

// Where nobody answers, the line names what was given, once, and no path that is only tried.
func TestFailureNamesTheServer(t *testing.T) {
	refused := &url.Error{Op: "Get", URL: "http://h:1/prometheus/metrics", Err: &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}}
	f := requestFailure(refused.URL, refused)
	const want = "nothing listens at http://h:1; the engine is not up, or --engine.url is wrong: dial tcp: connect: connection refused"
	if f.Error() != want {
		t.Errorf("%q, want %q", f, want)
	}
	late := &url.Error{Op: "Get", URL: "http://h:1/metrics", Err: context.DeadlineExceeded}
	if f := requestFailure(late.URL, late); !strings.HasPrefix(f.Error(), "http://h:1/metrics did not answer in time") || strings.Count(f.Error(), "http://") != 1 {
		t.Errorf("%q", f)
	}
}

// Who gave credentials is told that they were refused, not to give some.
func TestRefusedCredentials(t *testing.T) {
	for credentials, want := range map[bool]string{false: "; give --engine.bearer-token-file", true: "does not take the credentials"} {
		if f := statusFailure("http://h/metrics", 401, credentials); f.Reason != "unauthorized" || !strings.Contains(f.Error(), want) {
			t.Errorf("credentials %v: %q %v", credentials, f.Reason, f)
		}
	}
}
