package simulator

import "strconv"

// Page is the text of /metrics, as vLLM 0.32 writes it: with one rank the
// page of a single process; with more the merged page of several processes,
// grouped by type and without python_*, process_* and _created series.
// sleepLevel is the engine's.
func (m *Metrics) Page(sleepLevel int) []byte {
	w := &pageWriter{metrics: m, merged: len(m.ranks) > 1}
	w.text = make([]byte, 0, 64<<10)
	if !w.merged {
		w.process()
	}
	// All samples are of one moment: what adds up in the engine adds up on the page.
	for _, r := range m.ranks {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sleepLevel = sleepLevel
	}
	if !w.merged {
		w.rankFamilies("")
		w.cacheConfig()
		w.http("")
		return w.text
	}
	w.http("summary")
	w.rankFamilies("gauge")
	w.cacheConfig()
	w.rankFamilies("counter")
	w.http("counter")
	w.rankFamilies("histogram")
	w.http("histogram")
	return w.text
}

type pageWriter struct {
	page
	metrics *Metrics
	merged  bool
}

// created writes the series with the start times of the samples before.
func (w *pageWriter) created(name, help string, labels []string, times []float64) {
	if w.merged || len(labels) == 0 {
		return
	}
	w.header(name+"_created", help, "gauge")
	for i, l := range labels {
		w.sample(name, "_created", l, times[i])
	}
}

// rankFamilies writes those of one kind, or all when kind is empty.
func (w *pageWriter) rankFamilies(kind string) {
	for i := range rankFamilies {
		f := &rankFamilies[i]
		if kind != "" && f.kind != kind || f.severalRanks && !w.merged {
			continue
		}
		if f.histogram != nil {
			w.rankHistogram(f)
		} else {
			w.rankValue(f)
		}
	}
}

func (w *pageWriter) rankValue(f *family) {
	m, suffix := w.metrics, ""
	if f.kind == "counter" {
		suffix = "_total"
	}
	w.header(f.name+suffix, f.help, f.kind)
	ranks := m.ranks
	if f.perServer {
		ranks = ranks[:1]
	}
	var labels []string
	var times []float64
	for i := range max(1, len(f.values)) {
		for rank, r := range ranks {
			text := m.labels(rank, f, i)
			w.sample(f.name, suffix, text, f.value(r, i))
			labels, times = append(labels, text), append(times, m.created)
		}
	}
	if f.kind == "counter" {
		w.created(f.name, f.help, labels, times)
	}
}

func (w *pageWriter) rankHistogram(f *family) {
	w.header(f.name, f.help, f.kind)
	var labels []string
	var times []float64
	for rank, r := range w.metrics.ranks {
		w.histogramSamples(f.name, f.histogram(r), w.metrics.engineLabels(rank)...)
		labels = append(labels, labelText(w.metrics.engineLabels(rank)...))
		times = append(times, w.metrics.created)
	}
	w.created(f.name, f.help, labels, times)
}

// histogramSamples writes the buckets with _count and _sum behind; in a merged
// page _sum stands before and _count behind.
func (w *pageWriter) histogramSamples(name string, h *histogram, labels ...label) {
	plain := labelText(labels...)
	if w.merged {
		w.sample(name, "_sum", plain, h.sum)
	}
	var total uint64
	for i, bound := range boundTexts(h.bounds) {
		total += h.counts[i]
		w.sample(name, "_bucket", labelText(append(labels[:len(labels):len(labels)], label{"le", bound})...), float64(total))
	}
	w.sample(name, "_count", plain, float64(total))
	if !w.merged {
		w.sample(name, "_sum", plain, h.sum)
	}
}

func (m *Metrics) engineLabels(rank int) []label {
	return []label{{"engine", strconv.Itoa(rank)}, {"model_name", m.cfg.ModelName}}
}

// labels is the label text of sample i of a family.
func (m *Metrics) labels(rank int, f *family, i int) string {
	labels := m.engineLabels(rank)
	if f.perServer {
		labels = labels[1:]
	}
	if f.label != "" {
		labels = append(labels, label{f.label, f.values[i]})
	}
	return labelText(labels...)
}

func (w *pageWriter) cacheConfig() {
	const name = "vllm:cache_config_info"
	w.header(name, "Information of the LLMEngine CacheConfig", "gauge")
	for rank := range w.metrics.ranks {
		w.sample(name, "", cacheConfigLabels(w.metrics.cfg, rank), 1)
	}
}

// http writes the families of the API server of one kind, or all when kind is
// empty. A merged page leaves out those that have no sample.
func (w *pageWriter) http(kind string) {
	h := &w.metrics.http
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.merged && len(h.requests) == 0 && kind != "histogram" {
		return
	}
	if kind == "" || kind == "counter" {
		w.httpRequests(h)
	}
	if kind == "" || kind == "summary" {
		w.httpSizes(h, "http_request_size_bytes", "Content length of incoming requests by handler. "+
			"Only value of header is respected. Otherwise ignored. No percentile calculated. ",
			func(s *httpSizes) float64 { return s.requestBytes })
		w.httpSizes(h, "http_response_size_bytes", "Content length of outgoing responses by handler. "+
			"Only value of header is respected. Otherwise ignored. No percentile calculated. ",
			func(s *httpSizes) float64 { return s.sentBytes })
	}
	if kind == "" || kind == "histogram" {
		w.httpLatencies(h)
	}
}

func (w *pageWriter) httpRequests(h *httpMetrics) {
	const name, help = "http_requests", "Total number of requests by method, status and handler."
	w.header(name+"_total", help, "counter")
	var labels []string
	var times []float64
	for _, r := range h.requests {
		text := labelText(label{"handler", r.handler}, label{"method", r.method}, label{"status", r.status})
		w.sample(name, "_total", text, r.count)
		labels, times = append(labels, text), append(times, r.created)
	}
	w.created(name, help, labels, times)
}

func (w *pageWriter) httpSizes(h *httpMetrics, name, help string, sum func(*httpSizes) float64) {
	w.header(name, help, "summary")
	var labels []string
	var times []float64
	for _, s := range h.sizes {
		text := labelText(label{"handler", s.handler})
		w.sample(name, "_count", text, s.count)
		w.sample(name, "_sum", text, sum(s))
		labels, times = append(labels, text), append(times, s.created)
	}
	w.created(name, help, labels, times)
}

func (w *pageWriter) httpLatencies(h *httpMetrics) {
	const all = "http_request_duration_highr_seconds"
	const allHelp = "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. "
	w.header(all, allHelp, "histogram")
	w.histogramSamples(all, h.all)
	w.created(all, allHelp, []string{""}, []float64{h.allCreated})

	const name = "http_request_duration_seconds"
	const help = "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. "
	if w.merged && len(h.latencies) == 0 {
		return
	}
	w.header(name, help, "histogram")
	var labels []string
	var times []float64
	for _, l := range h.latencies {
		pair := []label{{"handler", l.handler}, {"method", l.method}}
		w.histogramSamples(name, l.seconds, pair...)
		labels, times = append(labels, labelText(pair...)), append(times, l.created)
	}
	w.created(name, help, labels, times)
}
