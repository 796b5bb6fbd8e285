package simulator

import (
	"bytes"
	"math"
	"sort"
	"strconv"
	"strings"
)

// page is a metrics page in the text that Python's prometheus_client writes.
type page struct{ text []byte }

// header writes a family's HELP and TYPE.
func (p *page) header(name, help, kind string) {
	p.text = append(p.text, "# HELP "...)
	p.text = append(p.text, name...)
	p.text = append(p.text, ' ')
	p.text = append(p.text, help...)
	p.text = append(p.text, "\n# TYPE "...)
	p.text = append(p.text, name...)
	p.text = append(p.text, ' ')
	p.text = append(p.text, kind...)
	p.text = append(p.text, '\n')
}

// sample writes one line; labels is empty or comes from a labelSet.
func (p *page) sample(name, suffix, labels string, value float64) {
	p.text = append(p.text, name...)
	p.text = append(p.text, suffix...)
	if labels != "" {
		p.text = append(p.text, '{')
		p.text = append(p.text, labels...)
		p.text = append(p.text, '}')
	}
	p.text = append(p.text, ' ')
	p.text = appendPythonFloat(p.text, value)
	p.text = append(p.text, '\n')
}

// label is one label's name and value.
type label struct{ name, value string }

// labelText renders labels sorted by name, as prometheus_client does.
func labelText(labels ...label) string {
	sorted := append([]label(nil), labels...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].name < sorted[j].name })
	var b strings.Builder
	for i, l := range sorted {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(l.name)
		b.WriteString(`="`)
		labelEscaper.WriteString(&b, l.value)
		b.WriteByte('"')
	}
	return b.String()
}

var labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// appendPythonFloat appends a sample value as prometheus_client prints it:
// Python's repr, with Go's exponent from seven integer digits on.
func appendPythonFloat(b []byte, v float64) []byte {
	switch {
	case math.IsInf(v, 1):
		return append(b, "+Inf"...)
	case math.IsInf(v, -1):
		return append(b, "-Inf"...)
	case math.IsNaN(v):
		return append(b, "NaN"...)
	}
	start := len(b)
	b = appendRepr(b, v)
	digits := b[start:]
	dot := bytes.IndexByte(digits, '.')
	if v <= 0 || dot <= 6 || bytes.IndexByte(digits, 'e') >= 0 {
		return b
	}
	mantissa := strings.TrimRight(string(digits[:1])+"."+string(digits[1:dot])+string(digits[dot+1:]), "0.")
	b = append(b[:start], mantissa...)
	b = append(b, "e+"...)
	if dot-1 < 10 {
		b = append(b, '0')
	}
	return strconv.AppendInt(b, int64(dot-1), 10)
}

// appendRepr appends a finite float as Python's repr does: the shortest digits
// that read back, an exponent below 1e-4 and from 1e16 on, and always a point.
func appendRepr(b []byte, v float64) []byte {
	if a := math.Abs(v); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(b, v, 'e', -1, 64)
	}
	start := len(b)
	b = strconv.AppendFloat(b, v, 'f', -1, 64)
	if bytes.IndexByte(b[start:], '.') < 0 {
		b = append(b, ".0"...)
	}
	return b
}

// histogram counts observations in buckets whose upper bounds are inclusive.
type histogram struct {
	bounds []float64
	// counts has one more element than bounds; not cumulative.
	counts []uint64
	sum    float64
}

func newHistogram(bounds []float64) *histogram {
	return &histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	h.counts[sort.SearchFloat64s(h.bounds, v)]++
	h.sum += v
}

// boundTexts renders bounds and the last bucket as le label values.
func boundTexts(bounds []float64) []string {
	texts := make([]string, 0, len(bounds)+1)
	for _, bound := range bounds {
		texts = append(texts, string(appendPythonFloat(nil, bound)))
	}
	return append(texts, "+Inf")
}
