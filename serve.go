package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"
	toolkit "github.com/prometheus/exporter-toolkit/web"
	"github.com/prometheus/exporter-toolkit/web/kingpinflag"
	"golang.org/x/sync/errgroup"

	"headroom_exporter/capacity"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
	"headroom_exporter/sidecar"
	"headroom_exporter/web"
)

const defaultListenAddress = ":9845"

// shutdownGrace is how long requests under way may take after SIGTERM.
const shutdownGrace = 2 * time.Second

// errHeadroomUnknown ends --once when there is no headroom to print.
var errHeadroomUnknown = errors.New("headroom is not known")

// serveFlags are the flags of the serve command.
type serveFlags struct {
	web           *toolkit.FlagConfig
	telemetryPath string
	engine        engine.Config
	engineType    string
	slo           sidecar.SLO
	gpu           *gpuFlags
	rules         *rulesFlags
	curve         *curveFlags
	weightBytes   byteSize
	kvBytes       byteSize
	gpus          int
	bandwidth     byteSize
	once          bool
	onceFor       time.Duration
	output        string
}

func addServe(app *kingpin.Application, log *logFlags) (*kingpin.CmdClause, command) {
	c := app.Command("serve", "Run beside an engine: read it, derive its headroom, serve metrics, JSON and a status page.").Default()
	f := &serveFlags{web: kingpinflag.AddFlags(c, defaultListenAddress)}
	c.Flag("web.telemetry-path", "Path under which metrics are exposed.").Default("/metrics").StringVar(&f.telemetryPath)
	addEngineFlags(c, &f.engine)
	c.Flag("engine.type", "Kind of engine: auto, "+strings.Join(engine.TypeNames(), ", ")+".").Default("auto").EnumVar(&f.engineType, append([]string{"auto"}, engine.TypeNames()...)...)
	c.Flag("engine.replica-id", "Keep only this replica of a page that shows several, as a Ray node's does.").StringVar(&f.engine.ReplicaID)
	c.Flag("engine.interval", "Time between two readings of the engine.").Default("1s").DurationVar(&f.engine.Interval)
	c.Flag("engine.timeout", "Time after which a reading is given up; 80 % of the interval when 0.").Default("0s").DurationVar(&f.engine.Timeout)
	count(c.Flag("engine.max-num-seqs", "Sequence slots of each rank of the engine (its --max-num-seqs); found out where possible when 0.").Default("0"), &f.engine.MaxNumSeqs)
	count(c.Flag("engine.max-num-batched-tokens", "Token budget of a step of each rank (its --max-num-batched-tokens); found out where possible when 0.").Default("0"), &f.engine.MaxNumBatchedTokens)
	count(c.Flag("engine.kv-tokens", "KV cache of each rank in tokens; read from the engine when 0.").Default("0"), &f.engine.KVTokens)
	c.Flag("engine.proc-path", "proc file system in which to look for the engine's command line, when its process namespace is shared.").Default("/proc").StringVar(&f.engine.ProcPath)
	addSLOFlags(c, &f.slo)
	c.Flag("model.weight-bytes", "Bytes of weights that one step reads, over all GPUs, for the memory bandwidth model; e.g. 15GiB.").Default("0").SetValue(&f.weightBytes)
	c.Flag("model.kv-bytes-per-token", "KV cache bytes of one token, over all layers and GPUs, for the memory bandwidth model; e.g. 128KiB.").Default("0").SetValue(&f.kvBytes)
	count(c.Flag("model.gpus", "GPUs over which the model is spread.").Default("1"), &f.gpus)
	c.Flag("gpu.memory-bandwidth", "Theoretical memory bandwidth of one GPU per second; read from its driver when 0; e.g. 3.35TB.").Default("0").SetValue(&f.bandwidth)
	f.gpu, f.rules, f.curve = addGPUFlags(c, gpu.ModeAuto, ""), addRulesFlags(c), addCurveFlags(c, "; without one the headroom is an upper bound")
	c.Flag("once", "Read the engine until its rates are known, which takes some seconds, print its headroom and exit: status 0 if it is known, 1 if not.").BoolVar(&f.once)
	c.Flag("once.for", "How long --once reads at most; with --curve.file it ends before that when the curve counts.").Default("15s").DurationVar(&f.onceFor)
	c.Flag("output", "Format of --once: text or json.").Short('o').Default("text").EnumVar(&f.output, "text", "json")
	return c, func(ctx context.Context, out io.Writer) error { return f.run(ctx, log, out) }
}

