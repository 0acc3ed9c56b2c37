package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	// writeInterval is the least time between two writes of one pool, so that devices that flap do not load the API server.
	writeInterval = time.Second
	// lookInterval is the least time between two comparisons. A removal by another client shortens it.
	lookInterval = 20 * time.Millisecond
	writeTimeout = 10 * time.Second
	firstRetry   = 200 * time.Millisecond
	lastRetry    = 10 * time.Second
)

// A View is the source of the published devices.
type View interface {
	Inventory // which also signals changes of Resources
	Resources() device.Resources
}

// Places makes the places of devices durable. Those of the resource's other devices are forgotten.
type Places interface {
	SavePlaces(device.ResourceName, map[device.ID]int) error
}

// PublisherConfig is what New needs. Every field but Known, Sysfs and Procfs is required.
type PublisherConfig struct {
	NodeName string
	Client   rest.Interface // resource.k8s.io/v1
	View     View
	Slices   *Slices // which the Publisher follows, and writes
	// Claimed reports whether a resource's devices belong in ResourceSlices. Node says when the Node shows no number of it, and NodeChanged has a token
	// when either answer may have changed.
	Claimed     func(device.ResourceName) bool
	Node        Node
	NodeChanged <-chan struct{}
	// Order returns a resource's devices in the order in which the slices list them, which is the order in which the scheduler
	// considers them; nil: natural. Other devices follow.
	Order  func(device.ResourceName) []device.ID
	Places Places
	Known  map[device.ResourceName]map[device.ID]int // the saved places
	// NodeUID returns the UID of this Node, which owns the slices, and false while it is not known.
	NodeUID    func() (types.UID, bool)
	MaxDevices int // of a resource
	// TooMany reports whether a resource is not offered because it has more devices than MaxDevices allows.
	TooMany func(device.ResourceName) bool
	Sysfs   string // where sysfs is mounted; empty: /sys
	Procfs  string // likewise; empty: /proc
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// A Publisher keeps the ResourceSlices of devmgrd's Node up to date.
type Publisher struct {
	cfg     PublisherConfig
	slices  *Slices
	metrics metrics

	// For publish alone.
	describer *describer
	pools     map[string]*pace                     // by the key of the slice (byPool)
	resources map[device.ResourceName]*publication // that are offered
	words     map[device.ResourceName]*word        // of plugins, also of resources that are not offered: these may be offered again
	seen      map[device.ResourceName]bool         // resources that the View has
	tooMany   map[device.ResourceName]bool         // those of them with more devices than MaxDevices, as logged

	mu      locks.Mutex[locks.Leaf] // guards what follows
	failure error                   // why the slices may not show what they should; nil: they do
	places  map[device.ResourceName]map[device.ID]int
	dropped bool // the API server drops taints
}

// A publication is what the publisher remembers of one resource.
type publication struct {
	placed  map[device.ID]int // places of the devices that were listed before
	list    []device.Device   // the plugin's list that the describer has
	session uint64            // of the plugin then
	saving  *pace
	crowded bool // devices without a place have been logged
}

// errNotYet is the state before the first comparison.
var errNotYet = errors.New("the node's ResourceSlices have not been compared yet")

// New returns a Publisher; Run starts it.
func New(cfg PublisherConfig) *Publisher {
	if cfg.NodeName == "" || cfg.Client == nil || cfg.View == nil || cfg.Slices == nil || cfg.Claimed == nil || cfg.Node == nil || cfg.NodeChanged == nil || cfg.Order == nil || cfg.Places == nil || cfg.NodeUID == nil || cfg.MaxDevices == 0 || cfg.TooMany == nil || cfg.Log == nil || cfg.Metrics == nil {
		panic("dra: every field of PublisherConfig but Known, Sysfs and Procfs is required")
	}
	places := map[device.ResourceName]map[device.ID]int{}
	maps.Copy(places, cfg.Known)
	return &Publisher{
		cfg:       cfg,
		slices:    cfg.Slices,
		metrics:   newMetrics(cfg.Metrics, cfg.Slices.store),
		describer: newDescriber(cfg.Sysfs, cfg.Procfs),
		pools:     map[string]*pace{},
		resources: map[device.ResourceName]*publication{},
		words:     map[device.ResourceName]*word{},
		seen:      map[device.ResourceName]bool{},
		tooMany:   map[device.ResourceName]bool{},
		failure:   errNotYet,
		places:    places,
	}
}

// Run publishes until ctx ends, which is not an error. It leaves the slices in place.
func (p *Publisher) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.slices.watch.Run(ctx) })
	group.Go(func() error { p.publish(ctx); return nil })
	return group.Wait()
}

