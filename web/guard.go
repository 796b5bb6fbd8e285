package web

import (
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
)

// methods are those that a path takes: only reloading changes anything.
func methods(path string) []string {
	if path == reloadPath {
		return []string{http.MethodPost}
	}
	return []string{http.MethodGet, http.MethodHead}
}

// guard stands before every route: it refuses wrong methods, sets the
// headers that every answer carries, and turns a panic into a 500.
func (s *server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Cache-Control", "no-store")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Frame-Options", "DENY")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")

		tracked := &trackedWriter{ResponseWriter: w}
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if cause == http.ErrAbortHandler {
				panic(cause) // net/http's own way to cut an answer off
			}
			s.panics.Add(1)
			s.Logger.Error("Answering a request panicked", "path", r.URL.Path, "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
			if tracked.begun {
				panic(http.ErrAbortHandler) // half an answer must not look like a whole one
			}
			s.refuse(w, r, http.StatusInternalServerError, "the exporter failed to answer; its log says why")
		}()
		if allowed := methods(r.URL.Path); !slices.Contains(allowed, r.Method) {
			header.Set("Allow", strings.Join(allowed, ", "))
			s.refuse(tracked, r, http.StatusMethodNotAllowed, r.Method+" is not allowed here; use "+allowed[0])
			return
		}
		next.ServeHTTP(tracked, r)
	})
}

func (s *server) serveNotFound(w http.ResponseWriter, r *http.Request) {
	s.refuse(w, r, http.StatusNotFound, "there is nothing at "+r.URL.Path)
}

// refuse answers with an error: as JSON under /api/, as text elsewhere.
func (s *server) refuse(w http.ResponseWriter, r *http.Request, status int, message string) {
	if strings.HasPrefix(r.URL.Path, "/api/") {
		s.fail(w, status, message)
		return
	}
	s.text(w, status, message+"\n")
}

// trackedWriter knows whether an answer has begun.
type trackedWriter struct {
	http.ResponseWriter
	begun bool
}

func (w *trackedWriter) WriteHeader(status int) {
	w.begun = true
	w.ResponseWriter.WriteHeader(status)
}

func (w *trackedWriter) Write(b []byte) (int, error) {
	w.begun = true
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *trackedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
