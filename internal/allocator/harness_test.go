package allocator_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// A harness is a running allocator on a real state file.
type harness struct {
	*allocator.Allocator
	t       *testing.T
	plugins *fakePlugins
	store   *store.Store
	disk    *disk
	dir     string
	mute    bool // the runtime reports nothing on its own
	stop    func()

	topology     allocator.Topology
	boot         string
	giveUp       func(device.Reason, device.ResourceName) time.Duration
	suspends     bool
	examines     bool
	failUnlisted bool // devices in use that a restarted plugin does not list have failed
	acts         journal
	releaser     *releaser // nil: none
	ordering     func(device.ResourceName) allocator.Ordering
	kubelets     atomic.Pointer[device.Kubelets] // nil: the kubelet has assigned nothing
	metrics      *prometheus.Registry

	reader   *allocator.Allocator                    // the allocator that follow last followed
	seen     map[device.PodUID]*device.PodAllocation // the result of its changes
	revision uint64
	records  records
}

// RuntimeCreating has the time that it needs.
func (r *harness) RuntimeCreating(c device.Running) device.Readiness {
	return r.Allocator.RuntimeCreating(context.Background(), c)
}

// A journal keeps what the allocator has done on its own.
type journal struct {
	mu  sync.Mutex
	all []string
}

func (j *journal) Record(a device.Action) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all = append(j.all, a.Verb+" "+strings.Join(a.Subject, ",")+": "+a.Reason)
}

// take returns what has been recorded since the last call.
func (j *journal) take() (all []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	all, j.all = j.all, nil
	return all
}

// A disk is the state file, with write errors that a test sets.
type disk struct {
	*store.Store
	mu    sync.Mutex
	fail  func()
	falls error  // SaveFalls fails with it
	late  error  // SavePods writes, and then fails with it
	slow  func() // SavePods calls it, and then returns
}

// failsLate makes each further SavePods write and then fail; nil: it succeeds.
func (d *disk) failsLate(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.late = err
}

// isSlow makes the next SavePods return that much later.
func (d *disk) isSlow(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slow = func() { time.Sleep(by) }
}

// fails makes each write call f and then fail; nil: it succeeds.
func (d *disk) fails(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = f
}

// failsFalls makes each further SaveFalls fail with err; nil: it succeeds.
func (d *disk) failsFalls(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.falls = err
}

func (d *disk) SavePods(save []device.PodRecord, forget []device.PodUID) error {
	if err := d.check(); err != nil {
		return err
	}
	if err := d.Store.SavePods(save, forget); err != nil {
		return err
	}
	d.mu.Lock()
	late, slow := d.late, d.slow
	d.slow = nil
	d.mu.Unlock()
	if slow != nil {
		slow()
	}
	return late
}

func (d *disk) SaveCordons(save, forget []device.Cordon) error {
	if err := d.check(); err != nil {
		return err
	}
	return d.Store.SaveCordons(save, forget)
}

func (d *disk) SaveDeclaredCordons(all []device.Cordon) error {
	if err := d.check(); err != nil {
		return err
	}
	return d.Store.SaveDeclaredCordons(all)
}

func (d *disk) SaveFalls(save, forget []device.Falls) error {
	d.mu.Lock()
	err := d.falls
	d.mu.Unlock()
	if err != nil {
		return err
	}
	if err := d.check(); err != nil {
		return err
	}
	return d.Store.SaveFalls(save, forget)
}

func (d *disk) ForgetResource(r device.ResourceName) error {
	if err := d.check(); err != nil {
		return err
	}
	return d.Store.ForgetResource(r)
}

func (d *disk) DropRetired(gone []device.ResourceName) error {
	if err := d.check(); err != nil {
		return err
	}
	return d.Store.DropRetired(gone)
}

func (d *disk) check() error {
	d.mu.Lock()
	fail := d.fail
	d.mu.Unlock()
	if fail == nil {
		return nil
	}
	fail()
	return errors.New("no space left on device")
}

// run runs a test in a bubble with its own clock, and checks the invariants at the end.
func run(t *testing.T, test func(*harness), prepare ...func(*harness)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := &harness{t: t, plugins: newShop(), dir: dir}
		for _, f := range prepare {
			f(r)
		}
		r.start()
		test(r)
		r.check()
		r.halt()
	})
}

