package checkpoint_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops/dirwatch"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A view is one whose content a test sets.
type view struct {
	slow time.Duration // how long it takes to look

	mu     sync.Mutex
	looks  int
	pods   device.Snapshot
	offers map[device.ResourceName]device.Offer
	moved  chan struct{}
}

func newView(allocations ...*device.PodAllocation) *view {
	return &view{pods: snapshotOf(allocations...), moved: make(chan struct{}), offers: map[device.ResourceName]device.Offer{
		gpu: {State: device.Serving, Reported: true, Inventory: device.Inventory{Resource: gpu, Devices: []device.Device{
			{ID: "0", Healthy: true}, {ID: "1", Healthy: true, NUMA: []int{0}}, {ID: "2"},
		}}},
	}}
}

func snapshotOf(allocations ...*device.PodAllocation) device.Snapshot {
	s := device.Snapshot{}
	for _, p := range allocations {
		s.Pods = append(s.Pods, device.PodStatus{PodAllocation: p})
	}
	return s
}

func (v *view) Snapshot() *device.Snapshot {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.looks++
	now := v.pods
	return &now
}

func (v *view) Resources() device.Resources {
	<-time.After(v.slow)
	v.mu.Lock()
	defer v.mu.Unlock()
	all := device.Resources{ByName: map[device.ResourceName]device.ResourceStatus{}}
	for r, o := range v.offers {
		all.ByName[r] = device.ResourceStatus{Offer: &o}
	}
	return all
}

func (v *view) Updated() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.moved
}

// looked reports whether it has been looked at more than n times.
func (v *view) looked(n int) func() bool {
	return func() bool { return v.count() > n }
}

func (v *view) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.looks
}

// hold replaces the pods.
func (v *view) hold(holdings ...*device.PodAllocation) {
	v.mu.Lock()
	defer v.mu.Unlock()
	revision := v.pods.Revision + 1
	v.pods = snapshotOf(holdings...)
	v.pods.Revision = revision
	close(v.moved)
	v.moved = make(chan struct{})
}

func holding(uid string, active bool, all ...device.Assignment) *device.PodAllocation {
	return &device.PodAllocation{Pod: device.Pod{UID: device.PodUID(uid), Namespace: "ns", Name: uid}, Active: active, Assignments: all}
}

// A mirrored is a mirror that runs, and a reader who watches its file as agents do.
type mirrored struct {
	*testing.T
	path string
	log  *lines
	stop func()

	mu    sync.Mutex
	woken int // how often the file came to its name
}

// mirror starts one. The file may be prepared first.
func mirror(t *testing.T, v checkpoint.View, prepare ...func(m *mirrored)) *mirrored {
	t.Helper()
	m := &mirrored{T: t, path: filepath.Join(t.TempDir(), checkpoint.Name), log: &lines{}}
	for _, f := range prepare {
		f(m)
	}
	watcher, err := dirwatch.Start()
	m.must(err)
	end, told := m.path+".end", make(chan struct{})
	watched := watcher.AddPath(filepath.Dir(m.path)) == nil
	var work sync.WaitGroup
	work.Go(func() {
		for e := range watcher.Events {
			switch {
			case e.Name == end && e.Op == dirwatch.Create:
				close(told)
			case e.Name == m.path && e.Op == dirwatch.Create: // a rename to it
				m.mu.Lock()
				m.woken++
				m.mu.Unlock()
			case e.Name == m.path && e.Op != dirwatch.Remove:
				t.Errorf("a reader sees %v", e)
			}
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- checkpoint.NewMirror(m.path, v, slog.New(slog.NewTextHandler(m.log, nil))).Run(ctx) }()
	m.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			m.must(err)
		case <-time.After(time.Minute):
			t.Error("Run does not return")
		}
		if watched { // whatever came before this has been told when this has
			m.must(os.WriteFile(end, nil, 0o600))
			<-told
			m.must(os.Remove(end))
		}
		watcher.Close()
		work.Wait()
	})
	t.Cleanup(m.stop)
	return m
}

func (m *mirrored) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

// wakes counts how often the reader was woken, which is complete after stop.
func (m *mirrored) wakes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.woken
}

func (m *mirrored) read() (checkpoint.File, bool) {
	data, err := os.ReadFile(m.path)
	if err != nil {
		return checkpoint.File{}, false
	}
	f, err := checkpoint.Decode(data)
	if err != nil {
		m.Errorf("a kubelet would not read it: %v", err)
	}
	return f, true
}

// says reports whether the file has entries of just these pods.
func (m *mirrored) says(pods ...string) func() bool {
	return func() bool {
		f, there := m.read()
		var got []string
		for _, e := range f.Entries {
			got = append(got, string(e.Container.Pod))
		}
		return there && reflect.DeepEqual(got, pods)
	}
}

