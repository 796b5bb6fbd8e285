package probe

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
	"headroom_exporter/probe/workload"
	"headroom_exporter/simulator"
)

// simulated runs a test against the simulated engine with its API and its
// metrics page on a virtual clock.
func simulated(t *testing.T, test func(t *testing.T, client *Client, runner *Runner, facts *Facts)) {
	t.Helper()
	simulatedAs(t, func(*simulator.Config) {}, test)
}

// simulatedAs does so with an engine that is not quite the preset.
func simulatedAs(t *testing.T, change func(*simulator.Config), test func(t *testing.T, client *Client, runner *Runner, facts *Facts)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		config, err := simulator.Preset(simulator.Presets()[0])
		if err != nil {
			t.Fatal(err)
		}
		change(&config)
		metrics := simulator.NewMetrics(config)
		config.Observer, config.EnablePrefixCaching, config.Speed = metrics.Observer, true, 1
		sim, err := simulator.NewEngine(config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		l := newPipeListener()
		server := &http.Server{Handler: simulator.NewHandler(sim, metrics)}
		var running sync.WaitGroup
		running.Go(func() { _ = sim.Run(ctx) })
		running.Go(func() { _ = server.Serve(l) })

		c := ClientConfig{BaseURL: "http://engine.test", Dial: l.Dial}
		facts, err := Preflight(ctx, c, "", true, true)
		if err != nil {
			t.Fatal(err)
		}
		c.Model, c.Dialect = facts.Model, facts.Dialect
		client, err := NewClient(c)
		if err != nil {
			t.Fatal(err)
		}
		pages := &http.Transport{DialContext: l.Dial}
		poller, err := engine.New(engine.Config{
			URL: c.BaseURL, Interval: DefaultReadingInterval, RoundTripper: pages, ProcPath: t.TempDir(),
		}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		test(t, client, &Runner{Client: client, wait: sleep, Readings: &Readings{Poller: poller, Interval: DefaultReadingInterval}}, facts)
		poller.Close()
		pages.CloseIdleConnections()
		client.Close()
		cancel()
		server.Close()
		running.Wait()
	})
}

// simulatedPoint is 10 requests a second for half a minute.
func simulatedPoint(t *testing.T, facts *Facts, class workload.Class, content uint64) Point {
	t.Helper()
	source, err := workload.Plan{
		Classes: []workload.Class{class}, Arrivals: &workload.Arrivals{Process: workload.Poisson, Rate: 10},
		Seed: 1, ContentSeed: content, CacheSalt: "salt",
	}.Source()
	if err != nil {
		t.Fatal(err)
	}
	return Point{Name: "p", Source: source, Fill: facts.Fill, Rate: 10, Warmup: 5 * time.Second, Duration: 30 * time.Second}
}

var chatClass = workload.Class{Name: "chat", Weight: 1, Prompt: workload.FixedLength(256), Output: workload.FixedLength(64)}

// TestAgainstSimulator: exact lengths, no cache hits, and a TTFT that agrees
// with the engine's own histogram.
func TestAgainstSimulator(t *testing.T) {
	simulated(t, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
		result, err := runner.Run(t.Context(), simulatedPoint(t, facts, chatClass, 1))
		if err != nil {
			t.Fatal(err)
		}
		if len(result.Faults) > 0 || len(result.Warnings) > 0 {
			t.Errorf("faults %v, warnings %v", result.Faults, result.Warnings)
		}
		all, e := result.All(), result.Engine
		if all.Outcomes[OK] != all.Attempts || all.Prompt != 256 || all.Output != 64 {
			t.Errorf("outcomes %v, prompt %v, output %v", all.Outcomes, all.Prompt, all.Output)
		}
		if e.ClientTTFTCount != int(e.TTFTCount) || e.ClientTTFTCount < all.Attempts-10 {
			t.Errorf("the engine counted %v first tokens, the client %d of %d", e.TTFTCount, e.ClientTTFTCount, all.Attempts)
		}
		if d := float64(e.ClientTTFTMean - e.TTFTMean); math.Abs(d) > 0.002 {
			t.Errorf("mean TTFT is %v by the client, %v by the engine", e.ClientTTFTMean, e.TTFTMean)
		}
		// Little's law: what runs is what arrives times how long it stays.
		if want := float64(result.OfferedRate) * float64(all.E2E.Mean); math.Abs(float64(e.Running.Mean)-want) > 0.15*want {
			t.Errorf("%v ran on average, want about %v", e.Running.Mean, want)
		}
		if e.PrefixHits != 0 || !(e.PrefixQueries > 0) || e.Preemptions != 0 || e.State != "idle" && e.State != "ok" {
			t.Errorf("engine %+v", e)
		}
		if want := float64(e.ClientTTFTCount) * 256; math.Abs(float64(e.PromptTokens)-want) > 256*2 {
			t.Errorf("prompt tokens %v, want %v", e.PromptTokens, want)
		}
		if n := len(e.Samples); n < 115 || n > 135 {
			t.Errorf("%d readings in half a minute and a drain, want 4 a second", n)
		}
	})
}

