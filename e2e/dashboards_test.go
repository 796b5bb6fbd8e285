package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// dashboardPanel is what these tests read of a panel.
type dashboardPanel struct {
	Title   string `json:"title"`
	Type    string `json:"type"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

// dashboardNames are the dashboards, as they lie in dashboards/.
var dashboardNames = []string{"replica", "fleet", "probe", "gpu"}

// readDashboards returns the panels of each dashboard that are no rows.
func readDashboards(t *testing.T) map[string][]dashboardPanel {
	t.Helper()
	all := map[string][]dashboardPanel{}
	for _, name := range dashboardNames {
		text, err := os.ReadFile(filepath.Join("..", "dashboards", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var b struct{ Panels []dashboardPanel }
		if err := json.Unmarshal(text, &b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[name] = slices.DeleteFunc(b.Panels, func(p dashboardPanel) bool { return p.Type == "row" })
	}
	return all
}

// rateInterval is what Grafana makes of a scrape interval of three seconds.
const rateInterval = "15s"

// choose replaces the variables of a query.
func choose(expr, namespace, pool, pod string) string {
	return strings.NewReplacer("$__rate_interval", rateInterval, "$namespace", namespace, "$pool", pool, "$pod", pod).Replace(expr)
}

// emptyWhenHealthy are series that queries select and that a healthy replica
// does not have, with the reason. What breaks in the test makes each of them.
var emptyWhenHealthy = map[string]string{
	"headroom_curve_invalid_reason":                    "the curve counts",
	"headroom_curve_stale_reason":                      "the curve is of yesterday",
	"headroom_exporter_engine_poll_failures_total":     "every poll gave a reading",
	"headroom_exporter_rule_evaluation_failures_total": "no rule failed",
	"headroom_gpu_capacity_lost":                       "no capacity is lost",
	"headroom_gpu_xid_last_timestamp_seconds":          "there was no XID",
	"headroom_gpu_collect_errors_total":                "no driver call failed",
	"headroom_gpu_samples_rejected_total":              "every reading was believed",
	"replica:headroom_rank_skew:ratio":                 "the replica has one rank",
}

// prometheusServer is a real Prometheus.
type prometheusServer struct {
	*process
	url string
}

// ask returns how many series an expression has now.
func (p *prometheusServer) ask(expr string) (int, error) {
	body, err := get(p.url + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return 0, err
	}
	var answer struct {
		Data struct {
			Result []json.RawMessage `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, fmt.Errorf("decoding the answer to %s: %w", expr, err)
	}
	return len(answer.Data.Result), nil
}

// fleet is three replicas with engines, a probe, and what scrapes them.
type fleet struct {
	t          *testing.T
	dir        string
	model      string
	gpus       *fakeGPUs
	engines    []*simulator
	addresses  []string   // of the sidecars
	scraped    []*process // what Prometheus scrapes
	probe      string     // address of its metrics
	prometheus *prometheusServer
}

// startFleet starts replica 0, which is healthy, 1, which has two ranks and an
// old curve, and 2, whose rules fail.
func startFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir()}
	server, promtool := tool(t, "prometheus"), tool(t, "promtool")
	for i, args := range [][]string{
		{"--load=constant:8", "--seed=1"}, {"--load=constant:12", "--ranks=2", "--seed=2"}, {"--load=constant:4", "--seed=3"},
	} {
		f.engines = append(f.engines, simulate(t, append(args, "--enable-mfu-metrics")...))
		if i == 0 {
			f.model = modelName(t, f.engines[0].url)
		}
	}
	lengths := f.lengths()

	f.gpus = newFakeGPUs(t, nil)
	broken := filepath.Join(f.dir, "broken.yml")
	f.write(broken, `groups: [{name: broken, interval: 1s, rules: [{record: broken, expr: "headroom_load_ratio * on (engine) headroom_load_ratio"}]}]`)
	slo := []string{"--slo.e2e=10s"}
	for _, s := range []*sidecar{
		f.gpus.serve(f.engines[0].url, append(slo, "--curve.file="+f.curve("fresh.json", 24*time.Hour, lengths))...),
		serve(t, f.engines[1].url, append(slo, "--gpu.nvml=off", "--curve.file="+f.curve("old.json", 60*24*time.Hour, lengths))...),
		serve(t, f.engines[2].url, append(slo, "--gpu.nvml=off", "--rules.file="+broken)...),
	} {
		f.addresses = append(f.addresses, s.url)
		f.scraped = append(f.scraped, s.process)
	}
	f.startProbe()
	f.startPrometheus(server, promtool)
	return f
}

