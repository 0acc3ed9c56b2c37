package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

const (
	// minPatchInterval is the least time between two patches. A burst of changes becomes one patch, and a rival writer cannot
	// cause a storm of patches.
	minPatchInterval = 200 * time.Millisecond
	// patchEvery is the least time between two patches in the long run, after mostPatches: a plugin may change its list all the time. The kubelet reports
	// its status every 10 s.
	patchEvery  = 6 * time.Second
	mostPatches = 60
	// lookShare is the rest after a look at all resources, as a multiple of its time, and lastLook the longest: pods and plugins choose how many resources
	// there are, and how often they change.
	lookShare = 10
	lastLook  = 5 * time.Second
	// slicesInterval is how often the publisher looks whether a resource is still in ResourceSlices.
	slicesInterval = 200 * time.Millisecond
	// kubeletInterval is how often it looks whether the kubelet still manages a resource. The kubelet's last change of the Node mostly comes first.
	kubeletInterval = 5 * time.Second
	patchTimeout    = 10 * time.Second
	lastPatch       = 2 * time.Second // the patch at the end of Run
	firstRetry      = 200 * time.Millisecond
	lastRetry       = 10 * time.Second
)

// A View is the source of the published capacity.
type View interface {
	Resources() device.Resources
	// Updated returns a channel that is closed when Resources have changed since the call.
	Updated() <-chan struct{}
	// ResourcesRemoved reports that the Node shows none of these. After an error the View returns them as retired again.
	ResourcesRemoved([]device.ResourceName) error
}

// Notifier reports the node's problems to its owners. Its methods return at once.
type Notifier interface {
	// Contested reports that another writer keeps changing the Node's capacity of a resource, or that the kubelet's device manager has it too.
	Contested(device.ResourceName)
	// InvalidCordons reports that the Node's annotation has a mistake.
	InvalidCordons(error)
}

// Config is what New needs. Every field but Began, Expected, KubeletManages, Claimed, Slices, Uncounted and Forgotten is required; SaveUncounted only with Claimed.
type Config struct {
	NodeName string
	Began    time.Time      // when devmgrd started; zero: long ago
	Client   rest.Interface // core/v1
	View     View
	Notifier Notifier
	Cordons  Cordons
	// Components returns devmgrd's components, for the Node's condition.
	Components func() []device.Component
	Expected   map[device.ResourceName]int // how many devices this node should have; may be nil
	// Ignored reports which resources devmgrd does not manage: they are not removed from the Node either.
	Ignored func(device.ResourceName) bool
	// KubeletManages returns the resources that the kubelet's own device manager has: it fails new pods that request them. nil: none.
	KubeletManages func() map[device.ResourceName]bool
	// Claimed reports which resources are offered through claims: the Node must not show them. A value of 0 would not do: at its start a
	// kubelet fails pods that count against it. nil: none is.
	Claimed func(device.ResourceName) bool
	Slices  Slices // nil: devmgrd writes none
	// Uncounted has when each claimed resource was taken off the Node, before devmgrd's start. Forgotten is that time for resources of which a lost state file may
	// have had one; zero: none was lost. SaveUncounted makes such times durable.
	Uncounted     map[device.ResourceName]time.Time
	Forgotten     time.Time
	SaveUncounted func(resources []device.ResourceName, now time.Time) error
	KubeletDir    string // the kubelet's plugin directory, which keepPlaceholder keeps from being empty
	Log           *slog.Logger
	Metrics       prometheus.Registerer
}

// A Publisher keeps the capacity of devmgrd's Node up to date.
type Publisher struct {
	cfg        Config
	store      *store
	watch      *kube.Watch
	metrics    *metrics
	contention *contention

	mu       locks.Mutex[locks.Publisher] // guards what follows
	failure  error                        // why the Node may not show what it should; nil: it does
	expected map[device.ResourceName]int  // replaced, never edited: the values that follow withdrawn ones
	// uncounted is when devmgrd last took a claimed resource off the Node; none: the Node has never shown it.
	uncounted map[device.ResourceName]time.Time
}

// errNotYet is the state before the first comparison.
var errNotYet = errors.New("the node's capacity has not been compared yet")

