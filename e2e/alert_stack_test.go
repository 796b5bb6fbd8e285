package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// compression is by how much the time of rules, alerts, scrapes and notifications
// is shortened: what takes 10 minutes takes one. Only times that somebody wrote
// down are changed, never an expression's terms or thresholds.
const compression = 10

var (
	// Ranges, offsets, and the settings that are times. Names of series and labels
	// such as window="5m" say what a time was before.
	writtenTime = regexp.MustCompile(`(\[|\boffset |\b(?:for|keep_firing_for|interval|\w+_interval|\w+_timeout|group_wait): )(\d+)([smhd])\b`)
	// Times that are numbers of seconds: constants, and what a clock is compared with.
	writtenSeconds = regexp.MustCompile(`(record: fleet:\S+:seconds\n\s+expr: vector\(|_age_seconds > )(\d+)`)
	belowSecond    = regexp.MustCompile(`\binterval: \d{1,3}ms`)
	unitSeconds    = map[string]int{"s": 1, "m": 60, "h": 3600, "d": 86400}
)

// compress divides every time in a rule file or a configuration by compression.
func compress(text string) string {
	text = writtenTime.ReplaceAllStringFunc(text, func(s string) string {
		m := writtenTime.FindStringSubmatch(s)
		n, _ := strconv.Atoi(m[2])
		return fmt.Sprintf("%s%dms", m[1], n*unitSeconds[m[3]]*1000/compression)
	})
	return writtenSeconds.ReplaceAllStringFunc(text, func(s string) string {
		m := writtenSeconds.FindStringSubmatch(s)
		n, _ := strconv.ParseFloat(m[2], 64)
		return fmt.Sprintf("%s%g", m[1], n/compression)
	})
}

func TestCompress(t *testing.T) {
	t.Parallel()
	for before, after := range map[string]string{
		"for: 5m":                                     "for: 30000ms",
		"    interval: 15s":                           "    interval: 1500ms",
		"rate(x[30m]) - y offset 1h":                  "rate(x[180000ms]) - y offset 360000ms",
		"repeat_interval: 12h":                        "repeat_interval: 4320000ms",
		"scrape_timeout: 5s":                          "scrape_timeout: 500ms",
		`pool:load:avg5m{window="5m"}`:                `pool:load:avg5m{window="5m"}`,
		"labels: {long: 1h, short: 5m}":               "labels: {long: 1h, short: 5m}",
		"headroom_exporter_snapshot_age_seconds > 30": "headroom_exporter_snapshot_age_seconds > 3",
		"- record: fleet:headroom_lead:seconds\n        expr: vector(900)":     "- record: fleet:headroom_lead:seconds\n        expr: vector(90)",
		"- record: fleet:headroom_reserve:ratio\n        expr: vector(0.25)":   "- record: fleet:headroom_reserve:ratio\n        expr: vector(0.25)",
		"rate(headroom_gpu_throttle_seconds_total[5m]) > 0.1 # for 10 minutes": "rate(headroom_gpu_throttle_seconds_total[30000ms]) > 0.1 # for 10 minutes",
	} {
		if got := compress(before); got != after {
			t.Errorf("compress(%q) is %q, want %q", before, got, after)
		}
	}
}

// curveRates are a capacity curve's rates, besides those whose names end with
// _per_second: they stand beside requests_per_second.
var curveRates = []string{"low", "high", "watermark", "cliff_from", "cliff_to"}

// compressCurve multiplies every rate in a capacity curve by compression: an
// engine that runs so much faster serves so much more. Times stay, for the
// engine's page tells them as they are on its own clock.
func compressCurve(v any, rate bool) any {
	switch v := v.(type) {
	case float64:
		if rate {
			return v * compression
		}
	case []any:
		for i := range v {
			v[i] = compressCurve(v[i], rate)
		}
	case map[string]any:
		_, rated := v["requests_per_second"]
		for key := range v {
			v[key] = compressCurve(v[key], strings.HasSuffix(key, "_per_second") || rated && slices.Contains(curveRates, key))
		}
	}
	return v
}

func TestCompressCurve(t *testing.T) {
	t.Parallel()
	var v any
	text := `{"studies": [{"knee": {"requests_per_second": 2, "low": 1, "confidence": 0.9}, "points": [{"ttft": {"mean": 3}, "gates": [{"low": 5}]}]}], "violation_curve": {"requests_per_second": [1, 2], "fraction": [0, 1]}}`
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(compressCurve(v, false))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"studies":[{"knee":{"confidence":0.9,"low":10,"requests_per_second":20},"points":[{"gates":[{"low":5}],"ttft":{"mean":3}}]}],"violation_curve":{"fraction":[0,1],"requests_per_second":[10,20]}}`
	if string(got) != want {
		t.Errorf("the curve is\n%s, want\n%s", got, want)
	}
}

// notice is an alert as it arrived at the webhook.
type notice struct {
	Status      string            `json:"status"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	receiver    string
	arrived     time.Time
}

