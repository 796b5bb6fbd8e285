package engine

import (
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCacheGivesTheSame: the second poll, which parses no labels, reads what the first did.
func TestCacheGivesTheSame(t *testing.T) {
	for _, name := range []string{"vllm-0.32-dp2-mfu-loaded.prom", "sglang-0.4-loaded.prom", "ray-2.32-vllm-0.6-partial.prom"} {
		n := newNormaliser(tables, "")
		body := []byte(capture(t, name))
		var printed [2]string
		var known [2]int
		for i := range printed {
			sum, f := n.pages.read(body, classic)
			if f != nil {
				t.Fatal(f)
			}
			for index, present := range sum.families {
				if present {
					ranks, carried := n.ranks(index, time.Time{})
					for _, r := range ranks {
						printed[i] += fmt.Sprint(r.ModelName, r.Engine, r.values, carried)
						for h := range numHistograms {
							printed[i] += fmt.Sprintf("%+v", r.Histogram(h))
						}
					}
				}
			}
			known[i] = len(n.pages.known)
		}
		if printed[0] != printed[1] || printed[0] == "" || known[0] != known[1] {
			t.Errorf("%s: first and second reading differ", name)
		}
	}
}

func TestContentTypes(t *testing.T) {
	page := vllmPage(0, busy("0", 1, 0, 1))
	for contentType, reason := range map[string]string{
		"": "", "text/plain": "", "text/plain; version=0.0.4": "", "text/plain; version=1.0.0; escaping=underscores": "",
		"garbage;;;": "", "application/octet-stream": "",
		openMetrics:        "malformed", // no # EOF
		"application/json": "not_metrics",
		"text/html":        "not_metrics",
		"application/vnd.google.protobuf; proto=x": "not_metrics",
	} {
		_, f := newPages(tables, "").read([]byte(page), contentType)
		if got := ""; f != nil && f.Reason != reason || f == nil && reason != got {
			t.Errorf("%q gives %v, want %q", contentType, f, reason)
		}
	}
}

// TestFailedPageLeavesNothing: series of a page that ends badly are not kept.
func TestFailedPageLeavesNothing(t *testing.T) {
	p := newPages(tables, "")
	if _, f := p.read([]byte("a 1\n"), classic); f != nil || len(p.known) != 1 {
		t.Fatal(f, len(p.known))
	}
	if _, f := p.read([]byte(strings.Repeat("b 1\nc{x=\"1\"} 2\n", 3)+"}\n"), classic); f == nil || len(p.known) != 0 {
		t.Fatalf("failure %v, %d series known", f, len(p.known))
	}
}

// FuzzPage: no page makes the reader panic, and no number that cannot be gets
// through as a usage, a capacity or a limit.
func FuzzPage(f *testing.F) {
	files, err := filepath.Glob("testdata/*.*m")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		if len(b) < 4<<10 {
			f.Add(b, false)
		}
	}
	f.Add([]byte(rustPage), true)
	f.Add([]byte(strings.NewReplacer("PREFIX", "", "L}", `engine_type="x"}`, "{L,", `{engine_type="x",`).Replace(trtllmPage)), false)
	f.Add([]byte(vllmPage(1000, busy("0", 1, 2, 3), busy("1", 1, 2, 3))), false)
	f.Add([]byte(`vllm:cache_config_info{engine="0",kv_cache_size_tokens="NaN",num_gpu_blocks="1e999",block_size="-1"} 1`+"\nvllm:kv_cache_usage_perc{engine=\"0\"} +Inf\n"), false)
	f.Add([]byte("{\"vllm:num_requests_running\",engine=\"0\"} 1\nvllm:time_to_first_token_seconds_bucket{le=\"nan\"} 1\n"), false)
	f.Fuzz(func(t *testing.T, body []byte, open bool) {
		contentType := classic
		if open {
			contentType = openMetrics
		}
		n := newNormaliser(tables, "")
		for range 3 {
			sum, failed := n.pages.read(body, contentType)
			if failed != nil {
				if len(failed.Error()) == 0 || failed.Reason == "" {
					t.Error("a failure without words")
				}
				return
			}
			for index, present := range sum.families {
				if !present {
					continue
				}
				ranks, _ := n.ranks(index, time.Time{})
				for i := range ranks {
					l := limits{flags: settings{}, defaults: n.pages.tables[index].defaults}
					l.apply(&ranks[i])
					checkRank(t, &ranks[i])
				}
			}
			n.pages.trim(sum.series)
		}
	})
}

