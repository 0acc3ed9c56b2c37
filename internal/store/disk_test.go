package store_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A disk is a small file system of its own, in memory.
type disk struct {
	t   *testing.T
	dir string
}

func newDisk(t *testing.T) disk {
	t.Helper()
	plugintest.NeedRoot(t)
	d := disk{t, t.TempDir()}
	if err := unix.Mount("none", d.dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Fatalf("mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(d.dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return d
}

// fill leaves no room on the disk; clear makes it again.
func (d disk) fill() {
	d.t.Helper()
	f, err := os.Create(filepath.Join(d.dir, "filler"))
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		d.t.Fatal(err)
	}
}

func (d disk) clear() {
	d.t.Helper()
	if err := os.Remove(filepath.Join(d.dir, "filler")); err != nil {
		d.t.Fatal(err)
	}
}

// remount lets the disk be written, or not.
func (d disk) remount(flags uintptr) {
	d.t.Helper()
	if err := unix.Mount("none", d.dir, "tmpfs", unix.MS_REMOUNT|flags, "size=512k"); err != nil {
		d.t.Fatal(err)
	}
}

// large makes a pod that does not fit in where there is no room.
func large(uid string) device.PodRecord {
	p := pod(uid)
	p.Assignments[0].Shares[0].Grant.Env["LARGE"] = strings.Repeat("x", 100<<10)
	return p
}

// fails checks that a pod cannot be saved and that Check reports it.
func fails(t *testing.T, s *store.Store, p device.PodRecord, want error) {
	t.Helper()
	if err := s.SavePods([]device.PodRecord{p}, nil); !errors.Is(err, want) {
		t.Errorf("SavePods: %v, want %v", err, want)
	}
	if err := s.Check(); !errors.Is(err, want) {
		t.Errorf("Check: %v, want %v", err, want)
	}
}

// works checks that a pod can be saved, that all is well then, and that the next start finds these.
func works(t *testing.T, s *store.Store, dir string, p device.PodRecord, all ...device.PodRecord) {
	t.Helper()
	if err := errors.Join(s.SavePods([]device.PodRecord{p}, nil), s.Check(), s.Close()); err != nil {
		t.Fatal(err)
	}
	_, has, log, _ := recover(t, dir)
	if !reflect.DeepEqual(has.Pods, append(all, p)) {
		t.Errorf("the next start finds %d pods, want %d:\n%s", len(has.Pods), len(all)+1, log)
	}
}

// A disk that is full for a while costs nothing but time: what was there stays, what fails leaves no trace.
func TestFullDisk_Commits_FailWithoutTrace(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	s, _, _, _ := recover(t, d.dir)
	if err := s.SavePods([]device.PodRecord{pod("a")}, nil); err != nil {
		t.Fatal(err)
	}
	d.fill()
	for range 3 {
		fails(t, s, large("b"), unix.ENOSPC)
	}
	if pods, err := s.Pods(); err != nil || !reflect.DeepEqual(pods, []device.PodRecord{pod("a")}) {
		t.Errorf("there are %d pods, %v", len(pods), err)
	}
	data, err := os.ReadFile(filepath.Join(d.dir, "state.db"))
	if err == nil {
		err = store.Judge(data)
	}
	if err != nil {
		t.Error(err)
	}
	d.clear()
	works(t, s, d.dir, large("b"), pod("a"))
}

// After a reboot with a full disk what the state file holds is served all the same.
func TestFullDisk_Start_ServesAssignments(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	s, _, _, _ := recover(t, d.dir)
	if err := errors.Join(s.SavePods([]device.PodRecord{pod("a")}, nil), s.Close()); err != nil {
		t.Fatal(err)
	}
	d.fill()
	s, has, _, _ := recover(t, d.dir)
	if !reflect.DeepEqual(has.Pods, []device.PodRecord{pod("a")}) {
		t.Errorf("it holds %+v", has)
	}
	fails(t, s, large("b"), unix.ENOSPC)
	d.clear()
	works(t, s, d.dir, large("b"), pod("a"))
}

// Without a state file, and without room for one, devmgrd starts and refuses each write.
func TestFullDisk_FirstStart_RefusesWrites(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"no file": "", "a damaged file": "damage"} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			path := filepath.Join(d.dir, "state.db")
			if before != "" {
				if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			d.fill()
			s, has, log, _ := recover(t, d.dir)
			if len(has.Pods) > 0 || !strings.Contains(log.String(), "cannot open state file for writing") || !errors.Is(s.Check(), unix.ENOSPC) {
				t.Errorf("it holds %+v, Check returns %v, and the log is:\n%s", has, s.Check(), log)
			}
			fails(t, s, pod("a"), unix.ENOSPC)
			if left, _ := filepath.Glob(path + ".new"); len(left) > 0 {
				t.Errorf("%q is in the way", left)
			}
			if _, err := store.Open(store.Config{Dir: d.dir, Log: slog.New(slog.DiscardHandler)}); !errors.As(err, new(*store.LockedError)) {
				t.Errorf("a second one: %v", err)
			}
			d.clear()
			works(t, s, d.dir, pod("a"))
		})
	}
}

