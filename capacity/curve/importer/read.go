package importer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
)

// maxFile bounds a result file, in bytes.
const maxFile = 512 << 20

// readFile reads the runs of a result file and of what belongs to it.
func readFile(path string, format Format) ([]run, error) {
	data, err := readBounded(path)
	if err != nil {
		return nil, err
	}
	found, err := recognise(data)
	if err != nil {
		return nil, err
	}
	if format != "" && found != format {
		return nil, fmt.Errorf("this is a result of %s, not of %s as --from says", found, format)
	}
	var runs []run
	switch found {
	case GuideLLM:
		runs, err = parseGuideLLM(data)
	case AIPerf:
		runs, err = readAIPerf(path, data)
	case InferencePerf:
		runs, err = readInferencePerf(path, data)
	case VLLMBench:
		runs, err = parseVLLMBench(data)
	}
	if err != nil {
		return nil, fmt.Errorf("reading a result of %s: %w", found, err)
	}
	for i := range runs {
		runs[i].format, runs[i].file = found, path
		if err := runs[i].check(); err != nil {
			return nil, err
		}
		runs[i].offeredNote()
	}
	return runs, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		var pathError *os.PathError
		if errors.As(err, &pathError) {
			err = pathError.Err
		}
		return nil, fmt.Errorf("opening the result file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the result file: %w", err)
	case len(data) > maxFile:
		return nil, fmt.Errorf("the file is larger than %d MiB: leave the records of single requests out of it", maxFile>>20)
	}
	return data, nil
}

// recognise tells the format by the keys that only it has.
func recognise(data []byte) (Format, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return "", errors.New("the file is empty: the run did not end well, or the copy failed")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	var value json.RawMessage
	if err := d.Decode(&value); err != nil {
		return "", jsonError(data, err)
	}
	var keys map[string]json.RawMessage
	if bytes.HasPrefix(value, []byte("[")) {
		var items []map[string]json.RawMessage
		if err := json.Unmarshal(value, &items); err == nil && len(items) > 0 {
			keys = items[0]
		}
		if has(keys, "start_time", "end_time", "info") {
			return "", errors.New("these are the requests of inference-perf: give the stage_N_lifecycle_metrics.json files beside it, which read them too")
		}
	} else if err := json.Unmarshal(value, &keys); err != nil {
		return "", jsonError(data, err)
	}
	switch {
	case has(keys, "metadata", "metrics"):
		return "", errors.New("these are the requests of AIPerf: give the profile_export_aiperf.json beside it, which reads them too")
	case has(keys, "metadata", "benchmarks"):
		return GuideLLM, nil
	case has(keys, "aiperf_version"):
		return AIPerf, nil
	case has(keys, "load_summary", "successes"):
		return InferencePerf, nil
	case has(keys, "completed", "duration", "request_throughput"):
		return VLLMBench, nil
	}
	return "", fmt.Errorf("this is no result of %s: give benchmarks.json, profile_export_aiperf.json, stage_N_lifecycle_metrics.json, or what vllm bench serve --save-result wrote", strings.Join(Formats, ", "))
}

func has(keys map[string]json.RawMessage, names ...string) bool {
	for _, n := range names {
		if _, ok := keys[n]; !ok {
			return false
		}
	}
	return true
}

// decode JSON of a form that is not ours: keys that are not known are left out.
func decode(data []byte, into any) error {
	if err := json.Unmarshal(data, into); err != nil {
		return jsonError(data, err)
	}
	return nil
}

// jsonError words an error of encoding/json with its line.
func jsonError(data []byte, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	line := func(offset int64) int {
		return 1 + bytes.Count(data[:min(max(offset, 0), int64(len(data)))], []byte("\n"))
	}
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &syntax) && strings.Contains(err.Error(), "unexpected end"):
		return errors.New("the file ends in the middle: it is cut off; copy it again, or let the run end")
	case errors.As(err, &syntax):
		at := int(min(max(syntax.Offset-1, 0), int64(len(data))))
		for _, no := range []string{"NaN", "Infinity", "-Infinity"} {
			if bytes.HasPrefix(data[at:], []byte(no)) || at > 0 && bytes.HasPrefix(data[at-1:], []byte(no)) {
				return fmt.Errorf("line %d: %s is no number: the tool had nothing to measure; run it again with requests that end well", line(syntax.Offset), no)
			}
		}
		return fmt.Errorf("line %d: %s: this is no JSON file", line(syntax.Offset), err)
	case errors.As(err, &kind):
		where := kind.Field
		if where == "" {
			where = "the file"
		}
		return fmt.Errorf("line %d: %s is a %s, which it is in no version that is known", line(kind.Offset), where, kind.Value)
	}
	return err
}

// check returns an error for a run that cannot be a point.
func (r *run) check() error {
	number := func(name string, v float64) error {
		if !(v > 0) || math.IsInf(v, 0) {
			return fmt.Errorf("%s is %g, want a number above 0: is this a run that ended well?", name, v)
		}
		return nil
	}
	ended := r.attempts - r.failures
	switch {
	case r.attempts < 0 || r.failures < 0 || ended < 0:
		return fmt.Errorf("%d of %d requests failed, which cannot be", r.failures, r.attempts)
	case ended == 0:
		return fmt.Errorf("none of %d requests ended well: there is nothing to import", r.attempts)
	case r.start.IsZero() || r.start.Year() < 2000 || r.start.Year() > 9000:
		return errors.New("the file does not say when the run was")
	}
	for _, n := range []struct {
		name  string
		value float64
	}{{"the duration", r.seconds}, {"the mean prompt length", r.prompt}, {"the mean output length", r.output}} {
		if err := number(n.name, n.value); err != nil {
			return err
		}
	}
	if r.concurrency == 0 {
		if err := number("the request rate", r.offered); err != nil {
			return err
		}
	}
	for _, l := range append(r.promptLengths, r.outputLengths...) {
		if !(l >= 0) || math.IsInf(l, 0) {
			return fmt.Errorf("a request has a length of %g tokens, which cannot be", l)
		}
	}
	negative := func(metric string, v float64) error {
		if v < 0 || math.IsInf(v, 0) {
			return fmt.Errorf("%s has a latency of %g s, which cannot be", metric, v)
		}
		return nil
	}
	for i := range r.requests {
		q := &r.requests[i]
		for _, v := range append([]float64{q.ttft, q.tpot, q.e2e}, q.gaps...) {
			if err := negative(fmt.Sprintf("request %d", i+1), v); err != nil {
				return err
			}
		}
		if !q.failed && q.age == 0 && (!(q.prompt >= 0) || !(q.output >= 0) || math.IsInf(q.prompt+q.output, 0)) {
			return fmt.Errorf("request %d ended well without a prompt and an output length", i+1)
		}
	}
	for metric, l := range r.latencies {
		values := []float64{l.mean, l.max, l.n}
		for _, v := range l.quantiles {
			values = append(values, v)
		}
		for _, v := range values {
			if err := negative(metric, v); err != nil {
				return err
			}
		}
	}
	return nil
}
