package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
)

// identityFlags say of an engine what cannot be read from it.
type identityFlags struct{ overrides []string }

func addIdentityFlags(c *kingpin.CmdClause) *identityFlags {
	f := &identityFlags{}
	c.Flag("identity", "NAME=VALUE of the engine's identity that cannot be read, or is read wrongly; an empty value is not known; repeatable. Names: "+
		strings.Join(curve.FieldNames(), ", ")+".").PlaceHolder("NAME=VALUE").StringsVar(&f.overrides)
	return f
}

// apply sets what the flags give.
func (f *identityFlags) apply(id *curve.Identity) error { return override(id, f.overrides) }

func override(id *curve.Identity, overrides []string) error {
	given := map[string]string{}
	for _, text := range overrides {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return fmt.Errorf("--identity %q: want NAME=VALUE", text)
		}
		if first, twice := given[name]; twice {
			return fmt.Errorf("--identity %s: %s is given already, as %s: leave one of them out", text, name, first)
		}
		given[name] = text
		if err := id.Set(name, value); err != nil {
			return fmt.Errorf("--identity %s: %w", text, err)
		}
	}
	return nil
}

// gatherIdentity is what an engine is, by what it told, by its GPUs, and by
// overrides of the form NAME=VALUE, which win. A GPU snapshot without
// readings, or of which it is not known whose GPUs they are, tells nothing.
// Limits are those of one rank. A limit that is only the engine's documented
// default is a guess, and not of the identity.
func gatherIdentity(o engine.Observation, s gpu.Snapshot, overrides []string) (curve.Identity, error) {
	id := curve.Identity{EngineType: string(o.Type), EngineVersion: o.Version, MaxModelLen: o.MaxModelLen}
	addSettings(&id, o.Settings, o.Parallelism)
	addGPUs(&id, s)
	var given curve.Identity
	if err := override(&given, overrides); err != nil {
		return curve.Identity{}, err
	}
	if o.Reading != nil {
		if err := addRanks(&id, o.Reading.Ranks, given.Model); err != nil {
			return curve.Identity{}, err
		}
	}
	if err := override(&id, overrides); err != nil {
		return curve.Identity{}, err
	}
	if id.Model == "" {
		return curve.Identity{}, errors.New("the engine does not tell its model: give --identity model=NAME")
	}
	return id, nil
}

func addSettings(id *curve.Identity, s engine.Settings, p engine.Parallelism) {
	id.Revision, id.Quantization, id.DType, id.KVCacheDType = s.Revision, s.Quantization, s.DType, s.KVCacheDType
	id.TensorParallel, id.PipelineParallel, id.DataParallel = p.Tensor, p.Pipeline, p.Data
	id.GPUMemoryUtilization = s.GPUMemoryUtilization
	id.SpeculativeMethod, id.SpeculativeTokens = s.SpeculativeMethod, s.SpeculativeTokens
	id.AttentionBackend, id.MaxLoRAs, id.MaxLoRARank = s.AttentionBackend, s.MaxLoRAs, s.MaxLoRARank
	for _, t := range []struct {
		from engine.Toggle
		to   **bool
	}{
		{s.PrefixCaching, &id.PrefixCaching}, {s.ChunkedPrefill, &id.ChunkedPrefill},
		{s.EnforceEager, &id.EnforceEager}, {s.ExpertParallel, &id.ExpertParallel},
	} {
		if t.from != engine.ToggleUnknown {
			on := t.from == engine.ToggleOn
			*t.to = &on
		}
	}
}

