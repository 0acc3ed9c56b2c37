package allocator

import (
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Snapshot returns the current allocations. It is free while nothing changes.
func (a *Allocator) Snapshot() *device.Snapshot {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.feed.Snapshot(len(a.pods), func(yield func(*device.PodAllocation) bool) {
		for _, p := range a.pods {
			if !yield(p.allocation) {
				return
			}
		}
	})
}

// ChangesSince returns the changes after a revision in order, at most most of them. It returns false if the feed no longer
// has all of them, or never had: then the reader needs a new Snapshot.
func (a *Allocator) ChangesSince(revision uint64, most int) ([]device.Change, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.feed.Since(revision, most)
}

// Updated returns a channel that is closed as soon as the feed, an offer or a pod's reason to wait has changed since the
// call.
func (a *Allocator) Updated() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.feed.Updated()
}

// Offers returns the offers that the allocator uses.
func (a *Allocator) Offers() map[device.ResourceName]device.Offer {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make(map[device.ResourceName]device.Offer, len(a.pools))
	for r, p := range a.pools {
		if p.Offered() {
			all[r] = p.Offer()
		}
	}
	return all
}

// PodReadiness returns the readiness of a pod as a whole: Unknown, NoDevices, Ready or Waiting. Waiting covers an attempt in
// flight.
func (a *Allocator) PodReadiness(uid device.PodUID) device.Readiness {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[uid]
	switch {
	case p == nil || !p.active() || p.phase == returned:
		return device.Readiness{State: device.Unknown}
	case len(p.demand.Demands) == 0:
		return device.Readiness{State: device.NoDevices}
	case p.served():
		return device.Readiness{State: device.Ready}
	case p.phase == waiting:
		return device.Readiness{State: device.Waiting, Wait: p.wait}
	}
	return device.Readiness{State: device.Waiting, Wait: waitAllocating}
}

// publishLocked publishes a pod's allocation if it has changed.
func (a *Allocator) publishLocked(p *pod) {
	var now *device.PodAllocation
	if a.pods[p.demand.Pod.UID] == p {
		now = &device.PodAllocation{Pod: p.demand.Pod, Active: p.active(), Incomplete: p.active() && !p.complete(), Assignments: p.assigned}
		now.Containers, now.Sidecars = a.containersLocked(p)
	}
	if a.feed.Publish(p.allocation, now, time.Now()) {
		p.allocation = now
	}
}

// containersLocked returns the names of the containers that run until the pod ends. The runtime reports a static pod
// container by container, so its mirror pod supplies the names; without a mirror pod only containers that request devices are
// known.
func (a *Allocator) containersLocked(p *pod) (names []string, sidecars int) {
	if len(p.demand.Containers) > 0 {
		return p.demand.Containers, p.demand.Sidecars
	}
	if p.demand.Local {
		for _, m := range a.mirrors {
			if m.Pod.Namespace == p.demand.Pod.Namespace && m.Pod.Name == p.demand.Pod.Name {
				return m.Containers, m.Sidecars
			}
		}
	}
	for _, d := range p.demand.Demands {
		if d.Kind != device.Init {
			names = append(names, d.Container.Name)
		}
	}
	return names, 0
}
