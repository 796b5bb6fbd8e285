package probe

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"headroom_exporter/collector/engine"
	"headroom_exporter/probe/workload"
)

// clientCertificate makes a certificate and its key as files.
func clientCertificate(t *testing.T, dir string) (pool *x509.CertPool, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "probe"}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(cert)
	return pool, write(t, dir, "cert.pem", "CERTIFICATE", der), write(t, dir, "key.pem", "PRIVATE KEY", keyDER)
}

func write(t *testing.T, dir, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCredentials: a bearer token, a header, a CA and a client certificate
// reach an engine behind TLS, and times are known there too.
func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	pool, certFile, keyFile := clientCertificate(t, dir)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("X-Tenant") != "probe" || len(r.TLS.PeerCertificates) != 1 {
			http.Error(w, `{"error":"who are you?"}`, http.StatusUnauthorized)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		e := &events{w}
		e.tokens(4)
		e.usage(1, 4)
		e.done()
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	server.StartTLS()
	defer server.Close()
	token, headers := filepath.Join(dir, "token"), filepath.Join(dir, "headers")
	for path, text := range map[string]string{token: "secret\n", headers: "X-Tenant: probe\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	good := engine.Config{
		URL: server.URL, BearerTokenFile: token, HeaderFile: headers,
		TLS: engine.TLSConfig{CAFile: write(t, dir, "ca.pem", "CERTIFICATE", server.Certificate().Raw), CertFile: certFile, KeyFile: keyFile},
	}
	noToken, noCert, noCA, insecure := good, good, good, good
	noToken.BearerTokenFile = ""
	noCert.TLS.CertFile, noCert.TLS.KeyFile = "", ""
	noCA.TLS.CAFile = ""
	insecure.TLS.CAFile, insecure.TLS.InsecureSkipVerify = "", true
	for _, test := range []struct {
		name    string
		config  engine.Config
		outcome Outcome
		status  int
	}{
		{"all", good, OK, 200},
		{"insecure", insecure, OK, 200},
		{"no token", noToken, HTTPError, 401},
		{"no client certificate", noCert, HTTPError, 0},
		{"no CA", noCA, HTTPError, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			api, err := test.config.API()
			if err != nil {
				t.Fatal(err)
			}
			c, err := NewClient(ClientConfig{BaseURL: api.Base, Header: api.Header, TLS: api.TLS, Model: "m", Dialect: Dialect{Usage: true}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var x Exchange
			c.Do(context.Background(), &workload.Request{Text: "x", MaxTokens: 4}, c.now(), &x)
			if x.Outcome != test.outcome || x.Status != test.status {
				t.Fatalf("%s, status %d: %s", x.Outcome, x.Status, x.Error)
			}
			if x.Outcome == OK && !(x.Sent > 0 && x.Sent <= x.Headers && x.Headers <= x.First && x.Connect > 0 && !x.Reused) {
				t.Errorf("%+v", x)
			}
		})
	}
}