// A disk that cannot be written may still be read. What is not there by then, or damaged, is made when that can be.
func TestReadOnlyDisk_Start_ServesAssignments(t *testing.T) {
	t.Parallel()
	version1 := unpack(t, "version-1.db.gz")
	good := func() []byte {
		dir := t.TempDir()
		s := open(t, dir)
		if err := errors.Join(s.SavePods([]device.PodRecord{pod("a")}, nil), s.Close()); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}()
	for name, test := range map[string]struct {
		before []byte
		has    []device.PodRecord
	}{
		"good":      {good, []device.PodRecord{pod("a")}},
		"version 1": {version1, []device.PodRecord{pod("a"), pod("b"), pod("c")}},
		"damaged":   {[]byte("damage"), nil},
		"none":      {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			path := filepath.Join(d.dir, "state.db")
			if err := open(t, d.dir).Close(); err != nil { // leaves the lock
				t.Fatal(err)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if test.before != nil {
				if err := os.WriteFile(path, test.before, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			d.remount(unix.MS_RDONLY)
			s, has, _, _ := recover(t, d.dir)
			if !reflect.DeepEqual(has.Pods, test.has) {
				t.Errorf("it holds %d pods, want %d", len(has.Pods), len(test.has))
			}
			fails(t, s, pod("d"), unix.EROFS)
			if _, err := store.Open(store.Config{Dir: d.dir, Log: slog.New(slog.DiscardHandler)}); !errors.As(err, new(*store.LockedError)) {
				t.Errorf("a second one: %v", err)
			}
			d.remount(0)
			works(t, s, d.dir, pod("d"), test.has...)
			if name == "damaged" {
				if aside, _ := filepath.Glob(path + ".damaged-*"); len(aside) != 1 {
					t.Errorf("set aside are %q", aside)
				}
			}
		})
	}

	// An operator has repaired the disk and put another file there: devmgrd must not write parts of one state file into the other.
	d := newDisk(t)
	path := filepath.Join(d.dir, "state.db")
	if err := errors.Join(open(t, d.dir).Close(), os.WriteFile(path, good, 0o600)); err != nil {
		t.Fatal(err)
	}
	d.remount(unix.MS_RDONLY)
	s, _, _, _ := recover(t, d.dir)
	d.remount(0)
	if err := os.WriteFile(path, version1, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.SavePods([]device.PodRecord{pod("d")}, nil); !errors.As(err, new(*store.ChangedError)) || s.Check() == nil {
			t.Errorf("SavePods: %v; Check: %v", err, s.Check())
		}
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	works(t, s, d.dir, pod("d"), pod("a"))
}

// What a commit wrote whose sync failed may be in the file and not on the disk: to find it there proves nothing.
func TestSave_AfterFailedSync_CommitsAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _, _, metrics := recover(t, dir)
	commits := func() (n uint64) {
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "devmgrd_store_commit_duration_seconds" {
				n = f.Metric[0].Histogram.GetSampleCount()
			}
		}
		return n
	}
	for _, step := range []struct {
		failed bool
		want   uint64
	}{{false, 1}, {false, 1}, {true, 2}, {false, 2}} {
		if step.failed {
			s.FailedToSync()
		}
		if err := errors.Join(s.SavePods([]device.PodRecord{pod("a")}, nil), s.Check()); err != nil {
			t.Fatal(err)
		}
		if n := commits(); n != step.want {
			t.Errorf("%d commits, want %d", n, step.want)
		}
	}
}

// The note of our pid is no reason not to start.
func TestLock_FullDisk_StoreOpens(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	if err := open(t, d.dir).Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(d.dir, "lock"), 0); err != nil {
		t.Fatal(err)
	}
	d.fill()
	open(t, d.dir)
	if note, err := os.ReadFile(filepath.Join(d.dir, "lock")); err != nil || !bytes.Equal(note, nil) {
		t.Errorf("the lock says %q, %v", note, err)
	}
}
