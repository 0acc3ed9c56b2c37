package nodestatus

import (
	"fmt"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The Node's part of a resource's move to ResourceSlices and back: the steps and their order are in internal/dra/move.go.

// Slices are devmgrd's ResourceSlices of this node.
type Slices interface {
	// Writable returns a channel that is closed once they can be written: until then claimed resources that the Node shows stay there, and count.
	Writable() <-chan struct{}
	// Sliced reports whether the scheduler may still choose devices of a resource from them: the Node shows no value of it before that has ended.
	Sliced(device.ResourceName) bool
}

// noSlices are those of a node on which devmgrd writes none.
type noSlices struct{}

func (noSlices) Writable() <-chan struct{} {
	at := make(chan struct{})
	close(at)
	return at
}

func (noSlices) Sliced(device.ResourceName) bool { return false }

// split returns the capacity without resources that are offered through claims, and these. Those that the Node shows stay in the capacity until
// ResourceSlices can be written.
func (p *Publisher) split(capacity map[device.ResourceName]int, node nodeState, d *decider) (counted map[device.ResourceName]int, claimed []device.ResourceName) {
	for r := range capacity {
		_, falls := d.withdrawn[r]
		if p.cfg.Claimed(r) && (p.sliceable() || !node.shows(r) && !falls) {
			delete(capacity, r)
			claimed = append(claimed, r)
		}
	}
	slices.Sort(claimed)
	return capacity, claimed
}

// sliceable reports whether ResourceSlices can be written.
func (p *Publisher) sliceable() bool {
	select {
	case <-p.cfg.Slices.Writable():
		return true
	default:
		return false
	}
}

// awaitSlices removes from the capacity what the Node does not show and the slices show still, and reports whether there is any. The scheduler
// does not count claims of pods' authors as requests: a value that does not leave out their devices would promise them twice. What devmgrd has
// withdrawn on the way to a lower value comes back in its time.
func (p *Publisher) awaitSlices(capacity map[device.ResourceName]int, node nodeState, withdrawn map[device.ResourceName]time.Time) (sliced bool) {
	for r := range capacity {
		if _, own := withdrawn[r]; !own && !node.shows(r) && p.cfg.Slices.Sliced(r) {
			delete(capacity, r)
			sliced = true
		}
	}
	return sliced
}

// removed returns the claimed resources that a patch takes off the Node.
func removed(patch quantities, claimed []device.ResourceName) (all []device.ResourceName) {
	for _, r := range claimed {
		if n, written := patch[r]; written && n == nil {
			all = append(all, r)
		}
	}
	return all
}

// postponeUncounted records when resources were taken off the Node by the API server's clock, if that is later: it dates pods, and this node's clock may be
// behind.
func (p *Publisher) postponeUncounted(all []device.ResourceName) error {
	node, _ := p.store.now()
	p.mu.Lock()
	all = slices.DeleteFunc(slices.Clone(all), func(r device.ResourceName) bool { return !node.written.After(p.uncounted[r]) })
	p.mu.Unlock()
	return p.saveUncounted(all, node.written)
}

// recordForgotten records when claimed resources may have been taken off the Node of which the lost state file had a record.
func (p *Publisher) recordForgotten(claimed []device.ResourceName) error {
	if p.cfg.Forgotten.IsZero() {
		return nil
	}
	p.mu.Lock()
	all := slices.DeleteFunc(slices.Clone(claimed), func(r device.ResourceName) bool { _, recorded := p.uncounted[r]; return recorded })
	p.mu.Unlock()
	return p.saveUncounted(all, p.cfg.Forgotten)
}

func (p *Publisher) saveUncounted(all []device.ResourceName, at time.Time) error {
	if len(all) == 0 {
		return nil
	}
	if err := p.cfg.SaveUncounted(all, at); err != nil {
		return fmt.Errorf("recording that %v are taken off the node: %w", all, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range all {
		p.uncounted[r] = at
	}
	return nil
}

// Uncounted reports whether a resource is offered through claims and the Node does not show it. Pods that were created before since may
// still have been bound by its number; zero: the Node has never shown it. known is false until the Node has been read.
func (p *Publisher) Uncounted(r device.ResourceName) (since time.Time, uncounted, known bool) {
	if !p.cfg.Claimed(r) {
		return time.Time{}, false, true
	}
	p.mu.Lock() // before reading the Node: expected is set before the value is removed
	defer p.mu.Unlock()
	node, known := p.store.now()
	if _, falls := p.expected[r]; !known || !node.there || node.shows(r) || falls {
		return time.Time{}, false, known
	}
	since, recorded := p.uncounted[r]
	if !recorded {
		since = p.cfg.Forgotten
	}
	return since, true, true
}
