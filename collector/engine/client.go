package engine

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// maxRedirects on the same host.
const maxRedirects = 3

// shrinkAbove is the size from which a page buffer is given back when pages got small.
const shrinkAbove = 1 << 20

// client talks to the engine: one request at a time.
type client struct {
	http       *http.Client
	page, base string
	tokenFile  string
	headerFile string
	maxPage    int64
	body       bytes.Buffer
}

func newClient(c Config, metricsPath string) (*client, error) {
	page, base, err := c.addresses(metricsPath)
	if err != nil {
		return nil, err
	}
	round := c.RoundTripper
	if round == nil {
		tlsConfig, err := c.TLS.build()
		if err != nil {
			return nil, err
		}
		round = &http.Transport{
			// No proxy: the engine is next door, and a proxy's page is not its.
			TLSClientConfig:        tlsConfig,
			TLSHandshakeTimeout:    c.Timeout,
			MaxIdleConns:           2,
			MaxIdleConnsPerHost:    1,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true,
		}
	}
	return &client{
		http:      &http.Client{Transport: round, CheckRedirect: sameHost},
		page:      page,
		base:      base,
		tokenFile: c.BearerTokenFile, headerFile: c.HeaderFile,
		maxPage: c.MaxPageBytes,
	}, nil
}

// sameHost follows redirects on the same host only: what is sent along is meant for nobody else.
func sameHost(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	if req.URL.Host != first.Host || req.URL.Scheme != first.Scheme || len(via) > maxRedirects {
		return http.ErrUseLastResponse
	}
	return nil
}

func (c *client) close() { c.http.CloseIdleConnections() }

// port of the engine's server as written or as the scheme says.
// local tells whether the engine shares this machine, or at least this pod's
// network: only then its process can be among those that are seen here.
func (c *client) local() bool {
	u, err := url.Parse(c.base)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

func (c *client) port() string {
	u, err := url.Parse(c.base)
	if err != nil {
		return ""
	}
	if p := u.Port(); p != "" {
		return p
	}
	if u.Scheme == "https" {
		return "443"
	}
	return "80"
}

func (c *client) get(ctx context.Context, address, accept string) (*http.Response, *Failure) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, &Failure{Reason: "request", Message: "the request for " + address + " cannot be made", err: err}
	}
	headers, err := readHeaders(c.headerFile)
	if err == nil {
		var token string
		if token, err = readToken(c.tokenFile); token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
	}
	if err != nil {
		return nil, &Failure{Reason: "credentials_unreadable", Message: "nothing was asked of " + address, err: err}
	}
	for name, values := range headers {
		if name == "Host" {
			req.Host = values[0]
			continue
		}
		req.Header[name] = values
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "headroom_exporter")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, requestFailure(address, err)
	}
	return resp, nil
}

// metrics returns the page, which is valid until the next call, and its content type.
func (c *client) metrics(ctx context.Context) (body []byte, contentType string, f *Failure) {
	// Engines negotiate: any other Accept header brings renamed metrics.
	resp, f := c.get(ctx, c.page, "text/plain;version=0.0.4")
	if f != nil {
		return nil, "", f
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, "", statusFailure(c.page, resp.StatusCode, c.tokenFile != "" || c.headerFile != "")
	}
	var from io.Reader = io.LimitReader(resp.Body, c.maxPage+1)
	switch encoding := resp.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip": // some proxies pack whatever was asked for
		unpacked, err := gzip.NewReader(from)
		if err != nil {
			return nil, "", c.bodyFailure(err)
		}
		defer unpacked.Close()
		from = io.LimitReader(unpacked, c.maxPage+1)
	default:
		return nil, "", failure("encoding", "%s answers in encoding %q although none was asked for", c.page, encoding)
	}
	if c.body.Cap() > shrinkAbove && c.body.Len() < c.body.Cap()/4 {
		c.body = bytes.Buffer{}
	}
	c.body.Reset()
	n, err := c.body.ReadFrom(from)
	if err != nil {
		return nil, "", c.bodyFailure(err)
	}
	if n > c.maxPage {
		return nil, "", failure("page_too_large", "%s is larger than %d bytes; is it an engine's metrics page?", c.page, c.maxPage)
	}
	return c.body.Bytes(), resp.Header.Get("Content-Type"), nil
}

func (c *client) bodyFailure(err error) *Failure {
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) {
		return &Failure{Reason: "encoding", Message: c.page + " says gzip and is not", err: err}
	}
	return requestFailure(c.page, err)
}

// ask gets a small answer below the base URL.
func (c *client) ask(ctx context.Context, path string, limit int64) ([]byte, int, error) {
	resp, f := c.get(ctx, c.base+path, "application/json")
	if f != nil {
		return nil, 0, f
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, 0, fmt.Errorf("reading %s: %w", path, err)
	}
	if int64(len(body)) > limit {
		return nil, 0, fmt.Errorf("reading %s: more than %d bytes", path, limit)
	}
	return body, resp.StatusCode, nil
}

// health asks the engine's health check.
func (c *client) health(ctx context.Context) health {
	_, status, err := c.ask(ctx, "/health", 64<<10)
	if err != nil {
		return healthNone
	}
	return health(status)
}
