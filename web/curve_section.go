package web

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"strconv"

	"headroom_exporter/sidecar"
)

// curveTemplate is the part of the page that shows a replica against its curve.
var curveTemplate = template.Must(template.New("curve.html").Funcs(template.FuncMap{
	"rate":    func(n number) string { return orDash(n, func(v float64) string { return quantity(v) + " /s" }) },
	"percent": func(n number) string { return orDash(n, percent) },
	// A bar is left out where its length is not known.
	"bar": func(n number) string {
		if !known(n) {
			return ""
		}
		return fmt.Sprintf("%.1f", 100*min(float64(n), 1))
	},
}).ParseFS(pageFiles, "page/curve.html"))

func orDash(n number, write func(float64) string) string {
	if !known(n) {
		return dash
	}
	return write(float64(n))
}

// Colour is the page's class for the class's colour.
func (c classView) Colour() string { return colour(c.place) }

// defaultPictureWidth is that of a page that does not say how wide it is.
const defaultPictureWidth = 720

// curveSection is what the template shows.
type curveSection struct {
	View    *curveView
	Picture template.HTML
}

// serveCurve answers with the part of the page for one replica, the first when
// none is named. The page asks for it again as it does for the numbers.
func (s *server) serveCurve(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	width := defaultPictureWidth
	if text := query.Get("width"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			s.text(w, http.StatusBadRequest, fmt.Sprintf("width=%q is not a whole number of pixels\n", text))
			return
		}
		width = n
	}
	snapshot := s.Source.Snapshot()
	if snapshot == nil {
		s.text(w, http.StatusServiceUnavailable, noReadingYet+"\n")
		return
	}
	replica := findReplica(snapshot, query.Get("model_name"), query.Get("engine"))
	if replica == nil {
		s.text(w, http.StatusNotFound, "there is no such replica\n")
		return
	}
	section := curveSection{View: newCurveView(snapshot, replica, s.Source.History(replica.ModelName, replica.Engine, snapshot.At.Add(-trailLength)))}
	if section.View != nil {
		section.Picture = section.View.picture(width)
	}
	var b bytes.Buffer
	if err := curveTemplate.Execute(&b, section); err != nil {
		s.Logger.Error("Drawing the capacity curve failed", "err", err)
		s.text(w, http.StatusInternalServerError, "drawing the capacity curve failed\n")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if _, err := w.Write(b.Bytes()); err != nil {
		s.Logger.Debug("The client went away", "err", err)
	}
}

// findReplica is the replica of these names; empty names are those of any.
func findReplica(s *sidecar.Snapshot, modelName, engine string) *sidecar.Replica {
	for i := range s.Replicas {
		r := &s.Replicas[i]
		if (modelName == "" || r.ModelName == modelName) && (engine == "" || r.Engine == engine) {
			return r
		}
	}
	return nil
}
