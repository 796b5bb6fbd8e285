package web

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html"
	"net/http"
	"strings"
)

//go:embed page
var pageFiles embed.FS

// page is the status page: one document that needs nothing from elsewhere,
// and the policy that lets it run its own script and style and nothing else.
type page struct {
	body   []byte
	policy string
}

func newPage(version, telemetryPath string) (*page, error) {
	read := func(names ...string) (string, error) {
		var b strings.Builder
		for _, name := range names {
			text, err := pageFiles.ReadFile("page/" + name)
			if err != nil {
				return "", fmt.Errorf("web: reading the status page: %w", err)
			}
			b.Write(text)
		}
		return b.String(), nil
	}
	document, err := read("index.html")
	if err != nil {
		return nil, err
	}
	style, err := read("style.css")
	if err != nil {
		return nil, err
	}
	script, err := read("format.js", "chart.js", "status.js")
	if err != nil {
		return nil, err
	}
	body := strings.NewReplacer(
		"/*STYLE*/", style,
		"/*SCRIPT*/", script,
		"{{VERSION}}", html.EscapeString(version),
		// Relative, so that the page works behind a proxy's path.
		"{{TELEMETRY}}", html.EscapeString(strings.TrimPrefix(telemetryPath, "/")),
	).Replace(document)
	policy := "default-src 'none'; script-src " + hashOf(script) + "; style-src " + hashOf(style) +
		"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return &page{body: []byte(body), policy: policy}, nil
}

// hashOf is a source expression of a Content-Security-Policy for one inline element.
func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func (p *page) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", p.policy)
	// A reader who went away needs no answer, and there is nothing to clean up.
	_, _ = w.Write(p.body)
}
