package curve

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headroom_exporter/capacity"
)

func encoded(t testing.TB, c *Curve) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := c.Encode(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestUnknownStaysUnknown(t *testing.T) {
	c := example()
	c.Classes[0].Studies[0].Knee.KVPeak = capacity.Unknown()
	c.Classes[0].Studies[0].Points[0].TTFT.P99 = capacity.Unknown()
	raw := encoded(t, c)
	if !bytes.Contains(raw, []byte(`"kv_usage_peak": null`)) {
		t.Error("what is not known is not null in the file")
	}
	// A key that is absent is not known either, not 0.
	raw = bytes.Replace(raw, []byte(`"kv_usage_peak": null,`), nil, 1)
	raw = bytes.Replace(raw, []byte(`"prefix_cache_hit_ratio": 0,`), nil, 1)
	got, err := Decode(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]Value{
		"knee's KV peak":    got.Classes[0].Studies[0].Knee.KVPeak,
		"TTFT p99":          got.Classes[0].Studies[0].Points[0].TTFT.P99,
		"class's hit ratio": got.Classes[0].PrefixHitRatio,
	} {
		if v.Known() {
			t.Errorf("%s is %g, want not known", name, v)
		}
	}
	if v := got.Classes[1].PrefixHitRatio; v != 0 {
		t.Errorf("the other class's hit ratio is %g, want 0", v)
	}
}

func TestEncodeFillsIn(t *testing.T) {
	c := example()
	c.Schema, c.ID = "", ""
	if !bytes.Equal(encoded(t, c), encoded(t, example())) {
		t.Error("schema and id are not filled in")
	}
	if c.Schema != "" || c.ID != "" {
		t.Error("Encode changes the curve")
	}
}

func TestDecodeRefusesForm(t *testing.T) {
	good := string(encoded(t, example()))
	line := func(part string) string {
		before, _, ok := strings.Cut(good, part)
		if !ok {
			t.Fatalf("no %q in the example", part)
		}
		return fmt.Sprintf("line %d: ", 1+strings.Count(before, "\n"))
	}
	for _, tt := range []struct{ name, old, new, want string }{
		{"nothing", good, "", "the file is empty"},
		{"version", `"capacity-curve/v1"`, `"capacity-curve/v9"`, `schema is "capacity-curve/v9", want "capacity-curve/v1"`},
		{"no version", `"schema": "capacity-curve/v1",`, ``, `schema is "", want`},
		{"unknown key", `"peak_reserve_ratio"`, `"peak_reserve"`, line(`"peak_reserve_ratio"`) + `unknown field "peak_reserve"`},
		{"unknown key deep inside", `"binding_slo"`, `"binding"`, line(`"binding_slo"`) + `unknown field "binding" in classes[0].studies[0].knee`},
		{"spelling", `"weight": 3`, `"Weight": 3`, `unknown field "Weight" in classes[0]`},
		{"twice", `"weight": 3`, `"weight": 3, "weight": 2`, line(`"weight": 3`) + `classes[0].weight is given twice`},
		{"shares twice", `"chat": 0.75`, `"chat": 0.75, "chat": 0.75`, `mixes[0].shares.chat is given twice`},
		{"type", `"weight": 3`, `"weight": "3"`, line(`"weight": 3`) + `classes[0].weight is "3", want a number`},
		{"value's type", `"safe_requests_per_second": 22.08`, `"safe_requests_per_second": "much"`, line(`"safe_requests_per_second": 22.08`) + `classes[0].studies[0].safe_requests_per_second is "much", want a number`},
		{"null", `"weight": 3`, `"weight": null`, `classes[0].weight is null, want a number`},
		{"slo", `"ttft:p99:800ms"`, `"ttft:99:800ms"`, line(`"ttft:p99:800ms"`) + `slo[0]: slo "ttft:99:800ms": percentile is "99"`},
		{"time", `"2026-03-02T09:00:00Z"`, `"yesterday"`, line(`"started"`) + `started: parsing time`},
		{"two values", "\n}\n", "\n}\n{}", "invalid character '{' after top-level value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(good, tt.old) {
				t.Fatalf("no %q in the example", tt.old)
			}
			_, err := Decode(strings.NewReader(strings.Replace(good, tt.old, tt.new, 1)))
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error is %v, want %q in it, in one line", err, tt.want)
			}
		})
	}
}

// smallExample has one study with one point.
func smallExample() *Curve {
	c := example()
	c.Mixes, c.Classes = nil, c.Classes[:1]
	c.Classes[0].Studies = c.Classes[0].Studies[:1]
	study := &c.Classes[0].Studies[0]
	study.Points, study.Soak, study.Baseline, study.Ceiling.Steps = study.Points[:1], nil, nil, nil
	return c
}