func (n *notice) String() string {
	return fmt.Sprintf("%s %s %s of pool %s", n.receiver, n.Status, n.Labels["alertname"], n.Labels["pool"])
}

// alertStack is a Prometheus with the fleet rules and the alerts as they are
// shipped, an Alertmanager with the shipped routes, and who is woken.
type alertStack struct {
	t          *testing.T
	dir        string
	began      time.Time
	prometheus *prometheusServer

	mutex   sync.Mutex
	targets []string // of static_configs
	notices []*notice
}

// startAlerts starts it with nothing to scrape but Prometheus itself.
func startAlerts(t *testing.T) *alertStack {
	t.Helper()
	server, manager := tool(t, "prometheus"), tool(t, "alertmanager")
	s := &alertStack{t: t, dir: t.TempDir(), began: time.Now()}
	for _, args := range [][]string{{"export", "rules", "--fleet", s.dir}, {"export", "rules", s.dir}, {"export", "alerts", s.dir}} {
		if p, status := runToEnd(t, nil, args...); status != 0 {
			t.Fatalf("%v: status %d: %s", args, status, &p.stderr)
		}
	}
	for _, kind := range []string{"fleet", "sidecar", "alerts"} {
		files, err := filepath.Glob(filepath.Join(s.dir, kind, "*.yml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no rules of kind %s were exported (%v)", kind, err)
		}
		for _, path := range files {
			text := compress(s.read(path))
			if kind == "sidecar" {
				// The sidecar evaluates no group more often than that.
				text = belowSecond.ReplaceAllString(text, "interval: 1s")
			}
			s.write(path, text)
		}
	}

	hooks := httptest.NewServer(http.HandlerFunc(s.receive))
	t.Cleanup(hooks.Close)
	routes := s.read(filepath.Join("..", "deploy", "alertmanager", "alertmanager.yml"))
	routes = regexp.MustCompile(`http://(\w+)\.example:9000/\w+`).ReplaceAllString(compress(routes), hooks.URL+"/$1")
	s.write(filepath.Join(s.dir, "alertmanager.yml"), routes)
	managerAddress := freeAddress(t)
	m := startProgram(t, nil, manager, "--config.file="+filepath.Join(s.dir, "alertmanager.yml"), "--storage.path="+filepath.Join(s.dir, "am"),
		"--web.listen-address="+managerAddress, "--cluster.listen-address=", "--log.level=warn")
	m.answers("/-/ready", "http://"+managerAddress)

	address := freeAddress(t)
	s.configure(address, managerAddress)
	s.prometheus = &prometheusServer{url: "http://" + address}
	s.prometheus.process = startProgram(t, nil, server,
		"--config.file="+filepath.Join(s.dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(s.dir, "storage"),
		"--web.listen-address="+address, "--log.level=warn",
		// Prometheus' own times: 5 minutes and one.
		"--query.lookback-delta=30s", "--rules.alert.resend-delay=6s")
	s.prometheus.answers("/-/ready", s.prometheus.url)
	return s
}

func (s *alertStack) read(path string) string {
	s.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

func (s *alertStack) write(path, text string) {
	s.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

var kubernetesSD = regexp.MustCompile(`(?s)    kubernetes_sd_configs:\n.*?(    relabel_configs:)`)

// configure writes the shipped configuration, in which pods are not found by
// Kubernetes but named with the labels that it gives.
func (s *alertStack) configure(address, managerAddress string) {
	s.t.Helper()
	text := compress(s.read(filepath.Join("..", "deploy", "prometheus", "fleet.yml")))
	text = strings.NewReplacer("alertmanager:9093", managerAddress, "localhost:9090", address).Replace(text)
	if !kubernetesSD.MatchString(text) {
		s.t.Fatal("the shipped configuration discovers no pods")
	}
	s.write(filepath.Join(s.dir, "shipped.yml"), text)
	s.discover()
}

// discover writes the configuration with the pods that are known now.
func (s *alertStack) discover() {
	s.t.Helper()
	pods := "    static_configs: [" + strings.Join(s.targets, ", ") + "]\n"
	text := kubernetesSD.ReplaceAllLiteralString(s.read(filepath.Join(s.dir, "shipped.yml")), pods+"    relabel_configs:")
	s.write(filepath.Join(s.dir, "prometheus.yml"), text)
}

// scrape adds a pod of an engine and its sidecar.
func (s *alertStack) scrape(pool, pod, zone, engineURL, sidecarURL string) {
	s.t.Helper()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for port, u := range map[string]string{"http": engineURL, "headroom": sidecarURL} {
		s.targets = append(s.targets, fmt.Sprintf("{targets: [%q], labels: {__meta_kubernetes_namespace: prod, __meta_kubernetes_pod_name: %s, __meta_kubernetes_pod_phase: Running, "+
			"__meta_kubernetes_pod_container_name: %s, __meta_kubernetes_pod_container_port_name: %s, __meta_kubernetes_pod_label_app_kubernetes_io_name: %s, __meta_kubernetes_node_label_topology_kubernetes_io_zone: %s}}",
			strings.TrimPrefix(u, "http://"), pod, port, port, pool, zone))
	}
	s.discover()
	s.prometheus.signal(syscall.SIGHUP)
}

// receive is the webhook.
func (s *alertStack) receive(_ http.ResponseWriter, r *http.Request) {
	var message struct {
		Alerts []*notice `json:"alerts"`
	}
	if err := json.NewDecoder(bufio.NewReader(r.Body)).Decode(&message); err != nil {
		s.t.Errorf("a notification at %s: %v", r.URL.Path, err)
		return
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, n := range message.Alerts {
		n.receiver, n.arrived = strings.TrimPrefix(r.URL.Path, "/"), time.Now()
		s.notices = append(s.notices, n)
	}
}

// seen are the notices of a pool at a receiver, oldest first; with no names given of all alerts.
func (s *alertStack) seen(receiver, pool, status string, names ...string) (all []*notice) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, n := range s.notices {
		if n.receiver == receiver && n.Labels["pool"] == pool && n.Status == status && (len(names) == 0 || slices.Contains(names, n.Labels["alertname"])) {
			all = append(all, n)
		}
	}
	return all
}

// wait waits for one of the alerts at a receiver.
func (s *alertStack) wait(t *testing.T, receiver, pool, status string, names ...string) *notice {
	t.Helper()
	var all []*notice
	s.within(t, fmt.Sprintf("%s hears that %s of pool %s is %s", receiver, strings.Join(names, " or "), pool, status), func() error {
		if all = s.seen(receiver, pool, status, names...); len(all) == 0 {
			return errors.New("it did not")
		}
		return nil
	})
	return all[0]
}

// within waits until a check passes.
func (s *alertStack) within(t *testing.T, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(alertWait); ; time.Sleep(200 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.wrong(t, "%s: not within %v: %v", what, alertWait, err)
		}
	}
}

// wrong ends the test as failed, or as skipped where readings tell that the
// machine was too busy for compressed time: then nothing can be said.
func (s *alertStack) wrong(t *testing.T, format string, args ...any) {
	t.Helper()
	what := fmt.Sprintf(format, args...)
	if reading := s.busy(); reading != "" {
		t.Skipf("%s. It says nothing, because the machine was busy: %s", what, reading)
	}
	t.Fatal(what)
}

// busy says by what Prometheus reads of itself that the machine did not let
// programs run when they were due; empty when it did. Its own page, which takes
// milliseconds, came late or not at all in more than one of 20 seconds, or as
// many rule evaluations were left out.
func (s *alertStack) busy() string {
	now := time.Now()
	own, err1 := s.query(`scrape_duration_seconds{job="prometheus"}`, s.began, now)
	missed, err2 := s.query(`sum(prometheus_rule_group_iterations_missed_total)`, now, now)
	all, err3 := s.query(`sum(prometheus_rule_group_iterations_total)`, now, now)
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Sprintf("Prometheus does not answer in time: %v", err)
	}
	late := 0
	for _, p := range own {
		if p.value > 0.5 {
			late++
		}
	}
	switch {
	case late*20 > len(own):
		return fmt.Sprintf("in %d of %d seconds Prometheus had taken more than 0.5 s to read its own page", late, len(own))
	case len(missed) > 0 && len(all) > 0 && missed[0].value*20 > all[0].value:
		return fmt.Sprintf("%.0f of %.0f evaluations of rules were left out", missed[0].value, all[0].value)
	}
	return ""
}

// heard is everything that was said of a pool.
func (s *alertStack) heard(pool string) (all []string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, n := range s.notices {
		if n.Labels["pool"] == pool {
			all = append(all, n.arrived.Format("15:04:05 ")+n.String())
		}
	}
	return all
}

// alerts is what Prometheus says of the alerts of a pool.
func (s *alertStack) alerts(pool string) string {
	points, err := s.query(fmt.Sprintf("ALERTS{pool=%q}", pool), time.Now(), time.Now())
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, p := range points {
		all = append(all, p.labels["alertname"]+" "+p.labels["severity"]+" "+p.labels["alertstate"])
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// resolved waits until everything that woke somebody for a pool is over.
func (s *alertStack) resolved(t *testing.T, pool string) {
	t.Helper()
	for _, n := range s.seen("pager", pool, "firing") {
		s.wait(t, "pager", pool, "resolved", n.Labels["alertname"])
	}
}

// point is a sample of a series.
type point struct {
	labels map[string]string
	at     time.Time
	value  float64
}

// ask waits until an expression has samples since a time, and returns them.
// Without a time it is asked of now.
func (s *alertStack) ask(t *testing.T, what, expr string, since time.Time) (all []point) {
	t.Helper()
	s.within(t, what, func() error {
		now, from := time.Now(), since
		if from.IsZero() {
			from = now
		}
		var err error
		if all, err = s.query(expr, from, now); err == nil && len(all) == 0 {
			err = fmt.Errorf("%s has no sample", expr)
		}
		return err
	})
	return all
}

// history returns every sample of an expression from a time until now.
func (s *alertStack) history(t *testing.T, expr string, from time.Time) (all []point) {
	t.Helper()
	now := time.Now()
	s.within(t, "Prometheus tells "+expr, func() (err error) {
		all, err = s.query(expr, from, now)
		return err
	})
	return all
}

// query returns every sample of an expression, step by step of a second.
func (s *alertStack) query(expr string, from, to time.Time) ([]point, error) {
	q := url.Values{"query": {expr}, "start": {fmt.Sprint(from.Unix())}, "end": {fmt.Sprint(to.Unix())}, "step": {"1"}}
	body, err := get(s.prometheus.url + "/api/v1/query_range?" + q.Encode())
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("decoding the answer to %s: %w", expr, err)
	}
	var all []point
	for _, r := range answer.Data.Result {
		for _, v := range r.Values {
			at, _ := v[0].(float64)
			text, _ := v[1].(string)
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, fmt.Errorf("a value of %s: %w", expr, err)
			}
			all = append(all, point{r.Metric, time.Unix(0, int64(at*1e9)), value})
		}
	}
	slices.SortStableFunc(all, func(a, b point) int { return a.at.Compare(b.at) })
	return all, nil
}

// curve writes a capacity curve, measured now, for engines on compressed time,
// and returns the flags of their sidecars. A sidecar takes the tokens of a step
// as their rate, which is compressed, times a step's time, which is not: so it is
// told a budget that is compressed too.
func (s *alertStack) curve(t *testing.T, path string) (flags []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	compressCurve(v, false)
	now := time.Now().UTC().Format(time.RFC3339)
	v["started"], v["finished"] = now, now
	identity, _ := v["identity"].(map[string]any)
	budget, _ := identity["max_num_batched_tokens"].(float64)
	if text, err = json.Marshal(v); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "curve.json")
	s.write(path, string(text))
	return []string{"--curve.file=" + path, fmt.Sprintf("--engine.max-num-batched-tokens=%g", budget*compression), fmt.Sprintf("--identity=max_num_batched_tokens=%g", budget)}
}

