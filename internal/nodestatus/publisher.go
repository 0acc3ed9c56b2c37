package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/devmgrd/devmgrd/internal/backoff"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
)

const (
	// minPatchInterval is the least time between two patches. A burst of changes becomes one patch, and somebody who fights for
	// the numbers cannot draw us into a storm.
	minPatchInterval = 200 * time.Millisecond
	// withdrawDelay is how long a number is off the Node before a lower one is on it: so long may a pod be on its way from the
	// scheduler's decision to the kubelet's.
	withdrawDelay = time.Second
	patchTimeout  = 10 * time.Second
	lastPatch     = 2 * time.Second // of one at the end
	firstRetry    = 200 * time.Millisecond
	lastRetry     = 10 * time.Second
)

// A View tells what the Node should show.
type View interface {
	// Capacity gives the number of devices per resource, for capacity and allocatable alike.
	Capacity() map[device.ResourceName]int
	// Requested returns what the pods bound to the node ask for of each of these resources, also before the kubelet admits them.
	Requested() map[device.ResourceName]int
	// PodsListed tells whether every pod bound to the node is counted in Published. Once true it stays true.
	PodsListed() bool
	// Retired gives resources that the Node is not to show any more, if it does. None of them is in Published.
	Retired() []device.ResourceName
	// ResourcesRemoved tells that it shows none of these. With an error the View asks for them again.
	ResourcesRemoved([]device.ResourceName) error
	// CapacityChanged holds one token when the numbers, or Complete, may have changed since the last look.
	CapacityChanged() <-chan struct{}
}

// Notifier tells the owners of the node what is wrong with it. Its methods return at once.
type Notifier interface {
	// Contested tells that somebody else keeps changing the Node's number of a resource.
	Contested(device.ResourceName)
}

// Config is what New needs. Every field is required.
type Config struct {
	NodeName string
	Client   rest.Interface // core/v1
	View     View
	Notifier Notifier
	// Ignored tells which resources are none of ours: they are not taken off the Node either.
	Ignored    func(device.ResourceName) bool
	KubeletDir string // the plugin directory of the kubelet, which is kept from being empty
	Log        *slog.Logger
	Metrics    prometheus.Registerer
}

// Publisher keeps our Node's numbers.
type Publisher struct {
	cfg        Config
	store      *store
	watch      *kube.Watch
	metrics    *metrics
	contention *contention

	mu       sync.Mutex                  // guards what follows
	failure  error                       // why the Node may not show what it should; nil: it does
	expected map[device.ResourceName]int // replaced, never edited: what comes back of the numbers that are withdrawn
}

// errNotYet is the state before the first comparison.
var errNotYet = errors.New("the node's capacity has not been compared yet")

// New makes a Publisher; Run starts it.
func New(cfg Config) *Publisher {
	if cfg.NodeName == "" || cfg.Client == nil || cfg.View == nil || cfg.Notifier == nil || cfg.Ignored == nil || cfg.KubeletDir == "" || cfg.Log == nil || cfg.Metrics == nil {
		panic("nodestatus: every field of Config is required")
	}
	s := newStore()
	v := &contention{now: time.Now}
	return &Publisher{
		cfg:        cfg,
		store:      s,
		failure:    errNotYet,
		contention: v,
		metrics:    newMetrics(cfg.Metrics, s, cfg.View, v),
		watch: kube.NewWatch(kube.WatchConfig{
			Name:     "this node",
			Client:   cfg.Client,
			Resource: "nodes",
			Selector: fields.OneTermEqualSelector("metadata.name", cfg.NodeName),
			New:      newObjects,
			Store:    s,
			Log:      cfg.Log,
		}),
	}
}

// Run publishes until ctx ends, which is not an error. It leaves the numbers as they are.
func (p *Publisher) Run(ctx context.Context) error {
	keepPlaceholder(p.cfg.KubeletDir, p.cfg.Log)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.watch.Run(ctx) })
	group.Go(func() error { p.publish(ctx); return nil })
	return group.Wait()
}

// Check gives nil while the Node shows the View's numbers as far as anybody can know, else the reason why it may not.
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

