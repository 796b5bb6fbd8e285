package engine

import (
	"crypto/tls"
	"net/http"
)

// API is how to reach the engine's API with what the configuration holds for
// its metrics page: the same host, headers and certificates.
type API struct {
	// Base is the API's URL, without /v1.
	Base   string
	Header http.Header
	TLS    *tls.Config
}

// API reads the credentials once. The error names the flag that is wrong.
func (c Config) API() (API, error) {
	_, base, err := c.addresses("/metrics")
	if err != nil {
		return API{}, err
	}
	header, err := readHeaders(c.HeaderFile)
	if err != nil {
		return API{}, err
	}
	if header == nil {
		header = http.Header{}
	}
	token, err := readToken(c.BearerTokenFile)
	if err != nil {
		return API{}, err
	}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	tlsConfig, err := c.TLS.build()
	if err != nil {
		return API{}, err
	}
	return API{Base: base, Header: header, TLS: tlsConfig}, nil
}
