package rules

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/storage"
)

// history appends a counter that grows by 1 a second, once a second up to now,
// and a second counter that is younger.
func history(t testing.TB, e *Evaluator, now time.Time, seconds int) {
	t.Helper()
	for i := seconds; i >= 0; i-- {
		samples := []Sample{rank0("a_total", float64(seconds-i))}
		if i < seconds/2 {
			samples = append(samples, rank0("b_total", float64(i)))
		}
		if err := e.Append(now.Add(-time.Duration(i)*time.Second), samples); err != nil {
			t.Fatal(err)
		}
	}
}

// user is a rule file that reads the counters over an hour.
func user(t testing.TB) string {
	return write(t, t.TempDir(), "user.yml", group(
		rule("grown", "a_total - min_over_time(a_total[1h])")+rule("counted", "count_over_time(b_total[1h])")))
}

const (
	childDir   = "HEADROOM_TEST_STORAGE"
	childRules = "HEADROOM_TEST_RULES"
)

// TestChild is the process that TestRestart kills.
func TestChild(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("runs as the child of TestRestart only")
	}
	e, err := New(Config{Files: []string{os.Getenv(childRules)}, StoragePath: dir})
	if err != nil {
		t.Fatal(err)
	}
	history(t, e, time.Now(), 3600)
	fmt.Println("fed")
	time.Sleep(time.Minute)
}

// A process that is killed leaves a window of an hour behind, and the next one
// goes on with it.
func TestRestart(t *testing.T) {
	dir, path := filepath.Join(t.TempDir(), "storage"), user(t)
	child := exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.count=1")
	child.Env = append(os.Environ(), childDir+"="+dir, childRules+"="+path)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	fed := false
	for lines := bufio.NewScanner(out); !fed && lines.Scan(); {
		fed = lines.Text() == "fed"
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // It was killed, and says so.
	if !fed {
		t.Fatal("the child ended early")
	}

	e := open(t, Config{Files: []string{path}, StoragePath: dir})
	now := time.Now()
	if err := e.Append(now, []Sample{rank0("a_total", 3605)}); err != nil {
		t.Fatal(err)
	}
	if got := query(t, e, "a_total - min_over_time(a_total[1h])", now); got < 3590 {
		t.Errorf("the counter grew by %v in the window, want about 3600", got)
	}
	if got := query(t, e, "count_over_time(b_total[1h])", now); got < 1790 || got > 1800 {
		t.Errorf("%v samples of a series that ended with the process, want 1800", got)
	}
	if st := e.store.status(); !st.durable || st.reason != "" || st.bytes <= 0 {
		t.Errorf("status %+v", st)
	}
	if got := exposed(t, e, "headroom_exporter_rules_storage_up"); got != 1 {
		t.Errorf("storage_up = %v, want 1", got)
	}
}

// Two processes on one directory: the second goes on in memory.
func TestLocked(t *testing.T) {
	dir := t.TempDir()
	open(t, Config{StoragePath: dir})
	wantMemory(t, open(t, Config{Files: []string{user(t)}, StoragePath: dir}), "locked")
}

// Samples from the future would make the store refuse all that come.
func TestFutureData(t *testing.T) {
	dir := t.TempDir()
	first, err := New(Config{Files: []string{user(t)}, StoragePath: dir})
	if err != nil {
		t.Fatal(err)
	}
	history(t, first, time.Now().Add(time.Hour), 10)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	wantMemory(t, open(t, Config{Files: []string{user(t)}, StoragePath: dir}), "future_data")
}

func TestUnusableDirectory(t *testing.T) {
	file := write(t, t.TempDir(), "file", "")
	wantMemory(t, open(t, Config{Files: []string{user(t)}, StoragePath: filepath.Join(file, "storage")}), "failed")
}

// wantMemory checks that rules work in memory, and that /metrics says why.
func wantMemory(t *testing.T, e *Evaluator, reason string) {
	t.Helper()
	if st := e.store.status(); st.durable || st.reason != reason {
		t.Errorf("status %+v, want in memory for %s", st, reason)
	}
	if got := exposed(t, e, "headroom_exporter_rules_storage_up"); got != 0 {
		t.Errorf("storage_up = %v, want 0", got)
	}
	now := time.Now()
	history(t, e, now, 300)
	if got := query(t, e, "a_total - min_over_time(a_total[1h])", now); got != 300 {
		t.Errorf("grown = %v, want 300", got)
	}
}

func TestReason(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, "no_space"},
		{fmt.Errorf("storing: %w", syscall.EDQUOT), "no_space"},
		{errors.Join(&fs.PathError{Op: "open", Path: "x", Err: syscall.EROFS}), "read_only"},
		{&fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}, "permission"},
		{fmt.Errorf("opening: %w", errFutureData), "future_data"},
		{errors.New("unexpected"), "failed"},
	} {
		if got := reasonFor(tt.err); got != tt.want {
			t.Errorf("reasonFor(%v) = %s, want %s", tt.err, got, tt.want)
		}
	}
}

