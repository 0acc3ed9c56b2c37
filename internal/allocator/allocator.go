package allocator

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Plugins are those who offer devices and can be asked for them.
type Plugins interface {
	// Offers returns all offers as they are now. Inventories are shared and never change.
	Offers() map[device.ResourceName]device.Offer
	// CapacityChanged has a value after the offers have changed.
	Changed() <-chan struct{}
	// Allocate asks the resource's plugin to make these devices usable in a container. It has a deadline of its own.
	// An error that is a *device.Refusal carries the reason to wait.
	Allocate(context.Context, device.Pod, device.Container, device.ResourceName, []device.ID) (device.Grant, error)
	// Prefer asks the plugin which size devices of the available ones go well together, if these must be among them.
	// The answer is the plugin's, unchecked. A *device.Refusal as error carries the reason.
	Prefer(ctx context.Context, pod device.Pod, c device.Container, r device.ResourceName, available, must []device.ID, size int) ([]device.ID, error)
	// PreStart asks the plugin to prepare the devices for one start of the container.
	PreStart(context.Context, device.Pod, device.Container, device.ResourceName, []device.ID) error
	// Forget drops a resource that nobody serves, and all that the state file has of it, cordons too. It fails with a
	// *device.InUseError while a plugin serves it.
	Forget(device.ResourceName) error
}

// Store make durable what has been decided.
type Store interface {
	// SavePods writes some pods and forgets others, in one commit. When it returns nil that is on disk.
	SavePods(save []device.PodRecord, forget []device.PodUID) error
	// SaveCordons does so with cordons.
	SaveCordons(save, forget []device.Cordon) error
	// DropRetired forgets that resources were to be taken off the Node.
	DropRetired([]device.ResourceName) error
}

// Notifier tells the owners of pods what becomes of them. Its methods return at once.
type Notifier interface {
	Waiting(device.Pod, device.Wait)
	Assigned(device.Pod, []device.Assignment)
	// StartedWithoutDevices tells of a container that runs without the devices that it asks for.
	// The cause lasts while still returns true.
	StartedWithoutDevices(pod device.Pod, container string, still func() bool)
	// Failed tells that a device that a pod has is no longer healthy, or that its plugin lists it no more.
	Failed(device.Pod, device.ResourceName, []device.ID)
	// FailedForLong tells that this has lasted, of one device not more than once an hour. The device is still in use and
	// broken while still returns true.
	FailedForLong(pod device.Pod, r device.ResourceName, id device.ID, still func() bool)
}

// Host can be asked what runs on this machine.
type Host interface {
	// HasProcesses reports whether a container has processes. The ID is the runtime's.
	HasProcesses(container string) (bool, error)
	// PodsWithProcesses returns those of the pods that have processes, of containers or of sandboxes.
	PodsWithProcesses([]device.PodUID) (map[device.PodUID]bool, error)
}

