package allocator

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/containers"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/feed"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/flapping"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/placement"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// A Registry knows the device plugins and what they offer.
type Registry interface {
	// Offers returns all current offers. Inventories are shared and never change.
	Offers() map[device.ResourceName]device.Offer
	// Changed has a value after the offers have changed.
	Changed() <-chan struct{}
	// Forget drops a resource that no plugin serves, and its records in the state file, cordons included. It fails with a
	// *device.InUseError while a plugin serves the resource.
	Forget(device.ResourceName) error
}

// Plugins are the calls of device plugins.
type Plugins interface {
	// Allocate asks the resource's plugin to make these devices usable in a container, with its own deadline. A
	// *device.Refusal as error carries the reason to wait.
	Allocate(context.Context, device.Pod, device.Container, device.ResourceName, []device.ID) (device.Grant, error)
	// Prefer asks the plugin to choose size of the available devices, must included. The answer is unchecked. A
	// *device.Refusal as error carries the reason.
	Prefer(ctx context.Context, pod device.Pod, c device.Container, r device.ResourceName, available, must []device.ID, size int) ([]device.ID, error)
	// PreStart asks the plugin to prepare the devices for one start of the container.
	PreStart(context.Context, device.Pod, device.Container, device.ResourceName, []device.ID) error
}

// Store makes the allocator's decisions durable.
type Store interface {
	// SavePods saves some pods and forgets others, in one commit. The commit is on disk when SavePods returns nil.
	SavePods(save []device.PodRecord, forget []device.PodUID) error
	// SaveCordons saves and forgets cordons in the same way.
	SaveCordons(save, forget []device.Cordon) error
	// SaveDeclaredCordons replaces the cordons that the Node's annotation declares, in the same way.
	SaveDeclaredCordons([]device.Cordon) error
	// SaveFalls makes the records of some devices durable and forgets those of others.
	SaveFalls(save, forget []device.Falls) error
	// DropRetired removes the notes of resources that the Node may still show.
	DropRetired([]device.ResourceName) error
}

// Notifier reports what happens to pods to their owners. Its methods return at once.
type Notifier interface {
	Waiting(device.Pod, device.Wait)
	Assigned(device.Pod, []device.Assignment)
	// StartedWithoutDevices reports a container that runs without the devices it requests. The cause lasts while still returns
	// true.
	StartedWithoutDevices(pod device.Pod, container string, still func() bool)
	// Failed reports that devices of a pod have become unhealthy, or that their plugin no longer lists them.
	Failed(device.Pod, device.ResourceName, []device.ID)
	// DeviceRefused reports that a device that no pod can have is listed as healthy: its plugin refuses it, or the host lacks what its grants name.
	DeviceRefused(r device.ResourceName, id device.ID, why string)
	// FailedForLong reports that a failure has lasted, at most once an hour for each device. The device is still in use and
	// failed while still returns true.
	FailedForLong(pod device.Pod, r device.ResourceName, id device.ID, still func() bool)
	// GivenUp reports that a pod has waited for too long, and why. It does so while still returns true.
	GivenUp(pod device.Pod, why device.Wait, waited time.Duration, still func() bool)
}

// A Journal records what devmgrd does to devices on its own.
type Journal interface {
	// Record records an action. It returns at once.
	Record(device.Action)
}

// Host reports which processes run on this machine.
type Host interface {
	// ContainersWithProcesses returns the containers, of those given by the runtime's IDs, that have processes.
	ContainersWithProcesses([]string) (map[string]bool, error)
	// PodsWithProcesses returns the pods, of those given, that have processes in containers or sandboxes, with a few of these.
	PodsWithProcesses([]device.PodUID) (map[device.PodUID][]device.Process, error)
}

// The policy for NUMA placement and the order of choice, for the caller of New.
type (
	Topology = placement.Topology
	Policy   = placement.Policy
	Scope    = placement.Scope
	Ordering = ledger.Ordering
	Order    = ledger.Order
)

