package store_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// The history and the state are apart: what happens to the one does not happen to the other.

// Damage to a span used to set the assignments aside.
func TestDamagedHistory_LeavesAssignments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "history.db")
	s := open(t, dir)
	h, _ := store.OpenHistory(s)
	gone := span(1, time.Hour)
	gone.Pod.Name = "long-gone"
	if err := errors.Join(s.SavePods([]device.PodRecord{pod("a")}, nil), h.SaveHistory([]device.Span{gone}, nil), h.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[bytes.LastIndex(data, []byte("long-gone"))] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s, has, log, metrics := recover(t, dir)
	h, _ = store.OpenHistory(s)
	defer h.Close()
	if !reflect.DeepEqual(has.Pods, []device.PodRecord{pod("a")}) || damagedFiles(t, metrics) != 0 {
		t.Errorf("the state holds %v, and %v state files are set aside", has.Pods, damagedFiles(t, metrics))
	}
	aside, _ := filepath.Glob(path + ".damaged-*")
	if len(aside) != 1 {
		t.Fatalf("set aside are %q", aside)
	}
	if kept, err := os.ReadFile(aside[0]); err != nil || !bytes.Equal(kept, data) {
		t.Errorf("what was set aside is not what was there (%v)", err)
	}
	for _, want := range []string{"level=WARN", path, aside[0], "err="} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, log)
		}
	}
	if err := h.SaveHistory([]device.Span{span(2, 0)}, nil); err != nil {
		t.Error(err)
	}
	if all, err := h.Spans(time.Time{}); err != nil || !reflect.DeepEqual(all, []device.Span{span(2, 0)}) {
		t.Errorf("the new history holds %v, %v", all, err)
	}
}

// Damage to the state leaves the history.
func TestDamagedState_LeavesHistory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h, _, closed := openHistory(t, dir)
	if err := h.SaveHistory([]device.Span{span(1, time.Hour), span(2, 0)}, nil); err != nil {
		t.Fatal(err)
	}
	closed()
	if err := os.WriteFile(filepath.Join(dir, "state.db"), []byte("damage"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, _, _, _ := recover(t, dir)
	h, open := store.OpenHistory(s)
	defer h.Close()
	if all, err := h.Spans(time.Time{}); err != nil || len(all) != 2 || !reflect.DeepEqual(open, []device.Span{span(2, 0)}) {
		t.Errorf("%v, %v; open are %v", all, err, open)
	}
}

// A history that cannot be opened keeps nothing else from working, and is opened when it can be.
func TestUnusableHistory_LeavesAssignments(t *testing.T) {
	t.Parallel()
	foreign := func(t *testing.T, path string) {
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(func(tx *bolt.Tx) error {
			_, err := tx.CreateBucket([]byte("lease"))
			return err
		}), db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		put  func(t *testing.T, path string)
		want string
	}{
		"directory": {func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "not a regular file"},
		"another program's": {foreign, "history file .* belongs to another program"},
		"a state file": {func(t *testing.T, path string) {
			other := t.TempDir()
			if err := errors.Join(open(t, other).Close(), os.Rename(filepath.Join(other, "state.db"), path)); err != nil {
				t.Fatal(err)
			}
		}, "schema version 2"},
		"in use": {func(t *testing.T, path string) {
			foreign(t, path)
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
		}, "in use by another program"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "history.db")
			test.put(t, path)
			s, _, log, _ := recover(t, dir)
			h, open := store.OpenHistory(s)
			defer h.Close()
			if open != nil || !strings.Contains(log.String(), "level=WARN") || !matches(test.want, log.String()) {
				t.Errorf("open are %v, and the log says:\n%s", open, log)
			}
			if err := errors.Join(s.SavePods([]device.PodRecord{pod("a")}, nil), s.Check()); err != nil {
				t.Error(err)
			}
			if err := h.SaveHistory([]device.Span{span(1, 0)}, nil); err == nil || !matches(test.want, err.Error()) {
				t.Errorf("SaveHistory: %v", err)
			}
			if all, err := h.Spans(time.Time{}); err == nil {
				t.Errorf("Spans: %v", all)
			}
			if err := os.Rename(path, path+".away"); err != nil {
				t.Fatal(err)
			}
			if err := h.SaveHistory([]device.Span{span(1, 0)}, nil); err != nil {
				t.Error(err)
			}
			if all, err := h.Spans(time.Time{}); err != nil || !reflect.DeepEqual(all, []device.Span{span(1, 0)}) {
				t.Errorf("Spans: %v, %v", all, err)
			}
		})
	}
}

