package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// A fuse ends a life of the daemon at one of the points that it passes, as SIGKILL does: from then on the daemon has no
// effect on the world.
type fuse struct {
	mu     sync.Mutex
	left   int      // points until it blows; never, if it is negative
	passed []string // all points, in order
	blown  bool
}

var errDead = errors.New("this life of the daemon is over")

// pass passes a point. It fails if the daemon is dead.
func (f *fuse) pass(point string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.blown {
		f.passed = append(f.passed, point)
		f.left--
		f.blown = f.left == 0
	}
	if f.blown {
		return errDead
	}
	return nil
}

func (f *fuse) dead() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.blown
}

// The allocator's neighbours, with a point before and after every effect.
type (
	fusedPlugins struct {
		*fakePlugins
		fuse *fuse
	}
	fusedStore struct {
		*store.Store
		fuse *fuse
	}
	fusedNotifier struct {
		t     *testing.T
		store *store.Store
		fuse  *fuse
	}
)

func (p fusedPlugins) Allocate(ctx context.Context, pod device.Pod, c device.Container, r device.ResourceName, ids []device.ID) (g device.Grant, err error) {
	if err = p.fuse.pass("before Allocate"); err == nil {
		g, err = p.fakePlugins.Allocate(ctx, pod, c, r, ids)
	}
	return g, errors.Join(err, p.fuse.pass("after Allocate"))
}

func (p fusedPlugins) Prefer(ctx context.Context, pod device.Pod, c device.Container, r device.ResourceName, available, must []device.ID, size int) (ids []device.ID, err error) {
	if err = p.fuse.pass("before a plugin's advice"); err == nil { // the pod has its hold
		ids, err = p.fakePlugins.Prefer(ctx, pod, c, r, available, must, size)
	}
	return ids, errors.Join(err, p.fuse.pass("after a plugin's advice"))
}

func (p fusedPlugins) PreStart(ctx context.Context, pod device.Pod, c device.Container, r device.ResourceName, ids []device.ID) (err error) {
	if err = p.fuse.pass("before PreStart"); err == nil {
		err = p.fakePlugins.PreStart(ctx, pod, c, r, ids)
	}
	return errors.Join(err, p.fuse.pass("after PreStart"))
}

func (p fusedPlugins) Offers() map[device.ResourceName]device.Offer {
	p.fuse.pass("taking up the offers")
	return p.fakePlugins.Offers()
}

func (b fusedStore) SavePods(save []device.PodRecord, forget []device.PodUID) (err error) {
	what := "remembering pods"
	switch {
	case len(forget) > 0:
		what = "releasing"
	case len(save) == 1 && len(save[0].Assignments) > 0:
		what = "assigning"
	}
	if err = b.fuse.pass("before the commit for " + what); err == nil {
		err = b.Store.SavePods(save, forget)
	}
	return errors.Join(err, b.fuse.pass("after the commit for "+what)) // not published yet
}

func (fusedNotifier) Failed(device.Pod, device.ResourceName, []device.ID)                   {}
func (fusedNotifier) FailedForLong(device.Pod, device.ResourceName, device.ID, func() bool) {}
func (fusedNotifier) DeviceRefused(device.ResourceName, device.ID, string)                  {}
func (fusedNotifier) GivenUp(device.Pod, device.Wait, time.Duration, func() bool)           {}

func (h fusedNotifier) Waiting(device.Pod, device.Wait) { h.fuse.pass("a pod waits") }

// StartedWithoutDevices fails the test: no container here runs without its devices.
func (h fusedNotifier) StartedWithoutDevices(_ device.Pod, container string, _ func() bool) {
	h.t.Errorf("container %s is said to be without its devices", container)
}

// Assigned checks that published assignments are on disk.
func (h fusedNotifier) Assigned(pod device.Pod, all []device.Assignment) {
	if h.fuse.pass("an assignment is visible") != nil {
		return
	}
	records, err := podsOnDisk(h.store)
	if err != nil || !slices.ContainsFunc(records, func(r device.PodRecord) bool {
		return r.Demand.Pod == pod && reflect.DeepEqual(r.Assignments, all)
	}) {
		h.t.Errorf("the assignment of %v can be seen before it is durable (%v)", pod, err)
	}
}

// A world is everything outside the daemon: pods in the API, their containers, and plugins.
type world struct {
	t          *testing.T
	dir        string
	shop       *fakePlugins
	lives      []*runningContainer
	fuses      []int                     // after how many points each life ends; the last one does not
	atCrash    func()                    // an additional fault at the end of a life
	bound      []device.PodDemand        // pods in the API, in the order in which they came
	containers map[string]device.Running // by the runtime's ID
	done       map[device.Container]bool // init containers that have ended
	had        map[device.Container]string
	ids        int
	records    records
}

// A runningContainer is the daemon from its start to its end.
type runningContainer struct {
	*allocator.Allocator
	store *store.Store
	fuse  *fuse
	end   func()
}

func (w *world) now() *runningContainer { return w.lives[len(w.lives)-1] }