func (f *fleet) write(path, text string) {
	f.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// lengths are the histograms of a few hundred requests, without sums: counts
// per bucket, and the mean.
type lengths struct {
	counts map[string][]float64
	mean   map[string]float64
}

// lengths waits for them at the first engine.
func (f *fleet) lengths() lengths {
	f.t.Helper()
	l := lengths{map[string][]float64{}, map[string]float64{}}
	eventually(f.t, time.Minute, "200 finished requests", func() error {
		page, err := getMetrics(f.engines[0].url)
		if err != nil {
			return err
		}
		for kind, name := range map[string]string{"prompt": "vllm:request_prompt_tokens", "generation": "vllm:request_generation_tokens"} {
			family := page[name]
			if family == nil {
				return fmt.Errorf("there is no %s", name)
			}
			h := family.GetMetric()[0].GetHistogram()
			if h.GetSampleCount() < 200 {
				return fmt.Errorf("%d requests", h.GetSampleCount())
			}
			var counts []float64
			before := uint64(0)
			for _, b := range h.GetBucket() {
				counts = append(counts, float64(b.GetCumulativeCount()-before)/float64(h.GetSampleCount()))
				before = b.GetCumulativeCount()
			}
			l.counts[kind], l.mean[kind] = counts, h.GetSampleSum()/float64(h.GetSampleCount())
		}
		return nil
	})
	return l
}

// curve writes a capacity curve of an age for the simulated model: the example,
// whose class chat has the lengths of the live traffic.
func (f *fleet) curve(name string, age time.Duration, l lengths) string {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "capacity", "curve", "testdata", "example.json"))
	if err != nil {
		f.t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(text, &c); err != nil {
		f.t.Fatal(err)
	}
	identity := map[string]any{"model": f.model}
	canonical, err := json.Marshal(identity)
	if err != nil {
		f.t.Fatal(err)
	}
	id := sha256.Sum256(canonical)
	finished := time.Now().Add(-age).UTC()
	c["identity"], c["id"] = identity, hex.EncodeToString(id[:])
	c["started"], c["finished"] = finished.Add(-2*time.Hour).Format(time.RFC3339), finished.Format(time.RFC3339)
	chat := c["classes"].([]any)[0].(map[string]any)
	for _, kind := range []string{"prompt", "generation"} {
		h := chat[kind+"_histogram"].(map[string]any)
		counts := make([]float64, len(h["counts"].([]any)))
		// The engine's last bucket is without a bound, and empty; the curve has more bounds.
		copy(counts, l.counts[kind][:len(l.counts[kind])-1])
		h["counts"], chat[kind+"_tokens_mean"] = counts, l.mean[kind]
	}
	written, err := json.Marshal(c)
	if err != nil {
		f.t.Fatal(err)
	}
	path := filepath.Join(f.dir, name)
	f.write(path, string(written))
	return path
}

// startProbe lets the probe put load on an engine of its own for as long as the test may take.
func (f *fleet) startProbe() {
	f.t.Helper()
	engine := simulate(f.t, "--load=off", "--seed=4")
	f.probe = freeAddress(f.t)
	p := start(f.t, nil, "probe", "--engine.url="+engine.url, "--web.listen-address="+f.probe,
		"--class=short:prompt=64,output=16", "--class=long:prompt=512,output=64", "--rate=5", "--warmup=1s", "--duration=10m", "--seed=1", "--slo=ttft:p99:1ms")
	f.scraped = append(f.scraped, p, engine.process)
}

var ruleInterval = regexp.MustCompile(`(?m)^( *interval:) \S+$`)

