package store_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// recover opens the state file as the daemon does, and returns what it says.
func recover(t testing.TB, dir string) (s *store.Store, has store.State, log *bytes.Buffer, metrics *prometheus.Registry) {
	t.Helper()
	log, metrics = &bytes.Buffer{}, prometheus.NewRegistry()
	s, has, err := store.Recover(store.Config{Dir: dir, Log: slog.New(slog.NewTextHandler(log, nil)), Metrics: metrics})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, has, log, metrics
}

// damagedFiles returns the metric of that name.
func damagedFiles(t *testing.T, metrics *prometheus.Registry) float64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "devmgrd_store_damaged_files" {
			return f.Metric[0].Gauge.GetValue()
		}
	}
	t.Fatal("there is no metric of damaged files")
	return 0
}

// some writes a state file of several pages into a directory, and returns the state and the file.
func some(t testing.TB, dir string) (store.State, []byte) {
	t.Helper()
	s := open(t, dir)
	var b store.State
	for i := range 40 {
		b.Pods = append(b.Pods, pod(fmt.Sprintf("%04d", i)))
	}
	many := device.PluginRecord{Resource: "a.com/many", Endpoint: "m.sock", Reported: true}
	for i := range 300 {
		many.Devices = append(many.Devices, device.Device{ID: device.ID(fmt.Sprintf("GPU-%08d", i)), Healthy: i%3 > 0, NUMA: []int{i % 2}})
	}
	b.Plugins = []device.PluginRecord{many, {Resource: "b.com/none", Endpoint: "/run/n.sock"}}
	for _, p := range b.Pods { // one commit each, so that there are free pages
		if err := s.SavePods([]device.PodRecord{p}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range b.Plugins {
		if err := s.SavePlugin(p); err != nil {
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
	return b, data
}

// A damaged file is set aside as it is, with a word in the log, and the daemon goes on with a new state file.
func TestOpen_DamagedFile_IsSetAside(t *testing.T) {
	t.Parallel()
	// where returns the offset of the first page of a kind: 1 for branches, 2 for leaves.
	where := func(t *testing.T, data []byte, kind byte) int {
		for at := 2 * 4096; at < len(data); at += 4096 {
			if data[at+8] == kind && data[at+10] > 1 {
				return at
			}
		}
		t.Fatal("there is no such page")
		return 0
	}
	for name, damage := range map[string]func(*testing.T, []byte) []byte{
		"empty": func(*testing.T, []byte) []byte { return nil },
		"text":  func(*testing.T, []byte) []byte { return []byte(strings.Repeat("not a database\n", 1000)) },
		"zeros": func(_ *testing.T, d []byte) []byte { return make([]byte, len(d)) },
		"short": func(_ *testing.T, d []byte) []byte { return d[:100] },
		"cut":   func(_ *testing.T, d []byte) []byte { return d[:len(d)/2] },
		"garbled": func(_ *testing.T, d []byte) []byte {
			return append(d[:2*4096], bytes.Repeat([]byte("x"), len(d)-2*4096)...)
		},
		// bbolt would go back to the commit before, and never say so.
		"newest header": func(_ *testing.T, d []byte) []byte {
			newest := 0
			if d[4096+16+48] > d[16+48] {
				newest = 4096
			}
			d[newest+16+48]++
			return d
		},
		// bbolt would go round in it until the stack is full, which ends the process.
		"round in circles": func(t *testing.T, d []byte) []byte {
			at := where(t, d, 1)
			copy(d[at+16+8:], d[at:at+8])
			return d
		},
		// bbolt would read what is not there, which ends the process.
		"far away": func(t *testing.T, d []byte) []byte {
			d[where(t, d, 2)+16+7] = 0x7f
			return d
		},
		"a device ID": func(_ *testing.T, d []byte) []byte { return bytes.ReplaceAll(d, []byte(`"dev-1"`), []byte(`"dev-3"`)) },
		"a page has lost entries": func(t *testing.T, d []byte) []byte {
			d[where(t, d, 2)+10]--
			return d
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "state.db")
			_, data := some(t, dir)
			data = damage(t, data)
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			s, has, log, metrics := recover(t, dir)
			if len(has.Pods)+len(has.Plugins) > 0 {
				t.Errorf("it is trusted: %d pods and %d plugins are read", len(has.Pods), len(has.Plugins))
			}
			aside, _ := filepath.Glob(path + ".damaged-*")
			if len(aside) != 1 {
				t.Fatalf("set aside are %q", aside)
			}
			if kept, err := os.ReadFile(aside[0]); err != nil || !bytes.Equal(kept, data) {
				t.Errorf("what was set aside is not what was there (%v)", err)
			}
			for _, want := range []string{"level=ERROR", path, aside[0], "err="} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log does not say %s:\n%s", want, log)
				}
			}
			if n := damagedFiles(t, metrics); n != 1 {
				t.Errorf("the metric says %v", n)
			}
			if err := errors.Join(s.Check(), s.SavePods([]device.PodRecord{pod("a")}, nil)); err != nil {
				t.Errorf("the new state file: %v", err)
			}
			s = reopen(t, s, dir)
			if pods, err := s.Pods(); err != nil || !reflect.DeepEqual(pods, []device.PodRecord{pod("a")}) {
				t.Errorf("the new state file holds %v, %v", pods, err)
			}
		})
	}
}

