package rules

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/util/compression"
)

// backend is where samples are kept: Prometheus' store on disk, or its head
// block alone in memory.
type backend interface {
	storage.Queryable
	AppenderV2(context.Context) storage.AppenderV2
	// durable tells whether what is written survives the process.
	durable() bool
	// truncate forgets samples before a moment in milliseconds, where the
	// backend does not do it by itself.
	truncate(mint int64) error
	series() uint64
	// bytes on disk.
	bytes() int64
	// abandon closes a backend that may be failing and whose samples are kept
	// elsewhere. After an error it is to be tried again later.
	abandon() error
	Close() error
}

const (
	// stripes is the size of the store's series map: enough for a few
	// thousand series, where the default is made for millions.
	stripes = 512
	// segmentBytes is the size of a segment of the write-ahead log. Whole
	// segments are deleted, so they are small.
	segmentBytes = 1 << 20
	// minBlock is the shortest span of a block on disk.
	minBlock = 5 * time.Minute
	// never keeps the store from mapping chunks of its head into files in
	// the background: there, a full disk ends the process. With a small head
	// the chunks stay in memory until their block is written.
	never = time.Duration(math.MaxInt64)
	// probeBytes must be writable before the store is opened, for the same
	// reason: reading the log back writes chunk files.
	probeBytes = 4 << 20
	// future is how far ahead of the clock the newest stored sample may be.
	future = time.Minute
)

// disk is a tsdb.DB in a directory.
type disk struct {
	*tsdb.DB
	// closing tells that Close was called before.
	closing bool
}

// errFutureData is for a directory with samples later than now: appends would
// be refused until the clock has passed them.
var errFutureData = errors.New("the newest stored sample lies in the future")

// openDisk opens or creates a store in a directory.
func openDisk(path string, retention time.Duration, logger *slog.Logger, reg prometheus.Registerer) (_ backend, err error) {
	if err := probe(path); err != nil {
		return nil, err
	}
	block := max(retention/8, minBlock)
	opts := tsdb.DefaultOptions()
	opts.RetentionDuration = retention.Milliseconds()
	opts.MinBlockDuration = block.Milliseconds()
	opts.MaxBlockDuration = block.Milliseconds()
	opts.StripeSize = stripes
	opts.WALSegmentSize = segmentBytes
	opts.WALCompression = compression.Snappy
	opts.BlockReloadInterval = never
	opts.HeadChunksWriteBufferSize = 1 << 16
	db, err := tsdb.Open(path, logger, reg, opts, nil)
	if err != nil {
		return nil, fmt.Errorf("opening the store in %s: %w", path, err)
	}
	d := &disk{DB: db}
	newest := db.Head().MaxTime()
	for _, b := range db.Blocks() {
		newest = max(newest, b.Meta().MaxTime)
	}
	if newest > time.Now().Add(future).UnixMilli() {
		return nil, errors.Join(fmt.Errorf("opening the store in %s: %w", path, errFutureData), d.Close())
	}
	return d, nil
}

// probe checks that a directory takes files.
func probe(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("making the storage directory: %w", err)
	}
	f, err := os.CreateTemp(path, ".probe-*")
	if err != nil {
		return fmt.Errorf("writing to the storage directory: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(make([]byte, probeBytes))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("writing to the storage directory: %w", err)
	}
	return nil
}

func (d *disk) durable() bool        { return true }
func (d *disk) truncate(int64) error { return nil }
func (d *disk) series() uint64       { return d.Head().NumSeries() }

func (d *disk) bytes() int64 {
	size := d.Head().Size()
	for _, b := range d.Blocks() {
		size += b.Size()
	}
	return size
}

// abandon implements backend. The head is emptied first, because closing
// writes chunks that it holds to files, and the store panics when it cannot.
// Emptying it cuts the log as well, but on a disk that is full that fails and
// leaves the log whole.
func (d *disk) abandon() error {
	if !d.closing {
		d.DisableCompactions()
		_ = d.Head().Truncate(d.Head().MaxTime() + 1)
	}
	return d.Close()
}

// Close closes the store. When chunk files cannot be written the store panics;
// what it had logged is read back at the next start.
func (d *disk) Close() (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("closing the store: %v", cause)
		}
	}()
	if d.closing {
		// The store closes once only, even if its log could not be closed.
		return d.Head().Close()
	}
	d.closing = true
	return d.DB.Close()
}

// memory is a head block alone. It writes nothing.
type memory struct {
	*tsdb.Head
}

// openMemory makes an empty store in memory. The head insists on a directory,
// though nothing is ever written to it: it is removed while the head has it open.
func openMemory(retention time.Duration, logger *slog.Logger) (backend, error) {
	dir, err := emptyDir()
	if err != nil {
		return nil, fmt.Errorf("making a store in memory: %w", err)
	}
	defer os.RemoveAll(dir)
	opts := tsdb.DefaultHeadOptions()
	opts.ChunkRange = retention.Milliseconds()
	opts.ChunkDirRoot = dir
	opts.StripeSize = stripes
	head, err := tsdb.NewHead(nil, logger, nil, nil, opts, nil)
	if err != nil {
		return nil, fmt.Errorf("making a store in memory: %w", err)
	}
	return &memory{Head: head}, nil
}

// emptyDir makes an empty directory, in shared memory where the temporary
// directory cannot be written: there, a read-only container still has it.
func emptyDir() (string, error) {
	var errs []error
	for _, parent := range []string{os.TempDir(), filepath.FromSlash("/dev/shm")} {
		dir, err := os.MkdirTemp(parent, "headroom-rules-")
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

func (m *memory) durable() bool             { return false }
func (m *memory) truncate(mint int64) error { return m.Truncate(mint) }
func (m *memory) series() uint64            { return m.NumSeries() }
func (m *memory) bytes() int64              { return 0 }

// Querier implements storage.Queryable.
func (m *memory) Querier(mint, maxt int64) (storage.Querier, error) {
	return tsdb.NewBlockQuerier(tsdb.NewRangeHead(m.Head, mint, maxt), mint, maxt)
}

func (m *memory) abandon() error { return m.Close() }

// Close empties the head first, because closing writes what is in it.
func (m *memory) Close() error {
	if m.NumSeries() > 0 {
		if err := m.Truncate(m.MaxTime() + 1); err != nil {
			return fmt.Errorf("emptying the store in memory: %w", err)
		}
	}
	return m.Head.Close()
}

// reasonFor names in one word why the storage directory is not used.
func reasonFor(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "no_space"
	case errors.Is(err, syscall.EROFS):
		return "read_only"
	case errors.Is(err, fs.ErrPermission):
		return "permission"
	case errors.Is(err, syscall.EAGAIN):
		return "locked"
	case errors.Is(err, errFutureData):
		return "future_data"
	}
	return "failed"
}
