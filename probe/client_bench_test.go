package probe

import (
	"context"
	"net"
	"sync"
	"testing"

	"headroom_exporter/probe/nullserver"
	"headroom_exporter/probe/workload"
)

func BenchmarkClientShort(b *testing.B) {
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
	r := workload.Request{Tokens: make([]int, 512), MaxTokens: 1, IgnoreEOS: true}
	for i := range r.Tokens {
		r.Tokens[i] = 1000 + i
	}
	b.ReportAllocs()
	var wg sync.WaitGroup
	jobs := make(chan struct{})
	for range 64 {
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
