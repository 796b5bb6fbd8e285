package engine

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Defaults of Config.
const (
	DefaultInterval     = time.Second
	DefaultMaxPageBytes = 16 << 20
	DefaultProcPath     = "/proc"
)

// MinInterval is the shortest time between two polls.
const MinInterval = 10 * time.Millisecond

// Config says which engine is polled and how.
type Config struct {
	// URL is the engine's base URL, with or without the /v1 of its API, or, with
	// another path, its metrics page.
	URL string
	// Type of the engine; TypeUnknown finds it out.
	Type Type
	// Interval between polls; 0 is DefaultInterval.
	Interval time.Duration
	// Timeout of the request for the page; 0 is 80 % of Interval.
	Timeout time.Duration
	// BearerTokenFile and HeaderFile (lines of "Name: value") are read anew for every request.
	BearerTokenFile string
	HeaderFile      string
	TLS             TLSConfig
	// MaxNumSeqs, MaxNumBatchedTokens and KVTokens are the limits of one rank; 0 is not known.
	MaxNumSeqs          int
	MaxNumBatchedTokens int
	KVTokens            int
	// GPU tells the memory in bytes and the model of one of the engine's GPUs, on
	// which documented defaults depend; NaN and empty while not known. May be nil.
	GPU func() (memoryBytes float64, model string)
	// ReplicaID keeps only one replica's series of a Ray node's page; empty keeps all.
	ReplicaID string
	// ProcPath is where the process list is; empty is DefaultProcPath.
	ProcPath string
	// MaxPageBytes bounds the page, unpacked; 0 is DefaultMaxPageBytes.
	MaxPageBytes int64
	// RoundTripper replaces the HTTP transport in tests.
	RoundTripper http.RoundTripper
}

// TLSConfig is for https URLs.
type TLSConfig struct {
	CAFile, CertFile, KeyFile, ServerName string
	InsecureSkipVerify                    bool
}

// withDefaults fills in what was left out.
func (c Config) withDefaults() Config {
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	if c.Timeout == 0 {
		c.Timeout = c.Interval * 8 / 10
	}
	if c.MaxPageBytes == 0 {
		c.MaxPageBytes = DefaultMaxPageBytes
	}
	if c.ProcPath == "" {
		c.ProcPath = DefaultProcPath
	}
	return c
}

// Validate says what is wrong, all of it, naming the flags.
func (c Config) Validate() error { return c.validate(tables) }

