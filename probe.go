package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/version"
	"golang.org/x/sync/errgroup"

	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
	"headroom_exporter/probe"
	"headroom_exporter/probe/nullserver"
)

// probeFlags are the flags of the probe command.
type probeFlags struct {
	engine  engine.Config
	client  probe.ClientConfig
	model   string
	usage   string
	load    loadFlags
	knee    kneeFlags
	gpuMode string
	gpus    []string

	connections int
	maxDuration time.Duration
	listen      string
	records     string
	summary     string
	results     string
	force       bool
	selfTest    bool
	nullServer  string
	output      string

	// Set by the user: what a search or a load would ignore is refused.
	reserveGiven, warmupGiven bool
}

// maxConnections bounds --connections: more than a client has ports to spare
// for one engine.
const maxConnections = 10000

func addProbe(app *kingpin.Application, log *logFlags) (*kingpin.CmdClause, command) {
	c := app.Command("probe", "Find how much load an engine takes under tail SLOs and write its capacity curve; or put one load on it and measure that: open loop at a rate, closed loop at a concurrency, or a trace.")
	f := &probeFlags{}
	addEngineFlags(c, &f.engine)
	c.Flag("engine.interval", "Time between two readings of the engine's metrics beside the load.").Default(probe.DefaultReadingInterval.String()).DurationVar(&f.engine.Interval)
	c.Flag("model", "Served model name; needed where the engine serves several.").StringVar(&f.model)
	c.Flag("usage", "Token counts to ask for: auto (what the engine has), final, continuous or off.").Default("auto").EnumVar(&f.usage, "auto", "final", "continuous", "off")
	f.load.add(c)
	f.knee.add(c)
	c.GetFlag("peak-reserve").IsSetByUser(&f.reserveGiven)
	c.GetFlag("warmup").IsSetByUser(&f.warmupGiven)
	c.Flag("request-timeout", "Time after which a request is given up, from when it was due.").Default("10m").DurationVar(&f.client.RequestTimeout)
	c.Flag("idle-timeout", "Time without an event after which a stream that has begun is given up.").Default("10s").DurationVar(&f.client.IdleTimeout)
	c.Flag("stall-after", "Silence over all streams that counts as a stall of the engine.").Default("5s").DurationVar(&f.client.StallAfter)
	count(c.Flag("connections", fmt.Sprintf("Connections to open before the load, up to %d.", maxConnections)).Default("32"), &f.connections)
	c.Flag("max-duration", "Time after which the whole run ends, whatever is left; 0 is never.").Default("0s").DurationVar(&f.maxDuration)
	c.Flag("gpu.nvml", "Read the GPUs beside the load: auto or off.").Default("auto").EnumVar(&f.gpuMode, "auto", "off")
	c.Flag("gpu.device", "GPU of the engine, by UUID or index; may be repeated.").StringsVar(&f.gpus)
	c.Flag("web.listen-address", "Address to serve the run's Prometheus series on while it runs; empty serves none.").StringVar(&f.listen)
	c.Flag("out.records", "File for one JSON object a request, written while the probe runs.").StringVar(&f.records)
	c.Flag("out.summary", "File for the summary as Markdown.").StringVar(&f.summary)
	c.Flag("out.results", "File for all results as JSON.").StringVar(&f.results)
	c.Flag("force", "Overwrite files that exist.").BoolVar(&f.force)
	c.Flag("self-test", "Measure this client on this machine against a server that does nothing, and exit.").BoolVar(&f.selfTest)
	c.Flag("self-test.server", "Address of a running null-server to use for the self-test instead of a child process.").Hidden().StringVar(&f.nullServer)
	c.Flag("output", "Format of what is printed at the end: text, markdown or json.").Short('o').Default("text").EnumVar(&f.output, "text", "markdown", "json")
	return c, func(ctx context.Context, out io.Writer) error {
		if os.Getenv("GOGC") == "" {
			// Thousands of streams beside an engine: memory is dearer than the CPU it saves.
			debug.SetGCPercent(50)
		}
		if f.selfTest {
			return selfTest(ctx, out, f.nullServer, f.output)
		}
		return f.run(ctx, log, out)
	}
}