// run serves until the context ends, or reads once.
func (f *serveFlags) run(ctx context.Context, log *logFlags, out io.Writer) error {
	logger, err := log.logger()
	if err != nil {
		return err
	}
	if f.engineType != "auto" {
		f.engine.Type = engine.Type(f.engineType)
	}
	if err := errors.Join(checkInterval(f.engine.Interval), checkSLO(f.slo)); err != nil {
		return usageError{err}
	}
	if err := f.engine.Validate(); err != nil {
		return usageError{err}
	}
	if f.gpus < 1 {
		return usageError{fmt.Errorf("--model.gpus %d: must be 1 or more", f.gpus)}
	}
	if f.onceFor <= 0 {
		return usageError{fmt.Errorf("--once.for %s: must be above 0", f.onceFor)}
	}
	if err := checkWebConfig(*f.web.WebConfigFile); err != nil {
		return usageError{err}
	}
	if f.once {
		// What is printed says all that the log would.
		logger = slog.New(slog.DiscardHandler)
	}
	gpus, err := f.gpu.collector(float64(f.bandwidth), logger)
	if err != nil {
		return usageError{err}
	}
	f.engine.GPU = func() (float64, string) { return deviceOf(gpus.Snapshot()) }
	poller, err := engine.New(f.engine, logger)
	if err != nil {
		return usageError{err}
	}
	defer poller.Close()
	config := sidecar.Config{
		Poller: poller, EngineURL: f.engine.URL, Interval: f.engine.Interval, SLO: f.slo,
		Model: sidecar.Model{
			WeightBytes: float64(f.weightBytes), KVBytesPerToken: float64(f.kvBytes),
			GPUs: f.gpus, PeakBandwidth: float64(f.bandwidth),
		},
		Logger: logger,
	}
	config.GPU = gpus
	f.curve.configure(&config)
	curveFile, err := f.curve.open(logger)
	if err != nil {
		return usageError{err}
	}
	if curveFile != nil {
		config.Curve = curveFile
	}
	if f.once {
		return once(ctx, config, gpus, f.onceFor, f.output, out)
	}
	p := &product{telemetryPath: f.telemetryPath, rules: f.rules, gpus: gpus, curve: curveFile, logger: logger}
	if err := p.build(config); err != nil {
		return err
	}
	logger.Info("starting", "version", version.Info(), "engine", f.engine.URL, "interval", f.engine.Interval)
	return p.run(ctx, func(server *http.Server) error { return toolkit.ListenAndServe(server, f.web, logger) })
}

// once takes readings until what needs some time is known, at least two and no
// longer than the limit allows, and prints the last snapshot.
func once(ctx context.Context, config sidecar.Config, gpus *gpu.Collector, limit time.Duration, output string, out io.Writer) error {
	live, err := sidecar.New(config)
	if err != nil {
		return usageError{err}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return gpus.Run(ctx) })
	if err := readOnce(ctx, live, config.Interval, limit); err != nil {
		return err
	}
	cancel()
	_ = group.Wait() // Why GPUs were not read stands in the snapshot.
	snapshot := live.Snapshot()
	if snapshot == nil {
		return errHeadroomUnknown
	}
	write := web.WriteText
	if output == "json" {
		write = web.WriteJSON
	}
	if err := write(out, snapshot); err != nil {
		return fmt.Errorf("printing the reading: %w", err)
	}
	for i := range snapshot.Replicas {
		if math.IsNaN(snapshot.Replicas[i].HeadroomRatio) {
			return errHeadroomUnknown
		}
	}
	return nil
}

// onceProgress is how far apart --once says how far it is.
const onceProgress = 5 * time.Second

// readOnce takes the readings of once.
func readOnce(ctx context.Context, live *sidecar.Sidecar, interval, limit time.Duration) error {
	began := time.Now()
	said := began.Add(-onceProgress)
	live.Step(ctx)
	for {
		select {
		case <-ctx.Done():
			return errHeadroomUnknown
		case <-time.After(interval):
		}
		live.Step(ctx)
		snapshot := live.Snapshot()
		if snapshot == nil || !awaited(snapshot) || time.Since(began)+interval > limit {
			return nil
		}
		for i := range snapshot.Replicas {
			c := &snapshot.Replicas[i].Curve
			if c.Waiting() && time.Since(said) >= onceProgress {
				said = time.Now()
				say(fmt.Sprintf("the capacity curve does not count yet: %.0f of %d requests have ended; reading for another %.0f s (--once.for)",
					orZero(c.Load.Mix.Completions), capacity.MinCompletions, (limit - time.Since(began)).Seconds()))
			}
		}
	}
}

// awaited tells whether more readings would tell more: of the rates, or by the curve.
func awaited(s *sidecar.Snapshot) bool {
	return slices.ContainsFunc(s.Replicas, func(r sidecar.Replica) bool {
		return r.State.Known() && (r.RateSpan < sidecar.MinRateSpan || r.Curve.Waiting())
	})
}

// orZero is 0 of what is not known, for counting up.
func orZero(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return v
}

// serveHTTP serves until the context ends, then lets requests under way finish.
func serveHTTP(ctx context.Context, handler http.Handler, listen func(*http.Server) error, logger *slog.Logger) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		// A stream that would run on ends with the command.
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() { ended <- listen(server) }()
	select {
	case err := <-ended:
		return fmt.Errorf("web server: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		server.Close()
	}
	return nil
}