// A pod's record that is what was written and cannot be read is damage, too: all of the file is set aside.
func TestOpen_UnreadablePod_IsDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	some(t, dir)
	s := open(t, dir)
	if err := errors.Join(s.Spoil(`{"demand":{"pod":{"uid":"other"}}}`, "pods", "0007"), s.Close()); err != nil {
		t.Fatal(err)
	}
	s, has, log, _ := recover(t, dir)
	if len(has.Pods)+len(has.Plugins) > 0 || !strings.Contains(log.String(), "0007") {
		t.Errorf("read %d pods and said:\n%s", len(has.Pods), log)
	}
	if pods, err := s.Pods(); err != nil || len(pods) > 0 {
		t.Errorf("the new state file holds %v, %v", pods, err)
	}
}

// A file that the disk does not give is damaged.
func TestOpen_ReadError_IsDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	if err := os.Symlink("/proc/self/mem", path); err != nil { // reading where nothing is mapped is EIO, as of a bad sector
		t.Fatal(err)
	}
	if _, err := store.Open(store.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)}); !errors.As(err, new(*store.DamagedError)) || !errors.Is(err, unix.EIO) {
		t.Fatalf("Open: %v", err)
	}
	_, _, _, metrics := recover(t, dir)
	if n := damagedFiles(t, metrics); n != 1 {
		t.Errorf("%v files are set aside", n)
	}
}