// lines is what was logged.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// It is the file that a kubelet would have written: of all pods that hold something, and of the resources that plugins serve.
func TestMirror(t *testing.T) {
	t.Parallel()
	a := held("a", "main", near(share(gpu, "0", "1"), nil, []int{0, 1}), share(nic, "n"))
	b := held("b", "main", share(gpu, "2"))
	v := newView(holding("b", false, b), holding("none", true), holding("a", true, a))
	one := func(r device.ResourceName, state device.OfferState, reported bool) {
		v.offers[r] = device.Offer{State: state, Reported: reported, Inventory: device.Inventory{Resource: r, Devices: []device.Device{{ID: "x", Healthy: true}}}}
	}
	one("x.example/stale", device.Stale, true)
	one("x.example/lost", device.Lost, true)
	one("x.example/new", device.Serving, false)
	v.offers["x.example/empty"] = device.Offer{State: device.Serving, Reported: true}

	m := mirror(t, v)
	plugintest.Eventually(t, "the file is there", m.says("a", "a", "b"))
	m.stop()
	got, _ := m.read()
	want, err := checkpoint.FromState([]device.PodRecord{record("a", a), record("b", b)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want.Healthy = map[device.ResourceName][]device.ID{gpu: {"0", "1"}, "x.example/stale": {"x"}, "x.example/empty": {}}
	if want = decode(t, encode(t, want)); !reflect.DeepEqual(got, want) {
		t.Errorf("the file says\n%+v, want\n%+v", got, want)
	}
	if nodes := got.Entries[0].Devices; !reflect.DeepEqual(nodes, []device.Device{{ID: "0"}, {ID: "1", NUMA: []int{0, 1}}}) {
		t.Errorf("devices are near %+v", nodes)
	}
	if info, err := os.Stat(m.path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v (%v)", info.Mode(), err)
	}
}

// The file is written when its content changes, and not otherwise: at once, but once a second at most.
func TestMirrorWrites(t *testing.T) {
	t.Parallel()
	alone(t, newView(), func(v *view, m *mirrored) {
		time.Sleep(time.Minute)
		for n := range 300 { // what happens at one time is written at one time
			v.hold(holding(fmt.Sprint(n), true, held(fmt.Sprint(n), "main", share(gpu, "0"))))
			if n == 0 {
				m.expect("0") // at once: the last write was long ago
			}
		}
		last := holding("last", true, held("last", "main", share(gpu, "0")))
		v.hold(last)
		time.Sleep(time.Second - time.Nanosecond)
		m.expect("0")
		time.Sleep(time.Nanosecond)
		m.expect("last")

		before, looks := m.info(), v.count()
		time.Sleep(time.Minute)
		v.hold(last, holding("without", true)) // nothing that the file says
		m.expect("last")
		if n := v.count() - looks; n != 1 {
			t.Errorf("the mirror has looked %d times at what has changed once", n)
		}
		if after := m.info(); !os.SameFile(before, after) || before.ModTime() != after.ModTime() {
			t.Error("the file was written though nothing in it changed")
		}
	})
}

// After an expensive look the mirror rests longer, so that it takes a twentieth of a core at most.
func TestMirrorRests(t *testing.T) {
	t.Parallel()
	v := newView()
	v.slow = 100 * time.Millisecond
	alone(t, v, func(v *view, m *mirrored) {
		time.Sleep(v.slow)
		m.expect()
		v.hold(holding("a", true, held("a", "main", share(gpu, "0"))))
		time.Sleep(20*v.slow + v.slow - time.Nanosecond)
		m.expect()
		time.Sleep(time.Nanosecond)
		m.expect("a")
	})
}

// alone runs a mirror in a bubble, whose clock goes on when the mirror rests: a busy machine changes no time in it.
func alone(t *testing.T, v *view, body func(*view, *mirrored)) {
	path := filepath.Join(t.TempDir(), checkpoint.Name)
	synctest.Test(t, func(t *testing.T) {
		v.moved = make(chan struct{}) // one of the bubble
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- checkpoint.NewMirror(path, v, slog.New(slog.DiscardHandler)).Run(ctx) }()
		body(v, &mirrored{T: t, path: path})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// expect checks, when the mirror has done what it does now, that the file has entries of just these pods.
func (m *mirrored) expect(pods ...string) {
	m.Helper()
	synctest.Wait()
	if !m.says(pods...)() {
		f, _ := m.read()
		m.Errorf("the file says %+v, want the pods %v", f.Entries, pods)
	}
}

func (m *mirrored) info() os.FileInfo {
	m.Helper()
	info, err := os.Stat(m.path)
	m.must(err)
	return info
}

// What was last is written before it stops, however long it would have rested.
func TestMirrorStops(t *testing.T) {
	t.Parallel()
	v := newView()
	m := mirror(t, v)
	plugintest.Eventually(t, "the file is there", m.says())
	v.hold(holding("a", true, held("a", "main", share(gpu, "0"))))
	m.stop()
	if !m.says("a")() {
		t.Error("the last state was not written")
	}
	m = mirror(t, v)
	plugintest.Eventually(t, "the file is there", m.says("a"))
	m.must(os.Remove(m.path)) // without an event
	m.stop()
	if _, there := m.read(); there {
		t.Error("it was written though nothing has changed")
	}
}

// A file that is right already is left alone, and wakes no reader. Drafts of a process that was killed are removed.
func TestMirrorStarts(t *testing.T) {
	t.Parallel()
	v := newView(holding("a", true, held("a", "main", share(gpu, "0"))))
	first := mirror(t, v)
	plugintest.Eventually(t, "the file is there", first.says("a"))
	first.stop()
	data, err := os.ReadFile(first.path)
	if err != nil {
		t.Fatal(err)
	}
	var others []string
	second := mirror(t, v, func(m *mirrored) {
		m.must(os.WriteFile(m.path, data, 0o600))
		dir := filepath.Dir(m.path)
		for _, name := range []string{"." + checkpoint.Name + ".123", "." + checkpoint.Name + ".4"} {
			m.must(os.WriteFile(filepath.Join(dir, name), data, 0o600))
		}
		for _, name := range []string{"." + checkpoint.Name + ".mine", "." + checkpoint.Name + ".", checkpoint.Name + ".1", "kubelet.sock"} {
			others = append(others, name)
			m.must(os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		}
	})
	left := func() int {
		names, err := os.ReadDir(filepath.Dir(second.path))
		second.must(err)
		return len(names)
	}
	plugintest.Eventually(t, "the drafts are gone", func() bool { return left() == len(others)+1 })
	second.stop()
	if n := second.wakes(); n > 0 || !second.says("a")() {
		t.Errorf("a file that was right has been written %d times", n)
	}
}

// A path that cannot be written is logged once, until it can.
func TestMirrorCannotWrite(t *testing.T) {
	t.Parallel()
	v := newView()
	m := mirror(t, v, func(m *mirrored) { m.path = filepath.Join(filepath.Dir(m.path), "later", checkpoint.Name) })
	plugintest.Eventually(t, "it is logged", func() bool { return m.log.count("cannot write checkpoint mirror") == 1 })
	for n := range 20 {
		v.hold(holding(fmt.Sprint(n), true, held(fmt.Sprint(n), "main", share(gpu, "0"))))
	}
	plugintest.Eventually(t, "it has been tried again", v.looked(1))
	m.must(os.Mkdir(filepath.Dir(m.path), 0o700))
	plugintest.Eventually(t, "the file is there", m.says("19"))
	plugintest.Eventually(t, "that is logged", func() bool { return m.log.count("checkpoint mirror up to date again") == 1 })
	if n := m.log.count("cannot write checkpoint mirror"); n != 1 {
		t.Errorf("it was told %d times", n)
	}
	m.must(os.RemoveAll(filepath.Dir(m.path)))
	v.hold()
	plugintest.Eventually(t, "it is logged again", func() bool { return m.log.count("cannot write checkpoint mirror") == 2 })
	m.must(os.Mkdir(filepath.Dir(m.path), 0o700))
	m.stop() // not after the pause
	if !m.says()() {
		t.Error("the last state was not written")
	}
}

// BenchmarkMirror is one look at a large node: 100 000 devices, half of them in use by 500 pods.
func BenchmarkMirror(b *testing.B) {
	v := newView()
	inventory := device.Inventory{Resource: gpu}
	for n := range 100_000 {
		inventory.Devices = append(inventory.Devices, device.Device{ID: device.ID(fmt.Sprintf("device-%06d", n)), Healthy: true, NUMA: []int{n % 2}})
	}
	v.offers[gpu] = device.Offer{State: device.Serving, Reported: true, Inventory: inventory}
	for p := range 500 {
		uid, s := fmt.Sprintf("pod-%d", p), share(gpu)
		for _, d := range inventory.Devices[100*p : 100*(p+1)] {
			s.IDs, s.Near = append(s.IDs, d.ID), append(s.Near, d.NUMA)
		}
		v.pods.Pods = append(v.pods.Pods, device.PodStatus{PodAllocation: holding(uid, true, held(uid, "main", s))})
	}
	m := checkpoint.NewMirror(filepath.Join(b.TempDir(), checkpoint.Name), v, slog.New(slog.DiscardHandler))
	for b.Loop() {
		if err := m.Update(); err != nil {
			b.Fatal(err)
		}
	}
}