// bbolt maps the file, so a page that cannot be read is a fault. It costs the history, and not the process.
func TestHistoryFaultsInUse_LeavesAssignments(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		size  int64
		write bool // the first use is one
	}{
		"some of it": {3 * 4096, false}, "all of it": {0, false}, "some of it, at a write": {3 * 4096, true}, "all of it, at a write": {0, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "history.db")
			s, _, _, _ := recover(t, dir)
			h, _ := store.OpenHistory(s)
			var all []device.Span
			for i := range 500 {
				all = append(all, span(i+1, time.Hour))
			}
			if err := errors.Join(h.SaveHistory(all, nil), os.Truncate(path, test.size)); err != nil {
				t.Fatal(err)
			}
			if test.write {
				if err := h.SaveHistory([]device.Span{span(501, time.Hour)}, nil); err == nil {
					t.Error("SaveHistory succeeded")
				}
			}
			for range 2 {
				if all, err := h.Spans(time.Time{}); err == nil || !strings.Contains(err.Error(), "failed while in use") {
					t.Errorf("Spans: %d, %v", len(all), err)
				}
				if err := h.SaveHistory(all[:1], nil); err == nil {
					t.Error("SaveHistory succeeded")
				}
			}
			if err := errors.Join(s.SavePods([]device.PodRecord{pod("a")}, nil), s.Check(), h.Close(), s.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A history on a full disk costs assignments nothing, and goes on when there is room.
func TestHistoryOnAFullDisk(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	h, _, closed := openHistory(t, d.dir)
	if err := h.SaveHistory([]device.Span{span(1, 0)}, nil); err != nil {
		t.Fatal(err)
	}
	d.fill()
	many := []device.Span{span(2, time.Hour)}
	for range 400 {
		many[0].IDs = append(many[0].IDs, device.ID(strings.Repeat("x", 200)))
	}
	if err := h.SaveHistory(many, nil); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("SaveHistory: %v", err)
	}
	closed()
	if err := os.Remove(filepath.Join(d.dir, "history.db")); err != nil {
		t.Fatal(err)
	}
	d.clear()
	d.fill()
	s, _, log, _ := recover(t, d.dir)
	h, _ = store.OpenHistory(s)
	defer h.Close()
	if err := errors.Join(s.Check(), s.SavePods(nil, nil)); err != nil || !strings.Contains(log.String(), "no space left") {
		t.Errorf("%v, and the log says:\n%s", err, log)
	}
	d.clear()
	if err := h.SaveHistory(many, nil); err != nil {
		t.Error(err)
	}
}

// A state file may have other buckets: this one, from before the history had a file of its own, has the history.
func TestStateFile_HasOtherBuckets_KeepsItsRecords(t *testing.T) {
	t.Parallel()
	old := unpack(t, "version-2.db.gz")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "state.db"), old, 0o600); err != nil {
		t.Fatal(err)
	}
	want := store.State{
		Pods: []device.PodRecord{pod("a"), pod("b"), pod("c")},
		Plugins: []device.PluginRecord{
			{Resource: "a.com/x", Endpoint: "x.sock", Reported: true, Devices: []device.Device{{ID: "1", Healthy: true, NUMA: []int{0, 300}}, {ID: "3"}}},
			{Resource: "b.com/y", Endpoint: "/run/y.sock"},
		},
		Cordons: []device.Cordon{{Resource: "a.com/x", ID: "3", Reason: "fan", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}},
		Retired: []device.ResourceName{"c.com/z"},
	}
	for range 2 {
		s, has, _, metrics := recover(t, dir)
		if !reflect.DeepEqual(has, want) || damagedFiles(t, metrics) != 0 {
			t.Errorf("the state holds %+v, want %+v", has, want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func matches(pattern, text string) bool { return regexp.MustCompile(pattern).MatchString(text) }

// A copy of a history in use is whole and sound.
func TestCopyOfTheHistory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h, _, _ := openHistory(t, dir)
	if err := h.SaveHistory([]device.Span{span(1, time.Hour), span(2, 0)}, nil); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if _, err := h.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "copy.db")
	if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	past, err := store.ReadHistoryFile(path, slog.New(slog.DiscardHandler))
	if err != nil || past.Version != 1 || !reflect.DeepEqual(past.Spans, []device.Span{span(1, time.Hour), span(2, 0)}) {
		t.Errorf("%v, %v", past, err)
	}
	if _, err := store.ReadHistoryFile(filepath.Join(dir, "history.db"), slog.New(slog.DiscardHandler)); !errors.As(err, new(*store.InUseError)) {
		t.Errorf("a file in use is read: %v", err)
	}
}