// Config is what New needs.
type Config struct {
	Plugins  Plugins
	Store    Store
	Notifier Notifier
	Host     Host                  // nil: no container is ever proven to be idle
	Boot     string                // identifies this boot of the machine; empty: grants hold for every boot
	Known    []device.PodRecord    // what the state file holds already
	Cordons  []device.Cordon       // the same
	Retired  []device.ResourceName // the same
	// Topology says how devices' places are minded; the zero value: not at all.
	Topology Topology
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// An Allocator gives devices to containers. Its methods may be called from several goroutines and never block on
// anything but its own short lock.
type Allocator struct {
	plugins  Plugins
	store    Store
	notifier Notifier
	host     Host
	boot     string
	topology Topology
	log      *slog.Logger
	metrics  *metrics

	kick            chan struct{} // something to plan
	write           chan struct{} // something to write into the state file
	capacityChanged chan struct{} // the published numbers may have changed
	work            sync.WaitGroup

	offersMu sync.Mutex // held while offers are taken over, so that an older one never lands on a newer one; after pen, before mu

	commitMu sync.Mutex // held while the state file is written, so that an older word never lands on a newer one

	mu            sync.Mutex // guards what follows; never held across a plugin's call or a commit
	pods          map[device.PodUID]*pod
	locals        map[device.PodUID]*pod             // those of pods of which the runtime tells
	mirrors       map[device.PodUID]device.PodDemand // what stands for those in the API
	pools         pools
	queued        []*pod                       // to be planned now
	waiting       map[device.PodUID]*pod       // to be planned when something changes
	toPrepare     []device.Container           // to be prepared now
	releasing     map[device.PodUID]*pod       // to be forgotten as soon as the runtime has none of their containers
	unsaved       map[device.PodUID]*pod       // to be remembered when there is time
	writeAt       time.Time                    // when the state file has to be written; zero: nothing to write
	storeErr      bool                         // the last attempt to write them failed
	running       map[device.PodUID]runningPod // what the runtime has
	runtimeSynced bool                         // running is the whole truth
	runtimeListed bool                         // it has been, at least once
	// syncedAt is when the runtime listed its containers last.
	syncedAt   time.Time
	catchingUp chan struct{} // nil, or closed when news has been applied
	reports    []func()      // the runtime's reports since a synchronization that is still to be compared
	podsListed bool          // every pod that is bound to the node is in pods
	feed       feed
	cordons    map[device.ResourceName]map[device.ID]device.Cordon // the inner maps are replaced, never changed
	retired    map[device.ResourceName]bool                        // forgotten, and the Node may still show them

	// quarantined are devices that containers run with and that the state file does not know of, by pod, container and resource.
	quarantined map[device.PodUID]map[string]device.Choice
	// conflicting are those of them that somebody else has, by the state file.
	conflicting map[device.PodUID]map[string]device.Choice
}

// New makes an Allocator that knows what the state file knows. It starts nothing: see Run.
func New(c Config) *Allocator {
	for name, missing := range map[string]bool{
		"Plugins": c.Plugins == nil, "Store": c.Store == nil, "Notifier": c.Notifier == nil, "Log": c.Log == nil, "Metrics": c.Metrics == nil,
	} {
		if missing {
			panic("allocator.New: Config." + name + " is missing")
		}
	}
	a := &Allocator{
		plugins:         c.Plugins,
		store:           c.Store,
		notifier:        c.Notifier,
		host:            c.Host,
		boot:            c.Boot,
		topology:        c.Topology,
		log:             c.Log,
		kick:            make(chan struct{}, 1),
		write:           make(chan struct{}, 1),
		capacityChanged: make(chan struct{}, 1),
		pods:            map[device.PodUID]*pod{},
		locals:          map[device.PodUID]*pod{},
		mirrors:         map[device.PodUID]device.PodDemand{},
		pools:           pools{},
		waiting:         map[device.PodUID]*pod{},
		releasing:       map[device.PodUID]*pod{},
		unsaved:         map[device.PodUID]*pod{},
		running:         map[device.PodUID]runningPod{},
		quarantined:     map[device.PodUID]map[string]device.Choice{},
		conflicting:     map[device.PodUID]map[string]device.Choice{},
		feed:            feed{updated: make(chan struct{})},
		cordons:         map[device.ResourceName]map[device.ID]device.Cordon{},
		retired:         map[device.ResourceName]bool{},
	}
	for _, r := range c.Retired {
		a.retired[r] = true
	}
	for _, d := range c.Cordons {
		if a.cordons[d.Resource] == nil {
			a.cordons[d.Resource] = map[device.ID]device.Cordon{}
		}
		a.cordons[d.Resource][d.ID] = d
	}
	conflicts := findConflicts(c.Known)
	for _, r := range c.Known {
		a.recallLocked(r, conflicts[r.Demand.Pod.UID])
	}
	a.metrics = newMetrics(a, c.Metrics)
	a.refresh()
	return a
}

// Run plans, asks and keeps the state file until ctx ends. It returns when all that it started has ended.
func (a *Allocator) Run(ctx context.Context) error {
	defer a.work.Wait()
	a.work.Go(func() { a.writeLoop(ctx) })
	for {
		a.refresh()
		var again <-chan time.Time
		if at := a.serve(ctx); !at.IsZero() {
			again = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.plugins.Changed():
		case <-a.kick:
		case <-again:
		}
	}
}

// refresh takes over the offers that have changed, and drops those that are no more. Listings are made without the lock: of
// 50 000 devices that would hold up the runtime's look-ups.
func (a *Allocator) refresh() {
	type news struct {
		offer   device.Offer
		listing *listing
	}
	a.offersMu.Lock()
	defer a.offersMu.Unlock()
	fresh, offers := map[device.ResourceName]news{}, a.plugins.Offers()
	for r, o := range offers {
		a.mu.Lock()
		p := a.pools.of(r)
		was, known, before, cordons := p.offer, p.offered, p.listing, a.cordons[r]
		a.mu.Unlock()
		switch {
		case !known || !device.SameList(o.Inventory.Devices, was.Inventory.Devices):
			fresh[r] = news{o, makeListing(o.Inventory.Devices, cordons, before)}
		case o.State != was.State || o.Session != was.Session || o.Reported != was.Reported || o.PreStart != was.PreStart || o.Prefers != was.Prefers:
			fresh[r] = news{o, before}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	dropped := a.retractLocked(offers)
	if len(fresh) == 0 && !dropped {
		return
	}
	for r, n := range fresh {
		p := a.pools[r]
		if n.offer.State == device.Serving { // what the state file has of it goes with its record
			delete(a.retired, r)
		}
		back := n.offer.State == device.Serving && (!p.offered || p.offer.State != device.Serving || p.offer.Session != n.offer.Session)
		p.accept(n.offer, n.listing)
		a.withholdLocked(r)
		a.refreshCordonsLocked(r) // somebody may have cordoned a device meanwhile
		a.examineLocked(r, p)
		a.wakeLocked(r, back)
	}
	a.feed.notify()
	signal(a.capacityChanged)
}

// serve returns every queued pod its devices or a reason to wait, oldest first. It tells when a pod that waits for a
// plugin to recover, or that may have ended unheard, is due, if there is one.
//
// Nothing is given out before the runtime has told once what runs: the state file may be lost, or older than that. It costs
// nothing, since without the runtime no container starts.
func (a *Allocator) serve(ctx context.Context) (again time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.catchUpLocked()
	if !a.runtimeListed {
		return time.Time{} // RuntimeSynced kicks us
	}
	now := time.Now()
	again = a.dropIdleLocked(now)
	if due := a.watchFailuresLocked(now); !due.IsZero() && (again.IsZero() || due.Before(again)) {
		again = due
	}
	for _, p := range a.waiting {
		switch {
		case p.retry.IsZero():
		case !now.Before(p.retry):
			a.queueLocked(p)
		case again.IsZero() || p.retry.Before(again):
			again = p.retry
		}
	}
	all := a.queued
	a.queued = nil
	slices.SortFunc(all, older)
	for _, p := range all {
		if p.phase == queued { // it may have left meanwhile
			a.reserveLocked(ctx, p)
		}
		a.mu.Unlock() // the runtime's questions are not to wait for all of them
		a.mu.Lock()
	}
	starts := a.toPrepare
	a.toPrepare = nil
	for _, c := range starts {
		a.startPreparingLocked(ctx, c)
	}
	return again
}

// older orders pods by age, and those of one age by their UIDs.
func older(p, q *pod) int {
	if c := p.demand.Created.Compare(q.demand.Created); c != 0 {
		return c
	}
	return strings.Compare(string(p.demand.Pod.UID), string(q.demand.Pod.UID))
}

// signal puts a value into a channel of size one, unless one is waiting there already.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
