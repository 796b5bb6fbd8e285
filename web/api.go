package web

import (
	"encoding/json"
	"net/http"
	"time"
)

const noReadingYet = "waiting for the first reading"

func (s *server) serveHeadroom(w http.ResponseWriter, _ *http.Request) {
	snapshot := s.Source.Snapshot()
	if snapshot == nil {
		s.fail(w, http.StatusServiceUnavailable, noReadingYet)
		return
	}
	s.answer(w, http.StatusOK, newDocument(snapshot, time.Now()))
}

// apiError is the body of every answer of /api/ that is not 200.
type apiError struct {
	Error string `json:"error"`
}

func (s *server) fail(w http.ResponseWriter, status int, message string) {
	s.answer(w, status, apiError{message})
}

// answer encodes before it writes, so that a failure is still a clean answer.
func (s *server) answer(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		s.Logger.Error("Encoding an answer failed", "err", err)
		http.Error(w, `{"error":"encoding the answer failed"}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	if _, err := w.Write(append(text, '\n')); err != nil {
		s.Logger.Debug("The client went away", "err", err)
	}
}