// begin starts the daemon on the state file, in the order of a recovery.
func (w *world) begin() {
	w.t.Helper()
	log := slog.New(bugPanics{})
	s, books, err := store.Recover(store.Config{Dir: w.dir, Log: log})
	if err != nil {
		w.t.Fatal(err)
	}
	left := -1
	if n := len(w.lives); n < len(w.fuses) {
		left = w.fuses[n]
	}
	l := &runningContainer{store: s, fuse: &fuse{left: left}}
	l.Allocator = allocator.New(allocator.Config{
		Registry: fusedPlugins{w.shop, l.fuse}, Plugins: fusedPlugins{w.shop, l.fuse}, Store: fusedStore{s, l.fuse}, Notifier: fusedNotifier{w.t, s, l.fuse},
		Known: books.Pods, Log: log, Metrics: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx)
	}()
	l.end = func() { cancel(); <-ended }
	w.lives = append(w.lives, l)
	if len(w.lives)%2 == 0 { // the API server and the runtime are met in any order
		l.Replace(w.bound)
		synctest.Wait()
	}
	l.RuntimeSynced(slices.Collect(maps.Values(w.containers)), nil)
	synctest.Wait()
	l.Replace(w.bound)
	w.settle()
}

// settle waits until nothing moves. If the daemon has died, it starts the next one.
func (w *world) settle() {
	w.t.Helper()
	synctest.Wait()
	l := w.now()
	if !l.fuse.dead() {
		return
	}
	l.end()
	if err := l.store.Close(); err != nil { // the kernel does
		w.t.Fatal(err)
	}
	w.atCrash()
	w.begin()
}

func (w *world) bind(d device.PodDemand) {
	w.bound = append(w.bound, d)
	w.now().Bind(d)
	w.settle()
}

// drop removes a pod from the API. Its containers continue.
func (w *world) drop(name string) {
	w.bound = slices.DeleteFunc(w.bound, func(d device.PodDemand) bool { return d.Pod.Name == name })
	w.now().Drop(device.PodUID(name))
	w.settle()
}

// kubelet creates containers until there are none left to create, or time is up.
func (w *world) kubelet() {
	w.t.Helper()
	for range 60 {
		for _, d := range w.bound {
			w.sync(d)
		}
		time.Sleep(time.Second)
		w.settle()
	}
}

// sync creates the next container of a pod, as far as the daemon permits.
func (w *world) sync(d device.PodDemand) {
	for _, c := range d.Demands {
		if w.done[c.Container] || w.runs(c.Container) != "" {
			continue
		}
		if !w.create(c.Container) {
			return
		}
		if c.Kind == device.Init {
			w.stop(w.runs(c.Container))
			w.done[c.Container] = true
		}
	}
}

// create asks the daemon as the runtime does, and creates the container if permitted.
func (w *world) create(c device.Container) bool {
	w.t.Helper()
	w.ids++
	r := device.Running{ID: fmt.Sprint("container-", w.ids), Container: c}
	l := w.now()
	st := l.RuntimeCreating(context.Background(), r)
	w.settle()
	if l != w.now() || st.State != device.Ready {
		return false
	}
	l.fuse.pass("before the container is made")
	if l.fuse.dead() {
		w.settle() // the runtime disconnects devmgrd, and creates no container that needs it
		return false
	}
	r.Stamp = map[device.ResourceName][]device.ID{}
	for _, s := range st.Assignment.Shares {
		r.Stamp[s.Resource] = s.IDs
	}
	w.containers[r.ID] = r
	if has, known := fmt.Sprint(r.Stamp), w.had[c]; known != "" && known != has {
		w.t.Errorf("container %v had %s and has %s", c, known, has)
	} else {
		w.had[c] = has
	}
	w.look()
	l.RuntimeInjected(r)
	l.fuse.pass("after the container is made")
	w.settle()
	return true
}

// runs returns the ID of the running instance of a container, or "".
func (w *world) runs(c device.Container) string {
	for id, r := range w.containers {
		if r.Container == c {
			return id
		}
	}
	return ""
}

// stop ends a container.
func (w *world) stop(id string) {
	r := w.containers[id]
	delete(w.containers, id)
	r.Stamp = nil
	w.now().RuntimeStopped(r)
	w.settle()
}

// look checks the running containers: no device belongs to two pods.
func (w *world) look() {
	w.t.Helper()
	holder := map[string]device.Container{}
	for _, r := range w.containers {
		for resource, ids := range r.Stamp {
			for _, id := range ids {
				key := fmt.Sprint(resource, "/", id)
				if other, taken := holder[key]; taken && other.Pod != r.Container.Pod {
					w.t.Errorf("device %s is in two hands: of %v and %v", key, other, r.Container)
				}
				holder[key] = r.Container
			}
		}
	}
}

// check checks the running containers, the daemon and the state file.
func (w *world) check() {
	w.t.Helper()
	w.settle()
	w.look()
	onDisk, err := w.records.onDisk(w.dir, w.now().store)
	if err == nil {
		err = w.now().CheckInvariants(onDisk)
	}
	if err != nil {
		w.t.Error(err)
	}
}