// TestHalfWritten cuts the file at many lengths, and at every one near its end.
func TestHalfWritten(t *testing.T) {
	raw := encoded(t, smallExample())
	for n := 0; n < len(raw)-2; n += max(1, min((len(raw)-2-n)/10, 397)) {
		if _, err := Decode(bytes.NewReader(raw[:n])); err == nil {
			t.Errorf("the first %d of %d bytes are read as a curve", n, len(raw))
		}
	}
}

func TestValidateNamesFieldAndValue(t *testing.T) {
	nan := math.NaN()
	study := func(c *Curve) *Study { return &c.Classes[0].Studies[0] }
	for want, breaks := range map[string]func(c *Curve){
		`schema is "x", want "capacity-curve/v1"`:                                        func(c *Curve) { c.Schema = "x" },
		`id is "00", but the identity's hash is "569644ec`:                               func(c *Curve) { c.ID = "00" },
		`identity.model is empty`:                                                        func(c *Curve) { c.Identity.Model = "" },
		`identity: role is "decoder", want one of prefill, decode, both`:                 func(c *Curve) { c.Identity.Role = "decoder" },
		`identity.kv_tokens is 1e+300, want at most 1e+12`:                               func(c *Curve) { c.Identity.KVTokens = 1e300 },
		`classes[0].studies[0].safe_requests_per_second is 99, but the knee is at most `: func(c *Curve) { study(c).SafeRate = 99 },
		`classes[0].studies[0].safe_requests_per_second is 50, but the knee is at most 24`: func(c *Curve) {
			study(c).SafeRate, study(c).Knee.Low, study(c).Knee.High = 50, capacity.Unknown(), capacity.Unknown()
		},
		`identity.max_num_seqs is -1, want 0 or more`:                                               func(c *Curve) { c.Identity.MaxNumSeqs = -1 },
		`identity.gpu_memory_utilization is 90, want at most 1`:                                     func(c *Curve) { c.Identity.GPUMemoryUtilization = 90 },
		`source is "guessed", want one of "measured", "imported", "simulated"`:                      func(c *Curve) { c.Source = "guessed" },
		`imported_from is empty`:                                                                    func(c *Curve) { c.Source = Imported },
		`imported_from is "aiperf", but source is "measured"`:                                       func(c *Curve) { c.ImportedFrom = "aiperf" },
		`slo[1]: slo itl:p0:100ms: want a percentile above 0`:                                       func(c *Curve) { c.SLO[1].Percentile = 0 },
		`peak_reserve_ratio is 1.5, want at most 1`:                                                 func(c *Curve) { c.PeakReserve = 1.5 },
		`peak_reserve_ratio is NaN, want a finite number`:                                           func(c *Curve) { c.PeakReserve = nan },
		`tool.name is empty`:                                                                        func(c *Curve) { c.Tool.Name = "" },
		`workload.hash is "abc", want a SHA-256 in hex`:                                             func(c *Curve) { c.Workload.Hash = "abc" },
		`workload.hash is empty`:                                                                    func(c *Curve) { c.Workload.Hash = "" },
		`started is missing`:                                                                        func(c *Curve) { c.Started = time.Time{} },
		`finished is 2026-03-02 08:00:00 +0000 UTC, before started`:                                 func(c *Curve) { c.Finished = c.Started.Add(-time.Hour) },
		`classes is empty`:                                                                          func(c *Curve) { c.Classes = nil },
		`classes[0].speculative_tokens_per_step is 0.5, want 1 or more`:                             func(c *Curve) { c.Classes[0].SpeculativeTokensPerStep = 0.5 },
		`classes[0].studies[0].points[0].engine.speculative_tokens_per_step is 0.9, want 1 or more`: func(c *Curve) { study(c).Points[0].Engine.SpeculativeTokensPerStep = 0.9 },
		`classes[1].name: "chat" is given twice`:                                                    func(c *Curve) { c.Classes[1].Name = "chat" },
		`classes[0].name is "a\nb", want a name of printable characters`:                            func(c *Curve) { c.Classes[0].Name = "a\nb" },
		`classes[1].weight is -1, want 0 or more`:                                                   func(c *Curve) { c.Classes[1].Weight = -1 },
		`classes: their weights add up to 0`:                                                        func(c *Curve) { c.Classes[0].Weight, c.Classes[1].Weight = 0, 0 },
		`classes[0].slo is empty, and so is the curve's`:                                            func(c *Curve) { c.SLO = nil },
		`classes[0].prompt_histogram: 14 bounds and 14 counts`:                                      func(c *Curve) { h := &c.Classes[0].PromptHistogram; h.Counts = h.Counts[:14] },
		`classes[1].generation_histogram: bound 2 is 0.5`:                                           func(c *Curve) { c.Classes[1].GenerationHistogram.Bounds[1] = 0.5 },
		`classes[0].prefix_cache_hit_ratio is 2, want at most 1`:                                    func(c *Curve) { c.Classes[0].PrefixHitRatio = 2 },
		`classes[0].studies[1].arrivals: poisson is given twice`:                                    func(c *Curve) { c.Classes[0].Studies[1].Arrivals = Arrivals{Process: "poisson"} },
		`classes[0].studies[0].arrivals.process is "even", want one of "poisson"`:                   func(c *Curve) { study(c).Arrivals.Process = "even" },
		`classes[0].studies[1].arrivals.burstiness is 0`:                                            func(c *Curve) { c.Classes[0].Studies[1].Arrivals.Burstiness = 0 },
		`classes[0].studies[0].status is "fine", want one of "ok", "estimate"`:                      func(c *Curve) { study(c).Status = "fine" },
		`studies[0].safe_requests_per_second is null, but status is ok`:                             func(c *Curve) { study(c).SafeRate = capacity.Unknown() },
		`studies[0].safe_requests_per_second is 22.08, but status is no_safe`:                       func(c *Curve) { study(c).Status = StatusNoSafeRate },
		`studies[0].knee.requests_per_second is 24, below low, which is 25`:                         func(c *Curve) { study(c).Knee.Low = 25 },
		`studies[0].knee.high is 20, below requests_per_second, which is 24`:                        func(c *Curve) { study(c).Knee.High = 20 },
		`studies[0].knee.high is 1e+308, want at most 1e+12`:                                        func(c *Curve) { study(c).Knee.High = 1e308 },
		`studies[0].knee.requests_per_second is 1e+300, want at most 1e+12`:                         func(c *Curve) { study(c).Knee.Rate, study(c).Knee.High = 1e300, 1e301 },
		`studies[0].knee.high is 2401, more than 100 times requests_per_second, which is 24`:        func(c *Curve) { study(c).Knee.High = 2401 },
		`studies[0].knee.by_slo[0].high is 1e+06, more than 100 times requests_per_second`:          func(c *Curve) { study(c).Knee.BySLO[0].High = 1e6 },
		`studies[0].points[0].offered_requests_per_second is 1e+308, want at most 1e+12`:            func(c *Curve) { study(c).Points[0].OfferedRate = 1e308 },
		`studies[0].knee.low is +Inf, want a finite number`:                                         func(c *Curve) { study(c).Knee.Low = Value(math.Inf(1)) },
		`studies[0].knee.confidence is 0, but there is an interval`:                                 func(c *Curve) { study(c).Knee.Confidence = 0 },
		`studies[0].knee.requests_per_second is 24, below watermark`:                                func(c *Curve) { study(c).Knee.Watermark = 30 },
		`studies[0].knee.boundary is "steep"`:                                                       func(c *Curve) { study(c).Knee.Boundary = "steep" },
		`studies[0].knee.bottleneck is "disk"`:                                                      func(c *Curve) { study(c).Knee.Bottleneck = "disk" },
		`studies[0].knee.binding_slo: slo "ttft": want METRIC`:                                      func(c *Curve) { study(c).Knee.BindingSLO = "ttft" },
		`studies[0].knee.by_slo[0].method is "guess"`:                                               func(c *Curve) { study(c).Knee.BySLO[0].Method = "guess" },
		`studies[0].knee.pending lacks its rate or time`:                                            func(c *Curve) { study(c).Knee.Pending = &Pending{} },
		`mixes[0].knee.binding_class is "x", but there is no such class`:                            func(c *Curve) { c.Mixes[0].Knee.BindingClass = "x" },
		`mixes[0].shares is "x", but there is no such class`:                                        func(c *Curve) { c.Mixes[0].Shares["x"] = 0 },
		`mixes[0].shares add up to 1.15, want 1`:                                                    func(c *Curve) { c.Mixes[0].Shares["chat"] = 0.9 },
		`mixes[0].shares.chat is -1, want 0 or more`:                                                func(c *Curve) { c.Mixes[0].Shares["chat"] = -1 },
		`mixes[0].squeeze[0].class is "x"`:                                                          func(c *Curve) { c.Mixes[0].Squeeze[0].Class = "x" },
		`violation_curve[0] has 7 rates and 6 fractions`:                                            func(c *Curve) { v := &study(c).Curve[0]; v.Fraction = v.Fraction[:6] },
		`violation_curve[0].requests_per_second[1] is 1, want rising rates`:                         func(c *Curve) { study(c).Curve[0].Rate[1] = 1 },
		`violation_curve[0].fraction[6] is 0, want fractions that never fall`:                       func(c *Curve) { study(c).Curve[0].Fraction[6] = 0 },
		`violation_curve[0].fraction[6] is 2, want at most 1`:                                       func(c *Curve) { study(c).Curve[0].Fraction[6] = 2 },
		`points[2].ttft.p99 is -1, want 0 or more`:                                                  func(c *Curve) { study(c).Points[2].TTFT.P99 = -1 },
		`points[2].ttft.p99_9 is 1, below p99, which is 9`:                                          func(c *Curve) { study(c).Points[2].TTFT.P99, study(c).Points[2].TTFT.P999 = 9, 1 },
		`points[2].failures is 9999999, of `:                                                        func(c *Curve) { study(c).Points[2].Failures = 9999999 },
		`points[2].purpose is "fun"`:                                                                func(c *Curve) { study(c).Points[2].Purpose = "fun" },
		`points[2].gates[0].kind is "bad"`:                                                          func(c *Curve) { study(c).Points[2].Gates[0].Kind = "bad" },
		`points[2].gates[0].name is empty`:                                                          func(c *Curve) { study(c).Points[2].Gates[0].Name = "" },
		`points[2].engine.kv_usage_peak is 3, want at most 1`:                                       func(c *Curve) { study(c).Points[2].Engine.KVPeak = 3 },
		`points[2].gpus[1].throttle_seconds.sw_power_cap is -1`:                                     func(c *Curve) { study(c).Points[2].GPUs[1].ThrottleSeconds["sw_power_cap"] = -1 },
		`soak.trials[0].purpose is ""`:                                                              func(c *Curve) { study(c).Soak.Trials[0].Purpose = "" },
		`ceiling.steps[0].purpose is ""`:                                                            func(c *Curve) { study(c).Ceiling.Steps[0].Purpose = "" },
		`baseline.purpose is ""`:                                                                    func(c *Curve) { study(c).Baseline.Purpose = "" },
		`mixes[0].points[0].classes[0].class is "x"`:                                                func(c *Curve) { c.Mixes[0].Points[0].Classes[0].Class = "x" },
		`coverage[0].item is "luck"`:                                                                func(c *Curve) { c.Coverage[0].Item = "luck" },
		`reuse[0].field: identity has no field "driver", want one of model,`:                        func(c *Curve) { c.Reuse[0].Field = "driver" },
		`reuse[0].reason is empty`:                                                                  func(c *Curve) { c.Reuse[0].Reason = " " },
		`reuse[0].approved_by is empty`:                                                             func(c *Curve) { c.Reuse[0].ApprovedBy = "" },
	} {
		c := example()
		breaks(c)
		if c.ID != "00" && want[:8] != "identity" {
			c.ID = c.Identity.ID()
		}
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error is %v, want %q in it, in one line", err, want)
		}
	}
	c := example()
	c.Source = "guessed"
	if err := c.Encode(io.Discard); err == nil || !strings.Contains(err.Error(), "writing the curve: source") {
		t.Errorf("a curve that cannot be is written: %v", err)
	}
}

func TestReadFile(t *testing.T) {
	folder := t.TempDir()
	half := filepath.Join(folder, "half.json")
	raw := encoded(t, example())
	if err := os.WriteFile(half, raw[:len(raw)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(folder, "none.json"): "opening the curve file: open ",
		half:                               half + ": reading the curve: line ",
		folder:                             folder + ": reading the curve: ",
	} {
		if _, err := ReadFile(path); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: error is %v, want %q", path, err, want)
		}
	}
}

// What is read is written and read again as the same.
func FuzzDecode(f *testing.F) {
	f.Add(encoded(f, smallExample()))
	f.Add([]byte(`{"schema": "capacity-curve/v1", "classes": [{"studies": [{"knee": null}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Decode(bytes.NewReader(data))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("error of several lines: %q", err)
			}
			return
		}
		first := encoded(t, c)
		again, err := Decode(bytes.NewReader(first))
		if err != nil {
			t.Fatalf("written but not read: %v\n%s", err, first)
		}
		if second := encoded(t, again); !bytes.Equal(first, second) {
			t.Fatalf("written twice it differs:\n%s\n%s", first, second)
		}
	})
}