// Config is what New needs.
type Config struct {
	Registry Registry
	Plugins  Plugins
	Store    Store
	Notifier Notifier
	Host     Host                  // nil: no container is ever proven idle
	Boot     string                // identifies this boot of the machine; empty: grants hold for every boot
	Known    []device.PodRecord    // from the state file
	Cordons  []device.Cordon       // likewise
	Falls    []device.Falls        // likewise
	Retired  []device.ResourceName // likewise
	// Topology is the policy for NUMA placement; the zero value ignores placement.
	Topology Topology
	// Ordering returns the order in which a resource's devices are given out; nil: the lowest IDs first.
	Ordering func(device.ResourceName) Ordering
	// Suspends returns whether a device of a resource is suspended when it becomes unhealthy again and again; nil: always.
	Suspends func(device.ResourceName) bool
	// Examines returns whether a command examines a resource's free devices (Examined); nil: none does.
	Examines func(device.ResourceName) bool
	// SuspendFor is how long the first suspension of a device lasts; 0: an hour.
	SuspendFor time.Duration
	// GiveUpAfter returns how long a pod that requests a resource may wait for a reason; 0: without end. With an empty resource:
	// any pod. nil: no pod is given up.
	GiveUpAfter func(device.Reason, device.ResourceName) time.Duration
	// FailUnlisted has devices in use count as failed that a restarted plugin does not list.
	FailUnlisted bool
	// ChecksProcesses returns whether a resource's devices are released only when the host has no process of the pod; nil: always.
	ChecksProcesses func(device.ResourceName) bool
	// Releaser proves more before devices are released; nil: nothing more is required.
	Releaser Releaser
	// Kubelets returns what the kubelet's device manager has assigned, and the same value until that changes (KubeletChanged). nil: nothing.
	Kubelets func() *device.Kubelets
	Journal  Journal // nil: nothing is recorded
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// An Allocator assigns devices to containers. Its methods are safe for concurrent use and block only on its own short lock; those that change cordons, forget resources or confirm their removal wait
// for a commit, and hooks of a container's start for the comparison of the runtime's containers. What belongs together is in its
// parts, which are named after it.
type Allocator struct {
	cfg     Config // immutable
	began   time.Time
	metrics *metrics

	kick  chan struct{} // something to plan
	write chan struct{} // the state file needs a write
	work  sync.WaitGroup

	offersMu locks.Mutex[locks.Offers]     // held while offers are taken over, so that an older offer never replaces a newer one; after commitMu, before mu
	commitMu locks.Mutex[locks.CommitPods] // held while the state file is written, so that an older record never replaces a newer one

	starts starts // which containers start without mu

	mu *lock // guards what follows; never held across a plugin's call or a commit
	podLists
	ledger *ledger.Ledger // who has which devices
	byKubelet
	runtimeReport
	writes
	outOfService
	falling
	podsListed bool // every pod that is bound to the node is in pods
	feed       *feed.Feed
	snapshot   *device.Snapshot             // nil: out of date
	retired    map[device.ResourceName]bool // forgotten resources that the Node may still show
}

// podLists are all pods, and those to which something has to be done.
type podLists struct {
	pods      map[device.PodUID]*pod
	locals    map[device.PodUID]*pod             // the pods known from the runtime
	mirrors   map[device.PodUID]device.PodDemand // their mirror pods in the API
	left      map[device.PodUID]device.PodDemand // pods in the API that have left (leaving.go)
	queued    []*pod                             // to plan now
	waiting   map[device.PodUID]*pod             // to plan after a change
	ended     map[device.PodUID]*pod             // to forget once their devices are free (departure.go)
	toPrepare []device.Container                 // to prepare now
}

// runtimeReport is what the container runtime has said (runtime.go).
type runtimeReport struct {
	running       containers.Containers // its containers
	room          int                   // how many more devices may be recorded of containers whose requests are not known
	runtimeSynced bool                  // running is complete
	syncedAt      time.Time             // when the runtime last listed its containers; zero: it has not
	catchingUp    chan struct{}         // nil, or closed when all reports have been applied
	reports       []func()              // since a synchronization that is not compared yet
}

// writes are what the state file lacks (writer.go).
type writes struct {
	unsaved  map[device.PodUID]*pod // to save within saveDelay
	writeAt  time.Time              // when to write the state file; zero: nothing to write
	storeErr bool                   // the last write failed
}

// outOfService are the devices that no pod is assigned (cordon.go, flapping.go).
type outOfService struct {
	cordons   device.Cordons // by the operator's commands
	declared  device.Cordons // by the Node's annotation
	suspended device.Cordons // by devmgrd itself
	inForce   device.Cordons // all together, by resource
}

// falling is how often devices have become unhealthy (flapping.go).
type falling struct {
	flapping       map[device.ResourceName]*flapping.Log
	downturns      map[device.ResourceName]*downturn
	falls          uint64                            // number of changes of records so far
	unsavedFalls   map[device.Key]uint64             // devices whose records are not on disk, by the number of their latest changes
	fallsErr       bool                              // the latest write of them has failed
	suspensionsDue map[device.ResourceName]time.Time // when a suspension of a resource ends or a record expires; zero: none does; missing: something has changed
}

// New returns an Allocator with the state file's content. Run starts it.
func New(c Config) *Allocator {
	for name, missing := range map[string]bool{
		"Registry": c.Registry == nil, "Plugins": c.Plugins == nil, "Store": c.Store == nil, "Notifier": c.Notifier == nil, "Log": c.Log == nil, "Metrics": c.Metrics == nil,
	} {
		if missing {
			panic("allocator.New: Config." + name + " is missing")
		}
	}
	c.SuspendFor = cmp.Or(c.SuspendFor, time.Hour)
	if c.Ordering == nil {
		c.Ordering = func(device.ResourceName) Ordering { return Ordering{} }
	}
	a := &Allocator{
		cfg: c, began: time.Now(), mu: newLock(), kick: make(chan struct{}, 1), write: make(chan struct{}, 1), feed: feed.New(), retired: map[device.ResourceName]bool{},
		byKubelet: byKubelet{kubelets: &device.Kubelets{}, kept: map[device.PodUID]device.Choice{}},
		podLists: podLists{
			pods: map[device.PodUID]*pod{}, locals: map[device.PodUID]*pod{}, mirrors: map[device.PodUID]device.PodDemand{}, left: map[device.PodUID]device.PodDemand{},
			waiting: map[device.PodUID]*pod{}, ended: map[device.PodUID]*pod{},
		},
		runtimeReport: runtimeReport{running: containers.Containers{}},
		writes:        writes{unsaved: map[device.PodUID]*pod{}},
		outOfService:  outOfService{cordons: device.Cordons{}, declared: device.Cordons{}, suspended: device.Cordons{}, inForce: device.Cordons{}},
		falling:       falling{flapping: map[device.ResourceName]*flapping.Log{}, downturns: map[device.ResourceName]*downturn{}, unsavedFalls: map[device.Key]uint64{}, suspensionsDue: map[device.ResourceName]time.Time{}},
	}
	a.ledger = ledger.New(ledgerView{a}, c.FailUnlisted, c.Log)
	for _, r := range c.Retired {
		a.retired[r] = true
	}
	byCommand := slices.DeleteFunc(slices.Clone(c.Cordons), func(one device.Cordon) bool { return one.Declared })
	declared := slices.DeleteFunc(slices.Clone(c.Cordons), func(one device.Cordon) bool { return !one.Declared })
	a.cordons.Add(byCommand...)
	a.declared.Add(declared...)
	for _, all := range []device.Cordons{a.cordons, a.declared} {
		for r := range all {
			a.combineCordonsLocked(r)
		}
	}
	conflicts := map[device.PodUID]device.Conflict{}
	for _, conflict := range device.Conflicts(c.Known) {
		for _, pod := range conflict.Pods {
			conflicts[pod.UID] = conflict
		}
	}
	offers := c.Registry.Offers()
	for _, r := range c.Known {
		a.recallLocked(r, conflicts[r.Demand.Pod.UID], offers)
	}
	a.metrics = newMetrics(a, c.Metrics)
	a.recallFallsLocked(c.Falls)
	a.refresh()
	return a
}

// Run plans pods, asks plugins and writes the state file until ctx ends. It returns when all its goroutines have ended.
func (a *Allocator) Run(ctx context.Context) error {
	defer a.work.Wait()
	a.work.Go(func() { a.writeLoop(ctx) })
	for {
		a.refresh()
		again := loops.At(a.serve(ctx))
		select {
		case <-ctx.Done():
			return nil
		case <-a.cfg.Registry.Changed():
		case <-a.kick:
		case <-again:
		}
	}
}

// refresh takes over changed offers and drops withdrawn ones. It makes listings without the lock, and lets go of the lock between two resources: a
// listing of 50 000 devices, or many that change, would delay the runtime's look-ups.
func (a *Allocator) refresh() {
	type news struct {
		offer   device.Offer
		listing *ledger.Listing
		before  *ledger.Listing
		changed []device.ID // between these
		fallen  []device.ID
	}
	a.offersMu.Lock()
	defer a.offersMu.Unlock()
	defer a.refreshKubelets() // once the offers are known: a plugin that has come has left the kubelet
	fresh, offers := map[device.ResourceName]news{}, a.cfg.Registry.Offers()
	for r, o := range offers {
		a.mu.Lock()
		resource := a.ledger.Of(r)
		was, known, before, cordons := resource.Offer(), resource.Offered(), resource.Listing(), a.inForce[r]
		a.mu.Unlock()
		switch {
		case !known || !device.SameList(o.Inventory.Devices, was.Inventory.Devices):
			listing := ledger.NewListing(o.Inventory.Devices, cordons, a.cfg.Ordering(r), before)
			changed := listing.Changed(before)
			fresh[r] = news{o, listing, before, changed, fallen(changed, before, listing)}
		case o.State != was.State || o.Session != was.Session || o.Reported != was.Reported || o.PreStart != was.PreStart || o.Prefers != was.Prefers:
			fresh[r] = news{o, before, before, nil, nil}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	changed := a.retractLocked(offers)
	for r, n := range fresh {
		a.mu.Unlock() // let the runtime's questions in
		a.mu.Lock()
		resource := a.ledger.Of(r)
		if n.offer.State == device.Serving { // the plugin's new record removes the state file's note
			delete(a.retired, r)
		}
		back := n.offer.State == device.Serving && (!resource.Offered() || resource.Offer().State != device.Serving || resource.Offer().Session != n.offer.Session)
		if back { // another process of the plugin may grant what the last one has refused
			delete(a.suspensionsDue, r)
		}
		if len(n.changed) > 0 {
			a.dateLocked(r, n.listing)
		}
		examine := a.ledger.Accept(r, n.offer, n.listing, n.changed)
		a.refreshCordonsLocked(r) // a device may have been cordoned meanwhile
		a.examineLocked(r, examine)
		a.fellLocked(r, n.fallen, n.before, time.Now())
		a.wakeLocked(r, back)
	}
	if changed || len(fresh) > 0 {
		a.changedLocked() // once: each reader looks at all resources
	}
}

// serve assigns devices to every queued pod or makes it wait with a reason, oldest pod first. It returns the next time at which
// something of the loop is due, such as a retry, a failure check or the end of a suspension; zero: none.
//
// It assigns nothing before the runtime has listed its containers once, because the state file may be lost or outdated. The
// wait costs nothing: without the runtime no container starts.
func (a *Allocator) serve(ctx context.Context) (again time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.catchUpLocked()
	if a.syncedAt.IsZero() {
		return time.Time{} // RuntimeSynced wakes the loop
	}
	if left := a.unansweredLocked(); left > 0 {
		return time.Now().Add(left)
	}
	now := time.Now()
	again = loops.Earliest(a.dropIdleLocked(now), a.watchFailuresLocked(now), a.judgeFallsLocked(now), a.suspendLocked(now, false))
	for _, p := range a.waiting {
		switch {
		case p.retry.IsZero():
		case !now.Before(p.retry):
			a.queueLocked(p)
		default:
			again = loops.Earliest(again, p.retry)
		}
	}
	all := a.queued
	a.queued = nil
	slices.SortFunc(all, older)
	for _, p := range all {
		demand := p.demand
		a.mu.Unlock() // let the runtime's questions in between two pods
		a.match(demand)
		a.mu.Lock()
		if p.phase == queued { // the pod may have left the queue meanwhile
			a.reserveLocked(ctx, p)
		}
	}
	// After the plans: a pod that goes on waiting for the same reason sets no timer of its own.
	again = loops.Earliest(again, a.giveUpLocked(time.Now()))
	starts := a.toPrepare
	a.toPrepare = nil
	for _, c := range starts {
		a.startPreparingLocked(ctx, c)
	}
	return again
}

// ledgerView is what the ledger needs to know of the allocator.
type ledgerView struct{ a *Allocator }

// Assigned is part of ledger.Allocator, as are the methods below.
func (v ledgerView) Assigned(uid device.PodUID) []device.Assignment {
	if p := v.a.pods[uid]; p != nil {
		return p.assigned
	}
	return nil
}

func (v ledgerView) Unused(uid device.PodUID, container string) bool {
	p := v.a.pods[uid]
	why, lapsed := p.lapsed[container]
	return lapsed && why == otherBoot && p.phase != allocating && p.phase != abandoned // the plugin may grant them at this moment
}

func (v ledgerView) MayRun(uid device.PodUID) bool { return v.a.running[uid].MayRun() }

func (v ledgerView) Freed(r device.ResourceName) { v.a.wakeLocked(r, false) }

// journal records what devmgrd has just done to devices.
func (a *Allocator) journal(verb, why string, devices ...string) {
	if a.cfg.Journal != nil {
		act := device.Action{Verb: verb, Reason: why}
		act.On(devices)
		a.cfg.Journal.Record(act)
	}
}

// older orders pods by age, and pods of the same age by UID.
func older(p, q *pod) int {
	return cmp.Or(p.demand.Created.Compare(q.demand.Created), cmp.Compare(p.demand.Pod.UID, q.demand.Pod.UID))
}