// startPrometheus starts a server with the fleet's rules that scrapes
// everything, and that remembers what takes half an hour to come about.
func (f *fleet) startPrometheus(program, promtool string) {
	f.t.Helper()
	rules, err := filepath.Glob(filepath.Join("..", "rules", "fleet", "*.yml"))
	if err != nil || len(rules) == 0 {
		f.t.Fatalf("there are no fleet rules: %v", err)
	}
	for _, path := range rules {
		text, err := os.ReadFile(path)
		if err != nil {
			f.t.Fatal(err)
		}
		// Minutes are seconds here.
		f.write(filepath.Join(f.dir, "fleet-"+filepath.Base(path)), ruleInterval.ReplaceAllString(string(text), "$1 3s"))
	}
	var config strings.Builder
	config.WriteString("global: {scrape_interval: 3s, scrape_timeout: 3s, evaluation_interval: 3s}\nrule_files: [\"fleet-*.yml\"]\nscrape_configs:\n")
	job := func(name string, targets ...string) {
		fmt.Fprintf(&config, "- job_name: %s\n  static_configs:\n", name)
		for _, t := range targets {
			fmt.Fprintf(&config, "  - %s\n", t)
		}
	}
	target := func(i int, labels string) string {
		return fmt.Sprintf("{targets: [%q], labels: {namespace: prod, pod: chat-%d, %s}}", strings.TrimPrefix(f.addresses[i], "http://"), i, labels)
	}
	job("headroom", target(0, "pool: chat, zone: a"), target(1, "pool: chat, zone: b"), target(2, "pool: chat, zone: b"))
	// The same two once more, as a service that splits prefill and decode.
	job("split", target(0, "pool: split, role: prefill"), target(1, "pool: split, role: decode"))
	job("probe", fmt.Sprintf("{targets: [%q], labels: {namespace: prod, pod: probe}}", f.probe))
	f.write(filepath.Join(f.dir, "prometheus.yml"), config.String())

	storage := filepath.Join(f.dir, "storage")
	f.remember(promtool, storage)
	address := freeAddress(f.t)
	f.prometheus = &prometheusServer{url: "http://" + address}
	f.prometheus.process = startProgram(f.t, nil, program,
		"--config.file="+filepath.Join(f.dir, "prometheus.yml"), "--storage.tsdb.path="+storage,
		"--web.listen-address="+address, "--query.lookback-delta=10m", "--log.level=warn")
	f.prometheus.answers("/-/ready", f.prometheus.url)
}

// remember puts 40 minutes of history into the storage: of the sidecar what it
// knows after that time only, of the pool the load from which the rules see
// where it is going.
func (f *fleet) remember(promtool, storage string) {
	f.t.Helper()
	rank := fmt.Sprintf(`namespace="prod",pool="chat",pod="chat-0",zone="a",job="headroom",instance=%q,model_name=%q,engine="0"`,
		strings.TrimPrefix(f.addresses[0], "http://"), f.model)
	series := map[string]func(progress float64) float64{
		`pool:headroom_load:avg{namespace="prod",pool="chat"}`:                func(p float64) float64 { return 0.05 + 0.05*p },
		`pool:headroom_replica_equivalents:sum{namespace="prod",pool="chat"}`: func(p float64) float64 { return 0.15 + 0.15*p },
		`headroom_forecast_load_ratio{` + rank + `,horizon="15m"}`:            func(p float64) float64 { return 0.3 + 0.2*p },
		`headroom_forecast_load_ratio{` + rank + `,horizon="30m"}`:            func(p float64) float64 { return 0.3 + 0.3*p },
		`headroom_forecast_skill_ratio{` + rank + `,horizon="15m"}`:           func(p float64) float64 { return 0.2 },
		`headroom_forecast_skill_ratio{` + rank + `,horizon="30m"}`:           func(p float64) float64 { return 0.1 },
		`headroom_forecast_time_to_knee_seconds{` + rank + `}`:                func(p float64) float64 { return 1800 - 600*p },
		`headroom_burn_ratio{` + rank + `,window="10m"}`:                      func(p float64) float64 { return 0.3 * p },
		`headroom_burn_ratio{` + rank + `,window="30m"}`:                      func(p float64) float64 { return 0.2 * p },
	}
	const steps, step = 160, 15
	now := time.Now().Unix()
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(series)) {
		for i := range steps {
			fmt.Fprintf(&text, "%s %g %d\n", name, series[name](float64(i)/(steps-1)), now-int64((steps-1-i)*step))
		}
	}
	text.WriteString("# EOF\n")
	history := filepath.Join(f.dir, "history")
	f.write(history, text.String())
	if out, err := exec.Command(promtool, "tsdb", "create-blocks-from", "openmetrics", history, storage).CombinedOutput(); err != nil {
		f.t.Fatalf("writing the history: %v: %s", err, out)
	}
}