func checkRank(t *testing.T, r *Rank) {
	for s := range numSignals {
		if v := r.Value(s); math.IsInf(v, 0) || v < 0 {
			t.Errorf("%s is %v", s, v)
		}
	}
	for _, s := range []Signal{KVCacheUsage, PrefixCacheHitRate} {
		if r.Value(s) > 1 {
			t.Errorf("%s is %v", s, r.Value(s))
		}
	}
	for _, l := range []Limit{r.TokenSlots, r.SequenceSlots, r.BatchedTokens} {
		if l.Known() != (l.Source != "") || math.IsInf(l.Value, 0) || l.Value <= 0 {
			t.Errorf("limit is %+v", l)
		}
	}
	for s := range numHistograms {
		h := r.Histogram(s)
		if h == nil {
			continue
		}
		if len(h.Bounds) != len(h.Counts) || !math.IsInf(h.Bounds[len(h.Bounds)-1], 1) {
			t.Fatalf("%s is %+v", s, h)
		}
		for i := 1; i < len(h.Counts); i++ {
			if h.Counts[i] < h.Counts[i-1] || h.Bounds[i] <= h.Bounds[i-1] {
				t.Errorf("%s is %+v", s, h)
			}
		}
	}
}

// largePage has n series at least: four ranks with every family of the captured two.
func largePage(tb testing.TB) string {
	two := capture(tb, "vllm-0.32-dp2-mfu-loaded.prom")
	var b strings.Builder
	b.WriteString(two)
	for _, line := range strings.SplitAfter(two, "\n") {
		if strings.Contains(line, `engine="0"`) {
			b.WriteString(strings.Replace(line, `engine="0"`, `engine="2"`, 1))
			b.WriteString(strings.Replace(line, `engine="0"`, `engine="3"`, 1))
			b.WriteString(strings.Replace(line, `engine="0"`, `engine="4"`, 1))
		}
	}
	return b.String()
}

// BenchmarkPage reads the same page again and again, as a poll does: parse,
// place, reduce, correct, without the HTTP request.
func BenchmarkPage(b *testing.B) {
	for name, page := range map[string]string{
		"460-series": capture(b, "vllm-0.32-prefix-abort.prom"), "2000-series": largePage(b),
	} {
		b.Run(name, func(b *testing.B) {
			n := newNormaliser(tables, "")
			index := slices.Index(tables, tableOf(tables, TypeVLLM))
			body := []byte(page)
			var series int
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				sum, f := n.pages.read(body, classic)
				if f != nil {
					b.Fatal(f)
				}
				if ranks, _ := n.ranks(index, time.Time{}); len(ranks) == 0 {
					b.Fatal("no ranks")
				}
				n.pages.trim(sum.series)
				series = sum.series
			}
			b.ReportMetric(float64(series), "series")
		})
	}
}

// BenchmarkPoll is a whole poll over loopback HTTP; the server's share is in it.
func BenchmarkPoll(b *testing.B) {
	for name, page := range map[string]string{
		"460-series": capture(b, "vllm-0.32-prefix-abort.prom"), "2000-series": largePage(b),
	} {
		b.Run(name, func(b *testing.B) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/metrics" {
					http.NotFound(w, r)
					return
				}
				serve(classic, page)(w, r)
			}))
			defer s.Close()
			p, err := New(Config{URL: s.URL, ProcPath: b.TempDir()}, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			b.ReportAllocs()
			for b.Loop() {
				if o := p.Poll(b.Context()); !o.Fresh {
					b.Fatal(o.Err)
				}
			}
		})
	}
}