// record is a request of a trace: its time in simulated seconds and its lengths in tokens.
type record struct {
	at             float64
	prompt, output int
}

// writeTrace writes requests in the form of the Azure traces.
func writeTrace(t *testing.T, records []record) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\r\n")
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, r := range records {
		fmt.Fprintf(&text, "%s,%d,%d\r\n", epoch.Add(time.Duration(r.at*1e9)).Format("2006-01-02 15:04:05.0000000"), r.prompt, r.output)
	}
	path := filepath.Join(t.TempDir(), "trace.csv")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return "trace:azure:" + path
}

// arrivals are Poisson arrivals of a rate over simulated time, with lognormal
// lengths of about 512 and 256 tokens.
func arrivals(seed uint64, until, most float64, rate func(t float64) float64) (all []record) {
	rng := rand.New(rand.NewPCG(seed, 0))
	length := func(mean float64) int {
		// The deviation is half the mean.
		v := math.Log(1.25)
		return max(1, int(mean*math.Exp(math.Sqrt(v)*rng.NormFloat64()-v/2)))
	}
	for at := 0.0; ; {
		at += rng.ExpFloat64() / most
		if at > until {
			return all
		}
		if rng.Float64()*most < rate(at) {
			all = append(all, record{at, length(512), length(256)})
		}
	}
}