// Check returns nil while the slices show the View's devices as far as devmgrd knows, and otherwise the reason why they may not.
func (p *Publisher) Check() error {
	if err := p.slices.check(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}

// TaintsDropped reports whether the API server drops the taints of devices, as it does without the feature DRADeviceTaints, which is on
// by default from Kubernetes 1.36. Devices that no pod may be assigned are then left out of the slices.
func (p *Publisher) TaintsDropped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Pool returns the name of the pool in which a device is, or would be if its plugin listed it.
func (p *Publisher) Pool(r device.ResourceName, id device.ID) string {
	return PoolName(p.cfg.NodeName, r, p.saved(r)[id])
}

// saved returns the places of a resource's devices. They are replaced, never changed.
func (p *Publisher) saved(r device.ResourceName) map[device.ID]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.places[r]
}

// publish compares at every change, and writes what differs.
func (p *Publisher) publish(ctx context.Context) {
	for ctx.Err() == nil {
		updated := p.cfg.View.Updated() // before anything is read, so that no later change is missed
		var again time.Time
		if shown, known := p.slices.now(); known {
			again = p.compare(ctx, shown, updated)
			p.pause(ctx)
		}
		p.waitForChange(ctx, updated, again)
	}
}

// compare writes what is due, and returns when the next write is; zero: after the next change. A write may take seconds: what the View has changed
// meanwhile is in the next one.
func (p *Publisher) compare(ctx context.Context, shown map[string]*resourceapi.ResourceSlice, updated <-chan struct{}) (again time.Time) {
	if took(p.slices.relisted) {
		for _, pace := range p.pools {
			pace.until = time.Time{} // the API server is back
		}
	}
	want := p.want()
	shown = byPool(shown)
	keys := maps.Clone(want.slices)
	for key, slice := range shown {
		if want.removes(key, slice) {
			keys[key] = nil
		}
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		next := want.slices[key]
		if next == nil && (shown[key] == nil || !want.removes(key, shown[key])) {
			continue // the next comparison has it
		}
		due, written := p.settle(ctx, key, shown[key], next)
		if !written {
			again = loops.Earliest(again, due)
		}
		if ctx.Err() != nil {
			return time.Time{}
		}
		if written && took(updated) {
			updated = p.cfg.View.Updated()
			want = p.want()
		}
	}
	again = loops.Earliest(again, want.again)
	for key, pace := range p.pools { // of slices that are neither there nor wanted
		if keys[key] == nil && shown[key] == nil && time.Since(pace.written) > writeInterval {
			delete(p.pools, key)
		}
	}
	p.setFailure(want.err(p.pools, keys))
	return again
}

// byPool returns slices by their keys: the names of their pools, whose part before the slash is this node's. Another node may take any name of a slice, but
// not be the node of one in this list. Further slices of a pool have to go, and have their names, which have no slash.
func byPool(shown map[string]*resourceapi.ResourceSlice) map[string]*resourceapi.ResourceSlice {
	all := make(map[string]*resourceapi.ResourceSlice, len(shown))
	for _, name := range slices.Sorted(maps.Keys(shown)) {
		key := shown[name].Spec.Pool.Name
		if all[key] != nil {
			key = name
		}
		all[key] = shown[name]
	}
	return all
}

