package simulator

import (
	"context"
	"errors"

	"headroom_exporter/collector/gpu"
)

// Engine runs the ranks on the wall clock, or on the clock of a
// testing/synctest bubble. Its methods may be called from any goroutine.
type Engine struct{ cfg Config }

var _ gpu.Reader = (*Engine)(nil)

var errNotBuilt = errors.New("simulator: engine core not built yet")

// NewEngine returns an engine that is idle and awake.
func NewEngine(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Engine{cfg: cfg}, nil
}

// Config returns the configuration of the engine.
func (e *Engine) Config() Config { return e.cfg }

// Run steps the ranks until the context ends, and returns its error. It can run once.
func (e *Engine) Run(ctx context.Context) error { return errNotBuilt }

// Now is the simulated time in seconds since Run began; 0 before.
func (e *Engine) Now() float64 { return 0 }

// Submit gives a request to the least loaded rank and returns that rank. Its
// Arrival becomes Now. It may be called before Run. The error is one of
// Config.Accept.
func (e *Engine) Submit(r *Request) (rank int, err error) { return 0, errNotBuilt }

// Abort ends a request whose client went away; OnToken is not called again
// after Abort returns. It does nothing when the request has ended or was never submitted.
func (e *Engine) Abort(r *Request) {}

// Sleep gives the GPU memory back, as vLLM's sleep mode does: level 1 moves
// the weights to the host, level 2 drops them. Running requests lose their KV
// cache and wait, with those that arrive, for Wake.
func (e *Engine) Sleep(level int) {}

// Wake ends Sleep.
func (e *Engine) Wake() {}

// SleepLevel is 0 when the engine is awake.
func (e *Engine) SleepLevel() int { return 0 }

// Slow makes every step from now on take factor times as long, as a GPU with
// capped clocks does; 1 is the full speed.
func (e *Engine) Slow(factor float64) {}

// GPUs reads every GPU of every rank over the last simulated second.
func (e *Engine) GPUs() []gpu.Reading { return nil }

// Read is GPUs as a gpu.Reader.
func (e *Engine) Read(ctx context.Context) ([]gpu.Reading, error) { return e.GPUs(), ctx.Err() }
