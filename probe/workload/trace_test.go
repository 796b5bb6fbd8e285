package workload

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func readTrace(t testing.TB, path string, o ReadOptions) *Trace {
	t.Helper()
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	trace, err := ReadTrace(in, o)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func readCut(t testing.TB, name string, f Format) *Trace {
	t.Helper()
	return readTrace(t, filepath.Join("testdata", name), ReadOptions{Format: f})
}

func TestReadTrace(t *testing.T) {
	for name, test := range map[string]struct {
		options ReadOptions
		want    Trace
	}{
		"burstgpt.csv": {ReadOptions{Format: BurstGPT}, Trace{Format: BurstGPT, ZeroOutputs: 1, Records: []Record{
			{At: 0, Prompt: 472, Output: 18, Model: "ChatGPT", Scenario: "Conversation log"},
			{At: 40 * time.Second, Prompt: 1087, Output: 230, Model: "ChatGPT", Scenario: "Conversation log"},
			{At: 113 * time.Second, Prompt: 417, Output: 276, Model: "GPT-4", Scenario: "Conversation log"},
			{At: 136 * time.Second, Prompt: 3038, Output: 26, Model: "ChatGPT", Scenario: "API log"},
		}}},
		"burstgpt_sessions.csv": {ReadOptions{Format: BurstGPT}, Trace{Format: BurstGPT, Records: []Record{
			{At: 0, Prompt: 472, Output: 18, Model: "ChatGPT", Scenario: "Conversation log"},
			{At: 39750 * time.Millisecond, Prompt: 1087, Output: 230, Model: "GPT-4", Scenario: "API log"},
		}}},
		"bailian.jsonl": {ReadOptions{Format: Bailian}, Trace{Format: Bailian, BlockSize: 16, Records: []Record{
			{At: 0, Prompt: 20, Output: 7, Scenario: "text", SessionID: "10", Blocks: []uint64{1, 2}},
			{At: 750 * time.Millisecond, Prompt: 32, Output: 9, Scenario: "search", SessionID: "11", Blocks: []uint64{3, 4}},
			{At: 9250 * time.Millisecond, Prompt: 40, Output: 5, Scenario: "text", SessionID: "10", Turn: 1, Blocks: []uint64{1, 5, 6}},
			{At: 19500 * time.Millisecond, Prompt: 60, Output: 6, Scenario: "text", SessionID: "10", Turn: 2, Blocks: []uint64{1, 5, 7, 8}},
			{At: 20500 * time.Millisecond, Prompt: 16, Output: 6, Scenario: "text", SessionID: "3", Turn: 3, Blocks: []uint64{9}},
		}}},
		"footprint.jsonl": {ReadOptions{Format: Footprint}, Trace{Format: Footprint, BlockSize: 512, ZeroOutputs: 1, Start: time.Date(2025, 11, 29, 8, 0, 0, 0, time.UTC), Records: []Record{
			{At: 0, Prompt: 700, Output: 120, Tenant: "shop", Scenario: "chat", Model: "m-8b"},
			{At: 250*time.Millisecond + 500*time.Microsecond, Prompt: 5000, Output: 40, Tenant: "shop", Scenario: "search", Model: "m-8b", Blocks: []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
			{At: 4 * time.Second, Prompt: 1030, Output: 80, Tenant: "desk", Scenario: "chat", Model: "m-70b", SessionID: "s1", Delay: 1500 * time.Millisecond, Blocks: []uint64{1, 2, 11}},
		}}},
	} {
		got := readTrace(t, filepath.Join("testdata", name), test.options)
		if d := cmp.Diff(&test.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// The 2024 traces write a zone and no seventh digit.
func TestReadAzure2024(t *testing.T) {
	text := "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01.017335+00:00,2399,6\n"
	got, err := ReadTrace(strings.NewReader(text), ReadOptions{Format: Azure})
	if err != nil {
		t.Fatal(err)
	}
	if want := 1007405 * time.Microsecond; got.Records[1].At != want || got.Start.Format(time.RFC3339Nano) != "2024-05-10T00:00:00.00993Z" {
		t.Errorf("second request after %s, start %s", got.Records[1].At, got.Start)
	}
}

func TestReadTimedTrace(t *testing.T) {
	text := `{"t": 1500, "in": 600, "out": 3, "ids": [7, 8]}` + "\n" + `{"t": 2750.5, "in": 512, "out": 4, "ids": [7], "other": {}}`
	got, err := ReadTrace(strings.NewReader(text), ReadOptions{
		Format: TimedTrace, Unit: time.Millisecond, BlockSize: 512,
		Labels: map[string]string{"timestamp": "t", "input_length": "in", "output_length": "out", "hash_ids": "ids"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &Trace{Format: TimedTrace, BlockSize: 512, Records: []Record{
		{Prompt: 600, Output: 3, Blocks: []uint64{7, 8}},
		{At: 1250500 * time.Microsecond, Prompt: 512, Output: 4, Blocks: []uint64{7}},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	// vLLM's defaults are seconds and 16 tokens a block.
	got, err = ReadTrace(strings.NewReader("{\"timestamp\":1,\"input_length\":17,\"output_length\":1,\"hash_ids\":[1,2]}\n{\"timestamp\":3.5,\"input_length\":2,\"output_length\":1}\n"), ReadOptions{Format: TimedTrace})
	if err != nil {
		t.Fatal(err)
	}
	if got.BlockSize != 16 || got.Records[1].At != 2500*time.Millisecond {
		t.Errorf("blocks of %d, second request after %s", got.BlockSize, got.Records[1].At)
	}
}

// Line ends, a missing last one, a byte order mark and empty lines change nothing.
func TestReadTraceLineEnds(t *testing.T) {
	for name, format := range map[string]Format{
		"azure_conv.csv": Azure, "azure_code.csv": Azure, "burstgpt.csv": BurstGPT,
		"mooncake_conversation.jsonl": Mooncake, "mooncake_synthetic.jsonl": Mooncake, "bailian.jsonl": Bailian, "footprint.jsonl": Footprint,
	} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		// Some lines are enough.
		lines := strings.SplitAfter(string(text), "\n")
		text = []byte(strings.Join(lines[:min(len(lines), 60)], ""))
		options := ReadOptions{Format: format, Force: true}
		want, err := ReadTrace(bytes.NewReader(text), options)
		if err != nil {
			t.Fatal(err)
		}
		plain := strings.TrimSuffix(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n")
		for form, text := range map[string]string{
			"LF": plain + "\n", "LF, none at the end": plain,
			"CRLF": strings.ReplaceAll(plain, "\n", "\r\n") + "\r\n", "CRLF, none at the end": strings.ReplaceAll(plain, "\n", "\r\n"),
			"byte order mark": "\xef\xbb\xbf" + plain, "empty lines": strings.ReplaceAll(plain, "\n", "\n\n") + "\n\n",
		} {
			got, err := ReadTrace(strings.NewReader(text), options)
			if err != nil {
				t.Errorf("%s with %s: %v", name, form, err)
			} else if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s with %s (-want +got):\n%s", name, form, d)
			}
		}
	}
}

func TestReadTraceErrors(t *testing.T) {
	const azure = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
	const burst = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
	const moon = `{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}` + "\n"
	for _, test := range []struct {
		options ReadOptions
		text    string
		want    string
	}{
		{ReadOptions{Format: "csv"}, "", `no trace format "csv": want footprint, mooncake, timed_trace, azure, burstgpt, bailian`},
		{ReadOptions{Format: Mooncake, Unit: time.Second}, "", "trace format mooncake has fixed keys, units and blocks"},
		{ReadOptions{Format: Azure}, "", "the file is empty"},
		{ReadOptions{Format: Mooncake}, "\n\n", "no requests with output"},
		{ReadOptions{Format: Azure}, "time,in,out\n", `line 1: no column "TIMESTAMP"`},
		{ReadOptions{Format: Azure}, azure + "yesterday,1,2\r\n", `line 3: TIMESTAMP is "yesterday"`},
		{ReadOptions{Format: Azure}, azure + "2023-11-16 18:15:50.9951690,x,109", `line 3: ContextTokens is "x"`},
		{ReadOptions{Format: Azure}, azure + "2023-11-16 18:15:50.9951690,1,1.5", `line 3: GeneratedTokens is "1.5"`},
		{ReadOptions{Format: Azure}, azure + "2023-11-16 18:15:50.9951690,1\r\n", "line 3: wrong number of fields"},
		{ReadOptions{Format: Azure}, azure + "2023-11-16 18:15:50.9951690,-1,5\r\n", "line 3: lengths are -1 and 5 tokens"},
		{ReadOptions{Format: Azure}, azure + "2023-11-16 18:15:45.6805900,1,5\r\n", "line 3: the time goes back by 1s"},
		{ReadOptions{Format: Azure}, azure + "9999-11-16 18:15:45.6805900,1,5\r\n", "line 3: the time lies"},
		{ReadOptions{Format: BurstGPT}, burst + "5,ChatGPT,1,2,3,API log\nx,ChatGPT,1,2,3,API log\n", `line 3: Timestamp is "x"`},
		{ReadOptions{Format: BurstGPT}, burst + "NaN,ChatGPT,1,2,3,API log\n", "line 2: Timestamp is NaN"},
		{ReadOptions{Format: BurstGPT}, burst + "1e300,ChatGPT,1,2,3,API log\n", "line 2: Timestamp is 1e+300"},
		{ReadOptions{Format: BurstGPT}, burst + "5,ChatGPT,1,0,1,API log\n", "no requests with output"},
		{ReadOptions{Format: Mooncake}, moon + "{\n", "line 2: unexpected end of JSON input"},
		{ReadOptions{Format: Mooncake}, moon + "\n" + `{"timestamp": 5, "input_length": 1}`, "line 3: no output_length"},
		{ReadOptions{Format: Mooncake}, moon + `{"input_length": 1, "output_length": 1}`, "line 2: no timestamp"},
		{ReadOptions{Format: Mooncake}, moon + `{"timestamp": 5, "input_length": 1.5, "output_length": 1}`, "line 2: json: cannot unmarshal number 1.5"},
		{ReadOptions{Format: Mooncake}, moon + `{"timestamp": 5, "input_length": 20000000, "output_length": 1}`, "line 2: lengths are 20000000 and 1 tokens, want 0 to 16777216"},
		{ReadOptions{Format: Mooncake}, moon + `{"timestamp": 5, "input_length": 513, "output_length": 1, "hash_ids": [1]}`, "line 2: 1 hash_ids for 513 tokens, want 2 of 512 tokens"},
		{ReadOptions{Format: Mooncake}, moon + `{"timestamp": 5, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}`, "line 2: 2 hash_ids for 512 tokens, want 1 of 512 tokens"},
		{ReadOptions{Format: Mooncake}, moon + `{"timestamp": 5, "input_length": 512, "output_length": 1, "hash_ids": []}`, "line 2: 0 hash_ids for 512 tokens"},
		// Mooncake's file as vLLM's format: the block size is refused instead of prompts becoming 32 times shorter.
		{ReadOptions{Format: TimedTrace}, moon, "line 1: 2 hash_ids for 600 tokens, want 38 of 16 tokens: is the block size right?"},
		{ReadOptions{Format: TimedTrace}, `{"timestamp": "5"}`, "line 1: timestamp: json: cannot unmarshal string"},
		// Milliseconds read as seconds cannot be told; seconds as milliseconds can.
		{ReadOptions{Format: Mooncake}, `{"timestamp": 0, "input_length": 1, "output_length": 1}` + "\n" + `{"timestamp": 900, "input_length": 1, "output_length": 1}`, "2 requests within 900ms: is the unit of time right?"},
		{ReadOptions{Format: Footprint}, `{"timestamp_ms": 0, "input_tokens": 1, "output_tokens": 1, "tokens": 1}`, `line 1: json: unknown field "tokens"`},
		{ReadOptions{Format: Footprint}, `{"timestamp_ms": 0, "input_tokens": 1, "output_tokens": 1} 5`, "line 1: more than one value"},
		{ReadOptions{Format: Footprint}, `{"timestamp_ms": 0, "input_tokens": 1, "output_tokens": 1, "hash_ids": [1]}`, "line 1: block size is 0 tokens, want 1"},
		{ReadOptions{Format: Footprint}, `{"timestamp_ms": 0, "input_tokens": 1, "output_tokens": 1, "hash_ids": [1], "block_size": 16}` + "\n" + `{"timestamp_ms": 0, "input_tokens": 1, "output_tokens": 1, "hash_ids": [1], "block_size": 32}`, "line 2: block size is 32 tokens after one of 16"},
		{ReadOptions{Format: Footprint}, `{"timestamp_ms": 0, "input_tokens": 1, "output_tokens": 1, "delay_ms": -3}`, "line 1: turn 0 with a delay of -3ms"},
	} {
		_, err := ReadTrace(strings.NewReader(test.text), test.options)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %q: error is %v, want %q in it", test.options.Format, test.text, err, test.want)
		}
	}
	// 1,001 requests within a second: a rate that no replica sees.
	fast := strings.Repeat(`{"timestamp": 0, "input_length": 1, "output_length": 1}`+"\n", 1001) + `{"timestamp": 1000, "input_length": 1, "output_length": 1}`
	if _, err := ReadTrace(strings.NewReader(fast), ReadOptions{Format: Mooncake}); err == nil || !strings.Contains(err.Error(), "1002 requests per second on average") {
		t.Errorf("a fast trace: %v", err)
	}
	if _, err := ReadTrace(strings.NewReader(fast), ReadOptions{Format: Mooncake, Force: true}); err != nil {
		t.Errorf("a fast trace by force: %v", err)
	}
	back := `{"timestamp": 5000, "input_length": 2, "output_length": 1}` + "\n" + `{"timestamp": 1000, "input_length": 1, "output_length": 1}`
	got, err := ReadTrace(strings.NewReader(back), ReadOptions{Format: Mooncake, Sort: true})
	if err != nil || got.Records[0].Prompt != 1 || got.Records[1].At != 4*time.Second {
		t.Errorf("sorted: %+v, %v", got, err)
	}
	got, err = ReadTrace(strings.NewReader(moon+moon+moon), ReadOptions{Format: Mooncake, MaxRequests: 2, Force: true})
	if err != nil || len(got.Records) != 2 {
		t.Errorf("two requests asked for: %+v, %v", got, err)
	}
}

// statisticsWant are figures as published, with so many digits.
type statisticsWant struct {
	requests                              int
	span, rate, gapCV, peak               float64
	minuteMin, minuteMean, minuteMax      float64
	prompt, output                        [4]float64
	hit                                   float64
	idc1, drift1, drift10, peak1, peak60  float64
	promptMean, outputMean                float64
	spanDigits, rateDigits, gapCVDigits   int
	minuteDigits, idcDigits, lengthDigits int
}

// near says whether got shows as want with so many digits behind the point.
func near(got, want float64, digits int) bool {
	if math.IsNaN(want) {
		return math.IsNaN(got)
	}
	return math.Abs(got-want) <= 0.5000001*math.Pow(10, -float64(digits))
}

func checkStatistics(t *testing.T, name string, trace *Trace, want statisticsWant) {
	t.Helper()
	s := Describe(trace.Records, trace.BlockSize)
	if s.Requests != want.requests {
		t.Errorf("%s: %d requests, want %d", name, s.Requests, want.requests)
	}
	for _, c := range []struct {
		what      string
		got, want float64
		digits    int
	}{
		{"span", s.Span.Seconds(), want.span, want.spanDigits},
		{"rate", s.Rate, want.rate, want.rateDigits},
		{"gap CV", s.GapCV, want.gapCV, want.gapCVDigits},
		{"peak in 1 s", s.Second.Max, want.peak, 0},
		{"per-minute min", s.Minute.Min, want.minuteMin, 0},
		{"per-minute mean", s.Minute.Mean, want.minuteMean, want.minuteDigits},
		{"per-minute max", s.Minute.Max, want.minuteMax, 0},
		{"prompt p50", s.Prompt.P50, want.prompt[0], want.lengthDigits},
		{"prompt p90", s.Prompt.P90, want.prompt[1], want.lengthDigits},
		{"prompt p99", s.Prompt.P99, want.prompt[2], want.lengthDigits},
		{"prompt max", s.Prompt.Max, want.prompt[3], 0},
		{"output p50", s.Output.P50, want.output[0], want.lengthDigits},
		{"output p90", s.Output.P90, want.output[1], want.lengthDigits},
		{"output p99", s.Output.P99, want.output[2], want.lengthDigits},
		{"output max", s.Output.Max, want.output[3], 0},
		{"prefix hit", s.PrefixHitRatio, want.hit, 3},
	} {
		if !near(c.got, c.want, c.digits) {
			t.Errorf("%s: %s is %g, want %g", name, c.what, c.got, c.want)
		}
	}
	if want.idcDigits == 0 {
		return
	}
	for _, c := range []struct {
		what      string
		got, want float64
		digits    int
	}{
		{"IDC 1 s", s.Second.IDC, want.idc1, want.idcDigits},
		{"drift-free IDC 1 s", s.Second.DriftFreeIDC, want.drift1, want.idcDigits},
		{"drift-free IDC 10 s", s.TenSeconds.DriftFreeIDC, want.drift10, want.idcDigits},
		{"peak to mean 1 s", s.Second.PeakToMean, want.peak1, want.idcDigits},
		{"peak to mean 60 s", s.Minute.PeakToMean, want.peak60, want.idcDigits},
		{"prompt mean", s.Prompt.Mean, want.promptMean, 1},
		{"output mean", s.Output.Mean, want.outputMean, 1},
	} {
		if !math.IsNaN(c.want) && !near(c.got, c.want, c.digits) {
			t.Errorf("%s: %s is %g, want %g", name, c.what, c.got, c.want)
		}
	}
}

// The figures of the cuts were computed from the files by another program, in
// another language (Python, with its statistics module).
func TestStatisticsOfCuts(t *testing.T) {
	nan := math.NaN()
	for name, want := range map[string]statisticsWant{
		"azure_conv.csv": {requests: 600, span: 148.1891, rate: 4.04888, gapCV: 1.27009, peak: 10, minuteMin: 191, minuteMean: 228, minuteMax: 265,
			prompt: [4]float64{995, 1314, 4088.02, 4107}, output: [4]float64{217, 428.1, 585.09, 739}, hit: nan,
			idc1: 1.40012, drift1: 1.0858, drift10: 1.39355, peak1: nan, peak60: nan, promptMean: 922.31, outputMean: 261.4867},
		"azure_code.csv": {requests: 600, span: 261.636, rate: 2.29326, gapCV: 13.89812, peak: 32, minuteMin: 0, minuteMean: 148.5, minuteMax: 531,
			prompt: [4]float64{1425.5, 5697.2, 7436, 7436}, output: [4]float64{13, 52, 239.09, 697}, hit: nan,
			idc1: 15.44131, drift1: 4.47421, drift10: 44.77428, peak1: nan, peak60: nan, promptMean: 2138.8117, outputMean: 26.5},
		"mooncake_conversation.jsonl": {requests: 400, span: 141, rate: 2.83688, gapCV: 2.73667, peak: 16, minuteMin: 162, minuteMean: 169.5, minuteMax: 177,
			prompt: [4]float64{9075.5, 27752.3, 89997.02, 121298}, output: [4]float64{370, 614, 906.23, 2000}, hit: 0.137,
			idc1: 6.8228, drift1: 9.57294, drift10: 0.76418, peak1: nan, peak60: nan, promptMean: 14276.325, outputMean: 365.1825},
		"mooncake_synthetic.jsonl": {requests: 200, span: 58.501, rate: 3.41874, gapCV: 1.00705, peak: 9, minuteMin: nan, minuteMean: nan, minuteMax: nan,
			prompt: [4]float64{11998.5, 36251.2, 54664.5, 82831}, output: [4]float64{160.5, 425.8, 790.01, 800}, hit: 0.062,
			idc1: 1.06645, drift1: 0.88204, drift10: 1.39747, peak1: nan, peak60: nan, promptMean: 13317.4, outputMean: 191.82},
	} {
		format := Azure
		if strings.HasPrefix(name, "mooncake") {
			format = Mooncake
		}
		want.spanDigits, want.rateDigits, want.gapCVDigits, want.minuteDigits, want.idcDigits, want.lengthDigits = 4, 5, 5, 1, 4, 2
		checkStatistics(t, name, readCut(t, name, format), want)
	}
}

// fullTraces is the folder of the whole files, see testdata/ORIGIN.md.
func fullTraces(t *testing.T) string {
	folder := os.Getenv("E2E_TRACES_DIR")
	if folder == "" {
		t.Skip("E2E_TRACES_DIR names no folder with the full traces")
	}
	return folder
}

// The figures are those published with the trace samples, measured on the
// same files; their percentiles are interpolated and rounded to whole tokens.
func TestStatisticsOfFullTraces(t *testing.T) {
	folder := fullTraces(t)
	nan := math.NaN()
	for name, want := range map[string]statisticsWant{
		"azure_llm_2023_conv.csv": {requests: 19366, span: 3502, rate: 5.530, gapCV: 1.09, peak: 16, minuteMin: 191, minuteMean: 333, minuteMax: 507,
			prompt: [4]float64{1020, 2734.5, 4142, 14050}, output: [4]float64{129, 424, 601, 1000}, hit: nan,
			idc1: 1.39, drift1: 1.08, drift10: 1.09, peak1: nan, peak60: 1.52, promptMean: 1154.7, outputMean: 211.1, rateDigits: 3, gapCVDigits: 2, idcDigits: 2},
		"azure_llm_2023_code.csv": {requests: 8819, span: 3436, rate: 2.567, gapCV: 13.2, peak: 67, minuteMin: 0, minuteMean: 151, minuteMax: 632,
			prompt: [4]float64{1469, 5188, 7436, 7437}, output: [4]float64{13, 55, 251, 1899}, hit: nan,
			idc1: 13.2, drift1: 3.2, drift10: nan, peak1: 26.1, peak60: nan, promptMean: 2047.8, outputMean: 27.9, rateDigits: 3, gapCVDigits: 1, idcDigits: 1},
		"mooncake_conversation_first4000.jsonl": {requests: 4000, span: 1302, rate: 3.07, gapCV: 2.9, peak: 19, minuteMin: 144, minuteMean: 184, minuteMax: 220,
			prompt: [4]float64{7874, 28981, 94411, 123192}, output: [4]float64{358, 605, 1157, 2000}, hit: 0.331, rateDigits: 2, gapCVDigits: 1},
		"mooncake_synthetic_first2000.jsonl": {requests: 2000, span: 533, rate: 3.75, gapCV: 1.0, peak: 12, minuteMin: 208, minuteMean: 224, minuteMax: 247,
			prompt: [4]float64{4174, 36033, 56635, 134773}, output: [4]float64{152, 444, 776, 842}, hit: 0.336, rateDigits: 2, gapCVDigits: 1},
	} {
		format := Azure
		if strings.HasPrefix(name, "mooncake") {
			format = Mooncake
		}
		checkStatistics(t, name, readTrace(t, filepath.Join(folder, name), ReadOptions{Format: format}), want)
	}
}

func FuzzReadTrace(f *testing.F) {
	for i, name := range []string{"footprint.jsonl", "mooncake_conversation.jsonl", "mooncake_synthetic.jsonl", "azure_code.csv", "burstgpt.csv", "bailian.jsonl"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		lines := bytes.SplitAfter(text, []byte("\n"))
		f.Add(byte(i), bytes.Join(lines[:min(4, len(lines))], nil))
	}
	f.Fuzz(func(t *testing.T, format byte, text []byte) {
		trace, err := ReadTrace(bytes.NewReader(text), ReadOptions{Format: Formats[int(format)%len(Formats)], Force: format >= 128, Sort: format%2 == 0})
		if err != nil {
			return
		}
		if len(trace.Records) == 0 {
			t.Fatal("a trace without requests and without error")
		}
		previous := time.Duration(0)
		for i, r := range trace.Records {
			if r.At < previous || r.Prompt < 1 || r.Output < 1 || r.Prompt > MaxTokens || r.Output > MaxTokens {
				t.Fatalf("request %d is %+v after %s", i, r, previous)
			}
			previous = r.At
		}
		Describe(trace.Records, trace.BlockSize)
		source, err := Replay{Trace: trace, Grid: trace.Grid()}.Source()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for r := range All(source) {
			if r.PromptTokens < 1<<16 {
				r.MakeTokens(SafeVocabulary(0))
				if len(r.Tokens) != r.PromptTokens {
					t.Fatalf("%d tokens, want %d", len(r.Tokens), r.PromptTokens)
				}
			}
			n++
		}
		if n != len(trace.Records) {
			t.Fatalf("%d requests replayed of %d", n, len(trace.Records))
		}
	})
}