// settle makes one slice what it should be; want is nil if there should be none. It writes if that is due, and otherwise returns when
// it will be; zero: there is nothing to write.
func (p *Publisher) settle(ctx context.Context, key string, shown, want *resourceapi.ResourceSlice) (due time.Time, written bool) {
	pool := p.pools[key]
	if pool == nil {
		pool = newPace()
		p.pools[key] = pool
	}
	if shown != nil && want != nil && shown.Name == want.Name {
		pool.taken = time.Time{}
	}
	var v verb
	switch {
	case shown == nil && want == nil:
	case shown == nil:
		v = create
	case want == nil:
		v = remove
	case differs(shown, want):
		v = update
	}
	if v == "" {
		if want != nil {
			p.slices.share(shown, want)
		}
		pool.settled()
		return time.Time{}, false
	}
	now := time.Now()
	if due := pool.due(v); due.After(now) {
		return due, false
	}
	got, err := p.write(ctx, v, shown, want, pool.renames(now))
	switch {
	case err == nil:
		pool.succeeded(v, now)
	case v == update && apierrors.IsNotFound(err): // another client has removed it; the watch reports that later
		p.slices.missing(shown.Name, shown)
		return now, false
	case ctx.Err() != nil:
		return time.Time{}, false
	default:
		if v == create && apierrors.IsAlreadyExists(err) && pool.taken.IsZero() {
			pool.taken = now
		}
		pool.failed(err, now)
		return pool.until, false
	}
	if v != remove && lacksTaints(got, want) {
		p.setDropped()
		p.pools[key] = newPace() // the slice shows devices that no pod may be assigned without a taint: correct it at once
		return now, false
	}
	return time.Time{}, true
}

// write sends one request, and uses the answer as the newest version of the slice. renamed: the API server finds a name for a new one.
func (p *Publisher) write(ctx context.Context, v verb, shown, want *resourceapi.ResourceSlice, renamed bool) (got *resourceapi.ResourceSlice, err error) {
	var request *rest.Request
	name := ""
	switch v {
	case create:
		uid, known := p.cfg.NodeUID()
		if !known {
			return nil, fmt.Errorf("there is no Node named %s; the kubelet has to create it", p.cfg.NodeName)
		}
		controls := true
		next := want.DeepCopy()
		next.Spec.Pool.Generation = 1
		next.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: p.cfg.NodeName, UID: uid, Controller: &controls}}
		name = next.Name
		if renamed {
			next.GenerateName, next.Name = Driver+"-", ""
		}
		request = p.cfg.Client.Post().Resource("resourceslices").Body(next)
	case update:
		name = shown.Name
		request = p.cfg.Client.Put().Resource("resourceslices").Name(name).Body(updated(shown, want))
	case remove:
		name = shown.Name
		request = p.cfg.Client.Delete().Resource("resourceslices").Name(name)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	answer := request.Do(ctx)
	got = &resourceapi.ResourceSlice{}
	if v == remove {
		if err = answer.Error(); apierrors.IsNotFound(err) {
			err = nil
		}
	} else {
		err = answer.Into(got)
	}
	p.metrics.write(v, err)
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%s ResourceSlice %s: %w; devmgrd needs permission to create, update and delete resourceslices", doing[v], name, err)
	case err != nil:
		return nil, fmt.Errorf("%s ResourceSlice %s: %w", doing[v], name, err)
	case v == remove:
		p.slices.missing(name, shown)
	default:
		name = got.Name
		p.slices.observe(got)
	}
	level := slog.LevelInfo
	if v == update {
		level = slog.LevelDebug
	}
	p.cfg.Log.Log(ctx, level, "resource slice written", "verb", string(v), "slice", name, "devices", len(got.Spec.Devices))
	return got, nil
}

