package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"golang.org/x/sync/errgroup"

	"headroom_exporter/collector/engine"
	"headroom_exporter/sidecar"
)

// demoLoad is a day in six minutes whose peak is above what the default
// preset can take, so that every zone is seen.
const demoLoad = "day:40:6m"

func addDemo(app *kingpin.Application, log *logFlags) (*kingpin.CmdClause, command) {
	c := app.Command("demo", "Show it all without a GPU, an engine or a network: a simulated engine with a day's traffic, and the sidecar beside it.")
	address := c.Flag("web.listen-address", "Address of the sidecar; a free port is taken when this one is in use.").Default("127.0.0.1:9845").String()
	engineAddress := c.Flag("engine.listen-address", "Address of the simulated engine; a free port is taken when this one is in use.").Default(simulatedEngineAddress).String()
	interval := c.Flag("engine.interval", "Time between two readings of the engine.").Default("1s").Duration()
	ttft := c.Flag("slo.ttft", "Time to first token that the service promises.").Default("2.5s").Duration()
	f := addSimulatorFlags(c, demoLoad)
	return c, func(ctx context.Context, out io.Writer) error {
		ctx, cancel := withDuration(ctx, f.duration)
		defer cancel()
		return demo(ctx, f, *address, *engineAddress, *interval, *ttft, log, out)
	}
}

func demo(ctx context.Context, f *simulatorFlags, address, engineAddress string, interval, ttft time.Duration, log *logFlags, out io.Writer) error {
	logger, err := log.logger()
	if err != nil {
		return err
	}
	s, err := f.simulation()
	if err != nil {
		return err
	}
	engineListener, err := listenNear(engineAddress)
	if err != nil {
		return usageError{fmt.Errorf("--engine.listen-address %s: %w", engineAddress, err)}
	}
	defer engineListener.Close()
	listener, err := listenNear(address)
	if err != nil {
		return usageError{fmt.Errorf("--web.listen-address %s: %w", address, err)}
	}
	defer listener.Close()

	engineURL := "http://" + engineListener.Addr().String()
	poller, err := engine.New(engine.Config{URL: engineURL, Interval: interval}, logger)
	if err != nil {
		return usageError{err}
	}
	defer poller.Close()
	hardware := s.engine.Config().Hardware
	live, err := sidecar.New(sidecar.Config{
		Poller: poller, EngineURL: engineURL, GPU: s.engine, Interval: interval, TTFTSLO: ttft,
		Model: sidecar.Model{
			WeightBytes: hardware.WeightReadBytes, KVBytesPerToken: hardware.KVBytesPerToken,
			GPUs: hardware.TensorParallel, PeakBandwidth: hardware.GPU.MemoryBandwidth,
		},
		Logger: logger,
	})
	if err != nil {
		return usageError{err}
	}

	handler, err := newHandler(live, "/metrics", interval, logger)
	if err != nil {
		return err
	}

	url := "http://" + listener.Addr().String()
	fmt.Fprintf(out, `headroom_exporter demo: a simulated %s with load %s

  status page        %s/
  metrics            %s/metrics
  headroom as JSON   %s/api/v1/headroom
  engine (OpenAI)    %s/v1/models

Ctrl-C ends it.
`, s.engine.Config().ModelName, f.load, url, url, url, engineURL)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.run(ctx, on(engineListener)) })
	group.Go(func() error { return serve(ctx, live, handler, on(listener)) })
	return group.Wait()
}

// on serves plain HTTP on a listener that is already open.
func on(l net.Listener) func(*http.Server) error {
	return func(server *http.Server) error { return server.Serve(l) }
}
