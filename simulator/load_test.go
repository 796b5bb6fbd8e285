package simulator

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestParseLoad(t *testing.T) {
	for text, rates := range map[string]map[float64]float64{
		"off":              nil,
		"constant:12.5":    {0: 12.5, 1e6: 12.5},
		"ramp:10:30:100s":  {0: 10, 50: 20, 100: 30, 1e6: 30},
		"ramp:4:0:1m":      {0: 4, 30: 2, 60: 0, 61: 0},
		"day:40:10m":       nil,
		"constant:0":       {0: 0},
		"constant:1e2":     {3: 100},
		"ramp:0:5:1h30m0s": {5400: 5, 2700: 2.5},
	} {
		l, err := ParseLoad(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if l.String() != text {
			t.Errorf("%s prints as %s", text, l)
		}
		for at, want := range rates {
			if got := l.rate(1, at); math.Abs(got-want) > 1e-9 {
				t.Errorf("%s: the rate after %g s is %g, want %g", text, at, got, want)
			}
		}
	}
	if got := (Load{}).String(); got != "off" {
		t.Errorf("the zero load prints as %s", got)
	}
}

func TestParseLoadErrors(t *testing.T) {
	bad := writeFile(t, "bad.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,12,x\r\n")
	short := writeFile(t, "short.jsonl", `{"timestamp":0,"input_length":600,"output_length":3,"hash_ids":[1]}`)
	none := writeFile(t, "none.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n")
	for text, want := range map[string]string{
		"":                        `load "": no shape "": want off, constant:RATE, ramp:FROM:TO:DURATION, day:PEAK:PERIOD or trace:FORMAT:PATH`,
		"sine:3":                  `no shape "sine"`,
		"off:1":                   "off takes no argument",
		"constant":                `RATE is ""`,
		"constant:-1":             `RATE is "-1": want requests per second from 0 to 100000`,
		"constant:NaN":            `RATE is "NaN"`,
		"constant:1e9":            `RATE is "1e9"`,
		"constant:1:2":            "want constant:RATE",
		"ramp:1:2":                "want ramp:FROM:TO:DURATION",
		"ramp:1:2:3":              `DURATION is "3": want a time above 0 such as 90s or 10m`,
		"ramp:a:b:c":              `FROM is "a"`,
		"ramp:1:2:0s":             `DURATION is "0s"`,
		"day:40":                  "want day:PEAK:PERIOD",
		"day:40:-1m":              `PERIOD is "-1m"`,
		"trace:azure":             "want trace:FORMAT:PATH",
		"trace:csv:x":             `no trace format "csv": want azure or mooncake`,
		"trace:azure:gone":        "opening the trace: open gone: no such file or directory",
		"trace:azure:" + bad:      `line 2: GeneratedTokens is "x", want a number`,
		"trace:azure:" + short:    "header",
		"trace:azure:" + none:     "the trace has no requests",
		"trace:mooncake:" + bad:   "line 1: ",
		"trace:mooncake:" + short: "line 1: 1 hash_ids for 600 tokens, want 2",
	} {
		_, err := ParseLoad(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
			continue
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error has several lines: %v", text, err)
		}
	}
}

// arrivals draws those of a load up to a time.
func arrivals(l Load, engine Config, cfg LoadConfig, until float64) (at []float64, requests []*Request) {
	for t, r := range l.requests(engine, cfg) {
		if t >= until {
			break
		}
		if r != nil {
			at, requests = append(at, t), append(requests, r)
		}
	}
	return at, requests
}

// TestArrivalsArePoisson counts arrivals in slots of equal expectation: their
// mean is the rate, their variance the mean.
func TestArrivalsArePoisson(t *testing.T) {
	l, err := ParseLoad("constant:20")
	if err != nil {
		t.Fatal(err)
	}
	const slots = 2000
	at, requests := arrivals(l, realConfig(t), LoadConfig{Seed: 3, PromptMean: 100, OutputMean: 40}, slots)
	counts := make([]float64, slots)
	for _, x := range at {
		counts[int(x)]++
	}
	var mean, variance float64
	for _, c := range counts {
		mean += c / slots
	}
	for _, c := range counts {
		variance += (c - mean) * (c - mean) / (slots - 1)
	}
	// Deviations: sqrt(20/2000) = 0.1 of the mean, 20*sqrt(2/2000) = 0.6 of the variance.
	if math.Abs(mean-20) > 0.4 || math.Abs(variance-20) > 2.6 {
		t.Errorf("mean %.2f, variance %.2f, want 20 and 20", mean, variance)
	}
	var prompt, output float64
	for _, r := range requests {
		prompt += float64(r.PromptLength) / float64(len(requests))
		output += float64(r.OutputLength) / float64(len(requests))
		if r.MaxTokens != r.OutputLength || r.FinishReason != FinishLength {
			t.Fatalf("request %+v", r)
		}
	}
	if math.Abs(prompt-100) > 2 || math.Abs(output-40) > 1 {
		t.Errorf("mean lengths %.1f and %.1f, want 100 and 40", prompt, output)
	}
}

func TestArrivalsFollowTheRamp(t *testing.T) {
	l, err := ParseLoad("ramp:0:40:1000s")
	if err != nil {
		t.Fatal(err)
	}
	at, _ := arrivals(l, realConfig(t), LoadConfig{Seed: 5}, 1000)
	late := 0
	for _, x := range at {
		if x >= 500 {
			late++
		}
	}
	// 20,000 in all, three quarters of them in the second half.
	if n := float64(len(at)); math.Abs(n-20000) > 4*math.Sqrt(20000) || math.Abs(float64(late)-15000) > 4*math.Sqrt(15000) {
		t.Errorf("%d arrivals, %d in the second half", len(at), late)
	}
}

func TestSameSeedSameRequests(t *testing.T) {
	l, err := ParseLoad("day:30:5m")
	if err != nil {
		t.Fatal(err)
	}
	at1, r1 := arrivals(l, realConfig(t), LoadConfig{Seed: 9}, 120)
	at2, r2 := arrivals(l, realConfig(t), LoadConfig{Seed: 9}, 120)
	if diff := cmp.Diff(at1, at2); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(r1, r2, cmpopts.IgnoreUnexported(Request{})); diff != "" {
		t.Error(diff)
	}
	if at3, _ := arrivals(l, realConfig(t), LoadConfig{Seed: 10}, 120); cmp.Equal(at1, at3) {
		t.Error("another seed gives the same arrivals")
	}
}

// TestDayShape: a low night, the peak at noon and never above, a decline.
func TestDayShape(t *testing.T) {
	const peak, period = 40.0, 2400.0
	l, err := ParseLoad("day:40:40m")
	if err != nil {
		t.Fatal(err)
	}
	at := func(hour float64) float64 {
		sum := 0.0
		// A mean over an hour, so that the noise does not matter.
		for i := range 60 {
			sum += l.rate(4, period*(hour-dayBegins-0.5+float64(i)/60)/24) / 60
		}
		return sum / peak
	}
	for hour, want := range map[float64][2]float64{
		5: {.1, .25}, 9: {.6, .85}, 12.5: {.9, 1}, 14: {.75, .95}, 20: {.4, .6}, 24 + 4: {.1, .25}, 24 + 12.5: {.9, 1},
	} {
		if got := at(hour); got < want[0] || got > want[1] {
			t.Errorf("at %g h the rate is %.2f of the peak, want %v", hour, got, want)
		}
	}
	most, noisy := 0.0, 0
	for i := range 24000 {
		x := float64(i) / 10
		rate := l.rate(4, x)
		most = max(most, rate)
		if rate < 0 || rate > peak {
			t.Fatalf("after %g s the rate is %g, the peak %g", x, rate, peak)
		}
		if math.Abs(rate-l.rate(5, x)) > 0.01*peak {
			noisy++
		}
	}
	if most < 0.95*peak {
		t.Errorf("the highest rate is %g, the peak %g", most, peak)
	}
	if noisy < 6000 {
		t.Errorf("two seeds differ in %d of 24000 samples", noisy)
	}
}

const azureSample = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n" +
	"2023-11-16 18:17:03.9799600,4808,10\r\n" +
	"2023-11-16 18:17:04.0319600,110,27\r\n" +
	"2023-11-16 18:17:05.9799600,3180,0"

const mooncakeSample = `{"timestamp": 3000, "input_length": 1030, "output_length": 40, "hash_ids": [1, 2, 3]}
{"timestamp": 3000, "input_length": 512, "output_length": 50, "hash_ids": [1]}
{"timestamp": 3000, "input_length": 1200, "output_length": 60, "hash_ids": [1, 2, 9]}
{"timestamp": 6000, "input_length": 700, "output_length": 7, "hash_ids": [8, 7]}
`

func TestTraces(t *testing.T) {
	for _, c := range []struct {
		format, text string
		want         []traceRecord
		period       float64
	}{
		// Six lines end by CRLF, the last by nothing; a request without output makes one token.
		{"azure", azureSample, []traceRecord{{at: 0, prompt: 4808, output: 10}, {at: 0.052, prompt: 110, output: 27}, {at: 2, prompt: 3180, output: 1}}, 3},
		// Those of one time are dealt over the slot of three seconds.
		{"mooncake", mooncakeSample, []traceRecord{
			{at: 0, prompt: 1030, output: 40, blocks: []int64{1, 2, 3}}, {at: 1, prompt: 512, output: 50, blocks: []int64{1}},
			{at: 2, prompt: 1200, output: 60, blocks: []int64{1, 2, 9}}, {at: 3, prompt: 700, output: 7, blocks: []int64{8, 7}}}, 4},
	} {
		got, err := readTrace(c.format, writeFile(t, "trace", c.text))
		if err != nil {
			t.Errorf("%s: %v", c.format, err)
			continue
		}
		if diff := cmp.Diff(c.want, got.records, cmp.AllowUnexported(traceRecord{}), cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Errorf("%s: %s", c.format, diff)
		}
		if math.Abs(got.period-c.period) > 1e-9 {
			t.Errorf("%s: it begins again after %g s, want %g", c.format, got.period, c.period)
		}
	}
}

func TestTraceIsCutToTheContextAndLoops(t *testing.T) {
	l, err := ParseLoad("trace:azure:" + writeFile(t, "trace", azureSample))
	if err != nil {
		t.Fatal(err)
	}
	cfg := realConfig(t) // a context of 2048
	at, requests := arrivals(l, cfg, LoadConfig{}, 5.5)
	if diff := cmp.Diff([]float64{0, 0.052, 2, 3, 3.052, 5}, at, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
		t.Error(diff)
	}
	for _, r := range requests {
		if err := cfg.Accept(r); err != nil {
			t.Error(err)
		}
	}
	if r := requests[0]; r.PromptLength != 2038 || r.OutputLength != 10 {
		t.Errorf("4808+10 tokens became %d+%d", r.PromptLength, r.OutputLength)
	}
	l.Loop = false
	if at, _ := arrivals(l, cfg, LoadConfig{}, 100); len(at) != 3 {
		t.Errorf("%d arrivals without a loop, want 3", len(at))
	}
}

// TestMooncakePrefixesAreShared: 512 tokens of the second request and 1024 of
// the third were in the first.
func TestMooncakePrefixesAreShared(t *testing.T) {
	l, err := ParseLoad("trace:mooncake:" + writeFile(t, "trace", mooncakeSample))
	if err != nil {
		t.Fatal(err)
	}
	l.Loop = false
	synctest.Test(t, func(t *testing.T) {
		e, _, h := serve(t, realConfig(t))
		if err := l.Run(t.Context(), e, LoadConfig{}); err != nil {
			t.Fatal(err)
		}
		if got := time.Duration(e.Now() * 1e9).Round(time.Microsecond); got != 3*time.Second {
			t.Errorf("the trace took %v", got)
		}
		time.Sleep(10 * time.Second)
		checkValues(t, values(t, h), map[string]string{
			`request_success_total{finished_reason="length"}`: "4.0",
			"prompt_tokens_total":                             "3442.0",
			// At least one token is computed: of the second's 512 all but its last block of 32.
			"prefix_cache_hits_total": "1504.0",
			"generation_tokens_total": "157.0",
		})
	})
}

// TestLoadRuns drives an engine on virtual time at twice its speed.
func TestLoadRuns(t *testing.T) {
	l, err := ParseLoad("ramp:20:0:100s")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		cfg := realConfig(t)
		cfg.Speed = 2
		cfg.MaxNumSeqs = 256
		load := LoadConfig{Seed: 1, PromptMean: 100, OutputMean: 20}
		at, _ := arrivals(l, cfg, load, 120)
		e, _, h := serve(t, cfg)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // 120 simulated seconds
		defer cancel()
		if err := l.Run(ctx, e, load); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the load ended with %v", err)
		}
		var done float64
		for name, value := range values(t, h) {
			if name == `vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}` {
				done = float64(len(value))
				if want := string(appendPythonFloat(nil, float64(len(at)))); value != want {
					t.Errorf("%s requests are done, %s were drawn", value, want)
				}
			}
		}
		if done == 0 {
			t.Error("nothing is counted")
		}
	})
}

func TestLoadOffWaitsForTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _, _ := serve(t, realConfig(t))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := (Load{}).Run(ctx, e, LoadConfig{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no load ended with %v", err)
		}
	})
}

// TestLoadEndsWithTheEngine: the first submission after the engine's end fails.
func TestLoadEndsWithTheEngine(t *testing.T) {
	l, err := ParseLoad("constant:100")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		e, err := NewEngine(realConfig(t))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() { _ = e.Run(ctx) }()
		if err := l.Run(t.Context(), e, LoadConfig{}); !errors.Is(err, ErrStopped) {
			t.Errorf("the load ended with %v", err)
		}
	})
}

// TestLoadDropsWhatNoOneServes keeps a load on a sleeping engine bounded.
func TestLoadDropsWhatNoOneServes(t *testing.T) {
	l, err := ParseLoad("constant:1000")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		cfg := realConfig(t)
		accepted := 0
		e, _, h := serve(t, cfg)
		e.Sleep(1)
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		_ = l.Run(ctx, e, LoadConfig{PromptMean: 10, OutputMean: 1})
		e.Wake()
		time.Sleep(time.Hour)
		for name, value := range values(t, h) {
			if strings.HasPrefix(name, "vllm:request_success_total") && value != "0.0" {
				accepted++
				if value != "10000.0" {
					t.Errorf("%s requests were accepted, want %d", value, maxOutstanding)
				}
			}
		}
		if accepted != 1 {
			t.Errorf("%d finish reasons are counted", accepted)
		}
	})
}

