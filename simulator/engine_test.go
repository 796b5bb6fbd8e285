package simulator

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"headroom_exporter/collector/gpu"
)

// start runs an engine inside a synctest bubble; its end is the test's.
func start(t *testing.T, cfg Config) *Engine {
	t.Helper()
	e, err := NewEngine(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	synctest.Wait()
	return e
}

// submitAll submits requests at their arrivals and returns when none is left to submit.
func submitAll(t *testing.T, e *Engine, requests []*Request) {
	t.Helper()
	began, offset := time.Now(), e.Now()
	for _, r := range requests {
		time.Sleep(time.Until(began.Add(time.Duration((r.Arrival - offset) / e.Config().Speed * 1e9))))
		if _, err := e.Submit(r); err != nil {
			t.Error(err)
		}
	}
}

// The engine on a clock gives the times of the engine without one.
func TestEngineEqualsVirtualRun(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"one rank":     nil,
		"eight times":  func(c *Config) { c.Speed = 8 },
		"slow motion":  func(c *Config) { c.Speed = 0.1 },
		"two ranks":    func(c *Config) { c.Ranks = 2 },
		"KV bound":     func(c *Config) { c.NumGPUBlocks = 600 },
		"no front end": func(c *Config) { c.FrontEndDelay = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := preset(t, "8b-h100", change)
			virtual := chat(3, 40, 10)
			preemptions := runVirtual(t, cfg, virtual, 60).Preemptions
			if (cfg.NumGPUBlocks == 600) != (preemptions > 0) {
				t.Errorf("%d preemptions", preemptions)
			}
			synctest.Test(t, func(t *testing.T) {
				e := start(t, cfg)
				requests := chat(3, 40, 10)
				submitAll(t, e, requests)
				time.Sleep(time.Duration(50 / cfg.Speed * 1e9))
				synctest.Wait()
				for i, r := range requests {
					v := virtual[i]
					for _, pair := range [][2]float64{
						{r.Arrival, v.Arrival}, {r.Queued, v.Queued}, {r.FirstScheduled, v.FirstScheduled},
						{r.FirstToken, v.FirstToken}, {r.LastToken, v.LastToken}, {r.End, v.End},
					} {
						// The bubble's clock has whole nanoseconds.
						if math.Abs(pair[0]-pair[1]) > 1e-7 {
							t.Fatalf("request %s on the clock %+v, without %+v", r.ID, *r, *v)
						}
					}
					if r.End == 0 || r.Preemptions != v.Preemptions || r.rank != v.rank {
						t.Fatalf("request %s on the clock %+v, without %+v", r.ID, *r, *v)
					}
				}
			})
		})
	}
}

// Tokens come at their times on the bubble's clock, which runs Speed times slower.
func TestTokensComeOnTime(t *testing.T) {
	for _, speed := range []float64{1, 20} {
		synctest.Test(t, func(t *testing.T) {
			cfg := preset(t, "8b-h100", func(c *Config) { c.Speed = speed })
			e := start(t, cfg)
			began := time.Now()
			count := 0
			r := &Request{ID: "a", PromptLength: 512, OutputLength: 100}
			r.OnToken = func(index int, at float64, finished FinishReason) {
				count++
				if late := time.Since(began).Seconds()*speed - at; late < 0 || late > 1e-7 {
					t.Errorf("token %d of %v s comes %v s late", index, at, late)
				}
			}
			if _, err := e.Submit(r); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if count != 100 {
				t.Errorf("%d tokens, want 100", count)
			}
			// TTFT counts from arrival: front-end delay and the prompt's step, worked by hand in TestStepTime.
			if want := cfg.FrontEndDelay + 14.611666e-3; math.Abs(r.FirstToken-r.Arrival-want) > 1e-8 {
				t.Errorf("time to first token %v s, want %v", r.FirstToken-r.Arrival, want)
			}
		})
	}
}

func TestSubmitBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := NewEngine(preset(t, "8b-h100", nil))
		if err != nil {
			t.Fatal(err)
		}
		early := &Request{ID: "early", PromptLength: 10, OutputLength: 2}
		if _, err := e.Submit(early); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Submit(early); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("submitted twice: %v", err)
		}
		time.Sleep(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := e.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run: %v", err)
		}
		if early.Arrival != 0 || early.FirstToken < 0.014 || early.FirstToken > 0.03 {
			t.Errorf("%+v", *early)
		}
		if _, err := e.Submit(&Request{PromptLength: 1, OutputLength: 1}); !errors.Is(err, ErrStopped) {
			t.Errorf("submitted after the end: %v", err)
		}
		if err := e.Run(t.Context()); err == nil {
			t.Error("Run runs twice")
		}
	})
}

func TestEngineAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l log
		cfg := preset(t, "8b-h100", func(c *Config) { c.Observer = func(int) Observer { return &l } })
		e := start(t, cfg)
		tokens := 0
		running := &Request{ID: "running", PromptLength: 512, OutputLength: 1000, OnToken: func(int, float64, FinishReason) { tokens++ }}
		e.Submit(running)
		time.Sleep(500 * time.Millisecond)
		e.Abort(running)
		synctest.Wait()
		before := tokens
		fresh := &Request{ID: "fresh", PromptLength: 512, OutputLength: 10}
		e.Submit(fresh)
		e.Abort(fresh) // still in the front end
		e.Abort(fresh)
		e.Abort(&Request{ID: "never submitted"})
		time.Sleep(time.Second)
		synctest.Wait()
		if tokens != before || before < 50 {
			t.Errorf("%d tokens before the abort, %d after", before, tokens-before)
		}
		last := l.steps[len(l.steps)-1]
		if last.Running != 0 || last.Waiting != 0 || last.KVCacheUsage != 0 {
			t.Errorf("after all are gone: %+v", last)
		}
		aborted := 0
		for _, event := range l.events {
			if strings.HasSuffix(event, " aborted") {
				aborted++
			}
		}
		if aborted != 2 {
			t.Errorf("%d aborts, want 2", aborted)
		}
	})
}

func TestSleepAndWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l log
		cfg := preset(t, "8b-h100", func(c *Config) { c.Observer = func(int) Observer { return &l } })
		e := start(t, cfg)
		awake := e.GPUs()[0].MemoryUsedBytes
		r := &Request{ID: "a", PromptLength: 512, OutputLength: 200}
		e.Submit(r)
		time.Sleep(500 * time.Millisecond)
		e.Sleep(1)
		time.Sleep(time.Minute)
		synctest.Wait()
		if e.SleepLevel() != 1 {
			t.Errorf("sleep level %d", e.SleepLevel())
		}
		last := l.steps[len(l.steps)-1]
		if last.Running != 0 || last.Waiting != 1 || last.KVCacheUsage != 0 {
			t.Errorf("asleep: %+v", last)
		}
		asleep := e.GPUs()[0]
		if asleep.MemoryUsedBytes > 0.1*awake || asleep.MemoryBandwidthRatio != 0 {
			t.Errorf("asleep: %+v", asleep)
		}
		late := &Request{ID: "b", PromptLength: 10, OutputLength: 1}
		e.Submit(late)
		time.Sleep(time.Minute)
		e.Wake()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if r.generated != 200 || r.Preemptions != 1 || r.End < 120 || late.FirstToken < 120 {
			t.Errorf("after waking: %+v, %+v", *r, *late)
		}
		if e.SleepLevel() != 0 || e.GPUs()[0].MemoryUsedBytes != awake {
			t.Errorf("awake at level %d with %v bytes", e.SleepLevel(), e.GPUs()[0].MemoryUsedBytes)
		}
	})
}

func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, preset(t, "8b-h100", nil))
		e.Submit(&Request{ID: "a", PromptLength: 512, OutputLength: 7000})
		time.Sleep(5 * time.Second)
		full := e.GPUs()[0]
		e.Slow(2)
		time.Sleep(5 * time.Second)
		slow := e.GPUs()[0]
		e.Slow(0.5) // counts as 1
		time.Sleep(5 * time.Second)
		again := e.GPUs()[0]
		if ratio := full.MemoryBandwidthRatio / slow.MemoryBandwidthRatio; math.Abs(ratio-2) > 0.02 {
			t.Errorf("bandwidth %v times less at half the speed", ratio)
		}
		if slow.SMClockHertz != full.SMClockHertz/2 || slow.PowerWatts >= full.PowerWatts || slow.PowerWatts <= 115 {
			t.Errorf("at full speed %+v, at half %+v", full, slow)
		}
		if again.SMClockHertz != full.SMClockHertz || math.Abs(again.MemoryBandwidthRatio/full.MemoryBandwidthRatio-1) > 0.02 {
			t.Errorf("at full speed %+v, then %+v", full, again)
		}
	})
}

func TestGPUReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, preset(t, "8b-h100", nil))
		idle := e.GPUs()[0]
		if idle.MemoryBandwidthRatio != 0 || idle.SMActiveRatio != 0 || idle.PowerWatts != 115 || idle.PowerLimit != 700 || idle.MemoryBandwidthPeak != 3.35e12 {
			t.Errorf("idle: %+v", idle)
		}
		if share := idle.MemoryUsedBytes / idle.MemorySizeBytes; math.Abs(share-0.9) > 0.005 {
			t.Errorf("%.3f of the memory used", share)
		}

		// One sequence: a step reads 15e9 bytes and some KV cache in about 6.6 ms.
		one := &Request{ID: "one", PromptLength: 500, OutputLength: 1000}
		e.Submit(one)
		time.Sleep(3 * time.Second)
		decode := e.GPUs()[0]
		if want := 15.1e9 / 6.6e-3 / 3.35e12; math.Abs(decode.MemoryBandwidthRatio/want-1) > 0.02 {
			t.Errorf("bandwidth ratio %.3f at one sequence, want %.3f", decode.MemoryBandwidthRatio, want)
		}
		if decode.SMActiveRatio < 0.8 || decode.SMActiveRatio > 0.9 { // 5.6 of 6.6 ms
			t.Errorf("SM active %.3f", decode.SMActiveRatio)
		}

		// Prompts only: bound by compute, at the power limit, cooler only by inertia.
		var prompts []*Request
		for range 1000 {
			prompts = append(prompts, &Request{Arrival: e.Now(), PromptLength: 4096, OutputLength: 1})
		}
		submitAll(t, e, prompts)
		time.Sleep(3 * time.Second)
		prefill := e.GPUs()[0]
		if prefill.PowerWatts < 600 || prefill.PowerWatts > 700 || prefill.MemoryBandwidthRatio > 0.15 || prefill.SMActiveRatio < 0.95 {
			t.Errorf("prefill: %+v", prefill)
		}
		if prefill.PowerWatts <= decode.PowerWatts {
			t.Errorf("prefill draws %v W, decode %v", prefill.PowerWatts, decode.PowerWatts)
		}
		time.Sleep(40 * time.Second)
		warm := e.GPUs()[0]
		if warm.TemperatureCelsius < prefill.TemperatureCelsius+10 || warm.TemperatureCelsius > 75 {
			t.Errorf("%v C after 3 s, %v C after 43 s", prefill.TemperatureCelsius, warm.TemperatureCelsius)
		}
		time.Sleep(time.Hour)
		cold := e.GPUs()[0]
		if joules := cold.EnergyJoules - warm.EnergyJoules; joules < 3600*115 || joules > 3600*130 {
			t.Errorf("an idle hour after some work took %v J", joules)
		}
		cold.At, cold.EnergyJoules = idle.At, idle.EnergyJoules
		if diff := cmp.Diff(idle, cold, cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("idle at first and later differ:\n%s", diff)
		}
	})
}

func TestGPUsOfAllRanks(t *testing.T) {
	read := func(seed uint64) []gpu.Reading {
		e, err := NewEngine(preset(t, "70b-8xh100", func(c *Config) { c.Ranks = 2; c.Seed = seed }))
		if err != nil {
			t.Fatal(err)
		}
		return e.Snapshot().Readings
	}
	a, b, other := read(1), read(1), read(2)
	if len(a) != 16 {
		t.Fatalf("%d GPUs, want 16", len(a))
	}
	seen := map[string]bool{}
	for i := range a {
		if a[i].Index != i || seen[a[i].UUID] || a[i].UUID != b[i].UUID || a[i].UUID == other[i].UUID {
			t.Errorf("GPU %d: index %d, UUID %s, again %s, other seed %s", i, a[i].Index, a[i].UUID, b[i].UUID, other[i].UUID)
		}
		seen[a[i].UUID] = true
		if len(a[i].UUID) != len("GPU-")+36 || strings.Count(a[i].UUID, "-") != 5 {
			t.Errorf("UUID %s", a[i].UUID)
		}
	}
	if _, err := NewEngine(Config{}); err == nil {
		t.Error("an empty configuration is accepted")
	}
}