// A wanted is what the slices should be now.
type wanted struct {
	slices   map[string]*resourceapi.ResourceSlice // by pool
	keep     map[device.ResourceName]bool          // resources whose slices stay as they are
	complete bool                                  // every pod counts: slices that are not wanted may be removed
	errs     []error                               // of resources
	again    time.Time                             // when to ask again; zero: after the next change
}

// removes reports whether a slice that is not wanted has to go. A slice of another version of devmgrd may have another pool.
func (w wanted) removes(key string, shown *resourceapi.ResourceSlice) bool {
	return w.slices[key] == nil && w.complete && !w.keep[resourceOf(shown)]
}

// err returns why the slices are not what they should be.
func (w wanted) err(pools map[string]*pace, keys map[string]*resourceapi.ResourceSlice) error {
	errs := w.errs
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if pool := pools[key]; pool != nil && pool.err != nil {
			errs = append(errs, pool.err)
		}
	}
	return errors.Join(errs...)
}

// want asks the View. It saves new places first: a slice never shows a device in a pool that a restart would not find it in.
func (p *Publisher) want() wanted {
	w := wanted{slices: map[string]*resourceapi.ResourceSlice{}, keep: map[device.ResourceName]bool{}}
	resources := p.cfg.View.Resources()
	w.complete = resources.PodsListed
	devices := map[device.ResourceName][]device.DeviceStatus{}
	for r, status := range resources.ByName {
		p.seen[r] = true
		if !p.cfg.Claimed(r) || status.Offer == nil {
			p.endOffer(r)
			if status.Offer != nil && p.cfg.TooMany(r) {
				p.tellTooMany(r, len(status.Offer.Inventory.Devices))
			}
			continue
		}
		// The Node's number has to go before the first slice comes. From then on the slices follow the devices, also where another writer puts the number
		// back, and also if there was no slice for a while because the scheduler could choose no device.
		since, uncounted, known := p.cfg.Node.Uncounted(r)
		may, again := maySlice(since, uncounted, time.Now())
		if !known || !may && p.resources[r] == nil && !p.slices.shown(r) {
			w.keep[r], w.again = true, loops.Earliest(w.again, again)
			continue
		}
		if of, known := p.cfg.View.Devices(r); known && status.Offer.Reported && w.complete {
			devices[r] = of
		} else {
			w.keep[r] = true // the plugin has not listed its devices yet, or the pods are not known that may be assigned them
		}
	}
	if w.complete {
		p.forgetOthers(resources)
	}
	for _, r := range slices.Sorted(maps.Keys(devices)) {
		p.add(&w, r, *resources.ByName[r].Offer, devices[r])
	}
	return w
}

// add adds the slices of one resource.
func (p *Publisher) add(w *wanted, r device.ResourceName, offer device.Offer, devices []device.DeviceStatus) {
	of, known := p.resources[r]
	if !known {
		of = &publication{saving: newPace()}
		p.resources[r] = of
	}
	said := p.words[r]
	if said == nil {
		said = &word{}
		p.words[r] = said
	}
	devices, lost, again := said.take(devices, offer.State == device.Lost, time.Now())
	w.again = loops.Earliest(w.again, again)
	// Not while the word rests: a device that the plugin lists again by then has been away, and is described afresh.
	if again.IsZero() && (!known || of.session != offer.Session || !device.SameList(of.list, offer.Inventory.Devices)) {
		p.describer.relist(r, devices, of.session != offer.Session)
		of.session, of.list = offer.Session, offer.Inventory.Devices
	}
	saved := p.saved(r)
	out, err := show(input{
		node: p.cfg.NodeName, resource: r, devices: devices, lost: lost, saved: saved, placed: of.placed,
		order: p.cfg.Order(r), untaint: p.TaintsDropped(), most: p.cfg.MaxDevices, attributes: p.describer.of,
	})
	if err != nil {
		p.tellTooMany(r, listed(devices)) // it is about to return to the Node's capacity
		return
	}
	delete(p.tooMany, r)
	if !maps.Equal(saved, out.saved) {
		now := time.Now()
		if of.saving.until.After(now) {
			err = of.saving.err
		} else if err = p.cfg.Places.SavePlaces(r, out.saved); err != nil {
			of.saving.failed(err, now)
		}
		if err != nil {
			w.keep[r], w.again = true, loops.Earliest(w.again, of.saving.until)
			w.errs = append(w.errs, fmt.Errorf("saving the places of the devices of %s: %w", r, err))
			return
		}
		of.saving.succeeded(update, now)
		p.setPlaces(r, out.saved)
	}
	of.placed = out.placed
	if out.homeless > 0 && !of.crowded {
		p.cfg.Log.Warn("devices left out of resource slices: too many have one name", "resource", r, "devices", out.homeless, "limit", maxNamesakes)
	}
	of.crowded = out.homeless > 0
	for _, slice := range out.slices {
		w.slices[slice.Spec.Pool.Name] = slice
	}
}

