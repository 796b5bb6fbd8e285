package rules

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
)

// errClosed is for use after Close.
var errClosed = errors.New("the store of the rules is closed")

// copySlice is the span that is copied at a time between backends. A head
// takes samples out of order between series only within half of its chunk
// range, which is at least minBlock.
const copySlice = time.Minute

// series is one series as the store knows it.
type series struct {
	labels labels.Labels
	// ref is valid in the backend with this generation only.
	ref        storage.SeriesRef
	generation uint64
}

// point is one value to be stored.
type point struct {
	*series
	t int64
	v float64
}

// held is a backend with those who use it.
type held struct {
	backend
	generation uint64
	users      sync.WaitGroup
}

// store keeps samples in the storage directory while that can be written, in
// memory while it cannot, and moves the window between the two.
type store struct {
	path      string
	retention time.Duration
	logger    *slog.Logger
	// openDisk is openDisk but in tests.
	openDisk func() (backend, error)

	// writing is held for reading by writers, for writing while a window is moved.
	writing sync.RWMutex
	// moving is held while a window is moved.
	moving sync.Mutex
	// broken could not be closed yet; guarded by moving.
	broken backend

	mu      sync.Mutex
	current *held // nil when closed
	reason  string
	size    int64
}

// openStore opens the store in path, or in memory when path is empty or
// cannot be used.
func openStore(c Config) (*store, error) {
	s := &store{path: c.StoragePath, retention: c.Retention, logger: c.Logger}
	reg := prefixed(c.Registerer)
	s.openDisk = func() (backend, error) {
		d, err := openDisk(c.StoragePath, c.Retention, warningsOf(c.Logger), reg)
		reg = nil // Metrics are registered once; they are of the first opening.
		return d, err
	}
	if err := s.open(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *store) open() error {
	if s.path != "" {
		d, err := s.openDisk()
		if err == nil {
			s.current = &held{backend: d, generation: 1}
			s.measure()
			return nil
		}
		s.reason = reasonFor(err)
		s.logger.Warn("Rules go on in memory: the storage directory cannot be used", "path", s.path, "reason", s.reason, "err", err)
	}
	m, err := openMemory(s.retention, warningsOf(s.logger))
	if err != nil {
		return err
	}
	s.current = &held{backend: m, generation: 1}
	return nil
}

// use returns the backend; release ends its use.
func (s *store) use() (b *held, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return nil, nil, errClosed
	}
	b = s.current
	b.users.Add(1)
	return b, b.users.Done, nil
}

// write stores points. When the storage directory fails, the window moves to
// memory and the points are stored there. It returns how many points were
// refused, because they are not newer than what is stored; that a series ends
// twice is no refusal.
func (s *store) write(ctx context.Context, points []point) (refused int, err error) {
	failed, refused, err := s.writeOnce(ctx, points)
	if err == nil || failed == nil || !failed.durable() {
		return refused, err
	}
	if err := s.toMemory(ctx, failed, err); err != nil {
		return refused, err
	}
	_, refused, err = s.writeOnce(ctx, points)
	return refused, err
}

// writeOnce returns the backend that was written to.
func (s *store) writeOnce(ctx context.Context, points []point) (*held, int, error) {
	s.writing.RLock()
	defer s.writing.RUnlock()
	b, release, err := s.use()
	if err != nil {
		return nil, 0, err
	}
	defer release()
	refused := 0
	app := b.AppenderV2(ctx)
	for _, p := range points {
		if p.generation != b.generation {
			p.ref, p.generation = 0, b.generation
		}
		ref, err := app.Append(p.ref, p.labels, 0, p.t, p.v, nil, nil, storage.AOptions{})
		switch {
		case err == nil:
			p.ref = ref
		case !isRefusal(err):
			return b, refused, errors.Join(fmt.Errorf("storing %s: %w", p.labels, err), app.Rollback())
		case !value.IsStaleNaN(p.v):
			refused++
		}
	}
	if err := app.Commit(); err != nil {
		return b, refused, fmt.Errorf("storing samples: %w", err)
	}
	return b, refused, nil
}