func (r *harness) start() {
	r.t.Helper()
	log := slog.New(bugPanics{})
	var err error
	var known store.State
	r.store, known, err = store.Recover(store.Config{Dir: r.dir, Log: log, Metrics: prometheus.NewRegistry()})
	if err != nil {
		r.t.Fatal(err)
	}
	r.disk = &disk{Store: r.store}
	r.plugins.store = r.disk
	r.metrics = prometheus.NewRegistry()
	var releaser allocator.Releaser
	if r.releaser != nil {
		r.releaser.forgotten()
		releaser = r.releaser
	}
	has := &device.Kubelets{}
	r.Allocator = allocator.New(allocator.Config{
		Kubelets: func() *device.Kubelets { return cmp.Or(r.kubelets.Load(), has) },
		Releaser: releaser,
		Registry: r.plugins, Plugins: r.plugins, Store: r.disk, Notifier: r.plugins, Host: r.plugins, Known: known.Pods, Cordons: known.Cordons, Falls: known.Falls, Suspends: func(device.ResourceName) bool { return r.suspends }, Retired: known.Retired,
		FailUnlisted: r.failUnlisted, Examines: func(device.ResourceName) bool { return r.examines }, Journal: &r.acts,
		Topology: r.topology, Boot: r.boot, Ordering: r.ordering, GiveUpAfter: r.giveUp, Log: log, Metrics: r.metrics,
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := r.Run(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	r.stop = func() {
		cancel()
		<-ended
	}
	if !r.mute { // pods are served from then on; the test reports the containers
		r.RuntimeSynced(nil, nil)
		r.RuntimeLost()
	}
	synctest.Wait()
}

func (r *harness) halt() {
	r.stop()
	if err := r.store.Close(); err != nil {
		r.t.Error(err)
	}
}

// restart stops the daemon and starts it again on the same state file.
func (r *harness) restart() {
	r.halt()
	r.start()
}

// check waits until nothing moves, and compares the state's copies with each other.
func (r *harness) check() {
	r.t.Helper()
	synctest.Wait()
	onDisk, err := r.records.onDisk(r.dir, r.store)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.CheckInvariants(onDisk); err != nil {
		r.t.Error(err)
	}
	r.follow()
}

// records are the pods in a state file, as they were read last.
type records struct {
	store   *store.Store
	headers []byte // of the file then
	pods    []device.PodRecord
}

// onDisk reads the pods in the state file again if there was a commit since the last call: each changes one of the headers. Another Store may have
// another file, with the same headers.
func (r *records) onDisk(dir string, s *store.Store) ([]device.PodRecord, error) {
	f, err := os.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	headers := make([]byte, 2*os.Getpagesize())
	if _, err := io.ReadFull(f, headers); err != nil || s == r.store && bytes.Equal(headers, r.headers) {
		return r.pods, err
	}
	r.pods, err = podsOnDisk(s)
	if err == nil {
		r.store, r.headers = s, headers
	}
	return r.pods, err
}

// follow applies the changes since the last check, and compares the result with the allocator's state.
func (r *harness) follow() {
	r.t.Helper()
	if r.reader != r.Allocator {
		r.reader, r.seen, r.revision = r.Allocator, map[device.PodUID]*device.PodAllocation{}, 0
	}
	for {
		changes, known := r.ChangesSince(r.revision, 3)
		if !known {
			r.t.Fatalf("the changes since revision %d are not known", r.revision)
		}
		for _, c := range changes {
			r.revision++
			uid := cmp.Or(c.Before, c.After).Pod.UID
			if c.Revision != r.revision || r.seen[uid] != c.Before {
				r.t.Errorf("change %+v does not follow on revision %d", c, r.revision-1)
			}
			r.seen[uid] = c.After
			if c.After == nil {
				delete(r.seen, uid)
			}
		}
		if len(changes) == 0 {
			break
		}
	}
	now := map[device.PodUID]*device.PodAllocation{}
	board := r.Snapshot()
	for _, h := range board.Pods {
		now[h.Pod.UID] = h.PodAllocation
	}
	if board.Revision != r.revision || !maps.Equal(now, r.seen) {
		r.t.Errorf("the board of revision %d has %v; the changes up to %d lead to %v", board.Revision, now, r.revision, r.seen)
	}
}

// bind binds a pod with these demands, after earlier offers have been applied, and waits until nothing moves.
func (r *harness) bind(name string, demands ...device.Demand) {
	synctest.Wait()
	r.Bind(pod(name, demands...))
	synctest.Wait()
}

// stands returns the readiness of a container in short: a word, and the devices or the reason.
func (r *harness) stands(pod, container string) string {
	r.t.Helper()
	synctest.Wait()
	s := r.Readiness(device.Container{Pod: device.PodUID(pod), Name: container})
	switch s.State {
	case device.Unknown:
		return "unknown"
	case device.NoDevices:
		return "free"
	case device.Pending:
		return "busy " + string(s.Wait.Reason)
	case device.Waiting:
		return "waiting " + string(s.Wait.Reason)
	}
	out := "ready"
	for _, share := range s.Assignment.Shares {
		out += fmt.Sprintf(" %s%v", share.Resource, share.IDs)
	}
	return out
}

func (r *harness) expect(pod, container, want string) {
	r.t.Helper()
	if got := r.stands(pod, container); got != want {
		r.t.Errorf("%s/%s stands %q, want %q", pod, container, got, want)
	}
}

// wouldRefuse expects the first container of a served pod that would not be created, and why; empty: there is none.
func (r *harness) wouldRefuse(pod, container string, reason device.Reason) {
	r.t.Helper()
	synctest.Wait()
	got, why := r.WouldRefuse(device.PodUID(pod))
	if why == nil {
		why = &device.Wait{}
	}
	if got != container || why.Reason != reason {
		r.t.Errorf("of %s, container %q would be refused with %q, want %q with %q", pod, got, why.Reason, container, reason)
	}
}

func (r *harness) published(want map[device.ResourceName]int) {
	r.t.Helper()
	synctest.Wait()
	if got := r.Resources().Capacity(); !maps.Equal(got, want) {
		r.t.Errorf("published %v, want %v", got, want)
	}
}

// metric returns the value of a counter or gauge with these label values, in the order of the labels' names.
func (r *harness) metric(name string, labels ...string) float64 {
	r.t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var got []string
			for _, l := range m.GetLabel() {
				got = append(got, l.GetValue())
			}
			if f.GetName() == name && slices.Equal(got, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// after lets time pass and waits until nothing moves.
func (r *harness) after(d time.Duration) {
	time.Sleep(d) // the bubble's clock: this takes no time
	synctest.Wait()
}

var born = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// pod returns a pod whose UID is its name. Pods are ordered by age as their names are in the alphabet.
func pod(name string, demands ...device.Demand) device.PodDemand {
	for i := range demands {
		demands[i].Container.Pod = device.PodUID(name)
	}
	return device.PodDemand{
		Pod:     device.Pod{UID: device.PodUID(name), Namespace: "ns", Name: name},
		Created: born.Add(time.Duration(name[0]) * time.Minute), Demands: demands,
	}
}

func wants(container string, kind device.Kind, r device.ResourceName, n int) device.Demand {
	return device.Demand{Container: device.Container{Name: container}, Kind: kind, Wants: map[device.ResourceName]int{r: n}}
}

// claims has a container have devices by a claim.
func claims(d device.Demand, claim device.ClaimUID, ids ...device.ID) device.Demand {
	for r := range d.Wants {
		d.Wants[r] = len(ids)
		d.Fixed = map[device.ResourceName][]device.ID{r: ids}
		d.Claimed = map[device.ResourceName]map[device.ID]device.ClaimUID{r: {}}
		for _, id := range ids {
			d.Claimed[r][id] = claim
		}
	}
	return d
}

func app(r device.ResourceName, n int) device.Demand { return wants("main", device.App, r, n) }

func running(id, pod, container string) device.Running {
	return device.Running{ID: id, Container: device.Container{Pod: device.PodUID(pod), Name: container}}
}

var errPlugin = errors.New("the plugin says no")

// bugPanics is a log that panics where the allocator reports a mistake of its own.
type bugPanics struct{}

func (bugPanics) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }
func (h bugPanics) WithAttrs([]slog.Attr) slog.Handler         { return h }
func (h bugPanics) WithGroup(string) slog.Handler              { return h }

func (bugPanics) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "bug:") {
		panic(r.Message)
	}
	return nil
}

// podsOnDisk returns the pods in the state file.
func podsOnDisk(s *store.Store) ([]device.PodRecord, error) {
	has, err := s.State()
	return has.Pods, err
}
