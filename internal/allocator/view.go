package allocator

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/placement"
	"github.com/devmgrd/devmgrd/internal/device"
)

// Snapshot returns all pods. It is free while nothing changes.
func (a *Allocator) Snapshot() *device.Snapshot {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.currentLocked()
}

// currentLocked returns the current snapshot.
func (a *Allocator) currentLocked() *device.Snapshot {
	if a.snapshot == nil {
		a.snapshot = a.snapshotLocked()
	}
	return a.snapshot
}

func (a *Allocator) snapshotLocked() *device.Snapshot {
	s := &device.Snapshot{Revision: a.feed.Revision(), Pods: make([]device.PodStatus, 0, len(a.pods))}
	for _, p := range a.pods {
		status := p.status()
		status.Fault, status.HealthKnown = a.healthLocked(p)
		status.GivesUp = a.givesUpLocked(p)
		s.Pods = append(s.Pods, status)
	}
	return s
}

// changedLocked wakes those who wait for a change.
func (a *Allocator) changedLocked() { a.feed.Notify() }

// ChangesSince returns the changes after a revision in order, at most most of them. It returns false if the feed no longer
// has all of them, or never had: then the reader needs a new Snapshot.
func (a *Allocator) ChangesSince(revision uint64, most int) ([]device.Change, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.feed.Since(revision, most)
}

// Updated returns a channel that is closed as soon as the Snapshot or Resources have changed since the call.
func (a *Allocator) Updated() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.feed.Updated()
}

// status returns what readers see of a pod.
func (p *pod) status() device.PodStatus {
	s := device.PodStatus{PodAllocation: p.allocation, Since: p.bound, Demands: p.demand.Demands}
	switch {
	case !p.active():
		s.State, s.Since, s.Release = device.Unknown, p.departure.ended, p.departure.why
	case len(p.demand.Demands) == 0:
		s.State = device.NoDevices
	case p.refused != nil && (p.phase != waiting || p.wait.Reason == p.refused.why.Reason):
		s.State, s.Wait, s.Told, s.Retry, s.Since = device.Waiting, p.refused.wait(), p.refused.why, p.retry, p.refused.since
	case p.served() && p.phase != returned:
		s.State, s.Since = device.Ready, p.since
	default:
		s.State, s.Wait, s.Told, s.Retry, s.Since = device.Waiting, p.wait, p.told, p.retry, p.since
		if p.phase != waiting {
			s.Wait = waitAllocating
		}
	}
	if s.Since.IsZero() {
		s.Since = p.bound
	}
	return s
}

// awaited yields the resources of which the pod waits for devices that the scheduler has not chosen, and may be assigned any that is free or
// becomes free, some of them several times. A pod that could not be served if no other pod had a device takes none.
func (p *pod) awaited(yield func(device.ResourceName) bool) {
	if !p.active() || p.complete() || p.phase == waiting && !p.wait.InUse && lacking[p.wait.Reason] {
		return
	}
	for _, d := range p.demand.Demands {
		if d.Mistake != "" && d.Blocked != device.Allocating {
			continue
		}
		for r, n := range d.Wants {
			if n > 0 && len(d.Fixed[r]) == 0 && !yield(r) {
				return
			}
		}
	}
}

// lacking are the reasons of pods that the node's devices do not suffice for, unless other pods have them. Where a plugin is missing they lack those of
// its resource.
var lacking = map[device.Reason]bool{
	device.PluginMissing: true, device.NotEnoughDevices: true, device.NoSuchDevice: true, device.DeviceUnhealthy: true, device.TopologyMismatch: true,
}

// publishLocked publishes a pod's allocation if it has changed.
func (a *Allocator) publishLocked(p *pod) {
	var now *device.PodAllocation
	if a.pods[p.demand.Pod.UID] == p {
		now = &device.PodAllocation{Pod: p.demand.Pod, Active: p.active(), Incomplete: p.active() && !p.complete(), Assignments: p.assigned}
		now.Containers, now.Sidecars = a.containersLocked(p)
	}
	if a.feed.Publish(p.allocation, now, time.Now()) {
		p.allocation, a.snapshot = now, nil
		p.uses, p.faults = slices.Sorted(maps.Keys(ledger.DevicesOf(p.assigned))), nil
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
		if m, is := a.mirrorOfLocked(p); is {
			return m.Containers, m.Sidecars
		}
	}
	for _, d := range p.demand.Demands {
		if d.Kind != device.Init {
			names = append(names, d.Container.Name)
		}
	}
	return names, 0
}