// New returns a Publisher; Run starts it.
func New(cfg Config) *Publisher {
	if cfg.NodeName == "" || cfg.Client == nil || cfg.View == nil || cfg.Notifier == nil || cfg.Cordons == nil || cfg.Components == nil || cfg.Ignored == nil || cfg.KubeletDir == "" || cfg.Log == nil || cfg.Metrics == nil {
		panic("nodestatus: every field of Config but Began, Expected, KubeletManages, Claimed, Slices, Uncounted and Forgotten is required")
	}
	if cfg.Slices == nil {
		cfg.Slices = noSlices{}
	}
	if cfg.KubeletManages == nil {
		cfg.KubeletManages = func() map[device.ResourceName]bool { return nil }
	}
	if cfg.Claimed == nil {
		cfg.Claimed = func(device.ResourceName) bool { return false }
	}
	if cfg.Uncounted == nil {
		cfg.Uncounted = map[device.ResourceName]time.Time{}
	}
	s := newStore()
	v := &contention{now: time.Now}
	return &Publisher{
		cfg:        cfg,
		store:      s,
		failure:    errNotYet,
		contention: v,
		uncounted:  maps.Clone(cfg.Uncounted),
		metrics:    newMetrics(cfg.Metrics, s, cfg.View, v),
		watch: kube.NewWatch(kube.WatchConfig{
			Name:     "this node",
			Client:   cfg.Client,
			Resource: "nodes",
			Selector: fields.OneTermEqualSelector("metadata.name", cfg.NodeName),
			New:      func() (object, list runtime.Object) { return &corev1.Node{}, &corev1.NodeList{} },
			Store:    s,
			Log:      cfg.Log,
		}),
	}
}

// Run publishes until ctx ends, which is not an error. It leaves the published capacity in place.
func (p *Publisher) Run(ctx context.Context) error {
	if err := keepPlaceholder(p.cfg.KubeletDir); err != nil {
		p.cfg.Log.Warn("cannot write placeholder into kubelet's plugin directory", "dir", p.cfg.KubeletDir, "err", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.watch.Run(ctx) })
	group.Go(func() error { p.publish(ctx); return nil })
	group.Go(func() error { p.publishConditions(ctx); return nil })
	group.Go(func() error { p.followCordons(ctx); return nil })
	return group.Wait()
}

