package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kingpin/v2"
	toolkit "github.com/prometheus/exporter-toolkit/web"
	"github.com/prometheus/exporter-toolkit/web/kingpinflag"
	"golang.org/x/sync/errgroup"

	"headroom_exporter/probe/workload"
	"headroom_exporter/simulator"
)

const simulatedEngineAddress = "127.0.0.1:8000"

// simulatorFlags choose a simulated engine and its load; simulate and demo share them.
type simulatorFlags struct {
	preset   string
	override simulator.Config
	prefix   bool
	load     string
	prompt   float64
	output   float64
	duration time.Duration
}

func addSimulatorFlags(c *kingpin.CmdClause, defaultLoad string) *simulatorFlags {
	f := &simulatorFlags{}
	c.Flag("preset", "Stylised model and GPUs: "+strings.Join(simulator.Presets(), " or ")+".").Default(simulator.Presets()[0]).EnumVar(&f.preset, simulator.Presets()...)
	c.Flag("model-name", "Served model name; the preset's when empty.").StringVar(&f.override.ModelName)
	count(c.Flag("ranks", "Data-parallel ranks.").Default("1"), &f.override.Ranks)
	count(c.Flag("max-num-seqs", "Sequence slots of each rank; the preset's when 0.").Default("0"), &f.override.MaxNumSeqs)
	count(c.Flag("max-num-batched-tokens", "Token budget of a step; the preset's when 0.").Default("0"), &f.override.MaxNumBatchedTokens)
	count(c.Flag("max-model-len", "Longest prompt and output together, in tokens; the preset's when 0.").Default("0"), &f.override.MaxModelLen)
	count(c.Flag("num-gpu-blocks", "KV cache blocks of each rank; the preset's when 0.").Default("0"), &f.override.NumGPUBlocks)
	count(c.Flag("block-size", "Tokens of a KV cache block; the preset's when 0.").Default("0"), &f.override.BlockSize)
	c.Flag("enable-prefix-caching", "Reuse the KV cache of equal prompt beginnings.").Default("true").BoolVar(&f.prefix)
	c.Flag("enable-mfu-metrics", "Let the engine's own estimates of FLOPs and bytes move.").BoolVar(&f.override.EnableMFUMetrics)
	c.Flag("speed", "Simulated seconds per second. The engine's own histograms count simulated ones and its clients real ones: leave 1 for a probe, and for a curve.").Default("1").Float64Var(&f.override.Speed)
	c.Flag("seed", "Seed of everything random.").Default("1").Uint64Var(&f.override.Seed)
	c.Flag("load", "Load that the engine puts on itself: "+simulator.LoadSyntax+".").Default(defaultLoad).StringVar(&f.load)
	c.Flag("load.prompt-tokens", "Mean prompt length of that load, in tokens.").Default("512").Float64Var(&f.prompt)
	c.Flag("load.output-tokens", "Mean output length of that load, in tokens.").Default("256").Float64Var(&f.output)
	c.Flag("duration", "End by itself after this time; 0 is never.").Default("0s").DurationVar(&f.duration)
	return f
}

// config returns the preset with what the flags override.
func (f *simulatorFlags) config() (simulator.Config, error) {
	c, err := simulator.Preset(f.preset)
	if err != nil {
		return c, err
	}
	if f.override.ModelName != "" {
		c.ModelName = f.override.ModelName
	}
	for _, o := range []struct {
		field *int
		value int
	}{
		{&c.Ranks, f.override.Ranks}, {&c.MaxNumSeqs, f.override.MaxNumSeqs},
		{&c.MaxNumBatchedTokens, f.override.MaxNumBatchedTokens}, {&c.MaxModelLen, f.override.MaxModelLen},
		{&c.NumGPUBlocks, f.override.NumGPUBlocks}, {&c.BlockSize, f.override.BlockSize},
	} {
		if o.value != 0 {
			*o.field = o.value
		}
	}
	c.EnablePrefixCaching, c.EnableMFUMetrics = f.prefix, f.override.EnableMFUMetrics
	c.Speed, c.Seed = f.override.Speed, f.override.Seed
	return c, nil
}