func (c Config) validate(tables []*table) error {
	full := c.withDefaults()
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, _, err := c.addresses("/metrics"); err != nil {
		errs = append(errs, err)
	}
	if c.Type != TypeUnknown && tableOf(tables, c.Type) == nil {
		wrong("--engine.type is %q; known are auto, %s", c.Type, strings.Join(namesOf(tables), ", "))
	}
	if t := tableOf(tables, c.Type); t != nil && t.queuePath != "" {
		if path := c.pagePath(); strings.HasSuffix(path, t.queuePath) && !strings.HasSuffix(path, t.metricsPath) {
			wrong("--engine.url is %q, which is a queue of %s that empties when it is read; its metrics are at %s", c.URL, t.engine, t.metricsPath)
		}
	}
	if full.Interval < MinInterval {
		wrong("--engine.interval is %v; it must be at least %v", c.Interval, MinInterval)
	}
	// One that is not given follows from the interval.
	if c.Timeout != 0 && (full.Timeout <= 0 || full.Timeout > full.Interval*9/10) {
		wrong("--engine.timeout is %v; it must be above 0 and at most 90 %% of --engine.interval (%v)", c.Timeout, full.Interval)
	}
	for _, l := range []struct {
		flag  string
		value int
	}{
		{"--engine.max-num-seqs", c.MaxNumSeqs}, {"--engine.max-num-batched-tokens", c.MaxNumBatchedTokens}, {"--engine.kv-tokens", c.KVTokens},
	} {
		if l.value < 0 {
			wrong("%s is %d; it must be above 0, or 0 when it is not known", l.flag, l.value)
		}
	}
	if full.MaxPageBytes < 0 {
		wrong("the bound of the page's size is %d bytes; it must be above 0", c.MaxPageBytes)
	}
	if _, err := readToken(c.BearerTokenFile); err != nil {
		errs = append(errs, err)
	}
	if _, err := readHeaders(c.HeaderFile); err != nil {
		errs = append(errs, err)
	}
	if _, err := c.TLS.build(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// addresses returns the page's URL and the base URL of the engine's API.
func (c Config) addresses(metricsPath string) (page, base string, err error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return "", "", fmt.Errorf("--engine.url is %q: %w", c.URL, err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return "", "", fmt.Errorf("--engine.url is %q; it must look like http://127.0.0.1:8000", c.URL)
	}
	if u.User != nil {
		return "", "", errors.New("--engine.url holds a user name or a password, which would be shown; give it in --engine.header-file")
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return "", "", errors.New("--engine.url has a query or a fragment, which may hold a secret and would be shown; give the address alone, and credentials in --engine.header-file")
	}
	path := strings.TrimRight(u.Path, "/")
	if base, ok := apiPath(path); ok {
		root := url.URL{Scheme: u.Scheme, Host: u.Host, Path: base}
		u.Path = base + metricsPath
		return u.String(), root.String(), nil
	}
	above := path[:strings.LastIndex(path, "/")]
	for _, t := range tables { // the whole path of a page that is deeper
		if up, ok := strings.CutSuffix(path, t.metricsPath); ok && len(up) < len(above) {
			above = up
		}
	}
	root := url.URL{Scheme: u.Scheme, Host: u.Host, Path: above}
	return u.String(), root.String(), nil
}

// apiPath returns what is before the /v1 of a base URL's path; false for the path of a page.
func apiPath(path string) (base string, ok bool) {
	if path == "" {
		return "", true
	}
	return strings.CutSuffix(path, "/v1")
}

// pagePath is the path of the URL where that is the metrics page itself; empty for a base URL.
func (c Config) pagePath() string {
	u, err := url.Parse(c.URL)
	if err != nil {
		return ""
	}
	path := strings.TrimRight(u.Path, "/")
	if _, ok := apiPath(path); ok {
		return ""
	}
	return path
}

func tableOf(tables []*table, t Type) *table {
	if i := slices.IndexFunc(tables, func(x *table) bool { return x.engine == t }); i >= 0 {
		return tables[i]
	}
	return nil
}

// readToken reads a bearer token; "" for no file.
func readToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	raw, err := readFile(path)
	if err != nil {
		return "", fmt.Errorf("reading --engine.bearer-token-file: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if token == "" || !httpguts.ValidHeaderFieldValue(token) {
		return "", fmt.Errorf("--engine.bearer-token-file %s holds no token of one line", path)
	}
	return token, nil
}

// readHeaders reads a header file; nil for no file.
func readHeaders(path string) (http.Header, error) {
	if path == "" {
		return nil, nil
	}
	raw, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading --engine.header-file: %w", err)
	}
	h, err := parseHeaders(raw)
	if err != nil {
		return nil, fmt.Errorf("--engine.header-file %s: %w", path, err)
	}
	return h, nil
}

// parseHeaders reads lines of "Name: value"; empty lines and those that start with # are skipped.
func parseHeaders(raw []byte) (http.Header, error) {
	h := make(http.Header)
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			// The line may hold a secret: name its number only.
			return nil, fmt.Errorf("line %d is not \"Name: value\"", n)
		}
		switch http.CanonicalHeaderKey(name) {
		case "Accept", "Accept-Encoding", "Connection", "Content-Length", "Transfer-Encoding":
			return nil, fmt.Errorf("line %d sets %s, which is not free to set", n, name)
		}
		h.Add(name, value)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading lines: %w", err)
	}
	return h, nil
}

// build returns the TLS configuration. The client certificate is read anew
// for every connection, so that a rotated one is taken up.
func (t TLSConfig) build() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify}
	if t.CAFile != "" {
		pem, err := readFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading --engine.tls.ca-file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--engine.tls.ca-file %s holds no certificate", t.CAFile)
		}
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return nil, errors.New("--engine.tls.cert-file and --engine.tls.key-file are needed together")
	}
	if t.CertFile != "" {
		load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("reading --engine.tls.cert-file and --engine.tls.key-file: %w", err)
			}
			return &pair, nil
		}
		if _, err := load(nil); err != nil {
			return nil, err
		}
		c.GetClientCertificate = load
	}
	return c, nil
}
