package engine

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestValidate(t *testing.T) {
	good := Config{URL: "http://127.0.0.1:8000"}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for _, page := range []string{"", "/prometheus/metrics", "/serve/prometheus/metrics"} {
		if err := (Config{URL: good.URL + page, Type: TypeTRTLLM}).Validate(); err != nil {
			t.Errorf("%q: %v", page, err)
		}
	}
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no URL":             {func(c *Config) { c.URL = "" }, "--engine.url"},
		"no scheme":          {func(c *Config) { c.URL = "localhost:8000" }, "--engine.url"},
		"scheme":             {func(c *Config) { c.URL = "ftp://h" }, "--engine.url"},
		"bad URL":            {func(c *Config) { c.URL = "http://h:port" }, "--engine.url"},
		"password":           {func(c *Config) { c.URL = "http://u:secret@h" }, "--engine.header-file"},
		"type":               {func(c *Config) { c.Type = "mlx" }, "auto, llamacpp, ray, sglang, tgi, triton, trtllm, vllm"},
		"queue":              {func(c *Config) { c.Type, c.URL = TypeTRTLLM, "http://h:8000/metrics/" }, "/prometheus/metrics"},
		"interval":           {func(c *Config) { c.Interval = time.Millisecond }, "--engine.interval"},
		"an interval of 1ns": {func(c *Config) { c.Interval = 1 }, "--engine.interval is 1ns"},
		"timeout":            {func(c *Config) { c.Timeout = time.Second }, "--engine.timeout"},
		"negative timeout":   {func(c *Config) { c.Timeout = -1 }, "--engine.timeout"},
		"sequences":          {func(c *Config) { c.MaxNumSeqs = -1 }, "--engine.max-num-seqs"},
		"tokens":             {func(c *Config) { c.MaxNumBatchedTokens = -1 }, "--engine.max-num-batched-tokens"},
		"cache":              {func(c *Config) { c.KVTokens = -1 }, "--engine.kv-tokens"},
		"page":               {func(c *Config) { c.MaxPageBytes = -1 }, "bytes"},
		"no token":           {func(c *Config) { c.BearerTokenFile = "none" }, "--engine.bearer-token-file"},
		"empty token":        {func(c *Config) { c.BearerTokenFile = writeFile(t, "t", " \n") }, "holds no token"},
		"token of lines":     {func(c *Config) { c.BearerTokenFile = writeFile(t, "t", "a\nb") }, "holds no token"},
		"no headers":         {func(c *Config) { c.HeaderFile = "none" }, "--engine.header-file"},
		"bad headers":        {func(c *Config) { c.HeaderFile = writeFile(t, "h", "X: 1\nsecret") }, "line 2"},
		"no CA":              {func(c *Config) { c.TLS.CAFile = "none" }, "--engine.tls.ca-file"},
		"empty CA":           {func(c *Config) { c.TLS.CAFile = writeFile(t, "ca", "x") }, "holds no certificate"},
		"no key":             {func(c *Config) { c.TLS.CertFile = "x" }, "--engine.tls.key-file"},
		"bad key":            {func(c *Config) { c.TLS.CertFile, c.TLS.KeyFile = "x", "y" }, "--engine.tls.cert-file"},
	} {
		c := good
		test.change(&c)
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") ||
			c.Timeout == 0 && strings.Contains(err.Error(), "--engine.timeout is") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := New(c, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: a poller was made", name)
		}
	}
}

func TestHeaders(t *testing.T) {
	h, err := parseHeaders([]byte("# comment\r\n\nX-Tenant: a b\nx-tenant: c\nAuthorization:Basic Zm9v\nEmpty:\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := http.Header{"X-Tenant": {"a b", "c"}, "Authorization": {"Basic Zm9v"}, "Empty": {""}}
	if d := cmp.Diff(want, h); d != "" {
		t.Error(d)
	}
	for _, bad := range []string{"no colon", ": value", "a b: c", "X: \x01", "Accept: text/html", "accept-encoding: gzip", "Content-Length: 5"} {
		if _, err := parseHeaders([]byte("\n" + bad + "\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%q gives %v", bad, err)
		}
	}
}

func FuzzHeaders(f *testing.F) {
	f.Add([]byte("A: b\n#c\nHost: x\r\n"))
	f.Add([]byte("Accept:\x00\n::\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := parseHeaders(raw)
		if err != nil {
			if len(h) != 0 {
				t.Errorf("headers beside an error: %v", h)
			}
			return
		}
		r := httptest.NewRequest(http.MethodGet, "http://h/", nil)
		r.Header = h
		if err := r.Header.Write(discard{}); err != nil {
			t.Error(err)
		}
		for name, values := range h {
			for _, v := range values {
				if strings.ContainsAny(name+v, "\r\n\x00") {
					t.Errorf("%q: %q would break the request", name, v)
				}
			}
		}
	})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// TestHeadersAreSent: on every request, read anew, and to no other host.
func TestHeadersAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine(t)
		file := writeFile(t, "headers", "X-Tenant: one\nHost: engine.internal\n")
		p := e.poller(t, func(c *Config) { c.HeaderFile = file })
		var host string
		page := serve(classic, vllmPage(0, busy("0", 1, 0, 1)))
		e.metrics = func(w http.ResponseWriter, r *http.Request) { host = r.Host; page(w, r) }
		e.poll(t, p)
		if e.header.Get("X-Tenant") != "one" || host != "engine.internal" {
			t.Errorf("sent %v to %q", e.header, host)
		}
		if err := os.WriteFile(file, []byte("X-Tenant: two\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		e.poll(t, p)
		if e.header.Get("X-Tenant") != "two" || host != "127.0.0.1:8000" {
			t.Errorf("sent %v to %q", e.header, host)
		}
	})
}

// TestTLS polls a server that asks for a client certificate.
func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, b []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	clientCert, clientKey := writeFile(t, "cert.pem", block("CERTIFICATE", der)), writeFile(t, "key.pem", block("PRIVATE KEY", keyDER))

	s := httptest.NewUnstartedServer(serve(classic, vllmPage(0, busy("0", 1, 0, 1))))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	s.StartTLS()
	defer s.Close()
	ca := writeFile(t, "ca.pem", block("CERTIFICATE", s.Certificate().Raw))
	poll := func(c TLSConfig) Observation {
		p, err := New(Config{URL: s.URL, TLS: c, Interval: time.Minute, ProcPath: t.TempDir()}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		return p.Poll(t.Context())
	}
	wantState(t, poll(TLSConfig{CAFile: ca, CertFile: clientCert, KeyFile: clientKey}), StateOK, "")
	wantState(t, poll(TLSConfig{InsecureSkipVerify: true, CertFile: clientCert, KeyFile: clientKey}), StateOK, "")
	wantState(t, poll(TLSConfig{CAFile: ca, CertFile: clientCert, KeyFile: clientKey, ServerName: "example.com"}), StateOK, "")
	for name, c := range map[string]TLSConfig{
		"unknown authority": {CertFile: clientCert, KeyFile: clientKey},
		"no client":         {CAFile: ca},
		"another name":      {CAFile: ca, CertFile: clientCert, KeyFile: clientKey, ServerName: "other.test"},
	} {
		o := poll(c)
		if o.State != StateDown || o.Reason != "tls" || !strings.Contains(o.Err.Error(), "--engine.tls") {
			t.Errorf("%s: %s %s %v", name, o.State, o.Reason, o.Err)
		}
	}
}