// publish compares at every change and writes what differs.
func (p *Publisher) publish(ctx context.Context) {
	retry := backoff.Backoff{First: firstRetry, Last: lastRetry}
	stable := stabilizers{}
	ours := quantities{}                             // what our patches have made of the Node
	peaks := peaks{}                                 // what the scheduler may have seen
	logged := map[device.ResourceName]int{}          // the last number of each resource in the log
	withdrawn := map[device.ResourceName]time.Time{} // what has been taken off the Node, and when
	defer func() { p.restore(ctx, stable, peaks, withdrawn) }()
	for ctx.Err() == nil {
		complete := p.cfg.View.PodsListed() // asked first: what is published later counts all that it promises
		want := p.cfg.View.Capacity()
		seen, known := p.store.now()
		switch {
		case !known:
			p.waitForChange(ctx, time.Time{})
			continue
		case !seen.there: // a kubelet creates it without our numbers, and is no rival for that
			clear(stable)
			clear(peaks)
			clear(ours)
			clear(withdrawn)
			p.expect(nil, nil)
			p.setFailure(fmt.Errorf("there is no Node named %s; the kubelet has to create it", p.cfg.NodeName))
			p.waitForChange(ctx, time.Time{})
			continue
		}
		var retired []device.ResourceName
		if complete {
			retired = p.cfg.View.Retired()
		} else {
			want = seen.raised(want)
		}
		peaks.observe(seen, ours, time.Now())
		want, again := stable.next(peaks.hold(want, p.cfg.View.Requested()), seen, time.Now())
		for _, r := range seen.overwritten(ours) {
			delete(ours, r) // until it is ours again
			if n, wanted := want[r]; wanted {
				p.reportContention(r, n, seen)
			}
		}
		diff := seen.differences(want)
		left := slices.DeleteFunc(seen.shown(retired), p.cfg.Ignored)
		if len(diff) == 0 && len(left) == 0 {
			for r, n := range want {
				ours[r], logged[r] = &n, n
			}
			clear(withdrawn)
			p.expect(nil, nil)
			retry.Reset()
			p.setFailure(p.confirmRemoved(retired))
			p.waitForChange(ctx, again)
			continue
		}
		next, rest := seen.step(diff, func(r device.ResourceName) time.Duration { return time.Until(withdrawn[r].Add(withdrawDelay)) })
		for _, r := range left {
			next[r] = nil
		}
		for r, n := range next {
			if delete(ours, r); n == nil { // noted before the patch, whose answer may be lost
				withdrawn[r] = time.Now()
			}
		}
		p.expect(withdrawn, want)
		if len(next) == 0 {
			p.waitForChange(ctx, earliest(time.Now().Add(rest), again))
			continue
		}
		if err := p.write(ctx, next); err != nil {
			p.setFailure(err)
			p.pause(ctx, retry.Next(), p.store.relisted)
			continue
		}
		maps.Copy(ours, next)
		for r, n := range next {
			if n != nil {
				delete(withdrawn, r)
			}
		}
		p.logQuantities(next, logged)
		p.pause(ctx, minPatchInterval, nil)
	}
}

// confirmRemoved tells the View which of its retired resources the Node shows no more.
func (p *Publisher) confirmRemoved(retired []device.ResourceName) error {
	if len(retired) == 0 {
		return nil
	}
	if err := p.cfg.View.ResourcesRemoved(retired); err != nil {
		return fmt.Errorf("recording that the node no longer shows %v: %w", retired, err)
	}
	p.cfg.Log.Info("forgotten resources removed from node", "resources", retired)
	return nil
}

// Shown returns the number that the Node shows of a resource. While the number is off the Node on its way to a lower one,
// that is the lower one. shown is false if there is no number, or the resource is ignored.
func (p *Publisher) Shown(r device.ResourceName) (n int, shown bool) {
	if p.cfg.Ignored(r) {
		return 0, false
	}
	p.mu.Lock() // before the look at the Node: what is expected is noted before the number goes
	defer p.mu.Unlock()
	if seen, _ := p.store.now(); seen.shows(r) {
		return seen.allocatable[r], true
	}
	n, shown = p.expected[r]
	return n, shown
}

// expect notes the numbers that will follow those that are withdrawn.
func (p *Publisher) expect(withdrawn map[device.ResourceName]time.Time, want map[device.ResourceName]int) {
	expected := map[device.ResourceName]int{}
	for r := range withdrawn {
		if n, wanted := want[r]; wanted {
			expected[r] = n
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = expected
}

// restore puts back, at the end, what has been taken off the Node a moment ago.
func (p *Publisher) restore(ctx context.Context, stable stabilizers, peaks peaks, withdrawn map[device.ResourceName]time.Time) {
	want, _ := stable.next(peaks.hold(p.cfg.View.Capacity(), p.cfg.View.Requested()), nodeState{}, time.Now())
	next := quantities{}
	for r, n := range want {
		if _, off := withdrawn[r]; off {
			next[r] = &n
		}
	}
	if len(next) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastPatch)
	defer cancel()
	if err := p.write(ctx, next); err != nil {
		p.cfg.Log.Warn("cannot restore node capacity before exit", "err", err)
	}
}

// waitForChange waits until the Node or the View has changed, or until a time; zero: none.
func (p *Publisher) waitForChange(ctx context.Context, until time.Time) {
	var over <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
	case <-p.store.changed:
	case <-p.cfg.View.CapacityChanged():
	case <-ctx.Done():
	}
}

// earliest returns the earlier of two times; zero is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// pause waits for d, or until there is word on early. Nothing else shortens it: a patch that does not have its effect
// makes the Node change each time.
func (p *Publisher) pause(ctx context.Context, d time.Duration, early <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-early:
	case <-ctx.Done():
	}
}

// logQuantities logs each number that differs from the last one in the log.
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

// reportContention notes that another writer has changed our number. Once is worth a warning; if it goes on, an alarm.
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

// write sends one patch and takes the answer for the newest state of the Node.
func (p *Publisher) write(ctx context.Context, next quantities) error {
	body, err := patch(next)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	node, _ := newObjects()
	err = p.cfg.Client.Patch(types.MergePatchType).Resource("nodes").Name(p.cfg.NodeName).SubResource("status").
		Body(body).Do(ctx).Into(node)
	p.metrics.patch(err)
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("patching the status of node %s: %w; devmgrd needs permission to patch nodes/status", p.cfg.NodeName, err)
	case err != nil:
		return fmt.Errorf("patching the status of node %s: %w", p.cfg.NodeName, err)
	}
	seen, ok := nodeStateOf(node)
	if !ok {
		return fmt.Errorf("patching the status of node %s: the answer is not a Node", p.cfg.NodeName)
	}
	if left := seen.lacks(next); left > 0 {
		return fmt.Errorf("patching the status of node %s: the API server accepted the patch and left %d quantities unchanged", p.cfg.NodeName, left)
	}
	p.store.observe(seen)
	return nil
}

// setFailure takes down whether the Node shows the numbers, and says so when that has changed.
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