// running checks that these containers run.
func (w *world) running(all ...device.Container) {
	w.t.Helper()
	w.kubelet()
	for _, c := range all {
		if w.runs(c) == "" {
			w.t.Errorf("container %v does not run: it stands %+v", c, w.now().Readiness(c))
		}
	}
	w.check()
}

// story is the sequence of events in each world.
func (w *world) story() {
	a, b, c := device.Container{Pod: "a", Name: "main"}, device.Container{Pod: "b", Name: "main"}, device.Container{Pod: "c", Name: "main"}
	w.shop.stock(gpu, 4)
	w.shop.stock(nic, 2)
	w.shop.prefers(gpu, last)
	w.shop.offer(nic, func(o *device.Offer) { o.PreStart = true })
	w.begin()
	both := app(gpu, 1)
	both.Wants[nic] = 1
	w.bind(pod("a", wants("init", device.Init, gpu, 1), both))
	w.bind(pod("b", app(gpu, 2)))
	w.bind(pod("plain"))
	w.running(a, b)
	w.bind(pod("c", app(gpu, 2))) // has to wait
	w.kubelet()
	w.stop(w.runs(a)) // and is made again
	w.running(a, b)
	w.drop("plain")
	w.drop("b") // with force: its container lives
	w.kubelet()
	if w.runs(c) != "" && w.runs(b) != "" {
		w.t.Error("c runs, and there is no room for it")
	}
	w.check()
	w.stop(w.runs(b))
	w.running(a, c)
	w.stop(w.runs(c))
	w.drop("c")
	w.drop("a")
	w.stop(w.runs(a))
	time.Sleep(time.Minute)
	w.check()

	w.nothingIsLeft()
}

// nothingIsLeft checks that nothing is left in the state file, and that one pod can have all devices.
func (w *world) nothingIsLeft() {
	w.t.Helper()
	if left, err := podsOnDisk(w.now().store); err != nil || len(left) > 0 {
		w.t.Errorf("left in the state file: %v, %v", left, err)
	}
	w.bind(pod("all", app(gpu, 4)))
	w.running(device.Container{Pod: "all", Name: "main"})
}

// inWorld runs a test in a new world. Each life of the daemon but the last ends after its number of points.
func inWorld(t *testing.T, test func(*world), atCrash func(*world), fuses ...int) (w *world) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w = &world{
			t: t, dir: dir, shop: newShop(), fuses: fuses,
			containers: map[string]device.Running{}, done: map[device.Container]bool{}, had: map[device.Container]string{},
		}
		w.atCrash = func() { atCrash(w) }
		test(w)
		w.now().end()
		if err := w.now().store.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// play plays the story.
func play(t *testing.T, atCrash func(*world), fuses ...int) *world {
	t.Helper()
	return inWorld(t, (*world).story, atCrash, fuses...)
}

// fates are the possible states of the state file after the daemon's death.
var fates = map[string]func(w *world){
	"kept": func(*world) {},
	"lost": func(w *world) { w.lose(os.Remove) },
	"damaged": func(w *world) {
		w.lose(func(path string) error {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			data[len(data)/3] ^= 1
			copy(data, make([]byte, 100))
			return os.WriteFile(path, data, 0o600)
		})
	},
}

// lose changes the state file. Pods without a running container are forgotten then.
func (w *world) lose(do func(path string) error) {
	if err := do(filepath.Join(w.dir, "state.db")); err != nil {
		w.t.Fatal(err)
	}
	maps.DeleteFunc(w.had, func(c device.Container, _ string) bool { return w.runs(c) == "" })
}

// TestCrashes ends the daemon at every point of the story, once for each.
func TestCrashes(t *testing.T) {
	t.Parallel()
	points := play(t, fates["kept"]).now().fuse.passed
	if seen := slices.Compact(slices.Sorted(slices.Values(points))); len(seen) != 17 {
		t.Errorf("the story passes %d points: %q", len(seen), seen)
	}
	for fate, atCrash := range fates {
		t.Run(fate, func(t *testing.T) {
			t.Parallel()
			for k, point := range points {
				if w := play(t, atCrash, k+1); len(w.lives) != 2 {
					t.Errorf("there were %d lives, want 2", len(w.lives))
				}
				if t.Failed() {
					t.Fatalf("after a crash at point %d: %s", k+1, point)
				}
			}
		})
	}
}

// TestManyCrashes ends the daemon repeatedly, at random points.
func TestManyCrashes(t *testing.T) {
	t.Parallel()
	for fate, atCrash := range fates {
		t.Run(fate, func(t *testing.T) {
			t.Parallel()
			dice := rand.New(rand.NewPCG(1, uint64(len(fate))))
			for range 20 {
				var fuses []int
				for range 1 + dice.IntN(8) {
					fuses = append(fuses, 1+dice.IntN(25))
				}
				play(t, atCrash, fuses...)
				if t.Failed() {
					t.Fatalf("after crashes at %v", fuses)
				}
			}
		})
	}
}