// TestCacheHitsAreAFault: the second run of the same prompts under the same
// salt is served from the cache, and says so.
func TestCacheHitsAreAFault(t *testing.T) {
	simulated(t, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
		for i, want := range []string{"", FaultCacheHits} {
			p := simulatedPoint(t, facts, chatClass, 1)
			p.Warmup, p.Duration = 0, 10*time.Second
			result, err := runner.Run(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			if got := codes(result.Faults); got != want {
				t.Errorf("run %d: faults %v, hit ratio %v", i+1, result.Faults, result.Engine.PrefixHitRatio)
			}
			if share := float64(result.Engine.PrefixHitRatio); i == 1 && share < 0.9 {
				t.Errorf("hit ratio %v", share)
			}
		}
	})
}

// TestForeignTraffic: others' requests in the engine's histogram are not taken
// for a disagreement about time.
func TestForeignTraffic(t *testing.T) {
	simulated(t, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
		foreign, stop := context.WithCancel(t.Context())
		var others sync.WaitGroup
		others.Go(func() {
			for i := 0; sleep(foreign, 200*time.Millisecond) == nil; i++ {
				q := workload.Request{Text: "somebody else " + time.Now().String(), MaxTokens: 4, IgnoreEOS: true}
				var x Exchange
				client.Do(foreign, &q, client.now(), &x)
			}
		})
		p := simulatedPoint(t, facts, chatClass, 1)
		p.Warmup, p.Duration = 0, 10*time.Second
		result, err := runner.Run(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		stop()
		others.Wait()
		if got := codes(result.Warnings); got != FaultForeign {
			t.Errorf("warnings %v", result.Warnings)
		}
	})
}

// TestChatAgainstSimulator: a text's length is learnt well enough, and the
// role chunk is no token.
func TestChatAgainstSimulator(t *testing.T) {
	simulated(t, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
		class := chatClass
		class.Chat = true
		p := simulatedPoint(t, facts, class, 1)
		p.Warmup, p.Duration = 0, 20*time.Second
		result, err := runner.Run(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if !result.Usable() {
			t.Errorf("faults %v", result.Faults)
		}
		e := result.Engine
		if d := float64(e.ClientTTFTMean - e.TTFTMean); math.Abs(d) > 0.002 {
			t.Errorf("mean TTFT is %v by the client, %v by the engine", e.ClientTTFTMean, e.TTFTMean)
		}
	})
}

// constantGPU always reads the same.
type constantGPU struct{}

func (constantGPU) Snapshot() gpu.Snapshot {
	r := gpu.NewReading()
	r.UUID, r.PowerWatts, r.ThrottleSeconds = "GPU-1", 300, map[string]float64{"power": float64(time.Now().Unix() % 1000)}
	return gpu.Snapshot{Status: gpu.Status{Up: true}, Readings: []gpu.Reading{r}}
}

func TestGPUsBesideAPoint(t *testing.T) {
	virtual(t, ClientConfig{}, fixed(100*time.Millisecond, time.Millisecond), func(t *testing.T, ctx context.Context, r *rig) {
		runner := r.runner()
		runner.Readings = &Readings{GPU: constantGPU{}, Interval: DefaultReadingInterval}
		result, err := runner.Run(ctx, Point{Name: "p", Source: requests(50, 100*time.Millisecond), Fill: fill})
		if err != nil {
			t.Fatal(err)
		}
		if len(result.GPUs) != 1 || result.GPUs[0].Power != (Range{300, 300, 300}) || !math.IsNaN(float64(result.GPUs[0].SMClock.Mean)) ||
			result.GPUs[0].ThrottleSeconds["power"] != 5 {
			t.Errorf("GPUs %+v", result.GPUs)
		}
	})
}