// harm makes what a healthy replica does not show.
func (f *fleet) harm() {
	f.t.Helper()
	f.engines[2].kill()
	f.gpus.say("0 event 1 8 79", "0 field.230 2", "0 clocks_event_reasons 204", "0 field.270 2500000000",
		"0 result.nvmlDeviceGetPowerUsage 999", "0 gpm.10 140", "0 energy_millijoules 123464789012")
	// A driver call and a reading fail for a while; the rest stays.
	eventually(f.t, startLimit, "failures of the GPU are counted", func() error {
		page, err := getMetrics(f.addresses[0])
		if err != nil {
			return err
		}
		for _, name := range []string{"headroom_gpu_collect_errors_total", "headroom_gpu_samples_rejected_total"} {
			if page[name] == nil {
				return fmt.Errorf("there is no %s", name)
			}
		}
		return nil
	})
	f.gpus.say("0 result.nvmlDeviceGetPowerUsage 0", "0 gpm.10 71.5")
}

// dashboardQuery is a query and where it stands.
type dashboardQuery struct{ board, panel, expr string }

func queriesOf(boards map[string][]dashboardPanel) (all []dashboardQuery) {
	for _, name := range dashboardNames {
		for _, p := range boards[name] {
			for _, q := range p.Targets {
				all = append(all, dashboardQuery{name, p.Title, q.Expr})
			}
		}
	}
	return all
}

func (q dashboardQuery) String() string {
	return fmt.Sprintf("%s: panel %q: %s", q.board, q.panel, q.expr)
}

// answered waits until each of the queries has had series of the replicas that
// are chosen.
func (f *fleet) answered(limit time.Duration, what string, queries []dashboardQuery, pool func(dashboardQuery) string, pod string) {
	f.t.Helper()
	silent := slices.Clone(queries)
	eventually(f.t, limit, what, func() error {
		var err error
		silent = slices.DeleteFunc(silent, func(q dashboardQuery) bool {
			n, asked := f.prometheus.ask(choose(q.expr, "prod", pool(q), pod))
			if asked != nil {
				err = fmt.Errorf("%s: %w", q, asked)
			}
			return n > 0
		})
		if err == nil && len(silent) > 0 {
			err = fmt.Errorf("%d of %d queries have no series: %v", len(silent), len(queries), silent)
		}
		return err
	})
}

// ofTrouble tells whether a query is empty for a healthy replica, rightly so.
func (q dashboardQuery) ofTrouble() bool {
	for series := range emptyWhenHealthy {
		if strings.Contains(q.expr, series+"{") {
			return true
		}
	}
	return false
}

// Every query of every dashboard has series: of a healthy replica but for those
// that say what is wrong, and those too when something is. The dashboards are
// then drawn with Grafana's own components, every panel with data.
func TestDashboards(t *testing.T) {
	t.Parallel()
	boards := readDashboards(t)
	f := startFleet(t)

	all := queriesOf(boards)
	healthy := slices.DeleteFunc(slices.Clone(all), dashboardQuery.ofTrouble)
	f.answered(3*time.Minute, "a healthy replica", healthy, func(dashboardQuery) string { return "chat|split" }, "chat-0|probe")
	f.harm()
	f.answered(2*time.Minute, "replicas that something is wrong with", all, func(q dashboardQuery) string { return drawnPool(q.board) }, ".*")
	t.Logf("%d dashboards, %d panels, %d queries; %d of them have no series of a healthy replica", len(boards), panelsOf(boards), len(all), len(all)-len(healthy))
	f.rulesAreHealthy()
	f.draw(boards)
}

func panelsOf(boards map[string][]dashboardPanel) (n int) {
	for _, panels := range boards {
		n += len(panels)
	}
	return n
}

