package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"strconv"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

// Bounds of what one page may hold; real engines stay far below.
const (
	// maxRanks is the most models and ranks.
	maxRanks = 256
	// maxParts is the most series in one number, and buckets in one histogram.
	maxParts = 1024
)

// series is one series of a page; it is on the current page when its
// generation is the pages'.
type series struct {
	value      float64
	generation uint64
	// table is the index of the table whose engine the name is a sign of, -1 for none.
	table  int
	router bool
}

// pages reads metrics pages. It remembers where every series goes, so that
// the labels of a series are parsed when it is first seen only.
type pages struct {
	tables []*table
	// replicaID keeps one replica's series only; empty keeps all.
	replicaID  string
	layouts    []*layout
	known      map[string]*series
	symbols    *labels.SymbolTable
	generation uint64
	// start is process_start_time_seconds.
	start *series
}

func newPages(tables []*table, replicaID string) *pages {
	p := &pages{tables: tables, replicaID: replicaID, symbols: labels.NewSymbolTable()}
	p.forget()
	return p
}

// forget drops what is remembered about series.
func (p *pages) forget() {
	p.known = make(map[string]*series)
	p.layouts = p.layouts[:0]
	for _, t := range p.tables {
		p.layouts = append(p.layouts, newLayout(t, p.replicaID))
	}
	p.start = nil
}

// summary is what one page holds, before any signal is read of it.
type summary struct {
	series, duplicates int
	// families tells for each table whether the page has samples of its families.
	families []bool
	router   bool
}

// read takes one whole page. After an error nothing of it may be used.
func (p *pages) read(body []byte, contentType string) (s summary, f *Failure) {
	if f := notText(body, contentType); f != nil {
		return s, f
	}
	if len(body) > 0 && body[len(body)-1] != '\n' {
		f := failure("truncated", "the page does not end with a line end; it was cut off")
		f.Transient = true
		return s, f
	}
	for range 2 {
		var err error
		if s, err = p.pass(body, contentType); err != nil {
			p.forget() // what a broken page brought along is not worth keeping
			return s, &Failure{Reason: "malformed", Message: "the page is not in the Prometheus text format", err: err}
		}
		if !p.overflow(s) {
			return s, nil
		}
		p.forget() // ranks that are gone may have filled it: once more with this page's alone
	}
	return s, failure("too_many_series", "the page has more than %d ranks or %d series of one metric; it is not one engine's page", maxRanks, maxParts)
}

// trim forgets everything when most of it is no longer on the page, as after
// a restart or with labels that come and go. The next page builds it anew.
func (p *pages) trim(onPage int) {
	if len(p.known) > 2*onPage+256 {
		p.forget()
	}
}

// overflow tells that an engine on the page has more series than any has.
func (p *pages) overflow(s summary) bool {
	for i, present := range s.families {
		if present && p.layouts[i].full {
			return true
		}
	}
	return false
}

// pass goes over the page once.
func (p *pages) pass(body []byte, contentType string) (sum summary, err error) {
	// An error beside a parser is a remark on the content type only.
	parser, err := textparse.New(body, contentType, p.symbols, textparse.ParserOptions{FallbackContentType: "text/plain"})
	if parser == nil {
		return sum, fmt.Errorf("choosing a parser: %w", err)
	}
	sum.families = make([]bool, len(p.tables))
	p.generation++
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			return sum, nil
		}
		if err != nil {
			return sum, fmt.Errorf("parsing sample %d: %w", sum.series+1, err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		name, _, value := parser.Series()
		s, ok := p.known[string(name)]
		if !ok {
			s = p.place(parser, name)
			p.known[string(name)] = s
		}
		sum.series++
		if s.generation == p.generation {
			sum.duplicates++
		}
		s.value, s.generation = value, p.generation
		if s.table >= 0 {
			sum.families[s.table] = true
			sum.router = sum.router || s.router
		}
	}
}

// place finds where a new series goes. A name that several engines use goes to the table of each.
func (p *pages) place(parser textparse.Parser, written []byte) *series {
	s := &series{table: -1}
	name := written
	if i := bytes.IndexByte(written, '{'); i >= 0 {
		name = written[:i]
	}
	var set labels.Labels
	if len(name) == 0 { // the name is quoted, inside the braces
		parser.Labels(&set)
		name = []byte(set.Get(model.MetricNameLabel))
	}
	if string(name) == "process_start_time_seconds" && len(name) == len(written) {
		p.start = s
	}
	for i, t := range p.tables {
		key, ok := t.cut(string(name))
		if !ok && t.bareLabel == "" {
			continue
		}
		parser.Labels(&set)
		if !ok && (set.Get(t.bareLabel) == "" || p.layouts[i].targets[key] == nil) {
			continue
		}
		if !ok || t.signedBy(string(name)) {
			s.table = i
		}
		if t.routerLabel != "" && set.Get(t.routerLabel) != "" && set.Get(t.modelLabel) == "" {
			s.router = true
			continue
		}
		p.layouts[i].add(key, set, s)
	}
	return s
}

// notText refuses what cannot be a metrics page in text.
func notText(body []byte, contentType string) *Failure {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		media = ""
	}
	start := bytes.TrimLeft(body, " \t\r\n")
	switch {
	case media == "text/html", bytes.HasPrefix(start, []byte("<")):
		return failure("not_metrics", "the page is HTML; --engine.url must lead to an engine, not to a web page or a login")
	case media == "application/json", bytes.HasPrefix(start, []byte("{\n")), bytes.HasPrefix(start, []byte("[")):
		return jsonFailure()
	case media == "application/vnd.google.protobuf":
		return failure("not_metrics", "the page is in protocol buffers although text was asked for")
	}
	return nil
}

// leBound is the upper bound of a bucket; false when the label is no number.
func leBound(le string) (float64, bool) {
	v, err := strconv.ParseFloat(le, 64)
	return v, err == nil && v == v
}
