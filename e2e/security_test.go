package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// certificate is a self-made certificate for 127.0.0.1, in memory and in files.
type certificate struct {
	pair              tls.Certificate
	pool              *x509.CertPool
	certFile, keyFile string
}

func newCertificate(t *testing.T) certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "headroom e2e"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA:        true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	c := certificate{pool: x509.NewCertPool()}
	c.pool.AppendCertsFromPEM(certPEM)
	if c.pair, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c.certFile, c.keyFile = writeFile(t, dir, "cert.pem", string(certPEM)), writeFile(t, dir, "key.pem", string(keyPEM))
	return c
}

func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWebConfigWithTLSAndBasicAuth(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	cert := newCertificate(t)
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	config := writeFile(t, t.TempDir(), "web.yml", fmt.Sprintf(
		"tls_server_config:\n  cert_file: %s\n  key_file: %s\nbasic_auth_users:\n  operator: %s\n", cert.certFile, cert.keyFile, hash))
	address := freeAddress(t)
	p := start(t, nil, "serve", "--engine.url="+engine.url, "--web.listen-address="+address, "--web.config.file="+config)

	secure := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: cert.pool}}}
	status := func(user, password, path string) (int, error) {
		req, err := http.NewRequest(http.MethodGet, "https://"+address+path, nil)
		if err != nil {
			return 0, err
		}
		if user != "" {
			req.SetBasicAuth(user, password)
		}
		resp, err := secure.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		return resp.StatusCode, nil
	}
	eventually(t, startLimit, "the secured sidecar answers", func() error {
		if !p.running() {
			t.Fatal("it ended")
		}
		got, err := status("operator", "secret", "/-/ready")
		if err == nil && got != http.StatusOK {
			err = fmt.Errorf("status %d", got)
		}
		return err
	})
	for _, path := range []string{"/", "/metrics", "/api/v1/headroom", "/-/healthy"} {
		for _, test := range []struct {
			user, password string
			want           int
		}{{"operator", "secret", 200}, {"operator", "wrong", 401}, {"", "", 401}} {
			if got, err := status(test.user, test.password, path); err != nil || got != test.want {
				t.Errorf("%s as %q with %q: status %d, %v, want %d", path, test.user, test.password, got, err, test.want)
			}
		}
	}
	if _, err := get("http://" + address + "/metrics"); err == nil {
		t.Error("plain HTTP is answered with 200")
	}
}

// TestEngineBehindTLSAndBearerToken also changes the token under the running
// sidecar, as a mounted secret does.
func TestEngineBehindTLSAndBearerToken(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	proxy := newFaultProxy(t, engine.url)
	var token atomic.Value
	token.Store("first")
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token.Load().(string) || r.Header.Get("X-Tenant") != "blue" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	cert := newCertificate(t)
	front.TLS = &tls.Config{Certificates: []tls.Certificate{cert.pair}}
	front.StartTLS()
	t.Cleanup(front.Close)

	dir := t.TempDir()
	tokenFile, headerFile := writeFile(t, dir, "token", "first\n"), writeFile(t, dir, "headers", "X-Tenant: blue\n")
	s := serve(t, front.URL, "--engine.tls.ca-file="+cert.certFile,
		"--engine.bearer-token-file="+tokenFile, "--engine.header-file="+headerFile)
	s.waitFor(startLimit, "headroom", knowsHeadroom)

	token.Store("second")
	h := s.waitForState(startLimit, "stale", "down")
	if h.Engine.Reason != "unauthorized" {
		t.Errorf("with an old token the reason is %q, want unauthorized", h.Engine.Reason)
	}
	if err := publishesNoHeadroom(s.url); err != nil {
		t.Error(err)
	}
	writeFile(t, dir, "token", "second\n")
	s.mustRecover()

	// Without the CA the certificate must not be trusted.
	stranger := serve(t, front.URL, "--engine.bearer-token-file="+tokenFile, "--engine.header-file="+headerFile)
	stranger.waitForState(startLimit, "down")
	if err := publishesNoHeadroom(stranger.url); err != nil {
		t.Error(err)
	}
}