// faulty is a disk whose log fails while it is told to.
type faulty struct {
	backend
	full *atomic.Bool
}

type faultyAppender struct {
	storage.AppenderV2
	full *atomic.Bool
}

func (f faulty) AppenderV2(ctx context.Context) storage.AppenderV2 {
	return faultyAppender{f.backend.AppenderV2(ctx), f.full}
}

func (a faultyAppender) Commit() error {
	if a.full.Load() {
		return errors.Join(fmt.Errorf("write to WAL: %w", syscall.ENOSPC), a.Rollback())
	}
	return a.AppenderV2.Commit()
}

// The disk is full at 10 minutes: no sample is lost, and the window goes on in
// memory. It is free again: the window goes back, and survives a restart.
func TestDiskFull(t *testing.T) {
	dir, path := t.TempDir(), user(t)
	e, err := New(Config{Files: []string{path}, StoragePath: dir})
	if err != nil {
		t.Fatal(err)
	}
	var full atomic.Bool
	openDisk := e.store.openDisk
	e.store.openDisk = func() (backend, error) {
		if full.Load() {
			return nil, syscall.ENOSPC
		}
		d, err := openDisk()
		return faulty{d, &full}, err
	}
	e.store.current.backend = faulty{e.store.current.backend, &full}

	now := time.Now()
	history(t, e, now.Add(-100*time.Second), 600)
	full.Store(true)
	feed := func(from, to int) {
		for i := from; i <= to; i++ {
			if err := e.Append(now.Add(time.Duration(i-100)*time.Second), []Sample{rank0("a_total", float64(600+i))}); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(at int, durable bool, reason string) {
		t.Helper()
		moment := now.Add(time.Duration(at-100) * time.Second)
		if got := query(t, e, "a_total - min_over_time(a_total[1h])", moment); got != float64(600+at) {
			t.Errorf("%d s: grown by %v, want %d", at, got, 600+at)
		}
		if got := query(t, e, "count_over_time(a_total[1h])", moment); got != float64(601+at) {
			t.Errorf("%d s: %v samples, want %d", at, got, 601+at)
		}
		if got := query(t, e, "count_over_time(b_total[1h])", moment); got != 300 {
			t.Errorf("%d s: %v samples of the other series, want 300", at, got)
		}
		if st := e.store.status(); st.durable != durable || st.reason != reason {
			t.Errorf("%d s: status %+v", at, st)
		}
	}
	feed(1, 50)
	check(50, false, "no_space")
	e.maintain(context.Background()) // Still full.
	check(50, false, "no_space")
	full.Store(false)
	e.maintain(context.Background())
	check(50, true, "")
	feed(51, 100)
	check(100, true, "")
	if got := e.feed.refused.Load() + e.feed.failures.Load(); got != 0 {
		t.Errorf("%d samples refused or lost", got)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open(t, Config{Files: []string{path}, StoragePath: dir})
	check(100, true, "")
}

// mount mounts a small file system where the test may.
func mount(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", dir).Run(); err != nil {
		t.Skipf("cannot mount a file system here: %v", err)
	}
	t.Cleanup(func() {
		if err := exec.Command("umount", dir).Run(); err != nil {
			t.Errorf("umount: %v", err)
		}
	})
	return dir
}

// A real file system that fills up under the store.
func TestRealDiskFull(t *testing.T) {
	dir := mount(t, "16m")
	e := open(t, Config{Files: []string{user(t)}, StoragePath: filepath.Join(dir, "storage")})
	now := time.Now()
	history(t, e, now.Add(-10*time.Minute), 1200)
	hog, err := os.Create(filepath.Join(dir, "hog"))
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 4096)
	for err == nil {
		_, err = hog.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	for i := 1; i <= 600; i++ {
		if err := e.Append(now.Add(time.Duration(i-600)*time.Second), []Sample{rank0("a_total", float64(1200+i))}); err != nil {
			t.Fatal(err)
		}
	}
	if got := query(t, e, "a_total - min_over_time(a_total[1h])", now); got != 1800 {
		t.Errorf("grown by %v, want 1800", got)
	}
	st := e.store.status()
	if st.durable || st.reason != "no_space" {
		t.Errorf("status %+v, want in memory for want of space", st)
	}
	e.maintain(context.Background())
	if e.store.status().durable {
		t.Error("the store went back to a disk that is full")
	}
	if err := errors.Join(hog.Truncate(0), hog.Close()); err != nil {
		t.Fatal(err)
	}
	e.maintain(context.Background())
	if st := e.store.status(); !st.durable {
		t.Errorf("status %+v, want on disk again", st)
	}
	if got := query(t, e, "count_over_time(a_total[1h])", now); got != 1801 {
		t.Errorf("%v samples, want 1801", got)
	}
}

// A real file system that was made read-only while nobody ran.
func TestRealReadOnly(t *testing.T) {
	dir := mount(t, "16m")
	path := filepath.Join(dir, "storage")
	e := open(t, Config{Files: []string{user(t)}, StoragePath: path})
	now := time.Now()
	history(t, e, now.Add(-time.Minute), 60)
	if err := e.store.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-o", "remount,ro", dir).CombinedOutput(); err != nil {
		t.Fatalf("remounting: %v: %s", err, out)
	}
	wantMemory(t, open(t, Config{Files: []string{user(t)}, StoragePath: path}), "read_only")
}

// What lies behind the retention is forgotten, in memory and on disk.
func TestRetention(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		t.Run(map[bool]string{true: "memory", false: "disk"}[dir == ""], func(t *testing.T) {
			path := write(t, t.TempDir(), "user.yml", group(rule("x", "count_over_time(a_total[10m])")))
			e := open(t, Config{Files: []string{path}, StoragePath: dir, Retention: 10 * time.Minute})
			now := time.Now()
			for i := 3 * 3600; i >= 0; i -= 2 {
				if err := e.Append(now.Add(-time.Duration(i)*time.Second), []Sample{rank0("a_total", float64(i))}); err != nil {
					t.Fatal(err)
				}
				if i%600 == 0 {
					e.maintain(context.Background())
				}
			}
			e.maintain(context.Background())
			if d, ok := e.store.current.backend.(*disk); ok {
				if err := d.Compact(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			if got := query(t, e, "count_over_time(a_total[10m])", now); got != 300 {
				t.Errorf("%v samples in the retention, want 300", got)
			}
			// Blocks of 5 minutes, one and a half of them in the head.
			if got := query(t, e, "count_over_time(a_total[3h])", now); math.IsNaN(got) || got > 30*30 {
				t.Errorf("%v samples in all, want at most 900", got)
			}
		})
	}
}
