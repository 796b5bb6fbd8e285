package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
)

// Failure is why a poll gave no reading.
type Failure struct {
	// Reason is a short code, the same for the same kind of failure.
	Reason string
	// Message is one sentence: what, where, what to do.
	Message string
	// Transient failures say little alone: the last state is kept for some of them.
	Transient bool
	// page tells that the page itself was read, and says that there are no metrics.
	page bool
	// json tells that the page is JSON, gone that nobody answered at the address.
	json, gone bool
	err        error
}

func (f *Failure) Error() string {
	if f.err == nil {
		return f.Message
	}
	return f.Message + ": " + f.err.Error()
}

func (f *Failure) Unwrap() error { return f.err }

func failure(reason, format string, args ...any) *Failure {
	return &Failure{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// jsonFailure is that of a page in JSON, as trtllm-serve's /metrics is.
func jsonFailure() *Failure {
	f := failure("not_metrics", "the page is JSON; give the engine's Prometheus page in --engine.url (trtllm-serve has it at /prometheus/metrics, with return_perf_metrics on)")
	f.json = true
	return f
}

// requestFailure classifies why a request got no complete answer.
func requestFailure(address string, err error) *Failure {
	f := &Failure{err: err}
	// The message names the address: net/http's own would say it a second time.
	var asked *url.Error
	if errors.As(err, &asked) {
		f.err = asked.Err
	}
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.Is(err, context.Canceled):
		f.Reason, f.Transient = "cancelled", true
		f.Message = "the poll of " + address + " was cancelled"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		f.Reason, f.Transient = "timeout", true
		f.Message = address + " did not answer in time; the engine is stuck or --engine.timeout is too short"
	case errors.As(err, &dns):
		f.Reason, f.gone = "name_not_resolved", true
		f.Message = "the host of " + serverOf(address) + " is unknown; check --engine.url"
	case errors.Is(err, syscall.ECONNREFUSED):
		f.Reason, f.gone = "connection_refused", true
		f.Message = "nothing listens at " + serverOf(address) + "; the engine is not up, or --engine.url is wrong"
	// An alert of the other side has no exported type; every error of crypto/tls begins like this.
	case strings.Contains(err.Error(), "tls: "), errors.Is(err, http.ErrSchemeMismatch):
		f.Reason = "tls"
		f.Message = "no TLS connection to " + serverOf(address) + "; check the scheme and the --engine.tls flags"
	case errors.Is(err, io.ErrUnexpectedEOF):
		f.Reason, f.Transient = "truncated", true
		f.Message = "the answer of " + address + " was cut off"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF):
		f.Reason, f.Transient = "connection_reset", true
		f.Message = address + " closed the connection without an answer"
	case errors.As(err, &timeout) && timeout.Timeout():
		f.Reason, f.Transient = "timeout", true
		f.Message = address + " did not answer in time; the engine is stuck or --engine.timeout is too short"
	default:
		f.Reason, f.gone = "connection_failed", true
		f.Message = "no answer from " + serverOf(address)
	}
	return f
}

// serverOf is an address without its path. Where nobody answers the path is
// not at fault, and it is one of several that are tried.
func serverOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	return u.Scheme + "://" + u.Host
}

// statusFailure says what an HTTP status other than 200 means.
// credentials tells that some were sent.
func statusFailure(url string, status int, credentials bool) *Failure {
	switch {
	case (status == 401 || status == 403) && credentials:
		return failure("unauthorized", "%s answers %d: it does not take the credentials of --engine.bearer-token-file or --engine.header-file", url, status)
	case status == 401 || status == 403:
		return failure("unauthorized", "%s answers %d; give --engine.bearer-token-file or --engine.header-file", url, status)
	case status >= 300 && status < 400:
		return failure(fmt.Sprintf("http_%d", status), "%s redirects with %d and was not followed; give the final address in --engine.url", url, status)
	case status == 404:
		return failure("http_404", "%s answers 404; the metrics page is elsewhere or switched off, check --engine.url", url)
	case status == 501:
		return failure("http_501", "%s answers 501; the metrics page is switched off (llama.cpp: --metrics)", url)
	default:
		return failure(fmt.Sprintf("http_%d", status), "%s answers %d; see the engine's log", url, status)
	}
}