// Resources returns all resources. Its time grows with the number of resources, cordons, static pods and pods that wait.
func (a *Allocator) Resources() device.Resources {
	a.mu.Lock()
	defer a.mu.Unlock()
	mirrored, awaited := a.mirroredLocked(), map[device.ResourceName]*pod{}
	hidden := a.hiddenFromSchedulerLocked(mirrored)
	for _, p := range a.waiting {
		for r := range p.awaited {
			if first := awaited[r]; first == nil || p.demand.Created.Before(first.demand.Created) {
				awaited[r] = p
			}
		}
	}
	disputed := a.ledger.Disputed()
	all := device.Resources{ByName: make(map[device.ResourceName]device.ResourceStatus, len(a.ledger.Resources)), PodsListed: a.podsListed, Retired: a.retiredLocked()}
	for r, resource := range a.ledger.Resources {
		if !a.knownLocked(r) {
			continue
		}
		s := device.ResourceStatus{OutOfService: a.idleCordonedLocked(r), Cordoned: a.inForce[r], Capacity: resource.Capacity(hidden[r], mirrored[r], a.podsListed), Requested: resource.Requests() + mirrored[r], Unlisted: resource.Unlisted(), Disputed: disputed[r], Refused: resource.AllRefused()}
		if by := awaited[r]; by != nil {
			s.Awaited = by.demand.Pod
		}
		if resource.Offered() {
			offer := resource.Offer()
			s.Offer = &offer
		}
		if resource.Offered() || resource.TakenCount() > 0 {
			s.States = resource.Counts()
		}
		all.ByName[r] = s
	}
	return all
}

// knownLocked reports whether a resource is offered, in use or cordoned, or was forgotten while the Node shows it and pods request it: no other pod fits
// then.
func (a *Allocator) knownLocked(r device.ResourceName) bool {
	resource := a.ledger.Lookup(r)
	return resource.Offered() || resource.TakenCount() > 0 || len(a.inForce[r]) > 0 || a.retired[r] && resource.Requests() > 0
}

// Devices returns the devices of one resource, or of all resources if of is empty, in the order of their names. It returns
// false if the resource is unknown. Its time grows with the number of devices; it holds the lock only for a time that grows
// with the number of devices in use.
func (a *Allocator) Devices(of device.ResourceName) (all []device.DeviceStatus, known bool) {
	for _, r := range a.knownResources(of) {
		known = true
		all = slices.AppendSeq(all, a.statuses(r))
	}
	return all, known || of == ""
}

// EachDevice yields what Devices returns, to readers that keep little of it. Each resource's devices are of one moment.
func (a *Allocator) EachDevice(of device.ResourceName) iter.Seq[device.DeviceStatus] {
	return func(yield func(device.DeviceStatus) bool) {
		for _, r := range a.knownResources(of) {
			for d := range a.statuses(r) {
				if !yield(d) {
					return
				}
			}
		}
	}
}

// Order returns the free devices of a resource in the order in which they should be given out one by one; nil: by their IDs.
func (a *Allocator) Order(r device.ResourceName) []device.ID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return placement.Order(a.ledger.Lookup(r))
}

// knownResources returns the known resources, ascending: all, or only this one.
func (a *Allocator) knownResources(of device.ResourceName) (all []device.ResourceName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for r := range a.ledger.Resources {
		if (of == "" || of == r) && a.knownLocked(r) {
			all = append(all, r)
		}
	}
	slices.Sort(all)
	return all
}

// statuses yields a resource's devices as they are now.
func (a *Allocator) statuses(r device.ResourceName) iter.Seq[device.DeviceStatus] {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := a.ledger.Of(r).View(r)
	v.Cordons, v.Failures, v.Running, v.Claims = a.inForce[r], a.ledger.Failures(r).Recent(time.Now()), map[device.ID][]string{}, map[device.ID][]device.PodUID{}
	for uid, pod := range a.pods {
		for _, d := range pod.demand.Demands {
			for _, id := range d.Fixed[r] {
				v.Claims[id] = append(v.Claims[id], uid)
			}
		}
		for awaited := range pod.awaited {
			if v.Awaited || awaited == r {
				v.Awaited = true
				break
			}
		}
	}
	for _, containers := range a.ledger.Quarantined {
		for name, choice := range containers {
			for _, id := range choice[r] {
				v.Running[id] = append(v.Running[id], name)
			}
		}
	}
	return v.Statuses(a.currentLocked())
}
