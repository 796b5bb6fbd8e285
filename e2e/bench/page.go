package main

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
)

// page is an engine's metrics page whose counters move with every answer, so
// that the exporter sees an engine at work.
type page struct {
	lines   []line
	series  int
	answers atomic.Int64
}

// line is a line of the page. A counter above zero rises by one with every
// answer; buckets, sums and counts rise alike, so histograms stay whole.
type line struct {
	text  string
	value float64 // what follows text, where moves
	moves bool
}

func newPage(text string) *page {
	p := &page{}
	kinds := map[string]string{}
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\n")
		if strings.HasPrefix(l, "#") || l == "" {
			if fields := strings.Fields(l); len(fields) == 4 && fields[1] == "TYPE" {
				kinds[fields[2]] = fields[3]
			}
			p.lines = append(p.lines, line{text: l})
			continue
		}
		p.series++
		p.lines = append(p.lines, sample(l, kinds))
	}
	return p
}

func sample(l string, kinds map[string]string) line {
	at := strings.LastIndexByte(l, ' ')
	value, err := strconv.ParseFloat(l[at+1:], 64)
	if err != nil || value == 0 || !isCumulative(l, kinds) {
		return line{text: l}
	}
	return line{text: l[:at+1], value: value, moves: true}
}

func isCumulative(l string, kinds map[string]string) bool {
	name, _, _ := strings.Cut(l, "{")
	name, _, _ = strings.Cut(name, " ")
	if strings.HasSuffix(name, "_created") {
		return false
	}
	if kinds[name] == "counter" {
		return true
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && kinds[base] == "histogram" {
			return true
		}
	}
	return false
}

// withSeries returns the page of a deployment with as many ranks as it takes
// to reach a number of series.
func (p *page) withSeries(n int) *page {
	grown := &page{lines: append([]line(nil), p.lines...), series: p.series}
	for rank := 1; grown.series < n; rank++ {
		for _, l := range p.lines {
			if strings.Contains(l.text, `engine="0"`) {
				l.text = strings.Replace(l.text, `engine="0"`, fmt.Sprintf(`engine="%d"`, rank), 1)
				grown.lines = append(grown.lines, l)
				grown.series++
			}
		}
	}
	return grown
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/metrics" {
		http.NotFound(w, r)
		return
	}
	rise := float64(p.answers.Add(1))
	var body []byte
	for _, l := range p.lines {
		body = append(body, l.text...)
		if l.moves {
			body = strconv.AppendFloat(body, l.value+rise, 'g', -1, 64)
		}
		body = append(body, '\n')
	}
	w.Header().Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
	w.Write(body)
}
