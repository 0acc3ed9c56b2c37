package store_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

func open(t testing.TB, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(store.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func reopen(t testing.TB, s *store.Store, dir string) *store.Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

func pod(uid string) device.PodRecord {
	c := device.Container{Pod: device.PodUID(uid), Name: "main"}
	return device.PodRecord{
		Demand: device.PodDemand{
			Pod:     device.Pod{UID: c.Pod, Namespace: "default", Name: "pod-" + uid},
			Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			Demands: []device.Demand{{Container: c, Kind: device.App, Wants: map[device.ResourceName]int{"vendor.com/dev": 1}, Env: []string{"A"}}},
		},
		Assignments: []device.Assignment{{Container: c, Shares: []device.Share{{
			Resource: "vendor.com/dev", IDs: []device.ID{"dev-1"},
			Grant: device.Grant{
				Env:         map[string]string{"X": "1"},
				Mounts:      []device.Mount{{ContainerPath: "/c", HostPath: "/h", ReadOnly: true}},
				Nodes:       []device.Node{{ContainerPath: "/dev/x", HostPath: "/dev/y", Permissions: "rw"}},
				CDI:         []string{"vendor.com/dev=1"},
				Annotations: map[string]string{"k": "v"},
			},
		}}}},
	}
}

func TestPodsSurviveAReopen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	want := []device.PodRecord{pod("a"), pod("b")}
	if err := s.SavePods(want, nil); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s, dir)
	got, err := s.Pods()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("Pods() = %+v, %v; want %+v", got, err, want)
	}
	if err := s.SavePods([]device.PodRecord{pod("c")}, []device.PodUID{"a", "unknown"}); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s, dir)
	got, err = s.Pods()
	if want := []device.PodRecord{pod("b"), pod("c")}; err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("Pods() = %+v, %v; want %+v", got, err, want)
	}
}

func TestPluginsSurviveAReopen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	steps := []device.PluginRecord{
		{Resource: "a.com/x", Endpoint: "x.sock"},
		{Resource: "a.com/x", Endpoint: "x.sock", Reported: true},
		{Resource: "a.com/x", Endpoint: "x.sock", Reported: true, Devices: []device.Device{{ID: "1", Healthy: true, NUMA: []int{0, 300}}, {ID: "3"}}},
		{Resource: "a.com/x", Endpoint: "y.sock", Reported: true, Devices: []device.Device{{ID: "0"}, {ID: "1"}, {ID: "2", Healthy: true}}},
		{Resource: "a.com/x", Endpoint: "y.sock", Reported: true},
		{Resource: "a.com/x", Endpoint: "y.sock", Reported: true, Away: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Lost: true},
		{Resource: "a.com/x", Endpoint: "y.sock", Reported: true, Devices: []device.Device{{ID: "1", Added: 1_800_000_000_000_000_000, NUMA: []int{1}}}, Newest: 1_800_000_000_000_000_001},
		{Resource: "a.com/x", Endpoint: "y.sock", Reported: true, Devices: []device.Device{{ID: "1"}, {ID: "2"}, {ID: "10", Healthy: true}, {ID: "x-2"}, {ID: "x-10"}}},
		{Resource: "a.com/x", Endpoint: "y.sock", Reported: true, Reserve: []device.ReservePlugin{
			{Endpoint: "x.sock", Pod: device.PluginPod{Pod: device.Pod{UID: "u", Namespace: "kube-system", Name: "old"}}}, {Endpoint: "z.sock", Newer: true},
		}},
		{Resource: "a.com/x", Endpoint: "y.sock", Reported: true, Devices: []device.Device{{ID: "2"}, {ID: "10"}, {ID: "x-2", Healthy: true}, {ID: "x-9"}}},
	}
	for i, want := range steps {
		if err := s.SavePlugin(want); err != nil {
			t.Fatal(err)
		}
		s = reopen(t, s, dir)
		got, err := s.Plugins()
		if err != nil || !reflect.DeepEqual(got, []device.PluginRecord{want}) {
			t.Fatalf("step %d: Plugins() = %+v, %v; want %+v", i, got, err, want)
		}
	}
}

func TestSave_Unchanged_WritesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	metrics := prometheus.NewRegistry()
	s, err := store.Open(store.Config{Dir: dir, Log: slog.New(slog.DiscardHandler), Metrics: metrics})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	plugin := device.PluginRecord{Resource: "a.com/x", Endpoint: "x.sock", Reported: true, Devices: []device.Device{{ID: "1", Healthy: true}}}
	for range 3 {
		if err := errors.Join(s.SavePods([]device.PodRecord{pod("a")}, []device.PodUID{"none"}), s.SavePlugin(plugin)); err != nil {
			t.Fatal(err)
		}
	}
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if n := families[0].Metric[0].Histogram.GetSampleCount(); n != 2 {
		t.Errorf("%d commits, want 2: one for the pod and one for the plugin", n)
	}
}

func TestOpen_SecondProcess_NamesTheFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open(t, dir)
	_, err := store.Open(store.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	var locked *store.LockedError
	if !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Fatalf("second Open: %v; want a LockedError with pid %d", err, os.Getpid())
	}
	if want := fmt.Sprintf("pid %d", os.Getpid()); !strings.Contains(err.Error(), want) {
		t.Errorf("message %q does not name the first one (%s)", err, want)
	}
}