// check checks what the simulator would refuse only when it runs, or not by the flag's name.
func (f *simulatorFlags) check() error {
	switch {
	case !(f.override.Speed > 0):
		return fmt.Errorf("--speed %v: must be above 0; 1 is real time", f.override.Speed)
	case !(f.prompt >= 1 && f.prompt <= workload.MaxTokens):
		return fmt.Errorf("--load.prompt-tokens %v: must be from 1 to %d", f.prompt, workload.MaxTokens)
	case !(f.output >= 1 && f.output <= workload.MaxTokens):
		return fmt.Errorf("--load.output-tokens %v: must be from 1 to %d", f.output, workload.MaxTokens)
	}
	return nil
}

// simulatorFlagNames puts the flags in the place of the simulator's names.
var simulatorFlagNames = strings.NewReplacer(
	"simulator: ", "", "MaxNumSeqs", "--max-num-seqs", "MaxNumBatchedTokens", "--max-num-batched-tokens",
	"MaxModelLen", "--max-model-len", "NumGPUBlocks", "--num-gpu-blocks", "BlockSize", "--block-size", "Ranks", "--ranks",
)

// simulation is a simulated engine with its API and its load.
type simulation struct {
	engine     *simulator.Engine
	handler    http.Handler
	load       simulator.Load
	loadConfig simulator.LoadConfig
}

func (f *simulatorFlags) simulation() (*simulation, error) {
	if err := f.check(); err != nil {
		return nil, usageError{err}
	}
	config, err := f.config()
	if err != nil {
		return nil, usageError{err}
	}
	load, err := simulator.ParseLoad(f.load)
	if err != nil {
		return nil, usageError{fmt.Errorf("--load: %w", err)}
	}
	metrics := simulator.NewMetrics(config)
	config.Observer = metrics.Observer
	engine, err := simulator.NewEngine(config)
	if err != nil {
		return nil, usageError{errors.New(simulatorFlagNames.Replace(err.Error()))}
	}
	return &simulation{
		engine: engine, handler: simulator.NewHandler(engine, metrics),
		load: load, loadConfig: simulator.LoadConfig{PromptMean: f.prompt, OutputMean: f.output, Seed: config.Seed},
	}, nil
}

// run steps the engine, serves its API and drives its load until the context ends.
func (s *simulation) run(ctx context.Context, listen func(*http.Server) error, logger *slog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.engine.Run(ctx) })
	group.Go(func() error { return s.load.Run(ctx, s.engine, s.loadConfig) })
	group.Go(func() error { return serveHTTP(ctx, s.handler, listen, logger) })
	return group.Wait()
}

func addSimulate(app *kingpin.Application, log *logFlags) (*kingpin.CmdClause, command) {
	c := app.Command("simulate", "Run the simulated engine alone: an OpenAI API with vLLM's metrics, no GPU and no model.")
	address := kingpinflag.AddFlags(c, simulatedEngineAddress)
	f := addSimulatorFlags(c, "off")
	return c, func(ctx context.Context, _ io.Writer) error {
		logger, err := log.logger()
		if err != nil {
			return err
		}
		if err := checkWebConfig(*address.WebConfigFile); err != nil {
			return usageError{err}
		}
		s, err := f.simulation()
		if err != nil {
			return err
		}
		ctx, cancel := withDuration(ctx, f.duration)
		defer cancel()
		return s.run(ctx, func(server *http.Server) error { return toolkit.ListenAndServe(server, address, logger) }, logger)
	}
}

// withDuration ends the context after d; 0 is never.
func withDuration(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// listenNear listens on an address, or on a free port of its host when that
// port is taken.
func listenNear(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	return net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(0)))
}
