package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// vllmVersion is the release whose API and metrics are reproduced.
const vllmVersion = "0.32.0"

// maxBody is the largest request body in bytes that is read.
const maxBody = 64 << 20

// api is the server side of an engine.
type api struct {
	engine  *Engine
	metrics *Metrics
	cfg     Config
	// requests numbers the requests; identities and texts without a seed derive from it.
	requests    atomic.Uint64
	routes      map[string]route
	fingerprint string
	// modelJSON and fingerprintMember are parts of every chunk.
	modelJSON, fingerprintMember []byte
}

// route is one path: its methods, and whether the http_* metrics leave it out.
type route struct {
	methods  map[string]http.HandlerFunc
	excluded bool
}

// NewHandler serves vLLM 0.32's HTTP API and metrics page for an engine whose
// observers are those of the metrics. A request runs until it is answered or
// its context ends, which aborts it in the engine: give the server a
// BaseContext that ends when the engine does.
//
// The text is printable characters drawn from the seed. Not simulated are
// echo, logprobs and stop strings, which are ignored, and an n above 1, which is refused.
func NewHandler(e *Engine, m *Metrics) http.Handler {
	a := &api{engine: e, metrics: m, cfg: e.Config()}
	a.fingerprint = fingerprint(a.cfg)
	a.fingerprintMember = append([]byte(`,"system_fingerprint":`), jsonString(a.fingerprint)...)
	a.modelJSON = jsonString(a.cfg.ModelName)
	get := func(h http.HandlerFunc) map[string]http.HandlerFunc { return map[string]http.HandlerFunc{"GET": h} }
	post := func(h http.HandlerFunc) map[string]http.HandlerFunc { return map[string]http.HandlerFunc{"POST": h} }
	a.routes = map[string]route{
		"/metrics":             {methods: map[string]http.HandlerFunc{"": a.page}, excluded: true},
		"/metrics/":            {methods: map[string]http.HandlerFunc{"": a.mountedPage}, excluded: true},
		"/health":              {methods: get(empty), excluded: true},
		"/ping":                {methods: map[string]http.HandlerFunc{"GET": empty, "POST": empty}, excluded: true},
		"/load":                {methods: get(a.load), excluded: true},
		"/version":             {methods: get(a.version), excluded: true},
		"/server_info":         {methods: get(a.serverInfo), excluded: true},
		"/v1/models":           {methods: get(a.models)},
		"/v1/completions":      {methods: post(a.completions)},
		"/v1/chat/completions": {methods: post(a.chatCompletions)},
		"/tokenize":            {methods: post(a.tokenize)},
		"/detokenize":          {methods: post(a.detokenize)},
		"/sleep":               {methods: post(a.sleep)},
		"/wake_up":             {methods: post(a.wakeUp)},
		"/is_sleeping":         {methods: get(a.isSleeping)},
	}
	return a
}

// fingerprint is vLLM's: the version, what is parallel, a hash of the configuration.
func fingerprint(cfg Config) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s %d %d %d %d %d", cfg.ModelName, cfg.Ranks, cfg.MaxNumSeqs, cfg.MaxNumBatchedTokens, cfg.MaxModelLen, cfg.BlockSize)
	parallel := ""
	if n := cfg.Hardware.TensorParallel; n > 1 {
		parallel += "-tp" + strconv.Itoa(n)
	}
	if cfg.Ranks > 1 {
		parallel += "-dp" + strconv.Itoa(cfg.Ranks)
	}
	return fmt.Sprintf("vllm-%s%s-%08x", vllmVersion, parallel, h.Sum32())
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := a.engine.Now()
	recorder := &statusRecorder{ResponseWriter: w, status: http.StatusOK}
	x := httpExchange{handler: "none", method: r.Method, requestBytes: max(0, r.ContentLength)}

	known, ok := a.routes[r.URL.Path]
	handle, allowed := known.methods[r.Method]
	if !allowed {
		handle, allowed = known.methods[""]
	}
	switch {
	case !ok:
		handle = detail(http.StatusNotFound, "Not Found")
	case !allowed:
		w.Header().Set("Allow", strings.Join(methods(known), ", "))
		handle = detail(http.StatusMethodNotAllowed, "Method Not Allowed")
	default:
		x.handler = r.URL.Path
	}
	handle(recorder, r)

	if known.excluded {
		return
	}
	x.status = recorder.status
	x.sentBytes, _ = strconv.ParseInt(recorder.Header().Get("Content-Length"), 10, 64)
	x.seconds = a.engine.Now() - began
	a.metrics.http.observe(x)
}

func methods(r route) []string {
	var names []string
	for name := range r.methods {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// statusRecorder remembers the status of an answer.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (s *statusRecorder) WriteHeader(status int) {
	s.status = status
	s.ResponseWriter.WriteHeader(status)
}

// Flush implements http.Flusher.
func (s *statusRecorder) Flush() {
	if f, ok := s.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// writeJSON sends an answer of one piece.
func writeJSON(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	body := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// writeError sends an error in OpenAI's shape.
func writeError(w http.ResponseWriter, e *apiError) {
	writeJSON(w, e.Code, struct {
		Error *apiError `json:"error"`
	}{e})
}

// detail answers in FastAPI's shape, as vLLM does where no route is found.
func detail(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, status, struct {
			Detail string `json:"detail"`
		}{text})
	}
}

// readBody reads a JSON body; a failure is answered.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(kind), "application/json") {
		writeError(w, &apiError{
			Message: "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
			Type:    "Bad Request", Code: http.StatusBadRequest,
		})
		return nil, false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		writeError(w, &apiError{
			Message: fmt.Sprintf("the request body is larger than %d bytes", maxBody),
			Type:    "Request Entity Too Large", Code: http.StatusRequestEntityTooLarge,
		})
		return nil, false
	case err != nil:
		writeError(w, badRequest("", "There was an error parsing the body"))
		return nil, false
	}
	return body, true
}

func (a *api) completions(w http.ResponseWriter, r *http.Request) {
	if body, ok := readBody(w, r); ok {
		g, failure := decodeCompletion(body, a.cfg)
		a.generate(w, r, g, failure, "cmpl-")
	}
}

func (a *api) chatCompletions(w http.ResponseWriter, r *http.Request) {
	if body, ok := readBody(w, r); ok {
		g, failure := decodeChat(body, a.cfg)
		a.generate(w, r, g, failure, "chatcmpl-")
	}
}

// generate runs a checked request through the engine.
func (a *api) generate(w http.ResponseWriter, r *http.Request, g *generationRequest, failure *apiError, prefix string) {
	if failure != nil {
		writeError(w, failure)
		return
	}
	number := scatter(a.cfg.Seed + a.requests.Add(1))
	id := fmt.Sprintf("%s%016x", prefix, number)
	seed := g.seed
	if !g.hasSeed {
		seed = number
	}
	created := time.Now().Unix()
	gen, err := startGeneration(a.engine, g, id, seed, g.stream)
	switch {
	case errors.Is(err, ErrStopped):
		writeError(w, &apiError{Message: err.Error(), Type: "InternalServerError", Code: http.StatusInternalServerError})
		return
	case err != nil:
		writeError(w, badRequest("", err.Error()))
		return
	}
	if g.stream {
		a.stream(r.Context(), w, g, gen, id, created)
		return
	}
	a.answer(r.Context(), w, g, gen, id, created)
}

// scatter spreads a counter over 64 bits.
func scatter(x uint64) uint64 {
	x *= 0x9E3779B97F4A7C15
	x = (x ^ x>>32) * 0xD6E8FEB86659FD93
	return x ^ x>>32
}