// tellTooMany logs that a resource has too many devices, until it is offered again.
func (p *Publisher) tellTooMany(r device.ResourceName, n int) {
	if !p.tooMany[r] {
		p.tooMany[r] = true
		p.cfg.Log.Warn("resource stays in the Node's capacity: more devices than dra.maxDevices allows", "resource", r, "devices", n, "dra.maxDevices", p.cfg.MaxDevices)
	}
}

// endOffer forgets a resource that is not offered, except the places of its devices and the pace of its plugin's word: to be offered again is a change of
// that.
func (p *Publisher) endOffer(r device.ResourceName) {
	delete(p.resources, r)
	if said := p.words[r]; said != nil {
		said.devices = nil
	}
	p.describer.forget(r)
}

// forgetOthers forgets the resources that the View no longer has: their places have been removed from the state file.
func (p *Publisher) forgetOthers(resources device.Resources) {
	for r := range p.seen {
		if _, there := resources.ByName[r]; !there {
			delete(p.seen, r)
			delete(p.tooMany, r)
			delete(p.words, r)
			p.endOffer(r)
			p.setPlaces(r, nil)
		}
	}
}

// waitForChange waits until the slices, the View or the offered resources have changed, or until a time; zero: no limit.
func (p *Publisher) waitForChange(ctx context.Context, updated <-chan struct{}, until time.Time) {
	over := loops.At(until)
	select {
	case <-over:
	case <-p.slices.changed:
	case <-updated:
	case <-p.cfg.NodeChanged:
	case <-ctx.Done():
	}
}

// pause waits for lookInterval, or until another client has removed a slice.
func (p *Publisher) pause(ctx context.Context) {
	select {
	case <-time.After(lookInterval):
	case <-p.slices.removed:
	case <-ctx.Done():
	}
}

// took takes a token if there is one.
func took(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (p *Publisher) setPlaces(r device.ResourceName, saved map[device.ID]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(saved) == 0 {
		delete(p.places, r)
		return
	}
	p.places[r] = saved
}

// setDropped records that the API server drops taints, and logs it once.
func (p *Publisher) setDropped() {
	p.mu.Lock()
	before := p.dropped
	p.dropped = true
	p.mu.Unlock()
	if !before {
		p.cfg.Log.Warn("device taints dropped by API server")
	}
}

// setFailure records whether the slices are what they should be, and logs a change.
func (p *Publisher) setFailure(err error) {
	p.mu.Lock()
	before := p.failure
	p.failure = err
	p.mu.Unlock()
	switch {
	case err != nil && (before == nil || errors.Is(before, errNotYet)):
		p.cfg.Log.Warn("cannot publish resource slices", "err", err)
	case err == nil && before != nil && !errors.Is(before, errNotYet):
		p.cfg.Log.Info("resource slices published again")
	}
}
