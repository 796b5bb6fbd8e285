package rules

import (
	"context"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
)

var staleNaN = math.Float64frombits(value.StaleNaN)

// feed turns samples into points of the store: it knows each series again
// without building its labels, keeps only what rules select, and ends series
// that vanish.
type feed struct {
	store     *store
	maxSeries int
	seed      maphash.Seed

	mu        sync.Mutex
	selection *selection
	known     map[uint64][]*fed
	round     uint64
	points    []point
	stored    int

	// names are the metrics that were ever fed in.
	names sync.Map

	// Read by /metrics, which must not wait for the store.
	dropped           atomic.Int64
	refused, failures atomic.Uint64
}

// fed is a series of the feed.
type fed struct {
	name          string
	names, values []string
	series        series
	// stored tells whether a rule selects the series and there was room for it.
	stored, selected bool
	round            uint64
}

func newFeed(s *store, maxSeries int) *feed {
	return &feed{store: s, maxSeries: maxSeries, seed: maphash.MakeSeed(), known: map[uint64][]*fed{}, selection: newSelection(nil)}
}

// choose changes what is selected from the next samples on.
func (f *feed) choose(s *selection) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.selection = s
	f.stored = 0
	for _, bucket := range f.known {
		for _, known := range bucket {
			known.selected = s.selects(known.series.labels)
			known.stored = known.selected && f.stored < f.maxSeries
			if known.stored {
				f.stored++
			}
		}
	}
}

func (f *feed) mayRead(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.selection.mayRead(name)
}

// append stores the samples of one moment.
func (f *feed) append(ctx context.Context, at time.Time, samples []Sample) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.round++
	dropped := 0
	f.points = f.points[:0]
	t := at.UnixMilli()
	for i := range samples {
		s := &samples[i]
		if math.IsNaN(s.Value) {
			continue
		}
		known := f.lookUp(s)
		switch {
		case known.round == f.round:
			continue // A second sample of the series at this moment.
		case known.stored:
			f.points = append(f.points, point{&known.series, t, s.Value})
		case known.selected:
			dropped++
		}
		known.round = f.round
	}
	f.end(t)
	f.dropped.Store(int64(dropped))
	refused, err := f.store.write(ctx, f.points)
	f.refused.Add(uint64(refused))
	if err != nil {
		f.failures.Add(1)
	}
	return err
}

// end writes the end of each series that has no sample this time.
func (f *feed) end(t int64) {
	for key, bucket := range f.known {
		kept := slices.DeleteFunc(bucket, func(known *fed) bool {
			if known.round == f.round {
				return false
			}
			if known.stored {
				f.points = append(f.points, point{&known.series, t, staleNaN})
				f.stored--
			}
			return true
		})
		if len(kept) == 0 {
			delete(f.known, key)
		} else {
			f.known[key] = kept
		}
	}
}

// feeds tells whether a metric is fed in, so that no rule may record it.
func (f *feed) feeds(name string) bool {
	_, ok := f.names.Load(name)
	return ok
}

func (f *feed) lookUp(s *Sample) *fed {
	var h maphash.Hash
	h.SetSeed(f.seed)
	h.WriteString(s.Name)
	for i, name := range s.LabelNames {
		h.WriteByte(0xff)
		h.WriteString(name)
		h.WriteByte(0xff)
		h.WriteString(s.LabelValues[i])
	}
	key := h.Sum64()
	for _, known := range f.known[key] {
		if known.name == s.Name && slices.Equal(known.names, s.LabelNames) && slices.Equal(known.values, s.LabelValues) {
			return known
		}
	}
	f.names.Store(s.Name, nil)
	known := &fed{name: s.Name, names: slices.Clone(s.LabelNames), values: slices.Clone(s.LabelValues)}
	b := labels.NewScratchBuilder(len(s.LabelNames) + 1)
	b.Add(model.MetricNameLabel, s.Name)
	for i, name := range s.LabelNames {
		// An empty label is no label.
		if s.LabelValues[i] != "" {
			b.Add(name, s.LabelValues[i])
		}
	}
	b.Sort()
	known.series.labels = b.Labels()
	known.selected = f.selection.selects(known.series.labels)
	known.stored = known.selected && f.stored < f.maxSeries
	if known.stored {
		f.stored++
	}
	f.known[key] = append(f.known[key], known)
	return known
}
