package probe

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"headroom_exporter/probe/workload"
	"headroom_exporter/simulator"
)

// idealHits is the share of a trace's prompt tokens in leading blocks that a
// record before has had: what a cache hits that forgets nothing.
func idealHits(trace *workload.Trace) float64 {
	hits, tokens := 0, 0
	seen := map[uint64]bool{}
	for _, r := range trace.Records {
		held := 0
		for held < len(r.Blocks) && seen[r.Blocks[held]] {
			held++
		}
		hits += min(held*trace.BlockSize, r.Prompt)
		tokens += r.Prompt
		for _, b := range r.Blocks {
			seen[b] = true
		}
	}
	return float64(hits) / float64(tokens)
}

// replayHits sends the prompts of a trace to the simulated engine, one after
// the other and for one token each, and returns the share of their tokens that
// the engine's metrics say came from its prefix cache.
func replayHits(t *testing.T, trace *workload.Trace) (share float64) {
	t.Helper()
	endless := func(c *simulator.Config) {
		tokens := 0
		for _, r := range trace.Records {
			tokens += r.Prompt + c.BlockSize
		}
		c.MaxModelLen = 1 << 18
		c.Hardware.KVBytesPerToken = 1
		c.NumGPUBlocks = max(tokens, c.MaxModelLen)/c.BlockSize + 1000
	}
	simulatedAs(t, endless, func(t *testing.T, client *Client, runner *Runner, facts *Facts) {
		source, err := workload.Replay{Trace: trace, Speed: 1e3, ContentSeed: 9, CacheSalt: "salt"}.Source()
		if err != nil {
			t.Fatal(err)
		}
		result, err := runner.Run(t.Context(), Point{
			Name: "replay", Source: source, Concurrency: 1, Requests: len(trace.Records), SharedPrefixes: true,
			Fill: func(q *workload.Request) {
				q.MaxTokens = 1
				facts.Fill(q)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if all := result.All(); all.Outcomes[OK] != len(trace.Records) || len(result.Faults) > 0 {
			t.Fatalf("outcomes %v of %d, faults %v", all.Outcomes, len(trace.Records), result.Faults)
		}
		share = float64(result.Engine.PrefixHitRatio)
		t.Logf("%.5f of %.0f prompt tokens from the cache", share, float64(result.Engine.PrefixQueries))
	})
	return share
}

// readMooncake reads the requests of a trace with prompts up to a length.
func readMooncake(t *testing.T, path string, longest int) *workload.Trace {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	trace, err := workload.ReadTrace(f, workload.ReadOptions{Format: workload.Mooncake})
	if err != nil {
		t.Fatal(err)
	}
	trace.Records = slices.DeleteFunc(trace.Records, func(r workload.Record) bool { return r.Prompt > longest })
	return trace
}

// TestMooncakeReplayHits: prompts made of hash_ids share on an engine what
// they shared when they were recorded, through the client, the API and the
// engine's own metrics.
func TestMooncakeReplayHits(t *testing.T) {
	for name, recorded := range map[string]float64{"mooncake_conversation.jsonl": 0.3665, "mooncake_synthetic.jsonl": 0.1940} {
		trace := readMooncake(t, filepath.Join("workload", "testdata", name), 4000)
		want := idealHits(trace)
		if math.Abs(want-recorded) > 0.00005 {
			t.Errorf("%s: %.5f of the tokens are in blocks that were there before, want %.4f", name, want, recorded)
		}
		// The engine's cache holds whole blocks of 16 tokens, and the last token is always computed.
		if got := replayHits(t, trace); got > want || got < want-0.002 {
			t.Errorf("%s: %.5f of the tokens came from the cache, want %.5f", name, got, want)
		}
	}
}

// TestFullMooncakeReplayHits: of the whole files the share is the published one.
func TestFullMooncakeReplayHits(t *testing.T) {
	folder := os.Getenv("E2E_TRACES_DIR")
	if folder == "" {
		t.Skip("E2E_TRACES_DIR names no folder with the full traces")
	}
	for name, want := range map[string]float64{"mooncake_conversation_first4000.jsonl": 0.331, "mooncake_synthetic_first2000.jsonl": 0.336} {
		if got := replayHits(t, readMooncake(t, filepath.Join(folder, name), math.MaxInt)); math.Abs(got-want) > 0.0015 {
			t.Errorf("%s: %.4f of the tokens came from the cache, want %.3f", name, got, want)
		}
	}
}