// addRanks adds the limits of the model's ranks; of several the smallest, for the safe side.
func addRanks(id *curve.Identity, ranks []engine.Rank, model string) error {
	var models []string
	for i := range ranks {
		if name := ranks[i].ModelName; name != "" && !slices.Contains(models, name) {
			models = append(models, name)
		}
	}
	switch {
	case model == "" && len(models) > 1:
		return fmt.Errorf("the engine's page has several models: give --identity model= with one of %s", strings.Join(models, ", "))
	case model == "" && len(models) == 1:
		model = models[0]
	}
	id.Model = model
	slots, tokens, kv, loras, n := math.Inf(1), math.Inf(1), math.Inf(1), 0.0, 0
	for i := range ranks {
		r := &ranks[i]
		if len(models) > 1 && r.ModelName != model {
			continue
		}
		n++
		slots, tokens, kv = min(slots, measured(r.SequenceSlots)), min(tokens, measured(r.BatchedTokens)), min(kv, measured(r.TokenSlots))
		if v := r.Value(engine.LoRASlots); v > 0 {
			loras = v
		}
	}
	id.MaxNumSeqs, id.MaxNumBatchedTokens, id.KVTokens = whole(slots), whole(tokens), float64(whole(kv))
	if id.MaxLoRAs == 0 {
		id.MaxLoRAs = whole(loras)
	}
	if id.DataParallel == 0 && n > 1 {
		id.DataParallel = n
	}
	return nil
}

// measured is a limit that is more than a guess; infinite when there is none.
func measured(l engine.Limit) float64 {
	if !l.Known() || l.Guessed() {
		return math.Inf(1)
	}
	return l.Value
}

// whole is a number as an int; 0 when it is not known.
func whole(v float64) int {
	if !(v > 0 && v < 1<<53) {
		return 0
	}
	return int(v)
}

func addGPUs(id *curve.Identity, s gpu.Snapshot) {
	if s.Status.SelectionAmbiguous || len(s.Readings) == 0 {
		return
	}
	id.GPUCount = len(s.Readings)
	g := &s.Readings[0]
	id.GPUName, id.MIGProfile, id.DriverVersion = g.Model, g.MIGProfile, g.Driver
	if g.PowerLimit > 0 {
		// The limit in force moves with other limits by parts of a watt.
		id.PowerLimit = math.Round(g.PowerLimit)
	}
	if g.SMClockMaxHertz > 0 {
		id.MaxSMClock = g.SMClockMaxHertz
	}
	if id.GPUCount > 1 {
		switch {
		case g.NVLinksExpected > 0:
			id.Interconnect = "nvlink"
		case g.NVLinksExpected == 0:
			id.Interconnect = "pcie"
		}
	}
}

// Bounds of a look at an engine.
const (
	// identityPolls are enough for a page and every question that a poll asks: one each.
	identityPolls = 5
	// gpuPatience is how long the GPUs may take to be read first.
	gpuPatience = 3 * time.Second
)

// readIdentity looks at an engine and at its GPUs. Those of this machine are
// the engine's only when it is on this machine too, or when they were named.
func readIdentity(ctx context.Context, config engine.Config, f *gpuFlags, overrides []string) (curve.Identity, error) {
	discard := slog.New(slog.DiscardHandler) // errors are returned
	gpus, err := f.collector(0, discard)
	if err != nil {
		return curve.Identity{}, err
	}
	poller, err := engine.New(config, discard)
	if err != nil {
		return curve.Identity{}, err
	}
	defer poller.Close()
	var snapshot gpu.Snapshot
	if len(f.devices) > 0 || onThisMachine(config.URL) {
		snapshot = readGPUs(ctx, gpus)
	}
	var o engine.Observation
	for range identityPolls {
		if o = poller.Poll(ctx); !o.Fresh {
			return curve.Identity{}, fmt.Errorf("reading the engine: %w", o.Err)
		}
	}
	return gatherIdentity(o, snapshot, overrides)
}

// readGPUs waits for the first snapshot that says something.
func readGPUs(ctx context.Context, gpus *gpu.Collector) gpu.Snapshot {
	ctx, cancel := context.WithTimeout(ctx, gpuPatience)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = gpus.Run(ctx) // why GPUs are not read stands in the snapshot
	}()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for ctx.Err() == nil && gpus.Snapshot().Status.Reason == gpu.Starting {
		select {
		case <-look.C:
		case <-ctx.Done():
		}
	}
	snapshot := gpus.Snapshot()
	cancel()
	<-ended
	return snapshot
}

// onThisMachine tells whether an engine's URL leads to this machine.
func onThisMachine(text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