// isRefusal tells a sample that comes too late from a store that fails.
func isRefusal(err error) bool {
	return errors.Is(err, storage.ErrOutOfOrderSample) || errors.Is(err, storage.ErrOutOfBounds) ||
		errors.Is(err, storage.ErrTooOldSample) || errors.Is(err, storage.ErrDuplicateSampleForTimestamp)
}

// toMemory moves the window from a failed backend to memory.
func (s *store) toMemory(ctx context.Context, failed *held, cause error) error {
	s.moving.Lock()
	defer s.moving.Unlock()
	s.mu.Lock()
	moved := s.current != failed
	s.mu.Unlock()
	if moved {
		return nil
	}
	m, err := openMemory(s.retention, warningsOf(s.logger))
	if err != nil {
		return err
	}
	reason := reasonFor(cause)
	s.logger.Warn("Rules go on in memory: the storage directory failed", "path", s.path, "reason", reason, "err", cause)
	return s.move(ctx, failed, m, reason)
}

// toDisk moves the window back to the storage directory once that can be
// written again. It does nothing when it is in use.
func (s *store) toDisk(ctx context.Context) error {
	s.moving.Lock()
	defer s.moving.Unlock()
	if s.path == "" {
		return nil
	}
	from, release, err := s.use()
	if err != nil {
		return err
	}
	release()
	if from.durable() {
		return nil
	}
	d, err := s.reopen()
	if err != nil {
		s.mu.Lock()
		s.reason = reasonFor(err)
		s.mu.Unlock()
		return err
	}
	if err := s.move(ctx, from, d, ""); err != nil {
		return err
	}
	s.logger.Info("Rules keep their window in the storage directory again", "path", s.path)
	return nil
}

// reopen opens the storage directory after it has failed.
func (s *store) reopen() (backend, error) {
	if err := s.retire(); err != nil {
		return nil, err
	}
	return s.openDisk()
}

// retire closes what could not be closed when it failed.
func (s *store) retire() error {
	if s.broken == nil {
		return nil
	}
	if err := s.broken.abandon(); err != nil {
		return fmt.Errorf("closing the store that failed: %w", err)
	}
	s.broken = nil
	return nil
}

// move copies the window to another backend, twice: first while writers go
// on, then the rest while they wait. It closes the backend that is left over.
func (s *store) move(ctx context.Context, from *held, to backend, reason string) error {
	begun := time.Now()
	if err := copyWindow(ctx, from, to, begun.Add(-s.retention)); err != nil && to.durable() {
		s.discard(to)
		return err
	} else if err != nil {
		// Some of the window is better than a store that fails.
		s.logger.Warn("Part of the rules' window is lost", "err", err)
	}
	s.writing.Lock()
	err := copyWindow(ctx, from, to, begun.Add(-copySlice))
	if err != nil && to.durable() {
		s.writing.Unlock()
		s.discard(to)
		return err
	}
	s.mu.Lock()
	if s.current != from {
		s.mu.Unlock()
		s.writing.Unlock()
		s.discard(to)
		return errClosed
	}
	s.current = &held{backend: to, generation: from.generation + 1}
	s.reason = reason
	s.mu.Unlock()
	s.writing.Unlock()

	from.users.Wait()
	s.discard(from.backend)
	s.measure()
	return nil
}

// discard closes a backend for good, later if that fails now.
func (s *store) discard(b backend) {
	if err := b.abandon(); err != nil {
		s.broken = b
		s.logger.Debug("The store that failed cannot be closed yet", "err", err)
	}
}

// copyWindow copies all samples since a moment, slice by slice in time.
// Samples that the target has already are passed over.
func copyWindow(ctx context.Context, from, to backend, since time.Time) error {
	end := time.Now().Add(future)
	for start := since; start.Before(end); start = start.Add(copySlice) {
		if err := copySamples(ctx, from, to, start.UnixMilli(), start.Add(copySlice).UnixMilli()-1); err != nil {
			return fmt.Errorf("copying the rules' window: %w", err)
		}
	}
	return nil
}