// run puts the load on that the flags ask for and prints what it showed.
func (f *probeFlags) run(ctx context.Context, log *logFlags, out io.Writer) error {
	logger, err := log.logger()
	if err != nil {
		return err
	}
	if err := f.validate(); err != nil {
		return usageError{err}
	}
	if f.knee.resume && f.load.seed == 0 && f.knee.curve != "" {
		if f.load.seed, err = f.knee.earlierSeed(); err != nil {
			return usageError{err}
		}
	}
	load, err := f.load.resolve(f.knee.curve != "")
	if err != nil {
		return usageError{err}
	}
	if err := f.knee.validate(load); err != nil {
		return usageError{err}
	}
	switch {
	case !load.knee && f.reserveGiven:
		return usageError{onlyForSearch("--peak-reserve")}
	case f.knee.mixOnly && len(f.load.burstiness) > 0:
		return usageError{errors.New("--burstiness is of each class alone: leave it out with --mix-only")}
	case load.knee && f.warmupGiven:
		return usageError{errors.New("--warmup is for one load: the search of the knee chooses it; or give --rate, --concurrency or --trace.file")}
	}
	// With --resume the records of the run before are there, and go on.
	if err := outputsReady(f.force || f.knee.resume, f.records); err != nil {
		return usageError{err}
	}
	if err := outputsReady(f.force, f.summary, f.results, f.knee.report); err != nil {
		return usageError{err}
	}
	if err := f.knee.outputReady(f.force); err != nil {
		return usageError{err}
	}
	if f.knee.mixOnly && !f.knee.update {
		say("--mix-only searches no class alone: the curve will have the mix's knee and that of no class, and serve counts no load by it; with --update the mix is added to a curve that has them")
	}
	limit, cancel := withDuration(ctx, f.maxDuration)
	defer cancel()
	err = f.put(limit, load, logger, out)
	if err != nil && errors.Is(limit.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("--max-duration %s has passed: %w", f.maxDuration, asFailure(err))
	}
	return err
}

// put puts the load on, until the context ends at the latest.
func (f *probeFlags) put(ctx context.Context, load *load, logger *slog.Logger, out io.Writer) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c, err := f.connect(ctx, load, logger, stop)
	if err != nil {
		return err
	}
	defer c.close()
	if load.knee {
		return f.search(ctx, c, load, out)
	}
	return f.measure(ctx, c, load, out)
}

// validate checks the flags that are neither of the load nor of the search.
func (f *probeFlags) validate() error {
	if f.engine.Interval < engine.MinInterval {
		return fmt.Errorf("--engine.interval %s: must be at least %s", f.engine.Interval, engine.MinInterval)
	}
	if err := f.engine.Validate(); err != nil {
		return err
	}
	if f.connections > maxConnections {
		return fmt.Errorf("--connections %d: must be at most %d", f.connections, maxConnections)
	}
	outputs := []namedOutput{
		{"--out.records", f.records}, {"--out.summary", f.summary}, {"--out.results", f.results},
		{"--out.report", f.knee.report}, {"--out.curve", f.knee.curve},
	}
	if f.knee.curve != "" {
		outputs = append(outputs, namedOutput{"the .partial file of --out.curve", f.knee.partial()})
	}
	if err := outputsDistinct(outputs...); err != nil {
		return err
	}
	e := &f.engine
	return inputsKept([]string{
		f.load.classesFile, f.load.traceFile, e.BearerTokenFile, e.HeaderFile, e.TLS.CAFile, e.TLS.CertFile, e.TLS.KeyFile,
	}, outputs...)
}

// connection is an engine that is known and ready for load.
type connection struct {
	base    string
	facts   *probe.Facts
	client  *probe.Client
	runner  *probe.Runner
	started time.Time
	closers []func()
}

func (c *connection) close() {
	for _, f := range slices.Backward(c.closers) {
		f()
	}
}

