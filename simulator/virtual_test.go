package simulator

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// preset returns a preset changed by a function.
func preset(t testing.TB, name string, change func(*Config)) Config {
	t.Helper()
	cfg, err := Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&cfg)
	}
	return cfg
}

// chat draws the load of the published comparison: prompts of 512 +- 256 and
// outputs of 256 +- 128 tokens.
func chat(seed uint64, rate, duration float64) []*Request {
	return PoissonRequests(seed, rate, duration,
		Lengths{Distribution: NormalLength, Mean: 512, SD: 256},
		Lengths{Distribution: NormalLength, Mean: 256, SD: 128})
}

func runVirtual(t testing.TB, cfg Config, requests []*Request, until float64) Result {
	t.Helper()
	result, err := RunVirtual(cfg, requests, until)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// latencies returns the mean inter-token latency and the 99th percentile of
// the time to first token, in seconds.
func latencies(requests []*Request) (itl, ttft float64) {
	var decode, gaps float64
	var first []float64
	for _, r := range requests {
		decode += r.LastToken - r.FirstToken
		gaps += float64(r.OutputLength - 1)
		first = append(first, r.FirstToken-r.Arrival)
	}
	slices.Sort(first)
	return decode / gaps, first[int(math.Ceil(0.99*float64(len(first))))-1]
}

// medianLatencies are the medians of latencies over runs of the chat load for
// 60 s from several seeds, until all requests have ended.
func medianLatencies(t *testing.T, cfg Config, rate float64) (itl, ttft float64) {
	t.Helper()
	var itls, ttfts []float64
	for seed := range uint64(3) {
		i, f := latencies(runVirtual(t, cfg, chat(seed, rate, 60), 160).Finished)
		itls, ttfts = append(itls, i), append(ttfts, f)
	}
	slices.Sort(itls)
	slices.Sort(ttfts)
	return itls[1], ttfts[1]
}

// The published figures are of another implementation of the same scheduler
// and step model, run for 60 s; its p99 is that of one seed.
func TestPublishedLatencies(t *testing.T) {
	for _, test := range []struct {
		rate, itl         float64
		ttftMin, ttftMost float64
	}{
		{5, 0.0073, 0.049 * 0.75, 0.049 * 1.25},
		{10, 0.0083, 0.056 * 0.75, 0.056 * 1.25},
		{20, 0.0114, 0.081 * 0.75, 0.081 * 1.25},
		{30, 0.0182, 0.104 * 0.75, 0.104 * 1.25},
		// Past the knee the published 7.2 s depends on the seed by more than that.
		{40, 0.0266, 7.2 * 0.6, 7.2 * 1.4},
	} {
		t.Run(fmt.Sprint(test.rate), func(t *testing.T) {
			itl, ttft := medianLatencies(t, preset(t, "8b-h100", nil), test.rate)
			t.Logf("mean ITL %.1f ms, p99 TTFT %.3f s", itl*1e3, ttft)
			if math.Abs(itl/test.itl-1) > 0.1 {
				t.Errorf("mean ITL %.2f ms, published %.2f", itl*1e3, test.itl*1e3)
			}
			if ttft < test.ttftMin || ttft > test.ttftMost {
				t.Errorf("p99 TTFT %.3f s, want %.3f to %.3f", ttft, test.ttftMin, test.ttftMost)
			}
		})
	}
}

// The knee is where the p99 of the time to first token leaves 0.5 s in runs of 60 s.
func TestKnee(t *testing.T) {
	for _, test := range []struct {
		preset         string
		passes, breaks float64
	}{
		{"8b-h100", 34, 40},
		{"70b-8xh100", 20, 26},
	} {
		t.Run(test.preset, func(t *testing.T) {
			cfg := preset(t, test.preset, nil)
			if _, got := medianLatencies(t, cfg, test.passes); got > 0.5 {
				t.Errorf("p99 TTFT %.2f s at %v requests/s, want at most 0.5", got, test.passes)
			}
			if _, got := medianLatencies(t, cfg, test.breaks); got < 2 {
				t.Errorf("p99 TTFT %.2f s at %v requests/s, want a queue", got, test.breaks)
			}
		})
	}
	t.Run("queue grows past it only", func(t *testing.T) {
		cfg := preset(t, "8b-h100", nil)
		peak := func(rate, duration float64) int {
			return runVirtual(t, cfg, chat(1, rate, duration), duration).PeakWaiting
		}
		if peak := peak(33, 200); peak > 60 {
			t.Errorf("a queue of %d at 33 requests/s", peak)
		}
		if short, long := peak(40, 60), peak(40, 240); short < 60 || long < 3*short {
			t.Errorf("a queue of %d after 60 s at 40 requests/s, of %d after 240 s", short, long)
		}
	})
}

// Two published simulators saw 663 and 618 preemptions here.
func TestKVBound(t *testing.T) {
	cfg := preset(t, "8b-h100", func(c *Config) { c.NumGPUBlocks = 6000 })
	bound := runVirtual(t, cfg, chat(1, 40, 60), 200)
	free := runVirtual(t, preset(t, "8b-h100", nil), chat(1, 40, 60), 200)
	t.Logf("%d preemptions, KV usage mean %.3f", bound.Preemptions, bound.MeanKVCacheUsage)
	if bound.Preemptions < 450 || bound.Preemptions > 850 {
		t.Errorf("%d preemptions, want several hundred", bound.Preemptions)
	}
	if bound.PeakKVCacheUsage < 0.999 || bound.MeanKVCacheUsage < 0.9 {
		t.Errorf("KV usage peak %.3f, mean %.3f: want it pinned near 1", bound.PeakKVCacheUsage, bound.MeanKVCacheUsage)
	}
	if free.Preemptions != 0 {
		t.Errorf("%d preemptions with the whole KV cache, want none", free.Preemptions)
	}
	if len(bound.Unfinished) != 0 {
		t.Errorf("%d requests did not finish", len(bound.Unfinished))
	}
	preempted, worst := 0, 0
	for _, r := range bound.Finished {
		preempted += r.Preemptions
		worst = max(worst, r.Preemptions)
		if r.generated != r.OutputLength {
			t.Fatalf("request %s has %d of %d tokens", r.ID, r.generated, r.OutputLength)
		}
	}
	if preempted != bound.Preemptions {
		t.Errorf("requests count %d preemptions, steps %d", preempted, bound.Preemptions)
	}
	if bound.PrefillTokensRecomputed == 0 {
		t.Error("nothing was computed again")
	}
	_, boundTTFT := latencies(bound.Finished)
	_, freeTTFT := latencies(free.Finished)
	if boundTTFT < 1.5*freeTTFT {
		t.Errorf("p99 TTFT %.2f s, not much worse than %.2f with the whole KV cache", boundTTFT, freeTTFT)
	}
}

func TestTwoRanksBalance(t *testing.T) {
	cfg := preset(t, "8b-h100", func(c *Config) { c.Ranks = 2 })
	tokens := make([]int, 2)
	cfg.Observer = func(rank int) Observer { return tokenCounter{&tokens[rank]} }
	requests := chat(1, 60, 120)
	result := runVirtual(t, cfg, requests, 200)
	if len(result.Finished) != len(requests) {
		t.Errorf("%d of %d requests finished", len(result.Finished), len(requests))
	}
	want := 0
	for _, r := range requests {
		want += r.OutputLength
	}
	if got := tokens[0] + tokens[1]; got != want {
		t.Errorf("%d tokens, want %d", got, want)
	}
	if ratio := float64(tokens[0]) / float64(tokens[1]); ratio < 0.9 || ratio > 1.1 {
		t.Errorf("ranks made %v tokens", tokens)
	}
	// Two ranks at 60/s are as fast as one at 30/s, within noise.
	itl, _ := latencies(result.Finished)
	if math.Abs(itl/0.0182-1) > 0.1 {
		t.Errorf("mean ITL %.2f ms, want that of one rank at half the rate, 18.2", itl*1e3)
	}
}

type tokenCounter struct{ n *int }

func (c tokenCounter) StepDone(StepStats)                        {}
func (c tokenCounter) TokenDone(*Request, int, float64, float64) { *c.n++ }
func (c tokenCounter) RequestDone(*Request)                      {}
func (c tokenCounter) RequestAborted(*Request)                   {}

func TestRunVirtualIsDeterministic(t *testing.T) {
	cfg := preset(t, "8b-h100", func(c *Config) { c.NumGPUBlocks = 4000; c.Ranks = 2 })
	times := func() (list [][4]float64) {
		result := runVirtual(t, cfg, chat(7, 50, 20), 100)
		for _, r := range result.Finished {
			if r.Queued != r.Arrival+cfg.FrontEndDelay || r.FirstScheduled < r.Queued {
				t.Fatalf("arrived at %v, queued at %v, scheduled at %v", r.Arrival, r.Queued, r.FirstScheduled)
			}
			list = append(list, [4]float64{r.Arrival, r.FirstScheduled, r.FirstToken, r.End})
		}
		return list
	}
	if diff := cmp.Diff(times(), times()); diff != "" {
		t.Error(diff)
	}
}

func TestRunVirtualRefuses(t *testing.T) {
	cfg := preset(t, "8b-h100", nil)
	fit := &Request{ID: "fits", Arrival: 1, PromptLength: 8000, OutputLength: 192}
	long := &Request{ID: "long", Arrival: 2, PromptLength: 8000, OutputLength: 193}
	late := &Request{ID: "late", Arrival: 51, PromptLength: 1, OutputLength: 1}
	result := runVirtual(t, cfg, []*Request{fit, long, late}, 50)
	if !slices.Equal(result.Finished, []*Request{fit}) || !slices.Equal(result.Rejected, []*Request{long}) || len(result.Unfinished) != 0 {
		t.Errorf("finished %v, rejected %v, unfinished %v", result.Finished, result.Rejected, result.Unfinished)
	}
	if err := cfg.Accept(long); !errors.Is(err, ErrTooLong) {
		t.Errorf("error %v, want ErrTooLong", err)
	}
	for name, requests := range map[string][]*Request{
		"unsorted":     {{Arrival: 2, PromptLength: 1, OutputLength: 1}, {Arrival: 1, PromptLength: 1, OutputLength: 1}},
		"before start": {{Arrival: -1, PromptLength: 1, OutputLength: 1}},
		"no arrival":   {{Arrival: math.NaN(), PromptLength: 1, OutputLength: 1}},
	} {
		if _, err := RunVirtual(cfg, requests, 10); !errors.Is(err, errOrder) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := RunVirtual(cfg, nil, math.Inf(1)); err == nil {
		t.Error("a run without an end is accepted")
	}
	cfg.Ranks = 0
	if _, err := RunVirtual(cfg, nil, 1); err == nil {
		t.Error("a configuration without ranks is accepted")
	}
}

func BenchmarkRunVirtual(b *testing.B) {
	cfg := preset(b, "8b-h100", nil)
	b.ReportAllocs()
	steps, tokens := 0, 0
	for b.Loop() {
		b.StopTimer()
		requests := chat(1, 60, 60)
		b.StartTimer()
		result := runVirtual(b, cfg, requests, 60)
		steps += result.Steps
		tokens += result.DecodeTokens + result.PrefillTokens
	}
	b.ReportMetric(float64(steps)/b.Elapsed().Seconds(), "steps/s")
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
}
