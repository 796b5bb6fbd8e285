package sidecar_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headroom_exporter/collector/engine"
	"headroom_exporter/rules"
	"headroom_exporter/sidecar"
)

// recorder keeps what it was given last.
type recorder struct {
	samples []rules.Sample
	at      time.Time
	calls   int
	err     error
	takes   time.Duration
	// unread is part of the names that no rule reads.
	unread string
}

func (r *recorder) Reads(name string) bool {
	return !strings.Contains(name, r.unread) || r.unread == ""
}

func (r *recorder) Append(at time.Time, samples []rules.Sample) error {
	time.Sleep(r.takes)
	r.samples, r.at = slices.Clone(samples), at
	r.calls++
	return r.err
}

// series writes samples as name{label="value"} value.
func (r *recorder) series() []string {
	var lines []string
	for _, s := range r.samples {
		labels := make([]string, len(s.LabelNames))
		for i := range labels {
			labels[i] = fmt.Sprintf("%s=%q", s.LabelNames[i], s.LabelValues[i])
		}
		lines = append(lines, fmt.Sprintf("%s{%s} %v", s.Name, strings.Join(labels, ","), s.Value))
	}
	return lines
}

func exposed(_ *sidecar.Snapshot, reads func(string) bool, add func(string, []string, []string, float64)) {
	for _, sample := range []rules.Sample{
		{Name: "headroom_load_ratio", LabelNames: []string{"constraint"}, LabelValues: []string{"queue"}, Value: 0.25},
		{Name: "headroom_gpu_energy_joules_total", Value: 7},
	} {
		if reads(sample.Name) {
			add(sample.Name, sample.LabelNames, sample.LabelValues, sample.Value)
		}
	}
}

func TestFeedGivesWhatIsExposedAndTheEnginesOwnNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		feed := sidecar.NewFeed(rec, exposed, slog.New(slog.DiscardHandler))
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		s := newSidecar(t, f, func(_ *engine.Config, c *sidecar.Config) { c.Published = feed.Offer })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go feed.Run(ctx)
		run(s, 3, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		synctest.Wait()

		if rec.calls != 3 || !rec.at.Equal(s.Snapshot().At) {
			t.Errorf("%d calls, the last at %v; want 3 and %v", rec.calls, rec.at, s.Snapshot().At)
		}
		got := rec.series()
		for _, want := range []string{
			`headroom_load_ratio{constraint="queue"} 0.25`,
			`headroom_gpu_energy_joules_total{} 7`,
			`headroom_engine_generation_tokens_total{model_name="m",engine="0"} 300`,
			`headroom_engine_steps_total{model_name="m",engine="0"} 150`,
			`headroom_engine_time_to_first_token_seconds_bucket{model_name="m",engine="0",le="+Inf"} 6`,
			`headroom_engine_time_to_first_token_seconds_count{model_name="m",engine="0"} 6`,
			`headroom_engine_prefill_time_seconds_sum{model_name="m",engine="0"} 0.6000000000000001`,
		} {
			if !slices.Contains(got, want) {
				t.Errorf("no sample %s in\n%s", want, strings.Join(got, "\n"))
			}
		}
		known := sidecar.EngineSeries()
		for _, sample := range rec.samples {
			if strings.HasPrefix(sample.Name, "headroom_engine_") && !slices.Contains(known, sample.Name) {
				t.Errorf("%s is fed but not listed, so that a rule could record over it", sample.Name)
			}
		}

		// What no rule reads is not made.
		rec.unread = "token"
		run(s, 1, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		synctest.Wait()
		if all := strings.Join(rec.series(), "\n"); strings.Contains(all, "token") || !strings.Contains(all, "headroom_engine_prefill_time_seconds_sum") {
			t.Errorf("no rule reads tokens, and the rules get\n%s", all)
		}
		rec.unread = ""

		// Nothing of an engine that is gone; what is exposed goes on.
		f.down = true
		run(s, 5, nil)
		synctest.Wait()
		if got := rec.series(); len(got) != 2 {
			t.Errorf("the engine is down, and the rules get\n%s", strings.Join(got, "\n"))
		}
	})
}

// A store that hangs costs the rules samples, and the live loop nothing.
func TestFeedNeverHoldsUpTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{takes: 10 * time.Second}
		feed := sidecar.NewFeed(rec, exposed, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go feed.Run(ctx)
		for range 30 {
			begin := time.Now()
			feed.Offer(&sidecar.Snapshot{At: begin})
			if waited := time.Since(begin); waited != 0 {
				t.Fatalf("offering a snapshot waited %v", waited)
			}
			time.Sleep(time.Second)
		}
		if feed.Skipped() < 20 {
			t.Errorf("%d snapshots were skipped", feed.Skipped())
		}
		time.Sleep(time.Minute)
	})
}

func TestFeedSaysOnceThatTheRulesMissSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		rec := &recorder{err: errors.New("no space left on device")}
		feed := sidecar.NewFeed(rec, exposed, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go feed.Run(ctx)
		offer := func() {
			feed.Offer(&sidecar.Snapshot{At: time.Now()})
			synctest.Wait()
		}
		offer()
		offer()
		rec.err = nil
		offer()
		offer()
		if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "no space left on device") {
			t.Errorf("the log has %d lines:\n%s", n, log.String())
		}
	})
}

func TestPromiseThatIsNoBoundIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{ranks: []fakeRank{{running: 4, kvUsage: 0.36}}}
		s := newSidecar(t, f, func(_ *engine.Config, c *sidecar.Config) { c.SLO.TokenLatency = 70 * time.Millisecond })
		run(s, 2, func(int) { f.ranks[0].second(2, 100, 50, 50) })
		reasons := strings.Join(s.Snapshot().Replicas[0].Reasons, "\n")
		if !strings.Contains(reasons, "--slo.itl") {
			t.Errorf("no reason names --slo.itl:\n%s", reasons)
		}
	})
}