// connect asks the engine what it takes and opens everything that the load
// needs. stop ends the run when its records can no longer be written.
func (f *probeFlags) connect(ctx context.Context, load *load, logger *slog.Logger, stop context.CancelCauseFunc) (_ *connection, err error) {
	c := &connection{started: time.Now()}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	api, err := f.engine.API()
	if err != nil {
		return nil, usageError{err}
	}
	c.base = api.Base
	f.client.BaseURL, f.client.Header, f.client.TLS = api.Base, api.Header, api.TLS
	c.facts, err = probe.Preflight(ctx, f.client, f.model, load.chat, load.completions)
	switch {
	case ctx.Err() != nil:
		return nil, errors.New("ended before the load")
	case err != nil:
		return nil, fmt.Errorf("before the load: %v", err) // not %w: a request's deadline is not the command's
	}
	if err := load.longest(c.facts.MaxModelLen); err != nil {
		return nil, usageError{err}
	}
	f.client.Model, f.client.Dialect = c.facts.Model, c.facts.Dialect
	switch f.usage {
	case "final":
		f.client.Dialect.Usage, f.client.Dialect.ContinuousUsage = true, false
	case "continuous":
		f.client.Dialect.Usage, f.client.Dialect.ContinuousUsage = true, true
	case "off":
		f.client.Dialect.Usage, f.client.Dialect.ContinuousUsage = false, false
	}
	c.client, err = probe.NewClient(f.client)
	if err != nil {
		return nil, usageError{err}
	}
	c.closers = append(c.closers, func() { c.client.Close() })
	c.runner = &probe.Runner{Client: c.client}
	closeReadings, err := f.readings(ctx, c.runner)
	if err != nil {
		return nil, usageError{err}
	}
	c.closers = append(c.closers, closeReadings)
	if f.records != "" {
		header := probe.RecordsHeader{
			Tool: toolName(), Started: c.started, Engine: api.Base, Model: c.facts.Model, Seed: load.seed,
			ContentSeed: load.content, Dialect: f.client.Dialect, Workload: load.words,
		}
		failed := func(err error) {
			logger.Error("the run ends: records cannot be written", "err", err)
			stop(err)
		}
		if f.knee.resume {
			c.runner.Records, err = probe.ContinueRecords(f.records, header, failed)
		} else {
			c.runner.Records, err = probe.CreateRecords(f.records, f.force, header, failed)
		}
		if err != nil {
			return nil, usageError{err}
		}
	}
	closeMetrics, err := f.serveMetrics(c.runner, logger)
	if err != nil {
		return nil, err
	}
	c.closers = append(c.closers, closeMetrics)
	if err := c.client.Open(ctx, f.connections); err != nil {
		if ctx.Err() != nil {
			return nil, errors.New("ended before the load")
		}
		logger.Debug("connections are opened by the load", "err", err)
	}
	return c, nil
}

// toolName is what results say they were made by.
func toolName() string { return strings.TrimSpace(name + " " + version.Version) }

// measure runs every point and prints what they showed.
func (f *probeFlags) measure(ctx context.Context, c *connection, load *load, out io.Writer) error {
	points, err := load.ready(c.facts)
	if err != nil {
		return usageError{err}
	}
	report := &probe.Report{
		Tool: toolName(), Started: c.started, Engine: c.base, Model: c.facts.Model,
		Seed: load.seed, ContentSeed: load.content, Dialect: f.client.Dialect, Workload: load.words,
	}
	err = f.points(ctx, c.runner, points, report)
	if c.runner.Records != nil {
		err = errors.Join(err, c.runner.Records.Close())
	}
	report.Notes = append(c.facts.Notes, load.notes...)
	for _, r := range report.Results {
		if r.Engine != nil && r.Engine.Version != "" {
			report.Version = r.Engine.Version
		}
	}
	if len(report.Results) > 0 {
		err = errors.Join(err, f.write(report, out))
	}
	if err != nil {
		return asFailure(err)
	}
	if !report.Usable() {
		return errors.New("the result must not be used, see the reasons above")
	}
	return nil
}

// asFailure is an error in one line that is a failure even where it comes from
// an ended context, which is no success here.
func asFailure(err error) error {
	text := errors.New(strings.ReplaceAll(oneLine(err), context.DeadlineExceeded.Error(), "the run was ended early"))
	var usage usageError
	var safety safetyError
	switch {
	case errors.As(err, &usage):
		return usageError{text}
	case errors.As(err, &safety):
		return safetyError{text}
	}
	return text
}

// points runs one point after the other until the context ends.
func (f *probeFlags) points(ctx context.Context, runner *probe.Runner, points []probe.Point, report *probe.Report) error {
	progress := newProgress(runner, len(points))
	for i, point := range points {
		if ctx.Err() != nil {
			return fmt.Errorf("ended before point %d of %d", i+1, len(points))
		}
		done := showProgress(ctx, progress, i+1)
		result, err := runner.Run(ctx, point)
		done()
		if err != nil {
			return err
		}
		report.Results = append(report.Results, result)
	}
	return nil
}

func newProgress(runner *probe.Runner, points int) *probe.Progress {
	p := &probe.Progress{Runner: runner, Out: os.Stderr, Points: points}
	p.Width, p.Redraw = terminalWidth(os.Stderr)
	return p
}

// showProgress shows a point's progress until the function it returns is called.
func showProgress(ctx context.Context, p *probe.Progress, number int) func() {
	shown, done := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error { p.Run(shown, number); return nil })
	return func() {
		done()
		_ = group.Wait()
	}
}

// write prints the report and writes the files that were asked for.
func (f *probeFlags) write(report *probe.Report, out io.Writer) error {
	show := map[string]func(io.Writer) error{
		"text": report.WriteText, "markdown": report.WriteMarkdown, "json": report.WriteJSON,
	}[f.output]
	err := show(out)
	for path, write := range map[string]func(io.Writer) error{f.summary: report.WriteMarkdown, f.results: report.WriteJSON} {
		if path != "" {
			err = errors.Join(err, writeOutput(path, f.force, write))
		}
	}
	return err
}