// Check returns nil while the Node shows the View's capacity as far as devmgrd knows, and otherwise the reason why it may
// not.
func (p *Publisher) Check() error {
	if err := p.watch.Check(); err != nil {
		return err
	}
	if all := p.contention.contested(); len(all) > 0 {
		return fmt.Errorf("another writer keeps changing the node's capacity of %v: a device plugin is also registered with the kubelet, or another program writes the capacity", all)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}

// publish decides at every change, and writes what has been decided.
func (p *Publisher) publish(ctx context.Context) {
	changed := p.store.follow()
	retry := loops.Backoff{First: firstRetry, Last: lastRetry}
	decider := newDecider()
	doubt := false                          // a patch has failed, and may have been carried out all the same
	logged := map[device.ResourceName]int{} // the value last logged for each resource
	patches := rate.NewLimiter(rate.Every(patchEvery), mostPatches)
	defer func() { p.restore(ctx, decider) }()
	for ctx.Err() == nil {
		began := time.Now()
		updated := p.cfg.View.Updated() // before anything is read, so that no later change is missed
		resources := p.cfg.View.Resources()
		node, known := p.store.now()
		capacity, claimed := p.split(resources.Capacity(), node, decider)
		now := situation{began: p.cfg.Began, listed: resources.PodsListed, capacity: capacity, certain: certainOf(resources), requested: resources.Requested()}
		switch {
		case !known:
			p.waitForChange(ctx, updated, changed, time.Time{})
			continue
		case !node.there:
			decider.forget()
			p.expect(nil)
			p.setFailure(fmt.Errorf("there is no Node named %s; the kubelet has to create it", p.cfg.NodeName))
			p.waitForChange(ctx, updated, changed, time.Time{})
			continue
		}
		now.node = node
		sliced := p.awaitSlices(now.capacity, node, decider.withdrawn)
		now.shared = p.sharedWithKubelet(now.capacity, p.cfg.KubeletManages())
		var retired []device.ResourceName
		if now.listed {
			retired = resources.Retired
			now.retired = slices.DeleteFunc(slices.Concat(retired, claimed), p.cfg.Ignored)
		}
		at := time.Now()
		now.back = p.watch.Back(at)
		next := decider.decide(now, at)
		rest := min(lookShare*time.Since(began), lastLook)
		if sliced {
			next.again = loops.Earliest(next.again, at.Add(slicesInterval))
		}
		if len(now.shared) > 0 {
			next.again = loops.Earliest(next.again, at.Add(kubeletInterval))
		}
		for _, r := range next.overwritten {
			if !now.shared[r] { // has been reported
				p.reportContention(r, next.want[r], node)
			}
		}
		p.expect(decider.following(next.want))
		switch {
		case next.settled && doubt: // as of a state of before the patch
			if err := p.look(ctx); err != nil {
				p.setFailure(err)
				p.pause(ctx, retry.Next(), p.store.relisted)
				continue
			}
			doubt = false
		case next.settled:
			logged = next.want
			retry.Reset()
			p.setFailure(errors.Join(p.confirmRemoved(retired), p.recordForgotten(claimed)))
			p.pause(ctx, rest, nil)
			p.waitForChange(ctx, updated, changed, next.again)
		case len(next.patch) == 0:
			p.pause(ctx, rest, nil)
			p.waitForChange(ctx, updated, changed, next.again)
		default:
			uncounted := removed(next.patch, claimed)
			err := p.saveUncounted(uncounted, time.Now()) // durable before the patch: pods that the scheduler binds by the number keep their right to devices
			if err == nil {
				err = p.write(ctx, next.patch)
			}
			if err != nil {
				doubt = true
				p.setFailure(err)
				p.pause(ctx, retry.Next(), p.store.relisted)
				continue
			}
			doubt = false // the answer has the newest state
			decider.patched(next.patch)
			if err := p.postponeUncounted(uncounted); err != nil {
				p.setFailure(err)
			}
			p.logQuantities(next.patch, logged)
			p.pause(ctx, max(minPatchInterval, patches.Reserve().Delay()), nil)
		}
	}
}

// Follow returns a channel that has a value when Uncounted may return something else. Each reader needs one of its own.
func (p *Publisher) Follow() <-chan struct{} { return p.store.follow() }

// NodeUID returns the UID of the Node; false: it is not known.
func (p *Publisher) NodeUID() (types.UID, bool) {
	node, _ := p.store.now()
	return node.uid, node.uid != ""
}

// confirmRemoved reports to the View that the Node no longer shows its retired resources.
func (p *Publisher) confirmRemoved(retired []device.ResourceName) error {
	if len(retired) == 0 {
		return nil
	}
	if err := p.cfg.View.ResourcesRemoved(retired); err != nil {
		return fmt.Errorf("recording that the node no longer shows %v: %w", retired, err)
	}
	p.mu.Lock()
	for _, r := range retired {
		delete(p.uncounted, r) // the state file has dropped it already
	}
	p.mu.Unlock()
	p.cfg.Log.Info("forgotten resources removed from node", "resources", retired)
	return nil
}

// Shown returns the Node's value of a resource. While the resource is off the Node on its way to a lower value, Shown returns
// that lower value. shown is false if there is no value, or the resource is ignored.
func (p *Publisher) Shown(r device.ResourceName) (n int, shown bool) {
	if p.cfg.Ignored(r) {
		return 0, false
	}
	p.mu.Lock() // before reading the Node: expected is set before the value is removed
	defer p.mu.Unlock()
	if seen, _ := p.store.now(); seen.shows(r) {
		return seen.allocatable[r], true
	}
	n, shown = p.expected[r]
	return n, shown
}

// expect records the values that will follow withdrawn ones.
func (p *Publisher) expect(values map[device.ResourceName]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = values
}

// restore writes, at the end, the values that have just been withdrawn from the Node.
func (p *Publisher) restore(ctx context.Context, d *decider) {
	node, _ := p.store.now()
	if !node.there {
		return
	}
	resources, now := p.cfg.View.Resources(), time.Now()
	capacity, _ := p.split(resources.Capacity(), node, d)
	patch := d.last(situation{
		node: node, capacity: capacity, certain: certainOf(resources), requested: resources.Requested(), listed: resources.PodsListed, shared: p.contention.shared(), began: p.cfg.Began, back: p.watch.Back(now),
	}, now)
	if len(patch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastPatch)
	defer cancel()
	if err := p.write(ctx, patch); err != nil {
		p.cfg.Log.Warn("cannot restore node capacity before exit", "err", err)
	}
}

// waitForChange waits until the Node or the View has changed, or until a time; zero: no limit.
func (p *Publisher) waitForChange(ctx context.Context, updated, changed <-chan struct{}, until time.Time) {
	over := loops.At(until)
	sliceable := p.cfg.Slices.Writable()
	if p.sliceable() {
		sliceable = nil
	}
	select {
	case <-over:
	case <-changed:
	case <-updated:
	case <-sliceable:
	case <-ctx.Done():
	}
}

// pause waits for d, or until early has a token. Nothing else shortens the pause: a patch without effect makes the Node
// change each time.
func (p *Publisher) pause(ctx context.Context, d time.Duration, early <-chan struct{}) {
	if d <= 0 { // a timer without time may end the process in testing/synctest with the race detector (Go 1.26.8: runtime.maybeRunChan)
		return
	}
	select {
	case <-time.After(d):
	case <-early:
	case <-ctx.Done():
	}
}

// logQuantities logs each value that differs from the one last logged.
func (p *Publisher) logQuantities(written quantities, logged map[device.ResourceName]int) {
	for r, n := range written {
		if n == nil {
			p.cfg.Log.Debug("resource removed from node", "resource", r)
			continue
		}
		if was, known := logged[r]; !known || was != *n {
			p.cfg.Log.Info("published node capacity", "resource", r, "number", *n)
		}
		logged[r] = *n
	}
}

// reportContention records that another writer has changed a value. The first changes are warnings; if they continue, devmgrd
// raises an alarm.
func (p *Publisher) reportContention(r device.ResourceName, ours int, seen nodeState) {
	fields := []any{"resource", r, "ours", ours, "capacity", seen.capacity[r], "allocatable", seen.allocatable[r]}
	switch times := p.contention.record(r); {
	case times < contentionLimit:
		p.cfg.Log.Warn("node capacity changed by another writer", fields...)
	case times == contentionLimit:
		p.cfg.Log.Error("another writer keeps changing node capacity", fields...)
		p.cfg.Notifier.Contested(r)
	}
}

// write sends one patch of quantities.
func (p *Publisher) write(ctx context.Context, next quantities) error {
	body, err := patch(next)
	if err != nil {
		return err
	}
	return p.send(ctx, partCapacity, types.MergePatchType, body, next)
}

// look reads the Node from the API server.
func (p *Publisher) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	var list corev1.NodeList
	if err := p.cfg.Client.Get().Resource("nodes").Param("fieldSelector", "metadata.name="+p.cfg.NodeName).Do(ctx).Into(&list); err != nil {
		return fmt.Errorf("reading node %s: %w", p.cfg.NodeName, err)
	}
	for i := range list.Items {
		p.store.observe(nodeStateOf(&list.Items[i]))
	}
	return nil
}

