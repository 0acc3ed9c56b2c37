package nodestatus

import (
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
)

// A resource is contested when another writer has changed its published capacity contentionLimit times, each time within
// contentionWindow of the last. A single change is an accident, or a recreated Node. A kubelet that manages the resource too
// writes its own value every few seconds.
const (
	contentionLimit  = 3
	contentionWindow = time.Minute
)

// contention records which resources are contested.
type contention struct {
	now func() time.Time

	mu          locks.Mutex[locks.Leaf]
	overwritten map[device.ResourceName]overwrites
	kubelets    map[device.ResourceName]bool // replaced, never edited: what the kubelet's device manager has too
}

type overwrites struct {
	times int
	last  time.Time
}

// record records a change by another writer and returns their number so far.
func (v *contention) record(r device.ResourceName) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.overwritten == nil {
		v.overwritten = map[device.ResourceName]overwrites{}
	}
	one := v.overwritten[r]
	if v.now().Sub(one.last) > contentionWindow {
		one = overwrites{}
	}
	one = overwrites{one.times + 1, v.now()}
	v.overwritten[r] = one
	return one.times
}

// contested returns the contested resources, ascending.
func (v *contention) contested() []device.ResourceName {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []device.ResourceName
	for r, one := range v.overwritten {
		switch {
		case v.now().Sub(one.last) > contentionWindow:
			delete(v.overwritten, r)
		case one.times >= contentionLimit:
			all = append(all, r)
		}
	}
	slices.Sort(all)
	return all
}

// share records what the kubelet's device manager has too, and returns which of it is new, ascending.
func (v *contention) share(all map[device.ResourceName]bool) (added []device.ResourceName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for r := range all {
		if !v.kubelets[r] {
			added = append(added, r)
		}
	}
	v.kubelets = all
	slices.Sort(added)
	return added
}

// shared returns the resources that the kubelet's device manager has too, in a map that never changes.
func (v *contention) shared() map[device.ResourceName]bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.kubelets
}