func FuzzTraces(f *testing.F) {
	f.Add("azure", azureSample)
	f.Add("mooncake", mooncakeSample)
	f.Fuzz(func(t *testing.T, format, text string) {
		parse := parseAzure
		if format == "mooncake" {
			parse = parseMooncake
		}
		records, err := parse(strings.NewReader(text))
		if err != nil || len(records) == 0 {
			return
		}
		got, err := newTrace(records)
		if err != nil {
			t.Fatal(err)
		}
		last := 0.0
		for _, r := range got.records {
			if r.at < last || r.prompt < 1 || r.output < 1 {
				t.Fatalf("record %+v after %g s", r, last)
			}
			last = r.at
		}
		if !(got.period >= last) {
			t.Fatalf("the period is %g, the last record at %g", got.period, last)
		}
	})
}

func FuzzParseLoad(f *testing.F) {
	for _, text := range []string{"off", "constant:3", "ramp:1:2:3s", "day:40:10m", "trace:azure:x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.HasPrefix(text, "trace:") {
			return // it would open files
		}
		l, err := ParseLoad(text)
		if err != nil || l.rate == nil {
			return
		}
		for _, at := range []float64{0, 1, 1e3, 1e9} {
			if rate := l.rate(1, at); !(rate >= 0 && rate <= l.most) {
				t.Fatalf("%s: the rate after %g s is %g, at most %g", text, at, rate, l.most)
			}
		}
	})
}
