package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"golang.org/x/sync/errgroup"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/sidecar"
)

// demoLoad is a day in six minutes whose peak is above what the default
// preset can take, so that every zone is seen.
const demoLoad = "day:40:6m"

// demoCurveFile is the capacity curve of the simulated engine as the demo runs
// it, of three classes: go test ./probe/knee -run TestDemoCurve -demo.curve
//
//go:embed demo_curve.json
var demoCurveFile []byte

// demoCurve is that curve, as of now: a simulated engine does not age.
func demoCurve() (*curve.Curve, error) {
	c, err := curve.Decode(bytes.NewReader(demoCurveFile))
	if err != nil {
		return nil, fmt.Errorf("the demo's capacity curve: %w", err)
	}
	c.Finished = time.Now()
	return c, nil
}

func addDemo(app *kingpin.Application, log *logFlags) (*kingpin.CmdClause, command) {
	c := app.Command("demo", "Show it all without a GPU, an engine or a network: a simulated engine with a day's traffic, and the sidecar beside it.")
	address := c.Flag("web.listen-address", "Address of the sidecar; a free port is taken when this one is in use.").Default("127.0.0.1:9845").String()
	engineAddress := c.Flag("engine.listen-address", "Address of the simulated engine; a free port is taken when this one is in use.").Default(simulatedEngineAddress).String()
	interval := c.Flag("engine.interval", "Time between two readings of the engine.").Default("1s").Duration()
	d := &demoFlags{gpu: addGPUFlags(c, simulatedGPU, simulatedGPU+" (the simulated engine's own), "), rules: addRulesFlags(c), curve: addCurveFlags(c, "; the simulated engine's own when not given"), simulator: addSimulatorFlags(c, demoLoad)}
	addSLOFlags(c, &d.slo)
	return c, func(ctx context.Context, out io.Writer) error {
		d.address, d.engineAddress, d.interval = *address, *engineAddress, *interval
		ctx, cancel := withDuration(ctx, d.simulator.duration)
		defer cancel()
		return d.run(ctx, log, out)
	}
}

// simulatedGPU is the value of --gpu.nvml with which the simulated engine's
// own GPU readings are shown.
const simulatedGPU = "simulated"

// demoFlags are the flags of the demo command.
type demoFlags struct {
	address, engineAddress string
	interval               time.Duration
	slo                    sidecar.SLO
	gpu                    *gpuFlags
	rules                  *rulesFlags
	curve                  *curveFlags
	simulator              *simulatorFlags
}

func (d *demoFlags) run(ctx context.Context, log *logFlags, out io.Writer) error {
	logger, err := log.logger()
	if err != nil {
		return err
	}
	if err := errors.Join(checkSLO(d.slo), checkInterval(d.interval)); err != nil {
		return usageError{err}
	}
	s, err := d.simulator.simulation()
	if err != nil {
		return err
	}
	engineListener, err := listenNear(d.engineAddress)
	if err != nil {
		return usageError{fmt.Errorf("--engine.listen-address %s: %w", d.engineAddress, err)}
	}
	defer engineListener.Close()
	listener, err := listenNear(d.address)
	if err != nil {
		return usageError{fmt.Errorf("--web.listen-address %s: %w", d.address, err)}
	}
	defer listener.Close()

	engineURL := "http://" + engineListener.Addr().String()
	poller, err := engine.New(engine.Config{URL: engineURL, Interval: d.interval}, logger)
	if err != nil {
		return usageError{err}
	}
	defer poller.Close()
	hardware := s.engine.Config().Hardware
	p := &product{telemetryPath: "/metrics", rules: d.rules, logger: logger}
	config := sidecar.Config{
		Poller: poller, EngineURL: engineURL, GPU: s.engine, Interval: d.interval, SLO: d.slo,
		Model: sidecar.Model{
			WeightBytes: hardware.WeightReadBytes, KVBytesPerToken: hardware.KVBytesPerToken,
			GPUs: hardware.TensorParallel, PeakBandwidth: hardware.GPU.MemoryBandwidth,
		},
		Logger: logger,
	}
	d.curve.configure(&config)
	if p.curve, err = d.curve.open(logger); err != nil {
		return usageError{err}
	}
	if p.curve != nil {
		config.Curve = p.curve
	} else {
		c, err := demoCurve()
		if err != nil {
			return err
		}
		config.Curve = sidecar.FixedCurve{Curve: c}
	}
	if d.gpu.nvml != simulatedGPU {
		if p.gpus, err = d.gpu.collector(0, logger); err != nil {
			return usageError{err}
		}
		config.GPU = p.gpus
	}
	if err := p.build(config); err != nil {
		return err
	}

	url := "http://" + listener.Addr().String()
	fmt.Fprintf(out, `headroom_exporter demo: a simulated %s with load %s

  status page        %s/
  metrics            %s/metrics
  headroom as JSON   %s/api/v1/headroom
  engine (OpenAI)    %s/v1/models

Ctrl-C ends it.
`, s.engine.Config().ModelName, d.simulator.load, url, url, url, engineURL)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.run(ctx, on(engineListener), logger) })
	group.Go(func() error { return p.run(ctx, on(listener)) })
	return group.Wait()
}

// on serves plain HTTP on a listener that is already open.
func on(l net.Listener) func(*http.Server) error {
	return func(server *http.Server) error { return server.Serve(l) }
}
