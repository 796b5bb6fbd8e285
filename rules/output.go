package rules

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
)

// errNative refuses a native histogram as a rule's result.
var errNative = errors.New("the result is a native histogram, which cannot be recorded here")

// outputs keeps the newest value of every recorded series. It is where the
// rule groups write to, and passes everything on to the store.
type outputs struct {
	store *store
	feeds func(name string) bool
	max   int

	mu     sync.Mutex
	newest map[string]*output
}

// output is the newest value of one recorded series.
type output struct {
	labels labels.Labels
	value  float64
	// until is when the value no longer counts unless it is recorded again.
	until time.Time
}

func newOutputs(s *store, feeds func(name string) bool, maxSeries int) *outputs {
	return &outputs{store: s, feeds: feeds, max: maxSeries, newest: map[string]*output{}}
}

// intervalKey carries the interval of the group that evaluates in a context.
type intervalKey struct{}

// withInterval says in a context how often what is appended will come again.
func withInterval(ctx context.Context, interval time.Duration) context.Context {
	return context.WithValue(ctx, intervalKey{}, interval)
}

// AppenderV2 implements storage.AppendableV2.
func (o *outputs) AppenderV2(ctx context.Context) storage.AppenderV2 {
	interval, _ := ctx.Value(intervalKey{}).(time.Duration)
	return &recording{outputs: o, ctx: ctx, interval: interval}
}

// recording is one rule's results on their way to the store.
type recording struct {
	*outputs
	ctx      context.Context
	interval time.Duration
	points   []point
}

// Append implements storage.AppenderV2.
func (r *recording) Append(ref storage.SeriesRef, ls labels.Labels, _, t int64, v float64, h *histogram.Histogram, fh *histogram.FloatHistogram, _ storage.AOptions) (storage.SeriesRef, error) {
	if h != nil || fh != nil {
		return 0, errNative
	}
	if name := ls.Get(model.MetricNameLabel); r.feeds(name) {
		return 0, fmt.Errorf("%s is a metric of the exporter itself", name)
	}
	r.points = append(r.points, point{&series{labels: ls}, t, v})
	return ref, nil
}

// Commit implements storage.AppenderV2. The context of a group that is being
// stopped still lets its last results through.
func (r *recording) Commit() error {
	refused, err := r.store.write(context.WithoutCancel(r.ctx), r.points)
	if err != nil {
		return err
	}
	if err := r.publish(time.Now()); err != nil {
		return err
	}
	if refused > 0 {
		return fmt.Errorf("%d results were refused: another rule records the same series, or the clock went back", refused)
	}
	return nil
}

// Rollback implements storage.AppenderV2.
func (r *recording) Rollback() error {
	r.points = nil
	return nil
}

// missesAllowed is after how many missed evaluations a recorded value is no
// longer exposed.
const missesAllowed = 3

func (r *recording) publish(now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	dropped := 0
	for _, p := range r.points {
		key := string(p.labels.Bytes(nil))
		if value.IsStaleNaN(p.v) {
			delete(r.newest, key)
			continue
		}
		out, known := r.newest[key]
		if !known {
			if len(r.newest) >= r.max {
				dropped++
				continue
			}
			out = &output{labels: p.labels}
			r.newest[key] = out
		}
		out.value = p.v
		out.until = now.Add(missesAllowed * r.interval)
	}
	if dropped > 0 {
		return fmt.Errorf("%d series are not exposed: there are %d recorded series already", dropped, r.max)
	}
	return nil
}

// Recorded is the newest value of one recorded series.
type Recorded struct {
	Name   string
	Labels map[string]string
	Value  float64
}

// current returns the values that count now, sorted by name and labels. A
// value that is not a number is not known, and left out.
func (o *outputs) current(now time.Time) []output {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.newest, func(_ string, out *output) bool { return now.After(out.until) })
	all := make([]output, 0, len(o.newest))
	for _, out := range o.newest {
		if !math.IsNaN(out.value) {
			all = append(all, *out)
		}
	}
	slices.SortFunc(all, func(a, b output) int { return labels.Compare(a.labels, b.labels) })
	return all
}