// A file that was set aside is never overwritten. The metric falls when an operator removes such files.
func TestDamagedFiles_Several_AreAllKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	for i := range 5 {
		if err := os.WriteFile(path, []byte(fmt.Sprint("damage ", i)), 0o600); err != nil {
			t.Fatal(err)
		}
		s, _, _, metrics := recover(t, dir)
		if n := damagedFiles(t, metrics); n != float64(i+1) {
			t.Errorf("%v files are set aside, want %d", n, i+1)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	aside, _ := filepath.Glob(path + ".damaged-*")
	kept := map[string]bool{}
	for _, name := range aside {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		kept[string(data)] = true
	}
	if len(kept) != 5 {
		t.Errorf("kept are %v in %q", kept, aside)
	}
	_, _, _, metrics := recover(t, dir)
	for _, name := range aside {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if n := damagedFiles(t, metrics); n != 0 {
		t.Errorf("%v files count as set aside after they were removed", n)
	}
}

// A file that is none of ours to judge stops the daemon, and so does one that another program works with.
func TestRecover_ForeignFile_IsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	refused := func(want string) {
		t.Helper()
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = store.Recover(store.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Recover: %v; want %q", err, want)
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, before) {
			t.Errorf("the file has changed (%v)", err)
		}
		if all, _ := filepath.Glob(path + "*"); len(all) != 1 {
			t.Errorf("there are now %q", all)
		}
	}
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(func(tx *bolt.Tx) error {
		for _, name := range []string{"meta", "key", "lease"} { // etcd's
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		return nil
	}), db.Close()); err != nil {
		t.Fatal(err)
	}
	refused("belongs to another program")

	_, good := some(t, t.TempDir())
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	refused("in use by another program")
	go func() { // a former devmgrd, which ends when the next one has the file open too
		for opened(path) < 2 {
			runtime.Gosched()
		}
		f.Close()
	}()
	if _, has, _, _ := recover(t, dir); len(has.Pods) == 0 {
		t.Error("it was not waited for")
	}
}

// reads fails unless a file with this content is refused as damaged, or is read as if nothing were wrong with it.
func reads(t testing.TB, data []byte, want store.State) {
	t.Helper()
	err := store.Judge(data)
	if err != nil {
		if !errors.As(err, new(*store.DamagedError)) {
			t.Errorf("it is not taken for damage: %v", err)
		}
		return
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s, has, log, _ := recover(t, dir)
	if !reflect.DeepEqual(has, want) {
		t.Errorf("the state differs from the one written, without a report:\n%s", log)
	}
	// It can be written, too.
	if err := s.SavePods([]device.PodRecord{pod("new")}, []device.PodUID{"0001"}); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(path); err != nil || store.Judge(data) != nil {
		t.Errorf("after a write: %v, %v", err, store.Judge(data))
	}
}

// flips returns positions in a page, and a bit of each: the 16 bytes in which the page says what it is, and a few others in each
// run, where its first elements are and anywhere.
func flips(dice *rand.Rand) (all [][2]int) {
	for at := range 16 {
		all = append(all, [2]int{at, dice.IntN(8)})
	}
	for range 10 {
		all = append(all, [2]int{16 + dice.IntN(32), dice.IntN(8)})
	}
	for range 6 {
		all = append(all, [2]int{dice.IntN(4096), dice.IntN(8)})
	}
	return all
}

// random returns dice whose seed the test logs.
func random(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// Whichever bit of the file flips, that is noticed, or it is one that means nothing.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	want, good := some(t, t.TempDir())
	if err := store.Judge(good); err != nil {
		t.Fatal(err)
	}
	dice := random(t)
	for page := 0; page < len(good); page += 4096 {
		t.Run(fmt.Sprint("page=", page/4096), func(t *testing.T) {
			all := bytes.Clone(good) // with all flips that mean nothing
			for _, flip := range flips(dice) {
				at, bit := flip[0], flip[1]
				data := bytes.Clone(good)
				data[page+at] ^= 1 << bit
				if err := store.Judge(data); err == nil {
					all[page+at] ^= 1 << bit
				} else if !errors.As(err, new(*store.DamagedError)) {
					t.Fatalf("bit %d of byte %d is not taken for damage: %v", bit, at, err)
				}
			}
			if err := store.Judge(all); err != nil {
				t.Errorf("flips that mean nothing are damage together: %v", err)
			}
			reads(t, all, want)
		})
	}
}

// FuzzStateFile puts a few other bytes somewhere into a file.
func FuzzStateFile(f *testing.F) {
	want, good := some(f, f.TempDir())
	f.Add(uint32(16), []byte{0xee})
	f.Add(uint32(4096+8), []byte{0x01})
	f.Add(uint32(3*4096+10), []byte{0xff, 0xff, 0xff})
	f.Add(uint32(len(good)), []byte("more"))
	f.Fuzz(func(t *testing.T, at uint32, patch []byte) {
		from := int(at) % (len(good) + 1)
		data := append(bytes.Clone(good[:from]), patch...)
		if len(data) < len(good) {
			data = append(data, good[len(data):]...)
		}
		reads(t, data, want)
	})
}

// unpack returns a file of testdata.
func unpack(t *testing.T, name string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A file of version 1, as it was written by the devmgrd of that time, is brought up to date with all that it holds.
func TestMigrationFromVersion1(t *testing.T) {
	t.Parallel()
	old := unpack(t, "version-1.db.gz")
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	want := store.State{
		Pods: []device.PodRecord{pod("a"), pod("b"), pod("c")},
		Plugins: []device.PluginRecord{
			{Resource: "a.com/x", Endpoint: "x.sock", Reported: true, Devices: []device.Device{{ID: "1", Healthy: true, NUMA: []int{0, 300}}, {ID: "3"}}},
			{Resource: "b.com/y", Endpoint: "/run/y.sock"},
		},
	}
	for range 2 { // the second time it is of version 2, with a sum
		s, has, _, _ := recover(t, dir)
		if !reflect.DeepEqual(has, want) {
			t.Errorf("it holds %+v, want %+v", has, want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	now, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Judge(bytes.ReplaceAll(now, []byte("pod-a"), []byte("pod-x"))); !errors.As(err, new(*store.DamagedError)) {
		t.Errorf("it has no sum of what it held before: %v", err)
	}
	// Damage to the version is no reason to take the file for a newer devmgrd's.
	for bit := range 8 {
		version := "version\x00\x00\x00\x00\x00\x00\x00"
		data := bytes.ReplaceAll(old, []byte(version+"\x01"), []byte(version+string([]byte{1 ^ 1<<bit})))
		if err := store.Judge(data); !errors.As(err, new(*store.DamagedError)) {
			t.Errorf("with bit %d of the version: %v", bit, err)
		}
	}
}

// The files of 28f3e43, before the first release, and of a later devmgrd with the same schema, whose pods have a field that this one does not know,
// are read with all that they hold. So a field that an older devmgrd may ignore needs no new schema, and downgrades are harmless.
func TestRecover_FilesOfOtherVersions_HoldTheSame(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	waiting, ended := pod("b"), pod("c")
	waiting.Assignments, waiting.Stall = nil, device.Stall{Reason: device.PluginMissing, Before: time.Minute, Since: at, Boot: "boot"}
	ended.Assignments[0].Shares[0].IDs, ended.ReleaseFailed = []device.ID{"dev-2"}, "exit status 1"
	const resource = "vendor.com/dev"
	want := store.State{
		Pods: []device.PodRecord{pod("a"), waiting, ended},
		Plugins: []device.PluginRecord{{
			Resource: resource, Endpoint: "dev.sock", Reported: true, Away: at, Lost: true,
			Pod:     device.PluginPod{Pod: device.Pod{UID: "p", Namespace: "kube-system", Name: "plugin"}, ServiceAccount: "plugin"},
			Devices: []device.Device{{ID: "dev-1", Healthy: true, NUMA: []int{0}}, {ID: "dev-2"}},
		}},
		Cordons:   []device.Cordon{{Resource: resource, ID: "dev-2", Reason: "fan", Since: at}},
		Falls:     []device.Falls{{Resource: resource, ID: "dev-2", Falls: []time.Time{at}, Until: at.Add(time.Hour), Spell: time.Hour}},
		Places:    map[device.ResourceName]map[device.ID]int{resource: {"dev-2": 1}},
		Uncounted: map[device.ResourceName]time.Time{resource: at},
		Claims:    true,
	}
	for _, file := range []string{"version-2-28f3e43.db.gz", "version-2-later-field.db.gz"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "state.db"), unpack(t, file), 0o600); err != nil {
			t.Fatal(err)
		}
		_, has, log, _ := recover(t, dir)
		if !reflect.DeepEqual(has, want) {
			t.Errorf("%s holds\n%+v, want\n%+v\n%s", file, has, want, log)
		}
	}
}

// However the records change, the sum is theirs.
func TestSum_EachCommit_MatchesFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	dice := rand.New(rand.NewPCG(3, 4))
	for i := range 300 {
		var err error
		switch dice.IntN(3) {
		case 0:
			err = s.SavePods([]device.PodRecord{pod(fmt.Sprint(dice.IntN(20))), pod(fmt.Sprint(dice.IntN(20)))}, []device.PodUID{device.PodUID(fmt.Sprint(dice.IntN(20)))})
		case 1:
			r := device.PluginRecord{Resource: device.ResourceName(fmt.Sprint("a.com/", dice.IntN(3))), Endpoint: fmt.Sprint(dice.IntN(3)), Reported: true}
			for id := range 200 {
				if dice.IntN(2) == 0 {
					r.Devices = append(r.Devices, device.Device{ID: device.ID(fmt.Sprintf("%03d", id)), Healthy: dice.IntN(2) == 0})
				}
			}
			err = s.SavePlugin(r)
		case 2:
			err = s.SaveAll([]device.PodRecord{pod("all")}, []device.PluginRecord{{Resource: "a.com/0", Endpoint: fmt.Sprint(i)}})
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "state.db"))
		if err == nil {
			err = store.Judge(data)
		}
		if err != nil {
			t.Fatalf("after step %d: %v", i, err)
		}
	}
}

// opened counts how often this process has a file open.
func opened(path string) (n int) {
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && to == path {
			n++
		}
	}
	return n
}

// A flipped bit in the number of the file's buckets hides some of them, or all. That is damage all the same, and no other
// program's file: such a file would keep devmgrd from starting.
func TestFlippedBitsInTheNumberOfBuckets(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]func(*store.Store) error{
		"three": func(*store.Store) error { return nil },
		"four":  func(s *store.Store) error { return s.SaveCordons([]device.Cordon{{Resource: "a.com/x", ID: "1"}}, nil) },
		"five": func(s *store.Store) error {
			return errors.Join(s.SaveCordons([]device.Cordon{{Resource: "a.com/x", ID: "1"}}, nil), s.ForgetResource("b.com/y"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			if err := errors.Join(s.SavePods([]device.PodRecord{pod("a")}, nil), more(s), s.Close()); err != nil {
				t.Fatal(err)
			}
			good, err := os.ReadFile(filepath.Join(dir, "state.db"))
			if err != nil {
				t.Fatal(err)
			}
			newest := 16
			if binary.NativeEndian.Uint64(good[4096+16+48:]) > binary.NativeEndian.Uint64(good[16+48:]) {
				newest += 4096
			}
			root := int(binary.NativeEndian.Uint64(good[newest+16:])) * 4096
			for bit := range 16 {
				data := bytes.Clone(good)
				data[root+10+bit/8] ^= 1 << (bit % 8)
				if err := store.Judge(data); !errors.As(err, new(*store.DamagedError)) {
					t.Errorf("bit %d: %v", bit, err)
				}
			}
		})
	}
}

// A small bucket is in the element that names it. An element that is too short for it is damage, and so is a bucket of another
// kind of page.
func TestJudge_DamagedSmallBucket_IsDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	if err := errors.Join(s.SavePods([]device.PodRecord{pod("a")}, nil), s.Close()); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	newest := 16
	if binary.NativeEndian.Uint64(good[4096+16+48:]) > binary.NativeEndian.Uint64(good[16+48:]) {
		newest += 4096
	}
	root := int(binary.NativeEndian.Uint64(good[newest+16:])) * 4096
	small := 0
	for i := range int(binary.NativeEndian.Uint16(good[root+10:])) {
		element := root + 16 + 16*i // flags, offset of the key from the element, lengths of key and value
		word := func(n int) int { return int(binary.NativeEndian.Uint32(good[element+4*n:])) }
		value := element + word(1) + word(2)
		if binary.NativeEndian.Uint64(good[value:]) != 0 {
			continue // a bucket with pages of its own
		}
		small++
		for what, damage := range map[string]func(data []byte){
			"no room for its root": func(data []byte) { binary.NativeEndian.PutUint32(data[element+12:], 8) },
			"no room for its page": func(data []byte) { binary.NativeEndian.PutUint32(data[element+12:], 24) },
			"a branch":             func(data []byte) { binary.NativeEndian.PutUint16(data[value+16+8:], 1) },
		} {
			data := bytes.Clone(good)
			damage(data)
			if err := store.Judge(data); !errors.As(err, new(*store.DamagedError)) {
				t.Errorf("bucket %d, %s: %v", i, what, err)
			}
		}
	}
	if small == 0 {
		t.Error("the file has no small bucket")
	}
}
