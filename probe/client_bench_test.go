package probe

import (
	"context"
	"net"
	"sync"
	"testing"

	"headroom_exporter/probe/nullserver"
	"headroom_exporter/probe/workload"
)

// BenchmarkShortRequests sends 512 prompt tokens for one token, 64 at a time.
func BenchmarkShortRequests(b *testing.B) { benchmarkRequests(b, 64, 512, 1) }

// BenchmarkStreams reads 256 tokens that come as fast as they can.
func BenchmarkStreams(b *testing.B) { benchmarkRequests(b, 32, 16, 256) }

// BenchmarkLongPrompts has 256 prompts of 100,000 tokens in flight, where
// other clients fell to a tenth.
func BenchmarkLongPrompts(b *testing.B) { benchmarkRequests(b, 256, 100_000, 1) }

func benchmarkRequests(b *testing.B, concurrency, prompt, output int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go nullserver.New(nullserver.Config{}).Serve(ctx, l)
	c, err := NewClient(ClientConfig{BaseURL: "http://" + l.Addr().String(), Model: "null", Dialect: Dialect{Usage: true, TokenIDs: true}})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	r := workload.Request{Tokens: make([]int, prompt), MaxTokens: output, IgnoreEOS: true}
	for i := range r.Tokens {
		r.Tokens[i] = 1000 + i%29000
	}
	b.ReportAllocs()
	var wg sync.WaitGroup
	jobs := make(chan struct{})
	for range concurrency {
		wg.Go(func() {
			var x Exchange
			for range jobs {
				if c.Do(ctx, &r, 0, &x); x.Outcome != OK {
					b.Error(x.Outcome, x.Error)
					return
				}
			}
		})
	}
	for b.Loop() {
		jobs <- struct{}{}
	}
	close(jobs)
	wg.Wait()
}