// send sends one patch, and uses the answer as the newest state of the Node, which must show these quantities.
func (p *Publisher) send(ctx context.Context, part string, kind types.PatchType, body []byte, next quantities) error {
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	node := &corev1.Node{}
	err := p.cfg.Client.Patch(kind).Resource("nodes").Name(p.cfg.NodeName).SubResource("status").
		Body(body).Do(ctx).Into(node)
	p.metrics.patch(part, err)
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("patching the status of node %s: %w; devmgrd needs permission to patch nodes/status", p.cfg.NodeName, err)
	case err != nil:
		return fmt.Errorf("patching the status of node %s: %w", p.cfg.NodeName, err)
	}
	seen := nodeStateOf(node)
	if left := seen.lacks(next); left > 0 {
		return fmt.Errorf("patching the status of node %s: the API server accepted the patch and left %d quantities unchanged", p.cfg.NodeName, left)
	}
	p.store.observe(seen)
	return nil
}

// setFailure records whether the Node shows the capacity, and logs a change.
func (p *Publisher) setFailure(err error) {
	p.mu.Lock()
	before := p.failure
	p.failure = err
	p.mu.Unlock()
	switch {
	case err != nil && (before == nil || errors.Is(before, errNotYet)):
		p.cfg.Log.Warn("cannot publish node capacity", "err", err)
	case err == nil && before != nil && !errors.Is(before, errNotYet):
		p.cfg.Log.Info("node capacity published again")
	}
}

const (
	placeholderFile = "devmgrd.txt"
	placeholderText = "devmgrd keeps this file here so that the kubelet does not find this directory empty when it starts.\n" +
		"An empty directory makes the kubelet set the node's extended resources to zero (kubernetes/kubernetes issue 126943).\n"
)

// keepPlaceholder keeps the kubelet's plugin directory from being empty. When a kubelet registers its node and finds only
// names with a leading dot there, it takes the node for a new one and sets capacity and allocatable of all extended resources
// to zero, whichever component published them; running pods would then fail (kubernetes/kubernetes issue 126943). The
// placeholder is a plain file, because at its start the kubelet deletes only sockets. A failure is logged and has no other
// effect, because the reset also requires a late container runtime.
func keepPlaceholder(dir string) error {
	if _, err := shareddir.Make(dir, 0o755); err != nil {
		return err
	}
	d, err := shareddir.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	err = d.CreateFile(placeholderFile, []byte(placeholderText), 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
