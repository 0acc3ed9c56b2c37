package allocator

import (
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Bounds of the changes kept for followers: their number, and their memory by weight. Changes of pods with few devices weigh
// some 2 KiB each, those of a pod with 8000 devices a megabyte.
const (
	maxChanges      = 4096
	maxChangesBytes = 16 << 20
)

// A feed publishes assignments to readers. Allocator.mu guards it.
type feed struct {
	revision uint64           // of the newest change
	changes  []device.Change  // the newest changes, the oldest first
	weights  []int            // of each of the changes
	weight   int              // of all of them
	updated  chan struct{}    // closed with the next change
	snapshot *device.Snapshot // the latest one built
}

// Snapshot returns the current allocations. It is free while nothing changes.
func (a *Allocator) Snapshot() *device.Snapshot {
	a.mu.Lock()
	defer a.mu.Unlock()
	if b := a.feed.snapshot; b != nil && b.Revision == a.feed.revision {
		return b
	}
	b := &device.Snapshot{Revision: a.feed.revision, Pods: make([]*device.PodAllocation, 0, len(a.pods))}
	for _, p := range a.pods {
		b.Pods = append(b.Pods, p.allocation)
	}
	a.feed.snapshot = b
	return b
}

// ChangesSince returns the changes after a revision in order, at most most of them. It returns false if the feed no longer
// has all of them, or never had: then the reader needs a new Snapshot.
func (a *Allocator) ChangesSince(revision uint64, most int) ([]device.Change, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := &a.feed
	if revision > b.revision || b.revision-revision > uint64(len(b.changes)) {
		return nil, false
	}
	n := min(int(b.revision-revision), most)
	all := make([]device.Change, n)
	copy(all, b.changes[len(b.changes)-int(b.revision-revision):])
	return all, true
}

// Updated returns a channel that is closed as soon as the feed, an offer or a pod's reason to wait has changed since the
// call.
func (a *Allocator) Updated() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.feed.updated
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
	case p == nil || !p.active || p.releasing:
		return device.Readiness{State: device.Unknown}
	case len(p.demand.Demands) == 0:
		return device.Readiness{State: device.NoDevices}
	case p.served():
		return device.Readiness{State: device.Ready}
	case p.phase == parked:
		return device.Readiness{State: device.Waiting, Wait: p.wait}
	}
	return device.Readiness{State: device.Waiting, Wait: waitAllocating}
}

// publishLocked publishes a pod's allocation if it has changed.
func (a *Allocator) publishLocked(p *pod) {
	var now *device.PodAllocation
	if a.pods[p.demand.Pod.UID] == p {
		now = &device.PodAllocation{Pod: p.demand.Pod, Active: p.active, Incomplete: p.active && !p.complete(), Assignments: p.assigned}
		now.Containers, now.Sidecars = a.containersLocked(p)
	}
	before := p.allocation
	if alike(before, now) {
		return
	}
	p.allocation = now
	b := &a.feed
	b.revision++
	b.keep(device.Change{Revision: b.revision, At: time.Now(), Before: before, After: now})
	b.notify()
}

// keep adds a change and drops the oldest ones until the bounds hold. It always keeps the newest.
func (b *feed) keep(c device.Change) {
	n := weight(c)
	b.changes, b.weights, b.weight = append(b.changes, c), append(b.weights, n), b.weight+n
	for len(b.changes) > 1 && (len(b.changes) > maxChanges || b.weight > maxChangesBytes) {
		b.weight -= b.weights[0]
		b.changes[0] = device.Change{} // the array behind the slice stays until it is full
		b.changes, b.weights = b.changes[1:], b.weights[1:]
	}
}

// weight estimates the memory that a change holds, in bytes. Memory shared by several changes counts for each of them.
func weight(c device.Change) int {
	n := 128
	for _, h := range []*device.PodAllocation{c.Before, c.After} {
		if h == nil {
			continue
		}
		n += 256
		for _, name := range h.Containers {
			n += 16 + len(name)
		}
	}
	if c.After != nil {
		n += weightOf(c.After.Assignments)
	}
	if c.Before != nil && (c.After == nil || !sameAssignments(c.Before, c.After)) {
		n += weightOf(c.Before.Assignments)
	}
	return n
}

func weightOf(all []device.Assignment) int {
	n := 0
	for _, as := range all {
		n += 128
		for _, s := range as.Shares {
			n += 256 + 24*len(s.Near)
			for _, id := range s.IDs {
				n += 16 + len(id)
			}
			for _, env := range []map[string]string{s.Grant.Env, s.Grant.Annotations} {
				for k, v := range env {
					n += 64 + len(k) + len(v)
				}
			}
			for _, m := range s.Grant.Mounts {
				n += 64 + len(m.ContainerPath) + len(m.HostPath)
			}
			for _, d := range s.Grant.Nodes {
				n += 64 + len(d.ContainerPath) + len(d.HostPath)
			}
			for _, name := range s.Grant.CDI {
				n += 16 + len(name)
			}
		}
	}
	return n
}

// notify wakes the followers.
func (b *feed) notify() {
	close(b.updated)
	b.updated = make(chan struct{})
}

// alike reports whether two allocations of one pod are published in the same way.
func alike(a, b *device.PodAllocation) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Active == b.Active && a.Incomplete == b.Incomplete && a.Sidecars == b.Sidecars && slices.Equal(a.Containers, b.Containers) &&
		sameAssignments(a, b)
}

// sameAssignments reports whether two allocations share their assignments in memory: values are replaced, never edited.
func sameAssignments(a, b *device.PodAllocation) bool {
	return len(a.Assignments) == len(b.Assignments) && (len(a.Assignments) == 0 || &a.Assignments[0] == &b.Assignments[0])
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