func copySamples(ctx context.Context, from, to backend, mint, maxt int64) error {
	q, err := from.Querier(mint, maxt)
	if err != nil {
		return err
	}
	defer q.Close()
	app := to.AppenderV2(ctx)
	all := q.Select(ctx, false, nil, labels.MustNewMatcher(labels.MatchNotEqual, model.MetricNameLabel, ""))
	for all.Next() {
		ls := all.At().Labels()
		it := all.At().Iterator(nil)
		var ref storage.SeriesRef
		for it.Next() != 0 {
			t, v := it.At()
			r, err := app.Append(ref, ls, 0, t, v, nil, nil, storage.AOptions{})
			if err == nil {
				ref = r
			} else if !isRefusal(err) {
				return errors.Join(err, app.Rollback())
			}
		}
		if err := it.Err(); err != nil {
			return errors.Join(err, app.Rollback())
		}
	}
	if err := all.Err(); err != nil {
		return errors.Join(err, app.Rollback())
	}
	return app.Commit()
}

// Querier implements storage.Queryable. The backend stays open until the
// querier is closed.
func (s *store) Querier(mint, maxt int64) (storage.Querier, error) {
	b, release, err := s.use()
	if err != nil {
		return nil, err
	}
	q, err := b.Querier(mint, maxt)
	if err != nil {
		release()
		return nil, err
	}
	return &releasing{Querier: q, release: sync.OnceFunc(release)}, nil
}

type releasing struct {
	storage.Querier
	release func()
}

func (r *releasing) Close() error {
	defer r.release()
	return r.Querier.Close()
}

// maintain forgets what lies behind the retention, goes back to the storage
// directory when that works again, and measures the store.
func (s *store) maintain(ctx context.Context) {
	if err := s.toDisk(ctx); err != nil {
		s.logger.Debug("The storage directory still cannot be used", "err", err)
	}
	b, release, err := s.use()
	if err != nil {
		return
	}
	// A slice more than the retention keeps queries clear of what goes.
	if err := b.truncate(time.Now().Add(-s.retention - copySlice).UnixMilli()); err != nil {
		s.logger.Warn("Forgetting old samples failed", "err", err)
	}
	release()
	s.measure()
}

func (s *store) measure() {
	b, release, err := s.use()
	if err != nil {
		return
	}
	defer release()
	size := b.bytes()
	s.mu.Lock()
	s.size = size
	s.mu.Unlock()
}

// status is what /metrics says of the store.
type status struct {
	series float64
	// bytes on disk, NaN in memory.
	bytes float64
	// configured tells whether there is a storage directory, durable whether
	// it is in use, reason why not.
	configured, durable bool
	reason              string
}

func (s *store) status() status {
	b, release, err := s.use()
	if err != nil {
		return status{series: math.NaN(), bytes: math.NaN(), configured: s.path != "", reason: "closed"}
	}
	defer release()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := status{series: float64(b.series()), bytes: float64(s.size), configured: s.path != "", durable: b.durable(), reason: s.reason}
	if !st.durable {
		st.bytes = math.NaN()
	}
	return st
}

// Close waits for those who use the store and closes it.
func (s *store) Close() error {
	s.moving.Lock()
	defer s.moving.Unlock()
	s.mu.Lock()
	b := s.current
	s.current = nil
	s.mu.Unlock()
	if b == nil {
		return nil
	}
	b.users.Wait()
	return errors.Join(s.retire(), b.Close())
}

// prefixed returns a registerer under which Prometheus' own metrics are not
// taken for those of a server.
func prefixed(r prometheus.Registerer) prometheus.Registerer {
	if r == nil {
		return nil
	}
	return prometheus.WrapRegistererWithPrefix("headroom_exporter_", r)
}