// Each of these files has to be refused with a reason, and must be the same afterwards, byte for byte.
func TestOpen_RefusedFile_IsUnchanged(t *testing.T) {
	t.Parallel()
	good := func(t *testing.T) []byte {
		dir := t.TempDir()
		s := open(t, dir)
		for i := range 200 {
			if err := s.SavePods([]device.PodRecord{pod(fmt.Sprint(i))}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	edited := func(t *testing.T, edit func(*bolt.Tx) error) []byte {
		path := filepath.Join(t.TempDir(), "db")
		if err := os.WriteFile(path, good(t), 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(edit), db.Close()); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for name, test := range map[string]struct {
		data func(*testing.T) []byte
		want string
	}{
		"newer": {func(t *testing.T) []byte {
			return edited(t, func(tx *bolt.Tx) error {
				meta, version := tx.Bucket([]byte("meta")), binary.BigEndian.AppendUint64(nil, 99)
				return errors.Join(meta.Put([]byte("version"), version), meta.Put([]byte("check"), store.VersionCheck(version)))
			})
		}, "schema version 99, and this devmgrd supports versions up to 2"},
		"foreign": {func(t *testing.T) []byte {
			return edited(t, func(tx *bolt.Tx) error {
				_, err := tx.CreateBucket([]byte("v1"))
				return errors.Join(err, tx.DeleteBucket([]byte("meta")), tx.DeleteBucket([]byte("plugins")))
			})
		}, "belongs to another program"},
		"next format": {func(t *testing.T) []byte {
			d := good(t)
			for _, at := range []int{16, 4096 + 16} {
				binary.NativeEndian.PutUint32(d[at+4:], 3)
				sum := fnv.New64a()
				sum.Write(d[at : at+56])
				binary.NativeEndian.PutUint64(d[at+56:], sum.Sum64())
			}
			return d
		}, "this devmgrd does not support its format"},
		"empty": {func(*testing.T) []byte { return nil }, "it is empty"},
		"text":  {func(*testing.T) []byte { return []byte(strings.Repeat("not a database\n", 1000)) }, "no valid header"},
		"cut":   {func(t *testing.T) []byte { d := good(t); return d[:len(d)/2] }, "is truncated"},
		"garbled": {func(t *testing.T) []byte {
			d := good(t)
			copy(d[3*4096:], strings.Repeat("x", len(d)-3*4096))
			return d
		}, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "state.db")
			data := test.data(t)
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := store.Open(store.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			for _, want := range []string{test.want, path, "has not been touched"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if after, err := os.ReadFile(path); err != nil || string(after) != string(data) {
				t.Errorf("the file has changed (%v)", err)
			}
			// The lock is free again, so that an operator can repair the file.
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			open(t, dir)
		})
	}
}

func BenchmarkSavePod(b *testing.B) {
	for _, pods := range []int{0, 5000} {
		b.Run(fmt.Sprintf("among=%d", pods), func(b *testing.B) {
			s := open(b, b.TempDir())
			var all []device.PodRecord
			for i := range pods {
				all = append(all, pod(fmt.Sprintf("%08x-uid", i)))
			}
			if err := s.SavePods(all, nil); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := s.SavePods([]device.PodRecord{pod("new")}, nil); err != nil {
					b.Fatal(err)
				}
				if err := s.SavePods(nil, []device.PodUID{"new"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// fullNode writes a state file of 1 000 pods and 10 000 devices.
func fullNode(b *testing.B) (dir string) {
	b.Helper()
	dir = b.TempDir()
	s := open(b, dir)
	var pods []device.PodRecord
	for i := range 1000 {
		pods = append(pods, pod(fmt.Sprintf("%08x-uid", i)))
	}
	plugin := device.PluginRecord{Resource: "a.com/x", Endpoint: "x.sock", Reported: true}
	for i := range 10_000 {
		plugin.Devices = append(plugin.Devices, device.Device{ID: device.ID(fmt.Sprintf("GPU-%08d", i)), Healthy: true, NUMA: []int{i % 2}})
	}
	if err := errors.Join(s.SavePods(pods, nil), s.SavePlugin(plugin), s.Close()); err != nil {
		b.Fatal(err)
	}
	return dir
}

// BenchmarkOpen measures a restart's share of the store: opening and checking the file, and reading what is in it.
func BenchmarkOpen(b *testing.B) {
	dir := fullNode(b)
	for b.Loop() {
		s, has, err := store.Recover(store.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil || len(has.Pods) != 1000 || len(has.Plugins[0].Devices) != 10_000 {
			b.Fatal(len(has.Pods), err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheck measures the check of the whole file that is part of it, next to the one that comes with bbolt, which sees
// less.
func BenchmarkCheck(b *testing.B) {
	path := filepath.Join(fullNode(b), "state.db")
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			data, err := os.ReadFile(path)
			if err == nil {
				err = store.Judge(data)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bbolt", func(b *testing.B) {
		for b.Loop() {
			db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
			if err != nil {
				b.Fatal(err)
			}
			err = db.View(func(tx *bolt.Tx) error {
				for err := range tx.Check() {
					return err
				}
				return nil
			})
			if err := errors.Join(err, db.Close()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
