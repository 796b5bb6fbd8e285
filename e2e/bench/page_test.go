package main

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// served parses what the page answers.
func served(t *testing.T, p *page) map[string]*dto.MetricFamily {
	t.Helper()
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(w.Body.String()))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

func TestPageMovesAndGrows(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "testdata", "vllm-0.32-loaded-queued.prom"))
	if err != nil {
		t.Fatal(err)
	}
	one := newPage(string(text))
	first, second := served(t, one), served(t, one)
	const tokens = "vllm:generation_tokens_total"
	before, after := first[tokens].Metric[0].Counter.GetValue(), second[tokens].Metric[0].Counter.GetValue()
	if before <= 0 || after != before+1 {
		t.Errorf("%s went from %v to %v, want a rise by 1", tokens, before, after)
	}
	const running = "vllm:num_requests_running"
	if a, b := first[running].Metric[0].Gauge.GetValue(), second[running].Metric[0].Gauge.GetValue(); a != 8 || b != 8 {
		t.Errorf("%s is %v, then %v, want 8 as captured", running, a, b)
	}
	for name, family := range second {
		for _, m := range family.Metric {
			last := uint64(0)
			for _, b := range m.GetHistogram().GetBucket() {
				if b.GetCumulativeCount() < last {
					t.Errorf("%s: bucket le=%v holds %d, the one below %d", name, b.GetUpperBound(), b.GetCumulativeCount(), last)
				}
				last = b.GetCumulativeCount()
			}
		}
	}

	grown := one.withSeries(2000)
	if grown.series < 2000 || grown.series > 2500 {
		t.Errorf("the large page has %d series, want 2,000 and not many more", grown.series)
	}
	if ranks := len(served(t, grown)[running].Metric); ranks < 4 {
		t.Errorf("the large page has %d ranks, want several", ranks)
	}
}