// rulesAreHealthy tells that the fleet's rules work on real series.
func (f *fleet) rulesAreHealthy() {
	f.t.Helper()
	var answer struct {
		Data struct {
			Groups []struct {
				Name  string
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	if err := json.Unmarshal(mustGet(f.t, f.prometheus.url+"/api/v1/rules"), &answer); err != nil {
		f.t.Fatal(err)
	}
	rules := 0
	for _, g := range answer.Data.Groups {
		for _, r := range g.Rules {
			rules++
			if r.Health == "err" {
				f.t.Errorf("rule %s in group %s: %s", r.Name, g.Name, r.LastError)
			}
		}
	}
	if rules == 0 {
		f.t.Error("the server has no rules")
	}
}

// drawnState is what the page that draws a dashboard says of it.
type drawnState struct {
	Wanted int                 `json:"wanted"`
	Drawn  []string            `json:"drawn"`
	Empty  map[string][]string `json:"empty"`
	Errors []string            `json:"errors"`
}

// drawnPool chooses the pools that a dashboard is drawn with: without the second
// one, whose replicas are those of the first, but for the fleet.
func drawnPool(board string) string {
	if board == "fleet" {
		return ".*"
	}
	return "chat"
}

// draw draws every dashboard, and keeps the pictures among the artifacts.
func (f *fleet) draw(boards map[string][]dashboardPanel) {
	t := f.t
	t.Helper()
	site := f.site()
	// A moment after the last answer, so that a panel that ends then has it too.
	now := time.Now().Unix() + 2
	time.Sleep(time.Until(time.Unix(now, 0)))
	// What has been scraped is enough; drawing has the machine for itself.
	for _, p := range f.scraped {
		p.kill()
	}
	for _, e := range f.engines {
		e.kill()
	}
	p := openPage(t, site+"/public/")
	for _, name := range dashboardNames {
		query := url.Values{
			"board": {name}, "namespace": {".*"}, "pool": {drawnPool(name)}, "pod": {".*"}, "rate_interval": {rateInterval},
			"from": {strconv.FormatInt(now-90, 10)}, "to": {strconv.FormatInt(now, 10)}, "step": {"2"},
		}
		run(p, chromedp.Navigate(site+"/?"+query.Encode()))
		var state drawnState
		eventually(t, time.Minute, "the dashboard "+name+" is drawn", func() error {
			state = drawnState{}
			text := run(p, chromedp.Evaluate[string]("JSON.stringify(window.dashboard ?? {wanted: -1})"))
			if err := json.Unmarshal([]byte(text), &state); err != nil {
				return err
			}
			if state.Wanted != len(boards[name]) || len(state.Drawn) < state.Wanted {
				return fmt.Errorf("%d of %d panels are drawn, want %d; errors: %q", len(state.Drawn), state.Wanted, len(boards[name]), state.Errors)
			}
			return nil
		})
		for _, e := range state.Errors {
			t.Errorf("%s: %s", name, e)
		}
		for _, title := range slices.Sorted(maps.Keys(state.Empty)) {
			t.Errorf("%s: panel %q is drawn without %q", name, title, state.Empty[title])
		}
		picture, err := paletted(run(p, chromedp.FullScreenshot(100)))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(t.ArtifactDir(), "dashboard-"+name+".png"), picture, 0o644); err != nil {
			t.Errorf("keeping the picture: %v", err)
		}
	}
}

// site serves the page that draws, the dashboards, and Prometheus' API.
func (f *fleet) site() string {
	f.t.Helper()
	dist := filepath.Join("dashboards", "dist")
	if _, err := os.Stat(filepath.Join(dist, "index.html")); err != nil {
		missing(f.t, "the dashboards are not drawn: make e2e/dashboards/dist/index.html builds what draws them, with npm: "+err.Error())
	}
	api, err := url.Parse(f.prometheus.url)
	if err != nil {
		f.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(dist)))
	mux.Handle("/dashboards/", http.StripPrefix("/dashboards/", http.FileServer(http.Dir(filepath.Join("..", "dashboards")))))
	// Icons that only a Grafana server has.
	mux.HandleFunc("/public/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "image/svg+xml")
		io.WriteString(w, `<svg xmlns="http://www.w3.org/2000/svg"/>`)
	})
	mux.Handle("/api/", httputil.NewSingleHostReverseProxy(api))
	server := httptest.NewServer(mux)
	f.t.Cleanup(server.Close)
	return server.URL
}