// pagePatience is how long a reading beside a load may take, with its margin.
const pagePatience = 2500 * time.Millisecond

// readings starts what is read beside the load. The function it returns ends it.
func (f *probeFlags) readings(ctx context.Context, runner *probe.Runner) (func(), error) {
	// What the result says of the engine is enough: no log beside the progress.
	quiet := slog.New(slog.DiscardHandler)
	config := f.engine
	// Under load a page takes longer than the time between two: how old the
	// newest one may become is judged by who reads them.
	config.Interval = max(config.Interval, pagePatience)
	poller, err := engine.New(config, quiet)
	if err != nil {
		return nil, err
	}
	runner.Readings = &probe.Readings{Poller: poller, Interval: f.engine.Interval}
	if f.gpuMode == "off" {
		return poller.Close, nil
	}
	gpus, err := gpu.New(gpu.Config{Mode: f.gpuMode, Devices: f.gpus, Interval: time.Second, Logger: quiet})
	if err != nil {
		poller.Close()
		return nil, err
	}
	runner.Readings.GPU = gpus
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = gpus.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
		poller.Close()
	}, nil
}

// serveMetrics serves the run's series until the function it returns is called.
func (f *probeFlags) serveMetrics(runner *probe.Runner, logger *slog.Logger) (func(), error) {
	if f.listen == "" {
		return func() {}, nil
	}
	registry := prometheus.NewRegistry()
	runner.Observer = probe.NewMetrics(runner, registry)
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return nil, usageError{fmt.Errorf("--web.listen-address: %w", err)}
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			logger.Error("serving metrics", "err", err)
		}
	}()
	return func() { server.Close() }, nil
}

// selfTest measures the client against a null server: one that runs already
// or, without an address, one in a process of its own.
func selfTest(ctx context.Context, out io.Writer, address, output string) error {
	ctx, cancel := context.WithCancel(ctx)
	if address == "" {
		child, at, err := startNullServer(ctx)
		if err != nil {
			cancel()
			return fmt.Errorf("self-test: %w", err)
		}
		defer child.Wait()
		address = at
	}
	defer cancel()
	report, err := probe.SelfTest(ctx, "http://"+address, 4*time.Second, func(what string) {
		fmt.Fprintln(os.Stderr, "self-test:", what)
	})
	if err != nil {
		return err
	}
	if output == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(report)
	}
	return report.WriteText(out)
}

// startNullServer starts this program as a null server, which ends with the context.
func startNullServer(ctx context.Context) (child *exec.Cmd, address string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", fmt.Errorf("finding this program: %w", err)
	}
	child = exec.CommandContext(ctx, self, "null-server")
	child.Stderr = os.Stderr
	child.WaitDelay = time.Second
	said, err := child.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := child.Start(); err != nil {
		return nil, "", fmt.Errorf("starting the null server: %w", err)
	}
	if _, err := fmt.Fscanln(said, &address); err != nil {
		_ = child.Process.Kill()
		_ = child.Wait()
		return nil, "", fmt.Errorf("the null server says no address: %w", err)
	}
	return child, address, nil
}

// addNullServer adds the server of the self-test, which people need not see.
func addNullServer(app *kingpin.Application, _ *logFlags) (*kingpin.CmdClause, command) {
	c := app.Command("null-server", "Answer completions at programmed times, for measuring clients.").Hidden()
	var address string
	var config nullserver.Config
	c.Flag("listen-address", "Address to listen on; a free port of the loopback interface by default.").Default("127.0.0.1:0").StringVar(&address)
	c.Flag("ttft", "Time to first token.").DurationVar(&config.TTFT)
	c.Flag("itl", "Time from token to token.").DurationVar(&config.ITL)
	c.Flag("events-per-write", "Tokens that are written together.").Default("1").IntVar(&config.EventsPerWrite)
	return c, func(ctx context.Context, out io.Writer) error {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("null server: %w", err)
		}
		fmt.Fprintln(out, l.Addr())
		return nullserver.New(config).Serve(ctx, l)
	}
}

// numbers is a flag's value: numbers above 0, with commas or by repeating it.
type numbers []float64

func (n *numbers) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(v > 0) || math.IsInf(v, 0) {
			return fmt.Errorf("%q is no number above 0", part)
		}
		*n = append(*n, v)
	}
	return nil
}

func (n *numbers) String() string     { return fmt.Sprint([]float64(*n)) }
func (n *numbers) IsCumulative() bool { return true }

// randomSeed is for runs that need not be repeated; it is written into every result.
func randomSeed() uint64 { return rand.Uint64() >> 11 }
